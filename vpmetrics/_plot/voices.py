"""Drawing voices: similarity matrices and the zoo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from torch import Tensor

from vpmetrics._plot.axes import COLOURS, PlotResult, as_label, axes_or_new, figure_of
from vpmetrics._trials.matrices import SimilarityMatrices


def draw_quadrants(
    matrices: SimilarityMatrices, ax: Axes | None, names: Sequence[str] | None = None, label: str = ""
) -> PlotResult:
    """OO and OP above PO and PP; where speakers are finer than pixels, the diagonals are drawn on top."""
    oo, op, pp = (matrix.detach().float().cpu().numpy() for matrix in matrices[:3])
    count = len(oo)
    ax = axes_or_new(ax, size=(4.8, 4.0) if names is None else (6.0, 5.2))
    whole = np.block([[oo, op], [op.T, pp]])
    style: dict[str, Any] = {"vmin": 0, "vmax": 1, "cmap": "viridis"}
    image = ax.imshow(whole, interpolation="nearest" if count < 100 else "antialiased", **style)
    place = np.arange(count)
    for row, column, quadrant in ((0, 0, oo), (0, 1, op), (1, 0, op), (1, 1, pp)):
        if count >= 100:
            x, y = place + column * count, place + row * count
            ax.scatter(x, y, c=np.diagonal(quadrant), s=1.5, marker="s", linewidths=0, **style)
        corner = (0.485 + column / 2, 0.985 - row / 2)  # away from the diagonal
        text = ax.text(*corner, "OP"[row] + "OP"[column], transform=ax.transAxes, color="white", ha="right", va="top")
        text.set(fontsize="small", path_effects=[withStroke(linewidth=1.5, foreground="black")])
    for line in (ax.axhline, ax.axvline):
        line(count - 0.5, color="white", linewidth=1)
    ax.set(xlabel="speakers: original, protected", ylabel="speakers: protected, original")
    ax.set(xticks=[], yticks=[])
    if names is not None:
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks(range(2 * count), [*names, *names])
            axis.set_tick_params(labelsize=min(7.0, 130 / count), length=0)
        ax.tick_params(axis="x", labelrotation=90)
    figure = figure_of(ax)
    figure.colorbar(image, ax=ax, label="voice similarity", fraction=0.046, pad=0.03)
    ax.set_title(as_label(label), fontsize="medium")
    return figure, ax


def draw_zoo(
    own: Tensor,
    others: Tensor,
    ax: Axes | None,
    label: str = "",
    names: Sequence[str] | None = None,
    what: str = "similarity",
) -> PlotResult:
    """Each speaker by how alike own trials are and how alike those with others; the quartile animals in the corners.

    After Yager and Dunstone, "The biometric menagerie", 2010: an animal is in the outer quarter of both.
    """
    ax = axes_or_new(ax, size=(4.6, 3.8))
    target, impostor = (values.detach().double().cpu().numpy() for values in (own, others))
    seen = np.isfinite(target) & np.isfinite(impostor)
    target, impostor = target[seen], impostor[seen]
    if len(target) > 3:
        _mark_animals(ax, target, impostor)
    ax.plot(target, impostor, "o", color=COLOURS[0], markersize=5, markeredgecolor="white", markeredgewidth=0.5)
    if names is not None:
        for name, x, y in zip(np.asarray(names)[seen], target, impostor, strict=True):
            ax.annotate(str(name), (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6)
    ax.set(xlabel=f"own voice: {what}", ylabel=f"others: mean {what}")
    ax.margins(0.12)
    ax.set_title(as_label(label), fontsize="medium")
    ax.grid(alpha=0.3)
    return figure_of(ax), ax


def _mark_animals(ax: Axes, own: Any, impostor: Any) -> None:
    corners = {"worms": (0, 1), "chameleons": (1, 1), "phantoms": (0, 0), "doves": (1, 0)}
    quartiles = [np.quantile(values, (0.25, 0.75)) for values in (own, impostor)]
    if any(np.isclose(low, high) for low, high in quartiles):
        return  # all alike: everybody would be every animal
    outer = []
    for values, line, (low, high) in zip((own, impostor), (ax.axvline, ax.axhline), quartiles, strict=True):
        outer.append((values < low, values > high))
        for value in (low, high):
            line(value, color="black", linewidth=0.7, linestyle=":", alpha=0.6)
    for name, (x, y) in corners.items():
        text = f"{name}: {int((outer[0][x] & outer[1][y]).sum())}"
        drawn = ax.text(0.02 + 0.96 * x, 0.02 + 0.96 * y, text, transform=ax.transAxes, color="0.4", fontsize="small")
        drawn.set(ha=("left", "right")[x], va=("bottom", "top")[y])
