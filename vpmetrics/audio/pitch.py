"""Histograms of the fundamental frequency, as rank disclosure compares them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vpmetrics.audio.embedding import AudioEmbeddings, embed_folder
from vpmetrics.audio.encoders import SpeakerEncoder
from vpmetrics.audio.reading import AudioError
from vpmetrics.functional import f0_histogram

_LOWEST, _HIGHEST = 65.0, 450.0  # Hz
_FRAME, _HOP = 512, 80  # samples: 64 ms, four periods of the lowest frequency, every 10 ms


class PitchEncoder(SpeakerEncoder):
    """Normalised histograms of pYIN's pitch lags instead of embeddings: ``load_encoder("f0")``.

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
        self.can_pad, self.shortest = True, 2 * _FRAME

    def encode(self, waveforms: Tensor, lengths: Tensor) -> Tensor:
        """Track the pitch of each row, and count lags of voiced frames."""
        rows = []
        for waveform, length in zip(waveforms.detach().cpu(), lengths.tolist(), strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of NaN where nothing is voiced
                f0, _, _ = self.track(
                    waveform[:length].numpy(),
                    fmin=_LOWEST,
                    fmax=_HIGHEST,
                    sr=self.sample_rate,
                    frame_length=_FRAME,
                    hop_length=_HOP,
                )
            rows.append(f0_histogram(torch.from_numpy(f0).float(), _LOWEST, _HIGHEST, self.sample_rate))
        return torch.stack(rows).to(waveforms.device)


def f0_histograms(folder: str | Path, *, segment_seconds: float = 30.0, **options: Any) -> AudioEmbeddings:
    """Compute histograms of the fundamental frequency of recordings (arXiv 2605.07291, section 4.2.3).

    pYIN tracks 65 to 450 Hz every 10 ms. Voiced frames of a segment are counted by pitch lag, in whole samples at
    8 kHz, and the counts are normalised.

    Args:
        folder: A folder, ``wav.scp`` or manifest; see :func:`list_recordings`.
        segment_seconds: Length of the segments that recordings are cut into; shorter ones are one segment.
        options: As of :func:`embed_folder`.

    Returns:
        :class:`AudioEmbeddings` with rows of 107 shares, to be compared by Euclidean distance.

    Example:
        >>> import soundfile, tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> tone = torch.arange(16000).mul(2 * torch.pi / 161).sin()  # lag 80.5 at 8 kHz, in the bin of 80
        >>> soundfile.write(folder / "p225_001.wav", tone.numpy() * 0.5, samplerate=16000)
        >>> f0_histograms(folder).embeddings.argmax(1)
        tensor([63])
    """
    return embed_folder(folder, PitchEncoder(), segment_seconds=segment_seconds, **options)
