"""What every metric here adds to the contract of TorchMetrics.

Six methods of the life cycle of :class:`torchmetrics.Metric` are overridden, each for the reason in
its docstring: ``forward``, ``reset``, ``merge_state``, ``sync_context``, ``_sync_dist`` and
``_apply``. Everything else is left to torchmetrics.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_sum
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError
from torchmetrics.wrappers.abstract import WrapperMetric

from vpmetrics._scores.registry import scalar
from vpmetrics._util.distributed import (
    SINGLE_PROCESS,
    Processes,
    RankError,
    align_list_states,
    current_processes,
    exchange_error,
)
from vpmetrics._util.validation import check_bandwidth, check_confidence, check_flag

States = Mapping[str, Tensor]


class ClassOrInstanceValue:
    """A constant of TorchMetrics with one value on the class and another on each metric.

    A property does not serve: read from the class, it is an object, which counts as True.
    """

    def __init__(self, on_class: bool | None, on_metric: Callable[[Any], bool | None]) -> None:
        self.on_class = on_class
        self.on_metric = on_metric

    def __get__(self, metric: Metric | None, owner: type[Metric]) -> bool | None:
        """Return the value of a metric, or of the class where there is none."""
        return self.on_class if metric is None else self.on_metric(metric)


class PrivacyMetric(Metric):
    """Base of all metrics of the library.

    ``forward`` has a constant cost, states keep their precision, and synchronisation is safe.

    A subclass defines ``update``, which ends in ``self._store(self._pack_batch(...))``;
    ``_pack_batch``, the states of one batch; ``_empty_states``, those of none; and
    ``_compute_from``, the value of states. ``compute`` is the value of the accumulated states,
    ``forward`` that of one batch.
    """

    full_state_update: bool = False
    is_differentiable = ClassOrInstanceValue(False, lambda metric: metric.bandwidth is not None)
    bandwidth: float | None = None

    def __init__(
        self,
        bandwidth: float | None = None,
        validate_args: bool = True,
        intervals: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_bandwidth(bandwidth)
        check_flag("validate_args", validate_args)
        if bandwidth is not None and self.dist_sync_on_step:
            raise ValueError(
                "Expected `dist_sync_on_step` only without `bandwidth`: gathering has no gradient."
            )
        if intervals is not None:
            check_confidence("intervals", intervals)
            if bandwidth is not None:
                raise ValueError(
                    "Expected `intervals` only without `bandwidth`: they are those of the exact"
                    " value."
                )
        self.bandwidth = bandwidth
        self.validate_args = validate_args
        self.intervals = intervals
        self.register_load_state_dict_post_hook(_adopt_loaded_states)  # type: ignore[no-untyped-call]

    def _pack_batch(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Return the states that validated arguments of ``update`` make, with their graph."""
        raise NotImplementedError

    def _empty_states(self) -> dict[str, Tensor]:
        """Return the list states of no batch."""
        raise NotImplementedError

    def _compute_from(self, states: States) -> Any:
        """Return the value of states: the one hook for the value."""
        raise NotImplementedError

    def compute(self) -> Any:
        """Return the value over everything accumulated so far."""
        return self._compute_from(self._joined_states())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Accumulate a batch and return its own value.

        With ``dist_sync_on_step`` the value is that of the batches of all processes.

        Overridden because torchmetrics copies the whole history in each call, and keeps the graph
        of the last batch.
        """
        self._raise_if_synced()
        for name, rows in self._list_states():
            # The members of a collection share their lists: what is appended here must not show in
            # the others.
            setattr(self, name, list(rows))
        if self.dist_sync_on_step:
            return super().forward(*args, **kwargs)
        self.update(*args, **kwargs)
        states = self._pack_batch(*args, **kwargs)
        for name, empty in self._empty_states().items():
            states.setdefault(name, empty)
        value = self._compute_from(states)
        self._forward_cache = tree_map_only(Tensor, Tensor.detach, value)
        return value

    def __getitem__(self, key: Any) -> Any:
        """Return one entry of a dictionary of ``compute`` as a metric: ``metric["d_ece"]``."""
        if isinstance(key, str):
            return ScalarView(self, key)
        return super().__getitem__(key)

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw a value, or one per step in a sequence of them.

        Args:
            val: What ``compute`` or ``forward`` returned, or a sequence of such; ``compute()`` when
                left out.
            ax: Matplotlib axes to draw on; new ones when left out.

        Returns:
            Figure and axes; neither shown nor saved.
        """
        from vpmetrics.plotting.system_plots import draw_scalars

        value = self.compute() if val is None else val
        name = getattr(self, "key", type(self).__name__)
        bounds = (self.plot_lower_bound, self.plot_upper_bound)
        return draw_scalars(value, ax, name=name, bounds=bounds)

    def _store(self, states: States) -> None:
        """Add the states of a batch to those so far: all of them, or none where anything fails."""
        self._raise_if_synced()
        rows_of_state: dict[str, Tensor] = {}
        totals: dict[str, Tensor] = {}
        for name, state in states.items():
            if isinstance(self._defaults[name], list):
                # A view would keep the activation it was cut from alive, and change with it.
                rows_of_state[name] = state.detach().clone()
            else:
                totals[name] = state.detach()
        totals_before = {name: getattr(self, name) for name in totals}
        if totals:
            totals_after = self._add_totals(totals_before, totals)
        else:
            totals_after = {}
        lengths_before = {name: len(getattr(self, name)) for name in rows_of_state}
        try:
            for name, rows in rows_of_state.items():
                getattr(self, name).append(rows)
            for name, total in totals_after.items():
                setattr(self, name, total)
        except BaseException:
            for name, length in lengths_before.items():
                del getattr(self, name)[length:]
            for name, total in totals_before.items():
                setattr(self, name, total)
            raise

    def reset(self) -> None:
        """Reset all states.

        Overridden because torchmetrics empties lists that its ``Running`` and others still hold.
        """
        for name, _ in self._list_states():
            setattr(self, name, [])
        super().reset()

    def _add_totals(self, own: States, incoming: States) -> dict[str, Tensor]:
        """Return the tensor states of two sets of data together."""
        own, incoming = self._align_totals(own, incoming)
        sums = {}
        for name, total in own.items():
            if self._reductions[name] is dim_zero_sum:
                sums[name] = total + incoming[name]
            else:
                sums[name] = torch.maximum(total, incoming[name])
        return sums

    def _align_totals(self, own: States, incoming: States) -> tuple[States, States]:
        """Return the tensor states of two sets of data in one form; raise where there is none."""
        return own, incoming

    def _raise_if_synced(self) -> None:
        if self._is_synced:
            raise TorchMetricsUserError(
                "The metric holds the states of all processes: call `unsync` first."
            )

    @contextmanager
    def sync_context(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any = None,
        should_sync: bool = True,
        should_unsync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> Iterator[None]:
        """Hold the states of all processes in this context, and those of this one afterwards.

        Overridden because an error leaves a metric of torchmetrics synchronised, and other
        processes waiting: here an error on one process is raised on all of them.
        """
        was_synced = self._is_synced
        try:
            self.sync(dist_sync_fn, process_group, should_sync, distributed_available)
            processes = SINGLE_PROCESS if was_synced else self._find_processes()
            try:
                yield
            except RankError:  # of another process, which knows
                raise
            except (Exception, KeyboardInterrupt) as error:
                exchange_error(error, processes, self.device)
                raise
            exchange_error(None, processes, self.device)
        finally:
            if not was_synced and self._cache is not None:
                self._is_synced = True  # some states may be gathered where gathering failed
                self.unsync(should_unsync)

    @contextmanager
    def _gather_states(self) -> Iterator[None]:
        """Hold the states of all processes, unless a caller has gathered them."""
        is_local = not self._is_synced
        should_sync = is_local and self._to_sync
        should_unsync = is_local and self._should_unsync
        with self.sync_context(
            self.dist_sync_fn, should_sync=should_sync, should_unsync=should_unsync
        ):
            yield

    def _find_processes(self) -> Processes:
        """Return the processes that share the work: those that have gathered in ``compute``."""
        # a custom function has an unknown group
        if self._is_synced and self._to_sync and self.dist_sync_fn is None:
            return current_processes(self.process_group)
        return SINGLE_PROCESS

    def _sync_dist(
        self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None
    ) -> None:
        """Gather the states of all processes.

        Overridden because torchmetrics aborts where a process without a batch has rows of another
        width or type.
        """
        gather = functools.partial(dist_sync_fn, group=process_group or self.process_group)
        self._align_states(gather)
        super()._sync_dist(dist_sync_fn, process_group)

    def _align_states(self, gather: Callable[[Tensor], Sequence[Tensor]]) -> None:
        """Bring the states into forms that can be gathered."""
        for name, rows in align_list_states(self.metric_state, gather, self.device).items():
            setattr(self, name, rows)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add what another metric of this kind, or its ``metric_state``, has accumulated.

        Overridden because torchmetrics adds states of other settings, and keeps the cached value.
        """
        if isinstance(incoming_state, Metric):
            if not isinstance(incoming_state, type(self)):
                own = type(self).__name__
                other = type(incoming_state).__name__
                raise ValueError(
                    f"Expected incoming state to be an instance of {own}, but got {other}."
                )
            states = incoming_state.metric_state
            num_updates = incoming_state._update_count
        else:
            states = incoming_state
            num_updates = 1
        self._check_mergeable(states)
        own_totals: dict[str, Tensor] = {}
        other_totals: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for name, state in self.metric_state.items():
            if isinstance(state, Tensor):
                own_totals[name] = state
                other_totals[name] = states[name]
            else:
                merged[name] = [*state, *states[name]]
        merged |= self._add_totals(own_totals, other_totals)
        for name, state in merged.items():
            setattr(self, name, state)
        self._update_count += num_updates
        self._forget_values()
        self._merge_further(incoming_state)

    def _check_mergeable(self, states: Mapping[str, Any]) -> None:
        """Raise unless the states are those of a metric with the same settings."""
        own_states = self.metric_state
        if not set(own_states) <= set(states):
            raise ValueError(
                "Expected the state of a metric with the same settings, with"
                f" {', '.join(own_states)}, but got {', '.join(states)}."
            )
        for name, own in own_states.items():
            incoming = states[name]
            widths = {_width_of(own), _width_of(incoming)} - {None}
            if isinstance(own, Tensor) != isinstance(incoming, Tensor) or len(widths) > 1:
                raise ValueError(
                    f"Expected `{name}` to have one width in both metrics, but got"
                    f" {_width_of(own)} and {_width_of(incoming)}."
                )

    def _merge_further(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add what another metric has besides its states."""

    def _forget_values(self) -> None:
        """Forget what was derived from states that have been replaced."""
        self._computed = None

    def _list_states(self) -> list[tuple[str, list[Tensor]]]:
        """Return names and rows of the list states."""
        return [
            (name, getattr(self, name))
            for name, default in self._defaults.items()
            if isinstance(default, list)
        ]

    def _joined_states(self) -> dict[str, Tensor]:
        """Return all states as tensors; list states then hold all rows as one batch."""
        joined: dict[str, Tensor] = {}
        empty_lists = []
        for name, default in self._defaults.items():
            state = getattr(self, name)
            if isinstance(default, Tensor):
                joined[name] = state
            elif len(state) == 0:
                empty_lists.append(name)
            else:
                joined[name] = self._join_in_place(name)
        if empty_lists:
            states_of_none = self._empty_states()
            for name in empty_lists:
                joined[name] = states_of_none[name]
        return joined

    def _join_in_place(self, name: str) -> Tensor:
        """Return all rows of a list state that is not empty, which it then holds as one batch."""
        rows: Tensor | list[Tensor] = getattr(self, name)
        if isinstance(rows, Tensor):  # gathered from all processes
            return rows
        if len(rows) > 1:
            rows[:] = [torch.cat(rows)]  # in place: the metrics of a collection share the list
        return rows[0]

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Any:
        """Move the states to another device, and widen them.

        Overridden because half precision is meant for the weights of a model: sums and labels would
        be rounded.
        """
        states_before = self.metric_state
        defaults_before = dict(self._defaults)
        values_before = (self._computed, self._forward_cache)
        super()._apply(fn, exclude_state)
        for name, state in states_before.items():
            setattr(self, name, _keep_wider_precision(state, getattr(self, name)))
            default = _keep_wider_precision(defaults_before[name], self._defaults[name])
            self._defaults[name] = default
        self._computed, self._forward_cache = tree_map_only(
            Tensor, lambda value: value.to(self.device), values_before
        )
        return self


def _adopt_loaded_states(metric: PrivacyMetric, _: Any) -> None:
    """Make loaded states the metric's own: appending must not change the dictionary they come from.

    A metric that has loaded data counts as updated, and forgets the value of other data.
    """
    has_data = False
    for name, default in metric._defaults.items():
        state = getattr(metric, name)
        if isinstance(default, list):
            setattr(metric, name, list(state))
            has_data = has_data or len(state) > 0
        elif not torch.equal(state, default.to(state)):
            has_data = True
    if has_data:
        metric._update_count = max(metric._update_count, 1)
    metric._forget_values()


def _refuse_running_window(view: ScalarView) -> bool:
    """Raise, since only :class:`torchmetrics.wrappers.Running` asks, and a view has no states."""
    name = type(view.metric).__name__
    raise TypeError(
        f"Expected a metric with states of its own, but {name}()[{view.key!r}] has those of the"
        f" metric. Run the window over the metric: `Running({name}(), window)`, whose value has the"
        f" key {view.key!r}."
    )


class ScalarView(WrapperMetric):
    """One entry of the dictionary that a metric returns, as a metric of its own.

    Lightning's ``self.log``, ``MetricTracker`` and ``MinMaxMetric`` take scalars only. Metric and
    view share states.
    """

    full_state_update = ClassOrInstanceValue(True, _refuse_running_window)
    is_differentiable = ClassOrInstanceValue(None, lambda view: view.metric.is_differentiable)
    higher_is_better = ClassOrInstanceValue(
        None, lambda view: _is_higher_better(view.metric, view.key)
    )

    def __init__(self, metric: Metric, key: str) -> None:
        super().__init__()
        self.metric = metric
        self.key = key

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
            raise TypeError(
                f"Expected {name} to return a dictionary with {self.key!r}, but got {got}."
            )
        if self.key not in value:
            raise ValueError(
                f"Expected {self.key!r} to be one of {', '.join(value)}, which {name} returns."
            )
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
    if direction is None:
        return None
    return direction == "high"


def _width_of(state: Tensor | Sequence[Tensor]) -> int | None:
    """Return the last dimension of a tensor or of the rows of a list; None where there is none."""
    if isinstance(state, Tensor):
        return state.shape[-1] if state.dim() else None
    if len(state) == 0 or state[0].dim() < 2:
        return None
    return state[0].shape[1]


def _keep_wider_precision(before: Any, after: Any) -> Any:
    """Return a moved state in the wider dtype of both; a list state row by row."""
    if isinstance(before, list):
        return [
            _keep_wider_precision(rows, moved) for rows, moved in zip(before, after, strict=True)
        ]
    if before.is_floating_point():
        wider = torch.promote_types(before.dtype, after.dtype)
        if wider == after.dtype:
            return after
    return before.to(after.device)
