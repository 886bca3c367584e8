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
    return own[names] + normal((len(names), width), draw), names, draw


def normal(shape, draw):
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def test_identity_system_discloses_as_much_as_the_original():
    original, names, _ = voices(20)
    metric = Everything(attacks=FEW)
    values = compute(metric, original, original, names)
    assert_close(values["op_d_ece_strongest"], values["oo_d_ece"], atol=0.03, rtol=0)
    assert metric.attack_names[int(values["op_strongest"])] == "plain"


def test_key_per_session_links_only_within_sessions():
    original, names, draw = voices(20, utterances=12)
    sessions = torch.arange(240) // 20 % 2
    # A pseudo-voice per speaker, and in each session another one, or not.
    pseudo, noise = 2 * normal((2, 20, 24), draw), normal(original.shape, draw)
    values = compute(Everything(attacks=FEW), original, pseudo[sessions, names] + noise, names, sessions=sessions)
    assert values["within_d_ece"] > 0.6
    assert values["across_d_ece"] < 0.02
    assert values["across_d_ece_strongest"] < 0.05
    assert values["within_mean_d"] > 10 * values["within_mean_d_chance"]
    assert values["across_mean_d"] < 4 * values["across_mean_d_chance"]
    assert values["op_c_ece"].abs() < 0.05
    values = compute(Everything(), original, pseudo[0, names] + noise, names, sessions=sessions)
    assert_close(values["within_d_ece"], values["across_d_ece"], atol=0.02, rtol=0)


def test_calibration_is_evaluated_on_held_out_sessions():
    original, names, draw = voices(20, utterances=12)
    sessions = torch.arange(240) // 20 % 3
    rows = original, 0.6 * original + normal(original.shape, draw), names
    found = compute(EmbeddingTrials(CalibrationDistortion(), condition="OP"), *rows, sessions=sessions)
    assert_close(found, compute(Everything(), *rows, sessions=sessions)["op_c_ece"])
    # By hand: sessions 0 and 1 against session 2, both ways.
    unit = [torch.nn.functional.normalize(side) for side in rows[:2]]
    scores, same, other = unit[0] @ unit[1].T, names[:, None] == names, ~torch.eye(240, dtype=torch.bool)
    runs = [(scores[:, of][other[:, of]], same[:, of][other[:, of]]) for of in (sessions < 2, sessions == 2)]
    values = [calibration_distortion(*runs[k], *runs[1 - k]) for k in (0, 1)]
    assert_close(found, sum(values) / 2, atol=1e-9, rtol=0)
    with pytest.warns(UserWarning, match="requires `sessions`"):
        assert compute(EmbeddingTrials(CalibrationDistortion()), *rows).isnan()


def test_trials_stay_within_groups_and_each_group_is_reported():
    original, names, draw = voices(16, utterances=6)
    protected, groups = 0.5 * original + normal(original.shape, draw), names % 2
    metric = Everything()
    metric.update(original, protected, names, groups=groups)
    report = metric.report()
    assert list(report.groups) == [0, 1]
    for group, known in report.groups.items():
        rows = groups == group
        values = compute(Everything(), original[rows], protected[rows], names[rows])
        assert_close({key: known.scalars[key] for key in values}, values, equal_nan=True)
    trials = [sum(known.conditions["OP"].num_trials) for known in report.groups.values()]
    assert sum(report.conditions["OP"].num_trials) == sum(trials)
    assert report.matrices.speakers.tolist() == list(range(16))
    assert report.matrices.op[0, 1].isnan()


def test_missing_columns():
    original, names, _ = voices(10, utterances=8)
    with pytest.raises(ValueError, match="Expected `is_reference` with enrolment='speaker'"):
        VoicePrivacy(attacks=None, enrolment="speaker").update(original, original, names)
    with pytest.warns(UserWarning, match="sessions"):
        assert compute(StrongestAttack("across", attacks=FEW), original, original, names)["d_ece_strongest"].isnan()


def watching():
    """A metric whose attackers learn most from what they observe, with its batch and what to observe."""
    original, names, draw = voices(8, utterances=4, width=16)
    other, others, _ = voices(30, utterances=6, width=16, seed=1)
    matrix = torch.linalg.qr(normal((16, 16), draw))[0]
    return StrongestAttack(attacks=FEW), (original, original @ matrix, names), (other, other @ matrix, others)


def test_observe_copies_its_input():
    metric, batch, observed = watching()
    expected = StrongestAttack(attacks=FEW)
    rows = [column.clone() for column in observed]
    metric.observe(*rows)
    for column in rows:
        column.zero_()
    expected.observe(*observed)
    assert_close(compute(metric, *batch), compute(expected, *batch))


def test_invalid_observed_batch_raises_and_keeps_the_state():
    metric, batch, observed = watching()
    metric.observe(*observed)
    expected = compute(metric, *batch)
    narrow, missing = observed[0][:, :4], observed[0].index_fill(0, torch.tensor([3]), torch.nan)
    for wrong, error, message in [
        ((narrow, narrow, observed[2]), ValueError, "`original` to be 16 wide"),
        ((missing, *observed[1:]), ValueError, "`original` to hold finite numbers"),
        ((*observed[:2], observed[2][1:]), ValueError, "`speakers` to have shape"),
        ((None, *observed[1:]), TypeError, "`original` to be"),
    ]:
        with pytest.raises(error, match=message):
            metric.observe(*wrong)
    metric._computed = None
    assert_close(metric.compute(), expected)
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


@pytest.mark.filterwarnings("ignore:Linkability needs")
@pytest.mark.parametrize("is_constant", [False, True])
def test_result_is_independent_of_session_and_group_labels(is_constant):
    original, names, draw = voices(10, utterances=6, width=8)
    # If constant, only the original speech of their recordings tells sessions apart.
    protected = torch.ones_like(original) if is_constant else 0.5 * original + normal(original.shape, draw)
    sessions, order, values = torch.arange(60) // 10 % 3, torch.randperm(60, generator=draw), []
    # Three sessions cannot be halved: which are the first two must not follow from what they are called.
    for rows, speakers, called, groups in (
        (torch.arange(60), names, sessions, names % 2),
        (order, 90 - 7 * names, torch.tensor([4, -1, 2])[sessions], 5 - names % 2),
    ):
        metric = Everything()
        for part in rows.tensor_split(2):
            metric.update(original[part], protected[part], speakers[part], sessions=called[part], groups=groups[part])
        # Who is worst protected goes by the names of speakers.
        values.append({key: value for key, value in metric.compute().items() if not key.endswith("worst_speaker")})
    assert values[0]["op_c_ece"].isfinite()
    assert values[0]["across_alid"].isfinite()
    assert_close(values[1], values[0], atol=1e-9, rtol=0, equal_nan=True)


def test_single_speaker_group_does_not_change_other_groups():
    original, names, _ = voices(9, utterances=4, width=8)
    rows = original, original + 1, names
    both = compute(Everything(), *rows, groups=(names == 8).long())
    rest = compute(Everything(), *(column[names < 8] for column in rows))
    for key in ("max_d", "mean_d", "id_rate", "alid", "pdr", "link_rate"):
        assert_close(both[f"op_{key}"], rest[f"op_{key}"])
