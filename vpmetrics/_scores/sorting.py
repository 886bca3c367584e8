"""Sorting scores, by whichever way is faster on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from vpmetrics._util.dtypes import is_numpy_ready

# Between these numbers of scores radix may be the faster way. With fewer, torch does not sort by
# radix; more would need too much memory, at up to 40 bytes per score.
_FEWEST_FOR_RADIX = 1 << 15
_MOST_FOR_RADIX = 1 << 24
_TIMED_RUNS = 3  # of each way; the fastest one counts
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


def sort_scores(scores: Tensor) -> Tensor:
    """Return sorted scores ``(P,)``, NaN last, without a gradient; overwrites them on a CPU."""
    scores = scores.detach()
    if not is_numpy_ready(scores):
        return scores.sort().values
    is_in_reach = _FEWEST_FOR_RADIX <= len(scores) < _MOST_FOR_RADIX
    if is_in_reach and is_radix_faster(scores.dtype) and not bool(scores.isnan().any()):
        return _sort_by_radix(scores)
    return _sort_by_comparison(scores)


@cache
def is_radix_faster(dtype: torch.dtype) -> bool:
    """Return whether radix sorts scores of this type faster than NumPy does.

    Measured once per process.

    NumPy compares, 8 or 16 scores at a time where the processor has AVX-512 or AVX2. Radix takes
    half of its time on other processors, and several times as long on those. Both give the same
    order.
    """
    scores = torch.rand(_FEWEST_FOR_RADIX, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return _shortest_seconds(_sort_by_radix, scores) < _shortest_seconds(
        _sort_by_comparison, scores
    )


def _shortest_seconds(sort: Callable[[Tensor], Tensor], scores: Tensor) -> float:
    seconds: list[float] = []
    for _ in range(_TIMED_RUNS):
        copy = scores.clone()
        start = time.perf_counter()
        sort(copy)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _sort_by_comparison(scores: Tensor) -> Tensor:
    scores.numpy().sort()
    return scores


def _sort_by_radix(scores: Tensor) -> Tensor:
    """Return sorted scores without NaN; torch sorts integers by radix."""
    integers = _flip_negative(scores.view(_INTEGERS[scores.dtype]))
    return _flip_negative(integers.sort().values).view(scores.dtype)


def _flip_negative(bits: Tensor) -> Tensor:
    """Return floats, read as integers, in the order of the floats.

    All bits but the sign of a negative one flip.
    """
    limits = torch.iinfo(bits.dtype)
    is_negative = bits >> (limits.bits - 1)  # all bits of a negative number, none of another
    return is_negative.bitwise_and_(limits.max).bitwise_xor_(bits)
