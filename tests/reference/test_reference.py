"""The references against numbers that no test of the library holds: exact, published, and worked out by hand."""

import numpy as np
import pytest
from golden import CONDITIONS, TRANSFER_SETS, transfer_set, zebra_example
from numpy.testing import assert_allclose

from reference import isotonic, local, rank, similarity, zebra

EXACT = {"rtol": 0, "atol": 1e-9}  # what the golden numbers are good for


def test_isotonic_regression_by_hand():
    assert_allclose(isotonic.isotonic_regression([1, 3, 2, 0, 5]), [1, 5 / 3, 5 / 3, 5 / 3, 5])
    assert_allclose(isotonic.isotonic_regression([2, 0, 1], weights=[1, 3, 1]), [0.5, 0.5, 1])


@pytest.mark.parametrize("llr", [-30.0, -2.0, -0.05, -0.04, 0.0, 1e-6, 0.0499, 0.0501, 1.0, 40.0, 800.0, np.inf])
def test_z_is_the_area_between_two_profiles(llr):
    # One target at `llr`, one non-target at 0: the area is Z(llr) / (2 ln 2).
    area = zebra.d_ece_by_integration(np.array([llr]), np.zeros(1))
    assert_allclose(zebra.z(llr) / (2 * np.log(2)), area, rtol=0, atol=1e-12)


def test_published_example():
    example = zebra_example()
    prior = zebra.ece_profile([1.0, 0.0], [1, 0], example["plo"])[0]
    assert_allclose(prior, example["ece_prior"], **EXACT)
    pi, height = 1 / (1 + np.exp(-example["plo"])), prior - example["ece_min"]
    area = np.sum(np.diff(pi) * (height[1:] + height[:-1]) / 2)
    assert_allclose(area, example["published_population"], rtol=0, atol=5e-4)  # three digits are printed


@pytest.mark.parametrize("name", TRANSFER_SETS)
def test_calibration_is_fitted_on_another_run(name):
    preds, target, fit_preds, fit_target, expected = transfer_set(name)
    scale, offset = zebra.linear_calibration(fit_preds, fit_target)
    assert_allclose([scale, offset], [expected["linear"]["a"], expected["linear"]["b"]], **EXACT)
    for calibration in ("linear", "isotonic"):
        found = zebra.calibration_distortion(preds, target, fit_preds, fit_target, calibration)
        assert_allclose(found, expected[calibration]["eval_d_ece"], **EXACT, err_msg=calibration)


@pytest.mark.parametrize(
    ("oo", "op", "published"), [(0.690, 0.354, 48.70), (0.594, 0.141, 76.26), (0.667, 0.196, 70.61)]
)
def test_published_disclosure_relative_to_the_original(oo, op, published):
    """Tables 2 and 3 of the 2022 paper, system B2; the inputs are printed to three digits."""
    relatives = similarity.normalised_relatives({"OO": oo, "OP": op, "PP": oo}, dict.fromkeys(CONDITIONS, 0.5))
    assert_allclose(100 * relatives["d_ece_op_oo"], published, rtol=0, atol=0.1)


def test_relatives_by_hand():
    relatives = similarity.normalised_relatives({"OO": 0.5, "OP": 0.1, "PP": 0.25}, {"OO": 0.2, "OP": 0.6, "PP": 0.6})
    assert_allclose([relatives["d_ece_op_oo"], relatives["cllr_op_oo"]], [0.8, 0.5])
    assert_allclose([relatives["g_d_ece"], relatives["g_cllr"]], -10 * np.log10(2))


def test_beta_binomial_by_hand():
    assert_allclose(rank.beta_binomial(5, 1.0, 1.0), 0.2)
    assert_allclose(rank.beta_binomial(3, 1.0, 2.0), [3 / 6, 2 / 6, 1 / 6])


@pytest.mark.parametrize(("alpha", "beta"), [(0.4, 1.7), (1.0, 1.0), (3.0, 0.5), (2.5, 6.0)])
def test_beta_binomial_fit_finds_the_law_it_was_given(alpha, beta):
    law = rank.beta_binomial(12, alpha, beta)
    assert_allclose(rank.fit_beta_binomial(1000 * law), law, rtol=0, atol=1e-7)


def test_beta_binomial_fit_is_the_best_among_those_that_keep_rank_one():
    histogram = np.array([30, 9, 4, 8, 2, 5, 1, 3])
    gamma = rank.fit_beta_binomial(histogram)
    assert_allclose(gamma[0], 30 / 62, rtol=0, atol=1e-12)
    likelihood = np.sum(histogram * np.log(gamma))
    for alpha in np.geomspace(0.01, 100, 60):
        for beta in np.geomspace(0.01, 100, 60):
            other = rank.beta_binomial(8, alpha, beta)
            if abs(other[0] - 30 / 62) < 2e-3:
                assert np.sum(histogram * np.log(other)) < likelihood + 0.2  # 0.2: what 2e-3 off the constraint can buy


def test_beta_binomial_fit_without_its_constraint():
    everything, nothing = np.array([7, 0, 0, 0]), np.array([0, 1, 5, 9])
    assert rank.rank_disclosure(everything, "beta_binomial")["max_d"] == 2.0
    found = rank.rank_disclosure(nothing, "beta_binomial")
    assert found["id_rate"] == 0
    assert 0 < found["max_d"] < 2


def test_ranks_by_hand():
    scores = np.array([[0.9, 0.5, 0.1], [0.2, 0.7, 0.4], [0.3, 0.3, 0.3], [0.5, 0.5, 0.6]])
    assert_allclose(rank.rank_histogram(scores, [0, 2, 1, 0]), [1 + 1 / 3, 1 + 1 / 3 + 1 / 2, 1 / 3 + 1 / 2])


def test_references_exclude_the_input_utterance():
    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0], [0.0, 3.0]])
    speakers = np.array([7, 7, 3, 3, 5])
    scores, true_index = rank.reference_scores(x, x, speakers, is_reference=[True, False, True, False, False])
    assert_allclose(scores, [[np.sqrt(0.5), 0], [np.sqrt(0.5), 1]], atol=1e-15)  # inputs 1 and 3; speaker 5 is unknown
    assert true_index.tolist() == [1, 0]
    scores, true_index = rank.reference_scores(x, x, speakers)
    assert true_index.tolist() == [2, 2, 0, 0]  # speaker 5 is a reference, yet has no other utterance to be found by
    # In step: input 0 is the second of its speaker by value, so speaker 3 lacks its second as well, [2, 0].
    assert_allclose(scores[0], [np.sqrt(0.5), 0, 0], atol=1e-15)


def test_slope_by_hand():
    """Two values of z, sqrt(2) and -1/sqrt(2): 3 targets of 4 and 1 non-target of 8 have the higher one."""
    scores, true_index = np.tile([1.0, 0.0, 0.0], (4, 1)), [0, 0, 0, 1]
    expected = (np.log((3 / 4) / (1 / 8)) - np.log((1 / 4) / (7 / 8))) / (np.sqrt(2) + 1 / np.sqrt(2))
    assert_allclose(local.fit_slope(scores, true_index), expected, rtol=1e-7)
