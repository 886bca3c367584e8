"""The headline of a report: the largest disclosure to any attacker tried, the worst speaker, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from vpmetrics._engine.checks import FAILED, OK
from vpmetrics._engine.precision import numbers_of
from vpmetrics._engine.registry import scalar, scalar_key

if TYPE_CHECKING:
    from vpmetrics._engine.report import PrivacyReport

HIGH_LEAKAGE, LOW_LEAKAGE = 0.25, 0.05  # bits, by the upper end of the interval of the disclosure
_PLAIN = {"d_ece": "plain comparison", "d_ece_reversed": "plain comparison, sign turned"}
_SHOWN = (
    "op_d_ece", "op_d_ece_strongest", "pp_d_ece", "pp_d_ece_strongest", "across_d_ece_strongest", "op_eer",
    "op_eer_strongest", "deid", "gvd",
)  # fmt: skip


class Headline(NamedTuple):
    """What people read first.

    ``level`` is ``"high"``, ``"moderate"``, ``"low"`` or ``"unknown"`` leakage; ``reasons`` are sentences.
    ``condition`` and ``attack`` attain the disclosure, ``needs`` is what that attacker must have. ``worst_speaker`` is
    a place among all speakers, ascending, and -1 where it is unknown.
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
    reasons: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """One sentence."""
        name = {"unknown": "The speaker leakage is unknown."}
        return name.get(self.level, f"{self.level.capitalize()} speaker leakage.")


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
    values = numbers_of(report.scalars)
    disclosure = values.get("disclosure", math.nan)
    keys = disclosure_sources(report.conditions, report.scalars)
    if not keys:
        return None
    key = max(keys, key=lambda each: values[each])
    condition = scalar(key).condition
    attack, needs = _describe_attack(report, key, condition)
    low, high = (values.get(f"disclosure{suffix}", math.nan) for suffix in ("_low", "_high"))
    worst, place = math.nan, -1
    chance = values.get("worst_speaker_chance", math.nan)
    found = report.conditions["OP"].worst_speaker if "OP" in report.conditions else None
    if found is not None:
        worst = float(found.largest[0])
        place = -1 if math.isnan(worst) else int(found.largest[1])
    level, reasons = judge(report, disclosure, high, worst, chance, place)
    return Headline(level, disclosure, low, high, condition, attack, needs, place, worst, chance, tuple(reasons))


def _describe_attack(report: PrivacyReport, key: str, condition: str) -> tuple[str, str]:
    rest = key.removeprefix(scalar_key(condition, ""))
    number = report.scalars.get(scalar_key(condition, "strongest"))
    if rest in _PLAIN or number is None or bool(number.isnan()):
        return _PLAIN.get(rest, "an attack"), "nothing"
    index = int(number)
    return report.attacks[index] if index < len(report.attacks) else ("an attack", "")


def judge(
    report: PrivacyReport, disclosure: float, high: float, worst: float, chance: float, place: int
) -> tuple[str, list[str]]:
    """Return the level of leakage, and sentences that explain it."""
    upper = disclosure if math.isnan(high) else high
    failed = [check.message for check in report.checks if check.status == FAILED]
    reasons = [*failed]
    is_exposed = worst - chance > LOW_LEAKAGE
    if math.isnan(disclosure):
        return "unknown", reasons
    level = "high" if upper > HIGH_LEAKAGE else "moderate" if upper > LOW_LEAKAGE else "low"
    if is_exposed:
        name = speaker_label(report, place)
        reasons.append(f"Speaker {name} is exposed: {worst:.3f} bit, where chance gives {chance:.3f} bit.")
        level = "high" if level == "high" or worst - chance > HIGH_LEAKAGE else "moderate"
    if level == "low" and failed:
        level = "unknown"
    return level, reasons


def speaker_label(report: PrivacyReport, place: int) -> str:
    """Return the name of the speaker at a place among all, ascending; the label where names are unknown."""
    if report.speakers is None or not 0 <= place < len(report.speakers):
        return str(place)
    label = int(report.speakers[place])
    return report.speaker_names.get(label, str(label))


def summarize(report: PrivacyReport, headline: Headline | None = None) -> str:
    """Return some lines of text: verdict, reasons, checks that are not ok, and headline numbers with intervals."""
    lines = []
    headline = report.headline if headline is None else headline
    if headline is not None:
        lines.append(headline.verdict)
        interval = "" if math.isnan(headline.low) else f" [{headline.low:.3f}, {headline.high:.3f}]"
        lines.append(
            f"  {headline.disclosure:.3f}{interval} of 0.721 bit on {headline.condition} to {headline.attack}, "
            f"which needs {headline.needs or 'nothing'}"
        )
        lines += [f"  {reason}" for reason in headline.reasons]
    lines += [f"  {check.status}: {check.message}" for check in report.checks if check.status != OK]
    for key in _SHOWN:
        if key in report.scalars:
            entry, value = scalar(key), float(report.scalars[key])
            ends = [report.scalars.get(f"{key}{suffix}") for suffix in ("_low", "_high")]
            interval = f" [{', '.join(entry.show(float(end)) for end in ends if end is not None)}]"
            lines.append(
                f"  {entry.condition:6} {entry.heading:16} {entry.show(value):>8} {entry.unit.name:4}"
                f"{interval if ends[0] is not None else ''}".rstrip()
            )
    return "\n".join(lines)
