"""Pool-adjacent-violators, one pooling at a time, and the oracle LLRs it gives.

Brümmer & du Preez, 2013.
"""

from fractions import Fraction

import numpy as np


def pool_adjacent_violators(totals, weights):
    """Blocks ``[total, weight, length]`` with increasing means ``total / weight``.

    Whole numbers pool exactly.
    """
    blocks = []
    for total, weight in zip(totals, weights, strict=True):
        blocks.append([total, weight, 1])
        # While the block below has no smaller mean. Cross-multiplied, so that no division rounds.
        while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1]:
            last = blocks.pop()
            blocks[-1] = [a + b for a, b in zip(blocks[-1], last, strict=True)]
    return blocks


def isotonic_regression(y, weights=None):
    """The non-decreasing sequence nearest to ``y`` in weighted least squares.

    In fractions, and rounded at the end.
    """
    y, weights = (
        np.asarray(y, dtype=float),
        np.ones(len(y)) if weights is None else np.asarray(weights, dtype=float),
    )
    y, weights = ([Fraction(x) for x in values.tolist()] for values in (y, weights))
    blocks = pool_adjacent_violators([a * b for a, b in zip(y, weights, strict=True)], weights)
    return np.array(
        [float(total / weight) for total, weight, length in blocks for _ in range(length)]
    )


def has_both(target):
    """Targets and non-targets: without either of them nothing here is defined."""
    return 0 < np.sum(np.asarray(target) == 1) < len(target)


def pav_llr(preds, target, laplace=False):
    """Oracle-calibrated natural-log LLR of every trial, in input order; NaN if a class is missing.

    Equal scores are one element. A block of ``T_B`` targets and ``N_B`` non-targets has
    ``ln(T_B / N_B) - ln(T / N)``, written as one logarithm so that no evidence is exactly 0.
    Laplace's rule adds a target and a non-target below the lowest score and above the highest; ``T
    / N`` does not count them.
    """
    preds, target = np.asarray(preds, dtype=float), np.asarray(target)
    if not has_both(target):
        return np.full(len(preds), np.nan)
    scores, place = np.unique(preds, return_inverse=True)
    targets, trials = np.zeros(len(scores), dtype=int), np.zeros(len(scores), dtype=int)
    for where, label in zip(place, target, strict=True):
        targets[where] += label
        trials[where] += 1
    n_tar, n_non = np.sum(target == 1), np.sum(target == 0)
    if laplace:
        targets, trials = np.r_[1, targets, 1], np.r_[2, trials, 2]
    llr = []
    with np.errstate(divide="ignore"):  # ln 0 = -inf and ln(1 / 0) = inf are the right values
        for t, n, length in pool_adjacent_violators(targets.tolist(), trials.tolist()):
            llr += [np.log(np.divide(t * n_non, (n - t) * n_tar))] * length
    return np.array(llr[1:-1] if laplace else llr)[place]
