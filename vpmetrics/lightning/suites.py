"""The metrics of a monitor: one for each loader, the same in every epoch."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from vpmetrics._checks import warn_once
from vpmetrics._report import PrivacyReport
from vpmetrics.suite import VoicePrivacy

_SEEN_BY_ATTACKERS = ("original", "protected", "speakers", "sessions")


class Suites:
    """One :class:`vpmetrics.VoicePrivacy` for each loader, kept because it remembers its original speech.

    Args:
        pattern: What each is a copy of.
        watching: Whether attackers see what is trained on, and know it in a test, too.
        metrics: Names of the scalars to calculate; None is all.
    """

    def __init__(self, pattern: VoicePrivacy, watching: bool, metrics: tuple[str, ...] | None) -> None:
        self.pattern, self.watching, self.metrics = pattern, watching, metrics
        self.has_seen_training = False
        self._made: dict[tuple[str, int], VoicePrivacy] = {}

    def at(self, stage: str, loader: int, device: torch.device) -> VoicePrivacy:
        """The metric of a loader."""
        if (stage, loader) not in self._made:
            seen = self._made.get(("val", 0)) if self.watching else None
            suite = deepcopy(self.pattern if seen is None else seen)
            suite.reset()
            suite.metrics = self.metrics
            suite.validate_args = False  # which would force a GPU sync at every batch
            self._made[stage, loader] = suite.to(device)
        return self._made[stage, loader]

    def begin(self, device: torch.device) -> None:
        """Begin anew."""
        # What a suite remembers of original speech lies where the module was then.
        self._made = {place: suite for place, suite in self._made.items() if suite.device == device}
        for suite in self._made.values():
            suite.reset()

    def forget_training(self) -> None:
        """Let attackers forget what an earlier anonymiser has made."""
        for suite in self._made.values():
            suite.reset(observed=True)

    def observe(self, arguments: dict[str, Any], loaders: Iterable[int], device: torch.device) -> None:
        """Show attackers what was trained on."""
        seen = {name: arguments[name] for name in _SEEN_BY_ATTACKERS if name in arguments}
        for loader in loaders:
            self.at("val", loader, device).observe(**seen)
        self.has_seen_training = True


def report_of_all_processes(metric: VoicePrivacy) -> PrivacyReport | None:
    """What all processes gathered together, on each; None where none of them gathered anything."""
    with warn_once():
        metric.sync()
        try:
            rows = metric.metric_state["speakers"]
            count = sum(len(part) for part in ([rows] if isinstance(rows, Tensor) else rows))
            return metric.report() if count else None
        finally:
            if metric._is_synced:
                metric.unsync()
