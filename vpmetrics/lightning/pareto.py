"""The Pareto front of checkpoints: which are kept, and which one is chosen, when privacy and utility disagree."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class ParetoPoint(NamedTuple):
    """A checkpoint with its disclosures, its utility and, where logged, the confidence intervals of disclosures."""

    epoch: int
    step: int
    disclosure: dict[str, float]
    utility: float
    path: str
    intervals: dict[str, list[float]] = {}  # noqa: RUF012  never changed in place

    @property
    def is_finite(self) -> bool:
        """Whether the point can be compared with others."""
        return all(map(math.isfinite, (self.utility, *self.disclosure.values())))


class ParetoFront:
    """All measurements of a training, those of the Pareto front that are kept on disk, and the chosen one of these.

    Args:
        budgets: Largest disclosure allowed, by name.
        mode: ``"min"`` or ``"max"``, which utility is better.
        size: Largest number of points to keep; -1 keeps the whole front.

    Example:
        >>> front = ParetoFront({"d_ece": 0.2}, mode="min", size=1)
        >>> for step, (disclosure, loss) in enumerate([(0.3, 1.0), (0.1, 3.0), (0.15, 2.0)]):
        ...     front.kept = front.extend(ParetoPoint(0, step, {"d_ece": disclosure}, loss, path=f"{step}.ckpt"))
        >>> front.chosen.path, len(front.kept), len(front.measured), front.meets_budgets(front.chosen)
        ('2.ckpt', 1, 3, True)
    """

    def __init__(self, budgets: Mapping[str, float], mode: str, size: int) -> None:
        self.budgets, self.mode, self.size = dict(budgets), mode, size
        self.measured: list[ParetoPoint] = []
        self.kept: list[ParetoPoint] = []

    @property
    def chosen(self) -> ParetoPoint | None:
        """Best utility within all budgets, or least disclosure while no point meets them."""
        return choose(self.kept, self.budgets, self.mode)

    def meets_budgets(self, point: ParetoPoint) -> bool:
        """Return whether no disclosure of the point is above its budget."""
        return _meets(point, self.budgets)

    def extend(self, point: ParetoPoint) -> list[ParetoPoint]:
        """Record a measurement and return the points to keep, with it or without."""
        self.measured.append(point)
        front = add_point(self.kept, point, self.mode)
        return front if self.size < 0 else thin(front, self.size, choose(front, self.budgets, self.mode), self.mode)

    def to_json(self, folder: str, utility: str) -> str:
        """Return every measurement, with the paths of the kept ones relative to the folder."""
        paths = {(point.epoch, point.step): relative_path(folder, point.path) for point in self.kept}

        def row(point: ParetoPoint) -> dict[str, Any]:
            path = paths.get((point.epoch, point.step))
            return {**point._asdict(), "path": path, "within_budget": self.meets_budgets(point)}

        chosen = self.chosen
        content = {
            "privacy": self.budgets,
            "utility": utility,
            "mode": self.mode,
            "chosen": relative_path(folder, chosen.path) if chosen else "",
            "within_budget": chosen is not None and self.meets_budgets(chosen),
            "points": list(map(row, self.kept)),
            "measured": list(map(row, self.measured)),
        }
        return json.dumps(content, indent=2)


def relative_path(folder: str, path: str) -> str:
    """Return a path relative to the folder, so that the folder can be moved."""
    return path.removeprefix(f"{folder}/")


def add_point(front: Sequence[ParetoPoint], point: ParetoPoint, mode: str) -> list[ParetoPoint]:
    """Return the front with a point, least disclosure first; unchanged if the point is dominated.

    Example:
        >>> private = ParetoPoint(0, 10, {"d_ece": 0.1}, utility=3.0, path="a")
        >>> useful = ParetoPoint(1, 20, {"d_ece": 0.4}, utility=1.0, path="b")
        >>> better = ParetoPoint(2, 30, {"d_ece": 0.3}, utility=0.9, path="c")
        >>> [p.path for p in add_point(add_point([private], useful, "min"), better, "min")]
        ['a', 'c']
    """
    if any(_dominates(kept, point, mode) for kept in front):
        return list(front)
    kept = [*(other for other in front if not _dominates(point, other, mode)), point]
    return sorted(kept, key=lambda one: (*one.disclosure.values(), _cost(one, mode)))


def _dominates(one: ParetoPoint, other: ParetoPoint, mode: str) -> bool:
    """Return whether ``one`` is at least as good in everything; of two equal points the earlier one stays."""
    return _cost(one, mode) <= _cost(other, mode) and all(
        value <= other.disclosure[name] for name, value in one.disclosure.items()
    )


def thin(front: Sequence[ParetoPoint], size: int, chosen: ParetoPoint | None, mode: str) -> list[ParetoPoint]:
    """Return at most ``size`` points: the chosen one, both ends while there is room, and the rest far apart.

    Points leave one by one, each time the one whose neighbours are nearest to each other, summed over all axes as
    shares of the front's width. Of two equal ones, that of larger disclosure leaves.

    Example:
        >>> values = (0.0, 0.1, 0.2, 0.6, 1.0)
        >>> front = [ParetoPoint(0, n, {"d_ece": d}, utility=1 - d, path="") for n, d in enumerate(values)]
        >>> [point.disclosure["d_ece"] for point in thin(front, 4, front[1], "min")]
        [0.0, 0.1, 0.6, 1.0]
        >>> [point.disclosure["d_ece"] for point in thin(front, 2, front[1], "min")]
        [0.0, 0.1]
    """
    kept = list(front)
    while len(kept) > size:
        gaps = _neighbour_gaps(kept, mode)
        _, index = min((gaps[at], -at) for at, point in enumerate(kept) if point != chosen)
        del kept[-index]
    return kept


def _neighbour_gaps(points: Sequence[ParetoPoint], mode: str) -> list[float]:
    """Return the distance between the neighbours of each point, as a share of the width; infinite at both ends."""
    gaps = [0.0] * len(points)
    for values in zip(*((*point.disclosure.values(), _cost(point, mode)) for point in points), strict=True):
        order = sorted(range(len(points)), key=values.__getitem__)
        width = values[order[-1]] - values[order[0]] or 1.0
        for before, at, after in zip(order, order[1:], order[2:], strict=False):
            gaps[at] += (values[after] - values[before]) / width
        gaps[order[0]] = gaps[order[-1]] = math.inf
    return gaps


def choose(front: Sequence[ParetoPoint], budgets: Mapping[str, float], mode: str) -> ParetoPoint | None:
    """Return the point of best utility within all budgets, or that of least disclosure if there is none.

    Several disclosures are compared as shares of their budgets, by the largest share.

    Example:
        >>> private = ParetoPoint(0, 10, {"d_ece": 0.1}, utility=3.0, path="a")
        >>> useful = ParetoPoint(1, 20, {"d_ece": 0.4}, utility=1.0, path="b")
        >>> [choose([private, useful], {"d_ece": budget}, "min").path for budget in (0.05, 0.2, 0.5)]
        ['a', 'a', 'b']
    """
    if not front:
        return None

    # Ties are broken by what a dominating point would win, so that the chosen point lies on the front.
    def shares(point: ParetoPoint) -> tuple[float, float]:
        each = [point.disclosure[name] / max(budget, 1e-12) for name, budget in budgets.items()]
        return max(each), sum(each)

    within = [point for point in front if _meets(point, budgets)]
    if within:
        return min(within, key=lambda point: (_cost(point, mode), *shares(point)))
    return min(front, key=lambda point: (*shares(point), _cost(point, mode)))


def _meets(point: ParetoPoint, budgets: Mapping[str, float]) -> bool:
    return all(point.disclosure[name] <= budget for name, budget in budgets.items())


def _cost(point: ParetoPoint, mode: str) -> float:
    return point.utility if mode == "min" else -point.utility
