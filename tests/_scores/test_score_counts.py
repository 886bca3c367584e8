"""Counts of scores: histograms, condensed and separated, give what sorted scores give."""

import torch
from torch.testing import assert_close

from vpmetrics._scores.score_counts import count_by_bin, expected_disclosure, merge_targetless_steps


def test_merging_targetless_bins_keeps_likelihood_ratios():
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 3, (500,), generator=draw) * (torch.rand(500, generator=draw) < 0.2)
    nontargets = torch.randint(0, 9, (500,), generator=draw)
    every = count_by_bin(torch.arange(499.0), targets, nontargets).ascending
    few, place = merge_targetless_steps(every), (every.targets > 0).cumsum(0)
    assert len(few.targets) == int((targets > 0).sum()) + 1
    assert_close(few.llr[place], every.llr)
    assert_close(few.laplace_llr()[place], every.laplace_llr())


def test_separating_classes_within_bins_never_lowers_disclosure():
    draw = torch.Generator().manual_seed(0)
    targets, nontargets = (
        torch.poisson(torch.rand(500, generator=draw) * of, generator=draw) for of in (0.5, 3)
    )
    edges, twice = torch.arange(499.0), torch.zeros(2, 1000)
    # two bins per bin, first its non-targets, then its targets
    twice[0, 1::2], twice[1, ::2] = targets, nontargets
    pooled, expected, separated = (
        expected_disclosure(counts.ascending)
        for counts in (
            count_by_bin(edges, targets, nontargets),
            count_by_bin(torch.arange(999.0), *twice),
            count_by_bin(edges, targets, nontargets, is_separated=True),
        )
    )
    assert_close(separated, expected, rtol=1e-12, atol=0)
    assert separated > pooled
