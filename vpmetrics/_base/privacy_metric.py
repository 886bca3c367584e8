"""What every metric here adds to the contract of TorchMetrics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.wrappers.abstract import WrapperMetric

from vpmetrics._scores.registry import scalar
from vpmetrics._util.distributed import (
    SINGLE_PROCESS,
    Processes,
    align_list_states,
    current_processes,
    encode_dtype_and_width,
)
from vpmetrics._util.validation import check_bandwidth, check_confidence, check_flag


class ClassOrInstanceValue:
    """A constant of TorchMetrics with one value on the class and another on each metric.

    A property does not serve: read from the class, it is an object, which counts as True.
    """

    def __init__(self, on_class: bool | None, on_metric: Callable[[Any], bool | None]) -> None:
        self.on_class, self.on_metric = on_class, on_metric

    def __get__(self, metric: Metric | None, owner: type[Metric]) -> bool | None:
        """Return the value of a metric, or of the class where there is none."""
        return self.on_class if metric is None else self.on_metric(metric)


class PrivacyMetric(Metric):
    """A metric with a constant cost of ``forward``, states that keep their precision, and safe synchronisation.

    ``forward`` is ``update`` with a detached copy plus the value of this batch alone. A batch that raises leaves no
    trace. A process without a batch synchronises like the others, and a process that raises leaves its metric usable.
    """

    full_state_update: bool = False
    is_differentiable = ClassOrInstanceValue(False, lambda metric: metric.bandwidth is not None)
    if TYPE_CHECKING:  # annotations that TorchScript would try to resolve
        bandwidth: float | None
        validate_args: bool
    else:
        bandwidth = None

    def __init__(self, bandwidth: float | None = None, validate_args: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._torchmetrics_names = frozenset(vars(self))
        check_bandwidth(bandwidth)
        check_flag("validate_args", validate_args)
        if bandwidth is not None and self.dist_sync_on_step:
            raise ValueError("Expected `dist_sync_on_step` only without `bandwidth`: gathering has no gradient.")
        self.bandwidth, self.validate_args = bandwidth, validate_args

    def _compute_batch_value(self, *args: Any, **kwargs: Any) -> Any:
        """Return what ``compute`` would return for this batch alone."""
        raise NotImplementedError

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Accumulate a batch and return its own value; with ``dist_sync_on_step`` that of all processes' batches."""
        self._raise_if_synced()
        for name, state in self._list_states():
            # The members of a collection share their lists: what is appended here must not show in the others.
            setattr(self, name, list(state))
        self.update(*args, **kwargs)
        is_distributed = self.dist_sync_on_step and self.distributed_available_fn()
        value = (self._compute_synced_step_value if is_distributed else self._compute_batch_value)(*args, **kwargs)
        self._forward_cache = tree_map_only(Tensor, Tensor.detach, value)
        return value

    def _compute_synced_step_value(self, *args: Any, **kwargs: Any) -> Any:
        """Return what ``compute`` would return for this batch and those that other processes hold in the same step.

        Accumulated states stay as they are.
        """
        accumulated, count = self.metric_state, self._update_count
        try:
            for name, default in self._defaults.items():
                setattr(self, name, [] if isinstance(default, list) else default.clone())
            self.update(*args, **kwargs)
            with self.sync_context(self.dist_sync_fn):
                return type(self).compute(self)
        finally:
            for name, state in accumulated.items():
                setattr(self, name, state)
            self._update_count = count

    def __getitem__(self, key: Any) -> Any:
        """Return a metric of one entry, by its key: ``metric["d_ece"]`` where ``compute`` returns a dictionary."""
        return ScalarView(self, key) if isinstance(key, str) else super().__getitem__(key)

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw a value, or one per step in a sequence of them.

        Args:
            val: What ``compute`` or ``forward`` returned, or a sequence of such; ``compute()`` when left out.
            ax: Matplotlib axes to draw on; new ones when left out.

        Returns:
            Figure and axes; neither shown nor saved.
        """
        from vpmetrics.plotting.system_plots import draw_scalars

        bounds = self.plot_lower_bound, self.plot_upper_bound
        name = getattr(self, "key", type(self).__name__)
        return draw_scalars(self.compute() if val is None else val, ax, name=name, bounds=bounds)

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        counted = super()._wrap_update(update)

        @functools.wraps(update)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            self._raise_if_synced()
            before = self._update_count, self._computed
            try:
                counted(*args, **kwargs)
            except BaseException:
                self._update_count, self._computed = before
                raise

        return wrapped

    def _raise_if_synced(self) -> None:
        if self._is_synced:
            raise TorchMetricsUserError("The metric holds the states of all processes: call `unsync` first.")

    def reset(self) -> None:
        """Reset all states; a synchronised metric is unsynchronised first."""
        if self._is_synced:
            self.unsync()
        super().reset()

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Gather the states of all processes; where that fails they are as before."""
        try:
            super().sync(*args, **kwargs)
        except BaseException:
            if not self._is_synced and self._cache is not None:
                self._is_synced = True  # some states may be gathered already
                self.unsync()
            raise

    @contextmanager
    def sync_context(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any = None,
        should_sync: bool = True,
        should_unsync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> Iterator[None]:
        """Hold the states of all processes in this context, and those of this process afterwards, whatever happens."""
        self.sync(dist_sync_fn, process_group, should_sync, distributed_available)
        try:
            yield
        finally:
            self.unsync(should_unsync=self._is_synced and should_unsync)

    @contextmanager
    def _gather_states(self) -> Iterator[None]:
        """Hold the states of all processes, as in ``compute``, unless a caller has gathered them."""
        is_local = not self._is_synced
        gather, part = is_local and self._to_sync, is_local and self._should_unsync
        with self.sync_context(self.dist_sync_fn, should_sync=gather, should_unsync=part):
            yield

    def _find_processes(self) -> Processes:
        """Return the processes that share the work: those that have just gathered in ``compute``."""
        if self._is_synced and self._to_sync and self.dist_sync_fn is None:  # a custom function has an unknown group
            return current_processes(self.process_group)
        return SINGLE_PROCESS

    def _describe_settings(self) -> dict[str, str]:
        """Return the arguments that every process must agree on, as text."""
        values = vars(self) | self._modules  # a metric or a fitted scoring function is a module
        names = set(values) - self._torchmetrics_names - set(self._defaults)
        return {name: _describe_setting(values[name]) for name in sorted(names) if not name.startswith("_")}

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        gather = functools.partial(dist_sync_fn, group=process_group or self.process_group)
        self._align_states(gather)
        super()._sync_dist(dist_sync_fn, process_group)

    def _align_states(self, gather: Callable[[Tensor], Sequence[Tensor]]) -> None:
        name, settings = type(self).__name__, self._describe_settings()
        states = align_list_states(name, settings, self.metric_state, gather, self.device)
        for name, rows in states.items():
            setattr(self, name, rows)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add what another metric of this kind, or its ``metric_state``, has accumulated."""
        super().merge_state(incoming_state)
        self._update_count += incoming_state._update_count if isinstance(incoming_state, Metric) else 1
        self._computed = None

    def _reduce_states(self, incoming_state: dict[str, Any]) -> None:
        states = self.metric_state
        if not set(states) <= set(incoming_state):
            raise ValueError(
                f"Expected the state of a metric with the same settings, with {', '.join(states)}, "
                f"but got {', '.join(incoming_state)}."
            )
        for name, state in states.items():
            both = state, incoming_state[name]
            kinds = {isinstance(each, Tensor) for each in both}
            widths = [form[2] for form in map(encode_dtype_and_width, both) if form[0] >= 0]
            widths += [each.shape[-1] for each in both if isinstance(each, Tensor) and each.dim()]
            if len(kinds) > 1 or len(set(widths)) > 1:
                raise ValueError(f"Expected `{name}` to have one width in both metrics, but got {widths}.")
        super()._reduce_states(self._prepare_merge(incoming_state))

    def _prepare_merge(self, incoming_state: dict[str, Any]) -> dict[str, Any]:
        """Return the states of another metric, ready to add: here unchanged; a subclass may change those of both."""
        return incoming_state

    def _copy_state_dict(self) -> dict[str, Any]:
        """Return the states to restore after a sync; rows never change, so they are not copied."""
        states = self.metric_state.items()
        return {name: list(state) if isinstance(state, list) else state.detach().clone() for name, state in states}

    def _list_states(self) -> list[tuple[str, list[Tensor]]]:
        """Return names and rows of the list states."""
        return [(name, getattr(self, name)) for name, default in self._defaults.items() if isinstance(default, list)]

    def _join_in_place(self, name: str) -> Tensor:
        """Return all rows of a list state that is not empty; the list then holds them as one batch, without a copy."""
        rows: Tensor | list[Tensor] = getattr(self, name)
        if isinstance(rows, Tensor):  # gathered from all processes
            return rows
        if len(rows) > 1:
            rows[:] = [torch.cat(rows)]  # in place: the metrics of a collection share the list
        return rows[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Any:
        before = {name: (state, self._defaults[name]) for name, state in self.metric_state.items()}
        super()._apply(fn, exclude_state)
        # Half precision is meant for the weights of a model; accumulated values keep theirs.
        for name, (state, default) in before.items():
            setattr(self, name, _keep_wider_precision(state, getattr(self, name)))
            self._defaults[name] = _keep_wider_precision(default, self._defaults[name])
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        is_restored = any(prefix + name in state_dict for name in self._defaults)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        for name, rows in self._list_states():  # own lists: appending must not change the dictionary
            setattr(self, name, list(rows))
        if is_restored:  # a metric with data counts as updated
            self._update_count = max(self._update_count, 1)
            self._computed = None


class IntervalMetric(PrivacyMetric):
    """A metric with confidence intervals."""

    if TYPE_CHECKING:
        intervals: float | None

    def __init__(
        self, bandwidth: float | None = None, validate_args: bool = True, intervals: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(bandwidth, validate_args, **kwargs)
        if intervals is not None:
            check_confidence("intervals", intervals)
            if bandwidth is not None:
                raise ValueError("Expected `intervals` only without `bandwidth`: they are those of the exact value.")
        self.intervals = intervals


class ScalarView(WrapperMetric):
    """One entry of the dictionary that a metric returns, as a metric that returns a scalar: ``metric["d_ece"]``.

    Lightning's ``self.log``, ``MetricTracker`` and ``MinMaxMetric`` take scalars only. Metric and view share states.
    """

    full_state_update: bool = False
    is_differentiable = ClassOrInstanceValue(None, lambda view: view.metric.is_differentiable)
    higher_is_better = ClassOrInstanceValue(None, lambda view: _is_higher_better(view.metric, view.key))

    def __init__(self, metric: Metric, key: str) -> None:
        super().__init__()
        self.metric, self.key = metric, key

    @property
    def update_called(self) -> bool:
        """Whether the metric has seen a batch."""
        return self.metric.update_called

    @property
    def update_count(self) -> int:
        """How many batches the metric has seen."""
        return self.metric.update_count

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Update the metric."""
        self.metric.update(*args, **kwargs)

    def compute(self) -> Tensor:
        """Return the entry of what the metric computes."""
        return self._select_entry(self.metric.compute())

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Update the metric, and return the entry of this batch."""
        value = self._select_entry(self.metric(*args, **kwargs))
        self._forward_cache: Any = value.detach()
        return value

    def reset(self) -> None:
        """Reset the metric."""
        super().reset()
        self.metric.reset()

    plot = PrivacyMetric.plot

    def _select_entry(self, value: Any) -> Tensor:
        name = type(self.metric).__name__
        if not isinstance(value, Mapping):
            got = type(value).__name__
            raise TypeError(f"Expected {name} to return a dictionary with {self.key!r}, but got {got}.")
        if self.key not in value:
            raise ValueError(f"Expected {self.key!r} to be one of {', '.join(value)}, which {name} returns.")
        entry: Tensor = value[self.key]
        return entry

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        return self.metric._filter_kwargs(**kwargs)


def _is_higher_better(metric: Metric, key: str) -> bool | None:
    """Return the direction of privacy of a known key; of others what the metric says."""
    try:
        direction = scalar(key).direction
    except KeyError:
        return metric.higher_is_better
    return None if direction is None else direction == "high"


def _describe_setting(value: Any) -> str:
    """Return a setting as text that is the same on every process; objects by their class and simple attributes."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_describe_setting, value))}]"
    if isinstance(value, Tensor):
        return f"Tensor{tuple(value.shape)}{value.flatten()[:1000].tolist()}"
    attributes = {name: each for name, each in sorted(getattr(value, "__dict__", {}).items()) if name[:1] != "_"}
    simple = [
        f"{name}={_describe_setting(each)}" for name, each in attributes.items() if isinstance(each, (str, int, float))
    ]
    if isinstance(value, torch.nn.Module):
        simple += [*map(_describe_setting, value.children()), *map(_describe_setting, value.state_dict().values())]
    return f"{getattr(value, '__qualname__', type(value).__qualname__)}({', '.join(simple)})"


def _keep_wider_precision(old: Any, new: Any) -> Any:
    if isinstance(old, list):
        return [_keep_wider_precision(*pair) for pair in zip(old, new, strict=True)]
    is_wider = old.is_floating_point() and torch.promote_types(old.dtype, new.dtype) == new.dtype
    return new if is_wider else old.to(new.device)
