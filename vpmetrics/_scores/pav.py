r"""Pool adjacent violators (PAV), without a loop over elements.

The solution for a sequence is built from the solutions of its halves. Both halves are already increasing, so
merging them forms at most one new block, across the border: a tail of the left half and a head of the right half.
Its two ends are found by bisection, for all pairs of one level at once. That is :math:`\log_2 n` levels whatever
the values are: no worst case, no data-dependent shape and no look at the device from the host.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def sum_by_block(values: Tensor, blocks: Tensor) -> Tensor:
    """Total of every element's block, of the shape of ``values``; differentiable in them."""
    return torch.zeros_like(values).scatter_add(-1, blocks, values).gather(-1, blocks)


def pav_blocks(values: Tensor, weights: Tensor) -> Tensor:
    """Which block of the isotonic regression each element belongs to: ``(..., n)``, whole numbers from 0 upwards."""
    if values.numel() == 0:
        return torch.zeros_like(values, dtype=torch.long)
    # Elements of weight zero step aside and share the place of the one before them.
    place = ((weights > 0).cumsum(-1) - 1).clamp(min=0)
    slot = torch.where(weights > 0, place, values.shape[-1])
    room = pad(torch.zeros_like(values), (0, 1))
    top = torch.finfo(values.dtype).max
    fitted = _fit(
        torch.full_like(room, top).scatter(-1, slot, values)[..., :-1], room.scatter(-1, slot, weights)[..., :-1]
    )
    steps = fitted[..., 1:] > fitted[..., :-1]
    return pad(steps.cumsum(-1), (1, 0)).gather(-1, place)


def _fit(values: Tensor, weights: Tensor) -> Tensor:
    """Isotonic regression by merging halves; elements of weight zero only at the end, holding the largest number."""
    count = values.shape[-1]
    levels = (count - 1).bit_length()
    gap = (1 << levels) - count
    values = pad(values, (0, gap), value=torch.finfo(values.dtype).max)
    weights = pad(weights, (0, gap))
    for level in range(levels):
        halves = (-1, 2, 1 << level)
        values = _merge(values.unflatten(-1, halves), weights.unflatten(-1, halves)).flatten(-2)
    return values[..., :count]


def _merge(values: Tensor, weights: Tensor) -> Tensor:
    """Join pairs of increasing sequences ``(..., 2, half)`` into one where the left does not exceed the right."""
    left, right = values[..., 0, :].contiguous(), values[..., 1, :].contiguous()
    half = left.shape[-1]
    # Sums outward from the border, of the fitted values: what is pooled is added up, never a difference of totals.
    moments = values * weights
    tail, tail_weight = _suffix_sums(moments[..., 0, :]), _suffix_sums(weights[..., 0, :])
    head, head_weight = _prefix_sums(moments[..., 1, :]), _prefix_sums(weights[..., 1, :])

    # The block starts at the first left value that is at least the mean of all it would be pooled with.
    start = torch.zeros_like(left[..., :1], dtype=torch.long)
    for step in _halvings(half // 2):
        probe = start + (step - 1)
        level = left.gather(-1, probe)
        reach = torch.searchsorted(right, level)
        total = tail.gather(-1, probe) + head.gather(-1, reach)
        weight = tail_weight.gather(-1, probe) + head_weight.gather(-1, reach)
        start = torch.where(total > level * weight, start + step, start)
    # Equal values are one block, and rounding must not cut it in two.
    start = torch.searchsorted(left, left.gather(-1, start))
    total, weight = tail.gather(-1, start), tail_weight.gather(-1, start)

    # It ends before the first right value that is at least the mean of all before it.
    end = torch.zeros_like(start)
    for step in _halvings(half):
        probe = end + (step - 1)
        inside = probe.clamp(max=half - 1)
        mean_exceeds = total + head.gather(-1, inside) > right.gather(-1, inside) * (
            weight + head_weight.gather(-1, inside)
        )
        end = torch.where((probe < half) & mean_exceeds, end + step, end)
    end = torch.where(end > 0, torch.searchsorted(right, right.gather(-1, (end - 1).clamp(min=0)), right=True), 0)
    total, weight = total + head.gather(-1, end), weight + head_weight.gather(-1, end)
    mean = torch.where(weight > 0, total / weight, torch.finfo(values.dtype).max)

    place = torch.arange(half, device=values.device)
    left = torch.where((place >= start) & (end > 0), mean, left)
    right = torch.where(place < end, mean, right)
    # What rounding puts out of order by a last digit is equal; the bisections of the next level rely on the order.
    return torch.stack([left, right], dim=-2).flatten(-2).cummax(-1).values


def _halvings(step: int) -> list[int]:
    """The step and its halves down to 1."""
    return [step >> k for k in range(step.bit_length())]


def _suffix_sums(x: Tensor) -> Tensor:
    return x.flip(-1).cumsum(-1).flip(-1)


def _prefix_sums(x: Tensor) -> Tensor:
    return pad(x.cumsum(-1), (1, 0))
