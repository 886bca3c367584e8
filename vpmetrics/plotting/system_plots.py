"""Figures of systems and trainings: values over steps, trade-offs and paths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from vpmetrics._scores.registry import scalar
from vpmetrics.plotting.axes import (
    COLOURS,
    PlotResult,
    Style,
    as_label,
    axes_or_new,
    axis_label,
    error_bar_lengths,
    figure_of,
    finish_axes,
    next_style,
)

_LEAST_DECIBELS = 1.0  # that an axis of gains spans
# below the points
_WHISKERS: dict[str, Any] = {"linewidth": 1.1, "capsize": 2.5, "alpha": 0.6, "zorder": 1.5}


def draw_scalars(
    val: Any, ax: Axes | None, name: str, bounds: tuple[float | None, float | None]
) -> PlotResult:
    """Draw one value as a point, several as a line over steps.

    One line for every entry of a dictionary.
    """
    ax = axes_or_new(ax)
    has_steps = isinstance(val, Sequence) or (isinstance(val, Tensor) and val.dim() == 1)
    rows: list[Mapping[str, Any]] = []
    for step in val if has_steps else [val]:
        if isinstance(step, Mapping):
            rows.append(step)
        else:
            rows.append({name: step})
    for key in rows[0]:
        label = "_" if len(rows[0]) == 1 else as_label(key)
        ax.plot([float(row[key]) for row in rows], **next_style(ax).marker_options, label=label)
    ax.set(xlabel="step", ylabel=name if len(rows[0]) == 1 else "value")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_xlim(-0.5, max(len(rows) - 0.5, ax.get_xlim()[1]))
    low, high = bounds
    if len(rows[0]) == 1:
        margin = 0.03 * ((1.0 if high is None else high) - (low or 0.0))
        ax.set_ylim(None if low is None else low - margin, None if high is None else high + margin)
    return finish_axes(ax)


def draw_deid_gvd(
    systems: Sequence[tuple[str, Mapping[str, Any]]], ax: Axes | None = None
) -> PlotResult:
    """Draw gain of voice distinctiveness over de-identification, one labelled point per system.

    Each system is a name and its scalars: ``deid``, ``gvd`` and, where known, the ends of their
    confidence intervals.
    """
    ax = axes_or_new(ax, size=(4.6, 3.4))
    if not ax.lines:
        _prepare_deid_gvd_axes(ax)
    for name, scalars in systems:
        style = next_style(ax)
        deid = float(scalars["deid"])
        gvd = float(scalars["gvd"])
        # Each point is smaller than the one before, and has an edge, so that equal points are seen.
        marks: dict[str, Any] = {
            **style.marker_options,
            "markersize": max(12 - 1.5 * style.number, 6),
        }
        marks |= {"markeredgecolor": "white", "markeredgewidth": 0.8} if style.is_filled else {}
        ax.plot(100 * deid, gvd, linestyle="none", **marks, label=as_label(name))
        xerr = 100 * error_bar_lengths("deid", scalars)
        yerr = error_bar_lengths("gvd", scalars)
        ax.errorbar(100 * deid, gvd, xerr=xerr, yerr=yerr, color=style.colour, **_WHISKERS)
        ax.set_xlim(left=min(ax.get_xlim()[0], 100 * deid - float(xerr[0, 0]) - 3))
    low, high = ax.get_ylim()
    if high - low < _LEAST_DECIBELS:  # rounding errors would look like differences
        middle = (low + high) / 2
        # Systems drawn later may still widen it.
        ax.set_ylim(middle - _LEAST_DECIBELS / 2, middle + _LEAST_DECIBELS / 2, auto=True)
    return finish_axes(ax)


def _prepare_deid_gvd_axes(ax: Axes) -> None:
    ax.axhline(0, color="black", linewidth=0.8, linestyle=":")
    ax.set(xlabel=axis_label("deid"), ylabel=axis_label("gvd", "\n"), xlim=(-3, 103))


def draw_path(history: Sequence[Mapping[str, Any]], ax: Axes | None) -> PlotResult:
    """Draw de-identification and gain of voice distinctiveness of a training, epoch by epoch.

    ``history``: ``deid`` and ``gvd`` of each measurement, and its ``epoch`` if that is not its
    place in the sequence.
    """
    ax = axes_or_new(ax, size=(4.8, 3.4))
    rows: list[tuple[float, float, Any]] = []
    for index, row in enumerate(history):
        rows.append((100 * float(row["deid"]), float(row["gvd"]), row.get("epoch", index)))
    points = np.array(rows, dtype=float).reshape(-1, 3)
    points = points[np.isfinite(points).all(1)]
    ax.plot(points[:, 0], points[:, 1], color="0.6", linewidth=1.0, zorder=1)
    dots = ax.scatter(points[:, 0], points[:, 1], c=points[:, 2], cmap="viridis", s=28, zorder=2)
    if len(points):
        ax.plot(
            *points[-1, :2],
            "o",
            markersize=11,
            markerfacecolor="none",
            color=COLOURS[1],
            label="last epoch",
        )
        figure_of(ax).colorbar(dots, ax=ax, label="epoch", ticks=MaxNLocator(integer=True, nbins=6))
    _prepare_deid_gvd_axes(ax)
    ax.set_xlim(left=min([0, *points[:, 0]]) - 3)
    return finish_axes(ax)


def draw_utility(
    systems: Sequence[tuple[str, Mapping[str, Any], float]],
    name: str,
    is_lower_better: bool,
    ax: Axes | None = None,
    *,
    key: str = "disclosure",
    budget: float | None = None,
) -> PlotResult:
    """Draw a utility over the disclosure, one point per system, and the Pareto front.

    Each system is a name, its scalars with ``key`` and the ends of its confidence interval, and its
    utility. Points of one name share a style and an entry of the legend. ``budget``: the largest
    value allowed, as a line.
    """
    ax = axes_or_new(ax, size=(4.8, 3.4))
    x_label, scale = _describe_disclosure_axis(key)
    front: list[tuple[float, float]] = []
    for value, utility in _find_front(systems, key, is_lower_better):
        front.append((scale * value, utility))
    _draw_front(ax, front, color="0.6")
    first_style = next_style(ax).number
    style_of_label: dict[str, Style] = {}
    for label, scalars, utility in systems:
        legend_entry = "_" if label in style_of_label else as_label(label)
        style = style_of_label.setdefault(label, Style(first_style + len(style_of_label)))
        value = scale * float(scalars[key])
        whiskers = scale * error_bar_lengths(key, scalars)
        ax.errorbar(value, utility, xerr=whiskers, color=style.colour, **_WHISKERS)
        ax.plot(value, utility, linestyle="none", **style.marker_options, label=legend_entry)
    if budget is not None:
        ax.axvline(
            scale * budget,
            color="black",
            linewidth=1.0,
            linestyle="--",
            label=f"budget {scale * budget:g}",
        )
    better = "lower" if is_lower_better else "higher"
    ax.set(xlabel=x_label, ylabel=f"{as_label(name)} ({better} is better)")
    if key == "disclosure":
        ax.set_xlim(-0.02, 0.74)
    return finish_axes(ax)


def _find_front(
    systems: Sequence[tuple[str, Mapping[str, Any], float]], key: str, is_lower_better: bool
) -> list[tuple[float, float]]:
    """Return disclosure and utility of the systems that no other beats in both, by disclosure."""
    points = [(float(scalars[key]), float(utility)) for _, scalars, utility in systems]
    points = [point for point in points if all(map(math.isfinite, point))]
    sign = 1 if is_lower_better else -1
    points.sort(key=lambda point: (point[0], sign * point[1]))
    front: list[tuple[float, float]] = []
    for point in points:
        if not front or sign * point[1] < sign * front[-1][1]:
            front.append(point)
    return front


def _describe_disclosure_axis(key: str) -> tuple[str, float]:
    """Return the label of an axis of a disclosure, and by what its values are multiplied."""
    if key == "disclosure":  # its description is longer than an axis
        return "disclosure, bit", 1.0
    try:
        return axis_label(key), scalar(key).unit.scale
    except KeyError:  # a value that another package has logged
        return as_label(key), 1.0


def _draw_front(ax: Axes, front: Sequence[tuple[float, float]], **line: Any) -> None:
    if len(front) < 2:
        return
    # A step: the best utility at each disclosure, not a mixture of two systems.
    ax.plot(
        *zip(*front, strict=True),
        linewidth=1.0,
        drawstyle="steps-post",
        label="Pareto front",
        **line,
    )
