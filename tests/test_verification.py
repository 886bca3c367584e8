"""Cllr, minimum Cllr, equal error rate, linkability.

Golden sets, hand values, invariances, edges.
"""

import math

import numpy as np
import pytest
import reference
import torch
from golden import SCORE_SETS, score_set
from samples import gaussians
from torch.testing import assert_close

from vpmetrics import Cllr, Linkability
from vpmetrics.functional import (
    cllr,
    equal_error_rate,
    linkability,
    min_cllr,
    min_dcf,
    raw_equal_error_rate,
    zebra_disclosure,
)


@pytest.mark.filterwarnings("ignore:Linkability needs")
@pytest.mark.parametrize("name", SCORE_SETS)
def test_golden_sets(name):
    *trials, expected = score_set(name)
    trials = [torch.from_numpy(side) for side in trials]
    functions = {
        "min_cllr": min_cllr,
        "rocch_eer": equal_error_rate,
        "cllr": cllr,
        "d_sys_sum": linkability,
    }
    for key, function in functions.items():
        assert function(*trials).item() == pytest.approx(expected[key], abs=1e-9, nan_ok=True), key


def test_cllr_of_extreme_ratios_is_finite():
    assert cllr(torch.tensor([-800.0, 800.0]), torch.tensor([1, 0])).item() == pytest.approx(
        800 / math.log(2)
    )
    assert cllr(torch.tensor([math.inf, -math.inf]), torch.tensor([1, 0])) == 0
    assert cllr(torch.tensor([-math.inf, 0.0]), torch.tensor([1, 0])) == math.inf
    assert cllr(torch.zeros(2), torch.tensor([1, 0])) == 1


def test_cllr_gradient():
    preds = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 1, 0, 1, 1, 0, 1])
    assert torch.autograd.gradcheck(lambda scores: cllr(scores, target), preds)
    assert Cllr()(preds, target).requires_grad


def test_hand_values():
    preds = torch.arange(4.0)
    target = torch.tensor([0, 1, 0, 1])
    assert min_cllr(preds, target).item() == pytest.approx(0.5)
    assert equal_error_rate(preds, target).item() == pytest.approx(0.25)
    preds = torch.arange(10.0)
    target = torch.arange(10) < 4  # reversed
    assert min_cllr(preds, target).item() == pytest.approx(1.0)
    assert equal_error_rate(preds, target).item() == pytest.approx(0.5)


@pytest.mark.parametrize("function", [min_cllr, equal_error_rate, zebra_disclosure])
def test_measures_are_invariant_to_increasing_maps(function):
    draw = torch.Generator().manual_seed(0)
    preds = torch.randn(500, generator=draw, dtype=torch.float64)
    target = torch.rand(500, generator=draw) < torch.sigmoid(preds)
    for change in (
        torch.exp,
        torch.atan,
        lambda s: 1e5 * s - 3,
        lambda s: s.pow(3) * 1e6,
        lambda s: s / 8 - 100,
    ):
        assert_close(function(change(preds), target), function(preds, target))


def trials(size, levels, seed):
    """Scores of few levels tie often; None for scores that never do."""
    draw = torch.Generator().manual_seed(seed)
    target = torch.arange(size) < torch.randint(1, size, (1,), generator=draw)
    noise = torch.randn(size, generator=draw, dtype=torch.float64)
    preds = noise + target * torch.rand(1, generator=draw) * 3
    if levels is not None:
        preds = (preds * levels).round()
    return preds, target


@pytest.mark.parametrize("levels", [None, 0.5, 2, 10])
@pytest.mark.parametrize("size", [2, 3, 7, 40, 300])
def test_raw_rates_and_costs_match_a_threshold_sweep(levels, size):
    for seed in range(20):
        preds, target = trials(size, levels, seed)
        pair = preds.numpy(), target.numpy()
        expected = reference.verification.raw_equal_error_rate(*pair)
        assert raw_equal_error_rate(preds, target).item() == pytest.approx(expected, abs=1e-14)
        for costs in ((0.01, 1.0, 1.0), (0.5, 1.0, 1.0), (0.05, 10.0, 1.0), (0.9, 1.0, 3.0)):
            expected = reference.verification.min_dcf(*pair, *costs)
            assert min_dcf(preds, target, *costs).item() == pytest.approx(expected, abs=1e-14)


def test_kaldi_rounds_the_raw_rate_up_to_whole_targets():
    for seed in range(200):
        preds, target = trials(60, None, seed)
        printed = reference.verification.kaldi_equal_error_rate(preds.numpy(), target.numpy())
        targets = target.sum().item()
        assert (
            math.ceil(raw_equal_error_rate(preds, target).item() * targets - 1e-9) / targets
            == printed
        )


def test_raw_rates_by_hand():
    target = torch.tensor([1, 1, 0, 0, 0])
    assert raw_equal_error_rate(torch.arange(5.0), target) == 1
    assert raw_equal_error_rate(-torch.arange(5.0), target) == 0
    assert raw_equal_error_rate(torch.zeros(5), target) == 0.5
    # One of four non-targets above the only target: a threshold at that target accepts a quarter
    # and misses none.
    assert (
        raw_equal_error_rate(torch.tensor([1.0, 0, 0, 0, 2]), torch.tensor([1, 0, 0, 0, 0])) == 0.25
    )
    assert min_dcf(torch.zeros(5), target) == min_dcf(torch.arange(5.0), target) == 1
    assert min_dcf(-torch.arange(5.0), target) == 0


def test_raw_rates_are_nan_where_a_class_is_missing():
    for function in (raw_equal_error_rate, min_dcf):
        with pytest.warns(UserWarning, match="no target trials"):
            assert function(torch.rand(4), torch.zeros(4).long()).isnan()


def test_linkability_is_invariant_to_shift_and_scale():
    draw = torch.Generator().manual_seed(0)
    preds = torch.randint(-40, 40, (600,), generator=draw).double() / 8
    target = torch.arange(600) % 3 == 0
    assert_close(linkability(preds * 4 + 32, target), linkability(preds, target))
    separated = torch.arange(600.0)
    assert linkability(separated, separated > 300) == pytest.approx(1, abs=0.04)


def test_trapezoid_rule_of_the_challenges_underestimates_linkability():
    preds = torch.cat([torch.arange(300.0), torch.arange(100.0, 400.0)])
    target = torch.arange(600) >= 300
    edges = np.linspace(0, 399, 300 // 10 + 1)
    p = np.histogram(preds[target], edges)[0] / 300
    q = np.histogram(preds[~target], edges)[0] / 300
    link = p * np.where(p > q, (p - q) / np.maximum(p + q, 1e-300), 0)
    assert linkability(preds, target).item() == pytest.approx(link.sum(), abs=1e-6)
    trapezoid = (link[1:] + link[:-1]).sum() / 2
    assert linkability(preds, target).item() == pytest.approx(trapezoid + link[-1] / 2, abs=1e-6)
    assert trapezoid < link.sum() - 0.01


@pytest.mark.parametrize(
    "preds", [torch.ones(40), torch.tensor([math.inf] * 20 + [0.0] * 20)], ids=["constant", "inf"]
)
def test_linkability_without_a_range_is_nan(preds):
    with pytest.warns(UserWarning, match="finite and not all the same"):
        assert linkability(preds, torch.arange(40) % 2).isnan()


def test_binned_linkability_approximates_the_exact_value():
    trials = gaussians(6_000, 14_000)
    exact = Linkability()(*trials)
    for options in ({"thresholds": 8192}, {"thresholds": 8192, "score_range": (-6, 6)}):
        metric = Linkability(**options)
        assert metric(*trials).item() == pytest.approx(exact.item(), abs=0.01)
        assert metric.error_bound().isnan()
