"""Local information disclosure.

The worked example, what EER does not see, slopes, and embeddings in blocks.
"""

import math

import numpy as np
import pytest
import torch
from reference import local as reference
from reference.rank import reference_scores
from samples import utterances
from torch.testing import assert_close

from vpmetrics._identification import identification, references
from vpmetrics._scores import calibration
from vpmetrics._scores.calibration import fit_logistic_slopes
from vpmetrics.functional import (
    equal_error_rate,
    fit_local_slope,
    identify,
    local_information,
    local_information_disclosure,
    summarise_information,
)

BLIND_SPOT = torch.tensor([[9, 8, 8, 8], [7, 6, 6, 6], [4, 5, 4, 4], [2, 2, 3, 2]]) / 10
BINS = 1e-3  # bits by which slopes may err, since non-targets share bins


def trials(seed=0, count=60, references=9, shift=1.0):
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, references, generator=draw, dtype=torch.float64)
    target = torch.randint(0, references, (count,), generator=draw)
    scores[torch.arange(count), target] += shift
    return scores, target


def test_the_worked_example():
    bits = local_information(
        torch.tensor([[0.9, 0.7, 0.4, 1.1, 1.2, 0.4]]), torch.tensor([3]), slope=1.5
    )
    assert round(bits.item(), 2) == 0.90
    assert round(2 ** bits.item() / 6, 2) == 0.31


def test_link_rate_is_1_where_a_global_threshold_fails():
    # Scores of different speakers lie on different levels: pooled, one threshold gets half of
    # either kind wrong.
    true = torch.tensor([0, 0, 1, 2])
    is_target, accepted = torch.nn.functional.one_hot(true, 4).bool(), BLIND_SPOT >= 0.6
    assert accepted[is_target].double().mean() == accepted[~is_target].double().mean() == 0.5
    assert equal_error_rate(BLIND_SPOT, is_target) == 0.375  # on the convex hull
    values = local_information_disclosure(BLIND_SPOT, true, slope=1.5)
    assert values["link_rate"] == values["pdr"] == 1
    assert values["alid"] > 1.8


@pytest.mark.parametrize("shift", [-1.0, 0.0, 1.0, 4.0])
def test_agrees_with_the_reference(shift):
    scores, target = trials(shift=shift)
    arrays = scores.numpy(), target.numpy()
    slope = reference.fit_slope(*arrays)
    assert_close(fit_local_slope(scores, target).item(), slope, atol=BINS, rtol=BINS)
    values = local_information_disclosure(scores, target, slope)
    for name, value in reference.local_information_disclosure(*arrays, slope).items():
        assert_close(values[name].item(), value, atol=1e-9, rtol=1e-9, equal_nan=True)


def test_ties_are_failures_and_disclose_nothing():
    scores = torch.tensor([[3.0, 1, 2], [3, 3, 1], [1, 2, 3]])
    assert_close(
        local_information_disclosure(scores, torch.tensor([0, 0, 1]), 1.0)["link_rate"],
        torch.tensor(1 / 3),
    )
    scores = torch.full((5, 7), 0.1234567)
    values = local_information_disclosure(scores, torch.arange(5), slope=3.0)
    assert values["alid"] == values["lid_max"] == values["pdr"] == values["link_rate"] == 0
    assert fit_local_slope(scores, torch.arange(5)) == 0


def test_scale_and_level_of_a_row_do_not_matter():
    scores, target = trials()
    moved = scores * torch.rand(60, 1, dtype=torch.float64).add(0.1) + torch.randn(
        60, 1, dtype=torch.float64
    )
    assert_close(local_information(moved, target, 1.3), local_information(scores, target, 1.3))
    assert_close(fit_local_slope(moved, target), fit_local_slope(scores, target))


def test_bits_are_at_most_log2_of_the_gallery():
    scores, target = trials(shift=30.0)
    # a threshold separates the classes, and yet it is finite
    slope = fit_local_slope(scores, target)
    bits = local_information(scores, target, slope)
    assert slope.isfinite()
    assert (bits <= math.log2(9)).all()
    assert (bits > math.log2(9) - 1e-2).all()
    assert_close(fit_local_slope(-scores, target), -slope)


def test_slope_per_trial_is_differentiable():
    scores, target = trials(count=4)
    slopes = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64, requires_grad=True)
    single = [
        local_information(scores[k : k + 1], target[k : k + 1], slopes[k].item()) for k in range(4)
    ]
    assert_close(local_information(scores, target, slopes), torch.cat(single))
    assert torch.autograd.gradcheck(
        lambda s, w: local_information(s, target, w), (scores.requires_grad_(), slopes)
    )


SMALL_SETS = {
    "overlapping": lambda t, n: (t + 1, n),
    "apart": lambda t, n: (t + 8, n),
    "reversed": lambda t, n: (t - 3, n),
    "an outlier": lambda t, n: (torch.cat([t[1:] + 4, t[:1] - 1e3]), n),
    "ties": lambda t, n: ((2 * t).round(), (2 * n).round()),
    "ties at the border": lambda t, n: (t.round() + 2, n.round() - 1),
    **{
        f"{'one trial overlaps' if by > 0 else 'apart'} by {abs(by)}": lambda t, n, by=by: (
            torch.cat([t[1:] + 6, t.new_full((1,), 0.3)]),
            torch.cat([n[1:] - 6, n.new_full((1,), 0.3 + by)]),
        )
        for by in (1e-2, 1e-4, 1e-5, 1e-8, 0, -1e-8, -1e-4, -1e-2)
    },
}


@pytest.mark.parametrize("kind", SMALL_SETS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_slopes_converge_however_small_the_overlap(kind, dtype):
    draw = torch.Generator().manual_seed(0)
    for _ in range(10):
        targets, others = (torch.randn(n, generator=draw, dtype=torch.float64) for n in (10, 40))
        targets, others = (side.to(dtype) for side in SMALL_SETS[kind](targets, others))
        z, is_match = (
            torch.cat([targets[:, None], others.view(10, 4)], dim=1),
            torch.arange(5).expand(10, 5) == 0,
        )
        (slope,) = fit_logistic_slopes(z, is_match, z[:, :1], torch.zeros(10).long(), num_folds=1)
        sign = 1.0 if targets.mean() > others.mean() else -1.0
        expected = sign * reference.slope_of(
            *(sign * side.double().numpy() for side in (targets, others))
        )
        # Non-targets share bins: with forty of them, over a range of 12, the slope keeps two digits
        # and more.
        assert slope.item() == pytest.approx(expected, rel=2e-2)


def test_slope_without_convergence_warns_once(monkeypatch):
    monkeypatch.setattr(calibration, "_ITERATIONS", 1)
    with pytest.warns(UserWarning, match="did not converge") as caught:
        identify(*utterances()[1:])
    assert len(caught) == 1


def cross_fitted(scores, true, fold=None):
    """LID with the slope of all other speakers, or of those in other folds."""
    fold, bits = true if fold is None else fold, np.zeros(len(true))
    for k in np.unique(fold):
        slope = reference.fit_slope(scores[fold != k], true[fold != k])
        bits[fold == k] = reference.local_disclosure(scores[fold == k], true[fold == k], slope)
    return bits


@pytest.mark.parametrize("scoring", ["cosine", "euclidean"])
def test_cross_fitting_agrees_with_the_reference(scoring):
    original, protected, speakers = utterances()
    scores, true = reference_scores(
        original.numpy(), protected.numpy(), speakers.numpy(), None, scoring
    )
    values = identify(protected, speakers, original, scoring=scoring)
    assert_close(values.bits, torch.from_numpy(cross_fitted(scores, true)), atol=BINS, rtol=0)
    assert (
        values.linked.tolist()
        == (scores[np.arange(len(true)), true] >= scores.max(axis=1)).tolist()
    )


def test_many_speakers_share_one_slope_per_fold(monkeypatch):
    original, protected, speakers = utterances(rows=300, speakers=30)
    alone = identify(protected, speakers, original)
    monkeypatch.setattr(identification, "_MOST_FOLDS", 0)
    values = identify(protected, speakers, original)
    scores, true = reference_scores(original.numpy(), protected.numpy(), speakers.numpy())
    trials = references.validate_and_form_trials(protected, speakers, original, None)
    fold = (
        identification.order_references(trials).argsort()[trials.column[trials.usable]].numpy() % 10
    )
    assert_close(values.bits, torch.from_numpy(cross_fitted(scores, true, fold)), atol=BINS, rtol=0)
    assert not torch.equal(values.bits, alone.bits)
    assert_close(values.bits.mean(), alone.bits.mean(), atol=2e-2, rtol=0)


@pytest.mark.parametrize("few", [2**19, 2**10])
@pytest.mark.parametrize("folds", [256, 0])
@pytest.mark.parametrize("chosen", [False, True])
def test_speaker_labels_do_not_matter(monkeypatch, few, folds, chosen):
    monkeypatch.setattr(identification, "_MOST_SCORES", few)
    monkeypatch.setattr(identification, "_MOST_FOLDS", folds)
    # some of whom have one utterance, or none
    original, protected, speakers = utterances(rows=200, speakers=40)
    bits = []
    for seed in range(3):
        numbers = (
            torch.arange(200)
            if seed == 0
            else torch.randperm(200, generator=torch.Generator().manual_seed(seed))
        )
        renamed = numbers[speakers + 5] - 100
        known = (original[:100], renamed[:100]) if chosen else (original,)
        bits.append(identify(protected, renamed, *known).bits)
        assert_close(bits[seed], bits[0], atol=1e-9, rtol=0)


def test_slopes_of_subsampled_scores_match_the_exact_ones(monkeypatch):
    _, inputs, speakers = utterances(rows=2000, speakers=100, noise=1.5)
    exact = identify(inputs, speakers)
    monkeypatch.setattr(identification, "_MOST_SCORES", 2**16)  # a third
    some = identify(inputs, speakers)
    assert not torch.equal(some.bits, exact.bits)
    assert_close(some.bits.mean(), exact.bits.mean(), atol=5e-3, rtol=0)
    assert_close(some.bits, exact.bits, atol=0.2, rtol=0)
    order = torch.randperm(2000, generator=torch.Generator().manual_seed(1))
    assert_close(identify(inputs[order], speakers[order]).bits, some.bits[order])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_constant_features_disclose_nothing(dtype):
    voice = torch.randn(1, 193, generator=torch.Generator().manual_seed(0), dtype=dtype)
    values = identify(voice.repeat(300, 1), torch.arange(300) % 41)
    assert (values.bits == 0).all()
    assert not values.linked.any()


@pytest.mark.parametrize("count", [2, 30, 5000])
@pytest.mark.parametrize("sign", [1, -1])
def test_slope_of_two_separated_references_is_log_of_the_trial_count(count, sign):
    """Standardised, scores are 1 and -1 but for rounding.

    Of n trials and one the other way round, it is log n.
    """
    draw = torch.Generator().manual_seed(0)
    scores = (
        sign
        * torch.tensor([1.0, -1.0], dtype=torch.float64)
        * torch.rand(count, 1, generator=draw).double()
    )
    slope = fit_local_slope(scores + 0.3, torch.zeros(count, dtype=torch.int64))
    assert_close(slope.item(), sign * math.log(count), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("inputs", "speakers"),
    [
        (torch.eye(4)[[0, 1, 2]], torch.tensor([0, 0, 1])),  # no other speaker to fit the slope on
        (torch.eye(4).fill_diagonal_(torch.nan), torch.tensor([0, 0, 1, 1])),
    ],
)
def test_too_few_data_give_nan_with_one_warning(inputs, speakers):
    with pytest.warns(UserWarning, match="The result is NaN") as caught:
        summary = summarise_information(*identify(inputs, speakers)[1:3])
    assert len(caught) == 1
    assert all(value.isnan() and value.shape == () for value in summary.values())


def test_no_trials_give_a_nan_slope():
    scores, true = torch.ones(3, 1), torch.zeros(3, dtype=torch.int64)
    with pytest.warns(UserWarning, match="The result is NaN"):
        assert fit_local_slope(scores, true).isnan()
    with pytest.warns(UserWarning, match="The result is NaN"):
        assert local_information_disclosure(scores, true, 1.0)["pdr"].isnan()
