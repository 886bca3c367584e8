"""How long the surrogate and its gradient take beside a sort of the same scores, in one run."""

from __future__ import annotations

import time

import pytest
import torch

from vpmetrics._engine.measures import expected_disclosure
from vpmetrics._engine.score_counts import Steps
from vpmetrics._engine.smoothing import soft_counts


def milliseconds(function, repeats=9):
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)  # what else the machine does only ever adds


@pytest.mark.bench
@pytest.mark.parametrize("bandwidth", [0.1, 0.02])
def test_forward_and_backward_take_no_longer_than_a_sort(bandwidth):
    draw = torch.Generator().manual_seed(0)
    target = torch.arange(1_100_000) < 100_000
    preds = (torch.randn(len(target), generator=draw) + target).requires_grad_()

    def surrogate():
        preds.grad = None
        grid, *counts = soft_counts(preds, target, bandwidth)
        expected_disclosure(Steps(grid[1:], *counts)).backward()

    with torch.no_grad():
        sort = milliseconds(lambda: torch.sort(preds))
    ours = milliseconds(surrogate)
    print(
        f"\nbandwidth {bandwidth}: surrogate with gradient {ours:.1f} ms, sort {sort:.1f} ms, ratio {ours / sort:.2f}"
    )
    assert ours <= sort
