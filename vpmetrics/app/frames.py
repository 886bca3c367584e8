"""Tables of embeddings, from text or Parquet: numbered columns are a matrix, others are what they are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import polars as pl

from vpmetrics.app.columns import NUMBER, Array, Role, Rows
from vpmetrics.app.errors import InputError
from vpmetrics.app.text import read_text

_TEXT = re.compile(r"utt.*|id|name|key|spk.*|speaker.*|label.*", re.IGNORECASE)  # names, though they be numbers
_NUMBERED = re.compile(r"(.*?)[\s_.\-\[]*\d+\]?")


def read_table(file: BinaryIO, path: str) -> dict[str, Array]:
    """A table of text, with a header or without: then its first columns may be an utterance and a speaker."""
    roles: dict[str, Role] = {}

    def choose(rows: Rows, lenient: bool) -> tuple[tuple[str, ...], bool] | None:  # noqa: ARG001
        # By most lines, so that a single wrong field does not make a column of names.
        fields = zip(*([NUMBER.fullmatch(field) is not None for field in row] for row in rows), strict=True)
        numeric = [2 * sum(column) >= len(rows) for column in fields]
        if not any(numeric):
            return None
        header = not any(NUMBER.fullmatch(field) for field, number in zip(rows[0], numeric, strict=True) if number)
        names = _unique(rows[0]) if header else _invented(numeric)
        for name, is_number in zip(names, numeric, strict=True):
            text = not is_number or _TEXT.fullmatch(name)
            roles[name] = Role(pl.String) if text else Role(pl.Float64, NUMBER, "a number")
        return names, header

    parts = read_text(path, roles, choose, "utterance number number ...", file)
    return _arrays_of(pl.concat([part.columns for part in parts]), path)


def read_parquet(file: BinaryIO, path: str) -> dict[str, Array]:
    """A Parquet file; a column of lists is a matrix."""
    return _arrays_of(pl.read_parquet(file), path)


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name if name not in names[:at] else f"{name} ({at + 1})" for at, name in enumerate(names))


def _invented(numeric: Sequence[bool]) -> tuple[str, ...]:
    texts = iter(("utterance", "speaker", *(f"text {k}" for k in range(len(numeric)))))
    return tuple(f"x{at}" if is_number else next(texts) for at, is_number in enumerate(numeric))


def holds_matrix(schema: pl.Schema) -> bool:
    """Whether some columns could be embeddings."""
    several = any(len(columns) > 1 for columns in _numbered(schema).values())
    return several or any(isinstance(dtype, (pl.List, pl.Array)) for dtype in schema.values())


def _numbered(schema: pl.Schema) -> dict[str, list[str]]:
    """Columns of numbers that are numbered, by what they are called without it."""
    numbered: dict[str, list[str]] = {}
    for name, dtype in schema.items():
        if dtype.is_numeric() and (match := _NUMBERED.fullmatch(name)):
            numbered.setdefault(match[1], []).append(name)
    return numbered


def _arrays_of(frame: pl.DataFrame, path: str) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    numbered = _numbered(frame.schema)
    of_matrices = {name for columns in numbered.values() for name in columns}
    for name, dtype in frame.schema.items():
        if isinstance(dtype, (pl.List, pl.Array)):
            arrays[name] = _matrix(frame[name], path)
        elif name not in of_matrices:
            arrays[name] = frame[name].to_numpy() if dtype.is_numeric() else frame[name].cast(pl.String).to_numpy()
    for name, columns in numbered.items():
        arrays["" if len(numbered) == 1 else name] = frame.select(columns).to_numpy()
    return {name: values.astype(str) if values.dtype == object else values for name, values in arrays.items()}


def _matrix(column: pl.Series, path: str) -> Array:
    lists = column if isinstance(column.dtype, pl.List) else column.arr.to_list()
    lengths = lists.list.len()
    if lengths.n_unique() > 1 or lengths.has_nulls():
        got = sorted(set(lengths.to_list()), key=str)[:3]
        raise InputError(f"expected lists of one length in column {column.name!r}, but got {got}", path)
    return np.asarray(lists.explode().to_numpy().reshape(len(lists), -1))
