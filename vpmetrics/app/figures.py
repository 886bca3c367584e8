"""The figures of the report as files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from vpmetrics._figures import FIGURES, PAGE, figures_of
from vpmetrics._report import System

FORMATS = ("png", "pdf", "svg")


class Picture(NamedTuple):
    """A figure, drawn: a file for every format, and its width in pixels of CSS."""

    key: str
    title: str
    says: str
    files: Mapping[str, bytes]
    width: int


def draw_figures(systems: Sequence[System], formats: Sequence[str] = ("png",)) -> list[Picture]:
    """All figures there is something to show in; as PNG at least, for the page."""
    drawn = figures_of(systems, PAGE)
    wanted = tuple(dict.fromkeys(("png", *formats)))
    return [
        Picture(kind.key, kind.title, kind.says, _files(drawn[kind.key], wanted), _width(drawn[kind.key]))
        for kind in FIGURES
        if kind.key in drawn
    ]


def possible_files(folder: Path) -> list[Path]:
    """What any run may have left in a folder."""
    return [folder / f"{kind.key}.{name}" for kind in FIGURES for name in FORMATS]


def _width(figure: Figure) -> int:
    return round(96 * figure.get_figwidth())


def _files(figure: Figure, formats: Sequence[str]) -> dict[str, bytes]:
    files = {}
    for name in formats:
        buffer = io.BytesIO()
        # The same figure is the same file: no dates, no random names.
        with rc_context({"svg.hashsalt": "vpmetrics", "svg.fonttype": "none", "pdf.fonttype": 42}):
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(name)
            figure.savefig(buffer, format=name, metadata=metadata)
        files[name] = buffer.getvalue()
    return files
