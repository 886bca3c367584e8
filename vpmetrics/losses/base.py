"""What losses have in common: what they are called with, and what they guard against."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchmetrics.utilities import rank_zero_warn

from vpmetrics._checks import check_embeddings, check_floating, check_integers, check_same_device, check_shape
from vpmetrics._precision import at_least_float32
from vpmetrics.losses.pairs import equal

_LONGEST_GRADIENT = 10.0  # of embeddings of length 1, all rows together; a tenth of it is rare
_SHORTEST = 1e-2  # mean length below which the gradient may not grow further


class Batch(NamedTuple):
    """What a loss sees: embeddings ``(B, D)`` of both sides, speaker and session of each row, ``(B,)``."""

    original: Tensor
    protected: Tensor
    speakers: Tensor
    sessions: Tensor | None


class EmbeddingLoss(nn.Module):
    """A loss of a batch of embeddings; a subclass says in ``measure`` what it is."""

    def __init__(self) -> None:
        super().__init__()
        self._batches, self._useless, self._warned = 0, torch.zeros((), dtype=torch.long), False

    def forward(self, original: Tensor, protected: Tensor, speakers: Tensor, sessions: Tensor | None = None) -> Tensor:
        """The loss of a batch, a scalar.

        Args:
            original: Floating embeddings of shape ``(B, D)``.
            protected: Those of the anonymised versions, row by row.
            speakers: Integer speaker of each row, ``(B,)``.
            sessions: Integer session of each row, ``(B,)``: a speaker's utterances of one session share a key.
        """
        _check(original, protected, speakers, sessions)
        self._watch(speakers)
        if len(speakers) < 2:
            return _zero(original, protected)
        with torch.autocast(protected.device.type, enabled=False):
            bounded = _Bounded.apply(protected)  # type: ignore[no-untyped-call]
            return self.measure(Batch(original, bounded, speakers, sessions))

    def measure(self, batch: Batch) -> Tensor:
        """The value for a batch that was checked, of two rows or more."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define `measure`.")

    def _watch(self, speakers: Tensor) -> None:
        """Say once that batches train nothing; of the device, only the first, second, fourth, ... batch asks."""
        if self._warned or torch.compiler.is_compiling():
            return
        same = equal(speakers)
        pairs = same.sum() - len(speakers)
        self._useless = self._useless.to(speakers.device) + ((pairs == 0) | same.all())
        self._batches += 1
        if self._batches & (self._batches - 1) == 0 and 10 * int(self._useless) >= self._batches:
            self._warned = True
            rank_zero_warn(
                f"{int(self._useless)} of {self._batches} batches so far had no two utterances of one speaker, or no "
                "second speaker; such a batch trains nothing. `vpmetrics.data.SpeakerBatchSampler` draws others.",
                UserWarning,
                stacklevel=7,  # the line that calls the loss, past those of nn.Module
            )


class _Bounded(torch.autograd.Function):
    """Embeddings as they are, whose gradient is shortened where scores are nearly tied and it would have no bound."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        ctx.save_for_backward(embeddings)
        return embeddings.view_as(embeddings)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (embeddings,) = ctx.saved_tensors
        length = at_least_float32(embeddings).norm(dim=1).mean().clamp(min=_SHORTEST)
        norm = at_least_float32(gradient).norm() * length
        shortened: Tensor = gradient * (_LONGEST_GRADIENT / norm.clamp(min=_LONGEST_GRADIENT)).to(gradient.dtype)
        return shortened


def _check(original: Any, protected: Any, speakers: Any, sessions: Any) -> None:
    check_floating("original", original)
    check_floating("protected", protected)
    check_embeddings(original, protected, speakers)
    if sessions is not None:
        check_integers("sessions", sessions)
        check_shape("sessions", sessions, (len(speakers),), "one per row of `original`")
        check_same_device("original", original, "sessions", sessions)


def _zero(*graphs: Tensor) -> Tensor:
    """Zero that leads back to the inputs, whatever they hold."""
    return torch.stack([at_least_float32(graph[:0]).sum() for graph in graphs]).sum()
