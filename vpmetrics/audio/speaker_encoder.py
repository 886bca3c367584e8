"""The interface of speaker encoders: waveforms and lengths in, embeddings out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from vpmetrics._util.validation import check_floating, check_integers, check_shape
from vpmetrics.audio.reading import AudioError

_PROBE_SECONDS = (1.0, 2.0, 4.0, 8.0)
_SHORT_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75)
_PADDING_TOLERANCE = 1e-4  # of a cosine, between an utterance alone and padded in a batch


class SpeakerEncoder(nn.Module):
    """An attacker's speaker encoder, from waveforms to embeddings, as :func:`load_encoder` returns it.

    As input to ``forward`` it takes ``waveforms``, a floating tensor of shape ``(B, T)``, and ``lengths``, integers of
    shape ``(B,)``, where rows are padded. As output it returns embeddings ``(B, D)``, float32 or wider. Neither padding
    nor the batch changes an embedding: where an encoder cannot ignore padding, only rows of one length share a batch.

    Attributes:
        name: What the encoder is called in reports; None for a callable without a name.
        sample_rate: Samples per second of the waveforms.
        is_weak: Whether much stronger public encoders exist, so that its numbers are a lower bound of the leakage.

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
    takes_lengths: bool = True
    undefined_reason: str = "gets an embedding with NaN"

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Run the network on waveforms that are zero beyond their lengths."""
        raise NotImplementedError

    def forward(self, waveforms: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Embed a batch of waveforms."""
        check_floating("waveforms", waveforms)
        waveforms = waveforms.squeeze(1) if waveforms.dim() == 3 and waveforms.shape[1] == 1 else waveforms
        if waveforms.dim() != 2 or 0 in waveforms.shape:
            raise ValueError(f"Expected `waveforms` to have shape (B, T), but got {tuple(waveforms.shape)}.")
        weight = next(self.parameters(), None)
        waveforms = waveforms.to(torch.float32 if weight is None else weight.dtype)
        rows, samples = waveforms.shape
        if lengths is None:
            return self._encode_and_extract(waveforms, torch.full((rows,), samples, device=waveforms.device))
        check_integers("lengths", lengths)
        check_shape("lengths", lengths, (rows,), "one length per waveform")
        lengths = lengths.to(waveforms.device, torch.int64)
        values, counts = (each.tolist() for each in lengths.unique(return_counts=True))
        if values[0] < 1 or values[-1] > samples:
            raise ValueError(f"Expected `lengths` from 1 to {samples}, but got {values[0]} to {values[-1]}.")
        if len(values) > 1 and not self.can_pad:
            order = lengths.argsort()
            groups = zip(values, order.split(counts), strict=True)
            parts = [self._encode_and_extract(waveforms[group, :length], lengths[group]) for length, group in groups]
            return torch.cat(parts)[order.argsort()]
        waveforms = waveforms[:, : values[-1]]
        return self._encode_and_extract(torch.where(length_mask(waveforms, lengths), waveforms, 0.0), lengths)

    def _encode_and_extract(self, waveforms: Tensor, lengths: Tensor) -> Tensor:
        """Return the embeddings ``(B, D)`` in the output of one call of ``encode``."""
        return extract_embeddings(self.encode(waveforms, lengths), len(waveforms)).to(waveforms.device)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        weight = next(self.parameters(), None)
        return torch.device("cpu") if weight is None else weight.device

    @property
    def title(self) -> str:
        """The encoder as messages call it."""
        return "the encoder" if self.name is None else f"encoder '{self.name}'"

    @cached_property
    def _probe_result(self) -> tuple[int, int, bool]:
        """The first of the probed lengths that it takes, the dimension, and whether gradients pass."""
        failure: Exception | None = None
        for seconds in _PROBE_SECONDS:
            # Lightning validates in inference mode, where no gradient could be seen.
            with torch.inference_mode(mode=False), torch.enable_grad():
                noise = self._make_noise(int(seconds * self.sample_rate)).requires_grad_()
                try:
                    embedding = self(noise)
                except Exception as error:  # whatever the library raises for what it cannot take
                    failure = failure or error
                    continue
                slope = torch.zeros(())
                with suppress(RuntimeError):  # there is no graph, or it is broken
                    (slope,) = torch.autograd.grad(embedding.sum(), noise)
                return noise.shape[1], embedding.shape[1], bool(slope.isfinite().all() and slope.any())
        raise AudioError(
            f"Expected {self.title} to take waveforms of shape (B, T) and to return embeddings of shape (B, D), but on "
            f"one second of noise, shape (1, {self.sample_rate}), it failed: {type(failure).__name__}: {failure}"
        ) from failure

    def _make_noise(self, samples: int) -> Tensor:
        return 0.1 * torch.randn(1, samples, generator=torch.Generator().manual_seed(0)).to(self.device)

    @property
    def dimension(self) -> int:
        """The number of values in an embedding, found by a probe with noise."""
        return self._probe_result[1]

    @property
    def is_differentiable(self) -> bool:
        """Whether gradients pass from the embedding to the waveform, found by a probe with noise."""
        return self._probe_result[2]

    @cached_property
    def can_pad(self) -> bool:
        """Whether an utterance has the same embedding alone and padded in a batch, found by a probe with noise."""
        if not self.takes_lengths:
            return False
        noise = self._make_noise(self._probe_result[0])
        lengths = torch.tensor([noise.shape[1], 3 * noise.shape[1] // 4], device=noise.device)
        rows = torch.where(length_mask(noise.expand(2, -1), lengths), noise, 0.0)
        with torch.no_grad():
            try:
                padded = self._encode_and_extract(rows, lengths)[1:]
                alone = self._encode_and_extract(noise[:, : lengths[1]], lengths[1:])
            except Exception:  # a file may be exported for batches of one
                return False
        return bool((cosine_similarity(padded, alone) > 1 - _PADDING_TOLERANCE).all())

    @cached_property
    def min_samples(self) -> int:
        """The fewest samples, of some lengths of noise tried, that give a finite embedding."""
        longest = self._probe_result[0]
        for samples in (int(seconds * self.sample_rate) for seconds in _SHORT_SECONDS):
            with torch.no_grad(), suppress(Exception):  # whatever the library raises for what it cannot take
                if samples < longest and bool(self(self._make_noise(samples)).isfinite().all()):
                    return samples
        return longest

    @cached_property
    def identity(self) -> str | None:
        """The name and a digest of the file or weights, by which embeddings are cached; None without a name."""
        if self.name is None:
            return None
        digest = hashlib.blake2b(b"" if self.file is None else Path(self.file).read_bytes(), digest_size=8)
        for _, weight in sorted(self.state_dict().items()) if self.file is None else ():
            if isinstance(weight, Tensor):
                digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return f"{self.name}-{digest.hexdigest()}"


def length_mask(waveforms: Tensor, lengths: Tensor) -> Tensor:
    """Return a mask ``(B, T)`` that is True for samples within the length of their row, False for padding."""
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
        got = f"{output.dtype}" if isinstance(output, Tensor) else type(output).__name__
        raise AudioError(f"Expected the encoder to return floating embeddings of shape (B, D), but got {got}.")
    embeddings = output.squeeze(1) if output.dim() == 3 and output.shape[1] == 1 else output
    embeddings = embeddings[None] if embeddings.dim() == 1 and num_rows == 1 else embeddings
    if embeddings.dim() != 2 or len(embeddings) != num_rows:
        raise AudioError(
            f"Expected the encoder to return embeddings of shape ({num_rows}, D), one row per waveform, but got "
            f"{tuple(output.shape)}."
        )
    return embeddings.float() if embeddings.dtype in (torch.float16, torch.bfloat16) else embeddings
