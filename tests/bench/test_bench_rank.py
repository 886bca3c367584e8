"""Identification at scale against the bare matrix product."""

import pytest
import torch

from bench.timing import in_turns, report
from vpmetrics.functional import identify, rank_histogram

pytestmark = pytest.mark.bench

INPUTS, REFERENCES, DIMENSIONS = 100_000, 10_000, 192


def test_identification_costs_little_more_than_the_products():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(INPUTS, DIMENSIONS, generator=generator)
    speakers = torch.randint(0, REFERENCES, (INPUTS,), generator=generator)
    references = torch.randn(REFERENCES, DIMENSIONS, generator=generator), torch.arange(REFERENCES)

    def products():
        for part in inputs.split(64):
            part @ references[0].T

    runs = {
        "bare products": products,
        "ranks, disjoint references": lambda: rank_histogram(inputs, speakers, *references),
        "ranks, leave-one-out": lambda: rank_histogram(inputs, speakers),
        "ranks and local information": lambda: identify(inputs, speakers, *references, slope=1.5),
        "the same with a slope cross-fitted": lambda: identify(inputs, speakers, *references),
    }
    seconds = in_turns(runs, repeat=3)
    for name in list(runs)[1:]:
        # A cross-fitted slope takes a pass of its own.
        assert report(name, seconds[name], "bare products", seconds["bare products"]) <= (4 if "fitted" in name else 2)
