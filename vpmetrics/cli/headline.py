"""What the numbers come to, in sentences: what the strongest attacker learns and needs, and what others learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from vpmetrics._engine.checks import Check
from vpmetrics._engine.headline import HIGH_LEAKAGE, LOW_LEAKAGE
from vpmetrics._engine.registry import CI_SUFFIXES, CONDITION_TITLES, scalar, scalar_key
from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics.cli.tables import clean, conditions_of, format_cell, make_cell

MOST = scalar("d_ece").range[1]  # bits that calibrated scores can disclose
THRESHOLDS = (
    f"Leakage is high above {HIGH_LEAKAGE:g} bit, moderate above {LOW_LEAKAGE:g} bit and low otherwise, by the upper "
    "end of the interval. It is never called low where a check failed, or where one speaker discloses more than "
    f"{LOW_LEAKAGE:g} bit above the level of chance."
)
_TITLES = {"high": "High leakage", "moderate": "Moderate leakage", "low": "Low leakage", "unknown": "No verdict"}
_STATUSES = ("failed", "warning", "ok")


class Disclosed(NamedTuple):
    """The largest disclosure of a condition, in bits, the scalar that attains it, and its interval (NaN if none)."""

    condition: str
    key: str
    bits: float
    low: float
    high: float


class Verdict(NamedTuple):
    """The level of leakage (``"high"``, ``"moderate"``, ``"low"``, ``"unknown"``), a title and sentences.

    ``reasons``: those of the sentences that say why the level is not that of the disclosure alone.
    """

    level: str
    title: str
    sentences: tuple[str, ...]
    reasons: tuple[str, ...] = ()


def verdict_of(system: EvaluatedSystem) -> Verdict:
    """Return the verdict on one system, in sentences."""
    found, headline = disclosure_of(system), system.report.headline
    level = "unknown" if headline is None else headline.level
    if headline is None or math.isnan(found.bits):
        return Verdict("unknown", _TITLES["unknown"], ("D_ECE is not defined for these trials; the notes say why.",))
    sentences = [*_describe_attacker(system, found), *_describe_others(system, found)]
    reasons = []
    if found.bits < LOW_LEAKAGE < found.high or found.bits < HIGH_LEAKAGE < found.high:
        reasons.append("The verdict goes by the upper end of the interval.")
    failed = [check.name for check in system.report.checks if check.status == "failed"]
    if failed:
        reasons.append(f"This evaluation cannot be trusted: {', '.join(failed)} failed.")
    if headline.worst_disclosure - headline.worst_chance > LOW_LEAKAGE:
        bits, chance = (scalar("disclosure").show(b) for b in (headline.worst_disclosure, headline.worst_chance))
        name = worst_speaker_name(system)
        reasons.append(f"Speaker {name} is protected worst: {bits} bit, where chance gives {chance}.")
    return Verdict(level, _TITLES[level], (*sentences, *reasons), tuple(reasons))


def checks_of(system: EvaluatedSystem) -> tuple[Check, ...]:
    """Return whether the evaluation can be trusted, the worst first."""
    return tuple(sorted(system.report.checks, key=lambda check: _STATUSES.index(check.status)))


def attacked_conditions(system: EvaluatedSystem) -> list[str]:
    """Return the conditions in which speakers are to be hidden: within a session they are meant to stay distinct."""
    conditions = conditions_of(system)
    linked = "across" if "across" in conditions else "PP"
    return [name for name in conditions if name in ("OP", linked, "")] or conditions[:1]


def disclosed_in(system: EvaluatedSystem, condition: str) -> Disclosed:
    """Return the disclosure of a condition to the strongest attack, else to plain comparison in either direction."""
    key = "d_ece_strongest"
    if math.isnan(system.scalar(key, condition)):
        plain, turned = (system.scalar(name, condition) for name in ("d_ece", "d_ece_reversed"))
        key = "d_ece_reversed" if turned > plain else "d_ece"
    bits, low, high = (system.scalar(f"{key}{end}", condition) for end in ("", *CI_SUFFIXES))
    return Disclosed(condition, key, bits, low, high)


def disclosure_of(system: EvaluatedSystem) -> Disclosed:
    """Return the largest disclosure to any attacker tried in any condition; NaN where it is undefined."""
    found = [disclosed_in(system, condition) for condition in attacked_conditions(system)]
    known = [each for each in found if not math.isnan(each.bits)]
    return max(known, key=lambda each: each.bits, default=Disclosed("", "d_ece", math.nan, math.nan, math.nan))


def strongest_attack(system: EvaluatedSystem, condition: str) -> tuple[str, str] | None:
    """Return name and needs of the strongest attack in a condition; None where none was tried."""
    number = system.scalar("strongest", condition)
    if math.isnan(number) or not 0 <= int(number) < len(system.report.attacks):
        return None
    name, needs = map(clean, system.report.attacks[int(number)])
    return name, needs


def show_disclosed(found: Disclosed) -> str:
    """Return a disclosure as text, with its interval."""
    return str(format_cell(scalar("disclosure"), *found[2:]))


def explain_no_attack(system: EvaluatedSystem) -> str:
    """Return why there is no number of an attack."""
    why = f", since {clean(system.no_attacks)}" if system.no_attacks else ""
    return f"No attack was tried{why}: take this as the least."


def worst_speaker_name(system: EvaluatedSystem) -> str:
    """Return the name of the speaker who is protected worst; a dash where that is not known."""
    place = -1 if system.report.headline is None else system.report.headline.worst_speaker
    return clean(system.speaker_name(math.nan if place < 0 else place))


def rank_systems(systems: Sequence[EvaluatedSystem]) -> list[EvaluatedSystem]:
    """Return systems by what they disclose, the least first and those of which it is not known last."""
    return sorted(systems, key=lambda system: (math.isnan(bits := disclosure_of(system).bits), bits))


def _describe_attacker(system: EvaluatedSystem, found: Disclosed) -> list[str]:
    """Return what the attacker of the headline learns, does and needs, beside what others learn."""
    what = f" in {found.condition}, {CONDITION_TITLES[found.condition].partition(':')[0]}" if found.condition else ""
    says = [f"An attacker learns {show_disclosed(found)} of at most {MOST:.3f} bit{what}."]
    attack, show = strongest_attack(system, found.condition), scalar("disclosure").show
    plain = make_cell(scalar_key(found.condition, "d_ece"), system, with_interval=False).text
    beside = {"comparing embeddings alone": plain} if found.key == "d_ece_strongest" else {}
    for name, value in (
        ("chance", system.scalar("d_ece_chance", found.condition)),
        ("original speech", system.scalar("d_ece", "OO")),
    ):
        beside |= {} if math.isnan(value) else {name: show(value)}
    if attack is None:
        says.append(explain_no_attack(system))
    else:
        says.append(f"The strongest attack tried, {attack[0]}, needs {attack[1]}.")
    if found.key == "d_ece_reversed":
        says.append("It is enough to turn the sign of the scores.")
    text = ", ".join(f"{name} {value}" for name, value in beside.items())
    return [*says, f"Bits beside it: {text}."] if beside else says


def _describe_others(system: EvaluatedSystem, found: Disclosed) -> list[str]:
    """Return what is disclosed in the other conditions in which speakers are to be hidden."""
    sentences = []
    for condition in attacked_conditions(system):
        other, attack = disclosed_in(system, condition), strongest_attack(system, condition)
        if condition != found.condition and not math.isnan(other.bits):
            by = f" by {attack[0]}, which needs {attack[1]}" if attack else ""
            sentences.append(f"In {condition} an attacker learns {show_disclosed(other)} bit{by}.")
    return sentences
