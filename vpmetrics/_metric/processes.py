"""What processes and metrics share: gathered without a hang, merged without a mix-up, left as they were if it fails."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError

from vpmetrics._metric.forms import Gather, agree_on_forms, check_mergeable, rows_of_form
from vpmetrics._trials.shares import shared


class SharedMetric(Metric):
    """A metric whose states come through synchronising, merging and refused batches whole.

    Without ``gather`` processes agree on what their states look like, and each keeps its own.
    """

    gather: bool = True

    def _wrap_update(self, update: Callable[..., None]) -> Callable[..., None]:
        counted = super()._wrap_update(update)

        @functools.wraps(update)
        def refusing(*args: Any, **kwargs: Any) -> None:
            self._refuse_if_synced()
            before = self._update_count, self._computed
            try:
                counted(*args, **kwargs)
            except BaseException:  # a batch that was refused has never been there
                self._update_count, self._computed = before
                raise

        return refusing

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compute)
        def sharing(*args: Any, **kwargs: Any) -> Any:
            with self._shared(gathered=self._is_synced and self._to_sync):
                return compute(*args, **kwargs)

        wrapped: Callable[..., Any] = super()._wrap_compute(sharing)
        return wrapped

    @contextmanager
    def _shared(self, gathered: bool) -> Iterator[None]:
        """Within this the processes divide the work, where all of them have just ``gathered`` and so are here too.

        Where a function of the user's gathers, nobody knows between whom, and each process does all.
        """
        between = distributed.is_available() and distributed.is_initialized() and self.dist_sync_fn is None
        with shared(self.process_group, self.device, apart=not self.gather) if gathered and between else nullcontext():
            yield

    def _refuse_if_synced(self) -> None:
        if self._is_synced:
            raise TorchMetricsUserError("The metric holds the states of all processes: call `unsync` first.")

    def reset(self) -> None:
        """Forget everything; a metric that is synced with other processes is on its own again."""
        if self._is_synced:
            self.unsync()
        super().reset()

    def sync(self, *args: Any, **kwargs: Any) -> None:
        """Gather the states of all processes; where that fails, they are as they were."""
        try:
            super().sync(*args, **kwargs)
        except BaseException:
            if not self._is_synced and self._cache is not None:
                self._is_synced = True  # or part of the way there
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
        """Within this the states are those of all processes; afterwards, whatever happened, those of this one."""
        self.sync(dist_sync_fn, process_group, should_sync, distributed_available)
        try:
            yield
        finally:
            self.unsync(should_unsync=self._is_synced and should_unsync)

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """Within this the states are those of all processes, as in ``compute``, unless a caller has seen to it."""
        here = not self._is_synced
        gather, part = here and self._to_sync, here and self._should_unsync
        with (
            self.sync_context(self.dist_sync_fn, should_sync=gather, should_unsync=part),
            self._shared(gathered=here and self._is_synced),
        ):
            yield

    def _sync_dist(self, dist_sync_fn: Callable[..., Any] = gather_all_tensors, process_group: Any = None) -> None:
        self._agree(functools.partial(dist_sync_fn, group=process_group or self.process_group))
        if self.gather:
            super()._sync_dist(dist_sync_fn, process_group)

    def _agree(self, gather: Gather) -> None:
        """Bring the states into a form that all processes have; where there is none, every process raises."""
        # A process without a batch knows neither dtype nor width, and gathering needs both to agree.
        forms = agree_on_forms(self.metric_state, gather, self.device)
        for name, rows in self._lists():
            setattr(self, name, rows_of_form(rows, forms[name], self.device, joined=self.gather))

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add what another metric of this kind, or its ``metric_state``, has accumulated."""
        super().merge_state(incoming_state)
        self._update_count += incoming_state._update_count if isinstance(incoming_state, Metric) else 1
        self._computed = None

    def _reduce_states(self, incoming_state: dict[str, Any]) -> None:
        check_mergeable(self.metric_state, incoming_state)
        super()._reduce_states(self._aligned(incoming_state))

    def _aligned(self, incoming_state: dict[str, Any]) -> dict[str, Any]:
        """The states of another metric, made fit to be added to those of this one."""
        return incoming_state

    def _copy_state_dict(self) -> dict[str, Any]:
        """The states as they are put aside while those of all processes take their place.

        Rows are kept as they came and nothing changes them, so there need be no second copy of them.
        """
        states = self.metric_state.items()
        return {name: list(kept) if isinstance(kept, list) else kept.detach().clone() for name, kept in states}

    def _lists(self) -> list[tuple[str, list[Tensor]]]:
        """Names and rows of the states that are lists."""
        return [(name, getattr(self, name)) for name, default in self._defaults.items() if isinstance(default, list)]

    def _keep(self, columns: Mapping[str, Tensor]) -> None:
        """Have list states hold these rows from now on, also once a synchronised metric is on its own again."""
        for name, rows in columns.items():
            kept: Any = (self._cache or self.metric_state)[name]
            kept[:] = [rows]
            setattr(self, name, kept)

    def _joined(self, name: str) -> Tensor:
        """All rows of a state that has some. It keeps them as one batch from now on, and no second copy of them.

        In its list, which the metrics of a collection share.
        """
        kept: Tensor | list[Tensor] = getattr(self, name)
        if isinstance(kept, Tensor):  # of all processes
            return kept
        if len(kept) > 1:
            kept[:] = [torch.cat(kept)]
        return kept[0]
