"""The beta-binomial distribution fitted to a rank histogram."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._util.dtypes import result_dtype, widen
from vpmetrics._util.validation import check_histogram_shape

# Natural logarithms of the smallest and largest alpha and beta tried. Beyond, the distribution has
# reached its limits: a mixture of the first and the last rank below, a binomial above.
_LOWEST = -24.0
_HIGHEST = 16.0
_GRID = 41
_ZOOMS = 3
_BISECTIONS = 36
# scale from which the spacing of groups of offsets grows, as log1p(offset / 256)
_RESOLUTION = 256.0


class BetaBinomialFit(NamedTuple):
    """A beta-binomial over ranks: ``probabilities (..., N)``, ``alpha (...)``, ``beta (...)``."""

    probabilities: Tensor
    alpha: Tensor
    beta: Tensor


class _Tails(NamedTuple):
    """Tails of a distribution over 0 ... n, at the offsets 0 ... n - 1 or groups of them."""

    offset: Tensor  # (n,)
    weight: Tensor  # (n,), how many offsets
    above: Tensor  # (..., n), weight times P(k > offset)
    below: Tensor  # (..., n), weight times P(k < n - offset)


def fit_beta_binomial(histogram: Tensor) -> BetaBinomialFit:
    r"""Fit a beta-binomial distribution of the rank by maximum likelihood.

    The share at rank 1 is kept.

    .. math::
        \gamma_{k+1} = \binom{n}{k} \frac{B(k + \alpha,\, n - k + \beta)}{B(\alpha, \beta)}, \quad
        n = N - 1, \qquad
        (\alpha, \beta) = \arg\max \sum_j h_j \ln \gamma_j \ \text{ subject to } \ \gamma_1 = h_1

    where :math:`h` is the histogram divided by its sum. The first rank discloses most, so the fit
    smooths only the others. Without an input at rank 1 there is no constraint; with every input
    there, the fit is that point mass (``alpha`` 0, ``beta`` infinite). The last of three Newton
    steps carries the gradient, by the implicit function theorem. No GPU synchronisation.

    Args:
        histogram: Counts or shares of the ranks 1 ... N, shape ``(..., N)``; leading dimensions are
            separate fits.

    Returns:
        ``BetaBinomialFit(probabilities (..., N), alpha (...), beta (...))``; NaN where the
        histogram is empty, has fewer than two ranks, or holds NaN or a negative count.
        Differentiable in the histogram.

    Example:
        >>> fit = fit_beta_binomial(torch.tensor([40.0, 20.0, 10.0, 10.0]))
        >>> fit.probabilities
        tensor([0.5000, 0.2259, 0.1573, 0.1167])
    """
    check_histogram_shape(histogram)
    counts = widen(histogram)
    counts = torch.where((counts < 0).any(dim=-1, keepdim=True), torch.nan, counts)
    shares = counts / counts.sum(dim=-1, keepdim=True)
    n = shares.shape[-1] - 1
    dtype = result_dtype(histogram)
    if n < 1:
        undefined = shares.new_full(shares.shape[:-1], torch.nan, dtype=dtype)
        return BetaBinomialFit(
            torch.full_like(shares, torch.nan, dtype=dtype), undefined, undefined
        )
    rank_one_share = shares[..., 0]
    is_certain = rank_one_share >= 1
    # A harmless stand-in where no fit is needed, so that no NaN enters the gradient of the others.
    is_usable = torch.isfinite(rank_one_share) & ~is_certain
    fitted = torch.where(is_usable.unsqueeze(-1), shares, 1 / (n + 1))
    with torch.no_grad():
        log_a, log_b = _search_grid(fitted)
        for _ in range(2):
            log_a, log_b = _improve_by_newton(fitted, log_a, log_b)
    log_a, log_b = _improve_by_newton(fitted, log_a, log_b)
    probabilities = torch.softmax(_log_probabilities(log_a, log_b, n), dim=-1)
    point = pad(torch.ones_like(shares[..., :1]), (0, n))
    otherwise = torch.where(is_certain.unsqueeze(-1), point, torch.nan)
    probabilities = torch.where(is_usable.unsqueeze(-1), probabilities, otherwise)
    undefined = torch.where(is_certain, 0.0, torch.nan).to(shares.dtype)
    alpha = torch.where(is_usable, log_a.exp(), undefined)
    beta = torch.where(is_usable, log_b.exp(), undefined + torch.inf)
    return BetaBinomialFit(probabilities.to(dtype), alpha.to(dtype), beta.to(dtype))


def _log_probabilities(log_a: Tensor, log_b: Tensor, n: int) -> Tensor:
    """Return the log probabilities of 0, 1, ..., n up to a constant, ``(..., n + 1)``.

    ``log_a``, ``log_b`` ``(...)``: ln alpha and ln beta.

    Sums of the logarithms of consecutive ratios, because differences of log-gammas cancel for large
    parameters.
    """
    i = torch.arange(n, dtype=log_a.dtype, device=log_a.device)
    alpha = log_a.exp().unsqueeze(-1)
    beta = log_b.exp().unsqueeze(-1)
    ratios = (alpha + i).log() - (beta + (n - 1 - i)).log() + ((n - i) / (i + 1)).log()
    return pad(ratios.cumsum(dim=-1), (1, 0))


def _tails_of_shares(shares: Tensor) -> _Tails:
    offset = torch.arange(shares.shape[-1] - 1, dtype=shares.dtype, device=shares.device)
    above = shares.flip(-1).cumsum(dim=-1)[..., :-1].flip(-1)
    below = shares.cumsum(dim=-1)[..., :-1].flip(-1)
    return _Tails(offset, torch.ones_like(offset), above, below)


def _coarsen_tails(tails: _Tails) -> _Tails:
    """Approximate tails by groups of neighbouring offsets, the larger the farther.

    1,000 groups for 10,000 ranks.
    """
    group = (_RESOLUTION * (tails.offset / _RESOLUTION).log1p()).ceil().long()
    length = int(_RESOLUTION * math.log1p((len(group) - 1) / _RESOLUTION)) + 2

    def sum_groups(values: Tensor) -> Tensor:
        return values.new_zeros(*values.shape[:-1], length).index_add(-1, group, values)

    weight = sum_groups(tails.weight)
    mean_offset = sum_groups(tails.offset) / weight.clamp(min=1)
    return _Tails(mean_offset, weight, sum_groups(tails.above), sum_groups(tails.below))


def _log_likelihood(tails: _Tails, log_a: Tensor, log_b: Tensor) -> Tensor:
    """Return the mean of ln gamma without the binomial coefficients.

    Rising factorials, factor by factor.
    """
    alpha = log_a.exp().unsqueeze(-1)
    beta = log_b.exp().unsqueeze(-1)
    from_above = tails.above * (alpha + tails.offset).log()
    from_below = tails.below * (beta + tails.offset).log()
    total = tails.weight * (alpha + beta + tails.offset).log()
    return (from_above + from_below - total).sum(dim=-1)


class _Derivatives(NamedTuple):
    """Derivatives of a log-likelihood in ln alpha (a) and ln beta (b), ``(...)``."""

    a: Tensor
    b: Tensor
    aa: Tensor
    ab: Tensor
    bb: Tensor


def _derive_log_likelihood(tails: _Tails, log_a: Tensor, log_b: Tensor) -> _Derivatives:
    alpha = log_a.exp().unsqueeze(-1)
    beta = log_b.exp().unsqueeze(-1)
    # d ln(alpha + i) / d ln alpha and its like; the derivative of such a share s is s (1 - s).
    of_a = alpha / (alpha + tails.offset)
    of_b = beta / (beta + tails.offset)
    sum_a = alpha / (alpha + beta + tails.offset)
    sum_b = beta / (alpha + beta + tails.offset)
    return _Derivatives(
        a=(tails.above * of_a - sum_a).sum(dim=-1),
        b=(tails.below * of_b - sum_b).sum(dim=-1),
        aa=(tails.above * of_a * (1 - of_a) - sum_a * (1 - sum_a)).sum(dim=-1),
        ab=(sum_a * sum_b).sum(dim=-1),
        bb=(tails.below * of_b * (1 - of_b) - sum_b * (1 - sum_b)).sum(dim=-1),
    )


def _search_grid(shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best (ln alpha, ln beta) of a grid for each histogram.

    The grid over alpha is narrowed around the best.
    """
    first_share = shares[..., :1]
    tails = _coarsen_tails(_tails_of_shares(shares.unsqueeze(-2)))
    centre = torch.full_like(first_share, (_LOWEST + _HIGHEST) / 2)
    width = (_HIGHEST - _LOWEST) / 2
    steps = torch.linspace(-1, 1, _GRID, dtype=shares.dtype, device=shares.device)
    for _ in range(_ZOOMS):
        log_a = (centre + width * steps).clamp(_LOWEST, _HIGHEST)
        log_b = _beta_for_first_share(log_a, first_share, tails)
        best = _log_likelihood(tails, log_a, log_b).argmax(dim=-1, keepdim=True)
        centre = log_a.gather(-1, best)
        width = width * 2 / (_GRID - 1)
    return centre.squeeze(-1), log_b.gather(-1, best).squeeze(-1)


def _beta_for_first_share(log_a: Tensor, first_share: Tensor, tails: _Tails) -> Tensor:
    """Return the ln beta that gives rank 1 its share.

    Where that share is 0, it is the likeliest one.
    """
    alpha = log_a.exp().unsqueeze(-1)
    has_first_rank = first_share > 0
    low = torch.full_like(log_a, 2 * _LOWEST)
    high = torch.full_like(log_a, 2 * _HIGHEST)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        beta = middle.exp().unsqueeze(-1)
        log_first = -(tails.weight * torch.log1p(alpha / (beta + tails.offset))).sum(dim=-1)
        rise = tails.below / (beta + tails.offset) - tails.weight / (alpha + beta + tails.offset)
        is_too_high = torch.where(
            has_first_rank, log_first > first_share.log(), rise.sum(dim=-1) < 0
        )
        low = torch.where(is_too_high, low, middle)
        high = torch.where(is_too_high, middle, high)
    return (low + high) / 2


def _improve_by_newton(shares: Tensor, log_a: Tensor, log_b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return ln alpha and ln beta after one Newton step.

    It goes to the conditions of the optimum, from a point close to it.

    The conditions are the constraint :math:`c = \ln \gamma_1 - \ln h_1 = 0` and, along the curve on
    which it holds, no slope of the likelihood. Without the constraint the curve is the ridge on
    which beta is likeliest. The histogram enters the values of the conditions and the point does
    not, so the derivative of the step is that of the optimum.
    """
    has_first_rank = shares[..., 0] > 0
    only_first_rank = pad(torch.ones_like(shares[..., :1]), (0, shares.shape[-1] - 1))
    tails_of_first = _tails_of_shares(only_first_rank)
    # Of the likelihood, and of the logarithm of the first rank's probability.
    likelihood = _derive_log_likelihood(_tails_of_shares(shares), log_a, log_b)
    first_rank = _derive_log_likelihood(tails_of_first, log_a, log_b)
    log_first_share = torch.where(has_first_rank, shares[..., 0], 1.0).log()
    gap = _log_likelihood(tails_of_first, log_a, log_b) - log_first_share
    with torch.no_grad():
        multiplier = torch.where(has_first_rank, likelihood.b / first_rank.b, 0.0)
        aa = likelihood.aa - multiplier * first_rank.aa
        ab = likelihood.ab - multiplier * first_rank.ab
        bb = likelihood.bb - multiplier * first_rank.bb
        # How beta follows alpha along the curve, and how the likelihood bends along it.
        follow = torch.where(has_first_rank, -first_rank.a / first_rank.b, -ab / bb)
        bend = aa + 2 * follow * ab + follow.square() * bb
        # With two ranks the constraint alone decides, and the likelihood is constant along the
        # curve.
        is_curved = (bend < 0) & (shares.shape[-1] > 2)
        bend = torch.where(is_curved, bend, -torch.inf)
    onto_curve = torch.where(has_first_rank, -gap / first_rank.b, -likelihood.b / bb)
    slope_along = likelihood.a + follow * likelihood.b + (ab + follow * bb) * onto_curve
    along = -slope_along / bend
    # Alpha stays where it is if it ran into the end of the grid, or if the step is not the small
    # one it should be.
    is_inside = (log_a > _LOWEST + 1e-6) & (log_a < _HIGHEST - 1e-6)
    along = torch.where(is_inside & (along.abs() < 0.05), along, 0.0)
    return log_a + along, log_b + follow * along + onto_curve
