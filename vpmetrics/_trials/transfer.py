"""What a calibration learnt in some sessions discloses in others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vpmetrics._scores.calibration import transferred_llr
from vpmetrics._scores.measures import disclosure_of_llr
from vpmetrics._trials.utterances import Sides, runs_of_sessions


def distortion_of_sessions(
    sides: Sides, trials_of: Callable[[Sides], tuple[Tensor, Tensor]], calibration: str = "linear"
) -> Tensor:
    """C_ECE between sessions: a calibration learnt on half of every speaker's sessions, used on the other half.

    Both ways, averaged; NaN where nobody has two sessions. ``trials_of`` gives scores and labels of a half.
    """
    runs = [trials_of(run) for run in runs_of_sessions(sides)]
    values = [
        disclosure_of_llr(transferred_llr(*attacked, *learnt, calibration, validate_args=False), attacked[1])
        for attacked, learnt in (runs, runs[::-1])
    ]
    return torch.stack(values).mean()
