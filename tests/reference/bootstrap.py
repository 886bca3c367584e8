"""Intervals that honour that trials share speakers: speakers drawn and their trials repeated, or one left out."""

import numpy as np
from scipy.stats import t

from . import similarity, verification


def repeated(preds, target, speakers, drawn):
    """Scores and labels of the trials of the speakers ``drawn``, some of them several times.

    Every copy of a speaker brings that speaker's target trials. Two copies bring the non-target trials of their two
    speakers; two copies of one speaker have none.
    """
    scores, labels = [], []
    for p, one in enumerate(drawn):
        for q, other in enumerate(drawn):
            for score, is_target, enrol, probe in zip(preds, target, *speakers, strict=True):
                if (enrol, probe) == (one, other) and (is_target if p == q else one != other):
                    scores.append(score)
                    labels.append(is_target)
    return np.array(scores), np.array(labels)


def left_out(preds, target, speakers, nobody):
    """Scores and labels of the trials that ``nobody`` speaks in."""
    kept = [nobody not in pair for pair in zip(*speakers, strict=True)]
    return np.asarray(preds)[kept], np.asarray(target)[kept]


def jackknife(value, without, confidence, is_fitted):
    """Both ends of an interval from the values without each speaker, with Tukey's variance and Quenouille's bias."""
    number, mean = len(without), np.mean(without)
    error = np.sqrt((number - 1) / number * np.sum((np.array(without) - mean) ** 2))
    centre = number * value - (number - 1) * mean if is_fitted else value
    reach = t.ppf((1 + confidence) / 2, number - 1) * error
    return centre - reach, centre + reach


def similarity_matrix(original, protected, speakers, drawn, condition):
    """The matrix of drawn speakers, each copy a row and a column, calibrated on the trials repeated."""
    scores, target, pairs = similarity.trials(original, protected, speakers, condition)
    trials = list(zip(scores, target, pairs, strict=True))
    if condition != "OP":  # for matrices both orders of a pair count
        trials += [(score, is_target, (j, i)) for score, is_target, (i, j) in trials]
    preds, labels, cells = [], [], []
    for p, one in enumerate(drawn):
        for q, other in enumerate(drawn):
            for score, is_target, (i, j) in trials:
                if (speakers[i], speakers[j]) == (one, other) and (p == q or one != other):
                    preds.append(score)
                    labels.append(is_target)
                    cells.append((p, q))
    return similarity.matrix_of_cells(np.array(preds), np.array(labels), np.array(cells), len(drawn))


def measures(preds, target, edges):
    """All measures by their definitions; the bins of linkability are given."""
    p, q = (np.histogram(preds[target == label], edges)[0] for label in (1, 0))
    p, q = p / p.sum(), q / q.sum()
    linkability = np.where(p > q, p * (p - q) / np.maximum(p + q, 1e-300), 0).sum()
    return {**verification.score_measures(preds, target), "linkability": linkability}
