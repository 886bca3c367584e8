"""Recordings as input: they are paired, embedded by one or several encoders and cached; ``vpmetrics embed``."""

from __future__ import annotations

import io
import math
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from vpmetrics._util.inputs import InputError, format_suffix, record_file
from vpmetrics._util.scalar import printable
from vpmetrics.readers.embeddings import Column, Embeddings, mark_listed_references
from vpmetrics.readers.progress import show_progress
from vpmetrics.report.folder import check_output_file
from vpmetrics.report.outputs import Sample
from vpmetrics.report.privacy_report import EvaluatedSystem

F0_SEGMENT_SECONDS = 30.0
_SAMPLE_RATE, _SAMPLE_SECONDS = 16000, 4


def holds_recordings(source: str) -> bool:
    """Return whether an input is a folder of recordings, a ``wav.scp`` or a manifest with a column ``path``."""
    path = Path(source)
    if path.is_dir():
        from vpmetrics.audio.reading import SUFFIXES

        return any(each.suffix.lower() in SUFFIXES or each == path / "wav.scp" for each in path.rglob("*"))
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
        text = re.sub(r"`(partial|strip_suffix|utt2spk|speaker_pattern)(=True)?`", r"--\1", str(error))
        raise InputError(re.sub(r"--[a-z_]+", lambda option: option[0].replace("_", "-"), text)) from None


def embed_sides(
    original: str, protected: str, encoder: str, options: Namespace, cache: Path
) -> tuple[Embeddings, Sequence[tuple[Path, Path]]]:
    """Pair recordings and embed them; return the embeddings, and the files of both sides of each row."""
    from vpmetrics.audio import embed_pairs, load_encoder, pair_recordings

    with translate_audio_errors():
        pairs = pair_recordings(
            original,
            protected,
            strip_suffix=options.strip_suffix,
            utt2spk=options.speakers,
            speaker_pattern=options.speaker_pattern,
            partial=options.partial,
        )
        network = load_encoder(encoder, device=options.device)
        with show_progress(f"embedding {protected} by {network.name}", 2 * len(pairs.original)) as set_done:
            embedded = embed_pairs(
                pairs,
                network,
                cache=cache,
                partial=options.partial,
                workers=options.workers,
                segment_seconds=F0_SEGMENT_SECONDS if encoder == "f0" else None,
                progress=lambda done, _total, _left: set_done(done),
            )
    record_file(original, f"{len(pairs.original):,} recordings")
    record_file(protected, f"{len(pairs.protected):,} recordings, embedded by {network.name}")
    notes = [*embedded.assumptions, *embedded.skipped]
    if network.is_weak:
        notes.append(f"{network.name} is a weak encoder: others, by --encoder, may tell speakers better")
    columns: list[tuple[Any, tuple[str, ...]]] = [
        (None, ()) if labels is None else Column(np.array(labels), None, "recordings").number_labels(len(labels))
        for labels in (embedded.speakers, embedded.sessions, embedded.groups)
    ]
    (speakers, speaker_names), (sessions, _), (groups, group_names) = columns
    embeddings = Embeddings(embedded.original, embedded.protected, speakers, speaker_names, notes=tuple(notes))
    embeddings = embeddings._replace(sessions=sessions, groups=groups, group_names=group_names)
    embeddings = embeddings._replace(utterance_names=tuple(embedded.utterances))
    # Segments of a recording are called utterance#1 and so on.
    names = [name.rpartition("#")[0] if encoder == "f0" else name for name in embedded.utterances]
    original_of = {two.path: one.path for one, two in zip(pairs.original, pairs.protected, strict=True)}
    embeddings = mark_listed_references(embeddings, names, options)
    return embeddings, [(original_of[row.path], row.path) for row in embedded.rows]


def pick_worst_and_best_speakers(
    system: EvaluatedSystem, embeddings: Embeddings, files: Sequence[tuple[Path, Path]]
) -> list[Sample]:
    """Return a recording of the worst, the median and the best protected speaker, by each speaker's D_ECE in OP."""
    import soundfile

    from vpmetrics.audio import read_audio

    speakers = system.report.conditions["OP"].speakers
    values = [] if speakers is None else speakers.probed.d_ece.tolist()
    ranked = sorted((place for place, value in enumerate(values) if not math.isnan(value)), key=lambda at: -values[at])
    samples = []
    for label, at in (("worst", 0), ("median", len(ranked) // 2), ("best", -1)) if ranked else ():
        row, sides = int((embeddings.speakers == ranked[at]).nonzero()[0]), [io.BytesIO(), io.BytesIO()]
        with translate_audio_errors():
            for path, side in zip(files[row], sides, strict=True):
                start = read_audio(path, _SAMPLE_RATE)[: _SAMPLE_RATE * _SAMPLE_SECONDS]
                soundfile.write(side, start.numpy(), _SAMPLE_RATE, "PCM_16", format="WAV")
        name, wavs = embeddings.speaker_names[ranked[at]], (side.getvalue() for side in sides)
        samples.append(Sample(name, f"{label} protected", *wavs))
    return samples


def embed(options: Namespace, console: Console) -> None:
    """Embed the recordings of a folder into a file, which ``evaluate`` reads."""
    if options.out.suffix != ".npz":
        raise InputError("expected a name that ends in .npz", options.out)
    if options.out.exists():
        raise InputError("exists already; choose another name", options.out)
    check_output_file(options.out)
    with translate_audio_errors(), show_progress(f"embedding {options.source} by {options.encoder}", 1.0) as set_done:
        from vpmetrics.audio import embed_folder

        embedded = embed_folder(
            options.source,
            options.encoder,
            utt2spk=options.utt2spk,
            speaker_pattern=options.speaker_pattern,
            device=options.device,
            partial=options.partial,
            workers=options.workers,
            segment_seconds=F0_SEGMENT_SECONDS if options.encoder == "f0" else None,
            progress=lambda done, total, _left: set_done(done / total),
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    embedded.save(options.out)
    rows, width = embedded.embeddings.shape
    for note in (*embedded.assumptions, *embedded.skipped):
        console.print(f"[yellow]note:[/] {escape(printable(note))}", soft_wrap=True)
    console.print(f"Wrote {escape(printable(str(options.out)))}: {rows:,} x {width}", soft_wrap=True)
