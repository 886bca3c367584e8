"""Recordings embedded as if each were alone, remembered by content, labelled and saved."""

import functools

import numpy as np
import pytest
import torch
from audio.conftest import describe, noise, write
from extras import import_or_skip

from vpmetrics.audio import (
    AudioError,
    Recording,
    embed_folder,
    embed_pairs,
    embed_recordings,
    embedding,
    f0_histograms,
    list_recordings,
    load_encoder,
    pair_recordings,
    read_audio,
)


class Counting(torch.nn.Module):
    """An encoder that remembers the shapes of its batches."""

    sample_rate = 16000
    shapes = ()

    def forward(self, waveforms, lengths):
        self.shapes += (tuple(waveforms.shape),)
        return torch.cat(
            [describe(row[None, :size]) for row, size in zip(waveforms, lengths, strict=True)]
        )


@pytest.fixture
def folder(tmp_path):
    """Three speakers, recordings of unlike length and sample rate."""
    for number in range(12):
        rate = (8000, 16000, 44100)[number % 3]
        speaker = f"p{number % 3}"
        samples = noise(0.2 + 0.1 * (number * 5 % 12), rate, seed=number)
        write(tmp_path / "wavs" / speaker / f"{speaker}_{number}.wav", samples, rate)
    return tmp_path / "wavs"


@pytest.fixture
def counting():
    encoder = load_encoder(Counting(), name="counting")
    encoder.function.shapes = ()
    return encoder


def alone(folder) -> torch.Tensor:
    return torch.cat(
        [
            describe(read_audio(recording.path, 16000)[None])
            for recording in list_recordings(folder).items
        ]
    )


assert_embeddings = functools.partial(torch.testing.assert_close, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("batch_seconds", [0.1, 2.0, 60.0])
@pytest.mark.parametrize("workers", [1, 4])
def test_batches_and_threads_change_nothing(folder, counting, batch_seconds, workers):
    embedded = embed_folder(folder, counting, batch_seconds=batch_seconds, workers=workers)
    assert_embeddings(embedded.embeddings, alone(folder))
    rows, samples = zip(*counting.function.shapes, strict=True)
    assert sum(rows) == 12
    assert all(
        own == 1 or own * size <= batch_seconds * 16000
        for own, size in zip(rows, samples, strict=True)
    )


def test_encoders_without_length_support_get_no_padding(folder, encoder):
    write(folder / "p0" / "p0_12.wav", noise(0.2))
    embedded = embed_folder(folder, encoder)
    assert_embeddings(embedded.embeddings, alone(folder))
    assert embedded.speakers == ["p0"] * 5 + ["p1"] * 4 + ["p2"] * 4
    assert (embedded.sessions, embedded.groups, embedded.encoder, embedded.skipped) == (
        None,
        None,
        "description",
        (),
    )
    assert "3 speakers, 13 recordings" in embedded.assumptions[0]


def test_cache_skips_known_recordings(folder, counting, tmp_path):
    first = embed_folder(folder, counting, cache=tmp_path / "cache")
    counting.function.shapes = ()
    again = embed_folder(folder, counting, cache=tmp_path / "cache")
    assert counting.function.shapes == ()
    assert torch.equal(first.embeddings, again.embeddings)
    write(folder / "p0" / "p0_0.wav", noise(0.4, seed=99))
    (folder / "p1" / "p1_1.wav").rename(folder / "p1" / "p1_99.wav")
    changed = embed_folder(folder, counting, cache=tmp_path / "cache")
    assert [rows for rows, _ in counting.function.shapes] == [1]
    assert_embeddings(changed.embeddings, alone(folder))
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_encoders_and_segments_do_not_share_rows(folder, counting, tmp_path):
    options = {"cache": tmp_path / "cache"}
    embed_folder(folder, counting, **options)
    twice = load_encoder(lambda x: 2 * describe(x), sample_rate=16000, name="twice")
    assert_embeddings(embed_folder(folder, twice, **options).embeddings, 2 * alone(folder))
    assert len(embed_folder(folder, counting, segment_seconds=0.3, **options).utterances) > 12
    assert len(embed_folder(folder, counting, **options).utterances) == 12
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_damaged_cache_is_made_again(folder, encoder, tmp_path):
    cache = tmp_path / "cache"
    embed_folder(folder, encoder, cache=cache)
    for damage in (lambda _: b"", lambda _: b"no archive", lambda data: data[:500]):
        for path in cache.rglob("*.npz"):
            path.write_bytes(damage(path.read_bytes()))
        torch.testing.assert_close(
            embed_folder(folder, encoder, cache=cache).embeddings, alone(folder)
        )


def test_a_run_that_is_interrupted_goes_on(folder, counting, tmp_path, monkeypatch):
    def stop(done, total, _):
        assert total == 12
        if done >= 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(embedding, "_FILES_AT_ONCE", 3)
    with pytest.raises(KeyboardInterrupt):
        embed_folder(folder, counting, cache=tmp_path / "cache", progress=stop)
    counting.function.shapes = ()
    embed_folder(folder, counting, cache=tmp_path / "cache")
    assert sum(rows for rows, _ in counting.function.shapes) == 6


def test_two_runs_at_once_keep_the_rows_of_both(folder, counting, tmp_path):
    cache = tmp_path / "cache"
    items = list_recordings(folder).items

    def run_another(done, _, __):
        if done == 6:
            embed_recordings(items[6:], counting, cache=cache)

    embed_recordings(items[:6], counting, cache=cache, progress=run_another)
    counting.function.shapes = ()
    embed_recordings(items, counting, cache=cache)
    assert counting.function.shapes == ()


def test_a_callable_without_a_name_is_not_cached(folder, tmp_path):
    with pytest.raises(
        AudioError, match=r"an encoder with a name to cache by: load_encoder\(callable, name=...\)"
    ):
        embed_folder(folder, load_encoder(describe, sample_rate=16000), cache=tmp_path)


def test_one_error_lists_all_broken_recordings(folder, counting):
    for number in range(7):
        (folder / "p0" / f"broken_{number}.wav").write_bytes(b"")
    with pytest.raises(
        AudioError,
        match=r"7 of 19 recordings .*broken_0.*broken_4[^_]*; and 2 more\. `partial=True`",
    ):
        embed_folder(folder, counting)
    assert counting.function.shapes == ()


def test_no_usable_recording_raises(tmp_path, encoder):
    with pytest.raises(AudioError, match="at least one recording, but got none"):
        embed_recordings([], encoder)
    write(tmp_path / "p1_1.wav", noise(0.01))
    with pytest.raises(AudioError, match=r"1 of 1 recordings cannot be used: [^`]*$"):
        embed_folder(tmp_path, encoder, partial=True)


def test_embeddings_with_nan_are_named(folder):
    write(folder / "p0" / "loud.wav", noise(0.5) * 5)
    encoder = load_encoder(
        lambda x: describe(x) / (x.abs().amax(1, keepdim=True) < 0.6), sample_rate=16000
    )
    with pytest.raises(AudioError, match=r"1 of 13 .*loud\.wav gets an embedding with NaN"):
        embed_folder(folder, encoder)


def embed_half_a_second(waveforms):
    if waveforms.shape[1] < 8000:
        raise RuntimeError("Kernel size can't be greater than actual input size")
    return describe(waveforms)


def test_recordings_that_the_encoder_does_not_take_are_named_or_left_out(folder):
    encoder = load_encoder(embed_half_a_second, sample_rate=16000)
    with pytest.raises(
        AudioError, match=r"3 of 12 .*p0_0\.wav of 0\.20 s is not taken by the encoder: Kernel size"
    ):
        embed_folder(folder, encoder)
    embedded = embed_folder(folder, encoder, partial=True)
    is_long = [
        read_audio(recording.path, 16000).shape[0] >= 8000
        for recording in list_recordings(folder).items
    ]
    assert len(embedded.skipped) == 3
    assert_embeddings(embedded.embeddings, alone(folder)[torch.tensor(is_long)])


@pytest.mark.parametrize(
    ("limit", "value", "expected"),
    [("_FILES_AT_ONCE", 5, (5, 10, 12)), ("_BYTES_AT_ONCE", 1, tuple(range(1, 13)))],
)
def test_progress_ends_with_all_done(folder, encoder, monkeypatch, limit, value, expected):
    monkeypatch.setattr(embedding, limit, value)
    calls = []
    embed_folder(folder, encoder, progress=lambda *call: calls.append(call))
    done, total, left = zip(*calls, strict=True)
    assert (done, set(total)) == (expected, {12})
    assert min(left) == left[-1] == 0


@pytest.fixture
def pairs(tmp_path):
    for number in range(6):
        name = f"p{number % 2}_{number}"
        write(tmp_path / "o" / f"{name}.wav", noise(0.5 + 0.1 * number, seed=number))
        write(
            tmp_path / "p" / f"{name}_anon.flac",
            2 * noise(0.4 + 0.1 * number, 22050, seed=number),
            22050,
        )
    return tmp_path


def test_pairs_are_the_arguments_of_a_metric(pairs, encoder):
    voices = embed_pairs(pair_recordings(pairs / "o", pairs / "p"), encoder)
    assert_embeddings(voices.original, alone(pairs / "o"))
    assert_embeddings(voices.protected, alone(pairs / "p"))
    assert voices.speakers == ["p0", "p0", "p0", "p1", "p1", "p1"]
    assert voices.utterances == ["p0_0", "p0_2", "p0_4", "p1_1", "p1_3", "p1_5"]
    assert [text.split()[0] for text in voices.assumptions] == ["Speakers", "Pairs"]


def test_partial_skips_pairs_with_a_broken_side(pairs, encoder):
    write(pairs / "o" / "p0_0.wav", noise(0.5) * 0)
    (pairs / "p" / "p1_5_anon.flac").write_bytes(b"")
    found = pair_recordings(pairs / "o", pairs / "p")
    with pytest.raises(
        AudioError,
        match=r"2 of 12 recordings cannot be used: .*p0_0.*is silent; .*p1_5.*is an empty",
    ):
        embed_pairs(found, encoder)
    voices = embed_pairs(found, encoder, partial=True)
    assert voices.utterances == ["p0_2", "p0_4", "p1_1", "p1_3"]
    assert voices.original.shape == voices.protected.shape == (4, 3)
    assert len(voices.skipped) == 2
    for recording in found.protected[1:]:
        recording.path.write_bytes(b"")
    with pytest.raises(AudioError, match=r"6 of 12 recordings cannot be used"):
        embed_pairs(found, encoder, partial=True)


def test_segments_are_rows(tmp_path, encoder):
    samples = noise(2.7)
    for folder, size in (("o", None), ("p", 39000)):
        for name, end in (("p1_1", size), ("p2_1", 16000), ("p2_2", 6000)):
            write(tmp_path / folder / f"{name}.wav", samples[:end], subtype="FLOAT")
    embedded = embed_folder(tmp_path / "o", encoder, segment_seconds=1.0)
    assert embedded.utterances == ["p1_1#1", "p1_1#2", "p1_1#3", "p2_1#1", "p2_2#1"]
    assert embedded.speakers == ["p1", "p1", "p1", "p2", "p2"]
    pieces = torch.from_numpy(samples).float().split(16000)
    expected = torch.cat(
        [describe(piece[None]) for piece in (*pieces, pieces[0], pieces[0][:6000])]
    )
    assert_embeddings(embedded.embeddings, expected)
    # A protected recording a little shorter has a segment less; both sides keep as many.
    voices = embed_pairs(
        pair_recordings(tmp_path / "o", tmp_path / "p"), encoder, segment_seconds=1.0
    )
    assert voices.utterances == ["p1_1#1", "p1_1#2", "p2_1#1", "p2_2#1"]


def test_embeddings_are_saved_with_their_names(folder, encoder, tmp_path):
    embedded = embed_folder(folder, encoder)
    embedded.save(tmp_path / "emb.npz")
    with np.load(tmp_path / "emb.npz") as file:
        assert set(file) == {"embeddings", "utterances", "speakers", "encoder"}
        assert np.array_equal(file["embeddings"], embedded.embeddings)
        assert file["utterances"].tolist() == embedded.utterances
        assert str(file["encoder"]) == "description"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["emb.npz", "wavs"]


def harmonic(pitch: float, seconds: float) -> np.ndarray:
    """A voice of steady pitch, pulses through a filter, between two pauses."""
    time = np.arange(int(seconds * 16000)) / 16000
    tone = np.zeros(len(time))
    for overtone in range(1, 11):
        tone += np.cos(2 * np.pi * pitch * overtone * time) / overtone
    is_voiced = np.abs(time - seconds / 2) < 0.4 * seconds
    return 0.1 * tone * is_voiced


@pytest.mark.dev
def test_f0_histograms_count_lags_of_voiced_speech(tmp_path):
    import_or_skip("librosa", "f0")
    lags = {"p1_1": 80.5, "p2_1": 40.5, "p3_1": 23.5}
    for name, lag in lags.items():
        write(tmp_path / f"{name}.wav", harmonic(8000 / lag, 2.0) + 1e-4 * noise(2.0))
    found = f0_histograms(tmp_path)
    assert (found.embeddings.shape, found.encoder) == ((3, 107), "f0")
    torch.testing.assert_close(found.embeddings.sum(1), torch.ones(3))
    # pYIN's grid has steps of 0.6 %: half a sample of the longest lag here.
    centre = found.embeddings @ torch.arange(17, 124).float()
    torch.testing.assert_close(centre, torch.tensor([*lags.values()]) - 0.5, atol=0.75, rtol=0)
    write(tmp_path / "p4_1.wav", noise(1.0))
    with pytest.raises(AudioError, match=r"1 of 4 .*p4_1\.wav has no voiced speech"):
        f0_histograms(tmp_path)
    found = f0_histograms(tmp_path, partial=True, segment_seconds=1.0)
    assert found.utterances == [f"{name}#{part}" for name in lags for part in (1, 2)]


def test_files_of_equal_content_are_embedded_once(tmp_path, counting):
    for name in "xy":
        write(tmp_path / f"{name}.wav", noise(0.5))
    rows = [
        Recording(name, tmp_path / f"{file}.wav") for name, file in zip("abc", "xxy", strict=True)
    ]
    embedded = embed_recordings(rows, counting)
    assert embedded.utterances == ["a", "b", "c"]
    assert counting.function.shapes == ((1, 8000),)
    assert torch.equal(embedded.embeddings, embedded.embeddings[:1].expand(3, -1))
