"""Load speaker encoders of any library, from files, and around callables."""

from __future__ import annotations

import inspect
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vpmetrics._util.scalar import printable
from vpmetrics.audio.reading import AudioError, resample
from vpmetrics.audio.resemblyzer import load_resemblyzer
from vpmetrics.audio.speaker_encoder import SpeakerEncoder, extract_embeddings, length_mask
from vpmetrics.functional import f0_histogram

_HUB = "https://huggingface.co"
_HUB_SECONDS = 5.0  # to wait for a connection; libraries try again for most of a minute
_PITCH_RANGE = 65.0, 450.0  # Hz
# samples at 8 kHz: 64 ms, four periods of the lowest frequency, every 10 ms
_PITCH_FRAME = 512
_PITCH_HOP = 80


def load_encoder(
    encoder: str | Path | Callable[..., Any],
    *,
    device: str | torch.device | None = None,
    sample_rate: int | None = None,
    name: str | None = None,
) -> SpeakerEncoder:
    """Load a speaker encoder by name, from a file, or around any callable.

    - ``resemblyzer``: the default; weights as installed, or from PyPI's wheel.
    - ``speechbrain:<source>``: ``EncoderClassifier``, as of
      ``speechbrain/spkrec-ecapa-voxceleb``.
    - ``transformers:<model>``: ``AutoModelForAudioXVector`` with its feature extractor, as of
      ``microsoft/wavlm-base-plus-sv``.
    - ``<path>.pt``, ``<path>.ts``: TorchScript.
    - ``<path>.onnx``: ONNX by onnxruntime.
    - A callable: a module, bound method or function from ``(B, T)``.

    Gradients pass through all but ONNX, wav2vec2-bert of transformers, and callables that stop
    them.

    Model files and models of a hub can run code of their authors when they are loaded: load only
    those that you trust. Embeddings, scores, tables and recordings never run anything.

    Models load from their hub at run time; a folder on disk works as well as a name. Files and
    callables take waveforms ``(B, T)``, and ``lengths`` where they have an argument of this name:
    those with it must ignore what lies beyond the lengths, those without it are only given rows of
    one length together. They may return a tensor or an array ``(B, D)`` or ``(B, 1, D)``, an object
    with ``embeddings``, or a tuple that begins with one of these.

    Args:
        encoder: Name, path or callable.
        device: Where it runs; a callable stays where it is by default, all else goes to the CPU.
        sample_rate: Samples per second of the waveforms that a file or callable takes, where it
            does not have an attribute ``sample_rate`` itself. Named encoders know theirs.
        name: What to call a callable in reports. Only encoders with a name are cached.

    Returns:
        A :class:`SpeakerEncoder` in evaluation mode. Weights of named encoders are frozen.

    Raises:
        AudioError: If the library is not installed, the model cannot be loaded, or its output is no
            embedding.

    Example:
        >>> encoder = load_encoder(
        ...     lambda waveforms: waveforms[:, :4], sample_rate=16000, name="toy"
        ... )
        >>> encoder.dimension, encoder(torch.ones(2, 16000)).shape
        (4, torch.Size([2, 4]))
    """
    if isinstance(encoder, SpeakerEncoder):
        loaded = encoder
    elif isinstance(encoder, (str, Path)):
        loaded = _load_by_name_or_path(
            str(encoder), torch.device(device or "cpu"), sample_rate
        ).requires_grad_(False)
    elif callable(encoder):
        rate = _first_stated_rate(
            "the callable", sample_rate, getattr(encoder, "sample_rate", None)
        )
        loaded = CallableEncoder(encoder, rate)
    else:
        raise TypeError(
            "Expected `encoder` to be a name, a path or a callable, but got"
            f" {type(encoder).__name__}."
        )
    if name is not None:
        loaded.name = name
    if sample_rate is not None and sample_rate != loaded.sample_rate:
        raise AudioError(
            f"Expected `sample_rate` to be that of {loaded.title}, {loaded.sample_rate}, but got"
            f" {sample_rate}. Use as_encoder(encoder, sample_rate) for audio of another rate."
        )
    loaded.to(device).eval()
    _ = loaded.dimension  # a wrong encoder fails here, not in the middle of an evaluation
    return loaded


def as_encoder(
    encoder: str | Path | Callable[..., Any],
    sample_rate: int | None = None,
    device: str | torch.device | None = None,
) -> SpeakerEncoder:
    """Return an encoder that takes audio at ``sample_rate``.

    It resamples the audio to the rate that the given encoder expects.

    Args:
        encoder: Whatever :func:`load_encoder` takes, or its result. A callable without an attribute
            ``sample_rate`` gets its input unchanged, whatever it is (waveforms, spectrograms,
            lists).
        sample_rate: Samples per second of the audio. Required for encoders that know theirs.
        device: Where the encoder runs.

    Returns:
        A :class:`SpeakerEncoder` with the given ``sample_rate``. Gradients pass through the
        resampling.

    Example:
        >>> inner = load_encoder(lambda waveforms: waveforms[:, :4], sample_rate=16000)
        >>> encoder = as_encoder(inner, sample_rate=24000)
        >>> encoder(torch.ones(2, 24000)).shape
        torch.Size([2, 4])
    """
    if (
        not isinstance(encoder, (str, Path))
        and callable(encoder)
        and not hasattr(encoder, "sample_rate")
    ):
        return CallableEncoder(encoder, sample_rate or SpeakerEncoder.sample_rate).to(device)
    loaded = load_encoder(encoder, device=device)
    if sample_rate is None:
        raise AudioError(
            f"Expected the `sample_rate` of the audio: {loaded.title} takes {loaded.sample_rate}"
            " Hz, and audio of another rate would be measured wrongly without a sign."
        )
    if sample_rate == loaded.sample_rate:
        return loaded
    return ResampledEncoder(loaded, sample_rate)


class ResampledEncoder(SpeakerEncoder):
    """An encoder behind a change of the sample rate."""

    def __init__(self, encoder: SpeakerEncoder, sample_rate: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.sample_rate = sample_rate
        self.name = encoder.name
        self.is_weak = encoder.is_weak
        self.can_pad = encoder.can_pad
        self.min_seconds = encoder.min_seconds

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Resample, and run the encoder."""
        to_rate = self.encoder.sample_rate
        lengths = (lengths * to_rate + self.sample_rate - 1) // self.sample_rate
        return self.encoder(resample(waveforms, self.sample_rate, to_rate), lengths)


class CallableEncoder(SpeakerEncoder):
    """Any callable from waveforms ``(B, T)`` to embeddings.

    It is a module, a bound method or a function.
    """

    def __init__(self, function: Callable[..., Any], sample_rate: int) -> None:
        super().__init__()
        self.sample_rate = sample_rate
        self.function = function
        owner = getattr(function, "__self__", None)
        # whose weights a bound method uses
        self.owner = owner if isinstance(owner, nn.Module) else None
        call: Any = function.forward if isinstance(function, nn.Module) else function
        self.can_pad = _takes_lengths(call)

    def forward(self, waveforms: Any, lengths: Tensor | None = None) -> Tensor:
        """Embed waveforms; input of any other form is left to the callable."""
        is_audio = (
            isinstance(waveforms, Tensor) and waveforms.is_floating_point() and waveforms.dim() >= 2
        )
        if is_audio and (waveforms.dim() == 2 or waveforms.shape[1:-1] == (1,)):
            return super().forward(waveforms, lengths)
        return extract_embeddings(self.function(waveforms), len(waveforms))

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Call it, with ``lengths`` if it has this argument."""
        if self.can_pad:
            return self.function(waveforms, lengths=lengths)
        return self.function(waveforms)


def _takes_lengths(call: Any) -> bool:
    """Return whether a function has an argument ``lengths``."""
    if isinstance(call, torch.ScriptMethod):
        return "lengths" in [argument.name for argument in call.schema.arguments]
    try:
        return "lengths" in inspect.signature(call).parameters
    except (TypeError, ValueError):  # builtins have no signature
        return False


class SpeechBrainEncoder(SpeakerEncoder):
    """``speechbrain.inference.EncoderClassifier``."""

    def __init__(self, source: str, device: torch.device) -> None:
        super().__init__()
        library = _import_library("speechbrain.inference.classifiers", "speechbrain")
        # Without `savedir` some versions write into the working folder.
        folder = None
        if not Path(source).is_dir():
            folder = Path(torch.hub.get_dir(), "speechbrain", source.replace("/", "--"))
        self.model = library.EncoderClassifier.from_hparams(
            source=source, savedir=folder, run_opts={"device": str(device)}
        )
        default_rate = self.model.audio_normalizer.sample_rate
        self.sample_rate = int(getattr(self.model.hparams, "sample_rate", default_rate))

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Compute embeddings; SpeechBrain expects lengths relative to the longest waveform."""
        # the model moves its input to this device, and `to()` does not update it
        self.model.device = self.device
        return self.model.encode_batch(waveforms, lengths / waveforms.shape[1])


class TransformersEncoder(SpeakerEncoder):
    """``transformers.AutoModelForAudioXVector`` with its feature extractor."""

    def __init__(self, source: str, device: torch.device) -> None:
        super().__init__()
        library = _import_library("transformers", "transformers")
        self.extractor = library.AutoFeatureExtractor.from_pretrained(source)
        self.model = library.AutoModelForAudioXVector.from_pretrained(source).to(device)
        self.sample_rate = int(self.extractor.sampling_rate)
        self.takes_waveforms = self.extractor.model_input_names[0] == "input_values"
        # A group norm averages over time, padding included.
        self.can_pad = self.takes_waveforms and self.model.config.feat_extract_norm == "layer"

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Normalise as the feature extractor does, and encode with an attention mask."""
        if not self.takes_waveforms:
            rows: list[NDArray[Any]] = []
            for row, length in zip(waveforms, lengths, strict=True):
                rows.append(row[:length].detach().cpu().numpy())
            features = self.extractor(
                rows, sampling_rate=self.sample_rate, padding=True, return_tensors="pt"
            )
            return self.model(**features.to(waveforms.device))
        # The extractor of waveforms works in NumPy, where no gradient passes; this is the same in
        # torch.
        is_within_length = length_mask(waveforms, lengths)
        if self.extractor.do_normalize:
            mean = waveforms.sum(1, keepdim=True) / lengths[:, None]
            centred = (waveforms - mean) * is_within_length
            variance = centred.square().sum(1, keepdim=True) / lengths[:, None]
            waveforms = centred / (variance + 1e-7).sqrt()
        if bool(is_within_length.all()):
            attention_mask = None
        else:
            attention_mask = is_within_length.long()
        return self.model(waveforms, attention_mask=attention_mask)


class PitchLagEncoder(SpeakerEncoder):
    """Normalised histograms of pYIN's pitch lags, 17 to 123 at 8 kHz.

    They are to be compared by Euclidean distance.
    """

    name = "f0"
    sample_rate = 8000
    identity = "f0-pyin-1"
    can_pad = True
    min_seconds = 2 * _PITCH_FRAME / sample_rate
    undefined_reason = "has no voiced speech"

    def __init__(self) -> None:
        super().__init__()
        library = _import_library("librosa", "librosa", "vpmetrics[f0]")
        self.track_pitch: Callable[..., Any] = library.pyin

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Tensor:
        """Track the pitch of each row, and count lags of voiced frames."""
        histograms: list[Tensor] = []
        low, high = _PITCH_RANGE
        settings = {
            "fmin": low,
            "fmax": high,
            "frame_length": _PITCH_FRAME,
            "hop_length": _PITCH_HOP,
        }
        for waveform, length in zip(waveforms.detach().cpu(), lengths.tolist(), strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of NaN where nothing is voiced
                f0, _, _ = self.track_pitch(
                    waveform[:length].numpy(), sr=self.sample_rate, **settings
                )
            frequencies = torch.from_numpy(f0).float()
            histograms.append(f0_histogram(frequencies, low, high, self.sample_rate))
        return torch.stack(histograms)


class ONNXEncoder(SpeakerEncoder):
    """An ONNX file that takes waveforms ``(B, T)`` or ``(B, 1, T)``.

    It may take lengths as a second, one-dimensional input.

    Lengths of an integer type are samples, those of a floating type are relative to the longest
    row.
    """

    def __init__(self, path: str, device: torch.device, sample_rate: int | None) -> None:
        super().__init__()
        self.file = path
        library = _import_library("onnxruntime", "onnxruntime")
        providers = ["CPUExecutionProvider"]
        if device.type == "cuda":
            providers.insert(0, "CUDAExecutionProvider")
        self.session = library.InferenceSession(path, providers=providers)
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.sample_rate = _first_stated_rate(path, sample_rate, metadata.get("sample_rate"))
        self.inputs = self.session.get_inputs()
        self.can_pad = len(self.inputs) > 1

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Run it in NumPy, row by row if it was exported for one row."""
        waveform_input = self.inputs[0]
        waveforms = waveforms.detach()
        if len(waveform_input.shape) == 3:
            waveforms = waveforms[:, None]
        array_of_input = {waveform_input.name: waveforms.cpu().numpy()}
        if self.can_pad:
            length_input = self.inputs[1]
            if "float" in length_input.type:
                lengths = (lengths / waveforms.shape[-1]).float()
            elif "int32" in length_input.type:
                lengths = lengths.int()
            array_of_input[length_input.name] = lengths.cpu().numpy()
        if waveform_input.shape[0] != 1:
            outputs = [self.session.run(None, array_of_input)[0]]
        else:
            outputs = []
            for row in range(len(waveforms)):
                one_row = {name: array[row : row + 1] for name, array in array_of_input.items()}
                outputs.append(self.session.run(None, one_row)[0])
        return torch.from_numpy(np.concatenate(outputs))


def _load_torchscript(path: str, device: torch.device, sample_rate: int | None) -> SpeakerEncoder:
    model = torch.jit.load(path, map_location=device)
    rate = _first_stated_rate(path, sample_rate, getattr(model, "sample_rate", None))
    encoder = CallableEncoder(model, rate)
    encoder.file = path
    return encoder


_BUNDLED: dict[str, Callable[[], SpeakerEncoder]] = {
    "resemblyzer": load_resemblyzer,
    "f0": PitchLagEncoder,
}
_LIBRARIES: dict[str, Callable[[str, torch.device], SpeakerEncoder]] = {
    "speechbrain": SpeechBrainEncoder,
    "transformers": TransformersEncoder,
}
_FILES: dict[str, Callable[[str, torch.device, int | None], SpeakerEncoder]] = {
    ".onnx": ONNXEncoder,
    **dict.fromkeys((".pt", ".pth", ".ts", ".jit", ".torchscript"), _load_torchscript),
}


def _load_from_library(
    load: Callable[[str, torch.device], SpeakerEncoder], source: str, device: torch.device
) -> SpeakerEncoder:
    """Load a model from a folder or a hub.

    Without a network it comes from the cache of the hub, or loading fails at once.
    """
    if Path(source).exists() or _is_hub_reachable():
        return load(source, device)
    with _cache_alone():
        return load(source, device)


def _load_by_name_or_path(
    name: str, device: torch.device, sample_rate: int | None
) -> SpeakerEncoder:
    """Load a bundled encoder, a model of a library, or a file."""
    library, _, source = name.partition(":")
    suffix = Path(name).suffix.lower()
    if name in _BUNDLED:
        return _BUNDLED[name]()
    if library in _LIBRARIES and source:
        load = partial(_load_from_library, _LIBRARIES[library], source, device)
    elif suffix not in _FILES:
        choices = list(_BUNDLED)
        choices += [f"{known_library}:<model>" for known_library in _LIBRARIES]
        choices += [f"<file>{known_suffix}" for known_suffix in _FILES]
        raise AudioError(
            f"Expected `encoder` to be one of {', '.join(choices)}, but got {printable(name)!r}."
        )
    elif not Path(name).is_file():
        raise AudioError(
            f"Expected `encoder` to be a file, but there is none at {printable(name)}."
        )
    else:
        load = partial(_FILES[suffix], name, device, sample_rate)
    try:
        encoder = load()
    except AudioError:
        raise
    except Exception as error:  # every library and hub has exceptions of its own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        message = f"Encoder '{printable(name)}' could not be loaded: {reason}"
        if library in _LIBRARIES:
            message += (
                " Hubs need a network at the first use, some a login. Without a network, download"
                f" the model elsewhere and give its folder as '{printable(library)}:FOLDER', or use"
                " 'resemblyzer'."
            )
        raise AudioError(message) from error
    encoder.name = name if encoder.file is None else Path(name).name
    return encoder


@contextmanager
def _cache_alone() -> Iterator[None]:
    """Let the libraries of a hub look into their cache alone.

    Otherwise they try for a minute to connect.
    """
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"  # which they read when they are imported, into a constant
    constants = sys.modules.get("huggingface_hub.constants")
    was_offline = getattr(constants, "HF_HUB_OFFLINE", None)
    if was_offline is not None:
        setattr(constants, "HF_HUB_OFFLINE", True)  # noqa: B010
    try:
        yield
    finally:
        del os.environ["HF_HUB_OFFLINE"]
        if before is not None:
            os.environ["HF_HUB_OFFLINE"] = before
        if was_offline is not None:
            setattr(constants, "HF_HUB_OFFLINE", was_offline)  # noqa: B010


def _is_hub_reachable() -> bool:
    """Return whether the hub, or the proxy that leads to it, takes a connection."""
    address = urlsplit(getproxies().get("https") or os.environ.get("HF_ENDPOINT") or _HUB)
    try:
        socket.create_connection(
            (address.hostname or "", address.port or 443), timeout=_HUB_SECONDS
        ).close()
    except OSError:
        return False
    return True


def _import_library(module: str, package: str, requirement: str | None = None) -> Any:
    """Import a module, or raise an error with the command that installs it.

    The command installs ``requirement``, by default its package.
    """
    try:
        return import_module(module)
    except ImportError as error:
        command = f"pip install {quote(requirement or package)}"
        raise AudioError(f"Expected {package} to be installed: `{command}` ({error}).") from error
    except Exception as error:  # torchaudio raises OSError where it was built for another torch
        raise AudioError(
            f"Expected {package} and what it imports to fit torch {torch.__version__}, but the"
            f" import failed: {error}."
        ) from error


def _first_stated_rate(title: str, *rates: Any) -> int:
    """Return the first rate that is not None; raise an error that names ``title`` if all are."""
    for rate in rates:
        if rate is not None:
            return int(rate)
    raise AudioError(f"Expected `sample_rate`: {title} does not state its sample rate.")
