"""Several systems side by side: their table, which discloses less, significant differences, changes between two."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from vpmetrics._scores.jackknife import Difference, paired_difference
from vpmetrics._scores.registry import CI_SUFFIXES, FAMILIES, Scalar, Unit, scalar, scalar_key, utility_direction
from vpmetrics._util.inputs import InputError, quote
from vpmetrics._util.scalar import closest_or_known_names
from vpmetrics.report.checks import Check, check_identical_systems
from vpmetrics.report.privacy_report import EvaluatedSystem, choose_original_name
from vpmetrics.report.summary import (
    MOST_BITS,
    Verdict,
    disclosure_of,
    explain_no_attack,
    headline_of,
    rank_competing_by_dataset,
    sort_checks,
    strongest_attack_and_needs,
    verdict_of,
)
from vpmetrics.report.tables import (
    Cell,
    Table,
    clean,
    conditions_in_table_order,
    has_conditions,
    heading_of,
    insert_strongest_before_plain,
    scalar_cell,
    value_cell,
)

# A key without its condition stands for all conditions there are, "utility" for all utilities.
PRESETS = {
    "default": ("disclosure", "d_ece", "eer", "deid", "gvd", "utility"),
    "paper-2022": ("deid", "d_ece_op_oo", "cllr_op_oo", "gvd", "g_d_ece", "g_cllr"),
    "paper-srd": ("max_d", "mean_d", "id_rate", "rank_spread"),
    "challenge": ("raw_eer", "utility"),
}
_ZERO_FOR_ORIGINAL = ("deid", "gvd")  # measured against original speech, so 0 for it
_CHANGE_KEYS = ["d_ece_strongest", "d_ece", "d_ece_reversed", "eer_strongest", "eer"]
_CHANGE_KEYS += ["l_w", "linkability", "max_d", "alid"]


class Pair(NamedTuple):
    """Two systems by name, the scalar they are compared by, and its difference, first minus second."""

    first: str
    second: str
    key: str
    difference: Difference


def table_of_systems(systems: Sequence[EvaluatedSystem], title: str, columns: Sequence[str] = ("default",)) -> Table:
    """Return systems side by side, under the original speech of each data set.

    ``columns``: keys of scalars, names of :data:`PRESETS` or of utilities.
    """
    entries = _expand_columns(columns, systems, dict.fromkeys(name for system in systems for name in system.utility))
    best = [_best_text_by_dataset(entry, systems) for entry in entries]
    rows = []
    for system in systems:
        cells = [_make_system_cell(entry, system) for entry in entries]
        marked = [
            cell._replace(tone="best") if not system.part_of and cell.text == texts.get(system.dataset) else cell
            for cell, texts in zip(cells, best, strict=True)
        ]
        rows.append((Cell(clean(system.name)), *marked))
    originals: dict[str, EvaluatedSystem] = {}
    for system in systems:
        if "OO" in system.report.conditions:
            originals.setdefault(system.dataset, system)
    original_rows = []
    for dataset, system in originals.items():
        name = choose_original_name(systems) + (f", {dataset}" if len(originals) > 1 else "")
        original_rows.append((Cell(clean(name)), *(_make_original_cell(entry, system) for entry in entries)))
    keys = (entry.key.removeprefix(scalar_key(entry.condition, "")) for entry in entries if entry.family != "utility")
    heads = ("system", *map(heading_of, entries))
    return Table(clean(title), heads, (*original_rows, *rows), keys=tuple(dict.fromkeys(keys)))


def check_columns(names: Iterable[str], utilities: Iterable[str] | None = None) -> None:
    """Raise for an unknown column; without ``utilities``, a name with capitals may be a utility."""
    choices = {*PRESETS, *(utilities or ()), "utility"}
    for name in names:
        if name in choices or (utilities is None and not name.islower()):
            continue
        try:
            scalar(name)
        except KeyError:
            keys = [entry.key for entries in FAMILIES.values() for entry in entries if "{}" not in entry.heading]
            hint = closest_or_known_names(name, [*choices, *keys, *(scalar_key("OP", key) for key in keys)])
            expected = f"a key such as op_eer, a utility, or one of {', '.join(PRESETS)}"
            raise InputError(f"Expected `columns` to name {expected}, but got {quote(name)}. {hint}") from None


def _expand_columns(names: Sequence[str], systems: Sequence[EvaluatedSystem], utilities: Iterable[str]) -> list[Scalar]:
    """Return the scalars of the columns; those of the strongest attack come before those of plain comparison."""
    check_columns(names, utilities)
    attacked = (c for system in systems for c in conditions_in_table_order(system) if c not in ("OO", "within"))
    conditions = list(dict.fromkeys(attacked))
    entries: list[Scalar] = []
    for name in names:
        if name in PRESETS:
            entries += _expand_columns(PRESETS[name], systems, utilities)
        elif name in utilities or name == "utility":
            for key in utilities if name == "utility" else [name]:
                unit, text = Unit("", ".4g"), "utility of protected speech"
                entries.append(Scalar(key, key, unit, utility_direction(key), text, family="utility"))
        elif scalar(name).condition or not has_conditions(scalar(name)):
            entries += map(scalar, insert_strongest_before_plain([name], conditions[0] if conditions else ""))
        else:
            entries += [scalar(key) for c in conditions for key in insert_strongest_before_plain([scalar_key(c, name)])]
    # Chance and the name of the attack would make the table too wide.
    left_out = {scalar_key(condition, "d_ece_chance") for condition in conditions}
    return [
        entry
        for entry in dict.fromkeys(entries)
        if entry.key not in left_out - set(names)
        and (entry.family in ("attack", "utility") or any(entry.key in system.scalars for system in systems))
    ]


def _make_system_cell(entry: Scalar, system: EvaluatedSystem) -> Cell:
    if entry.family == "utility":
        return value_cell(entry, system.utility.get(entry.key, math.nan))
    return scalar_cell(entry.key, system)


def _make_original_cell(entry: Scalar, system: EvaluatedSystem) -> Cell:
    if has_conditions(entry) and entry.family != "attack":
        key = scalar_key("OO", entry.key.removeprefix(scalar_key(entry.condition, "")))
        return scalar_cell(key, system, with_interval=False)
    return value_cell(entry, 0.0 if entry.key in _ZERO_FOR_ORIGINAL else math.nan)


def _best_text_by_dataset(entry: Scalar, systems: Sequence[EvaluatedSystem]) -> dict[str, str]:
    """Return the best value of each data set as text; none where all competing systems have the same."""
    best = {}
    for dataset, some in rank_competing_by_dataset(systems).items() if entry.direction else ():
        cells = [cell for system in some if not math.isnan((cell := _make_system_cell(entry, system)).value)]
        if len({cell.text for cell in cells}) > 1:
            best[dataset] = (min if entry.direction == "low" else max)(cells, key=lambda cell: cell.value).text
    return best


def verdict_of_systems(systems: Sequence[EvaluatedSystem], pairs: Sequence[Pair] = ()) -> Verdict:
    """Return which system discloses least, as far as ``pairs`` show, and whose voices stay most distinct.

    With several data sets, the verdict is on the last, the test set, and has a sentence on each other one.
    """
    *others, last = rank_competing_by_dataset(systems).values()
    verdict = _verdict_of_ranked(last, pairs)
    sentences = [f"On {some[0].dataset}: {_verdict_of_ranked(some, pairs).title}" for some in others]
    return verdict._replace(sentences=(*verdict.sentences, *sentences))


def _verdict_of_ranked(systems: Sequence[EvaluatedSystem], pairs: Sequence[Pair]) -> Verdict:
    """Return the verdict on systems of one data set, ranked."""
    ranked = [system for system in systems if not math.isnan(headline_of(system).disclosure)]
    verdict = verdict_of(systems[0])
    if len(systems) == 1 or not ranked:
        return verdict._replace(title=f"{systems[0].name}: {verdict.title.lower()}")
    best, worst = ranked[0], ranked[-1]
    least, most = (str(disclosure_of(system)) for system in (best, worst))
    title = f"{best.name} discloses least."
    sentences = [f"{best.name} discloses {least} bit, {worst.name} {most}, of {MOST_BITS:.3f} at most."]
    undecided = [pair for pair in pairs if best.name in pair[:2] and not pair.difference.is_significant]
    if undecided:
        names = ", ".join(name for pair in undecided for name in pair[:2] if name != best.name)
        title = f"{best.name} discloses least, but these data do not tell it apart from {names}."
    if len(ranked) > 1 and least == most:
        title, sentences = f"All disclose {least} bit.", []
    sentences += [f"Leakage of {best.name} is {verdict.level}.", *verdict.reasons]
    distinct = {each.name: scalar_cell("gvd", each) for each in systems if math.isfinite(each.get_or_nan("gvd"))}
    if len({cell.text for cell in distinct.values()}) > 1:
        name = max(distinct, key=lambda name: distinct[name].value)
        sentences.append(f"Voices stay most distinct with {name} (G_VD {distinct[name].text} dB).")
    not_attacked = [each for each in ranked if strongest_attack_and_needs(each, headline_of(each).condition) is None]
    sentences += [explain_no_attack(system) for system in not_attacked[:1]]
    return Verdict(verdict.level, title, tuple(sentences))


def collect_checks(systems: Sequence[EvaluatedSystem]) -> list[Check]:
    """Return the checks of all competing systems, the worst first; a check that all of them share is listed once."""
    competing = [system for some in rank_competing_by_dataset(systems).values() for system in some]
    names: dict[Check, list[str]] = defaultdict(list)
    for system in competing:
        for check in system.report.checks:
            names[check].append(system.name)
    checks = [
        check if len(some) == len(competing) else check._replace(name=f"{check.name}, {', '.join(some)}")
        for check, some in names.items()
    ]
    return sort_checks([*find_identical_systems(systems), *checks])


def find_identical_systems(systems: Sequence[EvaluatedSystem]) -> list[Check]:
    """Return a check for every two competing systems with identical scores."""
    groups = rank_competing_by_dataset(systems).values()
    return [check for some in groups for check in check_identical_systems({one.name: one.report for one in some})]


def compare_pairs_by_disclosure(systems: Sequence[EvaluatedSystem], confidence: float | None) -> list[Pair]:
    """Return all pairs of competing systems that were measured on the same speakers, compared by their disclosure."""
    competing = [system for system in systems if not system.part_of]
    groups = ([one for one in competing if one.dataset == name] for name in sorted({one.dataset for one in competing}))
    pairs = (_compare_systems(*two, "disclosure", confidence) for some in groups for two in combinations(some, 2))
    return [pair for pair in pairs if pair is not None]


def _compare_systems(
    first: EvaluatedSystem, second: EvaluatedSystem, key: str, confidence: float | None
) -> Pair | None:
    """Compare two systems by one scalar; None unless both have its jackknife, on the same speakers."""
    one, other = first.report.jackknife, second.report.jackknife
    if confidence is None or one is None or other is None or key not in one.changes or key not in other.changes:
        return None
    has_same_speakers = first.speakers == second.speakers and one.groups.matches(other.groups)
    if not has_same_speakers or math.isnan(first.get_or_nan(key) + second.get_or_nan(key)):
        return None
    values = first.report.scalars[key], second.report.scalars[key]
    return Pair(first.name, second.name, key, paired_difference(key, values, (one, other), confidence))


def table_of_pairs(pairs: Sequence[Pair]) -> Table:
    """Return a table with a row per pair."""
    rows = []
    for first, second, _, change in pairs:
        below = float(change.probability_below)
        lower, probability = (first, below) if below > 0.5 else (second, 1 - below)
        verdict = f"{lower} discloses less" if change.is_significant else f"not significant; lower for {lower}"
        difference = value_cell(scalar("disclosure"), *map(float, change[:3]))
        names = Cell(clean(f"{first} minus {second}"))
        rows.append((names, difference, Cell(clean(verdict)), Cell(f"{probability:.3f}", probability)))
    heads = ("pair", "difference [bit]", "verdict", "probability")
    caption = "Disclosure of the first system minus that of the second, on the same speakers."
    return Table("Differences", heads, tuple(rows), caption, ("disclosure",))


def table_of_changes(before: EvaluatedSystem, after: EvaluatedSystem, confidence: float | None = None) -> Table:
    """Return a table of the scalars that both systems have, and their changes; without rows if they share none."""
    names = ["disclosure", "deid", "gvd"]
    names += [scalar_key(c, key) for c in conditions_in_table_order(before) if c != "OO" for key in _CHANGE_KEYS]
    common_names = [name for name in names if name in before.scalars and name in after.scalars]
    rows = []
    for name in common_names:
        entry, pair, tone = scalar(name), _compare_systems(before, after, name, confidence), ""
        old, new = (scalar_cell(name, system, with_interval=False) for system in (before, after))
        lows, highs = ([system.get_or_nan(name + end) for system in (before, after)] for end in CI_SUFFIXES)
        # Systems on other speakers are compared by their intervals; no comparison with NaN holds.
        is_significant = pair.difference.is_significant if pair else not max(lows) <= min(highs)
        if math.isnan(old.value + new.value):
            text = ""
        elif old.text == new.text:
            text = "same"
        elif not is_significant:
            text = "within error"
        else:
            grows = new.value > old.value
            tone = "" if entry.direction is None else "better" if grows == (entry.direction == "high") else "worse"
            text = f"{'▲' if grows else '▼'} {tone or ('more distinct' if grows else 'less distinct')}"
        rows.append((Cell(heading_of(entry)), old, new, Cell(text, tone=tone)))
    keys = tuple(dict.fromkeys(name.split("_", 1)[-1] if scalar(name).condition else name for name in common_names))
    heads = ("measure", clean(before.name), clean(after.name), "change")
    return Table(clean(f"From {before.name} to {after.name}"), heads, tuple(rows), keys=keys)
