"""Similarity rank disclosure (Chandra et al., 2026, section 3)."""

from itertools import product

import numpy as np
from scipy.optimize import brentq, minimize, minimize_scalar

from .order import canonical_order
from .similarity import cosine


def likeness(a, b, scoring):
    """Higher = more alike."""
    return cosine(a, b) if scoring == "cosine" else -np.sqrt(np.sum((a - b) ** 2))


def reference_scores(
    references, inputs, speakers, is_reference=None, scoring="cosine", order_of=None
):
    """Scores of every input against N references, and the column of the matching one.

    One reference per speaker, ascending.

    A reference is the mean embedding of its speaker. With ``is_reference`` it is the mean of the
    rows marked there and the other rows are inputs; without, every row is an input and is left out
    of its own speaker's mean, *in step*: if it is the j-th of its speaker's rows, every other
    speaker's mean lacks its j-th row as well, counted round and round (none, if there is but one).
    Rows of a speaker are in canonical order, that of ``order_of`` where it is given, else of the
    references. An input whose speaker has no reference left is no trial.
    """
    speakers = np.asarray(speakers)
    marked = (
        np.ones(len(speakers), dtype=bool)
        if is_reference is None
        else np.asarray(is_reference, dtype=bool)
    )
    names = np.unique(speakers[marked]).tolist()
    order = [
        i
        for i in canonical_order(references if order_of is None else order_of, inputs)
        if marked[i]
    ]
    rows = {name: [i for i in order if speakers[i] == name] for name in names}
    scores, true_index = [], []
    for i in range(len(speakers)):
        if is_reference is not None and (marked[i] or speakers[i] not in rows):
            continue
        kept = dict(rows)
        if is_reference is None:
            if len(rows[speakers[i]]) < 2:
                continue
            j = rows[speakers[i]].index(i)
            kept = {
                name: [r for k, r in enumerate(own) if len(own) == 1 or k != j % len(own)]
                for name, own in rows.items()
            }
        means = [np.mean(references[kept[name]], axis=0) for name in names]
        scores.append([likeness(mean, inputs[i], scoring) for mean in means])
        true_index.append(names.index(speakers[i]))
    return np.array(scores).reshape(-1, len(names)), np.array(true_index, dtype=int)


def covered_ranks(row, true, atol=1e-12):
    """The ranks that a tie of the matching reference covers, one where there is none.

    Scores within ``atol`` are tied, because the means of equal embeddings differ by rounding.
    """
    better = sum(s > row[true] + atol for s in row)
    return list(range(better, better + sum(abs(s - row[true]) <= atol for s in row)))


def rank_histogram(scores, true_index):
    """How many inputs have their matching reference at each of the N ranks.

    The mass of a tie is shared by the ranks it covers: the expectation of breaking it at random.
    """
    counts = np.zeros(scores.shape[1])
    for row, true in zip(scores, true_index, strict=True):
        covered = covered_ranks(row, true)
        counts[covered] += 1 / len(covered)
    return counts


def beta_binomial(n_ranks, alpha, beta):
    """Probability of each rank: rank - 1 ~ BB(N - 1, alpha, beta)."""
    n = n_ranks - 1

    # ln x (x + 1) ... (x + k - 1) for k = 0 ... n: unlike ln Gamma, nothing cancels for large x
    def rising(x):
        return np.r_[0, np.cumsum(np.log(x + np.arange(n)))]

    log_choose = rising(1)[-1] - rising(1) - rising(1)[::-1]
    return np.exp(log_choose + rising(alpha) + rising(beta)[::-1] - rising(alpha + beta)[-1])


# ln alpha and ln beta are sought in [-12, 12]; beyond, the distribution no longer changes
LIMIT = 12.0


def fit_beta_binomial(histogram):
    """gamma by maximum likelihood, where gamma_1 is the observed share at rank 1.

    For each alpha one beta meets the constraint (gamma_1 grows with beta), so one search over alpha
    is left. The constraint is dropped if nothing is at rank 1; if everything is, gamma is that
    point.
    """
    n_ranks, first = len(histogram), histogram[0] / np.sum(histogram)
    if first == 1:
        return np.eye(n_ranks)[0]

    def loss(gamma):
        return -np.sum(histogram * np.log(np.maximum(gamma, 1e-300)))

    if first == 0:
        simplex = {
            "method": "Nelder-Mead",
            "bounds": [(-LIMIT, LIMIT)] * 2,
            "options": {"xatol": 1e-8, "fatol": 1e-12},
        }
        starts = product((-3.0, 0.0, 3.0), repeat=2)
        fits = [
            minimize(lambda x: loss(beta_binomial(n_ranks, *np.exp(x))), start, **simplex)
            for start in starts
        ]
        return beta_binomial(n_ranks, *np.exp(min(fits, key=lambda fit: fit.fun).x))

    def constrained(log_alpha):
        alpha = np.exp(log_alpha)
        log_beta = brentq(
            lambda x: beta_binomial(n_ranks, alpha, np.exp(x))[0] - first, -60, 60, xtol=1e-13
        )
        return beta_binomial(n_ranks, alpha, np.exp(log_beta))

    # A grid first: the likelihood may be flat far from its top, where a search by itself would
    # stay.
    grid = np.linspace(-LIMIT, LIMIT, 49)
    best = grid[np.argmin([loss(constrained(x)) for x in grid])]
    near = (max(best - 0.5, -LIMIT), min(best + 0.5, LIMIT))
    fit = minimize_scalar(
        lambda x: loss(constrained(x)), bounds=near, method="bounded", options={"xatol": 1e-10}
    )
    return constrained(fit.x)


def rank_disclosure(histogram, model="empirical"):
    """The four numbers of the paper; NaN for fewer than two references or without inputs.

    The disclosure of rank j is log2(N gamma_j): equation 1 is printed with the opposite sign, its
    tables are not.
    """
    histogram = np.asarray(histogram, dtype=float)
    n_ranks, total = len(histogram), np.sum(histogram)
    if n_ranks < 2 or total == 0:
        return dict.fromkeys(("max_d", "mean_d", "id_rate", "rank_spread"), np.nan)
    gamma = histogram / total if model == "empirical" else fit_beta_binomial(histogram)
    disclosure = [np.log2(n_ranks * g) if g > 0 else -np.inf for g in gamma]
    return {
        "max_d": max(disclosure),
        "mean_d": sum(g * d for g, d in zip(gamma, disclosure, strict=True) if g > 0),
        "id_rate": histogram[0] / total,
        # A uniform histogram is not above chance: neither its sum of thirds nor the search of a fit
        # is exact.
        "rank_spread": np.mean([n_ranks * g > 1 + 1e-6 for g in gamma]),
    }
