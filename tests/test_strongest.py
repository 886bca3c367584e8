"""What the strongest attack must find, and must not; sessions, groups, and what attackers have observed."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.testing import assert_close

from vpmetrics import CalibrationDistortion, EmbeddingTrials, StrongestAttack, VoicePrivacy
from vpmetrics._trials import strongest
from vpmetrics._trials.strongest import names_of_attacks
from vpmetrics.attacks import STANDARD, Centred, Plain, Procrustes, RidgeToOriginal
from vpmetrics.functional import calibration_distortion, equal_error_rate

FEW = (Plain(), Centred(), RidgeToOriginal(), Procrustes())


def voices(speakers, utterances=20, width=24, seed=0, dtype=torch.float64):
    draw = torch.Generator().manual_seed(seed)
    names = torch.arange(speakers * utterances) % speakers
    own = torch.randn(speakers, width, generator=draw, dtype=dtype)
    return own[names] + torch.randn(len(names), width, generator=draw, dtype=dtype), names, draw


def turned(original, draw):
    """A rotated and shifted copy: to a cosine it has nothing in common with the original."""
    rotation = torch.linalg.qr(torch.randn(original.shape[1:] * 2, generator=draw, dtype=original.dtype))[0]
    return original @ rotation + torch.randn(original.shape[1], generator=draw, dtype=original.dtype)


def found(original, protected, speakers, attacks=FEW, condition="OP", **columns):
    metric = StrongestAttack(condition, attacks)
    metric.update(original, protected, speakers, **columns)
    return metric.compute()


@pytest.mark.parametrize("speakers", [12, 40])
def test_a_rotated_and_shifted_copy_is_found_out_though_a_cosine_sees_nothing(speakers):
    original, names, draw = voices(speakers)
    protected = turned(original, draw)
    metric = VoicePrivacy(attacks=FEW)
    metric.update(original, protected, names)
    values = metric.compute()
    assert max(values["op_d_ece"], values["op_d_ece_reversed"]) < 0.1 * values["oo_d_ece"]
    assert values["op_d_ece_strongest"] >= 0.9 * values["oo_d_ece"]


@pytest.mark.parametrize("speakers", [12, 40])
def test_noise_discloses_no_more_than_chance(speakers):
    strongest = []
    for seed in range(5):
        original, names, _ = voices(speakers, seed=seed)
        noise = torch.randn(original.shape, generator=torch.Generator().manual_seed(100 + seed), dtype=torch.float64)
        value = found(original, noise, names)
        assert abs(value["d_ece_strongest"] - value["d_ece_chance"]) <= 0.01
        strongest.append(value["d_ece_strongest"])
    assert max(strongest) <= 0.02


def test_what_is_told_apart_only_by_the_group_is_told_apart_with_groups():
    original, names, draw = voices(40)
    sex = names % 2
    protected = torch.where((sex == 0)[:, None], turned(original, draw), turned(original, draw))
    metric = VoicePrivacy(attacks=FEW)
    metric.update(original, protected, names, groups=sex)
    values = metric.compute()
    assert values["op_d_ece_strongest"] >= 0.9 * values["oo_d_ece"]
    assert metric.attack_names[int(values["op_strongest"])].endswith(", per group")


def test_neither_numbers_of_speakers_nor_the_order_of_rows_show():
    original, names, draw = voices(15)
    protected = 0.4 * original + torch.randn(original.shape, generator=draw, dtype=torch.float64)
    value = found(original, protected, names)
    order, renamed = torch.randperm(len(names), generator=draw), torch.randperm(15, generator=draw)
    other = found(original[order], protected[order], renamed[names[order]] * 7 - 40)
    for key in value:
        assert_close(other[key], value[key], atol=1e-9, rtol=0)


def test_single_precision_finds_the_same():
    original, names, draw = voices(15)
    protected = 0.4 * original + torch.randn(original.shape, generator=draw, dtype=torch.float64)
    value, single = found(original, protected, names), found(original.float(), protected.float(), names)
    for key in ("d_ece_strongest", "eer_strongest", "d_ece_chance"):
        assert_close(single[key].double(), value[key], atol=1e-3, rtol=0)


def test_fewer_than_six_speakers_are_nan_with_one_warning():
    original, names, _ = voices(5)
    metric = StrongestAttack(attacks=FEW)
    metric.update(original, original, names)
    with pytest.warns(UserWarning, match="needs 6 of them") as caught:
        value = metric.compute()
    assert len(caught) == 1
    assert all(entry.isnan() for entry in value.values())


def test_a_system_that_does_nothing_discloses_what_the_original_does():
    original, names, _ = voices(20)
    metric = VoicePrivacy(attacks=FEW)
    metric.update(original, original, names)
    values = metric.compute()
    assert_close(values["op_d_ece_strongest"], values["oo_d_ece"], atol=0.03, rtol=0)
    assert metric.attack_names[int(values["op_strongest"])] == "plain"


def test_an_attacker_who_turns_the_sign_is_tried():
    original, names, _ = voices(20)
    assert found(original, -original, names, [Plain()])["d_ece_strongest"] > 0.3


class Unrotate(torch.nn.Module):
    """An attacker of one's own: knows the rotation, and learns nothing."""

    name = "unrotate"

    def __init__(self, rotation):
        super().__init__()
        self.rotation, self.rows = rotation, 0

    def fit(self, original, protected, speakers):
        self.rows = len(protected)
        return self

    def attack(self, original, protected):
        assert self.rows > 0
        return original, None if protected is None else protected @ self.rotation.T.to(protected)


def test_attackers_of_ones_own_need_two_methods():
    original, names, draw = voices(12)
    rotation = torch.linalg.qr(torch.randn(24, 24, generator=draw, dtype=torch.float64))[0]
    metric = StrongestAttack(attacks=[Plain(), Unrotate(rotation)])
    metric.update(original, original @ rotation, names)
    value = metric.compute()
    assert metric.attack_names[int(value["strongest"])] == "unrotate"
    assert value["d_ece_strongest"] > 0.3
    assert metric.attacks[1].rows == 0, "the attack given is a template, and stays as it is"
    for wrong in (3, [torch.nn.Linear(2, 2)], "all", []):
        with pytest.raises((TypeError, ValueError), match="`attacks`"):
            StrongestAttack(attacks=wrong)


@pytest.mark.parametrize(("most", "given"), [(10, 10), (None, 48), (1000, 48)])
def test_attackers_of_ones_own_are_given_as_many_rows_as_they_say(most, given):
    class Counting(Unrotate):
        most_rows, seen = most, []

        def fit(self, original, protected, speakers):
            self.seen.append(protected.sort(dim=0).values)
            return super().fit(original, protected, speakers)

    original, speakers, draw = voices(15, 4)  # folds of three
    protected = turned(original, draw)
    for rows in (torch.arange(len(speakers)), torch.randperm(len(speakers), generator=draw)):
        found(original[rows], protected[rows], speakers[rows], attacks=[Counting(torch.eye(24))])
    assert len(Counting.seen) == 2 * 5
    for one, other in zip(Counting.seen[:5], Counting.seen[5:], strict=True):
        assert len(one) == given
        assert torch.equal(one, other)  # whatever order they come in


@pytest.mark.parametrize("tile", [7, 32])
@pytest.mark.parametrize("columns", [(), ("sessions",), ("groups",)])
def test_pairs_are_counted_as_what_they_are_whatever_the_tile(tile, columns, monkeypatch):
    original, speakers, draw = voices(24, 6)
    protected = 0.5 * original + torch.randn(original.shape, generator=draw, dtype=original.dtype)
    numbers = {"sessions": torch.arange(len(speakers)) // 24 % 2, "groups": speakers % 2}
    values = []
    for size in (512, tile):  # one tile for all of a fold, and many, most of them of strangers
        monkeypatch.setattr(strongest, "TILE", size)
        metric = VoicePrivacy(attacks=[Plain(), RidgeToOriginal()])
        metric.update(original, protected, speakers, **{name: numbers[name] for name in columns})
        values.append({key: value for key, value in metric.compute().items() if "strongest" in key or "chance" in key})
    assert_close(values[1], values[0], atol=1e-9, rtol=0, equal_nan=True)


def test_attackers_who_observe_other_speakers_need_fewer_of_these():
    # Twelve measured speakers of three utterances in 60 dimensions: too few to learn a rotation from.
    original, names, draw = voices(12, utterances=3, width=60)
    others, their_names, _ = voices(60, width=60, seed=1)
    protect = torch.linalg.qr(torch.randn(60, 60, generator=draw, dtype=torch.float64))[0]
    alone, watching = (StrongestAttack(attacks=FEW) for _ in range(2))
    for part in range(0, len(others), 100):
        rows = slice(part, part + 100)
        watching.observe(others[rows], others[rows] @ protect, their_names[rows] + 1000)
    values = []
    for metric in (alone, watching):
        metric.update(original, original @ protect, names)
        values.append(metric.compute())
    assert values[1]["d_ece_strongest"] > values[0]["d_ece_strongest"] + 0.1
    assert watching.attack_names[int(values[1]["strongest"])].endswith(", observed")
    # Watching outlives an epoch, until it is to be forgotten too.
    again = copy.deepcopy(watching)
    again.reset()
    again.update(original, original @ protect, names)
    assert_close(again.compute(), values[1])
    again.reset(observed=True)
    again.update(original, original @ protect, names)
    assert_close(again.compute(), values[0])


def test_names_say_what_was_learnt_where():
    assert names_of_attacks([Plain()]) == ("plain", "plain, per group", "plain, observed")
    assert len(set(names_of_attacks(STANDARD))) == 3 * len(STANDARD)


def keyed(original, names, sessions, draw):
    """A pseudo-voice per speaker and session, and a trace of the own one."""
    pseudo = torch.randn(int(sessions.max() + 1), int(names.max() + 1), original.shape[1], generator=draw).double()
    noise = torch.randn(original.shape, generator=draw, dtype=torch.float64)
    return 2 * pseudo[sessions, names] + noise


def test_a_key_per_session_links_within_and_not_across():
    original, names, draw = voices(20, utterances=12)
    sessions = torch.arange(len(names)) // 20 % 2
    metric = VoicePrivacy(attacks=FEW)
    metric.update(original, keyed(original, names, sessions, draw), names, sessions=sessions)
    values = metric.compute()
    assert values["within_d_ece"] > 0.6
    assert values["across_d_ece"] < 0.02
    assert values["across_d_ece_strongest"] < 0.05
    assert values["within_mean_d"] > 10 * values["within_mean_d_chance"]
    assert values["across_mean_d"] < 4 * values["across_mean_d_chance"]
    assert values["op_c_ece"].abs() < 0.05


def test_a_calibration_is_tried_on_sessions_it_was_not_learnt_on():
    original, names, draw = voices(20, utterances=12)
    sessions = torch.arange(len(names)) // 20 % 3
    protected = 0.6 * original + torch.randn(original.shape, generator=draw, dtype=torch.float64)
    metric = EmbeddingTrials(CalibrationDistortion(), condition="OP")
    metric.update(original, protected, names, sessions=sessions)
    suite = VoicePrivacy(attacks=None)
    suite.update(original, protected, names, sessions=sessions)
    assert_close(metric.compute(), suite.compute()["op_c_ece"])
    # By hand: sessions 0 and 1 against session 2, both ways.
    normal = torch.nn.functional.normalize
    scores, same = normal(original) @ normal(protected).T, names[:, None] == names
    other = ~torch.eye(len(names), dtype=torch.bool)
    runs = [(scores[:, rows][other[:, rows]], same[:, rows][other[:, rows]]) for rows in (sessions < 2, sessions == 2)]
    values = [calibration_distortion(*runs[k], *runs[1 - k]) for k in (0, 1)]
    assert_close(metric.compute(), sum(values) / 2, atol=1e-9, rtol=0)
    lone = EmbeddingTrials(CalibrationDistortion())
    lone.update(original, protected, names)
    with pytest.warns(UserWarning, match="which sessions there are"):
        assert lone.compute().isnan()


def test_one_secret_for_all_sessions_links_across_them():
    original, names, draw = voices(20, utterances=12)
    sessions = torch.arange(len(names)) // 20 % 2
    metric = VoicePrivacy(attacks=None)
    metric.update(original, keyed(original, names, torch.zeros_like(sessions), draw), names, sessions=sessions)
    values = metric.compute()
    assert_close(values["within_d_ece"], values["across_d_ece"], atol=0.02, rtol=0)


def test_trials_of_sessions_are_those_of_the_definition():
    original, names, draw = voices(7, utterances=6, width=5)
    sessions = torch.randint(3, (len(names),), generator=draw)
    protected = keyed(original, names, sessions, draw)
    metric = VoicePrivacy(attacks=None)
    metric.update(original, protected, names, sessions=sessions, utterances=torch.arange(len(names)))
    scores = torch.nn.functional.normalize(protected) @ torch.nn.functional.normalize(protected).T
    conditions = metric.report().conditions
    for name, own in (("within", True), ("across", False)):
        expected = {True: [], False: []}
        for i in range(len(names)):
            for j in range(i + 1, len(names)):
                same = bool(names[i] == names[j])
                if not same or bool(sessions[i] == sessions[j]) == own:
                    expected[same].append(float(scores[i, j]))
        values, counts = conditions[name].scores.trials.table()
        for same in (False, True):
            assert_close(values[counts[int(same)] > 0].sort().values, torch.tensor(sorted(expected[same])).double())


def test_only_pairs_of_one_group_are_trials_and_every_group_has_its_report():
    original, names, draw = voices(16, utterances=6)
    protected = 0.5 * original + torch.randn(original.shape, generator=draw, dtype=torch.float64)
    groups = names % 2
    metric = VoicePrivacy(attacks=None)
    metric.update(original, protected, names, groups=groups)
    report = metric.report()
    assert list(report.groups) == [0, 1]
    for group, known in report.groups.items():
        rows, alone = groups == group, VoicePrivacy(attacks=None)
        alone.update(original[rows], protected[rows], names[rows])
        for key, value in alone.compute().items():
            assert_close(known.scalars[key], value, equal_nan=True)
    trials = [sum(known.conditions["OP"].trials) for known in report.groups.values()]
    assert sum(report.conditions["OP"].trials) == sum(trials)
    assert report.matrices.speakers.tolist() == list(range(16))
    assert bool(report.matrices.op[0, 1].isnan())


def test_enrolment_by_means_is_that_of_means():
    original, names, draw = voices(10, utterances=8)
    protected = 0.5 * original + torch.randn(original.shape, generator=draw, dtype=torch.float64)
    chosen = torch.arange(len(names)) < 40
    metric = VoicePrivacy(attacks=None, enrolment="speaker")
    metric.update(original, protected, names, is_reference=chosen)
    means = torch.stack([original[chosen & (names == name)].mean(0) for name in range(10)])
    normal = torch.nn.functional.normalize
    scores = (normal(means) @ normal(protected[~chosen]).T).flatten()
    target = (torch.arange(10)[:, None] == names[~chosen]).flatten()
    assert_close(metric.compute()["op_eer"], equal_error_rate(scores, target), atol=1e-9, rtol=0)
    with pytest.raises(ValueError, match="Expected `is_reference` with enrolment='speaker'"):
        metric.update(original, protected, names)


def test_conditions_of_sessions_without_sessions_are_nan():
    original, names, _ = voices(8)
    metric = StrongestAttack("across", attacks=FEW)
    metric.update(original, original, names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert metric.compute()["d_ece_strongest"].isnan()
    assert any("sessions" in str(warning.message) for warning in caught)


def watching(dtype=torch.float64):
    """A metric whose attackers learn most from what they observe, with its batch and what to observe."""
    original, names, draw = voices(8, utterances=4, width=16, dtype=dtype)
    other, others, _ = voices(30, utterances=6, width=16, seed=1, dtype=dtype)
    matrix = torch.linalg.qr(torch.randn(16, 16, generator=draw, dtype=dtype))[0]
    return StrongestAttack(attacks=FEW), (original, original @ matrix, names), (other, other @ matrix, others)


def test_what_is_observed_counts_from_then_on():
    metric, batch, observed = watching()
    metric.update(*batch)
    before = metric.compute()["d_ece_strongest"]
    metric.observe(*observed)
    after = metric.compute()["d_ece_strongest"]
    assert after > before + 0.05
    merged = StrongestAttack(attacks=FEW)
    merged.merge_state(metric)
    assert_close(merged.compute()["d_ece_strongest"], after)


def test_what_was_observed_may_be_written_over():
    metric, batch, observed = watching()
    metric.update(*batch)
    rows = [column.clone() for column in observed]
    metric.observe(*rows)
    for column in rows:
        column.zero_()
    again = StrongestAttack(attacks=FEW)
    again.update(*batch)
    again.observe(*observed)
    assert_close(metric.compute(), again.compute())


def test_a_mistake_is_refused_before_anything_is_observed():
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


def test_nan_that_is_observed_never_weakens_attackers_without_a_word():
    metric, batch, observed = watching()
    metric.validate_args = False
    metric.update(*batch)
    metric.observe(observed[0].index_fill(0, torch.tensor([3]), torch.nan), *observed[1:])
    with pytest.warns(UserWarning, match="observed, are not finite"):
        assert all(value.isnan() for value in metric.compute().values())
    metric.reset(observed=True)
    metric.update(*batch)
    assert metric.compute()["d_ece_strongest"].isfinite()


def test_names_of_sessions_and_groups_do_not_matter():
    original, names, draw = voices(10, utterances=6, width=8)
    protected = 0.5 * original + torch.randn(original.shape, generator=draw, dtype=original.dtype)
    sessions, groups, order = torch.arange(60) // 10 % 3, names % 2, torch.randperm(60, generator=draw)

    def value(rows, speakers, sessions, groups):
        metric = VoicePrivacy(attacks=None)
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


def test_a_lone_speaker_in_a_group_takes_nothing_from_the_others():
    original, names, _ = voices(9, utterances=4, width=8)
    both, rest = (VoicePrivacy(attacks=None) for _ in range(2))
    both.update(original, original + 1, names, groups=(names == 8).long())
    rest.update(*(column[names < 8] for column in (original, original + 1, names)))
    expected = rest.compute()
    for key in ("max_d", "mean_d", "id_rate", "alid", "pdr", "link_rate"):
        assert_close(both.compute()[f"op_{key}"], expected[f"op_{key}"])
