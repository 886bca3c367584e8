"""Cllr, minimum Cllr, equal error rate, linkability: golden sets, hand values, invariances, edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from golden import SCORE_SETS, score_set
from torch.testing import assert_close

from vpmetrics import Cllr, EqualErrorRate, Linkability, MinCllr
from vpmetrics.functional import cllr, equal_error_rate, linkability, min_cllr

GOLDEN = [
    (min_cllr, MinCllr, "min_cllr"),
    (equal_error_rate, EqualErrorRate, "rocch_eer"),
    (cllr, Cllr, "cllr"),
    (linkability, Linkability, "d_sys_sum"),
]


@pytest.mark.filterwarnings("ignore:Linkability needs")
@pytest.mark.parametrize("name", SCORE_SETS)
@pytest.mark.parametrize(("function", "metric", "key"), GOLDEN, ids=[key for *_, key in GOLDEN])
def test_golden_sets(name, function, metric, key):
    preds, target, expected = score_set(name)
    preds, target = torch.from_numpy(preds), torch.from_numpy(target)
    metric = metric()
    for part in torch.randperm(len(preds), generator=torch.Generator().manual_seed(0)).split(97):
        metric.update(preds[part], target[part].bool())
    for value in (function(preds, target), metric.compute()):
        assert value.dtype == torch.float64
        assert value.item() == pytest.approx(expected[key], abs=1e-9, nan_ok=True)
    if key != "d_sys_sum":  # whose bins cut through scores that float32 rounds
        single = function(preds.float(), target)
        assert single.dtype == torch.float32
        assert single.item() == pytest.approx(expected[key], rel=1e-5, abs=1e-5)


def test_cllr_of_extreme_ratios_is_finite():
    assert cllr(torch.tensor([-800.0, 800.0]), torch.tensor([1, 0])).item() == pytest.approx(800 / math.log(2))
    assert cllr(torch.tensor([math.inf, -math.inf]), torch.tensor([1, 0])) == 0
    assert cllr(torch.tensor([-math.inf, 0.0]), torch.tensor([1, 0])) == math.inf
    assert cllr(torch.zeros(2), torch.tensor([1, 0])) == 1


def test_cllr_gradient():
    preds = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 1, 0, 1, 1, 0, 1])
    assert torch.autograd.gradcheck(lambda scores: cllr(scores, target), preds)
    assert Cllr()(preds, target).requires_grad


def test_hand_values():
    preds, target = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1])
    assert min_cllr(preds, target).item() == pytest.approx(0.5)
    assert equal_error_rate(preds, target).item() == pytest.approx(0.25)


def test_the_hull_is_not_the_threshold_sweep():
    # Every row is linked, and yet a single threshold over the pool errs half the time on both sides.
    rows = torch.tensor([[0.9, 0.8, 0.8, 0.8], [0.6, 0.7, 0.6, 0.6], [0.4, 0.4, 0.5, 0.4], [0.2, 0.2, 0.2, 0.3]])
    assert equal_error_rate(rows, torch.eye(4).long()).item() == pytest.approx(0.375)


def test_scores_the_wrong_way_round_are_worth_nothing():
    preds, target = torch.arange(10.0), torch.arange(10) < 4
    assert equal_error_rate(preds, target).item() == pytest.approx(0.5)
    assert min_cllr(preds, target).item() == pytest.approx(1.0)


@pytest.mark.parametrize("function", [min_cllr, equal_error_rate])
def test_only_the_order_counts(function):
    draw = torch.Generator().manual_seed(0)
    preds = torch.randn(500, generator=draw, dtype=torch.float64)
    target = torch.rand(500, generator=draw) < torch.sigmoid(preds)
    for change in (torch.exp, torch.atan, lambda s: 1e5 * s - 3):
        assert_close(function(change(preds), target), function(preds, target))


def test_linkability_does_not_see_a_shift_or_a_scale():
    draw = torch.Generator().manual_seed(0)
    preds = torch.randint(-40, 40, (600,), generator=draw).double() / 8
    target = torch.arange(600) % 3 == 0
    assert_close(linkability(preds * 4 + 32, target), linkability(preds, target))
    separated = torch.arange(600.0)
    assert linkability(separated, separated > 300) == pytest.approx(1, abs=0.04)


@pytest.mark.parametrize("preds", [torch.ones(40), torch.tensor([math.inf] * 20 + [0.0] * 20)], ids=["constant", "inf"])
def test_linkability_without_a_range_is_nan(preds):
    with pytest.warns(UserWarning, match="finite and not all the same"):
        assert linkability(preds, torch.arange(40) % 2).isnan()


@pytest.mark.parametrize("metric", [MinCllr, EqualErrorRate])
def test_histograms_bound_the_exact_value(metric):
    draw = torch.Generator().manual_seed(0)
    preds = torch.randn(20_000, generator=draw)
    target = torch.rand(20_000, generator=draw) < torch.sigmoid(2 * preds - 2)
    exact, binned = metric(), metric(thresholds=256)
    for part in torch.arange(20_000).split(3_000):
        exact.update(preds[part], target[part])
        binned.update(preds[part], target[part])
    value, bound = binned.compute().item(), binned.error_bound().item()
    assert value - bound - 1e-6 <= exact.compute().item() <= value + 1e-6
    assert 0 < bound < 0.1
    assert exact.error_bound() == 0


def test_scalars_plot_over_epochs():
    metric = EqualErrorRate()
    values = [metric(torch.rand(20), torch.arange(20) % 2) for _ in range(4)]
    figure, ax = metric.plot(values)
    assert figure is ax.figure
    assert ax.get_ylabel() == "EqualErrorRate"
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [float(value) for value in values])
    import matplotlib.pyplot as plt

    assert not plt.get_fignums()


def test_linkability_of_bins_is_near_that_of_scores():
    draw = torch.Generator().manual_seed(0)
    preds = torch.randn(20_000, generator=draw)
    target = torch.rand(20_000, generator=draw) < torch.sigmoid(2 * preds - 2)
    exact = Linkability()(preds, target)
    for options in ({"thresholds": 8192}, {"thresholds": 8192, "score_range": (-6, 6)}):
        metric = Linkability(**options)
        metric.update(preds, target)
        assert metric.compute().item() == pytest.approx(exact.item(), abs=0.01)
        assert metric.error_bound().isnan()


def test_every_score_metric_takes_thresholds():
    for metric in (Cllr, MinCllr, EqualErrorRate, Linkability):
        metric(thresholds=None)
        metric(thresholds=64)
