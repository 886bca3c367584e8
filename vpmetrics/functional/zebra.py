r"""ZEBRA: how many bits about identity the scores disclose, in expectation and at worst.

Nautsch et al., "The Privacy ZEBRA", Interspeech 2020; Noé et al., "Towards a unified assessment framework of speech
pseudonymisation", Computer Speech and Language 72, 2022. Equation numbers are those of the latter.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from vpmetrics._checks import check_choice, check_floating, check_trials, warn_once, warn_undefined
from vpmetrics._precision import result_dtype, widen
from vpmetrics.functional._calibration import isotonic_map, linear_map
from vpmetrics.functional._counts import (
    ScoreCounts,
    Steps,
    calibrate,
    count_by_score,
    gather_blocks,
    mean_over_nontargets,
    mean_over_targets,
)

_TAGS = "0ABCDEF"
_TAG_BOUNDS = (1.0, 2.0, 4.0, 5.0, 6.0)


def zebra_disclosure(
    preds: Tensor, target: Tensor, bandwidth: float | None = None, validate_args: bool = True
) -> dict[str, Tensor]:
    r"""Expected and worst-case disclosure of calibrated scores (eq. 13 and section 5.2).

    .. math::
        D_\mathrm{ECE} = \frac{\langle Z(l) \rangle_\mathrm{tar} + \langle Z(-l) \rangle_\mathrm{non}}{2 \ln 2},
        \qquad l_w = \max |l'| / \ln 10

    with the log-likelihood ratios :math:`l` of PAV, and :math:`l'` those of PAV under Laplace's rule.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None is exact.
        validate_args: Look at the values, too (NaN, labels); stalls an accelerator once.

    Returns:
        ``d_ece`` in bits, from 0 (nothing disclosed) to 1 / (2 ln 2) = 0.7213; ``l_w`` as a base-10 logarithm;
        ``tag``, its category as an integer from 0 to 6 (see :func:`zebra_tag`; -1 if undefined);
        ``d_ece_reversed``, the ``d_ece`` of the negated scores: an attacker may flip the sign.
        NaN with one warning where a class is missing.

    Example:
        >>> preds = torch.tensor([0.0, 1.0, 2.0, 3.0])
        >>> zebra_disclosure(preds, target=torch.tensor([0, 1, 0, 1]))
        {'d_ece': tensor(0.3607), 'l_w': tensor(0.3010), 'tag': tensor(1), 'd_ece_reversed': tensor(0.)}
    """
    return disclosure_of_counts(count_by_score(preds, target, bandwidth, validate_args), result_dtype(preds))


def zebra_tag(l_w: Tensor | float) -> str:
    """Category of a worst-case disclosure: the letter people read instead of the number (table 1).

    Args:
        l_w: Base-10 logarithm of the strongest evidence, a number or a tensor of one element.

    Returns:
        ``"0"`` for 0, ``"A"`` below 1, ``"B"`` below 2, ``"C"`` below 4, ``"D"`` below 5, ``"E"`` below 6,
        ``"F"`` from 6 on; ``"?"`` for NaN.

    Example:
        >>> zebra_tag(0.3), zebra_tag(torch.tensor(3.979))
        ('A', 'C')
    """
    number = int(_tag_number(torch.as_tensor(l_w, dtype=torch.float64)))
    return _TAGS[number] if number >= 0 else "?"


def evidence(llr: Tensor) -> Tensor:
    r"""What one target trial of log-likelihood ratio ``llr`` adds to D_ECE, before averaging (eq. 13).

    .. math:: Z(l) = \tfrac12 + \frac{l - (e^l - 1)}{(e^l - 1)^2}, \quad Z(-\infty) = -\infty,\ Z(0) = 0,\
        Z(\infty) = \tfrac12

    Args:
        llr: Natural-log likelihood ratios of any shape; for a non-target trial, with the sign turned.

    Returns:
        Values of the same shape, at most 1/2.

    Example:
        >>> evidence(torch.tensor([-1.0, 0.0, 1.0, torch.inf]))
        tensor([-0.4207,  0.0000,  0.2567,  0.5000])
    """
    # The closed form cancels near 0; the branch not taken must stay finite, for the gradient of the one that is.
    small = llr.abs() < 0.02
    x = torch.where(small, llr, 0)
    series = x * (1 / 3 - x * (1 / 12 - x * (1 / 180 + x * (1 / 720 - x * (1 / 5040 + x / 30240)))))
    capped = torch.where(small, 1, llr.clamp(max=40.0))
    growth = capped.expm1()
    return torch.where(small, series, 0.5 + capped / growth.square() - 1 / growth)


class ECEProfile(NamedTuple):
    """Empirical cross-entropy in bits over the prior: of the prior alone, at its minimum, and as the scores stand."""

    prior: Tensor
    minimum: Tensor
    actual: Tensor


def ece_profile(preds: Tensor, target: Tensor, prior_log_odds: Tensor, validate_args: bool = True) -> ECEProfile:
    r"""Empirical cross-entropy at any prior (eq. 11 and 12): what an attacker still does not know after the scores.

    .. math::
        \mathrm{ECE}(\pi) = \pi \langle -\log_2 \sigma(l + \operatorname{logit} \pi) \rangle_\mathrm{tar}
        + (1 - \pi) \langle -\log_2 \sigma(-l - \operatorname{logit} \pi) \rangle_\mathrm{non}

    Args:
        preds: Scores in any shape, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        prior_log_odds: Natural-log odds of the prior, any shape, finite.
        validate_args: Look at the values, too (NaN, labels); stalls an accelerator once.

    Returns:
        Three tensors of the shape of ``prior_log_odds``: ``prior``, knowing the prior alone; ``minimum``, with the
        scores calibrated by PAV; ``actual``, with the scores taken as natural-log likelihood ratios.

    Example:
        >>> scores, target = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1])
        >>> ece_profile(scores, target, torch.tensor([0.0]))
        ECEProfile(prior=tensor([1.]), minimum=tensor([0.5000]), actual=tensor([1.1476]))
    """
    check_floating("prior_log_odds", prior_log_odds)
    odds = widen(prior_log_odds.flatten())
    minimum = least_cross_entropy(count_by_score(preds, target, validate_args=validate_args).ascending, odds)
    scores, is_target = preds.flatten(), target.flatten().bool()
    targets, nontargets = widen(scores[is_target]), widen(scores[~is_target])
    # One prior at a time: a row of all trials for each of many priors would not fit.
    actual = cross_entropy(
        torch.stack([softplus(-targets - odd).mean() for odd in odds]),
        torch.stack([softplus(nontargets + odd).mean() for odd in odds]),
        odds,
    )
    rows = entropy_of_prior(odds), minimum, actual
    return ECEProfile(*(row.to(result_dtype(preds)).reshape(prior_log_odds.shape) for row in rows))


def least_cross_entropy(steps: Steps, prior_log_odds: Tensor) -> Tensor:
    """Empirical cross-entropy in bits at each prior, with the scores calibrated by PAV."""
    blocks = gather_blocks(steps, calibrate(steps))
    odds = prior_log_odds[:, None]
    return cross_entropy(
        mean_over_targets(Steps(*blocks), softplus(-blocks.llr - odds)),
        mean_over_nontargets(Steps(*blocks), softplus(blocks.llr + odds)),
        prior_log_odds,
    )


def entropy_of_prior(prior_log_odds: Tensor) -> Tensor:
    """Binary entropy in bits at natural-log odds (eq. 12)."""
    return cross_entropy(softplus(-prior_log_odds), softplus(prior_log_odds), prior_log_odds)


def cross_entropy(target_cost: Tensor, nontarget_cost: Tensor, prior_log_odds: Tensor) -> Tensor:
    """Costs of the two classes in nats, weighted by the prior, in bits."""
    return (prior_log_odds.sigmoid() * target_cost + (-prior_log_odds).sigmoid() * nontarget_cost) / math.log(2)


def calibration_distortion(
    preds: Tensor,
    target: Tensor,
    fit_preds: Tensor,
    fit_target: Tensor,
    calibration: str = "linear",
    validate_args: bool = True,
) -> Tensor:
    r"""C_ECE: the D_ECE of scores calibrated on another run of the same safeguard (eq. 15 and 16).

    An attacker cannot calibrate on the labels to be guessed. A safeguard that draws anew at each run may leave
    nothing that carries over, so that the calibration learnt misleads.

    Args:
        preds: Scores of the attacked run.
        target: Their labels, 1 (same speaker) or 0 (different).
        fit_preds: Scores of the run the attacker learns from.
        fit_target: Their labels.
        calibration: ``"linear"``, the map ``a * s + b`` of least Cllr; or ``"isotonic"``, PAV under Laplace's
            rule with the posterior interpolated linearly between training scores and constant outside.
        validate_args: Look at the values, too (NaN, labels); stalls an accelerator once.

    Returns:
        Scalar in bits: 0 is good, below 0 the attacker is better off guessing; 0.7213 at most. NaN with one
        warning where a class is missing in either run.

    Example:
        >>> scores, target = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1])
        >>> calibration_distortion(scores, target, fit_preds=scores, fit_target=target)
        tensor(0.1069)
    """
    with warn_once():
        return _calibration_distortion(preds, target, fit_preds, fit_target, calibration, validate_args)


def _calibration_distortion(
    preds: Tensor, target: Tensor, fit_preds: Tensor, fit_target: Tensor, calibration: str, validate_args: bool
) -> Tensor:
    llr = transferred_llr(preds, target, fit_preds, fit_target, calibration, validate_args)
    is_target = target.flatten().bool()
    bits = (evidence(llr[is_target]).mean() + evidence(-llr[~is_target]).mean()) / (2 * math.log(2))
    if bool(bits.isnan()):
        warn_undefined("A calibration needs both kinds of trials in both runs, and numbers for scores.")
    return bits.to(result_dtype(preds, fit_preds))


def transferred_llr(
    preds: Tensor, target: Tensor, fit_preds: Tensor, fit_target: Tensor, calibration: str, validate_args: bool
) -> Tensor:
    """Log-likelihood ratios ``(P,)`` of the scores of one run, calibrated on another."""
    check_choice("calibration", calibration, ("linear", "isotonic"))
    for trials in ((preds, target), (fit_preds, fit_target)):
        check_trials(*trials, validate_args)
    fit = linear_map if calibration == "linear" else isotonic_map
    return fit(fit_preds, fit_target)(widen(preds.flatten()))


def disclosure_of_counts(counts: ScoreCounts, dtype: torch.dtype) -> dict[str, Tensor]:
    """What :func:`zebra_disclosure` returns, from trials already condensed."""
    l_w = _worst(counts.ascending)
    return {
        "d_ece": expected_disclosure(counts.ascending).to(dtype),
        "l_w": l_w.to(dtype),
        "tag": _tag_number(l_w),
        "d_ece_reversed": expected_disclosure(counts.descending).to(dtype),
    }


def expected_disclosure(steps: Steps) -> Tensor:
    """D_ECE of trials already condensed, in bits."""
    llr = calibrate(steps)
    return (mean_over_targets(steps, evidence(llr)) + mean_over_nontargets(steps, evidence(-llr))) / (2 * math.log(2))


def _worst(steps: Steps) -> Tensor:
    # Smooth counts are positive everywhere: what holds less than a thousandth of a trial holds none.
    seen = (steps.targets > 1e-3) | (steps.nontargets > 1e-3) | steps.targets.isnan()
    # A block made of Laplace's labels alone was never the evidence of any trial.
    strongest = torch.where(seen, calibrate(steps, laplace=True).abs(), 0).amax()
    return strongest / math.log(10)


def _tag_number(l_w: Tensor) -> Tensor:
    bounds = torch.tensor(_TAG_BOUNDS, dtype=l_w.dtype, device=l_w.device)
    number = torch.bucketize(l_w.detach(), bounds, right=True) + (l_w > 0)
    return torch.where(l_w.isnan(), -1, number)
