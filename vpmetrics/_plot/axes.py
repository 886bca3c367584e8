"""How every figure looks: colours, marks, names along axes, and the axes themselves."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vpmetrics._scalars import scalar

PlotResult = tuple[Figure, Axes]
# Okabe and Ito's colours, told apart by every kind of colour vision; black is kept for perfect privacy.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "os^DvPX*>"  # filled, then hollow
_LINES = ("-", "--", "-.", (0, (6, 1, 1, 1, 1, 1)))  # dots are of scores as they stand
_LONGEST_LABEL = 30
SMALL_LEGEND = {
    "framealpha": 0.9,
    "edgecolor": "none",
    "fontsize": "x-small",
    "title_fontsize": "x-small",
    "alignment": "left",
    "handlelength": 2.4,
    "borderaxespad": 0.3,
}


class Style(NamedTuple):
    """How the system of a number is told from the others, with and without colour: 18 of them, then again."""

    colour: str
    marker: str
    fill: str
    line: Any
    number: int

    @property
    def of_markers(self) -> dict[str, Any]:
        """Arguments of a line for its markers; colour and shape of one are those of no other."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "fillstyle": "full" if self.fill == "full" else "none",
            "markerfacecolor": self.colour if self.fill == "full" else "white",
        }

    def of_curve(self, points: int) -> dict[str, Any]:
        """Arguments of a line; markers stand elsewhere on each, so that curves that coincide are seen."""
        step = max(points // 6, 1)
        start = step * (self.number % len(_MARKERS)) // len(_MARKERS)
        marks = {"markersize": 4.5, "markevery": (start, step)}
        return {**self.of_markers, **marks, "linestyle": self.line, "linewidth": 1.3}


def style_of(number: int) -> Style:
    """The style of the system of a number, from 0."""
    fill = "full" if number // len(_MARKERS) % 2 == 0 else "none"
    colour, marker = COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)]
    return Style(colour, marker, fill, _LINES[number % len(_LINES)], number)


def next_style(ax: Axes) -> Style:
    """The style after those of the systems already drawn."""
    return style_of(len([line for line in ax.lines if line.get_gid() == "system"]))


def as_label(name: str) -> str:
    """A name as matplotlib can show it: no mathematics, nothing hidden, and no longer than a legend can hold."""
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    if len(name) > _LONGEST_LABEL:
        half = _LONGEST_LABEL // 2
        name = f"{name[:half]}…{name[-half + 1 :]}"
    # A leading underscore keeps lines out of legends.
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def axis_of(key: str) -> str:
    """Name and unit of a scalar, for an axis."""
    known = scalar(key)
    what, _, rest = known.tells.partition(": ")
    name = f"{what} {as_mathematics(known.heading)}" if rest else as_mathematics(known.heading)
    return f"{name}, {known.unit.name}" if known.unit.name else name


def as_mathematics(heading: str) -> str:
    """A heading with its index set low: ``D_ECE``."""
    return re.sub(r"\b([A-Za-z])_(\w+)", r"$\1_{\2}$", heading)


def values_of(keys: Sequence[str], scalars: Mapping[str, Any]) -> str:
    return ", ".join(scalar(key).show(float(scalars[key])) for key in keys)


def titles_of(keys: Sequence[str]) -> str:
    return ", ".join(as_mathematics(scalar(key).title) for key in keys)


def axes_or_new(ax: Axes | None, size: tuple[float, float] = (5.0, 3.6)) -> Axes:
    """The axes given, or those of a figure that pyplot does not know and nobody has to close."""
    if ax is not None:
        return ax
    return Figure(figsize=size, layout="constrained", dpi=150).subplots()


def axes_in_grid(count: int, size: tuple[float, float], columns: int = 3) -> list[Axes]:
    """Axes for panels side by side on one new figure, ``size`` inches each."""
    columns = min(count, columns)
    lines = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * lines), layout="constrained", dpi=150)
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for ax in grid[count:]:
        ax.remove()
    return list(grid[:count])


def figure_of(ax: Axes) -> Figure:
    """The figure axes belong to, also inside a subfigure."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("Expected `ax` to belong to a figure, but it has been removed from its own.")
    return figure


def legend_beside(ax: Axes) -> None:
    """Move the legend out of the axes, where no curve can run through it."""
    legend = ax.get_legend()
    if legend is not None:
        legend.set_loc("center left")
        legend.set_bbox_to_anchor((1.02, 0.5))
        legend.set_alignment("left")
        for text in (*legend.get_texts(), legend.get_title()):
            text.set_fontsize("small")  # there is room


def reach_of(key: str, scalars: Mapping[str, Any]) -> Any:
    """How far a whisker goes down and up from a value, ``(2, 1)``; nowhere where its interval is not known."""
    value, low, high = (float(scalars.get(f"{key}{end}", math.nan)) for end in ("", "_low", "_high"))
    return np.nan_to_num([[value - low], [high - value]]).clip(min=0)
