"""Folds of speakers: the speakers of each, and the rows that an attack on them compares.

An attack is fitted on all folds but one and compares the utterances of that one. Pairs of two
partitions (sexes, data sets) are no trials, so that the rows of a fold are compared within *cells*,
one per fold and partition. Cells are a dimension of every tensor, ``(C, R)``; short cells are
filled up with rows that take part in no trial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._utterances.canonical_order import count_within
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import EvaluationData, Utterances, count_values

FEWEST_SPEAKERS = 6  # two folds of three speakers: fewer in a fold give no chance level
_PER_FOLD = 3  # speakers in a fold, at least
_FOLDS = 5
_MANY = 100  # from this number of speakers on
_MORE_FOLDS = 10  # folds
_SAMPLED_PAIRS = 1 << 16  # that weights are fitted on, over all cells
_SAMPLED_PER_SPEAKER = 4  # rows of a speaker in the sample, at least
# Kinds of pairs: of two speakers; of a speaker and the next one; of one speaker; no trial.
NONTARGET, CHANCE_TARGET, TARGET, NO_TRIAL = range(4)


class Folds(NamedTuple):
    """Speakers divided into folds, within each partition, by the values of their embeddings only.

    ``of_speaker`` ``(S,)``: the fold; -1 for speakers of a partition with too few, who are fitted
    on but not attacked. ``partition`` ``(S,)``: index of the attacked partition, or -1. ``code``
    ``(S,)``: place in the cell, from 0. ``fewest_training_speakers``: how many speakers the attack
    of a fold is fitted on, at least.
    """

    of_speaker: Tensor
    partition: Tensor
    code: Tensor
    num_folds: int = 0
    num_partitions: int = 0
    fewest_training_speakers: int = 0

    @property
    def cell_of_speaker(self) -> Tensor:
        """The cell of every speaker, ``(S,)``; -1 for those who are not attacked."""
        return torch.where(
            self.of_speaker < 0, -1, self.of_speaker * self.num_partitions + self.partition
        )


def assign_folds(data: EvaluationData) -> Folds:
    """Return folds that depend neither on names nor on the order of rows.

    There are no folds where there are too few speakers.
    """
    num_speakers = len(data.speakers)
    group = torch.zeros(num_speakers, dtype=torch.int64, device=data.speakers.device)
    for side in (data.original, data.protected):
        if side.groups is not None:
            group = group.scatter(0, side.speaker_index, side.groups)
    _, group, size_of_group = group.unique(return_inverse=True, return_counts=True)
    attacked_sizes = [size for size in size_of_group.tolist() if size >= FEWEST_SPEAKERS]
    if not attacked_sizes:
        nobody = torch.full_like(group, -1)
        return Folds(nobody, nobody, nobody)
    smallest = min(attacked_sizes)
    num_folds = min(_FOLDS, smallest // _PER_FOLD)
    if smallest >= _MANY:
        num_folds = _MORE_FOLDS
    place_in_group = count_within(group)
    is_attacked = size_of_group >= FEWEST_SPEAKERS
    partition = torch.where(is_attacked, is_attacked.long().cumsum(0) - 1, -1)[group]
    fold = torch.where(partition >= 0, place_in_group % num_folds, -1)
    size_of_largest_fold = sum(math.ceil(size / num_folds) for size in attacked_sizes)
    return Folds(
        of_speaker=fold,
        partition=partition,
        code=place_in_group // num_folds,
        num_folds=num_folds,
        num_partitions=len(attacked_sizes),
        fewest_training_speakers=num_speakers - size_of_largest_fold,
    )


@dataclass(frozen=True, eq=False)
class CellRows:
    """Rows of one side in their cells, sorted by speaker.

    ``embeddings`` ``(C, R, D)``; all others ``(C, R)``: ``is_row``, False where a short cell is
    filled up; ``code`` of the speaker, consecutive within a cell; ``row``, index among the
    utterances of the side; ``ids``; ``sessions``.
    """

    embeddings: Tensor
    is_row: Tensor
    code: Tensor
    row: Tensor
    ids: Tensor
    sessions: Tensor | None = None

    def take_columns(self, columns: Tensor) -> CellRows:
        """Return some of the rows of each cell, ``columns`` ``(C, r)``."""
        values_by_field = {}
        for field in fields(self):
            values = getattr(self, field.name)
            if values is not None:
                index = columns
                if values.dim() == 3:
                    index = columns[..., None].expand(-1, -1, values.shape[-1])
                values_by_field[field.name] = values.gather(1, index)
        return replace(self, **values_by_field)

    def select_cells(self, cells: slice) -> CellRows:
        """Return the rows of some of the cells."""
        values_by_field = {}
        for field in fields(self):
            values = getattr(self, field.name)
            if values is not None:
                values_by_field[field.name] = values[cells]
        return replace(self, **values_by_field)


def arrange_in_cells(side: Utterances, folds: Folds, dtype: torch.dtype) -> CellRows:
    """Return the rows of all attacked speakers in their cells. Waits for the device once."""
    cell = folds.cell_of_speaker[side.speaker_index]
    code = folds.code[side.speaker_index]
    num_cells = folds.num_folds * folds.num_partitions
    order = (cell * (1 + len(folds.code)) + code).argsort(stable=True)
    size = count_values(cell + 1, num_cells + 1)
    num_unattacked, longest = torch.stack([size[0], size[1:].amax()]).tolist()
    first_row = size[1:].cumsum(0) - size[1:] + num_unattacked
    column = torch.arange(max(1, longest), device=order.device)
    is_row = column < size[1:, None]
    position = (first_row[:, None] + column).clamp(max=max(0, len(order) - 1))
    if len(order):
        row = order[position]
    else:
        row = position.new_zeros(position.shape)
    return CellRows(
        embeddings=side.embeddings.to(dtype)[row] * is_row[..., None],
        is_row=is_row,
        code=torch.where(is_row, code[row], -2),
        row=row,
        ids=side.ids[row],
        sessions=None if side.sessions is None else side.sessions[row],
    )


def label_pairs(
    enrolment: CellRows,
    test: CellRows,
    condition: Condition,
    is_same_rows: bool,
    rows: slice = slice(None),
    columns: slice = slice(None),
) -> Tensor:
    """Return the kind of every pair of enrolment and test rows of a cell.

    Kinds are ``(C, A, B)`` int32.

    With ``is_same_rows`` every unordered pair counts once.
    """
    code = enrolment.code[:, rows, None]
    other_code = test.code[:, None, columns]
    is_target = code == other_code
    is_trial = enrolment.is_row[:, rows, None] & test.is_row[:, None, columns]
    if is_same_rows:
        column = torch.arange(test.code.shape[1], device=code.device)
        is_trial = is_trial & (column[rows, None] < column[None, columns])
    if not is_same_rows or enrolment.sessions is not None:
        is_same_recording = enrolment.ids[:, rows, None] == test.ids[:, None, columns]
        is_trial = is_trial & ~(is_target & is_same_recording)
    if (
        condition.target_sessions != "any"
        and enrolment.sessions is not None
        and test.sessions is not None
    ):
        is_same_session = enrolment.sessions[:, rows, None] == test.sessions[:, None, columns]
        if condition.target_sessions == "other":
            is_left_out = is_same_session
        else:
            is_left_out = ~is_same_session
        is_trial = is_trial & ~(is_target & is_left_out)
    kind_of_pair = (code + 1 == other_code).to(torch.int32)  # 1 is CHANCE_TARGET, 0 is NONTARGET
    return kind_of_pair.masked_fill_(is_target, TARGET).masked_fill_(~is_trial, NO_TRIAL)


class Sample(NamedTuple):
    """Some rows of each cell.

    Columns, whether one is taken, and the new codes of the speakers are ``(C, r)``.
    """

    columns: Tensor
    is_taken: Tensor
    code: Tensor


def choose_sample(side: CellRows) -> Sample | None:
    """Return some rows of some speakers of each cell, evenly spaced; None for few rows.

    The speakers of the sample are numbered from 0. Of few rows all are taken.
    """
    num_cells, num_columns = side.code.shape
    most_rows = max(2 * _SAMPLED_PER_SPEAKER, int((_SAMPLED_PAIRS / num_cells) ** 0.5))
    if num_columns <= most_rows:
        return None
    num_speakers = (side.code.amax(1, keepdim=True) + 1).clamp(min=1)  # (C, 1)
    rows_per_speaker = (most_rows // num_speakers).clamp(min=_SAMPLED_PER_SPEAKER)
    num_taken_speakers = torch.minimum(num_speakers, most_rows // rows_per_speaker)
    # Speaker j of n is taken where floor(j m / n) grows, and so are rows of a speaker.
    is_taken_speaker = side.code * num_taken_speakers % num_speakers < num_taken_speakers
    is_taken_speaker = is_taken_speaker & side.is_row
    new_code = torch.where(is_taken_speaker, side.code * num_taken_speakers // num_speakers, -2)

    row_of_speaker, num_rows_of_speaker = _number_rows_of_speakers(side.code)
    num_taken_rows = torch.minimum(num_rows_of_speaker, rows_per_speaker)
    is_taken_row = row_of_speaker * num_taken_rows % num_rows_of_speaker < num_taken_rows
    is_taken = is_taken_speaker & is_taken_row
    columns = (~is_taken).to(torch.uint8).argsort(dim=1, stable=True)[:, :most_rows]
    is_taken = is_taken.gather(1, columns)
    return Sample(columns, is_taken, torch.where(is_taken, new_code.gather(1, columns), -2))


def _number_rows_of_speakers(code: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each row its number among those of its speaker, and how many these are.

    ``code`` ``(C, R)`` is sorted by speaker.
    """
    column = torch.arange(code.shape[1], device=code.device).expand_as(code)
    is_first = torch.ones_like(code, dtype=torch.bool)
    is_first[:, 1:] = code[:, 1:] != code[:, :-1]
    first_column = torch.where(is_first, column, 0).cummax(1).values
    num_rows = torch.zeros_like(code).scatter_add(1, first_column, torch.ones_like(column))
    return column - first_column, num_rows.gather(1, first_column)


def take_sample(side: CellRows, sample: Sample | None) -> CellRows:
    """Return the rows of a sample; all rows where there is none."""
    if sample is None:
        return side
    return replace(side.take_columns(sample.columns), code=sample.code, is_row=sample.is_taken)
