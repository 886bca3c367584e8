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


def canonical(o, p, strength):
    """Directions of original and protected speech, from the generalised eigenproblem of the two-block covariance.

    Scaled to unit variance, ridge included, and by the root of what a product of two variates says.
    """
    c_oo, c_pp, c_po = covariance(o, o), covariance(p, p), covariance(p, o)
    d = len(c_oo)
    c_oo, c_pp = (c + strength * np.trace(c) / d * np.eye(d) for c in (c_oo, c_pp))
    zero = np.zeros((d, d))
    rho, v = scipy.linalg.eigh(np.block([[zero, c_po.T], [c_po, zero]]), np.block([[c_oo, zero], [zero, c_pp]]))
    rho, v = rho[-d:], v[:, -d:] * np.sqrt(2)  # a pair of blocks has variance 1, so each half of it
    v = v * np.sqrt(rho / (1 - rho**2 + 1e-3))
    return v[:d], v[d:]


def within_and_between(p, speakers):
    """Mean products of deviations from the speaker's mean, and of those of the speaker's mean itself."""
    centre, within, between = p.mean(0), 0, 0
    for row, speaker in zip(p, speakers, strict=True):
        own = p[speakers == speaker].mean(0)
        within = within + np.outer(row - own, row - own) / len(p)
        between = between + np.outer(own - centre, own - centre) / len(p)
    return within, between


def discriminant(p, speakers, strength, directions):
    """Fisher's directions, of unit variance within speakers."""
    within, between = within_and_between(p, speakers)
    within = within + strength * np.trace(within) / len(within) * np.eye(len(within))
    return scipy.linalg.eigh(between, within)[1][:, -directions:]


def kernel_ridge(source, target, queries, strength, width):
    """Predicted deviations of the target, row by row."""
    centre, mean = source.mean(0), target.mean(0)
    scale = 2 * width * ((source - centre) ** 2).sum(1).mean()

    def kernel(a, b):
        return np.array([[np.exp(-((x - y) ** 2).sum() / scale) for y in b] for x in a])

    alpha = scipy.linalg.solve(kernel(source, source) + strength * np.eye(len(source)), target - mean)
    return kernel(queries, source) @ alpha
