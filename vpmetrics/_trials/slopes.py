"""The slope of the softmax of local information disclosure: a logistic regression of target on standardised scores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import warn_where
from vpmetrics._precision import wide_dtype, widen
from vpmetrics._scores.host import on_host, select
from vpmetrics._scores.logistic import SOON, Derivatives, mean_of_classes, minimise, sum_derivatives
from vpmetrics._scores.nodes import Extent, Nodes, nodes_of, sums_at_nodes
from vpmetrics._trials import shares
from vpmetrics._trials.references import slices

_TIED = 1e-6  # standard deviations, below which the order of two scores may be a matter of rounding
_APART = 1e-2  # standard deviations between two trials that contradict each other, at least
_NEAR = 1e-2  # of slope and offset, what may be left before the last step to where others start
_SURE = 20.0  # log-odds of the middle of either class to start from, at most: what a billion trials could show
_FEW = 3  # steps that are enough for most regressions, as they start from one that shares most of their trials


class Rows(NamedTuple):
    """Standardised scores of some trials: all of the true speakers, and all or some of the others.

    Where processes keep their rows apart, those of this one.
    """

    z: Tensor  # (R, K)
    is_match: Tensor  # (R, K), where the true speaker is among them, and so at most once in a row
    match: Tensor  # (R, 1), that of the true speaker
    group: Tensor  # (R,)
    takes_part: Tensor  # (G, F), which groups of rows, in which regressions


class Groups(NamedTuple):
    """What is known of each group of rows, of all processes."""

    nodes: Nodes | None  # of the non-targets; None where that is no shorter way
    ends: Tensor  # (4, G): the highest non-target, the lowest with its sign turned, and those of the targets


class Border(NamedTuple):
    """Where the classes of each regression meet, if a threshold separates them: a pair of trials to swap."""

    target: Tensor  # (F, 1), where to put another target
    nontarget: Tensor  # (F, 1), where to put another non-target
    separable: Tensor  # (F, 1), whether to


def fit_slopes(rows: Rows) -> Tensor:
    """Slope of each regression, ``(F,)``, in double precision; NaN for one without trials.

    Regressions that share most of their trials start from the one on all of these, which is close to each of them.
    """
    start, number, groups = _start(rows), rows.takes_part.shape[1], Groups(_nodes_of_others(rows), _find_ends(rows))
    if number > 1:
        start, _ = _fit(rows._replace(takes_part=rows.takes_part.any(dim=1, keepdim=True)), groups, start, SOON, _NEAR)
    # Of rows that are apart no process knows enough to go on by itself.
    own = range(number) if shares.apart() else shares.in_turns(number)
    found = start.new_zeros(2, number)  # slopes, and whether they did not converge
    if len(own):
        # From one place for all, so that the first step costs what that of one does.
        theta, converged = _fit_all(rows._replace(takes_part=rows.takes_part[:, own.start :: own.step]), groups, start)
        found[:, own.start :: own.step] = torch.stack([theta[:, 0], widen(~converged)])
    found = found if shares.apart() else shares.total(found)
    too_small = "A slope of local information did not converge; it may be too small."
    warn_where(found[1].any(), lambda failed: too_small if failed else None)
    return found[0]


def _start(rows: Rows) -> Tensor:
    """Where slope and offset of all rows together may be, ``(1, 2)``.

    Were both classes normal and equally wide, the slope would be their distance by their variance. Far apart they are
    not: the few trials in between decide, and three by the deviation is a better guess.
    """
    counted = widen(rows.takes_part.any(dim=1))[rows.group].unsqueeze(1)
    classes = (widen(rows.match), counted), (widen(rows.z), counted * widen(~rows.is_match))
    sums = shares.pooled(*(torch.stack([weight.sum(), (weight * z).sum()]) for z, weight in classes))
    match, other = (total / count for count, total in sums)
    about = zip(classes, (match, other), strict=True)
    squares = shares.pooled(*((weight * (z - mean).square()).sum() for (z, weight), mean in about))
    wide, narrow = ((square / count).sqrt() for square, (count, _) in zip(squares, sums, strict=True))
    width, apart = (wide + narrow) / 2, match - other
    slope = apart / (width * torch.hypot(width, apart / 3))
    # However narrow, they are not told apart so surely that nothing would change with the slope.
    slope = slope.clamp(-2 * _SURE / apart.abs(), 2 * _SURE / apart.abs())
    start = torch.stack([slope, -slope * (match + other) / 2])
    return torch.where(start.isfinite().all(), start, 0).unsqueeze(0)


def _fit_all(rows: Rows, groups: Groups, theta: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`_fit`, on a CPU at first a few steps of all regressions, then the others of those that need more."""
    if not on_host(rows.z):
        return _fit(rows, groups, theta)
    theta, converged = _fit(rows, groups, theta, _FEW)
    rest = (~converged).nonzero().squeeze(1)
    if len(rest):
        some = rows._replace(takes_part=rows.takes_part[:, rest])
        theta[rest], converged[rest] = _fit(some, groups, theta[rest])
    return theta, converged


def _fit(
    rows: Rows, groups: Groups, theta: Tensor, iterations: int | None = None, near: float | None = None
) -> tuple[Tensor, Tensor]:
    found, nodes = _find_border(groups.ends, rows.takes_part), groups.nodes
    border = None if on_host(rows.z) and not bool(found.separable.any()) else found
    some = None if nodes is None else nodes._replace(weights=widen(rows.takes_part.mT) @ nodes.weights)
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


def _nodes_of_others(rows: Rows) -> Nodes | None:
    """Nodes of the non-targets of each group, of which every process makes a part; None where there are too few."""
    if not on_host(rows.z):
        return None
    others = ~rows.is_match
    numbers, group = select(rows.z, others), rows.group.repeat_interleave(others.sum(1))
    whole = _extent_of(numbers)
    if not shares.apart():
        own = shares.in_turns(len(numbers))
        numbers, group = (column[own.start :: own.step] for column in (numbers, group))
    nodes = nodes_of(numbers, group, len(rows.takes_part), whole)
    return None if nodes is None else nodes._replace(weights=shares.total(nodes.weights))


def _extent_of(numbers: Tensor) -> Extent:
    """That of the numbers of all processes."""
    low, high, number = Extent.of(numbers)
    (ends,) = shares.most(torch.tensor([-low, high], dtype=wide_dtype(numbers.device)))
    return Extent(-float(ends[0]), float(ends[1]), shares.number_of_all(number))


def _sums(rows: Rows, nodes: Nodes | None, theta: Tensor) -> tuple[Tensor, Tensor]:
    """What the targets and the non-targets add to each cost, as :func:`sum_derivatives` gives it, ``(6, F)`` each.

    Non-targets are many, and go by nodes in all regressions that are not too steep for these.
    """
    targets = _sums_of_targets(rows, theta)
    if nodes is None:
        targets, nontargets = shares.pooled(targets, _sums_of_others(rows, theta))
        return targets, nontargets
    steep = theta[:, 0].abs() > nodes.steepest
    if not bool(steep.any()):
        return shares.pooled(targets)[0], sums_at_nodes(nodes.places, nodes.weights, theta, label=0)
    steep, theta = steep.expand(len(nodes.weights)), theta.expand(len(nodes.weights), 2)
    nontargets, some = torch.empty_like(targets), rows._replace(takes_part=rows.takes_part[:, steep])
    targets, nontargets[:, steep] = shares.pooled(targets, _sums_of_others(some, theta[steep]))
    nontargets[:, ~steep] = sums_at_nodes(nodes.places, nodes.weights[~steep], theta[~steep], label=0)
    return targets, nontargets


def _sums_of_targets(rows: Rows, theta: Tensor) -> Tensor:
    sums, takes_part = widen(theta.new_zeros(6, rows.takes_part.shape[1])), widen(rows.takes_part.mT)
    for some in _evaluated_at_once(rows.match, theta):
        counted = takes_part[:, rows.group[some]]
        sums = sums + sums_at_nodes(widen(rows.match[some, 0]), counted, theta, label=1)
    return sums


def _sums_of_others(rows: Rows, theta: Tensor) -> Tensor:
    """Those of non-targets.

    Every score is evaluated in all regressions, and its row counted where it takes part: the sum over all trials less
    that over a few would lose digits where these few are the only ones that contradict.
    """
    sums, takes_part = widen(theta.new_zeros(6, rows.takes_part.shape[1])), widen(rows.takes_part.mT)
    for some in _evaluated_at_once(rows.z, theta):
        # A steep slope is decided in the last digits.
        found = sum_derivatives(widen(rows.z[some]).unsqueeze(0), theta, 0, rows.is_match[some])
        sums = sums + (takes_part[:, rows.group[some]] * found).sum(dim=2)
    return sums


def _evaluated_at_once(z: Tensor, theta: Tensor) -> Iterator[slice]:
    """Some rows after the other: what a CPU's cache holds, or fills a GPU."""
    evaluations = 2**17 if z.device.type == "cpu" else 2**22
    return slices(len(z), max(1, evaluations // (z.shape[1] * len(theta))))


def _find_ends(rows: Rows) -> Tensor:
    highest = rows.z.masked_fill(rows.is_match, -torch.inf).amax(dim=1)
    lowest = rows.z.masked_fill(rows.is_match, torch.inf).amin(dim=1)
    match = rows.match[:, 0]
    each = widen(torch.stack([highest, -lowest, match, -match]))
    none = each.new_full((4, len(rows.takes_part)), -torch.inf)
    return shares.most(none.scatter_reduce(1, rows.group.expand(4, -1), each, "amax"))[0]


def _find_border(ends: Tensor, takes_part: Tensor) -> Border:
    found = torch.where(takes_part, ends.unsqueeze(2), -torch.inf).amax(dim=1).unsqueeze(2)
    high, low, last, first = found[0], -found[1], found[2], -found[3]
    above, below = first > high - _TIED, last < low + _TIED
    # Which sides of the border meet: the lowest target and the highest non-target, or the other way round.
    target, nontarget = torch.where(above, first, last), torch.where(above, high, low)
    middle, side = (target + nontarget) / 2, torch.where(above, 0.5, -0.5)
    separable = (above ^ below) & middle.isfinite()
    reach = torch.where(separable, side * (target - nontarget).abs().clamp(min=_APART), 0)
    middle = torch.where(separable, middle, 0)
    return Border(middle - reach, middle + reach, separable)
