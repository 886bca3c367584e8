"""When a monitor draws, what, and into which loggers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torchmetrics.utilities import rank_zero_warn

from vpmetrics._report import PrivacyReport, System
from vpmetrics.lightning.loggers import ways_to_draw
from vpmetrics.lightning.trainers import is_fitting


class Measurement(NamedTuple):
    """What figures are drawn of, and where they belong."""

    report: PrivacyReport
    prefix: str
    suffix: str
    step: int


class Gallery:
    """Draws first and last, and in between every so many epochs."""

    def __init__(self, every_n_epochs: int | None) -> None:
        self.every_n_epochs = every_n_epochs
        self._is_open = True
        self._undrawn: dict[int, Measurement] = {}

    def setup(self, trainer: Any) -> None:
        """Say once if there is nothing to draw with, or nowhere to put it."""
        if self.every_n_epochs is None:
            return
        missing = ""
        if importlib.util.find_spec("matplotlib") is None:
            missing = "matplotlib is not installed"
        elif trainer.is_global_zero and trainer.loggers and not trainer.fast_dev_run and not ways_to_draw(trainer):
            names = ", ".join(type(logger).__name__ for logger in trainer.loggers)
            missing = f"of {names}, no logger takes them in a way it knows"
        if missing:
            rank_zero_warn(f"PrivacyMonitor draws no figures: {missing}.", UserWarning)
        self._is_open = not missing

    def forget(self) -> None:
        """Let go of what was not drawn, now that it is not the last."""
        self._undrawn.clear()

    def show(self, trainer: Any, measurement: Measurement, loader: int, history: Sequence[dict[str, float]]) -> None:
        """Draw a measurement if it is due, or keep it, for it may turn out to be the last."""
        if self.every_n_epochs is None or not self._is_open or not ways_to_draw(trainer):
            return
        if not is_fitting(trainer) or self._is_due(history):
            self._draw(trainer, measurement, history)
        else:
            self._undrawn[loader] = measurement

    def show_last(self, trainer: Any, history_of: Callable[[int], Sequence[dict[str, float]]]) -> None:
        """Draw what nobody could know to be the last."""
        while self._undrawn:
            loader, measurement = self._undrawn.popitem()
            self._draw(trainer, measurement, history_of(loader))

    def _is_due(self, history: Sequence[dict[str, float]]) -> bool:
        # Epochs over at the measurement before and at this one, which need not be neighbours; the first is the start.
        *earlier, now = [row["epoch"] + 1 for row in history]
        assert self.every_n_epochs is not None
        return not earlier or now // self.every_n_epochs > earlier[-1] // self.every_n_epochs

    def _draw(self, trainer: Any, measurement: Measurement, history: Sequence[dict[str, float]]) -> None:
        from vpmetrics._figures import CARD, figures_of

        report, prefix, suffix, step = measurement
        system = System(prefix, report, history=history if is_fitting(trainer) else ())
        with trainer.profiler.profile("[Callback]PrivacyMonitor.figures"):
            for name, figure in figures_of([system], CARD).items():
                for draw in ways_to_draw(trainer):
                    draw(f"{prefix}/{name}{suffix}", figure, step)
