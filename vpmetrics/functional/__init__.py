"""The mathematics as pure functions: what each class computes, under the same words in snake case."""

from vpmetrics.functional.isotonic import isotonic_regression, pav_llr
from vpmetrics.functional.verification import cllr, equal_error_rate, linkability, min_cllr
from vpmetrics.functional.zebra import calibration_distortion, ece_profile, zebra_disclosure, zebra_tag

__all__ = [
    "calibration_distortion",
    "cllr",
    "ece_profile",
    "equal_error_rate",
    "isotonic_regression",
    "linkability",
    "min_cllr",
    "pav_llr",
    "zebra_disclosure",
    "zebra_tag",
]
