"""Attacks that follow from means and covariances: of protected speech alone, with speakers, or of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from vpmetrics.attacks.base import LABELLED, NOTHING, PAIRS, PROTECTED, LinearAttack, Maps
from vpmetrics.attacks.moments import (
    UNIT,
    PairStatistics,
    RowMap,
    RowNormalisation,
    Solution,
    TrainingPairs,
    apply_chain,
    centre_and_scale,
    cholesky_plus_diagonal,
    solve_lower,
    unit_rows,
)

RidgeAndDamping = tuple[float, float]
"""Setting of a canonical correlation: the ridge of both covariances, and an addition to ``1 - correlation ** 2``."""

_SOFT = 1e-6  # of the largest singular value: the rotation leaves out directions far below it


class Plain(LinearAttack):
    """Embeddings as they are. The attacker needs nothing and compares voices by cosine.

    Example:
        >>> attack = Plain().fit(protected=torch.eye(2), speakers=torch.arange(2))
        >>> attack.attack(None, torch.tensor([[3.0, 4.0]]))
        (None, tensor([[0.6000, 0.8000]]))
    """

    name, needs = "plain", NOTHING
    views: Sequence[str] | None = (UNIT,)

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

    def score(self, original: Tensor, protected: Tensor) -> Tensor:
        """Return absolute cosines ``(A, B)``."""
        return (unit_rows(original) @ unit_rows(protected).mT).abs().to(original)


class Centred(Plain):
    """The mean of each side subtracted. The attacker needs protected speech of any speakers.

    Example:
        >>> attack = Centred().fit(protected=torch.tensor([[1.0, 0.0], [0.0, 1.0]]), speakers=torch.arange(2))
        >>> attack.attack(None, torch.tensor([[3.0, 0.0]]))
        (None, tensor([[ 0.7071, -0.7071]]))
    """

    name, needs, views = "centred", PROTECTED, None

    def solve_moments(self, statistics: PairStatistics, setting: None) -> Solution:
        """Return the subtraction of observed means."""
        norms = [(partial(centre_and_scale, mean, None),) for mean in (statistics.mean_o, statistics.mean_p)]
        return self.maps(statistics, setting).prepend_steps(*norms)


class WithinClassWhitening(LinearAttack):
    """Both sides whitened by protected speech within speakers. The attacker needs protected speech with speakers.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(80) // 4
        >>> voices = torch.nn.functional.pad(torch.randn(20, 2, generator=draw), (0, 2))[speakers]
        >>> protected = voices + torch.randn(80, 4, generator=draw) * torch.tensor([0.1, 0.1, 9.0, 9.0])
        >>> _, mapped = WithinClassWhitening().fit(protected=protected, speakers=speakers).attack(None, protected)
        >>> [bool(torch.cosine_similarity(x[0::4], x[1::4]).mean() > 0.5) for x in (protected, mapped)]
        [False, True]
    """

    name, needs = "within-class whitening", LABELLED
    settings = (("full", 1e-1), ("full", 1.0), ("full", 10.0), ("diagonal", 1e-6), ("diagonal", 1e-1))

    def maps(self, statistics: PairStatistics, setting: tuple[Literal["full", "diagonal"], float]) -> Maps:
        """Return an inverse root of the covariance within speakers, the same for both sides."""
        form, ridge = setting
        if form == "full":
            chain = statistics.whiten("within_pp", ridge)
        else:
            variance = statistics.within_pp.diagonal()
            added = ridge * variance.mean() + torch.finfo(variance.dtype).tiny
            chain = ((variance.clamp(min=0) + added).rsqrt(),)
        return Maps(statistics.mean_o, chain, statistics.mean_p, chain)


class PLDA(LinearAttack):
    r"""Protected speech as probabilistic linear discriminant analysis weighs it.

    Where the covariance within speakers is the identity and that between them is :math:`B`, the posterior mean of a
    speaker weighs an utterance by :math:`B (I + 2B)^{-1}`, see :class:`vpmetrics.scoring.PLDA`. The attacker must have
    protected speech and know which of it is of one speaker.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(80) // 4
        >>> voices = torch.nn.functional.pad(torch.randn(20, 2, generator=draw), (0, 2))[speakers]
        >>> protected = voices + torch.randn(80, 4, generator=draw) * torch.tensor([0.1, 0.1, 2.0, 2.0])
        >>> _, mapped = PLDA().fit(protected=protected, speakers=speakers).attack(None, protected)
        >>> [bool(torch.cosine_similarity(x[0::4], x[1::4]).mean() > 0.5) for x in (protected, mapped)]
        [False, True]
    """

    name, needs, settings, conditions = "PLDA", LABELLED, (1e-1, 1.0), ("PP",)

    def maps(self, statistics: PairStatistics, setting: float) -> Maps:
        """Return a root of the weights, of no more directions than speakers."""
        white = statistics.whiten("within_pp", setting)
        means = apply_chain(statistics.weighted_speaker_means, white)  # B is means.T @ means
        chain = (*white, means.T, partial(solve_lower, cholesky_plus_diagonal(2 * means @ means.T, 1.0)))
        return Maps(statistics.mean_o, chain, statistics.mean_p, chain)


class RidgeToOriginal(LinearAttack):
    """Original speech predicted from protected speech. The attacker needs pairs, that is, the anonymiser.

    Example:
        >>> original, speakers = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) // 3
        >>> o, p = RidgeToOriginal().fit(original, -original.flip(1), speakers).attack(original, -original.flip(1))
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name, needs, settings = "ridge to original", PAIRS, (1e-6, 1e-4, 1e-2, 1e-1, 1.0)

    def maps(self, statistics: PairStatistics, setting: float) -> Maps:
        """Return the ridge regression of original on protected."""
        white = statistics.whiten("pp", setting)
        return Maps(statistics.mean_o, None, statistics.mean_p, (*white, apply_chain(statistics.po.T, white).T))


class RidgeToProtected(LinearAttack):
    """Protected speech predicted from original speech. The attacker needs pairs, that is, the anonymiser.

    Example:
        >>> original, speakers = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) // 3
        >>> o, p = RidgeToProtected().fit(original, -original.flip(1), speakers).attack(original, -original.flip(1))
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name, needs, conditions = "ridge to protected", PAIRS, ("OP",)
    settings: Sequence[Any] = RidgeToOriginal.settings

    def maps(self, statistics: PairStatistics, setting: float) -> Maps:
        """Return the ridge regression of protected on original."""
        white = statistics.whiten("oo", setting)
        return Maps(statistics.mean_o, (*white, apply_chain(statistics.po, white).T), statistics.mean_p, None)


class SquaresToProtected(RidgeToProtected):
    """Protected rows predicted from the squares of original rows: detects even functions. The attacker needs pairs.

    Example:
        >>> original = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
        >>> protected, speakers = original.abs().flip(1), torch.arange(300) // 3
        >>> o, p = SquaresToProtected().fit(original, protected, speakers).attack(original, protected)
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name, settings = "squares to protected", (1e-2, 1.0)

    def solve(self, pairs: TrainingPairs, view: RowNormalisation, setting: float) -> Solution:
        """Return the steps of both sides: original rows are squared and regressed, protected rows are only centred."""
        norm_o, norm_p = (pairs.normalisation(side, view) for side in ("original", "protected"))
        columns = pairs.rows("original", view).square(), pairs.rows("protected", view), pairs.speaker_index
        statistics = pairs.get_or_make((view, "squares"), lambda: PairStatistics(*columns, pairs.num_speakers))
        return self.maps(statistics, setting).prepend_steps((norm_o, torch.square), (norm_p,))


class Procrustes(LinearAttack):
    """Protected speech rotated onto original speech. The attacker needs pairs, that is, the anonymiser.

    Example:
        >>> original, speakers = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) // 3
        >>> o, p = Procrustes().fit(original, -original.flip(1), speakers).attack(original, -original.flip(1))
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name, needs, conditions = "Procrustes", PAIRS, ("OP",)

    def maps(self, statistics: PairStatistics, setting: None) -> Maps:  # noqa: ARG002
        r"""Return the orthogonal map that brings the sides closest: :math:`C (C^\top C)^{-1/2}` of their products."""
        products = statistics.po
        values, vectors = torch.linalg.eigh(products.T @ products)
        added = (_SOFT**2 * values.amax()).clamp(min=torch.finfo(values.dtype).tiny)
        inverse = (values.clamp(min=0) + added).rsqrt()
        return Maps(statistics.mean_o, None, statistics.mean_p, products @ (vectors * inverse) @ vectors.T)


class CanonicalCorrelation(LinearAttack):
    r"""Directions of both sides that vary together, weighted as the likelihood ratio of Gaussian pairs weighs them.

    With canonical correlations :math:`\rho`, the evidence that two utterances are a pair is :math:`\rho / (1 - \rho^2)`
    times the product of their canonical variates: :math:`K (I - K^\top K)^{-1}`, with :math:`K` the covariance of
    whitened protected with whitened original rows. Settings are a ridge and a damping, which is added to the
    denominator, since correlations of few pairs are too high. The attacker needs pairs, that is, the anonymiser.

    Example:
        >>> original, speakers = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) // 3
        >>> protected = original @ original[:4]  # any linear map
        >>> o, p = CanonicalCorrelation().fit(original, protected, speakers).attack(original, protected)
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name, needs = "canonical correlation", PAIRS
    settings: Sequence[Any] = ((1e-4, 1e-3), (1e-3, 1e-3), (1e-1, 1e-3), (1e-1, 10.0), (1.0, 10.0))

    def maps(self, statistics: PairStatistics, setting: RidgeAndDamping) -> Maps:
        """Return the whitening of each side, then K for protected rows, then a root of the inverse for both sides."""
        ridge, damping = setting
        product = statistics.correlate(ridge)
        root = statistics.get_or_make(
            ("root", setting), lambda: partial(solve_lower, cholesky_plus_diagonal(-product.T @ product, 1.0 + damping))
        )
        chain_o, chain_p = (*statistics.whiten("oo", ridge), root), (*statistics.whiten("pp", ridge), product, root)
        return Maps(statistics.mean_o, chain_o, statistics.mean_p, chain_p)


class LikelihoodRatio(CanonicalCorrelation):
    r"""Log-likelihood ratio of an original and a protected row: pair of one speaker or independent, both Gaussian.

    With whitened rows :math:`o, p` and :math:`K` as in :class:`CanonicalCorrelation`, up to a constant

    .. math:: p^\top K R^{-1} o - \tfrac12 p^\top K R^{-1} K^\top p - \tfrac12 o^\top (R^{-1} - I)\, o, \qquad
        R = I - K^\top K

    The attacker needs pairs, that is, the anonymiser.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(90) // 3
        >>> original = torch.randn(30, 4, generator=draw)[speakers] + 0.1 * torch.randn(90, 4, generator=draw)
        >>> attack = LikelihoodRatio().fit(original, -original.flip(1), speakers)
        >>> scores = attack.score(*attack.attack(original, -original.flip(1)))
        >>> bool(scores.diagonal().median() > scores.median())
        True
    """

    name, conditions = "likelihood ratio", ("OP",)
    settings = ((1e-1, 1e-3), (1.0, 1e-3), (10.0, 1e-3))

    def maps(self, statistics: PairStatistics, setting: RidgeAndDamping) -> Maps:
        """Return the maps of canonical correlation; that of the original side puts the whitened rows before its own."""
        maps = super().maps(statistics, setting)
        chain: Any = maps.map_o
        return maps._replace(map_o=(*chain[:-1], partial(_append_mapped_columns, chain[-1])))

    def score(self, original: Tensor, protected: Tensor) -> Tensor:
        """Return log-likelihood ratios ``(A, B)``."""
        white, mapped = original.tensor_split(2, dim=-1)
        bias_o = 0.5 * (white.square().sum(-1) - mapped.square().sum(-1))
        bias_p = -0.5 * protected.square().sum(-1)
        return mapped @ protected.mT + bias_o[..., :, None] + bias_p[..., None, :]


def _append_mapped_columns(mapping: RowMap, rows: Tensor) -> Tensor:
    """Return each row ``(D,)`` followed by its map ``(D,)``, ``(N, 2 D)``."""
    return torch.cat([rows, mapping(rows)], dim=1)
