"""Identification at scale against the bare matrix product; and how far to trust a rank disclosure of few inputs."""

import math

import pytest
import torch
from reference.rank import beta_binomial

from bench.timing import in_turns, report
from vpmetrics.functional import identify, rank_disclosure, rank_histogram

pytestmark = pytest.mark.bench

INPUTS, REFERENCES, DIMENSIONS = 100_000, 10_000, 192
RANKS, DRAWS = 40, 1000


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


@pytest.mark.parametrize("law", [(1.0, 1.0), (0.95, 1.3), (0.35, 2.0)], ids=["nothing disclosed", "little", "much"])
def test_bias_and_spread_of_few_inputs(law):
    """Bias is upwards: chance alone puts more inputs on some ranks, and the most on one of them."""
    generator = torch.Generator().manual_seed(0)
    gamma = torch.from_numpy(beta_binomial(RANKS, *law))
    exact = rank_disclosure(gamma)
    print(f"\n{law}: MeanD {exact['mean_d']:.3f}, MaxD {exact['max_d']:.3f} bits; N = {RANKS}, {DRAWS} draws")
    for inputs in (40, 100, 200, 400, 800, 1600, 3200, 6400):
        ranks = torch.multinomial(gamma.expand(DRAWS, -1), inputs, replacement=True, generator=generator)
        histograms = torch.zeros(DRAWS, RANKS).scatter_add(1, ranks, torch.ones(ranks.shape)).double()
        errors = {}
        for model in ("empirical", "beta_binomial"):
            values = rank_disclosure(histograms, model=model)
            for name in ("mean_d", "max_d"):
                errors[name, model] = error = values[name] - exact[name]
                print(f"{inputs:5} inputs, {name} {model}: {error.mean():+.3f} ± {error.std():.3f}")
        if law == (1.0, 1.0):  # half a nat per free share, as for every plug-in entropy
            expected = (RANKS - 1) / (2 * inputs * math.log(2))
            assert abs(errors["mean_d", "empirical"].mean() - expected) < 0.25 * expected
        assert errors["mean_d", "beta_binomial"].mean().abs() < errors["mean_d", "empirical"].mean()
