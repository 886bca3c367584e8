"""Score measures: the true-positive rate, ties included, and what every entry promises."""

import math

import pytest
import reference
import torch
from samples import gaussians

from vpmetrics import TPRAtFPR
from vpmetrics._scores.condition_scores import collect_trial_scores
from vpmetrics._scores.measures import SCORE_MEASURES, found_among_of_steps
from vpmetrics._scores.score_counts import expected_disclosure
from vpmetrics.functional import tpr_at_fpr


@pytest.mark.parametrize(
    "levels", [None, 0.5, 2, 20], ids=lambda levels: f"{levels} levels per deviation"
)
@pytest.mark.parametrize("fpr", [0.02, 0.1, 1 / 3, 0.9])
def test_tpr_matches_a_threshold_sweep(levels, fpr):
    for seed in range(10):
        preds, target = gaussians(60, 700, distance=1.0, seed=seed)
        preds = preds if levels is None else (preds * levels).round()
        expected = reference.verification.tpr_at_fpr(preds.numpy(), target.numpy(), fpr)
        assert list(tpr_at_fpr(preds, target, (fpr,)).values()) == [
            pytest.approx(expected, abs=1e-12)
        ]


def test_tpr_by_hand():
    # Of 100 non-targets the highest ten lie above 89; half of the targets do.
    preds, target = (
        torch.cat([torch.arange(100.0), torch.tensor([95.0, 92.5, 50.0, 20.0])]),
        torch.arange(104) >= 100,
    )
    assert tpr_at_fpr(preds, target, fpr=(0.1,)) == {"tpr_at_1e-1": torch.tensor(0.5)}
    # All tied: accepting a share of the non-targets accepts the same share of the targets.
    assert tpr_at_fpr(torch.zeros(104), target, fpr=(0.25,))["tpr_at_2.5e-1"] == 0.25
    # Nothing and everything told apart.
    assert tpr_at_fpr(torch.arange(104.0), target, fpr=(0.1,))["tpr_at_1e-1"] == 1
    assert tpr_at_fpr(-torch.arange(104.0), target, fpr=(0.1,))["tpr_at_1e-1"] == 0
    # Fewer than ten false alarms are too few.
    values = tpr_at_fpr(torch.arange(1100.0), torch.arange(1100) >= 999, fpr=(0.01, 0.011))
    assert values["tpr_at_1e-2"].isnan()
    assert values["tpr_at_1.1e-2"] == 1


def test_binned_tpr_bounds_the_exact_value():
    preds, target = gaussians(500, 20_000, distance=2.0)
    exact, binned = (TPRAtFPR(thresholds=thresholds) for thresholds in (None, 4096))
    for metric in (exact, binned):
        metric.update(preds, target)
    for key, value in exact.compute().items():
        assert binned.compute()[key] == pytest.approx(value.item(), abs=0.01), key


@pytest.mark.parametrize("fpr", [0.01, (), (0.0,), (1.0,), ("a",), "0.1", (1,)])
def test_invalid_rates_raise(fpr):
    for make in (
        lambda: TPRAtFPR(fpr=fpr),
        lambda: tpr_at_fpr(torch.rand(4), torch.arange(4) % 2, fpr=fpr),
    ):
        with pytest.raises(
            ValueError, match="Expected `fpr` to be a sequence of rates between 0 and 1"
        ):
            make()


@pytest.mark.parametrize("key", SCORE_MEASURES)
def test_every_measure_is_described_varies_and_stays_in_its_range(key):
    measure, found = SCORE_MEASURES[key], set()
    low, high = measure.range
    for distance in (-3.0, 0.0, 0.5, 8.0):
        value = measure(collect_trial_scores(*gaussians(200, 20_000, distance)).measure_input)
        assert low - 1e-12 <= value <= high + 1e-12, distance
        found.add(float(value))
    assert len(found) > 1
    assert measure.description


# --- Found among 100 people


@pytest.mark.parametrize(
    "levels", [None, 0.5, 2, 20], ids=lambda levels: f"{levels} levels per deviation"
)
def test_found_among_100_matches_the_sum_over_ties(levels):
    for seed in range(5):
        preds, target = gaussians(40, 1500, distance=1.0, seed=seed)
        preds = preds if levels is None else (preds * levels).round()
        steps = collect_trial_scores(preds, target).counts.ascending
        expected = reference.verification.found_among(preds.numpy(), target.numpy())
        assert float(found_among_of_steps(steps)) == pytest.approx(expected, abs=1e-12)


def test_found_among_100_by_hand():
    def found(targets, nontargets):
        preds = torch.cat([torch.tensor(targets), nontargets])
        return float(
            found_among_of_steps(
                collect_trial_scores(preds, torch.arange(len(preds)) < len(targets)).counts[0]
            )
        )

    others = torch.arange(1000.0)
    assert found([2000.0], others) == 1
    assert found([-1.0], others) == 0
    assert found([899.5], others) == pytest.approx(0.9**99)
    assert found([0.0], torch.zeros(1000)) == pytest.approx(0.01)  # one voice for all
    assert found([2000.0, -1.0], others) == 0.5
    assert math.isnan(found([2000.0], others[:999]))


def test_found_among_100_agrees_with_a_simulation():
    draw = torch.Generator().manual_seed(0)
    preds, target = gaussians(300, 3000, distance=1.5)
    preds = (preds * 4).round()  # with ties
    own, others = preds[target], preds[~target]
    drawn = others[torch.randint(3000, (4000, 300, 99), generator=draw)]
    is_best = (drawn <= own[:, None]).all(2)
    num_tied = (drawn == own[:, None]).sum(2)
    simulated = (is_best / (1 + num_tied)).mean()
    found = found_among_of_steps(collect_trial_scores(preds, target).counts.ascending)
    assert float(found) == pytest.approx(float(simulated), abs=0.003)


def test_found_among_100_of_gaussian_scores_is_the_table_of_the_guide():
    # Bits and risk by one utterance, as the verdict's limits are explained.
    for bits, share in ((0.029, 0.032), (0.109, 0.083), (0.220, 0.18)):
        distances = torch.linspace(0.2, 2.5, 24)
        known = []
        for distance in distances.tolist():
            steps = collect_trial_scores(*gaussians(20_000, 50_000, distance)).counts.ascending
            known.append((float(expected_disclosure(steps)), float(found_among_of_steps(steps))))
        disclosure, found = torch.tensor(known).T
        index = int((disclosure - bits).abs().argmin())
        assert float(found[index]) == pytest.approx(share, rel=0.35)
