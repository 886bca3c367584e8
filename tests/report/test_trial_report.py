"""Trials that come with their scores.

What leaving speakers out of a list says is what the shorter list says.
"""

import pytest
import reference.verification as reference
import torch
from reports import assert_replicates, make_report
from samples import voices
from scipy.optimize import minimize
from torch.nn.functional import normalize
from torch.testing import assert_close

from vpmetrics import functional as F
from vpmetrics._scores import jackknife
from vpmetrics._scores.jackknife import split_labels_into_groups
from vpmetrics._scores.measures import llr_disclosure
from vpmetrics.report.trial_report import ScoredTrials, report_trials


def listed(rows, condition="OP"):
    """All trials of a condition of embeddings, as a list has them."""
    sides = {"O": normalize(rows["original"]), "P": normalize(rows["protected"])}
    scores = 4 * sides[condition[0]] @ sides[condition[1]].T
    kept = ~torch.eye(len(scores), dtype=torch.bool)
    kept = kept.triu() if condition != "OP" else kept
    pairs = rows["speakers"][kept.nonzero().T]
    return ScoredTrials(
        scores[kept], pairs[0] == pairs[1], pairs, has_unordered_pairs=condition != "OP"
    )


def take(trials, kept):
    columns = (trials.scores[kept], trials.is_target[kept], trials.speakers[:, kept])
    return ScoredTrials(*columns, trials.has_unordered_pairs)


def some(trials, share, seed=0):
    """A list that has not all pairs, and of two speakers none."""
    pairs = trials.speakers
    kept = torch.rand(len(trials.scores), generator=torch.Generator().manual_seed(seed)) < share
    kept &= ~((pairs.amin(0) == 1) & (pairs.amax(0) == 4))
    return take(trials, kept)


def without(trials, speaker):
    shorter = take(trials, (trials.speakers != speaker).all(0))
    # Numbers without a gap: a matrix has no row for who is in no trial.
    return shorter._replace(speakers=shorter.speakers - (shorter.speakers > speaker).long())


@pytest.mark.parametrize("similarity", ["geometric", "sigmoid"])
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_replicate_equals_the_report_without_that_speaker(similarity, share):
    trials = {name: some(listed(voices(), name), share) for name in ("OO", "OP", "PP")}
    report = report_trials(trials, None, 12, similarity, intervals=0.95)
    again = []
    for speaker in range(12):
        shorter = {name: without(one, speaker) for name, one in trials.items()}
        again.append(report_trials(shorter, None, 11, similarity, intervals=0.95).scalars)
    assert {"deid", "gvd", "op_d_ece", "pp_eer", "oo_d_diag_log", "d_ece_op_oo"} <= set(
        report.jackknife.changes
    )
    assert_replicates(report, again, coarse=("linkability", "raw_eer", "tpr"))


def test_list_of_all_pairs_matches_embedding_intervals():
    rows = voices()
    expected = make_report(rows, intervals=0.95).scalars
    found = report_trials(
        {name: listed(rows, name) for name in ("OO", "OP", "PP")}, None, 12, intervals=0.95
    )
    for key in ("deid", "gvd", "op_d_ece", "op_eer", "pp_min_cllr", "oo_d_diag", "g_d_ece"):
        width = expected[f"{key}_high"] - expected[f"{key}_low"]
        for end in ("low", "high"):
            assert (
                abs(found.scalars[f"{key}_{end}"] - expected[f"{key}_{end}"]) < 0.05 * width + 1e-6
            ), key


def test_calibration_of_another_run_is_fixed_in_replicates():
    attacked, learnt = (some(listed(voices(seed=seed)), 0.5) for seed in (0, 1))
    report = report_trials({"": attacked}, learnt, 12, None, intervals=0.95)
    llr = report.transfer.llr["linear"]
    blocks = split_labels_into_groups(torch.arange(12))
    for speaker in (0, 5):
        kept = (attacked.speakers != speaker).all(0)
        for key, cost in (("c_ece", llr_disclosure), ("cllr", F.cllr)):
            found = attacked.replicate_costs(key, llr, blocks)[1 + speaker]
            assert_close(found, cost(llr[kept], attacked.is_target[kept]), rtol=0, atol=1e-12)
    for key in ("c_ece_linear", "c_ece_isotonic", "cllr_linear", "cllr_isotonic"):
        low, value, high = (report.scalars[f"{key}{end}"] for end in ("_low", "", "_high"))
        assert low < value < high


def test_calibration_is_cross_fitted_over_speaker_halves():
    trials = some(listed(voices()), 0.5)
    halves = trials.calibrate_across_speaker_halves()
    within = [(trials.speakers % 2 == number).all(0) for number in (0, 1)]
    for own, learnt, found in zip(within, within[::-1], halves, strict=True):
        scores = trials.scores[learnt].numpy()
        labels = trials.is_target[learnt].numpy()
        best = minimize(
            lambda x, s, t: reference.cllr(x[0] * s + x[1], t),
            [1.0, 0.0],
            (scores, labels),
            tol=1e-10,
        )
        expected = best.x[0] * trials.scores[own] + best.x[1]
        assert_close(found.scores, expected, rtol=0, atol=1e-3)
        assert bool((found.is_target == trials.is_target[own]).all())
    lone = without(listed(voices(speakers=3)), 2)  # of two speakers, one in each half
    assert lone.calibrate_across_speaker_halves() == []


def test_result_is_independent_of_trial_order_and_pair_order():
    trials = some(listed(voices(), "PP"), 0.6)
    order = torch.randperm(len(trials.scores), generator=torch.Generator().manual_seed(3))
    turned = torch.rand(len(order), generator=torch.Generator().manual_seed(4)) < 0.5
    pairs = torch.where(turned, trials.speakers.flip(0), trials.speakers)
    other = take(trials._replace(speakers=pairs), order)
    one, two = (
        report_trials({"PP": each}, None, 12, intervals=0.9).scalars for each in (trials, other)
    )
    for key, value in one.items():
        assert_close(two[key], value, rtol=0, atol=1e-9, msg=key, equal_nan=True)


def test_jackknife_groups_many_speakers_by_label(monkeypatch):
    trials = some(listed(voices(speakers=30)), 0.5)
    alone = report_trials({"": trials}, None, 30, None, intervals=0.95).scalars
    monkeypatch.setattr(jackknife, "MOST_GROUPS", 15)
    assert split_labels_into_groups(torch.arange(30)).group_of_label.bincount().tolist() == [2] * 15
    found = report_trials({"": trials}, None, 30, None, intervals=0.95).scalars
    widths = [float(each["d_ece_high"] - each["d_ece_low"]) for each in (alone, found)]
    assert widths[1] == pytest.approx(widths[0], rel=0.5)


def test_a_list_of_one_class_has_counts_but_no_measures():
    trials = listed(voices(speakers=3))
    one = take(trials, trials.is_target)
    with pytest.warns(UserWarning, match="There are no non-target trials") as caught:
        report = report_trials({"": one}, None, 3, None, intervals=0.95)
    assert len(caught) == 1
    assert report.conditions[""].num_trials == (len(one.scores), 0)
    assert all(report.scalars[f"d_ece{end}"].isnan() for end in ("", "_low", "_high"))
