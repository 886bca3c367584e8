"""Isotonic regression by pool adjacent violators, and log-likelihood ratios of scores from it."""

from __future__ import annotations

import torch
from torch import Tensor

from vpmetrics._scores.pav import number_pools, sum_over_pools
from vpmetrics._scores.score_counts import count_by_score, count_smoothly, make_finder
from vpmetrics._scores.smoothing import interpolate_smoothed, lay_grid
from vpmetrics._util.dtypes import at_least_float32, power_of_two_near, result_dtype, widen
from vpmetrics._util.validation import check_bandwidth, check_shape, check_tensor, check_trials

_LARGEST = 1e30  # in place of infinite values; all other values are near 1


def isotonic_regression(y: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""Compute the non-decreasing sequence nearest to ``y`` in weighted least squares.

    .. math::
        \hat{x} = \arg\min_{x_1 \le \dots \le x_n} \sum_i w_i (x_i - y_i)^2

    Args:
        y: Real values of shape ``(..., n)``; leading dimensions are separate problems.
        weights: Non-negative weights of the same shape, 1 when left out. An element of weight 0
            takes the value of the weighted element before it, or of the first one.

    Returns:
        Shape ``(..., n)``, float64 for float64 input and float32 otherwise; gradients flow to ``y``
        through the block means. NaN where ``y`` has a NaN anywhere in its row, or where every
        weight is zero.

    Example:
        >>> isotonic_regression(torch.tensor([1.0, 3.0, 2.0, 4.0]))
        tensor([1.0000, 2.5000, 2.5000, 4.0000])
    """
    check_tensor("y", y)
    if y.is_complex() or y.dtype == torch.bool or y.dim() == 0:
        raise TypeError(
            f"Expected `y` to be real and at least one-dimensional, but got {y.dtype} of {y.dim()}."
        )
    if weights is None:
        weights = torch.ones_like(y)
    else:
        check_tensor("weights", weights)
        check_shape("weights", weights, tuple(y.shape), "the shape of `y`")
        if bool((weights < 0).any()):
            raise ValueError(
                f"Expected `weights` to be non-negative, but got {weights.min().item()}."
            )
    # After division by a power of two no sum overflows. Only large weights are divided: small ones
    # must not become 0.
    unit = _power_of_two_near_largest(y)
    peak = _power_of_two_near_largest(weights)
    values = widen(y) / unit
    masses = widen(weights) / (peak / torch.finfo(peak.dtype).max ** 0.75).clamp(min=1)
    pool = number_pools(values.detach().nan_to_num(0, _LARGEST, -_LARGEST), masses.detach())
    mass_of_pool = sum_over_pools(masses, pool)

    def replace_by_rounded_means(x: Tensor) -> Tensor:
        # Infinity times a weight of zero is NaN, so such values are masked.
        products = (x * masses).masked_fill(masses <= 0, 0)
        return (sum_over_pools(products, pool) / mass_of_pool).gather(-1, pool)

    rough = replace_by_rounded_means(values.detach())
    # The values minus a first mean are small, and so is the rounding of their sum.
    exact = torch.where(rough.isfinite(), rough + replace_by_rounded_means(values - rough), rough)
    # Ascending in spite of rounding. Only rounding errors change here, so the correction has no
    # gradient.
    fitted = exact + (exact.detach().cummax(-1).values - exact.detach()).nan_to_num(0)
    has_nan = values.isnan().any(-1, keepdim=True)
    return (fitted * unit).masked_fill(has_nan, torch.nan).to(result_dtype(y))


def _power_of_two_near_largest(x: Tensor) -> Tensor:
    """Return a power of two near the largest finite magnitude of each row, ``(..., 1)``."""
    finite = torch.where(x.isfinite(), widen(x.detach()).abs(), 0)
    largest = torch.nn.functional.pad(finite, (0, 1)).amax(-1, keepdim=True)
    return power_of_two_near(largest, least=torch.finfo(largest.dtype).tiny)


def pav_llr(
    preds: Tensor,
    target: Tensor,
    laplace: bool = False,
    bandwidth: float | None = None,
    validate_args: bool = True,
) -> Tensor:
    r"""Compute the log-likelihood ratios of scores by isotonic regression of the labels.

    The prior odds of the data are subtracted.

    .. math::
        \mathrm{LLR}_B = \ln\frac{T_B}{N_B} - \ln\frac{T}{N}

    for each PAV block :math:`B` with :math:`T_B` of all :math:`T` targets and :math:`N_B` of all
    :math:`N` non-targets. Equal scores share a block. Without Laplace's rule ``-inf`` and ``+inf``
    are legal values.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike; ``-inf`` and ``+inf`` are
            ordered too.
        target: 1 (same speaker) or 0 (different), of the same shape.
        laplace: Whether one label of each class is added below the lowest score and above the
            highest.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None
            is exact. The surrogate's ratios are finite and have a gradient.
        validate_args: Whether values are validated (NaN, labels); forces a GPU sync.

    Returns:
        Natural logarithms, in the shape of ``preds``; NaN with one warning where a class is
        missing.

    Example:
        >>> pav_llr(torch.tensor([0.0, 2.0, 1.0, 3.0]), torch.tensor([0, 0, 1, 1]))
        tensor([-inf, 0., 0., inf])
    """
    if bandwidth is not None:
        check_trials(preds, target, validate_args)
        check_bandwidth(bandwidth)
        scores = at_least_float32(preds.flatten())
        grid = lay_grid(scores, bandwidth)
        steps = count_smoothly(grid, scores, target.flatten()).ascending
        llr = steps.laplace_llr() if laplace else steps.llr
        return interpolate_smoothed(grid, llr, scores).view(preds.shape).to(result_dtype(preds))
    steps = count_by_score(preds, target, validate_args=validate_args).ascending
    llr_of_step = steps.laplace_llr() if laplace else steps.llr
    find = make_finder(steps, [llr_of_step])
    return find(preds)[0].to(result_dtype(preds))
