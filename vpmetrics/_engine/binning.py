r"""Score histograms of constant size, and what they certify.

Bins are given (edges, or a number of them over a range) or learnt. A learnt range is :math:`[-2^k, 2^k)`: when a score
falls outside, :math:`k` grows and neighbouring bins are added up, so histograms can be merged, without a GPU sync.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vpmetrics._engine.precision import wide_dtype, widen
from vpmetrics._engine.score_counts import ScoreCounts, count_by_bin

LOWEST_EXPONENT = -1000  # of a range that has held no score yet


def resolve_edges(thresholds: int | Tensor, score_range: tuple[float, float] | None) -> Tensor:
    """Return given edges as they are, or those of a number of bins over a range."""
    if isinstance(thresholds, Tensor):
        return widen(thresholds.detach()).clone()
    low, high = score_range or (-1.0, 1.0)
    edges = torch.linspace(low, high, thresholds + 1, dtype=torch.float64)
    if not bool((edges.diff() > 0).all()):
        raise ValueError(f"Expected `score_range` to be wide enough for {thresholds} bins, but got {score_range}.")
    return edges


def count_given_bins(scores: Tensor, is_target: Tensor, edges: Tensor) -> Tensor:
    """Return counts ``(2, E + 2)`` of non-targets and targets between edges; NaN scores in the last column."""
    bins = torch.bucketize(scores, edges.to(scores.dtype), right=True)
    return _count_slots(bins, scores, is_target, len(edges) + 2)


def range_exponent(scores: Tensor) -> Tensor:
    """Return the least ``k`` with the magnitude of every finite score below 2^k; the lowest where all are 0."""
    magnitude = torch.where(scores.isfinite(), scores.abs(), 0).amax()
    return torch.where(magnitude > 0, torch.frexp(magnitude).exponent, LOWEST_EXPONENT).long()


def count_learnt_bins(scores: Tensor, is_target: Tensor, exponent: Tensor, columns: int) -> Tensor:
    """Return the counts of :func:`count_given_bins` with the edges :func:`learnt_edges`."""
    half = (columns - 3) // 2
    inside = (_scale_by_power(widen(scores), -exponent) * half).floor().clamp(-half, half - 1).nan_to_num() + (half + 1)
    bins = torch.where(scores.isinf(), torch.where(scores > 0, columns - 2, 0), inside.long())
    return _count_slots(bins, scores, is_target, columns)


def coarsen_bins(counts: Tensor, shift: Tensor) -> Tensor:
    """Return learnt counts for a range ``2**shift`` times as wide."""
    half = (counts.shape[-1] - 3) // 2
    columns = torch.arange(counts.shape[-1], device=counts.device)
    moved = ((columns - half - 1) >> shift.clamp(max=62)) + half + 1
    within = (columns > 0) & (columns < counts.shape[-1] - 2)
    return torch.zeros_like(counts).index_add(-1, torch.where(within, moved, columns), counts)


def learnt_edges(exponent: Tensor, columns: int) -> Tensor:
    """Return the edges ``(columns - 2,)`` of a learnt range."""
    half = (columns - 3) // 2
    unit = torch.arange(-half, half + 1, device=exponent.device, dtype=wide_dtype(exponent.device)) / half
    return _scale_by_power(unit, exponent)


def steps_of_bins(edges: Tensor, counts: Tensor, separated: bool = False) -> ScoreCounts:
    """Return the steps of a histogram; see :func:`count_by_bin`."""
    nontargets, targets = counts[:, :-1]
    return count_by_bin(edges, targets, nontargets, counts[:, -1].sum() > 0, separated)


def _scale_by_power(x: Tensor, exponent: Tensor) -> Tensor:
    """Return ``x * 2**exponent`` in the type of ``x``; torch.ldexp takes the power in float32."""
    return x * torch.exp2(exponent.to(x.dtype))


def _count_slots(bins: Tensor, scores: Tensor, is_target: Tensor, columns: int) -> Tensor:
    slots = torch.where(scores.isnan(), columns - 1, bins) + is_target * columns
    flat = torch.zeros(2 * columns, dtype=torch.long, device=scores.device)
    return flat.index_add(0, slots, torch.ones_like(slots)).view(2, columns)
