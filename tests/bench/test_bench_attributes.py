"""Attribute disclosure: how often 95 % intervals hold the truth, and what they cost.

The cost is beside the suite.
"""

import pytest
import torch
from reports import compute

from bench.timing import ratio
from vpmetrics import AttributeDisclosure, VoicePrivacy
from vpmetrics.functional import attribute_disclosure

pytestmark = pytest.mark.bench

SETS = 200  # of which a share of 0.95 has a standard error of 0.015


def draw_speakers(draw, number, distance, classes=2, width=16, utterances=10):
    """Speakers N(mean of their class, 1), utterances N(speaker, 1)."""
    speakers = torch.arange(number).repeat_interleave(utterances)
    means = distance * torch.eye(width)[torch.arange(number) % classes]
    rows = (means + torch.randn(number, width, generator=draw))[speakers]
    return rows + torch.randn(rows.shape, generator=draw), speakers % classes, speakers


@pytest.mark.parametrize(
    ("number", "distance", "classes"), [(20, 1, 2), (40, 1, 2), (40, 2, 2), (40, 2, 4)]
)
def test_intervals_cover_disclosure_for_the_same_training_size(number, distance, classes):
    draw = torch.Generator().manual_seed(1)
    found = [
        attribute_disclosure(*draw_speakers(draw, number, distance, classes), permutations=0)
        for _ in range(SETS)
    ]
    values, low, high = (
        torch.stack([getattr(each, key) for each in found]) for key in ("disclosure", "low", "high")
    )
    truth = values.mean()
    share = ((low <= truth) & (truth <= high)).double().mean().item()
    print(
        f"\n{number} speakers, {classes} classes {distance} apart: {truth:.3f} bit, covered"
        f" {share:.3f}"
    )
    assert 0.91 <= share <= 1


def test_an_attribute_with_its_interval_costs_at_most_a_few_suites():
    rows, labels, speakers = draw_speakers(torch.Generator().manual_seed(0), 60, 1, width=192)

    def suite():
        compute(VoicePrivacy(intervals=0.95), rows, rows.roll(1, 1), speakers)

    def attribute():
        metric = AttributeDisclosure(["sex"], intervals=0.95)
        compute(metric, rows, rows.roll(1, 1), speakers, attributes={"sex": labels})

    assert ratio("one attribute", attribute, "the suite", suite, repeat=2) <= 4
