"""The headline of a report: the largest disclosure to any attacker tried, the worst speaker, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from vpmetrics._engine.checks import FAILED
from vpmetrics._engine.precision import read_numbers
from vpmetrics._engine.registry import CI_SUFFIXES, scalar, scalar_key

if TYPE_CHECKING:
    from vpmetrics._engine.report import PrivacyReport

HIGH_LEAKAGE, LOW_LEAKAGE = 0.25, 0.05  # bits, by the upper end of the interval of the disclosure
_PLAIN = {"d_ece": "plain comparison", "d_ece_reversed": "plain comparison, sign turned"}


class Headline(NamedTuple):
    """The numbers to read first, and the verdict on them.

    ``level`` is ``"high"``, ``"moderate"``, ``"low"`` or ``"unknown"`` leakage; ``reasons`` are sentences.
    ``condition`` and ``attack`` attain the disclosure, ``needs``: what that attacker must have. ``worst_speaker`` is a
    place among all speakers, ascending, and -1 where it is unknown. ``worst_chance`` and ``most_by_chance``: the mean
    and the largest of what the worst speaker discloses with speakers permuted.
    """

    level: str
    disclosure: float
    low: float
    high: float
    condition: str
    attack: str
    needs: str
    worst_speaker: int
    worst_disclosure: float
    worst_chance: float
    most_by_chance: float
    reasons: tuple[str, ...]

    @property
    def is_speaker_exposed(self) -> bool:
        """Whether the worst speaker discloses more than all speakers do in any permutation, and clearly so."""
        excess = self.worst_disclosure - self.worst_chance
        return excess > LOW_LEAKAGE and self.worst_disclosure > self.most_by_chance

    @property
    def verdict(self) -> str:
        """Return the verdict as a sentence."""
        is_unknown = self.level == "unknown"
        return "The speaker leakage is unknown." if is_unknown else f"{self.level.capitalize()} speaker leakage."


def disclosure_sources(conditions: Mapping[str, Any], scalars: Mapping[str, Tensor]) -> list[str]:
    """Return the keys of which ``disclosure`` is the largest: the strongest attacks, else plain scores both ways."""

    def is_known(key: str) -> bool:
        return key in scalars and not bool(scalars[key].isnan())

    keys: list[str] = []
    for name in ("OP", "across" if "across" in conditions else "PP", ""):
        strongest, *plain = (scalar_key(name, key) for key in ("d_ece_strongest", "d_ece", "d_ece_reversed"))
        keys += [strongest] if is_known(strongest) else filter(is_known, plain)
    return keys


def find_headline(report: PrivacyReport) -> Headline | None:
    """Return the headline; None where nothing protected was compared."""
    keys = disclosure_sources(report.conditions, report.scalars)
    if not keys:
        return None
    values = read_numbers(report.scalars)
    key = max(keys, key=lambda each: values[each])
    condition = scalar(key).condition
    attack, needs = _describe_attack(report, values, key, condition)
    disclosure, low, high = (values.get(f"disclosure{end}", math.nan) for end in ("", *CI_SUFFIXES))
    worst, chance, most, place = math.nan, values.get("worst_speaker_chance", math.nan), math.nan, -1
    if "OP" in report.conditions and (worst_speaker := report.conditions["OP"].worst_speaker) is not None:
        (worst, index), most = map(float, worst_speaker.largest), float(worst_speaker.most_by_chance)
        place = -1 if math.isnan(worst) else int(index)
    headline = Headline("", disclosure, low, high, condition, attack, needs, place, worst, chance, most, ())
    level, reasons = _choose_level(report, headline)
    return headline._replace(level=level, reasons=tuple(reasons))


def _describe_attack(report: PrivacyReport, values: Mapping[str, float], key: str, condition: str) -> tuple[str, str]:
    plain = _PLAIN.get(key.removeprefix(scalar_key(condition, "")))
    number = values.get(scalar_key(condition, "strongest"), math.nan)
    if plain is not None or not number < len(report.attacks):
        return plain or "an attack", "nothing"
    return report.attacks[int(number)]


def _choose_level(report: PrivacyReport, headline: Headline) -> tuple[str, list[str]]:
    """Return the level of leakage, and sentences that explain it."""
    reasons = [check.message for check in report.checks if check.status == FAILED]
    if math.isnan(headline.disclosure):
        return "unknown", reasons
    upper = headline.disclosure if math.isnan(headline.high) else headline.high
    level = "high" if upper > HIGH_LEAKAGE else "moderate" if upper > LOW_LEAKAGE else "low"
    if headline.is_speaker_exposed:
        is_high = headline.worst_disclosure - headline.worst_chance > HIGH_LEAKAGE
        level = "high" if level == "high" or is_high else "moderate"
        reasons.append(
            f"Speaker {report.speaker_name(headline.worst_speaker)} is exposed: {headline.worst_disclosure:.3f} bit, "
            f"where chance gives {headline.worst_chance:.3f} bit."
        )
    elif level == "low" and reasons:
        level = "unknown"
    return level, reasons
