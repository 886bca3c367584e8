"""One number of a metric that returns several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.wrappers.abstract import WrapperMetric

from vpmetrics._metric.constants import OfEachMetric
from vpmetrics._scalars import scalar


class ScalarView(WrapperMetric):
    """One entry of what a metric returns, as a metric that returns a scalar: ``metric["d_ece"]``.

    Lightning's ``self.log``, ``MetricTracker`` and ``MinMaxMetric`` take scalars only. A view looks at the metric it
    is of: what one is updated with the other has seen, and views of one metric are updated once for all of them.

    Args:
        metric: A metric that returns a dictionary.
        key: Name of the entry.
    """

    full_state_update: bool = False
    is_differentiable = OfEachMetric(None, lambda view: view.metric.is_differentiable)
    higher_is_better = OfEachMetric(None, lambda view: _higher_is_better(view.metric, view.key))

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
        """The entry of what the metric computes."""
        return self._entry(self.metric.compute())

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Update the metric, and return the entry of this batch."""
        value = self._entry(self.metric(*args, **kwargs))
        self._forward_cache: Any = value.detach()
        return value

    def reset(self) -> None:
        """Reset the metric."""
        super().reset()
        self.metric.reset()

    def plot(self, val: Any = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw a value, or one per step in a sequence of them.

        Args:
            val: What ``compute`` or ``forward`` returned, or a sequence of such; ``compute()`` when left out.
            ax: Matplotlib axes to draw on; new ones when left out.

        Returns:
            Figure and axes; neither shown nor saved.
        """
        from vpmetrics._plot.systems import draw_scalars

        return draw_scalars(self.compute() if val is None else val, ax, name=self.key, bounds=(None, None))

    def _entry(self, value: Any) -> Tensor:
        name = type(self.metric).__name__
        if not isinstance(value, Mapping):
            raise TypeError(
                f"Expected {name} to return a dictionary with {self.key!r}, but got {type(value).__name__}."
            )
        if self.key not in value:
            raise ValueError(f"Expected {self.key!r} to be one of {', '.join(value)}, which {name} returns.")
        entry: Tensor = value[self.key]
        return entry

    def _filter_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        return self.metric._filter_kwargs(**kwargs)


def _higher_is_better(metric: Metric, key: str) -> bool | None:
    """Where privacy lies, if the number is known; what the metric says of itself, if not."""
    try:
        private = scalar(key).private
    except KeyError:
        return metric.higher_is_better
    return None if private is None else private == "high"
