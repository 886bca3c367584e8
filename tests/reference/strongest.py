"""The strongest attack, for an attacker who changes nothing: folds, chance, and a choice between two directions."""

import numpy as np

from .isotonic import pav_llr
from .similarity import cosine
from .verification import equal_error_rate
from .zebra import zebra_disclosure

BINS = 2**14


def deal(vectors, speakers, most=5):
    """Fold of each speaker, and its place within the fold, by a number that its mean embedding gives."""
    names = np.unique(speakers)
    weights = np.cos(np.arange(vectors.shape[1]))
    order = sorted(names, key=lambda name: np.mean(vectors[speakers == name], axis=0) @ weights)
    folds = min(most, len(names) // 3)
    return {name: (place % folds, place // folds) for place, name in enumerate(order)}, folds


def pairs_by_fold(original, protected, speakers):
    """Binned scores and kinds of all pairs within a fold: 2 of one speaker, 1 of one and the next, 0 of others."""
    dealt, folds = deal(original, speakers)
    scores, kinds = [[] for _ in range(folds)], [[] for _ in range(folds)]
    for i in range(len(speakers)):
        for j in range(len(speakers)):
            (fold, place), (other, place_of_other) = dealt[speakers[i]], dealt[speakers[j]]
            if i == j or fold != other:
                continue
            scores[fold].append(np.floor((cosine(original[i], protected[j]) + 1) * BINS / 2))
            kinds[fold].append(2 if place == place_of_other else 1 if place + 1 == place_of_other else 0)
    return [np.array(each) for each in scores], [np.array(each) for each in kinds]


def choose(scores, targets):
    """D_ECE and EER where each fold takes the first direction that finds 97 % of the best in the other folds."""
    folds, llr, target = range(len(scores)), [], []
    pooled = {sign: pav_llr(sign * np.concatenate(scores), np.concatenate(targets)) for sign in (1, -1)}
    ends = np.cumsum([len(each) for each in scores])[:-1]
    for fold in folds:
        others = [other for other in folds if other != fold]
        joined = np.concatenate([scores[k] for k in others]), np.concatenate([targets[k] for k in others])
        found = {sign: zebra_disclosure(sign * joined[0], joined[1])["d_ece"] for sign in (1, -1)}
        sign = 1 if found[1] >= 0.97 * max(found.values()) - 0.001 else -1
        llr.extend(np.split(pooled[sign], ends)[fold])
        target.extend(targets[fold])
    order = np.clip(np.array(llr), -1e6, 1e6)
    return zebra_disclosure(order, np.array(target))["d_ece"], equal_error_rate(order, np.array(target))


def strongest(original, protected, speakers):
    """What StrongestAttack returns where the only attack is to change nothing."""
    scores, kinds = pairs_by_fold(original, protected, speakers)
    d_ece, eer = choose(scores, [(kind == 2).astype(int) for kind in kinds])
    strangers = [kind < 2 for kind in kinds]
    chance, _ = choose(
        [score[other] for score, other in zip(scores, strangers, strict=True)],
        [kind[other] for kind, other in zip(kinds, strangers, strict=True)],
    )
    return {"d_ece_strongest": d_ece, "eer_strongest": eer, "strongest": 0.0, "d_ece_chance": chance}
