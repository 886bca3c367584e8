"""How two embeddings are compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vpmetrics._checks import check_choice, check_floating, check_shape
from vpmetrics._precision import widen

ScoreFunction = Callable[[Tensor, Tensor], Tensor]
Scoring = str | ScoreFunction


class Scorer(NamedTuple):
    """A comparison, and what is known of its digits.

    ``prepare(rows)`` is done once per embedding, ``compare(a, b)`` per pair, ``rounding(a, b, scores, match)`` says by
    how much two scores that are equal on paper may come out apart, ``(A, 1)``. ``any_precision`` says that prepared
    rows may be float64 whatever the embeddings were; ``centred`` that a common shift changes no score, so that it is
    better taken out.
    """

    prepare: Callable[[Tensor], Tensor]
    compare: ScoreFunction
    rounding: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    any_precision: bool = True
    centred: bool = False


def resolve_scoring(scoring: Scoring) -> Scorer:
    """The scorer a user asked for.

    Args:
        scoring: ``"cosine"``, ``"dot"`` or ``"euclidean"`` (the negative distance); or a callable, such as a fitted
            :class:`vpmetrics.scoring.PLDA`, from embeddings ``(A, D)`` and ``(B, D)`` to scores ``(A, B)``, higher =
            more alike.
    """
    if isinstance(scoring, str):
        check_choice("scoring", scoring, tuple(SCORERS))
        return SCORERS[scoring]
    if isinstance(scoring, type) or not callable(scoring):
        got = f"the class {scoring.__name__}" if isinstance(scoring, type) else type(scoring).__name__
        raise TypeError(f"Expected `scoring` to be a name or a callable, but got {got}.")

    def compare(a: Tensor, b: Tensor) -> Tensor:
        scores = scoring(a, b)
        check_floating("scoring(a, b)", scores)
        check_shape("scoring(a, b)", scores, (len(a), len(b)), "one score per pair")
        return scores

    return Scorer(_as_it_is, compare, _relative_rounding, any_precision=False)


def _directions(x: Tensor) -> Tensor:
    """Rows of length 1, whatever their length: a square must neither overflow nor vanish on the way."""
    largest = x.detach().abs().amax(dim=1, keepdim=True) if x.shape[1] else x.new_ones(len(x), 1)
    return normalize(x / torch.where(largest > 0, largest, 1))


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _unless_too_large(x: Tensor) -> Tensor:
    """Rows as they are, and no numbers where a product with another one may overflow, which would pass for a score.

    Not left to the product: one that overflows on both sides of 0 is NaN on some processors and infinite on others.
    """
    squares = x.detach().square().sum(dim=1, keepdim=True)
    return torch.where(squares.isfinite(), x, torch.nan)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return a @ b.mT


def _negative_distance(a: Tensor, b: Tensor) -> Tensor:
    return -torch.cdist(a, b)


# Matrix products add up some columns in another order than others, so equal references need not get equal scores: on a
# CPU they are an ulp or two apart.
def _unit(a: Tensor) -> float:
    return torch.finfo(a.dtype).eps * max(8.0, math.sqrt(a.shape[1]))


def _rounding_of_cosines(a: Tensor, b: Tensor, scores: Tensor, match: Tensor) -> Tensor:  # noqa: ARG001
    return torch.full_like(match, _unit(a))


def _relative_rounding(a: Tensor, b: Tensor, scores: Tensor, match: Tensor) -> Tensor:  # noqa: ARG001
    return _unit(a) * scores.abs().amax(dim=1, keepdim=True)


def _rounding_of_distances(a: Tensor, b: Tensor, scores: Tensor, match: Tensor) -> Tensor:  # noqa: ARG001
    # A squared distance is off relative to the norms, and a distance by that over the slope of the square.
    squared = _unit(a) * (a.square().sum(dim=1, keepdim=True) + b.square().sum(dim=1).amax())
    return squared / torch.maximum(2 * match.abs(), squared.sqrt()).clamp(min=torch.finfo(a.dtype).tiny)


SCORERS = {
    "cosine": Scorer(_directions, _dot, _rounding_of_cosines),
    "dot": Scorer(_unless_too_large, _dot, _relative_rounding),
    "euclidean": Scorer(_as_it_is, _negative_distance, _rounding_of_distances, centred=True),
}


def prepared(rows: Tensor, scorer: Scorer, centre: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows as they are compared: near the origin where that changes nothing, since there fewest digits are lost."""
    if scorer.centred:
        rows = widen(rows) - centre
    with torch.autocast(rows.device.type, enabled=False):
        return scorer.prepare(rows.to(dtype))
