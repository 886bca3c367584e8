"""Attackers to train against: linear maps from protected back to original speech, without a look at the device.

The battery of :mod:`vpmetrics.attacks` chooses its settings by what works on speakers left out, and reads the device to
do so. An attacker met in every training step has one setting and is fitted by two Cholesky factors. Gradients pass
through what is attacked, never through how the attacker came to their map.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from vpmetrics._precision import at_least_float32, widen
from vpmetrics.losses.pairs import directions, equal

_RIDGE = 1e-4  # of the mean of the diagonal, after many batches: directions that vary little give most away
_RIDGE_IN_BATCH = 1e-3  # within a batch, which has fewer rows than dimensions
_RIDGE_OF_TARGET = 1e-2  # of the original side, where it is whitened
_DECAY = 0.95  # what the past weighs, batch by batch: about 20 of them count
_ENOUGH = 8  # batches the past must weigh before it is used, as it does after ten


class View(NamedTuple):
    """Both sides ``(B, D)`` as an attacker compares them by cosine, and which pairs ``(B, B)`` of rows they may."""

    original: Tensor
    protected: Tensor
    counted: Tensor | None = None


class Covariances(NamedTuple):
    """Number of pairs of utterances, their means ``(D,)`` and covariances ``(D, D)``."""

    seen: Tensor
    mean_o: Tensor
    mean_p: Tensor
    oo: Tensor
    pp: Tensor
    po: Tensor

    def suffice(self, rows: int) -> Tensor:
        """Whether they come from many more pairs than a batch has, on the device."""
        return self.seen >= _ENOUGH * rows


class Past(nn.Module):
    """Moments of past batches as a running sum in a buffer. It is not saved: some ten batches fill it anew."""

    moments: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("moments", None, persistent=False)

    def observe(self, original: Tensor, protected: Tensor) -> None:
        """Add a batch that is trained on; validation is not to be learnt from."""
        if not (self.training and torch.is_grad_enabled() and protected.requires_grad):
            return
        batch = _moments(original, protected)
        old = torch.zeros_like(batch) if self.moments is None or self.moments.shape != batch.shape else self.moments
        # A batch with a NaN shows in the loss; it must not stay for ever.
        self.moments = torch.where(batch.isfinite().all(), _DECAY * old.to(batch) + batch, old.to(batch))

    def covariances(self, protected: Tensor) -> Covariances | None:
        """Of the batches so far; None before the first, or when embeddings have another width than they had."""
        if self.moments is None or len(self.moments) != 1 + 2 * protected.shape[1]:
            return None
        return _covariances(widen(self.moments.to(protected.device)))


def attack_by_past(past: Covariances, original: Tensor, protected: Tensor) -> View:
    """Ridge regression of whitened original on protected speech, fitted on past batches, once these suffice."""
    map_o, map_p = _ridge(past, _RIDGE)
    enough = past.suffice(len(protected)).expand(len(protected), len(protected))
    return View(_map(original, past.mean_o, map_o), _map(protected, past.mean_p, map_p), enough)


def attack_by_halves(original: Tensor, protected: Tensor, speakers: Tensor) -> View:
    """The same, fitted on one half of the speakers of the batch and used on the other, both ways."""
    in_first = _choose_half(original, speakers)
    found = []
    for fitted_on in (in_first, ~in_first):
        pairs = _covariances(_moments(original, protected, fitted_on))
        map_o, map_p = _ridge(pairs, _RIDGE_IN_BATCH)
        found.append((_map(original, pairs.mean_o, map_o), _map(protected, pairs.mean_p, map_p)))
    o, p = (torch.where(in_first[:, None], second, first) for first, second in zip(*found, strict=True))
    return View(o, p, equal(in_first))


def shine_through(past: Covariances, protected: Tensor, speakers: Tensor, sessions: Tensor) -> Tensor:
    r"""Share of the variance that lies within sessions, averaged over all directions, small ones and large ones.

    .. math:: \frac{1}{B D} \sum_l (p_l - \bar p_l)^\top C^{-1} (p_l - \bar p_l)

    with :math:`\bar p_l` the mean of the utterance's session and :math:`C` the covariance of protected speech, by past
    batches. Within a session key and speaker stay, so what varies comes from the utterance: where little does, the
    anonymiser looks at the key and not at what it is to hide.
    """
    together = (equal(speakers) & equal(sessions)).to(past.pp.dtype)
    rows = widen(protected)
    apart = rows - (together / together.sum(1, keepdim=True)) @ rows
    white: Tensor = torch.linalg.solve_triangular(_cholesky(past.pp, _RIDGE), apart.T, upper=False)
    return torch.where(past.suffice(len(rows)), white.square().mean(), 0)


def _moments(original: Tensor, protected: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Products of rows ``(1, o, p)`` with themselves, ``(1 + 2 D, 1 + 2 D)``: count, sums and products at once."""
    rows = pad(torch.cat([widen(original.detach()), widen(protected.detach())], dim=1), (1, 0), value=1.0)
    return rows.T @ (rows if chosen is None else rows * chosen[:, None])


def _covariances(moments: Tensor) -> Covariances:
    width = len(moments) // 2
    count = moments[0, 0].clamp(min=1)
    mean = moments[0, 1:] / count
    square = moments[1:, 1:] / count - mean[:, None] * mean
    oo, pp, po = square[:width, :width], square[width:, width:], square[width:, :width]
    return Covariances(moments[0, 0], mean[:width], mean[width:], oo, pp, po)


def _ridge(found: Covariances, ridge: float) -> tuple[Tensor, Tensor]:
    """Maps of both sides: original speech is whitened, and predicted so from protected speech."""
    factor = _cholesky(found.oo, _RIDGE_OF_TARGET)
    white = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False).T
    return white, torch.cholesky_solve(found.po @ white, _cholesky(found.pp, ridge))


def _cholesky(covariance: Tensor, ridge: float) -> Tensor:
    """Of a covariance with a ridge; `cholesky_ex`, for the other one forces a GPU sync to look for errors."""
    variance = covariance.diagonal().mean()
    least = torch.finfo(covariance.dtype).eps ** 2  # of constant embeddings, which are mapped to nothing
    added = ridge * variance.clamp(min=least) * torch.ones_like(covariance[0])
    factor: Tensor = torch.linalg.cholesky_ex(covariance + added.diag()).L
    return factor


def _map(rows: Tensor, mean: Tensor, matrix: Tensor) -> Tensor:
    rows = at_least_float32(rows)
    return (rows - mean.to(rows)) @ matrix.to(rows)


def _choose_half(original: Tensor, speakers: Tensor) -> Tensor:
    """Every other speaker, ``(B,)``, by an order that comes from the embeddings: no label and no row has a say."""
    same = equal(speakers).to(torch.float64 if original.device.type != "mps" else torch.float32)
    size = same.sum(1)
    place = torch.arange(1, original.shape[1] + 1, device=original.device, dtype=same.dtype)
    key = same @ (directions(original.detach()).to(same) @ place.cos()) / size
    rank = ((key < key[:, None]) / size).sum(1).round().long()
    return rank % 2 == 0
