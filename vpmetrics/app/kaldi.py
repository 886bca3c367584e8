"""Kaldi's vectors: binary and text archives, and tables that say where in which archive each vector is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np
import polars as pl
from kaldiio.matio import read_kaldi, read_token

from vpmetrics.app.columns import Array
from vpmetrics.app.errors import InputError, reason_of
from vpmetrics.app.files import opened

BINARY = re.compile(rb"[^\s\0]+ \0B")
TEXT = re.compile(rb"\s*[^\s\0]+[ \t]+\[")
TABLE = re.compile(rb"\s*[^\s\0]+[ \t]+\S.*(:\d+|\.ark|\|)\s*$", re.MULTILINE)

_VECTORS = b"\0BFV", b"\0BDV", b"\0BFM", b"\0BDM", b"\0BCM"


class Vector(NamedTuple):
    """One vector, and the place it was read from."""

    utterance: str
    values: Array
    where: str


class Vectors(NamedTuple):
    """Vectors ``(N, D)`` and the utterance of each."""

    values: Array
    utterances: list[str]


def read_binary(file: BinaryIO, path: str) -> Vectors:
    """A binary archive."""
    return _stack(_binary_vectors(file, path), path)


def read_text(file: BinaryIO, path: str) -> Vectors:
    """A text archive: lines ``utterance [ 0.1 ... ]``.

    Not by kaldiio, which takes all numbers of a vector for whole ones where the first has no point in it.
    """
    return _stack(_text_vectors(file, path), path)


def read_table(file: BinaryIO, path: str) -> Vectors:
    """A table of lines ``utterance archive:offset``, each archive opened once."""
    places: dict[str, list[tuple[int, str, int]]] = {}
    for number, line in enumerate(file.read().decode(errors="replace").splitlines(), 1):
        if line.strip():
            name, _, place = line.strip().partition(" ")
            archive, offset = _place(place.strip(), path, number)
            places.setdefault(archive, []).append((number, name, offset))
    found: dict[int, Vector] = {}
    for archive, entries in places.items():
        with opened(_beside(archive, path, entries[0][0])) as (source, _, _):
            for number, name, offset in entries:
                source.seek(offset)
                where = f"{path}:{number}: {archive}:{offset}"
                found[number] = Vector(name, _vector(source, where), where)
    return _stack((found[number] for number in sorted(found)), path)


def _place(text: str, path: str, number: int) -> tuple[str, int]:
    if "|" in text:  # Kaldi would run it
        raise InputError(f"expected `utterance archive:offset`, but got the command {text[:40]!r}", path, number)
    archive, _, offset = text.rpartition(":")
    return (archive, int(offset)) if archive and offset.isdecimal() else (text, 0)


def _beside(archive: str, path: str, number: int) -> Path:
    """An archive where the table says it is, or else beside the table: folders get moved."""
    for candidate in (Path(archive), Path(path).parent / archive, Path(path).parent / Path(archive).name):
        if candidate.is_file():
            return candidate
    raise InputError(f"no such archive: {archive}", path, number)


def _binary_vectors(file: BinaryIO, path: str) -> Iterator[Vector]:
    count = 0
    while (name := _token(file, path, count)) is not None:
        count += 1
        where = f"{path}: vector {count}, {name}"
        yield Vector(name, _vector(file, where), where)


def _token(file: BinaryIO, path: str, count: int) -> str | None:
    try:
        name = read_token(file)
    except UnicodeDecodeError:
        raise InputError(f"expected the name of an utterance after vector {count}, but got other bytes", path) from None
    return None if name is None else cast(str, name).strip() or None


def _vector(file: BinaryIO, where: str) -> Array:
    # kaldiio also runs pickles and opens sound files; only numbers are asked for here.
    flag = file.read(4)
    if flag not in _VECTORS:
        raise InputError(f"expected a vector of numbers, but got {flag!r}", where)
    file.seek(-4, 1)
    try:
        values = np.asarray(read_kaldi(file))
    except Exception as error:  # what kaldiio raises for a damaged archive is up to it
        raise InputError(f"expected a vector, but it is damaged ({reason_of(error)})", where) from None
    if values.ndim == 2 and 1 in values.shape:
        values = values.reshape(-1)
    if values.ndim != 1:
        raise InputError(f"expected one vector an utterance, but got a matrix of shape {values.shape}", where)
    return values


def _text_vectors(file: BinaryIO, path: str) -> Iterator[Vector]:
    for number, line in enumerate(file, 1):
        name, *fields = line.decode(errors="replace").replace("[", " ").replace("]", " ").split() or [""]
        if not name:
            continue
        values = pl.Series(fields, dtype=pl.String).cast(pl.Float64, strict=False)
        if not fields or values.has_nulls():
            got = repr(fields[values.is_null().arg_max() or 0][:40]) if fields else "no numbers"
            raise InputError(f"expected `utterance [ 0.1 ... ]`, but got {got}", path, number)
        yield Vector(name, values.to_numpy().astype(np.float32), f"{path}:{number}")


def _stack(vectors: Iterable[Vector], path: str) -> Vectors:
    all_vectors = list(vectors)
    if not all_vectors:
        raise InputError("expected vectors, but got an empty file", path)
    width = len(all_vectors[0].values)
    for vector in all_vectors:
        if len(vector.values) != width:
            message = f"expected {width} numbers as in the vectors before, but got {len(vector.values)}"
            raise InputError(message, vector.where)
    return Vectors(np.stack([vector.values for vector in all_vectors]), [vector.utterance for vector in all_vectors])
