"""The figures of the report as files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics.plotting.figures import FIGURES, PAGE, figures_of

FORMATS = ("png", "pdf", "svg")
_MOST_BYTES = 650_000  # of all pictures, so that a page that holds them in base64 stays below a megabyte


class Picture(NamedTuple):
    """A figure, drawn: a file for every format, and its width in pixels of CSS."""

    key: str
    title: str
    description: str
    files: Mapping[str, bytes]
    width: int


def draw_figures(systems: Sequence[EvaluatedSystem], formats: Sequence[str] = ("png",)) -> list[Picture]:
    """Draw all figures there is something to show in; as PNG at least, for the page."""
    drawn = figures_of(systems, PAGE)
    pngs = {}
    for dpi in (150, 110, 80):
        pngs = {key: _png(figure, dpi) for key, figure in drawn.items()}
        if sum(map(len, pngs.values())) < _MOST_BYTES:
            break
    return [
        Picture(kind.key, kind.title, kind.description,
                {"png": pngs[kind.key], **{name: _vector(figure, name) for name in formats if name != "png"}},
                round(96 * figure.get_figwidth()))
        for kind in FIGURES if (figure := drawn.get(kind.key)) is not None
    ]  # fmt: skip


def _png(figure: Figure, dpi: int) -> bytes:
    """Return a picture of few colours, which is a third as large and looks the same."""
    buffer, small = io.BytesIO(), io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    Image.open(buffer).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def _vector(figure: Figure, name: str) -> bytes:
    buffer = io.BytesIO()
    # The same figure is the same file: no dates, no random names.
    with rc_context({"svg.hashsalt": "vpmetrics", "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=name, metadata={"svg": {"Date": None}, "pdf": {"CreationDate": None}}[name])
    return buffer.getvalue()
