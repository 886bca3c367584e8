"""The value of every score of something known per step."""

from __future__ import annotations

import torch
from torch import Tensor

from vpmetrics._scores.counting import CHUNK
from vpmetrics._scores.steps import Steps, on_host

_CELLS = 1 << 16  # equal cells of the score axis to look up many scores by


def look_up(steps: Steps, llr: Tensor, scores: Tensor) -> Tensor:
    """The log-likelihood ratio of every score, in the shape of the scores."""
    if bool(llr.isnan().any()):
        return torch.full_like(scores, torch.nan, dtype=llr.dtype)
    # Blocks are far fewer than steps, and a shorter table is a faster one.
    begins = llr[1:] != llr[:-1]
    edges, values = steps.edges[begins], torch.cat([llr[:1], llr[1:][begins]])
    scores = scores.to(edges.dtype)
    if on_host(scores) and scores.numel() > _CELLS and len(edges) > 1 and 1e-30 < float(edges[-1] - edges[0]) < 1e30:
        return _look_up_by_cell(edges, values, scores.flatten()).view(scores.shape)
    return values[torch.searchsorted(edges, scores, right=True)]


def _look_up_by_cell(edges: Tensor, values: Tensor, scores: Tensor) -> Tensor:
    """:func:`look_up` of many scores: most equal cells of the axis lie in one block and need no search."""
    scale = (_CELLS - 1) / (edges[-1] - edges[0])

    def cell_of(x: Tensor) -> Tensor:
        return x.sub(edges[0]).mul_(scale).clamp_(-1, _CELLS).floor_().to(torch.int32) + 1

    with_edge = cell_of(edges).long()
    edges_up_to = torch.bincount(with_edge, minlength=_CELLS + 2).cumsum(0)
    table = values[edges_up_to].index_fill(0, with_edge, torch.nan)
    found = torch.empty_like(scores, dtype=values.dtype)
    for piece, into in zip(scores.split(CHUNK // 4), found.split(CHUNK // 4), strict=True):
        torch.index_select(table, 0, cell_of(piece), out=into)
        unsure = into.isnan().nonzero().flatten()
        into[unsure] = values[torch.searchsorted(edges, piece[unsure], right=True)]
    return found
