"""Identification trials: every input against one reference per speaker, in blocks that are never stored.

A reference is the mean of the utterances of one speaker, or of one session of a speaker. Where an input is among them
it is left out *in step*: the j-th utterance of a speaker is compared with means that all lack their j-th utterance. If
only the own mean lacked it, that mean would average fewer utterances than all others, and its length and direction
would reveal it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._engine.conditions import Condition
from vpmetrics._engine.distributed import SINGLE_PROCESS, Processes
from vpmetrics._engine.precision import all_finite, result_dtype, widen
from vpmetrics._engine.scorers import Scoring, prepare_rows, resolve_scoring
from vpmetrics._engine.utterances import EvaluationData, Utterances, find_indices, number_sessions_by_value
from vpmetrics._engine.validation import check_same_device, check_utterances


class References(NamedTuple):
    """What references are made of: units of utterances, each of one speaker, or of one session of a speaker.

    Units of a speaker lie side by side, and so do the rows of a unit. Sums are of deviations from ``anchor``, in double
    precision: the mean of equal rows is then that row to the last bit, with and without one of them, so features that
    say nothing tie.
    """

    vectors: Tensor  # (M, D)
    speakers: Tensor  # (N,), ascending
    anchor: Tensor  # (D,)
    sums: Tensor  # (U, D)
    counts: Tensor  # (U,)
    units: Tensor  # (N,), how many each speaker has
    first_unit: Tensor  # (N,)
    rows: Tensor  # (M,), in the order of their units, within a unit in one that their values determine
    first_row: Tensor  # (U,)

    def galleries(self, turn: Tensor, step: Tensor) -> Tensor:
        """References for every speaker, ``(P, N, D)``: of its unit number ``turn``, without its utterance ``step``.

        Both ``(P,)``, and they count round and round. A step below 0 leaves nothing out, and of a single utterance
        nothing is left out.
        """
        unit = self.first_unit + turn[:, None] % self.units
        counts, step = self.counts[unit], step[:, None]
        lacks = (counts > 1) & (step >= 0)
        out = widen(self.vectors[self.rows[self.first_row[unit] + step.clamp(min=0) % counts]]).sub_(self.anchor)
        # In place: there may be a wide row for each of very many speakers.
        sums = self.sums[unit].sub_(out.masked_fill_(~lacks[..., None], 0))
        return sums.div_((counts - lacks.long())[..., None]).add_(self.anchor)

    def whole(self) -> Tensor:
        """The first unit of every speaker with nothing left out, ``(N, D)``."""
        first = self.units.new_zeros(1)
        return self.galleries(first, first - 1).squeeze(0)


class GallerySlice(NamedTuple):
    """Inputs ``start`` to ``end`` in order, which share a gallery."""

    gallery: int
    start: int
    end: int


class IdentificationTrials(NamedTuple):
    """Inputs, the references they are compared with, and where each finds its own speaker."""

    inputs: Tensor  # (B, D)
    references: References
    column: Tensor  # (B,), of the input's speaker among the references
    usable: Tensor  # (B,), whether a reference of that speaker is left
    finite: Tensor  # (), whether everything is a number
    order: Tensor  # (B,), inputs that share a gallery side by side
    galleries: Tensor  # (2, P), turn and step of each
    parts: list[GallerySlice]
    processes: Processes = SINGLE_PROCESS

    @property
    def num_references(self) -> int:
        """How many references there are."""
        return len(self.references.speakers)


class ScoreRows(NamedTuple):
    """The scores of a few inputs against every reference."""

    rows: Tensor  # (b,), which inputs
    scores: Tensor  # (b, N), free to be overwritten
    match: Tensor  # (b, 1), the score of the input's own speaker; equal to its entry in ``scores``
    rounding: Tensor  # (b, 1), differences up to this are no differences


def prepare_trials(
    inputs: Tensor, speakers: Tensor, references: Tensor | None, reference_speakers: Tensor | None
) -> IdentificationTrials:
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
    own = torch.arange(len(inputs), device=inputs.device)
    of_reference = speakers if names is None else names
    enrolment, test = (
        Utterances(utterances, of_reference, own, of_reference),
        Utterances(inputs, speakers, own, speakers),
    )
    return form_trials(enrolment, test, own if names is None else torch.full_like(own, -1))


def form_condition_trials(data: EvaluationData, condition: Condition) -> IdentificationTrials:
    """Return the trials of a condition: one reference per speaker, and every test utterance an input."""
    if condition.target_sessions != "any":
        data = data._replace(protected=number_sessions_by_value(data.protected))
    enrolment, test = data.sides(condition, enrolment="utterance")
    if enrolment is test:
        own = torch.arange(len(test), device=test.speakers.device)
    else:
        own = find_indices(enrolment.ids, test.ids)
    return form_trials(enrolment, test, own, condition.target_sessions, data.processes)


def form_trials(
    reference: Utterances,
    probe: Utterances,
    own: Tensor,
    own_session: str = "any",
    processes: Processes = SINGLE_PROCESS,
) -> IdentificationTrials:
    """Return inputs and galleries: ``own`` ``(B,)`` is the row of an input's own recording among the references.

    Or -1.
    """
    references, unit_of_row, session_of_unit = build_references(reference, by_session=own_session != "any")
    finite = all_finite(probe.embeddings) & all_finite(reference.embeddings)
    column = find_indices(references.speakers, probe.speakers)
    known, column = column >= 0, column.clamp(min=0)
    turn, step = torch.zeros_like(own), torch.full_like(own, -1)
    if len(references.speakers) == 0:
        return IdentificationTrials(
            probe.embeddings, references, column, known, finite, own, own.new_zeros(2, 0), [], processes
        )
    unit = references.first_unit[column]
    if session_of_unit is not None and probe.sessions is not None:
        turn = _turn_of(probe.sessions, column, references, session_of_unit)
        known = known & (turn >= 0)
        if own_session == "other":
            turn, known = turn + 1, known & (references.units[column] > 1)
        unit = unit + turn.clamp(min=0) % references.units[column]
    if own_session != "other":
        step = torch.where(own >= 0, _steps(references, unit_of_row, reference.keys)[own.clamp(min=0)], -1)
    usable = known & (references.counts[unit] > (step >= 0).long())
    galleries = _parts(turn.clamp(min=0), step, len(reference.speakers))
    return IdentificationTrials(probe.embeddings, references, column, usable, finite, *galleries, processes)


def build_references(side: Utterances, by_session: bool) -> tuple[References, Tensor, Tensor | None]:
    """References, the unit of each row, and the session of each unit."""
    vectors = side.embeddings
    names, column = side.speakers.unique(return_inverse=True)
    sessions = side.sessions if by_session else None
    speaker_of_unit, session_of_unit, unit = torch.arange(len(names), device=names.device), None, column
    if sessions is not None:
        units, unit = torch.unique(torch.stack([column, sessions]), dim=1, return_inverse=True)
        speaker_of_unit, session_of_unit = units
    anchor = widen(vectors[:1]).sum(dim=0)  # zeros when there is no row
    sums = anchor.new_zeros(len(speaker_of_unit), vectors.shape[1])
    # In pieces, so that there is never a second, wider copy of all utterances.
    for rows in slices(len(vectors), max(1, 2**20 // max(1, vectors.shape[1]))):
        sums.index_add_(0, unit[rows], widen(vectors[rows]) - anchor)
    counts = torch.zeros_like(speaker_of_unit).index_add_(0, unit, torch.ones_like(unit))
    per_speaker = torch.zeros_like(names, dtype=torch.int64).index_add_(
        0, speaker_of_unit, torch.ones_like(speaker_of_unit)
    )
    first_unit, first_row = (totals.cumsum(0) - totals for totals in (per_speaker, counts))
    order = side.order_by(unit)
    built = References(vectors, names, anchor, sums, counts, per_speaker, first_unit, order, first_row)
    return built, unit, session_of_unit


def _steps(references: References, unit_of_row: Tensor, keys: Tensor) -> Tensor:
    """Which utterance of its unit each row is, ``(M,)``; equal ones are the same, so that no order of rows shows."""
    rows = references.rows
    unit, key = unit_of_row[rows], keys[rows]
    fresh = torch.ones_like(rows, dtype=torch.bool)
    fresh[1:] = (unit[1:] != unit[:-1]) | (key[1:] != key[:-1])
    place = torch.where(fresh, torch.arange(len(rows), device=rows.device), 0).cummax(0).values
    return torch.empty_like(rows).scatter(0, rows, place - references.first_row[unit])


def _turn_of(sessions: Tensor, column: Tensor, references: References, session_of_unit: Tensor) -> Tensor:
    """Which of its speaker's units is of the session of each probe; -1 where none is."""
    speaker = torch.arange(len(references.units), device=sessions.device).repeat_interleave(references.units)
    codes = torch.unique(
        torch.stack([torch.cat([speaker, column]), torch.cat([session_of_unit, sessions])]), dim=1, return_inverse=True
    )[1]
    unit = find_indices(codes[: len(speaker)], codes[len(speaker) :])
    return torch.where(unit >= 0, unit - references.first_unit[column], -1)


def _parts(turn: Tensor, step: Tensor, most: int) -> tuple[Tensor, Tensor, list[GallerySlice]]:
    """Inputs put in the order of their galleries, the galleries, and where those of each begin and end.

    ``most``: more than any step. One number for turn and step: to sort pairs takes many times as long.
    """
    codes, gallery, counts = torch.unique(turn * (most + 1) + step + 1, return_inverse=True, return_counts=True)
    ends = [0, *counts.cumsum(0).tolist()]
    galleries = torch.stack([codes // (most + 1), codes % (most + 1) - 1])
    return gallery.argsort(stable=True), galleries, [GallerySlice(at, *ends[at : at + 2]) for at in range(len(counts))]


def score_inputs(trials: IdentificationTrials, scoring: Scoring, all_ranks: bool = False) -> Iterator[ScoreRows]:
    """Yield the scores of inputs against every reference, a block at a time, of this rank or of all; without a sync."""
    pieces = _pieces(trials)
    return _score_pieces(trials, scoring, pieces if all_ranks else list(trials.processes.share(pieces)))


def _pieces(trials: IdentificationTrials) -> list[GallerySlice]:
    """Parts cut to what is scored at once at most."""
    step = rows_at_once(trials.inputs, len(trials.references.speakers))
    return [
        GallerySlice(part.gallery, part.start + piece.start, part.start + piece.stop)
        for part in trials.parts
        for piece in slices(part.end - part.start, step)
    ]


def _score_pieces(trials: IdentificationTrials, scoring: Scoring, pieces: list[GallerySlice]) -> Iterator[ScoreRows]:
    references, dtype, scorer = trials.references, result_dtype(trials.inputs), resolve_scoring(scoring)

    @lru_cache(maxsize=1)  # of many references a gallery costs more than to compare the few inputs there are at once
    def known(first: int, last: int) -> Tensor:
        galleries = references.galleries(*trials.galleries[:, first:last]).flatten(0, 1)
        rows: Tensor = prepare_rows(galleries, scorer, references.anchor, dtype)
        return rows.view(last - first, len(references.speakers), -1)

    for some in _some_at_once(trials, pieces):
        rows = torch.cat([trials.order[piece.start : piece.end] for piece in some])
        probes = prepare_rows(trials.inputs[rows], scorer, references.anchor, dtype)
        probes_of = probes.split([piece.end - piece.start for piece in some])
        first, last = some[0].gallery, some[-1].gallery
        against = known(first, last + 1)
        pairs = [(part, against[piece.gallery - first]) for piece, part in zip(some, probes_of, strict=True)]
        with torch.autocast(probes.device.type, enabled=False):
            parts = [scorer.compare(*pair) for pair in pairs]
            # What a scorer of the caller's returns may be kept there, and a block is overwritten.
            scores = parts[0] if len(parts) == 1 and scorer.is_builtin else torch.cat(parts)
            match = scores.gather(1, trials.column[rows].unsqueeze(1))
            with torch.no_grad():
                ends = zip(pairs, parts, match.split([len(part) for part in parts]), strict=True)
                rounding = torch.cat([scorer.rounding(*pair, part, own) for pair, part, own in ends])
        yield ScoreRows(rows, scores, match, rounding)


def _some_at_once(trials: IdentificationTrials, pieces: list[GallerySlice]) -> Iterator[list[GallerySlice]]:
    """Neighbouring pieces that together are no more than what is scored at once, nor are their galleries."""
    names, width = len(trials.references.speakers), trials.inputs.shape[1]
    most, some = rows_at_once(trials.inputs, names), list[GallerySlice]()
    most_galleries = max(1, most * max(1, names, width) // max(1, names * width))
    for piece in pieces:
        rows = sum(each.end - each.start for each in some) + piece.end - piece.start
        if some and (rows > most or piece.gallery - some[0].gallery >= most_galleries):
            yield some
            some = []
        some.append(piece)
    if some:
        yield some


def rows_at_once(inputs: Tensor, columns: int) -> int:
    """How many inputs to score at once: a block fits a CPU's cache, or fills a GPU."""
    scores = 2**20 if inputs.device.type == "cpu" else 2**24
    return max(1, scores // max(1, columns, inputs.shape[1]))


def slices(length: int, step: int) -> Iterator[slice]:
    """Cut ``range(length)`` into pieces of at most ``step``."""
    return (slice(start, min(start + step, length)) for start in range(0, length, step))
