"""Conversations: utterances of one speaker, averaged; and which utterances an attacker has."""

from __future__ import annotations

import torch
from torch import Tensor

from vpmetrics._precision import widen

_SEED = 5489  # of the draw that deals utterances: the same for every call, so that equal data are dealt equally


def dealt_places(groups: Tensor, keys: Tensor) -> Tensor:
    """A place 0, 1, … for every row among those of its group, ``(N,)``: at random, and always the same.

    Args:
        groups: Whose utterance each row is, ``(N,)`` integers.
        keys: A number for each row that depends on its values alone, so that neither the order of the rows nor the
            numbers of the speakers show.
    """
    names, group = groups.unique(return_inverse=True)
    smallest = keys.new_full((len(names),), torch.inf).scatter_reduce(0, group, keys, "amin")
    order = _sorted(keys, group, smallest[group])
    # Places by key would put similar utterances together: every row draws a number, and these are put in order.
    # Drawn on the host, since every kind of device has numbers of its own.
    generator = torch.Generator().manual_seed(_SEED)
    numbers = torch.rand(len(keys), generator=generator, dtype=keys.dtype, device="cpu").to(keys.device)
    drawn = torch.empty_like(keys).scatter_(0, order, numbers)
    order = _sorted(drawn, group)
    return torch.empty_like(order).scatter_(0, order, _counted(group[order]))


def _sorted(*columns: Tensor) -> Tensor:
    """Order of the rows by the last column, those equal in it by the one before, and so on."""
    order = columns[0].argsort(stable=True)
    for column in columns[1:]:
        order = order[column[order].argsort(stable=True)]
    return order


def _counted(ordered: Tensor) -> Tensor:
    """0, 1, … for every run of equal values."""
    _, counts = torch.unique_consecutive(ordered, return_counts=True)
    first: Tensor = (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.arange(len(ordered), device=ordered.device) - first


def whole(groups: Tensor, places: Tensor, length: int) -> Tensor:
    """Rows that make up conversations of ``length`` utterances each, ``(C, length)``; those left over are in none."""
    order = _sorted(places, groups)
    _, counts = torch.unique_consecutive(groups[order], return_counts=True)
    kept = places[order] < (counts // length * length).repeat_interleave(counts)
    return order[kept].view(-1, length)


def averaged(vectors: Tensor, members: Tensor) -> Tensor:
    """Mean of the rows of each conversation, ``(C, D)``, for members ``(C, L)``.

    Deviations from the first are averaged, so that the mean of equal rows is that row to the last bit.
    """
    if members.shape[1] == 1:
        return vectors[members[:, 0]]
    rows = max(1, 2**22 // max(1, members.shape[1] * vectors.shape[1]))
    return torch.cat([vectors[:0], *(_mean(vectors, part) for part in members.split(rows))])


def _mean(vectors: Tensor, members: Tensor) -> Tensor:
    first, every = widen(vectors[members[:, 0]]), widen(vectors[members])
    return (first + (every - first.unsqueeze(1)).mean(dim=1)).to(vectors.dtype)
