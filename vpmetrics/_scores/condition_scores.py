"""The scores of a condition: all of them where they are few, otherwise two fine histograms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.score_counts import (
    CountedScores,
    Finder,
    OrderedScores,
    ScoresAndSteps,
    StepsOfBothSigns,
    count_by_bin,
    count_ordered,
    count_smoothly,
    make_finder,
    merge_targetless_steps,
    sort_by_class,
)
from vpmetrics._scores.smoothing import interpolate_smoothed, lay_grid
from vpmetrics._scores.sorting import sort_scores
from vpmetrics._util.dtypes import at_least_float32, wide_dtype, widen
from vpmetrics._utterances.utterances import add_counts

_BINS = 1 << 16  # equal bins, over the range in which most scores lie
_MARGIN = 0.25  # share by which the range of a sample is widened on both sides
# the range ends this many times as far from the median as the 1st or the 99th percentile, at most
_OUTLIER = 6.0
# bins beyond the range on either side, ever wider; enough for all of float32
_TAIL = 1 << 15
_PER_OCTAVE = 256
_ALL_BINS = _BINS + 2 * _TAIL


class ConditionScores(NamedTuple):
    """Scores of a condition, and their counts by PAV step, from one pass over its blocks.

    ``trials``: every score, or the middle of every bin and its counts. ``counts`` for what follows
    from PAV. ``make_finder(tables)`` returns a function from scores to the values of tables with
    one entry per step. ``has_unordered_pairs``: each unordered pair was counted once.
    ``worst_counts`` bound the error by binning.
    """

    trials: OrderedScores | CountedScores
    counts: StepsOfBothSigns
    make_finder: Callable[[Sequence[Tensor]], Finder]
    has_unordered_pairs: bool = False
    worst_counts: Callable[[], StepsOfBothSigns] | None = None

    @property
    def measure_input(self) -> ScoresAndSteps:
        """Trials and counts, as score measures take them."""
        return ScoresAndSteps(self.trials, self.counts)

    @property
    def is_defined(self) -> bool:
        """Whether both classes have trials and no score is NaN."""
        return not bool(self.counts.ascending.targets.isnan().any())

    def laplace_llr_of_steps(self) -> Tensor:
        """Return the log-likelihood ratio of every step under Laplace's rule.

        Every pair counts in both orders.

        The labels that Laplace's rule adds then weigh as much within a side as between sides, so
        that a system that changes nothing keeps all similarities.
        """
        return self.counts.ascending.laplace_llr(2 if self.has_unordered_pairs else 1)


def collect_pair_scores(pairs: PairBlocks, bandwidth: float | None = None) -> ConditionScores:
    """Return the scores of a condition.

    With ``bandwidth`` smoothly and with a graph, so that all are kept.
    """
    if bandwidth is not None:
        return _smooth_scores(pairs, bandwidth)
    if pairs.is_exact:
        pairs.round_and_keep_blocks()
        return _score_ordered(
            OrderedScores(*map(sort_scores, pairs.nontarget_and_target_scores())),
            pairs.is_same_rows,
        )
    return _bin_scores(pairs)


def collect_trial_scores(
    scores: Tensor, is_target: Tensor, has_unordered_pairs: bool = False
) -> ConditionScores:
    """Sort and count given scores ``(P,)``; none are binned.

    ``has_unordered_pairs``: each unordered pair occurs once.
    """
    return _score_ordered(
        sort_by_class(at_least_float32(scores.detach()), is_target), has_unordered_pairs
    )


def _score_ordered(trials: OrderedScores, has_unordered_pairs: bool) -> ConditionScores:
    counts = count_ordered(trials)
    return ConditionScores(
        trials, counts, partial(make_finder, counts.ascending), has_unordered_pairs
    )


def _smooth_scores(pairs: PairBlocks, bandwidth: float) -> ConditionScores:
    scores, is_target = pairs.scores_and_labels()
    grid = lay_grid(scores, bandwidth)
    counts = count_smoothly(grid, scores, is_target)

    def make_finder(tables: Sequence[Tensor]) -> Finder:
        return lambda values: [
            interpolate_smoothed(grid, table, values.flatten()).view_as(values) for table in tables
        ]

    trials = CountedScores(scores, torch.stack([~is_target, is_target]))
    return ConditionScores(trials, counts, make_finder, pairs.is_same_rows)


class _TailedScoreAxis(NamedTuple):
    """Bins of the score axis.

    Equal ones where most scores lie, and ever wider ones beyond on either side.

    One outlier then costs the others no resolution, and no score lies outside. Equal bins are
    numbered first, so that most scores need no offset; then come those above and, lowest first,
    those below.
    """

    low: Tensor  # where the equal bins begin
    scale: Tensor  # bins per unit of score

    def bin_in_place(self, scores: Tensor) -> Tensor:
        """Return the bin of every score, in their shape; NaN has the last one.

        Overwrites the scores.
        """
        x = scores.sub_(self.low).mul_(self.scale)
        # On a CPU it costs little to check whether all scores are inside; a GPU would have to wait.
        if x.device.type == "cpu" and x.numel():
            least, most = x.aminmax()
            if least.item() >= 0 and most.item() < _BINS:
                return x.to(torch.int32)
        is_nan = x.isnan()
        x = x.nan_to_num_()
        inside = x.clamp(0, _BINS - 1).to(torch.int32)
        beyond = torch.maximum(-x, x - _BINS)
        octaves = torch.log2(1 + beyond.clamp(min=0) / _BINS)
        steps = (octaves * _PER_OCTAVE).clamp(max=_TAIL - 1).to(torch.int32)
        outside = torch.where(x < 0, _ALL_BINS - 1 - steps, _BINS + steps)
        return torch.where(beyond > 0, outside, inside).masked_fill_(is_nan, _ALL_BINS)

    def edges(self) -> Tensor:
        """Return the lower ends of all bins but the lowest, ascending."""
        steps = torch.arange(1, _TAIL, device=self.low.device, dtype=wide_dtype(self.low.device))
        tail = _BINS * torch.expm1(steps * (math.log(2) / _PER_OCTAVE))
        middle = torch.arange(_BINS + 1, device=self.low.device, dtype=tail.dtype)
        return widen(self.low) + torch.cat([-tail.flip(0), middle, _BINS + tail]) / widen(
            self.scale
        )


def _lay_axis(sample: Tensor) -> _TailedScoreAxis:
    """Return bins for scores that are distributed about as those of a sample."""
    ordered = sort_scores(sample[sample.isfinite()])
    if len(ordered) == 0:
        ordered = sample.new_zeros(1)

    def quantile(share: float) -> Tensor:
        return ordered[round(share * (len(ordered) - 1))]

    median = quantile(0.5)
    low = torch.maximum(quantile(0), median - _OUTLIER * (median - quantile(0.01)))
    high = torch.minimum(quantile(1), median + _OUTLIER * (quantile(0.99) - median))
    margin = _MARGIN * (high - low) + torch.finfo(low.dtype).tiny ** 0.5
    return _TailedScoreAxis(low - margin, _BINS / (high - low + 2 * margin))


def collect_block_scores(
    sample: Tensor, blocks: Iterable[tuple[Tensor, Tensor]]
) -> ConditionScores:
    """Count given scores, block by block, in a fine histogram of each class.

    Args:
        sample: Some of the scores, which say where the bins are to be.
        blocks: Scores of trials, and whether each is a target, in the same shape. The scores are
            overwritten.
    """
    axis = _lay_axis(sample.flatten())
    num_columns = _ALL_BINS + 1  # the last one counts NaN
    # The columns of the non-targets, then those of the targets.
    counts = torch.zeros(2 * num_columns, dtype=torch.int64)
    for scores, is_target in blocks:
        add_counts(counts, axis.bin_in_place(scores) + is_target * num_columns)
    # Given trials are counted as they are; only pairs within one side are unordered.
    return _score_histogram(axis, counts.view(2, num_columns), has_unordered_pairs=False)


def _bin_scores(pairs: PairBlocks) -> ConditionScores:
    axis = _lay_axis(pairs.sample_scores().flatten())
    columns = _ALL_BINS + 1
    table = torch.zeros(2 * columns + 1, dtype=torch.int64, device=axis.low.device)
    for block in pairs:
        slots = axis.bin_in_place(block.scores)
        if block.is_target is not None and block.is_trial is not None:
            slots += block.is_target * columns
            slots.masked_fill_(~block.is_trial, 2 * columns)
        add_counts(table, slots)
    (by_class,) = pairs.processes.all_reduce(table[:-1].view(2, columns))
    return _score_histogram(axis, by_class, pairs.is_same_rows)


def _score_histogram(
    axis: _TailedScoreAxis, by_class: Tensor, has_unordered_pairs: bool
) -> ConditionScores:
    """Return the scores in a histogram of non-targets and targets, whose last column counts NaN."""
    has_nan = by_class[:, -1].sum() > 0
    by_class = by_class[:, :-1].roll(_TAIL, 1)
    edges = axis.edges()
    middles = torch.cat([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]])
    histogram = edges, by_class[1], by_class[0], has_nan
    counts = count_by_bin(*histogram)
    step_of_bin = (counts.ascending.targets > 0).cumsum(0)  # among the merged steps

    def make_finder(tables: Sequence[Tensor]) -> Finder:
        per_bin = [
            pad(table[step_of_bin].roll(-_TAIL), (0, 1), value=torch.nan) for table in tables
        ]

        def find(scores: Tensor) -> list[Tensor]:
            slots = axis.bin_in_place(scores)
            return [table.index_select(0, slots.flatten()).view(slots.shape) for table in per_bin]

        return find

    return ConditionScores(
        CountedScores(torch.where(has_nan, torch.nan, middles), by_class),
        StepsOfBothSigns(*map(merge_targetless_steps, counts)),
        make_finder,
        has_unordered_pairs,
        lambda: count_by_bin(*histogram, is_separated=True),
    )
