"""What the trials of one speaker disclose, by the calibration of all.

And what that weighs in the D_ECE of all.
"""

import numpy as np

from .isotonic import pav_llr
from .rank import covered_ranks, rank_histogram
from .zebra import z, zebra_disclosure

SIDES = {"enrolled": (0,), "probed": (1,), "both": (0, 1)}


def speaker_disclosure(preds, target, speakers, side):
    """For each speaker: the two halves of D_ECE, how many trials each averages, and the worst case.

    NaN for none.

    ``speakers`` ``(2, P)``. In ``both`` a non-target trial belongs to each of its two speakers.
    """
    llr, laplace = pav_llr(preds, target), pav_llr(preds, target, laplace=True)
    found = {}
    for name in np.unique(speakers):
        own = np.any([speakers[row] == name for row in SIDES[side]], axis=0)
        of_targets = [z(llr[k]) for k in np.flatnonzero(own & (target == 1))]
        of_nontargets = [z(-llr[k]) for k in np.flatnonzero(own & (target == 0))]
        means = [
            np.mean(part) / (2 * np.log(2)) if part else np.nan
            for part in (of_targets, of_nontargets)
        ]
        worst = np.max(np.abs(laplace[own])) / np.log(10) if own.any() else np.nan
        found[name] = (*means, len(of_targets), len(of_nontargets), worst)
    return found


def largest_means(values, speakers):
    """The largest mean over the values of one speaker."""
    return max(np.mean(values[speakers == name]) for name in np.unique(speakers))


def rank_bits(scores, true_index):
    """What the rank of each input discloses by the histogram of all.

    On average over the ranks it is tied for.
    """
    histogram = rank_histogram(scores, true_index)
    with np.errstate(divide="ignore"):
        bits = np.log2(len(histogram) * histogram / histogram.sum())
    return np.array(
        [np.mean(bits[covered_ranks(*trial)]) for trial in zip(scores, true_index, strict=True)]
    )


def worst_and_spread(preds, target, speakers, side):
    """Largest D_ECE of a speaker, their place among all, and the standard deviation.

    Over all speakers who have one.
    """
    found = speaker_disclosure(preds, target, speakers, side)
    values = {
        name: each[0] + each[1] for name, each in found.items() if not np.isnan(each[0] + each[1])
    }
    worst = max(values, key=values.get)
    return {
        "worst_speaker_d_ece": values[worst],
        "worst_speaker": list(found).index(worst),
        "speaker_d_ece_spread": np.std(list(values.values()), ddof=1),
    }


def worst_alone(preds, target, speakers):
    """The largest two-sided D_ECE of one tested speaker's trials, calibrated on these alone.

    NaN if none has any.
    """
    values = []
    for name in np.unique(speakers[1]):
        own = speakers[1] == name
        found = zebra_disclosure(preds[own], target[own])
        values.append(max(found["d_ece"], found["d_ece_reversed"]))
    return np.nanmax(values)
