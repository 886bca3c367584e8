"""Rank disclosure: the paper's tables, hand values, protocols, ties, and the beta-binomial fit."""

import math

import pytest
import torch
from reference import rank as reference
from samples import UNDEFINED, utterances
from scipy.stats import betabinom
from torch.testing import assert_close

from vpmetrics._identification import references
from vpmetrics.functional import (
    codebook_histogram,
    combine_disclosures,
    f0_histogram,
    fit_beta_binomial,
    rank_disclosure,
    rank_histogram,
)


def counts_at(first, third=None):
    """800 inputs on 40 ranks.

    So many at rank 1, perhaps so many at rank 3, and the others spread evenly.
    """
    rest = (800 - first - (third or 0)) / (39 if third is None else 38)
    return torch.tensor(
        [first, rest, rest if third is None else third, *[rest] * 37], dtype=torch.float64
    )


@pytest.mark.parametrize(
    ("first", "max_d", "id_rate"),
    [
        (453, 4.50, 56.62),
        (555, 4.79, 69.37),
        (102, 2.35, 12.75),
        (99, 2.30, 12.37),
        (61, 1.60, 7.62),
        (37, 0.88, 4.62),
    ],
)
def test_disclosure_matches_tables_1_and_2(first, max_d, id_rate):
    for model in ("empirical", "beta_binomial"):
        values = rank_disclosure(counts_at(first), model=model)
        assert math.floor(100 * values["max_d"]) / 100 == max_d  # the paper truncates
        assert math.floor(1e4 * values["id_rate"] + 1e-9) / 100 == id_rate


def test_beta_binomial_fit_lowers_max_d_of_an_outlier_rank():
    histogram = counts_at(43, third=50)  # T12-5
    assert round(rank_disclosure(histogram)["max_d"].item(), 2) == 1.32
    assert round(rank_disclosure(histogram, model="beta_binomial")["max_d"].item(), 2) == 1.10


def test_hand_values():
    values = rank_disclosure(torch.tensor([4, 2, 1, 1]))
    assert_close(values["max_d"], torch.tensor(1.0))
    assert_close(values["mean_d"], torch.tensor(0.25))  # 1/2 * 1 + 1/4 * 0 - 1/4 * 1
    assert_close(values["id_rate"], torch.tensor(0.5))
    assert_close(values["rank_spread"], torch.tensor(0.25))  # 1/4 is not above chance


@pytest.mark.parametrize("scoring", ["cosine", "euclidean"])
@pytest.mark.parametrize("side", ["same", "other"])
@pytest.mark.parametrize("chosen", [False, True])
def test_histogram_agrees_with_the_reference(scoring, side, chosen):
    original, protected, speakers = utterances()
    inputs = original if side == "same" else protected
    known = torch.rand(90, generator=torch.Generator().manual_seed(1)) < 0.4 if chosen else None
    given = inputs, speakers, original, None
    if chosen:
        given = inputs[~known], speakers[~known], original[known], speakers[known]
    arrays = original.numpy(), inputs.numpy(), speakers.numpy(), known.numpy() if chosen else None
    expected = reference.rank_histogram(*reference.reference_scores(*arrays, scoring))
    assert_close(rank_histogram(*given, scoring=scoring), torch.from_numpy(expected))


@pytest.mark.parametrize("scoring", ["cosine", "euclidean", "dot", lambda a, b: (a @ b.T).tanh()])
@pytest.mark.parametrize("references", [None, 82])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_constant_features_disclose_nothing(scoring, references, dtype):
    # A product of matrices gives the last of equal columns other last digits, which must not count.
    voice = torch.randn(1, 193, generator=torch.Generator().manual_seed(0)).to(dtype)
    given = (
        () if references is None else (voice.repeat(references, 1), torch.arange(references) % 41)
    )
    histogram = rank_histogram(
        voice.repeat(300, 1), torch.arange(300) % 41, *given, scoring=scoring
    )
    assert_close(histogram, torch.full_like(histogram, 300 / 41))
    assert len(histogram.unique()) == 1
    for model in ("empirical", "beta_binomial"):
        values = rank_disclosure(histogram, model=model)
        assert max(abs(values["max_d"]), values["mean_d"]) < 1e-12
        assert values["mean_d"] >= 0 == values["rank_spread"]
        assert_close(values["id_rate"].item(), 1 / 41, atol=1e-7, rtol=0)


@pytest.mark.parametrize("scoring", ["cosine", "euclidean"])
def test_separated_speakers_disclose_everything(scoring):
    histogram = rank_histogram(
        torch.eye(16).repeat_interleave(3, 0), torch.arange(48) // 3, scoring=scoring
    )
    for model in ("empirical", "beta_binomial"):
        values = rank_disclosure(histogram, model=model)
        assert values == {"max_d": 4, "mean_d": 4, "id_rate": 1, "rank_spread": 1 / 16}


def test_ties_share_the_ranks_they_cover():
    references, names = torch.eye(4), torch.arange(4)
    # As like speaker 1 as speaker 2, and less like 0 and 3, which tie in turn.
    inputs = torch.tensor([[0.0, 1.0, 1.0, 0.0]])
    assert rank_histogram(inputs, torch.tensor([1]), references, names).tolist() == [0.5, 0.5, 0, 0]
    assert rank_histogram(inputs, torch.tensor([3]), references, names).tolist() == [0, 0, 0.5, 0.5]


def test_every_centroid_excludes_the_same_number_of_utterances():
    # Speaker 0 says two things that have nothing in common: left out of the mean, each is nearer to
    # speaker 1.
    inputs, speakers = (
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.6], [0.6, 0.6]]),
        torch.tensor([0, 0, 1, 1]),
    )
    # To the utterances of speaker 1 the one thing speaker 0 has left is no match either.
    assert rank_histogram(inputs, speakers).tolist() == [2, 2]
    # Not left out, the mean of speaker 0 points where speaker 1 does.
    assert rank_histogram(inputs, speakers, inputs, speakers).tolist() == [2, 2]
    # Without a reference, an input is not ranked; 5 has none, and 9 is but a reference.
    assert (
        rank_histogram(
            torch.eye(3), torch.tensor([0, 1, 5]), torch.eye(3)[:2], torch.tensor([0, 1])
        ).sum()
        == 2
    )
    assert rank_histogram(torch.eye(3)[[0, 0, 1]], torch.tensor([4, 4, 9])).tolist() == [2, 0]


@pytest.mark.parametrize("scoring", ["cosine", "euclidean"])
def test_histogram_is_independent_of_block_size_row_order_and_labels(monkeypatch, scoring):
    original, protected, speakers = utterances(rows=200, dtype=torch.float32)
    original[::7] = original[0]  # ties among inputs and references
    whole = rank_histogram(protected, speakers, original, scoring=scoring)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(2))
    shuffled = rank_histogram(
        protected[order], 2 - 17 * speakers[order], original[order], scoring=scoring
    )
    assert torch.equal(whole, shuffled)
    for rows in (1, 3, 64):
        monkeypatch.setattr(references, "num_rows_at_once", lambda *_, rows=rows: rows)
        assert torch.equal(whole, rank_histogram(protected, speakers, original, scoring=scoring))


@pytest.mark.parametrize("bandwidth", [None, 0.1])
def test_nan_scores_give_a_nan_histogram(bandwidth):
    rows = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))

    def without_eps(a, b):
        return (a / a.norm(dim=1, keepdim=True)) @ (b / b.norm(dim=1, keepdim=True)).T

    missing, zero = (rows.index_fill(0, torch.tensor([5]), value) for value in (torch.nan, 0))
    large = 1e160 * rows.double()  # products overflow, on both sides of 0 or on one
    for wrong, scoring in (
        (missing, "cosine"),
        (zero, without_eps),
        (large, "dot"),
        (large.abs(), "dot"),
    ):
        assert (
            rank_histogram(wrong, torch.arange(24) % 6, scoring=scoring, bandwidth=bandwidth)
            .isnan()
            .all()
        )
    assert (
        rank_histogram(1e20 * rows, torch.arange(24) % 6, scoring="dot", bandwidth=bandwidth)
        .isfinite()
        .all()
    )


def test_a_zero_row_ties_with_every_reference_in_the_surrogate():
    rows = torch.randn(24, 8, generator=torch.Generator().manual_seed(1)).index_fill(
        0, torch.tensor([0]), 0
    )
    rows.requires_grad_()
    histogram = rank_histogram(rows, torch.arange(24) % 6, scoring="dot", bandwidth=0.1)
    assert_close(histogram.sum().item(), 24.0)
    rank_disclosure(histogram)["mean_d"].backward()
    assert rows.grad.isfinite().all()
    # Of six tied references the own one stands in the middle, between ranks 3 and 4.
    middle = rank_histogram(
        rows[:1], torch.tensor([0]), rows, torch.arange(24) % 6, scoring="dot", bandwidth=0.1
    )
    assert_close(middle, torch.tensor([0.0, 0.0, 0.5, 0.5, 0.0, 0.0]))


@pytest.mark.parametrize("ranks", [2, 3, 10, 40, 100])
@pytest.mark.parametrize(
    ("alpha", "beta"), [(1, 1), (0.5, 2), (0.1, 3), (2, 5), (5, 0.7), (60, 900)]
)
def test_fit_agrees_with_the_reference(ranks, alpha, beta):
    draws = betabinom.rvs(ranks - 1, alpha, beta, size=500, random_state=ranks)
    histogram = torch.bincount(torch.from_numpy(draws), minlength=ranks).double()
    fit = fit_beta_binomial(histogram)
    expected = torch.from_numpy(reference.fit_beta_binomial(histogram.numpy()))
    # Likelihoods are compared, too, because the reference stops a little before the top.
    assert_close(fit.probabilities, expected, atol=1e-5, rtol=0)
    assert (histogram * (fit.probabilities / expected).log()).nan_to_num().sum() > -1e-6
    if histogram[0] > 0:
        assert_close(fit.probabilities[0], histogram[0] / 500, atol=1e-12, rtol=0)
    if 1e-3 < fit.alpha < 1e3:
        again = betabinom.pmf(range(ranks), ranks - 1, fit.alpha.item(), fit.beta.item())
        assert_close(fit.probabilities, torch.from_numpy(again), atol=1e-9, rtol=0)


def test_batched_fit_equals_separate_fits():
    histograms = torch.tensor(
        [[5.0, 0, 0], [0, 0, 0], [0, 0, 4], [3, 2, 1], [1, 1, 1], [0, 3, 4]], dtype=torch.float64
    )
    found = fit_beta_binomial(histograms).probabilities
    alone = torch.stack([fit_beta_binomial(histogram).probabilities for histogram in histograms])
    assert_close(alone, found, equal_nan=True)
    expected = torch.tensor(
        [[1, 0, 0], [torch.nan] * 3, [0, 0, 1], [1 / 3] * 3], dtype=torch.float64
    )
    assert_close(found[[0, 1, 2, 4]], expected, equal_nan=True)
    assert fit_beta_binomial(torch.tensor([3.0, -1, 1])).probabilities.isnan().all()
    with pytest.warns(UserWarning, match=UNDEFINED):
        max_d = rank_disclosure(histograms, model="beta_binomial")["max_d"]
    assert max_d.isnan().tolist() == [False, True, False, False, False, False]


@pytest.mark.parametrize(
    "histogram", [[40.0, 20, 10, 10, 3, 1], [3.0, 9, 20, 14, 6, 2, 1], [0.2, 0.5, 0.3], [3.0, 1]]
)
def test_gradient_of_the_fit(histogram):
    counts = torch.tensor(histogram, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: fit_beta_binomial(h)[0], counts)
    assert torch.autograd.gradcheck(
        lambda h: rank_disclosure(h, model="beta_binomial")["mean_d"], counts
    )
    assert torch.autograd.gradcheck(lambda h: rank_disclosure(h)["mean_d"], counts)
    some = torch.tensor(histogram[1:], dtype=torch.float64, requires_grad=True)  # nobody at rank 1
    assert torch.autograd.gradcheck(
        lambda h: fit_beta_binomial(torch.cat([h.new_zeros(1), h]))[0], some
    )


@pytest.mark.parametrize("ranks", [2, 3, 4, 40])
def test_gradients_of_every_histogram_are_finite(ranks):
    draw = torch.Generator().manual_seed(ranks)
    counts = torch.poisson(
        torch.rand(60, ranks, generator=draw, dtype=torch.float64) ** 4 * 9, generator=draw
    )
    counts = torch.cat(
        [counts[counts.sum(1) > 0], torch.ones(1, ranks).double(), torch.eye(ranks).double()]
    )
    counts.requires_grad_()
    values = rank_disclosure(counts, model="beta_binomial")
    for name in ("max_d", "mean_d", "id_rate"):
        (gradient,) = torch.autograd.grad(values[name].sum(), counts, retain_graph=True)
        assert gradient.isfinite().all()


def test_f0_histogram_has_the_papers_bins_and_drops_unvoiced_frames():
    assert f0_histogram(torch.tensor([100.0])).shape == (107,)
    # the frequencies of a tracker's whole lags fall into the bins of these lags
    for rate in (8000, 16_000):
        lags = torch.arange(math.ceil(rate / 450), rate // 65 + 1)
        for dtype in (torch.float32, torch.float64):
            histogram = f0_histogram((rate / lags).to(dtype).unsqueeze(1))
            assert histogram.dtype == dtype
            assert (histogram.argmax(1) == lags * 8000 // rate - 17).all()
    ends = f0_histogram(torch.tensor([[65.0, 64.9], [450.0, 450.1]]))
    assert ends[0, 106] == ends[1, 0] == 1
    spoken, silent = f0_histogram(
        torch.tensor([[100.0, 0.0, torch.nan, 200.0], [0.0, 0.0, torch.nan, -1.0]])
    )
    assert spoken[63] == spoken[23] == 0.5
    assert silent.isnan().all()


def test_codebook_histogram_splits_speech_into_equal_parts():
    codes, scattered = torch.arange(40) // 2, torch.full((2, 100), -1)
    scattered[:, 3:83:2] = codes
    assert torch.equal(codebook_histogram(codes, size=20), torch.eye(20))
    assert torch.equal(codebook_histogram(scattered, size=20), torch.eye(20).expand(2, -1, -1))
    assert_close(
        codebook_histogram(torch.tensor([0, 1, 1]), 2, segments=1), torch.tensor([[1 / 3, 2 / 3]])
    )
    assert codebook_histogram(torch.tensor([0, 1, 1]), 2, segments=5).isnan().any()


def test_disclosures_of_independent_features_add_up():
    first, second = torch.tensor([4.0, 2, 1, 1]), torch.tensor([3.0, 2, 2, 1])
    joint = torch.outer(first, second).flatten() / 64  # of a pair of independent ranks
    bits = (torch.outer(first / 8 * 4, second / 8 * 4)).log2().flatten()
    total = combine_disclosures([rank_disclosure(first), rank_disclosure(second)])
    assert_close(total["mean_d"], (joint * bits).sum())
    assert_close(total["max_d"], bits.max())
    certain = rank_disclosure(torch.tensor([5.0, 0, 0, 0]))
    assert combine_disclosures([certain, certain], speakers=4) == {"max_d": 2, "mean_d": 2}
