"""What recordings are read as, and what is said of those that cannot be used."""

import os

import numpy as np
import pytest
import scipy.signal
import torch
from audio.conftest import noise, write

from vpmetrics.audio import AudioError, embed_folder, read_audio, resample

LOUD = noise(1.0) * 30


def cut(path, share: float) -> None:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 24000, 44100, 48000, 16001])
def test_resampling_keeps_tones_at_their_phase(rate):
    """Compare with the tones themselves, sampled at the other rate.

    Their envelope vanishes at both ends.
    """
    draw = np.random.default_rng(rate)
    pitches = draw.uniform(50, 0.45 * min(rate, 16000), 12)
    phases = draw.uniform(0, 6, 12)

    def sound(seconds):
        angles = 2 * np.pi * np.outer(pitches, seconds) + phases[:, None]
        tones = np.sin(angles).mean(axis=0)
        distance_from_middle = (seconds - 1) / 0.3
        envelope = np.exp(-(distance_from_middle**2))
        return torch.from_numpy(tones * envelope)

    resampled = resample(sound(np.arange(2 * rate) / rate), rate, 16000)
    assert resampled.shape == (32000,)
    torch.testing.assert_close(resampled, sound(np.arange(32000) / 16000), atol=2e-5, rtol=0)


def test_resampling_lets_no_alias_through():
    seconds = np.arange(48000) / 48000
    tone = np.sin(2 * np.pi * 9000 * seconds)
    window = scipy.signal.windows.hann(48000)
    resampled = resample(torch.from_numpy(tone * window), 48000, 16000)
    # the window ends at a slope
    assert resampled.abs().max() < 1e-7


def test_resampling_passes_gradients_and_rows():
    waves = torch.randn(2, 3, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        resample(waves, 24000, 16000)[1, 2], resample(waves[1, 2], 24000, 16000)
    )
    assert torch.autograd.gradcheck(
        lambda x: resample(x, 24000, 16000), waves[0, :1].requires_grad_()
    )


@pytest.mark.parametrize("ending", ["wav", "flac", "ogg", "mp3"])
def test_formats_hold_the_same_sound(tmp_path, ending):
    samples = scipy.signal.lfilter([0.1], [1, -0.9], noise(1.0))
    write(tmp_path / f"a.{ending}", samples)
    read = read_audio(tmp_path / f"a.{ending}", 16000).numpy()
    assert read.shape == (16000,)
    assert np.corrcoef(read, samples)[0, 1] > (0.9999 if ending in ("wav", "flac") else 0.97)


@pytest.mark.parametrize(
    ("subtype", "atol"), [("PCM_U8", 1 / 128), ("PCM_24", 2**-22), ("FLOAT", 1e-7)]
)
def test_samples_of_any_width_are_averaged_over_channels(tmp_path, subtype, atol):
    left = noise(0.5, seed=1)
    right = noise(0.5, seed=2)
    path = tmp_path / "a.wav"
    write(path, left, subtype=subtype)
    assert np.allclose(read_audio(path, 16000), left, atol=atol)
    write(path, np.stack([left, right], axis=1), subtype=subtype)
    assert np.allclose(read_audio(path, 16000), (left + right) / 2, atol=atol)


BROKEN = {
    "is an empty file": lambda path: path.write_bytes(b""),
    "has no samples": lambda path: write(path, noise(0)),
    "is no audio that can be read": lambda path: path.write_text("This is a text.\n" * 100),
    "is cut off: it has": lambda path: (write(path), cut(path, 0.5)),
    "is silent": lambda path: write(path, 0 * LOUD),
    r"is clipped: \d\d% of its samples": lambda path: write(path, LOUD.clip(-1, 1)),
    r"is clipped: \d\d% ": lambda path: write(path, np.stack([LOUD.clip(-1, 1), noise(1.0)], 1)),
    "has NaN or infinite samples": lambda path: write(
        path, np.array([0.1, np.nan] * 8000), subtype="FLOAT"
    ),
    "is too short: 0.05 s, 0.10 s are needed": lambda path: write(path, noise(0.05)),
    "cannot be read .No such file": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_unusable_recordings_raise_or_are_skipped(tmp_path, encoder, message):
    write(tmp_path / "p1_1.wav")
    BROKEN[message](tmp_path / "p1_2.wav")
    with pytest.raises(
        AudioError,
        match=rf"1 of 2 recordings cannot be used: .*p1_2\.wav {message}.*`partial=True`",
    ):
        embed_folder(tmp_path, encoder)
    kept = embed_folder(tmp_path, encoder, partial=True)
    assert kept.utterances == ["p1_1"]
    assert len(kept.skipped) == 1


@pytest.mark.parametrize("ending", ["flac", "mp3", "ogg"])
def test_compressed_recordings_that_are_cut_off(tmp_path, encoder, ending):
    write(tmp_path / f"a.{ending}", noise(2.0))
    cut(tmp_path / f"a.{ending}", 0.5)
    with pytest.raises(
        AudioError, match=rf"a\.{ending} (is cut off|is no audio that can be read|has no samples)"
    ):
        embed_folder(tmp_path, encoder)


@pytest.mark.parametrize("rate", [8000, 16000])
def test_tones_and_loud_floats_are_not_clipped(tmp_path, rate):
    write(tmp_path / "tone.wav", 0.99 * np.sin(2 * np.pi * np.arange(rate) / 160), rate)
    write(tmp_path / "loud.wav", LOUD, subtype="FLOAT")
    assert len(read_audio(tmp_path / "tone.wav", 16000)) == 16000
    assert read_audio(tmp_path / "loud.wav", 16000).abs().max() > 3


def test_wav_without_size_in_header_is_read(tmp_path):
    """Programs that write to a pipe cannot go back to put the size."""
    write(tmp_path / "a.wav", noise(0.5))
    data = bytearray((tmp_path / "a.wav").read_bytes())
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"
    (tmp_path / "a.wav").write_bytes(data)
    assert len(read_audio(tmp_path / "a.wav", 16000)) == 8000


def test_error_for_undecodable_file_name_is_printable(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff\x1b.wav")
    path.touch()
    with pytest.raises(AudioError) as error:
        read_audio(path, 16000)
    assert str(error.value).isprintable()
