"""A judge of anonymisers that shares no code with what they are trained with: NumPy, and SciPy's isotonic regression.

It attacks as whoever has pairs of original and protected speech can: ridge regression both ways, onto original speech
as it is or whitened, and canonical correlation, each at ridges from 1e-6 to 1e-1 of the mean variance. The largest
D_ECE of all, in either direction, is what counts: a pessimistic choice, for it is made on the speakers reported on.
"""

from __future__ import annotations

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

    def rows(self, chosen: np.ndarray) -> Speech:
        """Some of the rows."""
        return Speech(*(part[chosen] for part in self))


def judge(evaluated: Speech, watched: Speech, folds: int = 4) -> dict[str, float]:
    """D_ECE in bits, the larger of both directions: OP by cosine, by the strongest attack, PP by session.

    Attacks are fitted on other folds of the evaluated speakers, or on all the attacker watched.
    """
    number = {name: place % folds for place, name in enumerate(np.unique(evaluated.speakers))}
    fold = np.array([number[name] for name in evaluated.speakers])
    found: dict[str, list[np.ndarray]] = {}
    labels = []
    for k in range(folds):
        own, others = evaluated.rows(fold == k), evaluated.rows(fold != k)
        pairs = own.utterances[:, None] != own.utterances
        labels.append((own.speakers[:, None] == own.speakers)[pairs])
        for name, scores in attacks(others, own):
            found.setdefault(name, []).append(scores[pairs])
    in_folds = {name: two_sided(np.concatenate(scores), np.concatenate(labels)) for name, scores in found.items()}
    pairs = evaluated.utterances[:, None] != evaluated.utterances
    same = evaluated.speakers[:, None] == evaluated.speakers
    observed = {name: two_sided(scores[pairs], same[pairs]) for name, scores in attacks(watched, evaluated)}
    within, across = pseudonyms(evaluated)
    return {
        "cosine": observed["cosine"],
        "in folds": max(in_folds.values()),
        "watched": max(observed.values()),
        "within": within,
        "across": across,
    }


def pseudonyms(speech: Speech) -> tuple[float, float]:
    """PP within sessions and across them; 0 across where there is one session per speaker."""
    scores = unit(speech.protected) @ unit(speech.protected).T
    same, session = (labels[:, None] == labels for labels in (speech.speakers, speech.sessions))
    above = np.triu(np.ones_like(same), 1)
    within, across = above & (~same | session), above & (~same | ~session)
    linked = two_sided(scores[across], same[across]) if same[across].any() else 0.0
    return two_sided(scores[within], same[within]), linked


def attacks(known: Speech, new: Speech):
    """Name and scores ``(N, N)`` of every attack, fitted on what is known and used on what is new."""
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
        yield f"to whitened original {ridge:g}", unit(new_p @ to_original @ white) @ unit(new_o @ white).T
        yield f"to protected {ridge:g}", unit(new_p) @ unit(new_o @ to_protected).T
        white_o, white_p = power(oo, ridge, -0.5), power(pp, ridge, -0.5)
        u, correlation, vt = np.linalg.svd(white_p @ po @ white_o)
        weight = np.sqrt(correlation / (1 - np.minimum(correlation, 1) ** 2 + 1e-3))
        yield f"canonical {ridge:g}", unit(new_p @ white_p @ (u * weight)) @ unit(new_o @ white_o @ (vt.T * weight)).T


def power(covariance: np.ndarray, ridge: float, exponent: float) -> np.ndarray:
    """A covariance with a ridge, relative to the mean variance, to a power."""
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0)
    return (vectors * (values + ridge * values.mean()) ** exponent) @ vectors.T


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def two_sided(scores: np.ndarray, same: np.ndarray) -> float:
    """D_ECE of scores or of their negatives, whichever says more."""
    return max(d_ece(scores, same), d_ece(-scores, same))


def d_ece(scores: np.ndarray, same: np.ndarray) -> float:
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


def z(llr: np.ndarray) -> np.ndarray:
    """Evidence of a log-likelihood ratio (eq. 13 of Noé et al., 2022)."""
    near = np.abs(llr) < 1e-3
    x, small = np.where(near, 1, np.minimum(llr, 300)), np.where(near, llr, 0)
    return np.where(near, small / 3 - small**2 / 12, 0.5 + (x - np.expm1(x)) / np.expm1(x) ** 2)
