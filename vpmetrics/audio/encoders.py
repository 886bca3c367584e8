"""Speaker encoders of any library behind one interface: waveforms and lengths in, embeddings out."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, pad

from vpmetrics._engine.validation import check_floating, check_integers, check_shape
from vpmetrics.audio.reading import AudioError, resample

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
        is_weak: Whether much stronger public encoders exist, so that its numbers are a lower bound of what leaks.

    Example:
        >>> encoder = load_encoder("resemblyzer")
        >>> encoder.sample_rate, encoder.dimension, encoder.is_differentiable, encoder.is_weak
        (16000, 256, True, True)
        >>> encoder(torch.randn(2, 16000), lengths=torch.tensor([16000, 9000])).shape
        torch.Size([2, 256])
    """

    name: str | None = None
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
            return self._encode(waveforms, torch.full((rows,), samples, device=waveforms.device))
        check_integers("lengths", lengths)
        check_shape("lengths", lengths, (rows,), "one length per waveform")
        lengths = lengths.to(waveforms.device, torch.int64)
        sizes = lengths.tolist()
        if min(sizes) < 1 or max(sizes) > samples:
            raise ValueError(f"Expected `lengths` from 1 to {samples}, but got {min(sizes)} to {max(sizes)}.")
        if len(set(sizes)) > 1 and not self.can_pad:
            groups = [[row for row, own in enumerate(sizes) if own == size] for size in sorted(set(sizes))]
            parts = [self._encode(waveforms[group, : sizes[group[0]]], lengths[group]) for group in groups]
            return torch.cat(parts)[torch.tensor([row for group in groups for row in group]).argsort()]
        waveforms = waveforms[:, : max(sizes)]
        is_speech = torch.arange(waveforms.shape[1], device=waveforms.device) < lengths[:, None]
        return self._encode(torch.where(is_speech, waveforms, 0.0), lengths)

    def _encode(self, waveforms: Tensor, lengths: Tensor) -> Tensor:
        return as_embeddings(self.encode(waveforms, lengths), len(waveforms)).to(waveforms.device)

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
    def _probe(self) -> tuple[int, int, bool]:
        """Samples of noise that the encoder takes, the dimension of the embedding, and whether gradients pass."""
        failure: Exception | None = None
        for seconds in _PROBE_SECONDS:
            # Lightning validates in inference mode, where no gradient could be seen.
            with torch.inference_mode(mode=False), torch.enable_grad():
                noise = self._noise(int(seconds * self.sample_rate)).requires_grad_()
                try:
                    embedding = self(noise)
                except Exception as error:  # whatever the library raises for what it cannot take
                    failure = failure or error
                    continue
                return noise.shape[1], embedding.shape[1], _passes_gradients(noise, embedding)
        raise AudioError(
            f"Expected {self.title} to take waveforms of shape (B, T) and to return embeddings of shape (B, D), but on "
            f"one second of noise, shape (1, {self.sample_rate}), it failed: {type(failure).__name__}: {failure}"
        ) from failure

    def _noise(self, samples: int) -> Tensor:
        return 0.1 * torch.randn(1, samples, generator=torch.Generator().manual_seed(0)).to(self.device)

    @property
    def dimension(self) -> int:
        """The number of values of an embedding, probed."""
        return self._probe[1]

    @property
    def is_differentiable(self) -> bool:
        """Whether gradients pass from the embedding to the waveform, probed."""
        return self._probe[2]

    @cached_property
    def can_pad(self) -> bool:
        """Whether an utterance has the same embedding alone and padded in a batch, probed."""
        if not self.takes_lengths:
            return False
        noise = self._noise(self._probe[0])
        size, rest = 3 * noise.shape[1] // 4, noise.shape[1] - 3 * noise.shape[1] // 4
        lengths = torch.tensor([size + rest, size], device=noise.device)
        with torch.no_grad():
            try:
                padded = self._encode(torch.cat([noise, pad(noise[:, :size], (0, rest))]), lengths)[1:]
                alone = self._encode(noise[:, :size], lengths[1:])
            except Exception:  # a file may be exported for batches of one
                return False
        return bool((cosine_similarity(padded, alone) > 1 - _PADDING_TOLERANCE).all())

    @cached_property
    def shortest(self) -> int:
        """The fewest samples that give a finite embedding, probed in steps."""
        longest = self._probe[0]
        for samples in (int(seconds * self.sample_rate) for seconds in _SHORT_SECONDS):
            with torch.no_grad(), suppress(Exception):  # whatever the library raises for what it cannot take
                if samples < longest and bool(self(self._noise(samples)).isfinite().all()):
                    return samples
        return longest

    @cached_property
    def identity(self) -> str | None:
        """The name and a digest of the weights, by which embeddings are cached; None without a name."""
        if self.name is None:
            return None
        digest = hashlib.blake2b(digest_size=8)
        for _, weight in sorted(self.state_dict().items()):
            if isinstance(weight, Tensor):
                digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return f"{self.name}-{digest.hexdigest()}"


def load_encoder(
    encoder: str | Path | Callable[..., Any],
    *,
    device: str | torch.device | None = None,
    sample_rate: int | None = None,
    name: str | None = None,
) -> SpeakerEncoder:
    """Load a speaker encoder by name, from a file, or around any callable.

    ==========================  ===========================================================  ==========
    ``encoder``                 what is loaded                                               gradients
    ==========================  ===========================================================  ==========
    ``resemblyzer``             the offline default, weights from Resemblyzer's wheel        yes
    ``speechbrain:<source>``    ``EncoderClassifier``, e.g. ``speechbrain/spkrec-ecapa-``    yes
                                ``voxceleb``
    ``transformers:<model>``    ``AutoModelForAudioXVector`` with its feature extractor,     yes, but of
                                e.g. ``microsoft/wavlm-base-plus-sv``                        wav2vec2-bert
    ``pyannote:<model>``        ``PretrainedSpeakerEmbedding``                               no
    ``nemo:<model>``            ``EncDecSpeakerLabelModel``, or a ``.nemo`` file             yes
    ``<path>.pt``, ``.ts``      TorchScript                                                  yes
    ``<path>.onnx``             ONNX by onnxruntime                                          no
    a callable                  module, bound method or function from ``(B, T)``             as it does
    ==========================  ===========================================================  ==========

    Models load from their hub at run time; a folder on disk works as well as a name. Files and callables take
    waveforms ``(B, T)``, and ``lengths`` where they have an argument of this name. They may return a tensor or an
    array ``(B, D)`` or ``(B, 1, D)``, an object with ``embeddings``, or a tuple that begins with one of these.

    Args:
        encoder: Name, path or callable.
        device: Where it runs; a callable stays where it is by default, all else goes to the CPU.
        sample_rate: Samples per second of the waveforms that a file or callable takes, where it does not have an
            attribute ``sample_rate`` itself. Named encoders know theirs.
        name: What to call a callable in reports. Only encoders with a name are cached.

    Returns:
        A :class:`SpeakerEncoder` in evaluation mode. Weights of named encoders are frozen.

    Raises:
        AudioError: If the library is not installed, the model cannot be loaded, or its output is no embedding.

    Example:
        >>> encoder = load_encoder(lambda waveforms: waveforms[:, :4], sample_rate=16000, name="toy")
        >>> encoder.dimension, encoder(torch.ones(2, 16000)).shape
        (4, torch.Size([2, 4]))
    """
    from vpmetrics.audio import adapters

    if isinstance(encoder, SpeakerEncoder):
        loaded = encoder
    elif isinstance(encoder, (str, Path)):
        loaded = adapters.load_by_name(str(encoder), torch.device(device or "cpu"), sample_rate)
        loaded.requires_grad_(False)
    elif callable(encoder):
        loaded = adapters.CallableEncoder(
            encoder, adapters.state_rate("the callable", sample_rate, getattr(encoder, "sample_rate", None))
        )
    else:
        raise TypeError(f"Expected `encoder` to be a name, a path or a callable, but got {type(encoder).__name__}.")
    if name is not None:
        loaded.name = name
    if sample_rate is not None and sample_rate != loaded.sample_rate:
        raise AudioError(
            f"Expected `sample_rate` to be that of {loaded.title}, {loaded.sample_rate}, but got {sample_rate}. "
            "Use as_encoder(encoder, sample_rate) for audio of another rate."
        )
    if device is not None:
        loaded.to(device)
    loaded.eval()
    _ = loaded.dimension  # a wrong encoder fails here, not in the middle of an evaluation
    return loaded


def as_encoder(
    encoder: str | Path | Callable[..., Any],
    sample_rate: int | None = None,
    device: str | torch.device | None = None,
) -> SpeakerEncoder:
    """Return an encoder for audio of a given sample rate, which is resampled where the encoder takes another.

    Args:
        encoder: Whatever :func:`load_encoder` takes, or its result. A callable without an attribute ``sample_rate`` is
            taken to expect the audio as it is, spectrograms and lists included.
        sample_rate: Samples per second of the audio. Required for encoders that know theirs.
        device: Where the encoder runs.

    Returns:
        A :class:`SpeakerEncoder` with the given ``sample_rate``. Gradients pass through the resampling.

    Example:
        >>> inner = load_encoder(lambda waveforms: waveforms[:, :4], sample_rate=16000)
        >>> encoder = as_encoder(inner, sample_rate=24000)
        >>> encoder(torch.ones(2, 24000)).shape
        torch.Size([2, 4])
    """
    from vpmetrics.audio.adapters import CallableEncoder

    if not isinstance(encoder, (str, Path)) and callable(encoder) and not hasattr(encoder, "sample_rate"):
        loaded: SpeakerEncoder = CallableEncoder(encoder, sample_rate or SpeakerEncoder.sample_rate)
        return loaded if device is None else loaded.to(device)
    loaded = load_encoder(encoder, device=device)
    if sample_rate is None:
        raise AudioError(
            f"Expected the `sample_rate` of the audio: {loaded.title} takes {loaded.sample_rate} Hz, and audio of "
            "another rate would be measured wrongly without a sign."
        )
    return loaded if sample_rate == loaded.sample_rate else ResampledEncoder(loaded, sample_rate)


class ResampledEncoder(SpeakerEncoder):
    """An encoder behind a change of the sample rate."""

    def __init__(self, encoder: SpeakerEncoder, sample_rate: int) -> None:
        super().__init__()
        self.encoder, self.sample_rate = encoder, sample_rate
        self.name, self.is_weak, self.takes_lengths = encoder.name, encoder.is_weak, encoder.takes_lengths

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Tensor:
        """Resample, and run the encoder."""
        to_rate = self.encoder.sample_rate
        lengths = (lengths * to_rate + self.sample_rate - 1) // self.sample_rate
        embeddings: Tensor = self.encoder(resample(waveforms, self.sample_rate, to_rate), lengths)
        return embeddings


def as_embeddings(output: Any, rows: int) -> Tensor:
    """Return embeddings ``(B, D)`` from whatever an encoder returned."""
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
    if embeddings.dim() == 1 and rows == 1:
        embeddings = embeddings[None]
    if embeddings.dim() != 2 or len(embeddings) != rows:
        raise AudioError(
            f"Expected the encoder to return embeddings of shape ({rows}, D), one row per waveform, but got "
            f"{tuple(output.shape)}."
        )
    return embeddings.float() if embeddings.dtype in (torch.float16, torch.bfloat16) else embeddings


def _passes_gradients(waveforms: Tensor, embeddings: Tensor) -> bool:
    try:
        (slope,) = torch.autograd.grad(embeddings.sum(), waveforms)
    except RuntimeError:  # there is no graph, or it is broken
        return False
    return bool(slope.isfinite().all() and slope.any())


def has_argument(function: Callable[..., Any], name: str) -> bool:
    """Return whether a callable has an argument of this name."""
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):  # builtins
        return False
