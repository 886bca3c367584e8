"""Constants of TorchMetrics that differ from metric to metric of one class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchmetrics import Metric


class OfEachMetric:
    """A constant that the class has one value of, and each metric its own.

    Read on a class, a property would be itself: an object, and so true.
    """

    def __init__(self, on_class: bool | None, on_metric: Callable[[Any], bool | None]) -> None:
        self.on_class, self.on_metric = on_class, on_metric

    def __get__(self, metric: Metric | None, owner: type[Metric]) -> bool | None:
        """The value of a metric, or of the class where there is none."""
        return self.on_class if metric is None else self.on_metric(metric)
