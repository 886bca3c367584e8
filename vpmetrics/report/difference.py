"""By how much two systems differ, on the same speakers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vpmetrics._scores.jackknife import Difference, paired_difference
from vpmetrics._scores.registry import scalar
from vpmetrics._util.scalar import closest_or_known_names
from vpmetrics.report.privacy_report import PrivacyReport


@dataclass(frozen=True)
class ReportDifference:
    """A number of one report minus that of another, with its confidence interval.

    It has the p-value of no difference, too.
    """

    key: str
    difference: float
    low: float
    high: float
    p_value: float
    confidence: float

    @property
    def is_significant(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        """Return the difference with its interval and p-value on one line."""
        entry = scalar(self.key)
        interval = f"[{entry.show(self.low)}, {entry.show(self.high)}]"
        if self.p_value >= 0.001:
            p_value = f"p = {self.p_value:.3f}"
        else:
            p_value = "p < 0.001"
        return (
            f"{entry.heading}: {entry.show(self.difference)} {interval} {entry.unit.name},"
            f" {p_value}"
        )


def compare_reports(
    first: PrivacyReport, second: PrivacyReport, key: str = "disclosure", confidence: float = 0.95
) -> ReportDifference:
    """Compare two systems that were measured on the same speakers.

    Speakers are left out of both at once, so a speaker who is hard in both systems cancels. The
    p-value is two-sided: how often a difference at least as large would occur if there were none.

    Args:
        first: Report of :class:`VoicePrivacy`; with ``intervals`` every number can be compared,
            else the main ones.
        second: Report of another system on the same speakers.
        key: The number to compare, one that has an interval.
        confidence: Confidence level of the interval.

    Returns:
        :class:`ReportDifference`, first minus second.

    Example:
        >>> from vpmetrics import VoicePrivacy, compare_reports
        >>> from vpmetrics.data import demo_voices
        >>> voices, reports = demo_voices(), []
        >>> for system in ("B2", "B2u"):
        ...     metric = VoicePrivacy(attacks=None, intervals=0.95)
        ...     metric.update(voices.original, voices.protected[system], voices.speakers)
        ...     reports.append(metric.report())
        >>> difference = compare_reports(*reports, key="op_d_ece")
        >>> difference.is_significant, difference.p_value < 0.001
        (True, True)
    """
    if not isinstance(confidence, float) or not 0 < confidence < 1:
        raise ValueError(
            f"Expected `confidence` to be between 0 and 1, as 0.95, but got {confidence!r}."
        )
    reports = {"first": first, "second": second}
    for name, report in reports.items():
        if not isinstance(report, PrivacyReport):
            raise TypeError(
                f"Expected `{name}` to be a PrivacyReport, but got {type(report).__name__}."
            )
        if report.jackknife is None:
            message = (
                f"Expected `{name}` to be of three speakers at least, each of whom can be left out"
            )
            raise ValueError(f"{message}, but its numbers have no intervals.")
        if key not in report.jackknife.changes:
            hint = closest_or_known_names(key, report.jackknife.changes)
            raise ValueError(
                f"Expected `key` to name a number of `{name}` with an interval, but got {key!r}."
                f" {hint}"
            )
    assert first.jackknife is not None
    assert second.jackknife is not None
    if not first.jackknife.groups.matches(second.jackknife.groups) or _speakers_of(
        first
    ) != _speakers_of(second):
        counts = f"{len(_speakers_of(first))} and {len(_speakers_of(second))} speakers that differ"
        raise ValueError(f"Expected reports on the same speakers, but got {counts}.")
    values = (first.scalars[key], second.scalars[key])
    found = paired_difference(key, values, (first.jackknife, second.jackknife), confidence)
    return ReportDifference(
        key, float(found.value), float(found.low), float(found.high), p_value_of(found), confidence
    )


def p_value_of(difference: Difference) -> float:
    """Return how often a difference at least as large would occur if there were none."""
    below = float(difference.probability_below)
    return math.nan if math.isnan(below) else 2 * min(below, 1 - below)


def _speakers_of(report: PrivacyReport) -> list[str]:
    """Return the names of the speakers, or their labels."""
    if report.speakers is None:
        return []
    return [report.speaker_names.get(label, str(label)) for label in report.speakers.tolist()]
