"""Histograms of the fundamental frequency in place of embeddings."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vpmetrics.audio.reading import AudioError
from vpmetrics.audio.speaker_encoder import SpeakerEncoder
from vpmetrics.functional import f0_histogram

_LOWEST, _HIGHEST = 65.0, 450.0  # Hz
_FRAME, _HOP = 512, 80  # samples: 64 ms, four periods of the lowest frequency, every 10 ms


class PitchEncoder(SpeakerEncoder):
    """Normalised histograms of pYIN's pitch lags: ``load_encoder("f0")``.

    Rows of 107 shares (lags 17 to 123 at 8 kHz), to be compared by Euclidean distance. No gradients pass.
    """

    name, sample_rate, identity = "f0", 8000, "f0-pyin-1"
    undefined_reason = "has no voiced speech"

    def __init__(self) -> None:
        super().__init__()
        try:
            import librosa
        except ImportError as error:
            raise AudioError(f"Expected librosa for 'f0': `pip install vpmetrics[f0]` ({error}).") from error
        self.track: Callable[..., Any] = librosa.pyin
        self.can_pad, self.min_samples = True, 2 * _FRAME

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Tensor:
        """Track the pitch of each row, and count lags of voiced frames."""
        rows = []
        settings = {"fmin": _LOWEST, "fmax": _HIGHEST, "frame_length": _FRAME, "hop_length": _HOP}
        for waveform, length in zip(waveforms.detach().cpu(), lengths.tolist(), strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of NaN where nothing is voiced
                f0, _, _ = self.track(waveform[:length].numpy(), sr=self.sample_rate, **settings)
            rows.append(f0_histogram(torch.from_numpy(f0).float(), _LOWEST, _HIGHEST, self.sample_rate))
        return torch.stack(rows)
