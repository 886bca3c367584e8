"""Intervals that honour that trials share speakers.

Speakers drawn and their trials repeated, or one left out.
"""

import numpy as np
from scipy.stats import t

from . import verification


def repeated(preds, target, speakers, times):
    """Scores and labels of the trials of drawn speakers, some of them several times.

    ``times``: how often each speaker was drawn. Every copy of a speaker brings that speaker's
    target trials. Two copies bring the non-target trials of their two speakers; two copies of one
    speaker have none.
    """
    enrolled, tested = ([times[name] for name in side] for side in speakers)
    copies = np.where(target, enrolled, np.multiply(enrolled, tested))
    return np.repeat(preds, copies), np.repeat(target, copies)


def standard_errors(preds, target, speakers, edges, keys, replicates, generator):
    """Standard error of each measure by the bootstrap.

    Speakers drawn with replacement, and all measured again.
    """
    names = sorted({*speakers[0], *speakers[1]})
    found = []
    for _ in range(replicates):
        times = dict(
            zip(
                names,
                generator.multinomial(len(names), np.full(len(names), 1 / len(names))),
                strict=True,
            )
        )
        found.append(measures(*repeated(preds, target, speakers, times), edges))
    unbiased = np.sqrt(len(names) / (len(names) - 1))
    return {key: unbiased * np.std([values[key] for values in found], ddof=1) for key in keys}


def left_out(preds, target, speakers, nobody):
    """Scores and labels of the trials that ``nobody`` speaks in."""
    kept = [nobody not in pair for pair in zip(*speakers, strict=True)]
    return np.asarray(preds)[kept], np.asarray(target)[kept]


def jackknife(value, without, confidence, is_fitted):
    """Both ends of an interval from the values without each speaker.

    With Tukey's variance and Quenouille's bias.
    """
    number, mean = len(without), np.mean(without)
    error = np.sqrt((number - 1) / number * np.sum((np.array(without) - mean) ** 2))
    centre = number * value - (number - 1) * mean if is_fitted else value
    reach = t.ppf((1 + confidence) / 2, number - 1) * error
    return centre - reach, centre + reach


def measures(preds, target, edges):
    """All measures by their definitions; the bins of linkability are given."""
    p, q = (np.histogram(preds[target == label], edges)[0] for label in (1, 0))
    p, q = p / p.sum(), q / q.sum()
    linkability = np.where(p > q, p * (p - q) / np.maximum(p + q, 1e-300), 0).sum()
    return {**verification.score_measures(preds, target), "linkability": linkability}
