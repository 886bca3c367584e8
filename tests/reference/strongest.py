"""The strongest attack where the only one is plain comparison: all trials for the result, folds and luck for chance."""

import numpy as np

from .isotonic import pav_llr
from .similarity import cosine, trials
from .verification import equal_error_rate
from .zebra import zebra_disclosure

CHOICE_BINS, BINS = 2**11, 2**14  # of scores, for choices and for the result


def deal(vectors, speakers, most=5):
    """Fold of each speaker, and its place within the fold, by a number that its mean direction gives."""
    names = np.unique(speakers)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    weights = np.cos(np.arange(vectors.shape[1]))
    order = sorted(names, key=lambda name: np.mean(unit[speakers == name], axis=0) @ weights)
    folds = min(most, len(names) // 3)
    return {name: (place % folds, place // folds) for place, name in enumerate(order)}, folds


def chance_by_fold(original, protected, speakers):
    """Binned scores of pairs of two speakers of a fold, and whether one comes next to the other."""
    dealt, folds = deal(original, speakers)
    found = [[] for _ in range(folds)]
    for i, j in np.ndindex(len(speakers), len(speakers)):
        (fold, place), (other, place_of_other) = dealt[speakers[i]], dealt[speakers[j]]
        if fold == other and place != place_of_other:
            cell = np.floor((cosine(original[i], protected[j]) + 1) * BINS / 2)
            found[fold].append((cell, place + 1 == place_of_other))
    return [np.array(each)[:, 0] for each in found], [np.array(each)[:, 1].astype(int) for each in found]


def two_sided(scores, targets):
    """D_ECE of scores and of negated scores."""
    return {sign: zebra_disclosure(sign * scores, targets)["d_ece"] for sign in (1, -1)}


def choose(scores, targets):
    """D_ECE where each fold takes the first direction that finds 99 % of the best in the other folds."""
    folds, llr = range(len(scores)), []
    pooled = {sign: pav_llr(sign * np.concatenate(scores), np.concatenate(targets)) for sign in (1, -1)}
    ends = np.cumsum([len(each) for each in scores])[:-1]
    for fold in folds:
        others = [other for other in folds if other != fold]
        coarse = np.concatenate([scores[k] for k in others]) // (BINS // CHOICE_BINS)
        found = two_sided(coarse, np.concatenate([targets[k] for k in others]))
        sign = 1 if found[1] >= 0.99 * max(found.values()) - 0.001 else -1
        llr.extend(np.split(pooled[sign], ends)[fold])
    return zebra_disclosure(np.clip(np.array(llr), -1e6, 1e6), np.concatenate(targets))["d_ece"]


def strongest(original, protected, speakers):
    """What StrongestAttack returns where the only attack is plain comparison."""
    scores, targets, _ = trials(original, protected, speakers, "OP")
    found = two_sided(scores, targets)
    sign = max(found, key=found.get)
    lucky = chance_by_fold(original, protected, speakers)
    chance = [choose(*lucky), *two_sided(*map(np.concatenate, lucky)).values()]
    dealt, folds = deal(original, speakers)
    sizes = np.bincount([fold for fold, _ in dealt.values()], minlength=folds)
    return {
        "d_ece_strongest": found[sign],
        "eer_strongest": equal_error_rate(sign * scores, targets),
        "strongest": 0.0,
        "d_ece_chance": max(chance),
        "attack_speakers": float(len(dealt) - max(sizes)),
    }
