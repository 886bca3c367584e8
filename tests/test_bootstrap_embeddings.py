"""Intervals of embeddings by drawing speakers: against voices really repeated, and the numbers of the suite."""

from __future__ import annotations

import pytest
import reference
import torch
from torch.testing import assert_close

import vpmetrics as vp
from vpmetrics import functional as F
from vpmetrics._trials.drawn import DrawnCondition, inputs_of_speakers
from vpmetrics._trials.utterances import pack, sides_of

MEASURES = ("d_ece", "d_ece_reversed", "eer", "raw_eer", "min_cllr", "cllr", "linkability", "mean_d", "alid")
EVERYTHING = ("deid", "gvd", *(f"{condition}_{measure}" for condition in ("oo", "op", "pp") for measure in MEASURES))


def voices(speakers=6, seed=0):
    """Two to five utterances of each speaker, whose labels are in no order."""
    draw = torch.Generator().manual_seed(seed)
    place = torch.arange(speakers).repeat_interleave(torch.randint(2, 6, (speakers,), generator=draw))
    means, noise = torch.randn(speakers, 8, generator=draw), torch.randn(2, len(place), 8, generator=draw)
    original = means[place] + 0.7 * noise[0]
    return original.double(), (0.6 * original + noise[1]).double(), (torch.tensor([7, -3, 0, 90, 4, 5, 1, 2])[place])


def drawing(rows=8, speakers=6):
    drawn = torch.randint(speakers, (rows, speakers), generator=torch.Generator().manual_seed(3))
    return drawn, torch.zeros(rows, speakers).scatter_add(1, drawn, torch.ones(rows, speakers))


@pytest.mark.parametrize("condition", ["OO", "OP", "PP"])
def test_matrices_are_those_of_voices_repeated(condition):
    rows = voices()
    drawn, weights = drawing()
    value = DrawnCondition(sides_of(pack(*rows)), condition, "cosine").dominance(weights, "geometric")
    names = rows[2].unique()
    for dominance, places in zip(value, drawn, strict=True):
        arrays = [row.numpy() for row in rows]
        matrix = reference.bootstrap.similarity_matrix(*arrays, names[places].tolist(), condition)
        assert dominance.item() == pytest.approx(reference.similarity.diagonal_dominance(matrix), abs=1e-12)


def test_ranks_are_those_of_inputs_repeated():
    original, protected, speakers = voices()
    drawn, weights = drawing()
    histograms, bits, number = inputs_of_speakers(sides_of(pack(original, protected, speakers)), "OP", "cosine")
    scores, true = reference.rank.reference_scores(original.numpy(), protected.numpy(), speakers.numpy())
    found = F.identify(protected, speakers, original)
    for places, row in zip(drawn, weights, strict=True):
        again = [i for place in places.tolist() for i in range(len(true)) if true[i] == place]
        expected = reference.rank.rank_histogram(scores[again], true[again])
        assert_close(row.double() @ histograms, torch.as_tensor(expected).double(), atol=1e-12, rtol=0)
        mean = (row.double() @ bits) / (row.double() @ number)
        assert_close(mean, found.bits[again].mean(), atol=1e-12, rtol=0)


def test_values_are_those_of_the_suite():
    rows = voices(speakers=8, seed=1)
    suite = vp.VoicePrivacy()
    suite.update(*rows)
    value = suite.compute()
    for key, found in F.bootstrap_embeddings(*rows, EVERYTHING, replicates=2).items():
        assert_close(found.value, value[key], atol=1e-11, rtol=0)


def test_neither_order_nor_labels_show():
    original, protected, speakers = voices()
    ours = F.bootstrap_embeddings(original, protected, speakers, replicates=30)
    order = torch.randperm(len(speakers), generator=torch.Generator().manual_seed(2))
    other = F.bootstrap_embeddings(original[order], protected[order], 9 - speakers[order], replicates=30)
    for key, found in ours.items():
        assert_close(other[key].replicates, found.replicates, atol=1e-12, rtol=0, equal_nan=True)


def test_many_utterances_lose_no_trial():
    draw = torch.Generator().manual_seed(0)
    speakers = torch.arange(2100) % 30
    original = torch.randn(30, 4, generator=draw)[speakers] + torch.randn(2100, 4, generator=draw)
    condition = DrawnCondition(sides_of(pack(original, original, speakers)), "OO", "cosine")
    assert not condition.grid.few
    assert len(condition.scores) == 2100 * 2099 // 2
    assert int(condition.is_target.sum()) == 30 * 70 * 69 // 2
    assert bool(((condition.row == condition.column) == condition.is_target).all())


def test_a_lone_speaker_is_nan_with_one_warning():
    rows = voices(speakers=1)
    with pytest.warns(UserWarning, match="two of them") as warned:
        found = F.bootstrap_embeddings(*rows, EVERYTHING, replicates=2)
    assert len(warned) == 1
    assert all(bool(part.isnan().all()) for each in found.values() for part in each)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"measures": ["d_ece"]}, "`measures` to be some of deid, gvd, oo_d_ece"),
        ({"similarity": "linear"}, "`similarity` to be one of"),
        ({"replicates": 0}, "`replicates` to be at least 2"),
        ({"confidence": 1.0}, "`confidence` to lie between 0 and 1"),
        ({"seed": -1}, "`seed` to be at least 0"),
    ],
)
def test_refuses(change, match):
    with pytest.raises(ValueError, match=match):
        F.bootstrap_embeddings(*voices(), **change)
