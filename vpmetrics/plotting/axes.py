"""What all figures share.

Axes, colours, markers, labels, legends and the line of the chance level.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter
from numpy.typing import NDArray

from vpmetrics._scores.registry import scalar

PlotResult = tuple[Figure, Axes]
# The colours of Okabe and Ito are distinct for all kinds of colour vision. Black is kept for
# perfect privacy.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
CHANCE: dict[str, Any] = {
    "color": "black",
    "linewidth": 1.2,
    "linestyle": "--",
    "label": "chance",
    "gid": "chance",
}
_MARKERS = "os^DvPX*>"  # filled, then hollow
# dotted lines are taken: uncalibrated or extrapolated
_LINES = ("-", "--", "-.", (0, (6, 1, 1, 1, 1, 1)))
_LONGEST_LABEL = 30
_LEGEND: dict[str, Any] = {"fontsize": "x-small", "title_fontsize": "x-small", "alignment": "left"}
_LEGEND |= {"framealpha": 0.9, "edgecolor": "none", "handlelength": 2.4, "borderaxespad": 0.3}


class Style:
    """Colour, marker and line of a system by its number, from 0.

    18 systems also differ without colour.
    """

    def __init__(self, number: int) -> None:
        self.colour = COLOURS[number % len(COLOURS)]
        self.line = _LINES[number % len(_LINES)]
        self.number = number
        self.marker = _MARKERS[number % len(_MARKERS)]
        self.is_filled = number // len(_MARKERS) % 2 == 0
        self.face = self.colour if self.is_filled else "white"
        # Arguments of `Axes.plot` for markers, not for lines; `gid` tells that a system is drawn.
        fill = {"fillstyle": "full" if self.is_filled else "none", "markerfacecolor": self.face}
        self.marker_options: dict[str, Any] = {
            "color": self.colour,
            "marker": self.marker,
            **fill,
            "gid": "system",
        }

    def curve(self, points: int) -> dict[str, Any]:
        """Return arguments of ``Axes.plot`` for a curve."""
        # Each system has its markers at other points, so that equal curves are seen.
        step = max(points // 6, 1)
        start = step * (self.number % len(_MARKERS)) // len(_MARKERS)
        line = {"linestyle": self.line, "linewidth": 1.3}
        return {**self.marker_options, **line, "markersize": 4.5, "markevery": (start, step)}


def next_style(ax: Axes) -> Style:
    """Return the style after those of the systems on the axes."""
    return Style(sum(line.get_gid() == "system" for line in ax.lines))


def as_label(name: str) -> str:
    """Return a name as matplotlib can show it.

    It is printable, without mathematics, and short enough for a legend.
    """
    label = ""
    for letter in name:
        label += letter if letter.isprintable() else "?"
    if len(label) > _LONGEST_LABEL:
        half = _LONGEST_LABEL // 2
        label = f"{label[:half]}…{label[-half + 1 :]}"
    # Matplotlib leaves labels with a leading underscore out of legends.
    return (" " if label.startswith("_") else "") + label.replace("$", r"\$")


def axis_label(key: str, separator: str = " ") -> str:
    """Return description, symbol and unit of a scalar for an axis.

    ``expected disclosure D_ECE, bit``.
    """
    entry = scalar(key)
    name, colon, _ = entry.description.partition(": ")
    label = (f"{name}{separator}" if colon else "") + set_subscripts(entry.heading)
    return f"{label}, {entry.unit.name}" if entry.unit.name else label


def set_subscripts(heading: str) -> str:
    """Return a heading with its index as a subscript, in matplotlib's notation.

    ``$D_{ECE}$`` for ``D_ECE``.
    """
    return re.sub(r"\b([A-Za-z])_(\w+)", r"$\1_{\2}$", heading)


def label_with_values(label: str, keys: Sequence[str], scalars: Mapping[str, Any]) -> str:
    """Return a label with the values of some scalars in brackets.

    :func:`finish_axes` puts their names above.
    """
    return f"{as_label(label)} ({', '.join(scalar(key).show(float(scalars[key])) for key in keys)})"


def axes_or_new(ax: Axes | None, size: tuple[float, float] = (5.0, 3.6)) -> Axes:
    """Return given axes, or those of a new figure.

    Pyplot does not manage the new one, and it needs no closing.
    """
    return axes_in_grid(1, size)[0] if ax is None else ax


def axes_in_grid(count: int, size: tuple[float, float], columns: int = 3) -> list[Axes]:
    """Return axes side by side on one new figure, ``size`` inches each."""
    if count == 0:
        return []
    columns = min(count, columns)
    rows = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="compressed", dpi=150)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for ax in grid[count:]:
        ax.remove()
    return list(grid[:count])


def figure_of(ax: Axes) -> Figure:
    """Return the figure of axes, also inside a subfigure."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError(
            "Expected `ax` to belong to a figure, but it was removed from its figure. Pass other"
            " axes."
        )
    return figure


def finish_axes(
    ax: Axes, title: str = "", keys: Sequence[str] = (), heading_suffix: str = "", **legend: Any
) -> PlotResult:
    """Add grid, title and a legend; its heading names the scalars in brackets.

    Return figure and axes.
    """
    ax.grid(alpha=0.3)
    ax.minorticks_off()  # of logarithmic axes they take a third of the time to draw a figure
    if title:
        ax.set_title(as_label(title), fontsize="medium")
    if ax.get_legend_handles_labels()[0]:
        titles = [scalar(key).title for key in keys]
        separator = ", " if sum(map(len, titles)) < _LONGEST_LABEL else ",\n"
        heading = separator.join(map(set_subscripts, titles)) + heading_suffix
        ax.legend(**{**_LEGEND, "title": heading, **legend})
    return figure_of(ax), ax


def move_legend_beside(ax: Axes) -> None:
    """Move the legend to the right of the axes, so that it hides no curve."""
    legend = ax.get_legend()
    if legend is not None:
        legend.set_loc("center left")
        legend.set_bbox_to_anchor((1.02, 0.5))
        for text in (*legend.get_texts(), legend.get_title()):
            text.set_fontsize("small")  # there is room


def draw_chance(ax: Axes, x: Sequence[Any], y: Sequence[float]) -> None:
    """Draw the line of the chance level, once for all systems that share it."""
    drawn = [line for line in ax.lines if line.get_gid() == "chance"]
    ends = [tuple(np.asarray(line.get_xydata())[-1]) for line in drawn]
    if len(x) and (x[-1], y[-1]) not in ends:
        ax.plot(x, y, **{**CHANCE, "label": "_" if ends else "chance"})


def set_logarithmic_counts(ax: Axes, base: int = 10) -> None:
    """Make the x axis logarithmic, with whole numbers of people, ranks or utterances as labels."""
    ax.set_xscale("log", base=base)
    ax.xaxis.set_major_locator(LogLocator(base, (1, 2, 5) if base == 10 else (1,)))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def error_bar_lengths(key: str, scalars: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the lengths of a scalar's confidence interval below and above its value, ``(2, 1)``.

    0 if unknown.
    """
    value = float(scalars.get(key, math.nan))
    low = float(scalars.get(f"{key}_low", math.nan))
    high = float(scalars.get(f"{key}_high", math.nan))
    return np.nan_to_num([[value - low], [high - value]]).clip(min=0)
