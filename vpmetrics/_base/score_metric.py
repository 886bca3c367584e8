r"""The base of all score metrics: they store the scores, or two histograms of constant size.

Bins are given (edges, or a number of them over a range) or learnt. A learnt range is :math:`[-2^k, 2^k)`: when a score
falls outside, :math:`k` grows and neighbouring bins are added up, so histograms can be merged, without a GPU sync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from vpmetrics._base.privacy_metric import IntervalMetric
from vpmetrics._scores.condition_scores import collect_trial_scores
from vpmetrics._scores.jackknife import add_intervals, count_trial_replicates, split_labels_into_groups
from vpmetrics._scores.score_counts import Steps, StepsOfBothSigns, count_by_bin, count_by_score
from vpmetrics._util.arrays import as_floating_tensor, as_integer_tensor
from vpmetrics._util.dtypes import at_least_float32, result_dtype, wide_dtype, widen
from vpmetrics._util.validation import check_speakers_of_trials, check_thresholds, check_trials, collect_warnings
from vpmetrics._utterances.utterances import count_values, encode_column, encode_labels

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
        for name in ("scores", "is_target", "trial_speakers") if self.intervals is not None else ():
            self.add_state(name, default=[], dist_reduce_fx="cat")

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
        self.scores.append(at_least_float32(preds.detach().flatten()).clone())
        self.is_target.append(target.detach().flatten().bool().clone())
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

    def _compute_batch_value(self, preds: Tensor, target: Tensor, speakers: Sequence[Any] | None = None) -> Any:
        preds, target = as_trials(preds, target, self.device)
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
    bin_edges: Tensor  # given
    bin_exponent: Tensor  # k of a learnt range
    bin_counts: Tensor  # (2, E + 2) of non-targets and targets between E edges; of NaN scores in the last column

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
        self._learns_range = isinstance(thresholds, int) and score_range is None
        if thresholds is None:
            for name in ("scores", "is_target"):
                self.add_state(name, default=[], dist_reduce_fx="cat")
            return
        if isinstance(thresholds, int) and self._learns_range:
            num_edges = 2 * ((thresholds + 1) // 2) + 1
            self.add_state("bin_exponent", default=torch.tensor(_LOWEST_EXPONENT), dist_reduce_fx="max")
        else:
            edges = _resolve_edges(thresholds, score_range)
            num_edges = len(edges)
            self.add_state("bin_edges", default=edges, dist_reduce_fx="max")
        self.add_state("bin_counts", default=torch.zeros(2, num_edges + 2).long(), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor, speakers: Sequence[Any] | None = None) -> None:
        """Accumulate a batch of trials, as tensors, NumPy arrays or lists.

        Args:
            preds: Scores in any shape and on any scale, higher = more alike.
            target: 1 (same speaker) or 0 (different), boolean or integer, of the same shape.
            speakers: Speakers of the enrolment side and of the test side, two tensors of integers of that shape or two
                lists of strings; for ``intervals``.
        """
        preds, target = as_trials(preds, target, self.device)
        both = self._check_batch(preds, target, speakers)
        if self.keeps_scores:
            self._store_trials(preds, target, both)
            return
        scores, columns = at_least_float32(preds.detach().flatten()), self.bin_counts.shape[1]
        if len(scores):
            slots = torch.where(scores.isnan(), columns - 1, self._find_bins(scores))
            slots = slots + target.detach().flatten().bool() * columns
            self.bin_counts = self.bin_counts + count_values(slots, 2 * columns).view(2, columns)

    def _find_bins(self, scores: Tensor) -> Tensor:
        """Return the bin of each score; a learnt range is widened first."""
        if not self._learns_range:
            return torch.bucketize(scores, self.bin_edges.to(scores.dtype), right=True)
        finite = torch.where(scores.isfinite(), widen(scores), 0)
        largest = finite.abs().amax()
        exponent = torch.where(largest > 0, torch.frexp(largest).exponent, _LOWEST_EXPONENT).long()
        self._widen_range(torch.maximum(self.bin_exponent, exponent))
        half = self.bin_counts.shape[1] // 2 - 1
        # Several times as fast as a search among the edges.
        inside = (finite * torch.exp2(-self.bin_exponent.to(finite.dtype)) * half).floor().clamp(max=half - 1)
        return torch.where(scores.isinf(), (scores > 0) * (2 * half + 1), inside.nan_to_num().long() + half + 1)

    @property
    def keeps_scores(self) -> bool:
        """Whether the scores themselves are stored, not histograms of them."""
        return self.thresholds is None

    def _compute_value(self) -> Any:
        dtype = result_dtype(self._concatenate_trials()[0]) if self.keeps_scores else torch.float32
        return self._compute_value_of_steps(self._count_trials(), dtype)

    def error_bound(self) -> Any:
        """Return by how much binning may have lowered each value at most; 0 where the scores themselves are stored."""
        with self._gather_states():
            lower, upper = (
                self._compute_value_of_steps(self._count_trials(is_separated), torch.float64)
                for is_separated in (False, True)
            )
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
        nontargets, targets = self.bin_counts[:, :-1]
        return count_by_bin(self._edges(), targets, nontargets, self.bin_counts[:, -1].sum() > 0, is_separated)

    def _edges(self) -> Tensor:
        """Return the edges of the bins, given or learnt, ``(E,)``."""
        if not self._learns_range:
            return self.bin_edges
        half = (self.bin_counts.shape[1] - 3) // 2
        unit = torch.arange(-half, half + 1, device=self.device, dtype=wide_dtype(self.device)) / half
        # The power of two of the widest range would overflow, and that of the narrowest underflow in float32.
        power = torch.exp2(self.bin_exponent.to(unit.dtype) - 1).clamp(min=torch.finfo(unit.dtype).tiny)
        return unit * power * 2

    def _widen_range(self, exponent: Tensor) -> None:
        self.bin_counts = _coarsen_bins(self.bin_counts, exponent - self.bin_exponent)
        self.bin_exponent = exponent

    def _align_states(self, gather: Callable[[Tensor], Sequence[Tensor]]) -> None:
        super()._align_states(gather)
        if self._learns_range:
            self._widen_range(torch.stack(list(gather(self.bin_exponent))).amax())
        elif not self.keeps_scores:
            _check_same_bins(gather(self.bin_edges), "on all processes")

    def _prepare_merge(self, incoming_state: dict[str, Any]) -> dict[str, Any]:
        if self.keeps_scores:
            return incoming_state
        if not self._learns_range:
            _check_same_bins([self.bin_edges, incoming_state["bin_edges"]], "in both metrics")
            return incoming_state
        theirs = incoming_state["bin_exponent"]
        self._widen_range(torch.maximum(self.bin_exponent, theirs))
        counts = _coarsen_bins(incoming_state["bin_counts"], self.bin_exponent - theirs)
        return {"bin_exponent": self.bin_exponent, "bin_counts": counts}


def as_trials(preds: Any, target: Any, device: torch.device) -> tuple[Any, Any]:
    """Return scores and labels given as lists or arrays as tensors; anything else as it is."""
    return as_floating_tensor("preds", preds, device), as_integer_tensor("target", target, device)


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


def _coarsen_bins(counts: Tensor, shift: Tensor) -> Tensor:
    """Return learnt counts for a range ``2**shift`` times as wide."""
    half = (counts.shape[-1] - 3) // 2
    columns = torch.arange(counts.shape[-1], device=counts.device)
    moved = ((columns - half - 1) >> shift.clamp(max=62)) + half + 1
    within = (columns > 0) & (columns < counts.shape[-1] - 2)
    return torch.zeros_like(counts).index_add(-1, torch.where(within, moved, columns), counts)
