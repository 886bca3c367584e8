"""Logistic regressions of labels on scores, many at once, which weigh both classes equally."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from vpmetrics._precision import widen

_ITERATIONS = 100  # mostly eight are enough, and forty where classes all but separate
SOON = 12  # iterations after which to see whether these were enough; a CPU sees it after each
_GROWTH = 4.0  # of the longest step allowed, after one that helped; or its shrinking


class Cost(NamedTuple):
    """The cost of each regression, and its derivatives by slope and offset, all ``(F,)``."""

    value: Tensor
    slope: Tensor
    offset: Tensor
    slope_slope: Tensor
    slope_offset: Tensor
    offset_offset: Tensor


def sum_costs(z: Tensor, theta: Tensor, label: int, excluded: Tensor | None = None) -> Tensor:
    """The six sums of :class:`Cost` over trials of one class, and how many they are: ``(..., F, 7)``.

    Args:
        z: Scores of shape ``(..., F or 1, K)``.
        theta: Slope and offset of each regression, ``(F, 2)``.
        label: 1 for targets, 0 for non-targets.
        excluded: Which of the scores are none, ``(..., 1, K)``; of non-targets only.
    """
    logit, count = torch.addcmul(theta[:, 1:], theta[:, :1], z), z.new_full((1,), z.shape[-1])
    if excluded is not None:
        # Such a score is surely no target, and a sum less what it adds would lose digits.
        logit, count = logit.masked_fill_(excluded, -torch.inf), count - excluded.sum(dim=-1)
    posterior = logit.sigmoid()
    weight = posterior * (1 - posterior)
    loss, error = (softplus(-logit), posterior - 1) if label else (softplus(logit), posterior)
    weight_z = weight * z
    sums = [widen(part.sum(dim=-1)) for part in (loss, error * z, error, weight_z * z, weight_z, weight)]
    return torch.stack([*sums, widen(count).expand_as(sums[0])], dim=-1)


def mean_cost(targets: Tensor, nontargets: Tensor) -> Cost:
    """Costs of both classes ``(F, 7)``, as :func:`sum_costs` gives them, averaged by class and added."""
    means = targets[:, :-1] / targets[:, -1:] + nontargets[:, :-1] / nontargets[:, -1:]
    return Cost(*means.unbind(dim=1))


def minimise(cost: Callable[[Tensor], Cost], theta: Tensor, iterations: int | None = None) -> tuple[Tensor, Tensor]:
    """Slope and offset of least cost ``(F, 2)``, from a start, and whether each regression got there ``(F,)``.

    Newton's method. Its step is no longer than what has helped before, and is taken only where the cost does not grow,
    so that it converges wherever the classes overlap. Once near it squares the distance at every step. A regression
    that got there stays, however long the others take; so no number depends on how often the device is looked at.
    """
    numbers = torch.finfo(theta.dtype)
    here, longest = cost(theta), torch.ones_like(theta[:, :1])
    for iteration in range(iterations or _ITERATIONS):
        step = _newton(here)
        done = _is_last(step, theta)
        if (iteration == SOON or theta.device.type == "cpu") and bool(done.all()):
            break
        length = torch.linalg.vector_norm(step, dim=1, keepdim=True)
        step = step * (longest / length).clamp(max=1)
        there = cost(theta - step)
        better = ((there.value <= here.value * (1 + 8 * numbers.eps)) & ~done).unsqueeze(1)
        taken = length.minimum(longest)
        longest = torch.where(better, longest.maximum(_GROWTH * taken), taken / _GROWTH)
        theta = torch.where(better, theta - step, theta)
        here = Cost(*torch.where(better, torch.stack(there, 1), torch.stack(here, 1)).unbind(1))
    step = _newton(here)
    done = _is_last(step, theta)
    return torch.where(done.unsqueeze(1), theta - step, theta), done


def _is_last(step: Tensor, theta: Tensor) -> Tensor:
    """Whether what is left after the step is the square of something small; also where there is nothing to fit."""
    step, theta = torch.linalg.vector_norm(step, dim=1), torch.linalg.vector_norm(theta, dim=1)
    last: Tensor = ~(step > torch.finfo(theta.dtype).eps ** 0.4 * (1 + theta))
    return last


def _newton(cost: Cost) -> Tensor:
    """Newton's step ``(F, 2)``, or down the slope where rounding hides the curvature."""
    gradient = torch.stack([cost.slope, cost.offset], dim=1)
    least = torch.finfo(gradient.dtype).tiny ** 0.5  # scores that say nothing leave the slope at 0
    by_slope, by_offset, both = cost.slope_slope + least, cost.offset_offset + least, cost.slope_offset
    adjoint = torch.stack([by_offset * cost.slope - both * cost.offset, by_slope * cost.offset - both * cost.slope], 1)
    newton = adjoint / (by_slope * by_offset - both.square()).unsqueeze(1)
    gain = (gradient * newton).sum(dim=1, keepdim=True)
    step: Tensor = torch.where((gain > 0) & newton.isfinite().all(dim=1, keepdim=True), newton, gradient)
    return step
