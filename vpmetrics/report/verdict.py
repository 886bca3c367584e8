"""The verdict of a report: a decision on the risks of a person, in four outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vpmetrics._scores.jackknife import jackknife_interval
from vpmetrics._scores.registry import CI_SUFFIXES, hidden_conditions, scalar, scalar_key
from vpmetrics._util.dtypes import read_numbers, widen
from vpmetrics.report.checks import FAILED, FEW_SPEAKERS
from vpmetrics.report.headline import (
    Headline,
    Level,
    Risk,
    describe_chance,
    describe_exposed_speaker,
    describe_share,
    describe_utterances,
    show_interval,
    show_risk,
)

if TYPE_CHECKING:
    from vpmetrics._scores.worst_speaker import WorstSpeaker
    from vpmetrics.report.privacy_report import PrivacyReport

RISK_CONFIDENCE = 0.95  # of the intervals that a verdict goes by, whatever a report shows
WORST_SPEAKER_EXCESS = 0.12  # bits above chance from which a named speaker is a high risk
_MOST_SPEAKERS_GUESSED = 1000  # a value just below its limit would ask for any number
_MANY_TARGETS = 100  # target trials from which a risk without an interval counts
_CONDITION_NEEDS = {
    "OP": "original speech of the same people",
    "PP": "protected speech of the same people under the same secret",
    "across": "protected speech of the same people under another secret",
}


@dataclass(frozen=True)
class RiskKind:
    """A kind of risk: the keys of its numbers in a condition, and its limits.

    The first key that is known counts.

    ``fixed_chance`` where the level of chance follows from the definition, else ``chance_key``.
    """

    name: str
    keys: tuple[str, ...]
    limit_low: float
    limit_high: float
    chance_key: str = ""
    fixed_chance: float = math.nan


# The limits are a convention: 3 % found among 100 is three times chance, and .03 bit is as much for
# Gaussian scores.
CONVERSATION = RiskKind(
    "disclosure_conversation",
    ("d_ece_conversation",),
    0.03,
    0.12,
    chance_key="d_ece_conversation_chance",
)
SINGLE = RiskKind(
    "disclosure",
    ("d_ece_strongest", "d_ece", "d_ece_reversed"),
    0.03,
    0.12,
    chance_key="d_ece_chance",
)
FOUND = RiskKind("found_in_100", ("found_in_100",), 0.03, 0.10, fixed_chance=0.01)
LOW_FPR = RiskKind(
    "tpr_at_1e-3", ("tpr_at_1e-3_strongest", "tpr_at_1e-3"), 0.01, 0.10, fixed_chance=0.001
)
HIGHER_FPR = RiskKind(
    "tpr_at_1e-2", ("tpr_at_1e-2_strongest", "tpr_at_1e-2"), 0.05, 0.30, fixed_chance=0.01
)
# The second kind of a row stands in where the first is unknown.
RISK_KINDS = ((CONVERSATION, SINGLE), (FOUND,), (LOW_FPR, HIGHER_FPR))
# Numbers of the headline, and the number of a condition that each is the largest of.
LARGEST_KEYS = {
    "disclosure_conversation": "d_ece_conversation",
    "found_in_100": "found_in_100",
    "found_in_100_conversation": "found_in_100_conversation",
}
UPPER_LIMITS = {
    "d_ece_conversation": CONVERSATION.limit_high,
    "found_in_100": FOUND.limit_high,
    "found_in_100_conversation": FOUND.limit_high,
}
RATES = (LOW_FPR, HIGHER_FPR)
MAIN_RISKS = frozenset([CONVERSATION.name, SINGLE.name])


def disclosure_keys(conditions: Mapping[str, Any], scalars: Mapping[str, Tensor]) -> list[str]:
    """Return the keys of which ``disclosure`` is the largest.

    They are those of attackers, else of plain scores and of negated ones.
    """
    keys: list[str] = []
    for condition in hidden_conditions(conditions):
        attacked_key = scalar_key(condition, "d_ece_strongest")
        if _is_known(attacked_key, scalars):
            keys.append(attacked_key)
            continue
        for name in ("d_ece", "d_ece_reversed"):
            plain_key = scalar_key(condition, name)
            if _is_known(plain_key, scalars):
                keys.append(plain_key)
    return keys


def _is_known(key: str, scalars: Mapping[str, Tensor]) -> bool:
    return key in scalars and not bool(scalars[key].isnan())


def largest_key(
    conditions: Mapping[str, Any], scalars: Mapping[str, Tensor], key: str
) -> str | None:
    """Return the key of the condition in which a number is largest; None where that is unknown.

    It is unknown where one of the conditions is, unless another one exceeds the upper limit by
    itself.
    """
    keys = [scalar_key(condition, key) for condition in hidden_conditions(conditions)]
    computed_keys = [name for name in keys if name in scalars]
    known_keys = [name for name in computed_keys if _is_known(name, scalars)]
    if not known_keys:
        return None
    largest = max(known_keys, key=lambda name: scalars[name].item())
    is_one_unknown = len(known_keys) < len(computed_keys)
    if is_one_unknown and scalars[largest].item() <= UPPER_LIMITS[key]:
        return None
    return largest


def collect_risks(report: PrivacyReport) -> tuple[Risk, ...]:
    """Return the risks of a report, each in every condition in which speakers should be hidden."""
    values = read_numbers(report.scalars)
    measured_risks: list[_MeasuredRisk] = []
    for alternatives in RISK_KINDS:
        for condition in hidden_conditions(report.conditions):
            measured_risks.append(_choose_alternative(alternatives, condition, values))
    # Each lower end errs so rarely that all of them together err in one of 20 evaluations.
    corrected_confidence = 1 - 2 * (1 - RISK_CONFIDENCE) / max(1, len(measured_risks))
    risks: list[Risk] = []
    for measured in measured_risks:
        risks.append(_make_risk(report, measured, values, corrected_confidence))
    return tuple(risks)


@dataclass(frozen=True)
class _MeasuredRisk:
    """A kind of risk in a condition, and the key of its number."""

    kind: RiskKind
    condition: str
    key: str


def _make_risk(
    report: PrivacyReport,
    measured: _MeasuredRisk,
    values: Mapping[str, float],
    corrected_confidence: float,
) -> Risk:
    kind = measured.kind
    condition = report.conditions[measured.condition]
    value = values.get(measured.key, math.nan)
    low, high = _find_interval(report, measured.key, RISK_CONFIDENCE)
    low_corrected, _ = _find_interval(report, measured.key, corrected_confidence)
    if kind in RATES and value == 0:
        high = min(high, _bound_absent_share(condition.num_tests))
    chance = kind.fixed_chance
    if kind.chance_key:
        chance = values.get(scalar_key(measured.condition, kind.chance_key), math.nan)
    utterances = 1
    conversation_utterances = values.get("conversation_utterances", math.nan)
    if kind is CONVERSATION and not math.isnan(conversation_utterances):
        utterances = int(conversation_utterances)
    num_speakers = 0
    if report.speakers is not None:
        num_speakers = len(report.speakers)
    risk = Risk(
        kind.name,
        measured.condition,
        value,
        low,
        high,
        chance,
        kind.limit_low,
        kind.limit_high,
        low_corrected=low_corrected,
        utterances=utterances,
        num_speakers=num_speakers,
        has_many_trials=condition.num_trials[0] >= _MANY_TARGETS,
    )
    return replace(risk, sentence=_describe_risk(risk))


def _bound_absent_share(num_utterances: int) -> float:
    """Return the upper end of the share of utterances that are found, where none of them was.

    An utterance is found or not, whatever it is compared with. Counted by speakers, of whom one in
    ten may be absent among thirty, a rate of exactly 0 would be bounded by 10 %, and a rate that
    chance alone gives by 0.3 %. Whether speakers differ is for the worst speaker's test to tell.
    """
    if num_utterances == 0:
        return math.inf
    return 1 - math.pow(1 - RISK_CONFIDENCE, 1 / num_utterances)


def _choose_alternative(
    alternatives: Sequence[RiskKind], condition: str, values: Mapping[str, float]
) -> _MeasuredRisk:
    """Return the first kind of risk that is known in a condition."""
    for kind in alternatives:
        keys = [scalar_key(condition, key) for key in kind.keys]
        known_keys = [key for key in keys if not math.isnan(values.get(key, math.nan))]
        is_plain = keys[0] not in known_keys
        if kind is SINGLE and is_plain:
            # An attacker may turn the sign of scores.
            known_keys.sort(key=lambda key: values[key], reverse=True)
        if known_keys:
            return _MeasuredRisk(kind, condition, known_keys[0])
    unknown = alternatives[0]
    return _MeasuredRisk(unknown, condition, scalar_key(condition, unknown.keys[0]))


def _find_interval(report: PrivacyReport, key: str, confidence: float) -> tuple[float, float]:
    """Return the jackknife interval of a number; NaN where it has none."""
    jackknife = report.jackknife
    if jackknife is None or key not in jackknife.changes or key not in report.scalars:
        return math.nan, math.nan
    value = widen(report.scalars[key])
    num_speakers = len(jackknife.groups.labels)
    entry = scalar(key)
    lowest, highest = entry.range_among(num_speakers)
    low, high = jackknife_interval(
        value,
        value + jackknife.changes[key],
        confidence,
        lowest,
        highest,
        jackknife.groups.kept_over_dropped,
        jackknife.bias.get(key, 0.0),
        entry.is_saturating,
    )
    return float(low), float(high)


def _describe_risk(risk: Risk) -> str:
    """Return a risk in words."""
    condition = ""
    if risk.condition:
        condition = f", {risk.condition}"
    title = _RISK_TITLES[risk.name].format(describe_utterances(risk.utterances))
    if math.isnan(risk.value):
        return f"What an attacker {title} is not known{condition}."
    value = f"{show_risk(risk, risk.value)} {show_interval(risk)}".rstrip()
    chance = describe_chance(risk)
    if risk.name in MAIN_RISKS:
        source = describe_utterances(risk.utterances)
        most = f"{scalar('disclosure').range[1]:.3f}"
        return f"From {source} an attacker learns {value} of at most {most}{condition}; {chance}."
    if risk.name == FOUND.name:
        tries = describe_share(risk.value)
        found = f"{tries} ({value}{condition})"
        return f"By one utterance, the right one of 100 people is found in {found}; {chance}."
    num_others = "100"
    if risk.name == LOW_FPR.name:
        num_others = "1,000"
    where = f"Where 1 of {num_others} others may be taken for the speaker"
    return f"{where}, {value} of the utterances are found{condition}; {chance}."


_RISK_TITLES = {
    "disclosure_conversation": "learns from {}",
    "disclosure": "learns from {}",
    "found_in_100": "finds among 100 people",
    "tpr_at_1e-3": "finds where 1 of 1,000 others may be taken for the speaker",
    "tpr_at_1e-2": "finds where 1 of 100 others may be taken for the speaker",
}


def make_headline(report: PrivacyReport) -> Headline | None:
    """Make the headline of a report; None if no disclosure is defined."""
    keys = disclosure_keys(report.conditions, report.scalars)
    if not keys:
        return None
    values = read_numbers(report.scalars)
    key = max(keys, key=lambda name: values[name])
    condition = scalar(key).condition
    attack, needs = _find_attack(report, condition, key)
    worst = report.worst_speaker
    headline = Headline(
        level="inconclusive",
        verdict="",
        risks=report.risks,
        **_read_with_interval(report, values, "disclosure", key),
        **_read_with_interval(
            report,
            values,
            "disclosure_conversation",
            largest_key(report.conditions, report.scalars, "d_ece_conversation"),
        ),
        conversation_utterances=values.get("conversation_utterances", math.nan),
        **_read_with_interval(
            report,
            values,
            "found_in_100",
            largest_key(report.conditions, report.scalars, "found_in_100"),
        ),
        condition=condition,
        attack=attack,
        needs=needs,
        encoder=report.encoder,
    )
    if worst is not None and not math.isnan(worst.disclosure):
        headline = replace(
            headline,
            worst_speaker=report.speaker_name(worst.place),
            worst_place=worst.place,
            worst_disclosure=worst.disclosure,
            worst_chance=worst.chance,
            worst_p=worst.p,
            is_worst_typical=_is_typical(worst),
        )
    return _decide(report, headline)


def _is_typical(worst: WorstSpeaker) -> bool:
    """Return whether at least half of the speakers disclose half as much as the worst one."""
    if worst.disclosure_of_speaker is None:
        return False
    return float(worst.disclosure_of_speaker.nanmedian()) > worst.disclosure / 2


def _read_with_interval(
    report: PrivacyReport, values: Mapping[str, float], name: str, key: str | None
) -> dict[str, Any]:
    """Return a number and the ends of its 95 % interval, as arguments of the headline."""
    low = math.nan
    high = math.nan
    if key is not None:
        low, high = _find_interval(report, key, RISK_CONFIDENCE)
    if math.isnan(low):  # as of reports that were put together from others
        low = values.get(f"{name}{CI_SUFFIXES[0]}", math.nan)
        high = values.get(f"{name}{CI_SUFFIXES[1]}", math.nan)
    return {name: values.get(name, math.nan), f"{name}_low": low, f"{name}_high": high}


def _find_attack(report: PrivacyReport, condition: str, key: str) -> tuple[str, str]:
    """Return what attains the disclosure, and what that attacker must have."""
    needs = _CONDITION_NEEDS.get(condition, "")
    if key != scalar_key(condition, "d_ece_strongest"):
        is_reversed = key == scalar_key(condition, "d_ece_reversed")
        if is_reversed:
            attack = "plain comparison, sign turned"
        else:
            attack = "plain comparison"
        return attack, needs or "nothing"
    strongest = report.conditions[condition].strongest
    if strongest is None:
        return "an attack", needs or "nothing"
    attack = strongest.name
    attack_needs = strongest.needs
    if attack_needs and attack_needs != "nothing":
        needs = ", and ".join([need for need in (needs, attack_needs) if need])
    return attack, needs or "nothing"


def _decide(report: PrivacyReport, headline: Headline) -> Headline:
    """Return the headline with its level, its verdict in one sentence and the reasons for it.

    The level is high or moderate where the data show a risk of that level, or a single exposed
    speaker. It is low where the data exclude every risk, if attacks learnt from enough speakers,
    the worst speaker is known and no check failed. Otherwise it is inconclusive.
    """
    failed_checks = [check.message for check in report.checks if check.status == FAILED]
    high_risks = [risk for risk in report.risks if risk.level == "high"]
    moderate_risks = [risk for risk in report.risks if risk.level == "moderate"]
    is_exposed = headline.is_speaker_exposed
    worst_above_chance = headline.worst_disclosure - headline.worst_chance

    reasons = [risk.sentence for risk in [*high_risks, *moderate_risks]]
    if is_exposed:
        reasons.append(describe_exposed_speaker(headline))
    reasons += failed_checks
    if high_risks or (is_exposed and worst_above_chance > WORST_SPEAKER_EXCESS):
        return _conclude(headline, "high", "High speaker leakage.", reasons)
    if moderate_risks or is_exposed:
        return _conclude(headline, "moderate", "Moderate speaker leakage.", reasons)

    num_fitted = _fewest_fitted_speakers(report)
    is_worst_known = not math.isnan(headline.worst_p)
    safe_utterances = None
    if num_fitted > 0 and is_worst_known and not failed_checks:
        safe_utterances = _count_safe_utterances(report.risks, report.shorter_risks)
    if safe_utterances is None:
        sentence = _inconclusive_sentence(report.risks, is_evaluation_sound=not failed_checks)
        return _conclude(headline, "inconclusive", sentence, failed_checks)
    if num_fitted < FEW_SPEAKERS:
        sentence = (
            f"Inconclusive: nothing was found, but attackers learnt from {num_fitted:.0f}"
            f" speakers; from {FEW_SPEAKERS} and more they find more."
        )
        return _conclude(headline, "inconclusive", sentence, [])
    sentence = _low_sentence(report, safe_utterances, report.risks)
    return _conclude(headline, "low", sentence, [])


def _conclude(headline: Headline, level: Level, sentence: str, reasons: Sequence[str]) -> Headline:
    return replace(headline, level=level, verdict=sentence, reasons=tuple(reasons))


def _fewest_fitted_speakers(report: PrivacyReport) -> float:
    """Return how many speakers the attacks of a condition were fitted on, the fewest of all.

    Only conditions in which speakers should be hidden count; 0 where none of them was attacked.
    """
    num_fitted_by_condition: list[float] = []
    for condition in hidden_conditions(report.conditions):
        num_fitted = report.scalars.get(scalar_key(condition, "attack_speakers"))
        if num_fitted is not None and not bool(num_fitted.isnan()):
            num_fitted_by_condition.append(float(num_fitted))
    return min(num_fitted_by_condition, default=0.0)


def _count_safe_utterances(risks: Sequence[Risk], shorter_risks: Sequence[Risk]) -> int | None:
    """Return from how many utterances of one person all risks are excluded; None where from none.

    ``risks`` include those of the longest conversations, ``shorter_risks`` are those of shorter
    ones.
    """
    rates = [risk for risk in risks if risk.name not in MAIN_RISKS]
    if not risks or not all(risk.level == "low" for risk in rates):
        return None
    disclosures = [risk for risk in risks if risk.name in MAIN_RISKS]
    if all(risk.level == "low" for risk in disclosures):
        return min(risk.utterances for risk in disclosures)
    if shorter_risks and all(risk.level == "low" for risk in shorter_risks):
        return min(risk.utterances for risk in shorter_risks)
    return None


def _low_sentence(report: PrivacyReport, length: int, risks: Sequence[Risk]) -> str:
    """Return the verdict that leakage is low: for how much speech, to whom, in which conditions.

    Attackers who learn from more speakers may find what these cannot.
    """
    amount = "for one utterance"
    if length > 1:
        amount = f"for up to {length} utterances"
    num_fitted = _fewest_fitted_speakers(report)
    sentence = (
        f"Low speaker leakage, {amount} of one person, to attackers who learnt from"
        f" {num_fitted:,.0f} speakers"
    )
    tried = max(risk.utterances for risk in risks)
    if tried > length:
        sentence += f"; for {tried} these data cannot tell"
    conditions = hidden_conditions(report.conditions)
    if conditions == ["OP"]:
        sentence += "; tried in OP only, not against enrolment that is protected as well (PP)"
    elif conditions in (["PP"], ["across"]):
        sentence += f"; tried in {conditions[0]} only, not against original enrolment (OP)"
    return f"{sentence}."


def _inconclusive_sentence(risks: Sequence[Risk], is_evaluation_sound: bool) -> str:
    """Return the verdict that the data do not tell: what is not excluded, and what it would take.

    How many speakers it would take is said neither where a check failed, which speakers do not
    mend, nor where the guess is beyond all data.
    """
    open_risks = [risk for risk in risks if risk.is_known and not risk.is_excluded]
    if not open_risks:
        return (
            "Inconclusive: nothing was found, and these data cannot exclude that there is"
            " something."
        )
    worst = max(open_risks, key=lambda risk: risk.high / risk.limit_low)
    if worst.name in MAIN_RISKS:
        what = ""
    else:
        what = f" {_SHORT_TITLES[worst.name]}"
    # A value above its limit may be luck, but "nothing" would reassure where there may well be
    # something.
    is_any_above = any(risk.value >= risk.limit_low for risk in open_risks)
    if is_any_above:
        finding = "what was found may be luck"
    else:
        finding = "nothing was found"
    sentence = (
        f"Inconclusive: {finding}; these data do not exclude {show_risk(worst, worst.high)}{what}"
    )
    needed = [risk.more_speakers_needed for risk in open_risks]
    is_within_reach = all(number <= _MOST_SPEAKERS_GUESSED for number in needed)  # not of NaN
    if needed and is_within_reach and is_evaluation_sound:
        rounded = _round_up(max(needed))
        sentence += f"; about {rounded:,} more speakers would"
    return f"{sentence}."


def _round_up(num_speakers: float) -> int:
    """Return a number of speakers with about two digits, never fewer: 92 as 95, 123 as 150."""
    step = 5
    while num_speakers > 20 * step:
        step *= 10
    return math.ceil(round(num_speakers, 6) / step) * step


_SHORT_TITLES = {
    "found_in_100": "found among 100 people",
    "tpr_at_1e-3": "found at a false-positive rate of 0.1 %",
    "tpr_at_1e-2": "found at a false-positive rate of 1 %",
}
