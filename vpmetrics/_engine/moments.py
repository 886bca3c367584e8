"""What attacks are fitted on: rows of unit length, means and covariances of pairs, and moments of observed batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from vpmetrics._engine.precision import wide_dtype, widen
from vpmetrics._engine.scorers import SCORERS

T = TypeVar("T")

UNIT, CENTRED, STANDARDISED = "unit", "centred", "standardised"  # ways to normalise rows
_CONSTANT = (
    1e-6  # standard deviation of a dimension relative to its entries below which it is constant but for rounding
)
_UNEVEN = 0.4  # share of the dimensions that hold the variance below which they are also tried on one scale
_RANK = 1e-12  # of the largest eigenvalue: directions below it are rounding
_ROWS_AT_ONCE = 1 << 12  # of embeddings widened at a time
KEPT_ROWS = 1 << 9  # that are kept as they were normalised or mapped last


def unit_rows(rows: Tensor) -> Tensor:
    """Return rows of any length at unit length, in the wide dtype; rows of zeros stay zeros."""
    return SCORERS["cosine"].prepare(widen(rows))


def unit_length(rows: Tensor) -> Tensor:
    """Return rows ``(..., N, D)`` of moderate length at unit length; rows of zeros stay zeros."""
    unit: Tensor = rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    return unit


class Normalisation:
    """Length normalisation of one side: unit length, then centred and scaled where that is fitted, and unit length.

    The rows normalised last are kept, since many attacks are tried on the same.
    """

    def __init__(self, centre: Tensor | None = None, scale: Tensor | None = None) -> None:
        self.centre, self.scale = centre, scale
        self._last: tuple[Tensor, int, Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return everything but the rows kept."""
        return {**self.__dict__, "_last": None}

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the rows ``(N, D)`` normalised."""
        if len(rows) > KEPT_ROWS or rows.requires_grad:
            return self._normalise(rows)
        version = 0 if rows.is_inference() else rows._version  # tensors of inference mode have none
        if self._last is None or self._last[0] is not rows or self._last[1] != version:
            self._last = rows, version, self._normalise(rows)
        return self._last[2]

    def _normalise(self, rows: Tensor) -> Tensor:
        rows = unit_rows(rows)
        if self.centre is None:
            return rows
        rows = rows - self.centre
        return unit_length(rows if self.scale is None else rows * self.scale)


def fit_normalisation(rows: Tensor, view: str) -> Normalisation:
    """Return a normalisation fitted on rows of unit length."""
    if view == UNIT or len(rows) == 0:
        return Normalisation()
    centre = rows.mean(0)
    if view == CENTRED:
        return Normalisation(centre)
    deviation = rows.std(0, correction=0)
    # A dimension that is constant but for rounding has no scale.
    is_known = deviation > _CONSTANT * rows.abs().amax(0)
    return Normalisation(centre, torch.where(is_known, 1 / deviation.clamp(min=torch.finfo(rows.dtype).tiny), 0))


def variance_spread(rows: Tensor) -> Tensor:
    """Return the effective share of dimensions among which the variance of rows of unit length is spread, in (0, 1]."""
    variance = rows.var(0, correction=0)
    return variance.sum().square() / (len(variance) * variance.square().sum()).clamp(min=torch.finfo(rows.dtype).tiny)


def choose_views(original: Tensor | None, protected: Tensor) -> tuple[str, ...]:
    """Return the ways of normalising to try: dimensions are scaled only where few of them hold most of the variance.

    The choice does not depend on labels. Waits for the device once.
    """
    sides = [side for side in (original, protected) if side is not None and len(side)]
    if not sides:
        return (CENTRED,)
    spread = torch.stack([variance_spread(side) for side in sides]).amin()
    return (CENTRED, STANDARDISED) if bool(spread < _UNEVEN) else (CENTRED,)


class Inverse(NamedTuple):
    """A map ``rows @ inv(factor).T`` with a lower triangular factor; solving takes less time than a product."""

    factor: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the rows mapped."""
        solved: Tensor = torch.linalg.solve_triangular(self.factor, rows.mT, upper=False)
        return solved.mT


Chain = tuple["Tensor | Inverse", ...]  # maps of rows, one after another: a matrix, a vector of weights, or an inverse


def apply_chain(rows: Tensor, chain: Chain) -> Tensor:
    """Return rows ``(N, D)`` after one map after another, in their own type."""
    for step in chain:
        if isinstance(step, Inverse):
            rows = Inverse(step.factor.to(rows))(rows)
        else:
            rows = rows @ step.to(rows) if step.dim() == 2 else rows * step.to(rows)
    return rows


class PairStatistics:
    """Means and covariances of pairs of original and protected rows, and what is derived from them, calculated once.

    ``oo``, ``pp``, ``po`` ``(D, D)`` are covariances over utterances, ``po`` of protected with original rows;
    ``within_pp`` is that about the means of speakers. ``means_p`` ``(S, D)``: the means of protected speakers about
    that of all, each times the root of its share of the utterances, so that their products are the covariance between
    them.
    """

    def __init__(self, mean_o: Tensor, mean_p: Tensor, make: Callable[[str], Tensor], num_rows: int) -> None:
        self.mean_o, self.mean_p, self.num_rows, self._make = mean_o, mean_p, num_rows, make
        self._cache: dict[Any, Any] = {}

    @classmethod
    def of_rows(cls, original: Tensor, protected: Tensor, speaker_index: Tensor, num_speakers: int) -> PairStatistics:
        """Return the statistics of rows ``(N, D)`` and of speakers ``0 ... num_speakers - 1``."""
        count = max(1, len(protected))
        mean_o, mean_p = original.sum(0) / count, protected.sum(0) / count
        sides = {"o": original - mean_o, "p": protected - mean_p}

        def make(name: str) -> Tensor:
            if name == "means_p":
                sums = mean_p.new_zeros(num_speakers, len(mean_p)).index_add(0, speaker_index, sides["p"])
                numbers = mean_p.new_zeros(num_speakers).index_add(0, speaker_index, sums.new_ones(len(protected)))
                return sums / (numbers * count).clamp(min=1).sqrt()[:, None]
            if name.startswith("span"):
                return _span(sides[name[-1]])
            return sides[name[0]].T @ sides[name[1]] / count

        return cls(mean_o, mean_p, make, count)

    @property
    def oo(self) -> Tensor:
        """Covariance of original rows."""
        return self.keep("oo", lambda: self._make("oo"))

    @property
    def pp(self) -> Tensor:
        """Covariance of protected rows."""
        return self.keep("pp", lambda: self._make("pp"))

    @property
    def po(self) -> Tensor:
        """Covariance of protected with original rows."""
        return self.keep("po", lambda: self._make("po"))

    @property
    def means_p(self) -> Tensor:
        """Weighted means of protected speakers."""
        return self.keep("means_p", lambda: self._make("means_p"))

    @property
    def within_pp(self) -> Tensor:
        """Covariance of protected rows about the means of their speakers."""
        return self.keep("within", lambda: self.pp - self.means_p.T @ self.means_p)

    def keep(self, key: Any, make: Callable[[], T]) -> T:
        """Return what ``make`` returned the first time."""
        if key not in self._cache:
            self._cache[key] = make()
        value: T = self._cache[key]
        return value

    def span(self, side: str) -> Chain:
        """Return a map to coordinates without directions that never vary: none where the rows are more than these."""
        if self.num_rows > len(self.mean_p):
            variance = getattr(self, 2 * side).diagonal()
            return ((variance > _RANK * variance.mean()).to(variance),)
        return (self.keep(f"span {side}", lambda: self._make(f"span {side}")),)

    def whiten(self, name: str, ridge: float) -> Chain:
        """Return a map to coordinates in which a covariance with a ridge is the identity, by a Cholesky factor.

        Directions in which the rows do not vary are left out.

        Args:
            name: Of the covariance: ``"oo"``, ``"pp"`` or ``"within_pp"``.
            ridge: Added to the diagonal, relative to its mean.
        """
        return self.keep((name, ridge), lambda: self._whiten(name, ridge))

    def _whiten(self, name: str, ridge: float) -> Chain:
        covariance, span = getattr(self, name), self.span(name[-1])
        added = ridge * covariance.diagonal().mean() + torch.finfo(covariance.dtype).tiny
        inside = apply_chain(apply_chain(covariance, span).T, span)
        return (*span, Inverse(cholesky_with_ridge(inside, added)))

    def correlate(self, ridge: float) -> Tensor:
        """Return ``K``, the covariance of whitened protected with whitened original rows; its SVD is that of CCA."""

        def make() -> Tensor:
            half = apply_chain(self.po, self.whiten("oo", ridge))
            return apply_chain(half.T, self.whiten("pp", ridge)).T

        return self.keep(("K", ridge), make)


def cholesky_with_ridge(matrix: Tensor, added: Tensor | float) -> Tensor:
    """Return the lower Cholesky factor of a symmetric matrix with a number added to its diagonal."""
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    factor: Tensor = torch.linalg.cholesky_ex(matrix + added * eye).L
    return factor


def _span(rows: Tensor) -> Tensor:
    """Return an orthonormal basis ``(D, d)`` of the span of centred rows, which are no more than dimensions."""
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    kept = values > _RANK * values.amax().clamp(min=torch.finfo(rows.dtype).tiny)
    basis: Tensor = rows.T @ (vectors[:, kept] * values[kept].rsqrt())
    return basis


class TrainingPairs:
    """Pairs of utterances that attacks are fitted on; statistics and kernels are calculated once for all of them.

    Args:
        original: Rows ``(N, D)``; None where there is protected speech alone.
        protected: Rows of the same recordings.
        speakers: Integer speaker of each row.
        views: Ways of normalising rows that are tried, see :func:`choose_views`.
    """

    def __init__(
        self, original: Tensor | None, protected: Tensor, speakers: Tensor, views: Sequence[str] | None = None
    ) -> None:
        self.has_pairs = original is not None
        self.protected = unit_rows(protected.detach())
        self.original = self.protected if original is None else unit_rows(original.detach())
        names, self.speaker_index = speakers.unique(return_inverse=True)
        self.num_speakers = len(names)
        self.views = tuple(choose_views(self.original, self.protected) if views is None else views)
        self._cache: dict[Any, Any] = {}

    def keep(self, key: Any, make: Callable[[], T]) -> T:
        """Return what ``make`` returned the first time."""
        if key not in self._cache:
            self._cache[key] = make()
        value: T = self._cache[key]
        return value

    def normalisation(self, side: str, view: str) -> Normalisation:
        """Return the normalisation of ``"original"`` or ``"protected"`` rows."""
        return self.keep((side, view), lambda: fit_normalisation(getattr(self, side), view))

    def rows(self, side: str, view: str) -> Tensor:
        """Return the rows of a side, normalised."""
        return self.keep((side, view, "rows"), lambda: self.normalisation(side, view)(getattr(self, side)))

    def statistics(self, view: str) -> PairStatistics:
        """Return means and covariances of normalised rows."""

        def make() -> PairStatistics:
            original, protected = self.rows("original", view), self.rows("protected", view)
            return PairStatistics.of_rows(original, protected, self.speaker_index, self.num_speakers)

        return self.keep((view, "statistics"), make)


@dataclass(frozen=True)
class Moments:
    """Sums over observed pairs of unit length: any number of utterances in the same memory.

    Moments of two sets add up to moments, so that batches and processes are merged by addition.
    """

    names: Tensor  # (S,) speakers, ascending
    counts: Tensor  # (S,) utterances
    sums: Tensor  # (S, 2 D) of original and protected rows, side by side
    products: Tensor  # (2 D, 2 D)

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both sets together."""
        return merge_moments([self, other])

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all fields, to be stored or sent; ``Moments(*tensors)`` undoes it."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def width(self) -> int:
        """Width of the embeddings."""
        return self.sums.shape[1] // 2

    def statistics(self) -> PairStatistics:
        """Return means and covariances."""
        count = int(self.counts.sum())
        mean = self.sums.sum(0) / max(1, count)
        covariance = self.products / max(1, count) - mean[:, None] * mean
        width = self.width
        means = (self.sums / self.counts[:, None].clamp(min=1) - mean)[:, width:]
        means_p = means * (self.counts / max(1, count)).sqrt()[:, None]
        parts = {"oo": covariance[:width, :width], "pp": covariance[width:, width:], "po": covariance[width:, :width]}
        parts["means_p"] = means_p
        # Few utterances have no span that moments could tell: all directions are left in.
        return PairStatistics(mean[:width], mean[width:], parts.__getitem__, max(count, 1 + width))


def measure_moments(original: Tensor, protected: Tensor, speakers: Tensor) -> Moments:
    """Return the moments of pairs ``(B, D)``."""
    names, index, counts = speakers.to(torch.int64).unique(return_inverse=True, return_counts=True)
    wide, width = wide_dtype(original.device), original.shape[1]
    sums = torch.zeros(len(names), 2 * width, dtype=wide, device=original.device)
    products = sums.new_zeros(2 * width, 2 * width)
    for some in torch.arange(len(original), device=original.device).split(_ROWS_AT_ONCE):
        rows = torch.cat([unit_rows(original[some].detach()), unit_rows(protected[some].detach())], dim=1)
        sums.index_add_(0, index[some], rows)
        products += rows.T @ rows
    return Moments(names, counts.to(wide), sums, products)


def merge_moments(parts: Sequence[Moments]) -> Moments:
    """Return the moments of several sets together."""
    names, index = torch.cat([part.names for part in parts]).unique(return_inverse=True)
    counts = torch.cat([part.counts for part in parts])
    sums = torch.cat([part.sums for part in parts])
    return Moments(
        names,
        counts.new_zeros(len(names)).index_add(0, index, counts),
        sums.new_zeros(len(names), sums.shape[1]).index_add(0, index, sums),
        torch.stack([part.products for part in parts]).sum(0),
    )
