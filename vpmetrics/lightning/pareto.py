"""The Pareto front of disclosure and utility: which checkpoints are kept, and which one is chosen."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from operator import le
from typing import Any, NamedTuple


class ParetoPoint(NamedTuple):
    """A checkpoint with its disclosures, its utility and, where logged, the confidence intervals of disclosures."""

    epoch: int
    step: int
    disclosure: dict[str, float]
    utility: float
    path: str
    intervals: dict[str, list[float]] = {}  # noqa: RUF012  never changed in place


class ParetoFront:
    """All measurements of a training, and at most ``size`` points of the Pareto front (-1: all) to keep on disk."""

    def __init__(self, budgets: Mapping[str, float], mode: str, size: int) -> None:
        self.budgets, self.mode, self.size = dict(budgets), mode, size
        self.measured: list[ParetoPoint] = []
        self.kept: list[ParetoPoint] = []

    @property
    def chosen(self) -> ParetoPoint | None:
        """The best of the kept points."""
        return self.choose(self.kept)

    def meets_budgets(self, point: ParetoPoint | None) -> bool:
        """Return whether there is a point, and none of its disclosures is above its budget."""
        return point is not None and all(point.disclosure[name] <= budget for name, budget in self.budgets.items())

    def choose(self, points: Sequence[ParetoPoint]) -> ParetoPoint | None:
        """Return the point of best utility within all budgets, or that of least disclosure if there is none.

        Several disclosures are compared as shares of their budgets, by the largest share. Ties are broken by what a
        dominating point would win, so that the chosen point lies on the front.
        """
        within_budget = list(filter(self.meets_budgets, points))

        def sort_key(point: ParetoPoint) -> tuple[float, ...]:
            shares = [point.disclosure[name] / max(budget, 1e-12) for name, budget in self.budgets.items()]
            disclosure, utility = (max(shares), sum(shares)), self._costs(point)[-1]
            return (utility, *disclosure) if within_budget else (*disclosure, utility)

        return min(within_budget or points, key=sort_key, default=None)

    def record(self, point: ParetoPoint) -> None:
        """Add a measurement, and update the kept points, least disclosure first."""
        self.measured.append(point)
        if any(self._is_at_least_as_good(other, point) for other in self.kept):
            return  # of two equal points the earlier one stays
        kept = [other for other in self.kept if not self._is_at_least_as_good(point, other)]
        kept = sorted([*kept, point], key=self._costs)
        chosen = self.choose(kept)
        # Points are removed one by one, each time the one whose neighbours are nearest to each other. The chosen point
        # stays, and both ends if possible. Of two equal gaps, the point of larger disclosure is removed.
        while 0 < self.size < len(kept):
            gaps = [0.0] * len(
                kept
            )  # between the neighbours of each point, as shares of the width; infinite at both ends
            for values in zip(*map(self._costs, kept), strict=True):
                order = sorted(range(len(kept)), key=values.__getitem__)
                width = values[order[-1]] - values[order[0]] or 1.0
                for before, index, after in zip(order, order[1:], order[2:], strict=False):
                    gaps[index] += (values[after] - values[before]) / width
                gaps[order[0]] = gaps[order[-1]] = math.inf
            _, index = min((gaps[index], -index) for index, other in enumerate(kept) if other != chosen)
            del kept[-index]
        self.kept = kept

    def _costs(self, point: ParetoPoint) -> tuple[float, ...]:
        """Return all values of which less is better; the utility is the last."""
        return (*(point.disclosure[name] for name in self.budgets), point.utility * (1 if self.mode == "min" else -1))

    def _is_at_least_as_good(self, one: ParetoPoint, other: ParetoPoint) -> bool:
        """Return whether ``one`` is at least as good as ``other`` in every cost."""
        return all(map(le, self._costs(one), self._costs(other)))

    def to_json(self, folder: str, utility: str) -> str:
        """Return budgets, kept and chosen points and every measurement as JSON, with paths relative to the folder."""
        paths = {(point.epoch, point.step): relative_path(folder, point.path) for point in self.kept}

        def point_row(point: ParetoPoint) -> dict[str, Any]:
            path = paths.get((point.epoch, point.step))
            return {**point._asdict(), "path": path, "within_budget": self.meets_budgets(point)}

        chosen = self.chosen
        content = {
            "privacy": self.budgets,
            "utility": utility,
            "mode": self.mode,
            "chosen": relative_path(folder, chosen.path) if chosen else "",
            "within_budget": self.meets_budgets(chosen),
            "points": list(map(point_row, self.kept)),
            "measured": list(map(point_row, self.measured)),
        }
        return json.dumps(content, indent=2)


def relative_path(folder: str, path: str) -> str:
    """Return a path relative to the folder, so that the folder can be moved."""
    return path.removeprefix(f"{folder}/")
