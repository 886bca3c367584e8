"""Text files of columns, such as Kaldi's.

A file may have ten million lines, so it is read in pieces, each split at once; a line is looked at by itself only to
say what is wrong with it.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from vpmetrics.app.errors import InputError

Array = np.ndarray[Any, Any]

_PIECE = 1 << 24  # bytes of text split at a time: about a gigabyte of Python strings fewer than all at once


def read_columns(path: Path, widths: tuple[int, ...], expected: str) -> Iterator[tuple[int, list[list[bytes]]]]:
    """Piece by piece, the number of records before it and its columns."""
    width, first = 0, 0
    for text in _pieces(path):
        if first == 0:
            refuse_binary(text, path)
        fields = text.split()
        if not fields:
            continue
        width = width or len(text.lstrip().split(b"\n", 1)[0].split())
        if width not in widths:
            raise InputError(f"expected `{expected}`, but got {width} columns", path, line_of(path, 0))
        counts = _fields_per_line(text)
        if (counts != width).any():
            at = int((counts != width).argmax())
            raise InputError(
                f"expected {width} columns as in the lines before, but got {counts[at]}",
                path,
                line_of(path, first + at),
            )
        yield first, [fields[k::width] for k in range(width)]
        first += len(counts)
    if first == 0:
        raise InputError(f"expected lines `{expected}`, but got an empty file", path)


def read_pairs(path: Path) -> list[list[bytes]]:
    """The columns of a file such as utt2spk: two, or a single one."""
    pieces = list(read_columns(path, (1, 2), "utterance speaker"))
    return [list(chain.from_iterable(column)) for column in zip(*(columns for _, columns in pieces), strict=True)]


def refuse_binary(content: bytes, path: Path) -> None:
    """Kaldi's binary archives are not read; their first vector is marked."""
    if b"\0B" in content[:400]:
        raise InputError(
            "expected a text archive, but got a binary one (`copy-vector ark:IN ark,t:OUT` converts)", path
        )


def line_of(path: Path, record: int) -> int:
    """The line a record stands on: blank lines count as lines, but hold none."""
    number = 0
    for piece in _pieces(path):
        for line in piece.splitlines():
            number += 1
            if line.strip():
                record -= 1
            if record < 0:
                return number
    return number


def _pieces(path: Path) -> Iterator[bytes]:
    """The text in pieces that end where a line ends."""
    try:
        with cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            rest = b""
            while block := file.read(_PIECE):
                cut = block.rfind(b"\n") + 1
                if cut:
                    yield rest + block[:cut]
                    rest = b""
                rest += block[cut:]
            yield rest
    except (OSError, EOFError) as error:  # the latter from a gzip file cut short
        raise InputError(f"cannot be read ({getattr(error, 'strerror', None) or error})", path) from None


def _fields_per_line(text: bytes) -> Array:
    """How many fields each line has that has any."""
    counts = np.fromiter(map(len, map(bytes.split, text.split(b"\n"))), np.int64)
    return counts[counts > 0]
