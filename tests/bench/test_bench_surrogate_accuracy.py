"""With few trials, exact PAV fits noise; the surrogate is nearer to the truth."""

from __future__ import annotations

import pytest
import torch
from test_surrogate import d_ece, gaussians, population_d_ece

pytestmark = pytest.mark.bench


def test_distance_to_the_population_value():
    print("\n| distance | truth | exact PAV: mean (RMSE) | surrogate at 0.1: mean (RMSE) |\n|---|---|---|---|")
    for distance in (0.0, 0.5, 1.0, 2.0):
        truth, cells = population_d_ece(distance), []
        for bandwidth in (None, 0.1):
            draws = [d_ece(*gaussians(distance, 200, 2000, seed), bandwidth) for seed in range(40)]
            values = torch.stack(draws)
            cells.append((values.mean(), (values - truth).square().mean().sqrt()))
        exact, smooth = (f"{mean:.3f} ({error:.3f})" for mean, error in cells)
        print(f"| {distance} | {truth:.3f} | {exact} | {smooth} |")
        assert cells[1][1] < cells[0][1]
