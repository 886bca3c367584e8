"""The scores of a condition: all of them where they are few, two fine histograms where they are many."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import wide_dtype
from vpmetrics._scores.counting import count_by_bin, count_by_score, counts_on_grid
from vpmetrics._scores.smooth import lay_grid, read_off
from vpmetrics._scores.steps import ScoreCounts, condense
from vpmetrics._trials.pairs import TrialGrid

EXACT_PAIRS = 1 << 22  # up to here every score is its own; beyond, those of a bin are one
_BINS = 1 << 16
_MARGIN = 0.25  # by which the range of a sample is widened on both sides; scores outside share the outermost bins


class ConditionScores(NamedTuple):
    """What one pass over the tiles of a condition keeps.

    ``values`` and ``counts_of_values`` ``(2, V)``, of non-targets and targets: every score once, or the middle of
    every bin. ``counts`` for what follows from PAV; ``look_up(per_step, scores)`` for the value at every score of
    something known per step; ``separated`` makes the counts that bound what binning may have hidden.
    """

    values: Tensor
    counts_of_values: Tensor
    counts: ScoreCounts
    look_up: Callable[[Tensor, Tensor], Tensor]
    separated: Callable[[], ScoreCounts] | None = None


def score_condition(grid: TrialGrid, bandwidth: float | None = None) -> ConditionScores:
    """One pass over the tiles. With ``bandwidth``, smoothly and with a graph, so all scores are kept."""
    if bandwidth is None and grid.pairs > EXACT_PAIRS:
        return _bin_scores(grid)
    scores, is_target = grid.all_trials()
    return keep_scores(scores, is_target) if bandwidth is None else _smooth_scores(scores, is_target, bandwidth)


def _smooth_scores(scores: Tensor, is_target: Tensor, bandwidth: float) -> ConditionScores:
    points = lay_grid(scores, bandwidth)
    counts = counts_on_grid(points, scores, is_target)

    def look_up(per_step: Tensor, values: Tensor) -> Tensor:
        return read_off(points, per_step, values.flatten()).view(values.shape)

    return ConditionScores(scores, torch.stack([~is_target, is_target]), counts, look_up)


def keep_scores(scores: Tensor, is_target: Tensor) -> ConditionScores:
    """Trials ``(P,)`` as they are, every score for itself."""
    counts = count_by_score(scores, is_target, validate_args=False)
    edges = counts.ascending.edges

    def look_up(per_step: Tensor, values: Tensor) -> Tensor:
        step = torch.searchsorted(edges, values.to(edges.dtype), right=True)
        return per_step.index_select(0, step.flatten()).view(values.shape)

    return ConditionScores(scores, torch.stack([~is_target, is_target]), counts, look_up)


def _bin_scores(grid: TrialGrid) -> ConditionScores:
    low, high = grid.sample().nan_to_num().aminmax()
    margin = _MARGIN * (high - low) + torch.finfo(low.dtype).tiny
    low, scale = low - margin, _BINS / (high - low + 2 * margin)

    def bin_of(scores: Tensor) -> Tensor:
        # In place, for a new tile costs more to allocate than to fill.
        return scores.sub(low).mul_(scale).nan_to_num_().clamp_(0, _BINS - 1).to(torch.int32)

    flat = torch.zeros(2 * _BINS + 1, dtype=torch.int64, device=low.device)
    one = flat.new_ones(())
    for tile in grid:
        bins = bin_of(tile.scores)
        if tile.same_speaker is not None:
            bins += tile.same_speaker * _BINS
        if tile.excluded is not None:
            bins.masked_fill_(tile.excluded, 2 * _BINS)
        flat.index_add_(0, bins.flatten(), one.expand(bins.numel()))
    by_class = flat[:-1].view(2, _BINS)
    edges = low + torch.arange(1, _BINS, device=flat.device, dtype=wide_dtype(flat.device)) / scale
    middles = torch.cat([edges, edges[-1:] + 1 / scale]) - 0.5 / scale
    middles = torch.where(grid.nan_seen, torch.nan, middles)
    histogram = edges, by_class[1], by_class[0], grid.nan_seen
    every_bin = count_by_bin(*histogram)
    ascending, step_of_bin = condense(every_bin.ascending)
    counts = ScoreCounts(ascending, condense(every_bin.descending)[0])

    def look_up(per_step: Tensor, scores: Tensor) -> Tensor:
        return per_step[step_of_bin].index_select(0, bin_of(scores).flatten()).view(scores.shape)

    return ConditionScores(middles, by_class, counts, look_up, lambda: count_by_bin(*histogram, separated=True))
