"""Conversations: how long they are, who is in them, and which pairs of them are trials."""

from dataclasses import replace

import numpy as np
import pytest
import reference
import torch

from vpmetrics._identification.conversations import choose_length, score_conversations
from vpmetrics._scores.condition_scores import collect_trial_scores
from vpmetrics._scores.measures import found_among_of_steps
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.score_counts import expected_disclosure
from vpmetrics._scores.scorers import SCORERS
from vpmetrics._scores.trial_rows import make_plain_rows
from vpmetrics._utterances.conditions import CONDITIONS
from vpmetrics._utterances.utterances import Utterances

OP, PP, ACROSS = (CONDITIONS[name] for name in ("OP", "PP", "across"))


def side(rows, speakers, **columns):
    return Utterances(rows, speakers, torch.arange(len(speakers)), speakers, **columns)


def voices(speakers=6, utterances=10, seed=0, noise=None, width=16):
    """Original and protected sides; without ``noise`` protected speech is private."""
    draw = torch.Generator().manual_seed(seed)
    names = torch.arange(speakers).repeat_interleave(utterances)
    original = torch.randn(speakers, width, generator=draw, dtype=torch.float64)[names]
    original = original + torch.randn(len(names), width, generator=draw, dtype=torch.float64)
    protected = torch.randn(len(names), width, generator=draw, dtype=torch.float64)
    if noise is not None:
        protected = original + noise * protected
    return side(original, names), side(protected, names)


def pairs_of(enrolment, test, condition):
    number = 1 + int(torch.cat([enrolment.speaker_index, test.speaker_index]).amax())
    return PairBlocks(enrolment, test, number, SCORERS["cosine"], condition)


def plain(enrolment, test, condition):
    return make_plain_rows(pairs_of(enrolment, test, condition))


def disclosure(scores, is_target):
    return float(expected_disclosure(collect_trial_scores(scores, is_target).counts.ascending))


@pytest.mark.parametrize(
    ("utterances", "length"),
    [(3, None), (4, 2), (6, 3), (9, 3), (10, 5), (20, 10), (59, 10), (60, 30), (200, 30)],
)
def test_length_leaves_two_conversations_of_a_speaker(utterances, length):
    _, tests = voices(utterances=utterances)
    assert choose_length(tests, OP, has_references=False) == length


def test_length_needs_half_of_the_speakers():
    names = torch.tensor([0] * 20 + [1] * 20 + [2] * 4 + [3] * 4)
    tests = side(torch.randn(len(names), 3), names)
    assert choose_length(tests, OP, has_references=False) == 10
    tests = side(torch.randn(len(names) + 4, 3), torch.cat([names, torch.full((4,), 4)]))
    assert choose_length(tests, OP, has_references=False) == 2


def test_one_conversation_of_tests_suffices_with_references():
    _, tests = voices(utterances=5)
    assert choose_length(tests, OP, has_references=True) == 5
    assert choose_length(tests, OP, has_references=False) == 2


def test_length_across_sessions_needs_two_sessions():
    _, tests = voices(speakers=4, utterances=10)
    two_sessions = replace(tests, sessions=torch.arange(40) % 10 // 5)
    assert choose_length(two_sessions, ACROSS, has_references=False) == 5
    own_session_each = replace(tests, sessions=torch.arange(40))
    assert choose_length(own_session_each, ACROSS, has_references=False) == 5
    one_session = replace(tests, sessions=torch.arange(40) // 10)
    assert choose_length(one_session, ACROSS, has_references=False) is None


@pytest.mark.parametrize("condition", [OP, PP], ids=["OP", "PP"])
def test_trials_and_scores_match_their_definition(condition):
    # With two conversations of all of a speaker's utterances, members follow from the scores alone.
    original, protected = voices(speakers=3, utterances=4)
    enrolment = protected if condition is PP else original
    found = score_conversations([plain(enrolment, protected, condition)], 2, max_draws=1)
    splits = [[(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]]
    expected = []
    for choice in np.ndindex(3, 3, 3):
        groups = [[4 * s + row for row in rows] for s in range(3) for rows in splits[choice[s]]]
        is_target = reference.conversations.trials(
            groups, protected.speakers.tolist(), None, is_same_side=condition is PP
        )
        scores = [
            reference.conversations.cosine_of_means(
                enrolment.embeddings[groups[i]].numpy(), protected.embeddings[groups[j]].numpy()
            )
            for i, j in is_target
        ]
        expected.append(sorted(zip(scores, is_target.values(), strict=True)))
    got = sorted(zip(found.scores.tolist(), found.is_target.tolist(), strict=True))
    matches = [
        np.allclose([score for score, _ in got], [score for score, _ in each])
        and [target for _, target in got] == [target for _, target in each]
        for each in expected
    ]
    # Which of two conversations of one side comes first has no influence on a set of scores.
    assert sum(matches) >= 1


def test_number_of_trials():
    original, protected = voices(speakers=30, utterances=10)
    op = score_conversations([plain(original, protected, OP)], 5)
    # Of each of 20 draws: 30 x 2 ordered pairs of one speaker's conversations, 60 x 58 of two
    # speakers.
    assert int(op.is_target.sum()) == 20 * 60
    assert int((~op.is_target).sum()) == 20 * 60 * 58
    pp = score_conversations([plain(protected, protected, PP)], 5)
    assert int(pp.is_target.sum()) == 20 * 30
    assert int((~pp.is_target).sum()) == 20 * 30 * 58
    assert int(op.is_chance_target.sum()) == int(op.is_target.sum())


def test_conversations_across_share_no_session():
    draw = torch.Generator().manual_seed(0)
    names = torch.arange(8).repeat_interleave(10)
    sessions = torch.arange(80) % 10 // 5 + 2 * names
    # Everything of a session sounds alike, and nothing of a speaker does.
    rows = torch.randn(16, 12, generator=draw, dtype=torch.float64)[sessions]
    rows = rows + 0.01 * torch.randn(80, 12, generator=draw, dtype=torch.float64)
    tests = side(rows, names, sessions=sessions)
    found = score_conversations([plain(tests, tests, ACROSS)], 5)
    assert int(found.is_target.sum()) == 20 * 8
    assert float(found.scores[found.is_target].max()) < 0.9
    mixed = score_conversations([plain(tests, tests, ACROSS)], 3)
    assert float(mixed.scores[mixed.is_target].max()) < 0.9


def test_conversations_never_meet_their_own_recordings():
    original, _ = voices(speakers=12, utterances=10)
    copy = replace(original)
    found = score_conversations([plain(original, copy, OP)], 5)
    assert float(found.scores.max()) < 1 - 1e-6
    # One recording protected in two sessions: two versions, one original.
    twice = original.take(torch.arange(120).repeat(2))
    twice = replace(twice, sessions=torch.arange(240) // 120)
    found = score_conversations([plain(original, twice, OP)], 5)
    assert float(found.scores.max()) < 1 - 1e-6


def test_references_and_tests_are_never_mixed():
    _, protected = voices(speakers=8, utterances=10)
    is_reference = torch.arange(80) % 10 < 5
    rows = protected.embeddings.clone()
    rows[is_reference] += 50
    marked = replace(protected, embeddings=rows, is_reference=is_reference)
    assert choose_length(marked, PP, has_references=False) == 5
    found = score_conversations([plain(marked, marked, PP)], 5)
    # Means of references lie in one direction, those of tests do not.
    assert int(((found.scores > 0.2) & (found.scores < 0.9)).sum()) <= 0.12 * len(found.scores)


def test_many_conversations_are_thinned_and_agree_with_all(monkeypatch):
    original, protected = voices(speakers=40, utterances=10, noise=4.0)
    rows = plain(original, protected, OP)
    whole = score_conversations([rows], 5)
    monkeypatch.setattr("vpmetrics._identification.conversations._MOST_TRIALS", 20_000)
    thinned = score_conversations([rows], 5)
    assert len(thinned.scores) < len(whole.scores) / 4
    assert torch.equal(
        thinned.scores[thinned.is_target].sort().values, whole.scores[whole.is_target].sort().values
    )
    expected = disclosure(whole.scores, whole.is_target)
    assert disclosure(thinned.scores, thinned.is_target) == pytest.approx(expected, abs=0.02)


def test_several_draws_overstate_private_systems_less_than_one():
    one, twenty, chance = [], [], []
    for seed in range(6):
        original, protected = voices(speakers=30, utterances=10, seed=seed, width=48)
        rows = plain(original, protected, OP)
        for values, draws in ((one, 1), (twenty, 20)):
            found = score_conversations([rows], 5, max_draws=draws)
            values.append(disclosure(found.scores, found.is_target))
        chance.append(disclosure(found.chance_scores, found.is_chance_target))
    assert sum(twenty) / 6 < 0.012 < sum(one) / 6
    assert sum(chance) / 6 == pytest.approx(sum(twenty) / 6, abs=0.008)


def test_noise_averages_out_over_a_conversation():
    original, protected = voices(speakers=30, utterances=20, noise=8.0, width=64)
    rows = plain(original, protected, OP)
    found = {}
    for length in (2, 5, 10):
        scored = score_conversations([rows], length)
        steps = collect_trial_scores(scored.scores, scored.is_target).counts.ascending
        found[length] = float(found_among_of_steps(steps))
    assert 0.02 < found[2] < found[5] < found[10]
