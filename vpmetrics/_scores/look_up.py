"""The values of every score of what is known per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from vpmetrics._scores.host import on_host
from vpmetrics._scores.ordered import CHUNK
from vpmetrics._scores.steps import Steps

_CELLS = 1 << 16  # equal cells of the score axis to look up many scores by


Finder = Callable[[Tensor], list[Tensor]]


def look_up(steps: Steps, per_step: Tensor, scores: Tensor) -> Tensor:
    """The value of every score, in the shape of the scores, of something known per step, such as their ratios."""
    return look_up_in(steps, [per_step])(scores)[0]


def look_up_in(steps: Steps, tables: Sequence[Tensor]) -> Finder:
    """What looks up the values of any scores in tables of something known per step."""
    if not on_host(tables[0]):  # without a look

        def find(scores: Tensor) -> list[Tensor]:
            places = _places(steps.edges, scores)
            return [table[places] for table in tables]

        return find
    known = torch.stack(list(tables))
    if bool(known.isnan().any()):
        return lambda scores: [torch.full_like(scores, torch.nan, dtype=known.dtype) for _ in tables]
    # Blocks are far fewer than steps, and a shorter table is a faster one.
    begins = (known[:, 1:] != known[:, :-1]).any(0)
    edges, values = steps.edges[begins], torch.cat([known[:, :1], known[:, 1:][:, begins]], dim=1)
    by_cell = cache(lambda: _look_up_by_cell(edges, values))
    even = len(edges) > 1 and 1e-30 < float(edges[-1] - edges[0]) < 1e30

    def find_fast(scores: Tensor) -> list[Tensor]:
        many = scores.numel() > _CELLS and even
        return by_cell()(scores) if many else list(values[:, _places(edges, scores)])

    return find_fast


def _places(edges: Tensor, scores: Tensor) -> Tensor:
    return torch.searchsorted(edges, scores.to(edges.dtype).contiguous(), right=True)


def _look_up_by_cell(edges: Tensor, values: Tensor) -> Finder:
    """:func:`look_up_in` for many scores: most equal cells of the axis lie in one block and need no search."""
    scale = (_CELLS - 1) / (edges[-1] - edges[0])

    def cell_of(x: Tensor) -> Tensor:
        return x.sub(edges[0]).mul_(scale).clamp_(-1, _CELLS).floor_().to(torch.int32) + 1

    with_edge = cell_of(edges).long()
    edges_up_to = torch.bincount(with_edge, minlength=_CELLS + 2).cumsum(0)
    tables = values[:, edges_up_to].index_fill_(1, with_edge, torch.nan)

    def look_up_all(scores: Tensor) -> list[Tensor]:
        flat = scores.to(edges.dtype).flatten()
        found = torch.empty(len(values), len(flat), dtype=values.dtype)
        for piece, into in zip(flat.split(CHUNK // 4), found.split(CHUNK // 4, dim=1), strict=True):
            cell = cell_of(piece)
            for table, part in zip(tables, into, strict=True):
                torch.index_select(table, 0, cell, out=part)
            unsure = into[0].isnan().nonzero().flatten()
            into[:, unsure] = values[:, torch.searchsorted(edges, piece[unsure], right=True)]
        return [each.view(scores.shape) for each in found]

    return look_up_all
