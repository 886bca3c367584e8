"""Embed recordings: read by threads, batch by length, cache by content."""

from __future__ import annotations

import hashlib
import math
import os
import re
import time
import uuid
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial as partial_function
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vpmetrics._util.scalar import printable
from vpmetrics.audio.encoders import PitchLagEncoder, load_encoder
from vpmetrics.audio.reading import AudioError, decode_and_check_audio, read_bytes, resample
from vpmetrics.audio.recordings import Recording, RecordingPairs, list_recordings
from vpmetrics.audio.speaker_encoder import SpeakerEncoder

Array = np.ndarray[Any, np.dtype[Any]]
# of a chunk, which is embedded while the next one is read
_FILES_AT_ONCE = 32
_BYTES_AT_ONCE = 1 << 25
_MOST_NAMED = 5  # recordings that an error names


@dataclass(frozen=True)
class _EmbeddedRecordings:
    """Names and labels of embedded recordings."""

    rows: tuple[Recording, ...]  # the recording of each row
    encoder: str | None  # its name, None for a callable without one
    skipped: tuple[str, ...]  # a sentence on every recording that was left out
    assumptions: tuple[str, ...]  # sentences on how speakers and pairs were found

    @property
    def utterances(self) -> list[str]:
        """The name of the utterance of each row."""
        return [row.utterance for row in self.rows]

    @property
    def speakers(self) -> list[str] | None:
        """The speaker of each row, None if some are unknown."""
        return self._column("speaker")

    @property
    def sessions(self) -> list[str] | None:
        """The session of each row, None if some are unknown."""
        return self._column("session")

    @property
    def groups(self) -> list[str] | None:
        """The group of each row, such as sex or data set; None if some are unknown."""
        return self._column("group")

    def _column(self, name: str) -> list[str] | None:
        values = [getattr(row, name) for row in self.rows]
        return None if None in values else values


@dataclass(frozen=True)
class AudioEmbeddings(_EmbeddedRecordings):
    """Embeddings ``(N, D)`` of recordings, float32, on the CPU; see :func:`embed_folder`."""

    embeddings: Tensor

    def save(self, path: str | Path) -> None:
        """Write ``.npz`` with embeddings, utterances and encoder.

        It has speakers, sessions and groups, too, where they are known.
        """
        arrays: dict[str, Any] = {"embeddings": self.embeddings.numpy()}
        for name in ("utterances", "speakers", "sessions", "groups", "encoder"):
            values = getattr(self, name)
            if values is not None:
                arrays[name] = values
        _write_npz(Path(path), arrays)


@dataclass(frozen=True)
class PairedEmbeddings(_EmbeddedRecordings):
    """Embeddings of both sides, ``(N, D)`` each, row by row; see :func:`embed_pairs`."""

    original: Tensor
    protected: Tensor


def embed_recordings(
    recordings: Sequence[Recording],
    encoder: str | Path | Callable[..., Any] = "resemblyzer",
    *,
    device: str | torch.device | None = None,
    cache: str | Path | None = None,
    partial: bool = False,
    workers: int = 2,
    batch_seconds: float = 60.0,
    segment_seconds: float | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> AudioEmbeddings:
    """Embed recordings in bounded memory; neither batches nor the order change an embedding.

    Args:
        recordings: Those of :func:`list_recordings`, or made by hand.
        encoder: Whatever :func:`load_encoder` takes, or its result.
        device: Where the encoder runs; the CPU by default.
        cache: Folder to keep embeddings in, by the content of the recordings and the weights of the
            encoder.
        partial: Leave out recordings that cannot be used, which is an error otherwise.
        workers: Threads that read.
        batch_seconds: Seconds of speech in a batch, padding included.
        segment_seconds: Cut recordings into segments of this length, a row each, called
            ``utterance#1`` and so on. A remainder of less than half is dropped.
        progress: Called with the number of recordings done, that of all recordings, and the seconds
            left.

    Returns:
        :class:`AudioEmbeddings`, in the order of the recordings.

    Raises:
        AudioError: If recordings are broken, cut off, short, silent or clipped, with their names.

    Example:
        >>> import soundfile, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "p225_001.wav"
        >>> soundfile.write(path, torch.rand(8000).numpy() - 0.5, samplerate=16000)
        >>> embed_recordings([Recording("p225_001", path)], "resemblyzer").embeddings.shape
        torch.Size([1, 256])
    """
    network = load_encoder(encoder, device=device)
    folder = _find_cache_folder(cache, network)
    paths = list(dict.fromkeys(recording.path for recording in recordings))
    if not paths:
        raise AudioError("Expected at least one recording, but got none.")
    run = _EmbeddingRun(network, folder, int(batch_seconds * network.sample_rate), partial)
    read = partial_function(
        _read_file, encoder=network, cached=run.embeddings_of_key, segment_seconds=segment_seconds
    )
    chunks = _chunk_files(paths)
    start = time.monotonic()
    num_done = 0
    with ThreadPoolExecutor(workers) as threads:
        reading = threads.map(read, chunks[0])
        for next_chunk in (*chunks[1:], []):
            files = list(reading)
            reading = threads.map(read, next_chunk)  # while these are embedded
            run.add(files)
            num_done += len(files)
            if progress is not None:
                seconds_per_file = (time.monotonic() - start) / num_done
                num_left = len(paths) - num_done
                progress(num_done, len(paths), seconds_per_file * num_left)
    run.note_undefined()
    problems = run.problem_of_path
    if problems and not (partial and len(problems) < len(paths)):
        raise AudioError(_describe_problems(list(problems.values()), len(paths)))
    rows: list[Recording] = []
    embeddings: list[Array] = []
    for recording in recordings:
        if recording.path in problems:
            continue
        embeddings_of_segments = run.embeddings_of(recording.path)
        embeddings.append(embeddings_of_segments)
        rows += _name_segments(recording, len(embeddings_of_segments), segment_seconds is not None)
    return AudioEmbeddings(
        tuple(rows),
        network.name,
        tuple(problems.values()),
        (),
        torch.from_numpy(np.concatenate(embeddings)),
    )


def _find_cache_folder(cache: str | Path | None, encoder: SpeakerEncoder) -> Path | None:
    """Return the folder of the embeddings of an encoder; None without a cache."""
    if cache is None:
        return None
    if encoder.identity is None:
        raise AudioError(
            "Expected an encoder with a name to cache by: load_encoder(callable, name=...)."
        )
    return Path(cache, re.sub(r"[^\w.-]+", "_", encoder.identity))


def _name_segments(recording: Recording, num_segments: int, is_cut: bool) -> list[Recording]:
    """Return the recording of each row: called ``utterance#1`` and so on where it is cut."""
    if not is_cut:
        return [recording] * num_segments
    numbers = range(1, num_segments + 1)
    segments: list[Recording] = []
    for segment_number in numbers:
        name = f"{recording.utterance}#{segment_number}"
        segments.append(recording._replace(utterance=name))
    return segments


class _EmbeddingRun:
    """What was read and embedded so far; the content of a file is its key."""

    def __init__(
        self, encoder: SpeakerEncoder, cache: Path | None, max_samples: int, partial: bool
    ) -> None:
        self.encoder = encoder
        self.cache = cache
        self.max_samples = max_samples
        self.partial = partial
        self.embeddings_of_key = _load_cached(cache)
        self.key_of_path: dict[Path, str] = {}
        self.problem_of_path: dict[Path, str] = {}
        self.reason_of_key: dict[str, str] = {}  # why the encoder took no recording of some content

    def add(self, files: Sequence[_AudioFile]) -> None:
        """Embed what was read of some files, unless the run will end with an error."""
        segments_of_key: dict[str, Sequence[Tensor]] = {}
        for file in files:
            if file.problem:
                self.problem_of_path[file.path] = file.problem
                continue
            self.key_of_path[file.path] = file.key
            if file.segments:
                segments_of_key[file.key] = file.segments
        # With a problem the run will end, but first all problems are listed.
        if self.partial or not self.problem_of_path:
            computed, errors = _embed_batches(segments_of_key, self.encoder, self.max_samples)
            self.embeddings_of_key.update(computed)
            self.reason_of_key.update(errors)
            _save_cached(self.cache, computed)

    def note_undefined(self) -> None:
        """Add the problem of each file that has no embedding."""
        if self.problem_of_path and not self.partial:
            return
        for path, key in self.key_of_path.items():
            if key not in self.embeddings_of_key:
                self.problem_of_path[path] = f"{printable(path)} {self.reason_of_key[key]}"

    def embeddings_of(self, path: Path) -> Array:
        """Return the embeddings ``(segments, D)`` of a file."""
        return self.embeddings_of_key[self.key_of_path[path]]


def embed_folder(
    folder: str | Path,
    encoder: str | Path | Callable[..., Any] = "resemblyzer",
    *,
    utt2spk: str | Path | None = None,
    speaker_pattern: str | None = None,
    **options: Any,
) -> AudioEmbeddings:
    """Embed all recordings of a folder, ``wav.scp`` or manifest.

    Args:
        folder: A folder, ``wav.scp`` or manifest; see :func:`list_recordings`.
        encoder: Whatever :func:`load_encoder` takes, or its result.
        utt2spk: File of lines ``utterance speaker``.
        speaker_pattern: Regular expression that finds the speaker in the name of an utterance.
        options: ``device``, ``cache``, ``partial`` and more; see :func:`embed_recordings`.

    Returns:
        :class:`AudioEmbeddings`; ``speakers`` is None where they cannot be told.

    Example:
        >>> import soundfile, tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("p225_001", "p225_002", "p226_001"):
        ...     soundfile.write(
        ...         folder / f"{name}.wav", torch.rand(8000).numpy() - 0.5, samplerate=16000
        ...     )
        >>> embedded = embed_folder(folder)
        >>> embedded.utterances, embedded.speakers
        (['p225_001', 'p225_002', 'p226_001'], ['p225', 'p225', 'p226'])
    """
    recordings = list_recordings(folder, utt2spk=utt2spk, speaker_pattern=speaker_pattern)
    embedded = embed_recordings(recordings.items, encoder, **options)
    return replace(embedded, assumptions=recordings.assumptions)


def embed_pairs(
    pairs: RecordingPairs, encoder: str | Path | Callable[..., Any] = "resemblyzer", **options: Any
) -> PairedEmbeddings:
    """Embed both sides of paired recordings.

    Args:
        pairs: What :func:`pair_recordings` finds.
        encoder: Whatever :func:`load_encoder` takes, or its result.
        options: As of :func:`embed_recordings`. With ``cache``, systems with the same originals
            embed these once.

    Returns:
        :class:`PairedEmbeddings` with the arguments of embedding metrics: ``original``,
        ``protected``, ``speakers``, ``utterances``, ``sessions``, ``groups``. Under ``partial`` a
        pair without one of its sides is left out.

    Example:
        >>> import soundfile, tempfile
        >>> from vpmetrics.audio import pair_recordings
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("a/p1_1", "a/p1_2", "a/p2_1", "b/p1_1_anon", "b/p1_2_anon", "b/p2_1_anon"):
        ...     (folder / name).parent.mkdir(exist_ok=True)
        ...     soundfile.write(
        ...         folder / f"{name}.wav", torch.rand(8000).numpy() - 0.5, samplerate=16000
        ...     )
        >>> voices = embed_pairs(pair_recordings(folder / "a", folder / "b"))
        >>> voices.original.shape, voices.protected.shape, voices.speakers
        (torch.Size([3, 256]), torch.Size([3, 256]), ['p1', 'p1', 'p2'])
    """
    embedded = embed_recordings([*pairs.original, *pairs.protected], encoder, **options)
    rows_of_path: dict[Path, list[int]] = defaultdict(list)
    for row, recording in enumerate(embedded.rows):
        rows_of_path[recording.path].append(row)
    original_rows: list[int] = []
    protected_rows: list[int] = []
    for original, protected in zip(pairs.original, pairs.protected, strict=True):
        # Protected recordings may be a little shorter, and have a segment less.
        num_segments = min(len(rows_of_path[original.path]), len(rows_of_path[protected.path]))
        original_rows += rows_of_path[original.path][:num_segments]
        protected_rows += rows_of_path[protected.path][:num_segments]
    if not original_rows:
        raise AudioError(_describe_problems(embedded.skipped, 2 * len(pairs.original)))
    return PairedEmbeddings(
        tuple(embedded.rows[row] for row in protected_rows),
        embedded.encoder,
        embedded.skipped,
        pairs.assumptions,
        original=embedded.embeddings[original_rows],
        protected=embedded.embeddings[protected_rows],
    )


def f0_histograms(
    folder: str | Path, *, segment_seconds: float = 30.0, **options: Any
) -> AudioEmbeddings:
    """Compute histograms of the fundamental frequency of recordings.

    See arXiv 2605.07291, section 4.2.3.

    pYIN tracks 65 to 450 Hz every 10 ms. Voiced frames of a segment are counted by pitch lag, in
    whole samples at 8 kHz, and the counts are normalised.

    Args:
        folder: A folder, ``wav.scp`` or manifest; see :func:`list_recordings`.
        segment_seconds: Length of the segments that recordings are cut into; shorter ones are one
            segment.
        options: As of :func:`embed_folder`.

    Returns:
        :class:`AudioEmbeddings` with rows of 107 shares, to be compared by Euclidean distance.

    Example:
        >>> import soundfile, tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> tone = (
        ...     torch.arange(16000).mul(2 * torch.pi / 161).sin()
        ... )  # lag 80.5 at 8 kHz, in the bin of 80
        >>> soundfile.write(folder / "p225_001.wav", tone.numpy() * 0.5, samplerate=16000)
        >>> f0_histograms(folder).embeddings.argmax(1)
        tensor([63])
    """
    return embed_folder(folder, PitchLagEncoder(), segment_seconds=segment_seconds, **options)


def _describe_problems(problems: Sequence[str], total: int) -> str:
    named = list(problems[:_MOST_NAMED])
    if len(problems) > _MOST_NAMED:
        named.append(f"and {len(problems) - _MOST_NAMED} more")
    message = f"{len(problems)} of {total} recordings cannot be used: {'; '.join(named)}."
    if len(problems) < total:
        message += " `partial=True` leaves them out."
    return message


def _chunk_files(paths: Sequence[Path]) -> list[list[Path]]:
    """Split files into chunks of a bounded number and size; a larger file is a chunk of its own."""
    chunks: list[list[Path]] = [[]]
    total = 0
    for path in paths:
        size = 0
        with suppress(OSError):  # the reader says why
            size = path.stat().st_size
        total += size
        if chunks[-1] and (len(chunks[-1]) == _FILES_AT_ONCE or total > _BYTES_AT_ONCE):
            chunks.append([])
            total = size
        chunks[-1].append(path)
    return chunks


class _AudioFile(NamedTuple):
    """The segments of a file to embed, or what is wrong with it.

    There are none where its content is cached.
    """

    path: Path
    key: str = ""
    segments: tuple[Tensor, ...] = ()
    problem: str = ""


def _read_file(
    path: Path, encoder: SpeakerEncoder, cached: Mapping[str, Array], segment_seconds: float | None
) -> _AudioFile:
    """Read and check a file, and cut it into segments; a remainder of less than half is dropped."""
    rate = encoder.sample_rate
    min_samples = math.ceil(encoder.min_seconds * rate)
    try:
        data = read_bytes(path)
        key = hashlib.blake2b(data, digest_size=16).hexdigest()
        if segment_seconds is not None:
            key += f"@{segment_seconds:g}s"
        if key in cached:
            return _AudioFile(path, key)
        waveform = resample(*decode_and_check_audio(data), rate)
        if len(waveform) < min_samples:
            raise AudioError(
                f"is too short: {len(waveform) / rate:.2f} s, {min_samples / rate:.2f} s are needed"
            )
    except AudioError as error:
        return _AudioFile(path, problem=f"{printable(path)} {error}")
    if segment_seconds is None:
        return _AudioFile(path, key, (waveform,))
    samples_per_segment = max(min_samples, int(segment_seconds * rate))
    segments = waveform.split(samples_per_segment)
    shortest = max(min_samples, samples_per_segment / 2)
    if len(segments) > 1 and len(segments[-1]) < shortest:
        segments = segments[:-1]
    return _AudioFile(path, key, segments)


def _embed_batches(
    segments_by_key: Mapping[str, Sequence[Tensor]], encoder: SpeakerEncoder, max_samples: int
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the embeddings of each file by its key, and why other files have none.

    Batches hold segments of similar length.
    """
    waveforms: list[Tensor] = []
    key_of_row: list[str] = []
    for key, segments in segments_by_key.items():
        waveforms += segments
        key_of_row += [key] * len(segments)
    embeddings = np.full((len(waveforms), encoder.dimension), np.nan, dtype=np.float32)
    errors: dict[str, str] = {}
    order = sorted(range(len(waveforms)), key=lambda row: len(waveforms[row]))
    while order:
        longest = len(waveforms[order[-1]])
        num_rows = max(1, max_samples // longest)
        batch = order[-num_rows:]
        order = order[:-num_rows]
        try:
            embeddings[batch] = _embed_batch([waveforms[row] for row in batch], encoder)
        except RuntimeError:  # whatever a network raises for an input that it cannot take
            for row in batch:
                embeddings[row], error = _embed_alone(waveforms[row], encoder)
                if error:
                    errors[key_of_row[row]] = error
    computed: dict[str, Array] = {}
    first_row = 0
    for key, segments in segments_by_key.items():
        end_row = first_row + len(segments)
        embeddings_of_file = embeddings[first_row:end_row]
        first_row = end_row
        if np.isfinite(embeddings_of_file).all():
            computed[key] = embeddings_of_file
        else:
            errors.setdefault(key, encoder.undefined_reason)
    return computed, errors


def _embed_alone(waveform: Tensor, encoder: SpeakerEncoder) -> tuple[Array, str]:
    """Return the embedding ``(D,)`` of a waveform, or NaN and why the encoder does not take it."""
    try:
        return _embed_batch([waveform], encoder)[0], ""
    except RuntimeError as error:
        seconds = len(waveform) / encoder.sample_rate
        reason = f"of {seconds:.2f} s is not taken by {encoder.title}: {error}"
        return np.full(encoder.dimension, np.nan, dtype=np.float32), reason


def _embed_batch(waveforms: Sequence[Tensor], encoder: SpeakerEncoder) -> Array:
    """Return the embeddings ``(B, D)`` of waveforms of any length."""
    lengths = torch.tensor([len(waveform) for waveform in waveforms], device=encoder.device)
    padded = pad_sequence(list(waveforms), batch_first=True).to(encoder.device)
    with torch.no_grad():
        return np.asarray(encoder(padded, lengths).float().cpu().numpy())


def _load_cached(folder: Path | None) -> dict[str, Array]:
    """Return the embeddings of each recording by its content, from files that are not damaged."""
    embeddings: dict[str, Array] = {}
    if folder is None:
        return embeddings
    for path in folder.glob("*.npz"):
        with (
            suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile),
            np.load(path) as arrays,
        ):
            ends = np.cumsum(arrays["counts"])
            by_recording = np.split(arrays["embeddings"], ends)[:-1]
            embeddings.update(zip(arrays["keys"].tolist(), by_recording, strict=True))
    return embeddings


def _save_cached(folder: Path | None, embeddings: Mapping[str, Array]) -> None:
    """Write a new file of embeddings by content.

    Other runs may write at the same time, and a run after an interrupted one reads it.
    """
    if folder is None or not embeddings:
        return
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        "keys": list(embeddings),
        "counts": list(map(len, embeddings.values())),
        "embeddings": np.concatenate([*embeddings.values()]),
    }
    _write_npz(folder / f"{uuid.uuid4().hex}.npz", arrays)


def _write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write to a temporary file in the same folder, and rename it.

    A reader sees the old file or the new one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
