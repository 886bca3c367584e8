"""One report, from embeddings or from trials.

Values of the functions, mean scores, profiles, chance levels.
"""

import pytest
import reference
import torch
from reports import make_report, make_trials
from samples import voices
from torch.testing import assert_close

from vpmetrics import functional as F
from vpmetrics._identification.identification import chance_mean_d
from vpmetrics._scores.measures import SCORE_MEASURES, actual_cross_entropy
from vpmetrics.report.trial_report import report_trials

ODDS = torch.linspace(-7, 7, 141, dtype=torch.float64)


def test_score_report_matches_the_references():
    trials = {name: make_trials(seed) for seed, name in enumerate(("OO", "OP", "PP"))}
    report = report_trials(trials, num_speakers=6)
    for name, (scores, is_target, *_) in trials.items():
        expected = reference.verification.score_measures(scores.numpy(), is_target.numpy())
        assert set(expected) == set(SCORE_MEASURES)
        for key, value in expected.items():
            found = report.scalars[f"{name.lower()}_{key}"].item()
            assert found == pytest.approx(value, abs=1e-12, nan_ok=True), key
    assert {"deid", "gvd", "d_ece_op_oo", "g_cllr"} <= set(report.scalars)


def test_calibration_of_another_run_matches_the_function():
    attacked = make_trials(1)
    other = make_trials(2, distance=1.0)
    report = report_trials({"OO": make_trials(0), "OP": attacked}, other, num_speakers=6)
    for kind in ("linear", "isotonic"):
        expected = F.calibration_distortion(*attacked[:2], *other[:2], kind)
        assert_close(report.scalars[f"c_ece_{kind}"], expected, rtol=0, atol=1e-12)
        assert_close(
            report.scalars[f"cllr_{kind}"], F.cllr(report.transfer.llr[kind], attacked.is_target)
        )
    assert_close(report.transfer.other.scalars["d_ece"], F.zebra_disclosure(*other[:2])["d_ece"])


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_raw_profile_of_many_scores_matches_the_exact_profile(spread):
    draw = torch.Generator().manual_seed(0)
    is_target = torch.rand(50_000, generator=draw) < 0.1
    scores = spread * (torch.randn(50_000, generator=draw, dtype=torch.float64) + is_target)
    got = actual_cross_entropy(scores, torch.stack([~is_target, is_target]), ODDS)
    assert_close(got, F.ece_profile(scores, is_target, ODDS).actual, rtol=0, atol=1e-5)


def test_misleading_infinite_scores_give_an_infinite_profile():
    is_target = torch.arange(40_000) % 2 == 0
    scores = torch.where(is_target, torch.inf, torch.linspace(-1, 1, 40_000, dtype=torch.float64))
    counts = torch.stack([~is_target, is_target])
    assert actual_cross_entropy(scores, counts, ODDS).isfinite().all()
    assert actual_cross_entropy(scores, counts.flip(0), ODDS).isinf().all()


@pytest.mark.parametrize(
    ("model", "ranks", "inputs", "tolerance"),
    [
        ("empirical", 20, 400, {"rel": 0.08}),
        ("beta_binomial", 20, 400, {"rel": 0.6}),
        # forty speakers of two utterances: the rule for many inputs says 0.35
        ("empirical", 40, 80, {"abs": 0.015}),
    ],
)
def test_chance_mean_d_matches_uniform_ranks(model, ranks, inputs, tolerance):
    draw = torch.Generator().manual_seed(0)
    drawn = torch.randint(ranks, (300, inputs), generator=draw)
    histograms = (
        torch.zeros(300, ranks).double().scatter_add(1, drawn, torch.ones(drawn.shape).double())
    )
    shown = F.rank_disclosure(histograms, model)["mean_d"].mean().item()
    assert float(chance_mean_d(histograms[0], model, inputs)) == pytest.approx(shown, **tolerance)
    assert shown > 0.37 or inputs > 80


# --- Chance levels


@pytest.mark.parametrize("steady", [True, False])
def test_perfect_system_is_at_chance_level(steady):
    tolerances = {
        "op_linkability": {"rel": 0.25},
        "op_mean_d": {"rel": 0.25},
        "op_alid": {"abs": 0.02},
    }
    keys = [key + suffix for key in tolerances for suffix in ("", "_chance")]
    keys += ["worst_speaker_disclosure", "worst_speaker_chance", "worst_speaker_p"]
    reports = []
    for seed in range(12):
        # a pseudo-voice per speaker, or noise per utterance
        rows = voices(speakers=30, leak=0.0, seed=seed)
        if not steady:
            rows["protected"] = torch.randn(240, 16, generator=torch.Generator().manual_seed(seed))
        reports.append(make_report(rows, metrics=keys))
    mean = {key: sum(float(each.scalars[key]) for each in reports) / 12 for key in keys}
    for key, tolerance in tolerances.items():
        assert mean[key] == pytest.approx(mean[f"{key}_chance"], **tolerance), key
    if steady:  # voices of one draw of the secret link: the verdict says so
        return
    assert mean["worst_speaker_disclosure"] == pytest.approx(mean["worst_speaker_chance"], rel=0.15)
    # One in twenty draws is expected to exceed all permutations.
    assert sum(float(each.scalars["worst_speaker_p"]) <= 0.05 for each in reports) <= 2


def test_leaking_system_is_above_chance_level():
    values = make_report(voices(speakers=30, leak=1.0)).scalars
    for key in ("linkability", "mean_d", "alid"):
        assert values[f"op_{key}"] > 1.5 * values[f"op_{key}_chance"], key
    assert values["worst_speaker_disclosure"] > values["worst_speaker_chance"] + 0.1
    assert values["worst_speaker_p"] == 0.01
