"""Sums of logistic functions over many numbers, from their values at few places.

A logistic function is analytic: on a piece of the axis that is short beside its width it is, to the last digit, the
polynomial through its values at a few nodes. So its sum over all numbers in a piece is a sum over these nodes, each
weighed once and for all by what the numbers make of it; then every function that is flat enough costs next to nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import widen

_ORDER = 16  # nodes of a piece
# Slope times length of a piece, up to which nothing is lost: the nearest pole is so far away that an ellipse of 12
# half axes passes it, and 12 ** -16 is below the last digit (Trefethen, Approximation Theory, theorem 8.2).
_LENGTH = 1.0
_NUMBERS, _PIECES = 128, 256  # numbers for a piece, at least, and pieces, at most
_AT_ONCE = 1 << 15  # numbers worked on at a time: what a core's cache holds


class Extent(NamedTuple):
    """Where numbers lie, and how many they are."""

    low: float
    high: float
    number: int

    @classmethod
    def of(cls, numbers: Tensor) -> Extent:
        """That of numbers ``(P,)``: without end where one is not finite, and of none the other way round."""
        if len(numbers) == 0:
            return cls(math.inf, -math.inf, 0)
        low, high = (float(end) for end in numbers.aminmax())
        known = math.isfinite(low) and math.isfinite(high)
        return cls(*((low, high) if known else (-math.inf, math.inf)), len(numbers))


class Nodes(NamedTuple):
    """Places ``(K,)``, and how much each of them weighs in every group of the numbers, ``(G, K)``.

    Sums hold for slopes up to ``steepest``.
    """

    places: Tensor
    weights: Tensor
    steepest: float


def nodes_of(numbers: Tensor, group: Tensor, groups: int, whole: Extent | None = None) -> Nodes | None:
    """Nodes for numbers ``(P,)``, each of a group; None where they are too few or infinite.

    Weights add up: where these numbers are a part of the ``whole``, so are their weights.
    """
    low, high, number = whole or Extent.of(numbers)
    pieces = min(number // _NUMBERS, _PIECES)
    length = (high - low) / max(pieces, 1)
    if pieces == 0 or not 0 < length < math.inf:
        return None
    sums = widen(numbers[:0]).new_zeros(_ORDER, groups * pieces)
    for some, of in zip(numbers.split(_AT_ONCE), group.split(_AT_ONCE), strict=True):
        place = (widen(some) - low) / length
        piece = place.long().clamp(max=pieces - 1)
        _add_polynomials(sums, 2 * (place - piece) - 1, of * pieces + piece)
    # Of the polynomial that is 1 at one node and 0 at all others.
    angle = torch.arange(0.5, _ORDER, device=sums.device, dtype=sums.dtype) * (math.pi / _ORDER)
    degree = torch.arange(_ORDER, device=sums.device)[:, None]
    parts = torch.cos(degree * angle) * torch.where(degree > 0, 2 / _ORDER, 1 / _ORDER)
    starts = torch.arange(pieces, device=sums.device, dtype=sums.dtype)[:, None]
    places = low + length * (starts + (angle.cos() + 1) / 2)
    return Nodes(places.flatten(), (sums.mT @ parts).view(groups, -1), _LENGTH / length)


def _add_polynomials(sums: Tensor, x: Tensor, slot: Tensor) -> None:
    """Add Chebyshev's polynomials of numbers within [-1, 1] to their sums, ``(_ORDER, slots)``."""
    before, value, twice = x, torch.ones_like(x), 2 * x
    for of_degree in sums:
        of_degree.index_add_(0, slot, value)
        before, value = value, twice * value - before


def sums_at_nodes(places: Tensor, weights: Tensor, theta: Tensor, label: int) -> Tensor:
    """What :func:`vpmetrics._scores.logistic.sum_derivatives` returns, of the numbers that nodes ``(F, K)`` weigh."""
    slope, offset = theta.unsqueeze(-1).unbind(1)
    error = torch.addcmul(offset, slope, places).sigmoid_()
    curvature = torch.addcmul(error, error, error, value=-1)
    powers = torch.stack([torch.ones_like(places), places, places.square()], dim=1)
    by_offset, by_slope = ((weights * error.sub_(label)) @ powers[:, :2]).unbind(1)
    by_offset_offset, by_both, by_slope_slope = ((weights * curvature) @ powers).unbind(1)
    return torch.stack([by_slope, by_offset, by_slope_slope, by_both, by_offset_offset, weights.sum(1)])
