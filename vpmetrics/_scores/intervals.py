"""Intervals from leaving speakers out: a number without each of them, and what that says of the number."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from vpmetrics._precision import widen


def interval_of(
    value: Tensor,
    replicates: Tensor,
    confidence: float,
    lowest: float = -math.inf,
    highest: float = math.inf,
    ratio: float | None = None,
    bias: Tensor | float | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Lower and upper end of a jackknife interval.

    With :math:`\theta` the value of all speakers and :math:`\theta_{(g)}` that without some, each time as many,

    .. math:: \hat\theta = \theta - b, \quad b = r (\overline{\theta_{(\cdot)}} - \theta), \quad
        \sigma^2 = \frac{r}{G} \sum_g (\theta_{(g)} - \overline{\theta_{(\cdot)}})^2, \quad
        \hat\theta \pm t_{G - 1} \sigma

    where :math:`r`, speakers kept over speakers left out, is :math:`G - 1` when each is left out alone. The ends stay
    within the range of the number, and never lie both on one side of :math:`\theta`, which is what people read.

    A number at one end of its range that nobody's absence changes, as where all are told apart, would have an interval
    without length. But people for whom it is at the other end could be a share :math:`p` of all, and none of them among
    those here, with a chance of :math:`(1 - p)^G`; so the interval reaches as far as they would move it.

    Args:
        value: The number, ``()``.
        replicates: The number without each of the groups of speakers, ``(G,)``.
        confidence: How often the interval is to hold the truth.
        lowest: Below which the number cannot be.
        highest: Above which it cannot be.
        ratio: Speakers kept over speakers left out; ``G - 1`` when left out.
        bias: What to take off the value; by default :math:`b`.

    Returns:
        Both ends, ``()``; NaN where a replicate is not defined, or there are fewer than two.
    """
    seen = widen(value.detach())
    if len(replicates) < 2:
        unknown = torch.full_like(value, torch.nan)
        return unknown, unknown
    centre, deviation = _jackknife(seen, widen(replicates.detach()), ratio, bias)
    reach = students_t(confidence, len(replicates) - 1) * deviation
    low, high = torch.minimum(centre - reach, seen), torch.maximum(centre + reach, seen)
    unseen = reach_of_unseen(seen, reach, len(replicates), confidence, lowest, highest)
    low, high = torch.minimum(low, seen - unseen), torch.maximum(high, seen + unseen)
    return low.clamp(lowest, highest).to(value.dtype), high.clamp(lowest, highest).to(value.dtype)


def reach_of_unseen(
    value: Tensor, reach: Tensor, speakers: int, confidence: float, lowest: float, highest: float
) -> Tensor:
    """How far people could move a number of whom none was seen, where it stands still at one end of its range; else 0.

    Example:
        >>> round(float(reach_of_unseen(torch.ones(()), torch.zeros(()), 20, 0.95, 0.0, 1.0)), 2)  # all told apart
        0.14
    """
    width = highest - max(lowest, 0.0)  # what has no least value is 0 of people for whom there is nothing of it
    if not math.isfinite(width):
        return torch.zeros_like(value)
    tolerance = width * 1e-6
    at_end = (value <= lowest + tolerance) | (value >= highest - tolerance)
    still = (at_end & (reach <= tolerance)).to(value.dtype)
    return still * (width * (1.0 - math.pow(1 - confidence, 1 / speakers)))


def probability_below(
    value: Tensor, replicates: Tensor, limit: float, ratio: float | None = None, bias: Tensor | float | None = None
) -> Tensor:
    """How likely a number is below a limit, by the distribution :func:`interval_of` goes by; 1/2 where all is equal."""
    if len(replicates) < 2:
        return torch.full_like(value, torch.nan)
    centre, deviation = _jackknife(widen(value.detach()), widen(replicates.detach()), ratio, bias)
    if not bool(deviation > 0):
        return torch.where(centre.isnan() | deviation.isnan(), torch.nan, 0.5 - (centre - limit).sign() / 2)
    t = float((limit - centre) / deviation)
    return torch.full_like(centre, 0.5 + math.copysign(_inside(abs(t), len(replicates) - 1), t) / 2)


def _jackknife(
    value: Tensor, replicates: Tensor, ratio: float | None, bias: Tensor | float | None
) -> tuple[Tensor, Tensor]:
    """The value without its bias, and its standard error."""
    kept, mean = len(replicates) - 1 if ratio is None else ratio, replicates.mean()
    centre = value - (kept * (mean - value) if bias is None else bias)
    return centre, (kept * (replicates - mean).square().mean()).sqrt()


@lru_cache
def students_t(confidence: float, freedom: int) -> float:
    """The value a variable of Student's distribution stays within, in size, so often.

    Example:
        >>> round(students_t(0.95, 19), 3), round(students_t(0.95, 1), 2)
        (2.093, 12.71)
    """
    low, high = 0.0, 1.0
    while _inside(high, freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, freedom) < confidence else (low, middle)
    return high


def _inside(t: float, freedom: int) -> float:
    """Probability of at most ``t`` in size, from the finite series (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, total = math.cos(angle), 0.0
    first = 1 if freedom % 2 else 0
    term = cosine if first else 1.0
    for k in range(first, freedom - 1, 2):
        total += term
        term *= cosine**2 * (k + 1) / (k + 2)
    series = math.sin(angle) * total
    return 2 / math.pi * (angle + series) if first else series
