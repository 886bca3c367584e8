"""Embed recordings: read by threads, batch by length, cache by content."""

from __future__ import annotations

import hashlib
import os
import re
import time
import zipfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vpmetrics.audio.encoders import load_encoder
from vpmetrics.audio.pitch import PitchEncoder
from vpmetrics.audio.reading import SHORTEST_SECONDS, AudioError, decode_audio, printable, resample
from vpmetrics.audio.recordings import Recording, RecordingPairs, list_recordings
from vpmetrics.audio.speaker_encoder import SpeakerEncoder

Array = np.ndarray[Any, np.dtype[Any]]
_READ_AHEAD = 64  # files per worker: what is read while a batch is embedded
_BATCHES_SORTED = 4  # so many batches of speech are held to be sorted by length
_SAVE_SECONDS = 60.0
_EXAMPLES = 5


@dataclass(frozen=True)
class _Embedded:
    """Information on embedded recordings.

    Attributes:
        rows: The recording of each row.
        encoder: The name of the encoder, None for a callable without one.
        skipped: A sentence on every recording that was left out.
        assumptions: Sentences on how speakers and pairs were found.
    """

    rows: tuple[Recording, ...]
    encoder: str | None
    skipped: tuple[str, ...]
    assumptions: tuple[str, ...]

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
        """The group of each row, None if some are unknown."""
        return self._column("group")

    def _column(self, name: str) -> list[str] | None:
        values = [getattr(row, name) for row in self.rows]
        return None if None in values else values


@dataclass(frozen=True)
class AudioEmbeddings(_Embedded):
    """Embeddings ``(N, D)`` of recordings, float32, on the CPU; see :func:`embed_folder`."""

    embeddings: Tensor

    def save(self, path: str | Path) -> None:
        """Write ``.npz`` with ``embeddings``, ``utterances``, ``encoder``, and ``speakers`` and so on where known."""
        columns = {name: getattr(self, name) for name in ("utterances", "speakers", "sessions", "groups", "encoder")}
        arrays = {name: np.array(values) for name, values in columns.items() if values is not None}
        _write_npz(Path(path), {"embeddings": self.embeddings.numpy(), **arrays})


@dataclass(frozen=True)
class PairedEmbeddings(_Embedded):
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
        recordings: What :func:`list_recordings` finds, or made by hand.
        encoder: Whatever :func:`load_encoder` takes, or its result.
        device: Where the encoder runs; the CPU by default.
        cache: Folder to keep embeddings in, by the content of the recordings and the weights of the encoder.
        partial: Leave out recordings that cannot be used, which is an error otherwise.
        workers: Threads that read.
        batch_seconds: Seconds of speech in a batch, padding included.
        segment_seconds: Cut recordings into segments of this length, a row each, called ``utterance#1`` and so on. A
            rest of less than half is dropped.
        progress: Called with the number of recordings done, that of all recordings, and the seconds left.

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
    file = None if cache is None else _cache_file(Path(cache), network)
    rows = {} if file is None else _load_rows(file)
    saved_rows, saved_at = len(rows), time.monotonic()
    read = _Reader(network, rows, segment_seconds)
    paths = list(dict.fromkeys(one.path for one in recordings))
    keys: dict[Path, str] = {}
    problems: dict[Path, str] = {}
    waiting: dict[str, tuple[Tensor, ...]] = {}
    limit = int(batch_seconds * network.sample_rate)
    began = time.monotonic()
    try:
        for number, (path, key, content) in enumerate(_read_ahead(paths, read, workers), start=1):
            if isinstance(content, str):
                problems[path] = content
            else:
                keys[path] = key
                waiting.update({key: content} if key not in rows else {})
            if problems and not partial:
                waiting.clear()  # the run will end, but first the other files are read, to name all at once
            samples = sum(len(piece) for pieces in waiting.values() for piece in pieces)
            if samples > _BATCHES_SORTED * limit or number == len(paths):
                rows.update(_embed_batches(waiting, network, limit))
                waiting.clear()
                if file is not None and time.monotonic() - saved_at > _SAVE_SECONDS:
                    _save_rows(file, rows)
                    saved_rows, saved_at = len(rows), time.monotonic()
            done = number - len(waiting)
            if progress is not None and done:
                progress(done, len(paths), (time.monotonic() - began) * (len(paths) - done) / done)
    finally:
        if file is not None and len(rows) > saved_rows:
            _save_rows(file, rows)  # a run that is interrupted goes on where it was
    if partial or not problems:
        undefined = (path for path, key in keys.items() if key not in rows)
        problems.update({path: f"{printable(path)} {network.undefined_reason}" for path in undefined})
    if problems and not (partial and len(problems) < len(paths)):
        raise AudioError(_describe_problems(list(problems.values()), len(paths)))
    is_segmented = segment_seconds is not None
    named = [
        (one._replace(utterance=f"{one.utterance}#{number}") if is_segmented else one, row)
        for one in recordings
        if one.path not in problems
        for number, row in enumerate(rows[keys[one.path]], start=1)
    ]
    embeddings = torch.from_numpy(np.stack([row for _, row in named]))
    return AudioEmbeddings(tuple(one for one, _ in named), network.name, tuple(problems.values()), (), embeddings)


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
        ...     soundfile.write(folder / f"{name}.wav", torch.rand(8000).numpy() - 0.5, samplerate=16000)
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
        options: As of :func:`embed_recordings`. Systems with the same originals share these by ``cache``.

    Returns:
        :class:`PairedEmbeddings` with the arguments of embedding metrics: ``original``, ``protected``, ``speakers``,
        ``utterances``, ``sessions``, ``groups``. Under ``partial`` a pair without one of its sides is left out.

    Example:
        >>> import soundfile, tempfile
        >>> from vpmetrics.audio import pair_recordings
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("a/p1_1", "a/p1_2", "a/p2_1", "b/p1_1_anon", "b/p1_2_anon", "b/p2_1_anon"):
        ...     (folder / name).parent.mkdir(exist_ok=True)
        ...     soundfile.write(folder / f"{name}.wav", torch.rand(8000).numpy() - 0.5, samplerate=16000)
        >>> voices = embed_pairs(pair_recordings(folder / "a", folder / "b"))
        >>> voices.original.shape, voices.protected.shape, voices.speakers
        (torch.Size([3, 256]), torch.Size([3, 256]), ['p1', 'p1', 'p2'])
    """
    both = embed_recordings([*pairs.original, *pairs.protected], encoder, **options)
    row_numbers: dict[Path, list[int]] = defaultdict(list)
    for number, row in enumerate(both.rows):
        row_numbers[row.path].append(number)
    # Protected recordings may be a little shorter, and have a segment less.
    kept = [
        (left, right)
        for one, two in zip(pairs.original, pairs.protected, strict=True)
        for left, right in zip(row_numbers[one.path], row_numbers[two.path], strict=False)
    ]
    if not kept:
        raise AudioError(_describe_problems(both.skipped, 2 * len(pairs.original)))
    original, protected = (both.embeddings[list(side)] for side in zip(*kept, strict=True))
    rows = tuple(both.rows[right] for _, right in kept)
    return PairedEmbeddings(rows, both.encoder, both.skipped, pairs.assumptions, original, protected)


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


def _describe_problems(problems: Sequence[str], total: int) -> str:
    shown = "; ".join(problems[:_EXAMPLES])
    rest = f"; and {len(problems) - _EXAMPLES} more" if len(problems) > _EXAMPLES else ""
    hint = " `partial=True` leaves them out." if len(problems) < total else ""
    return f"{len(problems)} of {total} recordings cannot be used: {shown}{rest}.{hint}"


class _Reader:
    """Reads a file as pieces to embed, none where its content is cached, or the reason why it cannot be used."""

    def __init__(self, encoder: SpeakerEncoder, rows: Mapping[str, Array], segment_seconds: float | None) -> None:
        self.rate, self.rows, self.segment_seconds = encoder.sample_rate, rows, segment_seconds
        self.shortest = max(encoder.shortest, int(SHORTEST_SECONDS * self.rate))

    def __call__(self, path: Path) -> tuple[Path, str, tuple[Tensor, ...] | str]:
        key = ""
        try:
            data = path.read_bytes()
            key = hashlib.blake2b(data, digest_size=16).hexdigest()
            key += "" if self.segment_seconds is None else f"@{self.segment_seconds:g}s"
            return path, key, () if key in self.rows else self._cut(resample(*decode_audio(data), self.rate))
        except OSError as error:
            return path, key, f"{printable(path)} cannot be read ({error.strerror})"
        except AudioError as error:
            return path, key, f"{printable(path)} {error}"

    def _cut(self, waveform: Tensor) -> tuple[Tensor, ...]:
        if len(waveform) < self.shortest:
            needed = f"{self.shortest / self.rate:.2f} s are needed"
            raise AudioError(f"is too short: {len(waveform) / self.rate:.2f} s, {needed}")
        if self.segment_seconds is None:
            return (waveform,)
        size = max(self.shortest, int(self.segment_seconds * self.rate))
        pieces: tuple[Tensor, ...] = waveform.split(size)
        return pieces[:-1] if len(pieces) > 1 and len(pieces[-1]) < max(self.shortest, size / 2) else pieces


_Content = tuple[Path, str, tuple[Tensor, ...] | str]


def _read_ahead(paths: Sequence[Path], read: _Reader, workers: int) -> Iterator[_Content]:
    """Read files by threads, in order, and only so many before they are asked for."""
    with ThreadPoolExecutor(workers) as threads:
        pending: deque[Future[_Content]] = deque()
        for path in paths:
            pending.append(threads.submit(read, path))
            if len(pending) > _READ_AHEAD * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _embed_batches(speech: Mapping[str, tuple[Tensor, ...]], encoder: SpeakerEncoder, limit: int) -> dict[str, Array]:
    """Embed pieces in batches of similar length, of at most ``limit`` samples; leave out what has NaN."""
    waveforms = [piece for pieces in speech.values() for piece in pieces]
    result = np.empty((len(waveforms), encoder.dimension), dtype=np.float32)
    order = sorted(range(len(waveforms)), key=lambda row: len(waveforms[row]))
    while order:
        longest, size = len(waveforms[order[-1]]), 1
        while size < len(order) and (size + 1) * longest <= limit:
            if not encoder.can_pad and len(waveforms[order[-size - 1]]) != longest:
                break
            size += 1
        batch, order = order[-size:], order[:-size]
        lengths = torch.tensor([len(waveforms[row]) for row in batch], device=encoder.device)
        padded = pad_sequence([waveforms[row] for row in batch], batch_first=True).to(encoder.device)
        with torch.no_grad():
            result[batch] = encoder(padded, lengths).float().cpu().numpy()
    ends = np.cumsum([len(pieces) for pieces in speech.values()])
    rows = dict(zip(speech, np.split(result, ends[:-1]), strict=True)) if speech else {}
    return {key: own for key, own in rows.items() if np.isfinite(own).all()}


def _cache_file(folder: Path, encoder: SpeakerEncoder) -> Path:
    if encoder.identity is None:
        raise AudioError("Expected an encoder with a name to cache by: load_encoder(callable, name=...).")
    return folder / (re.sub(r"[^\w.-]+", "_", encoder.identity) + ".npz")


def _load_rows(file: Path) -> dict[str, Array]:
    """Return the rows of each recording by its content; none if there is no file, or a damaged one."""
    try:
        with np.load(file) as arrays:
            keys, embeddings = arrays["keys"], arrays["embeddings"]
        first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        return dict(zip(keys[first].tolist(), np.split(embeddings, first[1:]), strict=True))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return {}


def _save_rows(file: Path, rows: Mapping[str, Array]) -> None:
    """Write all rows, with those that another run has added meanwhile."""
    rows = {**_load_rows(file), **rows}
    file.parent.mkdir(parents=True, exist_ok=True)
    keys = np.repeat(list(rows), [len(own) for own in rows.values()])
    _write_npz(file, {"keys": keys, "embeddings": np.concatenate(list(rows.values()))})


def _write_npz(path: Path, arrays: dict[str, Array]) -> None:
    """Write to a temporary file in the same folder, and rename: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
