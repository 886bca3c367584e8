"""The slope of the softmax of local information disclosure: a logistic regression of target on standardised scores."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import widen

_ITERATIONS = 25  # of damped Newton; hardly separable scores need twenty


class Rows(NamedTuple):
    """Standardised scores of some trials: all of the true speakers, and all or some of the others."""

    z: Tensor  # (R, K)
    is_match: Tensor  # (R, K), where the true speaker is among them, and so at most once in a row
    match: Tensor  # (R, 1), that of the true speaker
    fold: Tensor  # (R,), which regression the trial is part of; F for none


class Border(NamedTuple):
    """Where the classes of each regression meet, if a threshold separates them: a pair of trials to swap."""

    target: Tensor  # (F, 1), where to put another target
    nontarget: Tensor  # (F, 1), where to put another non-target
    separable: Tensor  # (F, 1), whether to


def fit_slopes(rows: Rows, folds: int) -> Tensor:
    """Slope of each fold, ``(F,)``, by damped Newton in double precision; NaN for a fold without trials."""
    border, theta = _find_border(rows, folds), widen(rows.z.new_zeros(folds, 2))
    for _ in range(_ITERATIONS):
        theta = _step(theta, _sums(rows, theta), border)
    return theta[:, 0]


def _step(theta: Tensor, totals: tuple[Tensor, Tensor], border: Border) -> Tensor:
    """One damped Newton step of each fold, classes weighted equally.

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


def _sums(rows: Rows, theta: Tensor, piece: int = 2**18) -> tuple[Tensor, Tensor]:
    """What the targets and the non-targets add to the slope and the curvature of their fold's loss, ``(F, 6)`` each."""
    totals = theta.new_zeros(2, len(theta) + 1, 6)
    padded = torch.cat([theta, theta[:1]])
    for z, is_match, match, fold in zip(*(part.split(max(1, piece // rows.z.shape[1])) for part in rows), strict=True):
        own = padded[fold].to(z.dtype)
        present = is_match.any(dim=1, keepdim=True)
        totals[0].index_add_(0, fold, _terms(match, own, label=1))
        totals[1].index_add_(0, fold, _terms(z, own, label=0) - present * _terms(match, own, label=0))
    return totals[0, :-1], totals[1, :-1]


def _terms(z: Tensor, theta: Tensor, label: int) -> Tensor:
    """Sums over each row of the logistic loss's first and second derivative, times powers of z; and its length."""
    posterior = torch.addcmul(theta[:, 1:], theta[:, :1], z).sigmoid()
    error, weight = posterior - label, posterior * (1 - posterior)
    weight_z = weight * z
    parts = (error, error * z, weight, weight_z, weight_z * z, torch.ones_like(z))
    return torch.stack([widen(part.sum(dim=1)) for part in parts], dim=1)


def _find_border(rows: Rows, folds: int) -> Border:
    highest = rows.z.masked_fill(rows.is_match, -torch.inf).amax(dim=1)
    lowest = rows.z.masked_fill(rows.is_match, torch.inf).amin(dim=1)

    def extreme(values: Tensor, kind: str) -> Tensor:
        start = values.new_full((folds + 1,), -torch.inf if kind == "amax" else torch.inf)
        return start.scatter_reduce(0, rows.fold, values, kind)[:-1].unsqueeze(1)

    low, high = extreme(lowest, "amin"), extreme(highest, "amax")
    first, last = extreme(rows.match.squeeze(1), "amin"), extreme(rows.match.squeeze(1), "amax")
    above, below = first >= high, last <= low
    target, nontarget = torch.where(above, high, low), torch.where(above, first, last)
    usable = target.isfinite() & nontarget.isfinite()
    return Border(torch.where(usable, target, 0), torch.where(usable, nontarget, 0), usable & (above | below))
