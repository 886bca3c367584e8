"""A judge of anonymisers that shares no code with what they are trained with.

NumPy, and SciPy's isotonic regression.

It attacks as whoever has pairs of original and protected speech can: ridge regression both ways,
onto original speech as it is or whitened, and canonical correlation, each at ridges from 1e-6 to
1e-1 of the mean variance. The largest D_ECE of all, in either direction, is what counts: a
pessimistic choice, for it is made on the speakers reported on.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


class Speech(NamedTuple):
    """Rows of both sides, with speaker, utterance and session of each."""

    original: np.ndarray
    protected: np.ndarray
    speakers: np.ndarray
    utterances: np.ndarray
    sessions: np.ndarray

    def rows(self, chosen):
        return Speech(*(part[chosen] for part in self))

    def trials_of_other_recordings(self):
        """Return which pairs are of two recordings, and whether each of these is of one speaker."""
        pairs = self.utterances[:, None] != self.utterances
        return pairs, (self.speakers[:, None] == self.speakers)[pairs]


def judge(evaluated, watched, folds=4):
    """D_ECE in bits, the larger of both directions.

    OP by cosine, by the strongest attack, PP by session.

    Attacks are fitted on other folds of the evaluated speakers, or on all the attacker watched.
    """
    fold = np.unique(evaluated.speakers, return_inverse=True)[1] % folds
    found, labels = {}, []
    for k in range(folds):
        own = evaluated.rows(fold == k)
        pairs, same = own.trials_of_other_recordings()
        labels.append(same)
        for name, scores in attacks(evaluated.rows(fold != k), own):
            found.setdefault(name, []).append(scores[pairs])
    in_folds = [
        two_sided(np.concatenate(scores), np.concatenate(labels)) for scores in found.values()
    ]
    pairs, same = evaluated.trials_of_other_recordings()
    observed = {
        name: two_sided(scores[pairs], same) for name, scores in attacks(watched, evaluated)
    }
    within, across = pseudonyms(evaluated)
    return {
        "cosine": observed["cosine"],
        "in folds": max(in_folds),
        "watched": max(observed.values()),
        "within": within,
        "across": across,
    }


def pseudonyms(speech):
    """PP within sessions and across them; 0 across where there is one session per speaker."""
    scores = unit(speech.protected) @ unit(speech.protected).T
    same, session = (labels[:, None] == labels for labels in (speech.speakers, speech.sessions))
    above = np.triu(np.ones_like(same), 1)
    within, across = above & (~same | session), above & (~same | ~session)
    linked = two_sided(scores[across], same[across]) if same[across].any() else 0.0
    return two_sided(scores[within], same[within]), linked


def attacks(known, new):
    """Name and scores ``(N, N)`` of every attack.

    It is fitted on what is known, and used on what is new.
    """
    yield "cosine", unit(new.protected) @ unit(new.original).T
    mean_o, mean_p = known.original.mean(0), known.protected.mean(0)
    o, p = known.original - mean_o, known.protected - mean_p
    new_o, new_p = new.original - mean_o, new.protected - mean_p
    yield "centred", unit(new_p) @ unit(new_o).T
    oo, pp, po = o.T @ o / len(o), p.T @ p / len(o), p.T @ o / len(o)
    white = power(oo, 1e-3, -0.5)
    for ridge in RIDGES:
        to_original, to_protected = power(pp, ridge, -1) @ po, power(oo, ridge, -1) @ po.T
        yield f"to original {ridge:g}", unit(new_p @ to_original) @ unit(new_o).T
        yield (
            f"to whitened original {ridge:g}",
            unit(new_p @ to_original @ white) @ unit(new_o @ white).T,
        )
        yield f"to protected {ridge:g}", unit(new_p) @ unit(new_o @ to_protected).T
        white_o, white_p = power(oo, ridge, -0.5), power(pp, ridge, -0.5)
        u, correlation, vt = np.linalg.svd(white_p @ po @ white_o)
        weight = np.sqrt(correlation / (1 - np.minimum(correlation, 1) ** 2 + 1e-3))
        yield (
            f"canonical {ridge:g}",
            unit(new_p @ white_p @ (u * weight)) @ unit(new_o @ white_o @ (vt.T * weight)).T,
        )


def power(covariance, ridge, exponent):
    """A covariance with a ridge, relative to the mean variance, to a power."""
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0)
    return (vectors * (values + ridge * values.mean()) ** exponent) @ vectors.T


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def two_sided(scores, same):
    """D_ECE of scores or of their negatives, whichever says more."""
    return max(d_ece(scores, same), d_ece(-scores, same))


def d_ece(scores, same):
    """D_ECE in bits of scores calibrated by PAV, equal scores pooled first."""
    _, place = np.unique(scores, return_inverse=True)
    trials, targets = np.bincount(place), np.bincount(place, same)
    share = isotonic_regression(targets / trials, weights=trials).x
    prior = same.mean()
    with np.errstate(divide="ignore"):
        llr = np.log(share) - np.log1p(-share) - math.log(prior / (1 - prior))
    of_targets, of_nontargets = targets > 0, targets < trials
    bits = np.average(z(llr[of_targets]), weights=targets[of_targets])
    bits += np.average(z(-llr[of_nontargets]), weights=(trials - targets)[of_nontargets])
    return float(bits) / (2 * math.log(2))


def z(llr):
    """Evidence of a log-likelihood ratio (eq. 13 of Noé et al., 2022)."""
    near = np.abs(llr) < 1e-3
    x, small = np.where(near, 1, np.minimum(llr, 300)), np.where(near, llr, 0)
    return np.where(near, small / 3 - small**2 / 12, 0.5 + (x - np.expm1(x)) / np.expm1(x) ** 2)
