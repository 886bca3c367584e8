"""The scores of a condition: all of them where they are few, two fine histograms where they are many."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import wide_dtype, widen
from vpmetrics._scores.counting import count_by_bin, count_by_score, counts_on_grid
from vpmetrics._scores.smooth import lay_grid, read_off
from vpmetrics._scores.steps import ScoreCounts, Steps, calibrate, condense
from vpmetrics._trials import shares
from vpmetrics._trials.pairs import TrialGrid

_BINS = 1 << 16  # equal ones, over the range in which most scores lie
_MARGIN = 0.25  # by which that range, of a sample, is widened on both sides
_OUTLIER = 6.0  # times the distance of the middle of a sample to its outermost hundredth: no longer that range
_TAIL, _PER_OCTAVE = 1 << 15, 256  # bins beyond it on either side, ever wider; as many as float32 can need
_SNAP = {torch.float64: 12, torch.float32: 4}  # bits given up so that scores that are equal on paper are equal


class ConditionScores(NamedTuple):
    """What one pass over the tiles of a condition keeps.

    ``values`` and ``counts_of_values`` ``(2, V)``, of non-targets and targets: every score once, or the middle of
    every bin. ``counts`` for what follows from PAV; ``look_up(tables, scores)`` for the values at every score of what
    is known per step, and overwrites the scores; ``separated`` makes the counts that bound what binning may have
    hidden, and ``width`` is how wide each bin is. ``within`` says that each pair was counted once, whichever way round.
    """

    values: Tensor
    counts_of_values: Tensor
    counts: ScoreCounts
    look_up: Callable[[Sequence[Tensor], Tensor], list[Tensor]]
    within: bool
    separated: Callable[[], ScoreCounts] | None = None
    width: Tensor | None = None

    def llr_of_both_orders(self) -> Tensor:
        """Log-likelihood ratio of every step under Laplace's rule, every pair counted in both orders.

        The rule's labels then weigh as much within a side as between sides, so that a system that does nothing leaves
        similarities as they are.
        """
        steps = self.counts.ascending
        if self.within:
            steps = Steps(steps.edges, 2 * steps.targets, 2 * steps.nontargets)
        return calibrate(steps, laplace=True)


def score_condition(grid: TrialGrid, bandwidth: float | None = None) -> ConditionScores:
    """One pass over the tiles. With ``bandwidth``, smoothly and with a graph, so all scores are kept."""
    if bandwidth is not None:
        return _smooth_scores(grid, *grid.all_trials(), bandwidth)
    return _keep_scores(grid) if grid.few else _bin_scores(grid)


def _smooth_scores(grid: TrialGrid, scores: Tensor, is_target: Tensor, bandwidth: float) -> ConditionScores:
    points = lay_grid(scores, bandwidth)
    counts = counts_on_grid(points, scores, is_target)

    def look_up(tables: Sequence[Tensor], values: Tensor) -> list[Tensor]:
        return [read_off(points, table, values.flatten()).view(values.shape) for table in tables]

    return ConditionScores(scores, torch.stack([~is_target, is_target]), counts, look_up, grid.within)


def _keep_scores(grid: TrialGrid) -> ConditionScores:
    tiles = list(grid)
    unit = _unit_of(grid)
    tiles = [tile._replace(scores=tile.scores.contiguous().div(unit).round_().mul_(unit)) for tile in tiles]
    grid.keep(tiles)
    return keep_scores(*grid.all_trials(), grid.within)


def keep_scores(scores: Tensor, is_target: Tensor, within: bool = False) -> ConditionScores:
    """Trials ``(P,)`` as they are, every score for itself."""
    counts = count_by_score(scores, is_target, validate_args=False)
    edges = counts.ascending.edges

    def look_up(tables: Sequence[Tensor], values: Tensor) -> list[Tensor]:
        step = torch.searchsorted(edges, values.to(edges.dtype).contiguous(), right=True).flatten()
        return [table.index_select(0, step).view(values.shape) for table in tables]

    return ConditionScores(scores, torch.stack([~is_target, is_target]), counts, look_up, within)


def _unit_of(grid: TrialGrid) -> Tensor:
    """What scores are rounded to: a matrix product adds up in an order that depends on where a pair stands.

    A power of two, so that rounding to it is exact, well above what is left of that order.
    """
    sample = grid.sample()
    largest = sample.abs().nan_to_num(0, 0, 0).amax() if sample.numel() else sample.new_ones(())
    exponent = torch.frexp(torch.where(largest > 0, largest, 1)).exponent
    return torch.ldexp(torch.full_like(largest, torch.finfo(sample.dtype).eps * 2 ** _SNAP[sample.dtype]), exponent)


class _Axis(NamedTuple):
    """Bins of the score axis: equal ones where most scores lie, and ever wider ones beyond on either side.

    One loud recording then costs the others no resolution, and no score lies outside.
    """

    low: Tensor  # where the equal bins begin
    scale: Tensor  # how many of them there are to a unit

    def bin_of(self, scores: Tensor) -> Tensor:
        """The bin of every score, in their shape; of NaN, any. Overwrites the scores."""
        x = scores.sub_(self.low).mul_(self.scale).nan_to_num_()
        inside = x.clamp(0, _BINS - 1).to(torch.int32).add_(_TAIL)
        beyond = torch.maximum(-x, x - _BINS)
        # On a CPU it costs nothing to look whether any score is outside; a GPU would have to wait.
        if beyond.device.type == "cpu" and not bool((beyond > 0).any()):
            return inside
        octaves = torch.log2(1 + beyond.clamp(min=0) / _BINS)
        steps = (octaves * _PER_OCTAVE).clamp(max=_TAIL - 1).to(torch.int32)
        outside = torch.where(x < 0, _TAIL - 1 - steps, _TAIL + _BINS + steps)
        return torch.where(beyond > 0, outside, inside)

    def edges(self) -> Tensor:
        """Lower ends of all bins but the first."""
        steps = torch.arange(1, _TAIL, device=self.low.device, dtype=wide_dtype(self.low.device))
        tail = _BINS * torch.expm1(steps * (math.log(2) / _PER_OCTAVE))
        middle = torch.arange(_BINS + 1, device=self.low.device, dtype=tail.dtype)
        return widen(self.low) + torch.cat([-tail.flip(0), middle, _BINS + tail]) / widen(self.scale)


def _lay_axis(grid: TrialGrid) -> _Axis:
    sample = grid.sample().flatten()
    ordered = sample[sample.isfinite()].sort().values
    if len(ordered) == 0:
        ordered = sample.new_zeros(1)
    low, first, middle, last, high = (ordered[round(share * (len(ordered) - 1))] for share in (0, 0.01, 0.5, 0.99, 1))
    low, high = (
        torch.maximum(low, middle - _OUTLIER * (middle - first)),
        torch.minimum(high, middle + _OUTLIER * (last - middle)),
    )
    margin = _MARGIN * (high - low) + torch.finfo(low.dtype).tiny ** 0.5
    return _Axis(*shares.of_first(torch.stack([low - margin, _BINS / (high - low + 2 * margin)])))


def _bin_scores(grid: TrialGrid) -> ConditionScores:
    axis = _lay_axis(grid)
    bins = _BINS + 2 * _TAIL
    flat = torch.zeros(2 * bins + 1, dtype=torch.int64, device=axis.low.device)
    one, nan_seen = flat.new_ones(()), grid.nan_seen
    for tile in grid.shared():
        nan_seen = nan_seen | tile.scores.isnan().any()
        slots = axis.bin_of(tile.scores)
        if tile.same_speaker is not None:
            slots += tile.same_speaker * bins
        if tile.excluded is not None:
            slots.masked_fill_(tile.excluded, 2 * bins)
        flat.index_add_(0, slots.flatten(), one.expand(slots.numel()))
    flat[-1] = nan_seen
    flat = shares.total(flat)
    by_class, nan_seen = flat[:-1].view(2, bins), flat[-1] > 0
    edges = axis.edges()
    middles = torch.cat([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]])
    middles = torch.where(nan_seen, torch.nan, middles)
    histogram = edges, by_class[1], by_class[0], nan_seen
    every_bin = count_by_bin(*histogram)
    ascending, step_of_bin = condense(every_bin.ascending)
    counts = ScoreCounts(ascending, condense(every_bin.descending)[0])

    def look_up(tables: Sequence[Tensor], scores: Tensor) -> list[Tensor]:
        slots = axis.bin_of(scores).flatten()
        return [table[step_of_bin].index_select(0, slots).view(scores.shape) for table in tables]

    width = torch.cat([edges.diff()[:1], edges.diff(), edges.diff()[-1:]])
    separated = lambda: count_by_bin(*histogram, separated=True)  # noqa: E731
    return ConditionScores(middles, by_class, counts, look_up, grid.within, separated, width)
