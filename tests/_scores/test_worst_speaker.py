"""The worst speaker: each one's own trials, and a test that private systems rarely fail."""

from dataclasses import replace

import pytest
import reference
import torch
from samples import planted

from vpmetrics._scores.scorers import SCORERS
from vpmetrics._scores.trial_rows import make_plain_rows
from vpmetrics._scores.worst_speaker import (
    find_worst_speaker,
    linkability_by_chance,
    rotate_speakers,
)
from vpmetrics._utterances.conditions import CONDITIONS
from vpmetrics._utterances.utterances import Utterances

OP, PP = CONDITIONS["OP"], CONDITIONS["PP"]


def side(rows, speakers, **columns):
    return Utterances(rows, speakers, torch.arange(len(speakers)), speakers, **columns)


def plain(original, protected, condition=OP):
    enrolment = protected if condition is PP else original
    return make_plain_rows(enrolment, protected, condition, SCORERS["cosine"])


def private(speakers, utterances, seed=0, width=48):
    draw = torch.Generator().manual_seed(seed)
    names = torch.arange(speakers).repeat_interleave(utterances)
    original = torch.randn(speakers, width, generator=draw)[names] + torch.randn(
        len(names), width, generator=draw
    )
    return side(original, names), side(torch.randn(len(names), width, generator=draw), names)


def find(original, protected):
    labels = original.speakers.unique()
    return find_worst_speaker(
        [[plain(original, protected)], [plain(original, protected, PP)]], labels
    )


@pytest.mark.parametrize("seed", range(3))
def test_disclosure_of_each_speaker_matches_the_exact_one(seed):
    original, protected, names, _ = planted(seed, number=12, leak=1.5)
    rows = (original.numpy(), protected.numpy(), names.numpy())
    scores, target, pairs = reference.similarity.trials(*rows, "OP")
    found = find_worst_speaker(
        [[plain(side(original, names), side(protected, names))]], names.unique()
    )
    for speaker in range(12):
        own = [index for index, (_, test) in enumerate(pairs) if names[test] == speaker]
        values = reference.zebra.zebra_disclosure(
            torch.tensor(scores)[own].numpy(), torch.tensor(target)[own].long().numpy()
        )
        exact = max(values["d_ece"], values["d_ece_reversed"])
        assert float(found.disclosure_of_speaker[speaker]) == pytest.approx(exact, abs=0.04)


@pytest.mark.parametrize("seed", range(3))
def test_the_one_whose_voice_is_left_is_named(seed):
    original, protected, names, weak = planted(seed, number=30, leak=1.5)
    found = find(side(original, names), side(protected, names))
    assert found.place == weak
    assert found.disclosure > found.chance + 0.05
    assert found.p == 0.01


@pytest.mark.parametrize(("speakers", "utterances"), [(30, 2), (30, 3), (100, 2), (30, 10)])
def test_private_systems_name_nobody_more_often_than_luck(speakers, utterances):
    named = 0
    for seed in range(12):
        found = find(*private(speakers, utterances, seed))
        named += found.p <= 0.05
    assert named <= 2


def test_speakers_with_unequal_numbers_of_utterances_are_compared_fairly():
    draw = torch.Generator().manual_seed(1)
    counts = torch.randint(2, 12, (30,), generator=draw)
    named = 0
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        names = torch.arange(30).repeat_interleave(counts)
        rows = [torch.randn(len(names), 24, generator=draw) for _ in range(2)]
        named += find(side(rows[0], names), side(rows[1], names)).p <= 0.05
    assert named <= 2


def test_few_different_permutations_are_no_test():
    found = find(*private(12, 10))
    assert found.disclosure == found.disclosure
    assert found.p != found.p
    assert find(*private(30, 10)).p == find(*private(30, 10)).p


def test_folds_are_permuted_by_themselves():
    # Five folds of six speakers have few permutations each, and many together.
    original, protected = private(30, 10)
    folds = []
    for fold in range(5):
        inside = torch.arange(300) // 10 % 5 == fold
        folds.append(plain(original.take(inside), protected.take(inside)))
    found = find_worst_speaker([folds], original.speakers.unique())
    assert 0.05 < found.p <= 1


def test_partitions_are_permuted_by_themselves():
    original, protected = private(30, 6)
    groups = (original.speakers % 2).contiguous()
    order = groups.argsort(stable=True)
    index = torch.cat([torch.arange(0, 30, 2), torch.arange(1, 30, 2)]).argsort()
    sides = [
        replace(one, groups=groups, speaker_index=index[one.speakers]).take(order)
        for one in (original, protected)
    ]
    found = find_worst_speaker([[plain(*sides)]], original.speakers.unique())
    assert 0.05 < found.p <= 1
    rotated = rotate_speakers(
        torch.tensor([0, 0, 1, 1, 1]),
        torch.tensor([True, True, True, False, True]),
        torch.tensor([0, 1]),
    )
    assert rotated.tolist() == [[0, 1, 2, 3, 4], [1, 0, 4, 3, 2]]


def test_small_blocks_change_nothing(monkeypatch):
    original, protected, names, _ = planted(0, number=30)
    sides = side(original, names), side(protected, names)
    whole = find(*sides)
    monkeypatch.setattr("vpmetrics._scores.worst_speaker._MOST_SCORES", 1000)
    monkeypatch.setattr("vpmetrics._scores.worst_speaker._MOST_COUNTS", 1000)
    parts = find(*sides)
    assert torch.allclose(whole.disclosure_of_speaker, parts.disclosure_of_speaker)
    assert (whole.chance, whole.p) == pytest.approx((parts.chance, parts.p))


def test_nan_rows_give_no_worst_speaker():
    original, protected = private(10, 4)
    rows = protected.embeddings.clone()
    rows[0] = torch.nan
    found = find(original, replace(protected, embeddings=rows))
    assert found.place == -1
    assert found.disclosure != found.disclosure


def test_linkability_by_chance_is_that_of_private_speech():
    values, levels = [], []
    for seed in range(8):
        original, protected = private(30, 8, seed)
        rows = plain(original, protected)
        scores = (rows.enrolment_rows @ rows.test_rows.mT).flatten()
        edges = torch.linspace(float(scores.min()), float(scores.max()), 101)[1:-1].double()
        levels.append(float(linkability_by_chance(rows, edges)))
        target = (original.speakers[:, None] == protected.speakers).flatten()
        kept = ~torch.eye(240, dtype=torch.bool).flatten()
        values.append(
            reference.verification.linkability(scores[kept].numpy(), target[kept].long().numpy())
        )
    assert sum(levels) / 8 == pytest.approx(sum(values) / 8, rel=0.15)
