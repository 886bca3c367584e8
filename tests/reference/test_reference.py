"""The references against numbers found without them: exact arithmetic, published tables, values worked out by hand."""

import numpy as np
import pytest
from golden import (
    CONDITIONS,
    EMBEDDING_SETS,
    PRIOR_ENTROPY,
    PRIOR_LOG_ODDS,
    SCORE_SETS,
    TRANSFER_SETS,
    ZEBRA_TAGS,
    embedding_set,
    score_set,
    transfer_set,
    zebra_example,
)
from numpy.testing import assert_allclose

from reference import isotonic, local, rank, similarity, verification, zebra

EXACT = {"rtol": 0, "atol": 1e-9}  # what the golden numbers are good for


@pytest.mark.parametrize("name", SCORE_SETS)
def test_score_metrics(name):
    preds, target, expected = score_set(name)
    llr, laplace = isotonic.pav_llr(preds, target), isotonic.pav_llr(preds, target, laplace=True)
    disclosure = zebra.zebra_disclosure(preds, target)
    found = {
        **{key: disclosure[key] for key in ("d_ece", "l_w", "tag")},
        "n_blocks": len(np.unique(llr)),
        "l_w_no_laplace": np.max(np.abs(llr)) / np.log(10),
        "d_ece_laplace": zebra.d_ece(*zebra.split(laplace, target)),
        "cllr_laplace": verification.cllr(laplace, target),
        "min_cllr": verification.min_cllr(preds, target),
        "cllr": verification.cllr(preds, target),
        "rocch_eer": verification.equal_error_rate(preds, target),
        "d_sys_sum": verification.linkability(preds, target),
        "d_ece_actual": zebra.d_ece(*zebra.split(preds, target)),
    }
    for key, value in found.items():
        assert_allclose(value, expected[key], **EXACT, err_msg=key)


@pytest.mark.parametrize("name", SCORE_SETS)
def test_ece_profile(name):
    preds, target, expected = score_set(name)
    profile = zebra.ece_profile(preds, target, PRIOR_LOG_ODDS)
    for found, exact in zip(profile, (PRIOR_ENTROPY, expected["ece_min"], expected["ece_act"]), strict=True):
        assert_allclose(found, exact, **EXACT)


@pytest.mark.parametrize("name", [name for name in SCORE_SETS if "llr_pav" in score_set(name).expected])
def test_llr_of_every_trial(name):
    preds, target, expected = score_set(name)
    assert_allclose(isotonic.pav_llr(preds, target), expected["llr_pav"], **EXACT)
    assert_allclose(isotonic.pav_llr(preds, target, laplace=True), expected["llr_lap"], **EXACT)


def test_isotonic_regression_by_hand():
    assert_allclose(isotonic.isotonic_regression([1, 3, 2, 0, 5]), [1, 5 / 3, 5 / 3, 5 / 3, 5])
    assert_allclose(isotonic.isotonic_regression([2, 0, 1], weights=[1, 3, 1]), [0.5, 0.5, 1])


@pytest.mark.parametrize("llr", [-30.0, -2.0, -0.05, -0.04, 0.0, 1e-6, 0.0499, 0.0501, 1.0, 40.0, 800.0, np.inf])
def test_z_is_the_area_between_two_profiles(llr):
    # One target at `llr`, one non-target at 0: the area is Z(llr) / (2 ln 2).
    area = zebra.d_ece_by_integration(np.array([llr]), np.zeros(1))
    assert_allclose(zebra.z(llr) / (2 * np.log(2)), area, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["a_small", "b_gauss", "e_separated", "i_ties", "k_constant"])
@pytest.mark.parametrize("calibrated", [True, False])
def test_disclosure_is_the_area_between_two_profiles(name, calibrated):
    preds, target, expected = score_set(name)
    llr = isotonic.pav_llr(preds, target) if calibrated else preds
    area = zebra.d_ece_by_integration(*zebra.split(llr, target))
    assert_allclose(area, expected["d_ece" if calibrated else "d_ece_actual"], **EXACT)


def test_negated_scores_disclose_what_reversed_ones_hid():
    preds, target, _ = score_set("f_reversed")
    assert zebra.zebra_disclosure(preds, target)["d_ece"] == 0
    assert_allclose(zebra.zebra_disclosure(preds, target)["d_ece_reversed"], 1 / (2 * np.log(2)), **EXACT)


def test_published_tags():
    bounds = [
        (0, "0"),
        (1e-9, "A"),
        (1, "B"),
        (2, "C"),
        (4, "D"),
        (5, "E"),
        (6, "F"),
    ]  # table 1: the lower one included
    for l_w, letter in (*ZEBRA_TAGS, *bounds):
        assert "0ABCDEF"[zebra.tag(l_w)] == letter


def test_published_example():
    example = zebra_example()
    prior = zebra.ece_profile([1.0, 0.0], [1, 0], example["plo"])[0]
    assert_allclose(prior, example["ece_prior"], **EXACT)
    pi, height = 1 / (1 + np.exp(-example["plo"])), prior - example["ece_min"]
    area = np.sum(np.diff(pi) * (height[1:] + height[:-1]) / 2)
    assert_allclose(area, example["published_population"], rtol=0, atol=5e-4)  # three digits are printed


@pytest.mark.parametrize("name", TRANSFER_SETS)
def test_calibration_learnt_on_another_run(name):
    preds, target, fit_preds, fit_target, expected = transfer_set(name)
    scale, offset = zebra.linear_calibration(fit_preds, fit_target)
    assert_allclose([scale, offset], [expected["linear"]["a"], expected["linear"]["b"]], **EXACT)
    for calibration in ("linear", "isotonic"):
        found = zebra.calibration_distortion(preds, target, fit_preds, fit_target, calibration)
        assert_allclose(found, expected[calibration]["eval_d_ece"], **EXACT, err_msg=calibration)


def test_calibration_knows_no_unit():
    *_, preds, target, _ = transfer_set("t_miscal_small")
    scale, offset = zebra.linear_calibration(preds, target)
    assert_allclose(
        zebra.linear_calibration(0.9 + preds / 1000, target), [1000 * scale, offset - 900 * scale], rtol=1e-9
    )


@pytest.mark.parametrize("kind", ["geometric", "sigmoid"])
@pytest.mark.parametrize("name", EMBEDDING_SETS)
def test_similarity_matrices(name, kind):
    *embeddings, expected = embedding_set(name)
    expected = expected[kind]
    matrices = {c: similarity.similarity_matrix(*embeddings, c, kind) for c in CONDITIONS}
    for condition, matrix in matrices.items():
        assert_allclose(matrix, expected[condition], **EXACT)
        assert_allclose(similarity.diagonal_dominance(matrix), expected["d_diag"][condition], **EXACT)
    deid = similarity.de_identification(matrices["OO"], matrices["OP"])
    gain = similarity.voice_distinctiveness(matrices["OO"], matrices["PP"])
    assert_allclose(deid, expected["deid"], rtol=0, atol=1e-7)
    assert_allclose(gain, expected["gvd"], rtol=0, atol=1e-6)


def test_matrices_do_not_depend_on_the_order_of_rows():
    original, protected, speakers, _ = embedding_set("emb5_unbalanced")
    order = np.random.default_rng(0).permutation(len(speakers))
    for condition in CONDITIONS:
        matrix = similarity.similarity_matrix(original, protected, speakers, condition)
        shuffled = similarity.similarity_matrix(original[order], protected[order], speakers[order], condition)
        assert_allclose(shuffled, matrix, rtol=0, atol=1e-12)
        assert np.allclose(matrix, matrix.T) == (condition != "OP")


def test_a_lone_utterance_has_no_diagonal_cell():
    original, protected, speakers, _ = embedding_set("emb5_unbalanced")
    keep = np.arange(len(speakers)) != 0  # the first speaker is left with one utterance
    for condition in CONDITIONS:
        matrix = similarity.similarity_matrix(original[keep], protected[keep], speakers[keep], condition)
        assert np.argwhere(np.isnan(matrix)).tolist() == [[0, 0]]
        expected = abs(np.mean(np.diag(matrix)[1:]) - np.mean(matrix[~np.eye(5, dtype=bool)]))
        assert_allclose(similarity.diagonal_dominance(matrix), expected)


def test_diagonal_dominance_by_hand():
    assert similarity.diagonal_dominance(np.eye(3)) == 1
    assert similarity.diagonal_dominance(1 - np.eye(3)) == 1  # a reversed diagonal identifies as well
    assert similarity.diagonal_dominance(np.full((3, 3), 0.3)) == 0
    matrix = np.array([[0.5, 0.125], [0.25, 0.5]])
    assert similarity.diagonal_dominance(matrix, log_domain=True) == 1.5  # (3 + 2) / 2 - (1 + 1) / 2
    assert np.isnan(similarity.de_identification(np.ones((2, 2)), np.eye(2)))
    assert similarity.voice_distinctiveness(np.eye(2), np.ones((2, 2))) == -np.inf


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


def test_protection_that_changes_nothing():
    original, _, speakers, _ = embedding_set("emb6")
    relatives = similarity.embedding_relatives(original, original, speakers)
    assert_allclose([relatives["g_d_ece"], relatives["g_cllr"]], 0, atol=1e-12)
    assert_allclose([relatives["d_ece_op_oo"], relatives["cllr_op_oo"]], 0, atol=1e-12)


def test_constant_embeddings_have_no_diagonal_to_lose():
    constant, speakers = np.full((7, 3), 0.1), [0, 0, 0, 1, 1, 2, 2]
    matrices = [similarity.similarity_matrix(constant, constant, speakers, c) for c in CONDITIONS]
    assert np.isnan(similarity.de_identification(*matrices[:2]))
    assert np.isnan(list(similarity.embedding_relatives(constant, constant, speakers).values())).all()


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_alone_defines_nothing(label):
    preds, target = np.arange(12.0), np.full(12, label)
    found = [
        *zebra.zebra_disclosure(preds, target).values(),
        *isotonic.pav_llr(preds, target),
        *(zebra.calibration_distortion(preds, target, [0.0, 2.0, 1.0], [0, 0, 1], c) for c in ("linear", "isotonic")),
        verification.cllr(preds, target),
        verification.min_cllr(preds, target),
        verification.equal_error_rate(preds, target),
        verification.linkability(preds, target),
    ]
    assert np.isnan(found).all()


def with_first(count):
    """800 inputs and 40 ranks with ``count`` at rank 1 and the rest spread over the others, early ones first."""
    rest, extra = divmod(800 - count, 39)
    return np.r_[count, [rest + 1] * extra, [rest] * (39 - extra)]


@pytest.mark.parametrize("model", ["empirical", "beta_binomial"])
@pytest.mark.parametrize(
    ("count", "published"), [(453, 4.50), (555, 4.79), (102, 2.35), (99, 2.30), (61, 1.60), (37, 0.88)]
)
def test_published_maximum_disclosure(count, published, model):
    found = rank.rank_disclosure(with_first(count), model)
    assert np.floor(found["max_d"] * 100 + 1e-6) / 100 == published  # the tables truncate
    assert found["id_rate"] == count / 800


def test_published_system_whose_worst_rank_is_not_the_first():
    """T12-5 of tables 1 and 2: 43 inputs at rank 1 and 50 elsewhere; the fit has its maximum at rank 1."""
    histogram = with_first(43)
    histogram[3], histogram[30:] = 50, histogram[30:] - 3
    assert 1.32 <= rank.rank_disclosure(histogram)["max_d"] < 1.33
    assert 1.10 <= rank.rank_disclosure(histogram, "beta_binomial")["max_d"] < 1.11


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


@pytest.mark.parametrize("model", ["empirical", "beta_binomial"])
@pytest.mark.parametrize("scoring", ["cosine", "euclidean"])
def test_constant_features_disclose_nothing(scoring, model):
    # Means of 2, 5 and 8 equal rows differ by rounding, and so do their scores.
    speakers, constant = np.repeat([4, 2, 9], [3, 6, 9]), np.tile([0.1, 0.7, 0.3, 1.1], (18, 1))
    histogram = rank.rank_histogram(*rank.reference_scores(constant, constant, speakers, scoring=scoring))
    assert_allclose(histogram, 6)
    found = rank.rank_disclosure(histogram, model)
    assert_allclose([found["max_d"], found["mean_d"]], 0, atol=1e-7)  # a search finds a flat top to half its digits
    assert found["rank_spread"] == 0


def test_references_and_inputs_are_different_utterances():
    x = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0], [0.0, 3.0]])
    speakers = np.array([7, 7, 3, 3, 5])
    scores, true_index = rank.reference_scores(x, x, speakers, is_reference=[True, False, True, False, False])
    assert_allclose(scores, [[np.sqrt(0.5), 0], [np.sqrt(0.5), 1]], atol=1e-15)  # inputs 1 and 3; speaker 5 is unknown
    assert true_index.tolist() == [1, 0]
    scores, true_index = rank.reference_scores(x, x, speakers)
    assert true_index.tolist() == [2, 2, 0, 0]  # speaker 5 is a reference, yet has no other utterance to be found by
    # In step: input 0 is the second of its speaker by value, so speaker 3 lacks its second as well, [2, 0].
    assert_allclose(scores[0], [np.sqrt(0.5), 0, 0], atol=1e-15)


def test_local_disclosure_worked_example():
    row = [[0.9, 0.7, 0.4, 1.1, 1.2, 0.4]]
    lid = local.local_disclosure(row, [3], slope=1.5)[0]
    assert round(2**lid / 6, 2) == 0.31
    assert round(lid, 2) == 0.90


def test_local_disclosure_sees_what_pooled_scores_hide():
    scores = np.array([[0.9, 0.8, 0.8, 0.8], [0.7, 0.6, 0.6, 0.6], [0.4, 0.5, 0.4, 0.4], [0.2, 0.2, 0.3, 0.2]])
    true_index = np.array([0, 0, 1, 2])
    target = (np.arange(4) == true_index[:, None]).astype(int)
    assert (0.5, 0.5) in verification.roc(scores.ravel(), target.ravel())  # a threshold at 0.55 errs half the time
    assert_allclose(verification.equal_error_rate(scores.ravel(), target.ravel()), 0.375)  # on the convex hull
    found = local.local_information_disclosure(scores, true_index, slope=1.0)
    assert found["pdr"] == 1
    assert found["ndr"] == 0
    assert np.isnan(found["lid_neg"])
    # Each row standardises to one sqrt(3) and three -1/sqrt(3).
    expected = 2 - np.log2(1 + 3 * np.exp(-4 / np.sqrt(3)))
    assert_allclose([found["alid"], found["lid_pos"], found["lid_max"]], expected)


def test_a_constant_row_discloses_nothing():
    found = local.local_information_disclosure([[0.1] * 6, [3.0, 0.0, 0.0]], [2, 1], slope=2.0)
    assert found["pdr"] == 0
    assert_allclose([found["lid_max"], found["lid_neg"]], [0, found["alid"]], atol=1e-12)


def test_slope_by_hand():
    """Two values of z, sqrt(2) and -1/sqrt(2): 3 targets of 4 and 1 non-target of 8 have the higher one."""
    scores, true_index = np.tile([1.0, 0.0, 0.0], (4, 1)), [0, 0, 0, 1]
    expected = (np.log((3 / 4) / (1 / 8)) - np.log((1 / 4) / (7 / 8))) / (np.sqrt(2) + 1 / np.sqrt(2))
    assert_allclose(local.fit_slope(scores, true_index), expected, rtol=1e-7)
