"""Enrolled speakers without tests: they widen the gallery, and are never left out."""

import pytest
import torch
from samples import utterances
from torch.testing import assert_close

from vpmetrics import ReidentificationRate, SimilarityRankDisclosure


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
