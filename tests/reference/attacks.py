"""Attacks from rows, in loops and by SciPy's own solvers.

``o`` and ``p`` are normalised rows of both sides.
"""

import numpy as np
import scipy.linalg
from scipy.stats import multivariate_normal


def unit(x):
    """Rows of unit length."""
    return np.array([row / np.linalg.norm(row) for row in x])


def normalise(x, known, is_scaled=False):
    """Rows of unit length, centred as known rows of unit length are, and of unit length again.

    And scaled, where that is asked for.
    """
    known = unit(known)
    x = unit(x) - known.mean(0)
    return unit(x / known.std(0) if is_scaled else x)


def cosines(a, b):
    """Cosine of every row of one with every row of the other."""
    return np.array([[x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in b] for x in a])


def covariance(a, b):
    """Mean product of deviations, summed pair by pair."""
    a, b = a - a.mean(0), b - b.mean(0)
    return sum(np.outer(x, y) for x, y in zip(a, b, strict=True)) / len(a)


def with_ridge(c, strength):
    """A covariance with a ridge relative to the mean of its diagonal."""
    return c + strength * np.trace(c) / len(c) * np.eye(len(c))


def ridge(source, target, strength):
    """Least squares with a penalty, as rows added to the regression."""
    a, b = source - source.mean(0), target - target.mean(0)
    penalty = np.sqrt(strength * (a**2).sum() / a.shape[1]) * np.eye(a.shape[1])
    return np.linalg.lstsq(
        np.vstack([a, penalty]), np.vstack([b, np.zeros((a.shape[1], b.shape[1]))]), rcond=None
    )[0]


def procrustes(source, target):
    """The rotation nearest in squares."""
    return scipy.linalg.orthogonal_procrustes(source - source.mean(0), target - target.mean(0))[0]


def canonical(o, p, strength, added):
    """Maps to canonical variates, weighted.

    From the generalised eigenproblem of the two-block covariance.
    """
    d = o.shape[1]
    c_oo, c_pp, c_po = (
        with_ridge(covariance(o, o), strength),
        with_ridge(covariance(p, p), strength),
        covariance(p, o),
    )
    zero = np.zeros((d, d))
    rho, v = scipy.linalg.eigh(
        np.block([[zero, c_po.T], [c_po, zero]]), np.block([[c_oo, zero], [zero, c_pp]])
    )
    rho, v = rho[-d:], v[:, -d:] * np.sqrt(2)  # a pair of blocks has variance 1, so each half of it
    weight = 1 / np.sqrt(1 + added - rho**2)
    return v[:d] * weight, v[d:] * rho * weight


def likelihood_ratios(o, p, known_o, known_p, strength):
    """Log-likelihood ratio of every pair of rows.

    From Gaussian densities of pairs and of single rows.
    """
    c_oo, c_pp = (with_ridge(covariance(x, x), strength) for x in (known_o, known_p))
    c_po = covariance(known_p, known_o)
    mean_o, mean_p = known_o.mean(0), known_p.mean(0)
    both = multivariate_normal(
        np.concatenate([mean_o, mean_p]), np.block([[c_oo, c_po.T], [c_po, c_pp]])
    )
    alone_o, alone_p = multivariate_normal(mean_o, c_oo), multivariate_normal(mean_p, c_pp)
    return np.array(
        [
            [both.logpdf(np.concatenate([x, y])) - alone_o.logpdf(x) - alone_p.logpdf(y) for y in p]
            for x in o
        ]
    )


def within_and_between(p, speakers):
    """Mean products of deviations from the speaker's mean, and of those of the mean itself."""
    centre, within, between = p.mean(0), 0, 0
    for row, speaker in zip(p, speakers, strict=True):
        own = p[speakers == speaker].mean(0)
        within = within + np.outer(row - own, row - own) / len(p)
        between = between + np.outer(own - centre, own - centre) / len(p)
    return within, between


def plda(p, speakers, strength):
    """The matrix of products that PLDA weighs two rows by."""
    within, between = within_and_between(p, speakers)
    white = scipy.linalg.inv(scipy.linalg.sqrtm(with_ridge(within, strength))).real
    b = white @ between @ white
    return white @ b @ np.linalg.inv(np.eye(len(b)) + 2 * b) @ white


def kernel_ridge(source, target, queries, strength, kernel):
    """Predicted deviations of the target, row by row."""
    table = np.array([[kernel(x, y) for y in source] for x in source])
    alpha = scipy.linalg.solve(
        table + strength * np.mean(np.diag(table)) * np.eye(len(source)), target - target.mean(0)
    )
    return np.array([[kernel(x, y) for y in source] for x in queries]) @ alpha


def outer_products(x, known):
    """All products of two dimensions, centred on known rows."""
    return np.array([np.outer(row, row).ravel() for row in x]) - np.mean(
        [np.outer(row, row).ravel() for row in known], 0
    )


def separation(o, p, speakers):
    """Mean score of two utterances of one speaker above that of two speakers.

    In standard deviations, pair by pair.
    """
    same, other = [], []
    for k in range(len(o)):
        for j in range(len(p)):
            if speakers[k] != speakers[j]:
                other.append(o[k] @ p[j])
            elif k != j:
                same.append(o[k] @ p[j])
    spread = np.sum((same - np.mean(same)) ** 2) + np.sum((other - np.mean(other)) ** 2)
    return (np.mean(same) - np.mean(other)) / np.sqrt(spread / (len(same) + len(other)))
