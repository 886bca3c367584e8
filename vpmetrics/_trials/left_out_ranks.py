"""What identification would say without some of the speakers: neither their inputs nor their references."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._precision import at_least_float32, wide_dtype, widen
from vpmetrics._trials import shares
from vpmetrics._trials.identification import Identification, centre
from vpmetrics._trials.left_out import Blocks
from vpmetrics._trials.ranks import ranks_of
from vpmetrics._trials.references import Tile, Trials, walk_shared
from vpmetrics._trials.scorers import Scoring


class LeftOutRanks(NamedTuple):
    """Rank histograms and sums of local information, of all speakers, then without each block.

    ``histograms`` ``(1 + G, N)``, the last ranks empty where references are gone; ``references`` ``(1 + G,)``, how many
    are left; ``fewer_inputs`` ``(1 + G, N)``: the histogram where the inputs of the block are gone, its references not.
    ``sums`` ``(5, 1 + G)``: of 1, of bits above 0, of bits below, of how many are above, and of how many are linked.
    """

    histograms: Tensor
    references: Tensor
    fewer_inputs: Tensor
    sums: Tensor


def identify_without(trials: Trials, found: Identification | None, scoring: Scoring, blocks: Blocks) -> LeftOutRanks:
    """One more walk through the scores of inputs against references; without what is found, of ranks alone."""
    names = trials.references.speakers
    tally = _Tally(trials, found, blocks.of(names), blocks.number)
    for tile in walk_shared(trials, scoring):
        tally.add(tile)
    return tally.result()


class _Tally:
    """Sums in the making. Column 0 leaves nobody out, the last one those who never are."""

    def __init__(self, trials: Trials, found: Identification | None, block: Tensor, number: int) -> None:
        self.trials, self.found, self.number = trials, found, number
        self.column = 1 + block  # of every reference
        self.ranks = len(block)
        empty = torch.zeros(2 + number, device=block.device, dtype=wide_dtype(block.device))
        self.sizes = empty.index_add(0, self.column, torch.ones_like(self.column, dtype=empty.dtype))
        self.histograms, self.own = empty.new_zeros(2, len(empty) * (self.ranks + 1))
        self.sums = empty.new_zeros(5, len(empty))

    def add(self, tile: Tile) -> None:
        """Inputs of a tile, each without one block after the other."""
        column = self.column[self.trials.column[tile.rows]]
        usable = widen(self.trials.usable[tile.rows])[:, None]
        keeps = usable * (torch.arange(len(self.sizes), device=column.device) != column[:, None])
        above, tied = ranks_of(tile)
        of_blocks = (self._by_block(each) for each in _masks(tile))
        first, ties = (total[:, None] - each for total, each in zip((above, tied), of_blocks, strict=True))
        ties = ties.clamp(min=1)
        self._spread(self.histograms, torch.arange(len(self.sizes), device=column.device), first, ties, keeps)
        self._spread(self.own, column[:, None], above[:, None], tied[:, None], usable)
        self.sums[4] += (keeps * ((first == 0) & (ties == 1))).sum(0)
        if self.ranks > 1 and self.found is not None:
            self._add_bits(tile, keeps, self.found.slopes[tile.rows])

    def _by_block(self, values: Tensor) -> Tensor:
        """Sums over the references of each block, ``(b, 2 + G)``."""
        sums = values.new_zeros(len(values), len(self.sizes))
        return sums.index_add_(1, self.column, values)

    def _spread(self, histograms: Tensor, row: Tensor, first: Tensor, ties: Tensor, mass: Tensor) -> None:
        """A step up before the ranks an input is tied for, and one down after."""
        start, each = row * (self.ranks + 1) + first, (mass / ties).flatten()
        histograms.index_add_(0, start.flatten(), each)
        histograms.index_add_(0, (start + ties).flatten(), -each)

    def _add_bits(self, tile: Tile, keeps: Tensor, slopes: Tensor) -> None:
        centred, match, deviation = centre(tile)
        slope = slopes.to(centred.dtype).unsqueeze(1) / deviation
        logits = slope * centred
        top = logits.amax(dim=1, keepdim=True)
        weights = (logits - top).exp()
        own = slope * match - top
        left = widen(weights.sum(1, keepdim=True)) - widen(self._by_block(weights))
        left = torch.maximum(left, widen(own.exp())) / (self.ranks - self.sizes)
        bits = (widen(own) - left.log()) / math.log(2)
        above = bits > 16 * torch.finfo(at_least_float32(tile.scores).dtype).eps
        bits = keeps * bits
        self.sums[0] += keeps.sum(0)
        self.sums[1] += torch.where(above, bits, 0).sum(0)
        self.sums[2] += torch.where(above, 0, bits).sum(0)
        self.sums[3] += (above & (keeps > 0)).sum(0)

    def result(self) -> LeftOutRanks:
        """What all processes have found, without the column of those who are never left out."""
        *steps, sums = shares.totals(self.histograms, self.own, self.sums)
        histograms, own = (each.view(-1, self.ranks + 1).cumsum(1)[:-1, :-1] for each in steps)
        fewer = histograms[:1] - pad(own[1:], (0, 0, 1, 0))
        # Tied ranks share an input, so what is left of a share that is taken away may be but a rounding, below none.
        kept = (histograms.clamp(min=0), self.ranks - self.sizes[:-1], fewer.clamp(min=0), sums[:, :-1])
        return LeftOutRanks(*kept)


def _masks(tile: Tile) -> tuple[Tensor, Tensor]:
    """Which references are above the own one, and which are tied with it."""
    above = tile.scores > tile.match + tile.rounding
    tied = (tile.scores >= tile.match - tile.rounding) & ~above
    return above.to(torch.int64), tied.to(torch.int64)
