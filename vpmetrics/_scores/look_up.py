"""The value of every score of something known per step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vpmetrics._scores.host import on_host
from vpmetrics._scores.ordered import CHUNK
from vpmetrics._scores.steps import Steps

_CELLS = 1 << 16  # equal cells of the score axis to look up many scores by


def look_up(steps: Steps, per_step: Tensor, scores: Tensor) -> Tensor:
    """The value of every score, in the shape of the scores, of something known per step, such as their ratios."""
    return look_up_in(steps, per_step, scores.numel())(scores)


def look_up_in(steps: Steps, per_step: Tensor, expected: int) -> Callable[[Tensor], Tensor]:
    """What looks up the value of any score; it is made for as many as are expected."""
    if not on_host(per_step):  # without a look
        return lambda scores: per_step[_places(steps.edges, scores)]
    if bool(per_step.isnan().any()):
        return lambda scores: torch.full_like(scores, torch.nan, dtype=per_step.dtype)
    # Blocks are far fewer than steps, and a shorter table is a faster one.
    begins = per_step[1:] != per_step[:-1]
    edges, values = steps.edges[begins], torch.cat([per_step[:1], per_step[1:][begins]])
    if expected > _CELLS and len(edges) > 1 and 1e-30 < float(edges[-1] - edges[0]) < 1e30:
        return _look_up_by_cell(edges, values)
    return lambda scores: values[_places(edges, scores)]


def _places(edges: Tensor, scores: Tensor) -> Tensor:
    return torch.searchsorted(edges, scores.to(edges.dtype).contiguous(), right=True)


def _look_up_by_cell(edges: Tensor, values: Tensor) -> Callable[[Tensor], Tensor]:
    """:func:`look_up_in` for many scores: most equal cells of the axis lie in one block and need no search."""
    scale = (_CELLS - 1) / (edges[-1] - edges[0])

    def cell_of(x: Tensor) -> Tensor:
        return x.sub(edges[0]).mul_(scale).clamp_(-1, _CELLS).floor_().to(torch.int32) + 1

    with_edge = cell_of(edges).long()
    edges_up_to = torch.bincount(with_edge, minlength=_CELLS + 2).cumsum(0)
    table = values[edges_up_to].index_fill(0, with_edge, torch.nan)

    def look_up_all(scores: Tensor) -> Tensor:
        flat = scores.to(edges.dtype).flatten()
        found = torch.empty_like(flat, dtype=values.dtype)
        for piece, into in zip(flat.split(CHUNK // 4), found.split(CHUNK // 4), strict=True):
            torch.index_select(table, 0, cell_of(piece), out=into)
            unsure = into.isnan().nonzero().flatten()
            into[unsure] = values[torch.searchsorted(edges, piece[unsure], right=True)]
        return found.view(scores.shape)

    return look_up_all
