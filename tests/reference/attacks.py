"""Linear attackers from rows, in loops and by SciPy's own solvers."""

import numpy as np
import scipy.linalg


def covariance(a, b):
    """Mean product of deviations, summed pair by pair."""
    a, b = a - a.mean(0), b - b.mean(0)
    return sum(np.outer(x, y) for x, y in zip(a, b, strict=True)) / len(a)


def whiten(x, ridge):
    """Symmetric inverse square root of the covariance with a ridge."""
    c = covariance(x, x)
    return scipy.linalg.inv(scipy.linalg.sqrtm(c + ridge * np.trace(c) / len(c) * np.eye(len(c)))).real


def ridge(source, target, strength):
    """Least squares with a penalty, as rows added to the regression."""
    a, b = source - source.mean(0), target - target.mean(0)
    penalty = np.sqrt(strength * (a**2).sum() / a.shape[1]) * np.eye(a.shape[1])
    return np.linalg.lstsq(np.vstack([a, penalty]), np.vstack([b, np.zeros((a.shape[1], b.shape[1]))]), rcond=None)[0]


def procrustes(source, target):
    """The rotation nearest in squares."""
    return scipy.linalg.orthogonal_procrustes(source - source.mean(0), target - target.mean(0))[0]


def principal(x, dimensions):
    """Directions of largest variance."""
    return np.linalg.svd(x - x.mean(0))[2][:dimensions].T


def separation(o, p, speakers):
    """Mean product of two utterances of one speaker above that of two speakers, in standard deviations, pair by pair.

    An utterance and itself counts in the variance only: that of all pairs, less what the means explain.
    """
    same, other, every = [], [], []
    for k in range(len(o)):
        for j in range(len(p)):
            score = o[k] @ p[j]
            every.append(score)
            if speakers[k] != speakers[j]:
                other.append(score)
            elif k != j:
                same.append(score)
    gap = np.mean(same) - np.mean(other)
    share = len(same) / (len(same) + len(other))
    return gap / np.sqrt(np.var(every) - share * (1 - share) * gap**2)
