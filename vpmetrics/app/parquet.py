"""Parquet files of columns: names of columns decide what each is, or else what stands in them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from vpmetrics.app.columns import IN_PARQUET, SAMPLE, Choose, Layout, Part, Role, is_allowed
from vpmetrics.app.errors import InputError, reason_of
from vpmetrics.app.files import STANDARD_INPUT, opened, start_of

_PIECE = 1 << 21  # rows held at a time


def is_parquet(path: str | Path) -> bool:
    """By its first bytes."""
    return start_of(path, 4) == b"PAR1"


def read_parquet_columns(path: str | Path, roles: Mapping[str, Role], choose: Choose, expected: str) -> Iterator[Part]:
    """Piece by piece, the columns that have a role."""
    try:
        table = open_parquet(path)
        names = table.collect_schema().names()
        layout = _lay_out(table, names, choose, expected, path)
        used = {name: role for name, role in zip(names, layout.roles, strict=True) if role in roles}
        rows = table.select(pl.len()).collect().item()
        if not rows:
            raise InputError(f"expected lines `{expected}`, but got none", path)
        for start in range(0, rows, _PIECE):
            piece = table.select(list(used)).slice(start, _PIECE).collect()
            columns = {role: _as(piece[name], roles[role], path, start) for name, role in used.items()}
            yield Part(layout, pl.DataFrame(columns))
    except pl.exceptions.PolarsError as error:
        raise InputError(f"looks like a Parquet file, but is damaged ({reason_of(error)})", path) from None


def open_parquet(path: str | Path) -> pl.LazyFrame:
    """A file whose rows are read when they are asked for; in memory what is packed or comes through a pipe."""
    with opened(path) as (file, packed, _):
        in_memory = packed or str(path) == STANDARD_INPUT
        return pl.scan_parquet(io.BytesIO(file.read())) if in_memory else pl.scan_parquet(path, glob=False)


def _lay_out(table: pl.LazyFrame, names: list[str], choose: Choose, expected: str, path: str | Path) -> Layout:
    rows = [["" if value is None else str(value) for value in row] for row in table.head(SAMPLE).collect().rows()]
    chosen = choose([names, *rows], False) or (rows and (choose(rows, False) or choose(rows, True)))
    if not chosen:
        raise InputError(f"expected columns `{expected}`, but got {', '.join(names)}", path)
    return Layout(IN_PARQUET, chosen[0])


def _as(column: pl.Series, role: Role, path: str | Path, start: int) -> pl.Series:
    """A column as its role has it; what cannot be is told with its row."""
    is_number = role.dtype == pl.Float64
    if is_number:
        cast = column.cast(pl.Float64, strict=False) if column.dtype != pl.Boolean else pl.Series([None] * len(column))
    else:
        cast = column.cast(pl.String).cast(role.dtype)
    if not cast.has_nulls() and is_allowed(cast, role):
        return cast
    wrong = (row for row, value in enumerate(column) if value is None or not role.allows(str(value)))
    at = next(wrong, 0)
    raise InputError(f"expected {role.expected}, but got {column[at]!r}", path, start + at + 1)
