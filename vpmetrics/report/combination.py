"""Several encoders or features of the same speech as one evaluation: the combined report leads with the strongest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from vpmetrics._scores.jackknife import students_t_quantile
from vpmetrics._scores.registry import CI_SUFFIXES, scalar
from vpmetrics._util.dtypes import widen
from vpmetrics.report.privacy_report import PrivacyReport
from vpmetrics.report.verdict import Check, Headline, make_headline

FEATURE_COLUMNS = ("disclosure", "op_d_ece", "pp_d_ece", "op_max_d", "op_mean_d", "op_id_rate", "deid", "gvd")


@dataclass(frozen=True, eq=False)
class CombinedReport:
    """Reports of one system by encoder, and the report of the attacker who picks the best of them.

    ``encoder`` is the one that leads. ``report`` is its report with the combined disclosure, headline and checks.
    """

    reports: Mapping[str, PrivacyReport]
    encoder: str
    report: PrivacyReport

    @property
    def leading(self) -> PrivacyReport:
        """The report of the encoder that leads."""
        return self.reports[self.encoder]

    @property
    def headline(self) -> Headline | None:
        """The combined headline."""
        return self.report.headline

    @property
    def checks(self) -> tuple[Check, ...]:
        """The checks of all encoders."""
        return self.report.checks

    def table(self, keys: tuple[str, ...] = FEATURE_COLUMNS) -> dict[str, dict[str, float]]:
        """Return each encoder's numbers by key; keys that its report lacks are left out."""
        return {
            name: {key: float(report.scalars[key]) for key in keys if key in report.scalars}
            for name, report in self.reports.items()
        }

    def __str__(self) -> str:
        """Return a summary: the combined report, then each encoder's disclosure."""
        lines = [
            f"  {name:20} disclosure {report.scalars.get('disclosure', math.nan):.3f} bit"
            for name, report in self.reports.items()
        ]
        return "\n".join([str(self.report), *lines])


def combine_reports(reports: Mapping[str, PrivacyReport]) -> CombinedReport:
    """Combine reports of the same speech through several encoders or features into one evaluation.

    The attacker uses the encoder that discloses most. The largest of several noisy numbers is too large, so with
    intervals the encoder is chosen for every jackknife group of speakers by what the other speakers disclose, and the
    disclosure is the mean of the pseudo-values of the encoders chosen.

    Args:
        reports: A report of each encoder, on the same speakers.

    Returns:
        :class:`CombinedReport` with the headline of all of them.

    Example:
        >>> from vpmetrics import VoicePrivacy
        >>> from vpmetrics.data import demo_voices
        >>> voices, reports = demo_voices(), {}
        >>> for name, width in (("whole", 256), ("half", 128)):
        ...     metric = VoicePrivacy(attacks=None)
        ...     protected = voices.protected["B2"][:, :width].contiguous()
        ...     metric.update(voices.original[:, :width].contiguous(), protected, voices.speakers)
        ...     reports[name] = metric.report()
        >>> combine_reports(reports).encoder
        'whole'
    """
    if not reports:
        raise ValueError("Expected `reports` to hold at least one report, but got none.")
    disclosures = {name: float(each.scalars.get("disclosure", math.nan)) for name, each in reports.items()}
    disclosures = {name: value for name, value in disclosures.items() if not math.isnan(value)}
    encoder = max(disclosures, key=lambda name: disclosures[name]) if disclosures else next(iter(reports))
    report = reports[encoder]
    checks = [check._replace(name=f"{name}: {check.name}") for name, each in reports.items() for check in each.checks]
    if (interval := _choose_across_speakers(reports, list(disclosures))) is not None:
        values = torch.tensor(interval, dtype=torch.float64)
        ends = {f"disclosure{end}": value for end, value in zip(("", *CI_SUFFIXES), values, strict=True)}
        report = replace(report, scalars=report.scalars | ends)
    headline = make_headline(report)
    if headline is not None:
        headline = headline._replace(attack=f"{headline.attack} of {encoder}")
    return CombinedReport(dict(reports), encoder, replace(report, headline=headline, checks=tuple(checks)))


def _choose_across_speakers(
    reports: Mapping[str, PrivacyReport], names: list[str]
) -> tuple[float, float, float] | None:
    """Return disclosure and interval, the encoder of each jackknife group chosen by others; None without."""
    jackknives = [reports[name].jackknife for name in names]
    usable = [each for each in jackknives if each is not None and "disclosure" in each.changes]
    if len(names) < 2 or len(usable) < len(names):
        return None
    groups = usable[0].groups
    if not all(each.groups.matches(groups) for each in usable):
        raise ValueError("Expected reports on the same speakers, but got different ones.")
    values = torch.stack([widen(reports[name].scalars["disclosure"]) for name in names])[:, None]
    changes = torch.stack([widen(each.changes["disclosure"]) for each in usable])
    if bool(changes.isnan().any()):
        return None
    # A pseudo-value of an encoder is S times its value less S - 1 times its value without the group.
    chosen = (values + changes).argmax(0, keepdim=True)
    pseudo = (values - groups.kept_over_dropped * changes).gather(0, chosen).squeeze(0)
    reach = students_t_quantile(0.95, len(pseudo) - 1) * float(pseudo.std()) / math.sqrt(len(pseudo))
    lowest, highest = scalar("disclosure").range
    value = min(max(lowest, float(pseudo.mean())), highest)
    return value, max(lowest, value - reach), min(value + reach, highest)
