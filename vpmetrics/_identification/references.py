"""Identification trials: every input against one reference per speaker, scored in blocks.

A reference is the mean of the utterances of one speaker, or of one session of a speaker. An input
that is among them is left out *in step*: the j-th utterance of a speaker is compared with means
that all lack their j-th utterance. If only the mean of its own speaker lacked it, that mean would
average fewer utterances than all others, and its length and direction would reveal the speaker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._scores.scorers import (
    Scorer,
    Scoring,
    prepare_rows,
    resolve_scoring,
    widest_affordable_dtype,
)
from vpmetrics._util.distributed import SINGLE_PROCESS, Processes
from vpmetrics._util.dtypes import is_finite_everywhere, widen
from vpmetrics._util.validation import check_same_device, check_utterances
from vpmetrics._utterances.canonical_order import (
    count_within,
    hash_rows,
    number_sets,
    order_rows,
    sum_hashes,
)
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import (
    EvaluationData,
    Utterances,
    count_values,
    find_indices,
)

_SESSION_BITS = 32  # of a code of speaker and session
_FEW_SCORES = 1 << 18  # up to as many are compared at once even where most inputs fill up a batch


class References(NamedTuple):
    """Units of utterances that are averaged to references.

    A unit holds all utterances of one speaker, or of one session of a speaker. A gallery is one
    reference per speaker.

    Units of a speaker are adjacent, and so are the rows of a unit. Sums are of deviations from
    ``anchor``, in double precision: the mean of equal rows is then that row to the last bit, with
    and without one of them, so features without information tie.
    """

    vectors: Tensor  # (M, D)
    speakers: Tensor  # (N,), in canonical order
    anchor: Tensor  # (D,)
    sums: Tensor  # (U, D), of the rows of each unit
    counts: Tensor  # (U,), rows of each unit
    units: Tensor  # (N,), how many each speaker has
    first_unit: Tensor  # (N,), of each speaker among the U units
    rows: Tensor  # (M,), of ``vectors``, sorted by unit, and within a unit in canonical order
    first_row: Tensor  # (U,), where the rows of each unit begin in ``rows``

    def unit_means(self) -> Tensor:
        """Return the mean of the first unit of every speaker, ``(N, D)``."""
        return self.sums[self.first_unit] / self.counts[self.first_unit, None] + self.anchor

    def leave_one_out_means(self, unit_number: Tensor, excluded_row: Tensor) -> Tensor:
        """Return G galleries ``(G, N, D)``, each with one reference for every speaker.

        In gallery g the reference of a speaker is the mean of the speaker's unit
        ``unit_number[g]``, without the row of this unit that has the number ``excluded_row[g]``.
        Both numbers count from 0, and begin anew at the end: unit 5 of a speaker with three units
        is unit 2.

        Args:
            unit_number: Integer tensor of shape ``(G,)``.
            excluded_row: Integer tensor of shape ``(G,)``; a negative number excludes nothing. The
                only row of a unit is never excluded.
        """
        excluded_row = excluded_row[:, None]
        unit = self.first_unit + unit_number[:, None] % self.units  # (G, N)
        num_rows = self.counts[unit]
        is_excluding = (num_rows > 1) & (excluded_row >= 0)
        row = self.rows[
            self.first_row[unit] + excluded_row % num_rows
        ]  # no meaning if not excluding
        # The mean without a row follows from the sum, so nothing is summed again.
        deviation = widen(self.vectors[row]) - self.anchor  # (G, N, D)
        excluded_deviation = deviation.masked_fill_(~is_excluding[..., None], 0)
        num_left = num_rows - is_excluding.long()
        return (self.sums[unit] - excluded_deviation) / num_left[..., None] + self.anchor


class IdentificationTrials(NamedTuple):
    """Inputs, the references they are compared with, and the column of each input's own speaker."""

    inputs: Tensor  # (B, D)
    references: References
    column: Tensor  # (B,), of the input's speaker among the references
    usable: Tensor  # (B,), whether a reference of that speaker is left
    finite: Tensor  # (), whether all embeddings are finite
    # (2, G), arguments of ``References.leave_one_out_means``, largest galleries first
    galleries: Tensor
    order: Tensor  # (B,), inputs sorted by gallery
    gallery_of_place: Tensor  # (B,), in this order
    gallery_sizes: tuple[int, ...]  # inputs of each gallery
    processes: Processes = SINGLE_PROCESS

    @property
    def num_references(self) -> int:
        """The number of references, one per speaker."""
        return len(self.references.speakers)


class ScoreRows(NamedTuple):
    """The scores of some inputs against every reference.

    Each input also has its score with its own speaker.
    """

    rows: Tensor  # (b,), which inputs
    scores: Tensor  # (b, N), free to be overwritten
    match: Tensor  # (b, 1), the score of the input's own speaker; equal to its entry in ``scores``
    rounding: Tensor  # (b, 1), scores that differ by no more are tied


def validate_and_form_trials(
    inputs: Tensor, speakers: Tensor, references: Tensor | None, reference_speakers: Tensor | None
) -> IdentificationTrials:
    """Validate the arguments of an identification and form its trials."""
    if references is None and reference_speakers is not None:
        raise ValueError("Expected `references` along with `reference_speakers`, but got None.")
    if references is None:
        vectors = inputs
    else:
        vectors = references
    if reference_speakers is None:
        names = speakers
    else:
        names = reference_speakers
    check_utterances("inputs", inputs, "speakers", speakers)
    check_utterances("references", vectors, "reference_speakers", names)
    check_same_device("inputs", inputs, "references", vectors)
    if vectors.shape[1] != inputs.shape[1]:
        raise ValueError(
            f"Expected `references` to have {inputs.shape[1]} columns, as `inputs` has, but got"
            f" {vectors.shape[1]}."
        )
    # Without `reference_speakers`, row i of the references is the utterance of input i.
    # References in canonical order; inputs stay in theirs, which is that of the results.
    is_paired = reference_speakers is None
    if is_paired:
        order = order_rows(vectors, inputs)
    else:
        order = order_rows(vectors)
    labels, input_speaker = torch.unique(torch.cat([names, speakers]), return_inverse=True)
    reference_speaker, input_speaker = input_speaker.split([len(names), len(speakers)])
    hashes_of_references = sum_hashes(hash_rows(vectors), reference_speaker, len(labels))
    hashes_of_inputs = sum_hashes(hash_rows(inputs), input_speaker, len(labels))
    # Speakers numbered by their rows, so that their order does not depend on labels.
    index_of_label = number_sets(hashes_of_references, hashes_of_inputs)
    enrolment = Utterances(
        embeddings=vectors[order],
        speakers=names[order],
        ids=order,
        speaker_index=index_of_label[reference_speaker[order]],
    )
    test = Utterances(
        embeddings=inputs,
        speakers=speakers,
        ids=torch.arange(len(inputs), device=inputs.device),
        speaker_index=index_of_label[input_speaker],
    )
    if is_paired:
        return form_trials(enrolment, test, enrolment_row=order.argsort())
    return form_trials(enrolment, test)


def add_distractors(enrolment: Utterances, distractors: Tensor | None) -> Utterances:
    """Return the enrolment side with a further speaker per row of ``distractors (G, D)``.

    No test is of these speakers.
    """
    if distractors is None:
        return enrolment
    vectors = distractors.to(enrolment.embeddings)
    if vectors.shape[1] != enrolment.embeddings.shape[1]:
        expected = f"{enrolment.embeddings.shape[1]} columns, as the embeddings have"
        raise ValueError(f"Expected `distractors` to have {expected}, but got {vectors.shape[1]}.")
    distractor_index = torch.arange(len(vectors), device=vectors.device)

    def number_after(column: Tensor) -> Tensor:
        if len(column):
            first_new = column.amax() + 1
        else:
            first_new = column.new_zeros(())
        return torch.cat([column, first_new + distractor_index])

    # Labels of speakers are never negative numbers of strings, and rarely numbers below 0.
    lowest: Tensor | int = 0
    if len(enrolment.speakers):
        lowest = enrolment.speakers.amin().clamp(max=0)
    zeros = torch.zeros_like(distractor_index)
    if enrolment.sessions is None:
        sessions = None
    else:
        sessions = torch.cat([enrolment.sessions, zeros])
    if enrolment.groups is None:
        groups = None
    else:
        groups = torch.cat([enrolment.groups, zeros])
    is_reference = enrolment.is_reference
    if is_reference is not None:
        is_reference = torch.cat([is_reference, torch.ones_like(zeros, dtype=torch.bool)])
    return Utterances(
        embeddings=torch.cat([enrolment.embeddings, vectors]),
        speakers=torch.cat([enrolment.speakers, lowest - 1 - distractor_index]),
        ids=number_after(enrolment.ids),
        speaker_index=number_after(enrolment.speaker_index),
        is_reference=is_reference,
        sessions=sessions,
        groups=groups,
    )


def form_condition_trials(
    data: EvaluationData, condition: Condition, distractors: Tensor | None = None
) -> IdentificationTrials:
    """Return the trials of a condition, among all speakers and ``distractors (G, D)``."""
    enrolment, test = data.sides(condition, references_per="utterance")
    enrolment_row = torch.arange(len(test), device=test.speakers.device)
    if enrolment is not test:
        enrolment_row = find_indices(enrolment.ids, test.ids)
    enrolment = add_distractors(enrolment, distractors)
    return form_trials(enrolment, test, enrolment_row, condition.target_sessions, data.processes)


def form_trials(
    enrolment: Utterances,
    test: Utterances,
    enrolment_row: Tensor | None = None,
    target_sessions: str = "any",
    processes: Processes = SINGLE_PROCESS,
) -> IdentificationTrials:
    """Return the trials of every test utterance, an input, against one reference per speaker.

    ``enrolment_row`` ``(B,)``: the row of each input among the enrolment rows, or -1; None where no
    input is enrolled. Sessions are numbered from 0.
    """
    by_session = target_sessions != "any"
    references, unit_codes, unit_of_row = _build_references(enrolment, by_session)
    finite = is_finite_everywhere(test.embeddings) & is_finite_everywhere(enrolment.embeddings)
    column = find_indices(references.speakers, test.speakers)
    usable = column >= 0
    column = column.clamp(min=0)
    if len(references.speakers) == 0:
        no_input = column.new_zeros(0)
        return IdentificationTrials(
            inputs=test.embeddings,
            references=references,
            column=column,
            usable=usable,
            finite=finite,
            galleries=no_input.expand(2, 0),
            order=no_input,
            gallery_of_place=no_input,
            gallery_sizes=(),
            processes=processes,
        )
    unit_number = torch.zeros_like(column)
    excluded_row = torch.full_like(column, -1)
    if by_session and test.sessions is not None:
        unit = find_indices(unit_codes, (column << _SESSION_BITS) + test.sessions)
        usable = usable & (unit >= 0)
        unit_number = torch.where(unit >= 0, unit - references.first_unit[column], 0)
        if target_sessions == "other":
            usable = usable & (references.units[column] > 1)
            unit_number = unit_number + 1
    unit = references.first_unit[column] + unit_number % references.units[column]
    if enrolment_row is not None and target_sessions != "other":
        row_within_unit = count_within(unit_of_row)[enrolment_row.clamp(min=0)]
        excluded_row = torch.where(enrolment_row >= 0, row_within_unit, -1)
    usable = usable & (references.counts[unit] > (excluded_row >= 0).long())

    # Inputs with the same unit number and excluded row have the same gallery.
    # One number for unit and row: to sort pairs takes many times as long.
    base = len(enrolment) + 1
    code_of_input = unit_number * base + excluded_row + 1
    codes, gallery_of_input, gallery_sizes = torch.unique(
        code_of_input, return_inverse=True, return_counts=True
    )
    gallery_sizes, by_size = gallery_sizes.sort(descending=True, stable=True)
    codes = codes[by_size]
    gallery_of_place, order = by_size.argsort()[gallery_of_input].sort(stable=True)
    return IdentificationTrials(
        inputs=test.embeddings,
        references=references,
        column=column,
        usable=usable,
        finite=finite,
        galleries=torch.stack([codes // base, codes % base - 1]),
        order=order,
        gallery_of_place=gallery_of_place,
        gallery_sizes=tuple(gallery_sizes.tolist()),
        processes=processes,
    )


def _build_references(side: Utterances, by_session: bool) -> tuple[References, Tensor, Tensor]:
    """Return references, a code for each unit, ascending, and the unit of each row.

    A code tells speaker and session.
    """
    vectors = side.embeddings
    speaker_indices, column = side.speaker_index.unique(return_inverse=True)
    names = side.speakers.new_empty(len(speaker_indices)).scatter(0, column, side.speakers)
    codes = torch.arange(len(names), device=names.device) << _SESSION_BITS
    unit = column
    if by_session and side.sessions is not None:
        codes, unit = ((column << _SESSION_BITS) + side.sessions).unique(return_inverse=True)
    # Rounding of a sum depends on what is subtracted first.
    middle = len(vectors) // 2
    anchor = widen(vectors[middle : middle + 1]).sum(dim=0)  # zeros when there is no row
    sums = anchor.new_zeros(len(codes), vectors.shape[1])
    # In pieces, so that there is never a second, wider copy of all utterances.
    all_rows = torch.arange(len(vectors), device=vectors.device)
    rows_at_once = max(1, 2**20 // max(1, vectors.shape[1]))
    for rows in all_rows.split(rows_at_once):
        sums.index_add_(0, unit[rows], widen(vectors[rows]) - anchor)
    rows_per_unit = count_values(unit, len(sums))
    units_per_speaker = count_values(codes >> _SESSION_BITS, len(names))
    references = References(
        vectors=vectors,
        speakers=names,
        anchor=anchor,
        sums=sums,
        counts=rows_per_unit,
        units=units_per_speaker,
        first_unit=units_per_speaker.cumsum(0) - units_per_speaker,
        rows=unit.argsort(stable=True),
        first_row=rows_per_unit.cumsum(0) - rows_per_unit,
    )
    return references, codes, unit


class _GalleryBatch(NamedTuple):
    """Galleries that are compared at once with their inputs.

    Or one gallery with some of its inputs, where it has many.
    """

    gallery_start: int
    gallery_stop: int  # exclusive
    input_start: int  # among the inputs sorted by gallery
    input_stop: int  # exclusive
    most_inputs: int  # of one gallery


def score_inputs(
    trials: IdentificationTrials, scoring: Scoring, is_distributed: bool = True
) -> Iterator[ScoreRows]:
    """Yield the scores of inputs, or this process's share, by all references; no GPU sync."""
    scorer = resolve_scoring(scoring)
    dtype = widest_affordable_dtype(
        scorer, trials.inputs, len(trials.inputs) * trials.num_references
    )
    batches = _batch_galleries(trials)
    if is_distributed:
        batches = list(trials.processes.share(batches))
    galleries = trials.references.sums
    prepared_slice = None
    for batch in batches:
        gallery_slice = slice(batch.gallery_start, batch.gallery_stop)
        # Pieces of one large gallery follow each other, and it is prepared once.
        if gallery_slice != prepared_slice:
            unit_number, excluded_row = trials.galleries[:, gallery_slice]
            means = trials.references.leave_one_out_means(unit_number, excluded_row)
            galleries = _prepare(means, scorer, trials.references.anchor, dtype)
            prepared_slice = gallery_slice
        yield _score_batch(trials, batch, galleries, scorer)


def _batch_galleries(trials: IdentificationTrials) -> list[_GalleryBatch]:
    """Return batches of galleries: small ones together, large ones in pieces of inputs."""
    most_inputs = num_rows_at_once(trials.inputs, trials.num_references)
    entries_per_gallery = max(1, trials.num_references * trials.inputs.shape[1])
    most_galleries = max(1, _gallery_entries_at_once(trials.inputs) // entries_per_gallery)
    sizes = trials.gallery_sizes  # descending
    batches: list[_GalleryBatch] = []
    gallery_start = 0
    input_start = 0
    while gallery_start < len(sizes):
        largest = sizes[gallery_start]
        gallery_stop = gallery_start + 1
        input_stop = input_start + largest
        while gallery_stop < len(sizes) and gallery_stop - gallery_start < most_galleries:
            num_padded_inputs = (gallery_stop + 1 - gallery_start) * largest
            num_inputs = input_stop + sizes[gallery_stop] - input_start
            num_padded_scores = num_padded_inputs * trials.num_references
            is_sparse = num_padded_inputs > 2 * num_inputs and num_padded_scores > _FEW_SCORES
            if num_padded_inputs > most_inputs or is_sparse:
                break
            input_stop += sizes[gallery_stop]
            gallery_stop += 1
        if gallery_stop == gallery_start + 1:
            inputs_at_once = max(most_inputs, 1)  # one gallery, in pieces
        else:
            inputs_at_once = input_stop - input_start
        for piece_start in range(input_start, input_stop, inputs_at_once):
            piece_stop = min(piece_start + inputs_at_once, input_stop)
            batch = _GalleryBatch(
                gallery_start=gallery_start,
                gallery_stop=gallery_stop,
                input_start=piece_start,
                input_stop=piece_stop,
                most_inputs=min(largest, piece_stop - piece_start),
            )
            batches.append(batch)
        gallery_start = gallery_stop
        input_start = input_stop
    return batches


def _prepare(galleries: Tensor, scorer: Scorer, anchor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows ``(..., D)`` ready for comparison, in their shape."""
    rows = galleries.flatten(0, -2)
    return prepare_rows(rows, scorer, anchor, dtype).view(galleries.shape)


def _score_batch(
    trials: IdentificationTrials, batch: _GalleryBatch, galleries: Tensor, scorer: Scorer
) -> ScoreRows:
    """Return the scores of the inputs of a batch, each against all references of its gallery.

    ``galleries`` ``(G, N, D)``: those of the batch, ready for comparison. One batched product
    compares P inputs with each gallery; a gallery with fewer inputs is filled up.
    """
    rows = trials.order[batch.input_start : batch.input_stop]
    if not scorer.is_builtin:
        return _score_with_function(trials, batch, rows, galleries, scorer)
    num_galleries = batch.gallery_stop - batch.gallery_start
    inputs_shape = (num_galleries, batch.most_inputs)  # (G, P)
    is_filled_up = len(rows) != num_galleries * batch.most_inputs
    compared_rows = rows
    if is_filled_up:
        compared_rows, place_of_row = _fill_up_inputs(trials, batch, rows)
    probes = _prepare(
        trials.inputs[compared_rows], scorer, trials.references.anchor, galleries.dtype
    )
    probes = probes.unflatten(0, inputs_shape)  # (G, P, D)
    own_column = trials.column[compared_rows].view(*inputs_shape, 1)
    with torch.autocast(probes.device.type, enabled=False):
        scores = scorer.compare(probes, galleries)  # (G, P, N)
        match = scores.gather(2, own_column)
        with torch.no_grad():
            rounding = scorer.rounding(probes, galleries, scores, match)
    scores = scores.flatten(0, 1)
    match = match.flatten(0, 1)
    rounding = rounding.flatten(0, 1)
    if is_filled_up:
        scores = scores[place_of_row]
        match = match[place_of_row]
        rounding = rounding[place_of_row]
    return ScoreRows(rows, scores, match, rounding)


def _fill_up_inputs(
    trials: IdentificationTrials, batch: _GalleryBatch, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Return inputs ``(G * P,)``, P for each gallery, and the place of each of ``rows`` in them.

    ``rows`` are the inputs of the batch, sorted by gallery. In a gallery with fewer than P inputs
    the first of them is repeated.
    """
    num_galleries = batch.gallery_stop - batch.gallery_start
    gallery = trials.gallery_of_place[batch.input_start : batch.input_stop] - batch.gallery_start
    first_row = torch.searchsorted(gallery, torch.arange(num_galleries, device=gallery.device))
    row_number = torch.arange(len(rows), device=gallery.device)
    place_of_row = gallery * batch.most_inputs + row_number - first_row[gallery]
    filled = rows[first_row, None].expand(-1, batch.most_inputs).flatten()
    return filled.scatter(0, place_of_row, rows), place_of_row


def _score_with_function(
    trials: IdentificationTrials,
    batch: _GalleryBatch,
    rows: Tensor,
    galleries: Tensor,
    scorer: Scorer,
) -> ScoreRows:
    """Do what :func:`_score_batch` does where ``scorer`` is a function of the caller.

    Such a function compares two matrices, so it takes one gallery ``(N, D)`` at a time. ``rows``
    are the inputs of the batch, sorted by gallery.
    """
    probes = _prepare(trials.inputs[rows], scorer, trials.references.anchor, galleries.dtype)
    num_galleries = batch.gallery_stop - batch.gallery_start
    if num_galleries > 1:
        num_inputs = list(trials.gallery_sizes[batch.gallery_start : batch.gallery_stop])
    else:  # The batch may be only a piece of a large gallery.
        num_inputs = [len(rows)]
    scores_of_galleries: list[Tensor] = []
    matches_of_galleries: list[Tensor] = []
    rounding_of_galleries: list[Tensor] = []
    for gallery, gallery_rows, gallery_probes in zip(
        galleries, rows.split(num_inputs), probes.split(num_inputs), strict=True
    ):
        with torch.autocast(probes.device.type, enabled=False):
            # Scores are overwritten later, and the caller's function may have kept them.
            scores = scorer.compare(gallery_probes, gallery).clone()
            match = scores.gather(1, trials.column[gallery_rows].unsqueeze(1))
            with torch.no_grad():
                rounding = scorer.rounding(gallery_probes, gallery, scores, match)
        scores_of_galleries.append(scores)
        matches_of_galleries.append(match)
        rounding_of_galleries.append(rounding)
    return ScoreRows(
        rows,
        torch.cat(scores_of_galleries),
        torch.cat(matches_of_galleries),
        torch.cat(rounding_of_galleries),
    )


def num_rows_at_once(inputs: Tensor, columns: int) -> int:
    """Return how many inputs to score at once: a block fits a CPU's cache, or fills a GPU."""
    scores = 2**20 if inputs.device.type == "cpu" else 2**24
    return max(1, scores // max(1, columns, inputs.shape[1]))


def _gallery_entries_at_once(inputs: Tensor) -> int:
    """Return how many entries of galleries are formed at once, some 32 MB on a CPU."""
    return 2**22 if inputs.device.type == "cpu" else 2**26
