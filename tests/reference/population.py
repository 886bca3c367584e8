"""Somebody among N people, and singling one out.

By going through all sets of N that can be drawn.
"""

from itertools import combinations

import numpy as np
from scipy.integrate import quad
from scipy.special import beta as beta_function


def rate(scores: np.ndarray, own: int, size: int) -> float:
    """Mean over all galleries of ``size`` with the own speaker.

    Those tied for the first place share it.
    """
    others = [reference for reference in range(len(scores)) if reference != own]
    wins = []
    for drawn in combinations(others, size - 1):
        best = max([scores[own], *scores[list(drawn)]])
        tied = 1 + sum(scores[other] == best for other in drawn)
        wins.append(1 / tied if scores[own] == best else 0.0)
    return float(np.mean(wins))


def rate_beyond(alpha: float, beta: float, size: int) -> float:
    """Chance that none of ``size - 1`` strangers is better, by quadrature.

    Each is with a chance p ~ Beta(alpha, beta).
    """
    # In u = p ** alpha the density's pole at 0 is gone.
    integral = quad(
        lambda u: (1 - u ** (1 / alpha)) ** (size + beta - 2),
        0,
        1,
        epsabs=0,
        epsrel=1e-10,
        limit=1000,
    )[0]
    return integral / (alpha * beta_function(alpha, beta))


def rates(scores: np.ndarray, own: np.ndarray, sizes: tuple[int, ...]) -> dict[str, float]:
    """What the metric returns of scores ``(P, M)``.

    ``(P,)`` is the place of each probe's own reference.
    """
    values = {
        f"rate_{size}": np.mean([rate(*trial, size) for trial in zip(scores, own, strict=True)])
        for size in sizes
    }
    return (
        values
        | {f"chance_{size}": np.float64(1 / size) for size in sizes}
        | {"gallery": scores.shape[1]}
    )


def singling_out(tested: np.ndarray, calibration: list[np.ndarray], own: int, size: int) -> float:
    """Share of the sets of ``size`` people on which the predicate fires exactly once.

    Each set has the own speaker.

    ``tested`` ``(S,)`` are the scores of the tested conversations, ``calibration`` those of every
    speaker's others.
    """
    people = [speaker for speaker in range(len(tested)) if speaker != own]
    isolated = []
    for drawn in combinations(people, size - 1):
        members = [own, *drawn]
        descending = sorted(
            (score for speaker in members for score in calibration[speaker]), reverse=True
        )
        passing = len(calibration[own])
        # midway between the last that pass and the next
        level = (descending[passing - 1] + descending[passing]) / 2
        isolated.append(sum(tested[speaker] > level for speaker in members) == 1)
    return float(np.mean(isolated))
