"""How well attackers separate speakers they were not fitted on: linear ones, from moments alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import at_least_float32
from vpmetrics._trials.covariances import at_least_tiny
from vpmetrics._trials.moments import Moments


class Maps(NamedTuple):
    """What a linear attacker does to each side: ``(x - mean) @ map``; None for a mean of zero and a map to itself.

    Example:
        >>> mean = torch.tensor([1.0, 2.0])
        >>> Maps(mean_o=mean, mean_p=-mean).map_p is None
        True
    """

    mean_o: Tensor | None = None  # (..., D)
    map_o: Tensor | None = None  # (..., D, d)
    mean_p: Tensor | None = None
    map_p: Tensor | None = None

    def of(self, group: int) -> Maps:
        """Those of one group, of maps with a leading dimension."""
        return Maps(*(None if part is None else part[group] for part in self))


def separation(moments: Moments, maps: Maps) -> Tensor:
    r"""Mean score of two utterances of one speaker, above that of two speakers, in standard deviations, ``(G,)``.

    Scores are dot products of original and protected utterances of one group after the maps for this group, so
    :math:`s = (p - \mu_p)^\top M (o - \mu_o)` with :math:`M` the one map times the other, and their means and variances
    over all pairs follow from moments. An utterance and itself is left out of the means, and of the variances not,
    where it counts for little. NaN for a group of fewer than two speakers or without a second utterance of anybody.
    """
    each, same, matrix = moments.each, moments.same_speaker, _product(maps)
    o, p = _shift(each.mean_o, maps.mean_o), _shift(each.mean_p, maps.mean_p)
    seen_o, seen_p = _times(matrix, o), _times(None if matrix is None else matrix.mT, p)  # by the other side
    mean = (p * seen_o).sum(1)
    own = each.count * (_sum(each.po, matrix) + mean)
    total_same = _sum(same.po, matrix) + (same.protected * seen_o + same.original * seen_p).sum(1) + each.squares * mean
    pp, oo = (each.pp, each.oo) if matrix is None else (each.pp @ matrix, matrix @ each.oo)
    variance = (pp * oo).sum((1, 2)) + (_times(each.oo, seen_p) * seen_p + _times(each.pp, seen_o) * seen_o).sum(1)
    return _in_deviations(each.count, each.squares, own, total_same, mean, variance)


def separation_of_rows(original: Tensor, protected: Tensor, speakers: Tensor) -> Tensor:
    """The same of the rows of one group as they are: where they are few, all pairs take less time than moments."""
    scores = protected @ original.mT
    same = (speakers[:, None] == speakers).to(scores)
    own, total_same = scores.diagonal().sum(), (scores * same).sum()
    return _in_deviations(len(scores), same.sum(), own, total_same, scores.mean(), scores.var(correction=0))


def _in_deviations(
    count: Tensor | int, squares: Tensor, own: Tensor, total_same: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    """From sums over an utterance and itself and over all pairs of one speaker, and what all pairs are on average."""
    pairs, of_one = count * count, squares - count
    gap = (total_same - own) / of_one - (pairs * mean - total_same) / (pairs - squares)
    share = of_one / (pairs - count)
    within = variance - share * (1 - share) * gap.square()
    return gap / at_least_tiny(within).sqrt()


def disclosed_share(separations: Tensor) -> Tensor:
    """Roughly the share of their identity that Gaussian scores so far apart disclose, in [-1, 1]; 0 for NaN.

    Within 0.012 of their D_ECE over its maximum. Means of it over groups are not ruled by those that are easy.
    """
    return (-torch.expm1(-separations.square() / 6.5) * separations.sign()).nan_to_num(0)


def _product(maps: Maps) -> Tensor | None:
    if maps.map_o is None or maps.map_p is None:
        return maps.map_p if maps.map_o is None else maps.map_o.mT
    return maps.map_p @ maps.map_o.mT


def _shift(rows: Tensor, mean: Tensor | None) -> Tensor:
    return rows if mean is None else rows - mean


def _times(matrices: Tensor | None, vectors: Tensor) -> Tensor:
    return vectors if matrices is None else (matrices @ vectors[..., None])[..., 0]


def _sum(products: Tensor, matrix: Tensor | None) -> Tensor:
    """Sum of the scores of pairs whose products are summed."""
    return products.diagonal(dim1=1, dim2=2).sum(1) if matrix is None else (products * matrix).sum((1, 2))


def map_rows(rows: Tensor, mean: Tensor | None, matrix: Tensor | None) -> Tensor:
    """``(rows - mean) @ matrix``, with a graph, in the type of the rows, float32 at least."""
    rows = at_least_float32(rows)
    rows = rows if mean is None else rows - mean.to(rows)
    with torch.autocast(rows.device.type, enabled=False):
        return rows if matrix is None else rows @ matrix.to(rows)
