"""How well linear maps separate speakers they were not fitted on, from moments alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import at_least_float32
from vpmetrics._trials.moments import Moments


class Maps(NamedTuple):
    """What a linear attacker does to each side: ``(x - mean) @ map``; None for a mean of zero and a map to itself."""

    mean_o: Tensor | None = None  # (..., D)
    map_o: Tensor | None = None  # (..., D, d)
    mean_p: Tensor | None = None
    map_p: Tensor | None = None

    def of(self, group: int) -> Maps:
        """Those of one group, of maps with a leading dimension."""
        return Maps(*(None if part is None else part[group] for part in self))


def separation(moments: Moments, maps: Maps) -> Tensor:
    r"""Mean score of two utterances of one speaker, above that of two speakers, in standard deviations, ``(G,)``.

    Scores are dot products of original and protected utterances of one group, after the maps for this group, ``(G, D,
    d)``. Means and variances of dot products of all pairs follow from products of moments; an utterance and itself is
    left out of the means, and of the variances not, where it counts for little. NaN for a group of fewer than two
    speakers or without a second utterance of anybody.
    """
    each, same = moments.each, moments.same_speaker
    pairs, of_one = each.count.square(), each.squares - each.count
    # Means of the mapped groups, their second moments about zero, and sums over pairs of one speaker.
    o, p = _map_rows(each.mean_o, maps.mean_o, maps.map_o), _map_rows(each.mean_p, maps.mean_p, maps.map_p)
    oo, pp = _both(each.oo, maps.map_o, maps.map_o), _both(each.pp, maps.map_p, maps.map_p)
    po, same_po = _both(each.po, maps.map_p, maps.map_o), _both(same.po, maps.map_p, maps.map_o)
    same_o, same_p = _map_rows(same.original, None, maps.map_o), _map_rows(same.protected, None, maps.map_p)
    mean = (o * p).sum(1)
    own = each.count * (_trace(po) + mean)
    total_same = _trace(same_po) + (same_o * p + same_p * o).sum(1) + each.squares * mean
    gap = (total_same - own) / of_one - (pairs * mean - total_same) / (pairs - each.squares)
    variance = (oo * pp).sum((1, 2)) + _quadratic(oo, p) + _quadratic(pp, o)
    share = of_one / (pairs - each.count)
    within = variance - share * (1 - share) * gap.square()
    return gap / within.clamp(min=torch.finfo(gap.dtype).tiny).sqrt()


def disclosed_share(separations: Tensor) -> Tensor:
    """Roughly the share of their identity that Gaussian scores so far apart disclose, in [-1, 1]; 0 for NaN.

    Within 0.012 of their D_ECE over its maximum. Means of it over groups are not ruled by those that are easy.
    """
    return (-torch.expm1(-separations.square() / 6.5) * separations.sign()).nan_to_num(0)


def _map_rows(rows: Tensor, mean: Tensor | None, matrix: Tensor | None) -> Tensor:
    rows = rows if mean is None else rows - mean
    return rows if matrix is None else (rows[:, None] @ matrix)[:, 0]


def _both(product: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    product = product if left is None else left.mT @ product
    return product if right is None else product @ right


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2).sum(1)


def _quadratic(matrices: Tensor, vectors: Tensor) -> Tensor:
    return ((vectors[:, None] @ matrices)[:, 0] * vectors).sum(1)


def map_rows(rows: Tensor, mean: Tensor | None, matrix: Tensor | None) -> Tensor:
    """``(rows - mean) @ matrix``, with a graph, in the type of the rows, float32 at least."""
    rows = at_least_float32(rows)
    rows = rows if mean is None else rows - mean.to(rows)
    with torch.autocast(rows.device.type, enabled=False):
        return rows if matrix is None else rows @ matrix.to(rows)
