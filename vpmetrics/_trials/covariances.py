"""What linear attackers are functions of: means and covariances of sets of pairs, and what speakers add to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from vpmetrics._trials import shares


@dataclass(frozen=True)
class Covariances:
    """Means and covariances of ``F`` sets of pairs, and what it takes to tell speakers from sessions in them."""

    count: Tensor  # (F,), utterances
    speakers: Tensor  # (F,)
    squares: Tensor  # (F,), of the utterances of each speaker
    mean_o: Tensor  # (F, D)
    mean_p: Tensor  # (F, D)
    oo: Tensor  # (F, D, D)
    pp: Tensor  # (F, D, D)
    po: Tensor  # (F, D, D), protected by original
    within_pp: Tensor  # (F, D, D), about the speakers' means

    @cached_property
    def eigen_oo(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues ``(F, D)``, ascending, and eigenvectors ``(F, D, D)`` of the original side."""
        return _spectrum(self.oo, self.mean_o)

    @cached_property
    def eigen_pp(self) -> tuple[Tensor, Tensor]:
        """The same of the protected side."""
        return _spectrum(self.pp, self.mean_p)

    @cached_property
    def eigen_within(self) -> tuple[Tensor, Tensor]:
        """The same of the protected side within speakers."""
        return _spectrum(self.within_pp, self.mean_p)

    def pool(self, chosen: Tensor) -> Covariances:
        """Of some of the sets together, ``(E, F)`` of 0 and 1, by adding what is in them and between them."""
        counts = chosen * self.count
        count = counts.sum(1)
        weights = counts / at_least_tiny(count)[:, None]
        mean_o, mean_p = weights @ self.mean_o, weights @ self.mean_p
        apart_o, apart_p = self.mean_o - mean_o[:, None], self.mean_p - mean_p[:, None]  # (E, F, D)

        def add(inside: Tensor) -> Tensor:
            return torch.einsum("ef,fij->eij", weights, inside)

        def between(a: Tensor, b: Tensor) -> Tensor:
            return torch.einsum("ef,efi,efj->eij", weights, a, b)

        return Covariances(
            count=count,
            speakers=chosen @ self.speakers,
            squares=chosen @ self.squares,
            mean_o=mean_o,
            mean_p=mean_p,
            oo=add(self.oo) + between(apart_o, apart_o),
            pp=add(self.pp) + between(apart_p, apart_p),
            po=add(self.po) + between(apart_p, apart_o),
            within_pp=add(self.within_pp),
        )


@dataclass(frozen=True)
class SameSpeaker:
    """Sums over all pairs of one speaker, an utterance and itself included, about the means of ``F`` sets."""

    po: Tensor  # (F, D, D), products
    original: Tensor  # (F, D)
    protected: Tensor  # (F, D)


def describe_speakers(
    sets: Sequence[tuple[Tensor, Tensor, Tensor]], within: Sequence[Tensor]
) -> tuple[Covariances, SameSpeaker]:
    """Sets of pairs: from the numbers of utterances ``(S,)`` of the speakers of each, and their means on both sides.

    ``within``: sums of products of what utterances deviate from these, ``(F, D, D)`` each. Where processes keep their
    rows apart, each has other speakers, and what is found is of all.
    """
    numbers = [(counts.sum(), (counts > 0).sum().to(counts), counts.square().sum()) for counts, *_ in sets]
    count, speakers, squares = shares.pooled(torch.stack([torch.stack(each) for each in numbers]))[0].unbind(1)
    weights = [(counts / at_least_tiny(of_all))[:, None] for (counts, *_), of_all in zip(sets, count, strict=True)]
    weighted = zip(weights, sets, strict=True)
    sums = [torch.stack([(weight * side).sum(0) for side in sides]) for weight, (_, *sides) in weighted]
    (means,) = shares.pooled(torch.stack(sums))  # (F, 2, D)
    parts = [
        _products(counts.square()[:, None], weight, *(side - mean for side, mean in zip(sides, of_set, strict=True)))
        for weight, (counts, *sides), of_set in zip(weights, sets, means, strict=True)
    ]
    mean_o, mean_p = means.unbind(1)
    oo, pp, po, *same, in_oo, in_pp, in_po = shares.pooled(*map(torch.stack, zip(*parts, strict=True)), *within)
    in_oo, in_pp, in_po = (each / at_least_tiny(count)[:, None, None] for each in (in_oo, in_pp, in_po))
    found = Covariances(
        count=count,
        speakers=speakers,
        squares=squares,
        mean_o=mean_o,
        mean_p=mean_p,
        oo=in_oo + oo,
        pp=in_pp + pp,
        po=in_po + po,
        within_pp=in_pp,
    )
    return found, SameSpeaker(*same)


def _products(pairs: Tensor, weight: Tensor, o: Tensor, p: Tensor) -> tuple[Tensor, ...]:
    """Sums over the speakers of one set, of deviations from its means: weighted, and then over pairs of utterances."""
    between = o.T @ (weight * o), p.T @ (weight * p), p.T @ (weight * o)
    return *between, p.T @ (pairs * o), (pairs * o).sum(0), (pairs * p).sum(0)


def eigen(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and vectors of symmetric ``(F, D, D)``; NaN for a matrix that holds one, which LAPACK refuses."""
    bad = ~matrices.isfinite().flatten(1).all(1)[:, None]
    values, vectors = torch.linalg.eigh(matrices.masked_fill(bad[..., None], 0))
    return values.masked_fill(bad, torch.nan), vectors


def at_least_tiny(value: Tensor) -> Tensor:
    """A divisor that is not 0."""
    return value.clamp(min=torch.finfo(value.dtype).tiny)


def _spectrum(covariances: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = eigen(covariances)
    # Equal embeddings and their mean differ by a rounding, which is no variance.
    rounding = (16 * torch.finfo(mean.dtype).eps * mean.abs().amax(1, keepdim=True)).square()
    return values.masked_fill(values <= rounding, 0), vectors
