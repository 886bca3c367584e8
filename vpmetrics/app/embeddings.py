"""Both sides of a system and their speakers, from files of any format: paired by utterance where these are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vpmetrics.app.errors import InputError, printable
from vpmetrics.app.pairs import read_map, read_pairs
from vpmetrics.app.sides import Column, Files, rows_by_name
from vpmetrics.scoring import PLDA


class Embeddings(NamedTuple):
    """What the embedding metrics are called with, the names of the speakers by number, and what was left out."""

    original: Tensor
    protected: Tensor
    speakers: Tensor
    speaker_names: tuple[str, ...]
    utterances: Tensor | None = None
    notes: tuple[str, ...] = ()
    sessions: Tensor | None = None
    is_reference: Tensor | None = None
    groups: Tensor | None = None
    group_names: tuple[str, ...] = ()


class Sources(NamedTuple):
    """Where the embeddings of one system are: a file of several arrays, and files or names of arrays in it."""

    container: str | None = None
    original: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    speakers: str | None = None
    utterances: str | None = None
    enrolls: str | None = None
    groups: str | None = None


def read_embeddings(sources: Sources, partial: bool = False) -> Embeddings:
    """Both sides and their speakers, by the names of utterances or, where files have none, row by row.

    Args:
        sources: Where they are.
        partial: Leave out utterances that are not on both sides, which are refused else.
    """
    files = Files(sources.container)
    original, protected = files.side(sources.original, "original"), files.side(sources.protected, "protected")
    speakers = files.speakers(sources.speakers, original)
    utterances = None if sources.utterances is None else files.labels(sources.utterances, "utterances")
    columns = {"original": original, "protected": protected, "speakers": speakers}
    notes = _say_guessed(sources.container, columns)
    if original.path != protected.path and any(side.utterances is not None for side in (original, protected)):
        if utterances is not None:
            raise InputError("Expected --utterances for rows without names only, but the files name their utterances.")
        columns, left_out = _align(columns, partial)
        notes += left_out
    elif original.path != protected.path:
        notes += (f"rows of {original.source} and {protected.source} were paired by position: they have no names",)
    packed = _pack(columns, utterances, notes)
    names = columns["original"].utterances
    return _with_groups(_with_references(packed, names, sources.enrolls), names, sources.groups)


def _with_references(embeddings: Embeddings, names: list[str] | None, enrolls: str | None) -> Embeddings:
    """Which rows the attacker enrols speakers with."""
    if enrolls is None:
        return embeddings
    if names is None:
        raise InputError("expected files that name their utterances beside it, but got rows without names", enrolls)
    enrolled = set(read_pairs(enrolls, ("utterance",))[0])
    missing = enrolled.difference(names)
    if missing:
        message = f"expected embeddings of all {len(enrolled):,} utterances, but {len(missing):,} are missing"
        raise InputError(f"{message}, first {min(missing)!r}", enrolls)
    return embeddings._replace(is_reference=torch.tensor([name in enrolled for name in names]))


def _with_groups(embeddings: Embeddings, names: list[str] | None, path: str | None) -> Embeddings:
    """The group of each row, by its utterance or its speaker."""
    if path is None:
        return embeddings
    group_of = read_map(path, ("utterance", "group"))
    speakers = [embeddings.speaker_names[number] for number in embeddings.speakers.tolist()]
    of_row = [
        group_of.get(name, group_of.get(speaker)) for name, speaker in zip(names or speakers, speakers, strict=True)
    ]
    if None in of_row:
        at = of_row.index(None)
        raise InputError(f"expected the group of every row, but got none for {(names or speakers)[at]!r}", path)
    kinds, numbers = np.unique(np.array(of_row), return_inverse=True)
    groups = torch.from_numpy(numbers.astype(np.int64))
    return embeddings._replace(groups=groups, group_names=tuple(map(printable, kinds.tolist())))


def read_plda(path: str, utt2spk: str | None = None) -> PLDA:
    """A PLDA fitted on labelled embeddings: the speakers are in their file, or found by the names of its rows."""
    files = Files(None)
    vectors = files.column(path, "plda-fit")
    speakers = files.speakers(None, vectors) if files.knows_speakers(vectors) else _speakers_by_name(vectors, utt2spk)
    try:
        return PLDA().fit(tensor_of(vectors, "training").double(), number_labels(speakers, len(vectors.values))[0])
    except (ValueError, RuntimeError) as error:
        raise InputError(f"cannot be fitted ({error})", path) from None


def _speakers_by_name(vectors: Column, utt2spk: str | None) -> Column:
    if vectors.utterances is None or utt2spk is None:
        raise InputError("expected speakers in it, or utterances that --utt2spk has the speakers of", vectors.source)
    speakers = Files(None).labels(utt2spk, "speakers")
    row_of = rows_by_name(speakers)
    missing = [name for name in vectors.utterances if name not in row_of]
    if missing:
        message = f"expected the speaker of every utterance of {vectors.source}, but {len(missing):,} are missing"
        raise InputError(f"{message}, first {missing[0]!r}", utt2spk)
    return Column(speakers.values[[row_of[name] for name in vectors.utterances]], None, utt2spk, utt2spk)


def _say_guessed(container: str | None, columns: Mapping[str, Column]) -> tuple[str, ...]:
    """Which array became what, where a name had to be guessed."""
    guessed = {role: column for role, column in columns.items() if column.alias is not None}
    if all(column.alias == role for role, column in guessed.items()):
        return ()
    says = ", ".join(f"{column.alias if container else column.source} as {role}" for role, column in guessed.items())
    return (f"{container}: taken {says}" if container else f"taken {says}",)


def _align(columns: Mapping[str, Column], partial: bool) -> tuple[dict[str, Column], tuple[str, ...]]:
    """The utterances of both sides, in the order of the originals."""
    rows = {role: rows_by_name(column) for role, column in columns.items()}
    kept = [name for name in rows["original"] if all(name in rows[role] for role in rows)]
    if not kept:
        sources = ", ".join(column.source for column in columns.values())
        raise InputError(f"Expected utterances of the same name in {sources}, but they share none.")
    notes = []
    for role in ("original", "protected"):
        missing = [name for name in rows[role] if any(name not in others for others in rows.values())]
        if missing:
            left_out = f"{len(missing):,} of {len(rows[role]):,} utterances"
            notes.append(f"{columns[role].source}: {left_out} left out, the other files do not name them")
            if not partial:
                message = f"{left_out} are not in the other files, first {missing[0]!r}; --partial leaves them out"
                raise InputError(message, columns[role].source)
    aligned = {
        role: column._replace(values=column.values[[rows[role][name] for name in kept]], utterances=kept)
        for role, column in columns.items()
    }
    return aligned, tuple(notes)


def _pack(columns: Mapping[str, Column], utterances: Column | None, notes: tuple[str, ...]) -> Embeddings:
    original, protected = (tensor_of(columns[role], role) for role in ("original", "protected"))
    if original.shape != protected.shape:
        expected = f"shape {tuple(original.shape)}, that of {columns['original'].source}"
        raise InputError(f"expected {expected}, but got {tuple(protected.shape)}", columns["protected"].source)
    speakers, names = number_labels(columns["speakers"], len(original))
    numbers = None if utterances is None else number_labels(utterances, len(original))[0]
    return Embeddings(original, protected, speakers, names, utterances=numbers, notes=notes)


def tensor_of(column: Column, role: str) -> Tensor:
    """Embeddings as a tensor, float32 or wider."""
    values = column.values
    if values.ndim != 2 or values.dtype.kind not in "fiu":
        got = f"{values.dtype} of shape {values.shape}"
        raise InputError(f"expected {role} embeddings, numbers of shape (N, D), but got {got}", column.source)
    wide = np.float64 if values.dtype == np.float64 else np.float32
    return torch.from_numpy(np.ascontiguousarray(values, dtype=wide))


def number_labels(column: Column, rows: int) -> tuple[Tensor, tuple[str, ...]]:
    """Whole numbers for labels of any kind, ascending, and the labels as text."""
    if column.values.shape != (rows,):
        got = f"shape {column.values.shape}"
        raise InputError(f"expected {rows} labels, one per embedding, but got {got}", column.source)
    if column.values.dtype.kind not in "iuUSb":
        raise InputError(f"expected whole numbers or names, but got {column.values.dtype}", column.source)
    kinds, numbers = np.unique(column.values, return_inverse=True)
    texts = kinds.astype(str).tolist() if kinds.dtype.kind != "S" else [k.decode(errors="replace") for k in kinds]
    return torch.from_numpy(numbers.astype(np.int64)), tuple(map(printable, texts))
