"""How sure the measures of trials are: each of them without one speaker after the other, calibrated anew."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vpmetrics._checks import warn_undefined
from vpmetrics._scores.intervals import interval_of
from vpmetrics._scores.weighted import MEASURES, RANGES, SpeakerTrials, values_under

_MOST_BLOCKS = 256  # from where on several speakers at a time are left out, at random
# Fitted to what they are measured on, PAV and the bins that link are too good by what leaving speakers out shows.
_FITTED = {"d_ece", "d_ece_reversed", "min_cllr", "linkability"}


def intervals_without(
    trials: SpeakerTrials, measures: Sequence[str], confidence: float
) -> dict[str, tuple[Tensor, Tensor]]:
    """Both ends of the interval of each measure; NaN, with one warning, where one is not defined without somebody."""
    known = [name for name in measures if name in MEASURES]
    values = values_under(trials, _without_each(len(trials.speakers), trials.scores.device), known)
    intervals = {
        name: interval_of(each[0], each[1:], confidence, *RANGES[name], bias=None if name in _FITTED else 0.0)
        for name, each in values.items()
    }
    if bool(torch.stack([low for low, _ in intervals.values()]).isnan().any()):
        warn_undefined("Intervals need trials of both kinds without any one of the speakers, too.")
    return intervals


def _without_each(speakers: int, device: torch.device) -> Tensor:
    """Weight 1 for all speakers, and then without one block of them after the other, ``(1 + G, S)``."""
    blocks = min(speakers, _MOST_BLOCKS)
    dealt = torch.randperm(speakers, generator=torch.Generator().manual_seed(0)) % max(1, blocks)
    kept = dealt != torch.arange(-1, blocks).unsqueeze(1)
    return kept.to(device=device, dtype=torch.float32)
