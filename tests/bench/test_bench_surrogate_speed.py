"""How long the surrogate and its gradient take beside a sort of the same scores, in one run."""

from __future__ import annotations

import pytest
import torch

from bench.timing import in_turns, report
from vpmetrics._engine.measures import expected_disclosure
from vpmetrics._engine.score_counts import Steps
from vpmetrics._engine.smoothing import lay_grid, soft_counts_on_grid


@pytest.mark.bench
@pytest.mark.parametrize("bandwidth", [0.1, 0.02])
def test_forward_and_backward_take_no_longer_than_a_sort(bandwidth):
    draw = torch.Generator().manual_seed(0)
    target = torch.arange(1_100_000) < 100_000
    preds = (torch.randn(len(target), generator=draw) + target).requires_grad_()

    def surrogate():
        preds.grad = None
        grid = lay_grid(preds, bandwidth)
        expected_disclosure(Steps(grid.points[1:], *soft_counts_on_grid(grid, preds, target))).backward()

    seconds = in_turns({"surrogate": surrogate, "sort": lambda: torch.sort(preds.detach())}, repeat=9)
    ratio = report(f"surrogate with gradient, bandwidth {bandwidth}", seconds["surrogate"], "a sort", seconds["sort"])
    assert ratio <= 1
