"""How sure the measures of trials are: each of them without one speaker after the other, calibrated anew."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vpmetrics._checks import warn_undefined
from vpmetrics._scores.weighted import SpeakerTrials, values_under

_MOST_BLOCKS = 256  # from where on several speakers at a time are left out, at random
# Fitted to what it is measured on, PAV is too good by what leaving speakers out shows. So are the bins that link and
# the choice of an attack, but of these it shows more noise than bias: corrected, their intervals would miss more often.
FITTED = {"d_ece", "d_ece_reversed", "min_cllr"}


def values_without(trials: SpeakerTrials, measures: Sequence[str]) -> dict[str, Tensor]:
    """Each measure, then without each speaker or block of them, ``(1 + G,)``; warns where one is not defined."""
    trials = _in_blocks(trials)
    values = values_under(trials, _without_each(len(trials.speakers), trials.scores.device), measures)
    if bool(torch.stack(list(values.values())).isnan().any()):
        warn_undefined("Intervals need trials of both kinds without any one of the speakers, too.")
    return values


def _in_blocks(trials: SpeakerTrials) -> SpeakerTrials:
    """The trials of blocks of speakers dealt at random, where there are too many to leave out one by one."""
    count = len(trials.speakers)
    if count <= _MOST_BLOCKS:
        return trials
    blocks = torch.arange(_MOST_BLOCKS, device=trials.pair.device)
    dealt = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(blocks.device) % _MOST_BLOCKS
    ends = dealt[trials.pairs]
    # A block weighs 1 or 0, and so do the trials of two of its speakers.
    codes, place = (ends.amin(0) * _MOST_BLOCKS + ends.amax(0)).unique(return_inverse=True)
    pairs = torch.stack([codes // _MOST_BLOCKS, codes % _MOST_BLOCKS])
    return trials._replace(pair=place[trials.pair], pairs=pairs, speakers=blocks)


def _without_each(speakers: int, device: torch.device) -> Tensor:
    """Weight 1 for all speakers, and then without one after the other, ``(1 + S, S)``."""
    return torch.cat([torch.ones(1, speakers, device=device), 1 - torch.eye(speakers, device=device)])
