"""The metrics of a population.

Protocols, averaged utterances, attacks, and systems of one equal error rate.
"""

import pytest
import torch
from reports import Everything, compute
from samples import UNDEFINED, made_systems, people
from torch.nn.functional import normalize
from torch.testing import assert_close

from vpmetrics import ReidentificationRate, SinglingOut, VoicePrivacy
from vpmetrics._scores.registry import scalar_keys
from vpmetrics.attacks import Plain, RidgeToOriginal
from vpmetrics.functional import (
    conversations,
    equal_error_rate,
    rank_histogram,
    reidentification_rate,
)


def test_a_probe_is_a_conversation_and_a_reference_all_that_is_known():
    _, protected, speakers = people(number=8, each=9, noise=1.5)
    is_reference = torch.arange(72) % 9 < 5
    sizes = (2, 5, 8)
    metric = ReidentificationRate(sizes, conversation=2)
    probes, _, probe_speakers, _ = conversations(
        protected[~is_reference], None, speakers[~is_reference], 2
    )
    histogram = rank_histogram(
        probes, probe_speakers, protected[is_reference], speakers[is_reference]
    )
    expected = reidentification_rate(histogram, sizes)
    value = compute(metric, None, protected, speakers, is_reference)
    assert_close(value, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("condition", ["OO", "OP", "PP"])
@pytest.mark.parametrize("metric", [ReidentificationRate, SinglingOut])
def test_probes_exclude_reference_utterances(metric, condition):
    # Utterances that say nothing but which they are: only one and the same would be found.
    noise = torch.randn(400, 64, generator=torch.Generator().manual_seed(4))
    found = compute(metric(sizes=(20,), condition=condition), noise, noise, torch.arange(400) // 20)
    if metric is ReidentificationRate:
        assert found["rate_20"] < 0.12
    else:
        assert found["singling_out_20"] < 0.45


def test_probes_exclude_protected_versions_of_references():
    # Every protected utterance is its original, and far from all others: only those would be found
    # whose original the attacker has, were they probes.
    own = 1000 * torch.randn(
        160, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    metric = ReidentificationRate(sizes=(20,), condition="OP", scoring="euclidean")
    assert compute(metric, own, own, torch.arange(160) // 8)["rate_20"] < 0.15


def test_utterances_are_averaged_within_each_session():
    # Within a session everybody has a voice of their own, across sessions nobody has.
    draw = torch.Generator().manual_seed(0)
    keyed = torch.randn(20, 2, 1, 16, generator=draw) + 0.1 * torch.randn(
        20, 2, 6, 16, generator=draw
    )
    speakers = torch.arange(20).repeat_interleave(12)
    sessions = torch.arange(240) // 6 % 2
    rate_by_condition = {}
    for condition in ("within", "across"):
        metric = ReidentificationRate((20,), conversation=3, condition=condition)
        values = compute(metric, None, keyed.flatten(0, 2), speakers, sessions=sessions)
        rate_by_condition[condition] = values["rate_20"]
    assert rate_by_condition["within"] == 1
    assert rate_by_condition["across"] < 0.25


@pytest.mark.parametrize("metric", [ReidentificationRate, SinglingOut])
def test_galleries_stay_within_a_group(metric):
    _, protected, speakers = people(number=30, each=8, noise=2.0)
    groups = (torch.arange(240) >= 80).long() * 4
    together = compute(metric(sizes=(5, 10)), None, protected, speakers, groups=groups)
    values_of_group = {}
    for group in (0, 4):
        is_member = groups == group
        rows = (None, protected[is_member], speakers[is_member])
        values_of_group[group] = compute(metric(sizes=(5, 10)), *rows)
    for name, value in together.items():
        of_small_group = values_of_group[0][name]
        of_large_group = values_of_group[4][name]  # twice as many speakers
        if name == "gallery":
            expected = torch.tensor(10.0).to(value)
        elif name.endswith("_error"):
            expected = torch.hypot(of_small_group / 3, of_large_group * 2 / 3)
        else:
            expected = (of_small_group + 2 * of_large_group) / 3
        assert_close(value, expected)


def test_attack_is_applied_before_averaging():
    original, _, speakers = people(number=12, each=6, noise=0.3)
    turn = torch.linalg.qr(
        torch.randn(8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    )[0]

    class Turned:
        def attack(self, original, protected):
            if protected is not None:
                protected = (protected - 5) @ turn.T
            return original, protected

    def rate(attack, protected):
        metric = ReidentificationRate((12,), 2, condition="OP", attack=attack)
        return compute(metric, original, protected, speakers)["rate_12"]

    protected = original @ turn + 5
    assert rate(None, protected) < 0.4
    assert rate(Turned(), protected) >= rate(None, original) - 0.05 > 0.9


def test_rates_separate_three_systems_of_equal_eer():
    rates_of_system = []  # by one sentence and by eight
    isolations_of_system = []
    speakers = torch.arange(200).repeat_interleave(16).repeat(2)
    is_reference = torch.arange(6400) < 3200
    for spoken in made_systems().values():
        enrolment, test = normalize(spoken[:, :, :2].flatten(1, 2), dim=-1)
        names = torch.arange(200).repeat_interleave(2)
        eer = equal_error_rate(enrolment @ test.T, names[:, None] == names)
        assert eer.item() == pytest.approx(0.325, abs=0.012)
        rates = []
        isolations = []
        for length in (1, 8):
            rows = (None, spoken.flatten(0, 2), speakers, is_reference)
            values = compute(ReidentificationRate((100,), length), *rows)
            rates.append(values["rate_100"])
            values = compute(SinglingOut((100,), length), *rows)
            isolations.append(values["singling_out_100"])
        rates_of_system.append(rates)
        isolations_of_system.append(isolations)
    shared, keyed, noisy = rates_of_system
    # One sentence: half of all people are out; whoever shares a voice or has another key is harder
    # to find, yet a key leaves everybody somebody to stand out as. Eight of them: noise is gone, a
    # key is as good as before.
    assert shared[0] < 0.03 < 0.05 < keyed[0] < 0.15 < 0.35 < noisy[0]
    assert shared[1] < 0.03 < 0.05 < keyed[1] < 0.15 < 0.95 < noisy[1]
    shared, keyed, noisy = isolations_of_system
    assert shared[1] < 0.4 < 0.7 < keyed[1] < noisy[1]


@pytest.mark.parametrize("sessions", [False, True])
def test_suite_matches_the_metric_classes(sessions):
    sizes = (5, 20)
    original, protected, speakers = people(number=20, each=8, noise=1.5)
    rows = {"original": original, "protected": protected, "speakers": speakers}
    conditions = ("OO", "OP", "PP")
    if sessions:
        rows["sessions"] = torch.arange(160) // 4 % 2
        conditions = ("OO", "OP", "PP", "within", "across")
    values = compute(Everything(sizes=sizes), **rows)
    assert tuple(values) == scalar_keys(conditions, has_sessions=sessions, sizes=sizes)
    for condition in conditions:
        metrics = [ReidentificationRate]
        if condition not in ("within", "across"):
            metrics.append(SinglingOut)
        for metric in metrics:
            for name, value in compute(metric(sizes=sizes, condition=condition), **rows).items():
                if not name.startswith("chance"):
                    assert_close(values[f"{condition.lower()}_{name}"], value, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Singling one out")
def test_strongest_attack_rate_uses_the_gallery_of_a_fold():
    # Every voice rotated by one secret: cosines show nothing of it, and a fitted map undoes it.
    original, _, speakers = people(number=24, each=8, width=16, noise=0.5)
    turn = torch.linalg.qr(
        torch.randn(16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    )[0]
    metric = VoicePrivacy(sizes=(4, 100), attacks=[Plain(), RidgeToOriginal()])
    values = compute(metric, original, original @ turn, speakers)
    assert values["op_gallery_strongest"] == 4  # 24 speakers in five folds
    assert values["op_rate_4"] < 0.6 < 0.8 < values["op_rate_4_strongest"]
    assert values["op_rate_100_strongest"].isnan()
    assert not [key for key in values if "singling_out" in key and "strongest" in key]
    rates = metric.report().conditions["OP"].population
    assert rates.after_strongest_attack((4,))["rate_4"] == values["op_rate_4_strongest"]
    # The negated scores of an attack may be the stronger ones.
    values = compute(VoicePrivacy(sizes=(4,), attacks=[Plain()]), original, -original, speakers)
    assert values["op_rate_4"] < 0.1
    assert values["op_rate_4_strongest"] > 0.9


def test_too_few_speakers_give_no_rate_after_attack():
    metric = VoicePrivacy(sizes=(4,), attacks=[Plain()])
    metric.update(*people(number=5, each=8))
    with pytest.warns(UserWarning, match=UNDEFINED):
        values = metric.compute()
    assert values["op_rate_4_strongest"].isnan()
    assert values["op_gallery_strongest"].isnan()
