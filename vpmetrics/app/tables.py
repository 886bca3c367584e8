"""The tables of the report, once: the terminal and the page show the same words and digits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from vpmetrics._report import System, unprotected
from vpmetrics._scalars import COUNT, DASH, FAMILIES, OF_CONDITIONS, entries_of_crowd, key_of, scalar

# The columns of table 2 of the 2022 paper, and what goes with them.
_OF_SYSTEM = ("deid", "gvd")
_OF_GROUPS = "eer", "raw_eer", "min_cllr", "cllr", "d_ece"
_COMPARED = ("d_ece", "d_ece_reversed", "l_w", "tag", "eer", "max_d", "mean_d")
_ATTACKED = ("strongest", "d_ece_strongest", "d_ece_chance", "eer_strongest")
_ATTACKED_WITHIN = ("strongest", "d_ece_strongest")
_NONE_TRIED = "no stronger attack than comparing voices was tried"


class Table(NamedTuple):
    """Texts, ready to be shown; the first column names the row."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    keys: tuple[str, ...] = ()  # of the scalars it shows, without their condition


def tables_of_system(system: System) -> list[Table]:
    """All that is known of one system: as a whole, condition by condition, and relative to the original."""
    return [
        *_list("Pseudonymisation", "system", system),
        *_list("Relative to original speech", "relative", system),
        *_list("Calibrated on another run", "calibration", system),
        _by_condition(system),
        *_by_group(system),
    ]


def table_of_systems(systems: Sequence[System], title: str) -> Table:
    """Systems side by side, under unprotected speech where that is known."""
    attacked = systems[0].report.attacked
    of_system = [key for key in _OF_SYSTEM if any(key in system.scalars for system in systems)]
    of_scores = [key for key in _COMPARED if any(key_of(attacked, key) in system.scalars for system in systems)]
    within = ["pp_d_ece"] if any("pp_d_ece" in system.scalars for system in systems) else []
    rows = (
        [(unprotected(systems), *_unprotected(systems[0], of_system, of_scores, within))]
        if "OO" in systems[0].report.conditions
        else []
    )
    for system in systems:
        names = [*of_system, *(key_of(system.report.attacked, key) for key in of_scores), *within]
        rows.append((system.name, *(show(name, system) for name in names)))
    if attacked:
        title = f"{title} ({scalar(of_scores[0]).heading} to {scalar(of_scores[-1]).heading} of {attacked})"
    if not any(key_of(attacked, "strongest") in system.scalars for system in systems):
        title = f"{title}; {_NONE_TRIED}"
    heads = [scalar(key).title for key in (*of_system, *of_scores)]
    heads += [f"PP {scalar(key).title}" for key in within]
    return Table(title, ("system", *heads), rows, (*of_system, *of_scores))


def tables_of_attacks(systems: Sequence[System]) -> list[Table]:
    """What the strongest attack finds, where any was tried: the number of a weak attacker never stands alone."""
    names = [(system.report.attacked, key) for system in systems[:1] for key in _ATTACKED]
    names += [("PP", key) for key in _ATTACKED_WITHIN]
    names = [pair for pair in names if any(key_of(*pair) in system.scalars for system in systems)]
    if not names:
        return []
    rows = [(unprotected(systems), *(DASH for _ in names))] if "OO" in systems[0].report.conditions else []
    rows += [(system.name, *(show(key_of(*pair), system) for pair in names)) for system in systems]
    heads = [f"{condition} {scalar(key).title}" for condition, key in names]
    return [Table("Strongest attack", ("system", *heads), rows, tuple(dict.fromkeys(key for _, key in names)))]


def show(name: str, system: System) -> str:
    """A scalar as text, with its interval if there is one; a dash where it is unknown or undefined."""
    value, known = system.scalar(name), scalar(name)
    if math.isnan(value):
        return DASH
    if known.unit is COUNT and 0 <= int(value) < len(system.attacks):
        return system.attacks[int(value)][0]
    ends = [system.scalar(f"{name}_{end}") for end in ("low", "high")]
    return known.show(value) + (
        f" ({known.show(ends[0])} to {known.show(ends[1])})" if not math.isnan(sum(ends)) else ""
    )


def _list(title: str, family: str, system: System) -> list[Table]:
    known = [entry for entry in FAMILIES[family] if entry.key in system.scalars]
    rows: list[tuple[str, ...]] = [(entry.title, show(entry.key, system)) for entry in known]
    return [Table(title, ("", "value"), rows, tuple(entry.key for entry in known))] if rows else []


def _by_condition(system: System) -> Table:
    conditions = system.report.conditions
    entries = [entry for family in (*OF_CONDITIONS, "attack") for entry in FAMILIES[family]]
    entries += entries_of_crowd(system.scalars)
    known = [e for e in entries if any(key_of(condition, e.key) in system.scalars for condition in conditions)]
    rows = [(e.title, *(show(key_of(condition, e.key), system) for condition in conditions)) for e in known]
    for number, kind in enumerate(("target", "non-target")):
        rows.append((f"{kind} trials", *(f"{report.trials[number]:,}" for report in conditions.values())))
    heads = tuple(condition or "scores" for condition in conditions)
    tried = any(entry.family == "attack" for entry in known)
    title = "What scores disclose" if tried else f"What scores disclose; {_NONE_TRIED}"
    return Table(title, ("", *heads), rows, tuple(entry.key for entry in known))


def _by_group(system: System) -> list[Table]:
    """What ranks systems in challenges, of each part of the trials, of all of them, and averaged over the parts."""
    return [_groups_of_condition(system, condition) for condition in system.report.conditions] if system.groups else []


def _groups_of_condition(system: System, condition: str) -> Table:
    keys = [key for key in _OF_GROUPS if key_of(condition, key) in system.scalars]
    names = [key_of(condition, key) for key in keys]
    rows = [(group, *(show(name, of_group) for name in names)) for group, of_group in system.groups.items()]
    rows.append(("all together", *(show(name, system) for name in names)))
    if system.weights:
        average = average_of_groups(system)
        rows.append(("average by weight", *(scalar(name).show(average[name]) for name in names)))
    return Table(f"By group, {condition}", ("", *(scalar(key).title for key in keys)), rows, tuple(keys))


def average_of_groups(system: System) -> dict[str, float]:
    """Scalars averaged over groups by their weights; none without weights, and no average of tags."""
    total = sum(system.weights.values())
    return {
        key: sum(weight * system.groups[group].scalar(key) for group, weight in system.weights.items()) / total
        for key in (system.scalars if system.weights else ())
        if scalar(key).unit.spec
    }


def _unprotected(
    system: System, of_system: Sequence[str], of_scores: Sequence[str], within: Sequence[str]
) -> tuple[str, ...]:
    """What original speech discloses, of which nothing is hidden and nothing lost."""
    nothing = [scalar(key).show(0.0) for key in of_system]
    own = [show(key_of("OO", key), system) for key in of_scores]
    return (*nothing, *own, *(show(key_of("OO", "d_ece"), system) for _ in within))
