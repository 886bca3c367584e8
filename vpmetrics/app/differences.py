"""Two systems on the same speakers: by how much one discloses more than the other, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from vpmetrics._intervals import Difference, difference_of
from vpmetrics._report import System
from vpmetrics._scalars import key_of, scalar
from vpmetrics.app.tables import Table, with_interval


class Pair(NamedTuple):
    """Two systems by name, the scalar they are compared by, and by how much the first has more of it."""

    first: str
    second: str
    key: str
    found: Difference

    @property
    def less(self) -> tuple[str, float]:
        """Which of the two is likely to disclose less, and how likely."""
        likely = float(self.found.smaller)
        return (self.first, likely) if likely > 0.5 else (self.second, 1 - likely)


def pairs_of(systems: Sequence[System], confidence: float | None) -> list[Pair]:
    """All pairs of systems that were measured on the same speakers, by the strongest attack if all were attacked."""
    if confidence is None:
        return []
    attacked = systems[0].report.attacked
    names = [key_of(attacked, name) for name in ("d_ece_strongest", "d_ece")]
    key = next((name for name in names if not any(math.isnan(system.scalar(name)) for system in systems)), names[-1])
    found = (compare(*pair, key, confidence) for pair in combinations(systems, 2))
    return [pair for pair in found if pair is not None]


def table_of_pairs(pairs: Sequence[Pair]) -> list[Table]:
    """Pairs as a table; none where there are none."""
    if not pairs:
        return []
    known = scalar(pairs[0].key)
    rows: list[tuple[str, ...]] = []
    for pair in pairs:
        (name, likely), apart = pair.less, pair.found.told_apart
        says = f"{name} discloses less" if apart else f"not told apart by these data, rather {name}"
        difference = with_interval(known, *(float(part) for part in pair.found[:3]))
        rows.append((f"{pair.first} less {pair.second}", difference, says, f"{likely:.3f}"))
    title = f"Differences on the same speakers: {', '.join(filter(None, (known.heading, known.condition)))}"
    heads = ("", f"difference [{known.unit.name}]", "verdict", "probability")
    return [Table(title, heads, rows, (known.key,))]


def compare(first: System, second: System, key: str, confidence: float) -> Pair | None:
    """One pair by one scalar; None where that is not known of both on the same speakers."""
    one, other = first.report.left_out, second.report.left_out
    if one is None or other is None or key not in one.changes or key not in other.changes:
        return None
    if math.isnan(first.scalar(key) + second.scalar(key)) or first.speakers != second.speakers:
        return None
    if not one.blocks.same_as(other.blocks):
        return None
    values = first.report.scalars[key], second.report.scalars[key]
    return Pair(first.name, second.name, key, difference_of(key, values, (one, other), confidence))
