"""Averaged utterances: which go together, and that nothing but their values decides."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from crowds import people
from torch.testing import assert_close

from vpmetrics import EmbeddingTrials, SimilarityRankDisclosure, ZebraDisclosure
from vpmetrics.functional import conversations


def test_conversations_average_disjoint_utterances_of_one_speaker_and_session():
    original, protected, speakers = people(number=5, each=11)
    sessions = torch.arange(55) % 2
    made = conversations(original, protected, speakers, 3, sessions)
    sizes = torch.unique(torch.stack([speakers, sessions]), dim=1, return_counts=True)[1] // 3
    assert len(made.speakers) == sizes.sum()
    members = [
        [row for row in range(55) if speakers[row] == speaker and sessions[row] == session]
        for speaker, session in zip(made.speakers, made.sessions, strict=True)
    ]

    used = []
    for number, rows in enumerate(members):
        of = [
            trio
            for trio in combinations(rows, 3)
            if torch.allclose(original[list(trio)].mean(0), made.original[number])
        ]
        assert len(of) == 1
        assert_close(protected[list(of[0])].mean(0), made.protected[number])
        used += of[0]
    assert len(set(used)) == len(used)


def test_conversations_do_not_depend_on_the_order_or_the_names():
    original, protected, speakers = people(number=5, each=11)
    expected = conversations(original, protected, speakers, 3)
    rows = torch.randperm(55, generator=torch.Generator().manual_seed(0))
    found = conversations(original[rows], protected[rows], -speakers[rows], 3)
    order, others = (made.original[:, 0].argsort() for made in (expected, found))
    assert_close(found.original[others], expected.original[order], rtol=0, atol=0)
    assert_close(found.protected[others], expected.protected[order], rtol=0, atol=0)
    assert (found.speakers[others] == -expected.speakers[order]).all()


def test_utterances_go_together_by_chance_not_by_likeness():
    # Means of L utterances that have nothing to do with each other spread as 1 / L, along every direction.
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(4000, 2, generator=draw, dtype=torch.float64)
    made = conversations(noise, None, torch.arange(4000) // 40, 4).original
    assert_close(made.var(0), torch.full((2,), 0.25, dtype=torch.float64), rtol=0.12, atol=0)


def test_a_conversation_of_one_utterance_is_that_one_and_of_equal_ones_too():
    original, _, speakers = people(number=4, each=5)
    made = conversations(original, None, speakers, 1)
    assert set(map(tuple, made.original.tolist())) == set(map(tuple, original.tolist()))
    assert made.protected is None
    same = original[:1].expand(20, -1)
    assert (conversations(same, None, speakers, 3).original == same[0]).all()


@pytest.mark.parametrize(("utterances", "error"), [(0, ValueError), (1.5, TypeError), (True, TypeError)])
def test_an_odd_number_of_utterances_is_refused(utterances, error):
    original, protected, speakers = people()
    with pytest.raises(error, match="Expected `utterances`"):
        conversations(original, protected, speakers, utterances)


def test_longer_conversations_disclose_more_by_every_measure():
    original, _, speakers = people(number=40, each=16, width=32)
    protected = original + 3 * torch.randn(original.shape, generator=torch.Generator().manual_seed(1)).double()
    disclosed = []
    for length in (1, 2, 4):
        metric = EmbeddingTrials(ZebraDisclosure(), condition="OP")
        ranks = SimilarityRankDisclosure(condition="OP")
        made = conversations(original, protected, speakers, length)
        for each in (metric, ranks):
            each.update(made.original, made.protected, made.speakers)
        disclosed.append((metric.compute()["d_ece"], ranks.compute()["mean_d"]))
    assert torch.tensor(disclosed).diff(dim=0).min() > 0.05
