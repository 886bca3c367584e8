"""Calibration: logistic regressions, and maps fitted on one run for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vpmetrics._scores.score_counts import count_by_score, make_finder
from vpmetrics._util.dtypes import widen
from vpmetrics._util.validation import check_choice, check_trials, warn_if, warn_undefined

_ITERATIONS = 100  # mostly eight are enough, and forty where classes all but separate
# iteration after which a GPU is first asked whether all have converged; a CPU is asked after each
_FIRST_CHECK = 12
# factor of the longest allowed step after a step that helped; its inverse after one that did not
_GROWTH = 4.0
_SLOPE_BINS = 1 << 10  # of the standardised scores of non-targets
_TIED = 1e-6  # standard deviations, below which the order of two scores may be a matter of rounding
_LEAST_GAP = 1e-2  # standard deviations between two pseudo-trials

ScoreMap = Callable[[Tensor], Tensor]
# scores (K,), or (F, 1) if each regression has one; weights in each, (F, K)
Trials = Sequence[tuple[Tensor, Tensor]]


def mean_derivatives(parts: Trials, theta: Tensor, label: int) -> Tensor:
    """Return means over trials of one class of the derivatives of their costs, ``(5, F)``.

    They are by slope, by offset, twice by slope, by both, and twice by offset. ``theta`` ``(F,
    2)``: slope and offset of each regression; ``label``: 1 for targets, 0 for non-targets.
    """
    slope, offset = theta.unsqueeze(-1).unbind(1)
    sums = theta.new_zeros(6, len(theta))
    for scores, weights in parts:
        posterior = torch.addcmul(offset, slope, scores).sigmoid_()
        curvature = torch.addcmul(posterior, posterior, posterior, value=-1).mul_(weights)
        error = posterior.sub_(label).mul_(weights)
        powers = torch.stack([torch.ones_like(scores), scores, scores.square()], dim=-1)
        by_offset, by_slope, _ = (error.unsqueeze(1) @ powers).squeeze(1).T
        by_offset_twice, by_both, by_slope_twice = (curvature.unsqueeze(1) @ powers).squeeze(1).T
        total_weight = weights.sum(1)
        sums += torch.stack(
            [by_slope, by_offset, by_slope_twice, by_both, by_offset_twice, total_weight]
        )
    return sums[:-1] / sums[-1]


def minimise_and_check_convergence(
    nontargets: Trials, targets: Trials, theta: Tensor
) -> tuple[Tensor, Tensor]:
    """Return slope and offset of least cost ``(F, 2)``, and which have converged ``(F,)``.

    Newton's method in a trust region. A step that passes the minimum along it by far is rejected,
    so the method converges when the classes overlap, and the cost itself is not needed. A converged
    regression no longer changes, so results do not depend on how often convergence is checked.
    """
    derivatives = mean_derivatives(nontargets, theta, 0) + mean_derivatives(targets, theta, 1)
    longest = torch.linalg.vector_norm(theta, dim=1, keepdim=True).clamp(min=1)
    for iteration in range(_ITERATIONS + 1):
        step = _newton_step(derivatives)
        length = torch.linalg.vector_norm(step, dim=1, keepdim=True)
        size = torch.linalg.vector_norm(theta, dim=1, keepdim=True)
        # The next step is below the last digit, or there is nothing to fit.
        is_done = ~(length > torch.finfo(theta.dtype).eps ** 0.4 * (1 + size))
        is_checked = iteration == _FIRST_CHECK or theta.device.type == "cpu"
        if iteration == _ITERATIONS or (is_checked and bool(is_done.all())):
            break
        tried_step = step * (longest / length).clamp(max=1)
        tried = theta - tried_step
        derivatives_there = mean_derivatives(nontargets, tried, 0) + mean_derivatives(
            targets, tried, 1
        )
        # The cost is convex. Accept a step if the cost still falls at its end, or rises at most
        # half as steeply.
        descent_here = (derivatives[:2].T * tried_step).sum(1)
        descent_there = (derivatives_there[:2].T * tried_step).sum(1)
        is_better = (descent_there >= -descent_here / 2).unsqueeze(1) & ~is_done
        tried_length = length.minimum(longest)
        grown = longest.maximum(_GROWTH * tried_length)
        longest = torch.where(is_better, grown, tried_length / _GROWTH)
        theta = torch.where(is_better, tried, theta)
        derivatives = torch.where(is_better.T, derivatives_there, derivatives)
    return torch.where(is_done, theta - step, theta), is_done.squeeze(1)


def _newton_step(derivatives: Tensor) -> Tensor:
    """Return Newton's step ``(F, 2)``, or the gradient where rounding hides the curvature."""
    by_slope, by_offset, by_slope_twice, by_both, by_offset_twice = derivatives
    gradient = torch.stack([by_slope, by_offset], dim=1)
    # Uninformative scores leave the slope at 0.
    least = torch.finfo(gradient.dtype).tiny ** 0.5
    by_slope_twice = by_slope_twice + least
    by_offset_twice = by_offset_twice + least
    # The inverse of the matrix of second derivatives, times the gradient.
    determinant = by_slope_twice * by_offset_twice - by_both.square()
    step_of_slope = by_offset_twice * by_slope - by_both * by_offset
    step_of_offset = by_slope_twice * by_offset - by_both * by_slope
    newton = torch.stack([step_of_slope, step_of_offset], dim=1) / determinant.unsqueeze(1)
    is_descent = (gradient * newton).sum(dim=1, keepdim=True) > 0
    is_finite = newton.isfinite().all(dim=1, keepdim=True)
    return torch.where(is_descent & is_finite, newton, gradient)


def fit_linear_map(preds: Tensor, target: Tensor) -> ScoreMap:
    """Return the map ``a * s + b`` of least Cllr at prior 1/2, not regularised.

    NaN where there is no optimum.
    """
    scores = widen(preds.detach().flatten())
    is_target = target.flatten().bool()
    targets = scores[is_target]
    nontargets = scores[~is_target]
    # No optimum where a class is missing, where scores are constant, or where a threshold separates
    # the classes.
    is_defined = len(targets) > 0 and len(nontargets) > 0
    if is_defined:
        has_overlap = (targets.min() < nontargets.max()) & (nontargets.min() < targets.max())
        is_defined = bool(has_overlap & scores.isfinite().all())
    if not is_defined:
        warn_undefined(
            "A linear calibration needs both kinds of trials, finite and overlapping in score."
        )
        return lambda values: torch.full_like(values, torch.nan)
    spread, centre = torch.std_mean(scores, correction=0)

    def standardise(scores_of_class: Tensor) -> Trials:
        return [((scores_of_class - centre) / spread, scores.new_ones(1, len(scores_of_class)))]

    theta, is_converged = minimise_and_check_convergence(
        standardise(nontargets), standardise(targets), scores.new_zeros(1, 2)
    )
    slope, offset = torch.where(is_converged, theta[0], torch.nan)
    return lambda values: slope / spread * values + (offset - slope / spread * centre)


def fit_isotonic_map(preds: Tensor, target: Tensor) -> ScoreMap:
    """Return PAV under Laplace's rule as a map of scores.

    The posterior is interpolated between training scores and constant outside.
    """
    steps = count_by_score(preds, target, validate_args=False).ascending
    knots = torch.unique(widen(preds.detach().flatten()))
    prior = steps.targets.sum().log() - steps.nontargets.sum().log()
    posteriors = (make_finder(steps, [steps.laplace_llr()])(knots)[0] + prior).sigmoid()

    def interpolate_llr(values: Tensor) -> Tensor:
        if len(knots) == 0:
            return torch.full_like(values, torch.nan)
        last_knot = len(knots) - 1
        above = torch.searchsorted(knots, values).clamp(1, max(last_knot, 1))
        left_knot = (above - 1).clamp(max=last_knot)
        right_knot = above.clamp(max=last_knot)
        left = knots[left_knot]
        right = knots[right_knot]
        # Next to an infinite training score, a score takes the value of its finite neighbour.
        share = (values - left) / (right - left)
        share = torch.where(right.isinf(), 0, share)
        share = torch.where(left.isinf(), 1, share)
        share = torch.where(values <= left, 0, share)
        share = torch.where(values >= right, 1, share)
        posterior = torch.lerp(posteriors[left_knot], posteriors[right_knot], share)
        return posterior.logit() - prior

    return interpolate_llr


CALIBRATIONS = {"linear": fit_linear_map, "isotonic": fit_isotonic_map}


def transferred_llr(
    preds: Tensor,
    target: Tensor,
    fit_preds: Tensor,
    fit_target: Tensor,
    calibration: str,
    validate_args: bool,
) -> Tensor:
    """Return log-likelihood ratios ``(P,)`` of the scores of one run, calibrated on another."""
    check_choice("calibration", calibration, tuple(CALIBRATIONS))
    for trials in ((preds, target), (fit_preds, fit_target)):
        check_trials(*trials, validate_args)
    return CALIBRATIONS[calibration](fit_preds, fit_target)(widen(preds.flatten()))


def fit_logistic_slopes(
    z: Tensor, is_match: Tensor, match: Tensor, fold: Tensor, num_folds: int
) -> Tensor:
    """Fit the slope of local information for each fold on all other folds, ``(F,)``.

    A single fold is fitted on all trials.

    A slope is that of a logistic regression of target on standardised scores: ``z`` ``(R, K)`` of
    inputs against references, ``match`` ``(R, 1)`` of the true speaker. Non-targets are many and
    share bins; targets count one by one. ``fold`` ``(R,)``: inputs in fold ``num_folds`` are left
    out.
    """
    is_used = fold < num_folds
    is_nontarget = ~is_match & is_used[:, None]
    nontarget = widen(z)[is_nontarget]
    nontarget_fold = fold[:, None].expand_as(z)[is_nontarget]
    target = widen(match[is_used, 0])
    target_fold = fold[is_used]
    if len(nontarget) == 0 or len(target) == 0:
        return widen(z).new_full((num_folds,), torch.nan)
    low, high = nontarget.aminmax()
    bins_per_unit = (_SLOPE_BINS - 1) / (high - low).clamp(min=1e-30)
    bin_of_nontarget = ((nontarget - low) * bins_per_unit).nan_to_num().long()
    slot = nontarget_fold * _SLOPE_BINS + bin_of_nontarget
    counts = nontarget.new_zeros(num_folds * _SLOPE_BINS)
    counts = counts.index_add(0, slot, torch.ones_like(nontarget)).view(num_folds, _SLOPE_BINS)
    sums = nontarget.new_zeros(_SLOPE_BINS).index_add(0, bin_of_nontarget, nontarget)
    mean_of_bin = sums / counts.sum(0).clamp(min=1)
    every_fold = torch.arange(num_folds, device=fold.device)
    is_in_fold = (target_fold == every_fold[:, None]).to(target.dtype)
    # (F, R) and (F, B): the targets and the binned non-targets that each regression is fitted on.
    target_weights = is_in_fold
    nontarget_weights = counts
    if num_folds > 1:
        target_weights = 1 - is_in_fold
        nontarget_weights = counts.sum(0) - counts
    pseudo_scores, pseudo_weights = _pseudo_trials_if_separable(
        nontarget, nontarget_fold, target, target_fold, num_folds
    )
    theta = target.new_zeros(1, 2)
    # Regressions share most of their trials: all start from the slope of the first one.
    for regressions in (slice(0, 1), slice(None)):
        pseudo_target, pseudo_nontarget = pseudo_scores[:, regressions]
        pseudo_weight = pseudo_weights[regressions]
        nontargets = [
            (mean_of_bin, nontarget_weights[regressions]),
            (pseudo_nontarget, pseudo_weight),
        ]
        targets = [(target, target_weights[regressions]), (pseudo_target, pseudo_weight)]
        theta = theta.nan_to_num(0).expand(len(pseudo_target), 2).contiguous()
        theta, is_converged = minimise_and_check_convergence(nontargets, targets, theta)
    message = "A slope of local information did not converge; it may be too small."
    warn_if((~is_converged).any(), lambda failed: message if failed else None)
    is_empty = (target_weights.sum(1) == 0) | (nontarget_weights.sum(1) == 0)
    return torch.where(is_empty, torch.nan, theta[:, 0])


def _pseudo_trials_if_separable(
    nontarget: Tensor, nontarget_fold: Tensor, target: Tensor, target_fold: Tensor, num_folds: int
) -> tuple[Tensor, Tensor]:
    """Return scores of a pseudo target and a pseudo non-target of each regression.

    Scores are ``(2, F, 1)``, targets first; their weight is ``(F, 1)``.

    Where a threshold separates the classes, no slope is steep enough. Then a pseudo target is put
    where the nearest non-target is, and a pseudo non-target where the nearest target is: what one
    further trial might have shown. Where these two are all but tied they are put a little apart.
    The weight is 0 where the classes overlap.
    """
    nontarget_highest = _highest_by_regression(nontarget, nontarget_fold, num_folds)
    nontarget_lowest = -_highest_by_regression(-nontarget, nontarget_fold, num_folds)
    target_highest = _highest_by_regression(target, target_fold, num_folds)
    target_lowest = -_highest_by_regression(-target, target_fold, num_folds)
    is_above = target_lowest > nontarget_highest - _TIED
    is_below = target_highest < nontarget_lowest + _TIED
    nearest_target = torch.where(is_above, target_lowest, target_highest)
    nearest_nontarget = torch.where(is_above, nontarget_highest, nontarget_lowest)
    middle = (nearest_target + nearest_nontarget) / 2
    is_separable = (is_above ^ is_below) & middle.isfinite()
    gap = (nearest_target - nearest_nontarget).abs().clamp(min=_LEAST_GAP)
    reach = torch.where(is_above, 0.5, -0.5) * gap
    scores = torch.stack([middle - reach, middle + reach])
    scores = torch.where(is_separable, scores, 0)
    return scores.unsqueeze(2), is_separable.to(scores.dtype).unsqueeze(1)


def _highest_by_regression(scores: Tensor, fold: Tensor, num_folds: int) -> Tensor:
    """Return the highest score that each regression is fitted on, ``(F,)``.

    It is fitted on all folds but its own, or on the only fold.
    """
    lowest = scores.new_full((num_folds,), -torch.inf)
    highest_of_fold = lowest.scatter_reduce(0, fold, scores, "amax")
    if num_folds == 1:
        return highest_of_fold
    is_own = torch.eye(num_folds, dtype=torch.bool, device=scores.device)
    return highest_of_fold.expand(num_folds, -1).masked_fill(is_own, -torch.inf).amax(1)
