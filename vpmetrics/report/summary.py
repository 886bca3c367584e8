"""A summary of a system: verdict, checks and the numbers to read first.

They are data, and text of 80 columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any, NamedTuple

from vpmetrics._scores.registry import (
    CI_SUFFIXES,
    DASH,
    hidden_conditions,
    scalar,
    scalar_key,
    utility_direction,
)
from vpmetrics._util.inputs import shorten
from vpmetrics.report.checks import Check
from vpmetrics.report.headline import (
    Headline,
    Risk,
    describe_chance,
    describe_exposed_speaker,
    describe_utterances,
    show_bits,
    show_interval,
    show_risk,
    show_share,
)
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.rates import Rate, collect_rates, name_attacker
from vpmetrics.report.tables import (
    Cell,
    attribute_cell,
    clean,
    conditions_in_table_order,
    scalar_cell,
    value_cell,
)
from vpmetrics.report.verdict import (
    CONVERSATION,
    FOUND,
    LOW_FPR,
    MAIN_RISKS,
    WORST_SPEAKER_EXCESS,
)

MOST_BITS = scalar("d_ece").range[1]  # bits that calibrated scores can disclose
RULE = (
    "Leakage is low where the data exclude the lower limit of every risk, and nobody stands out. It"
    " is moderate or high where they show more than chance gives, above the lower or the upper"
    " limit. Else they do not tell. The limits are a convention of vpmetrics."
)
LIMITS = (
    f"Limits: {CONVERSATION.limit_low:g} and {CONVERSATION.limit_high:g} bit from several"
    f" utterances of one person, {100 * FOUND.limit_low:.0f} % and {100 * FOUND.limit_high:.0f} %"
    f" found among 100 people, {100 * LOW_FPR.limit_low:.0f} % and"
    f" {100 * LOW_FPR.limit_high:.0f} % found at a false-positive rate of 0.1 %."
)
WIDTH = 80  # columns of a terminal
MARKS = {"failed": "✗", "warning": "!", "ok": "✓"}  # the worst first
_UNKNOWN = Headline("inconclusive", "No verdict.")
_UNDEFINED = "D_ECE is not defined for these trials; the notes say why."
_HEADING_WIDTH = 24
_VALUE_WIDTH = 30
_RISK_WIDTHS = (26, 9, 14, 16, 11)  # of the columns of risks, with a space between them
_RATE_WIDTHS = (15, 7, 7, 18, 10, 18)
_LONGEST_NAME = 24


class Verdict(NamedTuple):
    """The level of leakage, a title and sentences; ``reasons`` are those that explain the level."""

    level: str
    title: str
    sentences: tuple[str, ...]
    reasons: tuple[str, ...] = ()


class RiskRow(NamedTuple):
    """A risk of a person in one condition: its value, what chance gives in words, and its limits.

    ``shares``: value, ends of the interval and limits as shares of the most there can be.
    """

    heading: str
    value: str
    interval: str
    chance: str
    short_chance: str
    limits: tuple[str, str]
    level: str
    share: float
    span: tuple[float, float] | None
    marks: tuple[float, float]


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
    """Return a sentence on what an attacker learns, and one on how often a person is found.

    Each is of the condition where the risk is largest.
    """
    largest: dict[str, Risk] = {}
    for risk in headline_of(system).risks:
        if math.isnan(risk.value) or risk.name not in (*MAIN_RISKS, FOUND.name):
            continue
        if risk.name not in largest or risk.value > largest[risk.name].value:
            largest[risk.name] = risk
    return [risk.sentence for risk in largest.values()]


def risk_rows(system: EvaluatedSystem) -> list[RiskRow]:
    """Return all risks that are known, and the worst speaker where one stands out."""
    headline = headline_of(system)
    rows = [_make_risk_row(risk) for risk in headline.risks if not math.isnan(risk.value)]
    if headline.is_speaker_exposed:
        rows.append(_make_worst_speaker_row(system))
    return rows


def _make_risk_row(risk: Risk) -> RiskRow:
    heading = _RISK_HEADINGS[risk.name].format(
        describe_utterances(risk.utterances).split(" of ")[0]
    )
    if risk.condition:
        heading += f", {risk.condition}"
    span = None
    most = 1.0
    if risk.is_in_bits:
        most = MOST_BITS
    if not math.isnan(risk.low):
        span = (_share_of(risk.low, most), _share_of(risk.high, most))
    limits = (f"{risk.limit_low:g}", f"{risk.limit_high:g}")
    if not risk.is_in_bits:
        limits = (f"{100 * risk.limit_low:.0f} %", f"{100 * risk.limit_high:.0f} %")
    return RiskRow(
        heading,
        show_risk(risk, risk.value),
        show_interval(risk).replace(" %", ""),
        describe_chance(risk),
        _describe_chance_shortly(risk),
        limits,
        risk.level,
        _share_of(risk.value, most),
        span,
        (_share_of(risk.limit_low, most), _share_of(risk.limit_high, most)),
    )


def _make_worst_speaker_row(system: EvaluatedSystem) -> RiskRow:
    """Return what is learned of the speaker who is protected worst, against the worst by chance."""
    headline = headline_of(system)
    chance = headline.worst_chance
    limit_high = chance + WORST_SPEAKER_EXCESS
    is_high = headline.worst_disclosure > limit_high
    show = scalar("disclosure").show
    name = shorten(worst_speaker_name(system), _LONGEST_NAME)
    return RiskRow(
        f"Worst speaker, {name}",
        show_bits(headline.worst_disclosure),
        "",
        f"the worst of as many speakers reaches {show_bits(chance)} by chance",
        f"gives {show_bits(chance)}",
        (show(chance), show(limit_high)),
        "high" if is_high else "moderate",
        _share_of(headline.worst_disclosure, MOST_BITS),
        None,
        (_share_of(chance, MOST_BITS), _share_of(limit_high, MOST_BITS)),
    )


_RISK_HEADINGS = {
    "disclosure_conversation": "From {}",
    "disclosure": "From {}",
    "found_in_100": "Found among 100",
    "tpr_at_1e-3": "Found at FPR 0.1 %",
    "tpr_at_1e-2": "Found at FPR 1 %",
}


def _share_of(value: float, most: float) -> float:
    return min(max(value / most, 0.0), 1.0)


def _describe_chance_shortly(risk: Risk) -> str:
    """Return what chance alone would give in the few letters of a column called chance."""
    if math.isnan(risk.chance):
        return "is not known"
    if risk.value <= risk.chance:
        return "gives as much"
    chance = show_risk(risk, risk.chance)
    if not math.isnan(risk.low_corrected) and not risk.is_shown:
        return "may give as much"
    return f"gives {chance}"


def _describe_failed_checks(system: EvaluatedSystem) -> list[str]:
    failed = [check for check in system.report.checks if check.status == "failed"]
    if not failed:
        return []
    names = ", ".join(check.name for check in failed)
    messages = [check.message for check in failed]
    return [f"This evaluation cannot be trusted: {names} failed.", *messages]


def _describe_exposed_speaker(system: EvaluatedSystem) -> list[str]:
    """Return a sentence on the speaker who is protected worst, where that is more than luck."""
    if not headline_of(system).is_speaker_exposed:
        return []
    headline = replace(headline_of(system), worst_speaker=worst_speaker_name(system))
    return [describe_exposed_speaker(headline)]


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
        if math.isnan(learnt):
            fitted = ""
        else:
            fitted = f", fitted on {learnt:.0f} other people,"
        sentences.append(
            f"The attacker ({attack[0]}){fitted} needs {clean(headline.needs or attack[1])}."
        )
    if people := describe_people(system):
        sentences.append(people)
    comparison = _describe_comparison(system, condition, has_attack=attack is not None)
    if comparison:
        sentences.append(comparison)
    return sentences


def _describe_comparison(system: EvaluatedSystem, condition: str, has_attack: bool) -> str:
    """Return what plain comparison finds, and what original speech discloses, in one sentence."""
    bits_by_name: dict[str, float] = {}
    if has_attack:
        plain = system.get_or_nan("d_ece", condition)
        bits_by_name["plain comparison, without an attack,"] = plain
    bits_by_name["original speech"] = system.get_or_nan("d_ece", "OO")
    show = scalar("disclosure").show
    texts = [f"{name} {show(bits)}" for name, bits in bits_by_name.items() if not math.isnan(bits)]
    if not texts:
        return ""
    return f"For comparison, in bits from one utterance: {', '.join(texts)}."


def describe_people(system: EvaluatedSystem) -> str:
    """Return on how many people and utterances the numbers stand, and by which encoder."""
    phrases = []
    if system.speakers:
        phrases.append(f"{len(system.speakers):,} people")
    if system.utterances:
        phrases.append(f"{system.utterances:,} utterances")
    encoder = clean(headline_of(system).encoder)
    if not encoder and has_embeddings(system):
        encoder = "an encoder without a name"
    if encoder:
        phrases.append(f"compared by {encoder}")
    if not phrases:
        return ""
    text = ", ".join(phrases)
    return f"{text[0].upper()}{text[1:]}."


def has_embeddings(system: EvaluatedSystem) -> bool:
    """Return whether a system was measured by embeddings, not by given scores."""
    has_ranks = any(report.identification for report in system.report.conditions.values())
    return has_ranks or bool(system.report.attacks)


def sort_checks(checks: Iterable[Check]) -> list[Check]:
    """Return checks, the worst first."""
    return sorted(checks, key=lambda check: list(MARKS).index(check.status))


def conditions_meant_to_hide(system: EvaluatedSystem) -> list[str]:
    """Return the conditions in which speakers should be hidden, in the order of tables.

    These are OP (original enrolment against protected tests), PP (protected against protected) and
    a condition without a name, of given scores. Where sessions are known, ``across`` replaces PP:
    two sessions have different secrets, while PP includes pairs under the same secret. A system
    with none of these has its first condition.
    """
    conditions = conditions_in_table_order(system)
    hidden = hidden_conditions(conditions)
    if not hidden:
        return conditions[:1]
    return [condition for condition in conditions if condition in hidden]


def disclosure_in_condition(system: EvaluatedSystem, condition: str) -> Cell:
    """Return the disclosure of a condition, with its interval, as a cell of a table.

    It is that to the strongest attack. Where none was tried, it is that to plain comparison, the
    larger one of scores and of negated scores.
    """
    key = "d_ece_strongest"
    if math.isnan(system.get_or_nan(key, condition)):
        key = "d_ece"
        if system.get_or_nan("d_ece_reversed", condition) > system.get_or_nan("d_ece", condition):
            key = "d_ece_reversed"
    low_suffix, high_suffix = CI_SUFFIXES
    value = system.get_or_nan(key, condition)
    low = system.get_or_nan(f"{key}{low_suffix}", condition)
    high = system.get_or_nan(f"{key}{high_suffix}", condition)
    return value_cell(scalar("disclosure"), value, low, high)


def ranking_key(systems: Sequence[EvaluatedSystem]) -> str:
    """Return what systems are ranked by.

    Disclosure of conversations, where all have these of as many utterances.
    """
    lengths: set[float] = set()
    for system in systems:
        headline = headline_of(system)
        if math.isnan(headline.disclosure_conversation):
            return "disclosure"
        lengths.add(headline.conversation_utterances)
    return "disclosure_conversation" if len(lengths) == 1 else "disclosure"


def disclosure_of(system: EvaluatedSystem, key: str = "disclosure") -> Cell:
    """Return the largest disclosure to any attacker tried in any condition."""
    return value_cell(scalar(key), *_headline_value_and_ends(headline_of(system), key))


def _headline_value_and_ends(headline: Headline, key: str) -> tuple[float, float, float]:
    return getattr(headline, key), getattr(headline, f"{key}_low"), getattr(headline, f"{key}_high")


def strongest_attack_and_needs(system: EvaluatedSystem, condition: str) -> tuple[str, str] | None:
    """Return the name of the strongest attack in a condition and what it needs.

    Return None where none was tried.
    """
    report = system.report.conditions.get(condition)
    if (
        report is None
        or report.strongest is None
        or math.isnan(system.get_or_nan("d_ece_strongest", condition))
    ):
        return None
    return name_attacker(report.strongest), report.strongest.needs


def explain_no_attack(system: EvaluatedSystem) -> str:
    """Return why there is no number of an attack."""
    if system.no_attacks:
        why = f", since {clean(system.no_attacks)}"
    else:
        why = ""
    return f"No attack was tried{why}: take this as the least."


def worst_speaker_name(system: EvaluatedSystem) -> str:
    """Return the name of the speaker who is protected worst; a dash where that is not known."""
    index = headline_of(system).worst_place
    return clean(system.speaker_name(math.nan if index < 0 else index))


def sort_by_dataset_and_disclosure(systems: Sequence[EvaluatedSystem]) -> list[EvaluatedSystem]:
    """Sort by data set, then by disclosure, the least first and the unknown last.

    Parts follow their whole.
    """
    key = ranking_key(systems)
    bits_of_system = {system.name: getattr(headline_of(system), key) for system in systems}

    def sort_key(system: EvaluatedSystem) -> tuple[Any, ...]:
        combined = system.part_of or system.name
        return (
            system.dataset,
            math.isnan(bits_of_system[combined]),
            bits_of_system[combined],
            combined,
            bool(system.part_of),
            bits_of_system[system.name],
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
    """Return the numbers to read after the risks: utility, and privacy in each condition.

    Where an attack was tried, the note has the number without it.
    """
    conditions = conditions_meant_to_hide(system)
    rows = [_make_disclosure_row(system, condition) for condition in conditions]
    rows += [_make_eer_row(system, condition) for condition in conditions]
    rows.append(_make_row(system, "deid", scalar("deid").heading, "plain"))
    rows.append(_make_row(system, "gvd", scalar("gvd").heading, "plain"))
    known_rows = [row for row in rows if not math.isnan(row.cell.value)]
    return [*_utility_rows(system), *known_rows, *_attribute_rows(system)]


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
    """Return a disclosure and its interval as shares of the most there can be.

    A number that is not known is None.
    """
    shares: list[float | None] = []
    for value in (cell.value, *cell.ends):
        shares.append(None if math.isnan(value) else _share_of(value, MOST_BITS))
    share, low, high = shares
    if low is None or high is None:
        return share, None
    return share, (low, high)


def summary_lines(system: EvaluatedSystem) -> list[str]:
    """Return the summary of one system as lines of at most 80 columns."""
    lines = [*verdict_lines(verdict_of(system)), ""]
    lines += check_lines(sort_checks(system.report.checks))
    lines += risk_lines(risk_rows(system))
    for row in summary_rows(system):
        value = f"{row.cell.text:>6} {row.cell.interval:<16} {row.unit}"
        line = f"{row.heading:<{_HEADING_WIDTH}}{value:<{_VALUE_WIDTH}}{row.note}".rstrip()
        if len(line) <= WIDTH:
            lines.append(line)
        else:
            lines.append(f"{row.heading:<{_HEADING_WIDTH}}{value}".rstrip())
            lines.append(f"{'':<{_HEADING_WIDTH}}{row.note}")
    rates = collect_rates(system)
    if rates:
        lines += ["", *rate_lines(rates)]
    return lines


def rate_lines(rates: Sequence[Rate]) -> list[str]:
    """Return who is found as a table of at most 80 columns: among how many, and by whom."""
    head = _join_rate_columns("who is found", "share", "among", "gallery", "utterances", "attacker")
    lines = [head]
    for rate in rates:
        search = rate.search
        share = show_share(rate.value)
        if rate.is_extrapolated:
            share = f"≈ {share}"
        gallery = f"{search.gallery:,}" if search.gallery else DASH
        if search.distractors:
            gallery += f", {search.distractors:,} untested"
        lines.append(
            _join_rate_columns(
                f"{search.condition} {rate.name}".strip(),
                share,
                f"{rate.people:,}",
                gallery,
                f"{search.utterances}",
                shorten(clean(search.attacker), _RATE_WIDTHS[-1]),
            )
        )
    return lines


def _join_rate_columns(*texts: str) -> str:
    padded = [f"{text:<{width}}" for text, width in zip(texts, _RATE_WIDTHS, strict=True)]
    return " ".join(padded).rstrip()


def risk_lines(rows: Sequence[RiskRow]) -> list[str]:
    """Return risks as a table of at most 80 columns and an empty line; nothing without risks."""
    if not rows:
        return []
    head = _join_risk_columns("risk", "value", "95 % interval", "chance", "limits")
    lines = [head]
    for row in rows:
        limits = f"{row.limits[0]} {row.limits[1]}"
        heading = shorten(row.heading, _RISK_WIDTHS[0])
        lines.append(_join_risk_columns(heading, row.value, row.interval, row.short_chance, limits))
    return [*lines, ""]


def _join_risk_columns(*texts: str) -> str:
    padded = [f"{text:<{width}}" for text, width in zip(texts, _RISK_WIDTHS, strict=True)]
    return " ".join(padded).rstrip()


def comparison_lines(systems: Sequence[EvaluatedSystem]) -> list[str]:
    """Return one line per system of at most 80 columns, ranked.

    It has the disclosure and the utilities.
    """
    ranked = sort_by_dataset_and_disclosure(systems)
    names = []
    for system in ranked:
        name = shorten(clean(system.name.removeprefix(f"{system.part_of}, ")), 18)
        if system.part_of:
            name = f"  {name}"
        names.append(name)
    width = max(6, *map(len, names))
    key = ranking_key(systems)
    title = "1 utterance [bit]"
    if key != "disclosure":
        title = f"{headline_of(ranked[0]).conversation_utterances:.0f} utterances [bit]"
    utilities: dict[str, None] = {}
    for system in ranked:
        utilities |= dict.fromkeys(system.utility)
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
            text = DASH if math.isnan(value) else f"{value:.4g}"
            line += f"{text:<{len(head)}}  "
        lines.append(line[:WIDTH].rstrip())
    return lines


def explain_comparison(systems: Sequence[EvaluatedSystem]) -> list[str]:
    """Return lines on what the numbers of a comparison stand on, of at most 80 columns."""
    sentences = []
    for rate in collect_rates(systems[0]):
        if rate.key == "found_in_100" and rate.search.gallery:
            sentences.append(
                f"of 100: how often the right one of 100 people is found, who are drawn from"
                f" {rate.search.gallery:,}, by one utterance, by {rate.search.attacker}."
            )
            break
    sentences.append(describe_people(systems[0]))
    lines: list[str] = []
    for sentence in sentences:
        lines += wrap(sentence, WIDTH)
    return lines


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return a verdict as lines of at most 80 columns."""
    lines = wrap(clean(verdict.title), WIDTH)
    for sentence in verdict.sentences:
        lines += wrap(clean(sentence), WIDTH)
    return lines


def check_lines(checks: Sequence[Check]) -> list[str]:
    """Return lines on each check that did not pass, and the number of those that did."""
    not_passed = [check for check in checks if check.status != "ok"]
    texts = []
    for check in not_passed:
        texts.append(f"{MARKS[check.status]} {clean(check.name)}: {clean(check.message)}")
    num_passed = len(checks) - len(not_passed)
    if num_passed:
        texts.append(f"{MARKS['ok']} {num_passed} of {len(checks)} checks passed")
    lines: list[str] = []
    for text in texts:
        lines += wrap(text, WIDTH, subsequent_indent="  ")
    return [*lines, ""] if lines else []
