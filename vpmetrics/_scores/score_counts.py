r"""Trials reduced to counts: targets and non-targets per step of the ascending score axis.

Everything that follows from PAV depends on the order of the scores alone. *Steps* hold the number
of targets and of non-targets between neighbouring scores at which a PAV block may begin;
log-likelihood ratios, D_ECE, min Cllr and EER are functions of these two rows of counts. Three ways
lead to them:

- exactly, from scores: a block begins only at a target, so ``T`` targets and ``N`` non-targets make
  ``T + 1`` steps: what lies below the lowest target, then each target with the non-targets up to
  the next (equal targets share a step);
- from a histogram, one step per bin;
- smoothly, one step per cell of a fine grid, with counts that carry a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from vpmetrics._scores.pav import blocks_of_counts, replace_by_block_sums
from vpmetrics._scores.smoothing import Grid, lay_grid, soft_counts_on_grid
from vpmetrics._scores.sorting import sort_scores
from vpmetrics._util.dtypes import at_least_float32, is_numpy_ready, widen
from vpmetrics._util.validation import check_bandwidth, check_trials, warn_first

T = TypeVar("T")
Finder = Callable[[Tensor], list[Tensor]]

_MOST_TARGET_CELLS = 1 << 12  # of target scores
_CELLS = 1 << 16  # equal cells of the score axis


class _cached_property(Generic[T]):  # noqa: N801
    """``functools.cached_property`` without its lock, which torch.compile cannot trace before
    Python 3.12.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function = function

    def __get__(self, instance: Any, owner: type) -> T:
        value = instance.__dict__[self.function.__name__] = self.function(instance)
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
    def block_of_step(self) -> Tensor:
        """The PAV block that each step belongs to, ``(S,)``."""
        return blocks_of_counts(self.targets, self.nontargets)

    @_cached_property
    def blocks(self) -> Blocks:
        """The PAV blocks: far fewer than steps, and all that most measures need."""
        block, number = self.block_of_step, self.block_of_step.shape[-1]
        if is_numpy_ready(self.targets) and block.numel():  # on a GPU it would be a sync
            number = int(block[..., -1].amax()) + 1
        sums = (
            torch.zeros_like(part).scatter_add(-1, block, part)
            for part in (self.targets, self.nontargets)
        )
        counts = [part[..., :number] for part in sums]
        is_empty = (counts[0] + counts[1]) == 0  # a ratio of 0, so that no NaN enters the gradient
        targets, nontargets = (part.masked_fill(is_empty, 1).log() for part in counts)
        return Blocks(targets - nontargets - self._sample_log_odds, *counts)

    @_cached_property
    def llr(self) -> Tensor:
        """Natural-log likelihood ratio of every step, ``(S,)``, that of its PAV block; it may be
        infinite.
        """
        return self.blocks.llr.gather(-1, self.block_of_step)

    def laplace_llr(self, trial_weight: int = 1) -> Tensor:
        """Return the finite ratio of every step under Laplace's rule; every trial counts
        ``trial_weight`` times.
        """
        llr_by_weight: dict[int, Tensor] = self.__dict__.setdefault("_laplace_llr_by_weight", {})
        if trial_weight not in llr_by_weight:
            llr_by_weight[trial_weight] = self._compute_laplace_llr(trial_weight)
        return llr_by_weight[trial_weight]

    def _compute_laplace_llr(self, trial_weight: int) -> Tensor:
        # One label of each class below the lowest score and again above the highest; they merge
        # blocks and split none.
        counts = [
            pad(trial_weight * part, (1, 1), value=1.0)
            for part in (self.blocks.targets, self.blocks.nontargets)
        ]
        block = blocks_of_counts(*counts)
        targets, nontargets = (
            replace_by_block_sums(part, block).log()[..., 1:-1] for part in counts
        )
        return (targets - nontargets - self._sample_log_odds).gather(-1, self.block_of_step)

    @_cached_property
    def _sample_log_odds(self) -> Tensor:
        return (
            self.targets.sum(-1, keepdim=True).log() - self.nontargets.sum(-1, keepdim=True).log()
        )


class Blocks(NamedTuple):
    """PAV blocks in ascending order: log-likelihood ratio, targets and non-targets of each,
    ``(B,)``.

    On a GPU there are as many as steps, since counting them would be a sync, and the last ones hold
    no trials.
    """

    llr: Tensor
    targets: Tensor
    nontargets: Tensor


class StepsOfBothSigns(NamedTuple):
    """Steps of the scores, and of the negated scores: an attacker may flip the sign."""

    ascending: Steps
    descending: Steps


def steps_of_both_signs(targets: Tensor, nontargets: Tensor) -> StepsOfBothSigns:
    """Return the steps of counts ``(..., S)`` in ascending order of the scores; their edges are
    unknown.
    """
    edges = targets.new_empty(0)
    return StepsOfBothSigns(
        Steps(edges, targets, nontargets), Steps(edges, targets.flip(-1), nontargets.flip(-1))
    )


def merge_targetless_steps(steps: Steps) -> Steps:
    """Return the steps, with each one that has no targets merged into the one before.

    Only the first PAV block can begin at a step without targets, so the calibration stays the same.
    """
    begins = steps.targets > 0
    place = begins.cumsum(0)
    lowest = torch.cat([steps.edges.new_full((1,), -torch.inf), steps.edges])[begins]
    zeros = steps.targets.new_zeros(len(lowest) + 1)
    tied = torch.where(begins, steps.nontargets if steps.tied is None else steps.tied, 0)
    sums = (zeros.index_add(0, place, counts) for counts in (steps.targets, steps.nontargets, tied))
    return Steps(lowest, *sums)


def mark_undefined(steps: StepsOfBothSigns, has_nan: Tensor | None = None) -> StepsOfBothSigns:
    """Return the steps; their counts are NaN, with one warning, where no calibration exists."""
    targets, nontargets = steps.ascending.targets, steps.ascending.nontargets
    lacks_targets, lacks_nontargets = (part.detach().sum() == 0 for part in (targets, nontargets))
    has_nan = torch.zeros_like(lacks_targets) if has_nan is None else has_nan
    warn_first(
        {
            "Some scores are NaN.": has_nan,
            "There are no trials, and a calibration needs both kinds.": (
                lacks_targets & lacks_nontargets
            ),
            "There are no target trials, and a calibration needs both kinds.": lacks_targets,
            "There are no non-target trials, and a calibration needs both kinds.": lacks_nontargets,
        }
    )
    nan_or_one = torch.where(lacks_targets | lacks_nontargets | has_nan, torch.nan, 1)
    return StepsOfBothSigns(
        *(
            replace(
                each, targets=each.targets * nan_or_one, nontargets=each.nontargets * nan_or_one
            )
            for each in steps
        )
    )


def make_finder(steps: Steps, tables: Sequence[Tensor]) -> Finder:
    """Return a function from scores to their values in each of some tables of one entry per
    step.
    """
    edges, values = steps.edges, torch.stack(list(tables))
    if is_numpy_ready(values):  # blocks are far fewer than steps; counting them would be a GPU sync
        begins = (values[:, 1:] != values[:, :-1]).any(0)
        edges, values = edges[begins], torch.cat([values[:, :1], values[:, 1:][:, begins]], dim=1)

    def find(scores: Tensor) -> list[Tensor]:
        pieces = scores.to(edges.dtype).flatten().split(1 << 18)  # about what a cache holds
        places = [_find_places(edges, piece) for piece in pieces]
        return [
            torch.cat([table.index_select(0, each) for each in places]).view(scores.shape)
            for table in values
        ]

    return find


def _find_places(edges: Tensor, scores: Tensor) -> Tensor:
    """Return how many of the sorted edges are at most each score; for many scores by a table of
    equal cells.
    """
    span = (
        float(edges[-1] - edges[0])
        if is_numpy_ready(scores) and scores.numel() > _CELLS and len(edges)
        else 0.0
    )
    if not 1e-30 < span < 1e30:
        return torch.searchsorted(edges, scores, right=True)

    def cell_of(x: Tensor) -> Tensor:
        return (
            x.sub(edges[0])
            .mul_((_CELLS - 1) / span)
            .nan_to_num_()
            .clamp_(-1, _CELLS)
            .floor_()
            .int()
            + 1
        )

    with_edge = cell_of(edges)
    edges_up_to = (
        torch.bincount(with_edge, minlength=_CELLS + 2)
        .cumsum(0)
        .int()
        .index_fill_(0, with_edge.long(), -1)
    )
    places = edges_up_to.index_select(0, cell_of(scores))
    unsure = (places < 0).nonzero().flatten()
    places[unsure] = torch.searchsorted(edges, scores[unsure], right=True, out_int32=True)
    return places


def weighted_mean(counts: Tensor, values: Tensor) -> Tensor:
    """Return the mean of values that occur ``counts`` times (last dimension)."""
    # A step without trials does not count, even where its value is infinite.
    return torch.where(counts == 0, 0, counts * values).sum(-1) / counts.sum(-1)


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
        return torch.stack(
            [self.targets.new_full((), len(part), dtype=torch.int64) for part in self]
        )

    def cllr_costs_and_sizes(self) -> tuple[Tensor, Tensor]:
        """Return sums of costs in nats of log-likelihood ratios, and numbers of trials:
        non-targets, targets.
        """
        costs = softplus(widen(self.nontargets)).sum(), softplus(-widen(self.targets)).sum()
        return torch.stack(costs), self.class_sizes

    def count_between(self, edges: Tensor) -> Tensor:
        """Return non-targets and targets in each of the bins between edges, ``(2, E + 1)``."""
        below = torch.stack([torch.searchsorted(part, edges) for part in self])
        return torch.cat([pad(below, (1, 0)), self.class_sizes[:, None]], dim=1).diff()

    def span_or_nan(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest score; NaN where one is NaN, infinite where there is
        none.
        """
        none = self.targets.new_full((1,), torch.inf)
        low = torch.cat([none, self.targets[:1], self.nontargets[:1]]).amin()
        return low, torch.cat([-none, self.targets[-1:], self.nontargets[-1:]]).amax()


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
        """Return what :meth:`OrderedScores.cllr_costs_and_sizes` returns."""
        cost = (
            softplus(torch.stack([self.values, -self.values]))
            if self.costs is None
            else self.costs()
        )
        cost = cost.view(2, *[1] * (self.counts.dim() - 2), -1)
        # Only where a trial is: the cost of an absent one may be infinite.
        return torch.where(self.counts > 0, self.counts * cost, 0).sum(-1), self.class_sizes

    def count_between(self, edges: Tensor) -> Tensor:
        """Return what :meth:`OrderedScores.count_between` returns."""
        slots = torch.bucketize(self.values, edges, right=True)
        counts = widen(self.counts)
        return counts.new_zeros(*counts.shape[:-1], len(edges) + 1).index_add(-1, slots, counts)

    def span_or_nan(self) -> tuple[Tensor, Tensor]:
        """Return what :meth:`OrderedScores.span_or_nan` returns."""
        seen, ends = (self.counts > 0).flatten(0, -2).any(0), (self.values, -self.values)
        low, high = (
            pad(torch.where(seen, end, torch.inf), (0, 1), value=torch.inf).amin() for end in ends
        )
        return low, -high


def mean_costs_between(
    trials: OrderedScores | CountedScores, edges: Tensor, middles: Tensor
) -> Tensor:
    """Return mean costs in nats of log-likelihood ratios, non-targets and targets, between edges
    ``(2, E + 1)``.

    Where no trial lies, it is the cost of the middle between two edges: rounding may move a trial
    across an edge.
    """
    (values, counts), number = trials.values_and_counts(), trials.count_between(edges)
    slots, sums = (
        torch.bucketize(values, edges, right=True),
        torch.zeros_like(number, dtype=widen(values).dtype),
    )
    for sum_of_class, sign, times in zip(sums, (1, -1), counts, strict=True):
        # Only where a trial is: the cost of an absent one may be infinite.
        sum_of_class.index_add_(
            0, slots, torch.where(times > 0, times * softplus(sign * widen(values)), 0)
        )
    return torch.where(number > 0, sums / number, softplus(torch.stack([middles, -middles])))


def sort_by_class(scores: Tensor, is_target: Tensor) -> OrderedScores:
    """Return trials ``(P,)`` in order."""
    scores = scores.detach()
    if is_numpy_ready(scores):  # NumPy copies what a mask selects several times as fast
        parts = [torch.from_numpy(scores.numpy()[mask.numpy()]) for mask in (~is_target, is_target)]
    else:
        parts = [scores[~is_target], scores[is_target]]
    return OrderedScores(*map(sort_scores, parts))


def count_by_score(
    preds: Tensor, target: Tensor, bandwidth: float | None = None, validate_args: bool = True
) -> StepsOfBothSigns:
    """Return the steps of trials in any shape, or those of the smooth surrogate where ``bandwidth``
    is given.

    NaN and one warning where a class is missing or a score is NaN.
    """
    check_trials(preds, target, validate_args)
    check_bandwidth(bandwidth)
    if bandwidth is not None:
        return count_smoothly(
            lay_grid(preds.flatten(), bandwidth), preds.flatten(), target.flatten()
        )
    scores, is_target = at_least_float32(preds.detach().flatten()), target.detach().flatten().bool()
    return count_ordered(sort_by_class(scores, is_target))


def count_ordered(ordered: OrderedScores) -> StepsOfBothSigns:
    """Return the exact steps of trials in order."""
    targets, times = ordered.targets.unique_consecutive(return_counts=True)
    below, up_to = _count_nontargets_below(targets, ordered.nontargets)
    times, tied = widen(times), widen(up_to - below)
    # Non-targets below the first target, between neighbours, and above the last.
    total = below.new_full((1,), len(ordered.nontargets))
    low, high = (widen(torch.cat([pad(ranks, (1, 0)), total]).diff()) for ranks in (below, up_to))
    ascending = Steps(targets, pad(times, (1, 0)), low, pad(tied, (1, 0)))
    descending = Steps(
        -targets.flip(0), pad(times.flip(0), (1, 0)), high.flip(0), pad(tied.flip(0), (1, 0))
    )
    # Sorting puts NaN last.
    last = torch.cat([part[-1:] for part in ordered])
    return mark_undefined(StepsOfBothSigns(ascending, descending), last.isnan().any())


def lay_edges_at_targets(targets: Sequence[Tensor]) -> Tensor:
    """Return edges that make a cell of every target score, and one of the scores between two of
    them.

    Counts in these cells give the same calibration as the scores, and as the negated scores: a
    block of PAV begins or ends at a target. Of very many targets, evenly spaced ones have a cell.
    """
    values = torch.cat([scores.flatten() for scores in targets])
    values = values[values.isfinite()].unique()
    stride = -(-len(values) // _MOST_TARGET_CELLS) or 1
    values = values[::stride]
    above = torch.nextafter(values, torch.full_like(values, torch.inf))
    return torch.stack([values, above], dim=1).flatten()


def count_smoothly(grid: Grid, preds: Tensor, target: Tensor) -> StepsOfBothSigns:
    """Return smoothed counts as steps, one per grid cell; the counts are differentiable in
    ``preds``.
    """
    targets, nontargets = soft_counts_on_grid(grid, preds, target)
    points = grid.points
    return count_by_bin((points[1:] + points[:-1]) / 2, targets, nontargets, targets.isnan().any())


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
    ascending = descending = counts
    if is_separated:  # two steps per bin
        edges = torch.cat([edges.repeat_interleave(2), edges[-1:]])
        first, second = counts.clone(), counts.clone()
        first[0], second[1] = 0, 0
        ascending, descending = (
            torch.stack(pair, dim=-1).flatten(1) for pair in ((first, second), (second, first))
        )
    steps = StepsOfBothSigns(Steps(edges, *ascending), Steps(-edges.flip(0), *descending.flip(1)))
    return mark_undefined(steps, has_nan)


def _count_nontargets_below(targets: Tensor, nontargets: Tensor) -> tuple[Tensor, Tensor]:
    """Return for every sorted target the number of sorted non-targets below it, and of those up to
    it.
    """
    if not is_numpy_ready(nontargets):
        return torch.searchsorted(nontargets, targets), torch.searchsorted(
            nontargets, targets, right=True
        )
    values, ordered = targets.numpy(), nontargets.numpy()
    below = np.searchsorted(ordered, values)
    up_to, ties = below.copy(), np.flatnonzero(below < len(ordered))
    ties = ties[ordered[below[ties]] == values[ties]]  # a second search, for the few ties alone
    up_to[ties] = np.searchsorted(ordered, values[ties], "right")
    return torch.from_numpy(below), torch.from_numpy(up_to)


class ScoresAndSteps(NamedTuple):
    """What score measures are functions of: the scores, ordered or counted, and their steps.

    ``linkability_edges``: bins of the linkability measure where these are given.
    """

    trials: OrderedScores | CountedScores
    counts: StepsOfBothSigns
    linkability_edges: Tensor | None = None
