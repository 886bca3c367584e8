"""ZEBRA: golden sets, published tags, hand values, edges, and histograms with their error bound."""

import math

import numpy as np
import pytest
import reference
import torch
from golden import (
    PRIOR_ENTROPY,
    PRIOR_LOG_ODDS,
    SCORE_SETS,
    TRANSFER_SETS,
    ZEBRA_TAGS,
    score_set,
    transfer_set,
)
from samples import gaussians
from torch.testing import assert_close

from vpmetrics import CalibrationDistortion, EqualErrorRate, MinCllr, ZebraDisclosure
from vpmetrics._scores.calibration import fit_linear_map
from vpmetrics._scores.score_counts import d_ece_term
from vpmetrics.functional import calibration_distortion, ece_profile, zebra_disclosure, zebra_tag


@pytest.mark.parametrize("name", SCORE_SETS)
def test_golden_sets(name):
    *trials, expected = score_set(name)
    trials = [torch.from_numpy(side) for side in trials]
    value = zebra_disclosure(*trials)
    profile = ece_profile(*trials, torch.from_numpy(PRIOR_LOG_ODDS))
    for key in ("d_ece", "l_w", "tag"):
        assert value[key].item() == pytest.approx(expected[key], abs=1e-9)
    assert_close(profile.prior.numpy(), PRIOR_ENTROPY, atol=1e-9, rtol=0)
    assert_close(profile.minimum.numpy(), expected["ece_min"], atol=1e-9, rtol=0)
    assert_close(profile.actual.numpy(), expected["ece_act"], atol=1e-9, rtol=1e-12)


@pytest.mark.parametrize("name", TRANSFER_SETS)
@pytest.mark.parametrize("calibration", ["linear", "isotonic"])
def test_golden_transfer(name, calibration):
    *trials, expected = transfer_set(name)
    value = calibration_distortion(*map(torch.from_numpy, trials), calibration).item()
    assert value == pytest.approx(expected[calibration]["eval_d_ece"], abs=1e-9)


def test_misleading_calibration_gives_negative_disclosure():
    preds, target = gaussians(300, 3000)
    assert (
        0
        < calibration_distortion(preds, target, preds, target)
        < zebra_disclosure(preds, target)["d_ece"]
    )
    assert calibration_distortion(-preds, target, preds, target) < -1


@pytest.mark.parametrize("calibration", ["linear", "isotonic"])
def test_calibration_without_an_optimum_or_a_class_is_nan(calibration):
    preds, target = gaussians(50, 500)
    for run, fit in ((target & False, target), (target, target & False)):
        with pytest.warns(UserWarning, match="both kinds") as caught:
            assert calibration_distortion(preds, run, preds, fit, calibration).isnan()
        assert len(caught) == 1
    if calibration == "linear":
        with pytest.warns(UserWarning, match="overlapping"):
            assert calibration_distortion(
                preds, target, torch.arange(4.0).double(), torch.arange(4) > 1
            ).isnan()


def test_tags_match_published_values_and_change_at_their_boundaries():
    assert [zebra_tag(l_w) for l_w, _ in ZEBRA_TAGS] == [letter for _, letter in ZEBRA_TAGS]
    assert [zebra_tag(x) for x in (0, 1e-9, 1, 2, 4, 5, 6, math.inf, math.nan)] == list("0ABCDEFF?")


def test_hand_values():
    # Targets 1, 3 among non-targets 0, 2: the middle block is 1 : 1, both ends are certain.
    value = zebra_disclosure(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1]))
    assert value["d_ece"].item() == pytest.approx(0.25 / math.log(2), abs=1e-7)
    assert value["l_w"].item() == pytest.approx(math.log10(2), abs=1e-7)
    tied = torch.zeros(4)
    separated = torch.arange(4.0)
    one_of_four = torch.tensor([0, 0, 0, 1])
    top = 1 / (2 * math.log(2))
    assert zebra_disclosure(tied, one_of_four)["d_ece"] == 0
    assert zebra_disclosure(separated, one_of_four)["d_ece"].item() == pytest.approx(top)
    assert zebra_disclosure(-separated, one_of_four)["d_ece_reversed"].item() == pytest.approx(top)


def test_d_ece_term_is_the_integral_over_the_prior():
    for llr in (-3.0, -0.5, -0.021, -0.019, 1e-9, 0.019, 0.021, 0.5, 3.0, 39.0, 41.0):
        prior = (np.arange(200_000) + 0.5) / 200_000
        odds = np.log(prior / (1 - prior))
        gain = prior * (np.logaddexp(0, -odds) - np.logaddexp(0, -odds - llr))
        assert d_ece_term(torch.tensor(llr).double()).item() == pytest.approx(
            2 * gain.mean(), abs=2e-9
        )
    llr = (
        torch.tensor([-5.0, -0.5, -0.021, -0.019, 0.0, 0.019, 0.021, 0.5, 30.0])
        .double()
        .requires_grad_()
    )
    assert torch.autograd.gradcheck(d_ece_term, llr)  # across both forms


def test_infinite_scores_are_ordered():
    preds = torch.tensor([-math.inf, 0.0, math.inf, -math.inf, 1.0, math.inf])
    target = torch.arange(6) > 2
    ordered = torch.tensor([0.0, 1.0, 3.0, 0.0, 2.0, 3.0])
    assert_close(zebra_disclosure(preds, target), zebra_disclosure(ordered, target))
    preds, target = gaussians(50, 500)
    preds[torch.tensor([0, 70])] = math.inf
    preds[60] = -math.inf
    value = calibration_distortion(preds, target, preds, target, "isotonic")
    finite = torch.atan(preds)
    squeezed = calibration_distortion(finite, target, finite, target, "isotonic")
    assert value.item() == pytest.approx(squeezed.item())


@pytest.mark.parametrize("thresholds", [None, 8])
def test_unvalidated_nan_scores_give_nan(thresholds):
    metric = ZebraDisclosure(thresholds=thresholds, validate_args=False)
    metric.update(torch.tensor([0.1, math.nan, 0.3]), torch.tensor([0, 0, 1]))
    with pytest.warns(UserWarning, match="NaN"):
        value = metric.compute()
    assert value["d_ece"].isnan()
    assert value["tag"] == -1


@pytest.mark.parametrize(
    "options",
    [
        {"thresholds": 4096},
        {"thresholds": 4096, "score_range": (-6, 8)},
        {"thresholds": torch.linspace(-6, 8, 4097)},
    ],
    ids=["learnt", "range", "edges"],
)
@pytest.mark.parametrize("metric", [ZebraDisclosure, MinCllr, EqualErrorRate])
def test_histograms_bound_the_exact_value(metric, options):
    preds, target = gaussians(2_000, 50_000)
    exact = metric()
    binned = metric(**options)
    # The magnitude grows from batch to batch, so a learnt range has to widen.
    for batch in preds.abs().argsort().split(9_000):
        exact.update(preds[batch], target[batch])
        binned.update(preds[batch], target[batch])
    values = [exact.compute(), binned.compute(), binned.error_bound(), exact.error_bound()]
    if metric is ZebraDisclosure:
        sign = 1
        keys = ("d_ece", "d_ece_reversed")
        values_by_key = [[numbers[key] for numbers in values] for key in keys]
    else:
        sign = -1
        values_by_key = [values]
    for truth, value, bound, no_bound in values_by_key:
        assert -1e-6 <= sign * (truth - value) <= bound + 1e-6
        assert no_bound == 0 <= bound < 0.02
    assert sum(state.numel() for state in binned.metric_state.values()) < 2 * 4096 + 4200


def test_histograms_of_scores_of_any_scale():
    preds, target = gaussians(500, 5_000)
    for scale in (0.0, 1e-300, 1e-30, 1e30, 1e300):
        metric = ZebraDisclosure(thresholds=4096)
        for batch in torch.arange(5_500).split(1_000):
            metric.update(preds[batch] * scale, target[batch])
        value = metric.compute()["d_ece"]
        bound = metric.error_bound()["d_ece"]
        assert (
            value - 1e-6 <= zebra_disclosure(preds * scale, target)["d_ece"] <= value + bound + 1e-6
        )
        assert bound < 0.02 or scale == 0  # one bin cannot tell equal scores from ordered ones
    preds = torch.tensor([-math.inf, -50.0, 0.25, 0.5, 50.0, math.inf])
    target = torch.tensor([0, 0, 1, 0, 1, 1])
    for options in ({"thresholds": 1024}, {"thresholds": 64, "score_range": (-1, 1)}):
        value = ZebraDisclosure(**options)(preds, target)
        assert_close(value["d_ece"], zebra_disclosure(preds, target)["d_ece"])


def legend_texts(figure_and_axes):
    _, ax = figure_and_axes
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_plot_labels_systems_and_calibrations():
    preds, target = gaussians(2_000, 2_000)
    metric = CalibrationDistortion()
    zebra = ZebraDisclosure()
    value = zebra(preds, target)
    for run in (0, 1):
        metric.update(10 * preds, target, run=run)
    _, raw_axes = metric.plot(kind="raw")
    assert legend_texts(metric.plot(ax=raw_axes)) == ["calibrated", "scores", "linear"]
    first_words = [label.split()[0] for label in legend_texts(metric.plot(kind="profile"))]
    assert first_words == ["perfect", "learnt", "attacked", "linear", "isotonic"]
    numbers = f"{value['d_ece']:.3f}, {value['l_w']:.2f}, {zebra_tag(value['l_w'])}"
    assert legend_texts(zebra.plot(label="B2"))[1] == f"B2 ({numbers})"
    with pytest.raises(ValueError, match="Expected `kind` to be one of"):
        metric.plot(kind="oracle")


@pytest.mark.parametrize("overlap", [1.0, 1e-2, 1e-4, 1e-6])
def test_a_linear_calibration_converges_however_small_the_overlap(overlap):
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        preds = torch.randn(60, generator=draw, dtype=torch.float64)
        target = torch.arange(60) < 15
        preds = preds.abs() * torch.where(target, 3, -3)
        preds[0] = -overlap / 2
        preds[20] = overlap / 2
        linear_map = fit_linear_map(7 + preds / 100, target)
        at_0, at_1 = linear_map(torch.tensor([0.0, 1.0], dtype=torch.float64))
        fitted = (at_1 - at_0, at_0)
        expected = reference.zebra.linear_calibration((7 + preds / 100).numpy(), target.numpy())
        # An overlap of 1e-8 around 7 is itself known to seven digits.
        assert [value.item() for value in fitted] == pytest.approx(expected, rel=1e-6)


def test_worst_case_disclosure_grows_with_the_number_of_trials():
    small = zebra_disclosure(*gaussians(100, 1_000, distance=2.0))["l_w"]
    large = zebra_disclosure(*gaussians(10_000, 100_000, distance=2.0))["l_w"]
    assert large > small + 0.5
    assert zebra_tag(zebra_disclosure(torch.zeros(1000), torch.arange(1000) < 20)["l_w"]) == "A"
    assert zebra_tag(zebra_disclosure(torch.zeros(40), torch.arange(40) < 20)["l_w"]) == "0"
