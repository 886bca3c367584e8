"""Reports of privacy: their numbers, checks, verdict, tables and page."""

from vpmetrics._util.scalar import Scalar
from vpmetrics.report.difference import ReportDifference, compare_reports
from vpmetrics.report.privacy_report import ConditionReport, PrivacyReport
from vpmetrics.report.verdict import Check, Headline

__all__ = ["Check", "ConditionReport", "Headline", "PrivacyReport", "ReportDifference", "Scalar", "compare_reports"]
