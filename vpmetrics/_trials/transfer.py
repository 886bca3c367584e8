"""What a calibration learnt in some sessions discloses in others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vpmetrics._scores.calibration import transferred_llr
from vpmetrics._scores.measures import disclosure_of_llr
from vpmetrics._trials import shares
from vpmetrics._trials.scored import ScoredTrials
from vpmetrics._trials.utterances import Sides, runs_of_sessions


def calibrated_between_sessions(
    sides: Sides, trials_of: Callable[[Sides], ScoredTrials], calibration: str = "linear"
) -> list[ScoredTrials]:
    """The trials of either half of every speaker's sessions, their scores calibrated as learnt on the other half."""
    halves = runs_of_sessions(sides)
    with shares.alone():  # few rows, which all processes have
        runs = [trials_of(run) for run in halves]
    return [
        attacked._replace(scores=transferred_llr(*attacked[:2], *learnt[:2], calibration, validate_args=False))
        for attacked, learnt in (runs, runs[::-1])
    ]


def distortion_of_runs(runs: Sequence[ScoredTrials]) -> Tensor:
    """C_ECE, averaged over runs; NaN where nobody has two sessions."""
    return torch.stack([disclosure_of_llr(run.scores, run.is_target) for run in runs]).mean()
