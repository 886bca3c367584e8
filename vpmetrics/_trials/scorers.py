"""How two embeddings are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vpmetrics._checks import check_choice

ScoreFunction = Callable[[Tensor, Tensor], Tensor]

Scoring = str | ScoreFunction

NAMES = ("cosine", "dot", "euclidean")


class Scorer(NamedTuple):
    """A comparison in two parts: what is done once per embedding, and what is done per pair."""

    prepare: Callable[[Tensor], Tensor]
    compare: ScoreFunction


def resolve_scoring(scoring: Scoring) -> Scorer:
    """The scorer a user asked for.

    Args:
        scoring: ``"cosine"``, ``"dot"`` or ``"euclidean"`` (the negative distance); or a callable, such as a fitted
            :class:`PLDA`, from embeddings ``(A, D)`` and ``(B, D)`` to scores ``(A, B)``, higher = more alike.
    """
    if isinstance(scoring, str):
        check_choice("scoring", scoring, NAMES)
        return {
            "cosine": Scorer(_directions, _dot),
            "dot": Scorer(_as_it_is, _dot),
            "euclidean": Scorer(_as_it_is, _negative_distance),
        }[scoring]
    if not callable(scoring):
        raise TypeError(f"Expected `scoring` to be a name or a callable, but got {type(scoring).__name__}.")
    return Scorer(_as_it_is, scoring)


def _directions(x: Tensor) -> Tensor:
    """Rows of length 1, whatever their length: a square must neither overflow nor vanish on the way."""
    largest = x.detach().abs().amax(dim=1, keepdim=True) if x.shape[1] else x.new_ones(len(x), 1)
    return normalize(x / torch.where(largest > 0, largest, 1))


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.mT


def _negative_distance(a: Tensor, b: Tensor) -> Tensor:
    return -torch.cdist(a, b)
