"""The slope of the softmax of local information disclosure: a logistic regression of target on standardised scores."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import warn_where
from vpmetrics._precision import widen
from vpmetrics._scores.logistic import SOON, Derivatives, mean_of_classes, minimise, sum_derivatives
from vpmetrics._trials import shares

_TIED = 1e-6  # standard deviations, below which the order of two scores may be a matter of rounding
_APART = 1e-2  # standard deviations between two trials that contradict each other, at least


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
    """Slope of each regression, ``(F,)``, in double precision; NaN for one without trials.

    Regressions that share most of their trials start from the one on all of these, which is close to each of them.
    """
    start, number = widen(rows.z.new_zeros(1, 2)), rows.takes_part.shape[1]
    if number > 1:
        together = rows._replace(takes_part=rows.takes_part.any(dim=1, keepdim=True))
        start, _ = _fit(together, start, SOON)
    own = shares.in_turns(number)
    found = start.new_zeros(2, number)  # slopes, and whether they did not converge
    if len(own):
        # From one place for all, so that the first step costs what that of one does.
        theta, converged = _fit(rows._replace(takes_part=rows.takes_part[:, own.start :: own.step]), start)
        found[:, own.start :: own.step] = torch.stack([theta[:, 0], widen(~converged)])
    found = shares.total(found)
    too_small = "A slope of local information did not converge; it may be too small."
    warn_where(found[1].any(), lambda failed: too_small if failed else None)
    return found[0]


def _fit(rows: Rows, theta: Tensor, *iterations: int) -> tuple[Tensor, Tensor]:
    border = _find_border(rows)
    return minimise(lambda at: _derivatives(rows, border, at), theta, *iterations)


def _derivatives(rows: Rows, border: Border, theta: Tensor) -> Derivatives:
    """Those of what each regression costs.

    Where a threshold separates the classes no slope is steep enough. One more target is then put where the nearest
    non-target is, and one more non-target where the nearest target is: what one trial more might have shown. Where
    these two are all but tied they are put a little apart, for a slope that contradicts neither is steep without bound.
    """
    targets, nontargets = _sums(rows, theta)
    extra = widen(border.separable)[:, 0]
    targets = targets + extra * sum_derivatives(widen(border.target), theta, label=1)
    nontargets = nontargets + extra * sum_derivatives(widen(border.nontarget), theta, label=0)
    return mean_of_classes(targets, nontargets)


def _sums(rows: Rows, theta: Tensor) -> tuple[Tensor, Tensor]:
    """What the targets and the non-targets add to each cost, as :func:`sum_derivatives` gives it, ``(6, F)`` each.

    Every score is evaluated in all regressions, and its row counted where it takes part: the sum over all trials less
    that over a few would lose digits where these few are the only ones that contradict.
    """
    evaluations = 2**17 if rows.z.device.type == "cpu" else 2**22  # at a time: what a CPU's cache holds, or fills a GPU
    targets, nontargets = widen(theta.new_zeros(2, 6, rows.takes_part.shape[1]))
    pieces = (part.split(max(1, evaluations // (rows.z.shape[1] * len(theta)))) for part in rows)
    for z, is_match, match, takes_part in zip(*pieces, strict=True):
        z, match = widen(z), widen(match)  # a steep slope is decided in the last digits
        counted = widen(takes_part.T)  # (F, r)
        targets = targets + (counted * sum_derivatives(match.unsqueeze(0), theta, label=1)).sum(dim=2)
        nontargets = nontargets + (counted * sum_derivatives(z.unsqueeze(0), theta, 0, is_match)).sum(dim=2)
    return targets, nontargets


def _find_border(rows: Rows) -> Border:
    highest = rows.z.masked_fill(rows.is_match, -torch.inf).amax(dim=1, keepdim=True)
    lowest = rows.z.masked_fill(rows.is_match, torch.inf).amin(dim=1, keepdim=True)

    def top(values: Tensor) -> Tensor:
        return widen(torch.where(rows.takes_part, values, -torch.inf).amax(dim=0).unsqueeze(1))

    low, high, first, last = -top(-lowest), top(highest), -top(-rows.match), top(rows.match)
    above, below = first > high - _TIED, last < low + _TIED
    # Which sides of the border meet: the lowest target and the highest non-target, or the other way round.
    target, nontarget = torch.where(above, first, last), torch.where(above, high, low)
    middle, side = (target + nontarget) / 2, torch.where(above, 0.5, -0.5)
    separable = (above ^ below) & middle.isfinite()
    reach = torch.where(separable, side * (target - nontarget).abs().clamp(min=_APART), 0)
    middle = torch.where(separable, middle, 0)
    return Border(middle - reach, middle + reach, separable)
