"""Recordings as input: they are paired, embedded by one or several encoders, and cached."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from vpmetrics._util.inputs import InputError, format_suffix, record_file
from vpmetrics._utterances.encoders import Encoder
from vpmetrics.cli.options import RecordingOptions
from vpmetrics.readers.embeddings import Column, Embeddings, mark_listed_references
from vpmetrics.readers.options import RowOptions
from vpmetrics.readers.progress import show_progress
from vpmetrics.report.checks import OK, WARNING, Check
from vpmetrics.report.outputs import Sample
from vpmetrics.report.privacy_report import EvaluatedSystem

if TYPE_CHECKING:
    from vpmetrics.audio.embedding import PairedEmbeddings
    from vpmetrics.audio.recordings import RecordingPairs

F0_SEGMENT_SECONDS = 30.0
_DEFAULT_ENCODER = "resemblyzer"
_SAMPLE_RATE = 16000
_SAMPLE_SECONDS = 4


@dataclass(frozen=True)
class EmbeddedSystem:
    """Embeddings of a system, and the original and the protected file of each row.

    With several encoders there is a check of them.
    """

    embeddings: Embeddings
    files: list[tuple[Path, Path]]
    check: Check | None = None


def holds_recordings(source: str) -> bool:
    """Return whether an input holds recordings.

    It is a folder of recordings, a ``wav.scp`` or a manifest with a column ``path``.
    """
    path = Path(source)
    if path.is_dir():
        from vpmetrics.audio.reading import SUFFIXES

        for entry in path.rglob("*"):
            if entry.suffix.lower() in SUFFIXES or entry == path / "wav.scp":
                return True
        return False
    if format_suffix(path) in ("csv", "tsv") and path.is_file():
        with path.open(errors="replace") as file:
            return "path" in re.split("[,\t]", file.readline(1 << 12).strip().lower())
    return path.name == "wav.scp"


@contextmanager
def translate_audio_errors() -> Iterator[None]:
    """Turn errors of recordings into errors of the command, which name its options."""
    from vpmetrics.audio import AudioError

    try:
        yield
    except AudioError as error:
        # Arguments of the functions are options of the command.
        text = re.sub(
            r"`(partial|strip_suffix|utt2spk|speaker_pattern)(=True)?`", r"--\1", str(error)
        )
        raise InputError(
            re.sub(r"--[a-z_]+", lambda option: option[0].replace("_", "-"), text)
        ) from None


def choose_encoders(options: RecordingOptions) -> list[str]:
    """Return the encoders to use, features last, each once."""
    encoders = options.encoder or (_DEFAULT_ENCODER,)
    return list(dict.fromkeys([*encoders, *options.feature]))


def check_encoders(options: RecordingOptions) -> list[Encoder]:
    """Return names and widths of all encoders; raise for one that cannot be loaded.

    A wrong name is an error here, not after hours of embedding with another encoder.
    """
    from vpmetrics.audio import load_encoder

    encoders = []
    with translate_audio_errors():
        for name in choose_encoders(options):
            network = load_encoder(name, device=options.device)
            encoders.append(Encoder(name_encoder(name), network.dimension))
    return encoders


def name_encoder(encoder: str) -> str:
    """Return the name of an encoder as reports show it: of a file, its name without the suffix."""
    if Path(encoder).exists():
        return Path(encoder).stem
    return encoder


def embed_system(
    original: str, protected: str, options: RecordingOptions, rows: RowOptions, cache: Path
) -> EmbeddedSystem:
    """Pair recordings and embed them by all encoders.

    Utterances that some encoder did not take are left out.
    """
    from vpmetrics.audio import embed_pairs, load_encoder, pair_recordings

    encoders = choose_encoders(options)
    is_segmented = encoders == ["f0"]  # beside other encoders, an utterance is one row
    segment_seconds = None
    if is_segmented:
        segment_seconds = F0_SEGMENT_SECONDS
    by_encoder: dict[str, PairedEmbeddings] = {}
    notes: list[str] = []
    with translate_audio_errors():
        pairs = pair_recordings(
            original,
            protected,
            strip_suffix=rows.strip_suffix,
            utt2spk=rows.speakers,
            speaker_pattern=rows.speaker_pattern,
            partial=rows.partial,
        )
        for encoder in encoders:
            network = load_encoder(encoder, device=options.device)
            with show_progress(
                f"embedding {protected} by {network.name}", 2 * len(pairs.original)
            ) as set_done:
                embedded = embed_pairs(
                    pairs,
                    network,
                    cache=cache,
                    partial=rows.partial,
                    segment_seconds=segment_seconds,
                    progress=lambda done, _total, _left: set_done(done),
                )
            by_encoder[name_encoder(encoder)] = embedded
            notes += [*embedded.assumptions, *embedded.skipped]
            if network.is_weak:
                notes.append(
                    f"{network.name} is a weak encoder: others, by --encoder, may tell speakers"
                    " better"
                )
    record_file(original, f"{len(pairs.original):,} recordings")
    record_file(
        protected, f"{len(pairs.protected):,} recordings, embedded by {', '.join(by_encoder)}"
    )
    embedded_system = _join_encoders(by_encoder, pairs, list(dict.fromkeys(notes)))
    embeddings = embedded_system.embeddings
    names: Sequence[str] = embeddings.utterance_names
    if is_segmented:  # segments of a recording are called utterance#1 and so on
        names = [name.rpartition("#")[0] for name in names]
    return replace(embedded_system, embeddings=mark_listed_references(embeddings, names, rows))


def _join_encoders(
    by_encoder: dict[str, PairedEmbeddings], pairs: RecordingPairs, notes: list[str]
) -> EmbeddedSystem:
    """Put the embeddings of all encoders side by side, for the utterances that all of them have."""
    common_names = _find_common_utterances(by_encoder)
    originals: list[torch.Tensor] = []
    protecteds: list[torch.Tensor] = []
    encoders: list[Encoder] = []
    for name, embedded in by_encoder.items():
        rows = torch.tensor(_find_rows(embedded, common_names), dtype=torch.int64)
        originals.append(embedded.original[rows])
        protecteds.append(embedded.protected[rows])
        encoders.append(Encoder(name, embedded.original.shape[1]))

    # Labels and files are those of the first encoder: all have the same.
    first_encoder = next(iter(by_encoder.values()))
    first_rows = _find_rows(first_encoder, common_names)
    speakers, speaker_names = _number_labels(first_encoder.speakers, first_rows)
    sessions, _ = _number_labels(first_encoder.sessions, first_rows)
    groups, group_names = _number_labels(first_encoder.groups, first_rows)
    assert speakers is not None  # pairs have speakers
    embeddings = Embeddings(
        torch.cat(originals, dim=1),
        torch.cat(protecteds, dim=1),
        speakers,
        speaker_names,
        notes=tuple(notes),
        sessions=sessions,
        groups=groups,
        group_names=group_names,
        utterance_names=tuple(common_names),
        encoders=tuple(encoders),
    )
    original_of: dict[Path, Path] = {}
    for original, protected in zip(pairs.original, pairs.protected, strict=True):
        original_of[protected.path] = original.path
    protected_files = [first_encoder.rows[row].path for row in first_rows]
    files = [(original_of[path], path) for path in protected_files]
    check = _check_common_utterances(by_encoder, len(common_names))
    return EmbeddedSystem(embeddings, files, check)


def _find_common_utterances(by_encoder: dict[str, PairedEmbeddings]) -> list[str]:
    """Return the utterances that every encoder took, in the order of the first encoder."""
    embedded_by_each = list(by_encoder.values())
    common = set(embedded_by_each[0].utterances)
    for embedded in embedded_by_each[1:]:
        common &= set(embedded.utterances)
    return [name for name in embedded_by_each[0].utterances if name in common]


def _find_rows(embedded: PairedEmbeddings, utterances: Sequence[str]) -> list[int]:
    row_of = {name: row for row, name in enumerate(embedded.utterances)}
    return [row_of[name] for name in utterances]


def _number_labels(
    labels: list[str] | None, chosen_rows: list[int]
) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    if labels is None:
        return None, ()
    chosen = np.array([labels[row] for row in chosen_rows])
    return Column(chosen, None, "recordings").number_labels(len(chosen))


def _check_common_utterances(
    by_encoder: dict[str, PairedEmbeddings], num_common: int
) -> Check | None:
    """Return the check that every encoder took every utterance; None for one encoder."""
    if len(by_encoder) < 2:
        return None
    left_out = {}
    for name, embedded in by_encoder.items():
        if len(embedded.utterances) > num_common:
            left_out[name] = len(embedded.utterances) - num_common
    if not left_out:
        return Check(
            "encoders",
            OK,
            f"All {len(by_encoder)} encoders embedded the same {num_common:,} utterances.",
        )
    text = " and ".join(f"{count:,} of {name}" for name, count in left_out.items())
    message = f"{num_common:,} utterances have embeddings of all encoders; {text} are left out."
    return Check("encoders", WARNING, message)


def pick_worst_and_best_speakers(system: EvaluatedSystem, embedded: EmbeddedSystem) -> list[Sample]:
    """Return a recording of the worst, the median and the best protected speaker.

    The worst is the one whom the verdict names, if it names one; the order of all others is that
    of each speaker's D_ECE in OP.
    """
    speakers = system.report.conditions["OP"].speakers
    if speakers is None:
        return []
    disclosures = speakers.probed.d_ece.tolist()
    measured = [speaker for speaker, value in enumerate(disclosures) if not math.isnan(value)]
    ranked = sorted(measured, key=lambda speaker: -disclosures[speaker])
    if not ranked:
        return []
    headline = system.report.headline
    if headline is not None and headline.is_speaker_exposed:
        named = headline.worst_place
        ranked = [named, *(speaker for speaker in ranked if speaker != named)]
    chosen = {"worst": ranked[0], "median": ranked[len(ranked) // 2], "best": ranked[-1]}
    samples = []
    for label, speaker in chosen.items():
        row = int((embedded.embeddings.speakers == speaker).nonzero()[0])
        original, protected = embedded.files[row]
        name = embedded.embeddings.speaker_names[speaker]
        samples.append(
            Sample(name, f"{label} protected", _read_start(original), _read_start(protected))
        )
    return samples


def _read_start(path: Path) -> bytes:
    """Return the first seconds of a recording as WAV."""
    import soundfile

    from vpmetrics.audio import read_audio

    wav = io.BytesIO()
    with translate_audio_errors():
        start = read_audio(path, _SAMPLE_RATE)[: _SAMPLE_RATE * _SAMPLE_SECONDS]
        soundfile.write(wav, start.numpy(), _SAMPLE_RATE, "PCM_16", format="WAV")
    return wav.getvalue()
