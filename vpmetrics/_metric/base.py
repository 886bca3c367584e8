"""What the metrics keep, and how processes merge it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from lightning_utilities import apply_to_collection
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors
from torchmetrics.utilities.exceptions import TorchMetricsUserError

_DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64)  # of list states, widest last


class PrivacyMetric(Metric):
    """What every metric here adds to TorchMetrics' contract.

    ``forward`` is ``update`` with a detached copy plus the value of this batch alone: its cost does not grow with
    the history, and what is accumulated never holds a graph. States keep their precision when a module is cast to
    half. A process that saw no batch gathers with the others all the same.
    """

    full_state_update: bool = False
    if TYPE_CHECKING:  # annotations that TorchScript would try to resolve
        bandwidth: float | None
    else:
        bandwidth = None

    # TorchScript compiles every property it is not told about.
    __jit_unused_properties__: ClassVar[list[str]] = [
        *Metric.__jit_unused_properties__,
        "is_differentiable",
    ]

    @property
    def is_differentiable(self) -> bool:  # type: ignore[override]
        """Whether ``forward`` returns a value with a gradient: where the smooth surrogate is switched on."""
        return self.bandwidth is not None

    def _value_of_batch(self, *args: Any, **kwargs: Any) -> Any:
        """What ``compute`` would return for this batch alone."""
        raise NotImplementedError

    @torch.jit.unused
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Accumulate a batch and return its own value."""
        if self._is_synced:
            raise TorchMetricsUserError("The metric is synced with other processes: call `unsync` before `forward`.")
        self.update(*args, **kwargs)
        value = self._value_of_batch(*args, **kwargs)
        self._forward_cache = apply_to_collection(value, Tensor, Tensor.detach)
        return value

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """Within this the states are those of all processes, as in ``compute``, unless a caller has seen to it."""
        here = not self._is_synced
        gather, part = here and self._to_sync, here and self._should_unsync
        with self.sync_context(self.dist_sync_fn, should_sync=gather, should_unsync=part):
            yield

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
