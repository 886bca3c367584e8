"""Somebody among N people, and one singled out of N: all sets, chance, thin data."""

import math

import numpy as np
import pytest
import torch
from reference import population as reference
from reference.order import places_in_groups
from samples import UNDEFINED, rates, singling_out_arguments
from scipy.stats import betabinom

from vpmetrics.functional import rank_histogram, reidentification_rate, singling_out


@pytest.mark.parametrize("ties", [False, True])
def test_the_rate_is_the_mean_over_all_galleries(ties):
    draw = np.random.default_rng(1)
    scores = draw.integers(0, 4, (5, 9)).astype(float) if ties else draw.normal(size=(5, 9))
    # Rows of scores as dot products of probes with unit references.
    references = torch.eye(9, dtype=torch.float64), torch.arange(9)
    histogram = rank_histogram(torch.tensor(scores), torch.arange(5), *references, scoring="dot")
    for size, value in rates(reidentification_rate(histogram, sizes=range(1, 10))).items():
        expected = np.mean([reference.rate(row, own, size) for own, row in enumerate(scores)])
        assert value == pytest.approx(expected, abs=1e-12)


def test_rates_match_hand_values():
    # Rank 3 of 5: of 2 people, the other is one of the two better ones of four in half of all
    # galleries.
    values = reidentification_rate(torch.tensor([0.0, 0.0, 10.0, 0.0, 0.0]), sizes=(1, 2, 3, 4))
    assert rates(values) == pytest.approx({1: 1, 2: 1 / 2, 3: 1 / 6, 4: 0})
    assert rates(values, "chance_") == pytest.approx({1: 1, 2: 1 / 2, 3: 1 / 3, 4: 1 / 4})
    assert values["gallery"] == 5
    # Every rank is the first.
    assert rates(reidentification_rate(torch.tensor([8.0, 0.0, 0.0]), (2, 3, 1000))) == {
        2: 1.0,
        3: 1.0,
        1000: 1.0,
    }
    # The likeliest alpha of so few is beyond all bounds; at most 1, the rate is beta / (beta + N -
    # 1), beta 9 here.
    few = rates(reidentification_rate(torch.tensor([6.0, 2.0, 0.0, 0.0]), sizes=(4, 100, 4000)))
    assert few[100] == pytest.approx(9 / 108, rel=1e-5)
    assert few[4000] >= few[4] / 1000


@pytest.mark.parametrize("references", [40, 20_000])
def test_uniform_ranks_give_the_chance_level_at_every_size(references):
    sizes = sorted(
        {1, 2, 7, 40, references // 2, references - 1, references, 3 * references, 10**9}
    )
    histogram = torch.full((references,), 3.0, dtype=torch.float64)
    values = reidentification_rate(histogram, sizes)
    for size in sizes:
        # What a fit leaves is left, beyond.
        assert values[f"rate_{size}"].item() * size == pytest.approx(
            1, abs=1e-9 if size <= references else 1e-4
        )


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 2.0), (0.8, 1.2), (0.05, 0.7)])
def test_extrapolated_rate_matches_the_beta_binomial_model(alpha, beta):
    histogram = torch.tensor(betabinom(199, alpha, beta).pmf(np.arange(200)))
    sizes = (2, 50, 200, 201, 1000, 100_000)
    for size, value in rates(reidentification_rate(histogram, sizes)).items():
        assert value == pytest.approx(reference.rate_beyond(alpha, beta, size), rel=2e-5), size


@pytest.mark.parametrize(
    ("histogram", "sizes", "match"),
    [
        *((each, (2, 100), UNDEFINED) for each in ([], [4.0], [0.0] * 3, [1.0, math.nan])),
        ([3.0, 1.0], (3,), "are two"),
    ],
)
def test_too_few_ranks_give_nan_and_one_warning(histogram, sizes, match):
    with pytest.warns(UserWarning, match=match) as warned:
        values = reidentification_rate(torch.tensor(histogram), sizes)
    assert all(values[f"rate_{size}"].isnan() for size in sizes)
    assert len(warned) == 1


def test_rate_passes_gradcheck():
    histogram = torch.tensor(
        [9.0, 5.0, 3.0, 2.0, 2.0, 1.0], dtype=torch.float64, requires_grad=True
    )

    def function(h):
        rates = reidentification_rate(h, (3, 6, 20))
        return tuple(rates[f"rate_{n}"] for n in (3, 6, 20))

    assert torch.autograd.gradcheck(function, histogram, rtol=1e-3, atol=1e-6)


def isolated(seed, number=7, counts=(1, 3, 2, 2, 1, 3, 2), width=3):
    """References, conversations with the one that is tested, and the scores.

    As the reference wants them.
    """
    draw = np.random.default_rng(seed)
    references = draw.normal(size=(number, width))
    voices = [0.7 * references[i] + draw.normal(size=(counts[i] + 1, width)) for i in range(number)]
    scores = [[references[i] @ voice.T for voice in voices] for i in range(number)]
    return references, voices, scores


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_singling_out_matches_the_mean_over_all_galleries(seed):
    references, voices, scores = isolated(seed)
    found = singling_out(
        **singling_out_arguments(references, voices), sizes=(2, 3, 5, 7), scoring="dot", draws=1000
    )
    for size in (2, 3, 5, 7):
        isolations = [
            reference.singling_out(
                np.array([row[0] for row in rows]), [row[1:] for row in rows], own, size
            )
            for own, rows in enumerate(scores)
        ]
        error = found[f"singling_out_{size}_error"].item()
        assert error <= 2 * 0.5 / math.sqrt(7 * 1000)
        assert found[f"singling_out_{size}"].item() == pytest.approx(
            np.mean(isolations), abs=4 * error + 1e-12
        )
        assert (error == 0) == (size == len(scores))


@pytest.mark.parametrize(("calibration", "expected"), [(1, 0.265), (2, 0.302), (9, 0.349)])
def test_random_embeddings_give_chance_level_singling_out(calibration, expected):
    # lambda exp(-lambda) with lambda ~ Gamma(M + 1/2) / M: e^-1 less what an imprecise threshold
    # costs.
    m = calibration
    assert expected == pytest.approx((1 + 0.5 / m) * (m / (m + 1)) ** (m + 1.5), abs=5e-4)
    draw = torch.Generator().manual_seed(3)
    names, each = torch.arange(400), calibration + 1
    references, tested = (torch.randn(rows, 64, generator=draw) for rows in (400, 400 * each))
    found = singling_out(references, names, tested, names.repeat_interleave(each), sizes=(50,))
    # The formula is for large N: the mean over many draws is .278 for 50 people and one calibrating
    # conversation.
    assert found["singling_out_50"].item() == pytest.approx(expected, abs=0.025)


def test_singling_out_is_1_for_separated_and_0_for_constant_embeddings():
    names, voices = (
        torch.arange(400),
        torch.randn(400, 64, generator=torch.Generator().manual_seed(0)),
    )
    for voice, expected in ((voices, 1.0), (torch.ones(400, 64), 0.0)):
        tested = voice.repeat_interleave(3, 0), names.repeat_interleave(3)
        found = singling_out(voices, names, *tested, sizes=(50, 400))
        assert rates(found, "singling_out_") == {50: expected, 400: expected}


def test_singling_out_averages_over_every_tested_conversation():
    references, voices, _ = isolated(6, counts=(1,) * 7)
    given = singling_out_arguments(references, voices)
    del given["is_tested"]
    places = torch.from_numpy(places_in_groups(given["speakers"], given["conversations"]))
    turns = [
        singling_out(**given, is_tested=places == turn, sizes=(7,))["singling_out_7"]
        for turn in (0, 1)
    ]
    assert turns[0] != turns[1]
    assert singling_out(**given, sizes=(7,))["singling_out_7"] == sum(turns) / 2


def test_singling_out_is_independent_of_block_size(monkeypatch):
    references, voices, _ = isolated(0, number=40, counts=(5,) * 40)
    given = singling_out_arguments(references, voices)
    expected = singling_out(**given, sizes=(10, 40), draws=50)
    monkeypatch.setattr("vpmetrics._identification.singling_out.num_rows_at_once", lambda *_: 3)
    assert singling_out(**given, sizes=(10, 40), draws=50) == expected


@pytest.mark.parametrize(("sizes", "has_nan"), [((7,), True), ((7, 8, 100), False), ((7, 8), True)])
def test_nan_and_sizes_above_the_gallery_give_nan_with_one_warning(sizes, has_nan):
    references, voices, _ = isolated(0)
    references[2, 1] = np.nan if has_nan else references[2, 1]
    with pytest.warns(UserWarning, match=UNDEFINED) as warned:
        found = singling_out(**singling_out_arguments(references, voices), sizes=sizes)
    assert len(warned) == 1
    assert found.pop("singling_out_7").isnan() == has_nan
    assert found.pop("singling_out_7_error").isnan() == has_nan
    assert all(value.isnan() for value in found.values())


def test_invalid_is_tested_raises():
    given = singling_out_arguments(*isolated(0)[:2])
    with pytest.raises(ValueError, match="mark one conversation of every speaker"):
        singling_out(**(given | {"is_tested": torch.zeros_like(given["is_tested"])}), sizes=(3,))
    with pytest.raises(TypeError, match="to be boolean"):
        singling_out(**(given | {"is_tested": given["speakers"]}), sizes=(3,))
