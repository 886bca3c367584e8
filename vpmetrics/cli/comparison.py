"""Systems side by side in one table: which columns it has, original speech on top, the best of each column marked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

from vpmetrics._engine.registry import FAMILIES, Scalar, Unit, scalar, scalar_key, utility_direction
from vpmetrics._engine.report import EvaluatedSystem, original_name
from vpmetrics.cli.errors import InputError
from vpmetrics.cli.tables import (
    Cell,
    Table,
    add_strongest,
    clean,
    conditions_of,
    format_cell,
    has_conditions,
    heading_of,
    make_cell,
)

# A key without its condition stands for all conditions there are, "utility" for all utilities.
PRESETS: Mapping[str, tuple[str, ...]] = {
    "default": ("disclosure", "d_ece", "eer", "deid", "gvd", "utility"),
    "paper-2022": ("deid", "d_ece_op_oo", "cllr_op_oo", "gvd", "g_d_ece", "g_cllr"),
    "paper-srd": ("max_d", "mean_d", "id_rate", "rank_spread"),
    "challenge": ("raw_eer", "utility"),
}
_UNHARMED = ("deid", "gvd")  # 0 for original speech, of which nothing is hidden and nothing lost


def table_of_systems(systems: Sequence[EvaluatedSystem], title: str, columns: Sequence[str] = ("default",)) -> Table:
    """Return systems side by side, under the original speech of each data set.

    Args:
        systems: What the rows are of.
        title: Heading of the table.
        columns: Keys of scalars, names of :data:`PRESETS` or of utilities.
    """
    utilities = dict.fromkeys(name for system in systems for name in system.utility)
    entries = _expand_columns(columns, systems, utilities)
    cells = [_mark_best([_cell_of(entry, system) for system in systems], entry.direction) for entry in entries]
    rows = list(zip([Cell(clean(system.name)) for system in systems], *cells, strict=True))
    originals: dict[str, EvaluatedSystem] = {}
    for system in systems:
        if "OO" in system.report.conditions:
            originals.setdefault(system.dataset, system)
    names = [
        f"{original_name(systems)}, {name}" if len(originals) > 1 else original_name(systems) for name in originals
    ]
    rows = [
        (Cell(clean(name)), *(_cell_of_original(entry, system) for entry in entries))
        for name, system in zip(names, originals.values(), strict=True)
    ] + rows
    keys = (entry.key.removeprefix(scalar_key(entry.condition, "")) for entry in entries if entry.family != "utility")
    return Table(clean(title), ("system", *map(heading_of, entries)), tuple(rows), keys=tuple(dict.fromkeys(keys)))


def check_columns(names: Iterable[str], utilities: Iterable[str] | None = None) -> None:
    """Raise for a column that no table can have; without ``utilities``, names in capitals may turn out to be some."""
    known = {*PRESETS, *(utilities or ()), "utility"}
    for name in names:
        may_be_utility = utilities is None and not name.islower()
        if name not in known and _find_scalar(name) is None and not may_be_utility:
            keys = [entry.key for entries in FAMILIES.values() for entry in entries if "{}" not in entry.heading]
            similar = get_close_matches(name, [*known, *keys, *(scalar_key("OP", key) for key in keys)], 1)
            hint = f" Did you mean {similar[0]}?" if similar else ""
            expected = f"a key such as op_eer, a utility, or one of {', '.join(PRESETS)}"
            raise InputError(f"Expected `columns` to name {expected}, but got {name[:60]}.{hint}")


def _expand_columns(names: Sequence[str], systems: Sequence[EvaluatedSystem], utilities: Iterable[str]) -> list[Scalar]:
    """Return the numbers that columns stand for, those of the strongest attack before those of mere comparison."""
    check_columns(names, utilities)
    attacked = (name for system in systems for name in conditions_of(system) if name not in ("OO", "within"))
    conditions = list(dict.fromkeys(attacked))
    entries: list[Scalar] = []
    for name in names:
        if name in PRESETS:
            entries += _expand_columns(PRESETS[name], systems, utilities)
        elif name in utilities or name == "utility":
            entries += [_describe_utility(each) for each in (utilities if name == "utility" else [name])]
        elif scalar(name).condition or not has_conditions(scalar(name)):
            entries += map(scalar, add_strongest([name], conditions[0] if conditions else ""))
        else:
            entries += [scalar(key) for c in conditions for key in add_strongest([scalar_key(c, name)])]
    # Chance and the name of the attack would make the table too wide.
    left_out = {scalar_key(condition, key) for condition in conditions for key in ("strongest", "d_ece_chance")}
    wanted = (entry for entry in entries if entry.key not in left_out - set(names))
    return [entry for entry in dict.fromkeys(wanted) if any(_is_known(entry, system) for system in systems)]


def _find_scalar(name: str) -> Scalar | None:
    try:
        return scalar(name)
    except KeyError:
        return None


def _describe_utility(name: str) -> Scalar:
    return Scalar(name, name, Unit("", ".4g"), utility_direction(name), "utility of protected speech", family="utility")


def _is_known(entry: Scalar, system: EvaluatedSystem) -> bool:
    return entry.key in system.scalars or entry.family in ("attack", "utility")


def _cell_of(entry: Scalar, system: EvaluatedSystem) -> Cell:
    if entry.family == "utility":
        return format_cell(entry, system.utility.get(entry.key, math.nan))
    return make_cell(entry.key, system)


def _cell_of_original(entry: Scalar, system: EvaluatedSystem) -> Cell:
    if entry.key in _UNHARMED:
        return format_cell(entry, 0.0)
    known = has_conditions(entry) and entry.family != "attack"
    key = scalar_key("OO", entry.key.removeprefix(scalar_key(entry.condition, "")))
    return make_cell(key, system, with_interval=False) if known else format_cell(entry, math.nan)


def _mark_best(cells: Sequence[Cell], direction: str | None) -> list[Cell]:
    values = [cell.value for cell in cells if not math.isnan(cell.value)]
    if direction is None or len({cell.text for cell in cells if not math.isnan(cell.value)}) < 2:
        return list(cells)
    best = min(values) if direction == "low" else max(values)
    text = next(cell.text for cell in cells if cell.value == best)
    return [cell._replace(tone="best") if cell.text == text else cell for cell in cells]
