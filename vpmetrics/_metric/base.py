"""What every metric here adds to TorchMetrics' contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from vpmetrics._checks import check_bandwidth, check_confidence, check_flag
from vpmetrics._metric.constants import OfEachMetric
from vpmetrics._metric.processes import SharedMetric
from vpmetrics._metric.views import ScalarView


class PrivacyMetric(SharedMetric):
    """What every metric here adds to TorchMetrics' contract.

    ``forward`` is ``update`` with a detached copy plus the value of this batch alone: its cost does not grow with
    the history, and what is accumulated never holds a graph. States keep their precision when a module is cast to
    half. A process that saw no batch gathers with the others all the same.
    """

    full_state_update: bool = False
    # True for a metric whose ``forward`` returns a gradient: where the smooth surrogate is switched on.
    is_differentiable = OfEachMetric(False, lambda metric: metric.bandwidth is not None)
    if TYPE_CHECKING:  # annotations that TorchScript would try to resolve
        bandwidth: float | None
        validate_args: bool
    else:
        bandwidth = None

    def __init__(self, bandwidth: float | None = None, validate_args: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_bandwidth(bandwidth)
        check_flag("validate_args", validate_args)
        if bandwidth is not None and self.dist_sync_on_step:
            raise ValueError("Expected `dist_sync_on_step` only without `bandwidth`: gathering has no gradient.")
        self.bandwidth, self.validate_args = bandwidth, validate_args

    def _value_of_batch(self, *args: Any, **kwargs: Any) -> Any:
        """What ``compute`` would return for this batch alone."""
        raise NotImplementedError

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Accumulate a batch and return its own value; with ``dist_sync_on_step``, that of all processes' batches."""
        self._refuse_if_synced()
        for name, state in self._lists():
            # The members of a collection share their lists: what is appended here must not show in the others.
            setattr(self, name, list(state))
        self.update(*args, **kwargs)
        together = self.dist_sync_on_step and self.distributed_available_fn()
        value = (self._value_of_step if together else self._value_of_batch)(*args, **kwargs)
        self._forward_cache = tree_map_only(Tensor, Tensor.detach, value)
        return value

    def _value_of_step(self, *args: Any, **kwargs: Any) -> Any:
        """What ``compute`` would return for this batch and those the other processes have at the same time."""
        accumulated, count = self.metric_state, self._update_count
        try:
            for name, default in self._defaults.items():
                setattr(self, name, [] if isinstance(default, list) else default.clone())
            self.update(*args, **kwargs)
            with self.sync_context(self.dist_sync_fn), self._shared(gathered=self._is_synced):
                return type(self).compute(self)
        finally:
            for name, state in accumulated.items():
                setattr(self, name, state)
            self._update_count = count

    def __getitem__(self, key: Any) -> Any:
        """A metric of one entry, by its name: ``metric["d_ece"]`` where ``compute`` returns a dictionary."""
        return ScalarView(self, key) if isinstance(key, str) else super().__getitem__(key)

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw a value, or one per step in a sequence of them.

        Args:
            val: What ``compute`` or ``forward`` returned, or a sequence of such; ``compute()`` when left out.
            ax: Matplotlib axes to draw on; new ones when left out.

        Returns:
            Figure and axes; neither shown nor saved.
        """
        from vpmetrics._plot.systems import draw_scalars

        bounds = self.plot_lower_bound, self.plot_upper_bound
        return draw_scalars(self.compute() if val is None else val, ax, name=type(self).__name__, bounds=bounds)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Any:
        before = {name: (state, self._defaults[name]) for name, state in self.metric_state.items()}
        super()._apply(fn, exclude_state)
        # Casting a model to half precision is about its weights; what was measured keeps its digits.
        for name, (state, default) in before.items():
            setattr(self, name, _keep_precision(state, getattr(self, name)))
            self._defaults[name] = _keep_precision(default, self._defaults[name])
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        restored = any(prefix + name in state_dict for name in self._defaults)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        for name, rows in self._lists():  # of its own: appending must not reach into the dictionary loaded from
            setattr(self, name, list(rows))
        if restored:  # a metric that holds data has been updated, wherever that was
            self._update_count = max(self._update_count, 1)
            self._computed = None


class SureMetric(PrivacyMetric):
    """A metric that can say how sure it is, from leaving speakers out."""

    if TYPE_CHECKING:
        intervals: float | None

    def __init__(
        self,
        bandwidth: float | None = None,
        validate_args: bool = True,
        intervals: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bandwidth, validate_args, **kwargs)
        if intervals is not None:
            check_confidence("intervals", intervals)
            if bandwidth is not None:
                raise ValueError("Expected `intervals` only without `bandwidth`: they are those of the exact value.")
        self.intervals = intervals


def _keep_precision(old: Any, new: Any) -> Any:
    if isinstance(old, list):
        return [_keep_precision(*pair) for pair in zip(old, new, strict=True)]
    widened = old.is_floating_point() and torch.promote_types(old.dtype, new.dtype) == new.dtype
    return new if widened else old.to(new.device)
