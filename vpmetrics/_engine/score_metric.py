r"""The base of all score metrics: they store the scores, or two histograms of constant size.

Bins are given (edges, or a number of them over a range) or learnt. A learnt range is :math:`[-2^k, 2^k)`: when a score
falls outside, :math:`k` grows and neighbouring bins are added up, so histograms can be merged, without a GPU sync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from vpmetrics._engine.condition_scores import collect_trial_scores
from vpmetrics._engine.jackknife import add_intervals, count_trial_replicates, split_labels_into_groups
from vpmetrics._engine.metric_base import IntervalMetric
from vpmetrics._engine.precision import at_least_float32, result_dtype, wide_dtype, widen
from vpmetrics._engine.score_counts import Steps, StepsOfBothSigns, count_by_bin, count_by_score
from vpmetrics._engine.utterances import encode_column, encode_labels
from vpmetrics._engine.validation import check_speakers_of_trials, check_thresholds, check_trials, collect_warnings

_LOWEST_EXPONENT = -1000  # of a range that has held no score yet


class TrialMetric(IntervalMetric):
    """A metric of trials. With ``intervals`` it stores every score and both speakers of each trial."""

    measure: ClassVar[str]  # key of the value in a dictionary
    if TYPE_CHECKING:  # annotations that TorchScript would try to resolve
        scores: list[Tensor]
        is_target: list[Tensor]
        trial_speakers: list[Tensor]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.intervals is not None:
            self._add_score_and_target_states()
            self.add_state("trial_speakers", default=[], dist_reduce_fx="cat")

    def _add_score_and_target_states(self) -> None:
        # A collection shares states of one name and value, so names differ where contents do.
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("is_target", default=[], dist_reduce_fx="cat")

    def _check_batch(self, preds: Tensor, target: Tensor, speakers: Sequence[Any] | None) -> Tensor | None:
        """Return the speakers of both sides, ``(B, 2)``, after validation."""
        check_trials(preds, target, self.validate_args)
        if speakers is None:
            if self.intervals is not None:
                raise ValueError("Expected `speakers` with `intervals`: speakers are left out, not trials.")
            return None
        if isinstance(speakers, (list, tuple)) and len(speakers) == 2:
            speakers = [encode_column("speakers", each).to(preds.device) for each in speakers]
        check_speakers_of_trials(speakers, target, self.validate_args)
        return torch.stack([side.detach().flatten().long() for side in speakers], dim=1)

    def _store_trials(self, preds: Tensor, target: Tensor, speakers: Tensor | None) -> None:
        # Copies: a view would keep the activation it was cut from alive, and change with it.
        scores, is_target = at_least_float32(preds.detach().flatten()), target.detach().flatten().bool()
        self.scores.append(scores.clone() if scores.dtype == preds.dtype else scores)
        self.is_target.append(is_target.clone() if target.dtype == torch.bool else is_target)
        if self.intervals is not None and speakers is not None:
            self.trial_speakers.append(speakers)

    def _concatenate_trials(self) -> tuple[Tensor, Tensor]:
        if len(self.scores) == 0:
            return torch.empty(0, device=self.device), torch.empty(0, device=self.device, dtype=torch.bool)
        return self._join_in_place("scores"), self._join_in_place("is_target")

    def _compute_value(self) -> Any:
        """Return the value over all trials so far, without intervals."""
        raise NotImplementedError

    def compute(self) -> Any:
        """Return the value over all trials so far."""
        if self.intervals is None:
            return self._compute_value()
        scores, is_target = self._concatenate_trials()
        has_trials = len(self.trial_speakers) > 0
        speakers = self._join_in_place("trial_speakers") if has_trials else is_target.new_empty(0, 2).long()
        with collect_warnings():
            return self._add_interval_ends(self._compute_value(), scores, is_target, speakers)

    def _compute_value_of_trials(self, preds: Tensor, target: Tensor) -> Any:
        """Return the value of some trials alone, without intervals."""
        raise NotImplementedError

    def _compute_batch_value(self, preds: Tensor, target: Tensor, speakers: Sequence[Tensor] | None = None) -> Any:
        with collect_warnings():
            value = self._compute_value_of_trials(preds, target)
            if self.intervals is None or speakers is None:
                return value
            both = torch.stack([encode_labels(side).flatten().long() for side in speakers], dim=1).to(preds.device)
            return self._add_interval_ends(value, preds.detach().flatten(), target.flatten().bool(), both)

    def _add_interval_ends(self, value: Any, scores: Tensor, is_target: Tensor, speakers: Tensor) -> dict[str, Tensor]:
        """Return the value as a dictionary, with the ends of the interval of each number that has one."""
        named = value if isinstance(value, dict) else {self.measure: value}
        labels, places = speakers.T.unique(return_inverse=True)
        groups, scored = split_labels_into_groups(labels), collect_trial_scores(scores, is_target)
        jackknife = None
        if scored.is_defined:
            counts = count_trial_replicates(scored, at_least_float32(scores), is_target, places, groups)
            jackknife = counts.make_jackknife()
        values = add_intervals(named, jackknife, self.intervals or 0.0)
        return {key: each.to(result_dtype(scores)) for key, each in values.items()}


class ScoreMetric(TrialMetric):
    """A metric of trials that stores the scores, or two histograms of them."""

    __jit_unused_properties__: ClassVar[list[str]] = [*TrialMetric.__jit_unused_properties__, "keeps_scores"]

    formula: Callable[[Steps], Tensor]  # of a metric of the steps of ascending scores alone
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
        for name, value in (("bandwidth", bandwidth), ("intervals", intervals)):
            if thresholds is not None and value is not None:
                raise ValueError(f"Expected `{name}` only without `thresholds`: histograms do not keep single trials.")
        self.thresholds, self.score_range = thresholds, score_range  # which all processes must agree on
        if thresholds is None:
            self._storage = "scores"
            self._add_score_and_target_states()
        elif isinstance(thresholds, int) and score_range is None:
            self._storage = "learnt bins"
            columns = 2 * ((thresholds + 1) // 2) + 3
            self.add_state("learnt_bin_exponent", default=torch.tensor(_LOWEST_EXPONENT), dist_reduce_fx="max")
            self.add_state("learnt_bin_counts", default=torch.zeros(2, columns).long(), dist_reduce_fx="sum")
        else:
            self._storage = "given bins"
            edges = _resolve_edges(thresholds, score_range)
            self.add_state("bin_edges", default=edges, dist_reduce_fx="max")
            self.add_state("bin_counts", default=torch.zeros(2, len(edges) + 2).long(), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor, speakers: Sequence[Any] | None = None) -> None:
        """Accumulate a batch of trials.

        Args:
            preds: Scores in any shape and on any scale, higher = more alike.
            target: 1 (same speaker) or 0 (different), boolean or integer, of the same shape.
            speakers: Speakers of the enrolment side and of the test side, two tensors of integers of that shape or two
                lists of strings; for ``intervals``.
        """
        both = self._check_batch(preds, target, speakers)
        if self.keeps_scores:
            self._store_trials(preds, target, both)
            return
        scores, is_target = at_least_float32(preds.detach().flatten()), target.detach().flatten().bool()
        if self._storage == "given bins":
            self.bin_counts = self.bin_counts + _count_given_bins(scores, is_target, self.bin_edges)
        elif len(scores):
            self._widen_range(torch.maximum(self.learnt_bin_exponent, _range_exponent(scores)))
            counts = _count_learnt_bins(scores, is_target, self.learnt_bin_exponent, self.learnt_bin_counts.shape[1])
            self.learnt_bin_counts = self.learnt_bin_counts + counts

    @property
    def keeps_scores(self) -> bool:
        """Whether the scores themselves are stored, not histograms of them."""
        return self._storage == "scores"

    def _compute_value(self) -> Any:
        dtype = result_dtype(self._concatenate_trials()[0]) if self.keeps_scores else torch.float32
        return self._compute_value_of_steps(self._count_trials(), dtype)

    def error_bound(self) -> Any:
        """Return by how much binning may have lowered each value at most; 0 where the scores themselves are stored."""
        with self._gather_states():
            lower = self._compute_value_of_steps(self._count_trials(), torch.float64)
            steps = None if self.keeps_scores else self._count_trials(is_separated=True)
            upper = lower if steps is None else self._compute_value_of_steps(steps, torch.float64)
        if isinstance(upper, dict):
            return {key: (upper[key] - lower[key]).abs() for key in upper if key != "tag"}
        return (upper - lower).abs()

    def _compute_value_of_steps(self, steps: StepsOfBothSigns, dtype: torch.dtype) -> Any:
        return self.formula(steps.ascending).to(dtype)

    def _compute_value_of_trials(self, preds: Tensor, target: Tensor) -> Any:
        steps = count_by_score(preds, target, validate_args=False, bandwidth=self.bandwidth)
        return self._compute_value_of_steps(steps, result_dtype(preds))

    def _count_trials(self, is_separated: bool = False) -> StepsOfBothSigns:
        if self.keeps_scores:
            return count_by_score(*self._concatenate_trials(), validate_args=False, bandwidth=self.bandwidth)
        edges, counts = self._edges_and_counts()
        nontargets, targets = counts[:, :-1]
        return count_by_bin(edges, targets, nontargets, counts[:, -1].sum() > 0, is_separated)

    def _edges_and_counts(self) -> tuple[Tensor, Tensor]:
        """Return the edges of the bins, given or learnt, and their counts; the last column counts NaN scores."""
        if self._storage == "given bins":
            return self.bin_edges, self.bin_counts
        return _learnt_edges(self.learnt_bin_exponent, self.learnt_bin_counts.shape[1]), self.learnt_bin_counts

    def _widen_range(self, exponent: Tensor) -> None:
        self.learnt_bin_counts = _coarsen_bins(self.learnt_bin_counts, exponent - self.learnt_bin_exponent)
        self.learnt_bin_exponent = exponent

    def _align_states(self, gather: Callable[[Tensor], Sequence[Tensor]]) -> None:
        super()._align_states(gather)
        if self._storage == "given bins":
            _check_same_bins(gather(self.bin_edges), "on all processes")
        elif self._storage == "learnt bins":
            self._widen_range(torch.stack(list(gather(self.learnt_bin_exponent))).amax())

    def _prepare_merge(self, incoming_state: dict[str, Any]) -> dict[str, Any]:
        if self._storage == "given bins":
            _check_same_bins([self.bin_edges, incoming_state["bin_edges"]], "in both metrics")
        if self._storage != "learnt bins":
            return incoming_state
        theirs = incoming_state["learnt_bin_exponent"]
        self._widen_range(torch.maximum(self.learnt_bin_exponent, theirs))
        counts = _coarsen_bins(incoming_state["learnt_bin_counts"], self.learnt_bin_exponent - theirs)
        return {"learnt_bin_exponent": self.learnt_bin_exponent, "learnt_bin_counts": counts}


def _check_same_bins(edges: Sequence[Tensor], where: str) -> None:
    first, *others = edges
    for other in others:
        if not torch.equal(first, other):
            got = " and ".join(f"{float(e[0]):g} to {float(e[-1]):g}" for e in (first, other))
            raise ValueError(f"Expected the same edges of bins {where}, but got {len(first)} edges from {got}.")


def _resolve_edges(thresholds: int | Tensor, score_range: tuple[float, float] | None) -> Tensor:
    """Return given edges as they are, or those of a number of bins over a range."""
    if isinstance(thresholds, Tensor):
        return widen(thresholds.detach()).clone()
    low, high = score_range or (-1.0, 1.0)
    edges = torch.linspace(low, high, thresholds + 1, dtype=torch.float64)
    if not bool((edges.diff() > 0).all()):
        raise ValueError(f"Expected `score_range` to be wide enough for {thresholds} bins, but got {score_range}.")
    return edges


def _count_given_bins(scores: Tensor, is_target: Tensor, edges: Tensor) -> Tensor:
    """Return counts ``(2, E + 2)`` of non-targets and targets between edges; NaN scores in the last column."""
    bins = torch.bucketize(scores, edges.to(scores.dtype), right=True)
    return _count_slots(bins, scores, is_target, len(edges) + 2)


def _range_exponent(scores: Tensor) -> Tensor:
    """Return the least ``k`` with the magnitude of every finite score below 2^k; the lowest where all are 0."""
    magnitude = torch.where(scores.isfinite(), scores.abs(), 0).amax()
    return torch.where(magnitude > 0, torch.frexp(magnitude).exponent, _LOWEST_EXPONENT).long()


def _count_learnt_bins(scores: Tensor, is_target: Tensor, exponent: Tensor, columns: int) -> Tensor:
    """Return the counts of :func:`_count_given_bins` with the edges :func:`_learnt_edges`."""
    half = (columns - 3) // 2
    inside = (_scale_by_power(widen(scores), -exponent) * half).floor().clamp(-half, half - 1).nan_to_num() + (half + 1)
    bins = torch.where(scores.isinf(), torch.where(scores > 0, columns - 2, 0), inside.long())
    return _count_slots(bins, scores, is_target, columns)


def _coarsen_bins(counts: Tensor, shift: Tensor) -> Tensor:
    """Return learnt counts for a range ``2**shift`` times as wide."""
    half = (counts.shape[-1] - 3) // 2
    columns = torch.arange(counts.shape[-1], device=counts.device)
    moved = ((columns - half - 1) >> shift.clamp(max=62)) + half + 1
    within = (columns > 0) & (columns < counts.shape[-1] - 2)
    return torch.zeros_like(counts).index_add(-1, torch.where(within, moved, columns), counts)


def _learnt_edges(exponent: Tensor, columns: int) -> Tensor:
    """Return the edges ``(columns - 2,)`` of a learnt range."""
    half = (columns - 3) // 2
    unit = torch.arange(-half, half + 1, device=exponent.device, dtype=wide_dtype(exponent.device)) / half
    return _scale_by_power(unit, exponent)


def _scale_by_power(x: Tensor, exponent: Tensor) -> Tensor:
    """Return ``x * 2**exponent`` in the type of ``x``; torch.ldexp takes the power in float32."""
    return x * torch.exp2(exponent.to(x.dtype))


def _count_slots(bins: Tensor, scores: Tensor, is_target: Tensor, columns: int) -> Tensor:
    slots = torch.where(scores.isnan(), columns - 1, bins) + is_target * columns
    flat = torch.zeros(2 * columns, dtype=torch.long, device=scores.device)
    return flat.index_add(0, slots, torch.ones_like(slots)).view(2, columns)
