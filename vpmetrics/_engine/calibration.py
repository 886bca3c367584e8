"""Calibration: look-up of log-likelihood ratios, logistic regression, and maps learnt on one run for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._engine.precision import is_numpy_ready, widen
from vpmetrics._engine.score_counts import CHUNK, Steps, calibrate, count_by_score
from vpmetrics._engine.validation import check_choice, check_trials, warn_undefined

_CELLS = 1 << 16  # equal cells of the score axis to look up many scores by


Finder = Callable[[Tensor], list[Tensor]]


def look_up(steps: Steps, per_step: Tensor, scores: Tensor) -> Tensor:
    """The value of every score, in the shape of the scores, of something known per step, such as their ratios."""
    return look_up_in(steps, [per_step])(scores)[0]


def look_up_in(steps: Steps, tables: Sequence[Tensor]) -> Finder:
    """What looks up the values of any scores in tables of something known per step."""
    if not is_numpy_ready(tables[0]):  # without a look

        def find(scores: Tensor) -> list[Tensor]:
            places = _places(steps.edges, scores)
            return [table[places] for table in tables]

        return find
    known = torch.stack(list(tables))
    if bool(known.isnan().any()):
        return lambda scores: [torch.full_like(scores, torch.nan, dtype=known.dtype) for _ in tables]
    # Blocks are far fewer than steps, and a shorter table is a faster one.
    begins = (known[:, 1:] != known[:, :-1]).any(0)
    edges, values = steps.edges[begins], torch.cat([known[:, :1], known[:, 1:][:, begins]], dim=1)
    by_cell = cache(lambda: _look_up_by_cell(edges, values))
    even = len(edges) > 1 and 1e-30 < float(edges[-1] - edges[0]) < 1e30

    def find_fast(scores: Tensor) -> list[Tensor]:
        many = scores.numel() > _CELLS and even
        return by_cell()(scores) if many else list(values[:, _places(edges, scores)])

    return find_fast


def _places(edges: Tensor, scores: Tensor) -> Tensor:
    return torch.searchsorted(edges, scores.to(edges.dtype).contiguous(), right=True)


def _look_up_by_cell(edges: Tensor, values: Tensor) -> Finder:
    """:func:`look_up_in` for many scores: most equal cells of the axis lie in one block and need no search."""
    scale = (_CELLS - 1) / (edges[-1] - edges[0])

    def cell_of(x: Tensor) -> Tensor:
        return x.sub(edges[0]).mul_(scale).clamp_(-1, _CELLS).floor_().to(torch.int32) + 1

    with_edge = cell_of(edges).long()
    edges_up_to = torch.bincount(with_edge, minlength=_CELLS + 2).cumsum(0)
    tables = values[:, edges_up_to].index_fill_(1, with_edge, torch.nan)

    def look_up_all(scores: Tensor) -> list[Tensor]:
        flat = scores.to(edges.dtype).flatten()
        found = torch.empty(len(values), len(flat), dtype=values.dtype)
        for piece, into in zip(flat.split(CHUNK // 4), found.split(CHUNK // 4, dim=1), strict=True):
            cell = cell_of(piece)
            for table, part in zip(tables, into, strict=True):
                torch.index_select(table, 0, cell, out=part)
            unsure = into[0].isnan().nonzero().flatten()
            into[:, unsure] = values[:, torch.searchsorted(edges, piece[unsure], right=True)]
        return [each.view(scores.shape) for each in found]

    return look_up_all


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


def weighted_derivatives(places: Tensor, weights: Tensor, theta: Tensor, label: int) -> Tensor:
    """Return the sums of :func:`sum_derivatives` for scores ``(K,)`` that weigh ``(F, K)`` in each regression.

    Scores may also be ``(F, 1)``, one for each regression.
    """
    slope, offset = theta.unsqueeze(-1).unbind(1)
    error = torch.addcmul(offset, slope, places).sigmoid_()
    curvature = torch.addcmul(error, error, error, value=-1).mul_(weights)
    error = error.sub_(label).mul_(weights)
    if places.dim() == 2:
        sums = [error * places, error, curvature * places.square(), curvature * places, curvature, weights]
        return torch.cat(sums, dim=1).T
    powers = torch.stack([torch.ones_like(places), places, places.square()], dim=1)
    by_offset, by_slope = (error @ powers[:, :2]).unbind(1)
    by_offset_offset, by_both, by_slope_slope = (curvature @ powers).unbind(1)
    return torch.stack([by_slope, by_offset, by_slope_slope, by_both, by_offset_offset, weights.sum(1)])


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
    past the minimum along it, so that it converges wherever the classes overlap; the cost itself is never needed. Once
    near it squares the distance at every step. A regression that got there stays, however long the others take; so no
    number depends on how often the device is looked at. ``near``: how long a step may be, next to slope and offset, for
    the last one; as a rule so short that its square is below the last digit.
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
        better = (_directional_derivative(there, step) >= -_directional_derivative(here, step) / 2) & ~done.unsqueeze(1)
        taken = length.minimum(longest)
        longest = torch.where(better, longest.maximum(_GROWTH * taken), taken / _GROWTH)
        theta = torch.where(better, theta - step, theta)
        here = Derivatives(*torch.where(better, torch.stack(there, 1), torch.stack(here, 1)).unbind(1))
    step = _newton(here)
    done = _is_last(step, theta, near)
    return torch.where(done.unsqueeze(1), theta - step, theta), done


def _directional_derivative(at: Derivatives, step: Tensor) -> Tensor:
    """Return how fast the cost falls along a step, ``(F, 1)``."""
    return (at.slope * step[:, 0] + at.offset * step[:, 1]).unsqueeze(1)


def _is_last(step: Tensor, theta: Tensor, near: float | None) -> Tensor:
    """Return whether the step is so small that the next one is below the last digit, or there is nothing to fit."""
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


ScoreMap = Callable[[Tensor], Tensor]


def linear_map(preds: Tensor, target: Tensor) -> ScoreMap:
    """The map ``a * s + b`` with the least Cllr at prior 1/2, without regularisation."""
    scores, is_target = widen(preds.detach().flatten()), target.flatten().bool()
    slope, offset = fit_logistic(scores, is_target)
    return lambda values: slope * values + offset


def fit_logistic(scores: Tensor, is_target: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and offset of a logistic regression that weighs both classes equally; NaN where there is no optimum."""
    targets, nontargets = scores[is_target], scores[~is_target]
    # No optimum where a class is missing, where scores are constant, or where a threshold separates the classes.
    if not (len(targets) and len(nontargets) and bool(_overlap(targets, nontargets) & scores.isfinite().all())):
        warn_undefined("A linear calibration needs both kinds of trials, finite and overlapping in score.")
        return scores.new_full((), torch.nan), scores.new_full((), torch.nan)
    spread, centre = torch.std_mean(scores, correction=0)
    targets, nontargets = (((side - centre) / spread).unsqueeze(0) for side in (targets, nontargets))

    def derivatives(theta: Tensor) -> Derivatives:
        return mean_of_classes(
            *(sum_derivatives(side, theta, label) for label, side in ((1, targets), (0, nontargets)))
        )

    theta, converged = minimise(derivatives, scores.new_zeros(1, 2))
    slope, offset = torch.where(converged, theta[0], torch.nan)
    return slope / spread, offset - slope / spread * centre


def _overlap(a: Tensor, b: Tensor) -> Tensor:
    return (a.min() < b.max()) & (b.min() < a.max())


def isotonic_map(preds: Tensor, target: Tensor) -> ScoreMap:
    """PAV under Laplace's rule; between training scores the posterior is interpolated, outside it is constant."""
    steps = count_by_score(preds, target, validate_args=False).ascending
    knots = torch.unique(widen(preds.detach().flatten()))
    prior = steps.targets.sum().log() - steps.nontargets.sum().log()
    posteriors = (look_up(steps, calibrate(steps, laplace=True), knots) + prior).sigmoid()

    def apply(values: Tensor) -> Tensor:
        if len(knots) == 0:
            return torch.full_like(values, torch.nan)
        above = torch.searchsorted(knots, values).clamp(1, max(len(knots) - 1, 1))
        left, right = (knots[(above - k).clamp(max=len(knots) - 1)] for k in (1, 0))
        low, high = (posteriors[(above - k).clamp(max=len(knots) - 1)] for k in (1, 0))
        # Nothing finite is any part of the way to an infinite score: it takes the value of its finite neighbour.
        inner = torch.where(left.isinf(), 1, torch.where(right.isinf(), 0, (values - left) / (right - left)))
        share = torch.where(values >= right, 1, torch.where(values <= left, 0, inner))
        return torch.lerp(low, high, share).logit() - prior

    return apply


def transferred_llr(
    preds: Tensor, target: Tensor, fit_preds: Tensor, fit_target: Tensor, calibration: str, validate_args: bool
) -> Tensor:
    """Log-likelihood ratios ``(P,)`` of the scores of one run, calibrated on another."""
    check_choice("calibration", calibration, ("linear", "isotonic"))
    for trials in ((preds, target), (fit_preds, fit_target)):
        check_trials(*trials, validate_args)
    fit = linear_map if calibration == "linear" else isotonic_map
    return fit(fit_preds, fit_target)(widen(preds.flatten()))
