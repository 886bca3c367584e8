"""The mathematics as pure functions: what each class computes, under the same words in snake case."""

from vpmetrics.functional.isotonic import isotonic_regression, pav_llr
from vpmetrics.functional.similarity import (
    de_identification,
    diagonal_dominance,
    normalised_relatives,
    voice_distinctiveness,
    voice_similarity_matrix,
)
from vpmetrics.functional.verification import cllr, equal_error_rate, linkability, min_cllr
from vpmetrics.functional.zebra import calibration_distortion, ece_profile, zebra_disclosure, zebra_tag

__all__ = [
    "calibration_distortion",
    "cllr",
    "de_identification",
    "diagonal_dominance",
    "ece_profile",
    "equal_error_rate",
    "isotonic_regression",
    "linkability",
    "min_cllr",
    "normalised_relatives",
    "pav_llr",
    "voice_distinctiveness",
    "voice_similarity_matrix",
    "zebra_disclosure",
    "zebra_tag",
]
