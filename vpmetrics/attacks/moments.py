"""What attacks are fitted on.

Rows of unit length, and means and covariances of the pairs that each attacker has.

An attack is fitted many times: on the speakers outside each fold, of all partitions or of one.
These *training sets* are a dimension of every tensor, so that one product, or one Cholesky
factorisation, serves them all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vpmetrics._scores.scorers import SCORERS
from vpmetrics._util.dtypes import wide_dtype, widen
from vpmetrics._utterances.conditions import SideName
from vpmetrics._utterances.encoders import Encoder

T = TypeVar("T")

UNIT = "unit"
CENTRED = "centred"
STANDARDISED = "standardised"
RowNormalisation = str  # one of these
# a dimension is constant if its standard deviation over its largest entry is below this
_CONSTANT = 1e-6
_ROUNDING = 64  # ulp: a row of unit length that is no farther from the mean equals it
# where a smaller share of the dimensions holds the variance, standardised rows are also tried
_UNEVEN = 0.4
_RANK = 1e-10  # of the mean variance: directions below it are not used
_ENTRIES_AT_ONCE = 1 << 20  # entries of normalised rows held at a time
_ROWS_AT_ONCE = 1 << 12  # observed rows widened at a time


def unit_rows(rows: Tensor) -> Tensor:
    """Return rows of any length at unit length, in the wide dtype, without overflow.

    Rows of zeros stay zeros.
    """
    return SCORERS["cosine"].prepare(widen(rows))


def divide_by_norm(rows: Tensor) -> Tensor:
    """Return rows ``(..., N, D)`` at unit length in their own dtype.

    Their squares must neither overflow nor vanish.
    """
    return normalize(rows, dim=-1, eps=torch.finfo(rows.dtype).tiny)


def identity_like(matrix: Tensor) -> Tensor:
    """Return the identity ``(D, D)`` in the dtype and on the device of matrices ``(..., D, D)``."""
    return torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def mean_of_diagonal(matrix: Tensor) -> Tensor:
    """Return the mean of the diagonal of matrices ``(..., D, D)``, as ``(..., 1, 1)``."""
    return matrix.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]


def cholesky_plus_diagonal(matrix: Tensor, added: Tensor | float) -> Tensor:
    """Return the Cholesky factor of matrices ``(..., D, D)`` plus ``added`` times the identity.

    The factor is lower, the matrices are symmetric.
    """
    factor: Tensor = torch.linalg.cholesky_ex(matrix + added * identity_like(matrix)).L
    return factor


def invert_lower(factor: Tensor) -> Tensor:
    """Return the inverse of lower triangular matrices ``(..., D, D)``."""
    inverse: Tensor = torch.linalg.solve_triangular(
        factor, identity_like(factor).expand_as(factor), upper=False
    )
    return inverse


def solve_lower(factor: Tensor, rows: Tensor) -> Tensor:
    """Return ``rows @ inv(factor).T`` for a lower triangular factor.

    Solving is faster than a product.
    """
    solved: Tensor = torch.linalg.solve_triangular(factor.to(rows), rows.mT, upper=False)
    return solved.mT


def choose_views_by_spread(original: Tensor, protected: Tensor) -> tuple[RowNormalisation, ...]:
    """Return ``"centred"``, and perhaps ``"standardised"``.

    The second only where few dimensions hold most of the variance.

    The variance of rows of unit length is spread over an effective share of the dimensions, in (0,
    1]. The choice does not depend on labels. Waits for the device once.
    """
    spreads = []
    for side in (original, protected):
        if len(side) == 0:
            continue
        variance = side.var(0, correction=0)
        squares = (len(variance) * variance.square().sum()).clamp(
            min=torch.finfo(variance.dtype).tiny
        )
        spreads.append(variance.sum().square() / squares)
    if spreads and bool(torch.stack(spreads).amin() < _UNEVEN):
        return (CENTRED, STANDARDISED)
    return (CENTRED,)


@dataclass(frozen=True, eq=False)
class RowNormaliser:
    """How each training set normalises rows of unit length.

    Centred and scaled, and of unit length again.

    ``centre`` ``(T, 1, D)``; ``scale`` ``(T, 1, D)`` or None.
    """

    centre: Tensor
    scale: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """Return rows ``(T, N, D)`` as each of the training sets sees them."""
        moved = rows - self.centre.to(rows)
        length = torch.linalg.vector_norm(moved, dim=-1, keepdim=True)
        # Rows that equal the mean but for rounding have no direction.
        moved = torch.where(length > _ROUNDING * torch.finfo(rows.dtype).eps, moved, 0)
        if self.scale is not None:
            moved = moved * self.scale.to(rows)
        return divide_by_norm(moved)

    def select_sets(self, sets: slice) -> RowNormaliser:
        """Return the normaliser of some of the training sets."""
        return RowNormaliser(self.centre[sets], None if self.scale is None else self.scale[sets])


@dataclass(frozen=True, eq=False)
class SquaredRows:
    """Squares of normalised rows."""

    normaliser: RowNormaliser | None

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the squares of rows ``(T, N, D)`` after the normaliser."""
        return (rows if self.normaliser is None else self.normaliser(rows)).square()

    def select_sets(self, sets: slice) -> SquaredRows:
        """Return the squares as some of the training sets normalise rows."""
        return SquaredRows(None if self.normaliser is None else self.normaliser.select_sets(sets))


class ValueCache:
    """Cache of derived values, by key."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}

    def get_or_make(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value of a key; call ``make`` for it the first time."""
        if key not in self._values:
            self._values[key] = make()
        value: T = self._values[key]
        return value


class PairSums(NamedTuple):
    """Sums over the pairs of each training set.

    A pair is one row ``(2 D,)``, original and protected side by side.

    ``counts`` ``(T, S)``: pairs of each speaker; ``sums`` ``(T, 2 D)``; ``products`` ``(T, 2 D, 2
    D)``; ``speaker_sums`` ``(T, S, D)`` of protected rows.
    """

    counts: Tensor
    sums: Tensor
    products: Tensor
    speaker_sums: Tensor


class PairStatistics:
    """Means and covariances of the pairs of each training set, and what is derived from them.

    ``o`` stands for original rows, ``p`` for protected ones. ``mean_o``, ``mean_p`` ``(T, 1, D)``;
    ``oo``, ``pp``, ``po`` ``(T, D, D)`` are covariances over utterances, ``po`` of protected with
    original rows; ``between_pp`` is that of the means of protected speakers, each weighted by the
    speaker's share of the utterances, and ``within_pp`` that of protected rows about them. No
    attack needs the same of original speakers. A ridge may be a number, or one per setting,
    ``(S, 1, 1, 1)``; results then have a first dimension of settings.
    """

    def __init__(self, pairs: PairSums) -> None:
        num_pairs = pairs.counts.sum(-1).clamp(min=1)[:, None, None]  # (T, 1, 1)
        width = pairs.sums.shape[-1] // 2
        mean = pairs.sums[:, None] / num_pairs
        covariance = pairs.products / num_pairs - mean.mT * mean
        self.mean_o = mean[..., :width]
        self.mean_p = mean[..., width:]
        self.oo = covariance[:, :width, :width]
        self.pp = covariance[:, width:, width:]
        self.po = covariance[:, width:, :width]
        deviations = pairs.speaker_sums - pairs.counts[..., None] * self.mean_p
        weighted = deviations / (pairs.counts[..., None].clamp(min=1) * num_pairs).sqrt()
        self.between_pp = weighted.mT @ weighted
        self._projections: dict[str, Tensor] = {}

    @cached_property
    def within_pp(self) -> Tensor:
        """Covariance of protected rows about the means of their speakers."""
        return self.pp - self.between_pp

    def project(self, name: str) -> Tensor:
        """Return a projection ``(T, D, D)`` onto the directions in which training rows vary.

        Rows are those of one side.

        ``name`` is ``"oo"`` or ``"pp"``. Nothing is known about such directions, and a whitening
        would blow them up. The projection is smooth, ``v / (v + e)`` for a variance of ``v``, so
        that rounding turns nothing.
        """
        if name not in self._projections:
            covariance = getattr(self, name)
            least = _RANK * mean_of_diagonal(covariance) + torch.finfo(covariance.dtype).tiny
            inverse_root = invert_lower(cholesky_plus_diagonal(covariance, least))
            projection = identity_like(covariance) - least * (inverse_root.mT @ inverse_root)
            # Rounding leaves some 1e-4 of the directions to leave out, and nothing after the second
            # time.
            self._projections[name] = projection @ projection
        return self._projections[name]

    def whiten(self, name: str, ridge: float | Tensor) -> Tensor:
        """Return a map ``(..., T, D, D)`` that whitens one covariance.

        After it ``oo``, ``pp`` or ``within_pp`` with a ridge is the identity.

        The ridge is relative to the mean of the diagonal.
        """
        covariance = getattr(self, name)
        added = ridge * mean_of_diagonal(covariance) + torch.finfo(covariance.dtype).tiny
        inverse_root = invert_lower(cholesky_plus_diagonal(covariance, added))
        return self.project("oo" if name == "oo" else "pp") @ inverse_root.mT

    def select_set(self, number: int) -> PairStatistics:
        """Return the statistics of one training set, without the dimension ``T`` of sets.

        Its means are ``(D,)``, its covariances ``(D, D)``.
        """
        # The sums are not kept, and `__init__` would need them: the finished statistics are copied.
        statistics = object.__new__(PairStatistics)
        statistics.mean_o = self.mean_o[number, 0]  # (T, 1, D) to (D,)
        statistics.mean_p = self.mean_p[number, 0]
        statistics.oo = self.oo[number]
        statistics.pp = self.pp[number]
        statistics.po = self.po[number]
        statistics.between_pp = self.between_pp[number]
        statistics._projections = {}  # a cache, filled by `project`
        return statistics


class TrainingSets(ValueCache):
    """Pairs of rows, and which of them each attacker learns from.

    Args:
        original: Rows ``(N, D)``; None where there is protected speech alone.
        protected: Rows ``(N, D)``.
        speakers: Speaker of each row, ``(N,)``.
        is_member: ``(T, N)``, whether a training set has a row; None for one set of all rows.
        views: Ways of normalising rows that are tried; None for those of
            :func:`choose_views_by_spread`.
    """

    def __init__(
        self,
        original: Tensor | None,
        protected: Tensor,
        speakers: Tensor,
        is_member: Tensor | None = None,
        views: Sequence[RowNormalisation] | None = None,
    ) -> None:
        super().__init__()
        self.protected = unit_rows(protected.detach())
        if original is None:
            self.original = self.protected
        else:
            self.original = unit_rows(original.detach())
        names, self.speaker_index = speakers.unique(return_inverse=True)
        self.num_speakers = len(names)
        if is_member is None:
            is_member = torch.ones(1, len(protected), dtype=torch.bool, device=protected.device)
        self.is_member = is_member
        self.views = tuple(
            choose_views_by_spread(self.original, self.protected) if views is None else views
        )

    @property
    def num_sets(self) -> int:
        """How many training sets there are."""
        return len(self.is_member)

    @cached_property
    def _weights(self) -> Tensor:
        """Membership as numbers ``(T, N)``."""
        return self.is_member.to(self.protected)

    def side(self, name: SideName) -> Tensor:
        """Return the rows of unit length ``(N, D)`` of a side."""
        return self.original if name == "original" else self.protected

    def normaliser(self, side: SideName, view: RowNormalisation) -> RowNormaliser | None:
        """Return the normalisation of ``"original"`` or ``"protected"`` rows.

        Return None for rows as they are.
        """
        if view == UNIT:
            return None
        return self.get_or_make((side, view), lambda: self._fit_normaliser(self.side(side), view))

    def _fit_normaliser(self, rows: Tensor, view: RowNormalisation) -> RowNormaliser:
        num_rows = self._weights.sum(1, keepdim=True).clamp(min=1)
        mean = self._weights @ rows / num_rows
        if view == CENTRED:
            return RowNormaliser(mean[:, None])
        variance = (self._weights @ rows.square() / num_rows - mean.square()).clamp(min=0)
        deviation = variance.sqrt()
        # A dimension that is constant but for rounding has no scale.
        has_scale = deviation > _CONSTANT * rows.abs().amax(0)
        scale = torch.where(has_scale, 1 / deviation.clamp(min=torch.finfo(rows.dtype).tiny), 0)
        return RowNormaliser(mean[:, None], scale[:, None])

    def view_rows(self, side: SideName, view: RowNormalisation, rows: slice | Tensor) -> Tensor:
        """Return some rows as each training set normalises them, ``(T, n, D)``.

        ``rows`` may be ``(T, n)``.
        """
        normaliser = self.normaliser(side, view)
        chosen = self.side(side)[rows]
        chosen = chosen.expand(self.num_sets, *chosen.shape[-2:])
        if normaliser is None:
            return chosen
        return normaliser(chosen)

    def statistics(
        self, view: RowNormalisation, is_original_squared: bool = False
    ) -> PairStatistics:
        """Return means and covariances of normalised rows of every training set.

        ``is_original_squared``: whether they are those of the squares of original rows.
        """
        key = (view, is_original_squared, "statistics")
        return self.get_or_make(
            key, lambda: PairStatistics(self._sum_pairs(view, is_original_squared))
        )

    def statistics_with(self, observed: MomentSums) -> PairStatistics:
        """Return means and covariances of the pairs of every training set and of observed pairs.

        Rows have unit length and are not centred before: the moments of centred rows of unit
        length do not follow from those of rows.
        """
        own = self._sum_pairs(UNIT, is_original_squared=False)
        width = self.protected.shape[1]
        counts = observed.counts.expand(self.num_sets, -1)
        speaker_sums = observed.sums[:, width:].expand(self.num_sets, -1, -1)
        return PairStatistics(
            PairSums(
                counts=torch.cat([own.counts, counts], dim=1),
                sums=own.sums + observed.sums.sum(0),
                products=own.products + observed.products,
                speaker_sums=torch.cat([own.speaker_sums, speaker_sums], dim=1),
            )
        )

    def _sum_pairs(self, view: RowNormalisation, is_original_squared: bool) -> PairSums:
        width = self.protected.shape[1]
        counts = self.protected.new_zeros(self.num_sets, self.num_speakers)
        sums = self.protected.new_zeros(self.num_sets, 2 * width)
        products = self.protected.new_zeros(self.num_sets, 2 * width, 2 * width)
        speaker_sums = self.protected.new_zeros(self.num_sets, self.num_speakers, width)
        step = max(1, _ENTRIES_AT_ONCE // (2 * width * self.num_sets))
        for start in range(0, len(self.protected), step):
            rows = slice(start, start + step)
            weights = self._weights[:, rows]
            original = self.view_rows("original", view, rows)
            if is_original_squared:
                original = original.square()
            pairs = (
                torch.cat([original, self.view_rows("protected", view, rows)], dim=-1)
                * weights[..., None]
            )
            counts.index_add_(1, self.speaker_index[rows], weights)
            sums += pairs.sum(1)
            products += pairs.mT @ pairs
            speaker_sums.index_add_(1, self.speaker_index[rows], pairs[..., width:])
        return PairSums(counts, sums, products, speaker_sums)

    def take_rows(self, max_rows: int) -> Tensor:
        """Return indices ``(T, n)`` of at most ``max_rows`` evenly spaced rows.

        Every training set has as many.

        Waits for the device once.
        """
        return self.get_or_make(("rows", max_rows), lambda: self._take_rows(max_rows))

    def _take_rows(self, max_rows: int) -> Tensor:
        count_until_row = self.is_member.long().cumsum(1)
        sizes = count_until_row[:, -1]
        num_rows = min(max_rows, int(sizes.amin()))
        wanted = (
            torch.arange(num_rows, device=count_until_row.device)
            * sizes[:, None]
            // max(1, num_rows)
            + 1
        )
        return torch.searchsorted(count_until_row, wanted)


class MomentSums(NamedTuple):
    """Sums over observed pairs of unit length: any number of utterances in the same memory.

    Moments of two sets add up to moments, so that batches and processes are merged by addition.
    """

    names: Tensor  # (S,) speakers, ascending
    counts: Tensor  # (S,) utterances
    sums: Tensor  # (S, 2 D) of original and protected rows, side by side
    products: Tensor  # (2 D, 2 D)

    def statistics(self) -> PairStatistics:
        """Return means and covariances, as of one training set."""
        width = self.sums.shape[1] // 2
        pairs = PairSums(
            self.counts[None],
            self.sums.sum(0)[None],
            self.products[None],
            self.sums[None, :, width:],
        )
        return PairStatistics(pairs)

    def of_encoder(self, encoders: Sequence[Encoder], index: int) -> MomentSums:
        """Return the moments of the embeddings of one of several encoders, side by side."""
        width = self.sums.shape[1] // 2
        start = sum(encoder.width for encoder in encoders[:index])
        columns = torch.arange(start, start + encoders[index].width, device=self.sums.device)
        columns = torch.cat([columns, width + columns])  # of both sides
        return MomentSums(
            names=self.names,
            counts=self.counts,
            sums=self.sums[:, columns],
            products=self.products[columns][:, columns],
        )


def measure_moments(
    original: Tensor, protected: Tensor, speakers: Tensor, encoders: Sequence[Encoder]
) -> MomentSums:
    """Return the moments of pairs ``(B, D)``, whose columns are the embeddings of some encoders."""
    names, index, counts = speakers.to(torch.int64).unique(return_inverse=True, return_counts=True)
    widths = [encoder.width for encoder in encoders]
    width = original.shape[1]
    wide = wide_dtype(original.device)
    sums = torch.zeros(len(names), 2 * width, dtype=wide, device=original.device)
    products = sums.new_zeros(2 * width, 2 * width)
    for batch in torch.arange(len(original), device=original.device).split(_ROWS_AT_ONCE):
        embeddings = [
            *original[batch].detach().split(widths, dim=1),
            *protected[batch].detach().split(widths, dim=1),
        ]
        rows = torch.cat([unit_rows(side) for side in embeddings], dim=1)
        sums.index_add_(0, index[batch], rows)
        products += rows.T @ rows
    return MomentSums(names, counts.to(wide), sums, products)


def add_moment_sums(moments: Sequence[MomentSums]) -> MomentSums:
    """Return the moments of several sets together: speakers in two sets count as one."""
    names, index = torch.cat([of_set.names for of_set in moments]).unique(return_inverse=True)
    counts = torch.cat([of_set.counts for of_set in moments])
    sums = torch.cat([of_set.sums for of_set in moments])
    return MomentSums(
        names,
        counts.new_zeros(len(names)).index_add(0, index, counts),
        sums.new_zeros(len(names), sums.shape[1]).index_add(0, index, sums),
        torch.stack([of_set.products for of_set in moments]).sum(0),
    )
