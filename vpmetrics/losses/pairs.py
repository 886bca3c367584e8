"""Pairs of a batch as trials: their scores, and D_ECE of these with a gradient."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vpmetrics._precision import at_least_float32
from vpmetrics._scores.counting import count_by_score
from vpmetrics._scores.measures import expected_disclosure
from vpmetrics._scores.smooth import soft_counts
from vpmetrics._scores.steps import Steps

FULL_DISCLOSURE = 1 / (2 * math.log(2))
"""D_ECE in bits of scores that tell every target from every non-target."""
_WIDE = 0.5  # bandwidth with a gradient even where all targets lie far above all non-targets
_PULL = 0.1  # its share: enough to leave that place, where nothing else pulls, and too little to matter elsewhere
_SHORTEST = 1e-6  # length below which an embedding has no direction; also bounds its gradient


class Trials(NamedTuple):
    """Scores ``(A, P)``, as ``A`` attackers see the same pairs, with labels ``(P,)``.

    ``counted`` ``(A, P)`` says which pairs each of them has; ``defined`` ``(A,)``, whether both kinds are among those.
    All of it stays on the device.
    """

    preds: Tensor
    target: Tensor
    counted: Tensor
    defined: Tensor


def trials(preds: Tensor, same_speaker: Tensor, counted: Tensor) -> Trials:
    """Trials of scores ``(A, P)``; ``counted`` broadcasts against them."""
    counted = counted.expand(preds.shape)
    defined = (counted & same_speaker).any(-1) & (counted & ~same_speaker).any(-1)
    return Trials(preds, same_speaker.long(), counted, defined)


def disclosure(pairs: Trials, bandwidth: float, exactly: bool) -> Tensor:
    """D_ECE of every row and of its negative, added, ``(A,)``; 0 with a graph if undefined."""
    soft = (1 - _PULL) * _soft(pairs, bandwidth, True) + _PULL * _soft(pairs, _WIDE, True)
    return _settle(pairs, soft, exactly).sum(0)


def one_sided_disclosure(pairs: Trials, bandwidth: float, exactly: bool) -> Tensor:
    """D_ECE of every row, ``(A,)``; 0 with a graph if undefined."""
    return _settle(pairs, _soft(pairs, bandwidth, False), exactly)[0]


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Scores of all rows of one side with all of the other, in float32 or wider."""
    first, second = directions(first), directions(second)
    wide = torch.promote_types(first.dtype, second.dtype)
    return first.to(wide) @ second.to(wide).T


def centre(embeddings: Tensor) -> Tensor:
    """Directions about their mean."""
    rows = directions(embeddings)
    return rows - rows.mean(dim=0)


def directions(embeddings: Tensor) -> Tensor:
    """Rows of length 1; a long one is shortened first, so that its square does not overflow."""
    rows = at_least_float32(embeddings)
    return normalize(rows / rows.detach().abs().amax(dim=1, keepdim=True).clamp(min=1), dim=1, eps=_SHORTEST)


def off_diagonal(squares: Tensor) -> Tensor:
    """All but the diagonals of ``(..., B, B)`` in a row: after the first element, one is the last of ``B + 1``."""
    size = squares.shape[-1]
    rest = squares.flatten(-2)[..., 1:].reshape(*squares.shape[:-2], size - 1, size + 1)
    return rest[..., :-1].flatten(-2)


def above_diagonal(squares: Tensor) -> Tensor:
    """All unordered pairs in a row."""
    size = squares.shape[-1]
    row, column = torch.triu_indices(size, size, offset=1, device=squares.device)
    return squares[..., row, column]


def equal(labels: Tensor) -> Tensor:
    """Which pairs of rows have the same label, ``(B, B)``."""
    return labels[:, None] == labels


def _soft(pairs: Trials, bandwidth: float, two_sided: bool) -> Tensor:
    """D_ECE of the smoothed PAV, ``(1, A)``, or also of the negative scores, ``(2, A)``."""
    preds, target, counted, defined = pairs
    grid, *counts = soft_counts(preds, target.expand_as(preds), bandwidth, counted)
    # Where a class is missing its counts are made up: a logarithm of zero would reach the gradient through `where`.
    counts = [torch.where(defined[:, None], count, 1) for count in counts]
    sides = [torch.stack([count, count.flip(-1)][: 1 + two_sided]) for count in counts]
    return expected_disclosure(Steps(grid[..., 1:], *sides))


def _settle(pairs: Trials, soft: Tensor, exactly: bool) -> Tensor:
    """The value to return: the exact one with the gradient of the smooth one where asked for, 0 where undefined."""
    if exactly:
        soft = soft + (_exact(pairs)[: len(soft)] - soft).detach()
    return torch.where(pairs.defined, soft, 0)


def _exact(pairs: Trials) -> Tensor:
    """Exact D_ECE of scores and of their negatives, ``(2, A)``."""
    found = []
    for preds, counted, defined in zip(pairs.preds.detach(), pairs.counted, pairs.defined.tolist(), strict=True):
        steps = count_by_score(preds[counted], pairs.target[counted], validate_args=False) if defined else ()
        found.append(torch.stack([expected_disclosure(side) for side in steps]) if defined else preds.new_zeros(2))
    return torch.stack([value.to(torch.float64) for value in found], dim=1)
