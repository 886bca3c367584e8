"""Figures of scores against NumPy and SciPy."""

import math

import numpy as np
import pytest
import torch
from plotting.conftest import ODDS, legend_of, lines_of
from samples import gaussians
from scipy.stats import norm

from vpmetrics import functional as F
from vpmetrics._scores.condition_scores import collect_trial_scores
from vpmetrics._scores.measures import prior_entropy
from vpmetrics.plotting.axes import axes_or_new
from vpmetrics.plotting.score_plots import (
    draw_attacks,
    draw_attribute_bits,
    draw_det,
    draw_ece_profile,
    draw_log_roc,
    draw_score_histogram,
    draw_share_by_posterior,
)


def error_rates(preds, target):
    """Return false-alarm and miss rate at every threshold, from the definition."""
    thresholds = np.concatenate([[-np.inf], np.unique(preds), [np.inf]])
    accepted = preds[None] >= thresholds[:, None]
    return accepted[:, ~target].mean(1), 1 - accepted[:, target].mean(1)


@pytest.fixture(params=[0, 1], ids=["continuous", "tied"])
def trials(request):
    preds, target = gaussians(300, 2000)
    return (preds.round(decimals=1) if request.param else preds), target


def test_the_histogram_shows_densities_and_the_threshold_of_equal_errors(trials):
    preds, target = trials
    _, ax = draw_score_histogram(
        collect_trial_scores(preds, target).measure_input, {"raw_eer": 0.25}, None, "OP"
    )
    (fill,) = (patch for patch in ax.patches if patch.get_fill() and patch.get_label() == "target")
    heights, edges, _ = fill.get_data()
    expected, _ = np.histogram(preds[target], bins=edges, density=True)
    assert heights @ np.diff(edges) == pytest.approx(1)
    np.testing.assert_allclose(heights, expected, atol=2 / 300 / np.diff(edges).min())
    (line,) = lines_of(ax, "threshold")
    threshold = line.get_xdata()[0]
    miss, false_alarm = (
        (preds[target] < threshold).double().mean(),
        (preds[~target] >= threshold).double().mean(),
    )
    step = max(float((preds == threshold)[target].double().mean()), 0.01)
    assert abs(float(miss - false_alarm)) <= 2 * step
    assert legend_of(ax)[-1] == "raw EER 25.00 %"


def test_scores_that_are_all_the_same_have_no_histogram():
    _, ax = draw_score_histogram(
        collect_trial_scores(torch.zeros(4), torch.arange(4) < 2).measure_input, {}, None
    )
    assert not ax.patches


def test_the_det_curve_lies_on_probit_axes_and_marks_the_raw_eer(trials):
    preds, target = trials
    eer = float(F.raw_equal_error_rate(preds, target))
    _, ax = draw_det(
        collect_trial_scores(preds, target).counts.ascending, {"raw_eer": eer}, None, "OP"
    )
    curve, marker = [line for line in ax.lines if line.get_gid() != "chance"][1:]
    false_alarm, miss = error_rates(preds.numpy(), target.numpy())
    expected = np.interp(norm.cdf(curve.get_xdata()), false_alarm[::-1], miss[::-1])
    np.testing.assert_allclose(norm.cdf(curve.get_ydata()), expected, atol=1e-6)
    assert marker.get_gid() == "system"
    np.testing.assert_allclose(
        norm.cdf([marker.get_xdata()[0], marker.get_ydata()[0]]), eer, atol=1e-6
    )
    assert marker.get_label() == f"OP ({100 * eer:.2f})"
    x, y = ax.lines[1].get_data()
    np.testing.assert_allclose(norm.cdf(x), 1 - norm.cdf(y))


def test_the_roc_is_logarithmic_and_marks_low_false_positive_rates(trials):
    preds, target = trials
    values = F.tpr_at_fpr(preds, target, fpr=(0.01, 0.001))
    rates = [float(value) for value in values.values()]
    marked = dict(zip(("tpr_at_1e-2", "tpr_at_1e-3"), rates, strict=True))
    _, ax = draw_log_roc(collect_trial_scores(preds, target).counts.ascending, marked, None, "OP")
    curve, marker = [line for line in ax.lines if line.get_gid() != "chance"][2:]
    false_alarm, miss = error_rates(preds.numpy(), target.numpy())
    expected = np.interp(curve.get_xdata(), false_alarm[::-1], 1 - miss[::-1])
    np.testing.assert_allclose(curve.get_ydata(), expected, atol=1e-9)
    assert ax.get_xscale() == ax.get_yscale() == "log"
    np.testing.assert_allclose(marker.get_xdata(), [1e-2, np.nan, 1e-3])
    np.testing.assert_allclose(marker.get_ydata(), [rates[0], np.nan, rates[1]])


def test_profiles_share_the_curve_of_the_prior_and_show_bands():
    prior, ax = prior_entropy(ODDS), None
    for number in range(3):
        values = {"d_ece": 0.1, "l_w": 1.0, "tag": 2}
        figure, ax = draw_ece_profile(
            prior / 2, None, values, ax, f"system {number}", (prior / 3, prior)
        )
    labels = [line.get_label() for line in ax.lines]
    assert labels == [
        "perfect privacy",
        *(f"system {number} (0.100, 1.00, B)" for number in range(3)),
    ]
    assert len(ax.collections) == 3
    assert ax.lines[0].get_zorder() > ax.lines[1].get_zorder()
    assert ax.get_figure() is figure


def test_reliability_of_calibrated_ratios_is_the_diagonal():
    draw = torch.Generator().manual_seed(0)
    llr = 2 * torch.randn(200_000, generator=draw, dtype=torch.float64)
    target = torch.rand(len(llr), generator=draw) < llr.sigmoid()  # a posterior at even odds
    prior = math.log(int(target.sum()) / int((~target).sum()))
    _, ax = draw_share_by_posterior(llr - prior, torch.stack([~target, target]), None, "OP")
    x, y = ax.lines[1].get_data()
    np.testing.assert_allclose(x, y, atol=0.02)
    assert len(x) == 15


def test_attacks_are_sorted_and_show_chance_level_and_interval():
    values = {"one": 0.2, "unknown": math.nan, "two": 0.4}
    _, ax = draw_attacks(values, 0.05, None, "OP", (0.35, 0.25, 0.45))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one", "two", "all, fused"]
    assert [bar.get_width() for bar in ax.patches] == [0.2, 0.4, 0.35]
    assert ax.get_xlabel() == "expected disclosure $D_{ECE}$, bit"
    assert len(ax.containers) == 2
    assert ax.get_xlim()[1] > 0.45
    for unknown in ({}, {"one": math.nan}):
        draw_attacks(unknown, math.nan, None)[0].draw_without_rendering()


def test_attributes_stand_beside_chance_and_original_speech():
    sex = {
        "disclosure": 0.6,
        "disclosure_low": 0.5,
        "disclosure_high": 0.7,
        "chance": 0.03,
        "original": 0.98,
    }
    _, ax = draw_attribute_bits({"sex": sex, "age": {"disclosure": 0.1}}, axes_or_new(None), "B2")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["age", "sex"]
    assert [bar.get_width() for bar in ax.patches] == [0.1, 0.6]
    assert len(ax.containers) == 2  # one interval is known
    (original,) = (line for line in lines_of(ax, "original") if line.get_xdata()[0] > 0)
    assert (original.get_xdata()[0], original.get_ydata()[0]) == (0.98, 1)
    assert {"chance", "original speech"} <= set(legend_of(ax))
    draw_attribute_bits({}, None)[0].draw_without_rendering()
