"""Counts of scores: histograms, condensed and separated, give what sorted scores give."""

import pytest
import torch
from torch.testing import assert_close

from vpmetrics._engine.measures import expected_disclosure
from vpmetrics._engine.score_counts import count_by_bin, merge_targetless_steps, sort_scores


def test_merging_targetless_bins_keeps_likelihood_ratios():
    draw = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 3, (500,), generator=draw) * (torch.rand(500, generator=draw) < 0.2)
    nontargets = torch.randint(0, 9, (500,), generator=draw)
    every = count_by_bin(torch.arange(499.0), targets, nontargets).ascending
    few, place = merge_targetless_steps(every), (every.targets > 0).cumsum(0)
    assert len(few.targets) == int((targets > 0).sum()) + 1
    assert_close(few.llr[place], every.llr)
    assert_close(few.laplace_llr()[place], every.laplace_llr())


@pytest.mark.parametrize("seed", range(5))
def test_separating_classes_within_bins_never_lowers_disclosure(seed):
    draw = torch.Generator().manual_seed(seed)
    targets, nontargets = (torch.poisson(torch.rand(500, generator=draw) * of, generator=draw) for of in (0.5, 3))
    edges = torch.arange(499.0)
    pooled = expected_disclosure(count_by_bin(edges, targets, nontargets).ascending)
    # By hand: two bins per bin, first its non-targets, then its targets.
    twice = torch.zeros(2, 1000)
    twice[0, 1::2], twice[1, ::2] = targets, nontargets
    expected = expected_disclosure(count_by_bin(torch.arange(999.0), *twice).ascending)
    separated = expected_disclosure(count_by_bin(edges, targets, nontargets, is_separated=True).ascending)
    assert_close(separated, expected, rtol=1e-12, atol=0)
    assert separated > pooled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", [0, 1, 1000, 1 << 15, 40_000])
@pytest.mark.parametrize("nan", [None, torch.nan, -torch.nan])
def test_integer_sort_keys_match_float_sort(number, dtype, nan):
    draw = torch.Generator().manual_seed(number)
    scores = torch.randn(number, dtype=dtype, generator=draw) * 10.0 ** torch.randint(
        -40, 30, (number,), generator=draw
    )
    if number > 10:
        scores[:8] = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0, 1e-44, -1e-44, 1.0, 1.0])
        scores[8] = scores[8] if nan is None else nan  # the sign of NaN is one of its bits
    expected = scores.sort().values
    assert_close(sort_scores(scores.clone()), expected, rtol=0, atol=0, equal_nan=True)
