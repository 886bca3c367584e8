"""The figures of the report as files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from vpmetrics._figures import FIGURES, PAGE, figures_of
from vpmetrics._report import System


class Picture(NamedTuple):
    """A figure, drawn; its width in pixels of CSS."""

    file: str
    title: str
    says: str
    png: bytes
    width: int


def draw_figures(systems: Sequence[System]) -> list[Picture]:
    """All figures there is something to show in."""
    drawn = figures_of(systems, PAGE)
    return [
        Picture(f"{kind.key}.png", kind.title, kind.says, _png(drawn[kind.key]), _width(drawn[kind.key]))
        for kind in FIGURES
        if kind.key in drawn
    ]


def _width(figure: Figure) -> int:
    return round(96 * figure.get_figwidth())


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
