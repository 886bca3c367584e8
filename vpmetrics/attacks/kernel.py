"""Kernel attacks, which are not linear.

They are fitted on a bounded number of utterances of each training set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vpmetrics._utterances.conditions import SideName
from vpmetrics.attacks.base import PAIRS, TunedAttack, stack_settings
from vpmetrics.attacks.moments import (
    CENTRED,
    RowNormalisation,
    TrainingSets,
    cholesky_plus_diagonal,
    invert_lower,
    mean_of_diagonal,
)
from vpmetrics.attacks.solutions import Solution, join_steps

_MOST_ROWS = 512  # utterances that a Gaussian kernel is fitted on: time grows with the cube
_MOST_PRODUCTS = 320  # utterances that kernels of products are fitted on
_WIDTH = 4.0  # of the Gaussian kernel, in total variances; between 2 and 8 it hardly matters
_ROUNDING = 1e-12  # a smaller total variance of features of unit rows is rounding
_TINY = torch.finfo(torch.float32).tiny  # so that a kernel of zeros has a Cholesky factor
_JITTER = 1e-6  # of the mean diagonal, so that a singular kernel has a Cholesky factor


class KernelRidge(TunedAttack):
    r"""Original speech predicted from protected speech by kernel ridge regression.

    It is fitted on at most 512 utterances.

    .. math::
        \hat o = k(p, P)\,(k(P, P) + \lambda I)^{-1}\,(O - \bar o), \qquad k(p, q) = e^{-|p - q|^2
        / 8 v}

    with :math:`v` the total variance of protected rows. The attacker must have pairs, that is, the
    anonymiser.

    Example:
        >>> original = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> angle = torch.atan2(original[:, 1], original[:, 0])
        >>> protected, is_training = (
        ...     torch.stack([(2 * angle).cos(), (3 * angle).cos()], dim=1),
        ...     torch.arange(300) < 200,
        ... )
        >>> attack = KernelRidge().fit(
        ...     original[is_training], protected[is_training], speakers=torch.arange(200) // 4
        ... )
        >>> attack.attack(original[~is_training], protected[~is_training])[1].shape
        torch.Size([100, 2])
    """

    name = "kernel ridge"
    needs = PAIRS
    settings = (3e-2,)
    views = (CENTRED,)

    def solve(
        self, sets: TrainingSets, view: RowNormalisation, settings: Sequence[Any]
    ) -> Solution:
        """Return maps of protected rows to predicted originals, and of original rows to centred."""
        rows = sets.take_rows(_MOST_ROWS)
        original = sets.view_rows("original", view, rows)
        protected = sets.view_rows("protected", view, rows)
        mean = original.mean(1, keepdim=True)
        kernel = GaussianKernel(protected, protected.var(1, correction=0).sum(-1)[:, None, None])
        weights = _fit_kernel_ridge(kernel(protected), settings, original - mean, kernel.variance)
        return Solution(
            join_steps(sets.normaliser("original", view), mean, None),
            join_steps(sets.normaliser("protected", view), None, (kernel, weights)),
        )


class EvenKernelRidge(TunedAttack):
    r"""Protected speech predicted from products of the dimensions of original speech.

    The prediction is kernel ridge regression.

    The kernel is :math:`k(o, q) = (o \cdot q)^2`, that of all squares and products, so that even
    functions of any rotation of the original are detected. The attacker must have pairs, that is,
    the anonymiser.

    Example:
        >>> original = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
        >>> rotation = torch.linalg.qr(original[:4])[0]
        >>> protected, speakers = (original @ rotation).abs(), torch.arange(300) // 3
        >>> o, p = EvenKernelRidge().fit(original, protected, speakers).attack(original, protected)
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name = "even kernel ridge"
    needs = PAIRS
    settings = (1e-1,)
    views = (CENTRED,)
    conditions = ("OP",)

    def solve(
        self, sets: TrainingSets, view: RowNormalisation, settings: Sequence[Any]
    ) -> Solution:
        """Return maps of original rows to predicted protected rows, and of protected to centred."""
        kernel = _fit_product_kernel(sets, "original", view)
        protected = sets.view_rows("protected", view, sets.take_rows(_MOST_PRODUCTS))
        mean = protected.mean(1, keepdim=True)
        weights = _fit_kernel_ridge(kernel.matrix, settings, protected - mean, kernel.variance)
        return Solution(
            join_steps(sets.normaliser("original", view), None, (kernel, weights)),
            join_steps(sets.normaliser("protected", view), mean, None),
        )


class OuterProducts(TunedAttack):
    r"""Outer products of original speech predicted from those of protected speech.

    They are compared by cosine.

    Outer products :math:`o o^\top` do not depend on signs, so a random sign per utterance hides
    nothing. With a kernel they need not be stored. The attacker must have pairs, that is, the
    anonymiser.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(300) // 3
        >>> original = torch.randn(300, 4, generator=draw)
        >>> protected = original.flip(1) * (2.0 * torch.randint(2, (300, 1), generator=draw) - 1)
        >>> o, p = OuterProducts().fit(original, protected, speakers).attack(original, protected)
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name = "outer products"
    needs = PAIRS
    settings = (1e-2,)
    views = (CENTRED,)

    def solve(
        self, sets: TrainingSets, view: RowNormalisation, settings: Sequence[Any]
    ) -> Solution:
        """Return maps of both sides to coordinates in the span of outer products.

        They are those of original training rows.
        """
        kernel_o = _fit_product_kernel(sets, "original", view)
        kernel_p = _fit_product_kernel(sets, "protected", view)
        root = cholesky_plus_diagonal(kernel_o.matrix, _JITTER * kernel_o.variance + _TINY)
        weights = _fit_kernel_ridge(kernel_p.matrix, settings, root, kernel_p.variance)
        return Solution(
            join_steps(sets.normaliser("original", view), None, (kernel_o, invert_lower(root).mT)),
            join_steps(sets.normaliser("protected", view), None, (kernel_p, weights)),
        )


@dataclass(frozen=True, eq=False)
class GaussianKernel:
    """Gaussian kernel; its width follows from the total variance of the training rows."""

    training_rows: Tensor  # (T, n, D)
    variance: Tensor  # (T, 1, 1)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the kernel ``(T, N, n)`` between rows ``(T, N, D)`` and the training rows."""
        training_rows = self.training_rows.to(rows)
        lengths = rows.square().sum(-1)[..., None]
        training_lengths = training_rows.square().sum(-1)[:, None]
        squared_distance = lengths + training_lengths - 2 * rows @ training_rows.mT
        width = 2 * _WIDTH * self.variance.to(rows)
        return torch.exp(-squared_distance / width.clamp(min=torch.finfo(rows.dtype).tiny))

    def select_sets(self, sets: slice) -> GaussianKernel:
        """Return the kernel of some of the training sets."""
        return GaussianKernel(self.training_rows[sets], self.variance[sets])


@dataclass(frozen=True, eq=False)
class ProductKernel:
    """Kernel of all products of two dimensions; its features have mean zero over the training rows.

    ``matrix`` ``(T, n, n)`` is that of the training rows ``(T, n, D)``; ``mean`` ``(T, 1, n)`` that
    of each column before it was centred; ``variance`` ``(T, 1, 1)`` the total variance of the
    features.
    """

    training_rows: Tensor
    mean: Tensor
    matrix: Tensor
    variance: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the kernel ``(T, N, n)`` between rows ``(T, N, D)`` and the training rows."""
        values = (rows @ self.training_rows.to(rows).mT).square() - self.mean.to(rows)
        return values - values.mean(-1, keepdim=True)

    def select_sets(self, sets: slice) -> ProductKernel:
        """Return the kernel of some of the training sets."""
        return ProductKernel(
            self.training_rows[sets], self.mean[sets], self.matrix[sets], self.variance[sets]
        )


def _fit_product_kernel(
    sets: TrainingSets, side: SideName, view: RowNormalisation
) -> ProductKernel:
    def fit() -> ProductKernel:
        rows = sets.view_rows(side, view, sets.take_rows(_MOST_PRODUCTS))
        uncentred = (rows @ rows.mT).square()
        mean = uncentred.mean(1, keepdim=True)
        matrix = uncentred - mean - mean.mT + mean.mean(-1, keepdim=True)
        return ProductKernel(rows, mean, matrix, mean_of_diagonal(matrix))

    return sets.get_or_make((side, view, "products"), fit)


def _fit_kernel_ridge(
    kernel: Tensor, settings: Sequence[float], values: Tensor, variance: Tensor
) -> Tensor:
    """Return the weights ``(S, T, n, d)`` of kernel ridge regressions of values ``(T, n, d)``.

    Ridges are relative to the mean diagonal. Where the features have no variance the weights are 0.
    """
    ridge = stack_settings(settings, kernel)
    inverse_root = invert_lower(
        cholesky_plus_diagonal(kernel, ridge * mean_of_diagonal(kernel) + _TINY)
    )
    return torch.where(variance > _ROUNDING, inverse_root.mT @ (inverse_root @ values), 0)
