r"""Trials reduced to counts: targets and non-targets per step of the ascending score axis.

Everything that follows from PAV depends on the order of the scores alone. *Steps* hold the number of targets and of
non-targets between neighbouring scores at which a PAV block may begin; log-likelihood ratios, D_ECE, min Cllr and EER
are functions of these two rows of counts. Three ways lead to them:

- exactly, from scores: a block begins only at a target, so ``T`` targets and ``N`` non-targets make ``T + 1`` steps:
  what lies below the lowest target, then each target with the non-targets up to the next (equal targets share a step);
- from a histogram, one step per bin;
- smoothly, one step per cell of a fine grid, with counts that carry a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from vpmetrics._engine.pav import blocks_of_counts, number_of_blocks, sum_by_block
from vpmetrics._engine.precision import at_least_float32, is_numpy_ready, select, widen
from vpmetrics._engine.smoothing import Grid, count_on_grid, lay_grid
from vpmetrics._engine.validation import check_bandwidth, check_trials, warn_first

T = TypeVar("T")


class _cached_property(Generic[T]):  # noqa: N801
    """That of functools without the lock it has before Python 3.12, which breaks the graphs of torch.compile."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self.function, self.__doc__ = function, function.__doc__

    def __get__(self, instance: object, owner: type) -> T:
        value = instance.__dict__[self.function.__name__] = self.function(instance)
        return value


@dataclass(frozen=True, eq=False)
class Steps:
    """Trials per step of the ascending score axis, and their calibration.

    ``edges`` ``(S - 1,)``: the lowest score of every step but the first.
    ``targets``, ``nontargets`` ``(S,)``: how many trials of each class, in the type sums are made in.
    ``tied`` ``(S,)``: how many of the non-targets have the very score of the targets, where the others are higher;
    None where the order within a step is unknown, as in a histogram; then all count as tied.
    """

    edges: Tensor
    targets: Tensor
    nontargets: Tensor
    tied: Tensor | None = None

    @_cached_property
    def block(self) -> Tensor:
        """The PAV block that each step belongs to, ``(S,)``."""
        return blocks_of_counts(self.targets, self.nontargets)

    @_cached_property
    def blocks(self) -> Blocks:
        """The PAV blocks: far fewer than steps, and all that most measures need."""
        counts = [_sum_blocks(counts, self.block) for counts in (self.targets, self.nontargets)]
        is_empty = (counts[0] + counts[1]) == 0  # a ratio of 0, so that no NaN enters the gradient
        ratio = _log_ratio(*(part.masked_fill(is_empty, 1) for part in counts))
        return Blocks(ratio - _log_ratio(*self._totals), *counts)

    @_cached_property
    def llr(self) -> Tensor:
        """Natural-log likelihood ratio of every step, see :func:`calibrate`."""
        return self.blocks.llr.gather(-1, self.block)

    @_cached_property
    def llr_laplace(self) -> Tensor:
        """The same under Laplace's rule."""
        return self.llr_of_orders(1)

    def llr_of_orders(self, orders: int) -> Tensor:
        """Return the ratios under Laplace's rule with every trial counted so many times."""
        # One label of each class below the lowest score and again above the highest; they merge blocks and split none.
        counts = [pad(orders * counts, (1, 1), value=1.0) for counts in (self.blocks.targets, self.blocks.nontargets)]
        block = blocks_of_counts(*counts)
        ratio = _log_ratio(*(sum_by_block(part, block) for part in counts))[..., 1:-1]
        return (ratio - _log_ratio(*(orders * total for total in self._totals))).gather(-1, self.block)

    @property
    def _totals(self) -> tuple[Tensor, Tensor]:
        return self.targets.sum(-1, keepdim=True), self.nontargets.sum(-1, keepdim=True)


class Blocks(NamedTuple):
    """PAV blocks in ascending order: log-likelihood ratio, targets and non-targets of each, ``(B,)``.

    On a GPU there are as many as steps, since counting them would be a sync, and the last ones hold no trials.
    """

    llr: Tensor
    targets: Tensor
    nontargets: Tensor


def _sum_blocks(counts: Tensor, block: Tensor) -> Tensor:
    return torch.zeros_like(counts).scatter_add(-1, block, counts)[..., : number_of_blocks(counts, block)]


def _log_ratio(targets: Tensor, nontargets: Tensor) -> Tensor:
    return targets.log() - nontargets.log()


class ScoreCounts(NamedTuple):
    """Steps of the scores, and of the negated scores: an attacker may flip the sign."""

    ascending: Steps
    descending: Steps


def condense(steps: Steps) -> tuple[Steps, Tensor]:
    """Merge every step without targets into the one before; return the steps and the new index of each, ``(S,)``.

    No PAV block begins at a step without targets, so nothing that follows from PAV changes.
    """
    begins = steps.targets > 0
    place = begins.cumsum(0)
    lowest = torch.cat([steps.edges.new_full((1,), -torch.inf), steps.edges])[begins]
    empty = steps.targets.new_zeros(len(lowest) + 1)
    tied = torch.where(begins, steps.nontargets if steps.tied is None else steps.tied, 0)
    sums = (empty.index_add(0, place, counts) for counts in (steps.targets, steps.nontargets, tied))
    return Steps(lowest, *sums), place


def defined_or_nan(counts: ScoreCounts, nan_seen: Tensor | None = None) -> ScoreCounts:
    """Return the counts, or NaN counts and one warning where no calibration exists."""
    targets, nontargets = (part.detach().sum() == 0 for part in (counts.ascending.targets, counts.ascending.nontargets))
    nan = torch.zeros_like(targets) if nan_seen is None else nan_seen
    warn_first(
        {
            "Some scores are NaN.": nan,
            "There are no trials, and a calibration needs both kinds.": targets & nontargets,
            "There are no target trials, and a calibration needs both kinds.": targets,
            "There are no non-target trials, and a calibration needs both kinds.": nontargets,
        }
    )
    known = torch.where(targets | nontargets | nan, torch.nan, 1)
    return ScoreCounts(
        *(replace(each, targets=each.targets * known, nontargets=each.nontargets * known) for each in counts)
    )


def calibrate(steps: Steps, laplace: bool = False) -> Tensor:
    """Return the natural-log likelihood ratio of every step, ``(S,)``: that of its PAV block.

    -inf and +inf are legal.
    """
    return steps.llr_laplace if laplace else steps.llr


def mean_over(counts: Tensor, values: Tensor) -> Tensor:
    """Return the mean of values that occur ``counts`` times (last dimension)."""
    # A step without trials does not count, even where its value is infinite.
    return torch.where(counts == 0, 0, counts * values).sum(-1) / counts.sum(-1)


CHUNK = 1 << 20  # scores worked on at a time: about what the caches hold


class Ordered(NamedTuple):
    """Scores of both classes, ascending, NaN last; non-targets in sorted pieces, whose counts add up.

    Counts between edges are found by searching the edges in the sorted scores, not the scores in the edges.
    """

    targets: Tensor
    nontargets: list[Tensor]

    def table(self) -> tuple[Tensor, Tensor]:
        """Return all scores, and which are of non-targets and of targets, ``(2, P)``."""
        is_target = torch.arange(sum(self.numbers()), device=self.targets.device) < len(self.targets)
        return torch.cat([self.targets, *self.nontargets]), torch.stack([~is_target, is_target])

    def numbers(self) -> list[int]:
        """Return how many non-targets and targets there are."""
        return [sum(map(len, self.nontargets)), len(self.targets)]

    @property
    def sizes(self) -> Tensor:
        """The same, ``(2,)``."""
        return torch.stack([self.targets.new_full((), number, dtype=torch.int64) for number in self.numbers()])

    def cllr_sums(self) -> tuple[Tensor, Tensor]:
        """Return costs in nats of the scores as log-likelihood ratios, and numbers of trials: non-targets, targets."""
        costs = [softplus(widen(part)).sum() for piece in self.nontargets for part in piece.split(CHUNK)]
        return torch.stack([torch.stack(costs).sum(), softplus(-widen(self.targets)).sum()]), self.sizes

    def between(self, edges: Tensor) -> Tensor:
        """Return non-targets and targets in each of the bins between edges, ``(2, E + 1)``."""
        nontargets = torch.stack([torch.searchsorted(piece, edges) for piece in self.nontargets]).sum(0)
        below = nontargets, torch.searchsorted(self.targets, edges)
        ends = zip(below, self.numbers(), strict=True)
        return torch.stack([pad(pad(each, (1, 0)), (0, 1), value=number).diff() for each, number in ends])

    def mean_costs(self, edges: Tensor) -> Tensor:
        """Return mean costs in nats of log-likelihood ratios, non-targets and targets, between edges ``(2, E + 1)``."""
        sums = widen(edges).new_zeros(2, len(edges) + 1)
        for kind, pieces in enumerate((self.nontargets, [self.targets])):
            for part in (part for piece in pieces for part in piece.split(CHUNK)):
                slots = torch.searchsorted(edges, widen(part), right=True)
                sums[kind].index_add_(0, slots, softplus(widen(part if kind == 0 else -part)))
        number = self.between(edges)
        return torch.where(number > 0, sums / number, 0)

    def span(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest score; NaN where one is NaN, infinite where there is none."""
        parts = [part for part in (self.targets, *self.nontargets) if len(part)]
        low, high = ([part[end] for part in parts] for end in (0, -1))
        none = self.targets.new_full((), torch.inf)
        return torch.stack([none, *low]).amin(), torch.stack([-none, *high]).amax()


class Counted(NamedTuple):
    """Values ``(V,)`` and how often each occurs among non-targets and targets, ``(2, ..., V)``.

    Further dimensions hold the same values counted over different trials, such as the replicates of a jackknife.
    ``costs``: mean costs of the trials behind each value, ``(2, V)``, where a value stands for several.
    """

    values: Tensor
    counts: Tensor
    costs: Callable[[], Tensor] | None = None

    def table(self) -> tuple[Tensor, Tensor]:
        """Return values and counts."""
        return self.values, self.counts

    def numbers(self) -> list[float]:
        """Return how many non-targets and targets there are."""
        numbers: list[float] = self.sizes.tolist()
        return numbers

    @property
    def sizes(self) -> Tensor:
        """The same, ``(2, ...)``."""
        return self.counts.sum(-1)

    def cllr_sums(self) -> tuple[Tensor, Tensor]:
        """Return what :meth:`Ordered.cllr_sums` returns."""
        cost = softplus(torch.stack([self.values, -self.values])) if self.costs is None else self.costs()
        cost = cost.view(2, *[1] * (self.counts.dim() - 2), -1)
        # Only where a trial is: the cost of an absent one may be infinite.
        return torch.where(self.counts > 0, self.counts * cost, 0).sum(-1), self.sizes

    def mean_costs(self, edges: Tensor) -> Tensor:
        """Return what :meth:`Ordered.mean_costs` returns."""
        cost = self.counts * softplus(torch.stack([self.values, -self.values]))
        slots = torch.bucketize(self.values, edges, right=True)
        sums = widen(edges).new_zeros(2, len(edges) + 1).index_add(1, slots, torch.where(self.counts > 0, cost, 0))
        number = self.between(edges)
        return torch.where(number > 0, sums / number, 0)

    def between(self, edges: Tensor) -> Tensor:
        """Return what :meth:`Ordered.between` returns."""
        slots = torch.bucketize(self.values, edges, right=True)
        counts = widen(self.counts)
        return counts.new_zeros(*counts.shape[:-1], len(edges) + 1).index_add(-1, slots, counts)

    def span(self) -> tuple[Tensor, Tensor]:
        """Return what :meth:`Ordered.span` returns."""
        seen, ends = (self.counts > 0).flatten(0, -2).any(0), (self.values, -self.values)
        low, high = (pad(torch.where(seen, end, torch.inf), (0, 1), value=torch.inf).amin() for end in ends)
        return low, -high


def order_scores(scores: Tensor, is_target: Tensor) -> Ordered:
    """Return trials ``(P,)`` in order."""
    return order_parts([(select(scores, is_target), select(scores, ~is_target))])


def order_parts(parts: Iterable[tuple[Tensor, Tensor]]) -> Ordered:
    """Return targets and non-targets in order, given in parts, at least one; a single part is overwritten."""
    targets, nontargets = zip(*parts, strict=True)
    threads, others = torch.get_num_threads(), nontargets[0] if len(nontargets) == 1 else torch.cat(nontargets)
    # Fewer pieces mean fewer searches.
    pieces = others.split(max(CHUNK, -(-len(others) // threads)))
    if len(pieces) == 1:
        return Ordered(_sort_in_place(torch.cat(targets)), [_sort_in_place(others)])
    # NumPy releases the interpreter lock while it sorts, so that pieces are sorted in parallel.
    with ThreadPoolExecutor(threads) as pool:
        return Ordered(_sort_in_place(torch.cat(targets)), list(pool.map(_sort_in_place, pieces)))


def _sort_in_place(scores: Tensor) -> Tensor:
    """Return sorted scores; overwrites them on a CPU."""
    if not is_numpy_ready(scores):
        return sort_scores(scores)
    scores.numpy().sort()
    return scores


def sort_scores(scores: Tensor) -> Tensor:
    """Return scores ascending, NaN last."""
    return torch.from_numpy(np.sort(scores.numpy())) if is_numpy_ready(scores) else scores.sort().values


def count_by_score(
    preds: Tensor, target: Tensor, bandwidth: float | None = None, validate_args: bool = True
) -> ScoreCounts:
    """Return the steps of trials in any shape, or those of the smooth surrogate where ``bandwidth`` is given.

    NaN and one warning where a class is missing or a score is NaN.
    """
    check_trials(preds, target, validate_args)
    check_bandwidth(bandwidth)
    if bandwidth is not None:
        return count_on_smooth_grid(lay_grid(preds.flatten(), bandwidth), preds.flatten(), target.flatten())
    scores, is_target = at_least_float32(preds.detach().flatten()), target.detach().flatten().bool()
    return count_ordered(order_scores(scores, is_target))


def count_ordered(ordered: Ordered) -> ScoreCounts:
    """Return the exact steps of trials in order."""
    number = sum(map(len, ordered.nontargets))
    targets, times = ordered.targets.unique_consecutive(return_counts=True)
    below, up_to = _ranks(targets, ordered.nontargets)
    times, tied = widen(times), widen(up_to - below)
    low, high = _gaps(below, number), _gaps(up_to, number)
    ascending = Steps(targets, pad(times, (1, 0)), low, pad(tied, (1, 0)))
    descending = Steps(-targets.flip(0), pad(times.flip(0), (1, 0)), high.flip(0), pad(tied.flip(0), (1, 0)))
    # Sorting puts NaN last.
    last = torch.cat([part[-1:] for part in (targets, *ordered.nontargets)])
    return defined_or_nan(ScoreCounts(ascending, descending), last.isnan().any())


def count_on_smooth_grid(grid: Grid, preds: Tensor, target: Tensor) -> ScoreCounts:
    """Return the steps of the smooth surrogate, one per cell, with counts that carry a gradient to ``preds`` ``(P.

    )``.
    """
    targets, nontargets = count_on_grid(grid, preds, target)
    points = grid.points
    return count_by_bin((points[1:] + points[:-1]) / 2, targets, nontargets, nan_seen=targets.isnan().any())


def count_by_bin(
    edges: Tensor,
    targets: Tensor,
    nontargets: Tensor,
    nan_seen: Tensor | None = None,
    separated: bool = False,
) -> ScoreCounts:
    """Return the steps of two histograms with bins ``(-inf, edges[0]), [edges[0], edges[1]), ...``.

    With ``separated`` all non-targets of a bin are taken to lie below its targets (of the negated scores above them):
    no order within a bin discloses more, and pooling the bin discloses less.
    """
    targets, nontargets = widen(targets), widen(nontargets)
    if not separated:
        upward = Steps(edges, targets, nontargets)
        downward = Steps(-edges.flip(0), targets.flip(0), nontargets.flip(0))
    else:
        nothing = torch.zeros_like(targets)
        edges = torch.cat([edges.repeat_interleave(2), edges[-1:]])
        late, early = _interleave(nothing, targets), _interleave(nontargets, nothing)
        upward = Steps(edges, late, early)
        late, early = _interleave(targets, nothing), _interleave(nothing, nontargets)
        downward = Steps(-edges.flip(0), late.flip(0), early.flip(0))
    return defined_or_nan(ScoreCounts(upward, downward), nan_seen)


def _interleave(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack([first, second], dim=-1).flatten()


def _gaps(ranks: Tensor, total: int) -> Tensor:
    """Return how many of ``total`` lie below the first rank, between neighbours, and above the last."""
    return widen(torch.cat([pad(ranks, (1, 0)), ranks.new_full((1,), total)]).diff())


def _ranks(targets: Tensor, nontargets: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return for every sorted target the non-targets below it and those up to it, summed over their sorted pieces."""
    below, up_to = (torch.zeros_like(targets, dtype=torch.int64) for _ in range(2))
    for piece in nontargets:
        found = _ranks_in_piece(targets, piece)
        below, up_to = below + found[0], up_to + found[1]
    return below, up_to


def _ranks_in_piece(targets: Tensor, piece: Tensor) -> tuple[Tensor, Tensor]:
    if not is_numpy_ready(piece):
        return torch.searchsorted(piece, targets), torch.searchsorted(piece, targets, right=True)
    values, ordered = targets.numpy(), piece.numpy()
    below = np.searchsorted(ordered, values)
    up_to, ties = below.copy(), np.flatnonzero(below < len(ordered))
    ties = ties[ordered[below[ties]] == values[ties]]  # a second search, for the few ties alone
    up_to[ties] = np.searchsorted(ordered, values[ties], "right")
    return torch.from_numpy(below), torch.from_numpy(up_to)


class CountedTrials(NamedTuple):
    """What every score measure is a function of: the scores, ordered or counted, and their steps.

    ``linkability_edges``: bins of the linkability measure where these are given.
    """

    trials: Ordered | Counted
    counts: ScoreCounts
    linkability_edges: Tensor | None = None


def count_trials(scores: Tensor, is_target: Tensor) -> CountedTrials:
    """Return trials ``(P,)`` with every score kept."""
    trials = order_scores(at_least_float32(scores.detach()), is_target)
    return CountedTrials(trials, count_ordered(trials))
