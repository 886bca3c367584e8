"""Sessions, groups and enrolment in the suite, and what attackers have observed."""

import pytest
import torch
from reports import Everything, compute
from samples import people
from torch.nn.functional import normalize
from torch.testing import assert_close

from vpmetrics import StrongestAttack, VoicePrivacy
from vpmetrics.attacks import Centred, Plain, Procrustes, RidgeToOriginal
from vpmetrics.functional import calibration_distortion

FEW = (Plain(), Centred(), RidgeToOriginal(), Procrustes())


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_key_per_session_links_only_within_sessions():
    original, _, names = people(number=20, each=12, width=24)
    sessions = torch.arange(240) % 2
    speaker_number = torch.arange(240) // 12
    # A pseudo-voice per speaker, and in each session another one, or not.
    pseudo_voices = 2 * normal(2, 20, 24, seed=1)
    noise = normal(240, 24, seed=2)
    protected = pseudo_voices[sessions, speaker_number] + noise
    values = compute(Everything(attacks=FEW), original, protected, names, sessions=sessions)
    assert values["within_d_ece"] > 0.6
    assert values["across_d_ece"] < 0.02
    assert values["across_d_ece_strongest"] < 0.05
    assert values["within_mean_d"] > 10 * values["within_mean_d_chance"]
    assert values["across_mean_d"] < 4 * values["across_mean_d_chance"]
    assert values["op_c_ece"].abs() < 0.05
    protected = pseudo_voices[0, speaker_number] + noise
    values = compute(Everything(), original, protected, names, sessions=sessions)
    assert_close(values["within_d_ece"], values["across_d_ece"], atol=0.02, rtol=0)


def test_calibration_is_evaluated_on_held_out_sessions():
    original, protected, names = people(number=20, each=12, width=24)
    sessions = torch.arange(240) % 3
    metric = VoicePrivacy(metrics=["op_c_ece"], attacks=None)
    found = compute(metric, original, protected, names, sessions=sessions)["op_c_ece"]
    # By hand: sessions 1 and 2 against session 0, both ways.
    scores = normalize(original) @ normalize(protected).T
    is_same_speaker = names[:, None] == names
    is_trial = ~torch.eye(240, dtype=torch.bool)
    runs = []
    for is_tested in (sessions > 0, sessions == 0):
        is_trial_of_run = is_trial[:, is_tested]
        scores_of_run = scores[:, is_tested][is_trial_of_run]
        runs.append((scores_of_run, is_same_speaker[:, is_tested][is_trial_of_run]))
    forth = calibration_distortion(*runs[0], *runs[1])
    back = calibration_distortion(*runs[1], *runs[0])
    assert_close(found, (forth + back) / 2, atol=1e-9, rtol=0)


def test_trials_stay_within_groups_and_each_group_is_reported():
    rows = people(number=16, each=6)
    groups = torch.arange(96) // 6 % 2
    metric = Everything()
    metric.update(*rows, groups=groups)
    report = metric.report()
    assert list(report.groups) == [0, 1]
    for group, known in report.groups.items():
        values = compute(Everything(), *(column[groups == group] for column in rows))
        assert_close({key: known.scalars[key] for key in values}, values, equal_nan=True)
    trials = [sum(known.conditions["OP"].num_trials) for known in report.groups.values()]
    assert sum(report.conditions["OP"].num_trials) == sum(trials)
    assert report.matrices.speakers.tolist() == rows[2].unique().tolist()
    assert report.matrices.op[0, 1].isnan()


def test_missing_columns():
    original, protected, names = people()
    with pytest.raises(ValueError, match="Expected `is_reference` with enrolment='speaker'"):
        VoicePrivacy(attacks=None, enrolment="speaker").update(original, protected, names)
    with pytest.warns(UserWarning, match="sessions"):
        assert compute(StrongestAttack("across", attacks=FEW), original, protected, names)[
            "d_ece_strongest"
        ].isnan()


def watching():
    """A metric whose attackers learn most from what they observe, its batch, what to observe."""
    rotation = torch.linalg.qr(normal(16, 16, seed=2))[0]
    original, _, names = people(number=8, each=4, width=16)
    batch = (original, original @ rotation, names)
    original, _, names = people(seed=1, number=30, width=16)
    observed = (original, original @ rotation, names)
    return StrongestAttack(attacks=FEW), batch, observed


def test_observe_copies_its_input():
    metric, batch, observed = watching()
    expected = StrongestAttack(attacks=FEW)
    rows = [column.clone() for column in observed]
    metric.observe(*rows)
    for column in rows:
        column.zero_()
    expected.observe(*observed)
    assert_close(compute(metric, *batch), compute(expected, *batch), equal_nan=True)


def test_invalid_observed_batch_raises_and_keeps_the_state():
    metric, batch, observed = watching()
    metric.observe(*observed)
    expected = compute(metric, *batch)
    narrow = observed[0][:, :4]
    missing = observed[0].index_fill(0, torch.tensor([3]), torch.nan)
    for wrong, error, message in [
        ((narrow, narrow, observed[2]), ValueError, "`original` to be 16 wide"),
        ((missing, *observed[1:]), ValueError, "`original` to hold finite numbers"),
        ((*observed[:2], observed[2][1:]), ValueError, "`speakers` to have shape"),
        ((None, *observed[1:]), TypeError, "`original` to be"),
    ]:
        with pytest.raises(error, match=message):
            metric.observe(*wrong)
    metric._computed = None
    assert_close(metric.compute(), expected, equal_nan=True)
    # An attacker cannot use what it learnt on embeddings of another width.
    metric.reset()
    with pytest.raises(ValueError, match="`original` to be 16 wide"):
        metric.update(*(column[:, :4] for column in batch[:2]), batch[2])


def test_observed_nan_gives_nan_with_a_warning():
    metric, batch, (original, *others) = watching()
    metric.validate_args = False
    metric.update(*batch)
    metric.observe(original.index_fill(0, torch.tensor([3]), torch.nan), *others)
    with pytest.warns(UserWarning, match="observed, are not finite"):
        assert all(value.isnan() for value in metric.compute().values())
    metric.reset(observed=True)
    assert compute(metric, *batch)["d_ece_strongest"].isfinite()


def test_single_speaker_group_does_not_change_other_groups():
    original, _, names = people(number=9, each=4)
    both = compute(Everything(), original, original + 1, names, groups=(names == names[-1]).long())
    rest = compute(Everything(), original[:32], original[:32] + 1, names[:32])
    keys = [f"op_{key}" for key in ("max_d", "mean_d", "id_rate", "alid", "pdr", "link_rate")]
    assert_close({key: both[key] for key in keys}, {key: rest[key] for key in keys})
