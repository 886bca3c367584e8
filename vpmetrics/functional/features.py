"""Features for rank disclosure that are no embeddings: histograms of pitch and codebook entries."""

from __future__ import annotations

import torch
from torch import Tensor

from vpmetrics._util.dtypes import result_dtype, wide_dtype, widen
from vpmetrics._util.validation import check_floating, check_integers


def f0_histogram(
    f0: Tensor, lowest: float = 65.0, highest: float = 450.0, sample_rate: float = 8000.0
) -> Tensor:
    r"""Compute the normalised histogram of the pitch lags of an utterance (section 4.2.3).

    A frame of frequency :math:`f` falls into the bin of :math:`\lfloor f_s / f \rfloor` samples.
    From 65 to 450 Hz there are 107 of them, the number the paper gives, at a sample rate of 8 kHz:
    lags 17 to 123.

    Args:
        f0: Floating tensor of shape ``(..., T)``, frequency of each frame in Hz. Frames outside the
            range are dropped, so unvoiced ones and padding, written as 0 or as NaN.
        lowest: Lowest frequency in Hz.
        highest: Highest frequency in Hz.
        sample_rate: Samples per second that lags are counted in.

    Returns:
        Shares of shape ``(..., L)``, ``L`` = 107 by default, shortest lag first; float32 or wider.
        NaN for an utterance without a voiced frame.

    Example:
        >>> histogram = f0_histogram(torch.tensor([100.0, 100.0, 200.0, 0.0, float("nan")]))
        >>> histogram.shape, histogram[80 - 17], histogram[40 - 17]
        (torch.Size([107]), tensor(0.6667), tensor(0.3333))
    """
    check_floating("f0", f0)
    if not 0 < lowest < highest < sample_rate:
        got = f"{lowest}, {highest} and {sample_rate}"
        raise ValueError(f"Expected 0 < `lowest` < `highest` < `sample_rate`, but got {got}.")
    # A tracker's frequencies are quotients of whole lags. Without the nudge, rounding would lower
    # some of them by one.
    nudge = 1e-3
    shortest = int(sample_rate / highest + nudge)
    longest = int(sample_rate / lowest + nudge)
    frames = widen(f0)
    is_voiced = (frames >= lowest) & (frames <= highest)
    lag = (sample_rate / torch.where(is_voiced, frames, highest) + nudge).floor().long()
    counts = _count_occurrences(lag - shortest, is_voiced, longest - shortest + 1)
    return (counts / counts.sum(dim=-1, keepdim=True)).to(result_dtype(f0))


def codebook_histogram(codes: Tensor, size: int, segments: int = 20) -> Tensor:
    """Compute normalised histograms of the codebook entries in segments of an utterance.

    Segments are uniform (section 4.2.4).

    Each segment is an observation of its own: 40 speakers with one recording each and 20 segments
    are 800 inputs.

    Args:
        codes: Integer tensor of shape ``(..., T)``, the entry of each frame; negative ones, such as
            padding, are dropped before the rest is cut into segments.
        size: Number of entries of the codebook.
        segments: Number of segments.

    Returns:
        Shares of shape ``(..., segments, size)``, float32. NaN for a segment without frames.

    Example:
        >>> codebook_histogram(torch.tensor([0, 0, 1, 2, -1, -1]), size=3, segments=2)
        tensor([[1.0000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000]])
    """
    check_integers("codes", codes)
    if size < 1 or segments < 1:
        raise ValueError(
            f"Expected `size` and `segments` to be positive, but got {size} and {segments}."
        )
    if codes.numel() and (largest := int(codes.max())) >= size:
        raise ValueError(f"Expected `codes` to lie below `size` = {size}, but got {largest}.")
    is_kept = codes >= 0
    position = is_kept.cumsum(dim=-1) - 1
    segment = position * segments // is_kept.sum(dim=-1, keepdim=True).clamp(min=1)
    index = torch.where(is_kept, segment * size + codes, 0)
    counts = _count_occurrences(index, is_kept, segments * size).reshape(
        *codes.shape[:-1], segments, size
    )
    return (counts / counts.sum(dim=-1, keepdim=True)).to(torch.float32)


def _count_occurrences(index: Tensor, is_kept: Tensor, length: int) -> Tensor:
    """Return how often each of ``length`` indices occurs along the last dimension."""
    counts = torch.zeros(
        (*index.shape[:-1], length), dtype=wide_dtype(index.device), device=index.device
    )
    return counts.scatter_add(-1, index.clamp(0, length - 1), is_kept.to(counts.dtype))
