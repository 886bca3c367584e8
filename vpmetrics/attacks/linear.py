"""Attacks that follow from means and covariances.

These are of protected speech alone, with speakers, or of pairs.

Every ``maps`` here works on all training sets at once, and on all settings: numbers of a setting
are tensors ``(S, 1, 1, 1)``, statistics ``(T, D, D)``, maps ``(S, T, D, D)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vpmetrics.attacks.base import LABELLED, NOTHING, PAIRS, PROTECTED, LinearAttack
from vpmetrics.attacks.moments import (
    UNIT,
    PairStatistics,
    RowNormalisation,
    SquaredRows,
    TrainingSets,
    cholesky_plus_diagonal,
    divide_by_norm,
    identity_like,
    invert_lower,
)
from vpmetrics.attacks.solutions import AnySolution, Maps

_TINY_WEIGHT = 1e-9  # added to weights of PLDA, at most 1/2, so that they have a Cholesky factor
# Newton-Schulz: quintic steps bring singular values from 1e-4 to 1 of the largest into [0.7, 1.2],
# and cubic steps bring these to 1 within 1e-4.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_QUINTIC_STEPS = 8
_CUBIC_STEPS = 4


class Plain(LinearAttack):
    """Embeddings as they are. The attacker needs nothing and compares voices by cosine.

    Example:
        >>> attack = Plain().fit(protected=torch.eye(2), speakers=torch.arange(2))
        >>> attack.attack(None, torch.tensor([[3.0, 4.0]]))
        (None, tensor([[0.6000, 0.8000]]))
    """

    name = "plain"
    needs = NOTHING
    views: Sequence[str] | None = (UNIT,)
    is_batched = True

    def maps(self, statistics: PairStatistics, setting: None) -> Maps:  # noqa: ARG002
        """Return the identity: rows are only normalised."""
        return Maps()


class AbsoluteCosine(Plain):
    """The absolute value of the cosine: detects speakers where each utterance has a random sign.

    Example:
        >>> AbsoluteCosine().score(torch.eye(2), torch.tensor([[-2.0, 0.0]]))
        tensor([[1.],
                [0.]])
    """

    name = "absolute cosine"
    has_batched_score = True

    def score(self, original: Tensor, protected: Tensor) -> Tensor:
        """Return absolute cosines ``(..., A, B)``."""
        return (divide_by_norm(original) @ divide_by_norm(protected).mT).abs()


class Centred(LinearAttack):
    """The mean of each side subtracted. The attacker needs protected speech of any speakers.

    Example:
        >>> attack = Centred().fit(
        ...     protected=torch.tensor([[1.0, 0.0], [0.0, 1.0]]), speakers=torch.arange(2)
        ... )
        >>> attack.attack(None, torch.tensor([[3.0, 0.0]]))
        (None, tensor([[ 0.7071, -0.7071]]))
    """

    name = "centred"
    needs = PROTECTED
    is_batched = True

    def maps(self, statistics: PairStatistics, setting: None) -> Maps:  # noqa: ARG002
        """Return the subtraction of the means; normalised rows have been centred before."""
        return Maps(statistics.mean_o, None, statistics.mean_p, None)


class Whitening(LinearAttack):
    """Both sides whitened by protected speech. The attacker needs protected speech of any speakers.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> protected = torch.randn(80, 2, generator=draw) * torch.tensor([1.0, 9.0])
        >>> _, mapped = (
        ...     Whitening()
        ...     .fit(protected=protected, speakers=torch.arange(80) // 4)
        ...     .attack(None, protected)
        ... )
        >>> mapped.shape
        torch.Size([80, 2])
    """

    name = "whitening"
    needs = PROTECTED
    settings = (1e-1, 1.0)
    is_batched = True

    def maps(self, statistics: PairStatistics, setting: float | Tensor) -> Maps:
        """Return an inverse root of the covariance of protected speech, the same for both sides."""
        white = statistics.whiten("pp", setting)
        return Maps(statistics.mean_o, white, statistics.mean_p, white)


class WithinClassWhitening(LinearAttack):
    """Both sides whitened by protected speech within speakers.

    The attacker needs protected speech with speakers.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(80) // 4
        >>> voices = torch.nn.functional.pad(torch.randn(20, 2, generator=draw), (0, 2))[speakers]
        >>> protected = voices + torch.randn(80, 4, generator=draw) * torch.tensor(
        ...     [0.1, 0.1, 2.0, 2.0]
        ... )
        >>> _, mapped = (
        ...     WithinClassWhitening()
        ...     .fit(protected=protected, speakers=speakers)
        ...     .attack(None, protected)
        ... )
        >>> [
        ...     bool(torch.cosine_similarity(x[0::4], x[1::4]).mean() > 0.5)
        ...     for x in (protected, mapped)
        ... ]
        [False, True]
    """

    name = "within-class whitening"
    needs = LABELLED
    settings = (1e-1, 1.0, 10.0)
    is_batched = True

    def maps(self, statistics: PairStatistics, setting: float | Tensor) -> Maps:
        """Return an inverse root of the covariance within speakers, the same for both sides."""
        white = statistics.whiten("within_pp", setting)
        return Maps(statistics.mean_o, white, statistics.mean_p, white)


class WithinClassScaling(LinearAttack):
    """Every dimension divided by the deviation of protected speech within speakers.

    The attacker needs these speakers.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(80) // 4
        >>> voices = torch.nn.functional.pad(torch.randn(20, 2, generator=draw), (0, 2))[speakers]
        >>> protected = voices + torch.randn(80, 4, generator=draw) * torch.tensor(
        ...     [0.1, 0.1, 9.0, 9.0]
        ... )
        >>> _, mapped = (
        ...     WithinClassScaling()
        ...     .fit(protected=protected, speakers=speakers)
        ...     .attack(None, protected)
        ... )
        >>> [
        ...     bool(torch.cosine_similarity(x[0::4], x[1::4]).mean() > 0.5)
        ...     for x in (protected, mapped)
        ... ]
        [False, True]
    """

    name = "within-class scaling"
    needs = LABELLED
    settings = (1e-6, 1e-1)
    is_batched = True

    def maps(self, statistics: PairStatistics, setting: float | Tensor) -> Maps:
        """Return one factor per dimension, the same for both sides."""
        variance = statistics.within_pp.diagonal(dim1=-2, dim2=-1)[..., None, :].clamp(min=0)
        added = setting * variance.mean(-1, keepdim=True) + torch.finfo(variance.dtype).tiny
        has_variance = statistics.project("pp").diagonal(dim1=-2, dim2=-1)[..., None, :]
        scale = (variance + added).rsqrt() * has_variance * identity_like(statistics.pp)
        return Maps(statistics.mean_o, scale, statistics.mean_p, scale)


class PLDA(LinearAttack):
    r"""Protected speech as probabilistic linear discriminant analysis weighs it.

    Where the covariance within speakers is the identity and that between them is :math:`B`, the
    posterior mean of a speaker weighs an utterance by :math:`B (I + 2B)^{-1}`, see
    :class:`vpmetrics.scoring.PLDA`. The attacker must have protected speech and know which of it is
    of one speaker.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(80) // 4
        >>> voices = torch.nn.functional.pad(torch.randn(20, 2, generator=draw), (0, 2))[speakers]
        >>> protected = voices + torch.randn(80, 4, generator=draw) * torch.tensor(
        ...     [0.1, 0.1, 2.0, 2.0]
        ... )
        >>> _, mapped = PLDA().fit(protected=protected, speakers=speakers).attack(None, protected)
        >>> [
        ...     bool(torch.cosine_similarity(x[0::4], x[1::4]).mean() > 0.5)
        ...     for x in (protected, mapped)
        ... ]
        [False, True]
    """

    name = "PLDA"
    needs = LABELLED
    settings = (1e-1, 1.0)
    conditions = ("PP",)
    is_batched = True

    def maps(self, statistics: PairStatistics, setting: float | Tensor) -> Maps:
        r"""Return a root of the weights, :math:`B (I + 2B)^{-1} = \tfrac12 (I - (I + 2B)^{-1})`."""
        white = statistics.whiten("within_pp", setting)
        between = white.mT @ statistics.between_pp @ white
        inverse_root = invert_lower(cholesky_plus_diagonal(2 * between, 1.0))
        weights = 0.5 * (identity_like(between) - inverse_root.mT @ inverse_root)
        chain = white @ cholesky_plus_diagonal(weights, _TINY_WEIGHT)
        return Maps(statistics.mean_o, chain, statistics.mean_p, chain)


class RidgeToOriginal(LinearAttack):
    """Original speech predicted from protected speech.

    The attacker needs pairs, that is, the anonymiser.

    Example:
        >>> original, speakers = (
        ...     torch.randn(60, 4, generator=torch.Generator().manual_seed(0)),
        ...     torch.arange(60) // 3,
        ... )
        >>> o, p = (
        ...     RidgeToOriginal()
        ...     .fit(original, -original.flip(1), speakers)
        ...     .attack(original, -original.flip(1))
        ... )
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name = "ridge to original"
    needs = PAIRS
    settings = (1e-2, 1.0)
    is_batched = True

    def maps(self, statistics: PairStatistics, setting: float | Tensor) -> Maps:
        """Return the ridge regression of original on protected."""
        white = statistics.whiten("pp", setting)
        return Maps(statistics.mean_o, None, statistics.mean_p, white @ (white.mT @ statistics.po))


class RidgeToProtected(LinearAttack):
    """Protected speech predicted from original speech.

    The attacker needs pairs, that is, the anonymiser.

    Example:
        >>> original, speakers = (
        ...     torch.randn(60, 4, generator=torch.Generator().manual_seed(0)),
        ...     torch.arange(60) // 3,
        ... )
        >>> o, p = (
        ...     RidgeToProtected()
        ...     .fit(original, -original.flip(1), speakers)
        ...     .attack(original, -original.flip(1))
        ... )
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name = "ridge to protected"
    needs = PAIRS
    conditions = ("OP",)
    settings: Sequence[Any] = RidgeToOriginal.settings
    is_batched = True

    def maps(self, statistics: PairStatistics, setting: float | Tensor) -> Maps:
        """Return the ridge regression of protected on original."""
        white = statistics.whiten("oo", setting)
        return Maps(
            statistics.mean_o, white @ (white.mT @ statistics.po.mT), statistics.mean_p, None
        )


class SquaresToProtected(RidgeToProtected):
    """Protected rows predicted from the squares of original rows: detects even functions.

    The attacker needs pairs.

    Example:
        >>> original = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
        >>> protected, speakers = original.abs().flip(1), torch.arange(300) // 3
        >>> o, p = (
        ...     SquaresToProtected().fit(original, protected, speakers).attack(original, protected)
        ... )
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name = "squares to protected"
    settings = (1e-2, 1.0)

    def solve(
        self, sets: TrainingSets, view: RowNormalisation, settings: Sequence[Any]
    ) -> AnySolution:
        """Return the steps of both sides.

        Original rows are squared and regressed, protected rows are only centred.
        """
        normalisers = (
            SquaredRows(sets.normaliser("original", view)),
            sets.normaliser("protected", view),
        )
        return self.solve_statistics(
            sets.statistics(view, is_original_squared=True), settings, normalisers
        )


class Procrustes(LinearAttack):
    """Protected speech rotated onto original speech.

    The attacker needs pairs, that is, the anonymiser.

    Example:
        >>> original, speakers = (
        ...     torch.randn(60, 4, generator=torch.Generator().manual_seed(0)),
        ...     torch.arange(60) // 3,
        ... )
        >>> o, p = (
        ...     Procrustes()
        ...     .fit(original, -original.flip(1), speakers)
        ...     .attack(original, -original.flip(1))
        ... )
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name = "Procrustes"
    needs = PAIRS
    conditions = ("OP",)
    is_batched = True

    def maps(self, statistics: PairStatistics, setting: None) -> Maps:  # noqa: ARG002
        """Return the orthogonal map that brings the sides closest.

        The polar factor of their products.
        """
        return Maps(statistics.mean_o, None, statistics.mean_p, orthogonalise(statistics.po))


def orthogonalise(matrix: Tensor) -> Tensor:
    r"""Return the polar factor :math:`C (C^\top C)^{-1/2}` by Newton-Schulz steps.

    Matrices are ``(..., D, D)``.

    Singular values far below the largest stay small: their directions are noise.

    Example:
        >>> turn = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))[0]
        >>> bool((orthogonalise(turn * 3) - turn).abs().amax() < 1e-3)
        True
    """
    norm = torch.linalg.matrix_norm(matrix, keepdim=True).clamp(min=torch.finfo(matrix.dtype).tiny)
    found: Tensor = matrix / norm
    linear, cubic, quintic = _QUINTIC
    square: Tensor
    for _ in range(_QUINTIC_STEPS):
        square = found.mT @ found
        found = linear * found + found @ (cubic * square + quintic * square @ square)
    for _ in range(_CUBIC_STEPS):
        found = 1.5 * found - 0.5 * found @ (found.mT @ found)
    return found


class CanonicalCorrelation(LinearAttack):
    r"""Directions of both sides that vary together.

    They are weighted as the likelihood ratio of Gaussian pairs weighs them.

    With canonical correlations :math:`\rho`, the evidence that two utterances are a pair is
    :math:`\rho / (1 - \rho^2)` times the product of their canonical variates:
    :math:`K (I - K^\top K)^{-1}`, with :math:`K` the covariance of whitened protected with whitened
    original rows. Settings are a ridge and a damping, which is added to the denominator, since
    correlations of few pairs are too high. The attacker needs pairs, that is, the anonymiser.

    Example:
        >>> original, speakers = (
        ...     torch.randn(60, 4, generator=torch.Generator().manual_seed(0)),
        ...     torch.arange(60) // 3,
        ... )
        >>> protected = original @ original[:4]  # any linear map
        >>> o, p = (
        ...     CanonicalCorrelation()
        ...     .fit(original, protected, speakers)
        ...     .attack(original, protected)
        ... )
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name = "canonical correlation"
    needs = PAIRS
    settings: Sequence[Any] = (
        (1e-4, 1e-3),
        (1e-3, 1e-3),
        (1e-1, 1e-3),
        (1e-1, 10.0),
        (1.0, 1e-3),
        (1.0, 10.0),
    )
    is_batched = True

    def maps(
        self, statistics: PairStatistics, setting: tuple[float | Tensor, float | Tensor]
    ) -> Maps:
        """Return the whitening of each side, then K for protected rows, then a root of the inverse.

        The root is for both sides.
        """
        white_o, white_p, product, root = _correlate(statistics, *setting)
        return Maps(
            statistics.mean_o, white_o @ root, statistics.mean_p, white_p @ (product @ root)
        )


def _correlate(
    statistics: PairStatistics, ridge: float | Tensor, damping: float | Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the whitening of both sides, K, and a root for the damped inverse.

    The root is that of the inverse of ``(1 + damping) I - K.T K``.
    """
    white_o = statistics.whiten("oo", ridge)
    white_p = statistics.whiten("pp", ridge)
    product = white_p.mT @ statistics.po @ white_o
    root = invert_lower(cholesky_plus_diagonal(-product.mT @ product, 1.0 + damping)).mT
    return white_o, white_p, product, root


class LikelihoodRatio(LinearAttack):
    r"""Log-likelihood ratio of an original and a protected row.

    Pair of one speaker or independent, both Gaussian.

    With whitened rows :math:`o, p` and :math:`K` as in :class:`CanonicalCorrelation`, up to a
    constant

    .. math::
        p^\top K R^{-1} o - \tfrac12 p^\top K R^{-1} K^\top p - \tfrac12 o^\top (R^{-1} - I)\, o,
        \qquad R = I - K^\top K

    Two further columns of each side hold its quadratic term and 1, so that the ratio is an inner
    product. The attacker needs pairs, that is, the anonymiser.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(90) // 3
        >>> original = torch.randn(30, 4, generator=draw)[speakers] + 0.1 * torch.randn(
        ...     90, 4, generator=draw
        ... )
        >>> attack = LikelihoodRatio().fit(original, -original.flip(1), speakers)
        >>> scores = attack.score(*attack.attack(original, -original.flip(1)))
        >>> bool(scores.diagonal().median() > scores.median())
        True
    """

    name = "likelihood ratio"
    needs = PAIRS
    conditions = ("OP",)
    is_inner_product = True
    settings: Sequence[Any] = ((1e-1, 1e-3), (1.0, 1e-3), (10.0, 1e-3))
    is_batched = True

    def maps(
        self, statistics: PairStatistics, setting: tuple[float | Tensor, float | Tensor]
    ) -> Maps:
        """Return the maps of canonical correlation.

        Further steps append the quadratic terms of each side.
        """
        white_o, white_p, product, root = _correlate(statistics, *setting)
        map_o = torch.cat([white_o, white_o @ root], dim=-1)
        map_p = white_p @ (product @ root)
        return Maps(
            statistics.mean_o,
            (map_o, _append_original_bias),
            statistics.mean_p,
            (map_p, _append_protected_bias),
        )

    def score(self, original: Tensor, protected: Tensor) -> Tensor:
        """Return log-likelihood ratios ``(A, B)``."""
        ratios: Tensor = original @ protected.mT
        return ratios


def _append_original_bias(rows: Tensor) -> Tensor:
    """Return mapped rows, their bias and 1, ``(..., D + 2)``.

    ``rows``: whitened and mapped rows side by side.
    """
    white, mapped = rows.tensor_split(2, dim=-1)
    bias = 0.5 * (white.square().sum(-1, keepdim=True) - mapped.square().sum(-1, keepdim=True))
    return torch.cat([mapped, bias, torch.ones_like(bias)], dim=-1)


def _append_protected_bias(rows: Tensor) -> Tensor:
    """Return mapped rows, 1 and their bias, ``(..., D + 2)``."""
    bias = -0.5 * rows.square().sum(-1, keepdim=True)
    return torch.cat([rows, torch.ones_like(bias), bias], dim=-1)
