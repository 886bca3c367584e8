"""Several encoders or features of the same speech as one evaluation: the combined report leads with the strongest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vpmetrics._engine.checks import Check
from vpmetrics._engine.headline import Headline, judge, summarize
from vpmetrics._engine.jackknife import students_t_quantile
from vpmetrics._engine.precision import widen
from vpmetrics._engine.report import PrivacyReport

FEATURE_COLUMNS = ("disclosure", "op_d_ece", "pp_d_ece", "op_max_d", "op_mean_d", "op_id_rate", "deid", "gvd")


@dataclass(frozen=True, eq=False)
class CombinedReport:
    """Reports of one system by encoder, and the headline of the attacker who picks the best of them.

    ``encoder`` is the one that leads. Its report is ``reports[encoder]``.
    """

    reports: Mapping[str, PrivacyReport]
    encoder: str
    headline: Headline | None
    checks: tuple[Check, ...]

    @property
    def leading(self) -> PrivacyReport:
        """The report that leads."""
        return self.reports[self.encoder]

    def table(self, keys: tuple[str, ...] = FEATURE_COLUMNS) -> dict[str, dict[str, float]]:
        """Return numbers by encoder and key, those that are known: a column of a features x systems table."""
        return {
            name: {key: float(report.scalars[key]) for key in keys if key in report.scalars}
            for name, report in self.reports.items()
        }

    def __str__(self) -> str:
        """A summary: the combined headline, then each encoder's disclosure."""
        lines = [summarize(self.leading, self.headline)]
        for name, report in self.reports.items():
            value = float(report.scalars.get("disclosure", torch.tensor(math.nan)))
            lines.append(f"  {name:20} disclosure {value:.3f} bit")
        return "\n".join(lines)


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
    values = {name: float(report.scalars.get("disclosure", torch.tensor(math.nan))) for name, report in reports.items()}
    known = {name: value for name, value in values.items() if not math.isnan(value)}
    encoder = max(known, key=lambda name: known[name]) if known else next(iter(reports))
    leading = reports[encoder]
    checks = tuple(
        check._replace(name=f"{name}: {check.name}") for name, report in reports.items() for check in report.checks
    )
    headline = leading.headline
    if headline is not None:
        disclosure, low, high = _choose_across_speakers(reports, list(known)) or headline[1:4]
        attack = f"{headline.attack} of {encoder}"
        worst = headline.worst_disclosure, headline.worst_chance, headline.worst_speaker
        level, reasons = judge(leading, disclosure, high, *worst)
        headline = headline._replace(
            level=level, disclosure=disclosure, low=low, high=high, attack=attack, reasons=tuple(reasons)
        )
    return CombinedReport(dict(reports), encoder, headline, checks)


def _choose_across_speakers(
    reports: Mapping[str, PrivacyReport], names: list[str]
) -> tuple[float, float, float] | None:
    """Return disclosure and its interval with the encoder of each group chosen by the others.

    None without jackknife.
    """
    jackknives = [reports[name].jackknife for name in names]
    known = [each for each in jackknives if each is not None and "disclosure" in each.changes]
    if len(names) < 2 or len(known) < len(names):
        return None
    groups = known[0].groups
    if not all(each.groups.matches(groups) for each in known):
        raise ValueError("Expected reports on the same speakers, but got different ones.")
    values = torch.stack([widen(reports[name].scalars["disclosure"]) for name in names])[:, None]
    without = values + torch.stack([widen(each.changes["disclosure"]) for each in known])
    if bool(without.isnan().any()):
        return None
    chosen = without.argmax(0, keepdim=True)
    pseudo = (values + groups.ratio * (values - without)).gather(0, chosen).squeeze(0)
    reach = students_t_quantile(0.95, len(pseudo) - 1) * float(pseudo.std()) / math.sqrt(len(pseudo))
    value = max(0.0, float(pseudo.mean()))
    return value, max(0.0, value - reach), value + reach
