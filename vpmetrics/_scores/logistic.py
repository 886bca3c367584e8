"""Logistic regressions of labels on scores, many at once, which weigh both classes equally."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import widen

_ITERATIONS = 100  # mostly eight are enough, and forty where classes all but separate
SOON = 12  # iterations after which to see whether these were enough; a CPU sees it after each
_GROWTH = 4.0  # of the longest step allowed, after one that helped; or its shrinking


class Derivatives(NamedTuple):
    """Of the cost of each regression by slope and offset, all ``(F,)``."""

    slope: Tensor
    offset: Tensor
    slope_slope: Tensor
    slope_offset: Tensor
    offset_offset: Tensor


def sum_derivatives(z: Tensor, theta: Tensor, label: int, excluded: Tensor | None = None) -> Tensor:
    """The five sums of :class:`Derivatives` over trials of one class, and how many they are: ``(6, F, ...)``.

    Args:
        z: Scores of shape ``(F or 1, ..., K)``.
        theta: Slope and offset of each regression, ``(F, 2)``.
        label: 1 for targets, 0 for non-targets.
        excluded: Which of the scores are none, ``(..., K)``; of non-targets only.
    """
    slope, offset = (column.view(-1, *[1] * (z.dim() - 1)) for column in theta.unbind(1))
    error, count = torch.addcmul(offset, slope, z).sigmoid_(), z.new_full((1,), z.shape[-1])
    if excluded is not None:
        # Such a score is surely no target, and a sum less what it adds would lose digits.
        error, count = error.mul_((~excluded).to(z.dtype)), count - excluded.sum(dim=-1)
    weight = torch.addcmul(error, error, error, value=-1)
    by_offset, by_offset_offset = error.sub_(label).sum(dim=-1), weight.sum(dim=-1)
    by_slope, by_both = error.mul_(z).sum(dim=-1), weight.mul_(z).sum(dim=-1)
    sums = by_slope, by_offset, weight.mul_(z).sum(dim=-1), by_both, by_offset_offset
    return torch.stack([*map(widen, sums), widen(count).expand_as(by_offset)])


def mean_of_classes(targets: Tensor, nontargets: Tensor) -> Derivatives:
    """Sums over both classes ``(6, F)``, as :func:`sum_derivatives` gives them, averaged by class and added."""
    return Derivatives(*(targets[:-1] / targets[-1] + nontargets[:-1] / nontargets[-1]))


def minimise(
    derivatives: Callable[[Tensor], Derivatives],
    theta: Tensor,
    iterations: int | None = None,
    near: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Slope and offset of least cost ``(F, 2)``, from a start, and whether each regression got there ``(F,)``.

    Newton's method. Its step is no longer than what has helped before, and is taken only where it does not go far
    beyond the lowest point on its way, so that it converges wherever the classes overlap; the cost itself is never
    needed. Once near it squares the distance at every step. A regression that got there stays, however long the others
    take; so no number depends on how often the device is looked at. ``near``: how long a step may be, next to slope and
    offset, for the last one; as a rule so short that its square is below the last digit.
    """
    here, longest = derivatives(theta), torch.linalg.vector_norm(theta, dim=1, keepdim=True).clamp(min=1)
    for iteration in range(iterations or _ITERATIONS):
        step = _newton(here)
        done = _is_last(step, theta, near)
        if (iteration == SOON or theta.device.type == "cpu") and bool(done.all()):
            break
        length = torch.linalg.vector_norm(step, dim=1, keepdim=True)
        step = step * (longest / length).clamp(max=1)
        there = derivatives(theta - step)
        # The cost is convex: where it still falls along the step, or has begun to rise half as steeply at most.
        better = (_along(there, step) >= -_along(here, step) / 2) & ~done.unsqueeze(1)
        taken = length.minimum(longest)
        longest = torch.where(better, longest.maximum(_GROWTH * taken), taken / _GROWTH)
        theta = torch.where(better, theta - step, theta)
        here = Derivatives(*torch.where(better, torch.stack(there, 1), torch.stack(here, 1)).unbind(1))
    step = _newton(here)
    done = _is_last(step, theta, near)
    return torch.where(done.unsqueeze(1), theta - step, theta), done


def _along(at: Derivatives, step: Tensor) -> Tensor:
    """How fast the cost falls along a step, ``(F, 1)``."""
    return (at.slope * step[:, 0] + at.offset * step[:, 1]).unsqueeze(1)


def _is_last(step: Tensor, theta: Tensor, near: float | None) -> Tensor:
    """Whether what is left after the step is the square of something small; also where there is nothing to fit."""
    step, theta = torch.linalg.vector_norm(step, dim=1), torch.linalg.vector_norm(theta, dim=1)
    last: Tensor = ~(step > (near or torch.finfo(theta.dtype).eps ** 0.4) * (1 + theta))
    return last


def _newton(cost: Derivatives) -> Tensor:
    """Newton's step ``(F, 2)``, or down the slope where rounding hides the curvature."""
    gradient = torch.stack([cost.slope, cost.offset], dim=1)
    least = torch.finfo(gradient.dtype).tiny ** 0.5  # scores that say nothing leave the slope at 0
    by_slope, by_offset, both = cost.slope_slope + least, cost.offset_offset + least, cost.slope_offset
    adjoint = torch.stack([by_offset * cost.slope - both * cost.offset, by_slope * cost.offset - both * cost.slope], 1)
    newton = adjoint / (by_slope * by_offset - both.square()).unsqueeze(1)
    gain = (gradient * newton).sum(dim=1, keepdim=True)
    step: Tensor = torch.where((gain > 0) & newton.isfinite().all(dim=1, keepdim=True), newton, gradient)
    return step
