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


class Ends(NamedTuple):
    """Where the scores of each regression end, and whether a threshold separates its classes."""

    z: Tensor  # (F, 2)
    separable: Tensor  # (F,)


def fit(rows: Rows, folds: int) -> tuple[Tensor, Ends]:
    """Slope and offset of each fold, ``(F, 2)``, by damped Newton on scores that are at hand; and the folds' ends."""
    ends = _find_ends(rows, folds)
    theta = widen(rows.z.new_zeros(folds, 2))
    for _ in range(_ITERATIONS):
        theta = step(theta, sums(rows, theta), ends, rows.z.shape[1])
    return theta, ends


def polish(theta: Tensor, ends: Ends, walk: Callable[[], Iterable[Rows]], columns: int) -> Tensor:
    """Take the optimum of some trials to that of all, which are walked anew for each step."""
    for _ in range(_POLISHING):
        totals = theta.new_zeros(len(theta), 11)
        for rows in walk():
            totals = totals + sums(rows, theta)
        theta = step(theta, totals, ends, columns)
    return theta


def sums(rows: Rows, theta: Tensor) -> Tensor:
    """What the rows add to the slope and the curvature of the loss of their fold, and their number; ``(F, 11)``."""
    own = torch.cat([theta, theta[:1]])[rows.fold].to(rows.z.dtype)
    targets, as_nontargets = _terms(rows.match, own, label=1), _terms(rows.match, own, label=0)
    terms = torch.cat([targets, _terms(rows.z, own, label=0) - as_nontargets, torch.ones_like(targets[:, :1])], dim=1)
    return terms.new_zeros(len(theta) + 1, terms.shape[1]).index_add(0, rows.fold, terms)[:-1]


def step(theta: Tensor, totals: Tensor, ends: Ends, columns: int) -> Tensor:
    """One damped Newton step of each fold, classes weighted equally.

    Where a threshold separates the classes no slope is the best one. Laplace's rule of succession then puts one target
    and one non-target at either end, so that the slope says no more than that many trials can.
    """
    edges, extra = ends.z.to(totals.dtype), ends.separable.to(totals.dtype).unsqueeze(1)
    trials = totals[:, 10:]
    targets = (totals[:, :5] + extra * _terms(edges, theta, label=1)) / (trials + 2 * extra)
    nontargets = (totals[:, 5:10] + extra * _terms(edges, theta, label=0)) / (trials * (columns - 1) + 2 * extra)
    error, error_z, weight, weight_z, weight_zz = (targets + nontargets).unbind(dim=1)
    weight_zz = weight_zz + torch.finfo(totals.dtype).tiny ** 0.5  # scores that say nothing leave the slope at 0
    determinant = weight_zz * weight - weight_z.square()
    slope = (weight * error_z - weight_z * error) / determinant
    offset = (weight_zz * error - weight_z * error_z) / determinant
    # Newton's step overshoots where the curvature changes within it; its decrement says by how much.
    decrement = (slope * error_z + offset * error).clamp(min=0).sqrt()
    return theta - torch.stack([slope, offset], dim=1) / (1 + decrement).unsqueeze(1)


def _terms(z: Tensor, theta: Tensor, label: int) -> Tensor:
    """Sums over each row of the logistic loss's first derivative, and of its second, times powers of z; ``(R, 5)``."""
    posterior = torch.addcmul(theta[:, 1:], theta[:, :1], z).sigmoid()
    error, weight = posterior - label, posterior * (1 - posterior)
    weight_z = weight * z
    parts = (error, error * z, weight, weight_z, weight_z * z)
    return torch.stack([widen(part.sum(dim=1)) for part in parts], dim=1)


def _find_ends(rows: Rows, folds: int) -> Ends:
    others = rows.z.scatter(1, rows.column, torch.nan)
    highest, lowest = others.nan_to_num(nan=-torch.inf).amax(dim=1), others.nan_to_num(nan=torch.inf).amin(dim=1)
    match = rows.match.squeeze(1)

    def extreme(values: Tensor, kind: str) -> Tensor:
        start = values.new_full((folds + 1,), -torch.inf if kind == "amax" else torch.inf)
        return start.scatter_reduce(0, rows.fold, values, kind)[:-1]

    low, high = extreme(lowest, "amin"), extreme(highest, "amax")
    first, last = extreme(match, "amin"), extreme(match, "amax")
    ends = torch.stack([torch.minimum(low, first), torch.maximum(high, last)], dim=1)
    return Ends(ends, (first >= high) | (last <= low))
