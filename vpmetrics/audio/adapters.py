"""Adapters to the libraries that speaker encoders come from, one class each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vpmetrics.audio.encoders import SpeakerEncoder, as_embeddings, has_argument
from vpmetrics.audio.reading import AudioError, printable
from vpmetrics.audio.resemblyzer import SAMPLE_RATE, load_resemblyzer


def load_by_name(name: str, device: torch.device, sample_rate: int | None) -> SpeakerEncoder:
    """Load the encoder that a name or path means."""
    kind, _, source = name.partition(":")
    suffix = Path(name).suffix.lower()
    if name == "resemblyzer":
        return ResemblyzerEncoder(device)
    if name == "f0":
        from vpmetrics.audio.pitch import PitchEncoder

        return PitchEncoder()
    if kind in _LIBRARIES and source:
        return _LIBRARIES[kind](source, device)
    if suffix in _FILES:
        if not Path(name).is_file():
            raise AudioError(f"Expected `encoder` to be a file, but there is none at {printable(name)}.")
        return _FILES[suffix](name, device, sample_rate)
    known = ", ".join(
        ["resemblyzer", "f0", *(f"{kind}:<model>" for kind in _LIBRARIES), *(f"<file>{s}" for s in _FILES)]
    )
    raise AudioError(f"Expected `encoder` to be one of {known}, but got {printable(name)!r}.")


def _import(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise AudioError(f"Expected {package} to be installed: `pip install {package}` ({error}).") from error


def _load(name: str, load: Callable[[], Any]) -> Any:
    """Load a model from its hub, and say what failed in one message."""
    try:
        return load()
    except Exception as error:  # every library and hub has exceptions of its own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise AudioError(
            f"Encoder '{name}' could not be loaded: {reason} Hubs need a network at the first use, some a login; "
            "without one give the folder of a downloaded model, or use 'resemblyzer'."
        ) from error


class ResemblyzerEncoder(SpeakerEncoder):
    """Resemblyzer's GE2E network: small and from 2019, so that what it does not find may still be there."""

    name, sample_rate, is_weak = "resemblyzer", SAMPLE_RATE, True

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.network = load_resemblyzer().to(device)

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Tensor:
        """Embed the partial utterances, and average them."""
        embeddings: Tensor = self.network(waveforms, lengths)
        return embeddings


class SpeechBrainEncoder(SpeakerEncoder):
    """``speechbrain.inference.EncoderClassifier``."""

    def __init__(self, source: str, device: torch.device) -> None:
        super().__init__()
        self.name = f"speechbrain:{source}"
        load = _import("speechbrain.inference.classifiers", "speechbrain").EncoderClassifier.from_hparams
        # Without a place of its own some versions write into the working folder.
        place = None if Path(source).is_dir() else Path(torch.hub.get_dir(), "speechbrain", source.replace("/", "--"))
        self.model = _load(self.name, lambda: load(source=source, savedir=place, run_opts={"device": str(device)}))
        stated = getattr(self.model.hparams, "sample_rate", None)
        self.sample_rate = state_rate(self.name, stated, self.model.audio_normalizer.sample_rate)

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Tensor:
        """Encode with lengths relative to the longest."""
        self.model.device = self.device  # it moves its input there, and does not follow `to`
        embeddings: Tensor = self.model.encode_batch(waveforms, lengths / waveforms.shape[1])
        return embeddings


class TransformersEncoder(SpeakerEncoder):
    """``transformers.AutoModelForAudioXVector`` with its feature extractor."""

    def __init__(self, source: str, device: torch.device) -> None:
        super().__init__()
        self.name = f"transformers:{source}"
        library = _import("transformers", "transformers")
        self.extractor = _load(self.name, lambda: library.AutoFeatureExtractor.from_pretrained(source))
        self.model = _load(self.name, lambda: library.AutoModelForAudioXVector.from_pretrained(source)).to(device)
        self.sample_rate = int(self.extractor.sampling_rate)

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Normalise as the feature extractor does, and encode with an attention mask."""
        if self.extractor.model_input_names[0] != "input_values":
            rows = [row[:length].detach().cpu().numpy() for row, length in zip(waveforms, lengths, strict=True)]
            features = self.extractor(rows, sampling_rate=self.sample_rate, padding=True, return_tensors="pt")
            return self.model(**features.to(waveforms.device))
        # The extractor of waveforms works in NumPy, where no gradient passes; this is the same in torch.
        is_speech = torch.arange(waveforms.shape[1], device=waveforms.device) < lengths[:, None]
        if self.extractor.do_normalize:
            mean = waveforms.sum(1, keepdim=True) / lengths[:, None]
            centred = (waveforms - mean) * is_speech
            waveforms = centred / (centred.square().sum(1, keepdim=True) / lengths[:, None] + 1e-7).sqrt()
        mask = None if bool(is_speech.all()) else is_speech.long()
        return self.model(waveforms, attention_mask=mask)


class PyannoteEncoder(SpeakerEncoder):
    """``pyannote.audio.pipelines.speaker_verification.PretrainedSpeakerEmbedding``."""

    def __init__(self, source: str, device: torch.device) -> None:
        super().__init__()
        self.name = f"pyannote:{source}"
        library = _import("pyannote.audio.pipelines.speaker_verification", "pyannote.audio")
        self.pipeline = _load(self.name, lambda: library.PretrainedSpeakerEmbedding(source, device=device))
        network = getattr(self.pipeline, "model_", None)
        self.model = network if isinstance(network, nn.Module) else None  # for its weights
        self.sample_rate = int(self.pipeline.sample_rate)

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Encode with a mask of samples, which it does without gradients."""
        self.pipeline.device = self.device  # it moves its input there, and does not follow `to`
        if bool((lengths == waveforms.shape[1]).all()):
            return self.pipeline(waveforms[:, None].detach())
        is_speech = torch.arange(waveforms.shape[1], device=waveforms.device) < lengths[:, None]
        return self.pipeline(waveforms[:, None].detach(), masks=is_speech.float())


class NeMoEncoder(SpeakerEncoder):
    """``nemo.collections.asr.models.EncDecSpeakerLabelModel``."""

    def __init__(self, source: str, device: torch.device) -> None:
        super().__init__()
        self.name = f"nemo:{source}"
        library = _import("nemo.collections.asr.models", "nemo_toolkit[asr]").EncDecSpeakerLabelModel
        load = library.restore_from if source.endswith(".nemo") else library.from_pretrained
        self.model = _load(self.name, lambda: load(source, map_location=device)).to(device)
        self.sample_rate = int(self.model.cfg.preprocessor.sample_rate)

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Take the second output; the first are logits of training speakers."""
        return self.model(input_signal=waveforms, input_signal_length=lengths)[1]


class CallableEncoder(SpeakerEncoder):
    """Any callable from waveforms ``(B, T)`` to embeddings: a module, a bound method, a function."""

    def __init__(self, function: Callable[..., Any], sample_rate: int) -> None:
        super().__init__()
        self.sample_rate, self.function = sample_rate, function
        owner = getattr(function, "__self__", None)
        self.owner = owner if isinstance(owner, nn.Module) else None  # whose weights a bound method uses
        self.takes_lengths = has_argument(function.forward if isinstance(function, nn.Module) else function, "lengths")

    def forward(self, waveforms: Any, lengths: Tensor | None = None) -> Tensor:
        """Embed waveforms; input of any other form is left to the callable."""
        is_audio = isinstance(waveforms, Tensor) and waveforms.is_floating_point() and waveforms.dim() >= 2
        if is_audio and (waveforms.dim() == 2 or waveforms.shape[1:-1] == (1,)):
            return super().forward(waveforms, lengths)
        return as_embeddings(self.function(waveforms), len(waveforms))

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Call it, with ``lengths`` if it has this argument."""
        return self.function(waveforms, lengths=lengths) if self.takes_lengths else self.function(waveforms)


class TorchScriptEncoder(SpeakerEncoder):
    """A TorchScript file whose ``forward`` takes waveforms, and integer ``lengths`` if it has this argument."""

    def __init__(self, path: str, device: torch.device, sample_rate: int | None) -> None:
        super().__init__()
        self.name = Path(path).name
        self.identity = _identify_file(path)
        self.model = _load(self.name, lambda: torch.jit.load(path, map_location=device))
        self.sample_rate = state_rate(self.name, sample_rate, getattr(self.model, "sample_rate", None))
        self.takes_lengths = "lengths" in [argument.name for argument in self.model.forward.schema.arguments]

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Run it."""
        return self.model(waveforms, lengths) if self.takes_lengths else self.model(waveforms)


class ONNXEncoder(SpeakerEncoder):
    """An ONNX file that takes waveforms ``(B, T)`` or ``(B, 1, T)``, and lengths as a second, one-dimensional input.

    Lengths of an integer type are samples, those of a floating type are relative to the longest row.
    """

    def __init__(self, path: str, device: torch.device, sample_rate: int | None) -> None:
        super().__init__()
        self.name = Path(path).name
        self.identity = _identify_file(path)
        library = _import("onnxruntime", "onnxruntime")
        providers = ["CUDAExecutionProvider"] * (device.type == "cuda") + ["CPUExecutionProvider"]
        self.session = _load(self.name, lambda: library.InferenceSession(path, providers=providers))
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.sample_rate = state_rate(self.name, sample_rate, metadata.get("sample_rate"))
        self.inputs = self.session.get_inputs()
        self.takes_lengths = len(self.inputs) > 1

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Any:
        """Run it in NumPy, row by row if it was exported for one row."""
        first = self.inputs[0]
        waveforms = waveforms.detach() if len(first.shape) == 2 else waveforms.detach()[:, None]
        feed = {first.name: waveforms.cpu().numpy()}
        if self.takes_lengths:
            is_relative = "float" in self.inputs[1].type
            values = (lengths / waveforms.shape[-1]).float() if is_relative else lengths
            narrow = values.int() if "int32" in self.inputs[1].type else values
            feed[self.inputs[1].name] = narrow.cpu().numpy()
        batches = [{name: array[row : row + 1] for name, array in feed.items()} for row in range(len(waveforms))]
        outputs = [self.session.run(None, batch)[0] for batch in (batches if first.shape[0] == 1 else [feed])]
        return torch.cat([torch.from_numpy(output) for output in outputs]).to(waveforms.device)


def state_rate(title: str, *stated: Any) -> int:
    """Return the first sample rate that is stated."""
    for rate in stated:
        if rate is not None:
            return int(rate)
    raise AudioError(f"Expected `sample_rate`: {title} does not say how many samples per second it takes.")


def _identify_file(path: str) -> str:
    return f"{Path(path).name}-{hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()}"


_LIBRARIES: dict[str, Callable[[str, torch.device], SpeakerEncoder]] = {
    "speechbrain": SpeechBrainEncoder,
    "transformers": TransformersEncoder,
    "pyannote": PyannoteEncoder,
    "nemo": NeMoEncoder,
}
_FILES: dict[str, Callable[[str, torch.device, int | None], SpeakerEncoder]] = {
    ".onnx": ONNXEncoder,
    **dict.fromkeys((".pt", ".pth", ".ts", ".jit", ".torchscript"), TorchScriptEncoder),
}
