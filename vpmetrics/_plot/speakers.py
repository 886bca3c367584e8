"""Drawing speakers side by side, the one protected worst first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import MaxNLocator

from vpmetrics._plot.axes import COLOURS, PlotResult, as_label, axes_or_new, figure_of
from vpmetrics._scores.host import Array
from vpmetrics._trials.speakers import SpeakerDisclosure

_NAMED = 3  # who is protected worst, and what can still be read
_ABOVE = 4  # points that a name stands above its own


def draw_speakers(
    found: SpeakerDisclosure, mean: float, name_of: Callable[[float], str], ax: Axes | None, label: str = ""
) -> PlotResult:
    """D_ECE of every speaker as the one looked for, sorted, and as the one who is known, beside that of all."""
    ax = axes_or_new(ax, size=(4.8, 3.6))
    probed, enrolled = (side.d_ece.detach().cpu().double().numpy() for side in (found.probed, found.enrolled))
    order = np.argsort(-probed, kind="stable")[: np.isfinite(probed).sum()]
    probed, enrolled = probed[order], enrolled[order]
    places = np.arange(1, len(order) + 1)
    if not np.array_equal(probed, enrolled, equal_nan=True):
        ax.plot(places, enrolled, "o", markersize=3, fillstyle="none", color=COLOURS[1], label="known", gid="enrolled")
    ax.plot(places, probed, "o", markersize=3, color=COLOURS[0], label="looked for", gid="probed")
    ax.axhline(mean, color="black", linewidth=1.0, linestyle="--", label="all")
    ax.set(xlabel="speakers, worst protected first", ylabel="D_ECE of a speaker, bit")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_title(as_label(label), fontsize="medium")
    ax.margins(y=0.2)
    _name(ax, [as_label(name_of(speaker)) for speaker in order[:_NAMED]], places, probed)
    ax.legend(frameon=False, fontsize="small", loc="upper right")
    ax.grid(alpha=0.3)
    return figure_of(ax), ax


def _name(ax: Axes, names: Sequence[str], places: Array, values: Array) -> None:
    """Names above the first points, each above the one after it where it would run into that."""
    ax.get_ylim()  # or what was drawn last would not count yet
    points = np.column_stack([places, values])[: len(names)]
    heights = ax.transData.transform(points)[:, 1] * 72 / figure_of(ax).dpi
    font = FontProperties(size="x-small")  # as large as figures are set to now
    line = 1.2 * font.get_size_in_points()
    above = [*accumulate(heights[::-1] + _ABOVE, lambda below, own: max(below + line, own))][::-1]
    for name, point, offset in zip(names, points, above - heights, strict=True):
        ax.annotate(name, point, (5, offset), textcoords="offset points", fontproperties=font)
