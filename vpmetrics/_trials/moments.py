"""Moments of pairs of utterances: all that a linear attacker needs to remember of what they have seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from vpmetrics._precision import widen
from vpmetrics._trials.utterances import row_keys

_ROWS = 1 << 15  # of embeddings made double at once


@dataclass(frozen=True)
class Moments:
    """What ``S`` speakers in ``G`` groups said, original and protected: a mean per speaker, and the scatter about it.

    Nothing here is a difference of large sums, so an offset that all embeddings share costs no digits. Moments of
    several sets add up to moments, so any number of utterances is watched in the same memory, by any number of
    processes.
    """

    names: Tensor  # (S,), ascending
    groups: Tensor  # (S,), the group of each speaker
    counts: Tensor  # (S,), utterances
    original: Tensor  # (S, D), means
    protected: Tensor  # (S, D)
    within_oo: Tensor  # (G, D, D), sums over utterances of products of deviations from their speaker's mean
    within_pp: Tensor  # (G, D, D)
    within_po: Tensor  # (G, D, D), protected by original

    def __add__(self, other: Moments) -> Moments:
        """Moments of both sets together; a speaker of both is in the group that ``other`` says."""
        return merge([self, other])

    def tensors(self) -> tuple[Tensor, ...]:
        """All fields in order, to be kept as buffers or sent to other processes; ``Moments(*tensors)`` undoes it."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def scaled(self, factor: float) -> Moments:
        """The same with every utterance counted ``factor`` times: how a running average forgets."""
        names, groups, counts, original, protected, *within = self.tensors()
        return Moments(names, groups, factor * counts, original, protected, *(factor * part for part in within))

    @cached_property
    def of_protected(self) -> Moments:
        """With protected speech on both sides."""
        p, scatter = self.protected, self.within_pp
        return Moments(self.names, self.groups, self.counts, p, p, scatter, scatter, scatter)

    @cached_property
    def each(self) -> Covariances:
        """Of every group by itself."""
        return self._choose(torch.eye(len(self.within_oo)))

    @cached_property
    def others(self) -> Covariances:
        """Of all groups but one, for each of them."""
        return self._choose(1 - torch.eye(len(self.within_oo)))

    @cached_property
    def together(self) -> Covariances:
        """Of all groups, as a batch of one."""
        return self._choose(torch.ones(1, len(self.within_oo)))

    @cached_property
    def same_speaker(self) -> SameSpeaker:
        """Of pairs of one speaker, in every group."""
        return self._parts[1]

    def _choose(self, chosen: Tensor) -> Covariances:
        """Of some groups, ``(F, G)`` of 0 and 1, by adding what is in them and between them."""
        parts, chosen = self._parts[0], chosen.to(self.within_oo)
        counts = chosen * parts.count
        count = counts.sum(1)
        shares = counts / count.clamp(min=torch.finfo(counts.dtype).tiny)[:, None]
        mean_o, mean_p = shares @ parts.mean_o, shares @ parts.mean_p
        apart_o, apart_p = parts.mean_o - mean_o[:, None], parts.mean_p - mean_p[:, None]  # (F, G, D)

        def pool(inside: Tensor, a: Tensor, b: Tensor) -> Tensor:
            return torch.einsum("fg,gde->fde", shares, inside) + torch.einsum("fg,fgd,fge->fde", shares, a, b)

        return Covariances(
            count,
            chosen @ parts.speakers,
            chosen @ parts.squares,
            mean_o,
            mean_p,
            pool(parts.oo, apart_o, apart_o),
            pool(parts.pp, apart_p, apart_p),
            pool(parts.po, apart_p, apart_o),
            torch.einsum("fg,gde->fde", shares, parts.within_pp),
        )

    @cached_property
    def _parts(self) -> tuple[Covariances, SameSpeaker]:
        sizes = torch.bincount(self.groups, minlength=len(self.within_oo)).tolist()
        by_group = self.groups.argsort(stable=True).split(sizes)
        rows = [_describe(*(table[chosen] for table in self.tensors()[2:5])) for chosen in by_group]
        count, speakers, squares, mean_o, mean_p, oo, pp, po, *same = map(torch.stack, zip(*rows, strict=True))
        total = count.clamp(min=torch.finfo(count.dtype).tiny)[:, None, None]
        within_pp = self.within_pp / total
        oo, pp, po = oo + self.within_oo / total, pp + within_pp, po + self.within_po / total
        return Covariances(count, speakers, squares, mean_o, mean_p, oo, pp, po, within_pp), SameSpeaker(*same)


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


@dataclass(frozen=True)
class SameSpeaker:
    """Sums over all pairs of one speaker, an utterance and itself included, about the means of each of ``G`` groups."""

    po: Tensor  # (G, D, D), products
    original: Tensor  # (G, D)
    protected: Tensor  # (G, D)


def moments_of(
    original: Tensor, protected: Tensor, speakers: Tensor, groups: Tensor | None = None, count: int = 1
) -> Moments:
    """Moments of pairs of utterances, in one pass.

    Args:
        original: Floating embeddings ``(N, D)``.
        protected: Those of the protected versions, row by row.
        speakers: Integer speaker of each row, ``(N,)``.
        groups: The group of each row, ``(N,)`` from 0 to ``count - 1``, the same for all rows of a speaker.
        count: The number of groups.
    """
    groups = torch.zeros_like(speakers) if groups is None else groups
    blocks = zip(*(rows.split(_ROWS) for rows in (original, protected, speakers, groups)), strict=True)
    found: list[Moments] = []
    for o, p, names, group in blocks:
        found = [merge([*found, rows_as_moments(o, p, names, group, count)])]
    return found[0]


def rows_as_moments(original: Tensor, protected: Tensor, speakers: Tensor, groups: Tensor, count: int) -> Moments:
    """Rows as they are, a table in which every utterance is a speaker without scatter, for :func:`merge`."""
    o, p = widen(original), widen(protected)
    none = o.new_zeros(()).expand(count, *o.shape[1:] * 2)
    return Moments(speakers.to(torch.int64), groups, o.new_ones(len(o)), o, p, none, none, none)


def merge(parts: Sequence[Moments]) -> Moments:
    """Moments of several sets together. A row of a table without scatter may be a single utterance."""
    columns = zip(*(part.tensors() for part in parts), strict=True)
    names, groups, counts, original, protected = (torch.cat(column) for column in list(columns)[:5])
    scatter = [torch.stack(list(column)).sum(0) for column in zip(*(part.tensors()[5:] for part in parts), strict=True)]
    names, index = names.unique(return_inverse=True)
    group_of = groups.new_zeros(len(names)).index_copy(0, index, groups)
    total = counts.new_zeros(len(names)).index_add(0, index, counts)
    means, apart = [], []
    for side in (original, protected):
        sums = side.new_zeros(len(names), side.shape[1]).index_add(0, index, counts[:, None] * side)
        means.append(sums / total[:, None])
        apart.append(counts.sqrt()[:, None] * (side - means[-1][index]))
    # What rows of one speaker are apart is scatter from now on.
    group = group_of[index]
    sizes = torch.bincount(group, minlength=len(scatter[0])).tolist()
    for number, rows in enumerate(group.argsort(stable=True).split(sizes)):
        o, p = (side[rows] for side in apart)
        for matrices, a, b in zip(scatter, (o, p, p), (o, p, o), strict=True):
            matrices[number] += a.T @ b
    return Moments(names, group_of, total, *means, *scatter)


def deal(vectors: Tensor, speakers: Tensor, most: int = 5) -> tuple[Tensor, int]:
    """Groups of speakers that depend neither on their numbers nor on the order of rows: of each row, and how many."""
    names, index, counts = speakers.unique(return_inverse=True, return_counts=True)
    wide = widen(vectors.detach())
    means = wide.new_zeros(len(names), wide.shape[1]).index_add(0, index, wide) / counts[:, None]
    place = row_keys(means).argsort(stable=True).argsort()
    count = max(1, min(most, len(names) // 2))
    return (place % count)[index], count


def _describe(counts: Tensor, original: Tensor, protected: Tensor) -> tuple[Tensor, ...]:
    """The speakers of one group, as if each always said the same: the fields of Covariances and of SameSpeaker."""
    count = counts.sum()
    share = (counts / count.clamp(min=torch.finfo(counts.dtype).tiny))[:, None]
    mean_o, mean_p = (share * original).sum(0), (share * protected).sum(0)
    o, p, pairs = original - mean_o, protected - mean_p, counts.square()[:, None]
    speakers = (counts > 0).sum().to(counts)
    covariances = (o.T @ (share * o), p.T @ (share * p), p.T @ (share * o))
    same = (p.T @ (pairs * o), (pairs * o).sum(0), (pairs * p).sum(0))
    return count, speakers, pairs.sum(), mean_o, mean_p, *covariances, *same


def eigen(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and vectors of symmetric ``(F, D, D)``; NaN for a matrix that holds one, which LAPACK refuses."""
    bad = ~matrices.isfinite().flatten(1).all(1)[:, None]
    values, vectors = torch.linalg.eigh(matrices.masked_fill(bad[..., None], 0))
    return values.masked_fill(bad, torch.nan), vectors


def _spectrum(covariances: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = eigen(covariances)
    # Equal embeddings and their mean differ by a rounding, which is no variance.
    rounding = (16 * torch.finfo(mean.dtype).eps * mean.abs().amax(1, keepdim=True)).square()
    return values.masked_fill(values <= rounding, 0), vectors
