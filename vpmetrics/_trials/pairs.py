"""How pairs of embeddings are walked without being stored: tile by tile, each a matrix product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import wide_dtype
from vpmetrics._trials.scorers import Scorer
from vpmetrics._trials.utterances import Side

TILE = 1024  # rows and columns: large enough for a fast matrix product, small enough to stay in the cache


class Tile(NamedTuple):
    """The scores ``(A, B)`` of some rows of one side against some rows of the other, and what they are."""

    row: int
    column: int
    scores: Tensor
    same_speaker: Tensor | None  # (A, B), or None where no pair shares a speaker
    excluded: Tensor | None  # (A, B), or None where every pair is a trial

    def trials(self) -> tuple[Tensor, Tensor]:
        """Scores and labels of the trials among the pairs, flat."""
        same = torch.zeros_like(self.scores, dtype=torch.bool) if self.same_speaker is None else self.same_speaker
        if self.excluded is None:
            return self.scores.flatten(), same.flatten()
        kept = ~self.excluded
        return self.scores[kept], same[kept]


class _Rows(NamedTuple):
    vectors: Tensor
    speakers: Tensor  # positions in the list of names
    utterances: Tensor
    first: list[int]  # speaker at the start and at the end of each tile, known to the host
    last: list[int]

    def runs(self, number: int, tile: int) -> Tensor:
        """How many rows each speaker has in a tile, from its first speaker to its last."""
        speakers = self.speakers[number * tile : (number + 1) * tile] - self.first[number]
        return torch.bincount(speakers, minlength=self.last[number] - self.first[number] + 1)


class TrialGrid:
    """All trials of a condition.

    Between two sides: every pair but an utterance and itself. Within one side: every unordered pair of different
    utterances once, so that only the tiles on and above the diagonal are walked. Rows are sorted by speaker, so that
    only tiles near the diagonal hold trials of one speaker and need a mask.
    """

    def __init__(self, reference: Side, probe: Side, names: Tensor, scorer: Scorer, tile: int | None = None) -> None:
        self.names, self.tile, self.compare = names, tile or TILE, scorer.compare
        self.within = reference is probe
        self.rows = self._prepare(reference, scorer)
        self.columns = self.rows if self.within else self._prepare(probe, scorer)
        self.nan_seen = self.rows.vectors.isnan().any() | self.columns.vectors.isnan().any()

    def _prepare(self, side: Side, scorer: Scorer) -> _Rows:
        order = side.speakers.argsort(stable=True)
        speakers = torch.searchsorted(self.names, side.speakers[order])
        starts = torch.arange(0, len(order), self.tile, device=order.device)
        ends = (starts + self.tile).clamp(max=len(order)) - 1
        first, last = torch.stack([speakers[starts], speakers[ends]]).tolist()
        with torch.autocast(order.device.type, enabled=False):
            vectors = scorer.prepare(side.vectors[order])
        return _Rows(vectors, speakers, side.utterances[order], first, last)

    @property
    def pairs(self) -> int:
        """Pairs walked; all but a few are trials."""
        rows, columns = len(self.rows.speakers), len(self.columns.speakers)
        return rows * (rows - 1) // 2 if self.within else rows * columns

    def __iter__(self) -> Iterator[Tile]:
        for row in range(len(self.rows.first)):
            for column in range(row if self.within else 0, len(self.columns.first)):
                yield self._tile(row, column)

    def _tile(self, row: int, column: int) -> Tile:
        rows, columns = self.rows, self.columns
        a = slice(row * self.tile, (row + 1) * self.tile)
        b = slice(column * self.tile, (column + 1) * self.tile)
        scores = self._compare(rows.vectors[a], columns.vectors[b])
        same = excluded = None
        if rows.first[row] <= columns.last[column] and columns.first[column] <= rows.last[row]:
            same = rows.speakers[a, None] == columns.speakers[None, b]
            if not self.within:
                excluded = rows.utterances[a, None] == columns.utterances[None, b]
            elif row == column:
                excluded = torch.ones_like(same).tril()
        return Tile(row, column, scores, same, excluded)

    def all_trials(self) -> tuple[Tensor, Tensor]:
        """Scores and labels of every trial, flat: for sets small enough to be kept."""
        parts = [tile.trials() for tile in self]
        scores = torch.cat([self.rows.vectors.new_empty(0), *(scores for scores, _ in parts)])
        return scores, torch.cat([self.names.new_empty(0, dtype=torch.bool), *(labels for _, labels in parts)])

    def sample(self, size: int = TILE) -> Tensor:
        """Scores of pairs of neighbours spread over both sides: some of one speaker, most of two."""
        a, b = (_spread(rows.vectors, size) for rows in (self.rows, self.columns))
        return self._compare(a, b)

    def sums_by_speakers(self, value_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Sum of ``value_of(scores)`` over the trials of every pair of speakers, and their number, ``(S, S)`` each.

        Within one side a pair of speakers is met in one order only, and both come out symmetric.
        """
        count, device = len(self.names), self.names.device
        sums = torch.zeros(count, count, dtype=wide_dtype(device), device=device)
        row_runs, column_runs = (
            [side.runs(number, self.tile) for number in range(len(side.first))] for side in (self.rows, self.columns)
        )
        for tile in self:
            values = value_of(tile.scores).to(sums.dtype)
            if tile.excluded is not None:
                values = values.masked_fill(tile.excluded, 0)
            by_row = torch.segment_reduce(values, "sum", lengths=row_runs[tile.row], axis=0)
            by_both = torch.segment_reduce(by_row.T.contiguous(), "sum", lengths=column_runs[tile.column], axis=0)
            a, b = self.rows.first[tile.row], self.columns.first[tile.column]
            sums[a : a + by_both.shape[1], b : b + by_both.shape[0]] += by_both.T
        trials = self._trials_by_speakers()
        return (sums + sums.triu(1).T, trials) if self.within else (sums, trials)

    def _trials_by_speakers(self) -> Tensor:
        rows, columns = (
            torch.bincount(side.speakers, minlength=len(self.names)).to(wide_dtype(self.names.device))
            for side in (self.rows, self.columns)
        )
        if self.within:
            return rows.outer(rows) - torch.diag(rows * (rows + 1) / 2)
        # An utterance and itself are no trial.
        both = self.rows.speakers[torch.isin(self.rows.utterances, self.columns.utterances)]
        return rows.outer(columns) - torch.diag(torch.bincount(both, minlength=len(self.names)))

    def _compare(self, a: Tensor, b: Tensor) -> Tensor:
        with torch.autocast(a.device.type, enabled=False):
            return self.compare(a, b)


def _spread(rows: Tensor, size: int) -> Tensor:
    if len(rows) <= size:
        return rows
    starts = torch.arange(size // 2, device=rows.device) * (len(rows) - 1) // (size // 2)
    return rows[torch.stack([starts, starts + 1], dim=1).flatten()]
