"""Attacks that follow from means and covariances: of protected speech alone, or of pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from vpmetrics._trials.covariances import Covariances
from vpmetrics._trials.separation import Maps
from vpmetrics.attacks.base import NOTHING, PAIRS, PROTECTED, LinearAttack

RIDGES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_SOFT = 1e-6  # of the largest singular value: directions far below it are not turned but left out


class Plain(LinearAttack):
    """Embeddings as they are. The attacker must have nothing: it is who compares voices by cosine.

    Example:
        >>> attack = Plain().fit(protected=torch.eye(2), speakers=torch.arange(2))
        >>> attack.attack(None, torch.tensor([[1.0, 2.0]]))
        (None, tensor([[1., 2.]]))
    """

    name, needs = "plain", NOTHING

    def maps(self, moments: Covariances, setting: None) -> Maps:  # noqa: ARG002
        """Nothing moved, nothing mapped."""
        return Maps()


class Centred(LinearAttack):
    """The mean of each side subtracted. The attacker must have protected speech of anybody.

    Example:
        >>> attack = Centred().fit(protected=torch.tensor([[4.0, 9.0], [6.0, 9.0]]), speakers=torch.arange(2))
        >>> attack.attack(None, torch.tensor([[6.0, 8.0]]))
        (None, tensor([[ 1., -1.]]))
    """

    name, needs = "centred", PROTECTED

    def maps(self, moments: Covariances, setting: None) -> Maps:  # noqa: ARG002
        """Means only."""
        return Maps(moments.mean_o, None, moments.mean_p, None)


class Whitened(LinearAttack):
    """Each side decorrelated, all directions made alike. The attacker must have protected speech of anybody.

    Example:
        >>> speakers = torch.arange(60) // 3
        >>> original = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))[speakers]
        >>> original = original + 0.1 * torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
        >>> protected = original * torch.tensor([1.0, 10.0, 100.0, 100.0])
        >>> _, white = Whitened().fit(original, protected, speakers).attack(None, protected)
        >>> [bool(x.std(dim=0).amax() < 2 * x.std(dim=0).amin()) for x in (protected, white)]
        [False, True]
    """

    name, needs, settings = "whitened", PROTECTED, RIDGES

    def maps(self, moments: Covariances, setting: float) -> Maps:
        """Inverse square roots of the covariances."""
        white_o, white_p = power(moments.eigen_oo, setting, -0.5), power(moments.eigen_pp, setting, -0.5)
        return Maps(moments.mean_o, white_o, moments.mean_p, white_p)


class RidgeToOriginal(LinearAttack):
    """Original speech predicted from protected speech. The attacker must have pairs, that is, the anonymiser.

    Example:
        >>> speakers = torch.arange(60) // 3
        >>> original = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))[speakers]
        >>> original = original + 0.1 * torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
        >>> protected = original.flip(1) - 3  # turned and moved
        >>> o, p = RidgeToOriginal().fit(original, protected, speakers).attack(original, protected)
        >>> round(torch.cosine_similarity(o, p).amin().item(), 2)
        1.0
    """

    name, needs, settings = "ridge to original", PAIRS, RIDGES

    def maps(self, moments: Covariances, setting: float) -> Maps:
        """Ridge regression of original on protected."""
        return Maps(moments.mean_o, None, moments.mean_p, power(moments.eigen_pp, setting, -1) @ moments.po)


class RidgeToProtected(LinearAttack):
    """Protected speech predicted from original speech. The attacker must have pairs, that is, the anonymiser.

    Example:
        >>> speakers = torch.arange(60) // 3
        >>> original = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))[speakers]
        >>> original = original + 0.1 * torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
        >>> protected = original.flip(1) - 3  # turned and moved
        >>> o, p = RidgeToProtected().fit(original, protected, speakers).attack(original, protected)
        >>> round(torch.cosine_similarity(o, p).amin().item(), 2)
        1.0
    """

    name, needs, settings = "ridge to protected", PAIRS, RIDGES

    def maps(self, moments: Covariances, setting: float) -> Maps:
        """Ridge regression of protected on original."""
        return Maps(moments.mean_o, power(moments.eigen_oo, setting, -1) @ moments.po.mT, moments.mean_p, None)


class Procrustes(LinearAttack):
    """Protected speech turned onto original speech. The attacker must have pairs, that is, the anonymiser.

    With numbers of principal components as ``settings`` each side is first reduced to that many; None keeps all.

    Example:
        >>> speakers = torch.arange(60) // 3
        >>> original = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))[speakers]
        >>> original = original + 0.1 * torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
        >>> protected = original.flip(1) - 3  # turned and moved
        >>> o, p = Procrustes().fit(original, protected, speakers).attack(original, protected)
        >>> round(torch.cosine_similarity(o, p).amin().item(), 2)
        1.0
    """

    name, needs = "Procrustes", PAIRS

    def maps(self, moments: Covariances, setting: int | None) -> Maps:
        """The orthogonal map that brings the sides closest, from the singular vectors of their products."""
        if setting is None:
            return Maps(moments.mean_o, None, moments.mean_p, turn(moments.po))
        o, p = moments.eigen_oo[1][..., -setting:], moments.eigen_pp[1][..., -setting:]
        return Maps(moments.mean_o, o, moments.mean_p, p @ turn(p.mT @ moments.po @ o))


class ReducedProcrustes(Procrustes):
    """Principal components of protected speech turned onto those of original speech. The attacker must have pairs.

    Example:
        >>> speakers = torch.arange(60) // 3
        >>> original = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))[speakers]
        >>> original = original + 0.1 * torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
        >>> protected = original.flip(1) - 3  # turned and moved
        >>> o, p = ReducedProcrustes().fit(original, protected, speakers).attack(original, protected)
        >>> round(torch.cosine_similarity(o, p).amin().item(), 2)
        1.0
    """

    name, settings = "Procrustes after PCA", (5, 10, 20, 40, 70, 100, 150, 200)


class CanonicalCorrelation(LinearAttack):
    r"""Directions of both sides that vary together, weighted as the likelihood ratio weighs them.

    With canonical correlations :math:`\rho`, two utterances say :math:`\rho / (1 - \rho^2)` times the product of their
    canonical variates about being a pair. The attacker must have pairs, that is, the anonymiser.

    Example:
        >>> speakers = torch.arange(60) // 3
        >>> original = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))[speakers]
        >>> original = original + 0.1 * torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
        >>> protected = original @ original[:4]  # any linear map
        >>> o, p = CanonicalCorrelation().fit(original, protected, speakers).attack(original, protected)
        >>> round(torch.cosine_similarity(o, p).amin().item(), 2)
        1.0
    """

    name, needs, settings = "canonical correlation", PAIRS, RIDGES

    def maps(self, moments: Covariances, setting: float) -> Maps:
        """Singular vectors of the products of whitened sides."""
        white_o, white_p = scaled(moments.eigen_oo, setting, -0.5), scaled(moments.eigen_pp, setting, -0.5)
        u, rho, vt = singular(white_p.mT @ moments.po @ white_o)
        weights = (rho / (1 - rho.clamp(max=1).square() + 1e-3)).sqrt()[:, None]
        return Maps(moments.mean_o, white_o @ (vt.mT * weights), moments.mean_p, white_p @ (u * weights))


def ridge_map(covariance: Tensor, products: Tensor, ridge: float) -> Tensor:
    """The map from one side to the other, ``(..., D, E)``, with a graph where there is one.

    Args:
        covariance: Of the side to map, ``(..., D, D)``.
        products: Of the side to map with the other, ``(..., D, E)``.
        ridge: Added to the diagonal, relative to its mean.

    Returns:
        The map, ``(..., D, E)``: what is mapped stands in rows, ``rows @ map``.

    Example:
        >>> ridge_map(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([[6.0], [3.0]]), ridge=0.5)
        tensor([[2.],
                [1.]])
    """
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    added = ridge * diagonal.mean(-1, keepdim=True).expand_as(diagonal) + torch.finfo(covariance.dtype).tiny
    solved: Tensor = torch.linalg.solve(covariance + torch.diag_embed(added), products)
    return solved


def power(eigen: tuple[Tensor, Tensor], ridge: float, exponent: float) -> Tensor:
    """A covariance, with a ridge relative to the mean of its diagonal, to a negative power; zero where nothing varies.

    Args:
        eigen: Its eigenvalues ``(F, D)`` and eigenvectors.
        ridge: Added to the diagonal, relative to its mean.
        exponent: The power.
    """
    return scaled(eigen, ridge, exponent) @ eigen[1].mT


def scaled(eigen: tuple[Tensor, Tensor], ridge: float, exponent: float) -> Tensor:
    """The same but for a last rotation: eigenvectors times powers of their eigenvalues."""
    values, vectors = eigen
    mean = values.mean(-1, keepdim=True)
    raised = (values + ridge * mean).pow(exponent).masked_fill(mean == 0, 0)
    return vectors * raised[:, None]


def turn(products: Tensor) -> Tensor:
    """The rotation nearest to products ``(F, D, D)`` of two sides; zero along what they have nothing in."""
    u, sizes, vt = singular(products)
    size = _SOFT * sizes[:, :1]
    weights = sizes / (sizes.square() + size.square()).sqrt().clamp(min=torch.finfo(sizes.dtype).tiny)
    return (u * weights[:, None]) @ vt


def singular(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values and vectors; NaN for matrices that hold one, which LAPACK refuses."""
    bad = ~matrices.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    u, sizes, vt = torch.linalg.svd(matrices.masked_fill(bad, 0))
    return u, sizes.masked_fill(bad[..., 0], torch.nan), vt
