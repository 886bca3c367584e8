"""How pairs of embeddings are walked without being stored: tile by tile, each a matrix product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import at_least_float32, wide_dtype, widen
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.scorers import Scorer, prepared
from vpmetrics._trials.utterances import Side

TILE = 1024  # rows and columns: large enough for a fast matrix product, small enough to stay in the cache
# In both orders: up to here every score is its own, with all digits there are; beyond, those of a bin are one.
FEW_PAIRS = 1 << 22


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


def excluded_pairs(
    reference: Side, probe: Side, condition: Condition, a: slice, b: slice, same: Tensor | None
) -> Tensor | None:
    """Which pairs of some rows are no trials, ``(A, B)``, given which are of one voice; None where all are trials."""
    masks = []
    if reference.groups is not None and probe.groups is not None:
        masks.append(reference.groups[a, None] != probe.groups[None, b])
    if same is not None:
        within = reference is probe
        if within and a == b:
            masks.append(torch.ones_like(same).tril())
        if not within or reference.sessions is not None:
            masks.append(reference.utterances[a, None] == probe.utterances[None, b])
        if condition.own_session != "any" and reference.sessions is not None and probe.sessions is not None:
            one = reference.sessions[a, None] == probe.sessions[None, b]
            masks.append(same & (one if condition.own_session == "other" else ~one))
    return None if not masks else masks[0] if len(masks) == 1 else torch.stack(masks).any(dim=0)


class _Rows(NamedTuple):
    """One side, sorted by voice: a speaker within a group."""

    side: Side
    first: list[int]  # voice at the start and at the end of each tile, known to the host
    last: list[int]
    groups: list[tuple[int, int]]  # and groups; empty where there are none

    def runs(self, number: int, tile: int) -> Tensor:
        """How many rows each voice has in a tile, from its first voice to its last."""
        voices = self.side.voices[number * tile : (number + 1) * tile] - self.first[number]
        return torch.bincount(voices, minlength=self.last[number] - self.first[number] + 1)


class Strip(NamedTuple):
    """Some voices against all: what their trials add up to, and how many there are, ``(v, V)`` each."""

    start: int  # the first of these voices
    sums: Tensor
    trials: Tensor


class TrialGrid:
    """All trials of a condition.

    Between two sets of utterances: every pair but a recording and itself. Within one: every unordered pair once, so
    that only the tiles on and above the diagonal are walked. Pairs of two groups are none, nor are pairs of one speaker
    from sessions the condition leaves out. Rows are sorted by voice, so that only tiles near the diagonal hold trials
    of one speaker and need a mask.
    """

    def __init__(
        self,
        reference: Side,
        probe: Side,
        voices: Tensor,
        scorer: Scorer,
        condition: Condition,
        tile: int | None = None,
        digits: bool = True,
    ) -> None:
        self.voices, self.tile, self.scorer, self.condition = voices, tile or TILE, scorer, condition
        self.within = reference is probe
        self.rows = self._sorted(reference)
        self.columns = self.rows if self.within else self._sorted(probe)
        # With all digits, scores that are equal on paper can be told from those that are not. In both orders, so that
        # a system that does nothing goes the same way within a side as between sides.
        self.few = len(self.rows.side.voices) * len(self.columns.side.voices) <= FEW_PAIRS and digits
        self._prepare()
        self.nan_seen = self.vectors[0].isnan().any() | self.vectors[1].isnan().any()
        self._kept: list[Tile] | None = None

    def _sorted(self, side: Side) -> _Rows:
        side = side.take(side.voices.argsort(stable=True))
        count = len(side.voices)
        starts = torch.arange(0, count, self.tile, device=side.voices.device)
        ends = (starts + self.tile).clamp(max=count) - 1
        columns = [side.voices] if side.groups is None else [side.voices, side.groups]
        first, last, *groups = torch.stack([column[at] for column in columns for at in (starts, ends)]).tolist()
        return _Rows(side, first, last, list(zip(*groups, strict=True)))

    def _prepare(self) -> None:
        sides = [rows.side.vectors for rows in ((self.rows,) if self.within else (self.rows, self.columns))]
        dtype = at_least_float32(sides[0]).dtype
        if self.few and self.scorer.any_precision:
            dtype = wide_dtype(sides[0].device)
        centre = widen(sides[0]).mean(dim=0)
        rows = [prepared(side, self.scorer, centre, dtype) for side in sides]
        self.vectors = rows[0], rows[-1]

    @property
    def pairs(self) -> int:
        """Pairs walked; all but a few are trials."""
        rows, columns = len(self.rows.side.voices), len(self.columns.side.voices)
        return rows * (rows - 1) // 2 if self.within else rows * columns

    def __iter__(self) -> Iterator[Tile]:
        if self._kept is not None:
            return iter(self._kept)
        places = (
            (row, column)
            for row in range(len(self.rows.first))
            for column in range(row if self.within else 0, len(self.columns.first))
            if self._share_a_group(row, column)
        )
        return (self._tile(*place) for place in places)

    def keep(self, tiles: list[Tile]) -> None:
        """Walk these from now on; for few pairs."""
        self._kept = tiles

    def _share_a_group(self, row: int, column: int) -> bool:
        rows, columns = self.rows, self.columns
        if not (rows.groups and columns.groups):
            return True
        (low, high), (other_low, other_high) = rows.groups[row], columns.groups[column]
        return low <= other_high and other_low <= high

    def _tile(self, row: int, column: int) -> Tile:
        a = slice(row * self.tile, (row + 1) * self.tile)
        b = slice(column * self.tile, (column + 1) * self.tile)
        scores = self._scores(row - column, self.vectors[0][a], self.vectors[1][b])
        rows, columns = self.rows, self.columns
        near = rows.first[row] <= columns.last[column] and columns.first[column] <= rows.last[row]
        same = rows.side.voices[a, None] == columns.side.voices[None, b] if near else None
        return Tile(row, column, scores, same, excluded_pairs(rows.side, columns.side, self.condition, a, b, same))

    def all_trials(self) -> tuple[Tensor, Tensor]:
        """Scores and labels of every trial, flat: for sets small enough to be kept."""
        parts = [tile.trials() for tile in self]
        scores = torch.cat([self.vectors[0].new_empty(0), *(scores for scores, _ in parts)])
        return scores, torch.cat([self.voices.new_empty(0, dtype=torch.bool), *(labels for _, labels in parts)])

    def sample(self, size: int = TILE) -> Tensor:
        """Scores of pairs of neighbours spread over both sides: some of one speaker, most of two."""
        return self._compare(*(_spread(rows, size) for rows in self.vectors))

    def strips(self, value_of: Callable[[Tensor], Tensor]) -> Iterator[Strip]:
        """Sums of ``value_of(scores)`` over the trials of every pair of voices, some voices at a time.

        Within one side a pair of voices is met in one order only, from the lower one to the higher.
        """
        runs = [
            [rows.runs(number, self.tile) for number in range(len(rows.first))] for rows in (self.rows, self.columns)
        ]
        unfinished: Tensor | None = None
        for row, tiles in groupby(self, key=lambda tile: tile.row):
            start, end = self.rows.first[row], self.rows.last[row] + 1
            totals = self.vectors[0].new_zeros(2, end - start, len(self.voices), dtype=wide_dtype(self.voices.device))
            for tile in tiles:
                b = self.columns.first[tile.column]
                block = _sum_by_runs(tile, value_of(tile.scores), runs[0][row], runs[1][tile.column])
                totals[..., b : b + block.shape[-1]] += block
            if unfinished is not None:
                totals[:, :1] += unfinished
            # A voice may go on in the next tile.
            goes_on = row + 1 < len(self.rows.first) and self.rows.first[row + 1] == end - 1
            unfinished = totals[:, -1:] if goes_on else None
            done = totals[:, :-1] if goes_on else totals
            if done.shape[1]:
                yield Strip(start, *done)

    def _scores(self, below: int, a: Tensor, b: Tensor) -> Tensor:
        """Scores of a tile, below the diagonal from the product the other way round.

        Where both sides are the same, a pair then has the same digits in both orders, and within a side and between
        sides: a system that does nothing is seen to do nothing.
        """
        if self.within or below < 0 or not self.scorer.any_precision:
            return self._compare(a, b)
        turned = self._compare(b, a).mT
        return turned if below else self._compare(a, b).triu() + turned.tril(-1)

    def _compare(self, a: Tensor, b: Tensor) -> Tensor:
        with torch.autocast(a.device.type, enabled=False):
            return self.scorer.compare(a, b)


def _sum_by_runs(tile: Tile, values: Tensor, row_runs: Tensor, column_runs: Tensor) -> Tensor:
    """Sums of values and numbers of trials of each pair of voices in a tile, ``(2, v, w)``."""

    def summed(x: Tensor) -> Tensor:
        by_row = torch.segment_reduce(x, "sum", lengths=row_runs, axis=0)
        return torch.segment_reduce(by_row.T.contiguous(), "sum", lengths=column_runs, axis=0).T

    values = values.to(wide_dtype(values.device))
    if tile.excluded is None:
        return torch.stack([summed(values), row_runs.outer(column_runs).to(values.dtype)])
    return torch.stack([summed(values.masked_fill(tile.excluded, 0)), summed((~tile.excluded).to(values.dtype))])


def _spread(rows: Tensor, size: int) -> Tensor:
    if len(rows) <= size:
        return rows
    starts = torch.arange(size // 2, device=rows.device) * (len(rows) - 1) // (size // 2)
    return rows[torch.stack([starts, starts + 1], dim=1).flatten()]
