"""Read recordings: decode, average channels, resample, and name what cannot be used."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vpmetrics._util.scalar import printable

Array = np.ndarray[Any, np.dtype[Any]]
_FRAMES_AT_ONCE = 1 << 20
SUFFIXES = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3")
SILENCE = 1e-4  # peak below -80 dBFS: no speech is that quiet
CLIPPED_SHARE = 0.01  # of samples on flat peaks
_LOWEST_RATE = 1_000  # Hz; a damaged header may say anything
_HIGHEST_RATE = 768_000
SHORTEST_SECONDS = 0.1  # some encoders accept less, but none recognises a speaker in it


class AudioError(ValueError):
    """A problem with recordings or an encoder that the user can solve.

    The message needs no traceback.
    """


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; raise an `AudioError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise AudioError(f"cannot be read ({error.strerror})") from None


def decode_and_check_audio(data: bytes) -> tuple[Tensor, int]:
    """Return the waveform ``(T,)`` in an audio file of any format, and its sample rate.

    Channels are averaged.
    """
    if not data:
        raise AudioError("is an empty file")
    if data[:4] == b"RIFF":
        declared = int.from_bytes(data[4:8], "little") + 8
    else:
        declared = 0
    # Writers to a pipe put a size near 2 or 4 GB, because they cannot go back to correct it.
    if len(data) + 1 < declared < 0x7FFFF000:
        raise AudioError(f"is cut off: it has {len(data):,} of {declared:,} bytes")
    samples, rate = _decode(data)
    level = np.abs(samples)
    peak = level.max()
    if not np.isfinite(peak):
        raise AudioError("has NaN or infinite samples")
    if peak < SILENCE:
        raise AudioError("is silent")
    # Per channel, since averaging hides flat peaks. Clipped 16-bit samples are -1 or 1 - 3.1e-5,
    # hence 5e-5.
    at_peak = level >= peak * (1 - 5e-5)
    clipped_share = (at_peak[1:] & at_peak[:-1]).sum(0).max() / len(samples)
    if clipped_share > CLIPPED_SHARE:
        raise AudioError(f"is clipped: {clipped_share:.0%} of its samples lie on flat peaks")
    return torch.from_numpy(samples.mean(1)), rate


def _decode(data: bytes) -> tuple[Array, int]:
    """Return the samples ``(T, channels)``, float32, in an audio file, and its sample rate."""
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = file.samplerate
            expected = file.frames
            if not _LOWEST_RATE <= rate <= _HIGHEST_RATE:
                allowed = f"{_LOWEST_RATE:,} to {_HIGHEST_RATE:,}"
                raise AudioError(f"has a sample rate of {rate:,} Hz; expected one of {allowed} Hz")
            # In blocks, because a damaged header may promise more samples than memory holds.
            blocks = [np.empty((0, file.channels), dtype=np.float32)]
            block = file.read(_FRAMES_AT_ONCE, dtype="float32", always_2d=True)
            while len(block):
                blocks.append(block)
                block = file.read(_FRAMES_AT_ONCE, dtype="float32", always_2d=True)
            samples = np.concatenate(blocks)
    except (soundfile.SoundFileError, RuntimeError) as error:
        reason = str(error).rpartition(">: ")[2].strip().rstrip(".") or "unknown format"
        raise AudioError(f"is no audio that can be read ({reason})") from None
    if len(samples) == 0:
        raise AudioError("has no samples that can be read")
    if len(samples) < expected:
        raise AudioError(f"is cut off: it has {len(samples):,} of {expected:,} samples")
    return samples, rate


def read_audio(path: str | Path, sample_rate: int) -> Tensor:
    """Read a recording as one channel at a given sample rate.

    Args:
        path: A wav, flac, ogg or mp3 file of any sample rate and number of channels.
        sample_rate: Samples per second of the result.

    Returns:
        Waveform of shape ``(T,)``, float32 in [-1, 1].

    Raises:
        AudioError: If it is missing, broken, silent or clipped.

    Example:
        >>> import soundfile, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "tone.wav"
        >>> soundfile.write(
        ...     path, torch.arange(24000).mul(0.1).sin().mul(0.5).numpy(), samplerate=24000
        ... )
        >>> read_audio(path, sample_rate=16000).shape
        torch.Size([16000])
    """
    try:
        return resample(*decode_and_check_audio(read_bytes(Path(path))), sample_rate)
    except AudioError as error:
        raise AudioError(f"{printable(path)} {error}") from None


def resample(waveforms: Tensor, from_rate: int, to_rate: int) -> Tensor:
    """Change the sample rate of waveforms in the frequency domain.

    Frequencies above 95 % of the lower Nyquist frequency fade out by a raised cosine. Gradients
    pass.

    Args:
        waveforms: Floating tensor of shape ``(..., T)``.
        from_rate: Samples per second of ``waveforms``.
        to_rate: Samples per second of the result.

    Returns:
        Tensor of shape ``(..., ceil(T * to_rate / from_rate))``.

    Example:
        >>> resample(torch.zeros(2, 24000), from_rate=24000, to_rate=16000).shape
        torch.Size([2, 16000])
    """
    if from_rate == to_rate or waveforms.shape[-1] == 0:
        return waveforms
    divisor = math.gcd(from_rate, to_rate)
    step_in = from_rate // divisor
    step_out = to_rate // divisor
    length = waveforms.shape[-1]
    # Whole steps keep the ratio exact. The transform is circular: at least 10 ms of zeros separate
    # the end from the beginning. It is fast for small factors: the number of steps is 8 to 16 times
    # a power of two.
    steps = math.ceil((length + from_rate // 100) / step_in)
    unit = 1 << max(1, steps.bit_length() - 4)
    steps = math.ceil(steps / unit) * unit
    spectrum = torch.fft.rfft(waveforms, n=steps * step_in)
    nyquist_bin = steps * min(step_in, step_out) // 2  # of the lower rate
    fade_bin = int(0.95 * nyquist_bin)
    angle = torch.linspace(
        0, math.pi, nyquist_bin - fade_bin + 1, dtype=waveforms.dtype, device=waveforms.device
    )
    faded = spectrum[..., fade_bin : nyquist_bin + 1] * (0.5 + 0.5 * angle.cos())
    spectrum = torch.cat([spectrum[..., :fade_bin], faded], dim=-1)
    resampled: Tensor = torch.fft.irfft(spectrum, n=steps * step_out) * (step_out / step_in)
    return resampled[..., : math.ceil(length * step_out / step_in)]
