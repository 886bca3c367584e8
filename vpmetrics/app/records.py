"""Records of a list, from a text or a Parquet file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from vpmetrics.app.columns import IN_PARQUET, Choose, Layout, Part, Role
from vpmetrics.app.files import STANDARD_INPUT
from vpmetrics.app.parquet import is_parquet, read_parquet_columns
from vpmetrics.app.text import line_of_text, read_text


def read_columns(path: str | Path, roles: Mapping[str, Role], choose: Choose, expected: str) -> Iterator[Part]:
    """Piece by piece, the columns of a file that have a role."""
    return (read_parquet_columns if is_parquet(path) else read_text)(path, roles, choose, expected)


def line_of(path: str | Path, record: int, layout: Layout) -> int | None:
    """The line or row of a record; none of a pipe, which is gone by then."""
    if str(path) == STANDARD_INPUT:
        return None
    return record + 1 if layout.separator == IN_PARQUET else line_of_text(path, record, layout)
