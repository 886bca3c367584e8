"""Isotonic regression by pool adjacent violators, and the log-likelihood ratios it gives to scores."""

from __future__ import annotations

import torch
from torch import Tensor

from vpmetrics._checks import check_bandwidth, check_shape, check_tensor, check_trials
from vpmetrics._precision import at_least_float32, result_dtype, widen
from vpmetrics._scores.counting import count_by_score, counts_on_grid
from vpmetrics._scores.look_up import look_up
from vpmetrics._scores.pav import pav_blocks, sum_by_block
from vpmetrics._scores.smooth import lay_grid, read_off
from vpmetrics._scores.steps import calibrate


def isotonic_regression(y: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""The non-decreasing sequence nearest to ``y`` in weighted least squares.

    .. math::
        \hat{x} = \arg\min_{x_1 \le \dots \le x_n} \sum_i w_i (x_i - y_i)^2

    Args:
        y: Real values of shape ``(..., n)``; leading dimensions are separate problems.
        weights: Non-negative weights of the same shape, 1 everywhere when left out. An element of weight zero
            has no say and takes the value of the weighted element before it (after it, if there is none before).

    Returns:
        Shape ``(..., n)``, float64 for float64 input and float32 otherwise; gradients flow to ``y`` through the
        block means. NaN where ``y`` has a NaN anywhere in its row, or where every weight is zero.

    Example:
        >>> isotonic_regression(torch.tensor([1.0, 3.0, 2.0, 4.0]))
        tensor([1.0000, 2.5000, 2.5000, 4.0000])
    """
    check_tensor("y", y)
    if y.is_complex() or y.dtype == torch.bool or y.dim() == 0:
        raise TypeError(f"Expected `y` to be real and at least one-dimensional, but got {y.dtype} of {y.dim()}.")
    if weights is None:
        weights = torch.ones_like(y)
    else:
        check_tensor("weights", weights)
        check_shape("weights", weights, tuple(y.shape), "the shape of `y`")
        if bool((weights < 0).any()):
            raise ValueError(f"Expected `weights` to be non-negative, but got {weights.min().item()}.")
    values, masses = widen(y), widen(weights)
    scale = _excess(values)
    values, masses = values / scale, masses / _excess(masses)
    # Infinite weight times zero is NaN; a weightless value must not be looked at at all.
    sums = torch.where(masses > 0, values * masses, 0)
    blocks = pav_blocks(values.detach().nan_to_num(), masses.detach())
    fitted = sum_by_block(sums, blocks) / sum_by_block(masses, blocks) * scale
    fitted = fitted.masked_fill(values.isnan().any(-1, keepdim=True), torch.nan)
    return fitted.to(result_dtype(y))


def _excess(x: Tensor) -> Tensor:
    """A power of two to divide by where sums of products would overflow, 1 elsewhere."""
    peak = x.detach().abs().amax(-1, keepdim=True) if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1)
    large, power = (1e140, 2.0**600) if x.dtype == torch.float64 else (1e15, 2.0**90)
    return torch.where(peak > large, torch.full_like(peak, power), 1)


def pav_llr(
    preds: Tensor,
    target: Tensor,
    laplace: bool = False,
    bandwidth: float | None = None,
    validate_args: bool = True,
) -> Tensor:
    r"""Log-likelihood ratios an oracle would give the scores: isotonic regression of the labels, prior removed.

    .. math:: \mathrm{LLR}_B = \ln\frac{T_B}{N_B} - \ln\frac{T}{N}

    for each PAV block :math:`B` with :math:`T_B` of all :math:`T` targets and :math:`N_B` of all :math:`N`
    non-targets. Equal scores share a block. Without Laplace's rule ``-inf`` and ``+inf`` are legal values.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike; ``-inf`` and ``+inf`` are ordered too.
        target: 1 (same speaker) or 0 (different), of the same shape.
        laplace: Put one label of each class below the lowest score and again above the highest.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None is exact. The
            surrogate's ratios are finite and have a gradient.
        validate_args: Look at the values, too (NaN, labels); stalls an accelerator once.

    Returns:
        Natural logarithms, in the shape of ``preds``; NaN with one warning where a class is missing.

    Example:
        >>> pav_llr(torch.tensor([0.0, 2.0, 1.0, 3.0]), torch.tensor([0, 0, 1, 1]))
        tensor([-inf, 0., 0., inf])
    """
    if bandwidth is not None:
        check_trials(preds, target, validate_args)
        check_bandwidth(bandwidth)
        scores = at_least_float32(preds.flatten())
        grid = lay_grid(scores, bandwidth)
        steps = counts_on_grid(grid, scores, target.flatten()).ascending
        return read_off(grid, calibrate(steps, laplace), scores).view(preds.shape).to(result_dtype(preds))
    steps = count_by_score(preds, target, validate_args=validate_args).ascending
    return look_up(steps, calibrate(steps, laplace), preds).to(result_dtype(preds))
