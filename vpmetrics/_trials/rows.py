"""One side of a grid of trials: its rows sorted by voice, prepared to be compared, and cut into tiles."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import widen
from vpmetrics._trials.scorers import Scorer, prepared
from vpmetrics._trials.utterances import Side, occurrences

_AT_ONCE = 1 << 10  # rows prepared


class Runs(NamedTuple):
    """Rows that are sorted by voice: the place of the voice of each row, and how many rows each voice has."""

    place: Tensor
    lengths: Tensor

    def add_up(self, rows: Tensor) -> Tensor:
        """Sums of the rows of each voice."""
        if rows.device.type == "cpu":
            return rows.new_zeros(len(self.lengths), rows.shape[1]).index_add(0, self.place, rows)
        # Where to add rows one by one is neither fast nor repeatable. Unsafe only if lengths did not add up; to check
        # that would wait for the device in every tile.
        return torch.segment_reduce(rows, "sum", lengths=self.lengths, axis=0, unsafe=True)


class SortedRows(NamedTuple):
    """One side, sorted by voice: a speaker within a group.

    Tiles hold whole voices, as many as fit. A voice that fits into none has tiles of its own; together they are one
    block, and every other tile is a block by itself. All pairs of two voices then lie in one pair of blocks.
    """

    side: Side
    starts: list[int]  # of each tile, known to the host as all that follows; and where the last one ends
    blocks: list[range]  # the tiles of each block
    first: list[int]  # voice at the start and at the end of each tile
    last: list[int]
    lowest: list[int]  # group of each block; none where nobody named any
    highest: list[int]

    def at(self, tile: int) -> slice:
        """The rows of a tile."""
        return slice(self.starts[tile], self.starts[tile + 1])

    def begin(self, block: int) -> int:
        """The row at which a block begins, or at which the last one ends."""
        return self.starts[self.blocks[block].start] if block < len(self.blocks) else self.starts[-1]

    def size(self, blocks: range) -> int:
        """Rows of some blocks side by side."""
        return self.begin(blocks.stop) - self.begin(blocks.start)

    def compared_with(self, other: SortedRows, block: int) -> range:
        """The blocks of this side that share a group with a block of another."""
        if not (self.lowest and other.lowest):
            return range(len(self.blocks))
        low, high = other.lowest[block], other.highest[block]
        return range(bisect_left(self.highest, low), bisect_right(self.lowest, high))

    def block_of_tile(self) -> list[int]:
        """The number of the block of each tile."""
        return [number for number, tiles in enumerate(self.blocks) for _ in tiles]

    def runs(self) -> list[Runs]:
        """The rows of each voice in every tile, from its first voice to its last."""
        return [self._runs(tile) for tile in range(len(self.first))]

    def _runs(self, tile: int) -> Runs:
        voices = self.side.voices[self.at(tile)] - self.first[tile]
        return Runs(voices, occurrences(voices, self.last[tile] - self.first[tile] + 1))

    def voices_at(self, tile: int) -> slice:
        """The voices of a tile."""
        return slice(self.first[tile], self.last[tile] + 1)


class Layouts:
    """Sides laid out for grids of trials: once for all that compare them alike, of one scorer and the same voices."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, torch.dtype, int], tuple[Side, Side, SortedRows]] = {}

    def of(self, side: Side, reference: Side, voices: int, tile: int, scorer: Scorer, dtype: torch.dtype) -> SortedRows:
        """A side of trials with this reference, in tiles of at most so many rows."""
        about = reference if scorer.centred else side
        key = id(side), id(about), dtype, tile
        if key not in self._known:
            rows = cut_rows(lay_out(side, scorer, _centre(reference, scorer), dtype), voices, tile)
            self._known[key] = side, about, rows  # with sides, whose numbers are nobody else's as long as they live
        return self._known[key][-1]


def _centre(side: Side, scorer: Scorer) -> Tensor:
    """What is best taken out of rows that are compared with this side."""
    if not scorer.centred:
        return side.vectors.new_zeros(())
    return widen(side.vectors[side.ordered_by(side.voices)]).mean(dim=0)


def lay_out(side: Side, scorer: Scorer, centre: Tensor, dtype: torch.dtype) -> Side:
    """A side sorted by voice and by value, its rows as they are compared; of all of them no copy but this one."""
    order = side.ordered_by(side.voices)
    vectors = side.vectors.new_empty(side.vectors.shape, dtype=dtype)
    # With a graph all at once, or its way back would go over all rows for every piece.
    step = len(order) if side.vectors.requires_grad else _AT_ONCE
    for start in range(0, len(order), max(1, step)):
        rows = slice(start, start + step)
        vectors[rows] = prepared(side.vectors[order[rows]], scorer, centre, dtype)
    return Side(vectors, *(None if column is None else column[order] for column in side[1:]))  # type: ignore[arg-type]


def cut_rows(side: Side, voices: int, tile: int) -> SortedRows:
    """The same of a side that is sorted."""
    ends = occurrences(side.voices, voices).cumsum(0)
    known = [ends] if side.groups is None else [ends, torch.zeros_like(ends).scatter(0, side.voices, side.groups)]
    end_of_voice, *group_of_voice = torch.stack(known).tolist()
    starts, blocks = _cut(end_of_voice, tile)
    first = [bisect_right(end_of_voice, start) for start in starts[:-1]]
    last = [bisect_right(end_of_voice, start - 1) for start in starts[1:]]
    lowest = [group[first[block[0]]] for group in group_of_voice for block in blocks]
    highest = [group[last[block[-1]]] for group in group_of_voice for block in blocks]
    return SortedRows(side, starts, blocks, first, last, lowest, highest)


def _cut(ends: list[int], most: int) -> tuple[list[int], list[range]]:
    """Where tiles start, given where voices end; and which tiles are a block."""
    starts, blocks = [0], [range(0)]
    while ends and starts[-1] < ends[-1]:
        start = starts[-1]
        # The last voice that ends within the tile, or if none does the one that starts here.
        end = ends[max(bisect_right(ends, start + most) - 1, bisect_right(ends, start))]
        starts += [*range(start + most, end, most), end]
        blocks.append(range(blocks[-1].stop, len(starts) - 1))
    return starts, blocks[1:]
