"""Kernel attacks: those that are not linear, fitted on a bounded number of utterances."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._engine.moments import CENTRED, Normalisation, TrainingPairs
from vpmetrics._engine.utterances import row_keys, take_evenly
from vpmetrics.attacks.base import PAIRS, TunedAttack

MOST_ROWS = 512  # utterances that a Gaussian kernel is fitted on: time grows with the cube
_MOST_PRODUCTS = 320  # utterances that kernels of products are fitted on
_WIDTH = 4.0  # of the Gaussian kernel, in total variances; between 2 and 8 it hardly matters
_JITTER = 1e-6  # of the mean diagonal, so that a kernel without directions has a Cholesky factor


class KernelRidge(TunedAttack):
    r"""Original speech predicted from protected speech by kernel ridge regression, on at most 512 utterances.

    .. math:: \hat o = k(p, P)\,(k(P, P) + \lambda I)^{-1}\,(O - \bar o), \qquad k(p, q) = e^{-|p - q|^2 / 8 v}

    with :math:`v` the total variance of protected rows. The attacker must have pairs, that is, the anonymiser.

    Example:
        >>> original = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> angle = torch.atan2(original[:, 1], original[:, 0])
        >>> protected, own = torch.stack([(2 * angle).cos(), (3 * angle).cos()], dim=1), torch.arange(300) < 200
        >>> attack = KernelRidge().fit(original[own], protected[own], speakers=torch.arange(200) // 4)
        >>> attack.attack(original[~own], protected[~own])[1].shape
        torch.Size([100, 2])
    """

    name, needs, settings, views = "kernel ridge", PAIRS, (3e-2,), (CENTRED,)

    def solve(self, pairs: TrainingPairs, view: str, setting: float) -> KernelSolution:
        """Return a regression of original on protected rows."""
        norm_o, norm_p = (pairs.normalisation(side, view) for side in ("original", "protected"))
        original, protected = take_some(pairs, view, MOST_ROWS)
        mean, variance = original.mean(0), protected.var(0, correction=0).sum()
        factor = _ridged_factor(_gaussian(protected, protected, variance), setting)
        weights = torch.cholesky_solve(original - mean, factor)
        return KernelSolution(norm_o, norm_p, mean, protected, variance, weights)


class KernelSolution(NamedTuple):
    """Original rows less their mean, and those that a Gaussian kernel predicts from protected rows."""

    norm_o: Normalisation
    norm_p: Normalisation
    mean: Tensor
    known: Tensor
    variance: Tensor
    weights: Tensor

    def original(self, rows: Tensor) -> Tensor:
        """Return original rows as they are compared."""
        return self.norm_o(rows) - self.mean

    def protected(self, rows: Tensor) -> Tensor:
        """Return protected rows as they are compared."""
        parts = self.norm_p(rows).split(MOST_ROWS)
        return torch.cat([_gaussian(part, self.known, self.variance) @ self.weights for part in parts])


class EvenKernelRidge(TunedAttack):
    r"""Protected speech predicted from products of the dimensions of original speech, by kernel ridge regression.

    The kernel is :math:`k(o, q) = (o \cdot q)^2`, that of all squares and products, so that even functions of any
    rotation of the original are found. The attacker must have pairs, that is, the anonymiser.

    Example:
        >>> original = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
        >>> rotation = torch.linalg.qr(original[:4])[0]
        >>> protected, speakers = (original @ rotation).abs(), torch.arange(300) // 3
        >>> o, p = EvenKernelRidge().fit(original, protected, speakers).attack(original, protected)
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name, needs, settings, views, conditions = "even kernel ridge", PAIRS, (1e-1,), (CENTRED,), ("OP",)

    def solve(self, pairs: TrainingPairs, view: str, setting: float) -> EvenSolution:
        """Return a regression of protected on products of original rows."""
        norm_o, norm_p = (pairs.normalisation(side, view) for side in ("original", "protected"))
        original, protected = pairs.keep((view, "some"), lambda: take_some(pairs, view, _MOST_PRODUCTS))
        kernel = pairs.keep((view, "products", "o"), lambda: ProductKernel.of(original))
        mean = protected.mean(0)
        weights = torch.cholesky_solve(protected - mean, _ridged_factor(kernel.matrix, setting))
        return EvenSolution(norm_o, norm_p, kernel, weights, mean)


class EvenSolution(NamedTuple):
    """Protected rows less their mean, and those that a kernel of products predicts from original rows."""

    norm_o: Normalisation
    norm_p: Normalisation
    kernel: ProductKernel
    weights: Tensor
    mean: Tensor

    def original(self, rows: Tensor) -> Tensor:
        """Return original rows as they are compared."""
        return torch.cat([self.kernel(part) @ self.weights for part in self.norm_o(rows).split(MOST_ROWS)])

    def protected(self, rows: Tensor) -> Tensor:
        """Return protected rows as they are compared."""
        return self.norm_p(rows) - self.mean


class OuterProducts(TunedAttack):
    r"""Outer products of original speech predicted from those of protected speech, and compared by cosine.

    Outer products :math:`o o^\top` do not see signs, so that a sign per utterance hides nothing, whatever else was
    done. By a kernel they need no space. The attacker must have pairs, that is, the anonymiser.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(300) // 3
        >>> original = torch.randn(300, 4, generator=draw)
        >>> protected = original.flip(1) * (2.0 * torch.randint(2, (300, 1), generator=draw) - 1)
        >>> o, p = OuterProducts().fit(original, protected, speakers).attack(original, protected)
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name, needs, settings, views = "outer products", PAIRS, (1e-2,), (CENTRED,)

    def solve(self, pairs: TrainingPairs, view: str, setting: float) -> OuterSolution:
        """Return a regression of the outer products of original on those of protected rows."""
        norm_o, norm_p = (pairs.normalisation(side, view) for side in ("original", "protected"))
        original, protected = pairs.keep((view, "some"), lambda: take_some(pairs, view, _MOST_PRODUCTS))
        kernel_o, kernel_p = (
            pairs.keep((view, "products", side), lambda rows=rows: ProductKernel.of(rows))  # type: ignore[misc]
            for side, rows in (("o", original), ("p", protected))
        )
        root = _ridged_factor(kernel_o.matrix, _JITTER)
        return OuterSolution(norm_o, norm_p, kernel_o, kernel_p, root, _ridged_factor(kernel_p.matrix, setting))


class OuterSolution(NamedTuple):
    """Coordinates of outer products of original rows in the span of known ones, and those predicted from protected."""

    norm_o: Normalisation
    norm_p: Normalisation
    kernel_o: ProductKernel
    kernel_p: ProductKernel
    root: Tensor
    ridged: Tensor

    def original(self, rows: Tensor) -> Tensor:
        """Return original rows as they are compared."""
        parts = (self.kernel_o(part) for part in self.norm_o(rows).split(MOST_ROWS))
        return torch.cat([torch.linalg.solve_triangular(self.root, part.T, upper=False).T for part in parts])

    def protected(self, rows: Tensor) -> Tensor:
        """Return protected rows as they are compared."""
        parts = (self.kernel_p(part) for part in self.norm_p(rows).split(MOST_ROWS))
        return torch.cat([torch.cholesky_solve(part.T, self.ridged).T @ self.root for part in parts])


class ProductKernel(NamedTuple):
    """The kernel of products of dimensions, with its features centred on known rows."""

    known: Tensor  # (n, D)
    mean: Tensor  # (n,) of the kernel before centring
    matrix: Tensor  # (n, n)

    @classmethod
    def of(cls, rows: Tensor) -> ProductKernel:
        """Return the kernel of some rows."""
        matrix = (rows @ rows.T).square()
        mean = matrix.mean(0)
        return cls(rows, mean, matrix - mean - mean[:, None] + mean.mean())

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the kernel of rows ``(N, D)`` with known ones, ``(N, n)``."""
        values = (rows @ self.known.T).square() - self.mean
        return values - values.mean(1, keepdim=True)


def take_some(pairs: TrainingPairs, view: str, most: int) -> tuple[Tensor, Tensor]:
    """Return normalised rows of both sides of at most so many pairs, the same ones in any order."""
    some = take_evenly(row_keys(pairs.protected).argsort(stable=True), most)
    return pairs.rows("original", view)[some], pairs.rows("protected", view)[some]


def _gaussian(a: Tensor, b: Tensor, variance: Tensor) -> Tensor:
    squared = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    return torch.exp(-squared / (2 * _WIDTH * variance).clamp(min=torch.finfo(a.dtype).tiny))


def _ridged_factor(kernel: Tensor, ridge: float) -> Tensor:
    """Return the Cholesky factor of a kernel with a ridge relative to the mean of its diagonal."""
    added = ridge * kernel.diagonal().mean() + torch.finfo(kernel.dtype).tiny
    eye = torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
    factor: Tensor = torch.linalg.cholesky_ex(kernel + added * eye).L
    return factor
