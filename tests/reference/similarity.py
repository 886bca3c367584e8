"""Voice similarity matrices and what is read from them.

Noé et al., Interspeech 2020 and CSL 2022, section 4.
"""

import numpy as np

from .isotonic import pav_llr
from .verification import min_cllr
from .zebra import zebra_disclosure


def cosine(a, b):
    """Cosine of the angle between two embeddings."""
    return np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b))


def trials(original, protected, speakers, condition):
    """Scores, targets, and the two utterances (i, j) of every trial of a condition.

    OO and PP: every unordered pair of different utterances once. OP: every ordered pair (original
    i, protected j) with i != j, for an utterance is never compared with its own protected version.
    """
    first, second = ({"O": original, "P": protected}[letter] for letter in condition)
    scores, target, pairs = [], [], []
    for i in range(len(speakers)):
        for j in range(len(speakers)):
            if i < j or (condition == "OP" and i != j):
                scores.append(cosine(first[i], second[j]))
                target.append(int(speakers[i] == speakers[j]))
                pairs.append((i, j))
    return np.array(scores, dtype=float), np.array(target, dtype=int), pairs


def similarity_matrix(original, protected, speakers, condition, similarity="geometric"):
    """M of equation 6, speakers ascending.

    Calibrated by PAV with Laplace's rule within its condition.

    ``geometric`` is the mean of 2022, ``sigmoid`` the sigmoid of the mean LLR of 2020.
    """
    scores, target, pairs = trials(original, protected, speakers, condition)
    names, place = np.unique(speakers, return_inverse=True)
    cells = place[np.array(pairs)]
    if condition != "OP":  # for matrices both orders of a pair count
        scores, target, cells = (
            np.tile(scores, 2),
            np.tile(target, 2),
            np.vstack([cells, cells[:, ::-1]]),
        )
    return matrix_of_cells(scores, target, cells, len(names), similarity)


def matrix_of_cells(scores, target, cells, size, similarity="geometric"):
    """The same from trials and the row and column of each. A cell without trials is NaN."""
    matrix, llr = np.full((size, size), np.nan), pav_llr(scores, target, laplace=True)
    for row, column in np.unique(cells, axis=0):
        own = llr[np.all(cells == (row, column), axis=1)]
        if similarity == "geometric":
            # ln sigmoid(x) = -ln(1 + e^-x)
            matrix[row, column] = np.exp(-np.mean(np.logaddexp(0, -own)))
        else:
            matrix[row, column] = 1 / (1 + np.exp(-np.mean(own)))
    return matrix


def mean_of_defined(values):
    """Mean without the NaN cells; NaN if nothing is left."""
    values = [v for v in values if not np.isnan(v)]
    return np.mean(values) if values else np.nan


def diagonal_dominance(matrix, log_domain=False):
    """Equation 8. In the log domain.

    The mean of -log2 Sim off the diagonal minus that on it, with its sign.
    """
    values = -np.log2(matrix) if log_domain else matrix
    size = len(values)
    on = mean_of_defined([values[i, i] for i in range(size)])
    off = mean_of_defined([values[i, j] for i in range(size) for j in range(size) if i != j])
    return off - on if log_domain else abs(on - off)


def ratio(value, reference):
    """NaN if there was nothing to begin with; what rounding leaves of nothing is nothing."""
    if abs(reference) < 1e-12:
        return np.nan
    return 0.0 if abs(value) < 1e-12 else value / reference


def gain(value, reference):
    """A ratio in dB: -inf if nothing is left."""
    with np.errstate(divide="ignore"):
        return 10 * np.log10(ratio(value, reference))


def de_identification(oo, op):
    """DeID, equation 9, as a fraction; NaN if the original voices show no diagonal."""
    return 1 - ratio(diagonal_dominance(op), diagonal_dominance(oo))


def voice_distinctiveness(oo, pp):
    """G_VD, equation 10, in dB."""
    return gain(diagonal_dominance(pp), diagonal_dominance(oo))


def normalised_relatives(d_ece, min_cllr):
    """Both read as de-identification and as gain, equations 17 to 20; arguments by condition.

    Equation 20 is printed with OO above and below the line; above it belongs PP.
    """
    return {
        "d_ece_op_oo": 1 - ratio(d_ece["OP"], d_ece["OO"]),
        "cllr_op_oo": ratio(min_cllr["OP"] - min_cllr["OO"], 1 - min_cllr["OO"]),
        "g_d_ece": gain(d_ece["PP"], d_ece["OO"]),
        "g_cllr": gain(1 - min_cllr["PP"], 1 - min_cllr["OO"]),
    }


def embedding_relatives(original, protected, speakers):
    """The same from embeddings."""
    found = {c: trials(original, protected, speakers, c)[:2] for c in ("OO", "OP", "PP")}
    return normalised_relatives(
        {c: zebra_disclosure(*found[c])["d_ece"] for c in found},
        {c: min_cllr(*found[c]) for c in found},
    )
