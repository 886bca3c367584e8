"""Columns of a list, in whatever kind of file: what each is, and how a file is laid out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

Array = np.ndarray[Any, Any]
Rows = Sequence[Sequence[str]]

NUMBER = re.compile(r"[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf(inity)?)", re.IGNORECASE)

SEPARATORS = {"\t": "tabs", ",": "commas", ";": "semicolons", " ": "blanks"}  # a blank may be in a name, so it is last
IN_PARQUET = ""  # where nothing needs separating
SAMPLE = 50  # lines or rows by which the layout is decided


class Role(NamedTuple):
    """What a column is: its type, and which texts it may hold."""

    dtype: Any
    pattern: re.Pattern[str] | None = None
    expected: str = "a name"

    def allows(self, text: str) -> bool:
        """Whether a field may stand in this column."""
        return bool(text) and (self.pattern is None or self.pattern.fullmatch(text) is not None)


class Layout(NamedTuple):
    """How a line is cut, and the role of each field; those without one are passed over."""

    separator: str
    roles: tuple[str, ...]
    header: bool = False

    def __str__(self) -> str:
        columns = " ".join(role or "*" for role in self.roles)
        if self.separator == IN_PARQUET:
            return f"columns {columns} of a Parquet file"
        return f"columns {columns}, separated by {SEPARATORS[self.separator]}" if len(self.roles) > 1 else columns


class Part(NamedTuple):
    """Some records of a file, in its order, by role."""

    layout: Layout
    columns: pl.DataFrame


# From the fields of the first lines, and whether a first line alone may decide, to the roles of the columns and whether
# the first line names them; None where the fields make no sense.
Choose = Callable[[Rows, bool], "tuple[tuple[str, ...], bool] | None"]


def is_allowed(column: pl.Series, role: Role) -> bool:
    """Whether a whole column may be what it is taken for."""
    if role.pattern is None:
        return True
    if column.dtype.is_float():
        return not column.is_nan().any()
    return all(map(role.allows, column.unique().cast(pl.String).to_list()))
