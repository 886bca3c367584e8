r"""Pool adjacent violators (PAV), without a loop over all elements.

On a CPU, runs that do not increase are pooled until few elements are left. On a GPU the fit follows
from the shares of all intervals, some thousand elements at once, and longer sequences are built
from halves. Both halves are already increasing, so merging them forms at most one new pool, across
the border: a tail of the left half and a head of the right half. Its two ends are found for all
pairs of one level at once, by looking at all places (a CPU bisects). That is at most
:math:`\log_2 n` levels whatever the values are: no worst case, no data-dependent shape and no GPU
sync.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._util.dtypes import Array, is_numpy_ready

_ROUNDS = 32  # of pooling runs; random trials need about ten, crafted ones as many as there are
_FEW = 1 << 13  # elements: to pool them one by one takes less time than many more rounds
# entries of the squares of a GPU's runs; twice as many take longer to move, 80 bytes each, than the
# 58 operations of the merge that they save take to launch
_MOST_SQUARE_ENTRIES = 1 << 22


def sum_over_pools(values: Tensor, pool: Tensor) -> Tensor:
    """Return the sum of ``values`` over each pool, ``(..., S)``, zeros last.

    Differentiable in ``values``.
    """
    return torch.zeros_like(values).scatter_add(-1, pool, values)


def pools_of_counts(targets: Tensor, nontargets: Tensor) -> Tensor:
    """Return the number of the PAV pool of each step, ``(..., S)``.

    The share of targets increases with it.

    On a CPU every run of shares that do not increase is pooled, in rounds, in all rows at once.
    Where a pool takes one neighbour per round, as on smooth counts, few remaining elements are
    pooled one by one, and many by :func:`number_pools`.
    """
    targets = targets.detach()
    mass = (targets + nontargets.detach()).contiguous()
    if not is_numpy_ready(targets):
        return _number_pools_in_squares(targets, mass)
    mass_of_element = mass.numpy()
    # False for a row with NaN.
    is_used = (mass_of_element != 0) & (mass_of_element.sum(-1, keepdims=True) > 0)
    used_elements = np.flatnonzero(is_used)
    row_of_element = used_elements // max(1, mass.shape[-1])
    starts = _pool_in_rounds(
        row_of_element,
        targets.numpy().reshape(-1)[used_elements],
        mass_of_element.reshape(-1)[used_elements],
    )
    begins = np.zeros(mass_of_element.shape, dtype=np.int64)
    begins.reshape(-1)[used_elements[starts]] = 1
    return torch.from_numpy(np.maximum(begins.cumsum(-1) - 1, 0))


def _pool_in_rounds(row: Array, targets: Array, masses: Array) -> Array:
    """Return the first element of every PAV pool.

    Elements have mass, and rows are pooled by themselves.
    """
    first_element = np.arange(len(row))  # of each pool so far
    for _ in range(_ROUNDS):
        share = targets / masses
        begins = np.ones(len(share), dtype=bool)
        begins[1:] = (share[1:] > share[:-1]) | (row[1:] != row[:-1])
        starts = np.flatnonzero(begins)
        num_pooled = len(share) - len(starts)
        if num_pooled == 0:
            return first_element
        if 8 * num_pooled < len(share) <= _FEW:
            break
        first_element = first_element[starts]
        row = row[starts]
        targets = np.add.reduceat(targets, starts)
        masses = np.add.reduceat(masses, starts)
    if len(first_element) <= _FEW:
        return first_element[_find_starts_sequentially(row, targets, masses)]
    # No row's shares reach those of the next, so none is pooled with it.
    levels = torch.from_numpy((targets / masses + 2 * row).astype(masses.dtype))
    pool_of_element = number_pools(levels, torch.from_numpy(masses)).numpy()
    return first_element[np.flatnonzero(np.diff(pool_of_element, prepend=-1) > 0)]


def _find_starts_sequentially(row_of_element: Array, targets: Array, masses: Array) -> list[int]:
    """Return the first element of every pool.

    One after the other, each element joins the pools before it in its row while their share is not
    below its own.
    """
    first_elements: list[int] = []
    pools: list[tuple[int, float, float]] = []  # row, targets, mass
    elements = zip(row_of_element.tolist(), targets.tolist(), masses.tolist(), strict=True)
    for first_element, (row, pool_targets, pool_mass) in enumerate(elements):
        while pools:
            previous_row, previous_targets, previous_mass = pools[-1]
            is_ordered = not previous_targets / previous_mass >= pool_targets / pool_mass
            if previous_row != row or is_ordered:
                break
            pools.pop()
            first_element = first_elements.pop()
            pool_targets += previous_targets
            pool_mass += previous_mass
        first_elements.append(first_element)
        pools.append((row, pool_targets, pool_mass))
    return first_elements


def number_pools(values: Tensor, weights: Tensor) -> Tensor:
    """Return the number of each element's pool in the isotonic regression, ``(..., n)``.

    Numbers begin at 0 and ascend.
    """
    if values.numel() == 0:
        return torch.zeros_like(values, dtype=torch.long)
    position = _places_by_weight(weights)
    # After the last element comes a number above every value that is small enough for differences
    # not to overflow.
    fits = _move_to_places(values, weights, position, torch.finfo(values.dtype).max / 4)
    return _number_distinct(
        _merge_fits(fits, _move_to_places(weights, weights, position), 1), position
    )


def _number_pools_in_squares(targets: Tensor, masses: Tensor) -> Tensor:
    """Return what :func:`number_pools` returns for shares of targets, in few operations on a GPU.

    Runs of elements are fitted at once, from the shares of all their intervals. They are as long as
    memory bandwidth allows, and neighbours are merged by halves.
    """
    if targets.numel() == 0:
        return torch.zeros_like(targets, dtype=torch.long)
    position = _places_by_weight(masses)
    targets = _move_to_places(targets, masses, position)
    masses = _move_to_places(masses, masses, position)
    num_places = targets.shape[-1]
    affordable_length = max(1, _MOST_SQUARE_ENTRIES // targets.numel())
    length = min(num_places, 1 << (affordable_length.bit_length() - 1))
    runs = (-1, length)
    fits = _fit_shares(targets.unflatten(-1, runs), masses.unflatten(-1, runs)).flatten(-2)
    return _number_distinct(_merge_fits(fits, masses, length), position)


def _fit_shares(targets: Tensor, masses: Tensor) -> Tensor:
    r"""Return the isotonic fit of the shares of targets, ``(..., n)``, by the min-max formula.

    .. math:: f_i = \max_{j \le i} \min_{k \ge i} \frac{\sum_{j \ldots k} t}{\sum_{j \ldots k} m}

    There are ``n`` squared sums, and each adds up its own elements, so that none cancels.
    """
    square = (*targets.shape, targets.shape[-1])
    targets_between = targets.unsqueeze(-2).expand(square).triu().cumsum(-1)  # (..., j, k)
    mass_between = masses.unsqueeze(-2).expand(square).triu().cumsum(-1)
    beyond_all = torch.finfo(targets.dtype).max / 4
    share_between = (targets_between / mass_between).masked_fill(mass_between == 0, beyond_all)
    lowest_up_to_end = share_between.flip(-1).cummin(-1).values.flip(-1)  # (..., j, i)
    return lowest_up_to_end.triu().amax(-2)


def _places_by_weight(weights: Tensor) -> Tensor:
    """Return the place of each element among those with a weight.

    Others share that of the one before them.
    """
    return ((weights > 0).cumsum(-1) - 1).clamp(min=0)


def _move_to_places(values: Tensor, weights: Tensor, place: Tensor, rest: float = 0.0) -> Tensor:
    """Return the values of elements with a weight at their places, and after them ``rest``.

    The number of places is a power of two.
    """
    num_places = 1 << (values.shape[-1] - 1).bit_length()
    empty = values.new_full((*values.shape[:-1], num_places + 1), rest)
    return empty.scatter(-1, place.masked_fill(weights <= 0, num_places), values)[..., :-1]


def _merge_fits(fits: Tensor, weights: Tensor, length: int) -> Tensor:
    """Return the isotonic fit of all elements from those of runs of ``length``, by halves."""
    while length < fits.shape[-1]:
        halves = (-1, 2, length)
        fits_of_halves = fits.unflatten(-1, halves)
        fits = _merge_isotonic_fits(fits_of_halves, weights.unflatten(-1, halves)).flatten(-2)
        length *= 2
    return fits


def _number_distinct(fits: Tensor, place: Tensor) -> Tensor:
    """Return the number of the pool of each element from the fits at their places."""
    count = place.shape[-1]
    begins = fits[..., 1:count] > fits[..., : count - 1]
    return pad(begins.cumsum(-1), (1, 0)).gather(-1, place)


def _merge_isotonic_fits(fits: Tensor, weights: Tensor) -> Tensor:
    r"""Return the isotonic fit ``(..., 2 * half)`` of two halves.

    The fits of the halves are ``(..., 2, half)``.

    Where the left half ends above the start of the right half, a pool across the border forms.
    Its level :math:`m` solves :math:`\sum_{l > m} w_l (l - m) = \sum_{r < m} w_r (m - r)` over
    values :math:`l` on the left and :math:`r` on the right. Both sums have positive terms and are
    monotonic in the level, rounded or not, so bisection is safe for all weights.
    """
    left = fits[..., 0, :].contiguous()
    right = fits[..., 1, :].contiguous()
    # The weight of left[i:] at place i, and the left sum of the equation for m = left[i].
    left_weight = _suffix_sums(weights[..., 0, :])
    left_excess = pad(_suffix_sums(left.diff() * left_weight[..., 1:]), (0, 1))
    # The weight of right[:j] at place j, and the right sum for m = right[j - 1].
    right_weight = pad(weights[..., 1, :].cumsum(-1), (1, 0))
    right_deficit = pad((right.diff() * right_weight[..., 1:-1]).cumsum(-1), (2, 0))

    start = _find_border_pool_start(left, left_excess, right, right_deficit, right_weight)
    highest = left.gather(-1, start)
    excess_at_start = left_excess.gather(-1, start)
    weight_on_left = left_weight.gather(-1, start)
    end = _find_border_pool_end(right, right_deficit, highest, excess_at_start, weight_on_left)
    lowest = right.gather(-1, (end - 1).clamp(min=0))
    deficit_at_end = right_deficit.gather(-1, end)
    weight_on_right = right_weight.gather(-1, end)
    excess = excess_at_start + (highest - lowest) * weight_on_left - deficit_at_end
    level = lowest + excess / (weight_on_left + weight_on_right)
    level = torch.minimum(torch.maximum(level, lowest), highest)

    index = torch.arange(left.shape[-1], device=fits.device)
    has_border_pool = left[..., -1:] > right[..., :1]
    left = torch.where(has_border_pool & (index >= start), level, left)
    right = torch.where(has_border_pool & (index < end), level, right)
    # Rounding may put equal values out of order by a last digit; the next level relies on the
    # order.
    return torch.stack([left, right], dim=-2).flatten(-2).cummax(-1).values


def _find_border_pool_start(
    left: Tensor, left_excess: Tensor, right: Tensor, right_deficit: Tensor, right_weight: Tensor
) -> Tensor:
    """Return the first place on the left that the pool across the border holds, ``(..., 1)``.

    Args:
        left: Values of the left half, increasing, ``(..., half)``.
        left_excess: For each place on the left, the weighted sum of what the values from there on
            exceed its value by.
        right: Values of the right half, increasing, ``(..., half)``.
        right_deficit: For each number of first values on the right, the weighted sum of what they
            lack to the last.
        right_weight: For each number of first values on the right, their weight.
    """
    if not is_numpy_ready(left):
        # Every place at once: a GPU works in parallel, and launches one operation for many.
        reach = torch.searchsorted(right, left)
        last = right.gather(-1, (reach - 1).clamp(min=0))
        outweighed = right_deficit.gather(-1, reach) + (left - last) * right_weight.gather(
            -1, reach
        )
        return (left_excess > outweighed)[..., :-1].sum(-1, keepdim=True)
    start = torch.zeros_like(left[..., :1], dtype=torch.long)
    half = left.shape[-1]
    for step in [half >> k for k in range(1, half.bit_length())]:
        probe = start + (step - 1)
        level = left.gather(-1, probe)
        reach = torch.searchsorted(right, level)
        last = right.gather(-1, (reach - 1).clamp(min=0))
        outweighed = right_deficit.gather(-1, reach) + (level - last) * right_weight.gather(
            -1, reach
        )
        start = torch.where(left_excess.gather(-1, probe) > outweighed, start + step, start)
    return start


def _find_border_pool_end(
    right: Tensor,
    right_deficit: Tensor,
    max_level: Tensor,
    left_excess: Tensor,
    left_weight: Tensor,
) -> Tensor:
    """Return how many elements of the right half the pool across the border holds, ``(..., 1)``.

    None of them is above its level.

    Args:
        right: As in :func:`_find_border_pool_start`.
        right_deficit: As in :func:`_find_border_pool_start`.
        max_level: Value of the pool's first element on the left, ``(..., 1)``; the pool's level
            is not above it.
        left_excess: Weighted sum of what the pool's elements on the left exceed ``max_level`` by,
            ``(..., 1)``.
        left_weight: Weight of the pool's elements on the left, ``(..., 1)``.
    """
    if not is_numpy_ready(right):
        excess_at = left_excess + (max_level - right) * left_weight
        is_within = (right <= max_level) & (right_deficit[..., 1:] <= excess_at)
        return is_within.sum(-1, keepdim=True)
    end = torch.zeros_like(max_level, dtype=torch.long)
    half = right.shape[-1]
    for step in [half >> k for k in range(half.bit_length())]:
        probe = end + (step - 1)
        inside = probe.clamp(max=half - 1)
        level = right.gather(-1, inside)
        excess = left_excess + (max_level - level) * left_weight
        within = (level <= max_level) & (right_deficit.gather(-1, inside + 1) <= excess)
        end = torch.where((probe < half) & within, end + step, end)
    return end


def _suffix_sums(x: Tensor) -> Tensor:
    return x.flip(-1).cumsum(-1).flip(-1)
