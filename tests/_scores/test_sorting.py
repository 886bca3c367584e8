"""Sorting of scores: both ways give one order, and the choice between them is made once."""

import pytest
import torch
from torch.testing import assert_close

from vpmetrics._scores import sorting


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", [0, 1, 1000, 1 << 15, 40_000])
@pytest.mark.parametrize("last", [1.0, torch.nan, -torch.nan])  # the sign of NaN is one of its bits
@pytest.mark.parametrize("is_radix_faster", [True, False])
def test_both_ways_to_sort_give_the_order_of_torch(
    number, dtype, last, is_radix_faster, monkeypatch
):
    monkeypatch.setattr(sorting, "is_radix_faster", lambda _: is_radix_faster)
    draw = torch.Generator().manual_seed(number)
    scale = 10.0 ** torch.randint(-40, 30, (number,), generator=draw)
    scores = torch.randn(number, dtype=dtype, generator=draw) * scale
    if number > 10:
        scores[:9] = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0, 1e-44, -1e-44, 1.0, 1.0, last])
    assert_close(
        sorting.sort_scores(scores.clone()), scores.sort().values, rtol=0, atol=0, equal_nan=True
    )


def test_choice_is_measured_once_per_type(monkeypatch):
    measured = []
    monkeypatch.setattr(
        sorting, "_shortest_seconds", lambda _, scores: measured.append(scores.dtype) or 1.0
    )
    sorting.is_radix_faster.cache_clear()
    for _ in range(3):
        assert not sorting.is_radix_faster(torch.float32)
        assert not sorting.is_radix_faster(torch.float64)
    sorting.is_radix_faster.cache_clear()
    assert measured == [torch.float32] * 2 + [torch.float64] * 2
