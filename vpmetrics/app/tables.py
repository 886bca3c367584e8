"""The tables of the report, once: the terminal and the page show the same words and digits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from vpmetrics._report import System, unprotected
from vpmetrics._scalars import (
    COUNT,
    DASH,
    ENDS,
    FAMILIES,
    OF_CONDITIONS,
    SPEAKER,
    Scalar,
    entries_of_crowd,
    gallery_of,
    key_of,
    scalar,
)

# The number of a weak attacker never stands alone: before it stands the strongest attack, or that none was tried.
_BEFORE = {"d_ece": ("strongest", "d_ece_strongest", "d_ece_chance"), "eer": ("eer_strongest",)}
_OF_SYSTEM = ("deid", "gvd")
_COMPARED = ("d_ece", "d_ece_reversed", "l_w", "tag", "eer", "max_d", "mean_d")
_WITHIN = ("d_ece_strongest", "d_ece")
_OF_GROUPS = ("eer", "raw_eer", "min_cllr", "cllr", "d_ece")
_NONE_TRIED = "none tried"
_INTERVAL = re.compile(r"(.*) \[(.*), (.*)\]")


class Table(NamedTuple):
    """Texts, ready to be shown; the first column names the row."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    keys: tuple[str, ...] = ()  # of the scalars it shows, without their condition


class _Column(NamedTuple):
    """A scalar of every system: of a condition, or of the one that is attacked where none is given."""

    key: str
    condition: str | None = None

    def name(self, system: System) -> str:
        """That of the scalar."""
        return key_of(system.report.attacked if self.condition is None else self.condition, self.key)

    @property
    def title(self) -> str:
        """Its heading, with the condition where that is not the one attacked."""
        return f"{self.condition} {scalar(self.key).title}" if self.condition else scalar(self.key).title


def tables_of_system(system: System) -> list[Table]:
    """All that is known of one system: as a whole, condition by condition, and relative to the original."""
    return [
        *_list("Pseudonymisation", ("system", "relative"), system),
        *_list("Calibrated on another run", ("calibration",), system),
        _by_condition(system),
        *_by_group(system),
    ]


def table_of_systems(systems: Sequence[System], title: str) -> Table:
    """Systems side by side, under unprotected speech where that is known: the columns of the papers, and attacks."""
    deid, gvd = (_Column(key, "") for key in _OF_SYSTEM)
    columns = [deid, *map(_Column, _with_strongest(_COMPARED)), gvd, *(_Column(key, "PP") for key in _WITHIN)]
    columns = [column for column in columns if any(_is_said(column.name(system), system) for system in systems)]
    tried = any(column.key == "d_ece_strongest" for column in columns)
    sure = (*_OF_SYSTEM, "d_ece_strongest" if tried else "d_ece")  # with intervals: those of all would fit nowhere
    rows = [(system.name, *(show(c.name(system), system, c.key in sure) for c in columns)) for system in systems]
    if "OO" in systems[0].report.conditions:
        rows.insert(0, (unprotected(systems), *(_of_original(column, systems[0]) for column in columns)))
    if attacked := systems[0].report.attacked:
        title = f"{title} (of {attacked} where nothing else is said)"
    keys = tuple(dict.fromkeys(column.key for column in columns))
    return Table(title, ("system", *(column.title for column in columns)), rows, keys)


def _of_original(column: _Column, system: System) -> str:
    """What original speech discloses, of which nothing is hidden and nothing lost."""
    return (
        scalar(column.key).show(0.0) if column.key in _OF_SYSTEM else show(key_of("OO", column.key), system, ends=False)
    )


def show(name: str, system: System, ends: bool = True) -> str:
    """A scalar as text, with its interval if there is one and it is wanted; a dash where it is unknown or undefined."""
    value, known = system.scalar(name), scalar(name)
    if math.isnan(value):
        return _NONE_TRIED if _names_attack(name) else DASH
    if _names_attack(name) and 0 <= int(value) < len(system.attacks):
        return system.attacks[int(value)][0]
    if known.unit is SPEAKER:
        return system.name_of(value)
    if (counted := gallery_of(name)) is not None and counted[1] > system.scalar(counted[0]):
        return f"≈ {known.show(value)}"  # extrapolated
    low, high = (system.scalar(f"{name}{end}") for end in ENDS)
    sure = ends and not math.isnan(low + high)
    return with_interval(known, value, low, high) if sure else known.show(value)


def with_interval(known: Scalar, value: float, low: float, high: float) -> str:
    """A value with both ends, which need a digit less: ``0.041 [0.02, 0.08]``."""
    unit = known.unit._replace(spec=re.sub(r"\d", lambda digit: str(int(digit[0]) - 1), known.unit.spec))
    return f"{known.show(value)} [{unit.show(low)}, {unit.show(high)}]"


def split_interval(cell: str) -> tuple[str, str, str]:
    """A value and both ends, for programs; empty where there are none."""
    found = _INTERVAL.fullmatch(cell)
    return (found[1], found[2], found[3]) if found else (cell, "", "")


def _with_strongest(keys: Iterable[str]) -> list[str]:
    return [each for key in keys for each in (*_BEFORE.get(key, ()), key)]


def _names_attack(name: str) -> bool:
    """Whether a scalar is the number of an attack; original speech has none, since there is nothing to undo."""
    known = scalar(name)
    return known.family == "attack" and known.unit is COUNT and known.condition != "OO"


def _is_said(name: str, system: System) -> bool:
    """Whether a scalar is known; that no attack was tried is known as well."""
    return name in system.scalars or _names_attack(name)


def _list(title: str, families: Sequence[str], system: System) -> list[Table]:
    known = [e for family in families for e in FAMILIES[family] if e.key in system.scalars]
    if not known:
        return []
    rows: list[tuple[str, ...]] = [(entry.title, show(entry.key, system)) for entry in known]
    of_attack = [key_of(system.report.attacked, key) for key in ("strongest", "d_ece_strongest")]
    rows[1:1] = [
        (f"{scalar(name).title}, {system.report.attacked or 'scores'}", show(name, system))
        for name in of_attack
        if _is_said(name, system)
    ]
    return [Table(title, ("", "value"), rows, tuple(entry.key for entry in known))]


def _by_condition(system: System) -> Table:
    conditions = system.report.conditions
    keys = _with_strongest(entry.key for family in OF_CONDITIONS for entry in FAMILIES[family])
    entries = [*map(scalar, keys), *entries_of_crowd(system.scalars)]
    known = [e for e in entries if any(_is_said(key_of(condition, e.key), system) for condition in conditions)]
    rows = [(e.title, *(show(key_of(condition, e.key), system) for condition in conditions)) for e in known]
    for number, kind in enumerate(("target", "non-target")):
        rows.append((f"{kind} trials", *(f"{report.trials[number]:,}" for report in conditions.values())))
    heads = tuple(condition or "scores" for condition in conditions)
    return Table("What scores disclose", ("", *heads), rows, tuple(entry.key for entry in known))


def _by_group(system: System) -> list[Table]:
    """What ranks systems in challenges, of each part of the trials, of all of them, and averaged over the parts."""
    return [_groups_of_condition(system, condition) for condition in system.report.conditions] if system.groups else []


def _groups_of_condition(system: System, condition: str) -> Table:
    keys = [key for key in _with_strongest(_OF_GROUPS) if _is_said(key_of(condition, key), system)]
    names = [key_of(condition, key) for key in keys]
    rows = [(group, *(show(name, of_group) for name in names)) for group, of_group in system.groups.items()]
    rows.append(("all together", *(show(name, system) for name in names)))
    if system.weights:
        average = average_of_groups(system)
        rows.append(("average by weight", *(scalar(name).show(average.get(name, math.nan)) for name in names)))
    return Table(f"By group, {condition}", ("", *(scalar(key).title for key in keys)), rows, tuple(keys))


def average_of_groups(system: System) -> dict[str, float]:
    """Scalars averaged over groups by their weights; none without weights, and no average of tags, attacks and ends."""
    total = sum(system.weights.values())
    return {
        key: sum(weight * system.groups[group].scalar(key) for group, weight in system.weights.items()) / total
        for key in (system.scalars if system.weights else ())
        if not key.endswith(ENDS) and scalar(key).unit.spec and scalar(key).unit is not COUNT
    }
