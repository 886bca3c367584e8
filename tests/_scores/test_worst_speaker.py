"""The worst speaker: each one's own trials, and a test that private systems rarely fail."""

from dataclasses import replace

import pytest
import reference
import torch
from samples import planted
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vpmetrics._scores import worst_speaker
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.scorers import SCORERS
from vpmetrics._scores.trial_rows import make_plain_rows
from vpmetrics._scores.worst_speaker import find_worst_speaker, linkability_by_chance
from vpmetrics._utterances.conditions import CONDITIONS
from vpmetrics._utterances.utterances import Utterances

OP, PP = CONDITIONS["OP"], CONDITIONS["PP"]


def side(rows, speakers, **columns):
    return Utterances(rows, speakers, torch.arange(len(speakers)), speakers, **columns)


def pairs_of(enrolment, test, condition):
    number = 1 + int(torch.cat([enrolment.speaker_index, test.speaker_index]).amax())
    return PairBlocks(enrolment, test, number, SCORERS["cosine"], condition)


def plain(original, protected, condition=OP):
    enrolment = protected if condition is PP else original
    return make_plain_rows(pairs_of(enrolment, protected, condition))


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
    found = find(*private(2, 2))
    assert found.disclosure == found.disclosure
    assert found.p != found.p
    assert find(*private(30, 10)).p == find(*private(30, 10)).p


def in_folds(original, protected, num_folds, condition):
    """Rows of each fold of speakers."""
    folds = []
    for fold in range(num_folds):
        inside = original.speakers % num_folds == fold
        folds.append(plain(original.take(inside), protected.take(inside), condition))
    return folds


@pytest.mark.parametrize(("speakers", "utterances"), [(30, 2), (30, 5), (12, 10)])
def test_p_values_of_private_folds_are_uniform(speakers, utterances):
    # Folds of six speakers, as attacks have them: permuting whole speakers names one in five.
    p_values = []
    for seed in range(40):
        original, protected = private(speakers, utterances, seed, width=16)
        folds = [in_folds(original, protected, speakers // 6, name) for name in (OP, PP)]
        p_values.append(find_worst_speaker(folds, original.speakers.unique()).p)
    p_values = torch.tensor(p_values)
    # bounds that a uniform variable exceeds in one of a thousand
    assert (p_values <= 0.05).sum() <= 8
    assert (p_values <= 0.5).sum() <= 31
    if utterances > 2:  # with one pair per speaker the largest of all is that of a perfect pair
        assert (p_values <= 0.5).sum() >= 9


def test_sessions_are_dealt_out_whole():
    # Each session has a voice of its own: rows of one speaker are alike, and still nothing leaks.
    p_values = []
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        names = torch.arange(12).repeat_interleave(6)
        sessions = 2 * names + torch.arange(72) % 2
        original = side(torch.randn(72, 16, generator=draw), names, sessions=sessions)
        voices = torch.randn(24, 16, generator=draw)[sessions]
        protected = side(
            voices + 0.3 * torch.randn(72, 16, generator=draw), names, sessions=sessions
        )
        across = make_plain_rows(pairs_of(protected, protected, CONDITIONS["across"]))
        rows = [[plain(original, protected)], [across]]
        p_values.append(find_worst_speaker(rows, original.speakers.unique()).p)
    p_values = torch.tensor(p_values)
    assert (p_values <= 0.05).sum() <= 8
    assert 9 <= (p_values <= 0.5).sum() <= 31


def test_only_the_first_rows_of_a_speaker_with_many_count(monkeypatch):
    original, protected = private(speakers=8, utterances=6)
    is_first = torch.arange(48) % 6 < 4
    expected = find(original.take(is_first), protected.take(is_first))
    monkeypatch.setattr(worst_speaker, "_MOST_ROWS_OF_SPEAKER", 4)
    found = find(original, protected)
    assert (found.disclosure, found.chance, found.p) == (
        expected.disclosure,
        expected.chance,
        expected.p,
    )


class LargestTensor(TorchDispatchMode):
    """Notes how many entries the largest tensor has that is made."""

    num_entries = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        made = function(*arguments, **(keywords or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.num_entries = max(self.num_entries, tensor.untyped_storage().nbytes() // 8)
        return made


def test_memory_does_not_grow_with_the_square_of_rows_per_speaker():
    largest = []
    for utterances in (600, 1800):
        original, protected = private(speakers=3, utterances=utterances, width=8)
        with LargestTensor() as seen:
            find(original, protected)
        largest.append(seen.num_entries)
    assert largest[1] <= largest[0] * 1.1, largest


def test_permuted_speakers_have_the_trials_of_real_ones():
    draw = torch.Generator().manual_seed(3)
    names = torch.arange(5).repeat_interleave(torch.tensor([2, 3, 4, 5, 6]))
    original = side(torch.randn(20, 8, generator=draw), names)
    protected = side(torch.randn(20, 8, generator=draw), names)
    for condition, num_pairs in ((OP, lambda n: n * (n - 1)), (PP, lambda n: n * (n - 1) // 2)):
        of_speakers = worst_speaker._index_speakers(plain(original, protected, condition))
        edges = worst_speaker.lay_cells(of_speakers)
        (counts,) = worst_speaker._count_speakers(of_speakers, edges, 7, seed=0)
        expected = torch.tensor([num_pairs(number) for number in range(2, 7)])
        # A row that comes back to its own speaker may meet its own recording, which is no trial.
        missing = expected - counts.targets.sum(-1)
        assert (missing[0] == 0).all()
        assert missing.min() == 0
        assert missing.max() <= 4
        assert (counts.targets[0].sum(0) == count_own_trials(of_speakers, edges)).all()


def count_own_trials(of_speakers, edges):
    """Target trials by cell, pair by pair."""
    rows = of_speakers.rows
    scores = worst_speaker.round_scores(rows.enrolment_rows @ rows.test_rows.T)
    counts = torch.zeros(len(edges) + 1, dtype=torch.int64)
    for first, one in enumerate(rows.enrolment.speakers):
        for second, other in enumerate(rows.test.speakers):
            is_counted = first < second if rows.has_same_rows else first != second
            if one == other and is_counted:
                counts[int((edges <= scores[first, second]).sum())] += 1
    return counts


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


def test_small_blocks_change_nothing(monkeypatch):
    original, protected, names, _ = planted(0, number=30)
    sides = side(original, names), side(protected, names)
    whole = find(*sides)
    monkeypatch.setattr("vpmetrics._scores.worst_speaker._MOST_SCORES", 1000)
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
