"""The mathematics as pure functions.

What each class computes, under the same words in snake case.
"""

from vpmetrics._identification.beta_binomial import fit_beta_binomial
from vpmetrics.functional.attributes import attribute_disclosure
from vpmetrics.functional.features import codebook_histogram, f0_histogram
from vpmetrics.functional.isotonic import isotonic_regression, pav_llr
from vpmetrics.functional.local import (
    fit_local_slope,
    identify,
    local_information,
    local_information_disclosure,
    summarise_information,
)
from vpmetrics.functional.rank import combine_disclosures, rank_disclosure, rank_histogram
from vpmetrics.functional.reidentification import conversations, reidentification_rate, singling_out
from vpmetrics.functional.similarity import (
    de_identification,
    diagonal_dominance,
    normalised_relatives,
    voice_distinctiveness,
    voice_similarity_matrix,
)
from vpmetrics.functional.trials import trials
from vpmetrics.functional.verification import (
    cllr,
    equal_error_rate,
    linkability,
    min_cllr,
    min_dcf,
    raw_equal_error_rate,
    tpr_at_fpr,
)
from vpmetrics.functional.zebra import (
    calibration_distortion,
    ece_profile,
    speaker_disclosure,
    zebra_disclosure,
    zebra_tag,
)

__all__ = [
    "attribute_disclosure",
    "calibration_distortion",
    "cllr",
    "codebook_histogram",
    "combine_disclosures",
    "conversations",
    "de_identification",
    "diagonal_dominance",
    "ece_profile",
    "equal_error_rate",
    "f0_histogram",
    "fit_beta_binomial",
    "fit_local_slope",
    "identify",
    "isotonic_regression",
    "linkability",
    "local_information",
    "local_information_disclosure",
    "min_cllr",
    "min_dcf",
    "normalised_relatives",
    "pav_llr",
    "rank_disclosure",
    "rank_histogram",
    "raw_equal_error_rate",
    "reidentification_rate",
    "singling_out",
    "speaker_disclosure",
    "summarise_information",
    "tpr_at_fpr",
    "trials",
    "voice_distinctiveness",
    "voice_similarity_matrix",
    "zebra_disclosure",
    "zebra_tag",
]
