"""ZEBRA: golden sets, published tags, hand values, invariances, edges, and histograms with their certificate."""

import copy
import math

import numpy as np
import pytest
import reference
import torch
from cases import assert_same
from golden import PRIOR_ENTROPY, PRIOR_LOG_ODDS, SCORE_SETS, TRANSFER_SETS, ZEBRA_TAGS, score_set, transfer_set
from samples import gaussians
from torch.testing import assert_close

from vpmetrics import CalibrationDistortion, ZebraDisclosure
from vpmetrics._engine.calibration import fit_slope_and_offset
from vpmetrics._engine.measures import d_ece_term
from vpmetrics.functional import calibration_distortion, ece_profile, zebra_disclosure, zebra_tag


def tensors(*arrays, dtype=torch.float64):
    return [
        torch.from_numpy(np.asarray(a)).to(dtype if np.asarray(a).dtype.kind == "f" else torch.long) for a in arrays
    ]


@pytest.mark.parametrize("name", SCORE_SETS)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["64", "32"])
def test_golden_sets(name, dtype, atol):
    preds, target, expected = score_set(name)
    preds, target = tensors(preds, target, dtype=dtype)
    metric = ZebraDisclosure()
    for part in torch.randperm(len(preds), generator=torch.Generator().manual_seed(0)).split(97):
        metric.update(preds[part], target[part])
    for value in (zebra_disclosure(preds, target), metric.compute()):
        assert value["d_ece"].item() == pytest.approx(expected["d_ece"], abs=atol)
        assert value["l_w"].item() == pytest.approx(expected["l_w"], abs=atol)
        assert value["tag"].item() == expected["tag"]
        reversed_ = reference.zebra.zebra_disclosure(-preds.double().numpy(), target.numpy())["d_ece"]
        assert value["d_ece_reversed"].item() == pytest.approx(reversed_, abs=atol)


@pytest.mark.parametrize("name", SCORE_SETS)
def test_golden_profiles(name):
    preds, target, expected = score_set(name)
    profile = ece_profile(*tensors(preds, target), torch.from_numpy(PRIOR_LOG_ODDS))
    assert_close(profile.prior.numpy(), PRIOR_ENTROPY, atol=1e-9, rtol=0)
    assert_close(profile.minimum.numpy(), expected["ece_min"], atol=1e-9, rtol=0)
    assert_close(profile.actual.numpy(), expected["ece_act"], atol=1e-9, rtol=1e-12)


@pytest.mark.parametrize("name", TRANSFER_SETS)
@pytest.mark.parametrize("calibration", ["linear", "isotonic"])
def test_golden_transfer(name, calibration):
    preds, target, fit_preds, fit_target, expected = transfer_set(name)
    preds, target, fit_preds, fit_target = tensors(preds, target, fit_preds, fit_target)
    value = calibration_distortion(preds, target, fit_preds, fit_target, calibration).item()
    expected = expected[calibration]["eval_d_ece"]
    metric = CalibrationDistortion(calibration)
    metric.update(preds, target, run=1)
    metric.update(fit_preds[::2], fit_target[::2], run=0)
    metric.update(fit_preds[1::2], fit_target[1::2], run=0)
    assert value == pytest.approx(expected, abs=1e-9)
    assert metric.compute().item() == pytest.approx(expected, abs=1e-9)


def test_misleading_calibration_gives_negative_disclosure():
    preds, target = gaussians(300, 3000)
    fitted = calibration_distortion(preds, target, preds, target)
    turned = calibration_distortion(-preds, target, preds, target)
    assert 0 < fitted < zebra_disclosure(preds, target)["d_ece"]
    assert turned < -1


def test_calibration_without_an_optimum_is_nan():
    preds, target = gaussians(50, 50)
    apart = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    with pytest.warns(UserWarning, match="overlapping"):
        assert calibration_distortion(preds, target, apart, torch.tensor([0, 0, 1, 1])).isnan()


@pytest.mark.parametrize(("l_w", "letter"), ZEBRA_TAGS)
def test_tags_match_published_values(l_w, letter):
    assert zebra_tag(l_w) == letter


def test_tags_at_their_boundaries():
    assert [zebra_tag(x) for x in (0, 1e-9, 1, 2, 4, 5, 6, math.inf, math.nan)] == list("0ABCDEFF?")


def test_hand_value():
    # Targets 1, 3 among non-targets 0, 2: the middle block is 1 : 1, both ends are certain.
    value = zebra_disclosure(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1]))
    assert value["d_ece"].item() == pytest.approx(0.25 / math.log(2), abs=1e-7)
    assert value["l_w"].item() == pytest.approx(math.log10(2), abs=1e-7)


def test_d_ece_term_is_the_integral_over_the_prior():
    for llr in (-3.0, -0.5, -0.021, -0.019, 1e-9, 0.019, 0.021, 0.5, 3.0, 39.0, 41.0):
        prior = (np.arange(200_000) + 0.5) / 200_000
        odds = np.log(prior / (1 - prior))
        gain = prior * (np.logaddexp(0, -odds) - np.logaddexp(0, -odds - llr))
        assert d_ece_term(torch.tensor(llr).double()).item() == pytest.approx(2 * gain.mean(), abs=2e-9)


def test_d_ece_term_gradient_across_both_forms():
    llr = torch.tensor([-5.0, -0.5, -0.021, -0.019, 0.0, 0.019, 0.021, 0.5, 30.0]).double().requires_grad_()
    assert torch.autograd.gradcheck(d_ece_term, llr)


def test_negated_scores_swap_the_two_directions():
    preds, target = gaussians(80, 700, distance=0.3)
    one, other = zebra_disclosure(preds, target), zebra_disclosure(-preds, target)
    assert_close(one["d_ece"], other["d_ece_reversed"])
    assert_close(one["d_ece_reversed"], other["d_ece"])


def test_infinite_scores_are_ordered():
    preds = torch.tensor([-math.inf, 0.0, math.inf, -math.inf, 1.0, math.inf])
    target = torch.tensor([0, 0, 0, 1, 1, 1])
    ordered = torch.tensor([0.0, 1.0, 3.0, 0.0, 2.0, 3.0])
    assert_close(zebra_disclosure(preds, target), zebra_disclosure(ordered, target))


def test_all_tied_and_fully_separated():
    target = torch.tensor([0, 0, 0, 1])
    assert zebra_disclosure(torch.zeros(4), target)["d_ece"] == 0
    top = 1 / (2 * math.log(2))
    assert zebra_disclosure(torch.arange(4.0), target)["d_ece"].item() == pytest.approx(top)
    assert zebra_disclosure(-torch.arange(4.0), target)["d_ece_reversed"].item() == pytest.approx(top)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (([0.5], torch.tensor([1])), TypeError, "`preds` to be a tensor, but got list"),
        ((torch.tensor([1]), torch.tensor([1])), TypeError, "`preds` to have a floating dtype, but got torch.int64"),
        ((torch.rand(2), torch.rand(2)), TypeError, "`target` to be boolean or integer, but got torch.float32"),
        ((torch.rand(2), torch.tensor([1])), ValueError, r"`target` to have shape \(2,\).*got \(1,\)"),
        ((torch.rand(2, device="meta"), torch.tensor([0, 1])), ValueError, "one device, but got meta and cpu"),
        ((torch.tensor([0.1, math.nan]), torch.tensor([0, 1])), ValueError, "`preds` to hold no NaN, but got 1 of 2"),
        ((torch.rand(2), torch.tensor([1, -1])), ValueError, r"`target` to hold only 0 and 1, but got \[-1\]"),
    ],
)
def test_invalid_input_raises_and_keeps_the_state(arguments, error, match):
    for metric in (ZebraDisclosure(), ZebraDisclosure(thresholds=8)):
        metric.update(torch.tensor([0.2, 0.8]), torch.tensor([0, 1]))
        before = copy.deepcopy(metric.metric_state)
        with pytest.raises(error, match=match):
            metric.update(*arguments)
        assert_same(metric.metric_state, before, atol=0, rtol=0)
    with pytest.raises(error, match=match):
        zebra_disclosure(*arguments)


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
    [{"thresholds": 4096}, {"thresholds": 4096, "score_range": (-6, 8)}, {"thresholds": torch.linspace(-6, 8, 4097)}],
    ids=["learnt", "range", "edges"],
)
def test_histograms_bound_the_exact_value(options):
    preds, target = gaussians(2_000, 50_000)
    exact = zebra_disclosure(preds, target)
    metric = ZebraDisclosure(**options)
    # The magnitude grows from batch to batch, so a learnt range has to widen.
    for part in preds.abs().argsort().split(9_000):
        metric.update(preds[part], target[part])
    value, bound = metric.compute(), metric.error_bound()
    for key in ("d_ece", "d_ece_reversed"):
        assert value[key] - 1e-6 <= exact[key] <= value[key] + bound[key] + 1e-6
        assert bound[key] < 0.02
    kept = sum(state.numel() for state in metric.metric_state.values())
    assert kept < 2 * 4096 + 4200


@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e-30, 1e30, 1e300])
def test_histogram_range_adapts_to_any_scale(scale):
    preds, target = gaussians(500, 5_000)
    metric = ZebraDisclosure(thresholds=4096)
    for part in torch.arange(5_500).split(1_000):
        metric.update(preds[part] * scale, target[part])
    value, bound = metric.compute()["d_ece"], metric.error_bound()["d_ece"]
    exact = zebra_disclosure(preds * scale, target)["d_ece"]
    assert value - 1e-6 <= exact <= value + bound + 1e-6
    assert bound < 0.02 or scale == 0  # one bin cannot tell equal scores from ordered ones


def test_histogram_of_infinite_and_outlying_scores():
    preds = torch.tensor([-math.inf, -50.0, 0.25, 0.5, 50.0, math.inf])
    target = torch.tensor([0, 0, 1, 0, 1, 1])
    for options in ({"thresholds": 1024}, {"thresholds": 64, "score_range": (-1, 1)}):
        metric = ZebraDisclosure(**options)
        metric.update(preds, target)
        assert_close(metric.compute()["d_ece"], zebra_disclosure(preds, target)["d_ece"])


def test_profile_figure_takes_several_systems():
    one, other = ZebraDisclosure(), ZebraDisclosure(thresholds=256)
    one.update(*gaussians(200, 2_000, distance=2.0))
    other.update(*gaussians(200, 2_000, distance=0.5))
    _, ax = one.plot(label="B2")
    figure, ax = other.plot(ax=ax, label="B1")
    assert figure is ax.figure
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    value = one.compute()
    assert labels[0] == "perfect privacy"
    assert labels[1] == f"B2 ({value['d_ece']:.3f}, {value['l_w']:.2f}, {zebra_tag(value['l_w'])})"
    assert len(labels) == 3
    assert "bit" in ax.get_ylabel()


def test_plot_draws_raw_and_calibrated_scores():
    preds, target = gaussians(2_000, 2_000)
    metric = CalibrationDistortion()
    for run in (0, 1):
        metric.update(10 * preds, target, run=run)
    _, ax = metric.plot(kind="raw")
    _, ax = metric.plot(ax=ax)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["calibrated", "scores", "linear"]
    raw, linear = (line.get_xydata() for line in ax.lines if line.get_gid() == "system")
    assert abs(raw[:, 0] - raw[:, 1]).max() > 2 * abs(linear[:, 0] - linear[:, 1]).max()
    with pytest.raises(ValueError, match="Expected `kind` to be one of"):
        metric.plot(kind="oracle")


def test_plot_draws_both_runs_with_both_calibrations():
    metric = CalibrationDistortion()
    for run, distance in ((0, 1.0), (1, 2.0)):
        metric.update(*gaussians(200, 2_000, distance=distance), run=run)
    _, ax = metric.plot(kind="profile")
    labels = [text.get_text().partition(" ")[0] for text in ax.get_legend().get_texts()]
    assert labels == ["perfect", "learnt", "attacked", "linear", "isotonic"]


@pytest.mark.parametrize("calibration", ["linear", "isotonic"])
def test_a_missing_class_or_run_is_nan_and_one_warning(calibration):
    preds, target = gaussians(50, 500)
    for run, fit in ((target & False, target), (target, target & False)):
        with pytest.warns(UserWarning, match="both kinds") as caught:
            assert calibration_distortion(preds, run, preds, fit, calibration).isnan()
        assert len(caught) == 1
    for run in (0, 1):
        metric = CalibrationDistortion(calibration)
        metric.update(preds, target, run=run)
        with pytest.warns(UserWarning, match="both runs|both kinds") as caught:
            assert metric.compute().isnan()
        assert len(caught) == 1


@pytest.mark.parametrize("overlap", [1.0, 1e-2, 1e-4, 1e-6])
def test_a_linear_calibration_converges_however_small_the_overlap(overlap):
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        preds, target = torch.randn(60, generator=draw, dtype=torch.float64), torch.arange(60) < 15
        preds = preds.abs() * torch.where(target, 3, -3)
        preds[0], preds[20] = -overlap / 2, overlap / 2
        fitted = fit_slope_and_offset(7 + preds / 100, target)
        expected = reference.zebra.linear_calibration((7 + preds / 100).numpy(), target.numpy())
        # An overlap of 1e-8 around 7 is itself known to seven digits.
        assert [value.item() for value in fitted] == pytest.approx(expected, rel=1e-6)


def test_worst_case_disclosure_grows_with_the_number_of_trials():
    small, large = (zebra_disclosure(*gaussians(n, 10 * n, distance=2.0))["l_w"] for n in (100, 10_000))
    assert large > small + 0.5
    assert zebra_tag(zebra_disclosure(torch.zeros(1000), torch.arange(1000) < 20)["l_w"]) == "A"
    assert zebra_tag(zebra_disclosure(torch.zeros(40), torch.arange(40) < 20)["l_w"]) == "0"


def test_infinite_scores_in_an_isotonic_calibration():
    preds, target = gaussians(50, 500)
    preds[0], preds[60], preds[70] = math.inf, -math.inf, math.inf
    value = calibration_distortion(preds, target, preds, target, "isotonic")
    squeezed = torch.atan(preds)
    assert value.item() == pytest.approx(calibration_distortion(squeezed, target, squeezed, target, "isotonic").item())
