"""Averaged utterances: which go together, and that nothing but their values decides."""

from functools import partial
from itertools import combinations

import pytest
import torch
from cases import assert_same
from reports import compute
from samples import made_systems, people
from torch.testing import assert_close

from vpmetrics import SimilarityRankDisclosure, VoicePrivacy
from vpmetrics._identification.population import average_utterances
from vpmetrics._utterances.utterances import deduplicate_and_index, pack_utterances
from vpmetrics.attacks import Centred, Plain
from vpmetrics.functional import conversations


def test_conversations_average_disjoint_utterances_of_one_speaker_and_session():
    original, protected, speakers = people(number=5, each=11)
    sessions = torch.arange(55) % 2
    made = conversations(original, protected, speakers, 3, sessions)
    sizes = torch.unique(torch.stack([speakers, sessions]), dim=1, return_counts=True)[1] // 3
    assert len(made.speakers) == sizes.sum()
    used = []
    for number, (speaker, session) in enumerate(zip(made.speakers, made.sessions, strict=True)):
        members = ((speakers == speaker) & (sessions == session)).nonzero().flatten().tolist()
        trios = [list(trio) for trio in combinations(members, 3)]
        (trio,) = [trio for trio in trios if torch.allclose(original[trio].mean(0), made.original[number])]
        assert_close(protected[trio].mean(0), made.protected[number])
        used += trio
    assert len(set(used)) == len(used)


def test_conversations_are_independent_of_order_and_labels():
    rows = people(number=5, each=11)
    mixed = torch.randperm(55, generator=torch.Generator().manual_seed(0))
    made = [conversations(*rows, 3), conversations(rows[0][mixed], rows[1][mixed], -rows[2][mixed], 3)]
    columns = [torch.cat([*each[:2], each.speakers[:, None].abs()], dim=1) for each in made]
    expected, found = (each[each[:, 0].argsort()] for each in columns)
    assert torch.equal(found, expected)


def test_utterances_are_grouped_at_random():
    # Means of L utterances that have nothing to do with each other spread as 1 / L, along every direction.
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(4000, 2, generator=draw, dtype=torch.float64)
    made = conversations(noise, None, torch.arange(4000) // 40, 4).original
    assert_close(made.var(0), torch.full((2,), 0.25, dtype=torch.float64), rtol=0.12, atol=0)


def test_conversation_of_one_or_equal_utterances_is_unchanged():
    original, _, speakers = people(number=4, each=5)
    made = conversations(original, None, speakers, 1)
    assert set(map(tuple, made.original.tolist())) == set(map(tuple, original.tolist()))
    assert made.protected is None
    same = original[:1].expand(20, -1)
    assert (conversations(same, None, speakers, 3).original == same[0]).all()


@pytest.mark.parametrize(("utterances", "error"), [(0, ValueError), (1.5, TypeError), (True, TypeError)])
def test_invalid_utterances_raise(utterances, error):
    original, protected, speakers = people()
    with pytest.raises(error, match="Expected `utterances`"):
        conversations(original, protected, speakers, utterances)


@pytest.mark.parametrize("sessions", [False, True])
def test_over_utterances_equals_the_metric_of_averages(sessions):
    original, protected, speakers = people(number=8, each=12, noise=2.0)
    given = {"sessions": torch.arange(96) % 2} if sessions else {}
    for make in (partial(SimilarityRankDisclosure, condition="OP"), partial(VoicePrivacy, attacks=None)):
        metric = make()
        metric.update(original, protected, speakers, **given)
        for length, values in metric.over_utterances((1, 2, 3)).items():
            columns = averages(original, protected, speakers, length, **given)
            if not sessions:
                del columns["sessions"]
            assert_same(values, compute(make(), **columns), atol=1e-7, rtol=0)


def averages(original, protected, speakers, length, sessions=None):
    """Rows of which the library makes one, found by going through its own averages of the original side."""
    made = average_utterances(
        deduplicate_and_index(pack_utterances(original, protected, speakers, sessions=sessions)), length
    )
    for side, of in ((made.original, original), (made.protected, protected)):
        for vector, speaker in zip(side.embeddings, side.speakers, strict=True):
            rows = (speakers == speaker).nonzero().flatten().tolist()
            means = [of[list(some)].mean(0) for some in combinations(rows, length)]
            assert min((mean - vector).abs().max() for mean in means) < 1e-12
    assert torch.equal(made.original.ids, made.protected.ids)
    of_speaker = 12 // length if sessions is None else 2 * (6 // length)
    assert len(made.original.speakers) == 8 * of_speaker
    sides = {"original": made.original.embeddings, "protected": made.protected.embeddings}
    return {**sides, "speakers": made.original.speakers, "sessions": made.protected.sessions}


def test_both_sessions_average_the_same_recordings():
    original, protected, speakers = people(number=5, each=6)
    twice = {"sessions": torch.arange(60) // 30, "utterances": torch.arange(30).repeat(2)}
    rows = pack_utterances(original.repeat(2, 1), torch.cat([protected, protected + 100]), speakers.repeat(2), **twice)
    made = average_utterances(deduplicate_and_index(rows), 3)
    assert len(made.original.speakers) == 10
    sides = [made.protected.take(made.protected.sessions == session) for session in (0, 1)]
    first, second = (side.take(side.ids.argsort()) for side in sides)
    assert first.ids.tolist() == second.ids.tolist() == sorted(made.original.ids.tolist())
    assert_close(first.embeddings + 100, second.embeddings)


def test_averaging_utterances_defeats_noise_but_not_keys():
    curves = {}
    for name, spoken in made_systems(number=40).items():
        _, number, each, _ = spoken.shape
        metric = VoicePrivacy(metrics=["op_d_ece", "op_mean_d", "op_d_ece_strongest"], attacks=[Plain(), Centred()])
        enrolled, tried = spoken.flatten(1, 2)
        metric.update(enrolled, tried, torch.arange(number).repeat_interleave(each))
        found = metric.over_utterances((1, 4))
        curves[name] = {key: (found[4][key] - found[1][key]).item() for key in found[1]}
    shared, keyed, noisy = curves.values()
    for key in noisy:
        assert noisy[key] > 0.15
        assert noisy[key] > 2 * max(shared[key], keyed[key])


def test_invalid_lengths_raise():
    with pytest.raises(ValueError, match="Expected `lengths`"):
        VoicePrivacy().over_utterances((0,))
