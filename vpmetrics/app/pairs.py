"""Lists of utterances: of their speakers, groups or rows."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from vpmetrics.app.columns import Role, Rows
from vpmetrics.app.errors import InputError
from vpmetrics.app.files import saw
from vpmetrics.app.records import read_columns

_HEADINGS = {
    "utterance": {"utterance", "utt", "utterance_id", "utt_id", "id", "name", "segment", "file"},
    "speaker": {"speaker", "spk", "speaker_id", "spk_id", "spkid"},
    "row": {"row", "index", "idx"},
    "weight": {"weight", "share"},
    "group": {"group", "gender", "sex", "set", "dataset", "condition"},
}


def read_pairs(path: str | Path, headings: tuple[str, ...] = ("utterance", "speaker")) -> list[list[str]]:
    """The columns of a list such as utt2spk: two of the headings given, or the last alone.

    With one heading, it is the first column, whatever stands behind it.
    """
    roles = {heading: Role(pl.String) for heading in headings}
    known = [_HEADINGS.get(heading, {heading}) for heading in headings]

    def choose(rows: Rows, lenient: bool) -> tuple[tuple[str, ...], bool] | None:
        width = len(rows[0])
        if len(headings) > 1 and (width > 2 or (not lenient and any(len(row) != width for row in rows))):
            return None
        header = all(field.lower() in names for field, names in zip(rows[0], known, strict=False))
        named = headings[-1:] if width == 1 else headings
        return (*named, *[""] * (width - len(named))), header

    parts = list(read_columns(path, roles, choose, " ".join(headings)))
    columns = pl.concat([part.columns for part in parts])
    saw(path, f"{len(columns):,} lines, {parts[0].layout}")
    return [column.to_list() for column in columns]


def read_map(path: str | Path, headings: tuple[str, str]) -> dict[str, str]:
    """A list of two columns, the first as keys."""
    columns = read_pairs(path, headings)
    if len(columns) != 2:
        raise InputError(f"expected lines `{' '.join(headings)}`, but got one column", path, 1)
    return dict(zip(*columns, strict=True))
