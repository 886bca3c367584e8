"""The differentiable surrogate of PAV.

How near it comes to the exact value and to the truth, and its gradient.
"""

import math

import pytest
import torch
from reference import zebra as reference
from samples import gaussians
from scipy import integrate, stats
from torch.autograd import gradcheck
from torch.testing import assert_close

from vpmetrics._scores.score_counts import Steps, weighted_mean
from vpmetrics._scores.smoothing import Grid, lay_grid, soft_counts_on_grid
from vpmetrics.functional import equal_error_rate, min_cllr, pav_llr, zebra_disclosure


def d_ece(preds, target, bandwidth=None):
    return zebra_disclosure(preds, target, bandwidth)["d_ece"]


MEASURES = {
    "d_ece": d_ece,
    "d_ece_reversed": lambda *trials: zebra_disclosure(*trials)["d_ece_reversed"],
    "l_w": lambda *trials: zebra_disclosure(*trials)["l_w"],
    "min_cllr": min_cllr,
    "eer": equal_error_rate,
    "pav_llr": lambda preds, target, bandwidth: pav_llr(preds, target, False, bandwidth),
    "pav_llr_laplace": lambda preds, target, bandwidth: pav_llr(preds, target, True, bandwidth),
}


def population_d_ece(distance):
    """D_ECE of N(distance, 1) against N(0, 1).

    The log-likelihood ratio is linear in the score.
    """

    def bits(x):
        llr = distance * (x - distance / 2)
        return stats.norm.pdf(x, distance) * reference.z(llr) + stats.norm.pdf(x) * reference.z(
            -llr
        )

    return integrate.quad(bits, -9, 9 + distance)[0] / (2 * math.log(2))


@pytest.mark.parametrize("distance", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_smoothed_value_converges_as_bandwidth_falls(distance, seed):
    preds, target = gaussians(1000, 20000, distance, seed)
    exact = d_ece(preds, target).item()
    errors = [abs(d_ece(preds, target, b).item() - exact) for b in (0.5, 0.1, 0.02, 0.004, 0.001)]
    assert errors == sorted(errors, reverse=True)
    assert errors[1] <= 0.012
    assert errors[2] <= 0.005
    assert errors[4] <= 0.001


def test_other_smoothed_measures_approximate_exact_values():
    preds, target = gaussians(1000, 20000, 1.0)
    allowed = {
        "min_cllr": {"abs": 0.01},
        "eer": {"abs": 0.005},
        "d_ece_reversed": {"abs": 0.001},
        "l_w": {"rel": 0.2},
    }
    for name, tolerance in allowed.items():
        exact, soft = (
            MEASURES[name](preds, target, bandwidth).item() for bandwidth in (None, 0.02)
        )
        assert soft == pytest.approx(exact, **tolerance), name


def test_smoothing_reduces_the_bias_of_few_trials():
    truth = population_d_ece(1.0)
    assert truth == pytest.approx(0.109, abs=0.001)
    draws = [gaussians(200, 2000, 1.0, seed) for seed in range(40)]
    exact, soft = (torch.stack([d_ece(*draw, b) for draw in draws]) - truth for b in (None, 0.1))
    assert soft.square().mean() < exact.square().mean()
    assert soft.mean().abs() < 0.5 * exact.mean().abs()


@pytest.mark.parametrize("bandwidth", [0.1, 0.3])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_gradcheck_includes_the_grid(measure, bandwidth, seed):
    preds, target = gaussians(8, 25, 0.2, seed)
    assert gradcheck(
        lambda x: measure(x, target, bandwidth), preds.requires_grad_(), atol=1e-5, rtol=1e-3
    )


def test_interpolation_is_the_adjoint_of_soft_counting():
    preds, target = gaussians(200, 2000, 1.0)
    per_score = pav_llr(preds, target, True, 0.05)
    grid = lay_grid(preds, 0.05)
    steps = Steps(grid.points[1:], *soft_counts_on_grid(grid, preds, target))
    for label, counts in ((1, steps.targets), (0, steps.nontargets)):
        assert_close(
            per_score[target == label].mean(),
            weighted_mean(counts, steps.laplace_llr()),
            atol=1e-6,
            rtol=0,
        )
    assert (per_score - pav_llr(preds, target, True)).abs().mean() < 0.1


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_value_is_invariant_to_shift_scale_and_order(measure):
    preds, target = gaussians(100, 1000, 1.0)
    order = torch.randperm(1100, generator=torch.Generator().manual_seed(0))
    value, moved = measure(preds, target, 0.1), measure(1e3 * preds[order] - 40, target[order], 0.1)
    assert_close(moved, value[order] if value.dim() else value, atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_dtypes_and_autocast(dtype):
    preds, target = gaussians(200, 2000, 1.0)
    narrow = preds.to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = d_ece(narrow, target, 0.1)
    assert value.item() == pytest.approx(
        d_ece(preds, target, 0.1).item(), abs=1e-5 if dtype == torch.float32 else 1e-3
    )
    (gradient,) = torch.autograd.grad(value, narrow)
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "preds",
    [
        torch.zeros(40),
        torch.full((40,), 0.7),
        0.7 + 1e-8 * torch.arange(40.0),
        torch.arange(40.0) ** 9,
    ],
)
def test_degenerate_scores_have_finite_values_and_gradients(preds):
    preds.requires_grad_()
    value = d_ece(preds, torch.arange(40) % 2, 0.1)
    value.backward()
    assert -1e-6 <= value.item() <= 0.7214
    assert preds.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["spread", "tied", "two values"])
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        *((torch.float32, scale) for scale in (1e-44, 1e-38, 1e-30, 1e-17, 1e20, 3e37)),
        *((torch.float64, scale) for scale in (1e-310, 1e-300, 1e-150, 1e160, 1e300, 1.5e307)),
    ],
)
def test_scores_of_any_size_have_finite_values_and_gradients(dtype, scale, kind):
    preds, target = gaussians(30, 100, 1.0)
    preds = {"spread": preds, "tied": torch.ones_like(preds), "two values": (preds > 0).double()}[
        kind
    ]
    moved = (preds * scale).to(dtype).requires_grad_()
    for name, measure in MEASURES.items():
        value = measure(moved, target, 0.1)
        (gradient,) = torch.autograd.grad(value.sum(), moved)
        assert value.isfinite().all(), name
        assert gradient.isfinite().all(), name
        if scale > torch.finfo(dtype).tiny ** 0.5:
            assert_close(value, measure(preds, target, 0.1).to(dtype), atol=1e-3, rtol=1e-3)


def test_nan_stays_nan():
    preds, target = gaussians(10, 20, 1.0)
    preds[3] = torch.nan
    with pytest.warns(UserWarning, match="Some scores are NaN"):
        assert min_cllr(preds, target, 0.1, validate_args=False).isnan()


def test_zero_weight_scores_are_not_counted():
    draw = torch.Generator().manual_seed(0)
    preds, target = (
        torch.randn(2, 60, generator=draw, dtype=torch.float64),
        torch.arange(60) % 3 == 0,
    )
    kept = torch.rand(2, 60, generator=draw) < 0.5
    grid = lay_grid(preds, bandwidth=0.1)
    weighted = soft_counts_on_grid(grid, preds, target.expand(2, 60), kept)
    for row in range(2):
        own = Grid(*(part[row] for part in grid[:-1]), grid.cells)
        chosen = soft_counts_on_grid(own, preds[row, kept[row]], target[kept[row]])
        assert_close(tuple(counts[row] for counts in weighted), tuple(chosen), atol=1e-9, rtol=0)
