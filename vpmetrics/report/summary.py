"""A summary of a system: verdict, checks and the numbers to read first, as data and as text of 80
columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

from vpmetrics._scores.registry import CI_SUFFIXES, scalar, scalar_key, utility_direction
from vpmetrics._util.inputs import shorten
from vpmetrics.report.checks import Check
from vpmetrics.report.headline import Headline, Risk, show_bits, show_share
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.tables import (
    Cell,
    attribute_cell,
    clean,
    conditions_in_table_order,
    scalar_cell,
    value_cell,
)
from vpmetrics.report.verdict import CONVERSATION, FOUND, LOW_FPR

MOST_BITS = scalar("d_ece").range[1]  # bits that calibrated scores can disclose
THRESHOLDS = (
    f"Leakage is low where the data exclude {CONVERSATION.limit_low:g} bit from several utterances"
    f" of one person, {FOUND.limit_low:.0%} found among 100 people and {LOW_FPR.limit_low:.0%}"
    " found at a false-positive rate of 0.1 %, and nobody stands out. It is moderate or high where"
    f" the data show more than chance gives: high above {CONVERSATION.limit_high:g} bit,"
    f" {FOUND.limit_high:.0%} or {LOW_FPR.limit_high:.0%}. Else they do not tell. These limits are"
    " a convention of vpmetrics."
)
WIDTH = 80  # columns of a terminal
MARKS = {"failed": "✗", "warning": "!", "ok": "✓"}  # the worst first
_UNKNOWN = Headline("inconclusive", "No verdict.")
_UNDEFINED = "D_ECE is not defined for these trials; the notes say why."
_HEADING_WIDTH = 24
_VALUE_WIDTH = 30
_LONGEST_NAME = 24
_MOST_AS_ONE_IN_N = 0.55  # above it, 1 in N is too coarse


class Verdict(NamedTuple):
    """The level of leakage, a title and sentences; ``reasons`` are those that explain the level."""

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
    sentences = (
        *_describe_failed_checks(system),
        *describe_risks(system),
        *_describe_exposed_speaker(system),
        *_describe_attacker(system),
    )
    return Verdict(headline.level, headline.verdict, sentences, headline.reasons)


def describe_risks(system: EvaluatedSystem) -> list[str]:
    """Return a sentence on each kind of risk, in the condition where it is largest."""
    largest: dict[str, Risk] = {}
    for risk in headline_of(system).risks:
        if math.isnan(risk.value):
            continue
        if risk.name not in largest or risk.value > largest[risk.name].value:
            largest[risk.name] = risk
    return [_describe_risk(risk) for risk in largest.values()]


def _describe_risk(risk: Risk) -> str:
    condition = f", {risk.condition}" if risk.condition else ""
    if risk.name in ("disclosure", "disclosure_conversation"):
        source = (
            "one utterance"
            if risk.utterances == 1
            else f"{risk.utterances} utterances of one person"
        )
        value = f"{show_bits(risk.value)}{_interval_of(risk)} of at most {MOST_BITS:.3f}{condition}"
        return f"From {source} an attacker learns {value}; {_describe_chance(risk)}."
    value = f"{show_share(risk.value)}{_interval_of(risk)}"
    if risk.name == "found_in_100":
        found = f"{describe_share(risk.value)} ({value}{condition})"
        return (
            f"By one utterance, the right one of 100 people is found in {found};"
            f" {_describe_chance(risk)}."
        )
    others = "1,000" if risk.name == "tpr_at_1e-3" else "100"
    what = (
        f"Where 1 of {others} others may be taken for the speaker, {show_share(risk.value)} of the"
        " utterances are"
    )
    details = f"{_interval_of(risk)}{condition}".strip(" ,")
    return f"{what} found ({details}); {_describe_chance(risk)}." if details else f"{what} found."


def describe_share(share: float) -> str:
    """Return how often something happens as people say it: ``1 in 9 tries``, ``6 in 10 tries``."""
    if share >= _MOST_AS_ONE_IN_N:
        return f"{round(10 * share)} in 10 tries"
    if share <= 0:
        return "no try"
    return f"1 in {round(1 / share):,} tries"


def _interval_of(risk: Risk) -> str:
    if math.isnan(risk.low):
        return ""
    if risk.name in ("disclosure", "disclosure_conversation"):
        show = scalar("disclosure").show
        return f" [{show(risk.low)}, {show(risk.high)}]"
    return f" [{show_share(risk.low)}, {show_share(risk.high)}]"


def _describe_chance(risk: Risk) -> str:
    """Return what chance alone would give, in words."""
    if math.isnan(risk.chance):
        return "what chance gives is not known"
    if risk.value <= risk.chance:
        return "no more than chance would give"
    chance = scalar("disclosure").show(risk.chance)
    if risk.name == "found_in_100":
        chance = "1 in 100"
    elif risk.name.startswith("tpr"):
        chance = show_share(risk.chance)
    is_within_chance = not math.isnan(risk.low_corrected) and not risk.is_shown
    return f"not told apart from chance, {chance}" if is_within_chance else f"chance gives {chance}"


def _describe_failed_checks(system: EvaluatedSystem) -> list[str]:
    failed = [check for check in system.report.checks if check.status == "failed"]
    if not failed:
        return []
    names = ", ".join(check.name for check in failed)
    return [
        f"This evaluation cannot be trusted: {names} failed.",
        *(check.message for check in failed),
    ]


def _describe_exposed_speaker(system: EvaluatedSystem) -> list[str]:
    """Return a sentence on the speaker who is protected worst, where that is more than luck."""
    headline = headline_of(system)
    if not headline.is_speaker_exposed:
        return []
    chance = show_bits(headline.worst_chance)
    what = (
        f"Speaker {worst_speaker_name(system)} is exposed: {show_bits(headline.worst_disclosure)}"
    )
    return [f"{what}, where the worst of as many speakers reaches {chance} by chance."]


def _describe_attacker(system: EvaluatedSystem) -> list[str]:
    """Return sentences on the attacker, the people and what comparison alone finds."""
    headline = headline_of(system)
    condition = headline.condition
    sentences = []
    attack = strongest_attack_and_needs(system, condition)
    if attack is None:
        sentences.append(explain_no_attack(system))
        if system.get_or_nan("d_ece_reversed", condition) > system.get_or_nan("d_ece", condition):
            sentences.append("It is enough to turn the sign of the scores.")
    else:
        learnt = system.get_or_nan("attack_speakers", condition)
        fitted = "" if math.isnan(learnt) else f", fitted on {learnt:.0f} other people,"
        sentences.append(
            f"The attacker ({attack[0]}){fitted} needs {clean(headline.needs or attack[1])}."
        )
    if people := describe_people(system):
        sentences.append(people)
    comparisons = {}
    if attack is not None:
        comparisons["plain comparison, without an attack,"] = system.get_or_nan("d_ece", condition)
    comparisons["original speech"] = system.get_or_nan("d_ece", "OO")
    show = scalar("disclosure").show
    known = [
        f"{name} {show(value)}" for name, value in comparisons.items() if not math.isnan(value)
    ]
    if known:
        sentences.append(f"For comparison, in bits from one utterance: {', '.join(known)}.")
    return sentences


def describe_people(system: EvaluatedSystem) -> str:
    """Return on how many people and utterances the numbers stand, and by which encoder."""
    headline = headline_of(system)
    parts = []
    if system.speakers:
        parts.append(f"{len(system.speakers):,} people")
    if system.utterances:
        parts.append(f"{system.utterances:,} utterances")
    text = ", ".join(parts)
    if headline.encoder:
        text = (
            f"{text}, compared by {clean(headline.encoder)}"
            if text
            else f"Compared by {clean(headline.encoder)}"
        )
    return f"{text}." if text else ""


def sort_checks(checks: Iterable[Check]) -> list[Check]:
    """Return checks, the worst first."""
    return sorted(checks, key=lambda check: list(MARKS).index(check.status))


def conditions_meant_to_hide(system: EvaluatedSystem) -> list[str]:
    """Return the conditions in which speakers should be hidden: OP, and PP or across; not within
    one session.
    """
    conditions = conditions_in_table_order(system)
    protected = "across" if "across" in conditions else "PP"
    return [name for name in conditions if name in ("OP", protected, "")] or conditions[:1]


def disclosure_in_condition(system: EvaluatedSystem, condition: str) -> Cell:
    """Return the disclosure of a condition to the strongest attack, else to plain comparison in
    either direction.
    """
    key = "d_ece_strongest"
    if math.isnan(system.get_or_nan(key, condition)):
        key = max("d_ece", "d_ece_reversed", key=lambda name: system.get_or_nan(name, condition))
    values = (system.get_or_nan(f"{key}{end}", condition) for end in ("", *CI_SUFFIXES))
    return value_cell(scalar("disclosure"), *values)


def ranking_key(systems: Sequence[EvaluatedSystem]) -> str:
    """Return what systems are ranked by: disclosure of conversations, where all have these of as
    many utterances.
    """
    lengths = {headline_of(system).conversation_utterances for system in systems}
    is_known = not any(
        math.isnan(headline_of(system).disclosure_conversation) for system in systems
    )
    return "disclosure_conversation" if is_known and len(lengths) == 1 else "disclosure"


def disclosure_of(system: EvaluatedSystem, key: str = "disclosure") -> Cell:
    """Return the largest disclosure to any attacker tried in any condition."""
    return value_cell(scalar(key), *_headline_value_and_ends(headline_of(system), key))


def _headline_value_and_ends(headline: Headline, key: str) -> tuple[float, float, float]:
    return getattr(headline, key), getattr(headline, f"{key}_low"), getattr(headline, f"{key}_high")


def strongest_attack_and_needs(system: EvaluatedSystem, condition: str) -> tuple[str, str] | None:
    """Return the name of the strongest attack in a condition and what it needs; None where none was
    tried.
    """
    report = system.report.conditions.get(condition)
    if (
        report is None
        or report.strongest is None
        or math.isnan(system.get_or_nan("d_ece_strongest", condition))
    ):
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
    """Sort by data set, then by disclosure, the least first and the unknown last; parts follow
    their whole.
    """
    key = ranking_key(systems)
    bits = {system.name: getattr(headline_of(system), key) for system in systems}

    def sort_key(system: EvaluatedSystem) -> tuple[Any, ...]:
        whole = system.part_of or system.name
        return (
            system.dataset,
            math.isnan(bits[whole]),
            bits[whole],
            whole,
            bool(system.part_of),
            bits[system.name],
        )

    return sorted(systems, key=sort_key)


def rank_competing_by_dataset(
    systems: Sequence[EvaluatedSystem],
) -> dict[str, list[EvaluatedSystem]]:
    """Return by data set the systems that compete, ranked; a part of a combined system does not."""
    groups: dict[str, list[EvaluatedSystem]] = {}
    for system in sort_by_dataset_and_disclosure(systems):
        if not system.part_of:
            groups.setdefault(system.dataset, []).append(system)
    return groups


def summary_rows(system: EvaluatedSystem) -> list[SummaryRow]:
    """Return the numbers to read first: privacy in each condition, then what is kept of the speech.

    Where an attack was tried, the note has the number without it.
    """
    conditions = conditions_meant_to_hide(system)
    rows = [_make_disclosure_row(system, condition) for condition in conditions]
    length = headline_of(system).conversation_utterances
    for condition in conditions:
        key = scalar_key(condition, "d_ece_conversation")
        chance = scalar("disclosure").show(
            system.get_or_nan("d_ece_conversation_chance", condition)
        )
        heading = f"{condition} from {length:.0f} utterances".strip()
        rows.append(_make_row(system, key, heading, f"chance {chance}", has_bar=True))
    for condition in conditions:
        key = scalar_key(condition, "found_in_100")
        rows.append(_make_row(system, key, f"{condition} found among 100".strip(), "chance 1"))
    rows += [_make_eer_row(system, condition) for condition in conditions]
    rows += [_make_row(system, key, scalar(key).heading, "plain") for key in ("deid", "gvd")]
    if headline_of(system).is_speaker_exposed:
        chance = scalar("disclosure").show(headline_of(system).worst_chance)
        note = f"{shorten(worst_speaker_name(system), _LONGEST_NAME)}; chance {chance}"
        rows.append(_make_row(system, "worst_speaker_disclosure", "worst speaker", note))
    known_rows = [row for row in rows if not math.isnan(row.cell.value)]
    return [*known_rows, *_attribute_rows(system), *_utility_rows(system)]


def _make_row(
    system: EvaluatedSystem, key: str, heading: str, note: str, has_bar: bool = False
) -> SummaryRow:
    return SummaryRow(heading, scalar_cell(key, system), scalar(key).unit.name, note, has_bar)


def _make_disclosure_row(system: EvaluatedSystem, condition: str) -> SummaryRow:
    """Return the disclosure of one utterance, with chance and what comparison alone finds."""
    heading = f"{condition} disclosure".strip()
    if math.isnan(system.get_or_nan("d_ece_strongest", condition)):
        return SummaryRow(
            heading,
            disclosure_in_condition(system, condition),
            "bit",
            "no attack tried",
            has_bar=True,
        )
    show = scalar("disclosure").show
    chance = show(system.get_or_nan("d_ece_chance", condition))
    plain = show(system.get_or_nan("d_ece", condition))
    note = f"chance {chance}; plain {plain}"
    return SummaryRow(
        heading, disclosure_in_condition(system, condition), "bit", note, has_bar=True
    )


def _make_eer_row(system: EvaluatedSystem, condition: str) -> SummaryRow:
    heading = f"{condition} EER".strip()
    attacked_key = scalar_key(condition, "eer_strongest")
    plain_key = scalar_key(condition, "eer")
    if math.isnan(system.get_or_nan(attacked_key)):
        return _make_row(system, plain_key, heading, "no attack tried")
    plain = scalar_cell(plain_key, system, with_interval=False).text
    return _make_row(system, attacked_key, heading, f"chance 50; plain {plain}")


def _attribute_rows(system: EvaluatedSystem) -> list[SummaryRow]:
    rows = []
    for name, numbers in system.attributes.items():
        cell = attribute_cell(numbers, "disclosure")
        chance = attribute_cell(numbers, "chance").text
        original = attribute_cell(numbers, "original").text
        if not math.isnan(cell.value):
            heading = f"attribute {shorten(clean(name), 13)}"
            rows.append(SummaryRow(heading, cell, "bit", f"chance {chance}; original {original}"))
    return rows


def _utility_rows(system: EvaluatedSystem) -> list[SummaryRow]:
    rows = []
    for name, value in system.utility.items():
        note = f"utility; {utility_direction(name)}er is better"
        rows.append(
            SummaryRow(shorten(clean(name), _LONGEST_NAME), Cell(f"{value:.4g}", value), "", note)
        )
    return rows


def shares_of(cell: Cell) -> tuple[float | None, tuple[float, float] | None]:
    """Return a disclosure and its interval as shares of the most there can be; None where they are
    not known.
    """
    values = (cell.value, *cell.ends)
    share, low, high = (
        None if math.isnan(value) else min(max(value / MOST_BITS, 0.0), 1.0) for value in values
    )
    return share, None if low is None or high is None else (low, high)


def summary_lines(system: EvaluatedSystem) -> list[str]:
    """Return the summary of one system as lines of at most 80 columns."""
    lines = [*verdict_lines(verdict_of(system)), ""]
    lines += check_lines(sort_checks(system.report.checks))
    for row in summary_rows(system):
        value = f"{row.cell.text:>6} {row.cell.interval:<16} {row.unit}"
        line = f"{row.heading:<{_HEADING_WIDTH}}{value:<{_VALUE_WIDTH}}{row.note}".rstrip()
        if len(line) <= WIDTH:
            lines.append(line)
        else:
            lines.append(f"{row.heading:<{_HEADING_WIDTH}}{value}".rstrip())
            lines.append(f"{'':<{_HEADING_WIDTH}}{row.note}")
    return lines


def comparison_lines(systems: Sequence[EvaluatedSystem]) -> list[str]:
    """Return one line per system of at most 80 columns, ranked: what is learnt of people, and
    utilities beside it.
    """
    ranked = sort_by_dataset_and_disclosure(systems)
    names = []
    for system in ranked:
        name = shorten(clean(system.name.removeprefix(f"{system.part_of}, ")), 18)
        names.append(f"  {name}" if system.part_of else name)
    width = max(6, *map(len, names))
    key = ranking_key(systems)
    title = "1 utterance [bit]"
    if key != "disclosure":
        title = f"{headline_of(ranked[0]).conversation_utterances:.0f} utterances [bit]"
    utilities = list(dict.fromkeys(name for system in ranked for name in system.utility))
    heads = [shorten(clean(name), 8) for name in utilities]
    lines = [
        f"{'system':<{width}}  {title:<21} {'of 100':<7} {'verdict':<13}{'  '.join(heads)}".rstrip()
    ]
    for name, system in zip(names, ranked, strict=True):
        headline = headline_of(system)
        bits = value_cell(scalar("disclosure"), *_headline_value_and_ends(headline, key))
        found = show_share(headline.found_in_100)
        line = f"{name:<{width}}  {bits!s:<21} {found:<7} {verdict_of(system).level:<13}"
        for utility, head in zip(utilities, heads, strict=True):
            value = system.utility.get(utility, math.nan)
            text = "–" if math.isnan(value) else f"{value:.4g}"
            line += f"{text:<{len(head)}}  "
        lines.append(line[:WIDTH].rstrip())
    return lines


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return a verdict as lines of at most 80 columns."""
    lines = wrap(clean(verdict.title), WIDTH)
    for sentence in verdict.sentences:
        lines += wrap(clean(sentence), WIDTH)
    return lines


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Return lines on each check that did not pass, and the number of those that did; no lines
    without checks.
    """
    not_ok = [check for check in checks if check.status != "ok"]
    texts = [
        f"{MARKS[check.status]} {clean(check.name)}: {clean(check.message)}" for check in not_ok
    ]
    if len(checks) > len(not_ok):
        texts.append(f"{MARKS['ok']} {len(checks) - len(not_ok)} of {len(checks)} checks passed")
    return [line for text in texts for line in wrap(text, WIDTH, subsequent_indent="  ")] + [
        ""
    ] * bool(texts)
