"""Which checkpoints are worth keeping, and which of them to choose, when privacy and utility disagree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class ParetoPoint(NamedTuple):
    """A checkpoint by what it discloses and what it is good for, and between which ends, where these are logged."""

    epoch: int
    step: int
    disclosure: dict[str, float]
    utility: float
    path: str
    intervals: dict[str, list[float]] = {}  # noqa: RUF012  nobody changes one


def is_finite(point: ParetoPoint) -> bool:
    """Whether the point can be compared with others at all."""
    return all(map(math.isfinite, (point.utility, *point.disclosure.values())))


def dominates(one: ParetoPoint, other: ParetoPoint, mode: str) -> bool:
    """Whether ``one`` is at least as good as ``other`` in everything; of two equals the earlier one stays.

    Example:
        >>> early = ParetoPoint(0, 10, {"d_ece": 0.2}, utility=1.0, path="")
        >>> [dominates(early, early._replace(utility=value), mode="min") for value in (0.5, 1.0, 1.5)]
        [False, True, True]
    """
    return _cost(one, mode) <= _cost(other, mode) and all(
        value <= other.disclosure[name] for name, value in one.disclosure.items()
    )


def front_with(front: Sequence[ParetoPoint], point: ParetoPoint, mode: str) -> list[ParetoPoint]:
    """The front after a point came in, least disclosure first; unchanged if that point is dominated.

    Example:
        >>> private = ParetoPoint(0, 10, {"d_ece": 0.1}, utility=3.0, path="a")
        >>> useful = ParetoPoint(1, 20, {"d_ece": 0.4}, utility=1.0, path="b")
        >>> better = ParetoPoint(2, 30, {"d_ece": 0.3}, utility=0.9, path="c")
        >>> [p.path for p in front_with(front_with([private], useful, "min"), better, "min")]
        ['a', 'c']
    """
    if any(dominates(kept, point, mode) for kept in front):
        return list(front)
    kept = [*(other for other in front if not dominates(point, other, mode)), point]
    return sorted(kept, key=lambda one: (*one.disclosure.values(), _cost(one, mode)))


def spread(front: Sequence[ParetoPoint], most: int, chosen: ParetoPoint | None, mode: str) -> list[ParetoPoint]:
    """At most so many points of a front: the chosen one, both ends while there is room, and the rest far apart.

    Points leave one by one, each time the one whose neighbours are nearest to each other, summed over all axes in
    shares of the front's width. Of two alike, the one that discloses more goes.

    Example:
        >>> values = (0.0, 0.1, 0.2, 0.6, 1.0)
        >>> front = [ParetoPoint(0, n, {"d_ece": d}, utility=1 - d, path="") for n, d in enumerate(values)]
        >>> [point.disclosure["d_ece"] for point in spread(front, 4, front[1], "min")]
        [0.0, 0.1, 0.6, 1.0]
        >>> [point.disclosure["d_ece"] for point in spread(front, 2, front[1], "min")]
        [0.0, 0.1]
    """
    kept = list(front)
    while len(kept) > most:
        room = _room(kept, mode)
        leaves = min((room[at], -at) for at, point in enumerate(kept) if point != chosen)
        del kept[-leaves[1]]
    return kept


def _room(points: Sequence[ParetoPoint], mode: str) -> list[float]:
    """How far apart the neighbours of each point are, in shares of the whole width; infinite at both ends."""
    room = [0.0] * len(points)
    for values in zip(*((*point.disclosure.values(), _cost(point, mode)) for point in points), strict=True):
        order = sorted(range(len(points)), key=values.__getitem__)
        width = values[order[-1]] - values[order[0]] or 1.0
        for before, at, after in zip(order, order[1:], order[2:], strict=False):
            room[at] += (values[after] - values[before]) / width
        room[order[0]] = room[order[-1]] = math.inf
    return room


def meets(point: ParetoPoint, budgets: Mapping[str, float]) -> bool:
    """Whether no disclosure of the point is above its budget."""
    return all(point.disclosure[name] <= budget for name, budget in budgets.items())


def choose(front: Sequence[ParetoPoint], budgets: Mapping[str, float], mode: str) -> ParetoPoint | None:
    """Best utility among the points within all budgets; the least disclosure if there is none.

    Several disclosures are compared as shares of their budgets, by the largest share.

    Example:
        >>> private = ParetoPoint(0, 10, {"d_ece": 0.1}, utility=3.0, path="a")
        >>> useful = ParetoPoint(1, 20, {"d_ece": 0.4}, utility=1.0, path="b")
        >>> [choose([private, useful], {"d_ece": budget}, "min").path for budget in (0.05, 0.2, 0.5)]
        ['a', 'a', 'b']
    """
    if not front:
        return None

    # A chosen point must lie on the front, so ties are broken by what a point that dominates it would win.
    def shares(point: ParetoPoint) -> tuple[float, float]:
        each = [point.disclosure[name] / max(budget, 1e-12) for name, budget in budgets.items()]
        return max(each), sum(each)

    within = [point for point in front if meets(point, budgets)]
    if within:
        return min(within, key=lambda point: (_cost(point, mode), *shares(point)))
    return min(front, key=lambda point: (*shares(point), _cost(point, mode)))


def _cost(point: ParetoPoint, mode: str) -> float:
    return point.utility if mode == "min" else -point.utility
