"""Moments of pairs of utterances: all that a linear attacker needs to remember of what they have seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from vpmetrics._precision import wide_dtype, widen
from vpmetrics._trials.covariances import Covariances, SameSpeaker, describe_speakers
from vpmetrics._trials.utterances import keys_of_means

_ROWS = 1 << 12  # of embeddings made double at once


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
        return self._parts[0]

    @cached_property
    def others(self) -> Covariances:
        """Of all groups but one, for each of them."""
        return self._parts[0].pool(1 - self._groups)

    @cached_property
    def together(self) -> Covariances:
        """Of all groups, as a batch of one."""
        return self._parts[0].pool(torch.ones_like(self._groups[:1]))

    @cached_property
    def same_speaker(self) -> SameSpeaker:
        """Of pairs of one speaker, in every group."""
        return self._parts[1]

    @property
    def _groups(self) -> Tensor:
        """Every group by itself, ``(G, G)``."""
        return torch.eye(len(self.within_oo), device=self.counts.device, dtype=self.counts.dtype)

    @cached_property
    def _parts(self) -> tuple[Covariances, SameSpeaker]:
        rows = rows_of_groups(self.groups, len(self.within_oo))
        sets = [(self.counts[own], self.original[own], self.protected[own]) for own in rows]
        return describe_speakers(sets, (self.within_oo, self.within_pp, self.within_po))


@dataclass(frozen=True)
class Picked:
    """Some rows of embeddings, of which there is no copy but those of a few at a time."""

    vectors: Tensor
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, some: Tensor) -> Tensor:
        return self.vectors[self.rows[some]]

    def take(self, some: Tensor) -> Picked:
        """Some of them."""
        return Picked(self.vectors, self.rows[some])


def moments_of(
    original: Tensor | Picked,
    protected: Tensor | Picked,
    speakers: Tensor,
    groups: Tensor | None = None,
    count: int = 1,
) -> Moments:
    """Moments of pairs of utterances, from two passes over the rows.

    Args:
        original: Floating embeddings ``(N, D)``, with their graph.
        protected: Those of the protected versions, row by row.
        speakers: Integer speaker of each row, ``(N,)``.
        groups: The group of each row, ``(N,)`` from 0 to ``count - 1``, the same for all rows of a speaker.
        count: The number of groups.
    """
    groups = torch.zeros_like(speakers) if groups is None else groups
    names, index, numbers = speakers.to(torch.int64).unique(return_inverse=True, return_counts=True)
    blocks = index.argsort(stable=True).split(_ROWS)  # those of a speaker side by side
    wide, width = wide_dtype(speakers.device), original[index[:0]].shape[1]
    counts, means = numbers.to(wide), torch.zeros(2, len(names), width, dtype=wide, device=speakers.device)
    for rows in blocks:
        means.index_add_(1, index[rows], torch.stack([widen(original[rows]), widen(protected[rows])]))
    means = means / counts[:, None]
    scatter = means.new_zeros(3, count, width, width)
    for rows in blocks:
        o, p = (widen(side[rows]) - mean[index[rows]] for side, mean in zip((original, protected), means, strict=True))
        _add_products(scatter, o, p, groups[rows])
    return Moments(names, groups.new_zeros(len(names)).index_copy(0, index, groups), counts, *means, *scatter)


def _add_products(scatter: Tensor, o: Tensor, p: Tensor, groups: Tensor) -> None:
    """Add the products of deviations to those of their groups ``(3, G, D, D)``."""
    for group, chosen in enumerate(rows_of_groups(groups, scatter.shape[1])):
        for products, a, b in ((0, o, o), (1, p, p), (2, p, o)):
            scatter[products, group] += a[chosen].T @ b[chosen]


def rows_as_moments(original: Tensor, protected: Tensor, speakers: Tensor, groups: Tensor, count: int) -> Moments:
    """Rows as they are, every utterance a speaker without scatter, to be given to :func:`merge`."""
    o, p = widen(original), widen(protected)
    none = o.new_zeros(()).expand(count, *o.shape[1:] * 2)
    return Moments(speakers.to(torch.int64), groups, o.new_ones(len(o)), o, p, none, none, none)


def merge(parts: Sequence[Moments]) -> Moments:
    """Moments of several sets together."""
    columns = [list(column) for column in zip(*(part.tensors() for part in parts), strict=True)]
    names, groups, counts, original, protected = (torch.cat(column) for column in columns[:5])
    names, index, rows = names.unique(return_inverse=True, return_counts=True)
    total = counts.new_zeros(len(names)).index_add(0, index, counts)
    group_of = groups.new_zeros(len(names)).index_copy(0, index, groups)
    means = [
        side.new_zeros(len(names), side.shape[1]).index_add(0, index, counts[:, None] * side) / total[:, None]
        for side in (original, protected)
    ]
    # By what rows of one speaker are apart, utterances scatter about the new mean.
    several = (rows[index] > 1).nonzero().flatten()
    index, weights = index[several], counts[several].sqrt()[:, None]
    o, p = (weights * (side[several] - mean[index]) for side, mean in zip((original, protected), means, strict=True))
    scatter = torch.stack([torch.stack(column).sum(0) for column in columns[5:]])
    _add_products(scatter, o, p, group_of[index])
    return Moments(names, group_of, total, *means, *scatter)


def deal(vectors: Tensor, speakers: Tensor, most: int = 5) -> tuple[Tensor, int]:
    """Groups of speakers that depend neither on their numbers nor on the order of rows: of each row, and how many."""
    names, index = speakers.unique(return_inverse=True)
    place = keys_of_means(vectors, index, len(names)).argsort(stable=True).argsort()
    # Of three, two and one: were all left out together, there would be nobody to learn from, and noise to judge by.
    count = max(1, min(most, len(names), max(2, len(names) // 2)))
    return (place % count)[index], count


def rows_of_groups(groups: Tensor, count: int) -> tuple[Tensor, ...]:
    """Positions of the rows of every group."""
    sizes: list[int] = torch.bincount(groups, minlength=count).tolist()
    return torch.split(groups.argsort(stable=True), sizes)
