"""Isotonic regression and PAV log-likelihood ratios against other implementations.

And at their edges.
"""

import math

import numpy as np
import pytest
import reference
import scipy.optimize
import torch
from golden import SCORE_SETS, score_set
from operations import as_on_a_gpu
from torch.testing import assert_close

from vpmetrics._scores import pav
from vpmetrics._scores.pav import number_pools, pools_of_counts
from vpmetrics.functional import isotonic_regression, pav_llr

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 17, 33, 100, 333])
def test_matches_scipy_and_the_reference(size):
    draw = np.random.default_rng(0)
    for _ in range(40):
        y = draw.integers(0, 7, (3, size)) * 10.0 ** draw.integers(-6, 7)
        weights = draw.integers(1, 5, (3, size)).astype(float)
        weights[1] *= draw.random(size) < 0.7  # in the second row some have no weight
        value = isotonic_regression(torch.from_numpy(y), torch.from_numpy(weights)).numpy()
        for row, values, w in zip(value, y, weights, strict=True):
            if not w.any():
                assert np.isnan(row).all()
                continue
            place = (np.cumsum(w > 0) - 1).clip(min=0)  # without a weight, the previous value
            values, w = values[w > 0], w[w > 0]
            np.testing.assert_allclose(
                row, scipy.optimize.isotonic_regression(values, weights=w).x[place], rtol=1e-13
            )
            np.testing.assert_allclose(
                row, reference.isotonic.isotonic_regression(values, w)[place], rtol=1e-13
            )


@pytest.mark.parametrize(
    ("level", "values", "decades"),
    [(0, 0, 20), (0, 0, 300), *((level, 6, 4) for level in (1e3, 1e9, 1e12, 1e15))],
)
def test_last_digits_are_right_whatever_the_values_and_weights(level, values, decades):
    draw = np.random.default_rng(0)
    for _ in range(200):
        size = draw.integers(2, 40 if level == 0 else 200)
        y = level + draw.normal(size=size) * 10.0 ** draw.uniform(-values / 2, values / 2)
        weights = 10.0 ** draw.uniform(-decades / 2, decades / 2, size=size)
        found = isotonic_regression(torch.from_numpy(y), torch.from_numpy(weights)).numpy()
        # Off by a rounding of the largest value at most, and in order to the last digit.
        expected = reference.isotonic.isotonic_regression(y, weights)
        assert np.abs(found - expected).max() <= 4e-16 * np.abs(y).max()
        assert (np.diff(found) >= 0).all()


@pytest.mark.parametrize(
    ("y", "weight", "expected"),
    [
        ([], 1, []),
        ([7], 1, [7]),
        ([3, 1, 2], 1e300, [2, 2, 2]),
        ([0, 1, 2, 3], 1, [0, 1, 2, 3]),
        ([INF, 1, 2], 1, [INF] * 3),
        ([1, INF, 2], 1, [1, INF, INF]),
        ([1, -INF, 2], 1, [-INF, -INF, 2]),
        ([NAN, 1], 1, [NAN, NAN]),
        ([-1e20, 3, 2, 5, 4, 1e20], 1, [-1e20, 2.5, 2.5, 4.5, 4.5, 1e20]),  # no cancellation
        ([1e308, 1e308, 1e308, -1e308], 1, [5e307] * 4),  # no overflow
    ],
)
def test_isotonic_regression_by_hand(y, weight, expected):
    y = torch.tensor(y, dtype=torch.float64)
    assert isotonic_regression(y, torch.full_like(y, weight)).tolist() == pytest.approx(
        expected, nan_ok=True
    )
    assert isotonic_regression(y).tolist() == pytest.approx(expected, nan_ok=True)


def test_shape_and_dtype():
    assert isotonic_regression(torch.zeros(3, 0)).shape == (3, 0)
    assert isotonic_regression(torch.tensor([3, 1, 2])).tolist() == [2.0, 2.0, 2.0]
    rows = torch.tensor([[NAN, 1.0], [2.0, 1.0]], dtype=torch.bfloat16)
    assert isotonic_regression(rows).dtype == torch.float32
    assert isotonic_regression(rows).isnan().tolist() == [[True] * 2, [False] * 2]


def test_gradient_is_that_of_the_block_means():
    y = torch.tensor([1.0, 3.0, 2.5, 0.5, 4.0, 3.9], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 2.0, 1.0, 0.5, 1.0, 3.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: isotonic_regression(x, weights), y)


@pytest.mark.parametrize(
    "name", [name for name in SCORE_SETS if "llr_pav" in score_set(name).expected]
)
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
    expected = reference.isotonic.pav_llr(preds.flatten().numpy(), target.flatten().numpy())
    assert all(value[preds == score].unique().numel() == 1 for score in range(9))
    np.testing.assert_allclose(value, expected.reshape(12, 30), atol=1e-6)
    value = pav_llr(torch.tensor([-INF, INF, 0.0, INF]), torch.tensor([0, 1, 0, 0]))
    assert value.tolist() == pytest.approx([-INF, math.log(3), -INF, math.log(3)])


def test_many_scores_match_scipy():
    draw = torch.Generator().manual_seed(0)
    preds = torch.randn(300_000, generator=draw, dtype=torch.float64)
    preds[::1000] = preds[1::1000]
    preds[5], preds[6], preds[7] = INF, -INF, 1e9
    target = torch.rand(300_000, generator=draw) < torch.sigmoid(4 * preds - 6)
    value, order = pav_llr(preds, target), preds.argsort(stable=True)
    share = torch.from_numpy(scipy.optimize.isotonic_regression(target.double()[order].numpy()).x)
    untied = ~torch.isin(preds, preds[::1000])[order]
    expected = share.logit() - (target.sum() / (~target).sum()).log()
    assert_close(value[order][untied], expected[untied], atol=1e-3, rtol=1e-3)
    assert (value[::1000] == value[1::1000]).all()


@pytest.mark.parametrize("case", ["nan", "wide", "narrow"])
def test_many_scores_at_dtype_limits_keep_their_order(case):
    draw = torch.Generator().manual_seed(0)
    preds = torch.randn(70_000, generator=draw)
    target = torch.rand(70_000, generator=draw) < torch.sigmoid(preds)
    if case == "nan":
        preds[7] = NAN
        with pytest.warns(UserWarning, match="NaN"):
            assert pav_llr(preds, target, validate_args=False).isnan().all()
        return
    same = preds / preds.abs().max() if case == "wide" else (preds * 1000).round()
    moved = same * (3.3e38 if case == "wide" else 1e-45)
    assert_close(pav_llr(moved, target), pav_llr(same.double(), target).float())


@pytest.mark.parametrize("in_turn", [True, False], ids=["the rest in turn", "the rest by halves"])
@pytest.mark.parametrize(
    "steps",
    ["random", "smooth", "a drop behind an ascent", "none with a trial", "empty steps at the ends"],
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
    expected = number_pools(torch.where(mass > 0, targets / mass, 0), mass)
    assert torch.equal(pools_of_counts(targets, nontargets), expected)
    # And beside other rows: each by itself.
    others = torch.randint(0, 4, (2, 3, len(mass)), generator=draw).to(mass)
    others[:, 2] = NAN
    rows = torch.cat(
        [others[:, :2], torch.stack([targets, nontargets])[:, None], others[:, 2:]], dim=1
    )
    found = pools_of_counts(*rows)
    assert torch.equal(found[:3], torch.stack([pools_of_counts(*rows[:, row]) for row in range(3)]))
    assert torch.equal(found[2], expected)
    assert not found[3].any()  # nothing is known of it


@pytest.mark.parametrize(
    "kind", ["random", "tied", "descending", "one late drop", "without weight"]
)
@pytest.mark.parametrize("size", [1, 2, 3, 100, 1000])
def test_all_places_at_once_give_what_bisection_gives(kind, size):
    generator = torch.Generator().manual_seed(size)
    values = torch.randn(3, size, generator=generator, dtype=torch.float64)
    weights = torch.rand(3, size, generator=generator, dtype=torch.float64)
    if kind == "tied":
        values = values.round()
    elif kind == "descending":
        values = values.sort(descending=True).values
    elif kind == "one late drop":
        values = values.sort().values.roll(-1, -1)
    elif kind == "without weight":
        weights = weights * (weights > 0.5)
    by_bisection = number_pools(values, weights)
    with as_on_a_gpu():
        at_once = number_pools(values, weights)
    assert torch.equal(at_once, by_bisection)


@pytest.mark.parametrize("kind", ["random", "few targets", "descending"])
@pytest.mark.parametrize("longest_run", [1, 64, 4096])
def test_squares_of_shares_give_what_pooling_in_rounds_gives(kind, longest_run, monkeypatch):
    draw = torch.Generator().manual_seed(longest_run)
    targets, nontargets = torch.randint(0, 4, (2, 3, 1000), generator=draw).double()
    if kind == "few targets":
        targets = targets * (torch.rand(3, 1000, generator=draw) < 0.1)
    elif kind == "descending":
        targets = targets.sort(descending=True).values
    in_rounds = pools_of_counts(targets, nontargets)
    monkeypatch.setattr(pav, "_MOST_SQUARE_ENTRIES", targets.numel() * longest_run)
    with as_on_a_gpu():
        assert torch.equal(pools_of_counts(targets, nontargets), in_rounds)
