"""Identification trials: every input against one reference per speaker, walked in tiles and never stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vpmetrics._checks import check_floating, check_integers, check_same_device, check_shape
from vpmetrics._precision import result_dtype, widen

SCORINGS = ("cosine", "euclidean")


class References(NamedTuple):
    """One reference per speaker, and what it takes to leave an utterance out of its own speaker's.

    The means are kept as sums of deviations from ``anchor``, in double precision: the mean of equal rows is then that
    row to the last bit, so features that say nothing tie exactly, and one utterance can be taken out again.
    """

    anchor: Tensor  # (D,)
    sums: Tensor  # (N, D), of the deviations from the anchor
    counts: Tensor  # (N,)
    speakers: Tensor  # (N,), ascending
    own: Tensor | None  # (B, D): row i is left out of the mean that input i is compared with


class Tile(NamedTuple):
    """The scores of a few inputs against every reference."""

    rows: slice
    scores: Tensor  # (b, N), free to be overwritten
    match: Tensor  # (b, 1), the score of the input's own speaker; equal to its entry in ``scores``
    rounding: Tensor  # (b, 1) or scalar, differences up to this are no differences


def build_references(utterances: Tensor, speakers: Tensor, own: Tensor | None) -> References:
    """Sum the utterances of each speaker, in chunks so that no second copy of them is made."""
    names, index = speakers.unique(return_inverse=True)
    anchor = widen(utterances[:1]).sum(dim=0)  # zeros when there is no row
    sums = anchor.new_zeros(len(names), utterances.shape[1])
    for rows in slices(len(utterances), max(1, 2**20 // max(1, utterances.shape[1]))):
        sums.index_add_(0, index[rows], widen(utterances[rows]) - anchor)
    counts = torch.zeros_like(names, dtype=torch.int64).index_add_(0, index, torch.ones_like(index))
    return References(anchor, sums, counts, names, own)


class Trials(NamedTuple):
    """Inputs, the references they are compared with, and where each finds its own speaker."""

    inputs: Tensor  # (B, D)
    references: References
    column: Tensor  # (B,), of the input's speaker among the references
    usable: Tensor  # (B,), whether a reference of that speaker is left
    finite: Tensor  # (), whether everything is a number


def prepare_trials(
    inputs: Tensor, speakers: Tensor, references: Tensor | None, reference_speakers: Tensor | None
) -> Trials:
    """Check the arguments of an identification, build its references, find each input's own.

    Without ``reference_speakers``, row i of ``references`` (by default of ``inputs``) is the utterance of input i.
    """
    utterances = inputs if references is None else references
    check_utterances("inputs", inputs, "speakers", speakers)
    if references is None and reference_speakers is not None:
        raise ValueError("Expected `references` along with `reference_speakers`, but got None.")
    own = None if reference_speakers is not None else utterances
    check_utterances("references", utterances, "reference_speakers", speakers if own is not None else reference_speakers)
    if utterances.shape[1] != inputs.shape[1]:
        raise ValueError(
            f"Expected `references` to have {inputs.shape[1]} columns, as `inputs` has, but got {utterances.shape[1]}."
        )
    built = build_references(utterances, speakers if reference_speakers is None else reference_speakers, own)
    column, usable = _find_speakers(built, speakers)
    return Trials(inputs, built, column, usable, inputs.isfinite().all() & utterances.isfinite().all())


def check_utterances(name: str, rows: Tensor, speakers_name: str, speakers: Tensor | None) -> None:
    """Kinds and shapes of utterances and their speakers."""
    check_floating(name, rows)
    check_integers(speakers_name, speakers)
    if rows.ndim != 2:
        raise ValueError(f"Expected `{name}` to have shape (rows, dimensions), but got {tuple(rows.shape)}.")
    check_shape(speakers_name, speakers, (len(rows),), f"one per row of `{name}`")
    check_same_device(name, rows, speakers_name, speakers)


def walk(trials: Trials, scoring: str, subset: slice | None = None) -> Iterator[Tile]:
    """Score inputs against every reference, a tile at a time; nothing here waits for the device."""
    references, dtype = trials.references, result_dtype(trials.inputs)
    centre = references.anchor if scoring == "euclidean" else torch.zeros_like(references.anchor)
    against = _prepare((_means(references) - centre).to(dtype), scoring)
    for rows in slices(len(trials.inputs), tile_rows(trials.inputs, len(against))):
        inputs, column = trials.inputs[rows], trials.column[rows]
        probes = _prepare((widen(inputs) - centre).to(dtype), scoring)
        scores = _scores(probes, against, scoring)
        if references.own is None:
            match = scores.gather(1, column.unsqueeze(1))
        else:
            left = _leave_one_out(references, references.own[rows], column)
            match = _paired_scores(probes, _prepare((left - centre).to(dtype), scoring), scoring)
            scores.scatter_(1, column.unsqueeze(1), match)
        yield Tile(rows, scores, match, _rounding(probes, against, match, scoring))


def tile_rows(inputs: Tensor, columns: int) -> int:
    """How many inputs to score at once: a tile fits a CPU's cache, or fills a GPU."""
    scores = 2**20 if inputs.device.type == "cpu" else 2**24
    return max(1, scores // max(1, columns, inputs.shape[1]))


def slices(length: int, step: int) -> Iterator[slice]:
    """Cut ``range(length)`` into pieces of at most ``step``."""
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _find_speakers(references: References, speakers: Tensor) -> tuple[Tensor, Tensor]:
    names = references.speakers
    if len(names) == 0:
        return torch.zeros_like(speakers, dtype=torch.int64), torch.zeros_like(speakers, dtype=torch.bool)
    column = torch.searchsorted(names, speakers.contiguous()).clamp(max=len(names) - 1)
    needed = 1 if references.own is None else 2
    return column, (names[column] == speakers) & (references.counts[column] >= needed)


def _means(references: References) -> Tensor:
    return references.anchor + references.sums / references.counts.unsqueeze(1)


def _leave_one_out(references: References, own: Tensor, column: Tensor) -> Tensor:
    deviation = widen(own) - references.anchor
    others = (references.counts[column] - 1).clamp(min=1).unsqueeze(1)
    return references.anchor + (references.sums[column] - deviation) / others


def _prepare(rows: Tensor, scoring: str) -> Tensor:
    return normalize(rows, dim=1) if scoring == "cosine" else rows


def _scores(a: Tensor, b: Tensor, scoring: str) -> Tensor:
    """Similarity of every row of ``a`` with every row of ``b``, ``(len(a), len(b))``; higher is more alike."""
    if scoring == "cosine":
        return a @ b.T
    return torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist").neg_()


def _paired_scores(a: Tensor, b: Tensor, scoring: str) -> Tensor:
    """Similarity of row i of ``a`` with row i of ``b``, ``(len(a), 1)``."""
    if scoring == "cosine":
        return (a * b).sum(dim=1, keepdim=True)
    return torch.linalg.vector_norm(a - b, dim=1, keepdim=True).neg_()


def _rounding(a: Tensor, b: Tensor, level: Tensor, scoring: str) -> Tensor:
    """By how much two scores that are equal on paper may come out apart.

    Matrix products sum the last few columns in another order than the rest, so equal references need not get equal
    scores: off by an ulp or two on a CPU. A squared distance is off by as much, relative to the norms, and its root
    by the derivative of the root at ``level``.
    """
    unit = torch.finfo(a.dtype).eps * max(8.0, math.sqrt(a.shape[1]))
    if scoring == "cosine":
        return a.new_full((), unit)
    norms = a.square().sum(dim=1, keepdim=True) + b.square().sum(dim=1).amax()
    squared = unit * norms
    return squared / torch.maximum(2 * level.abs(), squared.sqrt()).clamp(min=torch.finfo(a.dtype).tiny)
