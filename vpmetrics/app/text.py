"""Text files of columns: separated by blanks as Kaldi's, by tabs, commas or semicolons, with a header or without.

A file may have ten million lines, so it is parsed in pieces, by Polars; a line is looked at by itself only to find out
how the columns are laid out, and to say what is wrong with it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import polars as pl

from vpmetrics.app.columns import SAMPLE, SEPARATORS, Choose, Layout, Part, Role, is_allowed
from vpmetrics.app.errors import InputError, reason_of
from vpmetrics.app.files import read_pieces

_SAMPLE_BYTES = 1 << 20  # of the first piece
_KALDI_BINARY = b"\0B"


def read_text(
    path: str | Path, roles: Mapping[str, Role], choose: Choose, expected: str, file: BinaryIO | None = None
) -> Iterator[Part]:
    """Piece by piece, the columns that have a role, of a file that may be open already."""
    layout, line, empty = None, 1, True
    for text in read_pieces(path, file):
        if layout is None and text.strip():
            _refuse_binary(text[:400], path)
            layout = _lay_out(text, choose, expected, path, line)
            if layout.header:
                start = text.find(b"\n", len(text) - len(text.lstrip())) + 1 or len(text)
                line, text = line + text[:start].count(b"\n"), text[start:]
        if layout is not None and text.strip():
            empty = False
            yield Part(layout, _parse(text, layout, roles, path, line))
        line += text.count(b"\n")
    if empty:
        raise InputError(f"expected lines `{expected}`, but got {'an empty file' if line == 1 else 'none'}", path)


def line_of_text(path: str | Path, record: int, layout: Layout) -> int:
    """The line a record stands on: blank lines and a header count as lines, but hold none."""
    record, number = record + layout.header, 0
    for piece in read_pieces(path):
        for line in piece.splitlines():
            number += 1
            record -= bool(line.strip())
            if record < 0:
                return number
    return number


def first_fields(path: str | Path) -> list[str]:
    """What stands between the blanks of the first line that is not empty."""
    for text in read_pieces(path):
        if text.strip():
            return text.lstrip().split(b"\n", 1)[0].decode(errors="replace").split()
    return []


def split(line: str, separator: str) -> list[str]:
    """The fields of a line."""
    if separator == " ":
        return line.split()
    if separator == "\t":
        return [field.strip() for field in line.split("\t")]
    return [field.strip() for field in next(csv.reader([line], delimiter=separator), [])]


def _refuse_binary(content: bytes, path: str | Path) -> None:
    if b"\0" in content:
        kind = "a binary archive of Kaldi" if _KALDI_BINARY in content else "a binary file"
        raise InputError(f"expected text, but got {kind}", path)


def _lay_out(text: bytes, choose: Choose, expected: str, path: str | Path, line: int) -> Layout:
    """The first way to cut the first lines that gives columns of sense."""
    start = text.lstrip()[:_SAMPLE_BYTES]
    lines = [one for one in start.decode(errors="replace").splitlines()[:SAMPLE] if one.strip()]
    for lenient in (False, True):  # a file of sense but for one line is to be told which
        for separator in SEPARATORS:
            rows = [split(one, separator) for one in lines]
            if len(rows[0]) > 1 or separator == " ":
                chosen = choose([row for row in rows if len(row) == len(rows[0])], lenient)
                if chosen is not None:
                    return Layout(separator, *chosen)
    number = line + text[: len(text) - len(text.lstrip())].count(b"\n")
    raise InputError(f"expected `{expected}`, but got {len(lines[0].split())} columns", path, number)


def _parse(text: bytes, layout: Layout, roles: Mapping[str, Role], path: str | Path, line: int) -> pl.DataFrame:
    names = [role or f"_{number}" for number, role in enumerate(layout.roles)]
    used = [name for name in names if name in roles]
    try:
        frame = pl.read_csv(
            _tidy(text, layout.separator),
            has_header=False,
            separator=layout.separator,
            quote_char=None if layout.separator in " \t" else '"',
            schema={name: roles[name].dtype if name in roles else pl.String for name in names},
        ).select(used)
    except pl.exceptions.PolarsError as error:
        _find_fault(text, layout, roles, path, line)
        raise InputError(f"cannot be read ({reason_of(error)})", path) from None
    if frame.null_count().sum_horizontal().item() or not all(is_allowed(frame[name], roles[name]) for name in used):
        _find_fault(text, layout, roles, path, line)
    return frame


def _tidy(text: bytes, separator: str) -> bytes:
    """Polars wants one separator between two fields, none around them, and no blank lines."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if separator == " " and any(mark in text for mark in (b"  ", b"\t", b" \n", b"\n ", b"\v", b"\f")):
        text = re.sub(rb" ?\n[ \n]*", b"\n", re.sub(rb"[ \t\v\f]+", b" ", text))
    elif separator != " " and (separator.encode() + b" " in text or b" " + separator.encode() in text):
        text = re.sub(rb" *%b *" % separator.encode(), separator.encode(), text)
    if b"\n\n" in text or text[:1].isspace():
        text = re.sub(rb"\n\s*\n", b"\n", text).lstrip()
    return text


def _find_fault(text: bytes, layout: Layout, roles: Mapping[str, Role], path: str | Path, line: int) -> None:
    """Raise for the first line that is not as the layout has it."""
    for number, raw in enumerate(text.split(b"\n"), line):
        if not raw.strip():
            continue
        try:
            fields = split(raw.decode(), layout.separator)
        except UnicodeDecodeError:
            raise InputError(f"expected text in UTF-8, but got {raw[:40]!r}", path, number) from None
        if len(fields) != len(layout.roles):
            expected = f"{len(layout.roles)} columns as in the lines before"
            raise InputError(f"expected {expected}, but got {len(fields)}", path, number)
        for name, field in zip(layout.roles, fields, strict=True):
            if name in roles and not roles[name].allows(field):
                raise InputError(f"expected {roles[name].expected}, but got {field[:40]!r}", path, number)
