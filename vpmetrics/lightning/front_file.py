"""The front of a checkpoint callback as a file and as figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vpmetrics.lightning.arguments import known_scalar
from vpmetrics.lightning.loggers import ways_to_draw
from vpmetrics.lightning.pareto import ParetoPoint, meets

if TYPE_CHECKING:
    from vpmetrics.lightning.checkpoint import PrivacyCheckpoint

FRONT_FILE = "pareto_front"


def write_front(checkpoint: PrivacyCheckpoint, measured: Sequence[ParetoPoint], number: int) -> None:
    """Every measurement, with the paths of those kept as seen from the file; one file for each that shares a folder."""
    paths = {(point.epoch, point.step): checkpoint.beside_front(point.path) for point in checkpoint.pareto_front}

    def row(point: ParetoPoint) -> dict[str, Any]:
        path = paths.get((point.epoch, point.step))
        return {**point._asdict(), "path": path, "within_budget": meets(point, checkpoint.budgets)}

    front = {
        "privacy": checkpoint.budgets,
        "utility": checkpoint.utility,
        "mode": checkpoint.mode,
        "chosen": checkpoint.beside_front(checkpoint.best_model_path),
        "within_budget": checkpoint.within_budget,
        "points": list(map(row, checkpoint.pareto_front)),
        "measured": list(map(row, measured)),
    }
    name = f"{FRONT_FILE}-v{number}.json" if number else f"{FRONT_FILE}.json"
    checkpoint._fs.makedirs(checkpoint.dirpath, exist_ok=True)  # nothing need be saved there so far
    with checkpoint._fs.open(f"{checkpoint.dirpath}/{name}", "w") as file:
        json.dump(front, file, indent=2)


def draw_front(checkpoint: PrivacyCheckpoint, measured: Sequence[ParetoPoint], trainer: Any, step: int) -> None:
    """A figure for each budget: what was measured, the front, and the choice."""
    ways = ways_to_draw(trainer)
    if not ways:
        return
    try:
        from vpmetrics._plot import draw_pareto_front
    except ModuleNotFoundError:  # of matplotlib; a monitor has said so
        return
    for name, budget in checkpoint.budgets.items():
        front, others = (
            [(point.disclosure[name], point.utility) for point in points]
            for points in (checkpoint.pareto_front, measured)
        )
        chosen = checkpoint.chosen and (checkpoint.chosen.disclosure[name], checkpoint.chosen.utility)
        labels = _label(name), checkpoint.utility
        figure, _ = draw_pareto_front(front, others, chosen, budget, labels, None)
        for draw in ways:
            draw(f"{name}/pareto_front", figure, step)


def _label(name: str) -> str:
    """What the axis of a disclosure says."""
    known = known_scalar(name)
    return f"{name}, {known.unit.name}" if known is not None and known.unit.name else name
