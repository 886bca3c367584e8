"""One side of a system: embeddings by FILE, FILE:ARRAY or ARRAY, from one file or several, and labels of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vpmetrics.app.columns import Array
from vpmetrics.app.errors import InputError
from vpmetrics.app.files import exists
from vpmetrics.app.formats import Arrays, is_text, read_arrays
from vpmetrics.app.lists import holds_trials
from vpmetrics.app.pairs import read_pairs

_ALIASES = {
    "original": ("original", "emb_original", "emb_o", "orig", "o", "unprotected", "clean", "x"),
    "protected": ("protected", "emb_protected", "emb_p", "anonymised", "anonymized", "anon", "pseudonymised", "p", "y"),
    "plda-fit": ("embeddings", "vectors", "xvectors", "emb", "original", "x"),
    "speakers": ("speakers", "speaker", "speaker_ids", "speaker_id", "spk", "spkid", "spk_id", "labels", "label"),
}
_VECTORS = "speaker_vectors.pt"  # what a folder of the challenge's toolkit holds


class Column(NamedTuple):
    """Values of utterances, with their names where the file gives them, and where they come from."""

    values: Array
    utterances: list[str] | None
    source: str
    path: str = ""  # of the file alone
    alias: str | None = None  # the name it was found by, where nobody had given one


class Files:
    """Files read once, and the arrays picked from them."""

    def __init__(self, container: str | None) -> None:
        self.container = container
        self._arrays: dict[str, Arrays] = {}
        if container is not None and set(self.arrays(container).by_name) == {""}:
            raise InputError("expected several arrays, but got one; give it by --original or --protected", container)

    def arrays(self, path: str) -> Arrays:
        """What a file holds."""
        if path not in self._arrays:
            self._arrays[path] = read_arrays(path)
        return self._arrays[path]

    def side(self, sources: Sequence[str], role: str) -> Column:
        """One side's embeddings, from one file or from several whose rows are named."""
        if not sources:
            return self.column(None, role)
        columns = [self.column(source, role) for source in sources]
        return columns[0] if len(columns) == 1 else merge(columns)

    def column(self, source: str | None, role: str) -> Column:
        """An array by FILE, FILE:ARRAY or ARRAY; by one of its usual names where nothing was said."""
        if source is not None:
            path, name = locate(source)
            if path is not None:
                path = str(Path(path) / _VECTORS) if Path(path).is_dir() else path
                return _pick(self.arrays(path), name, role, path)
            if self.container is None:
                raise InputError(f"no such file for --{role}", source)
        if self.container is None:
            raise InputError(f"Expected --{role} FILE[:ARRAY] or a file that holds all arrays, but got neither.")
        return _pick(self.arrays(self.container), source, role, self.container)

    def labels(self, source: str | None, role: str) -> Column:
        """A label of every row: from a text or an array."""
        path, name = (None, None) if source is None else locate(source)
        if path is None or name is not None or not is_text(path):
            return self.column(source, role)
        columns = read_pairs(path)
        return Column(np.array(columns[-1]), columns[0] if len(columns) == 2 else None, path, path)

    def speakers(self, source: str | None, original: Column) -> Column:
        """Whoever speaks in every row; where nothing was said, what the file of the originals says."""
        if source is None and self.container is None and self.knows_speakers(original):
            return _pick(self._arrays[original.path], None, "speakers", original.path)
        return self.labels(source, "speakers")

    def knows_speakers(self, column: Column) -> bool:
        """Whether the file of some embeddings also says whose they are."""
        beside = self._arrays.get(column.path)
        return beside is not None and any(name.lower() in _ALIASES["speakers"] for name in beside.by_name)


def locate(source: str) -> tuple[str | None, str | None]:
    """The file in FILE or FILE:ARRAY, and the array; none where there is no such file."""
    if exists(source):
        return source, None
    path, _, name = source.rpartition(":")
    return (path, name) if path and exists(path) else (None, None)


def holds_arrays(source: str) -> bool:
    """Whether a file holds embeddings, so far as its first bytes tell: lists of scores are texts."""
    path, name = locate(source)
    return name is not None or not (is_text(path or source) or holds_trials(path or source))


def merge(columns: Sequence[Column]) -> Column:
    """Several files of one side as one; an utterance in two of them is the same in both."""
    for column in columns:
        if column.utterances is None:
            raise InputError("expected it to name its utterances, so that several files can be one side", column.source)
        if column.values.shape[1:] != columns[0].values.shape[1:]:
            expected, got = (f"width {c.values.shape[-1]}" for c in (columns[0], column))
            raise InputError(f"expected {expected}, that of {columns[0].source}, but got {got}", column.source)
    values = np.concatenate([column.values for column in columns])
    names = [name for column in columns for name in column.utterances or ()]
    _, first, number = np.unique(np.array(names), return_index=True, return_inverse=True)
    differs = (values != values[first[number]]).any(axis=1)
    if differs.any():
        at = int(differs.argmax())
        raise InputError(f"expected the same vector for {names[at]!r} as in the files before, but got another one")
    kept = np.sort(first)
    source = ", ".join(column.source for column in columns)
    return Column(values[kept], [names[at] for at in kept], source, source)


def rows_by_name(column: Column) -> dict[str, int]:
    """The row of every utterance."""
    if column.utterances is None:
        raise InputError("expected it to name its utterances, as the other files do", column.source)
    rows = {utterance: row for row, utterance in enumerate(column.utterances)}
    if len(rows) < len(column.utterances):
        again = len(column.utterances) - len(rows)
        raise InputError(f"expected every utterance once, but {again} occur again", column.source)
    return rows


def _pick(arrays: Arrays, name: str | None, role: str, path: str) -> Column:
    by_lower = {key.lower(): key for key in arrays.by_name}
    wanted = (name.lower(),) if name is not None else _ALIASES.get(role, (role,))
    key = next((by_lower[one] for one in wanted if one in by_lower), "" if name is None and "" in by_lower else None)
    if key is None:
        found = ", ".join(f"{key} {values.shape}" for key, values in arrays.by_name.items())
        expected = f"an array {role!r} (--{role} NAME calls it otherwise)" if name is None else f"an array {name!r}"
        raise InputError(f"expected {expected}, but got {found or 'none'}", path)
    values = arrays.by_name[key]
    named = arrays.utterances if values.ndim and len(values) == len(arrays.utterances or ()) else None
    return Column(values, named, f"{path}:{key}" if key else path, path, key if name is None and key else None)
