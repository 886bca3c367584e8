"""A summary of a system: verdict, checks and eight numbers, as data and as text of 80 columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product
from textwrap import wrap
from typing import Any, NamedTuple

from vpmetrics._scores.registry import CI_SUFFIXES, CONDITION_TITLES, scalar, scalar_key
from vpmetrics._util.inputs import shorten
from vpmetrics.report.checks import Check
from vpmetrics.report.headline import Headline
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.tables import Cell, attribute_cell, clean, conditions_in_table_order, scalar_cell, value_cell
from vpmetrics.report.verdict import CONVERSATION, FOUND, LOW_FPR

MOST_BITS = scalar("d_ece").range[1]  # bits that calibrated scores can disclose
THRESHOLDS = (
    f"Leakage is low where the data exclude {CONVERSATION.limit_low:g} bit from several utterances of one person, "
    f"{FOUND.limit_low:.0%} found among 100 people and {LOW_FPR.limit_low:.0%} found at a false-positive rate of "
    "0.1 %, and nobody stands out. It is moderate or high where the data show more than chance gives: high above "
    f"{CONVERSATION.limit_high:g} bit, {FOUND.limit_high:.0%} or {LOW_FPR.limit_high:.0%}. Else they do not tell. "
    "These limits are a convention of vpmetrics."
)
WIDTH, MOST_ROWS = 80, 8
MARKS = {"failed": "✗", "warning": "!", "ok": "✓"}  # the worst first
_UNKNOWN = Headline("inconclusive", "No verdict.")
_UNDEFINED = "D_ECE is not defined for these trials; the notes say why."


class Verdict(NamedTuple):
    """The level of leakage, a title and sentences; ``reasons`` explain a level above that of the disclosure alone."""

    level: str
    title: str
    sentences: tuple[str, ...]
    reasons: tuple[str, ...] = ()


class SummaryRow(NamedTuple):
    """A number of the first screen; a disclosure has a bar on the page."""

    heading: str
    cell: Cell
    unit: str
    note: str
    has_bar: bool = False


def headline_of(system: EvaluatedSystem) -> Headline:
    """Return the headline of a report; one of NaN where it has none."""
    return system.report.headline or _UNKNOWN


def verdict_of(system: EvaluatedSystem) -> Verdict:
    """Return the verdict on one system, in sentences."""
    headline = headline_of(system)
    if math.isnan(headline.disclosure):
        return Verdict("inconclusive", _UNKNOWN.verdict, (_UNDEFINED,))
    sentences = (*headline.reasons, *_describe_attackers(system))
    return Verdict(headline.level, headline.verdict, sentences, headline.reasons)


def sort_checks(checks: Iterable[Check]) -> list[Check]:
    """Return checks, the worst first."""
    return sorted(checks, key=lambda check: list(MARKS).index(check.status))


def conditions_meant_to_hide(system: EvaluatedSystem) -> list[str]:
    """Return the conditions in which speakers should be hidden: OP, and PP or across; not within one session."""
    conditions = conditions_in_table_order(system)
    protected = "across" if "across" in conditions else "PP"
    return [name for name in conditions if name in ("OP", protected, "")] or conditions[:1]


def disclosure_in_condition(system: EvaluatedSystem, condition: str) -> Cell:
    """Return the disclosure of a condition to the strongest attack, else to plain comparison in either direction."""
    key = "d_ece_strongest"
    if math.isnan(system.get_or_nan(key, condition)):
        key = max("d_ece", "d_ece_reversed", key=lambda name: system.get_or_nan(name, condition))
    values = (system.get_or_nan(f"{key}{end}", condition) for end in ("", *CI_SUFFIXES))
    return value_cell(scalar("disclosure"), *values)


def disclosure_of(system: EvaluatedSystem) -> Cell:
    """Return the largest disclosure to any attacker tried in any condition."""
    return value_cell(scalar("disclosure"), *_disclosure_and_ends(headline_of(system)))


def _disclosure_and_ends(headline: Headline) -> tuple[float, float, float]:
    return headline.disclosure, headline.disclosure_low, headline.disclosure_high


def strongest_attack_and_needs(system: EvaluatedSystem, condition: str) -> tuple[str, str] | None:
    """Return the name of the strongest attack in a condition and what it needs; None where none was tried."""
    report = system.report.conditions.get(condition)
    if report is None or report.strongest is None or math.isnan(system.get_or_nan("d_ece_strongest", condition)):
        return None
    return report.strongest.name, report.strongest.needs


def explain_no_attack(system: EvaluatedSystem) -> str:
    """Return why there is no number of an attack."""
    why = f", since {clean(system.no_attacks)}" if system.no_attacks else ""
    return f"No attack was tried{why}: take this as the least."


def worst_speaker_name(system: EvaluatedSystem) -> str:
    """Return the name of the speaker who is protected worst; a dash where that is not known."""
    place = headline_of(system).worst_place
    return clean(system.speaker_name(math.nan if place < 0 else place))


def sort_by_dataset_and_disclosure(systems: Sequence[EvaluatedSystem]) -> list[EvaluatedSystem]:
    """Sort by data set, then by disclosure, the least first and the unknown last; parts follow their whole."""
    bits = {system.name: headline_of(system).disclosure for system in systems}

    def sort_key(system: EvaluatedSystem) -> tuple[Any, ...]:
        whole = system.part_of or system.name
        return system.dataset, math.isnan(bits[whole]), bits[whole], whole, bool(system.part_of), bits[system.name]

    return sorted(systems, key=sort_key)


def rank_competing_by_dataset(systems: Sequence[EvaluatedSystem]) -> dict[str, list[EvaluatedSystem]]:
    """Return by data set the systems that compete, ranked; a part of a combined system does not."""
    groups: dict[str, list[EvaluatedSystem]] = {}
    for system in sort_by_dataset_and_disclosure(systems):
        if not system.part_of:
            groups.setdefault(system.dataset, []).append(system)
    return groups


def _describe_attackers(system: EvaluatedSystem) -> list[str]:
    """Return sentences on what attackers learn and need, in the condition of the headline and in the others."""
    condition, show = headline_of(system).condition, scalar("disclosure").show
    attack = strongest_attack_and_needs(system, condition)
    what = f" in {condition}, {CONDITION_TITLES[condition].partition(':')[0]}" if condition else ""
    sentences = [f"An attacker learns {disclosure_of(system)} of at most {MOST_BITS:.3f} bit{what}."]
    comparisons = {}
    if attack is None:
        sentences.append(explain_no_attack(system))
        if system.get_or_nan("d_ece_reversed", condition) > system.get_or_nan("d_ece", condition):
            sentences.append("It is enough to turn the sign of the scores.")
    else:
        sentences.append(f"The strongest attack tried, “{attack[0]}”, needs {attack[1]}.")
        comparisons["comparing embeddings alone"] = system.get_or_nan("d_ece", condition)
    comparisons["chance"] = system.get_or_nan("d_ece_chance", condition)
    comparisons["original speech"] = system.get_or_nan("d_ece", "OO")
    if text := ", ".join(f"{name} {show(value)}" for name, value in comparisons.items() if not math.isnan(value)):
        sentences.append(f"For comparison, in bits: {text}.")
    for other in conditions_meant_to_hide(system):
        disclosure, attack = disclosure_in_condition(system, other), strongest_attack_and_needs(system, other)
        if other != condition and not math.isnan(disclosure.value):
            by = f" by the attack “{attack[0]}”, which needs {attack[1]}" if attack else ""
            sentences.append(f"In {other} an attacker learns {disclosure} bit{by}.")
    return sentences


def summary_rows(system: EvaluatedSystem) -> list[SummaryRow]:
    """Return at most eight numbers to read first, and the attributes that were asked for.

    Where an attack was tried, the note has the number without it.
    """
    conditions, condition = conditions_meant_to_hide(system), headline_of(system).condition
    attack = strongest_attack_and_needs(system, condition)
    note = ", ".join(filter(None, (condition, attack[0] if attack else "no attack tried")))
    rows = [SummaryRow("disclosure", disclosure_of(system), "bit", note, has_bar=True)]

    def add_row(key: str, heading: str, note: str = "") -> None:
        has_bar = "_d_ece" in f"_{key}"
        rows.append(SummaryRow(heading.strip(), scalar_cell(key, system), scalar(key).unit.name, note, has_bar))

    for key, c in product(("d_ece", "eer"), conditions):
        plain, strongest, heading = scalar_key(c, key), scalar_key(c, f"{key}_strongest"), f"{c} {scalar(key).heading}"
        if math.isnan(system.get_or_nan(strongest)):
            add_row(plain, heading, "no attack tried")
        else:
            plain_text = scalar_cell(plain, system, with_interval=False).text
            add_row(strongest, f"{heading}, strongest", f"{plain_text} without an attack")
    chance = scalar("disclosure").show(system.get_or_nan("worst_speaker_chance"))
    note = f"{shorten(worst_speaker_name(system), 24)}; chance {chance}"
    add_row("worst_speaker_disclosure", "worst speaker", note)
    for key in ("deid", "gvd"):
        add_row(key, scalar(key).heading, "without an attack")
    for key, c in product(("linkability", "id_rate"), conditions):
        add_row(scalar_key(c, key), f"{c} {scalar(key).heading}")
    rows = [row for row in rows if not math.isnan(row.cell.value)][:MOST_ROWS]
    for name, numbers in system.attributes.items():
        cell, at_chance, original = (attribute_cell(numbers, key) for key in ("disclosure", "chance", "original"))
        note = f"chance {at_chance.text}; original {original.text}"
        if not math.isnan(cell.value):
            rows.append(SummaryRow(f"attribute {shorten(clean(name), 13)}", cell, "bit", note))
    return rows


def shares_of(cell: Cell) -> tuple[float | None, tuple[float, float] | None]:
    """Return a disclosure and its interval as shares of the most there can be; None where they are not known."""
    values = (cell.value, *cell.ends)
    share, low, high = (None if math.isnan(value) else min(max(value / MOST_BITS, 0.0), 1.0) for value in values)
    return share, None if low is None or high is None else (low, high)


def summary_lines(system: EvaluatedSystem) -> list[str]:
    """Return the summary of one system as lines of at most 80 columns."""
    lines = [*verdict_lines(verdict_of(system)), "", *check_lines(sort_checks(system.report.checks))]
    for row in summary_rows(system):
        value = f"{row.cell.text:>7} {row.cell.interval:<15} {row.unit:<4}".rstrip()
        line = f"{row.heading:<24}{value:<28}{row.note}"
        lines += [line.rstrip()] if len(line) <= WIDTH else [f"{row.heading:<24}{value}", f"{'':<24}{row.note}"]
    return lines


def comparison_lines(systems: Sequence[EvaluatedSystem]) -> list[str]:
    """Return one line per system of at most 80 columns, ranked."""
    ranked = sort_by_dataset_and_disclosure(systems)
    names = [shorten(clean(system.name.removeprefix(f"{system.part_of}, ")), 22) for system in ranked]
    names = ["  " * bool(system.part_of) + name for system, name in zip(ranked, names, strict=True)]
    width = max(6, *map(len, names))
    lines = [f"{'system':<{width}}  {'disclosure [bit]':<22}{'verdict':<10}{'strongest attack'}"]
    for name, system in zip(names, ranked, strict=True):
        headline = headline_of(system)
        attack = strongest_attack_and_needs(system, headline.condition)
        by = ", ".join(filter(None, (headline.condition, attack[0] if attack else "none tried")))
        line = f"{name:<{width}}  {disclosure_of(system)!s:<22}{verdict_of(system).level:<10}"
        lines.append((line + shorten(by, WIDTH - len(line))).rstrip())
    return lines


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return a verdict as lines of at most 80 columns."""
    return [clean(verdict.title), *(line for sentence in verdict.sentences for line in wrap(clean(sentence), WIDTH))]


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Return lines on each check that did not pass, and the number of those that did; no lines without checks."""
    not_ok = [check for check in checks if check.status != "ok"]
    texts = [f"{MARKS[check.status]} {clean(check.name)}: {clean(check.message)}" for check in not_ok]
    if len(checks) > len(not_ok):
        texts.append(f"{MARKS['ok']} {len(checks) - len(not_ok)} of {len(checks)} checks passed")
    return [line for text in texts for line in wrap(text, WIDTH, subsequent_indent="  ")] + [""] * bool(texts)
