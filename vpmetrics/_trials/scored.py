"""Trials that come with their scores, as lists have them, and what they would say without some of the speakers."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from vpmetrics._checks import unsaid
from vpmetrics._precision import wide_dtype, widen
from vpmetrics._scores.calibration import linear_map
from vpmetrics._scores.measures import evidence
from vpmetrics._scores.steps import Steps
from vpmetrics._trials.left_out import MOST, Blocks, Counts, deal_in_turn, lay_edges


class ScoredTrials(NamedTuple):
    """Trials of one condition: scores and labels ``(P,)``, and the speakers ``(2, P)`` of both sides if known.

    ``within``: both sides are the same utterances, and each pair is there once, whichever way round.
    """

    scores: Tensor
    is_target: Tensor
    speakers: Tensor | None = None
    within: bool = False

    def averages(self, values: Tensor, speakers: int) -> Tensor:
        """Means of a value of every trial by the speakers of its two sides, ``(S, S)``; NaN where there is no trial."""
        sums, trials = self._sums(torch.stack([values, torch.ones_like(values)]), speakers)
        return torch.where(trials > 0, sums / trials, torch.nan)

    def _sums(self, values: Tensor, speakers: int) -> Tensor:
        rows, columns = self._places()
        sums = values.new_zeros(len(values), speakers * speakers, dtype=wide_dtype(values.device))
        sums = sums.index_add(1, rows * speakers + columns, values.to(sums.dtype)).view(-1, speakers, speakers)
        return sums + sums.mT if self.within else sums

    def _places(self) -> Tensor:
        if self.speakers is None:
            raise ValueError("Expected `speakers` of the trials, but got None.")
        return self.speakers

    def count_without(self, steps: Steps, linked: Tensor, blocks: Blocks, slopes: Tensor | None = None) -> Counts:
        """Trials per cell of the score axis, with and without each block of speakers; cells end at ``linked``, too.

        ``slopes`` ``(2, S, S)``: how similarities of two speakers and their logarithms follow what they average.
        """
        edges = lay_edges(steps)
        finest = torch.cat([edges, linked]).unique()
        step = torch.cat([edges.new_zeros(1, dtype=torch.int64), torch.searchsorted(edges, finest, right=True)])
        cell = torch.searchsorted(finest, widen(self.scores), right=True)
        targets, nontargets = (self._count(cell, kind, len(step), blocks) for kind in (self.is_target, ~self.is_target))
        own = others = finest.new_zeros(2, len(step))
        if slopes is not None:
            weights = self._weights(slopes)
            own, others = (
                _per_trial(cell[kind], weights[:, kind], counts[0])
                for kind, counts in ((self.is_target, targets), (~self.is_target, nontargets))
            )
        return Counts(finest, step, targets, nontargets, own, others)

    def calibrated_by_others(self) -> list[ScoredTrials]:
        """Trials within either half of the speakers, their scores calibrated as learnt, linearly, within the other.

        Nothing where either half has no such calibration.
        """
        halves = [(self._places() % 2 == number).all(0) for number in (0, 1)]
        trials = [(self.scores[half], self.is_target[half]) for half in halves]
        with unsaid():
            runs = [ScoredTrials(linear_map(*learnt)(own[0]), own[1]) for own, learnt in (trials, trials[::-1])]
        return [] if any(bool(run.scores.isnan().any()) or not len(run.scores) for run in runs) else runs

    def disclosure_without(self, llr: Tensor, blocks: Blocks) -> Tensor:
        """D_ECE of log-likelihood ratios of the trials, as they stand, with and without each block, ``(1 + G,)``."""
        return self._costs_without(evidence(torch.where(self.is_target, llr, -llr)), blocks)

    def cllr_without(self, llr: Tensor, blocks: Blocks) -> Tensor:
        """The same of Cllr."""
        return self._costs_without(softplus(torch.where(self.is_target, -llr, llr)), blocks)

    def _costs_without(self, values: Tensor, blocks: Blocks) -> Tensor:
        means = [self._mean_without(widen(values), kind, blocks) for kind in (self.is_target, ~self.is_target)]
        return (means[0] + means[1]) / (2 * math.log(2))

    def _mean_without(self, values: Tensor, kind: Tensor, blocks: Blocks) -> Tensor:
        first, second = blocks.of(self._places()[:, kind])
        second = torch.where(first == second, blocks.number, second)
        each = torch.stack([values[kind], torch.ones_like(values[kind])])
        gone = each.new_zeros(2, blocks.number + 1).index_add(1, first, each).index_add(1, second, each)
        sums = each.sum(1, keepdim=True) - pad(gone[:, :-1], (1, 0))
        return sums[0] / sums[1]

    def _count(self, cell: Tensor, kind: Tensor, cells: int, blocks: Blocks) -> Tensor:
        """Trials of a kind per cell, ``(1 + G, C)``: all, and those without each block."""
        cell, (first, second) = cell[kind], blocks.of(self._places()[:, kind])
        # A trial of two speakers of one block is one trial of the block; those of nobody go to the last row.
        second = torch.where(first == second, blocks.number, second)
        size = (blocks.number + 1) * cells
        gone = sum(torch.bincount(cell + cells * block, minlength=size) for block in (first, second))
        counts = widen(torch.bincount(cell, minlength=cells))[None]
        return torch.cat([counts, counts - torch.as_tensor(gone).view(-1, cells)[:-1]])

    def _weights(self, slopes: Tensor) -> Tensor:
        """What a change of a trial's value adds to the means over speakers and over pairs of two, ``(2, P)``."""
        rows, columns = self._places()
        trials = self._sums(torch.ones_like(slopes[:1, 0, 0]).expand(1, len(rows)), slopes.shape[1])[0]
        own = torch.eye(len(trials), dtype=torch.bool, device=trials.device)
        known = trials > 0
        pairs = torch.where(own, (known & own).sum(), (known & ~own).sum())
        # Within a side a pair is there in both orders, and so are its trials.
        return (slopes / (trials * pairs))[:, rows, columns] * (2 if self.within else 1)


def _per_trial(cell: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    sums = weights.new_zeros(len(weights), len(counts)).index_add(1, cell, weights)
    return torch.where(counts > 0, sums / counts, 0)


def deal_names(names: Tensor) -> Blocks:
    """Blocks of equally many speakers by their names alone, so that of all systems the same are left out."""
    turn = torch.arange(len(names), device=names.device)
    if len(names) > MOST:
        turn = torch.randperm(len(names), generator=torch.Generator().manual_seed(0)).to(names.device)
    return deal_in_turn(names, turn)
