"""What the metrics of trials keep: the scores, or two histograms of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from vpmetrics._checks import check_thresholds
from vpmetrics._metric.forms import Gather
from vpmetrics._metric.trials import TrialMetric
from vpmetrics._precision import at_least_float32, result_dtype, widen
from vpmetrics._scores.bins import (
    LOWEST_EXPONENT,
    bin_learnt,
    bin_scores,
    coarsen,
    edges_of,
    exponent_of,
    learnt_edges,
    steps_of_bins,
)
from vpmetrics._scores.counting import count_by_score
from vpmetrics._scores.steps import ScoreCounts


class ScoreMetric(TrialMetric):
    """A metric of trials: keeps the scores, or two histograms of them."""

    __jit_unused_properties__: ClassVar[list[str]] = [*TrialMetric.__jit_unused_properties__, "keeps_scores"]

    bin_edges: Tensor
    bin_counts: Tensor
    learnt_bin_exponent: Tensor
    learnt_bin_counts: Tensor

    def __init__(
        self,
        thresholds: int | Tensor | None = None,
        score_range: tuple[float, float] | None = None,
        bandwidth: float | None = None,
        validate_args: bool = True,
        intervals: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bandwidth, validate_args, intervals, **kwargs)
        check_thresholds(thresholds, score_range)
        if thresholds is not None and bandwidth is not None:
            raise ValueError("Expected `bandwidth` only without `thresholds`: a histogram holds no gradient.")
        if thresholds is not None and intervals is not None:
            raise ValueError("Expected `intervals` only without `thresholds`: a histogram forgets who speaks.")
        if thresholds is None:
            self._keeps = "scores"
            self._keep_scores()
        elif isinstance(thresholds, int) and score_range is None:
            self._keeps = "learnt bins"
            columns = 2 * ((thresholds + 1) // 2) + 3
            self.add_state("learnt_bin_exponent", default=torch.tensor(LOWEST_EXPONENT), dist_reduce_fx="max")
            self.add_state("learnt_bin_counts", default=torch.zeros(2, columns).long(), dist_reduce_fx="sum")
        else:
            self._keeps = "given bins"
            edges = edges_of(thresholds, score_range)
            self.add_state("bin_edges", default=edges, dist_reduce_fx="max")
            self.add_state("bin_counts", default=torch.zeros(2, len(edges) + 2).long(), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor, speakers: Sequence[Tensor] | None = None) -> None:
        """Accumulate a batch of trials.

        Args:
            preds: Scores in any shape and on any scale, higher = more alike.
            target: 1 (same speaker) or 0 (different), boolean or integer, of the same shape.
            speakers: Who speaks on the enrolment side and on the probe side, two tensors of integers of that shape;
                for ``intervals``.
        """
        self._check_batch(preds, target, speakers)
        if self.keeps_scores:
            self._append(preds, target, speakers)
            return
        scores, is_target = at_least_float32(preds.detach().flatten()), target.detach().flatten().bool()
        if self._keeps == "given bins":
            self.bin_counts = self.bin_counts + bin_scores(scores, is_target, self.bin_edges)
        elif len(scores):
            self._align(torch.maximum(self.learnt_bin_exponent, exponent_of(scores)))
            counts = bin_learnt(scores, is_target, self.learnt_bin_exponent, self.learnt_bin_counts.shape[1])
            self.learnt_bin_counts = self.learnt_bin_counts + counts

    @property
    def keeps_scores(self) -> bool:
        """Whether the scores themselves are kept, not histograms of them."""
        return self._keeps == "scores"

    def _value(self) -> Any:
        return self._value_of_counts(self._counts(), self._dtype_of_result())

    def error_bound(self) -> Any:
        """By how much binning may have lowered each value at most; 0 where the scores themselves are kept."""
        with self._gathered():
            lower = self._value_of_counts(self._counts(), torch.float64)
            upper = lower if self.keeps_scores else self._value_of_counts(self._counts(separated=True), torch.float64)
        if isinstance(upper, dict):
            return {key: (upper[key] - lower[key]).abs() for key in upper if key != "tag"}
        return (upper - lower).abs()

    def _value_of_counts(self, counts: ScoreCounts, dtype: torch.dtype) -> Any:
        raise NotImplementedError

    def _value_of_trials(self, preds: Tensor, target: Tensor) -> Any:
        counts = count_by_score(preds, target, validate_args=False, bandwidth=self.bandwidth)
        return self._value_of_counts(counts, result_dtype(preds))

    def _counts(self, separated: bool = False) -> ScoreCounts:
        if self.keeps_scores:
            return count_by_score(*self._trials(), validate_args=False, bandwidth=self.bandwidth)
        return steps_of_bins(*self._bins(), separated)

    def _bins(self) -> tuple[Tensor, Tensor]:
        """Edges of the histograms, and their counts with NaN in the last column."""
        if self._keeps == "given bins":
            return self.bin_edges, self.bin_counts
        return learnt_edges(self.learnt_bin_exponent, self.learnt_bin_counts.shape[1]), self.learnt_bin_counts

    def _bin_middles(self) -> tuple[Tensor, Tensor]:
        """Middle of every bin and counts ``(2, bins)``; a bin without an end is taken to have none beyond its edge."""
        edges, counts = self._bins()
        edges = widen(edges)
        middles = torch.cat([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]])
        return torch.where(counts[:, -1].sum() > 0, torch.nan, middles), counts[:, :-1]

    def _dtype_of_result(self) -> torch.dtype:
        return result_dtype(self._trials()[0]) if self.keeps_scores else torch.float32

    def _align(self, exponent: Tensor) -> None:
        """Widen the learnt range to another one, never narrower."""
        self.learnt_bin_counts = coarsen(self.learnt_bin_counts, exponent - self.learnt_bin_exponent)
        self.learnt_bin_exponent = exponent

    def _agree(self, gather: Gather) -> None:
        super()._agree(gather)
        if self._keeps == "given bins":
            _check_same_bins(gather(self.bin_edges), "on all processes")
        elif self._keeps == "learnt bins":
            self._align(torch.stack(list(gather(self.learnt_bin_exponent))).amax())

    def _aligned(self, incoming_state: dict[str, Any]) -> dict[str, Any]:
        if self._keeps == "given bins":
            _check_same_bins([self.bin_edges, incoming_state["bin_edges"]], "in both metrics")
        if self._keeps != "learnt bins":
            return incoming_state
        theirs = incoming_state["learnt_bin_exponent"]
        self._align(torch.maximum(self.learnt_bin_exponent, theirs))
        counts = coarsen(incoming_state["learnt_bin_counts"], self.learnt_bin_exponent - theirs)
        return {"learnt_bin_exponent": self.learnt_bin_exponent, "learnt_bin_counts": counts}


def _check_same_bins(edges: Sequence[Tensor], where: str) -> None:
    """Counts of unlike bins have no sum."""
    first, *others = edges
    for other in others:
        if not torch.equal(first, other):
            got = " and ".join(f"{float(e[0]):g} to {float(e[-1]):g}" for e in (first, other))
            raise ValueError(f"Expected the same edges of bins {where}, but got {len(first)} edges from {got}.")
