"""Numbers of embeddings under many weightings of their speakers at once; see :mod:`vpmetrics._scores.weighted`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, logsigmoid, pad

from vpmetrics._precision import widen
from vpmetrics._scores.hull import laplace_llr_of_rows
from vpmetrics._scores.steps import Steps
from vpmetrics._scores.weighted import MEASURES, Index, SpeakerTrials, Weighted, in_pieces, sort_trials, values_under
from vpmetrics._trials.conditions import CONDITIONS
from vpmetrics._trials.identification import identify_trials
from vpmetrics._trials.pairs import TrialGrid
from vpmetrics._trials.ranks import ranks_of
from vpmetrics._trials.references import trials_of_sides, walk
from vpmetrics._trials.scorers import Scoring, resolve_scoring
from vpmetrics._trials.scores import score_condition
from vpmetrics._trials.utterances import Sides


class DrawnCondition:
    """The trials of a condition, every one kept, and what they come to for weightings of the voices ``(R, V)``."""

    def __init__(self, sides: Sides, condition: str, scoring: Scoring) -> None:
        rule = CONDITIONS[condition]
        self.grid = TrialGrid(*sides.pair(rule), sides.voices, resolve_scoring(scoring), rule)
        if self.grid.few:
            score_condition(self.grid)  # from now on scores are equal that are equal on paper
        self.scores, self.is_target = self.grid.all_trials()
        # Without groups a voice is a speaker, and voices ascend.
        self.row, self.column = (torch.searchsorted(sides.voices, side) for side in self.grid.speakers_of(self.grid))

    @cached_property
    def trials(self) -> SpeakerTrials:
        """The trials by ascending score, whose speakers are called by their voices."""
        return sort_trials(self.scores, self.is_target, (self.row, self.column))

    @cached_property
    def _index(self) -> Index:
        return Index(self.trials)

    @cached_property
    def _cells(self) -> tuple[Tensor, Tensor, Tensor]:
        """Both voices of every pair of them that has trials ``(2, C)``, and how many; and the steps of these trials."""
        count = len(self.grid.voices)
        cells, cell, number = (self.row * count + self.column).unique(return_inverse=True, return_counts=True)
        step = torch.searchsorted(self._index.values, self.scores, right=True)
        return torch.stack([cells // count, cells % count]), number, step[cell.argsort()]

    def measures(self, names: Sequence[str], weights: Tensor) -> dict[str, Tensor]:
        """Measures of the scores, ``(R,)`` each."""
        known = [name for name in names if name in MEASURES]
        return values_under(self.trials, weights[:, self.trials.speakers], known) if known else {}

    def dominance(self, weights: Tensor, similarity: str) -> Tensor:
        """Diagonal dominance of the matrix of each weighting, calibrated anew, ``(R,)``.

        A voice drawn several times is as many rows and columns, of which those of one voice have no trial in common but
        each its own.
        """
        return in_pieces(lambda part: self._dominance(part, similarity), weights, self._index.size)

    def _dominance(self, weights: Tensor, similarity: str) -> Tensor:
        (row, column), number, step = self._cells
        steps = Weighted(self._index, weights[:, self.trials.speakers]).all_steps
        both = 2 if self.grid.within else 1  # orders of a pair, for Laplace's rule
        llr = laplace_llr_of_rows(Steps(steps.edges, both * steps.targets, both * steps.nontargets))
        per_step = (logsigmoid(llr) if similarity == "geometric" else llr).T.contiguous()
        first = pad(number.cumsum(0), (1, -1))
        mean = embedding_bag(step, per_step, first, mode="sum") / number.unsqueeze(1)
        alike = mean.exp() if similarity == "geometric" else mean.sigmoid()
        own, one, other = row == column, widen(weights).T[row], widen(weights).T[column]
        parts = ((alike * weight, weight) for weight in (one * own.unsqueeze(1), one * other * ~own.unsqueeze(1)))
        on, off = (values.sum(0) / weight.sum(0) for values, weight in parts)
        return torch.abs(on - off)


def inputs_of_speakers(sides: Sides, condition: str, scoring: Scoring) -> tuple[Tensor, Tensor, Tensor]:
    """Rank histogram of the inputs of each speaker ``(V, N)``; the sum of their bits and their number, ``(V,)``."""
    trials = trials_of_sides(sides, CONDITIONS[condition])
    ranks = len(trials.references.speakers)
    steps = widen(trials.references.sums.new_zeros(ranks * (ranks + 1)))
    for tile in walk(trials, scoring):
        above, tied = ranks_of(tile)
        start = trials.column[tile.rows] * (ranks + 1) + above
        mass = widen(trials.usable[tile.rows]) / tied
        steps = steps.index_add(0, start, mass).index_add(0, start + tied, -mass)
    found = identify_trials(trials, scoring, slope=None)
    speaker, empty = trials.column[found.trials], steps.new_zeros(ranks)
    bits, number = (empty.index_add(0, speaker, widen(x)) for x in (found.bits, torch.ones_like(found.bits)))
    return steps.view(ranks, ranks + 1).cumsum(1)[:, :-1], bits, number
