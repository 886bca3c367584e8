"""Original and protected embeddings with their speakers, paired by utterance where files name their
rows.
"""

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
    """The arguments of an embedding metric's ``update``, names of speakers and groups, and notes
    for the report.

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
        """Return one side as ``update`` takes it: the embeddings of each encoder by name, where
        names are known.
        """
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
        speakers = [self.speaker_names[number] for number in self.speakers.tolist()]
        names = self.utterance_names or speakers
        labels = [
            label_of.get(name, label_of.get(who, ""))
            for name, who in zip(names, speakers, strict=True)
        ]
        if "" in labels:
            got = f"none for {quote(names[labels.index('')])} ({labels.count('')} of {len(labels)})"
            raise InputError(f"expected a label for every row, but got {got}", source)
        return labels


class Column(NamedTuple):
    """Values of utterances, with their names where the file gives them, and where they come
    from.
    """

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
        if len(rows) < len(self.utterances):
            again = len(self.utterances) - len(rows)
            raise InputError(f"expected every utterance once, but {again} occur again", self.source)
        return rows

    def to_tensor(self, role: str, names: Sequence[str] | None = None) -> Tensor:
        """Return embeddings ``(N, D)``, float32 or wider: all rows, or those of ``names`` in their
        order.
        """
        values = self.values
        if values.ndim == 3 and values.shape[1] == 1:
            values = values[:, 0]
        if values.ndim != 2 or values.dtype.kind not in "fiu" or not values.shape[1]:
            got = f"{values.dtype} of shape {values.shape}"
            raise InputError(
                f"expected {role} embeddings, numbers of shape (N, D), but got {got}", self.source
            )
        tensor = torch.tensor(
            np.asarray(values, dtype=np.float64 if values.dtype == np.float64 else np.float32)
        )
        broken = ~tensor.isfinite().all(dim=1)
        if broken.any():
            row = int(broken.nonzero()[0])
            first = f"row {row}" if self.utterances is None else quote(self.utterances[row])
            got = (
                f"{int(broken.sum()):,} of {len(tensor):,} rows with NaN or infinity, first {first}"
            )
            raise InputError(
                f"expected {role} embeddings to hold finite numbers, but got {got}", self.source
            )
        if names is None:
            return tensor
        row_of = self.rows_by_name()
        return tensor[[row_of[name] for name in names]]

    def number_labels(self, rows: int) -> tuple[Tensor, tuple[str, ...]]:
        """Return a number for every label, by ascending labels, and the labels as text."""
        values = self.values
        if values.shape != (rows,):
            raise InputError(
                f"expected {rows} labels, one per embedding, but got shape {values.shape}",
                self.source,
            )
        is_missing = np.array(
            [value in (None, "", b"") or value != value for value in values.tolist()]
        )
        if is_missing.any():
            got = (
                f"{int(is_missing.sum()):,} of {rows:,} missing, first in row"
                f" {int(is_missing.argmax())}"
            )
            raise InputError(f"expected a label for every row, but got {got}", self.source)
        if values.dtype.kind not in "iuUSb":
            raise InputError(
                f"expected whole numbers or names, but got {values.dtype}", self.source
            )
        labels, numbers = np.unique(values, return_inverse=True)
        texts = (
            label.decode(errors="replace") if isinstance(label, bytes) else str(label)
            for label in labels.tolist()
        )
        return torch.from_numpy(numbers), tuple(map(printable, texts))


class EmbeddingFiles:
    """Files, each read once, and arrays picked from them; ``strip_suffix`` is removed from names of
    utterances.
    """

    def __init__(
        self,
        container: str | None = None,
        file_format: str | None = None,
        strip_suffix: str | None = None,
    ) -> None:
        self.container, self.file_format, self.strip_suffix = (
            container,
            file_format,
            strip_suffix or "",
        )
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
            names = arrays.utterances and [
                name.removesuffix(self.strip_suffix) for name in arrays.utterances
            ]
            self._arrays[path] = arrays._replace(utterances=names)
        return self._arrays[path]

    def read_side(self, sources: Sequence[str], role: str) -> Column:
        """Return the embeddings of one side, from one file or from several whose rows are named."""
        columns = [self.read_column(source, role) for source in sources] or [
            self.read_column(None, role)
        ]
        return columns[0] if len(columns) == 1 else merge_columns_by_utterance(columns)

    def read_column(self, source: str | None, role: str) -> Column:
        """Return an array by ``FILE``, ``FILE:ARRAY`` or ``ARRAY``.

        An array that is not named has one of its usual names, or is the only matrix of a file of
        one side.
        """
        path, name = locate_source(source)
        is_one_side = path is not None and role in ("original", "protected", "plda-fit")
        if path is None:
            path, name = self.container, source
        if path is None and source is not None:
            raise InputError(f"no such file for --{role}", source)
        if path is None:
            raise InputError(
                f"Expected --{role} FILE[:ARRAY] or a file that holds all arrays, but got neither."
            )
        arrays = self.read_arrays(path)
        by_name = arrays.by_name
        by_lower = {key.lower(): key for key in by_name}
        names = (
            (name.lower(),)
            if name is not None
            else (*_ALIASES.get(role, (role, role.removesuffix("s"))), "")
        )
        key = next((by_lower[name] for name in names if name in by_lower), None)
        matrices = [name for name, values in by_name.items() if values.ndim > 1]
        if key is None and name is None and is_one_side and len(matrices) == 1:
            key = matrices[0]
        if key is None:
            got = (
                shorten(", ".join(f"{key} {values.shape}" for key, values in by_name.items()), 200)
                or "none"
            )
            expected = (
                quote(name) if name is not None else f"{role!r} (--{role} NAME gives another name)"
            )
            raise InputError(f"expected an array {expected}, but got {got}", path)
        values = arrays.load(key)
        has_row_names = values.ndim > 0 and len(values) == len(arrays.utterances or ())
        row_names = arrays.utterances if has_row_names else None
        return Column(
            values,
            row_names,
            f"{path}:{key}" if key else path,
            path,
            key if name is None and key else None,
        )

    def read_labels(self, source: str | None, role: str) -> Column:
        """Return a label of every row: from an array, or from a text with lines ``utterance label``
        or ``label``.
        """
        path, name = locate_source(source)
        if (
            path is None
            or name is not None
            or self.file_format is not None
            or format_suffix(path) in READERS
        ):
            return self.read_column(source, role)
        names, labels = read_labels(path, f"utterance {role.removesuffix('s')}")
        names = names and [utterance.removesuffix(self.strip_suffix) for utterance in names]
        return Column(np.array(labels), names, path, path)

    def read_speakers(self, source: str | None, pattern: str | None, original: Column) -> Column:
        """Return the speaker of every row: from ``source``, by a pattern, from the originals, or by
        known names.
        """
        if source is not None:
            return self.read_labels(source, "speakers")
        if pattern is not None and original.utterances is None:
            raise InputError(
                "expected it to name its utterances for --speaker-pattern", original.source
            )
        if pattern is not None:
            speakers = []
            for name in original.utterances or ():
                if (match := re.search(pattern, name)) is None:
                    raise InputError(
                        "Expected --speaker-pattern to match every utterance, but not"
                        f" {quote(name)}."
                    )
                speakers.append(match[min(1, match.re.groups)])
            return original._replace(values=np.array(speakers), alias=None)
        if self.has_speakers(original):
            return self.read_column(original.path, "speakers")
        if speaker_of := infer_speakers(original.utterances or ()):
            return original._replace(values=np.array(list(speaker_of.values())), alias=None)
        if original.utterances is not None:
            remedy = "give --utt2spk FILE, or --speaker-pattern REGEX, as '^[^-_]+'"
            raise InputError(
                f"expected the speaker of every utterance, but got none; {remedy}", original.source
            )
        return self.read_column(None, "speakers")

    def describe_inferred_speakers(self, column: Column, options: RowOptions) -> tuple[str, ...]:
        """Return a sentence on speakers where only the names of utterances tell them; none
        otherwise.
        """
        is_given = options.speakers is not None or options.speaker_pattern is not None
        inferred = (
            {} if is_given or self.has_speakers(column) else infer_speakers(column.utterances or ())
        )
        return (describe_inferred_speakers(inferred),) if inferred else ()

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
        return printable(encoder.item()) if encoder.ndim == 0 and encoder.dtype.kind == "U" else ""

    def has_speakers(self, column: Column) -> bool:
        """Return whether the file of some embeddings has their speakers, too."""
        arrays = self._arrays.get(column.path)
        return arrays is not None and any(
            name.lower() in _ALIASES["speakers"] for name in arrays.by_name
        )


def holds_originals(source: str, file_format: str | None = None) -> bool:
    """Return whether a file holds original embeddings beside others; what cannot be read is left to
    its reader.
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
    """Read both sides and their speakers, by the names of utterances or, where files have none, row
    by row.

    Sources are ``FILE``, ``FILE:ARRAY``, or names of arrays in the container. ``options`` name the
    labels of rows. Without a container, originals may be left out.
    """
    files = EmbeddingFiles(container, options.format, options.strip_suffix)
    columns: dict[str, Column] = {}
    if container is not None or original_sources:
        columns["original"] = files.read_side(original_sources, "original")
    columns["protected"] = files.read_side(protected_sources, "protected")
    first_side = next(iter(columns))
    paths = {column.path for column in columns.values()}
    is_named = any(column.utterances is not None for column in columns.values())
    columns["speakers"] = files.read_speakers(
        options.speakers, options.speaker_pattern, columns[first_side]
    )
    if options.sessions is not None:
        columns["sessions"] = files.read_labels(options.sessions, "sessions")
    notes: tuple[str, ...] = ()
    guessed = {role: column for role, column in columns.items() if column.alias is not None}
    if any(column.alias != role for role, column in guessed.items()):
        taken = (
            f"{column.alias if container else column.source} as {role}"
            for role, column in guessed.items()
        )
        where = f"{container}: " if container else ""
        notes = (f"{where}taken {', '.join(taken)}",)
    named_files = {column.path for column in columns.values() if column.utterances is not None}
    if len(named_files) > 1 or (is_named and len(paths) > 1):
        columns, notes_on_missing = _align_rows(columns, options.partial)
        notes += notes_on_missing
    elif len(paths) > 1:
        sources = " and ".join(columns[side].source for side in ("original", "protected"))
        notes += (f"rows of {sources} were paired by position: they have no names",)
    if "original" not in columns:
        notes += (NO_ORIGINALS,)
    notes += files.describe_inferred_speakers(columns[first_side], options)
    embeddings = mark_listed_references(
        _pack_columns(columns, notes), columns[first_side].utterances, options
    )
    embeddings = embeddings._replace(encoders=_find_encoders(files, columns))
    if options.groups is None:
        return embeddings
    labels = embeddings.look_up_labels(read_map(options.groups, "utterance group"), options.groups)
    groups, group_names = Column(np.array(labels), None, options.groups).number_labels(len(labels))
    return embeddings._replace(groups=groups, group_names=group_names)


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
    if missing := enrolled.difference(row_names):
        first = f"first {quote(min(missing))}"
        if not options.partial or len(missing) == len(enrolled):
            message = (
                f"expected embeddings of all {len(enrolled):,} utterances, but {len(missing):,} are"
                " missing"
            )
            hint = "; --partial leaves them out" if len(missing) < len(enrolled) else ""
            raise InputError(f"{message}, {first}{hint}", path)
        note = (
            f"{path}: {len(missing):,} of {len(enrolled):,} utterances have no embeddings, {first}"
        )
        embeddings = embeddings._replace(notes=(*embeddings.notes, f"{note}; they are left out"))
    return embeddings._replace(is_reference=torch.tensor([name in enrolled for name in row_names]))


def fit_plda(path: str, utt2spk: str | None = None, file_format: str | None = None) -> PLDA:
    """Fit a PLDA on labelled embeddings: speakers are in their file, or found by the names of its
    rows.
    """
    files = EmbeddingFiles(None, file_format)
    vectors = files.read_column(path, "plda-fit")
    if files.has_speakers(vectors):
        speakers = files.read_speakers(None, None, vectors)
    elif vectors.utterances is None or utt2spk is None:
        raise InputError(
            "expected speakers in it, or utterances that --utt2spk has the speakers of",
            vectors.source,
        )
    else:
        speaker_of = read_map(utt2spk)
        if missing := [name for name in vectors.utterances if name not in speaker_of]:
            message = (
                f"expected the speaker of every utterance of {vectors.source}, but {len(missing):,}"
                " are missing"
            )
            raise InputError(f"{message}, first {quote(missing[0])}", utt2spk)
        speakers = Column(
            np.array([speaker_of[name] for name in vectors.utterances]), None, utt2spk
        )
    try:
        return PLDA().fit(
            vectors.to_tensor("training").double(), speakers.number_labels(len(vectors.values))[0]
        )
    except (ValueError, RuntimeError) as error:
        raise InputError(f"cannot be fitted ({error})", path) from None


def locate_source(source: str | None) -> tuple[str | None, str | None]:
    """Split ``FILE`` or ``FILE:ARRAY``. Both parts are None if there is no such file, as for a bare
    ``ARRAY``.
    """
    if source is not None and Path(source).exists():
        return source, None
    path, _, name = (source or "").rpartition(":")
    return (path, name) if path and Path(path).exists() else (None, None)


def merge_columns_by_utterance(columns: Sequence[Column]) -> Column:
    """Join several files of one side into one row per utterance; raise if its vectors differ or
    rows have no names.
    """
    first = columns[0]
    for column in columns:
        if column.utterances is None:
            raise InputError(
                "expected it to name its utterances, so that several files can be one side",
                column.source,
            )
        if column.values.shape[1:] != first.values.shape[1:]:
            expected, got = (f"width {one.values.shape[-1]}" for one in (first, column))
            raise InputError(
                f"expected {expected}, that of {first.source}, but got {got}", column.source
            )
    values = np.concatenate([column.values for column in columns])
    names = [name for column in columns for name in column.utterances or ()]
    _, first_rows, name_index = np.unique(np.array(names), return_index=True, return_inverse=True)
    if (differs := (values != values[first_rows[name_index]]).any(axis=1)).any():
        name = quote(names[int(differs.argmax())])
        raise InputError(
            f"expected the same vector for {name} as in the files before, but got another one"
        )
    kept = np.sort(first_rows)
    source = ", ".join(column.source for column in columns)
    return Column(values[kept], [names[at] for at in kept], source, source)


def _align_rows(
    columns: Mapping[str, Column], partial: bool
) -> tuple[dict[str, Column], tuple[str, ...]]:
    """Return the utterances that all files name, in the order of the first side."""
    rows = {role: column.rows_by_name() for role, column in columns.items()}
    sides = [role for role in ("original", "protected") if role in columns]
    common = set(rows[sides[0]]).intersection(*rows.values())
    if not common:
        names = {role: next(iter(of_role), "") for role, of_role in rows.items()}
        shown = ", ".join(
            f"{quote(name)} in {columns[role].source}" for role, name in names.items()
        )
        suffixes = (
            long[len(short) :]
            for long, short in product(names.values(), repeat=2)
            if long.startswith(short)
        )
        suffix = next(filter(None, suffixes), "")
        hint = f" Try --strip-suffix={suffix}" if suffix else ""
        raise InputError(
            "Expected utterances of the same name in all files, but they share none:"
            f" {shown}.{hint}"
        )
    notes = []
    for role in sides:
        missing = [name for name in rows[role] if name not in common]
        left_out = f"{len(missing):,} of {len(rows[role]):,} utterances"
        if missing and not partial:
            message = (
                f"{left_out} are not in the other files, first {quote(missing[0])}; --partial"
                " leaves them out"
            )
            raise InputError(message, columns[role].source)
        if missing:
            notes.append(
                f"{columns[role].source}: {left_out} left out, the other files do not name them"
            )
    kept = [name for name in rows[sides[0]] if name in common]
    aligned = {
        role: column._replace(
            values=column.values[[rows[role][name] for name in kept]], utterances=kept
        )
        for role, column in columns.items()
    }
    return aligned, tuple(notes)


def _pack_columns(columns: Mapping[str, Column], notes: tuple[str, ...]) -> Embeddings:
    protected = columns["protected"].to_tensor("protected")
    original = columns["original"].to_tensor("original") if "original" in columns else None
    if original is not None and original.shape != protected.shape:
        expected = f"shape {tuple(original.shape)}, that of {columns['original'].source}"
        raise InputError(
            f"expected {expected}, but got {tuple(protected.shape)}", columns["protected"].source
        )
    rows = len(protected)
    first_side = columns["protected"] if original is None else columns["original"]
    speakers, speaker_names = columns["speakers"].number_labels(rows)
    sessions = columns["sessions"].number_labels(rows)[0] if "sessions" in columns else None
    row_names = tuple(first_side.utterances or ())
    embeddings = Embeddings(original, protected, speakers, speaker_names, notes, sessions)
    return embeddings._replace(utterance_names=row_names)
