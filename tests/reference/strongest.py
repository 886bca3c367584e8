"""The fused attacker in loops.

Scores of features given, standardised by fold, weighed by pairs of the other folds.
"""

import numpy as np
from scipy.optimize import minimize

from .order import set_hash
from .similarity import cosine, trials
from .verification import equal_error_rate, tpr_at_fpr
from .zebra import zebra_disclosure

CLIP = 6.0
SMALLEST_GAP = 0.1
PRIOR_DEVIATION = 0.5
PROFILES = ("nothing", "protected", "labelled", "pairs")


def deal(vectors, speakers, most=5):
    """Fold of each speaker, and its place within the fold, in the canonical order of speakers."""
    names = np.unique(speakers)
    order = sorted(names, key=lambda name: set_hash(vectors[speakers == name]))
    folds = min(most, len(names) // 3)
    return {name: (place % folds, place // folds) for place, name in enumerate(order)}, folds


def pairs_by_fold(original, speakers, features):
    """Of each fold the scores of all features ``(P, A)``, and the kind of each pair.

    2 same, 1 next, 0 other.
    """
    dealt, folds = deal(original, speakers)
    scores = [[] for _ in range(folds)]
    kinds = [[] for _ in range(folds)]
    for i, j in np.ndindex(len(speakers), len(speakers)):
        (fold, place), (other, place_of_other) = dealt[speakers[i]], dealt[speakers[j]]
        if fold != other or i == j:
            continue
        scores[fold].append([score(fold, i, j) for score in features])
        kinds[fold].append(2 if place == place_of_other else int(place + 1 == place_of_other))
    return [np.array(each) for each in scores], [np.array(each) for each in kinds]


def gap_between_classes(scores, labels):
    """Distance between the class means of one score, in deviations within a class."""
    targets = scores[labels == 1]
    nontargets = scores[labels == 0]
    within = (np.var(targets) + np.var(nontargets)) / 2
    return abs(np.mean(targets) - np.mean(nontargets)) / np.sqrt(within)


def logistic_weights(scores, labels, num_utterances):
    """Weights of a logistic regression with balanced classes and an intercept.

    A weight has a normal prior, whose deviation is the gap between the classes by that score alone,
    relative to the largest one. Every utterance counts as one observation.
    """
    scores = np.clip(scores, -CLIP, CLIP)
    gaps = np.array([gap_between_classes(column, labels) for column in scores.T])
    deviation = PRIOR_DEVIATION * np.maximum(gaps / np.max(gaps), SMALLEST_GAP)
    share = np.where(labels == 1, 0.5 / np.sum(labels == 1), 0.5 / np.sum(labels == 0))
    sign = np.where(labels == 1, 1.0, -1.0)

    def cost(weights):
        margins = sign * (scores @ weights[:-1] + weights[-1])
        prior = np.sum((weights[:-1] / deviation) ** 2) / 2
        return share @ np.logaddexp(0, -margins) + prior / num_utterances

    start = np.zeros(scores.shape[1] + 1)
    return minimize(cost, start, method="BFGS", options={"gtol": 1e-9}).x[:-1]


def fuse(scores, kinds, num_utterances, is_permuted=False):
    """Fused scores of all folds, and whether each pair is a target.

    One of a speaker and the next if permuted.
    """
    num_folds = len(scores)
    fitted_on = num_utterances * (num_folds - 1) // num_folds
    standardised = [(each - each.mean(0)) / each.std(0) for each in scores]
    used = [kind != 2 if is_permuted else kind >= 0 for kind in kinds]
    labels = [(kind == (1 if is_permuted else 2)).astype(int) for kind in kinds]
    fused = []
    targets = []
    for fold in range(num_folds):
        others = [other for other in range(num_folds) if other != fold]
        # Pairs of a speaker and the next are left out where they are no targets: they are few, and
        # overlap the classes.
        fitted = [kind != 1 for kind in kinds] if not is_permuted else used
        weights = logistic_weights(
            np.concatenate([standardised[k][fitted[k]] for k in others]),
            np.concatenate([labels[k][fitted[k]] for k in others]),
            fitted_on,
        )
        fused.append(standardised[fold][used[fold]] @ weights)
        targets.append(labels[fold][used[fold]])
    return np.concatenate(fused), np.concatenate(targets)


def two_sided(scores, targets):
    """D_ECE of scores and of negated scores."""
    return {sign: zebra_disclosure(sign * scores, targets)["d_ece"] for sign in (1, -1)}


def strongest(original, protected, speakers, further_scores=()):
    """What StrongestAttack returns on OP for plain comparison and attacks that learn nothing.

    And need nothing.

    ``further_scores``: functions of an original and a protected embedding, one per attack.
    """
    scores, targets, _ = trials(original, protected, speakers, "OP")
    floor = two_sided(scores, targets)
    sign = max(floor, key=floor.get)
    features = [
        lambda _, i, j, score=score: score(original[i], protected[j])
        for score in (cosine, *further_scores)
    ]
    of_folds = pairs_by_fold(original, speakers, features)
    fused, labels = fuse(*of_folds, len(speakers))
    found = zebra_disclosure(fused, labels)["d_ece"]
    if floor[sign] >= found:
        compared = (sign * scores, targets)
    else:
        compared = (fused, labels)
    value = max(floor[sign], found)
    dealt, folds = deal(original, speakers)
    sizes = np.bincount([fold for fold, _ in dealt.values()], minlength=folds)
    return {
        "d_ece_strongest": value,
        "eer_strongest": equal_error_rate(*compared),
        "tpr_at_1e-2_strongest": tpr_at_fpr(*compared, 0.01),
        "tpr_at_1e-3_strongest": tpr_at_fpr(*compared, 0.001),
        "d_ece_chance": zebra_disclosure(*fuse(*of_folds, len(speakers), is_permuted=True))[
            "d_ece"
        ],
        "attack_speakers": float(len(dealt) - max(sizes)),
        **{f"d_ece_{profile}": value for profile in PROFILES},
    }
