"""The form of every table: formatted cells that keep their numbers; terminal, page and files are written from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from vpmetrics._engine.registry import (
    CI_SUFFIXES,
    DASH,
    FAMILIES,
    OF_CONDITION,
    OF_POPULATION,
    SPEAKER,
    Scalar,
    gallery_key,
    population_scalars,
    scalar,
    scalar_key,
)
from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics._engine.scalar import COUNT

NONE_TRIED = "none tried"
ARROWS = {"low": "↓", "high": "↑"}  # where privacy lies
# The condition that says how well speakers are hidden leads, original speech ends.
_ORDER = ("OP", "PP", "across", "within", "", "OO")
_HEADLINE = ("d_ece", "eer", "linkability", "linkability_chance", "mean_d", "mean_d_chance", "id_rate")
_WEAK = ("D_ECE", "EER", "DeID", "Cllr")  # headings of what only means something beside the strongest attack
_OF_GROUPS = ("eer", "raw_eer", "min_cllr", "cllr", "d_ece")
_FAMILY_TITLES = {
    "score": "Scores",
    "matrix": "Similarity matrices",
    "rank": "Similarity ranks",
    "local": "Local information",
    "speaker": "Single speakers",
    "crowd": "Population",
}
_ATTRIBUTES = {
    "disclosure": "disclosure ↓ [bit]",
    "chance": "by chance [bit]",
    "accuracy": "accuracy ↓ [%]",
    "majority": "majority class [%]",
    "original": "original speech [bit]",
}


class Cell(NamedTuple):
    """A value as people read it, and as programs do: in the unit of the heading, NaN where it is no number."""

    text: str
    value: float = math.nan
    interval: str = ""
    ends: tuple[float, float] = (math.nan, math.nan)
    tone: str = ""  # "best", "better" or "worse"

    def __str__(self) -> str:
        return f"{self.text} {self.interval}".strip()


class Table(NamedTuple):
    """Cells under headings; the first column names the rows.

    ``keys`` are the scalars shown, without conditions. ``fold`` names the details that it is one of on a page.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    keys: tuple[str, ...] = ()
    fold: str = ""


def clean(text: str) -> str:
    """Return text on one line, without control characters, for readers that would act on them."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def conditions_of(system: EvaluatedSystem) -> list[str]:
    """Return the conditions of a system, the one that is attacked first."""
    return sorted(system.report.conditions, key=_ORDER.index)


def make_cell(name: str, system: EvaluatedSystem, with_interval: bool = True) -> Cell:
    """Return a scalar as a cell, with its interval if there is one; a dash where it is unknown or undefined."""
    entry, value = scalar(name), system.scalar(name)
    ends = [system.scalar(f"{name}{end}") for end in CI_SUFFIXES]
    is_of_attack = entry.family == "attack" and "chance" not in name and entry.condition != "OO"
    if math.isnan(value):
        return Cell(NONE_TRIED if is_of_attack and not system.report.attacks else DASH)
    if is_of_attack and name.endswith("strongest") and entry.unit is COUNT:
        place = int(value)
        return Cell(clean(system.report.attacks[place][0]) if 0 <= place < len(system.report.attacks) else DASH)
    if entry.unit is SPEAKER:
        return Cell(clean(system.speaker_name(value)))
    counted = gallery_key(name)
    extrapolated = "≈ " if counted is not None and counted[1] > system.scalar(counted[0]) else ""
    cell = format_cell(entry, value, *(ends if with_interval else ()))
    return cell._replace(text=extrapolated + cell.text)


def format_cell(entry: Scalar, value: float, low: float = math.nan, high: float = math.nan) -> Cell:
    """Return a value of a scalar as a cell.

    The ends of an interval have as many digits as the value, so that rounding never leaves the value outside.
    """
    scale = entry.unit.scale if entry.unit.spec else math.nan
    interval = "" if math.isnan(low + high) else f"[{entry.show(low)}, {entry.show(high)}]"
    return Cell(entry.show(value), scale * value, interval, (scale * low, scale * high))


def heading_of(entry: Scalar) -> str:
    """Return a heading: the condition, the name, where privacy lies, and the unit."""
    unit = f"[{entry.unit.name}]" if entry.unit.name else ""
    return " ".join(filter(None, (entry.condition, clean(entry.heading), ARROWS.get(entry.direction or ""), unit)))


def name_condition(condition: str, systems: Iterable[EvaluatedSystem]) -> str:
    """Return the name of a condition, with what a challenge calls it where all systems are of one."""
    names = {clean(system.attack_models.get(condition, "")) for system in systems}
    return f"{condition} ({names.pop()})" if len(names) == 1 and names != {""} else condition or "scores"


def tables_of_system(system: EvaluatedSystem) -> list[Table]:
    """Return all that is known of one system: the headline first, then details by family of measures."""
    conditions = conditions_of(system)
    families = [family for family in OF_CONDITION if family in FAMILIES]
    by_family = {family: [entry.key for entry in FAMILIES[family]] for family in families}
    crowd = [entry.key for entry in population_scalars(system.scalars)]
    details = [_by_condition(system, conditions, _FAMILY_TITLES.get(f, f), [k for k in keys if k not in _HEADLINE])
               for f, keys in {**by_family, OF_POPULATION[0]: crowd}.items()]  # fmt: skip
    return [
        *_by_condition(system, conditions, "Headline", _HEADLINE, trials=True),
        *_whole_system(system),
        *(_table_of_attributes(system.attributes)),
        *(_of_groups(system, condition) for condition in conditions if system.groups),
        *(table._replace(fold=table.title) for tables in details for table in tables),
    ]


def average_of_groups(system: EvaluatedSystem) -> dict[str, float]:
    """Return scalars averaged over groups by weight; tags, attacks and interval ends have no average."""
    total = sum(system.weights.values())
    return {
        key: sum(weight * system.groups[group].scalar(key) for group, weight in system.weights.items()) / total
        for key in (system.scalars if system.weights else ())
        if not key.endswith(CI_SUFFIXES) and scalar(key).unit.spec and scalar(key).unit is not COUNT
    }


def _by_condition(
    system: EvaluatedSystem, conditions: Sequence[str], title: str, keys: Iterable[str], trials: bool = False
) -> list[Table]:
    """Return measures below each other and conditions side by side; nothing where no measure is known."""
    known = [key for key in keys if any(scalar_key(condition, key) in system.scalars for condition in conditions)]
    if not known and not trials:
        return []
    rows = []
    for key in add_strongest(known):
        cells = [make_cell(scalar_key(condition, key), system) for condition in conditions]
        rows.append((Cell(heading_of(scalar(key))), *cells))
    for number, kind in enumerate(("target", "non-target") if trials else ()):
        counts = [system.report.conditions[condition].num_trials[number] for condition in conditions]
        rows.append((Cell(f"{kind} trials"), *(Cell(f"{count:,}", count) for count in counts)))
    heads = ("measure", *(name_condition(condition, [system]) for condition in conditions))
    return [Table(title, heads, tuple(rows), keys=tuple(add_strongest(known)))]


def _whole_system(system: EvaluatedSystem) -> list[Table]:
    entries = [e for family in ("system", "relative", "calibration") for e in FAMILIES.get(family, ())]
    names = [entry.key for entry in entries if entry.key in system.scalars]
    if not names:
        return []
    names = add_strongest(names, conditions_of(system)[0])
    rows = [(Cell(heading_of(scalar(name))), make_cell(name, system)) for name in names]
    return [Table("Compared with original speech", ("measure", "value"), tuple(rows), keys=tuple(names))]


def _of_groups(system: EvaluatedSystem, condition: str) -> Table:
    """Return what ranks systems in challenges: of each part of the trials, of all of them, and averaged."""
    known = [key for key in _OF_GROUPS if scalar_key(condition, key) in system.scalars]
    keys = known if condition == "OO" else add_strongest(known)
    names = [scalar_key(condition, key) for key in keys]
    parts = {**system.groups, "all together": system}
    rows = [(Cell(clean(part)), *(make_cell(name, of_part) for name in names)) for part, of_part in parts.items()]
    if system.weights:
        average = average_of_groups(system)
        cells = [format_cell(scalar(name), average.get(name, math.nan)) for name in names]
        rows.append((Cell("average by weight"), *cells))
    heads = ("group", *(heading_of(scalar(key)) for key in keys))
    return Table(f"By group, {condition or 'scores'}", heads, tuple(rows), keys=tuple(keys))


def _table_of_attributes(attributes: Mapping[str, Mapping[str, float]]) -> list[Table]:
    """Return what protected speech tells of attributes such as sex; each maps to the numbers of AttributeDisclosure."""
    shown = [key for key in _ATTRIBUTES if any(key in numbers for numbers in attributes.values())]
    rows = []
    for name, numbers in attributes.items():
        cells = [Cell(clean(name))]
        for key in shown:
            entry = scalar("eer" if key in ("accuracy", "majority") else "d_ece")
            ends = ("low", "high") if key == "disclosure" else ()
            cells.append(format_cell(entry, *(float(numbers.get(name, math.nan)) for name in (key, *ends))))
        rows.append(tuple(cells))
    heads = ("attribute", *(_ATTRIBUTES[key] for key in shown))
    caption = "What a classifier fitted on other speakers learns from protected speech."
    return [Table("Attributes", heads, tuple(rows), caption)] if rows else []


def has_conditions(entry: Scalar) -> bool:
    """Return whether there is one such number for each condition."""
    return entry.family in (*OF_CONDITION, *OF_POPULATION, "attack")


def add_strongest(keys: Iterable[str], attacked: str = "") -> list[str]:
    """Return keys, those of an attacker who only compares after what the strongest attack finds.

    Args:
        keys: Keys of scalars, with or without their condition.
        attacked: The condition whose strongest attack stands beside numbers that are of no condition.
    """
    found: list[str] = []
    for key in keys:
        entry = scalar(key)
        is_weak = entry.family not in ("attack", "headline") and any(name in entry.heading for name in _WEAK)
        if is_weak and entry.condition != "OO":
            condition = entry.condition if has_conditions(entry) else attacked
            before = ["strongest", "d_ece_strongest"]
            before += ["d_ece_chance", "attack_speakers"] * (key == "d_ece") + ["eer_strongest"] * key.endswith("eer")
            found += [scalar_key(condition, name) for name in before]
        found.append(key)
    return list(dict.fromkeys(found))
