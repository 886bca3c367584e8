"""The interface of speaker encoders: waveforms and lengths in, embeddings out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vpmetrics._util.validation import check_floating, check_integers, check_shape
from vpmetrics.audio.reading import SHORTEST_SECONDS, AudioError

_TRIAL_SECONDS = 4.0  # of the noise that shows the dimension: no encoder known needs more


class SpeakerEncoder(nn.Module):
    """An attacker's speaker encoder, from waveforms to embeddings.

    :func:`load_encoder` returns it.

    As input to ``forward`` it takes ``waveforms``, a floating tensor of shape ``(B, T)``, and
    ``lengths``, integers of shape ``(B,)``, where rows are padded. As output it returns embeddings
    ``(B, D)``, float32 or wider. Neither padding nor the batch changes an embedding: where an
    encoder cannot ignore padding, only rows of one length share a batch.

    Attributes:
        name: What the encoder is called in reports; None for a callable without a name.
        sample_rate: Samples per second of the waveforms.
        is_weak: Whether much stronger public encoders exist, so that its numbers are a lower bound
            of the leakage.
        can_pad: Whether it ignores what lies beyond the lengths of padded rows.
        min_seconds: The shortest recording that is given to it.

    Example:
        >>> from vpmetrics.audio import load_encoder
        >>> encoder = load_encoder("resemblyzer")
        >>> encoder.sample_rate, encoder.dimension, encoder.is_differentiable, encoder.is_weak
        (16000, 256, True, True)
        >>> encoder(torch.randn(2, 16000), lengths=torch.tensor([16000, 9000])).shape
        torch.Size([2, 256])
    """

    name: str | None = None
    file: str | None = None
    sample_rate: int = 16000
    is_weak: bool = False
    can_pad: bool = False
    min_seconds: float = SHORTEST_SECONDS
    undefined_reason: str = "gets an embedding with NaN"

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Run the network on waveforms that are zero beyond their lengths."""
        raise NotImplementedError

    def forward(self, waveforms: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Embed a batch of waveforms."""
        check_floating("waveforms", waveforms)
        if waveforms.dim() == 3 and waveforms.shape[1] == 1:
            waveforms = waveforms.squeeze(1)
        if waveforms.dim() != 2 or 0 in waveforms.shape:
            raise ValueError(
                f"Expected `waveforms` to have shape (B, T), but got {tuple(waveforms.shape)}."
            )
        weight = next(self.parameters(), None)
        waveforms = waveforms.to(torch.float32 if weight is None else weight.dtype)
        num_rows, samples = waveforms.shape
        if lengths is None:
            full_lengths = torch.full((num_rows,), samples, device=waveforms.device)
            return self._encode_and_extract(waveforms, full_lengths)
        check_integers("lengths", lengths)
        check_shape("lengths", lengths, (num_rows,), "one length per waveform")
        lengths = lengths.to(waveforms.device, torch.int64)
        lengths_found, counts = lengths.unique(return_counts=True)
        known_lengths = lengths_found.tolist()
        shortest = known_lengths[0]
        longest = known_lengths[-1]
        if shortest < 1 or longest > samples:
            raise ValueError(
                f"Expected `lengths` from 1 to {samples}, but got {shortest} to {longest}."
            )
        if len(known_lengths) > 1 and not self.can_pad:
            order = lengths.argsort()
            rows_of_length = order.split(counts.tolist())
            embeddings: list[Tensor] = []
            for length, rows in zip(known_lengths, rows_of_length, strict=True):
                embeddings.append(self._encode_and_extract(waveforms[rows, :length], lengths[rows]))
            return torch.cat(embeddings)[order.argsort()]
        waveforms = waveforms[:, :longest]
        return self._encode_and_extract(
            torch.where(length_mask(waveforms, lengths), waveforms, 0.0), lengths
        )

    def _encode_and_extract(self, waveforms: Tensor, lengths: Tensor) -> Tensor:
        """Return the embeddings ``(B, D)`` in the output of one call of ``encode``."""
        return extract_embeddings(self.encode(waveforms, lengths), len(waveforms)).to(
            waveforms.device
        )

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        weight = next(self.parameters(), None)
        return torch.device("cpu") if weight is None else weight.device

    @property
    def title(self) -> str:
        """The encoder as messages call it."""
        if self.name is None:
            return "the encoder"
        return f"encoder '{self.name}'"

    def _make_noise(self) -> Tensor:
        """Return one row of noise, to try the encoder with."""
        generator = torch.Generator().manual_seed(0)
        samples = int(_TRIAL_SECONDS * self.sample_rate)
        return 0.1 * torch.randn(1, samples, generator=generator).to(self.device)

    @cached_property
    def dimension(self) -> int:
        """The number of values in an embedding, as four seconds of noise show."""
        noise = self._make_noise()
        try:
            with torch.no_grad():
                return int(self(noise).shape[1])
        except Exception as error:  # whatever the library raises for what it cannot take
            raise AudioError(
                f"Expected {self.title} to take waveforms of shape (B, T) and to return embeddings"
                f" of shape (B, D), but on noise of shape {tuple(noise.shape)} it failed:"
                f" {type(error).__name__}: {error}"
            ) from error

    @cached_property
    def is_differentiable(self) -> bool:
        """Whether gradients pass from the embedding to the waveform."""
        # Lightning validates in inference mode, where no gradient could be seen.
        with torch.inference_mode(mode=False), torch.enable_grad():
            try:
                return bool(self(self._make_noise().requires_grad_()).requires_grad)
            except RuntimeError:  # of a tensor with a graph that is turned into an array
                return False

    @cached_property
    def identity(self) -> str | None:
        """The name and a digest of the file or weights, by which embeddings are cached.

        It is None without a name.
        """
        if self.name is None:
            return None
        digest = hashlib.blake2b(digest_size=8)
        if self.file is not None:
            digest.update(Path(self.file).read_bytes())
            return f"{self.name}-{digest.hexdigest()}"
        for _, weight in sorted(self.state_dict().items()):
            if isinstance(weight, Tensor):
                values = weight.detach().cpu().contiguous().flatten()
                digest.update(values.view(torch.uint8).numpy().tobytes())
        return f"{self.name}-{digest.hexdigest()}"


def length_mask(waveforms: Tensor, lengths: Tensor) -> Tensor:
    """Return a mask ``(B, T)`` that is True for samples within the length of their row."""
    return torch.arange(waveforms.shape[1], device=waveforms.device) < lengths[:, None]


def extract_embeddings(output: Any, num_rows: int) -> Tensor:
    """Convert the output of an encoder to embeddings ``(B, D)``; raise if it holds none."""
    if hasattr(output, "embeddings"):
        output = output.embeddings
    elif isinstance(output, Mapping) and "embeddings" in output:
        output = output["embeddings"]
    elif isinstance(output, (tuple, list)) and len(output):
        output = output[0]
    if isinstance(output, np.ndarray):
        output = torch.from_numpy(output)
    if not isinstance(output, Tensor) or not output.is_floating_point():
        got = str(output.dtype) if isinstance(output, Tensor) else type(output).__name__
        raise AudioError(
            f"Expected the encoder to return floating embeddings of shape (B, D), but got {got}."
        )
    embeddings = output
    if output.dim() == 3 and output.shape[1] == 1:
        embeddings = output.squeeze(1)
    if embeddings.dim() == 1 and num_rows == 1:
        embeddings = embeddings[None]
    if embeddings.dim() != 2 or len(embeddings) != num_rows:
        raise AudioError(
            f"Expected the encoder to return embeddings of shape ({num_rows}, D), one row per"
            f" waveform, but got {tuple(output.shape)}."
        )
    if embeddings.dtype in (torch.float16, torch.bfloat16):
        return embeddings.float()
    return embeddings
