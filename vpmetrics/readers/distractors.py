"""Distractors: speakers who are enrolled and never tested, so that a gallery has more people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vpmetrics._util.inputs import InputError, format_suffix, quote
from vpmetrics._util.scalar import printable
from vpmetrics._util.utterance_names import infer_speakers
from vpmetrics.readers.embeddings import Column, EmbeddingFiles, Embeddings, locate_source
from vpmetrics.readers.formats import READERS
from vpmetrics.readers.options import RowOptions
from vpmetrics.readers.trial_files import read_map

_SIDES = ("original", "protected")
_MOST_NAMED = 3  # speakers that an error names


@dataclass(frozen=True)
class Distractors:
    """One reference per speaker ``(G, D)`` on each side; None on a side that the file lacks.

    ``note``: their number and the references that they join, for the report.
    """

    original: Tensor | None
    protected: Tensor | None
    speaker_names: tuple[str, ...]
    note: str

    def by_side(self) -> dict[str, Tensor]:
        """Return the references of the sides that have some, by name of the side."""
        sides = {"original": self.original, "protected": self.protected}
        return {name: vectors for name, vectors in sides.items() if vectors is not None}


def read_distractors(source: str, embeddings: Embeddings, options: RowOptions) -> Distractors:
    """Read speakers who join the gallery of an evaluation, and are not among its speakers.

    Rows of a speaker are averaged. Speakers are in the file, in ``options.speakers`` where that
    lists all its utterances, or in names of utterances as of LibriSpeech; otherwise every row is a
    speaker of its own.

    Args:
        source: ``FILE``, or ``FILE:ARRAY``, of embeddings. One array is of original speech, or of
            protected speech where it is called so or where the evaluation has no originals.
        embeddings: Those that are evaluated.
        options: The format of the file, and where speakers are found.

    Returns:
        References of distractors on each side, :class:`Distractors`.

    Raises:
        InputError: If some speaker or embedding is evaluated, too, if the width or the encoder is
            another, or if a number is NaN or infinite.
    """
    files = EmbeddingFiles(None, options.format, options.strip_suffix)
    columns = _read_sides(files, source, embeddings)
    names, speaker_index, has_speakers = _find_speakers(files, columns, options)
    if has_speakers:
        _check_no_speaker_is_evaluated(names, embeddings.speaker_names, source)
    references: dict[str, Tensor] = {}
    for side, column in columns.items():
        vectors = column.to_tensor(f"{side} distractor")
        _check_encoder(files, column, vectors.shape[1], embeddings)
        if side == "original":
            evaluated = embeddings.original
        else:
            evaluated = embeddings.protected
        if evaluated is not None:
            _check_no_row_is_evaluated(vectors, embeddings.of_first_encoder(evaluated), column)
        references[side] = _average_by_speaker(vectors, speaker_index, len(names))
    note = (
        f"{source}: {len(names):,} distractors join the gallery of {' and '.join(columns)} speech"
    )
    if not has_speakers:
        note += "; each row is taken for a speaker, since the file names none"
    return Distractors(references.get("original"), references.get("protected"), names, note)


def _read_sides(files: EmbeddingFiles, source: str, embeddings: Embeddings) -> dict[str, Column]:
    """Return the embeddings of each side that a file has."""
    path, array = locate_source(source)
    if path is None:
        raise InputError("no such file for --distractors", source)
    if array is None:
        columns: dict[str, Column] = {}
        for side in _SIDES:
            if files.has_array(path, side):
                columns[side] = files.read_column(path, side)
        if embeddings.original is None:
            columns.pop("original", None)
        if columns:
            return columns
    is_protected = embeddings.original is None or array == "protected"
    side = "protected" if is_protected else "original"
    return {side: files.read_column(source, side)}


def _find_speakers(
    files: EmbeddingFiles, columns: dict[str, Column], options: RowOptions
) -> tuple[tuple[str, ...], Tensor, bool]:
    """Return names of speakers, the speaker of each row, and whether speakers were given."""
    column = next(iter(columns.values()))
    num_rows = len(column.values)
    if files.has_speakers(column):
        labels = files.read_column(column.path, "speakers")
    else:
        speakers = _look_up_speakers(column.utterances or (), options)
        if not speakers:
            names = column.utterances or [f"row {row}" for row in range(num_rows)]
            return tuple(map(printable, names)), torch.arange(num_rows), False
        labels = Column(np.array(speakers), None, column.source)
    speaker_index, speaker_names = labels.number_labels(num_rows)
    return speaker_names, speaker_index, True


def _look_up_speakers(utterances: Sequence[str], options: RowOptions) -> list[str]:
    """Return the speaker of each utterance; none where nothing tells all of them."""
    if not utterances:
        return []
    is_list = options.speakers is not None and format_suffix(options.speakers) not in READERS
    if is_list and locate_source(options.speakers)[0] is not None:
        speaker_of = read_map(str(options.speakers))
        if set(utterances) <= set(speaker_of):
            return [speaker_of[name] for name in utterances]
    return list(infer_speakers(utterances).values())


def _check_no_speaker_is_evaluated(
    names: Sequence[str], evaluated: Sequence[str], source: str
) -> None:
    """Raise for distractors who are speakers of the evaluation."""
    shared = sorted(set(names) & set(evaluated))
    if not shared:
        return
    shown = ", ".join(quote(name) for name in shared[:_MOST_NAMED])
    if len(shared) > _MOST_NAMED:
        shown += f" and {len(shared) - _MOST_NAMED:,} more"
    expected = "expected distractors who are not evaluated"
    raise InputError(
        f"{expected}, but {len(shared):,} of {len(names):,} are: {shown}; leave them out, or"
        " rename speakers who only share a label",
        source,
    )


def _check_no_row_is_evaluated(distractors: Tensor, evaluated: Tensor, column: Column) -> None:
    """Raise for a distractor whose embedding is evaluated, too, under whatever name."""
    evaluated_rows = {row.tobytes() for row in evaluated.double().numpy()}
    for row, vector in enumerate(distractors.double().numpy()):
        if vector.tobytes() in evaluated_rows:
            if column.utterances is None:
                name = f"row {row}"
            else:
                name = quote(column.utterances[row])
            raise InputError(
                f"expected distractors who are not evaluated, but {name} equals an evaluated"
                " embedding",
                column.source,
            )


def _check_encoder(
    files: EmbeddingFiles, column: Column, width: int, embeddings: Embeddings
) -> None:
    """Raise for distractors by another encoder than that of the evaluation."""
    expected_width = embeddings.of_first_encoder(embeddings.protected).shape[1]
    if width != expected_width:
        raise InputError(
            f"expected distractors of width {expected_width}, as the evaluated embeddings, but got"
            f" {width}",
            column.source,
        )
    name = files.read_encoder_name(column.path)
    if name and embeddings.encoders and name != embeddings.encoders[0].name:
        expected = quote(embeddings.encoders[0].name)
        raise InputError(
            f"expected distractors by the encoder {expected}, as the evaluated embeddings, but got"
            f" {quote(name)}",
            column.source,
        )


def _average_by_speaker(vectors: Tensor, speaker_index: Tensor, num_speakers: int) -> Tensor:
    """Return the mean of the rows of each speaker ``(G, D)``, summed in float64."""
    sums = vectors.new_zeros(num_speakers, vectors.shape[1], dtype=torch.float64)
    sums.index_add_(0, speaker_index, vectors.double())
    counts = torch.bincount(speaker_index, minlength=num_speakers)
    return (sums / counts.unsqueeze(1)).to(vectors.dtype)
