"""The slope of local information: logistic regressions of target on standardised scores, cross-fitted over speakers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vpmetrics._engine.calibration import Derivatives, average_classes, minimise_cost, sum_derivatives
from vpmetrics._engine.precision import widen
from vpmetrics._engine.validation import warn_if

_BINS = 1 << 10  # of the standardised scores of non-targets
_TIED = 1e-6  # standard deviations, below which the order of two scores may be a matter of rounding
_LEAST_GAP = 1e-2  # standard deviations between two trials that contradict each other


def fit_slopes(z: Tensor, is_match: Tensor, match: Tensor, fold: Tensor, num_folds: int) -> Tensor:
    """Return the slope fitted on all folds but each, ``(F,)``; with one fold the slope fitted on all trials.

    Non-targets are many and share bins; targets count one by one.

    Args:
        z: Standardised scores ``(R, K)`` of inputs against references.
        is_match: Where the reference is of the true speaker, ``(R, K)``.
        match: Standardised score of the true speaker, ``(R, 1)``.
        fold: Fold of each input, ``(R,)``; inputs in fold ``num_folds`` are left out.
        num_folds: How many folds there are.
    """
    is_used = fold < num_folds
    nontarget, rows = widen(z), fold[:, None].expand_as(z)
    kept = ~is_match & is_used[:, None]
    nontarget, rows = nontarget[kept], rows[kept]
    target, target_fold = widen(match[is_used, 0]), fold[is_used]
    if len(nontarget) == 0 or len(target) == 0:
        return widen(z).new_full((num_folds,), torch.nan)
    low, high = nontarget.aminmax()
    slot = ((nontarget - low) * ((_BINS - 1) / (high - low).clamp(min=1e-30))).nan_to_num().long()
    counts = nontarget.new_zeros(num_folds * _BINS).index_add(0, rows * _BINS + slot, torch.ones_like(nontarget))
    counts = counts.view(num_folds, _BINS)
    middles = nontarget.new_zeros(_BINS).index_add(0, slot, nontarget) / counts.sum(0).clamp(min=1)
    belongs = (target_fold == torch.arange(num_folds, device=fold.device)[:, None]).to(target.dtype)
    is_all = num_folds == 1
    weights = belongs if is_all else 1 - belongs  # (F, R), which targets a regression is fitted on
    others = counts if is_all else counts.sum(0) - counts
    ends = _extremes(nontarget, rows, target, target_fold, num_folds)
    places, contradictions = _contradictions(ends, is_all)

    def derivatives_of(regressions: slice) -> Callable[[Tensor], Derivatives]:
        def derivatives(theta: Tensor) -> Derivatives:
            targets = sum_derivatives(target, weights[regressions], theta, 1)
            nontargets = sum_derivatives(middles, others[regressions], theta, 0)
            extra = contradictions[regressions]
            targets = targets + sum_derivatives(places[0, regressions], extra, theta, 1)
            return average_classes(targets, nontargets + sum_derivatives(places[1, regressions], extra, theta, 0))

        return derivatives

    # Regressions share most of their trials: all start from the slope of the first one.
    start, _ = minimise_cost(derivatives_of(slice(0, 1)), target.new_zeros(1, 2))
    theta, is_converged = minimise_cost(
        derivatives_of(slice(None)), start.nan_to_num(0).expand(num_folds, 2).contiguous()
    )
    message = "A slope of local information did not converge; it may be too small."
    warn_if((~is_converged).any(), lambda failed: message if failed else None)
    is_empty = (weights.sum(1) == 0) | (others.sum(1) == 0)
    return torch.where(is_empty, torch.nan, theta[:, 0])


def _extremes(nontarget: Tensor, rows: Tensor, target: Tensor, target_fold: Tensor, num_folds: int) -> Tensor:
    """Return highest and lowest (negated) non-target, then the same of targets, by fold, ``(4, F)``."""
    ends = nontarget.new_full((4, num_folds), -torch.inf)
    for index, (values, folds) in enumerate([(nontarget, rows), (-nontarget, rows), (target, target_fold)]):
        ends[index] = ends[index].scatter_reduce(0, folds, values, "amax")
    ends[3] = ends[3].scatter_reduce(0, target_fold, -target, "amax")
    return ends


def _contradictions(ends: Tensor, is_all: bool) -> tuple[Tensor, Tensor]:
    """Return where one more target and one more non-target go, ``(2, F, 1)``, and how much they weigh, ``(F, 1)``.

    Where a threshold separates the classes, no slope is steep enough. Then one more target is put where the nearest
    non-target is, and one more non-target where the nearest target is: what one further trial might have shown. Where
    these two are all but tied they are put a little apart.
    """
    count = ends.shape[1]
    if not is_all:
        is_own = torch.eye(count, dtype=torch.bool, device=ends.device)
        ends = ends[:, None].expand(-1, count, -1).masked_fill(is_own, -torch.inf).amax(2)
    high, low, last, first = ends[0], -ends[1], ends[2], -ends[3]
    is_above, is_below = first > high - _TIED, last < low + _TIED
    target, nontarget = torch.where(is_above, first, last), torch.where(is_above, high, low)
    middle, side = (target + nontarget) / 2, torch.where(is_above, 0.5, -0.5)
    is_separable = (is_above ^ is_below) & middle.isfinite()
    reach = side * (target - nontarget).abs().clamp(min=_LEAST_GAP)
    places = torch.stack([middle - reach, middle + reach])
    return torch.where(is_separable, places, 0).unsqueeze(2), is_separable.to(ends.dtype).unsqueeze(1)
