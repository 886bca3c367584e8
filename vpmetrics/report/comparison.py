"""Several systems side by side.

Their table, the verdict on them, significant differences, and changes between two systems.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from vpmetrics._scores.jackknife import Difference, paired_difference
from vpmetrics._scores.registry import (
    CI_SUFFIXES,
    FAMILIES,
    Scalar,
    Unit,
    scalar,
    scalar_key,
    utility_direction,
)
from vpmetrics._util.inputs import InputError, quote
from vpmetrics._util.scalar import closest_or_known_names
from vpmetrics.report.checks import Check, check_identical_systems
from vpmetrics.report.difference import p_value_of
from vpmetrics.report.privacy_report import EvaluatedSystem, choose_original_name
from vpmetrics.report.summary import (
    MOST_BITS,
    Verdict,
    describe_risks,
    disclosure_of,
    explain_no_attack,
    headline_of,
    rank_competing_by_dataset,
    ranking_key,
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


_LEAST_PRINTED = 0.0005  # of three decimals


class Pair(NamedTuple):
    """Two systems by name, and their difference in one scalar, that of ``other_system`` subtracted.

    ``key`` is the scalar that they are compared by.
    """

    system: str
    other_system: str
    key: str
    difference: Difference

    def opponent_of(self, name: str) -> str:
        """Return the system that the named one is compared with."""
        return self.other_system if self.system == name else self.system

    @property
    def is_told_apart(self) -> bool:
        """Whether the data tell the systems apart, by more than the last digit that is printed."""
        return self.difference.is_significant and not is_same_as_printed(
            self.key, float(self.difference.value), 0.0
        )


def table_of_systems(
    systems: Sequence[EvaluatedSystem], title: str, columns: Sequence[str] = ("default",)
) -> Table:
    """Return systems side by side, under the original speech of each data set.

    ``columns``: keys of scalars, names of :data:`PRESETS` or of utilities.
    """
    utilities: dict[str, None] = {}
    for system in systems:
        utilities |= dict.fromkeys(system.utility)
    entries = _expand_columns(columns, systems, utilities)
    best = [_best_text_by_dataset(entry, systems) for entry in entries]
    rows = _rows_of_originals(systems, entries)
    for system in systems:
        cells = [Cell(clean(system.name))]
        for entry, text_by_dataset in zip(entries, best, strict=True):
            cell = _make_system_cell(entry, system)
            if not system.part_of and cell.text == text_by_dataset.get(system.dataset):
                cell = cell._replace(tone="best")
            cells.append(cell)
        rows.append(tuple(cells))
    keys: dict[str, None] = {}
    for entry in entries:
        if entry.family != "utility":
            keys[entry.key.removeprefix(scalar_key(entry.condition, ""))] = None
    heads = ("system", *map(heading_of, entries))
    return Table(clean(title), heads, tuple(rows), keys=tuple(keys))


def _rows_of_originals(
    systems: Sequence[EvaluatedSystem], entries: Sequence[Scalar]
) -> list[tuple[Cell, ...]]:
    """Return a row of the original speech of each data set."""
    originals: dict[str, EvaluatedSystem] = {}
    for system in systems:
        if "OO" in system.report.conditions:
            originals.setdefault(system.dataset, system)
    rows: list[tuple[Cell, ...]] = []
    for dataset, system in originals.items():
        name = choose_original_name(systems)
        if len(originals) > 1:
            name = f"{name}, {dataset}"
        cells = [_make_original_cell(entry, system) for entry in entries]
        rows.append((Cell(clean(name)), *cells))
    return rows


def check_columns(names: Iterable[str], utilities: Iterable[str] | None = None) -> None:
    """Raise for an unknown column; without ``utilities``, a name with capitals may be a utility."""
    choices = {*PRESETS, *(utilities or ()), "utility"}
    for name in names:
        if name in choices or (utilities is None and not name.islower()):
            continue
        try:
            scalar(name)
        except KeyError:
            hint = closest_or_known_names(name, [*choices, *_list_keys()])
            expected = f"a key such as op_eer, a utility, or one of {', '.join(PRESETS)}"
            raise InputError(
                f"Expected `columns` to name {expected}, but got {quote(name)}. {hint}"
            ) from None


def _list_keys() -> list[str]:
    """Return the keys of all scalars without a parameter, then the same of condition OP."""
    keys: list[str] = []
    keys_of_op: list[str] = []
    for entries in FAMILIES.values():
        for entry in entries:
            if "{}" not in entry.heading:
                keys.append(entry.key)
                keys_of_op.append(scalar_key("OP", entry.key))
    return [*keys, *keys_of_op]


def _expand_columns(
    names: Sequence[str], systems: Sequence[EvaluatedSystem], utilities: Iterable[str]
) -> list[Scalar]:
    """Return the scalars of the columns.

    Those of the strongest attack come before those of plain comparison.
    """
    check_columns(names, utilities)
    attacked: dict[str, None] = {}
    for system in systems:
        attacked |= dict.fromkeys(conditions_in_table_order(system))
    conditions = [name for name in attacked if name not in ("OO", "within")]
    entries: list[Scalar] = []
    for name in names:
        if name in PRESETS:
            entries += _expand_columns(PRESETS[name], systems, utilities)
        elif name == "utility":
            entries += [_make_utility_entry(utility) for utility in utilities]
        elif name in utilities:
            entries.append(_make_utility_entry(name))
        elif scalar(name).condition or not has_conditions(scalar(name)):
            default_condition = conditions[0] if conditions else ""
            entries += map(scalar, insert_strongest_before_plain([name], default_condition))
        else:
            for condition in conditions:
                keys = insert_strongest_before_plain([scalar_key(condition, name)])
                entries += map(scalar, keys)
    # Chance and the name of the attack would make the table too wide.
    left_out = {scalar_key(condition, "d_ece_chance") for condition in conditions} - set(names)
    shown: list[Scalar] = []
    for entry in dict.fromkeys(entries):
        is_known = any(entry.key in system.scalars for system in systems)
        if entry.key not in left_out and (entry.family in ("attack", "utility") or is_known):
            shown.append(entry)
    return shown


def _make_utility_entry(name: str) -> Scalar:
    direction = utility_direction(name)
    return Scalar(
        name, name, Unit("", ".4g"), direction, "utility of protected speech", family="utility"
    )


def _make_system_cell(entry: Scalar, system: EvaluatedSystem) -> Cell:
    if entry.family == "utility":
        return value_cell(entry, system.utility.get(entry.key, math.nan))
    return scalar_cell(entry.key, system)


def _make_original_cell(entry: Scalar, system: EvaluatedSystem) -> Cell:
    if has_conditions(entry) and entry.family != "attack":
        key = scalar_key("OO", entry.key.removeprefix(scalar_key(entry.condition, "")))
        return scalar_cell(key, system, with_interval=False)
    if entry.key in _ZERO_FOR_ORIGINAL:
        return value_cell(entry, 0.0)
    return value_cell(entry, math.nan)


def _best_text_by_dataset(entry: Scalar, systems: Sequence[EvaluatedSystem]) -> dict[str, str]:
    """Return the best value of each data set as text.

    A data set where all competing systems have the same value has none.
    """
    best: dict[str, str] = {}
    if entry.direction is None:
        return best
    for dataset, competing in rank_competing_by_dataset(systems).items():
        cells = [_make_system_cell(entry, system) for system in competing]
        defined_cells = [cell for cell in cells if not math.isnan(cell.value)]
        if len({_printed_value(cell) for cell in defined_cells}) > 1:
            choose = min if entry.direction == "low" else max
            best[dataset] = choose(defined_cells, key=lambda cell: cell.value).text
    return best


def _printed_value(cell: Cell) -> str:
    """Return a value by the digits of tables, where very small ones are powers of ten."""
    return "0" if abs(cell.value) < _LEAST_PRINTED else cell.text


def verdict_of_systems(systems: Sequence[EvaluatedSystem], pairs: Sequence[Pair] = ()) -> Verdict:
    """Return which system discloses least, and whose voices stay most distinct.

    ``pairs`` show which of these differences are significant.

    With several data sets, the verdict is on the last, the test set, and has a sentence on each
    other one.
    """
    *before_last, last = rank_competing_by_dataset(systems).values()
    verdict = _verdict_of_ranked(last, pairs)
    sentences: list[str] = []
    for ranked in before_last:
        title = _verdict_of_ranked(ranked, pairs).title
        sentences.append(f"On {ranked[0].dataset}: {title}")
    return verdict._replace(sentences=(*verdict.sentences, *sentences))


def _find_indistinguishable(name: str, pairs: Sequence[Pair]) -> list[str]:
    """Return the systems that the data do not distinguish from the named one."""
    opponents: list[str] = []
    for pair in pairs:
        if name in (pair.system, pair.other_system) and not pair.is_told_apart:
            opponents.append(pair.opponent_of(name))
    return opponents


def _verdict_of_ranked(systems: Sequence[EvaluatedSystem], pairs: Sequence[Pair]) -> Verdict:
    """Return the verdict on the competing systems of one data set.

    The best system is the one that discloses least. The level and its reasons are those of the
    best; the title and the first sentence compare it with the others. ``pairs`` tell which systems
    differ significantly.
    """
    key = ranking_key(systems)
    measured: list[EvaluatedSystem] = []
    for system in systems:
        if not math.isnan(_disclosed_bits(system, key)):
            measured.append(system)
    if len(systems) == 1 or not measured:
        return _verdict_of_one(systems[0])
    # Several data sets together may have been ranked by another key.
    measured.sort(key=lambda system: _disclosed_bits(system, key))
    best = measured[0]
    verdict = verdict_of(best)
    sentences = [
        *_compare_disclosures(measured, key),
        f"{best.name}: {verdict.title}",
        *describe_risks(best)[:2],  # the rest is in the report of the system
        *_name_most_distinct(systems),
    ]
    for system in measured:
        if strongest_attack_and_needs(system, headline_of(system).condition) is None:
            sentences.append(explain_no_attack(system))
            break  # one explanation serves all
    title = _title_of_measured(measured, key, pairs)
    return Verdict(verdict.level, title, tuple(sentences), verdict.reasons)


def _disclosed_bits(system: EvaluatedSystem, key: str) -> float:
    bits: float = getattr(headline_of(system), key)
    return bits


def _verdict_of_one(system: EvaluatedSystem) -> Verdict:
    """Return the verdict on a system without others; its title begins with the system's name."""
    verdict = verdict_of(system)
    if system.name:
        return verdict._replace(title=f"{system.name}: {verdict.title}")
    return verdict


def _title_of_measured(measured: Sequence[EvaluatedSystem], key: str, pairs: Sequence[Pair]) -> str:
    """Return which of the systems, sorted by disclosure, discloses least, as far as is known."""
    best = measured[0]
    least_text = str(disclosure_of(best, key))
    if len(measured) == 1:
        return f"Only of {best.name} is the disclosure known."
    if _have_equal_disclosures(measured, key):
        return f"All disclose {least_text} bit."
    as_good_as_best = _find_indistinguishable(best.name, pairs)
    if as_good_as_best:
        names = ", ".join(as_good_as_best)
        return f"{best.name} discloses least, but these data do not tell it apart from {names}."
    return f"{best.name} discloses least."


def _have_equal_disclosures(measured: Sequence[EvaluatedSystem], key: str) -> bool:
    """Return whether several systems, sorted by disclosure, are equal in the digits of tables."""
    best_text = str(disclosure_of(measured[0], key))
    worst_text = str(disclosure_of(measured[-1], key))
    return len(measured) > 1 and best_text == worst_text


def _compare_disclosures(measured: Sequence[EvaluatedSystem], key: str) -> list[str]:
    """Return a sentence with the least and the largest disclosure; none where they are equal."""
    if _have_equal_disclosures(measured, key):
        return []
    best = measured[0]
    worst = measured[-1]
    source = "from one utterance"
    if key != "disclosure":
        source = f"from {headline_of(best).conversation_utterances:.0f} utterances of one person"
    sentence = f"{best.name} discloses {disclosure_of(best, key)} bit {source}"
    if len(measured) > 1:
        sentence += f", {worst.name} {disclosure_of(worst, key)}"
    return [f"{sentence}, of {MOST_BITS:.3f} at most."]


def _name_most_distinct(systems: Sequence[EvaluatedSystem]) -> list[str]:
    """Return a sentence on the system with the largest G_VD; none where all have the same."""
    if len({scalar_cell("gvd", system).text for system in systems}) == 1:
        return []
    with_gvd = [system for system in systems if math.isfinite(system.get_or_nan("gvd"))]
    if not with_gvd:
        return []
    most_distinct = max(with_gvd, key=lambda system: system.get_or_nan("gvd"))
    text = scalar_cell("gvd", most_distinct, with_interval=False).text
    return [f"Voices stay most distinct with {most_distinct.name} (G_VD {text} dB)."]


def collect_checks(systems: Sequence[EvaluatedSystem]) -> list[Check]:
    """Return the checks of all competing systems, the worst first.

    A check that all of them share is listed once.
    """
    competing: list[EvaluatedSystem] = []
    for ranked in rank_competing_by_dataset(systems).values():
        competing += ranked
    names_by_check: dict[Check, list[str]] = defaultdict(list)
    for system in competing:
        for check in system.report.checks:
            names_by_check[check].append(system.name)
    checks = find_identical_systems(systems)
    for check, names in names_by_check.items():
        if len(names) < len(competing):
            checks.append(check._replace(name=f"{check.name}, {', '.join(names)}"))
        else:
            checks.append(check)
    return sort_checks(checks)


def find_identical_systems(systems: Sequence[EvaluatedSystem]) -> list[Check]:
    """Return a check for every two competing systems with identical scores."""
    checks: list[Check] = []
    for ranked in rank_competing_by_dataset(systems).values():
        checks += check_identical_systems({system.name: system.report for system in ranked})
    return checks


def compare_pairs_by_disclosure(
    systems: Sequence[EvaluatedSystem], confidence: float | None
) -> list[Pair]:
    """Return all pairs of competing systems, compared by their disclosure.

    Both were measured on the same speakers.
    """
    pairs = []
    for of_dataset in rank_competing_by_dataset(systems).values():
        key = ranking_key(of_dataset)
        in_order = [system for system in systems if system in of_dataset]
        for system, other_system in combinations(in_order, 2):
            pair = _compare_systems(system, other_system, key, confidence)
            if pair is not None:
                pairs.append(pair)
    return pairs


def _compare_systems(
    system: EvaluatedSystem, other_system: EvaluatedSystem, key: str, confidence: float | None
) -> Pair | None:
    """Compare two systems by one scalar.

    Return None unless both have its jackknife, on the same speakers.
    """
    jackknife = system.report.jackknife
    other_jackknife = other_system.report.jackknife
    if confidence is None or jackknife is None or other_jackknife is None:
        return None
    if key not in jackknife.changes or key not in other_jackknife.changes:
        return None
    has_same_speakers = system.speakers == other_system.speakers and jackknife.groups.matches(
        other_jackknife.groups
    )
    if not has_same_speakers or math.isnan(system.get_or_nan(key) + other_system.get_or_nan(key)):
        return None
    values = (system.report.scalars[key], other_system.report.scalars[key])
    difference = paired_difference(key, values, (jackknife, other_jackknife), confidence)
    return Pair(system.name, other_system.name, key, difference)


def table_of_pairs(pairs: Sequence[Pair]) -> Table:
    """Return a table with a row per pair."""
    rows = []
    for pair in pairs:
        change = pair.difference
        if float(change.probability_below) > 0.5:
            lower = pair.system
        else:
            lower = pair.other_system
        verdict = f"not significant; lower for {lower}"
        if pair.is_told_apart:
            verdict = f"{lower} discloses less"
        elif is_same_as_printed(pair.key, float(change.value), 0.0):
            verdict = "same"
        difference = value_cell(
            scalar(pair.key), float(change.value), float(change.low), float(change.high)
        )
        p_value = p_value_of(change)
        rows.append(
            (
                Cell(clean(f"{pair.system} minus {pair.other_system}")),
                difference,
                Cell(clean(verdict)),
                Cell(f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001", p_value),
            )
        )
    heads = ("pair", "difference [bit]", "verdict", "p-value")
    caption = (
        "Disclosure of the first system minus that of the second, on the same speakers. The p-value"
        " says how often a difference at least as large would occur if there were none."
    )
    return Table("Differences", heads, tuple(rows), caption, ("disclosure",))


def is_same_as_printed(key: str, first: float, second: float) -> bool:
    """Return whether two values of a number are the same up to the digits that tables print."""
    unit = scalar(key).unit
    digits = re.search(r"\.(\d+)f", unit.spec)
    if digits is None or math.isnan(first + second):
        return first == second
    num_digits = int(digits[1])
    return round(unit.scale * first, num_digits) == round(unit.scale * second, num_digits)


def table_of_changes(
    before: EvaluatedSystem, after: EvaluatedSystem, confidence: float | None = None
) -> Table:
    """Return a table of the scalars that both systems have, and their changes.

    The table has no rows if they share none.
    """
    names = ["disclosure", "disclosure_conversation", "found_in_100", "deid", "gvd"]
    for condition in conditions_in_table_order(before):
        if condition != "OO":
            names += [scalar_key(condition, key) for key in _CHANGE_KEYS]
    keys: dict[str, None] = {}
    rows: list[tuple[Cell, ...]] = []
    for name in names:
        if name not in before.scalars or name not in after.scalars:
            continue
        old = scalar_cell(name, before, with_interval=False)
        new = scalar_cell(name, after, with_interval=False)
        change = _describe_change(name, before, after, confidence)
        rows.append((Cell(heading_of(scalar(name))), old, new, change))
        keys[name.removeprefix(scalar_key(scalar(name).condition, ""))] = None
    heads = ("measure", clean(before.name), clean(after.name), "change")
    title = clean(f"From {before.name} to {after.name}")
    return Table(title, heads, tuple(rows), keys=tuple(keys))


def _describe_change(
    name: str, before: EvaluatedSystem, after: EvaluatedSystem, confidence: float | None
) -> Cell:
    """Return whether a number is better or worse than before; the same, or within error."""
    old = before.get_or_nan(name)
    new = after.get_or_nan(name)
    if math.isnan(old + new):
        return Cell("")
    if is_same_as_printed(name, old, new):
        return Cell("same")
    pair = _compare_systems(before, after, name, confidence)
    if pair is not None:
        is_significant = pair.difference.is_significant
    else:
        # Systems on other speakers are compared by their intervals; no comparison with NaN holds.
        lows = [system.get_or_nan(f"{name}{CI_SUFFIXES[0]}") for system in (before, after)]
        highs = [system.get_or_nan(f"{name}{CI_SUFFIXES[1]}") for system in (before, after)]
        is_significant = not max(lows) <= min(highs)
    if not is_significant:
        return Cell("within error")
    grows = new > old
    arrow = "▲" if grows else "▼"
    direction = scalar(name).direction
    if direction is None:
        return Cell(f"{arrow} {'more distinct' if grows else 'less distinct'}")
    tone = "worse"
    if grows == (direction == "high"):
        tone = "better"
    return Cell(f"{arrow} {tone}", tone=tone)
