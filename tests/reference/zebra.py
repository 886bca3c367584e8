"""ZEBRA for log-likelihood ratios (Noé et al., Computer Speech & Language 2022, section 5)."""

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

from .isotonic import has_both, pav_llr


def split(values, target):
    """Target values, then non-target values."""
    values, target = np.asarray(values, dtype=float), np.asarray(target)
    return values[target == 1], values[target == 0]


def z(llr):
    """Z of equation 13. Near 0, where the closed form cancels, its power series.

    What is left out is below 1e-16.
    """
    if np.isposinf(llr):
        return 0.5
    if abs(llr) < 0.05:
        series = [0, 1 / 3, -1 / 12, 1 / 180, 1 / 720, -1 / 5040, -1 / 30240, 1 / 151200]
        return sum(c * llr**k for k, c in enumerate(series))
    with np.errstate(over="ignore"):
        e = np.expm1(llr)
    return 0.5 + llr / e / e - 1 / e  # not (l - e) / e^2, which is inf / inf for large l


def d_ece(llr_tar, llr_non):
    """Expected disclosure in bits, equation 13; negative when the LLRs mislead."""
    return (np.mean([z(a) for a in llr_tar]) + np.mean([z(-b) for b in llr_non])) / (2 * np.log(2))


def tag(l_w):
    """Category of a worst case, 0 to 6 for 0, A, B, C, D, E, F (table 1)."""
    return 0 if l_w == 0 else 1 + sum(l_w >= bound for bound in (1, 2, 4, 5, 6))


def zebra_disclosure(preds, target):
    """Expected disclosure of the oracle-calibrated scores, and of the negated ones.

    Worst case with Laplace's rule.
    """
    if not has_both(target):
        return dict.fromkeys(("d_ece", "l_w", "tag", "d_ece_reversed"), np.nan)
    preds = np.asarray(preds, dtype=float)
    l_w = np.max(np.abs(pav_llr(preds, target, laplace=True))) / np.log(10)
    return {
        "d_ece": d_ece(*split(pav_llr(preds, target), target)),
        "l_w": l_w,
        "tag": tag(l_w),
        "d_ece_reversed": d_ece(*split(pav_llr(-preds, target), target)),
    }


def ece(llr_tar, llr_non, prior_log_odds):
    """Equation 11 in bits, at one prior: logit(pi) = ``prior_log_odds``."""
    prior = expit(prior_log_odds)
    miss = np.mean(np.logaddexp(0, -(llr_tar + prior_log_odds)))  # -ln sigmoid(x) = ln(1 + e^-x)
    false_alarm = np.mean(np.logaddexp(0, llr_non + prior_log_odds))
    return (prior * miss + expit(-prior_log_odds) * false_alarm) / np.log(2)


TO_END = {"xtol": 1e-14, "rtol": 1e-14}


def linear_calibration(preds, target):
    """Scale and offset that minimise Cllr at prior 0.5.

    Logistic regression, classes weighted equally, no penalty.

    NaN where a threshold separates the classes: the scale would grow for ever.
    """
    # standardised, so that the search knows no unit
    mean, width = np.mean(preds), np.std(preds) or 1.0
    tar, non = split((np.asarray(preds) - mean) / width, target)
    if np.ptp(preds) > 0 and (tar.min() >= non.max() or non.min() >= tar.max()):
        return np.nan, np.nan

    scale, offset = logistic_regression(tar, non)
    return scale / width, offset - scale * mean / width


def logistic_regression(tar, non):
    """Scale and offset of least Cllr, by bisection.

    The offset's condition is monotone, and the scale's given it.
    """
    largest = max(np.max(np.abs(tar)), np.max(np.abs(non)))

    def offset(scale):
        reach = abs(scale) * largest + 50
        return brentq(
            lambda b: np.mean(expit(scale * non + b)) - np.mean(expit(-scale * tar - b)),
            -reach,
            reach,
            **TO_END,
        )

    def rise(scale):
        b = offset(scale)
        return np.mean(expit(scale * non + b) * non) - np.mean(expit(-scale * tar - b) * tar)

    far = 1.0
    while rise(far) < 0 or rise(-far) > 0:
        far *= 2
    scale = brentq(rise, -far, far, **TO_END)
    return scale, offset(scale)


def isotonic_calibration(preds, target, at):
    """PAV with Laplace's rule, read between training scores.

    By linear interpolation of the posterior.
    """
    order, prior = np.argsort(preds), np.log(np.sum(target == 1) / np.sum(target == 0))
    posterior = expit(pav_llr(preds, target, laplace=True) + prior)
    # np.interp clips outside the training range
    return logit(np.interp(at, preds[order], posterior[order])) - prior


def calibration_distortion(preds, target, fit_preds, fit_target, calibration):
    """C_ECE, equations 15 and 16: D_ECE of scores calibrated on another run of the safeguard."""
    if not (has_both(target) and has_both(fit_target)):
        return np.nan
    if calibration == "linear":
        scale, offset = linear_calibration(fit_preds, fit_target)
        llr = scale * np.asarray(preds) + offset
    else:
        llr = isotonic_calibration(np.asarray(fit_preds), np.asarray(fit_target), at=preds)
    return d_ece(*split(llr, target))
