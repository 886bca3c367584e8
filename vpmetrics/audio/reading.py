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
    num_samples = waveforms.shape[-1]
    if from_rate == to_rate or num_samples == 0:
        return waveforms
    # From 24 to 16 kHz, 3 samples become 2: a step. Whole steps keep this ratio exact.
    divisor = math.gcd(from_rate, to_rate)
    samples_per_step = from_rate // divisor
    new_samples_per_step = to_rate // divisor
    # The transform is circular: 10 ms of zeros or more separate the end from the beginning.
    num_padded_samples = num_samples + from_rate // 100
    num_steps = _round_up_for_fft(math.ceil(num_padded_samples / samples_per_step))

    spectrum = torch.fft.rfft(waveforms, n=num_steps * samples_per_step)
    lower_nyquist_bin = num_steps * min(samples_per_step, new_samples_per_step) // 2
    first_faded_bin = int(0.95 * lower_nyquist_bin)
    spectrum = _fade_out(spectrum, first_faded_bin, lower_nyquist_bin, waveforms.dtype)
    # The inverse transform fills up missing frequencies with zeros. It divides by the new length
    # where the old one is due, so the ratio of both is put back.
    ratio = new_samples_per_step / samples_per_step
    resampled: Tensor = torch.fft.irfft(spectrum, n=num_steps * new_samples_per_step) * ratio
    return resampled[..., : math.ceil(num_samples * new_samples_per_step / samples_per_step)]


def _round_up_for_fft(number: int) -> int:
    """Return the next multiple of a power of two that makes the FFT fast.

    The power is at least 2, so that the number is even and half of it a whole frequency bin. From
    16 on, the multiple is at least the 8-fold and at most the 16-fold: small factors are fast, and
    little is added.
    """
    power_of_two = 1 << max(1, number.bit_length() - 4)
    return math.ceil(number / power_of_two) * power_of_two


def _fade_out(spectrum: Tensor, first_bin: int, last_bin: int, dtype: torch.dtype) -> Tensor:
    """Return the frequency bins up to ``last_bin``; from ``first_bin`` on they fall to 0.

    The fall is a raised cosine in ``dtype``. ``spectrum`` ``(..., F)``, the result
    ``(..., last_bin + 1)``.
    """
    angle = torch.linspace(
        0, math.pi, last_bin - first_bin + 1, dtype=dtype, device=spectrum.device
    )
    faded = spectrum[..., first_bin : last_bin + 1] * (0.5 + 0.5 * angle.cos())
    return torch.cat([spectrum[..., :first_bin], faded], dim=-1)
