"""Scoring functions: how two embeddings are compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vpmetrics._util.dtypes import wide_dtype, widen
from vpmetrics._util.validation import check_choice, check_floating, check_shape

ScoreFunction = Callable[[Tensor, Tensor], Tensor]
Scoring = str | ScoreFunction
FEW_PAIRS = 1 << 22  # up to here every score is kept in double precision; beyond, scores share bins


class Scorer(NamedTuple):
    """A scoring function and its rounding error.

    ``prepare(rows)`` runs once per embedding, ``compare(a, b)`` per block of pairs. ``rounding(a,
    b, scores, match)`` bounds the difference of two scores that are equal in exact arithmetic,
    ``(A, 1)``. ``is_builtin``: prepared rows may be float64 whatever the embeddings were, and come
    in batches ``(..., A, D)``, ``(..., B, D)``. ``is_shift_invariant``: adding one vector to all
    embeddings changes no score; then the mean is subtracted first.
    """

    prepare: Callable[[Tensor], Tensor]
    compare: ScoreFunction
    rounding: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    is_builtin: bool = True
    is_shift_invariant: bool = False


def resolve_scoring(scoring: Scoring) -> Scorer:
    """Return the scorer of a name or a callable.

    Args:
        scoring: ``"cosine"``, ``"dot"`` or ``"euclidean"`` (the negative distance); or a callable,
            such as a fitted :class:`vpmetrics.scoring.PLDA`, from embeddings ``(A, D)`` and ``(B,
            D)`` to scores ``(A, B)``, higher = more alike.
    """
    if isinstance(scoring, str):
        check_choice("scoring", scoring, tuple(SCORERS))
        return SCORERS[scoring]
    if isinstance(scoring, type) or not callable(scoring):
        if isinstance(scoring, type):
            got = f"the class {scoring.__name__}"
        else:
            got = type(scoring).__name__
        raise TypeError(f"Expected `scoring` to be a name or a callable, but got {got}.")

    def score_and_check_shape(a: Tensor, b: Tensor) -> Tensor:
        scores = scoring(a, b)
        check_floating("scoring(a, b)", scores)
        check_shape("scoring(a, b)", scores, (len(a), len(b)), "one score per pair")
        return scores

    return Scorer(
        lambda rows: rows, score_and_check_shape, _rounding_relative_to_largest, is_builtin=False
    )


def _unit_rows_or_zero(x: Tensor) -> Tensor:
    """Return rows of unit length; zero rows stay zero.

    The division by the largest entry keeps squares in range.
    """
    if x.shape[1] == 0:
        return x
    largest = torch.linalg.vector_norm(x.detach(), ord=math.inf, dim=1, keepdim=True)
    return normalize(x / largest.clamp(min=torch.finfo(x.dtype).tiny))


def _nan_overflowing_rows(x: Tensor) -> Tensor:
    """Return the rows, with NaN where their squares overflow.

    Some processors give NaN, others infinity.
    """
    squares = x.detach().square().sum(dim=1, keepdim=True)
    return torch.where(squares.isfinite(), x, torch.nan)


def _dot_product_epsilon(a: Tensor) -> float:
    """Return the relative rounding error of a dot product.

    Its terms may be summed in different orders (1-2 ulp).
    """
    return torch.finfo(a.dtype).eps * max(8.0, math.sqrt(a.shape[-1]))


def _rounding_of_cosines(a: Tensor, b: Tensor, scores: Tensor, match: Tensor) -> Tensor:  # noqa: ARG001
    return torch.full_like(match, _dot_product_epsilon(a))


def _rounding_relative_to_largest(a: Tensor, b: Tensor, scores: Tensor, match: Tensor) -> Tensor:  # noqa: ARG001
    return _dot_product_epsilon(a) * scores.abs().amax(dim=-1, keepdim=True)


def _rounding_of_distances(a: Tensor, b: Tensor, scores: Tensor, match: Tensor) -> Tensor:  # noqa: ARG001
    # The error of d^2 is relative to the squared norms. Error propagation: error of d = error of
    # d^2 / (2 d).
    largest = b.square().sum(dim=-1).amax(dim=-1)[..., None, None]
    squared = _dot_product_epsilon(a) * (a.square().sum(dim=-1, keepdim=True) + largest)
    return squared / torch.maximum(2 * match.abs(), squared.sqrt()).clamp(
        min=torch.finfo(a.dtype).tiny
    )


SCORERS = {
    "cosine": Scorer(_unit_rows_or_zero, lambda a, b: a @ b.mT, _rounding_of_cosines),
    "dot": Scorer(_nan_overflowing_rows, lambda a, b: a @ b.mT, _rounding_relative_to_largest),
    "euclidean": Scorer(
        lambda rows: rows,
        lambda a, b: -torch.cdist(a, b),
        _rounding_of_distances,
        is_shift_invariant=True,
    ),
}


def widest_affordable_dtype(
    scorer: Scorer, rows: Tensor, num_pairs: int, is_exact: bool = True
) -> torch.dtype:
    """Return the type to compare rows in.

    Of few pairs the widest, so that the order of rows changes no rank.
    """
    is_wide = is_exact and scorer.is_builtin and num_pairs <= FEW_PAIRS
    if is_wide:
        return wide_dtype(rows.device)
    return torch.promote_types(rows.dtype, torch.float32)


def prepare_rows(rows: Tensor, scorer: Scorer, centre: Tensor, dtype: torch.dtype) -> Tensor:
    """Return rows ready for ``compare``.

    The mean is subtracted first, for precision, if that changes no score.
    """
    if scorer.is_shift_invariant:
        rows = widen(rows) - centre
    with torch.autocast(rows.device.type, enabled=False):
        return scorer.prepare(rows.to(dtype))
