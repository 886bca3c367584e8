"""Reports of privacy: their numbers, checks, verdict, tables and page."""

from vpmetrics._util.scalar import Scalar
from vpmetrics.report.checks import Check
from vpmetrics.report.difference import ReportDifference, compare_reports
from vpmetrics.report.headline import Headline, Risk
from vpmetrics.report.privacy_report import ConditionReport, PrivacyReport

__all__ = [
    "Check",
    "ConditionReport",
    "Headline",
    "PrivacyReport",
    "ReportDifference",
    "Risk",
    "Scalar",
    "compare_reports",
]
