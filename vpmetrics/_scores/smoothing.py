r"""Differentiable PAV: trials are counted on a fine grid, smoothed by a Gaussian.

PAV is piecewise constant in the scores, so its gradient is zero. Here each score is split between
its two neighbours on a grid, and both histograms are smoothed by a Gaussian. Counts are then
differentiable functions of the scores. :func:`interpolate_smoothed` is the adjoint of counting: its
sum over scores is that over cells of counts times values.

The partition into blocks needs no derivative: PAV minimises all proper scores at once, so moving
the border of two blocks changes them only to second order. The grid does need one, since it follows
the range and spread of the scores.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._util.dtypes import at_least_float32, power_of_two_near, widen

_REACH = 8.0  # standard deviations from the mean to which scores are clamped
# bandwidths beyond the outermost score, where the Gaussian is down to 1e-8 of its height
_MARGIN = 6.0
# the spectrum of the Gaussian is down to 1e-13 at the highest frequency of such a grid
_CELLS_PER_BANDWIDTH = 2.5
# in cells: variance that splitting scores between neighbours adds on average
_SPLIT_VARIANCE = 1 / 6
_MOST_CELLS = 1 << 16
_FLOOR = 1e-6  # share of a class that empty cells hold, so that no logarithm is infinite


class Grid(NamedTuple):
    """Points ``low + k * step`` for ``cells`` values of k.

    Scores are clamped to ``[lowest, highest]``.

    ``low``, ``step``, ``lowest``, ``highest`` (all in units of ``unit``) and ``width`` (of the
    Gaussian, in steps) are ``(..., 1)`` and carry the gradient of the scores' range and spread.
    """

    unit: Tensor
    low: Tensor
    step: Tensor
    lowest: Tensor
    highest: Tensor
    width: Tensor
    cells: int

    @property
    def points(self) -> Tensor:
        """The scores of the grid points, ``(..., cells)``, ascending."""
        index = torch.arange(self.cells, dtype=self.low.dtype, device=self.low.device)
        return (self.low + self.step * index) * self.unit


def lay_grid(preds: Tensor, bandwidth: float) -> Grid:
    """Return a grid for every row of scores ``(..., P)``, from their range and standard deviation.

    Shifting or scaling all scores therefore changes no result. ``bandwidth`` is the width of the
    Gaussian in population standard deviations of the scores; the number of cells depends on it
    alone, so nothing is read from the device.
    """
    scores = at_least_float32(preds)
    if scores.shape[-1] == 0:
        scores = scores.new_zeros(*scores.shape[:-1], 1)
    numbers = torch.finfo(scores.dtype)
    largest = scores.detach().abs().amax(-1, keepdim=True)
    # A lower limit of the unit: dividing by the smallest numbers would overflow in the gradient.
    unit = power_of_two_near(largest, least=math.sqrt(numbers.tiny))
    scores = scores / unit
    largest = largest / unit
    variance, mean = torch.var_mean(scores, dim=-1, correction=0, keepdim=True)
    # Scores that agree in half of their digits count as tied: their differences are mostly rounding
    # errors.
    deviation = torch.maximum(variance, numbers.eps * largest.clamp(min=1).square()).sqrt()
    lowest = torch.maximum(scores.amin(-1, keepdim=True), mean - _REACH * deviation)
    highest = torch.minimum(scores.amax(-1, keepdim=True), mean + _REACH * deviation)
    width = bandwidth * deviation
    low = lowest - _MARGIN * width
    high = highest + _MARGIN * width
    widths_of_range = 2 * (_REACH / bandwidth + _MARGIN)
    enough_cells = 1 << math.ceil(math.log2(widths_of_range * _CELLS_PER_BANDWIDTH))
    cells = min(_MOST_CELLS, enough_cells)
    step = (high - low) / (cells - 1)
    return Grid(unit, low, step, lowest, highest, width / step, cells)


def soft_counts_on_grid(
    grid: Grid, preds: Tensor, target: Tensor, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Return soft counts of targets and non-targets, ``(..., cells)`` each, in the wide type.

    .. math::
        T_g = \sum_{i : y_i = 1} \sum_j K_{gj} \max\left(0, 1 - \frac{|s_i - u_j|}{\Delta} \right),
        \qquad K_{gj} \propto \exp\left( -\frac{(u_g - u_j)^2}{2 (b \sigma)^2} \right)

    for scores :math:`s_i` and grid points :math:`u_j` at distance :math:`\Delta`. ``preds``,
    ``target`` and ``weights`` have the shape ``(..., P)``; a weight of 0 removes a score, one that
    is NaN or infinite makes its row NaN.
    """
    cell, share = _locate(grid, preds)
    above = widen(share)
    lower_cell = cell + torch.where(target == 1, grid.cells, 0)
    if weights is None:
        weights = torch.ones_like(above)
    else:
        weights = weights.to(above.dtype)
    sums = above.new_zeros(*cell.shape[:-1], 2 * grid.cells)
    sums = sums.scatter_add(-1, lower_cell, (1 - above) * weights)
    sums = sums.scatter_add(-1, lower_cell + 1, above * weights)
    counts = _smooth(sums.unflatten(-1, (2, grid.cells)), grid.width.unsqueeze(-1))
    floor = counts.detach().sum(-1, keepdim=True) * (_FLOOR / grid.cells)
    nontargets, targets = torch.maximum(counts, floor).unbind(-2)
    return targets, nontargets


def interpolate_smoothed(grid: Grid, values: Tensor, preds: Tensor) -> Tensor:
    r"""Return values at scores ``(..., P)``, interpolated among smoothed values of the grid.

    Finite ``values`` ``(..., cells)`` are smoothed as counts are.

    .. math::
        v(s) = \sum_j \max\left(0, 1 - \frac{|s - u_j|}{\Delta} \right) \sum_g K_{gj} v_g

    The gradient reaches both the values and the scores.
    """
    cell, share = _locate(grid, preds)
    smooth = _smooth(values, grid.width)
    below = smooth.gather(-1, cell)
    above = smooth.gather(-1, cell + 1)
    return below + share.to(values.dtype) * (above - below)


def _locate(grid: Grid, preds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the grid point below every score, and the share of the next grid point."""
    inside = torch.clamp(at_least_float32(preds) / grid.unit, grid.lowest, grid.highest)
    position = (inside - grid.low) / grid.step
    # A NaN cannot be an index. It stays in `position - below`, so the result is NaN.
    below = position.detach().nan_to_num(0.0, 0.0, 0.0).clamp_(0, grid.cells - 2).floor_()
    return below.long(), position - below


def _smooth(values: Tensor, width: Tensor) -> Tensor:
    """Convolve the last dimension with a Gaussian, by FFT: its width stays on the device."""
    cells = values.shape[-1]
    frequency = torch.arange(cells // 2 + 1, dtype=values.dtype, device=values.device) * (
        2 * math.pi / cells
    )
    variance = (width.to(values.dtype).square() - _SPLIT_VARIANCE).clamp(min=0)
    response = torch.exp(-0.5 * variance * frequency.square())
    smooth: Tensor = torch.fft.irfft(torch.fft.rfft(values) * response, n=cells)
    return smooth
