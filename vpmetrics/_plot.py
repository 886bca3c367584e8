"""Drawing: the one file that imports matplotlib."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter
from torch import Tensor

from vpmetrics._scalars import scalar
from vpmetrics._trials.matrices import SimilarityMatrices

# Okabe and Ito's colours, told apart by every kind of colour vision; black is kept for perfect privacy.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "os^DvPX*>"  # filled, then hollow
_LINES = ("-", "--", "-.", (0, (6, 1, 1, 1, 1, 1)))  # dots are of scores as they stand
PROFILE_LOG_ODDS = np.linspace(-7, 7, 141)  # natural; beyond, nothing is left to be known

_LEAST_DECIBELS = 1.0  # that an axis of gains spans
_LONGEST_LABEL = 30

_SMALL_LEGEND = {
    "framealpha": 0.9,
    "edgecolor": "none",
    "fontsize": "x-small",
    "title_fontsize": "x-small",
    "alignment": "left",
    "handlelength": 2.4,
    "borderaxespad": 0.3,
}

PlotResult = tuple[Figure, Axes]


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


def _values_of(keys: Sequence[str], scalars: Mapping[str, Any]) -> str:
    return ", ".join(scalar(key).show(float(scalars[key])) for key in keys)


def _titles_of(keys: Sequence[str]) -> str:
    return ", ".join(as_mathematics(scalar(key).title) for key in keys)


def axes_or_new(ax: Axes | None, size: tuple[float, float] = (5.0, 3.6)) -> Axes:
    """The axes given, or those of a figure that pyplot does not know and nobody has to close."""
    if ax is not None:
        return ax
    return Figure(figsize=size, layout="constrained", dpi=150).subplots()


def figure_of(ax: Axes) -> Figure:
    """The figure axes belong to, also inside a subfigure."""
    figure = ax.get_figure(root=True)
    if figure is None:
        raise ValueError("Expected `ax` to belong to a figure, but it has been removed from its own.")
    return figure


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


def draw_ece_profile(
    prior: Tensor,
    minimum: Tensor,
    actual: Tensor | None,
    triple: Mapping[str, Any],
    ax: Axes | None,
    label: str,
    ends: tuple[Tensor, Tensor] | None = None,
) -> PlotResult:
    """Empirical cross-entropy over the prior; the prior's own curve is drawn once, over all systems.

    With ``ends`` of its intervals, a band around the least one.
    """
    ax, keys = axes_or_new(ax), ("d_ece", "l_w", "tag")
    odds = PROFILE_LOG_ODDS / math.log(10)
    if not ax.lines:
        ax.plot(odds, prior.cpu(), color="black", linewidth=1.7, label="perfect privacy", zorder=3)
        ax.set(xlim=(odds[0], odds[-1]), ylim=(0, 1.05))
        ax.set(xlabel="prior log-odds, log$_{10}$", ylabel="empirical cross-entropy, bit")
        ax.grid(alpha=0.3)
    style = next_style(ax)
    legend = f"{as_label(label)} ({_values_of(keys, triple)})"
    ax.plot(odds, minimum.cpu(), **style.of_curve(len(odds)), label=legend, gid="system")
    if ends is not None:
        ax.fill_between(odds, ends[0].cpu(), ends[1].cpu(), color=style.colour, alpha=0.18, linewidth=0)
    if actual is not None:
        ax.plot(odds, actual.cpu(), color=style.colour, linestyle=":", linewidth=1.2)
    # The corner no profile reaches: none exceeds what is unknown beforehand.
    ax.legend(title=_titles_of(keys), loc="upper left", **_SMALL_LEGEND)
    return figure_of(ax), ax


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
        reach = [100 * _reach("deid", scalars), _reach("gvd", scalars)]
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


def _reach(key: str, scalars: Mapping[str, Any]) -> Any:
    """How far a whisker goes down and up from a value, ``(2, 1)``; nowhere where its interval is not known."""
    value, low, high = (float(scalars.get(f"{key}{end}", math.nan)) for end in ("", "_low", "_high"))
    return np.nan_to_num([[value - low], [high - value]]).clip(min=0)


def draw_rank_histogram(
    histogram: Tensor, fit: Tensor, disclosure: Mapping[str, Any], ax: Axes | None, label: str
) -> PlotResult:
    """Share of inputs at each rank, what chance would give, and the smooth distribution through them."""
    ax = axes_or_new(ax)
    counts = histogram.detach().double().cpu().numpy()
    ranks = np.arange(1, len(counts) + 1)
    with np.errstate(invalid="ignore"):
        shares = counts / counts.sum()
    chance = 1 / max(len(counts), 1)
    seen = shares > 0  # a logarithmic axis has no place for none
    ax.plot(ranks[seen], shares[seen], "o", markersize=3.5, color=COLOURS[0], label="observed", gid="system")
    ax.plot(ranks, fit.detach().cpu(), color=COLOURS[1], label="beta-binomial", gid="fit")
    ax.axhline(chance, color="black", linewidth=1.2, linestyle="--", label="nothing disclosed")
    # The same limits whatever was observed, so that panels of several systems can be compared.
    ax.set(xscale="log", yscale="log", xlim=(0.9, max(len(counts), 1) * 1.1), ylim=(chance / 50, 1.4))
    ax.set(xlabel="rank of the true speaker", ylabel="share of inputs")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    keys = ("max_d", "mean_d")
    title = ", ".join(f"{scalar(key).heading} {_values_of((key,), disclosure)} bit" for key in keys)
    ax.set_title(f"{as_label(label)}\n{title}" if label else title, fontsize="medium")
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, fontsize="small")
    return figure_of(ax), ax


def draw_local_information(
    bits: Tensor, references: int, summary: Mapping[str, Any], ax: Axes | None, label: str
) -> PlotResult:
    """Share of trials that disclose more than so many bits."""
    ax = axes_or_new(ax)
    if not ax.lines:
        ax.axvline(0, color="black", linewidth=1.2)
        ax.set(ylim=(0, 1.02), xlabel="local information disclosure, bit", ylabel="share of trials above")
        ax.grid(alpha=0.3)
    ordered = np.sort(bits.detach().double().cpu().numpy())
    keys, most = ("alid", "pdr"), math.log2(max(references, 1))
    if most not in [text.get_position()[0] for text in ax.texts]:  # once for systems of as many speakers
        ax.axvline(most, color="black", linewidth=1.0, linestyle=":")
        ax.text(most, 1.04, "speaker named", fontsize="small", ha="center", va="bottom")  # above what ends there
    legend = f"{as_label(label)} ({_values_of(keys, summary)})"
    above = 1 - np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
    # To the bits that name the speaker, which no trial exceeds.
    x, y = np.concatenate([ordered[:1], ordered, [most]]), np.concatenate([np.ones(len(ordered[:1])), above, [0.0]])
    ax.plot(x, y, **next_style(ax).of_curve(len(x)), drawstyle="steps-post", label=legend, gid="system")
    ax.legend(title=_titles_of(keys), loc="lower left", **_SMALL_LEGEND)
    return figure_of(ax), ax


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


def draw_attacks(
    names: Sequence[str],
    each: Sequence[float],
    chance: float,
    ax: Axes | None,
    label: str = "",
    strongest: Mapping[str, float] | None = None,
) -> PlotResult:
    """Expected disclosure to each attack, the strongest on top, and what chance would seem to disclose.

    ``strongest``: the scalars of the one chosen on other speakers, which is marked, with its interval if that is known.
    """
    ax = axes_or_new(ax, size=(4.8, 3.6))
    known = sorted((value, name) for name, value in zip(names, each, strict=True) if math.isfinite(value))
    places = range(len(known))
    colours = [COLOURS[0]] * (len(known) - 1) + [COLOURS[1]]
    ax.barh(places, [value for value, _ in known], color=colours[-len(known) :], height=0.7)
    for place, (value, _) in zip(places, known, strict=True):
        ax.annotate(f"{value:.3f}", (value, place), (3, 0), textcoords="offset points", va="center", fontsize="x-small")
    if strongest is not None and known and math.isfinite(strongest.get("d_ece_strongest_low", math.nan)):
        value, reach = strongest["d_ece_strongest"], _reach("d_ece_strongest", strongest)
        ax.errorbar(value, places[-1] - 0.22, xerr=reach, fmt="d", color="black", markersize=4, capsize=2.5,
                    label="chosen elsewhere, with interval")  # fmt: skip
    if math.isfinite(chance):
        ax.axvline(chance, color="black", linewidth=1.0, linestyle="--", label="chance")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="lower right", ncols=2, columnspacing=1.0, **{**_SMALL_LEGEND, "handlelength": 1.5})
        ax.set_ylim(-1.4, len(known) - 0.4)  # below all bars, which may be as long as the axis
    ax.set_yticks(places, [as_label(name) for _, name in known], fontsize="small")
    longest = [value for value, _ in known] + [(strongest or {}).get("d_ece_strongest_high", math.nan)]
    ax.set(xlim=(0, max(0.1, 1.15 * max(filter(math.isfinite, longest), default=0.0))), xlabel=axis_of("d_ece"))
    ax.set_title(as_label(label), fontsize="medium")
    ax.grid(axis="x", alpha=0.3)
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


def draw_reliability(llr: Tensor, counts: Tensor, ax: Axes | None, label: str, bins: int = 15) -> PlotResult:
    """Share of targets against the posterior that log-likelihood ratios promise, at the prior of the trials.

    ``llr`` ``(V,)`` occur ``counts`` ``(2, V)`` times among non-targets and targets.
    """
    ax = axes_or_new(ax, size=(4.2, 3.8))
    number = counts.detach().double().cpu()
    prior = math.log(max(float(number[1].sum()), 1) / max(float(number[0].sum()), 1))
    promised = (llr.detach().double().cpu() + prior).sigmoid().numpy()
    if not ax.lines:
        ax.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":", label="calibrated")
        ax.set(xlabel="promised posterior", ylabel="share of targets", xlim=(0, 1), ylim=(0, 1))
        ax.grid(alpha=0.3)
    place = np.clip((promised * bins).astype(int), 0, bins - 1)
    everything = number.sum(0).numpy()
    count = np.bincount(place, everything, bins)
    seen = count > 0
    mean, share = (
        np.bincount(place, values, bins)[seen] / count[seen] for values in (promised * everything, number[1].numpy())
    )
    style = next_style(ax)
    line = {"linestyle": style.line, "linewidth": 1, "markersize": 4.5}
    ax.plot(mean, share, **style.of_markers, **line, label=as_label(label), gid="system")
    # Larger marks where more trials are, on a scale that still shows the few.
    face, sizes = style.of_markers["markerfacecolor"], 6 + 12 * np.log10(count[seen])
    ax.scatter(mean, share, s=sizes, facecolor=face, edgecolor=style.colour, marker=style.marker, zorder=3)
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    return figure_of(ax), ax


def axes_in_grid(count: int, size: tuple[float, float], columns: int = 3) -> list[Axes]:
    """Axes for panels side by side on one new figure, ``size`` inches each."""
    columns = min(count, columns)
    lines = -(-count // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * lines), layout="constrained", dpi=150)
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for ax in grid[count:]:
        ax.remove()
    return list(grid[:count])


def legend_beside(ax: Axes) -> None:
    """Move the legend out of the axes, where no curve can run through it."""
    legend = ax.get_legend()
    if legend is not None:
        legend.set_loc("center left")
        legend.set_bbox_to_anchor((1.02, 0.5))
        legend.set_alignment("left")
        for text in (*legend.get_texts(), legend.get_title()):
            text.set_fontsize("small")  # there is room


def draw_calibrated_profile(profile: Tensor, c_ece: float, cllr: float, ax: Axes, label: str) -> PlotResult:
    """ECE of scores as an attacker calibrated them, on the axes of :func:`draw_ece_profile`.

    It may rise above the prior's own curve: there guessing would do better.
    """
    legend = f"{as_label(label)} [{c_ece:.3f}; {cllr:.3f}]"
    odds = PROFILE_LOG_ODDS / math.log(10)
    ax.plot(odds, profile.cpu(), **next_style(ax).of_curve(len(odds)), label=legend, gid="system")
    before = _titles_of(("d_ece", "l_w", "tag"))
    ax.legend(title=f"{before};\n[$C_{{ECE}}$ in bit; $C_{{llr}}$]", loc="upper left", **_SMALL_LEGEND)
    return figure_of(ax), ax
