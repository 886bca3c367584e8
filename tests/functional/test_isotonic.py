"""Isotonic regression and PAV log-likelihood ratios against other routes, at their edges, and at their cost."""

import math

import numpy as np
import pytest
import reference
import torch
from golden import SCORE_SETS, score_set
from scipy.optimize import isotonic_regression as scipy_isotonic_regression
from torch.testing import assert_close

from vpmetrics._engine import pav
from vpmetrics._engine.pav import blocks_of_counts, number_pav_blocks
from vpmetrics.functional import isotonic_regression, pav_llr


def draws(count, size, seed=0):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        scale = 10.0 ** torch.randint(-6, 7, (1,), generator=draw)
        yield (
            torch.randint(0, 7, (2, size), generator=draw).double() * scale,
            torch.randint(1, 5, (2, size), generator=draw).double(),
            torch.rand(2, size, generator=draw) < 0.3,
        )


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 17, 100, 333])
def test_isotonic_regression_matches_scipy_and_the_reference(size):
    for y, weights, _ in draws(40, size):
        value = isotonic_regression(y, weights).numpy()
        for row, (values, w) in enumerate(zip(y.numpy(), weights.numpy(), strict=True)):
            np.testing.assert_allclose(value[row], scipy_isotonic_regression(values, weights=w).x, rtol=1e-13)
            np.testing.assert_allclose(value[row], reference.isotonic.isotonic_regression(values, w), rtol=1e-13)


def assert_exact(y, weights):
    """Off by a rounding of the largest value at most, and in order to the last digit."""
    value = isotonic_regression(torch.from_numpy(y), torch.from_numpy(weights)).numpy()
    expected = reference.isotonic.isotonic_regression(y, weights)
    assert np.abs(value - expected).max() <= 4e-16 * np.abs(y).max()
    assert (np.diff(value) >= 0).all()


@pytest.mark.parametrize("decades", [20, 300])
def test_weights_may_lie_many_decades_apart(decades):
    draw = np.random.default_rng(0)
    for _ in range(400):
        size = draw.integers(2, 40)
        assert_exact(draw.normal(size=size), 10.0 ** draw.uniform(-decades / 2, decades / 2, size=size))


@pytest.mark.parametrize("level", [1e3, 1e9, 1e12, 1e15])
def test_values_that_differ_in_their_last_digits_stay_in_order(level):
    draw = np.random.default_rng(0)
    for _ in range(100):
        size = draw.integers(2, 200)
        y = level + draw.normal(size=size) * 10.0 ** draw.uniform(-3, 3)
        assert_exact(y, 10.0 ** draw.uniform(-2, 2, size=size))


def test_infinite_values_make_their_pooled_values_infinite():
    inf = math.inf
    for y, expected in (([inf, 1, 2], [inf] * 3), ([1, inf, 2], [1, inf, inf]), ([1, -inf, 2], [-inf, -inf, 2])):
        assert isotonic_regression(torch.tensor(y)).tolist() == expected


@pytest.mark.parametrize("size", [2, 5, 33])
def test_elements_with_zero_weight_take_the_previous_value(size):
    for y, weights, without in draws(60, size):
        value = isotonic_regression(y, torch.where(without, 0, weights))
        for row in range(2):
            with_weight = ~without[row]
            if not with_weight.any():
                assert value[row].isnan().all()
                continue
            expected = scipy_isotonic_regression(y[row][with_weight], weights=weights[row][with_weight]).x
            np.testing.assert_allclose(value[row][with_weight], expected, rtol=1e-13)
            place = (with_weight.cumsum(0) - 1).clamp(min=0)
            np.testing.assert_allclose(value[row], expected[place], rtol=1e-13)


def test_large_values_and_weights_neither_cancel_nor_overflow():
    y = torch.tensor([-1e20, 3.0, 2.0, 5.0, 4.0, 1e20], dtype=torch.float64)
    assert isotonic_regression(y).tolist() == [-1e20, 2.5, 2.5, 4.5, 4.5, 1e20]
    y = torch.tensor([1e308, 1e308, 1e308, -1e308], dtype=torch.float64)
    assert isotonic_regression(y).tolist() == pytest.approx([5e307] * 4)
    y = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)
    assert isotonic_regression(y, torch.full_like(y, 1e300)).tolist() == [2.0] * 3


def test_edges():
    assert isotonic_regression(torch.zeros(0)).shape == (0,)
    assert isotonic_regression(torch.zeros(3, 0)).shape == (3, 0)
    assert isotonic_regression(torch.tensor([7.0])).tolist() == [7.0]
    assert isotonic_regression(torch.tensor([3, 1, 2])).tolist() == [2.0, 2.0, 2.0]
    assert isotonic_regression(torch.arange(6.0)).tolist() == list(range(6))
    assert isotonic_regression(torch.tensor([[math.nan, 1.0], [2.0, 1.0]])).isnan().tolist() == [
        [True] * 2,
        [False] * 2,
    ]
    assert isotonic_regression(torch.tensor([2.0, 1.0], dtype=torch.bfloat16)).dtype == torch.float32


def test_gradient_is_that_of_the_block_means():
    y = torch.tensor([1.0, 3.0, 2.5, 0.5, 4.0, 3.9], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 2.0, 1.0, 0.5, 1.0, 3.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: isotonic_regression(x, weights), y)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (([1.0],), TypeError, "`y` to be a tensor"),
        ((torch.ones(2, dtype=torch.complex64),), TypeError, "`y` to be real"),
        ((torch.ones(2), torch.ones(3)), ValueError, r"`weights` to have shape \(2,\).*got \(3,\)"),
        ((torch.ones(2), torch.tensor([1.0, -1.0])), ValueError, "non-negative, but got -1"),
    ],
)
def test_invalid_input_raises(arguments, error, match):
    with pytest.raises(error, match=match):
        isotonic_regression(*arguments)


@pytest.mark.parametrize("name", [name for name in SCORE_SETS if "llr_pav" in score_set(name).expected])
@pytest.mark.parametrize("laplace", [False, True])
def test_golden_ratios(name, laplace):
    preds, target, expected = score_set(name)
    value = pav_llr(torch.from_numpy(preds), torch.from_numpy(target), laplace)
    assert_close(value.numpy(), expected["llr_lap" if laplace else "llr_pav"], atol=1e-9, rtol=0)


def test_ratios_keep_shape_and_share_ties():
    draw = torch.Generator().manual_seed(0)
    preds = torch.randint(0, 9, (12, 30), generator=draw).float()
    target = torch.rand(12, 30, generator=draw) < preds / 12
    value = pav_llr(preds, target)
    assert value.shape == preds.shape
    for score in range(9):
        assert value[preds == score].unique().numel() == 1
    np.testing.assert_allclose(
        value.flatten(), reference.isotonic.pav_llr(preds.flatten().numpy(), target.flatten().numpy()), atol=1e-6
    )


def test_infinite_scores_are_ordered():
    preds = torch.tensor([-math.inf, math.inf, 0.0, math.inf])
    assert pav_llr(preds, torch.tensor([0, 1, 0, 0])).tolist() == pytest.approx(
        [-math.inf, math.log(3), -math.inf, math.log(3)]
    )


def test_many_scores_match_scipy():
    draw = torch.Generator().manual_seed(0)
    preds = torch.randn(300_000, generator=draw, dtype=torch.float64)
    preds[::1000] = preds[1::1000]
    preds[5], preds[6], preds[7] = math.inf, -math.inf, 1e9
    target = torch.rand(300_000, generator=draw) < torch.sigmoid(4 * preds - 6)
    value = pav_llr(preds, target)
    expected = scipy_isotonic_regression(target.double()[preds.argsort(stable=True)].numpy()).x
    prior = math.log(target.sum() / (~target).sum())
    with np.errstate(divide="ignore"):
        expected = np.log(expected / (1 - expected)) - prior
    untied = ~torch.isin(preds, preds[::1000])
    order = preds.argsort(stable=True)
    assert_close(value[order][untied[order]], torch.from_numpy(expected)[untied[order]], atol=1e-3, rtol=1e-3)
    assert (value[::1000] == value[1::1000]).all()


@pytest.mark.parametrize("case", ["nan", "wide", "narrow"])
def test_many_scores_at_dtype_limits_keep_their_order(case):
    draw = torch.Generator().manual_seed(0)
    preds = torch.randn(70_000, generator=draw)
    target = torch.rand(70_000, generator=draw) < torch.sigmoid(preds)
    if case == "nan":
        preds[7] = math.nan
        with pytest.warns(UserWarning, match="NaN"):
            assert pav_llr(preds, target, validate_args=False).isnan().all()
        return
    moved = preds / preds.abs().max() * 3.3e38 if case == "wide" else (preds * 1000).round() * 1e-45
    same = moved if case == "wide" else (preds * 1000).round()
    order = same.double() / (3.3e38 if case == "wide" else 1)
    assert_close(pav_llr(moved, target), pav_llr(order, target).float())


@pytest.mark.parametrize("in_turn", [True, False], ids=["the rest in turn", "the rest by halves"])
@pytest.mark.parametrize(
    "steps", ["random", "smooth", "a drop behind an ascent", "none with a trial", "empty steps at the ends"]
)
def test_both_pooling_algorithms_find_the_same_solution(steps, in_turn, monkeypatch):
    if not in_turn:
        monkeypatch.setattr(pav, "_FEW", 0)
    draw = torch.Generator().manual_seed(4)
    targets, nontargets = torch.randint(0, 4, (2, 300), generator=draw).double()
    if steps == "a drop behind an ascent":  # of which every round pools one step more
        targets, nontargets = torch.arange(100.0), 100 - torch.arange(100.0)
        targets[-1], nontargets[-1] = 0, 1e4
    elif steps == "smooth":  # shares that rise and fall: at every fall a block grows to both sides
        place = torch.linspace(0, 9, 300).double()
        targets, nontargets = 1.5 + place.sin() + 0.2 * place, 1.5 - 0.5 * (2 * place).sin()
    elif steps != "random":
        empty = slice(None) if steps == "none with a trial" else [0, 1, -1]
        targets[empty] = nontargets[empty] = 0
    mass = targets + nontargets
    expected = number_pav_blocks(torch.where(mass > 0, targets / mass, 0), mass)
    assert torch.equal(blocks_of_counts(targets, nontargets), expected)
    # And beside other rows: each by itself.
    others = torch.randint(0, 4, (2, 3, len(mass)), generator=draw).to(mass)
    others[:, 2] = torch.nan
    rows = torch.cat([others[:, :2], torch.stack([targets, nontargets])[:, None], others[:, 2:]], dim=1)
    found = blocks_of_counts(*rows)
    assert torch.equal(found[:3], torch.stack([blocks_of_counts(*rows[:, row]) for row in range(3)]))
    assert torch.equal(found[2], expected)
    assert not found[3].any()  # nothing is known of it
