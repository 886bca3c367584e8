"""All that a checkpoint callback has measured: what of it is kept, what is chosen, and how others see it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vpmetrics.lightning.arguments import known_scalar
from vpmetrics.lightning.loggers import ways_to_draw
from vpmetrics.lightning.names import with_end
from vpmetrics.lightning.pareto import ParetoPoint, choose, front_with, meets, spread


class Front:
    """Measurements of a training, the points of the Pareto front that are kept on disk, and the chosen one of these.

    Example:
        >>> front = Front({"d_ece": 0.2}, mode="min", most=1)
        >>> for step, (leak, loss) in enumerate([(0.3, 1.0), (0.1, 3.0), (0.15, 2.0)]):
        ...     front.take(front.extended(ParetoPoint(0, step, {"d_ece": leak}, loss, path=f"{step}.ckpt")))
        >>> front.chosen.path, len(front.kept), len(front.measured), front.within_budget
        ('2.ckpt', 1, 3, True)
    """

    def __init__(self, budgets: Mapping[str, float], mode: str, most: int) -> None:
        self.budgets, self.mode, self.most = dict(budgets), mode, most
        self.measured: list[ParetoPoint] = []
        self.kept: list[ParetoPoint] = []
        self.chosen: ParetoPoint | None = None

    @property
    def within_budget(self) -> bool:
        """Whether the chosen checkpoint meets all budgets."""
        return self.chosen is not None and meets(self.chosen, self.budgets)

    def extended(self, point: ParetoPoint) -> list[ParetoPoint]:
        """What is to be kept now that a point was measured, with it or without."""
        self.measured.append(point)
        front = front_with(self.kept, point, self.mode)
        if self.most < 0:
            return front
        return spread(front, self.most, choose(front, self.budgets, self.mode), self.mode)

    def take(self, points: Sequence[ParetoPoint]) -> None:
        """Keep these."""
        self.kept = list(points)
        self.chosen = choose(self.kept, self.budgets, self.mode)

    def state(self, folder: str) -> dict[str, Any]:
        """What a resumed run goes on from, wherever the folder is then."""
        kept = [point._replace(path=beside(folder, point.path))._asdict() for point in self.kept]
        return {"pareto_front": kept, "measured": [point._asdict() for point in self.measured], "dirpath": folder}

    def resume(self, state: Mapping[str, Any], find: Callable[[str], str]) -> None:
        """Go on from a state, with files where they are found now."""
        self.measured = [ParetoPoint(**point) for point in state["measured"]]
        kept = [ParetoPoint(**point) for point in state["pareto_front"]]
        self.take([point._replace(path=find(point.path)) for point in kept])

    def as_json(self, folder: str, utility: str) -> str:
        """Every measurement, with the paths of those kept as seen from the folder."""
        paths = {(point.epoch, point.step): beside(folder, point.path) for point in self.kept}

        def row(point: ParetoPoint) -> dict[str, Any]:
            path = paths.get((point.epoch, point.step))
            return {**point._asdict(), "path": path, "within_budget": meets(point, self.budgets)}

        described = {
            "privacy": self.budgets,
            "utility": utility,
            "mode": self.mode,
            "chosen": beside(folder, self.chosen.path) if self.chosen else "",
            "within_budget": self.within_budget,
            "points": list(map(row, self.kept)),
            "measured": list(map(row, self.measured)),
        }
        return json.dumps(described, indent=2)

    def draw(self, trainer: Any, utility: str, step: int, end: str = "") -> None:
        """A figure for each budget: what was measured, the front, and the choice."""
        ways = ways_to_draw(trainer)
        if not ways:
            return
        try:
            from vpmetrics._figures import CARD
            from vpmetrics._plot.systems import draw_pareto_front, draw_whiskers
        except ModuleNotFoundError:  # of matplotlib; a monitor has said so
            return
        for name, budget in self.budgets.items():
            chosen = [self.chosen] if self.chosen else []
            kept, measured, choice = (
                [(point.disclosure[name], point.utility) for point in points]
                for points in (self.kept, self.measured, chosen)
            )
            labels = _label(with_end(name, end)), utility
            ends = [(point.intervals[name], point.utility) for point in self.measured if name in point.intervals]
            ax = draw_whiskers(ends, CARD.one())
            figure, _ = draw_pareto_front(kept, measured, choice[0] if choice else None, budget, labels, ax)
            for draw in ways:
                draw(f"{name}/pareto_front", figure, step)


def beside(folder: str, path: str) -> str:
    """Path of a file as seen from a folder, so that the folder may be moved."""
    return path.removeprefix(f"{folder}/")


def _label(name: str) -> str:
    """What the axis of a disclosure says."""
    known = known_scalar(name)
    return f"{name}, {known.unit.name}" if known is not None and known.unit.name else name
