"""Identification trials: every input against one reference per speaker, walked in tiles and never stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import check_same_device, check_utterances
from vpmetrics._precision import result_dtype, widen
from vpmetrics._trials.scorers import ScoreFunction, Scoring, resolve_scoring
from vpmetrics._trials.utterances import Sides


class References(NamedTuple):
    """One reference per speaker: the mean of the speaker's utterances, of which any one can be taken out again.

    Means are kept as sums of deviations from ``anchor``, in double precision. The mean of equal rows is then that row
    to the last bit, with and without one of them, so features that say nothing tie.
    """

    utterances: Tensor  # (M, D)
    speakers: Tensor  # (N,), ascending
    anchor: Tensor  # (D,)
    sums: Tensor  # (N, D), of the deviations from the anchor
    counts: Tensor  # (N,)


class Trials(NamedTuple):
    """Inputs, the references they are compared with, and where each finds its own speaker."""

    inputs: Tensor  # (B, D)
    references: References
    column: Tensor  # (B,), of the input's speaker among the references
    own: Tensor | None  # (B,), the utterance to leave out of the speaker's mean, -1 for none; or None for all of them
    usable: Tensor  # (B,), whether a reference of that speaker is left
    finite: Tensor  # (), whether everything is a number


class Tile(NamedTuple):
    """The scores of a few inputs against every reference."""

    rows: slice
    scores: Tensor  # (b, N), free to be overwritten
    match: Tensor  # (b, 1), the score of the input's own speaker; equal to its entry in ``scores``
    rounding: Tensor  # (b, 1), differences up to this are no differences


def prepare_trials(
    inputs: Tensor, speakers: Tensor, references: Tensor | None, reference_speakers: Tensor | None
) -> Trials:
    """Check the arguments of an identification and form its trials.

    Without ``reference_speakers``, row i of ``references`` (by default of ``inputs``) is the utterance of input i.
    """
    if references is None and reference_speakers is not None:
        raise ValueError("Expected `references` along with `reference_speakers`, but got None.")
    utterances, names = inputs if references is None else references, reference_speakers
    check_utterances("inputs", inputs, "speakers", speakers)
    check_utterances("references", utterances, "reference_speakers", speakers if names is None else names)
    check_same_device("inputs", inputs, "references", utterances)
    if utterances.shape[1] != inputs.shape[1]:
        raise ValueError(
            f"Expected `references` to have {inputs.shape[1]} columns, as `inputs` has, but got {utterances.shape[1]}."
        )
    own = torch.arange(len(inputs), device=inputs.device) if names is None else None
    return form_trials(inputs, speakers, utterances, speakers if names is None else names, own)


def form_trials(
    inputs: Tensor, speakers: Tensor, utterances: Tensor, reference_speakers: Tensor, own: Tensor | None
) -> Trials:
    """One reference per speaker, and for each input the place of its own."""
    references = _build(utterances, reference_speakers)
    finite, count = inputs.isfinite().all() & utterances.isfinite().all(), len(references.speakers)
    if count == 0:
        column, usable = torch.zeros_like(speakers), torch.zeros_like(speakers, dtype=torch.bool)
        return Trials(inputs, references, column, own, usable, finite)
    column = torch.searchsorted(references.speakers, speakers.contiguous()).clamp(max=count - 1)
    needed = 1 if own is None else 1 + (own >= 0).long()
    usable = (references.speakers[column] == speakers) & (references.counts[column] >= needed)
    return Trials(inputs, references, column, own, usable, finite)


def trials_of_sides(sides: Sides, condition: str) -> Trials:
    """Trials of a condition: references from the side of its first letter, inputs from that of its second.

    Chosen references are no inputs. Where none were chosen, every recording is left out of what it is compared with.
    """
    reference, probe = sides.pair(condition)
    if reference.is_reference is not None and probe.is_reference is not None:
        known, unknown = reference.is_reference, ~probe.is_reference
        return form_trials(
            probe.vectors[unknown], probe.speakers[unknown], reference.vectors[known], reference.speakers[known], None
        )
    recordings, order = reference.utterances.sort()
    own = torch.full_like(probe.utterances, -1)
    if len(recordings) > 0:
        place = torch.searchsorted(recordings, probe.utterances).clamp(max=len(recordings) - 1)
        own = torch.where(recordings[place] == probe.utterances, order[place], -1)
    return form_trials(probe.vectors, probe.speakers, reference.vectors, reference.speakers, own)


def _build(utterances: Tensor, speakers: Tensor) -> References:
    names, index = speakers.unique(return_inverse=True)
    anchor = widen(utterances[:1]).sum(dim=0)  # zeros when there is no row
    sums = anchor.new_zeros(len(names), utterances.shape[1])
    # In pieces, so that there is never a second, wider copy of all utterances.
    for rows in slices(len(utterances), max(1, 2**20 // max(1, utterances.shape[1]))):
        sums.index_add_(0, index[rows], widen(utterances[rows]) - anchor)
    counts = torch.zeros_like(names, dtype=torch.int64).index_add_(0, index, torch.ones_like(index))
    return References(utterances, names, anchor, sums, counts)


def walk(trials: Trials, scoring: Scoring) -> Iterator[Tile]:
    """Score inputs against every reference, a tile at a time; nothing here waits for the device."""
    if len(trials.references.speakers) == 0:
        return
    references, dtype, scorer = trials.references, result_dtype(trials.inputs), resolve_scoring(scoring)
    # A distance does not change when everything is moved, and loses the fewest digits near the origin.
    centre = references.anchor if scoring == "euclidean" else torch.zeros_like(references.anchor)

    def prepare(rows: Tensor) -> Tensor:
        prepared: Tensor = scorer.prepare((widen(rows) - centre).to(dtype))
        return prepared

    against = prepare(references.anchor + references.sums / references.counts.unsqueeze(1))
    for rows in slices(len(trials.inputs), tile_rows(trials.inputs, len(against))):
        with torch.autocast(trials.inputs.device.type, enabled=False):
            probes, column = prepare(trials.inputs[rows]), trials.column[rows].unsqueeze(1)
            scores = scorer.compare(probes, against)
            if trials.own is None:
                match = scores.gather(1, column)
            else:
                left = prepare(_leave_out(references, trials.own[rows], trials.column[rows]))
                match = _compare_rows(probes, left, scoring, scorer.compare)
                scores.scatter_(1, column, match)
            with torch.no_grad():
                rounding = _rounding(probes, against, scores, match, scoring)
        yield Tile(rows, scores, match, rounding)


def tile_rows(inputs: Tensor, columns: int) -> int:
    """How many inputs to score at once: a tile fits a CPU's cache, or fills a GPU."""
    scores = 2**20 if inputs.device.type == "cpu" else 2**24
    return max(1, scores // max(1, columns, inputs.shape[1]))


def slices(length: int, step: int) -> Iterator[slice]:
    """Cut ``range(length)`` into pieces of at most ``step``."""
    return (slice(start, min(start + step, length)) for start in range(0, length, step))


def _leave_out(references: References, own: Tensor, column: Tensor) -> Tensor:
    """Mean of the speaker's utterances without one of them, for each input."""
    out = (own >= 0).unsqueeze(1)
    deviation = widen(references.utterances[own.clamp(min=0)]) - references.anchor
    others = (references.counts[column].unsqueeze(1) - out.long()).clamp(min=1)
    mean: Tensor = references.anchor + (references.sums[column] - torch.where(out, deviation, 0)) / others
    return mean


def _compare_rows(a: Tensor, b: Tensor, scoring: Scoring, compare: ScoreFunction) -> Tensor:
    """Score of row i of ``a`` with row i of ``b``, ``(len(a), 1)``."""
    if scoring in ("cosine", "dot"):
        return (a * b).sum(dim=1, keepdim=True)
    if scoring == "euclidean":
        distance: Tensor = torch.linalg.vector_norm(a - b, dim=1, keepdim=True)
        return -distance
    # What is known of any other scoring is tables of all pairs: small ones, of which the diagonal is kept.
    tables = [compare(a[rows], b[rows]).diagonal() for rows in slices(len(a), 32)]
    return torch.cat(tables).unsqueeze(1)


def _rounding(a: Tensor, b: Tensor, scores: Tensor, match: Tensor, scoring: Scoring) -> Tensor:
    """By how much two scores that are equal on paper may come out apart, ``(len(a), 1)``.

    Matrix products add up some columns in another order than others, so equal references need not get equal scores: on
    a CPU they are an ulp or two apart. A squared distance is off by as much relative to the norms, and a distance by
    that over the slope of the square.
    """
    unit = torch.finfo(a.dtype).eps * max(8.0, math.sqrt(a.shape[1]))
    if scoring == "cosine":
        return torch.full_like(match, unit)
    if scoring != "euclidean":
        return unit * scores.abs().amax(dim=1, keepdim=True)
    squared = unit * (a.square().sum(dim=1, keepdim=True) + b.square().sum(dim=1).amax())
    return squared / torch.maximum(2 * match.abs(), squared.sqrt()).clamp(min=torch.finfo(a.dtype).tiny)
