"""The references against numbers that no test of the library holds.

Exact, published, and worked out by hand.
"""

import numpy as np
import pytest
import torch
from golden import CONDITIONS, zebra_example
from numpy.testing import assert_allclose
from scipy.integrate import trapezoid

from reference import local, rank, similarity
from vpmetrics.functional import ece_profile


def test_published_example():
    example = zebra_example()
    prior = ece_profile(
        torch.tensor([1.0, 0.0]).double(), torch.tensor([1, 0]), torch.from_numpy(example["plo"])
    ).prior
    assert_allclose(prior, example["ece_prior"], rtol=0, atol=1e-9)
    area = trapezoid(prior.numpy() - example["ece_min"], 1 / (1 + np.exp(-example["plo"])))
    # three digits are printed
    assert_allclose(area, example["published_population"], rtol=0, atol=5e-4)


@pytest.mark.parametrize(
    ("oo", "op", "published"), [(0.690, 0.354, 48.70), (0.594, 0.141, 76.26), (0.667, 0.196, 70.61)]
)
def test_published_disclosure_relative_to_the_original(oo, op, published):
    """Tables 2 and 3 of the 2022 paper, system B2; the inputs are printed to three digits."""
    relatives = similarity.normalised_relatives(
        {"OO": oo, "OP": op, "PP": oo}, dict.fromkeys(CONDITIONS, 0.5)
    )
    assert_allclose(100 * relatives["d_ece_op_oo"], published, rtol=0, atol=0.1)


def test_relatives_by_hand():
    relatives = similarity.normalised_relatives(
        {"OO": 0.5, "OP": 0.1, "PP": 0.25}, {"OO": 0.2, "OP": 0.6, "PP": 0.6}
    )
    assert_allclose([relatives["d_ece_op_oo"], relatives["cllr_op_oo"]], [0.8, 0.5])
    assert_allclose([relatives["g_d_ece"], relatives["g_cllr"]], -10 * np.log10(2))


def test_beta_binomial_by_hand():
    assert_allclose(rank.beta_binomial(5, 1.0, 1.0), 0.2)
    assert_allclose(rank.beta_binomial(3, 1.0, 2.0), [3 / 6, 2 / 6, 1 / 6])


def test_references_exclude_the_input_utterance():
    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0], [0.0, 3.0]])
    speakers = np.array([7, 7, 3, 3, 5])
    scores, true_index = rank.reference_scores(
        x, x, speakers, is_reference=[True, False, True, False, False]
    )
    # inputs 1 and 3; speaker 5 is unknown
    assert_allclose(scores, [[np.sqrt(0.5), 0], [np.sqrt(0.5), 1]], atol=1e-15)
    assert true_index.tolist() == [1, 0]
    scores, true_index = rank.reference_scores(x, x, speakers)
    # speaker 5 is a reference, yet has no other utterance to be found by
    assert true_index.tolist() == [2, 2, 0, 0]
    # In step: input 0 is the second of its speaker by value, so speaker 3 lacks its second as well,
    # [2, 0].
    assert_allclose(scores[0], [np.sqrt(0.5), 0, 0], atol=1e-15)


def test_slope_by_hand():
    """Two values of z, sqrt(2) and -1/sqrt(2).

    3 targets of 4 and 1 non-target of 8 have the higher one.
    """
    scores, true_index = np.tile([1.0, 0.0, 0.0], (4, 1)), [0, 0, 0, 1]
    expected = (np.log((3 / 4) / (1 / 8)) - np.log((1 / 4) / (7 / 8))) / (
        np.sqrt(2) + 1 / np.sqrt(2)
    )
    assert_allclose(local.fit_slope(scores, true_index), expected, rtol=1e-7)
