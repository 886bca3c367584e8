"""Drawing re-identification: over the number of people searched, and over how much of each is heard."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from vpmetrics._plot.axes import PlotResult, as_label, axes_or_new, figure_of, next_style


def sizes_for_curve(largest: int, steps: int = 40) -> list[int]:
    """Numbers of people from 2 to the largest, as far apart as a logarithmic axis shows."""
    return sorted({round(2 * (largest / 2) ** (step / steps)) for step in range(steps + 1)} | {2, largest})


def sizes_of(values: Iterable[str]) -> list[int]:
    """The numbers of people among names of rates."""
    return sorted(int(size) for name in values if (size := name.removeprefix("rate_")).isdigit())


def draw_rate_over_people(curve: Mapping[int, float], gallery: float, ax: Axes | None, label: str = "") -> PlotResult:
    """The rate among so many people beside chance: a line as far as it is counted, dots where it is extrapolated."""
    ax, sizes = axes_or_new(ax), sorted(curve)
    style = next_style(ax)
    if not ax.lines:
        ax.set(xscale="log", yscale="log", xlabel="people to tell apart", ylabel="share found at first guess")
        _show_counts(ax)
    rates = [curve[size] for size in sizes]
    counted = [size <= gallery for size in sizes]
    within, last = sum(counted), max(0, sum(counted) - 1)
    legend = f"{as_label(label)} ({gallery:.0f} references)" if label else f"{gallery:.0f} references"
    ax.plot(sizes[:within], rates[:within], **style.of_curve(within), label=legend, gid="system")
    if within < len(sizes):
        said = "_" if any(line.get_gid() == "extrapolated" for line in ax.lines) else "extrapolated"
        ax.plot(sizes[last:], rates[last:], color=style.colour, linestyle=":", label=said, gid="extrapolated")
    _draw_chance(ax, sizes, [1 / size for size in sizes])
    return _finished(ax)


def draw_over_utterances(
    curve: Mapping[int, float],
    chance: float | Mapping[int, float],
    ax: Axes | None,
    label: str = "",
    name: str = "share found",
    most: float = 1.0,
) -> PlotResult:
    """A number over how many utterances are averaged, from 0 to the most it can be, beside chance where that is known.

    ``chance`` is one number, or one for each number of utterances.
    """
    ax, lengths = axes_or_new(ax), sorted(curve)
    if not ax.lines:
        ax.set(xlabel="utterances averaged", ylabel=name, ylim=(-0.02 * most, 1.02 * most))
        ax.set_xscale("log", base=2)
        _show_counts(ax, base=2)
    marks = {**next_style(ax).of_markers, "label": as_label(label) if label else name}
    ax.plot(lengths, [curve[length] for length in lengths], gid="system", **marks)
    by_chance = [chance.get(n, math.nan) if isinstance(chance, Mapping) else chance for n in lengths]
    if not np.isnan(by_chance).all():
        _draw_chance(ax, lengths, by_chance)
    return _finished(ax)


def draw_singling_out(
    curve: Mapping[int, tuple[float, float]], ax: Axes | None, label: str = "", chance: float = math.exp(-1)
) -> PlotResult:
    """How often one is singled out of so many people, with the error of drawing them, beside chance."""
    ax = axes_or_new(ax)
    sizes = [size for size in sorted(curve) if not math.isnan(curve[size][0])]
    if not ax.lines:
        ax.set(xscale="log", xlabel="people", ylabel="share of predicates that single one out", ylim=(-0.02, 1.02))
        _show_counts(ax)
    rates, errors = ([curve[size][part] for size in sizes] for part in (0, 1))
    style = next_style(ax)
    ax.plot(sizes, rates, gid="system", label=as_label(label) if label else "singled out", **style.of_markers)
    ax.vlines(sizes, *_bars(rates, errors), color=style.colour, linewidth=1.0)
    _draw_chance(ax, sizes, [chance] * len(sizes))
    return _finished(ax)


def _bars(rates: Sequence[float], errors: Sequence[float]) -> tuple[list[float], list[float]]:
    pairs = list(zip(rates, errors, strict=True))
    return [rate - 2 * error for rate, error in pairs], [rate + 2 * error for rate, error in pairs]


def _show_counts(ax: Axes, base: int = 10) -> None:
    ax.xaxis.set_major_locator(LogLocator(base=base))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _draw_chance(ax: Axes, x: Sequence[Any], y: Sequence[float]) -> None:
    """Once for all systems, as far as the longest of them."""
    for line in [line for line in ax.lines if line.get_gid() == "chance"]:
        if len(x) and np.max(line.get_xdata()) >= max(x):
            return
        line.remove()
    ax.plot(x, y, color="black", linewidth=1.2, linestyle="--", label="chance", gid="chance")


def _finished(ax: Axes) -> PlotResult:
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, fontsize="small")
    return figure_of(ax), ax
