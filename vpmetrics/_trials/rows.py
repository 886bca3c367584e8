"""One side of a grid of trials: its rows sorted by voice, and cut into tiles."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._trials.utterances import Side, occurrences


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

    def runs(self, tile: int) -> Tensor:
        """How many rows each voice has in a tile, from its first voice to its last."""
        voices = self.side.voices[self.at(tile)] - self.first[tile]
        return occurrences(voices, self.last[tile] - self.first[tile] + 1)


def sort_rows(side: Side, voices: int, tile: int) -> SortedRows:
    """A side as tiles of at most so many rows."""
    return cut_rows(side.take(side.voices.argsort(stable=True)), voices, tile)


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
