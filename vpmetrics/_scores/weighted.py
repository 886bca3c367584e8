"""Trials whose speakers weigh differently: what the measures of scores come to under many weightings at once.

A speaker drawn ``w`` times weighs ``w``: a target trial weighs what its speaker does, a non-target trial the product
of its two, so copies of one speaker never meet. Weight 0 leaves a speaker out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad, softplus

from vpmetrics._checks import warn_undefined
from vpmetrics._precision import widen
from vpmetrics._scores.hull import around_crossing, thin
from vpmetrics._scores.measures import (
    edges_of_linkability,
    eer_of_steps,
    expected_disclosure,
    linkability_of_bins,
    min_cllr_of_steps,
    raw_eer_of_steps,
)
from vpmetrics._scores.ordered import Counted
from vpmetrics._scores.steps import Steps

_EXACT = 1 << 24  # up to which single precision has every whole number
_AT_ONCE = 1 << 19  # counts of all weightings worked on at a time: about what a core's cache holds


class SpeakerTrials(NamedTuple):
    """Trials ``(P,)`` by ascending score, of equal ones the targets first, and the pair of speakers each is of.

    ``speakers`` ``(S,)``: their labels, in an order that the trials determine, whatever the labels are. ``pairs``
    ``(2, Q)``: the two speakers of every pair that has trials, by their places there.
    """

    scores: Tensor
    is_target: Tensor
    pair: Tensor
    pairs: Tensor
    speakers: Tensor


def sort_trials(scores: Tensor, is_target: Tensor, speakers: Sequence[Tensor]) -> SpeakerTrials:
    """Trials ``(P,)``, with the speakers of their two sides, put in order once for all weightings."""
    by_class = (~is_target).to(torch.uint8).argsort(stable=True)
    order = by_class[scores[by_class].argsort(stable=True)]
    scores, is_target = scores[order], is_target[order]
    names, number = torch.stack([side[order] for side in speakers]).unique(return_inverse=True)
    # The sums of ranks know a speaker again under any label.
    rank = pad((scores[1:] != scores[:-1]).cumsum(0), (1, 0)) * 2 + is_target
    key = rank.new_zeros(len(names)).index_add(0, number.flatten(), rank.repeat(2))
    by_key = key.argsort(stable=True)
    number = by_key.argsort()[number]
    codes, pair = (number.amin(0) * len(names) + number.amax(0)).unique(return_inverse=True)
    pairs = torch.stack([codes // max(1, len(names)), codes % max(1, len(names))])
    return SpeakerTrials(scores, is_target, pair, pairs, names[by_key])


def values_under(trials: SpeakerTrials, weights: Tensor, measures: Sequence[str]) -> dict[str, Tensor]:
    """The measures of trials under weightings ``(R, S)`` of whole numbers, ``(R,)`` each; NaN if undefined.

    A few weightings are worked on at a time, so memory does not grow with their number.
    """
    targets = int(trials.is_target.sum())
    missing = targets == 0 or targets == len(trials.scores)
    if missing or bool(trials.scores[-1].isnan()):  # sorted last
        warn_undefined("There are no trials of one kind." if missing else "Some scores are NaN.")
        return {name: widen(weights).new_full((len(weights),), torch.nan) for name in measures}
    index = Index(trials)
    found = in_pieces(lambda part: _measure(Weighted(index, part), measures), weights, index.size)
    return {name: found[:, place] for place, name in enumerate(measures)}


def in_pieces(function: Callable[[Tensor], Tensor], weights: Tensor, size: int) -> Tensor:
    """A function of weightings, of a few at a time where each needs as many counts as ``size``."""
    return torch.cat([function(part) for part in widen(weights).split(max(1, _AT_ONCE // size))])


def _measure(weighted: Weighted, measures: Sequence[str]) -> Tensor:
    return torch.stack([MEASURES[name](weighted) for name in measures], dim=1)


@dataclass(frozen=True, eq=False)
class Index:
    """Where in the sorted trials each step begins, and each bin of the linkability measure."""

    trials: SpeakerTrials

    @property
    def size(self) -> int:
        """How many counts a weighting needs."""
        return max(len(self.bounds), self.trials.pairs.shape[1])

    @cached_property
    def values(self) -> Tensor:
        """The scores that targets have, ascending: a step begins at each of them, and one lies below."""
        values: Tensor = self.trials.scores[self.trials.is_target].unique_consecutive()
        return values

    @cached_property
    def bounds(self) -> Tensor:
        """First trial of each step's targets, of the non-targets tied with them, and of those above, ``(S, 3)``."""
        scores = self.trials.scores
        times = scores[self.trials.is_target].unique_consecutive(return_counts=True)[1]
        first, end = (torch.searchsorted(scores, self.values, right=right) for right in (False, True))
        return pad(torch.stack([first, first + times, end], dim=1), (0, 0, 1, 0))

    @cached_property
    def bins(self) -> tuple[Tensor, Tensor] | None:
        """Pair of every trial, non-targets first, and the first trial of each class in each bin, ``(2, B)``.

        The bins of the linkability measure are those of all trials; None where it is not defined.
        """
        scores = widen(self.trials.scores)
        classes = torch.stack([~self.trials.is_target, self.trials.is_target])
        edges = edges_of_linkability(Counted(scores, classes))
        if bool(edges[0].isnan()):
            return None
        edges = edges[edges.isfinite()]
        first = [pad(torch.searchsorted(scores[kind], edges), (1, 0)) for kind in classes]
        pairs = [self.trials.pair[kind] for kind in classes]
        return torch.cat(pairs), torch.stack([first[0], first[1] + len(pairs[0])])

    @cached_property
    def costs(self) -> Tensor:
        """Of every pair, what its trials cost in nats and how many there are, non-targets and targets, ``(Q, 4)``."""
        trials = self.trials
        scores, number = widen(trials.scores), widen(torch.stack([~trials.is_target, trials.is_target]))
        cost = torch.where(number > 0, softplus(torch.stack([scores, -scores])), 0)
        empty = cost.new_zeros(trials.pairs.shape[1], 4)
        return empty.index_add(0, trials.pair, torch.cat([cost, number]).T)


@dataclass(frozen=True, eq=False)
class Weighted:
    """The trials under some weightings ``(R, speakers)``, and the counts that measures are made of."""

    index: Index
    weights: Tensor

    @cached_property
    def of_pairs(self) -> Tensor:
        """What a trial of every pair weighs, ``(Q, R)``."""
        first, second = self.index.trials.pairs
        one, other = self.weights.T[first], self.weights.T[second]
        return torch.where((first == second).unsqueeze(1), one, one * other)

    def sums(self, pair: Tensor, bounds: Tensor) -> Tensor:
        """Total weight of the trials from each of ``bounds`` up to the next, ``(*bounds, R)``."""
        table = self.of_pairs
        # A CPU adds up single precision ten times as fast, and few trials are exact in it.
        total = torch.mv(table.T, torch.bincount(pair, minlength=len(table)).to(table.dtype)).max()
        table = table.float() if float(total) < _EXACT else table
        return torch.unflatten(embedding_bag(pair, table, bounds.flatten(), mode="sum"), 0, bounds.shape)

    @cached_property
    def parts(self) -> Tensor:
        """Targets of every step, the non-targets tied with them and those above, ``(3, R, S)``."""
        return widen(self.sums(self.index.trials.pair, self.index.bounds).permute(1, 2, 0).contiguous())

    @property
    def all_steps(self) -> Steps:
        """The steps of the scores, ``(R, S)``."""
        targets, tied, above = self.parts
        return Steps(targets.new_empty(0), targets, tied + above, tied)

    @cached_property
    def ascending(self) -> Steps:
        """Those of them that a block of PAV may begin at."""
        return thin(self.all_steps)

    @cached_property
    def descending(self) -> Steps:
        """The same of the negated scores."""
        targets, tied, above = self.parts
        # The non-targets above the highest target come first, then each target with those up to the one below it.
        targets, nontargets = pad(targets[:, 1:], (0, 1)).flip(1), (pad(tied[:, 1:], (0, 1)) + above).flip(1)
        return thin(Steps(targets.new_empty(0), targets, nontargets))


def _cllr(weighted: Weighted) -> Tensor:
    sums = torch.mm(weighted.of_pairs.T, weighted.index.costs)
    return torch.sum(sums[:, :2] / sums[:, 2:], dim=1) / (2 * math.log(2))


def _linkability(weighted: Weighted) -> Tensor:
    bins = weighted.index.bins
    if bins is None:
        return weighted.weights.new_full((len(weighted.weights),), torch.nan)
    return linkability_of_bins(widen(weighted.sums(*bins)).mT)


MEASURES: dict[str, Callable[[Weighted], Tensor]] = {
    "d_ece": lambda weighted: expected_disclosure(weighted.ascending),
    "d_ece_reversed": lambda weighted: expected_disclosure(weighted.descending),
    "eer": lambda weighted: eer_of_steps(weighted.ascending),
    "raw_eer": lambda weighted: raw_eer_of_steps(around_crossing(weighted.all_steps)),
    "min_cllr": lambda weighted: min_cllr_of_steps(weighted.ascending),
    "cllr": _cllr,
    "linkability": _linkability,
}
