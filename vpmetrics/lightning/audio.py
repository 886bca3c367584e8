"""From audio to embeddings, by an attacker's encoder that is frozen and need not hear the same speech twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.utilities import rank_zero_warn

SIDES = ("original", "protected")
_SHARE_OF_SILENCE = 100  # a row that ends in more zeros than one in so many is padded


class FrozenEncoder:
    """An encoder as it is when training starts, and what it has made of original speech in the last validation.

    Original speech is recognised by its content, sample by sample, so what has changed is embedded anew.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype | None) -> None:
        self.module, self.dtype = module, dtype
        self._remembered = _Remembered()
        self._weights: list[tuple[int, int]] = []
        self._warned = False

    def freeze(self, trained: Iterable[nn.Parameter]) -> None:
        """Refuse an encoder that is itself being trained, and freeze any other."""
        own = {id(weight) for weight in trained if weight.requires_grad}
        if any(id(weight) in own for weight in self.module.parameters()):
            raise ValueError(
                "Expected `encoder` to be an attacker of its own, but the module trains its weights. "
                "Freeze them in the module, or pass a copy."
            )
        self.module.requires_grad_(False)

    def begin(self, device: torch.device) -> None:
        """Be ready for a validation; forget speech that the last one did not hear, and all if the weights are new."""
        self.module.to(device).eval()
        weights = [(id(weight), weight._version) for weight in self.module.parameters()]
        self._remembered.forget(everything=weights != self._weights)
        self._weights = weights

    def embed(self, arguments: dict[str, Any], device: torch.device, remember: bool = True) -> dict[str, Any]:
        """The same arguments with embeddings for audio, and without ``lengths``.

        Args:
            arguments: ``original`` and ``protected`` are audio: a tensor with a row per utterance and time last; a
                sequence of tensors, one per utterance, each as long as it is; or whatever else the encoder takes.
                ``lengths`` of the rows, where a tensor is padded.
            device: Where the embeddings are to be.
            remember: Whether to look up original speech, and keep it.
        """
        lengths = arguments.pop("lengths", None)
        embedded = {}
        for side in SIDES:
            if arguments.get(side) is None:
                continue
            audio = self._prepared(side, arguments[side], lengths, device)
            known = side == "original" and remember and not isinstance(audio, _Untouched)
            embedded[side] = self._remembered.recall(audio, self._run) if known else self._run(audio)
        return {**arguments, **embedded}

    def _prepared(self, side: str, audio: Any, lengths: Any, device: torch.device) -> Any:
        if isinstance(audio, Tensor):
            audio = audio.to(device, self._dtype_for(audio))
            if lengths is None:
                self._look_for_padding(side, audio)
                return audio
            return [row[..., :length] for row, length in zip(audio, _checked_lengths(lengths, audio), strict=True)]
        if isinstance(audio, Sequence) and audio and all(isinstance(wave, Tensor) for wave in audio):
            return [wave.to(device, self._dtype_for(wave)) for wave in audio]
        return _Untouched(audio)

    def _dtype_for(self, audio: Tensor) -> torch.dtype:
        weight = next(self.module.parameters(), None)
        return audio.dtype if weight is None or not audio.is_floating_point() else weight.dtype

    def _run(self, audio: Any) -> Any:
        if isinstance(audio, list):
            return self._run_by_length(audio)
        audio = audio.value if isinstance(audio, _Untouched) else audio
        kind = next((weight.device.type for weight in self.module.parameters()), "cpu")
        with torch.no_grad(), torch.autocast(kind, dtype=self.dtype, enabled=self.dtype is not None):
            return self.module(audio)

    def _run_by_length(self, waves: list[Tensor]) -> Tensor:
        """Utterances of one length share a batch, so that none is padded."""
        rows: dict[torch.Size, list[int]] = {}
        for row, wave in enumerate(waves):
            rows.setdefault(wave.shape, []).append(row)
        parts = torch.cat([self._run(torch.stack([waves[row] for row in alike])) for alike in rows.values()])
        order = torch.tensor([row for alike in rows.values() for row in alike], device=parts.device)
        return parts[order.argsort()]

    def _look_for_padding(self, side: str, audio: Tensor) -> None:
        """Refuse original rows that end in zeros, and warn of protected ones, which a model may have made so."""
        if audio.dim() < 2 or not audio.is_floating_point():
            return
        time = audio.shape[-1]
        silent = (audio.movedim(-1, 1).flatten(2) == 0).all(2) if audio.dim() > 2 else audio == 0
        zeros = int(silent.flip(1).long().cumprod(1).sum(1).max()) if silent.numel() else 0
        if zeros <= max(1, time // _SHARE_OF_SILENCE):
            return
        text = (
            f"Expected `{side}` to hold whole utterances, but a row ends in {zeros} zeros of {time}. An encoder hears "
            "padding, and every number changes. Give a list of tensors, each as long as its utterance, or the lengths "
            "by `keys={..., 'lengths': ...}`; where the zeros are speech, too, lengths say so."
        )
        if side == "original":
            raise ValueError(text)
        if not self._warned:
            rank_zero_warn(text, UserWarning)
            self._warned = True


class _Untouched:
    """Audio in a form that only the encoder knows."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _checked_lengths(lengths: Any, audio: Tensor) -> list[int]:
    if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.shape != audio.shape[:1]:
        came = f"{lengths.dtype} of shape {tuple(lengths.shape)}" if isinstance(lengths, Tensor) else repr(lengths)
        raise ValueError(f"Expected `lengths` to be integers of shape ({len(audio)},), one per row, but got {came}.")
    found: list[int] = lengths.tolist()
    if not all(0 < length <= audio.shape[-1] for length in found):
        raise ValueError(f"Expected `lengths` to be from 1 to {audio.shape[-1]}, but got {found}.")
    return found


class _Remembered:
    """Embeddings by the content of what they were made of."""

    def __init__(self) -> None:
        self._numbers: Tensor | None = None
        self._embeddings: Tensor | None = None
        self._heard: list[tuple[Tensor, Tensor]] = []

    def recall(self, audio: Tensor | list[Tensor], run: Any) -> Tensor:
        """What is known of these rows, or else what ``run`` makes of them."""
        numbers = _content(audio)
        embeddings = self._look_up(numbers)
        if embeddings is None:
            embeddings = run(audio)
        if isinstance(embeddings, Tensor) and len(embeddings) == len(numbers):
            # A copy, because a view would keep the whole activation it was cut from alive.
            self._heard.append((numbers, embeddings.detach().clone()))
        return embeddings

    def _look_up(self, numbers: Tensor) -> Tensor | None:
        if self._numbers is None or self._embeddings is None or self._numbers.device != numbers.device:
            return None
        place = torch.searchsorted(self._numbers, numbers).clamp(max=len(self._numbers) - 1)
        return self._embeddings[place] if bool((self._numbers[place] == numbers).all()) else None

    def forget(self, everything: bool) -> None:
        """Keep for the next validation what this one has heard, and no more."""
        heard, self._heard = self._heard, []
        if everything:
            self._numbers = self._embeddings = None
        elif heard:
            numbers, embeddings = (torch.cat(parts) for parts in zip(*heard, strict=True))
            order = numbers.argsort()
            self._numbers, self._embeddings = numbers[order], embeddings[order]


def _content(audio: Tensor | list[Tensor]) -> Tensor:
    """A number of 64 bits for each row, equal where every sample is."""
    if isinstance(audio, list):
        return torch.cat([_content(wave[None]) for wave in audio])
    rows = audio.flatten(1).contiguous()
    if rows.is_floating_point():
        rows = rows.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()])
    factors = torch.arange(1, rows.shape[1] + 1, device=rows.device) * -7046029254386353131
    factors = (factors ^ (factors >> 31)) * -4658895280553007687 | 1
    return (rows.long() * factors).sum(1) * 31 + rows.shape[1]
