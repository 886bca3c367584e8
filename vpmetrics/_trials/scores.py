"""The scores of a condition: all of them where they are few, two fine histograms where they are many."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._precision import all_finite, at_least_float32, wide_dtype, widen
from vpmetrics._scores.counting import count_by_bin, count_ordered, counts_on_grid
from vpmetrics._scores.host import on_host
from vpmetrics._scores.look_up import Finder, look_up_in
from vpmetrics._scores.ordered import Counted, Ordered, in_order, order_parts, order_scores
from vpmetrics._scores.smooth import lay_grid, read_off
from vpmetrics._scores.steps import ScoreCounts, condense
from vpmetrics._trials import shares
from vpmetrics._trials.pairs import TrialGrid

_BINS = 1 << 16  # equal ones, over the range in which most scores lie
_MARGIN = 0.25  # by which that range, of a sample, is widened on both sides
_OUTLIER = 6.0  # times the distance of the middle of a sample to its outermost hundredth: no longer that range
_TAIL, _PER_OCTAVE = 1 << 15, 256  # bins beyond it on either side, ever wider; as many as float32 can need
_EVERY = _BINS + 2 * _TAIL
_COUNTED = 2**31 - 1  # pairs that counts of 32 bits hold, wherever they fall
_SNAP = {torch.float64: 12, torch.float32: 4}  # bits given up so that scores that are equal on paper are equal


class ConditionScores(NamedTuple):
    """What one pass over the tiles of a condition keeps.

    ``trials``: every score, or the middle of every bin and how often it occurs. ``counts`` for what follows from PAV;
    ``look_up(tables)`` makes what finds, at scores that it overwrites, the values of what is known per step;
    ``separated`` makes the counts that bound what binning may have hidden, and ``width`` is how wide each bin is.
    ``within`` says that each pair was counted once, whichever way round.
    """

    trials: Ordered | Counted
    counts: ScoreCounts
    look_up: Callable[[Sequence[Tensor]], Finder]
    within: bool
    separated: Callable[[], ScoreCounts] | None = None
    width: Tensor | None = None

    def llr_of_both_orders(self) -> Tensor:
        """Log-likelihood ratio of every step under Laplace's rule, every pair counted in both orders.

        The rule's labels then weigh as much within a side as between sides, so that a system that does nothing leaves
        similarities as they are.
        """
        return self.counts.ascending.llr_of_orders(2 if self.within else 1)


def score_condition(grid: TrialGrid, bandwidth: float | None = None) -> ConditionScores:
    """One pass over the tiles. With ``bandwidth``, smoothly and with a graph, so all scores are kept."""
    if bandwidth is not None:
        return _smooth_scores(grid, *grid.all_trials(), bandwidth)
    return _keep_scores(grid) if grid.few else _bin_scores(grid)


def _smooth_scores(grid: TrialGrid, scores: Tensor, is_target: Tensor, bandwidth: float) -> ConditionScores:
    points = lay_grid(scores, bandwidth)
    counts = counts_on_grid(points, scores, is_target)

    def look_up(tables: Sequence[Tensor]) -> Finder:
        return lambda values: [read_off(points, table, values.flatten()).view(values.shape) for table in tables]

    trials = Counted(scores, torch.stack([~is_target, is_target]))
    return ConditionScores(trials, counts, look_up, grid.within)


def _keep_scores(grid: TrialGrid) -> ConditionScores:
    parts = [(part, list(part)) for part in grid.parts()]
    unit = _unit_of([tile.scores for _, tiles in parts for tile in tiles], grid.vectors[0])
    nothing = unit.new_empty(0)  # where there is no tile
    classes = [(nothing, nothing)]
    for part, tiles in parts:
        tiles = [tile._replace(scores=tile.scores.contiguous().div(unit).round_().mul_(unit)) for tile in tiles]
        part.keep(tiles)
        classes += [tile.classes() for tile in tiles]
    if shares.apart():
        targets, nontargets = (shares.of_all(torch.cat(scores)) for scores in zip(*classes, strict=True))
        classes = [(targets, nontargets)]
    return _in_order(order_parts(classes), grid.within)


def keep_scores(scores: Tensor, is_target: Tensor, within: bool = False) -> ConditionScores:
    """Trials ``(P,)`` as they are, every score for itself."""
    return _in_order(order_scores(at_least_float32(scores.detach()), is_target), within)


def _in_order(trials: Ordered, within: bool) -> ConditionScores:
    counts = count_ordered(trials)
    return ConditionScores(trials, counts, partial(look_up_in, counts.ascending), within)


def _unit_of(scores: Sequence[Tensor], like: Tensor) -> Tensor:
    """What scores are rounded to: a matrix product adds up in an order that depends on where a pair stands.

    A power of two, so that rounding to it is exact, well above what is left of that order.
    """
    (largest,) = shares.most(torch.stack([like.new_zeros(()), *map(_largest, scores)]).amax())
    exponent = torch.frexp(torch.where(largest > 0, largest, 1)).exponent
    return torch.ldexp(torch.full_like(largest, torch.finfo(largest.dtype).eps * 2 ** _SNAP[largest.dtype]), exponent)


def _largest(scores: Tensor) -> Tensor:
    """The largest in size of those scores that are finite."""
    ends = torch.stack(scores.aminmax())
    if on_host(scores) and bool(ends.isfinite().all()):
        return ends.abs().amax()
    return scores.abs().nan_to_num(0, 0, 0).amax()


class _Axis(NamedTuple):
    """Bins of the score axis: equal ones where most scores lie, and ever wider ones beyond on either side.

    One loud recording then costs the others no resolution, and no score lies outside. The equal ones are numbered
    first, so that nothing need be added for most scores; then come those above and, the lowest first, those below.
    """

    low: Tensor  # where the equal bins begin
    scale: Tensor  # how many of them there are to a unit

    def bin_of(self, scores: Tensor) -> Tensor:
        """The number of the bin of every score, in their shape; NaN has the last one. Overwrites the scores."""
        x = scores.sub_(self.low).mul_(self.scale)
        # On a CPU it costs little to look whether all scores are inside; a GPU would have to wait.
        if x.device.type == "cpu" and x.numel():
            least, most = _in_memory_order(x).aminmax()
            if least.item() >= 0 and most.item() < _BINS:
                return x.to(torch.int32)
        nan, x = x.isnan(), x.nan_to_num_()
        inside = x.clamp(0, _BINS - 1).to(torch.int32)
        beyond = torch.maximum(-x, x - _BINS)
        octaves = torch.log2(1 + beyond.clamp(min=0) / _BINS)
        steps = (octaves * _PER_OCTAVE).clamp(max=_TAIL - 1).to(torch.int32)
        outside = torch.where(x < 0, _EVERY - 1 - steps, _BINS + steps)
        return torch.where(beyond > 0, outside, inside).masked_fill_(nan, _EVERY)

    def edges(self) -> Tensor:
        """Lower ends of all bins but the lowest, ascending."""
        steps = torch.arange(1, _TAIL, device=self.low.device, dtype=wide_dtype(self.low.device))
        tail = _BINS * torch.expm1(steps * (math.log(2) / _PER_OCTAVE))
        middle = torch.arange(_BINS + 1, device=self.low.device, dtype=tail.dtype)
        return widen(self.low) + torch.cat([-tail.flip(0), middle, _BINS + tail]) / widen(self.scale)


def _lay_axis(grid: TrialGrid) -> _Axis:
    sample = grid.sample().flatten()
    # On a CPU it costs little to look, and a copy of most of them as much as to sort them.
    ordered = in_order(sample if on_host(sample) and bool(all_finite(sample)) else sample[sample.isfinite()])
    if len(ordered) == 0:
        ordered = sample.new_zeros(1)
    low, first, middle, last, high = (ordered[round(share * (len(ordered) - 1))] for share in (0, 0.01, 0.5, 0.99, 1))
    low, high = (
        torch.maximum(low, middle - _OUTLIER * (middle - first)),
        torch.minimum(high, middle + _OUTLIER * (last - middle)),
    )
    margin = _MARGIN * (high - low) + torch.finfo(low.dtype).tiny ** 0.5
    return _Axis(*shares.of_first(torch.stack([low - margin, _BINS / (high - low + 2 * margin)])))


def _count_by_bin(grid: TrialGrid, axis: _Axis) -> Tensor:
    """Non-targets and targets in every bin by its number ``(2, _EVERY + 1)``, of those tiles that fall here."""
    every = _EVERY + 1
    counts = torch.zeros(2 * every + 1, dtype=torch.int64, device=axis.low.device)
    some, pairs = counts.int(), 0  # half as many bytes are faster
    one = some.new_ones(())
    for tile in grid.shared():
        slots = axis.bin_of(tile.scores)
        if tile.same_speaker is not None:
            slots += tile.same_speaker * every
        if tile.excluded is not None:
            slots.masked_fill_(tile.excluded, 2 * every)
        pairs += slots.numel()
        if pairs > _COUNTED:
            counts, pairs = counts + some, slots.numel()
            some.zero_()
        some.index_add_(0, _in_memory_order(slots), one.expand(slots.numel()))
    return (counts + some)[:-1].view(2, every)


def _in_memory_order(values: Tensor) -> Tensor:
    """Flat, without a copy also of what stands in memory column by column."""
    return (values if values.is_contiguous() else values.mT).flatten()


def _shaped_as(values: Tensor, flat: Tensor) -> Tensor:
    """What was found for values in that order, in their shape."""
    return flat.view(values.shape) if values.is_contiguous() else flat.view(values.mT.shape).mT


def _bin_scores(grid: TrialGrid) -> ConditionScores:
    axis = _lay_axis(grid)
    by_class = shares.total(torch.stack(grid.by_threads(partial(_count_by_bin, grid, axis))).sum(0))
    by_class, nan_seen = by_class[:, :-1].roll(_TAIL, 1), by_class[:, -1].sum() > 0
    edges = axis.edges()
    middles = torch.cat([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]])
    middles = torch.where(nan_seen, torch.nan, middles)
    histogram = edges, by_class[1], by_class[0], nan_seen
    every_bin = count_by_bin(*histogram)
    ascending, step_of_bin = condense(every_bin.ascending)
    counts = ScoreCounts(ascending, condense(every_bin.descending)[0])

    def look_up(tables: Sequence[Tensor]) -> Finder:
        per_bin = [pad(table[step_of_bin].roll(-_TAIL), (0, 1), value=torch.nan) for table in tables]

        def find(scores: Tensor) -> list[Tensor]:
            slots = axis.bin_of(scores)
            return [_shaped_as(slots, table.index_select(0, _in_memory_order(slots))) for table in per_bin]

        return find

    width = torch.cat([edges.diff()[:1], edges.diff(), edges.diff()[-1:]])
    separated = lambda: count_by_bin(*histogram, separated=True)  # noqa: E731
    return ConditionScores(Counted(middles, by_class), counts, look_up, grid.within, separated, width)
