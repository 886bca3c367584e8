"""The offline default: Resemblyzer's speaker encoder in PyTorch, with its published weights."""

from __future__ import annotations

import io
import math
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from vpmetrics.audio.reading import AudioError
from vpmetrics.audio.speaker_encoder import SpeakerEncoder

SAMPLE_RATE = 16000
_FRAME = 400  # samples: 25 ms
_HOP = 160  # samples: 10 ms
_BANDS = 40
_PARTIAL = 160  # frames of a partial utterance: 1.6 s
_STEP = 77  # frames from one partial utterance to the next: 1.3 begin in a second
_COVERAGE = 0.75  # of a last partial utterance by speech
_LEVEL = 10 ** (-30 / 20)  # quieter recordings are raised to -30 dBFS
_PARTIALS_AT_ONCE = 256  # bounds the memory of the LSTM
_WHEEL = (
    "https://files.pythonhosted.org/packages/d9/b5/d897d5de5b2123a1ad5d32e8e007d83f76582f5c32c60992577263bd7c7e/"
    "Resemblyzer-0.1.4-py3-none-any.whl"
)
_SHA256 = "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f"


class Resemblyzer(SpeakerEncoder):
    """GE2E speaker encoder (Wan et al., 2018) as trained for Resemblyzer 0.1.4.

    Equals ``VoiceEncoder.embed_utterance`` of the package after its volume normalisation: the
    utterance is cut into overlapping partial utterances, and their embeddings are averaged. Pauses
    are not removed. Gradients pass. It is small and old, so it misses much of what stronger
    encoders find.
    """

    name = "resemblyzer"
    sample_rate = SAMPLE_RATE
    is_weak = True
    can_pad = True
    filters: Tensor
    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(_BANDS, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)
        self.register_buffer("filters", _mel_filters(), persistent=False)
        self.register_buffer("window", torch.hann_window(_FRAME), persistent=False)

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Tensor:
        """Embed the partial utterances, and average them."""
        level = torch.linalg.vector_norm(waveforms, dim=1) / lengths.sqrt()
        waveforms = waveforms * (_LEVEL / level.clamp(min=1e-8)).clamp(min=1)[:, None]
        row_of_partial: list[int] = []
        start_of_partial: list[int] = []
        for row, length in enumerate(lengths.tolist()):
            starts_of_row = _partial_start_frames(length)
            row_of_partial += [row] * len(starts_of_row)
            start_of_partial += starts_of_row
        partials = torch.tensor([row_of_partial, start_of_partial], device=waveforms.device)
        rows, starts = partials
        missing = _HOP * (int(starts.max()) + _PARTIAL) - waveforms.shape[1]
        spectrogram = self.mel_spectrogram(pad(waveforms, (0, max(0, missing))))
        frames = starts[:, None] + torch.arange(_PARTIAL, device=waveforms.device)
        blocks: list[Tensor] = []
        for block_rows, block_frames in zip(
            rows.split(_PARTIALS_AT_ONCE), frames.split(_PARTIALS_AT_ONCE), strict=True
        ):
            blocks.append(self.embed_partials(spectrogram[block_rows[:, None], block_frames]))
        embeddings = torch.cat(blocks)
        # The sum has the direction of the mean.
        sums = embeddings.new_zeros(len(waveforms), embeddings.shape[1])
        return normalize(sums.index_add(0, rows, embeddings))

    def mel_spectrogram(self, waveforms: Tensor) -> Tensor:
        """Compute the power in mel bands, ``(B, frames, 40)``, as librosa does."""
        spectrum = torch.stft(
            waveforms, _FRAME, _HOP, window=self.window, pad_mode="constant", return_complex=True
        )
        return (self.filters @ (spectrum.real.square() + spectrum.imag.square())).mT

    def embed_partials(self, spectrograms: Tensor) -> Tensor:
        """Embed mel spectrograms ``(P, 160, 40)`` by the network alone."""
        self.lstm.train()  # cuDNN passes gradients only in training mode; there is no dropout
        _, (hidden, _) = self.lstm(spectrograms)
        return normalize(self.linear(hidden[-1]).relu())


def load_resemblyzer() -> Resemblyzer:
    """Load the encoder with the weights in Resemblyzer's package.

    Without the package they are read from its wheel on PyPI, which is downloaded once.
    """
    # The package is not imported: its dependencies need a compiler and `pkg_resources`.
    spec = find_spec("resemblyzer")
    if spec is not None and spec.origin is not None:
        weights = Path(spec.origin).with_name("pretrained.pt").read_bytes()
    else:
        path = Path(torch.hub.get_dir(), "vpmetrics", _WHEEL.rpartition("/")[2])
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if not path.exists():
                torch.hub.download_url_to_file(
                    _WHEEL, str(path), hash_prefix=_SHA256, progress=False
                )
        except (OSError, RuntimeError) as error:
            raise AudioError(
                f"The weights of 'resemblyzer' (16 MB) could not be downloaded from PyPI ({error})."
                " Install them by `pip install --no-deps resemblyzer`, or choose another encoder."
            ) from None
        with zipfile.ZipFile(path) as wheel:
            weights = wheel.read("resemblyzer/pretrained.pt")
    checkpoint: dict[str, Any] = torch.load(
        io.BytesIO(weights), map_location="cpu", weights_only=True
    )
    encoder = Resemblyzer()
    # The checkpoint also holds the two parameters of the training loss.
    encoder.load_state_dict(
        {name: checkpoint["model_state"][name] for name in encoder.state_dict()}
    )
    return encoder


def _partial_start_frames(samples: int) -> list[int]:
    """Return the first frame of each partial utterance of a waveform."""
    num_frames = math.ceil((samples + 1) / _HOP)
    starts = list(range(0, max(1, num_frames - _PARTIAL + _STEP + 1), _STEP))
    covered_share = (samples - starts[-1] * _HOP) / (_PARTIAL * _HOP)
    if covered_share < _COVERAGE and len(starts) > 1:
        starts.pop()
    return starts


def _mel_filters() -> Tensor:
    """Return triangular filters ``(40, 201)`` of unit area on Slaney's mel scale.

    The scale is linear up to 1 kHz, 15 mel, and logarithmic above.
    """
    highest_mel = 15 + 27 * math.log(SAMPLE_RATE / 2000) / math.log(6.4)
    mel = torch.linspace(0, highest_mel, _BANDS + 2, dtype=torch.float64)[:, None]
    logarithmic_hertz = 1000 * torch.exp((mel - 15) * math.log(6.4) / 27)
    edges = torch.where(mel < 15, mel * 200 / 3, logarithmic_hertz)
    low = edges[:-2]
    middle = edges[1:-1]
    high = edges[2:]
    hertz = torch.linspace(0, SAMPLE_RATE / 2, _FRAME // 2 + 1, dtype=torch.float64)
    rising = (hertz - low) / (middle - low)
    falling = (high - hertz) / (high - middle)
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return (triangles * 2 / (high - low)).float()
