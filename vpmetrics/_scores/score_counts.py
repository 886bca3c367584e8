r"""Trials reduced to counts: targets and non-targets per step of the ascending score axis.

Everything that follows from PAV depends on the order of the scores alone. *Steps* hold the number
of targets and of non-targets between neighbouring scores at which a PAV pool may begin;
log-likelihood ratios, D_ECE, min Cllr and EER are functions of these two rows of counts. Three ways
lead to them:

- exactly, from scores: a pool begins only at a target, so ``T`` targets and ``N`` non-targets make
  ``T + 1`` steps: what lies below the lowest target, then each target with the non-targets up to
  the next (equal targets share a step);
- from a histogram, one step per bin;
- smoothly, one step per cell of a fine grid, with counts that carry a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from vpmetrics._scores.pav import pools_of_counts, sum_over_pools
from vpmetrics._scores.smoothing import Grid, lay_grid, soft_counts_on_grid
from vpmetrics._scores.sorting import sort_scores
from vpmetrics._util.dtypes import at_least_float32, is_numpy_ready, widen
from vpmetrics._util.validation import check_bandwidth, check_trials, warn_first

T = TypeVar("T")
Finder = Callable[[Tensor], list[Tensor]]

_MOST_TARGET_CELLS = 1 << 12  # of target scores
_CELLS = 1 << 16  # equal cells of the score axis
# of Z(l) / l around 0, see :func:`d_ece_term`; the next term is below 1e-16 where it is used
_TAYLOR_COEFFICIENTS = (1 / 3, -1 / 12, 1 / 180, 1 / 720, -1 / 5040, -1 / 30240)


class _cached_property(Generic[T]):  # noqa: N801
    """``functools.cached_property`` without its lock.

    Before Python 3.12, torch.compile cannot trace the lock.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function

    def __get__(self, instance: Any, owner: type) -> T:
        value = self.function(instance)
        instance.__dict__[self.function.__name__] = value
        return value


@dataclass(frozen=True, eq=False)
class Steps:
    """Trials per step of the ascending score axis, and their calibration.

    ``edges`` ``(S - 1,)``: the lowest score of every step but the first.
    ``targets``, ``nontargets`` ``(S,)``: how many trials of each class, in the type sums are made
    in. ``tied`` ``(S,)``: how many of the non-targets have the score of the targets; the others
    have higher scores. None where the order within a step is unknown, as in a histogram; then all
    count as tied.
    """

    edges: Tensor
    targets: Tensor
    nontargets: Tensor
    tied: Tensor | None = None

    @_cached_property
    def pool_of_step(self) -> Tensor:
        """The PAV pool that each step belongs to, ``(S,)``."""
        return pools_of_counts(self.targets, self.nontargets)

    @_cached_property
    def pools(self) -> Pools:
        """The PAV pools: far fewer than steps, and all that most measures need."""
        num_pools = self.pool_of_step.shape[-1]
        if is_numpy_ready(self.targets) and self.pool_of_step.numel():  # on a GPU a sync
            num_pools = int(self.pool_of_step[..., -1].amax()) + 1
        targets = sum_over_pools(self.targets, self.pool_of_step)[..., :num_pools]
        nontargets = sum_over_pools(self.nontargets, self.pool_of_step)[..., :num_pools]
        is_empty = (targets + nontargets) == 0  # a ratio of 0, so that no NaN enters the gradient
        log_odds = (
            targets.masked_fill(is_empty, 1).log() - nontargets.masked_fill(is_empty, 1).log()
        )
        return Pools(log_odds - self._sample_log_odds, targets, nontargets)

    @_cached_property
    def llr(self) -> Tensor:
        """Natural-log likelihood ratio of every step ``(S,)``: that of its PAV pool."""
        return self.pools.llr.gather(-1, self.pool_of_step)

    def laplace_llr(self, trial_weight: int = 1) -> Tensor:
        """Return the log-likelihood ratio of every step under Laplace's rule, which is finite.

        Every trial counts ``trial_weight`` times.
        """
        # One label of each class lies below the lowest score and again above the highest. Each two
        # form a pool of even odds, which takes up neighbours until the odds of the next one are
        # further from even than its own.
        counts = trial_weight * torch.stack([self.pools.targets, self.pools.nontargets])
        up_to_pool = counts.cumsum(-1)
        targets, nontargets = counts
        targets_below, nontargets_below = 1 + up_to_pool - counts
        targets_above, nontargets_above = 1 + up_to_pool[..., -1:] - up_to_pool
        is_lowest = targets * nontargets_below <= nontargets * targets_below
        is_highest = targets * nontargets_above >= nontargets * targets_above
        lowest = 1 + (counts * is_lowest).sum(-1, keepdim=True)
        highest = 1 + (counts * is_highest).sum(-1, keepdim=True)
        merged_counts = torch.where(is_lowest, lowest, torch.where(is_highest, highest, counts))
        log_targets, log_nontargets = merged_counts.log()
        llr_of_pool: Tensor = log_targets - log_nontargets - self._sample_log_odds
        return llr_of_pool.gather(-1, self.pool_of_step)

    @_cached_property
    def worst_evidence(self) -> Tensor:
        """The largest absolute log-likelihood ratio of a trial by Laplace's rule, to base 10."""
        # Smooth counts are never 0, so a step with less than a thousandth of a trial counts as
        # empty. Pools that hold only the labels added by Laplace's rule are no evidence of a trial.
        is_empty = (self.targets <= 1e-3) & (self.nontargets <= 1e-3)  # False for NaN
        return self.laplace_llr().abs().masked_fill(is_empty, 0).amax(-1) / math.log(10)

    @_cached_property
    def _sample_log_odds(self) -> Tensor:
        num_targets = self.targets.sum(-1, keepdim=True)
        num_nontargets = self.nontargets.sum(-1, keepdim=True)
        return num_targets.log() - num_nontargets.log()


class Pools(NamedTuple):
    """The log-likelihood ratio, targets and non-targets of each PAV pool ``(B,)``, ascending.

    On a GPU there are as many as steps, since counting them would be a sync, and the last ones hold
    no trials.
    """

    llr: Tensor
    targets: Tensor
    nontargets: Tensor


@dataclass(frozen=True, eq=False)
class StepsOfBothSigns:
    """Steps of the scores, and of the negated scores: an attacker may flip the sign."""

    ascending: Steps
    descending: Steps

    def __iter__(self) -> Iterator[Steps]:
        return iter((self.ascending, self.descending))

    def __getitem__(self, sign: int) -> Steps:
        """Return the steps of the scores, 0, or of the negated scores, 1."""
        return (self.ascending, self.descending)[sign]

    @_cached_property
    def disclosures(self) -> Tensor:
        """D_ECE in bits of the scores and of the negated scores, ``(2, ...)``."""
        targets = torch.stack([self.ascending.targets, self.descending.targets])
        nontargets = torch.stack([self.ascending.nontargets, self.descending.nontargets])
        both = Steps(self.ascending.edges, targets, nontargets)
        # One PAV serves both, here and in what else is asked of them.
        for sign in (0, 1):
            steps = self[sign]
            vars(steps)["pool_of_step"] = both.pool_of_step[sign]
            vars(steps)["pools"] = Pools(*[values[sign] for values in both.pools])
        return expected_disclosure(both)


def steps_of_both_signs(targets: Tensor, nontargets: Tensor) -> StepsOfBothSigns:
    """Return the steps of counts ``(..., S)``, which are in ascending order of unknown scores."""
    edges = targets.new_empty(0)
    ascending = Steps(edges, targets, nontargets)
    descending = Steps(edges, targets.flip(-1), nontargets.flip(-1))
    return StepsOfBothSigns(ascending, descending)


def weighted_mean(counts: Tensor, values: Tensor) -> Tensor:
    """Return the mean of values that occur ``counts`` times (last dimension)."""
    # A step without trials does not count, even where its value is infinite.
    return (counts * values).masked_fill(counts == 0, 0).sum(-1) / counts.sum(-1)


def d_ece_term(true_llr: Tensor) -> Tensor:
    r"""Return what each trial adds to D_ECE, before averaging and division by ``2 ln 2`` (eq. 13).

    .. math::
        Z(l) = \tfrac12 + \frac{l - (e^l - 1)}{(e^l - 1)^2}, \quad Z(-\infty) = -\infty,\ Z(0) = 0,\
        Z(\infty) = \tfrac12

    Args:
        true_llr: Natural-log likelihood ratios for the true class, of any shape: those of
            non-targets negated.

    Returns:
        Values of the same shape, at most 1/2.

    Example:
        >>> d_ece_term(torch.tensor([-1.0, 0.0, 1.0, torch.inf]))
        tensor([-0.4207,  0.0000,  0.2567,  0.5000])
    """
    # The closed form cancels near 0; the branch not taken must stay finite, for the gradient of the
    # one that is.
    is_small = true_llr.abs() < 0.02
    x = true_llr.masked_fill(~is_small, 0)
    # By Horner's rule.
    # Python numbers: a tensor of them would be copied to the device.
    series = _TAYLOR_COEFFICIENTS[-1] * x
    for coefficient in reversed(_TAYLOR_COEFFICIENTS[:-1]):
        series = (series + coefficient) * x
    capped = true_llr.clamp(max=40.0).masked_fill(is_small, 1)
    growth = capped.expm1()
    return torch.where(is_small, series, 0.5 + (capped - growth) / growth.square())


def expected_disclosure(steps: Steps) -> Tensor:
    """Return D_ECE in bits, ``(...)`` for steps ``(..., S)``."""
    llr, targets, nontargets = steps.pools
    terms = d_ece_term(torch.stack([llr, -llr]))
    mean_of_class = weighted_mean(torch.stack([targets, nontargets]), terms)
    return mean_of_class.sum(0) / (2 * math.log(2))


def merge_targetless_steps(steps: Steps) -> Steps:
    """Return the steps, with each one that has no targets merged into the one before.

    Only the first PAV pool can begin at a step without targets, so the calibration stays the same.
    """
    has_targets = steps.targets > 0
    merged_step = has_targets.cumsum(0)
    lowest_of_step = torch.cat([steps.edges.new_full((1,), -torch.inf), steps.edges])
    edges = lowest_of_step[has_targets]
    zeros = steps.targets.new_zeros(len(edges) + 1)
    tied = steps.nontargets if steps.tied is None else steps.tied
    return Steps(
        edges,
        targets=zeros.index_add(0, merged_step, steps.targets),
        nontargets=zeros.index_add(0, merged_step, steps.nontargets),
        tied=zeros.index_add(0, merged_step, tied.masked_fill(~has_targets, 0)),
    )


def mark_undefined(steps: StepsOfBothSigns, has_nan: Tensor | None = None) -> StepsOfBothSigns:
    """Return the steps; their counts are NaN, with one warning, where no calibration exists."""
    lacks_targets = steps.ascending.targets.detach().sum() == 0
    lacks_nontargets = steps.ascending.nontargets.detach().sum() == 0
    lacks_trials = lacks_targets & lacks_nontargets
    is_undefined = lacks_targets | lacks_nontargets
    reasons = {
        "There are no trials, and a calibration needs both kinds.": lacks_trials,
        "There are no target trials, and a calibration needs both kinds.": lacks_targets,
        "There are no non-target trials, and a calibration needs both kinds.": lacks_nontargets,
    }
    if has_nan is not None:
        is_undefined = is_undefined | has_nan
        reasons = {"Some scores are NaN.": has_nan, **reasons}
    warn_first(reasons)
    nan_or_one = steps.ascending.targets.new_ones(()).masked_fill(is_undefined, torch.nan)
    marked: list[Steps] = []
    for sign in (0, 1):
        targets = steps[sign].targets * nan_or_one
        nontargets = steps[sign].nontargets * nan_or_one
        marked.append(replace(steps[sign], targets=targets, nontargets=nontargets))
    return StepsOfBothSigns(*marked)


def make_finder(steps: Steps, tables: Sequence[Tensor]) -> Finder:
    """Return a function that looks up scores in tables with one entry per step ``(S,)``."""
    edges = steps.edges
    values = torch.stack(list(tables))  # (tables, S)
    if is_numpy_ready(values):  # pools are far fewer than steps; counting them would be a GPU sync
        is_other_value = (values[:, 1:] != values[:, :-1]).any(0)
        edges = edges[is_other_value]
        values = torch.cat([values[:, :1], values[:, 1:][:, is_other_value]], dim=1)

    table_of_steps = _StepTable(edges)

    def find(scores: Tensor) -> list[Tensor]:
        pieces = scores.to(edges.dtype).flatten().split(1 << 18)  # about what a cache holds
        steps_of_pieces = [table_of_steps.find(piece) for piece in pieces]
        found: list[Tensor] = []
        for table in values:
            values_of_pieces = [table.index_select(0, step) for step in steps_of_pieces]
            found.append(torch.cat(values_of_pieces).view(scores.shape))
        return found

    return find


class _StepTable:
    """A table from scores to their steps.

    The step of a score is the number of sorted edges ``(S - 1,)`` that do not exceed it. Many
    scores are looked up in a table of equal cells, few are searched among the edges.
    """

    def __init__(self, edges: Tensor) -> None:
        self._edges = edges

    @_cached_property
    def _cells_per_unit(self) -> float | None:
        """Cells per unit of score; None where the edges do not allow for a table."""
        if len(self._edges) == 0:
            return None
        span = float(self._edges[-1] - self._edges[0])
        if 1e-30 < span < 1e30:
            return (_CELLS - 1) / span
        return None

    @_cached_property
    def _step_of_cell(self) -> Tensor:
        """The step of all scores in a cell, -1 where the cell has an edge, ``(cells + 2,)``."""
        cell_of_edge = self._find_cells(self._edges)
        num_edges = torch.bincount(cell_of_edge, minlength=_CELLS + 2)
        return num_edges.cumsum(0).int().index_fill_(0, cell_of_edge.long(), -1)

    def _find_cells(self, x: Tensor) -> Tensor:
        cell = x.sub(self._edges[0]).mul_(self._cells_per_unit or 1.0).nan_to_num_()
        return cell.clamp_(-1, _CELLS).floor_().int() + 1

    def find(self, scores: Tensor) -> Tensor:
        """Return the step of each score ``(P,)``."""
        is_large = is_numpy_ready(scores) and scores.numel() > _CELLS
        if not is_large or self._cells_per_unit is None:
            return torch.searchsorted(self._edges, scores, right=True)
        step = self._step_of_cell.index_select(0, self._find_cells(scores))
        beside_edge = (step < 0).nonzero().flatten()
        step[beside_edge] = torch.searchsorted(
            self._edges, scores[beside_edge], right=True, out_int32=True
        )
        return step


class OrderedScores(NamedTuple):
    """Scores of both classes, ascending, NaN last."""

    nontargets: Tensor
    targets: Tensor

    def values_and_counts(self) -> tuple[Tensor, Tensor]:
        """Return all scores, and which are of non-targets and of targets, ``(2, P)``."""
        scores = torch.cat([self.targets, self.nontargets])
        is_target = torch.arange(len(scores), device=scores.device) < len(self.targets)
        return scores, torch.stack([~is_target, is_target])

    @property
    def class_sizes(self) -> Tensor:
        """Numbers of non-targets and targets, ``(2,)``."""
        num_nontargets = self.targets.new_full((1,), len(self.nontargets), dtype=torch.int64)
        num_targets = self.targets.new_full((1,), len(self.targets), dtype=torch.int64)
        return torch.cat([num_nontargets, num_targets])

    def cllr_costs_and_sizes(self) -> tuple[Tensor, Tensor]:
        """Return sums of costs in nats and numbers of trials, non-targets first."""
        nontarget_cost = softplus(widen(self.nontargets)).sum()
        target_cost = softplus(-widen(self.targets)).sum()
        return torch.stack([nontarget_cost, target_cost]), self.class_sizes

    def count_between(self, edges: Tensor) -> Tensor:
        """Return non-targets and targets in each of the bins between edges, ``(2, E + 1)``."""
        nontargets_below = torch.searchsorted(self.nontargets, edges)
        targets_below = torch.searchsorted(self.targets, edges)
        below = pad(torch.stack([nontargets_below, targets_below]), (1, 0))
        return torch.cat([below, self.class_sizes[:, None]], dim=1).diff()

    def span_or_nan(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest score.

        The highest is NaN where any score is. Without scores they are infinity and minus infinity.
        """
        # Scores are sorted, NaN last. The infinities stand for a class without scores.
        infinity = self.targets.new_full((1,), torch.inf)
        lowest_of_classes = torch.cat([infinity, self.targets[:1], self.nontargets[:1]])
        highest_of_classes = torch.cat([-infinity, self.targets[-1:], self.nontargets[-1:]])
        return lowest_of_classes.amin(), highest_of_classes.amax()


class CountedScores(NamedTuple):
    """Values ``(V,)`` and how often each occurs among non-targets and targets, ``(2, ..., V)``.

    Further dimensions hold the same values counted over different trials, such as the replicates of
    a jackknife. ``costs``: mean costs of the trials behind each value, ``(2, V)``, where a value
    stands for several.
    """

    values: Tensor
    counts: Tensor
    costs: Callable[[], Tensor] | None = None

    def values_and_counts(self) -> tuple[Tensor, Tensor]:
        """Return what :meth:`OrderedScores.values_and_counts` returns."""
        return self.values, self.counts

    @property
    def class_sizes(self) -> Tensor:
        """Numbers of non-targets and targets, ``(2, ...)``."""
        return self.counts.sum(-1)

    def cllr_costs_and_sizes(self) -> tuple[Tensor, Tensor]:
        """Return sums of costs in nats and numbers of trials ``(2, ...)``, non-targets first."""
        if self.costs is None:
            cost = softplus(torch.stack([self.values, -self.values]))
        else:
            cost = self.costs()
        num_replicate_dims = self.counts.dim() - 2
        cost = cost.view(2, *[1] * num_replicate_dims, -1)
        # Only where a trial is: the cost of an absent one may be infinite.
        costs = (self.counts * cost).masked_fill(self.counts <= 0, 0)
        return costs.sum(-1), self.class_sizes

    def count_between(self, edges: Tensor) -> Tensor:
        """Return non-targets and targets in each of the bins between edges, ``(2, ..., E + 1)``."""
        slots = torch.bucketize(self.values, edges, right=True)
        counts = widen(self.counts)
        empty = counts.new_zeros(*counts.shape[:-1], len(edges) + 1)
        return empty.index_add(-1, slots, counts)

    def span_or_nan(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest of the values that have trials.

        Both are NaN where such a value is NaN. Without trials they are infinity and minus infinity.
        """
        # In no class, and in no replicate either, (V,).
        is_without_trials = (self.counts <= 0).flatten(0, -2).all(0)
        low = self.values.masked_fill(is_without_trials, torch.inf)
        high = self.values.masked_fill(is_without_trials, -torch.inf)
        # One infinity more, since there is no least of no values.
        low = pad(low, (0, 1), value=torch.inf)
        high = pad(high, (0, 1), value=-torch.inf)
        return low.amin(), high.amax()


def mean_costs_between(
    trials: OrderedScores | CountedScores, edges: Tensor, middles: Tensor
) -> Tensor:
    """Return mean costs in nats of log-likelihood ratios between edges.

    Non-targets and targets have shape ``(2, E + 1)``.

    Where no trial lies, it is the cost of the middle between two edges: rounding may move a trial
    across an edge.
    """
    values, counts = trials.values_and_counts()
    num_trials = trials.count_between(edges)
    slots = torch.bucketize(values, edges, right=True)
    sums = torch.zeros_like(num_trials, dtype=widen(values).dtype)
    for sum_of_class, sign, counts_of_class in zip(sums, (1, -1), counts, strict=True):
        costs = counts_of_class * softplus(sign * widen(values))
        # Only where a trial is: the cost of an absent one may be infinite.
        sum_of_class.index_add_(0, slots, costs.masked_fill(counts_of_class <= 0, 0))
    cost_of_middle = softplus(torch.stack([middles, -middles]))
    return torch.where(num_trials > 0, sums / num_trials, cost_of_middle)


def sort_by_class(scores: Tensor, is_target: Tensor) -> OrderedScores:
    """Return trials ``(P,)`` in order."""
    scores = scores.detach()
    is_nontarget = ~is_target
    if is_numpy_ready(scores):  # NumPy copies what a mask selects several times as fast
        nontargets = torch.from_numpy(scores.numpy()[is_nontarget.numpy()])
        targets = torch.from_numpy(scores.numpy()[is_target.numpy()])
    else:
        nontargets = scores[is_nontarget]
        targets = scores[is_target]
    return OrderedScores(sort_scores(nontargets), sort_scores(targets))


def count_by_score(
    preds: Tensor, target: Tensor, bandwidth: float | None = None, validate_args: bool = True
) -> StepsOfBothSigns:
    """Return the steps of scores and of negated scores, see :class:`Steps`.

    They are what D_ECE, min Cllr and EER are computed from. Where a class is missing or a score is
    NaN, all counts are NaN, and there is one warning.

    Args:
        preds: Scores in any shape.
        target: Their labels, 1 (same speaker) or 0 (different), in the same shape.
        bandwidth: Without it, counts are exact and have no gradient. With it, every trial is spread
            over the cells of a grid by a Gaussian of this width, in standard deviations of the
            scores, and the counts are differentiable in ``preds``.
        validate_args: Whether values are validated (NaN, labels); forces a GPU sync.
    """
    check_trials(preds, target, validate_args)
    check_bandwidth(bandwidth)
    if bandwidth is not None:
        grid = lay_grid(preds.flatten(), bandwidth)
        return count_smoothly(grid, preds.flatten(), target.flatten())
    scores = at_least_float32(preds.detach().flatten())
    is_target = target.detach().flatten().bool()
    ordered_scores = sort_by_class(scores, is_target)
    return count_ordered(ordered_scores)


def count_ordered(ordered: OrderedScores) -> StepsOfBothSigns:
    """Return the exact steps of trials in order."""
    targets, num_equal = ordered.targets.unique_consecutive(return_counts=True)
    num_below, num_up_to = _count_nontargets_below(targets, ordered.nontargets)
    num_targets = widen(num_equal)
    num_tied = widen(num_up_to - num_below)
    # Non-targets below the first target, between neighbours, and above the last: each target with
    # those above it, or, of negated scores, with those below it.
    total = num_below.new_full((1,), len(ordered.nontargets))
    nontargets = torch.cat([pad(num_below, (1, 0)), total]).diff()
    nontargets_of_negated = torch.cat([pad(num_up_to, (1, 0)), total]).diff()
    # The first step lies below the lowest target and holds none.
    ascending = Steps(
        edges=targets,
        targets=pad(num_targets, (1, 0)),
        nontargets=widen(nontargets),
        tied=pad(num_tied, (1, 0)),
    )
    descending = Steps(
        edges=-targets.flip(0),
        targets=pad(num_targets.flip(0), (1, 0)),
        nontargets=widen(nontargets_of_negated).flip(0),
        tied=pad(num_tied.flip(0), (1, 0)),
    )
    # Sorting puts NaN last.
    highest = torch.cat([ordered.nontargets[-1:], ordered.targets[-1:]])
    return mark_undefined(StepsOfBothSigns(ascending, descending), highest.isnan().any())


def lay_edges_at_targets(targets: Sequence[Tensor]) -> Tensor:
    """Return edges that make a cell of every target score, and of the scores between two of them.

    Counts in these cells give the same calibration as the scores, and as the negated scores: a
    pool of PAV begins or ends at a target. Of very many targets, evenly spaced ones have a cell.
    """
    values = torch.cat([scores.flatten() for scores in targets])
    values = values[values.isfinite()].unique()
    stride = -(-len(values) // _MOST_TARGET_CELLS) or 1
    values = values[::stride]
    above = torch.nextafter(values, torch.full_like(values, torch.inf))
    return torch.stack([values, above], dim=1).flatten()


def count_smoothly(grid: Grid, preds: Tensor, target: Tensor) -> StepsOfBothSigns:
    """Return smoothed counts, differentiable in ``preds``, as steps, one per grid cell."""
    targets, nontargets = soft_counts_on_grid(grid, preds, target)
    points = grid.points
    edges = (points[1:] + points[:-1]) / 2
    return count_by_bin(edges, targets, nontargets, has_nan=targets.isnan().any())


def count_by_bin(
    edges: Tensor,
    targets: Tensor,
    nontargets: Tensor,
    has_nan: Tensor | None = None,
    is_separated: bool = False,
) -> StepsOfBothSigns:
    """Return the steps of two histograms with bins ``(-inf, edges[0]), [edges[0], edges[1]), ...``.

    With ``is_separated`` all non-targets of a bin are taken to lie below its targets (of the
    negated scores above them): no order within a bin discloses more, and pooling the bin discloses
    less.
    """
    counts = torch.stack([widen(targets), widen(nontargets)])
    ascending = counts
    descending = counts
    if is_separated:  # two steps per bin
        edges = torch.cat([edges.repeat_interleave(2), edges[-1:]])
        only_nontargets = counts.clone()
        only_nontargets[0] = 0
        only_targets = counts - only_nontargets
        ascending = torch.stack([only_nontargets, only_targets], dim=-1).flatten(1)
        descending = torch.stack([only_targets, only_nontargets], dim=-1).flatten(1)
    steps = StepsOfBothSigns(Steps(edges, *ascending), Steps(-edges.flip(0), *descending.flip(1)))
    return mark_undefined(steps, has_nan)


def _count_nontargets_below(targets: Tensor, nontargets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of sorted non-targets below every sorted target, and up to it."""
    if not is_numpy_ready(nontargets):
        below = torch.searchsorted(nontargets, targets)
        return below, torch.searchsorted(nontargets, targets, right=True)
    target_values = targets.numpy()
    nontarget_values = nontargets.numpy()
    num_below = np.searchsorted(nontarget_values, target_values)
    num_up_to = num_below.copy()
    # A second search, for the few ties alone.
    has_next = np.flatnonzero(num_below < len(nontarget_values))
    is_tied = nontarget_values[num_below[has_next]] == target_values[has_next]
    tied = has_next[is_tied]
    num_up_to[tied] = np.searchsorted(nontarget_values, target_values[tied], "right")
    return torch.from_numpy(num_below), torch.from_numpy(num_up_to)


class ScoresAndSteps(NamedTuple):
    """What score measures are functions of: the scores, ordered or counted, and their steps.

    ``linkability_edges``: bins of the linkability measure where these are given.
    """

    trials: OrderedScores | CountedScores
    counts: StepsOfBothSigns
    linkability_edges: Tensor | None = None
