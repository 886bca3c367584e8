r"""Intervals by drawing speakers anew: slow, exact, and so what quicker intervals are checked against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import (
    check_choices,
    check_confidence,
    check_speakers_of_trials,
    check_trials,
    check_whole,
)
from vpmetrics._precision import result_dtype
from vpmetrics._scores.intervals import students_t
from vpmetrics._scores.weighted import MEASURES, RANGES, sort_trials, values_under


class Bootstrapped(NamedTuple):
    """A value, both ends of its interval, and the value of every replicate ``(R,)``."""

    value: Tensor
    low: Tensor
    high: Tensor
    replicates: Tensor


def bootstrap(
    preds: Tensor,
    target: Tensor,
    speakers: Sequence[Tensor],
    measures: Sequence[str] = tuple(MEASURES),
    replicates: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    validate_args: bool = True,
) -> dict[str, Bootstrapped]:
    r"""Intervals that honour that trials share speakers: speakers are drawn anew, with replacement, never trials.

    A speaker drawn :math:`w` times weighs :math:`w`: in every replicate a target trial of speaker i weighs
    :math:`w_i`, a non-target trial of speakers i and j weighs :math:`w_i w_j`, so copies of one speaker never meet each
    other. Scores are sorted once; every replicate is calibrated anew. With the mean :math:`\bar\theta` and the standard
    deviation :math:`\sigma` of the replicates the interval of a value :math:`\theta` is

    .. math:: \theta - (\bar\theta - \theta) \pm t_{S - 1}\, \sigma \sqrt{S / (S - 1)}

    with Student's t for S speakers: a calibration fitted to what it is measured on makes replicates exceed the value by
    as much as the value exceeds the truth, and S speakers vary less about their own mean than about the true one.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike; for ``cllr``, log-likelihood ratios.
        target: 1 (same speaker) or 0 (different), of the same shape.
        speakers: Who speaks on the enrolment side and on the probe side: two tensors of integers of the same shape.
        measures: Any of ``d_ece``, ``d_ece_reversed``, ``eer``, ``raw_eer``, ``min_cllr``, ``cllr``, ``linkability``;
            the bins of the last stay those of all trials.
        replicates: How many times to draw.
        confidence: How often an interval is to hold the truth.
        seed: Of the draws; the labels of speakers and the order of trials do not show.
        validate_args: Look at the values, too (NaN, labels, speakers); forces a GPU sync.

    Returns:
        ``value``, ``low``, ``high`` and ``replicates`` ``(R,)`` of each measure. Replicates without one class of trials
        are NaN and left out; where the trials are so themselves all is NaN, with one warning.

    Example:
        >>> speakers = torch.arange(60).repeat_interleave(60) % 12, torch.arange(60).repeat(60) % 12
        >>> target = speakers[0] == speakers[1]
        >>> preds = torch.randn(3600, generator=torch.Generator().manual_seed(0)) + target
        >>> value, low, high, _ = bootstrap(preds, target, speakers, measures=["eer"], replicates=200)["eer"]
        >>> value, low, high
        (tensor(0.2938), tensor(0.2590), tensor(0.3343))
    """
    check_trials(preds, target, validate_args)
    check_speakers_of_trials(speakers, target, validate_args)
    check_choices("measures", measures, tuple(MEASURES))
    check_whole("replicates", replicates, least=2)
    check_whole("seed", seed, least=0)
    check_confidence("confidence", confidence)
    trials = sort_trials(preds.detach().flatten(), target.flatten().bool(), [side.flatten() for side in speakers])
    count = len(trials.speakers)
    weights = torch.cat([torch.ones(1, count), _draw(count, replicates, seed)])
    values = values_under(trials, weights.to(preds.device), measures)
    dtype = result_dtype(preds)
    return {name: _interval(each, RANGES[name], count, confidence, dtype) for name, each in values.items()}


def _draw(speakers: int, replicates: int, seed: int) -> Tensor:
    """How often each speaker is drawn, ``(R, speakers)``; on the host, so that every device draws the same."""
    chosen = torch.randint(max(1, speakers), (replicates, speakers), generator=torch.Generator().manual_seed(seed))
    return torch.zeros(replicates, speakers).scatter_add(1, chosen, torch.ones(replicates, speakers))


def _interval(
    values: Tensor, between: tuple[float, float], speakers: int, confidence: float, dtype: torch.dtype
) -> Bootstrapped:
    value, replicates = values[0], values[1:]
    known = replicates[~replicates.isnan()]
    low = high = torch.full_like(value, torch.nan)
    if len(known) > 1:
        reach = students_t(confidence, speakers - 1) * known.std() * math.sqrt(speakers / (speakers - 1))
        centre = 2 * value - known.mean()
        low, high = (centre - reach).clamp(*between), (centre + reach).clamp(*between)
    return Bootstrapped(value.to(dtype), low.to(dtype), high.to(dtype), replicates.to(dtype))
