"""What verification has long reported: Cllr, its minimum, the equal error rate, and linkability."""

from itertools import pairwise
from math import comb

import numpy as np

from .isotonic import has_both, pav_llr
from .zebra import ece, split, zebra_disclosure


def score_measures(preds, target):
    """Every score measure of the registry, by its key."""
    return {
        **zebra_disclosure(preds, target),
        "min_cllr": min_cllr(preds, target),
        "cllr": cllr(preds, target),
        "eer": equal_error_rate(preds, target),
        "raw_eer": raw_equal_error_rate(preds, target),
        "min_dcf": min_dcf(preds, target, p_target=0.01, c_miss=1, c_fa=1),
        "tpr_at_1e-2": tpr_at_fpr(preds, target, 1e-2),
        "tpr_at_1e-3": tpr_at_fpr(preds, target, 1e-3),
        "linkability": linkability(preds, target),
    }


def cllr(preds, target):
    """Cllr in bits of scores taken as natural-log LLRs: equation 4 of the 2022 paper."""
    return ece(*split(preds, target), prior_log_odds=0.0) if has_both(target) else np.nan


def min_cllr(preds, target):
    """Cllr of the oracle-calibrated scores."""
    return cllr(pav_llr(preds, target), target)


def roc(preds, target):
    """ROC points (false alarm rate, miss rate).

    The threshold goes from below every score to above.
    """
    tar, non = split(preds, target)
    tar, non, thresholds = np.sort(tar), np.sort(non), np.unique(preds)
    points = [(1.0, 0.0)]
    for threshold in thresholds:  # accept what is above it
        accepted = 1 - np.searchsorted(non, threshold, side="right") / len(non)
        points.append((accepted, np.searchsorted(tar, threshold, side="right") / len(tar)))
    return points


def equal_error_rate(preds, target):
    """Where the convex hull of the ROC crosses false alarm = miss (Brümmer & de Villiers, 2011).

    The lower hull of (false alarm, miss) by the monotone chain: geometry, no PAV.
    """
    if not has_both(target):
        return np.nan
    hull = []
    for x, y in sorted(roc(preds, target)):
        # The last corner stays only if the path turns left at it.
        while len(hull) > 1 and turn(hull[-2], hull[-1], (x, y)) <= 0:
            hull.pop()
        hull.append((x, y))
    return crossing(hull[::-1])


def raw_equal_error_rate(preds, target):
    """Where the ROC itself crosses false alarm = miss.

    In proportion where a tie moves both rates at once.
    """
    return crossing(roc(preds, target)) if has_both(target) else np.nan


def crossing(path):
    """Where a path of (false alarm, miss) from (1, 0) to the other side crosses the diagonal."""
    for (x0, y0), (x1, y1) in pairwise(path):
        if x0 > y0 and x1 <= y1:
            return x0 + (x1 - x0) * (y0 - x0) / ((y0 - x0) + (x1 - y1))
    raise AssertionError("a path from (1, 0) to (0, y) crosses the diagonal")


def kaldi_equal_error_rate(preds, target):
    """The share of targets below Kaldi's threshold.

    That is the first target whose score, as a threshold, errs no more often on non-targets.
    """
    tar, non = split(preds, target)
    for position, threshold in enumerate(sorted(tar)):
        if np.sum(non >= threshold) / len(non) <= position / len(tar):
            return position / len(tar)
    return 1.0


def min_dcf(preds, target, p_target, c_miss, c_fa):
    """Least detection cost over all thresholds, relative to deciding by the prior alone.

    NIST SRE.
    """
    if not has_both(target):
        return np.nan
    costs = [
        c_miss * p_target * miss + c_fa * (1 - p_target) * accepted
        for accepted, miss in roc(preds, target)
    ]
    return min(costs) / min(c_miss * p_target, c_fa * (1 - p_target))


def tpr_at_fpr(preds, target, fpr):
    """Share of targets above the threshold that a share ``fpr`` of non-targets exceeds.

    In proportion within a tie.

    NaN where fewer than ten non-targets are expected above it.
    """
    tar, non = split(preds, target)
    if len(tar) == 0 or fpr * len(non) < 10:
        return np.nan
    for (x0, y0), (x1, y1) in pairwise(roc(preds, target)):
        if x0 > fpr + 1e-12 >= x1:  # a share of whole numbers is known to some digits only
            # Of two thresholds that reject as many non-targets, the lower one accepts more targets.
            return 1 - (y0 + (y1 - y0) * (x0 - fpr) / (x0 - x1))
    return 1.0


def found_among(preds, target, people=100):
    """How often the speaker of a target is found among ``people``, others drawn at random.

    NaN below 1,000 of these.

    The chance of coming first with k of the others tied, and all of the rest below, is shared by
    lot.
    """
    tar, non = split(preds, target)
    if len(tar) == 0 or len(non) < 1000:
        return np.nan
    rates = []
    for score in tar:
        below, tied = np.mean(non < score), np.mean(non == score)
        others = people - 1
        rates.append(
            sum(
                comb(others, k) * tied**k * below ** (others - k) / (k + 1)
                for k in range(others + 1)
            )
        )
    return np.mean(rates)


def turn(a, b, c):
    """Positive where the way from a over b to c turns left."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def linkability(preds, target):
    """D_sys with omega = 1, in its sum form (Gómez-Barrero et al., 2018).

    No trapezoid, which halves the edge bins.

    NaN with fewer than ten targets, or where all scores are equal and a histogram has no width.
    """
    tar, non = split(preds, target)
    n_bins = min(len(tar) // 10, 100)
    if n_bins == 0 or not has_both(target) or np.ptp(preds) == 0:
        return np.nan
    edges = np.linspace(np.min(preds), np.max(preds), n_bins + 1)
    p_tar = np.histogram(tar, edges)[0] / len(tar)
    p_non = np.histogram(non, edges)[0] / len(non)
    total = 0.0
    for p, q in zip(p_tar, p_non, strict=True):
        if p > q:  # a likelihood ratio of one or less links nothing
            # 2 LR / (1 + LR) - 1 with LR = p / q, q = 0 included
            total += p * (2 * p / (p + q) - 1)
    return total
