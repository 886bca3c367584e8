"""Linear attackers to train against, and the variance within sessions.

Both follow from running moments of unit rows.

The attacks of :mod:`vpmetrics.attacks` choose their settings by cross-validation, which forces GPU
syncs. An attacker that runs in every training step has one setting. Gradients pass through the rows
attacked, never through the fit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from vpmetrics._util.dtypes import widen
from vpmetrics.attacks.moments import cholesky_plus_diagonal, solve_lower
from vpmetrics.losses.embedding_loss import match_labels

# Ridges as shares of the mean variance. They are low, because directions of low variance disclose
# most.
_RIDGE = 1e-4
_BATCH_RIDGE = 1e-3  # within a batch, which has fewer rows than dimensions
_ORIGINAL_RIDGE = 1e-2  # of the original side, which is whitened
_SESSION_RIDGE = 1e-6
_DECAY = 0.95  # of the moments per batch: about 20 batches count
_MIN_BATCHES = 8  # smallest weight of past batches that are used, reached after ten batches

SidesAndTrialMask = tuple[Tensor, Tensor, Tensor]
"""Both sides ``(B, D)`` as an attacker compares them by cosine, and a mask ``(B, B)`` of the pairs
that are trials.
"""


class Covariances(NamedTuple):
    """Number of pairs of rows, means ``(D,)`` of both sides, and covariances ``(D, D)``."""

    num_pairs: Tensor
    first_mean: Tensor
    second_mean: Tensor
    of_first: Tensor
    of_second: Tensor
    cross: Tensor  # of the second side (rows) with the first (columns)


class RunningMoments(nn.Module):
    """Moments of pairs of rows, as a decaying sum over batches.

    They are not saved: some ten batches restore them.
    """

    moments: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("moments", None, persistent=False)

    def observe_if_training(self, first: Tensor, second: Tensor) -> None:
        """Add a batch in training mode with gradients; otherwise do nothing."""
        if not (self.training and torch.is_grad_enabled() and second.requires_grad):
            return
        batch = _measure_moments(first, second)
        if self.moments is None or self.moments.shape != batch.shape:
            past = torch.zeros_like(batch)
        else:
            past = self.moments
        # A batch with NaN shows in the loss. It must not stay in the moments for ever.
        self.moments = torch.where(
            batch.isfinite().all(), _DECAY * past.to(batch) + batch, past.to(batch)
        )

    def compute_covariances(self, width: int, device: torch.device) -> Covariances | None:
        """Return covariances of the batches so far.

        It is None before the first, or if they have another width.
        """
        if self.moments is None or len(self.moments) != 1 + 2 * width:
            return None
        return _covariances_from_moments(widen(self.moments.to(device)))


def attack_with_past_batches(
    past: Covariances, original: Tensor, protected: Tensor
) -> SidesAndTrialMask:
    """Return original rows whitened, and predicted from protected rows.

    There are no trials before many batches have passed.
    """
    num_rows = len(protected)
    has_many_batches = past.num_pairs >= _MIN_BATCHES * num_rows
    is_counted = has_many_batches.expand(num_rows, num_rows)
    whitened, predicted = _whiten_and_predict_original(past, original, protected, _RIDGE)
    return whitened, predicted, is_counted


def attack_with_halves(original: Tensor, protected: Tensor, speakers: Tensor) -> SidesAndTrialMask:
    """Return original rows whitened, and predicted as fitted on the other half of speakers.

    Both speakers of a trial are of one half.
    """
    # The half of a speaker follows from embeddings, not from labels or row order.
    rows = widen(original.detach())
    is_same_speaker = match_labels(speakers).to(rows)
    num_rows_of_speaker = is_same_speaker.sum(1)
    column = torch.arange(1, rows.shape[1] + 1, device=rows.device, dtype=rows.dtype)
    speaker_key = is_same_speaker @ (rows @ column.cos()) / num_rows_of_speaker
    # Every row of a speaker counts as a share of that speaker.
    is_lower = speaker_key < speaker_key[:, None]
    speaker_rank = (is_lower / num_rows_of_speaker).sum(1).round().long()
    is_even = speaker_rank % 2 == 0
    by_odd = _fit_on_rows(original, protected, ~is_even)
    by_even = _fit_on_rows(original, protected, is_even)
    whitened = torch.where(is_even[:, None], by_odd[0], by_even[0])
    predicted = torch.where(is_even[:, None], by_odd[1], by_even[1])
    return whitened, predicted, match_labels(is_even)


def _fit_on_rows(
    original: Tensor, protected: Tensor, is_fitted_on: Tensor
) -> tuple[Tensor, Tensor]:
    """Return all rows whitened, and predicted, as fitted on some rows of a batch."""
    covariances = _covariances_from_moments(_measure_moments(original, protected, is_fitted_on))
    return _whiten_and_predict_original(covariances, original, protected, _BATCH_RIDGE)


def subtract_speaker_session_means(protected: Tensor, speakers: Tensor, sessions: Tensor) -> Tensor:
    """Return each row minus the mean of its speaker in its session, ``(B, D)``."""
    rows = widen(protected)
    is_together = (match_labels(speakers) & match_labels(sessions)).to(rows)
    return rows - (is_together / is_together.sum(1, keepdim=True)) @ rows


def within_session_variance_share(
    session_deviations: Tensor, protected: Tensor, past: Covariances
) -> Tensor:
    r"""Return the share of the variance that lies within sessions, a penalty.

    It is averaged over whitened directions.

    .. math::
        t = \frac{1}{D} \operatorname{tr}(C^{-1} W)

    with :math:`W` the covariance of the deviations from the mean of the session and :math:`C` that
    of protected rows, by past batches (the first and second side of ``past``); 1 until these are
    many. A batch is too small to estimate :math:`C`, but without a gradient of :math:`C` a smaller
    variance everywhere would lower the loss. So a batch enters as the derivative
    :math:`-\operatorname{tr}(C^{-1} W C^{-1} dC) / D`: stretching a direction changes nothing.
    """
    root = _factorise_with_ridge(past.of_second, _SESSION_RIDGE)
    within = solve_lower(root, session_deviations)
    rows = solve_lower(root, widen(protected) - past.second_mean)
    whitened_within = solve_lower(root, solve_lower(root, past.of_first).T)
    total = (rows @ whitened_within * rows).mean()
    share = within.square().mean() - (total - total.detach())
    return torch.where(past.num_pairs >= _MIN_BATCHES * len(protected), share, 1)


def _measure_moments(first: Tensor, second: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return products of rows ``(1, first, second)``, ``(1 + 2 D, 1 + 2 D)``.

    They hold the count, sums and products at once.
    """
    rows = pad(torch.cat([widen(first.detach()), widen(second.detach())], dim=1), (1, 0), value=1.0)
    if weights is None:
        return rows.T @ rows
    return rows.T @ (rows * weights[:, None])


def _covariances_from_moments(moments: Tensor) -> Covariances:
    width = len(moments) // 2
    count = moments[0, 0].clamp(min=1)
    mean = moments[0, 1:] / count
    square = moments[1:, 1:] / count - mean[:, None] * mean
    return Covariances(
        num_pairs=moments[0, 0],
        first_mean=mean[:width],
        second_mean=mean[width:],
        of_first=square[:width, :width],
        of_second=square[width:, width:],
        cross=square[width:, :width],
    )


def _whiten_and_predict_original(
    fitted: Covariances, original: Tensor, protected: Tensor, ridge: float
) -> tuple[Tensor, Tensor]:
    r"""Return whitened original rows, and their prediction from protected rows, ``(B, D)`` each.

    Both are in the whitened space of original rows, where an attacker compares them.

    .. math::
        z = L^{-1} (x - \bar x), \qquad
        \hat z = L^{-1} C_{yx}^\top (C_{yy} + \lambda I)^{-1} (y - \bar y), \qquad
        L L^\top = C_{xx} + \mu I

    for an original row :math:`x` and a protected row :math:`y`: a whitening, and a ridge regression
    from :math:`y` to :math:`z`.

    Args:
        fitted: Covariances :math:`C`; the first side is original, the second protected.
        original: Rows ``(B, D)``.
        protected: Rows ``(B, D)``.
        ridge: :math:`\lambda` as a share of the mean variance of protected rows.
    """
    original_root = _factorise_with_ridge(fitted.of_first, _ORIGINAL_RIDGE)  # L
    protected_root = _factorise_with_ridge(fitted.of_second, ridge)
    # The cross-covariance has protected dimensions as rows and original ones as columns.
    # `solve_lower` multiplies each row by the inverse of the root, which whitens the columns.
    whitened_cross = solve_lower(original_root, fitted.cross)
    regression = torch.cholesky_solve(whitened_cross, protected_root)
    centred_protected = protected - fitted.second_mean.to(protected)
    predicted = centred_protected @ regression.to(protected)
    centred_original = original - fitted.first_mean.to(original)
    whitened = solve_lower(original_root, centred_original)
    return whitened, predicted


def _factorise_with_ridge(covariance: Tensor, ridge: float) -> Tensor:
    """Return the lower Cholesky factor of a covariance of unit rows, with a ridge."""
    eps = torch.finfo(covariance.dtype).eps
    # The second term is rounding, for constant rows.
    added = max(ridge, math.sqrt(eps)) * covariance.diagonal().mean().clamp(min=0) + 4 * eps
    return cholesky_plus_diagonal(covariance, added)
