"""Sessions, groups and enrolment in the suite, and what attackers have observed."""

import pytest
import torch
from reports import Everything, compute
from torch.testing import assert_close

from vpmetrics import CalibrationDistortion, EmbeddingTrials, StrongestAttack, VoicePrivacy
from vpmetrics.attacks import Centred, Plain, Procrustes, RidgeToOriginal
from vpmetrics.functional import calibration_distortion

FEW = (Plain(), Centred(), RidgeToOriginal(), Procrustes())


def voices(speakers, utterances=20, width=24, seed=0):
    draw = torch.Generator().manual_seed(seed)
    names = torch.arange(speakers * utterances) % speakers
    own = torch.randn(speakers, width, generator=draw, dtype=torch.float64)
    return own[names] + torch.randn(len(names), width, generator=draw, dtype=torch.float64), names, draw


def test_identity_system_discloses_as_much_as_the_original():
    original, names, _ = voices(20)
    metric = Everything(attacks=FEW)
    metric.update(original, original, names)
    values = metric.compute()
    assert_close(values["op_d_ece_strongest"], values["oo_d_ece"], atol=0.03, rtol=0)
    assert metric.attack_names[int(values["op_strongest"])] == "plain"


def keyed(original, names, sessions, draw):
    """A pseudo-voice per speaker and session, and a trace of the own one."""
    pseudo = torch.randn(int(sessions.max() + 1), int(names.max() + 1), original.shape[1], generator=draw).double()
    noise = torch.randn(original.shape, generator=draw, dtype=torch.float64)
    return 2 * pseudo[sessions, names] + noise


def test_key_per_session_links_only_within_sessions():
    original, names, draw = voices(20, utterances=12)
    sessions = torch.arange(len(names)) // 20 % 2
    protected = keyed(original, names, sessions, draw)
    values = compute(Everything(attacks=FEW), original, protected, names, sessions=sessions)
    assert values["within_d_ece"] > 0.6
    assert values["across_d_ece"] < 0.02
    assert values["across_d_ece_strongest"] < 0.05
    assert values["within_mean_d"] > 10 * values["within_mean_d_chance"]
    assert values["across_mean_d"] < 4 * values["across_mean_d_chance"]
    assert values["op_c_ece"].abs() < 0.05


def test_calibration_is_evaluated_on_held_out_sessions():
    original, names, draw = voices(20, utterances=12)
    sessions = torch.arange(len(names)) // 20 % 3
    protected = 0.6 * original + torch.randn(original.shape, generator=draw, dtype=torch.float64)
    metric = EmbeddingTrials(CalibrationDistortion(), condition="OP")
    metric.update(original, protected, names, sessions=sessions)
    assert_close(metric.compute(), compute(Everything(), original, protected, names, sessions=sessions)["op_c_ece"])
    # By hand: sessions 0 and 1 against session 2, both ways.
    normal = torch.nn.functional.normalize
    scores, same = normal(original) @ normal(protected).T, names[:, None] == names
    other = ~torch.eye(len(names), dtype=torch.bool)
    runs = [(scores[:, rows][other[:, rows]], same[:, rows][other[:, rows]]) for rows in (sessions < 2, sessions == 2)]
    values = [calibration_distortion(*runs[k], *runs[1 - k]) for k in (0, 1)]
    assert_close(metric.compute(), sum(values) / 2, atol=1e-9, rtol=0)
    lone = EmbeddingTrials(CalibrationDistortion())
    lone.update(original, protected, names)
    with pytest.warns(UserWarning, match="requires `sessions`"):
        assert lone.compute().isnan()


def test_shared_key_links_across_sessions():
    original, names, draw = voices(20, utterances=12)
    sessions = torch.arange(len(names)) // 20 % 2
    protected = keyed(original, names, torch.zeros_like(sessions), draw)
    values = compute(Everything(), original, protected, names, sessions=sessions)
    assert_close(values["within_d_ece"], values["across_d_ece"], atol=0.02, rtol=0)


def test_trials_stay_within_groups_and_each_group_is_reported():
    original, names, draw = voices(16, utterances=6)
    protected = 0.5 * original + torch.randn(original.shape, generator=draw, dtype=torch.float64)
    groups = names % 2
    metric = Everything()
    metric.update(original, protected, names, groups=groups)
    report = metric.report()
    assert list(report.groups) == [0, 1]
    for group, known in report.groups.items():
        rows = groups == group
        for key, value in compute(Everything(), original[rows], protected[rows], names[rows]).items():
            assert_close(known.scalars[key], value, equal_nan=True)
    trials = [sum(known.conditions["OP"].num_trials) for known in report.groups.values()]
    assert sum(report.conditions["OP"].num_trials) == sum(trials)
    assert report.matrices.speakers.tolist() == list(range(16))
    assert bool(report.matrices.op[0, 1].isnan())


def test_enrolment_by_means_requires_references():
    original, names, _ = voices(10, utterances=8)
    with pytest.raises(ValueError, match="Expected `is_reference` with enrolment='speaker'"):
        VoicePrivacy(attacks=None, enrolment="speaker").update(original, original, names)


def test_conditions_of_sessions_without_sessions_are_nan():
    original, names, _ = voices(8)
    with pytest.warns(UserWarning, match="sessions"):
        assert compute(StrongestAttack("across", attacks=FEW), original, original, names)["d_ece_strongest"].isnan()


def watching():
    """A metric whose attackers learn most from what they observe, with its batch and what to observe."""
    original, names, draw = voices(8, utterances=4, width=16)
    other, others, _ = voices(30, utterances=6, width=16, seed=1)
    matrix = torch.linalg.qr(torch.randn(16, 16, generator=draw, dtype=torch.float64))[0]
    return StrongestAttack(attacks=FEW), (original, original @ matrix, names), (other, other @ matrix, others)


def test_observe_copies_its_input():
    metric, batch, observed = watching()
    metric.update(*batch)
    rows = [column.clone() for column in observed]
    metric.observe(*rows)
    for column in rows:
        column.zero_()
    again = StrongestAttack(attacks=FEW)
    again.observe(*observed)
    assert_close(metric.compute(), compute(again, *batch))


def test_invalid_observed_batch_raises_and_keeps_the_state():
    metric, batch, observed = watching()
    metric.observe(*observed)
    metric.update(*batch)
    expected = metric.compute()
    narrow = observed[0][:, :4]
    missing = observed[0].clone().index_fill(0, torch.tensor([3]), torch.nan)
    for wrong, message in [
        ((narrow, narrow, observed[2]), "`original` to be 16 wide"),
        ((missing, *observed[1:]), "`original` to hold finite numbers"),
        ((*observed[:2], observed[2][1:]), "`speakers` to have shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            metric.observe(*wrong)
    with pytest.raises(TypeError, match="`original` to be"):
        metric.observe(None, *observed[1:])
    assert_close(metric.compute(), expected)
    # An attacker cannot use what it learnt on embeddings of another width.
    metric.reset()
    with pytest.raises(ValueError, match="`original` to be 16 wide"):
        metric.update(*(column[:, :4] for column in batch[:2]), batch[2])


def test_observed_nan_gives_nan_with_a_warning():
    metric, batch, observed = watching()
    metric.validate_args = False
    metric.update(*batch)
    metric.observe(observed[0].index_fill(0, torch.tensor([3]), torch.nan), *observed[1:])
    with pytest.warns(UserWarning, match="observed, are not finite"):
        assert all(value.isnan() for value in metric.compute().values())
    metric.reset(observed=True)
    assert compute(metric, *batch)["d_ece_strongest"].isfinite()


@pytest.mark.filterwarnings("ignore:Linkability needs")
@pytest.mark.parametrize("is_constant", [False, True])
def test_result_is_independent_of_session_and_group_labels(is_constant):
    original, names, draw = voices(10, utterances=6, width=8)
    protected = 0.5 * original + torch.randn(original.shape, generator=draw, dtype=original.dtype)
    if is_constant:  # so that only the original speech of their recordings tells sessions apart
        protected = torch.ones_like(protected)
    sessions, groups, order = torch.arange(60) // 10 % 3, names % 2, torch.randperm(60, generator=draw)

    def value(rows, speakers, sessions, groups):
        metric = Everything()
        for part in rows.tensor_split(2):
            metric.update(original[part], protected[part], speakers[part], sessions=sessions[part], groups=groups[part])
        values = metric.compute()
        # Who is worst protected goes by the names of speakers.
        return {key: value for key, value in values.items() if not key.endswith("worst_speaker")}

    # Three sessions cannot be halved: which are the first two must not follow from what they are called.
    expected = value(torch.arange(60), names, sessions, groups)
    assert expected["op_c_ece"].isfinite()
    assert expected["across_alid"].isfinite()
    renamed = value(order, 90 - 7 * names, torch.tensor([4, -1, 2])[sessions], 5 - groups)
    assert_close(renamed, expected, atol=1e-9, rtol=0, equal_nan=True)


def test_single_speaker_group_does_not_change_other_groups():
    original, names, _ = voices(9, utterances=4, width=8)
    rows = original, original + 1, names
    both = compute(Everything(), *rows, groups=(names == 8).long())
    rest = compute(Everything(), *(column[names < 8] for column in rows))
    for key in ("max_d", "mean_d", "id_rate", "alid", "pdr", "link_rate"):
        assert_close(both[f"op_{key}"], rest[f"op_{key}"])
