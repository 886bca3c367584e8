"""Original and protected embeddings with their speakers, paired by the names of utterances."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vpmetrics._util.inputs import Array, InputError, format_suffix, quote, shorten
from vpmetrics._util.scalar import printable
from vpmetrics._util.utterance_names import describe_inferred_speakers, infer_speakers
from vpmetrics._utterances.encoders import Encoder
from vpmetrics.readers.formats import READERS, Arrays, read_arrays
from vpmetrics.readers.options import RowOptions
from vpmetrics.readers.trial_files import read_first_column, read_labels, read_map
from vpmetrics.scoring import PLDA

_ALIASES = {
    "original": ("original", "emb_original", "emb_o", "orig", "o", "unprotected", "clean", "x"),
    "protected": (
        "protected",
        "emb_protected",
        "emb_p",
        "anonymised",
        "anonymized",
        "anon",
        "pseudonymised",
        "p",
        "y",
    ),
    "speakers": (
        "speakers",
        "speaker",
        "speaker_ids",
        "speaker_id",
        "spk",
        "spkid",
        "spk_id",
        "labels",
        "label",
    ),
}


NO_ORIGINALS = (
    "no original embeddings were given: only PP is measured, since OP, DeID and G_VD need them"
)


class Embeddings(NamedTuple):
    """The arguments of an embedding metric's ``update``, and what reports call them.

    ``original`` is None where only protected embeddings were given. ``encoders``: those whose
    embeddings stand side by side, where their names are known.
    """

    original: Tensor | None
    protected: Tensor
    speakers: Tensor
    speaker_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    sessions: Tensor | None = None
    is_reference: Tensor | None = None
    groups: Tensor | None = None
    group_names: tuple[str, ...] = ()
    utterance_names: tuple[str, ...] = ()
    encoders: tuple[Encoder, ...] = ()

    def by_encoder(self, side: Tensor | None) -> Tensor | dict[str, Tensor] | None:
        """Return one side as ``update`` takes it: by encoder where their names are known."""
        if side is None or not self.encoders:
            return side
        widths = [encoder.width for encoder in self.encoders]
        names = [encoder.name for encoder in self.encoders]
        return dict(zip(names, side.split(widths, dim=1), strict=True))

    def of_first_encoder(self, side: Tensor) -> Tensor:
        """Return the embeddings of the first encoder, for metrics that take one."""
        return side[:, : self.encoders[0].width] if self.encoders else side

    def look_up_labels(self, label_of: Mapping[str, str], source: str) -> list[str]:
        """Return the label of each row, by the name of its utterance or of its speaker."""
        speakers = [self.speaker_names[index] for index in self.speakers.tolist()]
        names = self.utterance_names or speakers
        labels: list[str] = []
        for name, speaker in zip(names, speakers, strict=True):
            labels.append(label_of.get(name, label_of.get(speaker, "")))
        if "" in labels:
            name = quote(names[labels.index("")])
            got = f"none for {name} ({labels.count('')} of {len(labels)})"
            raise InputError(f"expected a label for every row, but got {got}", source)
        return labels


class Column(NamedTuple):
    """Values of utterances, their names where the file has them, and where they come from."""

    values: Array
    utterances: list[str] | None
    source: str
    path: str = ""
    alias: str | None = None  # the name it was found by, where the user gave none

    def rows_by_name(self) -> dict[str, int]:
        """Return the row of every utterance."""
        if self.utterances is None:
            raise InputError(
                "expected it to name its utterances, as the other files do", self.source
            )
        rows = {utterance: row for row, utterance in enumerate(self.utterances)}
        num_repeated = len(self.utterances) - len(rows)
        if num_repeated:
            raise InputError(
                f"expected every utterance once, but {num_repeated} occur again", self.source
            )
        return rows

    def to_tensor(self, role: str, names: Sequence[str] | None = None) -> Tensor:
        """Return embeddings ``(N, D)``, float32 or wider, of all rows or those of ``names``."""
        values = self.values
        if values.ndim == 3 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 2 or values.dtype.kind not in "fiu" or not values.shape[1]:
            got = f"{values.dtype} of shape {values.shape}"
            raise InputError(
                f"expected {role} embeddings, numbers of shape (N, D), but got {got}", self.source
            )
        dtype = np.float64 if values.dtype == np.float64 else np.float32
        tensor = torch.tensor(np.asarray(values, dtype=dtype))
        self._check_finite(tensor, role)
        if names is None:
            return tensor
        row_of = self.rows_by_name()
        return tensor[[row_of[name] for name in names]]

    def _check_finite(self, embeddings: Tensor, role: str) -> None:
        """Raise where a number is NaN or infinite."""
        is_broken = ~embeddings.isfinite().all(dim=1)
        if not is_broken.any():
            return
        row = int(is_broken.nonzero()[0])
        if self.utterances is None:
            name = f"row {row}"
        else:
            name = quote(self.utterances[row])
        counts = f"{int(is_broken.sum()):,} of {len(embeddings):,}"
        raise InputError(
            f"expected {role} embeddings to hold finite numbers, but got {counts} rows with NaN or"
            f" infinity, first {name}",
            self.source,
        )

    def number_labels(self, rows: int) -> tuple[Tensor, tuple[str, ...]]:
        """Return a number for every label, by ascending labels, and the labels as text."""
        values = self.values
        if values.shape != (rows,):
            raise InputError(
                f"expected {rows} labels, one per embedding, but got shape {values.shape}",
                self.source,
            )
        self._check_no_label_is_missing()
        if values.dtype.kind not in "iuUSb":
            raise InputError(
                f"expected whole numbers or names, but got {values.dtype}", self.source
            )
        labels, label_index = np.unique(values, return_inverse=True)
        texts: list[str] = []
        for label in labels.tolist():
            if isinstance(label, bytes):
                text = label.decode(errors="replace")
            else:
                text = str(label)
            texts.append(printable(text))
        return torch.from_numpy(label_index), tuple(texts)

    def _check_no_label_is_missing(self) -> None:
        """Raise where a label is empty, None or NaN."""
        labels = self.values.tolist()
        is_missing = np.zeros(len(labels), dtype=bool)
        for row, label in enumerate(labels):
            is_missing[row] = label in (None, "", b"") or label != label
        if is_missing.any():
            counts = f"{int(is_missing.sum()):,} of {len(labels):,}"
            got = f"{counts} missing, first in row {int(is_missing.argmax())}"
            raise InputError(f"expected a label for every row, but got {got}", self.source)


class EmbeddingFiles:
    """Files, each read once, and the arrays that are needed of them.

    ``container``: a file of all arrays. ``strip_suffix``: what to remove from names of utterances.
    """

    def __init__(
        self,
        container: str | None = None,
        file_format: str | None = None,
        strip_suffix: str | None = None,
    ) -> None:
        self.container = container
        self.file_format = file_format
        self.strip_suffix = strip_suffix or ""
        self._arrays: dict[str, Arrays] = {}
        if container is not None and set(self.read_arrays(container).by_name) == {""}:
            raise InputError(
                "expected several arrays, but got one; give it by --original or --protected",
                container,
            )

    def read_arrays(self, path: str) -> Arrays:
        """Return the arrays of a file; it is read once."""
        if path not in self._arrays:
            arrays = read_arrays(path, self.file_format)
            self._arrays[path] = arrays._replace(utterances=self._strip(arrays.utterances))
        return self._arrays[path]

    def _strip(self, names: list[str] | None) -> list[str] | None:
        if names is None:
            return None
        return [name.removesuffix(self.strip_suffix) for name in names]

    def read_side(self, sources: Sequence[str], role: str) -> Column:
        """Return the embeddings of one side, from one file or from several whose rows are named."""
        if not sources:
            return self.read_column(None, role)
        columns = [self.read_column(source, role) for source in sources]
        if len(columns) == 1:
            return columns[0]
        return merge_columns_by_utterance(columns)

    def read_column(self, source: str | None, role: str) -> Column:
        """Return an array by ``FILE``, ``FILE:ARRAY`` or ``ARRAY``.

        An array that is not named has one of its usual names, or is the only matrix of a file of
        one side.
        """
        path, name = locate_source(source)
        is_one_side = path is not None and role in ("original", "protected", "plda-fit")
        if path is None:
            path = self.container
            name = source
        if path is None and source is not None:
            raise InputError(f"no such file for --{role}", source)
        if path is None:
            raise InputError(
                f"Expected --{role} FILE[:ARRAY] or a file that holds all arrays, but got neither."
            )
        arrays = self.read_arrays(path)
        key = _find_array(arrays, name, role, is_one_side)
        if key is None:
            expected = f"{role!r} (--{role} NAME gives another name)"
            if name is not None:
                expected = quote(name)
            shapes = [f"{key} {values.shape}" for key, values in arrays.by_name.items()]
            got = shorten(", ".join(shapes), 200) or "none"
            raise InputError(f"expected an array {expected}, but got {got}", path)
        values = arrays.load(key)
        has_row_names = values.ndim > 0 and len(values) == len(arrays.utterances or ())
        return Column(
            values,
            utterances=arrays.utterances if has_row_names else None,
            source=f"{path}:{key}" if key else path,
            path=path,
            alias=key if name is None and key else None,
        )

    def read_labels(self, source: str | None, role: str) -> Column:
        """Return a label of every row, from an array or a text.

        Lines of a text are ``utterance label`` or ``label``.
        """
        path, name = locate_source(source)
        is_array = path is None or name is not None or self.file_format is not None
        if path is None or is_array or format_suffix(path) in READERS:
            return self.read_column(source, role)
        names, labels = read_labels(path, f"utterance {role.removesuffix('s')}")
        return Column(np.array(labels), self._strip(names), path, path)

    def read_speakers(self, source: str | None, pattern: str | None, side: Column) -> Column:
        """Return the speaker of every row of one side.

        They come from ``source``; from a ``pattern``, a regular expression that finds them in names
        of utterances; from the file of the side; or from names of a well-known form.
        """
        if source is not None:
            return self.read_labels(source, "speakers")
        if pattern is not None:
            return _match_speakers(pattern, side)
        if self.has_speakers(side):
            return self.read_column(side.path, "speakers")
        speaker_of = infer_speakers(side.utterances or ())
        if speaker_of:
            return side._replace(values=np.array(list(speaker_of.values())), alias=None)
        if side.utterances is not None:
            remedy = "give --utt2spk FILE, or --speaker-pattern REGEX, as '^[^-_]+'"
            raise InputError(
                f"expected the speaker of every utterance, but got none; {remedy}", side.source
            )
        return self.read_column(None, "speakers")

    def describe_inferred_speakers(self, column: Column, options: RowOptions) -> tuple[str, ...]:
        """Return a sentence on speakers where only names of utterances tell them; else none."""
        is_given = options.speakers is not None or options.speaker_pattern is not None
        if is_given or self.has_speakers(column):
            return ()
        speaker_of = infer_speakers(column.utterances or ())
        return (describe_inferred_speakers(speaker_of),) if speaker_of else ()

    def has_array(self, path: str, role: str) -> bool:
        """Return whether a file has an array with one of the usual names of a role."""
        return any(name.lower() in _ALIASES[role] for name in self.read_arrays(path).by_name)

    def read_encoder_name(self, path: str) -> str:
        """Return the encoder that a file names, as ``vpmetrics embed`` writes it; empty if none."""
        if not Path(path).is_file():
            return ""
        arrays = self.read_arrays(path)
        if "encoder" not in arrays.by_name:
            return ""
        encoder = arrays.load("encoder")
        if encoder.ndim == 0 and encoder.dtype.kind == "U":
            return printable(encoder.item())
        return ""

    def has_speakers(self, column: Column) -> bool:
        """Return whether the file of some embeddings has their speakers, too."""
        if column.path not in self._arrays:
            return False
        return self.has_array(column.path, "speakers")


def _find_array(arrays: Arrays, name: str | None, role: str, is_one_side: bool) -> str | None:
    """Return the key of an array by its name, or by the usual names of its role; None if none.

    In a file of one side, the only matrix is meant where none has a usual name.
    """
    key_of = {key.lower(): key for key in arrays.by_name}
    if name is not None:
        return key_of.get(name.lower())
    usual_names = _ALIASES.get(role, (role, role.removesuffix("s")))
    for usual_name in (*usual_names, ""):
        if usual_name in key_of:
            return key_of[usual_name]
    matrices = [key for key, values in arrays.by_name.items() if values.ndim > 1]
    return matrices[0] if is_one_side and len(matrices) == 1 else None


def _match_speakers(pattern: str, side: Column) -> Column:
    """Return the speakers that a regular expression finds in the names of utterances."""
    if side.utterances is None:
        raise InputError("expected it to name its utterances for --speaker-pattern", side.source)
    speakers: list[str] = []
    for name in side.utterances:
        match = re.search(pattern, name)
        if match is None:
            raise InputError(
                f"Expected --speaker-pattern to match every utterance, but not {quote(name)}."
            )
        speakers.append(match[min(1, match.re.groups)])
    return side._replace(values=np.array(speakers), alias=None)


def holds_originals(source: str, file_format: str | None = None) -> bool:
    """Return whether a file holds original embeddings, and may hold others.

    What cannot be read is left to its reader.
    """
    path, name = locate_source(source)
    if path is None or name is not None or Path(path).is_dir():
        return False
    if file_format is None and format_suffix(path) not in READERS:
        return False
    names = [array.lower() for array in read_arrays(path, file_format).by_name]
    return any(name in _ALIASES["original"] for name in names)


def read_embeddings(
    container: str | None,
    original_sources: Sequence[str],
    protected_sources: Sequence[str],
    options: RowOptions,
) -> Embeddings:
    """Read both sides and their speakers, by the names of utterances or, without names, row by row.

    Sources are ``FILE``, ``FILE:ARRAY``, or names of arrays in the container. ``options`` name the
    labels of rows. Without a container, originals may be left out.
    """
    files = EmbeddingFiles(container, options.format, options.strip_suffix)
    columns: dict[str, Column] = {}
    if container is not None or original_sources:
        columns["original"] = files.read_side(original_sources, "original")
    columns["protected"] = files.read_side(protected_sources, "protected")
    first_side = next(iter(columns))
    side_paths: set[str] = set()
    is_named = False
    for column in columns.values():
        side_paths.add(column.path)
        is_named = is_named or column.utterances is not None
    columns["speakers"] = files.read_speakers(
        options.speakers, options.speaker_pattern, columns[first_side]
    )
    if options.sessions is not None:
        columns["sessions"] = files.read_labels(options.sessions, "sessions")
    notes = _note_guessed_arrays(columns, container)

    named_paths = {column.path for column in columns.values() if column.utterances is not None}
    if len(named_paths) > 1 or (is_named and len(side_paths) > 1):
        columns, notes_on_missing = _align_rows(columns, options.partial)
        notes += notes_on_missing
    elif len(side_paths) > 1:
        sources = " and ".join(columns[side].source for side in ("original", "protected"))
        notes += (f"rows of {sources} were paired by position: they have no names",)
    if "original" not in columns:
        notes += (NO_ORIGINALS,)
    notes += files.describe_inferred_speakers(columns[first_side], options)

    embeddings = _pack_columns(columns, notes)
    embeddings = mark_listed_references(embeddings, columns[first_side].utterances, options)
    embeddings = embeddings._replace(encoders=_find_encoders(files, columns))
    if options.groups is None:
        return embeddings
    labels = embeddings.look_up_labels(read_map(options.groups, "utterance group"), options.groups)
    groups, group_names = Column(np.array(labels), None, options.groups).number_labels(len(labels))
    return embeddings._replace(groups=groups, group_names=group_names)


def _note_guessed_arrays(columns: Mapping[str, Column], container: str | None) -> tuple[str, ...]:
    """Return a note on arrays that were found by names other than their role; none if all agree."""
    guessed = {role: column for role, column in columns.items() if column.alias is not None}
    if all(column.alias == role for role, column in guessed.items()):
        return ()
    descriptions: list[str] = []
    for role, column in guessed.items():
        name = column.alias if container else column.source
        descriptions.append(f"{name} as {role}")
    where = f"{container}: " if container else ""
    return (f"{where}taken {', '.join(descriptions)}",)


def _find_encoders(files: EmbeddingFiles, columns: Mapping[str, Column]) -> tuple[Encoder, ...]:
    """Return the encoder that the files name; raise where both sides name different ones."""
    names: set[str] = set()
    for side in ("original", "protected"):
        if side in columns:
            names.add(files.read_encoder_name(columns[side].path))
    names.discard("")
    if len(names) > 1:
        raise InputError(
            f"Expected both sides by the same encoder, but got {' and '.join(sorted(names))}."
        )
    width = columns["protected"].values.shape[-1]
    return tuple(Encoder(name, width) for name in names)


def mark_listed_references(
    embeddings: Embeddings, row_names: Sequence[str] | None, options: RowOptions
) -> Embeddings:
    """Mark the rows whose utterances are in the list of ``--enrolls``, if one is given."""
    path = options.enrolls
    if path is None:
        return embeddings
    if row_names is None:
        raise InputError(
            "expected embeddings that name their utterances, but got rows without names", path
        )
    enrolled = set(read_first_column(path))
    missing = enrolled.difference(row_names)
    if missing:
        first_name = f"first {quote(min(missing))}"
        if not options.partial or len(missing) == len(enrolled):
            message = (
                f"expected embeddings of all {len(enrolled):,} utterances, but {len(missing):,} are"
                f" missing, {first_name}"
            )
            if len(missing) < len(enrolled):
                message += "; --partial leaves them out"
            raise InputError(message, path)
        note = (
            f"{path}: {len(missing):,} of {len(enrolled):,} utterances have no embeddings,"
            f" {first_name}; they are left out"
        )
        embeddings = embeddings._replace(notes=(*embeddings.notes, note))
    return embeddings._replace(is_reference=torch.tensor([name in enrolled for name in row_names]))


def fit_plda(path: str, utt2spk: str | None = None, file_format: str | None = None) -> PLDA:
    """Fit a PLDA on labelled embeddings; their speakers are in their file or in ``utt2spk``."""
    files = EmbeddingFiles(None, file_format)
    vectors = files.read_column(path, "plda-fit")
    if files.has_speakers(vectors):
        speakers = files.read_speakers(None, None, vectors)
    else:
        speakers = _look_up_training_speakers(vectors, utt2spk)
    speaker_index, _ = speakers.number_labels(len(vectors.values))
    try:
        return PLDA().fit(vectors.to_tensor("training").double(), speaker_index)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"cannot be fitted ({error})", path) from None


def _look_up_training_speakers(vectors: Column, utt2spk: str | None) -> Column:
    """Return the speaker of each utterance in a list; raise where it lacks some."""
    if vectors.utterances is None or utt2spk is None:
        raise InputError(
            "expected speakers in it, or utterances that --utt2spk has the speakers of",
            vectors.source,
        )
    speaker_of = read_map(utt2spk)
    speakers: list[str] = []
    missing: list[str] = []
    for name in vectors.utterances:
        if name in speaker_of:
            speakers.append(speaker_of[name])
        else:
            missing.append(name)
    if missing:
        raise InputError(
            f"expected the speaker of every utterance of {vectors.source}, but {len(missing):,} are"
            f" missing, first {quote(missing[0])}",
            utt2spk,
        )
    return Column(np.array(speakers), None, utt2spk)


def locate_source(source: str | None) -> tuple[str | None, str | None]:
    """Split ``FILE`` or ``FILE:ARRAY``; both are None for a bare ``ARRAY``, which is no file."""
    if source is not None and Path(source).exists():
        return source, None
    path, _, name = (source or "").rpartition(":")
    if path and Path(path).exists():
        return path, name
    return None, None


def merge_columns_by_utterance(columns: Sequence[Column]) -> Column:
    """Join several files of one side into one row per utterance.

    Raise where vectors of an utterance differ, or rows have no names.
    """
    width = columns[0].values.shape[1:]
    for column in columns:
        if column.utterances is None:
            raise InputError(
                "expected it to name its utterances, so that several files can be one side",
                column.source,
            )
        if column.values.shape[1:] != width:
            expected = f"width {columns[0].values.shape[-1]}, that of {columns[0].source}"
            got = f"width {column.values.shape[-1]}"
            raise InputError(f"expected {expected}, but got {got}", column.source)
    names: list[str] = []
    for column in columns:
        names += column.utterances or ()
    values = np.concatenate([column.values for column in columns])
    _, first_row_of_name, name_index = np.unique(
        np.array(names), return_index=True, return_inverse=True
    )
    is_other_vector = (values != values[first_row_of_name[name_index]]).any(axis=1)
    if is_other_vector.any():
        name = quote(names[int(is_other_vector.argmax())])
        raise InputError(
            f"expected the same vector for {name} as in the files before, but got another one"
        )
    first_rows = np.sort(first_row_of_name)
    source = ", ".join(column.source for column in columns)
    return Column(values[first_rows], [names[row] for row in first_rows], source, source)


def _align_rows(
    columns: Mapping[str, Column], partial: bool
) -> tuple[dict[str, Column], tuple[str, ...]]:
    """Return the utterances that all files name, in the order of the first side, and notes."""
    row_of: dict[str, dict[str, int]] = {}
    for role, column in columns.items():
        row_of[role] = column.rows_by_name()
    sides = [role for role in ("original", "protected") if role in columns]
    common = set(row_of[sides[0]]).intersection(*row_of.values())
    if not common:
        raise _explain_different_names(columns, row_of)
    notes: list[str] = []
    for role in sides:
        missing = [name for name in row_of[role] if name not in common]
        if not missing:
            continue
        left_out = f"{len(missing):,} of {len(row_of[role]):,} utterances"
        source = columns[role].source
        if not partial:
            raise InputError(
                f"{left_out} are not in the other files, first {quote(missing[0])}; --partial"
                " leaves them out",
                source,
            )
        notes.append(f"{source}: {left_out} left out, the other files do not name them")
    names = [name for name in row_of[sides[0]] if name in common]
    aligned: dict[str, Column] = {}
    for role, column in columns.items():
        rows = [row_of[role][name] for name in names]
        aligned[role] = column._replace(values=column.values[rows], utterances=names)
    return aligned, tuple(notes)


def _explain_different_names(
    columns: Mapping[str, Column], row_of: Mapping[str, Mapping[str, int]]
) -> InputError:
    """Return the error of files that name no utterance alike; it tells a suffix to strip."""
    first_names: list[str] = []
    examples: list[str] = []
    for role, rows in row_of.items():
        name = next(iter(rows), "")
        first_names.append(name)
        examples.append(f"{quote(name)} in {columns[role].source}")
    message = "Expected utterances of the same name in all files, but they share none: "
    message += f"{', '.join(examples)}."
    for long, short in product(first_names, repeat=2):
        if long.startswith(short) and long != short:
            message += f" Try --strip-suffix={long[len(short) :]}"
            break
    return InputError(message)


def _pack_columns(columns: Mapping[str, Column], notes: tuple[str, ...]) -> Embeddings:
    """Return columns of aligned rows as arguments of ``update``."""
    protected = columns["protected"].to_tensor("protected")
    original = None
    first_side = columns["protected"]
    if "original" in columns:
        first_side = columns["original"]
        original = first_side.to_tensor("original")
        if original.shape != protected.shape:
            expected = f"shape {tuple(original.shape)}, that of {first_side.source}"
            got = tuple(protected.shape)
            raise InputError(f"expected {expected}, but got {got}", columns["protected"].source)
    num_rows = len(protected)
    speakers, speaker_names = columns["speakers"].number_labels(num_rows)
    embeddings = Embeddings(original, protected, speakers, speaker_names, notes=notes)
    if "sessions" in columns:
        sessions, _ = columns["sessions"].number_labels(num_rows)
        embeddings = embeddings._replace(sessions=sessions)
    return embeddings._replace(utterance_names=tuple(first_side.utterances or ()))
