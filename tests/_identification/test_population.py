"""Averaged utterances: which go together, and that nothing but their values decides."""

from itertools import combinations

import pytest
import torch
from reports import compute
from samples import made_systems, people
from torch.testing import assert_close

from vpmetrics import VoicePrivacy
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
        (trio,) = [
            trio for trio in trios if torch.allclose(original[trio].mean(0), made.original[number])
        ]
        assert_close(protected[trio].mean(0), made.protected[number])
        used += trio
    assert len(set(used)) == len(used)


def test_conversations_are_independent_of_order_and_labels():
    rows = people(number=5, each=11)
    mixed = torch.randperm(55, generator=torch.Generator().manual_seed(0))
    made = [
        conversations(*rows, 3),
        conversations(rows[0][mixed], rows[1][mixed], -rows[2][mixed], 3),
    ]
    columns = [torch.cat([*each[:2], each.speakers[:, None].abs()], dim=1) for each in made]
    expected, found = (each[each[:, 0].argsort()] for each in columns)
    assert torch.equal(found, expected)


def test_utterances_are_grouped_at_random():
    # Means of L utterances that have nothing to do with each other spread as 1 / L, along every
    # direction.
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


@pytest.mark.parametrize(
    ("length", "error"), [(0, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_invalid_lengths_raise(length, error):
    original, protected, speakers = people()
    with pytest.raises(error, match="Expected `conversation`"):
        conversations(original, protected, speakers, length)


def test_averaging_utterances_defeats_noise_but_not_keys():
    curves = {}
    for name, spoken in made_systems(number=40).items():
        _, number, each, _ = spoken.shape
        enrolled, tried = spoken.flatten(1, 2)
        speakers = torch.arange(number).repeat_interleave(each)
        found = {}
        for length in (1, 4):
            metric = VoicePrivacy(
                metrics=["op_d_ece", "op_mean_d", "op_d_ece_strongest"],
                attacks=[Plain(), Centred()],
            )
            averaged = conversations(enrolled, tried, speakers, length)
            found[length] = compute(
                metric, averaged.original, averaged.protected, averaged.speakers
            )
        curves[name] = {key: (found[4][key] - found[1][key]).item() for key in found[1]}
    shared, keyed, noisy = curves.values()
    for key in noisy:
        assert noisy[key] > 0.15
        assert noisy[key] > 2 * max(shared[key], keyed[key])
