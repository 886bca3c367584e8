"""Systems beside each other: which discloses less, whether their speakers tell that, and what changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from vpmetrics._engine.jackknife import Difference, compare_jackknives
from vpmetrics._engine.registry import CI_SUFFIXES, scalar, scalar_key
from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics.cli.headline import (
    MOST,
    Verdict,
    disclosure_of,
    explain_no_attack,
    rank_systems,
    show_disclosed,
    strongest_attack,
    verdict_of,
)
from vpmetrics.cli.tables import Cell, Table, clean, conditions_of, format_cell, heading_of, make_cell

_CHANGES = ("d_ece_strongest", "d_ece", "d_ece_reversed", "eer_strongest", "eer", "l_w", "linkability", "max_d", "alid")


class Pair(NamedTuple):
    """Two systems by name, the scalar they are compared by, and by how much the first has more of it."""

    first: str
    second: str
    key: str
    difference: Difference

    @property
    def less(self) -> tuple[str, float]:
        """Which of the two is likely to disclose less, and how likely."""
        likely = float(self.difference.probability_below)
        return (self.first, likely) if likely > 0.5 else (self.second, 1 - likely)


def pairs_of(systems: Sequence[EvaluatedSystem], confidence: float | None) -> list[Pair]:
    """Return all pairs of systems that were measured on the same speakers, compared by their disclosure."""
    if confidence is None:
        return []
    pairs = (compare(*two, "disclosure", confidence) for two in combinations(systems, 2))
    return [pair for pair in pairs if pair is not None]


def compare(first: EvaluatedSystem, second: EvaluatedSystem, key: str, confidence: float) -> Pair | None:
    """Return one pair by one scalar; None where that is not known of both on the same speakers."""
    one, other = first.report.jackknife, second.report.jackknife
    if one is None or other is None or key not in one.changes or key not in other.changes:
        return None
    if first.speakers != second.speakers or not one.groups.matches(other.groups):
        return None
    if math.isnan(first.scalar(key) + second.scalar(key)):
        return None
    values = first.report.scalars[key], second.report.scalars[key]
    return Pair(first.name, second.name, key, compare_jackknives(key, values, (one, other), confidence))


def table_of_pairs(pairs: Sequence[Pair]) -> list[Table]:
    """Return pairs as a table; none where there are none."""
    rows = []
    for pair in pairs:
        (name, likely), difference = pair.less, pair.difference
        says = f"{name} discloses less" if difference.is_significant else f"not told apart, rather {name}"
        rows.append(
            (
                Cell(clean(f"{pair.first} less {pair.second}")),
                format_cell(scalar("disclosure"), *map(float, difference[:3])),
                Cell(clean(says)),
                Cell(f"{likely:.3f}", likely),
            )
        )
    heads = ("pair", "difference [bit]", "verdict", "probability")
    caption = "Disclosure of the first system less that of the second, on the same speakers."
    return [Table("Differences", heads, tuple(rows), caption, ("disclosure",))] if rows else []


def table_of_changes(before: EvaluatedSystem, after: EvaluatedSystem, confidence: float | None = None) -> list[Table]:
    """Return what got better or worse from one system to another, as far as both know it."""
    names = ["disclosure", "deid", "gvd"]
    names += [scalar_key(c, key) for c in conditions_of(before) if c != "OO" for key in _CHANGES]
    known = [name for name in names if name in before.scalars and name in after.scalars]
    rows = [_change(before, after, name, confidence) for name in known]
    keys = tuple(dict.fromkeys(name.split("_", 1)[-1] if scalar(name).condition else name for name in known))
    heads = ("measure", clean(before.name), clean(after.name), "change")
    title = clean(f"From {before.name} to {after.name}")
    return [Table(title, heads, tuple(rows), keys=keys)] if rows else []


def verdict_of_systems(systems: Sequence[EvaluatedSystem], pairs: Sequence[Pair] = ()) -> Verdict:
    """Return who discloses least, as far as ``pairs`` tell, and whose voices stay most distinct."""
    known = [system for system in rank_systems(systems) if not math.isnan(disclosure_of(system).bits)]
    if not known:
        return Verdict("unknown", "No verdict", ("D_ECE is not defined for these trials; the notes say why.",))
    best, worst = known[0], known[-1]
    shown = [show_disclosed(disclosure_of(system)) for system in (best, worst)]
    title = f"{best.name} discloses least."
    sentences = [f"{best.name} discloses {shown[0]} bit, {worst.name} {shown[1]}, of {MOST:.3f} at most."]
    undecided = [pair for pair in pairs if best.name in pair[:2] and not pair.difference.is_significant]
    if undecided:
        others = ", ".join(name for pair in undecided for name in pair[:2] if name != best.name)
        title = f"{best.name} discloses least, but these data do not tell it apart from {others}."
    if len(known) > 1 and shown[0] == shown[1]:
        title, sentences = f"All disclose {shown[0]} bit.", []
    verdict = verdict_of(best)
    sentences += [f"Leakage of {best.name} is {verdict.level}.", *verdict.reasons]
    distinct = {system.name: make_cell("gvd", system) for system in systems if math.isfinite(system.scalar("gvd"))}
    if len({cell.text for cell in distinct.values()}) > 1:
        most = max(distinct, key=lambda name: distinct[name].value)
        sentences.append(f"Voices stay most distinct with {most} (G_VD {distinct[most].text} dB).")
    spared = [system for system in known if strongest_attack(system, disclosure_of(system).condition) is None]
    if spared:
        sentences.append(explain_no_attack(spared[0]))
    return Verdict(verdict.level, title, tuple(sentences))


def _change(before: EvaluatedSystem, after: EvaluatedSystem, name: str, confidence: float | None) -> tuple[Cell, ...]:
    entry = scalar(name)
    cells = [make_cell(name, system, with_interval=False) for system in (before, after)]
    head = Cell(heading_of(entry))
    if any(math.isnan(cell.value) for cell in cells):
        return head, *cells, Cell("")
    if cells[0].text == cells[1].text:
        return head, *cells, Cell("same")
    if not _told_apart(before, after, name, confidence):
        return head, *cells, Cell("within error")
    grows = cells[1].value > cells[0].value
    arrow = "▲" if grows else "▼"
    if entry.direction is None:
        return head, *cells, Cell(f"{arrow} {'more' if grows else 'less'} distinct")
    tone = "better" if grows == (entry.direction == "high") else "worse"
    return head, *cells, Cell(f"{arrow} {tone}", tone=tone)


def _told_apart(before: EvaluatedSystem, after: EvaluatedSystem, name: str, confidence: float | None) -> bool:
    """Whether the speakers of both tell two values apart: one by one where these are the same, or by both intervals."""
    pair = compare(before, after, name, confidence) if confidence is not None else None
    if pair is not None:
        return pair.difference.is_significant
    lows, highs = ([system.scalar(name + end) for system in (before, after)] for end in CI_SUFFIXES)
    return not max(lows) <= min(highs)  # no comparison with NaN holds
