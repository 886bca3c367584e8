"""The slope of the softmax of local information disclosure: a logistic regression of target on standardised scores."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import warn_where
from vpmetrics._precision import all_finite, widen
from vpmetrics._scores.host import on_host, select
from vpmetrics._scores.logistic import SOON, Derivatives, mean_of_classes, minimise, sum_derivatives
from vpmetrics._scores.nodes import Nodes, nodes_of, sums_at_nodes
from vpmetrics._trials import shares
from vpmetrics._trials.references import slices
from vpmetrics._trials.utterances import row_keys

_TIED = 1e-6  # standard deviations, below which the order of two scores may be a matter of rounding
_APART = 1e-2  # standard deviations between two trials that contradict each other, at least
_NEAR = 1e-2  # of slope and offset, what may be left before the last step to where others start
_FEW = 3  # steps that are enough for most regressions, as they start from one that shares most of their trials


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
    start, number, nodes = _start(rows), rows.takes_part.shape[1], _nodes_of_others(rows)
    if number > 1:
        start, _ = _fit(rows._replace(takes_part=rows.takes_part.any(dim=1, keepdim=True)), nodes, start, SOON, _NEAR)
    own = shares.in_turns(number)
    found = start.new_zeros(2, number)  # slopes, and whether they did not converge
    if len(own):
        # From one place for all, so that the first step costs what that of one does.
        theta, converged = _fit_all(rows._replace(takes_part=rows.takes_part[:, own.start :: own.step]), nodes, start)
        found[:, own.start :: own.step] = torch.stack([theta[:, 0], widen(~converged)])
    found = shares.total(found)
    too_small = "A slope of local information did not converge; it may be too small."
    warn_where(found[1].any(), lambda failed: too_small if failed else None)
    return found[0]


def _start(rows: Rows) -> Tensor:
    """Where slope and offset of all rows together may be, ``(1, 2)``.

    Were both classes normal and equally wide, the slope would be their distance by their variance. Far apart they are
    not: the few trials in between decide, and three by the deviation is a better guess.
    """
    counted = widen(rows.takes_part.any(dim=1, keepdim=True))
    sums = []
    for z, weight in ((rows.match, counted), (rows.z, counted * widen(~rows.is_match))):
        mean = (weight * z).sum() / weight.sum()
        sums.append(torch.stack([mean, ((weight * (widen(z) - mean).square()).sum() / weight.sum()).sqrt()]))
    (match, wide), (other, narrow) = sums
    width, apart = (wide + narrow) / 2, match - other
    slope = apart / (width * torch.hypot(width, apart / 3))
    start = torch.stack([slope, -slope * (match + other) / 2])
    return torch.where(start.isfinite().all(), start, 0).unsqueeze(0)


def _fit_all(rows: Rows, nodes: _Nodes | None, theta: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`_fit`, on a CPU at first a few steps of all regressions, then the others of those that need more."""
    if not on_host(rows.z):
        return _fit(rows, nodes, theta)
    theta, converged = _fit(rows, nodes, theta, _FEW)
    rest = (~converged).nonzero().squeeze(1)
    if len(rest):
        some = rows._replace(takes_part=rows.takes_part[:, rest])
        theta[rest], converged[rest] = _fit(some, nodes, theta[rest])
    return theta, converged


def _fit(
    rows: Rows, nodes: _Nodes | None, theta: Tensor, iterations: int | None = None, near: float | None = None
) -> tuple[Tensor, Tensor]:
    found = _find_border(rows)
    border = None if on_host(rows.z) and not bool(found.separable.any()) else found
    some = None if nodes is None else nodes.weigh(rows.takes_part)
    return minimise(lambda at: _derivatives(rows, some, border, at), theta, iterations, near)


def _derivatives(rows: Rows, nodes: Nodes | None, border: Border | None, theta: Tensor) -> Derivatives:
    """Those of what each regression costs.

    Where a threshold separates the classes no slope is steep enough. One more target is then put where the nearest
    non-target is, and one more non-target where the nearest target is: what one trial more might have shown. Where
    these two are all but tied they are put a little apart, for a slope that contradicts neither is steep without bound.
    """
    targets, nontargets = _sums(rows, nodes, theta)
    if border is not None:
        extra = widen(border.separable)[:, 0]
        targets = targets + extra * sum_derivatives(widen(border.target), theta, label=1)
        nontargets = nontargets + extra * sum_derivatives(widen(border.nontarget), theta, label=0)
    return mean_of_classes(targets, nontargets)


class _Nodes(NamedTuple):
    """Nodes of the non-targets, the groups of rows they are weighed by, and a row of each group."""

    nodes: Nodes
    example: Tensor

    def weigh(self, takes_part: Tensor) -> Nodes:
        """The nodes, weighed for each regression that rows take part in, ``(R, F)``."""
        return self.nodes._replace(weights=widen(takes_part[self.example]).mT @ self.nodes.weights)


def _nodes_of_others(rows: Rows) -> _Nodes | None:
    """Nodes of the non-targets by the regressions that their rows take part in; None where that is no shorter way."""
    if not on_host(rows.z) or not bool(all_finite(rows.z)):
        return None
    groups, group = row_keys(rows.takes_part).unique(return_inverse=True)
    example = torch.zeros_like(groups, dtype=torch.int64).scatter(0, group, torch.arange(len(group)))
    others = ~rows.is_match
    numbers, of = select(rows.z, others), group.repeat_interleave(others.sum(1))
    nodes = nodes_of(numbers, of, len(groups), shares.in_turns(len(numbers)))
    return None if nodes is None else _Nodes(nodes._replace(weights=shares.total(nodes.weights)), example)


def _sums(rows: Rows, nodes: Nodes | None, theta: Tensor) -> tuple[Tensor, Tensor]:
    """What the targets and the non-targets add to each cost, as :func:`sum_derivatives` gives it, ``(6, F)`` each.

    Non-targets are many, and go by nodes in all regressions that are not too steep for these.
    """
    targets = _sums_of_rows(rows.match, None, rows.takes_part, theta, label=1)
    if nodes is None:
        return targets, _sums_of_rows(rows.z, rows.is_match, rows.takes_part, theta, label=0)
    steep = theta[:, 0].abs() > nodes.steepest
    if not bool(steep.any()):
        return targets, sums_at_nodes(nodes.places, nodes.weights, theta, label=0)
    steep, theta = steep.expand(len(nodes.weights)), theta.expand(len(nodes.weights), 2)
    nontargets, takes_part = torch.empty_like(targets), rows.takes_part[:, steep]
    nontargets[:, steep] = _sums_of_rows(rows.z, rows.is_match, takes_part, theta[steep], label=0)
    nontargets[:, ~steep] = sums_at_nodes(nodes.places, nodes.weights[~steep], theta[~steep], label=0)
    return targets, nontargets


def _sums_of_rows(z: Tensor, excluded: Tensor | None, takes_part: Tensor, theta: Tensor, label: int) -> Tensor:
    """Those of trials ``(R, K)``.

    Every score is evaluated in all regressions, and its row counted where it takes part: the sum over all trials less
    that over a few would lose digits where these few are the only ones that contradict.
    """
    evaluations = 2**17 if z.device.type == "cpu" else 2**22  # at a time: what a CPU's cache holds, or fills a GPU
    sums = widen(theta.new_zeros(6, takes_part.shape[1]))
    for rows in slices(len(z), max(1, evaluations // (z.shape[1] * len(theta)))):
        counted = widen(takes_part[rows].T)
        # A steep slope is decided in the last digits.
        if excluded is None:
            sums = sums + sums_at_nodes(widen(z[rows, 0]), counted, theta, label)
            continue
        found = sum_derivatives(widen(z[rows]).unsqueeze(0), theta, label, excluded[rows])
        sums = sums + (counted * found).sum(dim=2)
    return sums


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
