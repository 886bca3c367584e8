"""What attacks are fitted on: rows of unit length, means and covariances of pairs, and moments of observed batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vpmetrics._scores.scorers import SCORERS
from vpmetrics._util.dtypes import wide_dtype, widen
from vpmetrics._utterances.conditions import SideName
from vpmetrics._utterances.utterances import row_sort_keys, take_evenly

T = TypeVar("T")

UNIT, CENTRED, STANDARDISED = "unit", "centred", "standardised"
RowNormalisation = str  # one of these
RowMap = Callable[[Tensor], Tensor]
Chain = tuple[Tensor | RowMap, ...]  # maps in order: a matrix, a factor per dimension, a function
_CONSTANT = 1e-6  # a dimension is constant if its standard deviation over its largest entry is below this
_ROUNDING = 64  # ulp: a row of unit length that is no farther from the mean equals it
_UNEVEN = 0.4  # where a smaller share of the dimensions holds the variance, standardised rows are also tried
_RANK = 1e-12  # of the largest eigenvalue: directions below it are rounding
_ROWS_AT_ONCE = 1 << 12  # rows widened at a time


def unit_rows(rows: Tensor) -> Tensor:
    """Return rows of any length at unit length, in the wide dtype, without overflow; rows of zeros stay zeros."""
    return SCORERS["cosine"].prepare(widen(rows))


def divide_by_norm(rows: Tensor) -> Tensor:
    """Return rows ``(..., N, D)`` at unit length in their own dtype; their squares must neither overflow nor vanish."""
    return normalize(rows, dim=-1, eps=torch.finfo(rows.dtype).tiny)


def centre_and_scale(centre: Tensor, scale: Tensor | None, rows: Tensor) -> Tensor:
    """Return rows ``(N, D)`` of unit length centred and scaled, at unit length again, in the wide dtype."""
    rows = widen(rows) - centre
    length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    rows = torch.where(length > _ROUNDING * torch.finfo(rows.dtype).eps, rows, 0)
    return divide_by_norm(rows if scale is None else rows * scale)


def fit_normalisation(rows: Tensor, view: RowNormalisation) -> RowMap:
    """Return a normalisation fitted on rows of unit length."""
    if view == UNIT or len(rows) == 0:
        return widen
    centre, scale = rows.mean(0), None
    if view == STANDARDISED:
        deviation = rows.std(0, correction=0)
        # A dimension that is constant but for rounding has no scale.
        has_scale = deviation > _CONSTANT * rows.abs().amax(0)
        scale = torch.where(has_scale, 1 / deviation.clamp(min=torch.finfo(rows.dtype).tiny), 0)
    return partial(centre_and_scale, centre, scale)


def choose_views_by_spread(original: Tensor, protected: Tensor) -> tuple[RowNormalisation, ...]:
    """Return ``"centred"``, and ``"standardised"`` too where few dimensions hold most of the variance.

    The variance of rows of unit length is spread over an effective share of the dimensions, in (0, 1]. The choice does
    not depend on labels. Waits for the device once.
    """
    variances = [side.var(0, correction=0) for side in (original, protected) if len(side)]
    if not variances:
        return (CENTRED,)
    products = [(len(each) * each.square().sum()).clamp(min=torch.finfo(each.dtype).tiny) for each in variances]
    spread = torch.stack([each.sum().square() / product for each, product in zip(variances, products, strict=True)])
    return (CENTRED, STANDARDISED) if bool(spread.amin() < _UNEVEN) else (CENTRED,)


def solve_lower(factor: Tensor, rows: Tensor) -> Tensor:
    """Return ``rows @ inv(factor).T`` for a lower triangular factor; solving is faster than a product."""
    solved: Tensor = torch.linalg.solve_triangular(factor.to(rows), rows.mT, upper=False)
    return solved.mT


def apply_chain(rows: Tensor, chain: Chain) -> Tensor:
    """Return rows ``(N, D)`` after all maps of a chain, in their own dtype."""
    for each in chain:
        if isinstance(each, Tensor):
            rows = rows @ each.to(rows) if each.dim() == 2 else rows * each.to(rows)
        else:
            rows = each(rows)
    return rows


class Solution(NamedTuple):
    """An attack fitted with one setting: how rows of each side are mapped before they are compared."""

    original: Chain
    protected: Chain

    def map_side(self, rows: Tensor, name: SideName) -> Tensor:
        """Return rows ``(N, D)`` of that side after its maps."""
        with torch.autocast(rows.device.type, enabled=False):
            return apply_chain(rows, getattr(self, name))


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


class PairStatistics(ValueCache):
    """Means and covariances of pairs of original and protected rows ``(N, D)``, and what is derived from them.

    ``oo``, ``pp``, ``po`` ``(D, D)`` are covariances over utterances, ``po`` of protected with original rows;
    ``within_pp`` is that about the means of speakers. ``weighted_speaker_means`` ``(S, D)``: the means of protected
    speakers about the mean of all, each times the root of its share of the utterances, so that their products sum to
    the covariance between speakers ``0 ... num_speakers - 1``.
    """

    def __init__(self, original: Tensor, protected: Tensor, speaker_index: Tensor, num_speakers: int) -> None:
        super().__init__()
        self.num_rows, self.speaker_index, self.num_speakers = max(1, len(protected)), speaker_index, num_speakers
        self.mean_o, self.mean_p = original.sum(0) / self.num_rows, protected.sum(0) / self.num_rows
        self._rows = {"o": original - self.mean_o, "p": protected - self.mean_p}

    @cached_property
    def oo(self) -> Tensor:
        """Covariance of original rows."""
        return self._rows["o"].T @ self._rows["o"] / self.num_rows

    @cached_property
    def pp(self) -> Tensor:
        """Covariance of protected rows."""
        return self._rows["p"].T @ self._rows["p"] / self.num_rows

    @cached_property
    def po(self) -> Tensor:
        """Covariance of protected with original rows."""
        return self._rows["p"].T @ self._rows["o"] / self.num_rows

    @cached_property
    def weighted_speaker_means(self) -> Tensor:
        """Means of protected rows by speaker, about the mean of all, times the root of the speaker's share."""
        rows = self._rows["p"]
        sums = rows.new_zeros(self.num_speakers, rows.shape[1]).index_add(0, self.speaker_index, rows)
        numbers = rows.new_zeros(self.num_speakers).index_add(0, self.speaker_index, rows.new_ones(len(rows)))
        return sums / (numbers * self.num_rows).clamp(min=1).sqrt()[:, None]

    @cached_property
    def within_pp(self) -> Tensor:
        """Covariance of protected rows about the means of their speakers."""
        return self.pp - self.weighted_speaker_means.T @ self.weighted_speaker_means

    def span(self, side: Literal["o", "p"]) -> Chain:
        """Return a map of rows to coordinates in the span of the training rows, without constant directions."""
        if self.num_rows > len(self.mean_p):
            variance = getattr(self, 2 * side).diagonal()
            return ((variance > _RANK * variance.mean()).to(variance),)

        def make_basis() -> Tensor:
            rows = self._rows[side]
            values, vectors = torch.linalg.eigh(rows @ rows.T)
            kept = values > _RANK * values.amax().clamp(min=torch.finfo(rows.dtype).tiny)
            basis: Tensor = rows.T @ (vectors[:, kept] * values[kept].rsqrt())
            return basis

        return (self.get_or_make(("span", side), make_basis),)

    def whiten(self, name: Literal["oo", "pp", "within_pp"], ridge: float) -> Chain:
        """Return a map to coordinates in which a covariance with a ridge is the identity, by a Cholesky factor.

        Directions in which the rows do not vary are left out. The ridge is relative to the mean of the diagonal.
        """

        def make_whitening() -> Chain:
            covariance, span = getattr(self, name), self.span("o" if name == "oo" else "p")
            added = ridge * covariance.diagonal().mean() + torch.finfo(covariance.dtype).tiny
            inside = apply_chain(apply_chain(covariance, span).T, span)
            return (*span, partial(solve_lower, cholesky_plus_diagonal(inside, added)))

        return self.get_or_make((name, ridge), make_whitening)

    def correlate(self, ridge: float) -> Tensor:
        """Return ``K``, the covariance of whitened protected with whitened original rows; its SVD is that of CCA."""
        whiten_o, whiten_p = self.whiten("oo", ridge), self.whiten("pp", ridge)
        return self.get_or_make(("K", ridge), lambda: apply_chain(apply_chain(self.po, whiten_o).T, whiten_p).T)


def cholesky_plus_diagonal(matrix: Tensor, added: Tensor | float) -> Tensor:
    """Return the lower Cholesky factor of a symmetric matrix plus ``added`` times the identity."""
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    factor: Tensor = torch.linalg.cholesky_ex(matrix + added * eye).L
    return factor


class TrainingPairs(ValueCache):
    """Pairs of rows ``(N, D)`` that attacks are fitted on; statistics and kernels are calculated once for all of them.

    ``original`` is None where there is protected speech alone; ``views``, see :func:`choose_views_by_spread`.
    """

    def __init__(
        self,
        original: Tensor | None,
        protected: Tensor,
        speakers: Tensor,
        views: Sequence[RowNormalisation] | None = None,
    ) -> None:
        super().__init__()
        self.protected = unit_rows(protected.detach())
        self.original = self.protected if original is None else unit_rows(original.detach())
        names, self.speaker_index = speakers.unique(return_inverse=True)
        self.num_speakers = len(names)
        self.views = tuple(choose_views_by_spread(self.original, self.protected) if views is None else views)

    def normalisation(self, side: SideName, view: RowNormalisation) -> RowMap:
        """Return the normalisation of ``"original"`` or ``"protected"`` rows."""
        return self.get_or_make((side, view), lambda: fit_normalisation(getattr(self, side), view))

    def rows(self, side: SideName, view: RowNormalisation, max_rows: int | None = None) -> Tensor:
        """Return the normalised rows of a side, or ``max_rows`` of them, the same ones in any order."""
        rows = self.get_or_make((side, view, "rows"), lambda: self.normalisation(side, view)(getattr(self, side)))
        if max_rows is None:
            return rows
        order = self.get_or_make("order", lambda: row_sort_keys(self.protected).argsort(stable=True))
        return rows[take_evenly(order, max_rows)]

    def statistics(self, view: RowNormalisation) -> PairStatistics:
        """Return means and covariances of normalised rows."""
        columns = self.rows("original", view), self.rows("protected", view), self.speaker_index
        return self.get_or_make((view, "statistics"), lambda: PairStatistics(*columns, self.num_speakers))


class MomentSums(NamedTuple):
    """Sums over observed pairs of unit length: any number of utterances in the same memory.

    Moments of two sets add up to moments, so that batches and processes are merged by addition.
    """

    names: Tensor  # (S,) speakers, ascending
    counts: Tensor  # (S,) utterances
    sums: Tensor  # (S, 2 D) of original and protected rows, side by side
    products: Tensor  # (2 D, 2 D)

    def statistics(self) -> PairStatistics:
        """Return means and covariances."""
        count, width = max(1, int(self.counts.sum())), self.sums.shape[1] // 2
        mean = self.sums.sum(0) / count
        covariance = self.products / count - mean[:, None] * mean
        means = (self.sums / self.counts[:, None].clamp(min=1) - mean)[:, width:]
        statistics = PairStatistics(mean[None, :width], mean[None, width:], self.counts, 0)
        # The span of few utterances does not follow from moments: all directions are kept.
        statistics.num_rows = max(count, 1 + width)
        statistics.oo, statistics.pp = covariance[:width, :width], covariance[width:, width:]
        statistics.po = covariance[width:, :width]
        statistics.weighted_speaker_means = means * (self.counts / count).sqrt()[:, None]
        return statistics


def measure_moments(original: Tensor, protected: Tensor, speakers: Tensor) -> MomentSums:
    """Return the moments of pairs ``(B, D)``."""
    names, index, counts = speakers.to(torch.int64).unique(return_inverse=True, return_counts=True)
    wide, width = wide_dtype(original.device), original.shape[1]
    sums = torch.zeros(len(names), 2 * width, dtype=wide, device=original.device)
    products = sums.new_zeros(2 * width, 2 * width)
    for some in torch.arange(len(original), device=original.device).split(_ROWS_AT_ONCE):
        rows = torch.cat([unit_rows(original[some].detach()), unit_rows(protected[some].detach())], dim=1)
        sums.index_add_(0, index[some], rows)
        products += rows.T @ rows
    return MomentSums(names, counts.to(wide), sums, products)


def add_moment_sums(parts: Sequence[MomentSums]) -> MomentSums:
    """Return the moments of several sets together: speakers in two sets count as one."""
    names, index = torch.cat([part.names for part in parts]).unique(return_inverse=True)
    counts = torch.cat([part.counts for part in parts])
    sums = torch.cat([part.sums for part in parts])
    return MomentSums(
        names,
        counts.new_zeros(len(names)).index_add(0, index, counts),
        sums.new_zeros(len(names), sums.shape[1]).index_add(0, index, sums),
        torch.stack([part.products for part in parts]).sum(0),
    )
