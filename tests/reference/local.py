"""Local information disclosure (arXiv 2607.06259, 2026): what each single trial gives away."""

import numpy as np

from .zebra import logistic_regression, split


def standardise(row):
    """z-scores with the population standard deviation.

    A constant row says nothing and stays at 0.
    """
    row = np.asarray(row, dtype=float)
    deviation = np.std(row)
    return (row - np.mean(row)) / deviation if deviation > 1e-12 else np.zeros(len(row))


def local_disclosure(scores, true_index, slope):
    """LID in bits of every trial.

    Log2(N p_true) with p the softmax of the standardised row times the slope.
    """
    disclosure = []
    for row, true in zip(scores, true_index, strict=True):
        logits = slope * standardise(row)
        p = np.exp(logits - np.max(logits))
        disclosure.append(np.log2(len(row) * p[true] / np.sum(p)))
    return np.array(disclosure)


def fit_slope(scores, true_index):
    """Slope of a logistic regression of target on z, with an offset.

    Both classes weigh the same.

    Where a threshold separates the classes, up to rounding, a target joins at the nearest
    non-target and a non-target at the nearest target, moved apart to a hundredth of a standard
    deviation if they are nearer.
    """
    z, target = [], []
    for row, true in zip(scores, true_index, strict=True):
        z.extend(standardise(row))
        target.extend(int(column == true) for column in range(len(row)))
    tar, non = split(np.array(z), np.array(target))
    return slope_of(tar, non) if np.mean(tar) >= np.mean(non) else -slope_of(-tar, -non)


def slope_of(tar, non):
    """Of targets that lie above non-targets, on average."""
    first, last = np.min(tar), np.max(non)
    if np.ptp(np.r_[tar, non]) == 0:
        return 0.0
    if first > last - 1e-6:
        middle, reach = (first + last) / 2, max(abs(first - last), 1e-2) / 2
        tar, non = np.r_[tar, middle - reach], np.r_[non, middle + reach]
    return logistic_regression(tar, non)[0]


def local_information_disclosure(scores, true_index, slope):
    """Mean, shares and extremes of the LID. A side without trials has no mean: NaN."""
    lid = local_disclosure(scores, true_index, slope)
    positive, negative = lid[lid > 0], lid[lid <= 0]
    return {
        "alid": np.mean(lid),
        "pdr": len(positive) / len(lid),
        "ndr": 1 - len(positive) / len(lid),
        "lid_pos": np.mean(positive) if len(positive) else np.nan,
        "lid_neg": np.mean(negative) if len(negative) else np.nan,
        "lid_max": np.max(lid),
    }
