"""The form of every table: formatted cells that keep their numbers.

Terminal, page and files are written from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from vpmetrics._scores.registry import (
    CI_SUFFIXES,
    DASH,
    FAMILIES,
    OF_CONDITION,
    OF_POPULATION,
    SPEAKER,
    Scalar,
    is_extrapolated,
    scalar,
    scalar_key,
    utility_direction,
)
from vpmetrics._util.scalar import COUNT
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.rates import collect_rates

# The order of conditions in tables: the attacked ones first, original speech last.
_CONDITION_ORDER = ("OP", "PP", "across", "within", "", "OO")
_HEADLINE_KEYS = (
    "d_ece",
    "eer",
    "linkability",
    "linkability_chance",
    "mean_d",
    "mean_d_chance",
    "id_rate",
)
# Measures of plain comparison, by parts of their headings; each is shown together with the
# strongest attack.
_PLAIN_MEASURES = "D_ECE", "EER", "DeID", "Cllr"
_RATES_CAPTION = (
    "How often the right one of some people is found, or singled out. People are drawn from the"
    " gallery, all enrolled speakers; utterances: how many of one person the attacker has. After"
    " an attack that is fitted, the gallery is a fold of speakers. ±: error of drawing people."
    " ≈: extrapolated beyond the gallery."
)
_GROUP_KEYS = ("eer", "raw_eer", "min_cllr", "cllr", "d_ece")
_FAMILY_TITLES = {
    "score": "Scores",
    "matrix": "Similarity matrices",
    "rank": "Similarity ranks",
    "local": "Local information",
    "speaker": "Single speakers",
}
_ATTRIBUTES = {
    "disclosure": "disclosure ↓ [bit]",
    "chance": "by chance [bit]",
    "accuracy": "accuracy ↓ [%]",
    "majority": "majority class [%]",
    "original": "original speech [bit]",
}


class Cell(NamedTuple):
    """A value as text and as a number in the unit of the heading; NaN where it is no number."""

    text: str
    value: float = math.nan
    interval: str = ""
    ends: tuple[float, float] = (math.nan, math.nan)
    tone: str = ""  # "best", "better" or "worse"

    def __str__(self) -> str:
        return f"{self.text} {self.interval}".strip()


class Table(NamedTuple):
    """Cells under headings; the first column names the rows.

    ``keys`` are the scalars shown, without conditions. ``fold`` is the title of the folded section
    on the page.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    keys: tuple[str, ...] = ()
    fold: str = ""


def clean(text: str) -> str:
    """Return text on one line, without control characters, for readers that would act on them."""
    printable_text = ""
    for letter in text:
        printable_text += letter if letter.isprintable() else " "
    return " ".join(printable_text.split())


def conditions_in_table_order(system: EvaluatedSystem) -> list[str]:
    """Return all conditions of a system: attacked conditions first, original speech last."""
    return sorted(system.report.conditions, key=_CONDITION_ORDER.index)


def scalar_cell(name: str, system: EvaluatedSystem, with_interval: bool = True) -> Cell:
    """Return a scalar as a cell, with its interval if there is one.

    A dash where it is unknown or undefined.
    """
    entry = scalar(name)
    value = system.get_or_nan(name)
    attacks = system.report.attacks
    is_of_attack = entry.family == "attack" and "chance" not in name and entry.condition != "OO"
    if math.isnan(value):
        return Cell("none tried" if is_of_attack and not attacks else DASH)
    if entry.unit is SPEAKER:
        return Cell(clean(system.speaker_name(value)))
    cell = value_cell(
        entry, value, *(system.get_or_nan(f"{name}{end}") for end in CI_SUFFIXES if with_interval)
    )
    if is_extrapolated(name, system.scalars):
        return cell._replace(text=f"≈ {cell.text}")
    return cell


def value_cell(entry: Scalar, value: float, low: float = math.nan, high: float = math.nan) -> Cell:
    """Return a value of a scalar as a cell.

    The ends of an interval have as many digits as the value, so that rounding never leaves the
    value outside.
    """
    scale = entry.unit.scale if entry.unit.spec else math.nan
    if math.isnan(low + high):
        interval = ""
    else:
        interval = f"[{entry.show(low)}, {entry.show(high)}]"
    return Cell(entry.show(value), scale * value, interval, (scale * low, scale * high))


def heading_of(entry: Scalar) -> str:
    """Return a heading: the condition, the name, where privacy lies, and the unit."""
    unit = f"[{entry.unit.name}]" if entry.unit.name else ""
    arrow = {"low": "↓", "high": "↑"}.get(entry.direction or "")
    return " ".join(filter(None, (entry.condition, clean(entry.heading), arrow, unit)))


def condition_with_challenge_name(condition: str, systems: Iterable[EvaluatedSystem]) -> str:
    """Return a condition's name, followed by its name in the challenge if all systems share one."""
    names = {clean(system.challenge_condition_names.get(condition, "")) for system in systems}
    if len(names) == 1 and names != {""}:
        return f"{condition} ({names.pop()})"
    return condition or "scores"


def tables_of_system(system: EvaluatedSystem) -> list[Table]:
    """Return all that is known of one system.

    The headline first, then details by family of measures.
    """
    detail_tables: list[Table] = []
    for family in OF_CONDITION:
        keys = [entry.key for entry in FAMILIES[family] if entry.key not in _HEADLINE_KEYS]
        title = _FAMILY_TITLES.get(family, family)
        detail_tables.append(_table_of_measures(system, title, keys)._replace(fold=title))
    compared_keys: list[str] = []
    for family in ("system", "relative", "calibration"):
        compared_keys += [entry.key for entry in FAMILIES[family] if entry.key in system.scalars]
    conditions = conditions_in_table_order(system)
    names = insert_strongest_before_plain(compared_keys, conditions[0])
    rows = tuple((Cell(heading_of(scalar(name))), scalar_cell(name, system)) for name in names)
    group_tables = [_table_of_groups(system, condition) for condition in conditions]
    tables = [
        _table_of_measures(system, "Headline", _HEADLINE_KEYS, has_trials=True),
        Table("Compared with original speech", ("measure", "value"), rows, keys=tuple(names)),
        _table_of_rates(system),
        _table_of_utility(system),
        _table_of_attributes(system),
        *group_tables,
        *detail_tables,
    ]
    return [table for table in tables if table.rows]


def average_of_groups(system: EvaluatedSystem) -> dict[str, float]:
    """Return scalars averaged over groups by weight.

    Tags, attacks and interval ends have no average.
    """
    if not system.weights:
        return {}
    total = sum(system.weights.values())
    averages: dict[str, float] = {}
    for key in system.scalars:
        if key.endswith(CI_SUFFIXES) or not scalar(key).unit.spec or scalar(key).unit is COUNT:
            continue
        weighted_sum = 0.0
        for group, weight in system.weights.items():
            weighted_sum += weight * system.groups[group].get_or_nan(key)
        averages[key] = weighted_sum / total
    return averages


def _table_of_measures(
    system: EvaluatedSystem, title: str, keys: Iterable[str], has_trials: bool = False
) -> Table:
    """Return a table with a row per measure and a column per condition.

    No rows where no measure is known.
    """
    conditions = conditions_in_table_order(system)
    shown: list[str] = []
    for key in keys:
        if any(scalar_key(condition, key) in system.scalars for condition in conditions):
            shown.append(key)
    row_keys = insert_strongest_before_plain(shown)
    rows: list[tuple[Cell, ...]] = []
    for key in row_keys:
        cells = [scalar_cell(scalar_key(condition, key), system) for condition in conditions]
        rows.append((Cell(heading_of(scalar(key))), *cells))
    if has_trials:
        rows += _rows_of_trials(system, conditions)
    heads = (
        "measure",
        *(condition_with_challenge_name(condition, [system]) for condition in conditions),
    )
    return Table(title, heads, tuple(rows), keys=tuple(row_keys))


def _rows_of_trials(system: EvaluatedSystem, conditions: Sequence[str]) -> list[tuple[Cell, ...]]:
    """Return the number of target trials and of non-target trials of each condition."""
    targets: list[Cell] = []
    nontargets: list[Cell] = []
    for condition in conditions:
        num_targets, num_nontargets = system.report.conditions[condition].num_trials
        targets.append(Cell(f"{num_targets:,}", num_targets))
        nontargets.append(Cell(f"{num_nontargets:,}", num_nontargets))
    return [
        (Cell("target trials"), *targets),
        (Cell("non-target trials"), *nontargets),
    ]


def _table_of_groups(system: EvaluatedSystem, condition: str) -> Table:
    """Return the measures that rank systems in challenges.

    There is a row for each group, one for all trials, and one for the average over groups.
    """
    keys = [key for key in _GROUP_KEYS if scalar_key(condition, key) in system.scalars]
    if condition != "OO":
        keys = insert_strongest_before_plain(keys)
    names = [scalar_key(condition, key) for key in keys]
    groups: dict[str, EvaluatedSystem] = {}
    if system.groups:
        groups = {**system.groups, "all together": system}
    rows: list[tuple[Cell, ...]] = []
    for group_name, group in groups.items():
        cells = [scalar_cell(name, group) for name in names]
        rows.append((Cell(clean(group_name)), *cells))
    if rows and system.weights:
        averages = average_of_groups(system)
        cells = [value_cell(scalar(name), averages.get(name, math.nan)) for name in names]
        rows.append((Cell("average by weight"), *cells))
    heads = ("group", *(heading_of(scalar(key)) for key in keys))
    return Table(f"By group, {condition or 'scores'}", heads, tuple(rows), keys=tuple(keys))


def _table_of_rates(system: EvaluatedSystem) -> Table:
    """Return how often people are found: among how many, by how much speech, by which attacker."""
    entry = scalar("found_in_100")
    rates = collect_rates(system)
    has_distractors = any(rate.search.distractors for rate in rates)
    rows: list[tuple[Cell, ...]] = []
    for rate in rates:
        search = rate.search
        cell = value_cell(entry, rate.value, rate.low, rate.high)
        if rate.is_extrapolated:
            cell = cell._replace(text=f"≈ {cell.text}")
        error = system.get_or_nan(f"{rate.key}_error", search.condition)
        if not math.isnan(error):
            cell = cell._replace(interval=f"± {entry.show(error)}")
        cells = [
            Cell(f"{search.condition} {rate.name}".strip()),
            Cell(f"{rate.people:,}", rate.people),
            Cell(f"{search.gallery:,}", search.gallery) if search.gallery else Cell(DASH),
        ]
        if has_distractors:
            cells.append(Cell(f"{search.distractors:,}", search.distractors))
        cells += [
            Cell(f"{search.utterances:,}", search.utterances),
            Cell(clean(search.attacker)),
            cell,
            value_cell(entry, rate.chance),
        ]
        rows.append(tuple(cells))
    heads = ["rate", "among people", "of gallery", "utterances", "attacker"]
    heads += ["found ↓ [%]", "chance [%]"]
    if has_distractors:
        heads.insert(3, "of them distractors")
    keys = ("found_in_100", "found_in_100_conversation")
    return Table("Who is found", tuple(heads), tuple(rows), _RATES_CAPTION, keys)


def _table_of_utility(system: EvaluatedSystem) -> Table:
    """Return what else was measured of protected speech."""
    rows = []
    for name, value in system.utility.items():
        better = f"{utility_direction(name)}er is better"
        rows.append((Cell(clean(name)), Cell(f"{value:.4g}", value), Cell(better)))
    return Table("Utility", ("measure", "value", ""), tuple(rows))


def _table_of_attributes(system: EvaluatedSystem) -> Table:
    """Return the disclosure of attributes such as sex, as AttributeDisclosure computes it."""
    shown: list[str] = []
    for key in _ATTRIBUTES:
        if any(key in numbers for numbers in system.attributes.values()):
            shown.append(key)
    rows: list[tuple[Cell, ...]] = []
    for name, numbers in system.attributes.items():
        cells = [attribute_cell(numbers, key) for key in shown]
        rows.append((Cell(clean(name)), *cells))
    caption = "What a classifier fitted on other speakers learns from protected speech."
    heads = ("attribute", *(_ATTRIBUTES[key] for key in shown))
    return Table("Attributes", heads, tuple(rows), caption)


def attribute_cell(numbers: Mapping[str, float], key: str) -> Cell:
    """Return a number of an attribute, with its interval where it has one."""
    entry = scalar("d_ece")
    if key in ("accuracy", "majority"):
        entry = scalar("eer")
    low_key = f"{key}{CI_SUFFIXES[0]}"
    high_key = f"{key}{CI_SUFFIXES[1]}"
    value = numbers.get(key, math.nan)
    return value_cell(entry, value, numbers.get(low_key, math.nan), numbers.get(high_key, math.nan))


def has_conditions(entry: Scalar) -> bool:
    """Return whether there is one such number for each condition."""
    return entry.family in (*OF_CONDITION, *OF_POPULATION, "attack", "attack_limit")


def insert_strongest_before_plain(keys: Iterable[str], default_condition: str = "") -> list[str]:
    """Return the keys, those of the strongest attack before those of plain comparison.

    ``default_condition``: the condition of the inserted keys where the key itself has no condition.
    """
    extended: list[str] = []
    for key in keys:
        entry = scalar(key)
        is_plain = any(name in entry.heading for name in _PLAIN_MEASURES)
        if entry.family in ("attack", "headline") or entry.condition == "OO":
            is_plain = False
        if is_plain:
            if has_conditions(entry):
                condition = entry.condition
            else:
                condition = default_condition
            before = ["d_ece_strongest"]
            if key == "d_ece":
                before += ["d_ece_chance", "attack_speakers"]
            if key.endswith("eer"):
                before.append("eer_strongest")
            extended += [scalar_key(condition, name) for name in before]
        extended.append(key)
    return list(dict.fromkeys(extended))
