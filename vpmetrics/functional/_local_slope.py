"""The slope of the softmax of local information disclosure: a logistic regression of target on standardised scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import widen

_ITERATIONS = 25  # of damped Newton, from nothing
_POLISHING = 2  # of Newton over all trials, from the optimum of some


class Rows(NamedTuple):
    """Standardised scores of some trials."""

    z: Tensor  # (R, N)
    match: Tensor  # (R, 1), that of the true speaker, which is in the row too
    column: Tensor  # (R, 1), where
    fold: Tensor  # (R,), which regression the trial is part of; F for none


class Border(NamedTuple):
    """Where the classes of each regression meet, if a threshold separates them: a pair of trials to swap."""

    target: Tensor  # (F, 1), where to put another target
    nontarget: Tensor  # (F, 1), where to put another non-target
    separable: Tensor  # (F, 1), whether to


def fit(rows: Rows, folds: int) -> tuple[Tensor, Border]:
    """Slope and offset of each fold, ``(F, 2)``, by damped Newton on scores that are at hand; and the folds' border."""
    border = _find_border(rows, folds)
    theta = widen(rows.z.new_zeros(folds, 2))
    for _ in range(_ITERATIONS):
        theta = step(theta, sums(rows, theta), border, rows.z.shape[1])
    return theta, border


def polish(theta: Tensor, border: Border, walk: Callable[[], Iterable[Rows]], columns: int) -> Tensor:
    """Take the optimum of some trials to that of all, which are walked anew for each step."""
    for _ in range(_POLISHING):
        totals = theta.new_zeros(len(theta), 11)
        for rows in walk():
            totals = totals + sums(rows, theta)
        theta = step(theta, totals, border, columns)
    return theta


def sums(rows: Rows, theta: Tensor) -> Tensor:
    """What the rows add to the slope and the curvature of the loss of their fold, and their number; ``(F, 11)``."""
    own = torch.cat([theta, theta[:1]])[rows.fold].to(rows.z.dtype)
    targets, as_nontargets = _terms(rows.match, own, label=1), _terms(rows.match, own, label=0)
    terms = torch.cat([targets, _terms(rows.z, own, label=0) - as_nontargets, torch.ones_like(targets[:, :1])], dim=1)
    totals = terms.new_zeros(len(theta) + 1, terms.shape[1]).index_add(0, rows.fold, terms)
    return totals[: len(theta)]


def step(theta: Tensor, totals: Tensor, border: Border, columns: int) -> Tensor:
    """One damped Newton step of each fold, classes weighted equally.

    Where a threshold separates the classes no slope is steep enough. One more target is then put where the nearest
    non-target is, and one more non-target where the nearest target is: what one trial more might have shown.
    """
    extra, trials = border.separable.to(totals.dtype), totals[:, 10:]
    another_target = extra * _terms(border.target.to(totals.dtype), theta, label=1)
    another_nontarget = extra * _terms(border.nontarget.to(totals.dtype), theta, label=0)
    targets = (totals[:, :5] + another_target) / (trials + extra)
    nontargets = (totals[:, 5:10] + another_nontarget) / (trials * (columns - 1) + extra)
    error, error_z, weight, weight_z, weight_zz = (targets + nontargets).unbind(dim=1)
    weight_zz = weight_zz + torch.finfo(totals.dtype).tiny ** 0.5  # scores that say nothing leave the slope at 0
    determinant = weight_zz * weight - weight_z.square()
    slope = (weight * error_z - weight_z * error) / determinant
    offset = (weight_zz * error - weight_z * error_z) / determinant
    newton = torch.stack([slope, offset], dim=1)
    # Newton's step overshoots where the curvature changes within it; its decrement says by how much, and whether.
    decrement = (slope * error_z + offset * error).clamp(min=0).sqrt().unsqueeze(1)
    return theta - torch.where(decrement < 0.25, newton, newton / (1 + decrement))


def _terms(z: Tensor, theta: Tensor, label: int) -> Tensor:
    """Sums over each row of the logistic loss's first derivative, and of its second, times powers of z; ``(R, 5)``."""
    posterior = torch.addcmul(theta[:, 1:], theta[:, :1], z).sigmoid()
    error, weight = posterior - label, posterior * (1 - posterior)
    weight_z = weight * z
    parts = (error, error * z, weight, weight_z, weight_z * z)
    return torch.stack([widen(part.sum(dim=1)) for part in parts], dim=1)


def _find_border(rows: Rows, folds: int) -> Border:
    highest = rows.z.scatter(1, rows.column, -torch.inf).amax(dim=1)
    lowest = rows.z.scatter(1, rows.column, torch.inf).amin(dim=1)

    def extreme(values: Tensor, kind: str) -> Tensor:
        start = values.new_full((folds + 1,), -torch.inf if kind == "amax" else torch.inf)
        return start.scatter_reduce(0, rows.fold, values, kind)[:-1].unsqueeze(1)

    low, high = extreme(lowest, "amin"), extreme(highest, "amax")
    first, last = extreme(rows.match.squeeze(1), "amin"), extreme(rows.match.squeeze(1), "amax")
    above, below = first >= high, last <= low
    target, nontarget = torch.where(above, high, low), torch.where(above, first, last)
    usable = target.isfinite() & nontarget.isfinite()
    return Border(torch.where(usable, target, 0), torch.where(usable, nontarget, 0), usable & (above | below))
