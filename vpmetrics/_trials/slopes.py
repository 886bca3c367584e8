"""The slope of the softmax of local information disclosure: a logistic regression of target on standardised scores."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import widen

_ITERATIONS = 25  # of damped Newton; hardly separable scores need twenty
_REFINEMENTS = 8  # from the optimum of slightly different trials; mostly five are enough


class Rows(NamedTuple):
    """Standardised scores of some trials: all of the true speakers, and all or some of the others."""

    z: Tensor  # (R, K)
    is_match: Tensor  # (R, K), where the true speaker is among them, and so at most once in a row
    match: Tensor  # (R, 1), that of the true speaker
    takes_part: Tensor  # (R, F), in which regressions


class Border(NamedTuple):
    """Where the classes of each regression meet, if a threshold separates them: a pair of trials to swap."""

    target: Tensor  # (F, 1), where to put another target
    nontarget: Tensor  # (F, 1), where to put another non-target
    separable: Tensor  # (F, 1), whether to


def fit_slopes(rows: Rows) -> Tensor:
    """Slope of each regression, ``(F,)``, by damped Newton in double precision; NaN for one without trials.

    Regressions that share most of their trials start from the one on all of these, which is close to each of them.
    """
    theta, together = widen(rows.z.new_zeros(1, 2)), rows.takes_part.any(dim=1, keepdim=True)
    theta = _descend(rows._replace(takes_part=together), theta, _ITERATIONS)
    if rows.takes_part.shape[1] == 1:
        return theta[:, 0]
    theta = _descend(rows, theta.expand(rows.takes_part.shape[1], 2), _REFINEMENTS)
    # Where all trials together are told apart but for one or two, the start is so steep that nothing has any curvature
    # left to go by once these are the ones that count. Such a regression starts anew from nothing.
    lost = theta.isnan().any(dim=1)
    if bool(lost.any()):
        anew = rows._replace(takes_part=rows.takes_part[:, lost])
        theta = theta.masked_scatter(lost.unsqueeze(1), _descend(anew, torch.zeros_like(theta[lost]), _ITERATIONS))
    return theta[:, 0]


def _descend(rows: Rows, theta: Tensor, iterations: int) -> Tensor:
    border = _find_border(rows)
    for _ in range(iterations):
        theta = _step(theta, _sums(rows, theta), border)
    return theta


def _step(theta: Tensor, totals: tuple[Tensor, Tensor], border: Border) -> Tensor:
    """One damped Newton step of each regression, classes weighted equally.

    Where a threshold separates the classes no slope is steep enough. One more target is then put where the nearest
    non-target is, and one more non-target where the nearest target is: what one trial more might have shown.
    """
    extra = widen(border.separable)
    targets = totals[0] + extra * _terms(widen(border.target), theta, label=1)
    nontargets = totals[1] + extra * _terms(widen(border.nontarget), theta, label=0)
    means = targets[:, :5] / targets[:, 5:] + nontargets[:, :5] / nontargets[:, 5:]
    error, error_z, weight, weight_z, weight_zz = means.unbind(dim=1)
    weight_zz = weight_zz + torch.finfo(theta.dtype).tiny ** 0.5  # scores that say nothing leave the slope at 0
    determinant = weight_zz * weight - weight_z.square()
    slope = (weight * error_z - weight_z * error) / determinant
    offset = (weight_zz * error - weight_z * error_z) / determinant
    newton = torch.stack([slope, offset], dim=1)
    # Newton's step overshoots where the curvature changes within it; its decrement says by how much, and whether.
    decrement = (slope * error_z + offset * error).clamp(min=0).sqrt().unsqueeze(1)
    return theta - torch.where(decrement < 0.25, newton, newton / (1 + decrement))


def _sums(rows: Rows, theta: Tensor) -> tuple[Tensor, Tensor]:
    """What the targets and the non-targets add to the slope and the curvature of each loss, ``(F, 6)`` each.

    Every score is evaluated in all regressions, and its row counted where it takes part: the sum over all trials less
    that over a few would lose digits where these few are the only ones that contradict.
    """
    theta = theta.to(rows.z.dtype)
    evaluations = 2**18 if rows.z.device.type == "cpu" else 2**22  # at a time: what a CPU's cache holds, or fills a GPU
    targets, nontargets = widen(theta.new_zeros(2, len(theta), 6))
    pieces = (part.split(max(1, evaluations // (rows.z.shape[1] * len(theta)))) for part in rows)
    for z, is_match, match, takes_part in zip(*pieces, strict=True):
        present, counted = is_match.any(dim=1).reshape(-1, 1, 1), takes_part.unsqueeze(2)
        own, others = match.unsqueeze(1), z.unsqueeze(1)
        target = _terms(own, theta, label=1)
        nontarget = _terms(others, theta, label=0) - present * _terms(own, theta, label=0)
        targets = targets + (counted * target).sum(dim=0)
        nontargets = nontargets + (counted * nontarget).sum(dim=0)
    return targets, nontargets


def _terms(z: Tensor, theta: Tensor, label: int) -> Tensor:
    """Sums over the last dimension of the logistic loss's two derivatives, times powers of z; and its length.

    Of shape ``(..., F, 6)`` for z of ``(..., F or 1, K)``.
    """
    posterior = torch.addcmul(theta[:, 1:], theta[:, :1], z).sigmoid_()
    weight = posterior * (1 - posterior)
    error, weight_z = posterior.sub_(label) if label else posterior, weight * z
    sums = [widen(part.sum(dim=-1)) for part in (error, error * z, weight, weight_z, weight_z * z)]
    return torch.stack([*sums, torch.full_like(sums[0], z.shape[-1])], dim=-1)


def _find_border(rows: Rows) -> Border:
    highest = rows.z.masked_fill(rows.is_match, -torch.inf).amax(dim=1, keepdim=True)
    lowest = rows.z.masked_fill(rows.is_match, torch.inf).amin(dim=1, keepdim=True)

    def top(values: Tensor) -> Tensor:
        return torch.where(rows.takes_part, values, -torch.inf).amax(dim=0).unsqueeze(1)

    low, high, first, last = -top(-lowest), top(highest), -top(-rows.match), top(rows.match)
    above, below = first >= high, last <= low
    target, nontarget = torch.where(above, high, low), torch.where(above, first, last)
    usable = target.isfinite() & nontarget.isfinite()
    return Border(torch.where(usable, target, 0), torch.where(usable, nontarget, 0), usable & (above | below))
