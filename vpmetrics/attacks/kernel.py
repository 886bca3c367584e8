"""Kernel ridge regression: the attack that is not linear, for sets small enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import check_embeddings, check_tensor
from vpmetrics._precision import at_least_float32, widen
from vpmetrics._trials.moments import deal, rows_of_groups
from vpmetrics._trials.separation import disclosed_share, separation_of_rows
from vpmetrics._trials.utterances import evenly, row_keys
from vpmetrics.attacks.base import PAIRS, Attack, check_width
from vpmetrics.attacks.watching import Resizable

if TYPE_CHECKING:
    from typing_extensions import Self

_AT_ONCE = 1 << 9  # rows attacked
_WIDTH = 4.0  # of the kernel, in total variances; between 2 and 8 it hardly matters


class KernelRidge(Attack, Resizable):
    r"""Original speech predicted from protected speech by kernel ridge regression. The attacker must have pairs.

    .. math:: p' = k(p, P)\,(k(P, P) + \lambda I)^{-1}\,(O - \bar{o}), \qquad k(p, q) = e^{-|p - q|^2 / (8 v)}

    with :math:`v` the total variance of protected speech; the ridge :math:`\lambda` that best separates speakers left
    out is taken. Time grows with the cube of the rows, so of more than ``most_rows`` only as many are learnt from, the
    same ones in whatever order they come.

    Example:
        >>> original = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
        >>> protected, own = torch.stack([original[:, 0].exp(), original.prod(dim=1)], dim=1), torch.arange(300) < 200
        >>> attack = KernelRidge().fit(original[own], protected[own], speakers=torch.arange(200) // 4)
        >>> o, p = attack.attack(original[~own], protected[~own])
        >>> bool(torch.cosine_similarity(o, p).median() > 0.9)
        True
    """

    name, needs = "kernel ridge", PAIRS
    most_rows: ClassVar[int] = 1024
    settings: ClassVar[tuple[float, ...]] = (1e-6, 1e-4, 1e-2, 1e-1)
    mean_o: Tensor | None
    mean_p: Tensor
    rows: Tensor
    scale: Tensor
    weights: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("mean_o", "mean_p", "rows", "scale", "weights"):
            self.register_buffer(name, None)

    @torch.no_grad()
    def fit(self, original: Tensor, protected: Tensor, speakers: Tensor) -> Self:
        """Learn from embeddings ``(N, D)`` of both sides and the speakers ``(N,)`` of their rows; returns itself."""
        check_tensor("original", original)
        check_tensor("protected", protected)
        check_embeddings(original, protected, speakers)
        if len(protected) == 0:
            raise ValueError("Expected `protected` to have at least one row, but got none.")
        chosen = evenly(row_keys(protected).argsort(stable=True), self.most_rows)
        o, p, names = widen(original[chosen]), widen(protected[chosen]), speakers[chosen]
        self.mean_o, self.mean_p = o.mean(0), p.mean(0)
        o, self.rows = o - self.mean_o, p - self.mean_p
        groups = [LeftOut(rows, names[rows]) for rows in rows_of_groups(*deal(p, names))]
        self.scale = 2 * _WIDTH * self.rows.square().sum(1).mean()
        kernel = _kernel(self.rows, self.rows, self.scale)
        weights, separated = map(
            torch.stack, zip(*(fit_kernel(kernel, r, o, groups) for r in self.settings), strict=True)
        )
        self.weights = weights.index_select(0, separated.argmax(0, keepdim=True)).squeeze(0)
        return self

    def attack(self, original: Tensor | None, protected: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Both sides as the attacker compares them, by cosine; None for a side that was left out."""
        if self.mean_o is None:
            raise RuntimeError("Expected KernelRidge to be fitted before it attacks: see `fit`.")
        check_width(original, protected, len(self.mean_o))
        if protected is not None:
            # Some at a time, since each row has as many numbers as there are rows to compare it with.
            protected = torch.cat([self._predicted(rows) for rows in protected.split(_AT_ONCE)])
        if original is not None:
            original = at_least_float32(original) - self.mean_o.to(at_least_float32(original))
        return original, protected

    def _predicted(self, protected: Tensor) -> Tensor:
        # Weights are large and cancel, so they need the digits of the type they were found in.
        predicted = _kernel(widen(protected) - self.mean_p, self.rows, self.scale) @ self.weights
        return predicted.to(at_least_float32(protected).dtype)


class LeftOut(NamedTuple):
    """The rows of some speakers to be left out together, and who speaks."""

    rows: Tensor
    speakers: Tensor


def fit_kernel(kernel: Tensor, ridge: float, target: Tensor, groups: Sequence[LeftOut]) -> tuple[Tensor, Tensor]:
    """Weights of a kernel regression, and how well it separates speakers it was not fitted on."""
    ridged = kernel + ridge * torch.eye(len(kernel), dtype=kernel.dtype, device=kernel.device)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky_ex(ridged).L)
    weights = inverse @ target
    # Without a group, its predictions are off the targets by what its own block of the inverse says of the weights.
    found = []
    for rows, speakers in groups:
        off = torch.linalg.solve_ex(inverse[rows[:, None], rows], weights[rows]).result
        found.append(separation_of_rows(target[rows], target[rows] - off, speakers))
    return weights, disclosed_share(torch.stack(found)).sum()


def _kernel(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    squared = torch.cdist(a, b).square()
    return torch.exp(-squared / scale.clamp(min=torch.finfo(a.dtype).tiny))
