"""Reports of privacy: their numbers, checks, verdict, tables and page."""

from vpmetrics._util.scalar import Scalar
from vpmetrics.report.privacy_report import ConditionReport, PrivacyReport
from vpmetrics.report.verdict import Check, Headline

__all__ = ["Check", "ConditionReport", "Headline", "PrivacyReport", "Scalar"]
