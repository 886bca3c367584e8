"""From audio to embeddings by the attacker's frozen encoder, which embeds the same original speech only once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torchmetrics.utilities import rank_zero_warn

SIDES = ("original", "protected")
_SILENCE = 100  # a row that ends in more zeros than 1 / _SILENCE of its length counts as padded


class FrozenEncoder:
    """An encoder without gradients, and its embeddings of the original speech of the last validation.

    Original speech is recognised by its content, sample by sample.

    Args:
        encoder: Whatever :func:`vpmetrics.audio.as_encoder` takes.
        sample_rate: Samples per second of the audio.
        dtype: Type the encoder runs in under autocast; None runs it in the type of its weights.
    """

    def __init__(self, encoder: Any, sample_rate: int | None = None, dtype: torch.dtype | None = None) -> None:
        from vpmetrics.audio import as_encoder

        self.encoder, self.dtype = as_encoder(encoder, sample_rate), dtype
        self._known: dict[int, Tensor] = {}
        self._seen: dict[int, Tensor] = {}
        self._has_warned = False

    def freeze(self, trained: Iterable[nn.Parameter]) -> None:
        """Freeze the encoder; raise if the Trainer trains its weights."""
        trained_ids = {id(weight) for weight in trained if weight.requires_grad}
        if any(id(weight) in trained_ids for weight in self.encoder.parameters()):
            raise ValueError(
                "Expected `encoder` to be an attacker of its own, but the module trains its weights. "
                "Freeze them in the module, or pass a copy."
            )
        self.encoder.requires_grad_(False)

    def begin(self, device: torch.device) -> None:
        """Prepare for a validation; forget the speech that the last one did not contain."""
        self.encoder.to(device).eval()
        self._known, self._seen = self._seen, {}

    def embed(self, arguments: dict[str, Any], device: torch.device, is_training: bool = False) -> dict[str, Any]:
        """Return the same arguments with embeddings in place of audio, and without ``lengths``.

        Args:
            arguments: ``original`` and ``protected`` hold audio: a tensor with a row per utterance and time last, or a
                sequence of tensors, one per utterance; ``lengths`` of the rows where a tensor is padded.
            device: Device of the embeddings.
            is_training: Whether this is speech of a training step, which is not remembered.
        """
        arguments = dict(arguments)
        lengths = arguments.pop("lengths", None)
        for side in SIDES:
            if arguments.get(side) is not None:
                rows = [row.to(device) for row in self._split(side, arguments[side], lengths)]
                is_remembered = side == "original" and not is_training
                arguments[side] = self._recall(rows) if is_remembered else self._run(rows)
        return arguments

    def _split(self, side: str, audio: Any, lengths: Any) -> list[Tensor]:
        """Return one tensor per utterance, as long as the utterance."""
        if isinstance(audio, Sequence) and audio and all(isinstance(row, Tensor) for row in audio):
            return list(audio)
        if not isinstance(audio, Tensor):
            raise TypeError(
                f"Expected `{side}` to be a tensor (B, ..., T) or a list of tensors, because an `encoder` was given, "
                f"but got {type(audio).__name__}."
            )
        if lengths is None:
            self._check_padding(side, audio)
            return list(audio)
        if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.shape != audio.shape[:1]:
            got = f"{lengths.dtype} {tuple(lengths.shape)}" if isinstance(lengths, Tensor) else type(lengths).__name__
            raise ValueError(f"Expected `lengths` to be integers of shape ({len(audio)},), but got {got}.")
        counts: list[int] = lengths.tolist()
        if not all(0 < count <= audio.shape[-1] for count in counts):
            raise ValueError(
                f"Expected `lengths` to be from 1 to {audio.shape[-1]}, but got {min(counts)} to {max(counts)}."
            )
        return [row[..., :count] for row, count in zip(audio, counts, strict=True)]

    def _recall(self, rows: list[Tensor]) -> Tensor:
        hashes = torch.stack([_content_hash(row) for row in rows]).tolist()
        if all(key in self._known for key in hashes):
            embeddings = torch.stack([self._known[key] for key in hashes])
        else:
            embeddings = self._run(rows)
        # Copies: a view would keep the activation it was cut from alive.
        self._seen.update(zip(hashes, embeddings.clone(), strict=True))
        return embeddings

    def _run(self, rows: list[Tensor]) -> Tensor:
        rows = [row.squeeze(0) if row.dim() == 2 and len(row) == 1 else row for row in rows]
        device = rows[0].device
        with torch.no_grad(), torch.autocast(device.type, dtype=self.dtype, enabled=self.dtype is not None):
            if rows[0].dim() > 1:  # spectrograms or the like, which only the encoder knows
                embeddings: Tensor = self.encoder(torch.stack(rows))
            else:
                lengths = torch.tensor([len(row) for row in rows], device=device)
                embeddings = self.encoder(pad_sequence(rows, batch_first=True), lengths)
        return embeddings.to(device)

    def _check_padding(self, side: str, audio: Tensor) -> None:
        """Raise where original rows end in zeros, and warn of protected ones, which a model may have made so."""
        if audio.dim() < 2 or not audio.is_floating_point() or not audio.numel():
            return
        silent = (audio.movedim(-1, 1).flatten(2) == 0).all(2) if audio.dim() > 2 else audio == 0
        zeros, time = int(silent.flip(1).long().cumprod(1).sum(1).max()), audio.shape[-1]
        if zeros <= max(1, time // _SILENCE):
            return
        message = (
            f"Expected `{side}` to hold whole utterances, but a row ends in {zeros} zeros of {time}. An encoder embeds "
            "padding as speech. Return a list of tensors, each as long as its utterance, or lengths by "
            "`keys={..., 'lengths': ...}`."
        )
        if side == "original":
            raise ValueError(message)
        if not self._has_warned:
            rank_zero_warn(message, UserWarning)
            self._has_warned = True


def _content_hash(row: Tensor) -> Tensor:
    """Return a 64-bit number that is equal where every sample is."""
    bits = row.flatten().contiguous()
    if bits.is_floating_point():
        bits = bits.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[bits.element_size()])
    # Multiplication by odd constants and shifts spreads positions over all 64 bits; overflow wraps.
    factors = torch.arange(1, len(bits) + 1, device=bits.device) * -7046029254386353131
    factors = (factors ^ (factors >> 31)) * -4658895280553007687 | 1
    return (bits.long() * factors).sum() * 31 + len(bits)
