"""What the metrics keep, and how processes merge it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from lightning_utilities import apply_to_collection
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from vpmetrics._checks import check_bandwidth, check_thresholds, check_trial_values, check_trials
from vpmetrics._histogram import (
    LOWEST_EXPONENT,
    bin_learnt,
    bin_scores,
    coarsen,
    exponent_of,
    learnt_edges,
    steps_of_bins,
)
from vpmetrics._precision import at_least_float32, result_dtype
from vpmetrics.functional._counts import ScoreCounts, count_by_score

_DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64)  # of list states, widest last


class PrivacyMetric(Metric):
    """What every metric here adds to TorchMetrics' contract.

    ``forward`` is ``update`` with a detached copy plus the value of this batch alone: its cost does not grow with
    the history, and what is accumulated never holds a graph. States keep their precision when a module is cast to
    half. A process that saw no batch gathers with the others all the same.
    """

    full_state_update: bool = False
    bandwidth: float | None = None

    # TorchScript compiles every property it is not told about.
    __jit_unused_properties__: ClassVar[list[str]] = [
        *Metric.__jit_unused_properties__,
        "is_differentiable",
        "keeps_scores",
    ]

    @property
    def is_differentiable(self) -> bool:  # type: ignore[override]
        """Whether ``forward`` returns a value with a gradient: where the smooth surrogate is switched on."""
        return self.bandwidth is not None

    def _value_of_batch(self, *args: Any, **kwargs: Any) -> Any:
        """What ``compute`` would return for this batch alone."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Accumulate a batch and return its own value."""
        if self._is_synced:
            raise TorchMetricsUserError("The metric is synced with other processes: call `unsync` before `forward`.")
        self.update(*args, **kwargs)
        value = self._value_of_batch(*args, **kwargs)
        self._forward_cache = apply_to_collection(value, Tensor, Tensor.detach)
        return value

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw a value, or one per step in a sequence of them.

        Args:
            val: What ``compute`` or ``forward`` returned, or a sequence of such; ``compute()`` when left out.
            ax: Matplotlib axes to draw on; new ones when left out.

        Returns:
            Figure and axes; neither shown nor saved.
        """
        from vpmetrics._plot import draw_scalars

        bounds = self.plot_lower_bound, self.plot_upper_bound
        return draw_scalars(self.compute() if val is None else val, ax, name=type(self).__name__, bounds=bounds)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Any:
        before = {name: (getattr(self, name), default) for name, default in self._defaults.items()}
        super()._apply(fn, exclude_state)
        # Casting a model to half precision is about its weights; what was measured keeps its digits.
        for name, (state, default) in before.items():
            setattr(self, name, _keep_precision(state, getattr(self, name)))
            self._defaults[name] = _keep_precision(default, self._defaults[name])
        return self

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        # A process without a batch knows neither dtype nor width, and gathering needs both to agree.
        for name, default in self._defaults.items():
            if isinstance(default, list):
                rows = getattr(self, name)
                form = torch.tensor(_form(rows), device=self.device)
                forms = dist_sync_fn(form, group=process_group or self.process_group)
                number, dims, width = torch.stack(forms).amax(0).tolist()
                if number >= 0:
                    empty = torch.empty((0, width)[: 1 + dims], dtype=_DTYPES[number], device=self.device)
                    setattr(self, name, [torch.cat([empty, *(row.to(empty.dtype) for row in rows)])])
        super()._sync_dist(dist_sync_fn, process_group)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        restored = any(prefix + name in state_dict for name in self._defaults)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        for name, default in self._defaults.items():
            if isinstance(default, list):  # one of its own: appending must not reach into the dictionary loaded from
                setattr(self, name, list(getattr(self, name)))
        if restored:  # a metric that holds data has been updated, wherever that was
            self._update_count = max(self._update_count, 1)
            self._computed = None


def _keep_precision(old: Any, new: Any) -> Any:
    if isinstance(old, list):
        return [_keep_precision(*pair) for pair in zip(old, new, strict=True)]
    widened = old.is_floating_point() and torch.promote_types(old.dtype, new.dtype) == new.dtype
    return new if widened else old.to(new.device)


def _form(rows: list[Tensor]) -> tuple[int, int, int]:
    """Number of the widest dtype, further dimensions (0 or 1) and their width; the largest of all processes holds."""
    if not rows:
        return -1, 0, 0
    width = rows[0].shape[1] if rows[0].dim() > 1 else 0
    return max(_DTYPES.index(row.dtype) for row in rows), rows[0].dim() - 1, width


class ScoreMetric(PrivacyMetric):
    """A metric of trials: keeps the scores, or two histograms of them."""

    scores: list[Tensor]
    is_target: list[Tensor]
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
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_thresholds(thresholds, score_range)
        check_bandwidth(bandwidth)
        if thresholds is not None and bandwidth is not None:
            raise ValueError("Expected `bandwidth` only without `thresholds`: a histogram holds no gradient.")
        self.bandwidth, self.validate_args = bandwidth, validate_args
        # The names of the states say what is in them: a collection shares what has one name and one value.
        if thresholds is None:
            self._keeps = "scores"
            self.add_state("scores", default=[], dist_reduce_fx="cat")
            self.add_state("is_target", default=[], dist_reduce_fx="cat")
        elif isinstance(thresholds, int) and score_range is None:
            self._keeps = "learnt bins"
            columns = 2 * ((thresholds + 1) // 2) + 3
            self.add_state("learnt_bin_exponent", default=torch.tensor(LOWEST_EXPONENT), dist_reduce_fx="max")
            self.add_state("learnt_bin_counts", default=torch.zeros(2, columns).long(), dist_reduce_fx="sum")
        else:
            self._keeps = "given bins"
            if isinstance(thresholds, int):
                low, high = score_range or (-1.0, 1.0)
                thresholds = torch.linspace(low, high, thresholds + 1, dtype=torch.float64)
            edges = thresholds.detach().clone()
            self.add_state("bin_edges", default=edges, dist_reduce_fx="max")
            self.add_state("bin_counts", default=torch.zeros(2, len(edges) + 2).long(), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Accumulate a batch of trials.

        Args:
            preds: Scores in any shape and on any scale, higher = more alike.
            target: 1 (same speaker) or 0 (different), boolean or integer, of the same shape.
        """
        check_trials(preds, target)
        if self.validate_args:
            check_trial_values(preds, target)
        scores, is_target = at_least_float32(preds.detach().flatten()), target.detach().flatten().bool()
        if self.keeps_scores:
            # Copies: a view would keep the activation it was cut from alive, and change with it.
            self.scores.append(scores.clone() if scores.dtype == preds.dtype else scores)
            self.is_target.append(is_target.clone() if target.dtype == torch.bool else is_target)
        elif self._keeps == "given bins":
            self.bin_counts = self.bin_counts + bin_scores(scores, is_target, self.bin_edges)
        elif len(scores):
            self._align(torch.maximum(self.learnt_bin_exponent, exponent_of(scores)))
            counts = bin_learnt(scores, is_target, self.learnt_bin_exponent, self.learnt_bin_counts.shape[1])
            self.learnt_bin_counts = self.learnt_bin_counts + counts

    @property
    def keeps_scores(self) -> bool:
        """Whether the scores themselves are kept, not histograms of them."""
        return self._keeps == "scores"

    def compute(self) -> Any:
        """The value over all trials so far."""
        return self._value_of_counts(self._counts(), self._dtype_of_result())

    def error_bound(self) -> Any:
        """By how much binning may have lowered each value at most; 0 where the scores themselves are kept."""
        upper = self._value_of_counts(self._counts(separated=True), torch.float64)
        lower = self._value_of_counts(self._counts(), torch.float64)
        if isinstance(upper, dict):
            return {key: (upper[key] - lower[key]).abs() for key in upper if upper[key].is_floating_point()}
        return (upper - lower).abs()

    def _value_of_counts(self, counts: ScoreCounts, dtype: torch.dtype) -> Any:
        raise NotImplementedError

    def _value_of_batch(self, preds: Tensor, target: Tensor) -> Any:
        counts = count_by_score(preds, target, validate_args=False, bandwidth=self.bandwidth)
        return self._value_of_counts(counts, result_dtype(preds))

    def _trials(self) -> tuple[Tensor, Tensor]:
        if len(self.scores) == 0:
            return torch.empty(0, device=self.device), torch.empty(0, device=self.device, dtype=torch.bool)
        return dim_zero_cat(self.scores), dim_zero_cat(self.is_target)

    def _counts(self, separated: bool = False) -> ScoreCounts:
        if self.keeps_scores:
            return count_by_score(*self._trials(), validate_args=False, bandwidth=self.bandwidth)
        if self._keeps == "given bins":
            return steps_of_bins(self.bin_edges, self.bin_counts, separated)
        edges = learnt_edges(self.learnt_bin_exponent, self.learnt_bin_counts.shape[1])
        return steps_of_bins(edges, self.learnt_bin_counts, separated)

    def _dtype_of_result(self) -> torch.dtype:
        return result_dtype(self._trials()[0]) if self.keeps_scores else torch.float32

    def _align(self, exponent: Tensor) -> None:
        """Widen the learnt range to another one, never narrower."""
        self.learnt_bin_counts = coarsen(self.learnt_bin_counts, exponent - self.learnt_bin_exponent)
        self.learnt_bin_exponent = exponent

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        if self._keeps == "learnt bins":
            exponents = dist_sync_fn(self.learnt_bin_exponent, group=process_group or self.process_group)
            self._align(torch.stack(exponents).amax())
        super()._sync_dist(dist_sync_fn, process_group)

    def _reduce_states(self, incoming_state: dict[str, Any]) -> None:
        if self._keeps == "learnt bins":
            theirs = incoming_state["learnt_bin_exponent"]
            self._align(torch.maximum(self.learnt_bin_exponent, theirs))
            counts = coarsen(incoming_state["learnt_bin_counts"], self.learnt_bin_exponent - theirs)
            incoming_state = {"learnt_bin_exponent": self.learnt_bin_exponent, "learnt_bin_counts": counts}
        super()._reduce_states(incoming_state)
