"""Kernel attacks: those that are not linear, fitted on a bounded number of utterances."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vpmetrics._utterances.conditions import SideName
from vpmetrics.attacks.base import PAIRS, TunedAttack
from vpmetrics.attacks.moments import (
    CENTRED,
    RowNormalisation,
    Solution,
    TrainingPairs,
    cholesky_plus_diagonal,
    solve_lower,
)

_MOST_ROWS = 512  # utterances that a Gaussian kernel is fitted on: time grows with the cube
_MOST_PRODUCTS = 320  # utterances that kernels of products are fitted on
_WIDTH = 4.0  # of the Gaussian kernel, in total variances; between 2 and 8 it hardly matters
_ROUNDING = 1e-12  # a smaller total variance of features of unit rows is rounding
_TINY = torch.finfo(torch.float32).tiny  # so that a kernel of zeros has a Cholesky factor
_JITTER = 1e-6  # of the mean diagonal, so that a singular kernel has a Cholesky factor


class KernelRidge(TunedAttack):
    r"""Original speech predicted from protected speech by kernel ridge regression, on at most 512 utterances.

    .. math:: \hat o = k(p, P)\,(k(P, P) + \lambda I)^{-1}\,(O - \bar o), \qquad k(p, q) = e^{-|p - q|^2 / 8 v}

    with :math:`v` the total variance of protected rows. The attacker must have pairs, that is, the anonymiser.

    Example:
        >>> original = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> angle = torch.atan2(original[:, 1], original[:, 0])
        >>> protected, is_training = torch.stack([(2 * angle).cos(), (3 * angle).cos()], dim=1), torch.arange(300) < 200
        >>> attack = KernelRidge().fit(original[is_training], protected[is_training], speakers=torch.arange(200) // 4)
        >>> attack.attack(original[~is_training], protected[~is_training])[1].shape
        torch.Size([100, 2])
    """

    name, needs, settings, views = "kernel ridge", PAIRS, (3e-2,), (CENTRED,)

    def solve(self, pairs: TrainingPairs, view: RowNormalisation, setting: float) -> Solution:
        """Return maps of protected rows to predicted original rows, and of original rows to centred ones."""
        original, protected = (pairs.rows(side, view, _MOST_ROWS) for side in ("original", "protected"))
        mean, kernel = original.mean(0), GaussianKernel(protected, protected.var(0, correction=0).sum())
        weights = _fit_kernel_ridge(kernel(protected), setting, original - mean, kernel.variance)
        return Solution(
            (pairs.normalisation("original", view), partial(torch.sub, other=mean)),
            (pairs.normalisation("protected", view), kernel, weights),
        )


class EvenKernelRidge(TunedAttack):
    r"""Protected speech predicted from products of the dimensions of original speech, by kernel ridge regression.

    The kernel is :math:`k(o, q) = (o \cdot q)^2`, that of all squares and products, so that even functions of any
    rotation of the original are detected. The attacker must have pairs, that is, the anonymiser.

    Example:
        >>> original = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
        >>> rotation = torch.linalg.qr(original[:4])[0]
        >>> protected, speakers = (original @ rotation).abs(), torch.arange(300) // 3
        >>> o, p = EvenKernelRidge().fit(original, protected, speakers).attack(original, protected)
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name, needs, settings, views, conditions = "even kernel ridge", PAIRS, (1e-1,), (CENTRED,), ("OP",)

    def solve(self, pairs: TrainingPairs, view: RowNormalisation, setting: float) -> Solution:
        """Return maps of original rows to predicted protected rows, and of protected rows to centred ones."""
        kernel, protected = _fit_product_kernel(pairs, "original", view), pairs.rows("protected", view, _MOST_PRODUCTS)
        mean = protected.mean(0)
        weights = _fit_kernel_ridge(kernel.matrix, setting, protected - mean, kernel.variance)
        return Solution(
            (pairs.normalisation("original", view), kernel, weights),
            (pairs.normalisation("protected", view), partial(torch.sub, other=mean)),
        )


class OuterProducts(TunedAttack):
    r"""Outer products of original speech predicted from those of protected speech, and compared by cosine.

    Outer products :math:`o o^\top` do not depend on signs, so a random sign per utterance hides nothing. With a kernel
    they need not be stored. The attacker must have pairs, that is, the anonymiser.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(300) // 3
        >>> original = torch.randn(300, 4, generator=draw)
        >>> protected = original.flip(1) * (2.0 * torch.randint(2, (300, 1), generator=draw) - 1)
        >>> o, p = OuterProducts().fit(original, protected, speakers).attack(original, protected)
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name, needs, settings, views = "outer products", PAIRS, (1e-2,), (CENTRED,)

    def solve(self, pairs: TrainingPairs, view: RowNormalisation, setting: float) -> Solution:
        """Return maps of both sides to coordinates in the span of the outer products of original training rows."""
        kernel_o, kernel_p = (_fit_product_kernel(pairs, side, view) for side in ("original", "protected"))
        root = cholesky_plus_diagonal(kernel_o.matrix, _JITTER * kernel_o.variance + _TINY)
        weights = _fit_kernel_ridge(kernel_p.matrix, setting, root, kernel_p.variance)
        return Solution(
            (pairs.normalisation("original", view), kernel_o, partial(solve_lower, root)),
            (pairs.normalisation("protected", view), kernel_p, weights),
        )


@dataclass(frozen=True, eq=False)
class GaussianKernel:
    """Gaussian kernel; its width follows from the total variance of the training rows."""

    training_rows: Tensor  # (n, D)
    variance: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the kernel ``(N, n)`` between rows ``(N, D)`` and the training rows."""
        squared = rows.square().sum(1)[:, None] + self.training_rows.square().sum(1) - 2 * rows @ self.training_rows.T
        return torch.exp(-squared / (2 * _WIDTH * self.variance).clamp(min=torch.finfo(rows.dtype).tiny))


class ProductKernel:
    """Kernel of all products of two dimensions; its features have mean zero over the training rows ``(n, D)``."""

    def __init__(self, training_rows: Tensor) -> None:
        uncentred = (training_rows @ training_rows.T).square()
        self.training_rows, self.mean = training_rows, uncentred.mean(0)
        self.matrix = uncentred - self.mean - self.mean[:, None] + self.mean.mean()  # (n, n), of the training rows
        self.variance = self.matrix.diagonal().mean()  # the total variance of their features

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the kernel ``(N, n)`` between rows ``(N, D)`` and the training rows."""
        values = (rows @ self.training_rows.T).square() - self.mean
        return values - values.mean(1, keepdim=True)


def _fit_product_kernel(pairs: TrainingPairs, side: SideName, view: RowNormalisation) -> ProductKernel:
    return pairs.get_or_make((side, view, "products"), lambda: ProductKernel(pairs.rows(side, view, _MOST_PRODUCTS)))


def _fit_kernel_ridge(kernel: Tensor, ridge: float, values: Tensor, variance: Tensor) -> Tensor:
    """Return the weights of a kernel ridge regression of values; 0 where the features have no variance.

    The ridge is relative to the mean diagonal.
    """
    root = cholesky_plus_diagonal(kernel, ridge * kernel.diagonal().mean() + _TINY)
    return torch.where(variance > _ROUNDING, torch.cholesky_solve(values, root), 0)
