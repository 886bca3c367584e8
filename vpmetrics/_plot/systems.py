"""Drawing systems and epochs: values over steps, trade-offs, the path of a training, the Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from vpmetrics._plot.axes import COLOURS, PlotResult, as_label, axes_or_new, axis_of, figure_of, next_style, reach_of


def draw_scalars(val: Any, ax: Axes | None, name: str, bounds: tuple[float | None, float | None]) -> PlotResult:
    """One value as a point, several as a line over steps; every entry of a dictionary on its own."""
    ax = axes_or_new(ax)
    many = isinstance(val, Sequence) or (isinstance(val, Tensor) and val.dim() == 1)
    steps = list(val) if many else [val]
    rows = [step if isinstance(step, Mapping) else {name: step} for step in steps]
    for key in rows[0]:
        line = [float(row[key]) for row in rows]
        ax.plot(range(len(line)), line, **next_style(ax).of_markers, label=key, gid="system")
    ax.set_xlabel("step")
    ax.set_ylabel(name if len(rows[0]) == 1 else "value")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    low, high = bounds
    if len(rows[0]) == 1:
        margin = 0.03 * ((high if high is not None else 1.0) - (low if low is not None else 0.0))
        ax.set_ylim(None if low is None else low - margin, None if high is None else high + margin)
    else:
        ax.legend(frameon=False)
    ax.grid(alpha=0.3)
    return figure_of(ax), ax


_LEAST_DECIBELS = 1.0  # that an axis of gains spans


def draw_trade_off(systems: Sequence[tuple[str, Mapping[str, Any]]], ax: Axes | None = None) -> PlotResult:
    """De-identification against gain of voice distinctiveness, one labelled point per system.

    Each is a name and its scalars: ``deid`` and ``gvd``, and whiskers where the ends of their intervals are among them.
    """
    ax = axes_or_new(ax, size=(4.6, 3.4))
    if not ax.lines:
        ax.axhline(0, color="black", linewidth=0.8, linestyle=":")
        ax.set(xlabel=axis_of("deid"), ylabel=axis_of("gvd").replace(" $", "\n$"), xlim=(-3, 103))
        ax.grid(alpha=0.3)
    for name, scalars in systems:
        style, deid, gvd = next_style(ax), float(scalars["deid"]), float(scalars["gvd"])
        # Smaller and smaller, and with an edge, so that of points that coincide all are seen.
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.8} if style.fill == "full" else {}
        marks = {**style.of_markers, **edge, "markersize": max(12 - 1.5 * style.number, 6)}
        ax.plot(100 * deid, gvd, linestyle="none", **marks, label=as_label(name), gid="system")
        reach = [100 * reach_of("deid", scalars), reach_of("gvd", scalars)]
        whiskers: dict[str, Any] = {"linewidth": 1.1, "capsize": 2.5, "alpha": 0.6, "zorder": 1.5}  # below the points
        ax.errorbar(100 * deid, gvd, yerr=reach[1], xerr=reach[0], color=style.colour, **whiskers)
        ax.set_xlim(left=min(ax.get_xlim()[0], 100 * deid - float(reach[0][0, 0]) - 3))
    low, high = ax.get_ylim()
    if high - low < _LEAST_DECIBELS:  # rounding errors would look like differences
        middle = (low + high) / 2
        # Systems drawn later may still widen it.
        ax.set_ylim(middle - _LEAST_DECIBELS / 2, middle + _LEAST_DECIBELS / 2, auto=True)
    ax.legend(frameon=False, fontsize="small")
    return figure_of(ax), ax


def draw_path(deid: Sequence[float], gvd: Sequence[float], epochs: Sequence[float], ax: Axes | None) -> PlotResult:
    """How a training moves between de-identification and gain of voice distinctiveness, epoch by epoch."""
    ax = axes_or_new(ax, size=(4.8, 3.4))
    points = np.array([(100 * x, y, epoch) for x, y, epoch in zip(deid, gvd, epochs, strict=True)]).reshape(-1, 3)
    points = points[np.isfinite(points).all(1)]
    ax.plot(points[:, 0], points[:, 1], color="0.6", linewidth=1.0, zorder=1)
    dots = ax.scatter(points[:, 0], points[:, 1], c=points[:, 2], cmap="viridis", s=28, zorder=2)
    if len(points):
        ax.plot(*points[-1, :2], "o", markersize=11, markerfacecolor="none", color=COLOURS[1], label="last")
        ax.legend(frameon=False, fontsize="small")
        figure_of(ax).colorbar(dots, ax=ax, label="epoch", ticks=MaxNLocator(integer=True, nbins=6))
    ax.axhline(0, color="black", linewidth=0.8, linestyle=":")
    ax.set(xlabel=axis_of("deid"), ylabel=axis_of("gvd").replace(" $", "\n$"))
    ax.set_xlim(min(0, *points[:, 0], 0) - 3, 103)
    ax.grid(alpha=0.3)
    return figure_of(ax), ax


def draw_pareto_front(
    front: Sequence[tuple[float, float]],
    others: Sequence[tuple[float, float]],
    chosen: tuple[float, float] | None,
    budget: float,
    labels: tuple[str, str],
    ax: Axes | None,
) -> PlotResult:
    """Checkpoints by disclosure and utility: those nothing else beats in both, the budget, and the one chosen."""
    ax = axes_or_new(ax, size=(4.8, 3.6))
    if others:
        ax.plot(*zip(*others, strict=True), "o", color="0.75", markersize=4, label="measured")
    if front:
        xs, ys = zip(*sorted(front), strict=True)
        # A step: what can be had for each disclosure, not a mixture of two.
        ax.plot(xs, ys, "o-", color=COLOURS[0], markersize=6, linewidth=1, drawstyle="steps-post", label="Pareto front")
    if chosen is not None:
        ax.plot(*chosen, "*", color=COLOURS[1], markersize=15, markeredgecolor="white", label="chosen")
    ax.axvline(budget, color="black", linewidth=1.0, linestyle="--", label=f"budget {budget:g}")
    left, right = ax.get_xlim()
    ax.axvspan(left, budget, color=COLOURS[2], alpha=0.08, linewidth=0)
    ax.set_xlim(left, right)
    ax.set(xlabel=labels[0], ylabel=labels[1])
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, fontsize="small")
    return figure_of(ax), ax


def draw_whiskers(intervals: Sequence[tuple[Sequence[float], float]], ax: Axes) -> Axes:
    """Both ends of disclosures, each pair at its utility."""
    for ends, utility in intervals:
        ax.plot(ends, [utility, utility], color="0.55", linewidth=1.5, zorder=1.5)
    return ax
