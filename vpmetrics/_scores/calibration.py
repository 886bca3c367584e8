"""Maps from scores to log-likelihood ratios that are learnt on some trials and applied to others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vpmetrics._checks import check_choice, check_trials, warn_undefined
from vpmetrics._precision import widen
from vpmetrics._scores.counting import count_by_score
from vpmetrics._scores.logistic import Derivatives, mean_of_classes, minimise, sum_derivatives
from vpmetrics._scores.look_up import look_up
from vpmetrics._scores.steps import calibrate

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
