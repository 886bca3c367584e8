"""Somebody among N people: every gallery gone through, the peer's exact estimator, ranks that follow a model."""

from __future__ import annotations

import math

import legal_eval
import numpy as np
import pytest
import torch
from crowds import UNDEFINED, demo_corpus, people, rates
from reference import crowd as reference
from scipy.stats import betabinom

from vpmetrics.functional import rank_histogram, reidentification_rate


@pytest.mark.parametrize("ties", [False, True])
def test_the_rate_is_the_mean_over_all_galleries(ties):
    draw = np.random.default_rng(1)
    scores = draw.integers(0, 4, (5, 9)).astype(float) if ties else draw.normal(size=(5, 9))
    # Rows of scores as dot products of probes with unit references.
    histogram = rank_histogram(
        torch.tensor(scores), torch.arange(5), torch.eye(9, dtype=torch.float64), torch.arange(9), scoring="dot"
    )
    found = rates(reidentification_rate(histogram, sizes=range(1, 10)))
    for size, value in found.items():
        expected = np.mean([reference.rate(row, own, size) for own, row in enumerate(scores)])
        assert value == pytest.approx(expected, abs=1e-12)


def test_a_rank_by_hand():
    # Rank 3 of 5: of 2 people, the other is one of the two better ones of four in half of all galleries.
    values = reidentification_rate(torch.tensor([0.0, 0.0, 10.0, 0.0, 0.0]), sizes=(1, 2, 3, 4))
    assert rates(values) == pytest.approx({1: 1, 2: 1 / 2, 3: 1 / 6, 4: 0})
    assert rates(values, "chance_") == pytest.approx({1: 1, 2: 1 / 2, 3: 1 / 3, 4: 1 / 4})
    assert values["gallery"] == 5


@pytest.mark.parametrize("references", [40, 20_000])
def test_ranks_that_say_nothing_are_found_by_chance_at_every_size(references):
    sizes = sorted({1, 2, 7, 40, references // 2, references - 1, references, 3 * references, 10**9})
    histogram = torch.full((references,), 3.0, dtype=torch.float64)
    values = reidentification_rate(histogram, sizes)
    for size in sizes:
        # What a fit leaves is left, beyond.
        assert values[f"rate_{size}"].item() * size == pytest.approx(1, abs=1e-9 if size <= references else 1e-4)


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 2.0), (0.8, 1.2), (0.05, 0.7)])
def test_beyond_the_references_ranks_that_follow_the_model_are_found_as_it_says(alpha, beta):
    histogram = torch.tensor(betabinom(199, alpha, beta).pmf(np.arange(200)))
    sizes = (2, 50, 200, 201, 1000, 100_000)
    for size, value in rates(reidentification_rate(histogram, sizes)).items():
        assert value == pytest.approx(reference.rate_beyond(alpha, beta, size), rel=2e-5), size


def test_the_curve_has_no_step_where_it_is_extrapolated_and_falls_no_faster_than_chance():
    original, protected, speakers = people(number=60, noise=1.5)
    histogram = rank_histogram(protected, speakers, original, speakers)
    sizes = range(40, 80)
    values = torch.stack([reidentification_rate(histogram, sizes)[f"rate_{size}"] for size in sizes])
    assert (values.diff() < 0).all()
    counted, extrapolated = values.diff()[19:21]
    assert 0.5 < extrapolated / counted < 2
    # The likeliest alpha of so few is beyond all bounds; at most 1, the rate is beta / (beta + N - 1), beta 9 here.
    few = reidentification_rate(torch.tensor([6.0, 2.0, 0.0, 0.0]), sizes=(4, 100, 4000))
    assert few["rate_100"].item() == pytest.approx(9 / 108, rel=1e-5)
    assert few["rate_4000"] >= few["rate_4"] / 1000


def test_extrapolated_voices_are_found_as_often_as_counted_ones_or_somewhat_more():
    draw = torch.Generator().manual_seed(5)
    voices = torch.randn(4000, 64, generator=draw)
    probes, references = (voices + 1.5 * torch.randn(voices.shape, generator=draw) for _ in range(2))
    everybody = torch.arange(4000)
    truth = reidentification_rate(rank_histogram(probes, everybody, references, everybody), (1000, 4000))
    few = everybody[:400]
    guess = reidentification_rate(rank_histogram(probes[few], few, references[few], few), (1000, 4000))
    assert truth["gallery"] == 4000
    assert guess["gallery"] == 400
    for name in ("rate_1000", "rate_4000"):
        assert 0.8 * truth[name] < guess[name] < 1.6 * truth[name]


def test_everybody_known_stays_known():
    values = reidentification_rate(torch.tensor([8.0, 0.0, 0.0]), sizes=(2, 3, 1000))
    assert rates(values) == {2: 1.0, 3: 1.0, 1000: 1.0}


@pytest.mark.parametrize("histogram", [[], [4.0], [0.0, 0.0, 0.0], [1.0, math.nan]])
def test_no_ranks_give_nan_and_one_warning(histogram):
    with pytest.warns(UserWarning, match=UNDEFINED) as warned:
        values = reidentification_rate(torch.tensor(histogram), sizes=(2, 100))
    assert all(value.isnan() for value in values.values())
    assert len(warned) == 1


def test_two_references_are_too_few_to_go_beyond():
    with pytest.warns(UserWarning, match="there are two"):
        values = reidentification_rate(torch.tensor([3.0, 1.0]), sizes=(2, 3))
    assert values["rate_2"] == 0.75
    assert values["rate_3"].isnan()


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        ((), ValueError),
        ((0,), ValueError),
        ((2, 2), ValueError),
        (5, TypeError),
        ((2.0,), TypeError),
        ("20", TypeError),
    ],
)
def test_odd_sizes_are_refused(sizes, error):
    with pytest.raises(error, match="Expected `sizes`"):
        reidentification_rate(torch.ones(4), sizes)


def test_the_rate_has_the_gradient_of_its_differences():
    histogram = torch.tensor([9.0, 5.0, 3.0, 2.0, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    function = lambda h: torch.stack([reidentification_rate(h, (3, 6, 20))[f"rate_{n}"] for n in (3, 6, 20)])  # noqa: E731
    assert torch.autograd.gradcheck(function, histogram, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("length", [1, 3])
def test_the_rate_is_the_exact_linkability_of_the_peer(length):
    enrolled, tested, embeddings = demo_corpus(number=300)
    models = legal_eval.build_speaker_embeddings(enrolled, embeddings)
    probes, _ = legal_eval.build_test_embeddings(tested, embeddings, length, rng=np.random.default_rng(0))
    matrix = legal_eval.cosine_score_matrix(models, probes)
    names = {speaker: number for number, speaker in enumerate(models)}
    sizes = (1, 2, 20, 100, 299, 300)
    histogram = rank_histogram(
        torch.tensor(np.array(list(probes.values()))),
        torch.tensor([names[speaker] for speaker in probes]),
        torch.tensor(np.array(list(models.values()))),
        torch.arange(300),
    )
    ours = rates(reidentification_rate(histogram, sizes))
    for size in sizes:
        assert ours[size] == pytest.approx(legal_eval.linkability(matrix, size, estimator="exact")[0], abs=1e-9)
        drawn = legal_eval.linkability(matrix, size, n_runs=200)
        assert ours[size] == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / math.sqrt(200) + 1e-9)
