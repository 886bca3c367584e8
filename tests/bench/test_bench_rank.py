"""Identification at scale against the bare matrix product; and how far to trust a rank disclosure of few inputs.

Run with ``pytest -m bench -s tests/bench/test_bench_rank.py``.
"""

import pytest
import torch

from bench.timing import in_turns, report
from vpmetrics.functional import identify, rank_disclosure, rank_histogram

pytestmark = pytest.mark.bench

INPUTS, REFERENCES, DIMENSIONS = 100_000, 10_000, 192
RANKS, DRAWS, NAMES = 40, 1000, ("mean_d", "max_d")


def bare_product(inputs, references, rows=64):
    for part in inputs.split(rows):
        part @ references.T


def test_identification_costs_little_more_than_the_products():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(INPUTS, DIMENSIONS, generator=generator)
    speakers = torch.randint(0, REFERENCES, (INPUTS,), generator=generator)
    references, reference_speakers = torch.randn(REFERENCES, DIMENSIONS, generator=generator), torch.arange(REFERENCES)
    runs = {
        "bare products": lambda: bare_product(inputs, references),
        "ranks, disjoint references": lambda: rank_histogram(inputs, speakers, references, reference_speakers),
        "ranks, leave-one-out": lambda: rank_histogram(inputs, speakers),
        "ranks and local information": lambda: identify(inputs, speakers, references, reference_speakers, slope=1.5),
        "the same with a slope cross-fitted": lambda: identify(inputs, speakers, references, reference_speakers),
    }
    seconds = in_turns(runs, repeat=3)
    print(f"\n{INPUTS} inputs x {REFERENCES} references x {DIMENSIONS} dimensions, {torch.get_num_threads()} threads")
    for name in list(runs)[1:]:
        # A cross-fitted slope takes a pass of its own.
        assert report(name, seconds[name], "bare products", seconds["bare products"]) <= (4 if "fitted" in name else 2)


def test_bias_and_spread_of_few_inputs():
    """Bias is upwards: chance alone puts more inputs on some ranks, and the most on one of them."""
    generator = torch.Generator().manual_seed(0)
    for truth, (alpha, beta) in {"nothing disclosed": (1.0, 1.0), "little": (0.95, 1.3), "much": (0.35, 2.0)}.items():
        gamma = beta_binomial(alpha, beta)
        exact = rank_disclosure(gamma)
        print(f"\n{truth}: MeanD {exact['mean_d']:.3f}, MaxD {exact['max_d']:.3f} bits; N = {RANKS}, {DRAWS} draws")
        print("inputs |  MeanD: empirical      beta-binomial |   MaxD: empirical      beta-binomial")
        for inputs in (40, 100, 200, 400, 800, 1600, 3200, 6400):
            ranks = torch.multinomial(gamma.expand(DRAWS, -1), inputs, replacement=True, generator=generator)
            histograms = torch.zeros(DRAWS, RANKS).scatter_add(1, ranks, torch.ones(ranks.shape)).double()
            values = {model: rank_disclosure(histograms, model=model) for model in ("empirical", "beta_binomial")}
            errors = {(name, model): values[model][name] - exact[name] for name in NAMES for model in values}
            cells = [f"{error.mean():+9.3f} ± {error.std():6.3f}" for error in errors.values()]
            print(f"{inputs:6} | {cells[0]} {cells[1]} | {cells[2]} {cells[3]}")
            if truth == "nothing disclosed":  # half a nat per free share, as for every plug-in entropy
                expected = (RANKS - 1) / (2 * inputs * 0.6931)
                assert abs(errors["mean_d", "empirical"].mean() - expected) < 0.25 * expected
            assert errors["mean_d", "beta_binomial"].mean().abs() < errors["mean_d", "empirical"].mean()


def beta_binomial(alpha, beta):
    k = torch.arange(RANKS - 1, dtype=torch.float64)
    ratios = (RANKS - 1 - k) / (k + 1) * (alpha + k) / (beta + RANKS - 2 - k)
    return torch.softmax(torch.cat([torch.zeros(1, dtype=torch.float64), ratios.log().cumsum(0)]), dim=0)
