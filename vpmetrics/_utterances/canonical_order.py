"""The order of utterances, speakers and sessions, which depends on embeddings alone.

Neither labels nor the order of rows, batches or processes may change a result. So utterances are
sorted once, by a hash of their embeddings: an order that looks random, and in which everything
after it may count, slice and stride. The hash is that of the original speech where there is any, so
that it stays the same while an anonymiser is trained.

Every bit counts, so that an encoder that pads or batches otherwise gives another order: other folds
and draws, as good as the first. Rounded numbers have borders, too. Where 192 numbers moved by 1e-6
of their size, all rows changed when rounded to 16 bits after the point and 4 % when rounded to 8,
and a single row that changes its place moves those behind it. Coarser still, similar voices would
stand together. Compare runs that embed alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vpmetrics._util.dtypes import widen

_ENTRIES_AT_ONCE = 1 << 20  # entries of embeddings that are hashed at a time
# odd, with bits of either kind everywhere: 2**64 divided by the golden ratio
_FACTOR = -7046029254386353131


def hash_rows(embeddings: Tensor) -> Tensor:
    """Return a hash of the numbers of each row, ``(N,)`` int64.

    Equal for equal rows, of any floating type.
    """
    num_columns = embeddings.shape[1]
    offsets = torch.arange(1, num_columns + 1, device=embeddings.device) * _FACTOR
    hashes = [offsets.new_empty(0)]
    for rows in embeddings.detach().split(max(1, _ENTRIES_AT_ONCE // max(1, num_columns))):
        wide = widen(rows) + 0.0  # bits of 0.0 and -0.0 differ
        bits = wide.view(torch.int64 if wide.dtype == torch.float64 else torch.int32).long()
        hashes.append(mix_bits(bits + offsets).sum(dim=1))
    return mix_bits(torch.cat(hashes))


def mix_bits(numbers: Tensor) -> Tensor:
    """Return integers whose every bit depends on all bits of the given ones.

    Overflow is intended.
    """
    for _ in range(2):
        numbers = numbers * _FACTOR
        numbers = numbers ^ (numbers >> 32)
    return numbers


def sum_hashes(hashes: Tensor, index: Tensor, count: int) -> Tensor:
    """Return the sum of the hashes at each index, ``(count,)``.

    A hash of a set of rows, whatever their order.
    """
    return hashes.new_zeros(count).index_add(0, index, mix_bits(hashes))


def lexsort_columns(*columns: Tensor) -> Tensor:
    """Return row indices sorted by the last column, then by the one before, and so on.

    As ``numpy.lexsort`` does.
    """
    order = columns[0].argsort(stable=True)
    for column in columns[1:]:
        order = order[column[order].argsort(stable=True)]
    return order


def order_rows(*sides: Tensor) -> Tensor:
    """Return row indices sorted by the hash of the first side.

    Rows equal there by that of the next side.
    """
    return lexsort_columns(*[hash_rows(side) for side in reversed(sides)])


def number_sets(first: Tensor, *ties: Tensor) -> Tensor:
    """Return the place of each set, a speaker for example, in the order of its hashes.

    ``ties`` decide in turn.
    """
    return lexsort_columns(*reversed([first, *ties])).argsort()


def count_within(groups: Tensor) -> Tensor:
    """Return 0, 1, ... for the rows of each group, in the order of the rows, ``(N,)``."""
    order = groups.argsort(stable=True)
    sorted_groups = groups[order]
    position = torch.arange(len(order), device=order.device)
    is_first = torch.ones_like(order, dtype=torch.bool)
    is_first[1:] = sorted_groups.diff() != 0
    start = torch.where(is_first, position, 0).cummax(0).values
    return torch.empty_like(order).scatter(0, order, position - start)
