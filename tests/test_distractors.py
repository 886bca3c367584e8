"""Enrolled speakers without tests: they widen the gallery, and are never left out."""

import numpy as np
import pytest
import torch
from reference.similarity import cosine
from samples import utterances
from torch.testing import assert_close

from vpmetrics import ReidentificationRate, SimilarityRankDisclosure, VoicePrivacy


def draw_distractors(number=7, width=8):
    return torch.randn(
        number, width, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )


def update_with_rows(metric, original, protected, speakers, is_reference, extra):
    """Feed distractors as rows of further speakers that are references."""
    labels = torch.cat([speakers, 1000 + torch.arange(len(extra))])
    marks = torch.cat([is_reference, torch.ones(len(extra), dtype=torch.bool)])
    metric.update(torch.cat([original, extra]), torch.cat([protected, extra]), labels, marks)


@pytest.mark.parametrize("condition", ["OO", "OP", "PP"])
@pytest.mark.parametrize("intervals", [None, 0.95])
@pytest.mark.parametrize(
    "make", [SimilarityRankDisclosure, lambda **given: ReidentificationRate(sizes=(5, 15), **given)]
)
def test_distractors_are_references_of_further_speakers(condition, intervals, make):
    original, protected, speakers = utterances()
    is_reference = torch.arange(len(speakers)) % 3 == 0
    extra = draw_distractors()
    metric = make(condition=condition, intervals=intervals, distractors=extra)
    metric.update(original, protected, speakers, is_reference)
    same = make(condition=condition)
    update_with_rows(same, original, protected, speakers, is_reference, extra)
    values = metric.compute()
    for key, value in same.compute().items():
        assert_close(values[key], value, equal_nan=True)
    if intervals:
        key = "mean_d" if "mean_d" in values else "rate_5"
        assert values[f"{key}_low"] < values[key] < values[f"{key}_high"]


@pytest.mark.parametrize("condition", ["OP", "PP"])
def test_ranks_equal_a_slow_reference(condition):
    original, protected, speakers = utterances()
    is_reference = torch.arange(len(speakers)) % 3 == 0
    extra = draw_distractors()
    metric = SimilarityRankDisclosure(condition=condition, distractors=extra)
    metric.update(original, protected, speakers, is_reference)
    enrolment = protected if condition == "PP" else original
    ranks = []
    for row in (~is_reference).nonzero().flatten().tolist():
        own = speakers[row]
        enrolled = speakers[is_reference].unique()
        if own not in enrolled:
            continue
        means = {int(one): enrolment[is_reference & (speakers == one)].mean(0) for one in enrolled}
        gallery = [vector.numpy() for vector in (*means.values(), *extra)]
        scores = [cosine(vector, protected[row].numpy()) for vector in gallery]
        own_score = scores[list(means).index(int(own))]
        ranks.append(sum(score > own_score for score in scores))
    num_references = len(enrolled) + len(extra)
    counts = np.bincount(ranks, minlength=num_references)
    shares = counts[counts > 0] / len(ranks)
    values = metric.compute()
    assert values["id_rate"] == pytest.approx(counts[0] / len(ranks), abs=1e-12)
    mean_d = float(np.sum(shares * np.log2(num_references * shares)))
    assert values["mean_d"] == pytest.approx(mean_d, abs=1e-9)
    assert values["max_d"] == pytest.approx(np.log2(num_references * shares.max()), abs=1e-9)


def test_distractors_widen_the_gallery_without_references():
    original, protected, speakers = utterances()
    metric = ReidentificationRate(sizes=(5,), distractors=draw_distractors())
    metric.update(original, protected, speakers)
    plain = ReidentificationRate(sizes=(5,))
    plain.update(original, protected, speakers)
    assert metric.compute()["gallery"] == plain.compute()["gallery"] + 7
    ranks = SimilarityRankDisclosure(distractors=10 * protected[speakers == speakers[0]])
    ranks.update(None, protected, speakers)
    without = SimilarityRankDisclosure()
    without.update(None, protected, speakers)
    assert ranks.compute()["id_rate"] < without.compute()["id_rate"]


@pytest.mark.parametrize(
    ("distractors", "error", "message"),
    [
        (torch.zeros(3), ValueError, r"shape \(G, D\), but got \(3,\)"),
        (torch.zeros(3, 8).long(), TypeError, "floating dtype"),
        (torch.full((3, 8), torch.nan), ValueError, "to be finite"),
    ],
)
def test_what_are_no_distractors_raises(distractors, error, message):
    with pytest.raises(
        error, match=f"`distractors` to (have )?(a )?.*{message}|`distractors` {message}"
    ):
        SimilarityRankDisclosure(distractors=distractors)


def test_distractors_of_another_width_raise():
    original, protected, speakers = utterances()
    metric = SimilarityRankDisclosure(distractors=torch.zeros(3, 5))
    metric.update(original, protected, speakers)
    with pytest.raises(
        ValueError, match="`distractors` to have 8 columns, as the embeddings have, but got 5"
    ):
        metric.compute()


def test_the_suite_searches_among_distractors_of_the_enrolled_side():
    original, protected, speakers = utterances()
    by_side = {"original": draw_distractors(), "protected": draw_distractors(number=4)}
    suite = VoicePrivacy(metrics="all", attacks=None, sizes=(5,), distractors=by_side)
    suite.update(original, protected, speakers)
    values = suite.compute()
    side_of_condition = {"OO": "original", "OP": "original", "PP": "protected"}
    for condition, side in side_of_condition.items():
        settings = {"condition": condition, "distractors": by_side[side]}
        ranks = SimilarityRankDisclosure(**settings)
        rates = ReidentificationRate(sizes=(5,), **settings)
        for metric in (ranks, rates):
            metric.update(original, protected, speakers)
            for key, value in metric.compute().items():
                if f"{condition.lower()}_{key}" in values:
                    assert_close(values[f"{condition.lower()}_{key}"], value)
    assert values["oo_gallery"] == values["pp_gallery"] + 3


def test_one_side_of_distractors_leaves_other_conditions_as_they_are():
    original, protected, speakers = utterances()
    settings = {"metrics": ["op_mean_d", "pp_mean_d"], "attacks": None}
    plain = VoicePrivacy(**settings)
    widened = VoicePrivacy(**settings, distractors={"original": draw_distractors()})
    for metric in (plain, widened):
        metric.update(original, protected, speakers)
    assert_close(plain.compute()["pp_mean_d"], widened.compute()["pp_mean_d"])
    assert plain.compute()["op_mean_d"] != widened.compute()["op_mean_d"]


def test_attacked_rates_are_without_distractors():
    original, protected, speakers = utterances()
    key = "op_rate_5_strongest"
    settings = {"metrics": [key], "sizes": (5,)}
    plain = VoicePrivacy(**settings)
    widened = VoicePrivacy(**settings, distractors={"original": draw_distractors()})
    for metric in (plain, widened):
        metric.update(original, protected, speakers)
    assert_close(plain.compute()[key], widened.compute()[key], equal_nan=True)


@pytest.mark.parametrize(
    ("distractors", "error", "got"),
    [
        (torch.zeros(3, 8), TypeError, "Tensor"),
        ({}, ValueError, "an empty one"),
        ({"clean": torch.zeros(3, 8)}, ValueError, "'clean'"),
    ],
)
def test_the_suite_takes_distractors_by_side(distractors, error, got):
    with pytest.raises(error, match=f"`distractors` to be a dictionary with .*, but got {got}"):
        VoicePrivacy(distractors=distractors)


def test_the_gallery_limits_the_interval():
    """Ranks among more people may disclose more than the speakers with tests alone would allow."""
    speakers = utterances()[2]
    draw = torch.Generator().manual_seed(3)
    voices = torch.eye(int(speakers.max()) + 1, dtype=torch.float64)[speakers]
    noise = 0.01 * torch.randn(voices.shape, generator=draw, dtype=torch.float64)
    metric = SimilarityRankDisclosure(intervals=0.95, distractors=-voices.unique(dim=0))
    metric.update(None, voices + noise, speakers)
    values = metric.compute()
    assert values["mean_d"] > torch.tensor(float(len(speakers.unique()))).log2()
    assert values["mean_d_low"] <= values["mean_d"] <= values["mean_d_high"]
