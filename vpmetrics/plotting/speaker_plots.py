"""Figures of speakers: similarity matrices, zoo plots, and the disclosure of each speaker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from torch import Tensor

from vpmetrics._scores.speaker_disclosure import SpeakerDisclosure
from vpmetrics._scores.speaker_similarity import SimilarityMatrices
from vpmetrics.plotting.axes import (
    CHANCE,
    COLOURS,
    PlotResult,
    as_label,
    axes_or_new,
    figure_of,
    finish_axes,
)

_NAMED_SPEAKERS = 3
_NAME_OFFSET = 4  # points between a name and its marker
_MANY_SPEAKERS = 100  # that share pixels: their diagonals are drawn on top of the heat map


def draw_similarity_matrices(
    matrices: SimilarityMatrices, ax: Axes | None, names: Sequence[str] | None = None
) -> PlotResult:
    """Draw OO and OP above PO and PP as one heat map from 0 to 1."""
    oo = matrices.oo.detach().float().cpu().numpy()
    op = matrices.op.detach().float().cpu().numpy()
    pp = matrices.pp.detach().float().cpu().numpy()
    num_speakers = len(oo)
    ax = axes_or_new(ax, size=(4.8, 4.0) if names is None else (6.0, 5.2))
    colours: dict[str, Any] = {"vmin": 0, "vmax": 1, "cmap": "viridis"}
    interpolation = "nearest" if num_speakers < _MANY_SPEAKERS else "antialiased"
    image = ax.imshow(np.block([[oo, op], [op.T, pp]]), interpolation=interpolation, **colours)
    speaker = np.arange(num_speakers)
    for row, column, quadrant in ((0, 0, oo), (0, 1, op), (1, 0, op), (1, 1, pp)):
        if num_speakers >= _MANY_SPEAKERS:
            x = speaker + column * num_speakers
            y = speaker + row * num_speakers
            ax.scatter(x, y, c=np.diagonal(quadrant), s=1.5, marker="s", linewidths=0, **colours)
        corner = (0.485 + column / 2, 0.985 - row / 2)  # away from the diagonal
        text = ax.text(
            *corner,
            "OP"[row] + "OP"[column],
            transform=ax.transAxes,
            color="white",
            ha="right",
            va="top",
        )
        text.set(fontsize="small", path_effects=[withStroke(linewidth=1.5, foreground="black")])
    for draw_line in (ax.axhline, ax.axvline):
        draw_line(num_speakers - 0.5, color="white", linewidth=1)
    ax.set(xlabel="speakers", ylabel="speakers")
    for axis in (ax.xaxis, ax.yaxis):
        if names is None:
            axis.set_ticks(
                [num_speakers / 2 - 0.5, 1.5 * num_speakers - 0.5], ["original", "protected"]
            )
        else:
            axis.set_ticks(range(2 * num_speakers), [*names, *names])
            axis.set_tick_params(labelsize=min(7.0, 130 / num_speakers), length=0)
    ax.tick_params(axis="y" if names is None else "x", labelrotation=90)
    figure = figure_of(ax)
    figure.colorbar(image, ax=ax, label="voice similarity", fraction=0.046, pad=0.03)
    return figure, ax


def draw_zoo(
    within_speaker: Tensor,
    between_speakers: Tensor,
    ax: Axes | None,
    title: str = "",
    names: Sequence[str] | None = None,
) -> PlotResult:
    """Draw one point per speaker: the mean of own trials and of trials with others.

    Count the animals in the corners.

    After Yager and Dunstone, "The biometric menagerie", 2010: an animal is in the outer quarter of
    both.
    """
    ax = axes_or_new(ax, size=(4.6, 3.8))
    x = within_speaker.detach().double().cpu().numpy()
    y = between_speakers.detach().double().cpu().numpy()
    is_defined = np.isfinite(x) & np.isfinite(y)
    x = x[is_defined]
    y = y[is_defined]
    quartiles = [np.quantile(values, (0.25, 0.75)) for values in (x, y) if len(x) > 3]
    # Equal speakers would be every animal.
    if quartiles and not any(np.isclose(low, high) for low, high in quartiles):
        (left, right), (bottom, top) = quartiles
        is_outer_in_x = (x < left, x > right)
        is_outer_in_y = (y < bottom, y > top)
        for draw_line, ends in zip((ax.axvline, ax.axhline), quartiles, strict=True):
            for value in ends:
                draw_line(value, color="black", linewidth=0.7, linestyle=":", alpha=0.6)
        for name, is_right, is_top in (
            ("worms", 0, 1),
            ("chameleons", 1, 1),
            ("phantoms", 0, 0),
            ("doves", 1, 0),
        ):
            corner = (0.02 + 0.96 * is_right, 0.02 + 0.96 * is_top)
            num_animals = int((is_outer_in_x[is_right] & is_outer_in_y[is_top]).sum())
            text = ax.text(
                *corner,
                f"{name}: {num_animals}",
                transform=ax.transAxes,
                color="0.4",
                fontsize="small",
            )
            text.set(path_effects=[withStroke(linewidth=2, foreground="white")])
            text.set(ha=("left", "right")[is_right], va=("bottom", "top")[is_top])
    ax.plot(x, y, "o", color=COLOURS[0], markersize=5, markeredgecolor="white", markeredgewidth=0.5)
    if names is not None:
        for name, *point in zip(np.asarray(names)[is_defined], x, y, strict=True):
            ax.annotate(
                str(name), tuple(point), xytext=(3, 3), textcoords="offset points", fontsize=6
            )
    ax.set(xlabel="similarity within speaker", ylabel="similarity with others")
    ax.margins(0.12)
    return finish_axes(ax, title)


def draw_tested_and_enrolled(
    disclosed: SpeakerDisclosure,
    d_ece: float,
    speaker_name: Callable[[int], str],
    ax: Axes | None,
    title: str = "",
) -> PlotResult:
    """Draw the D_ECE of every speaker, as tested and as enrolled, and that of all trials.

    Speakers are sorted by the disclosure as tested.
    """
    ax = axes_or_new(ax, size=(4.8, 3.6))
    tested = disclosed.probed.d_ece.detach().cpu().double().numpy()
    enrolled = disclosed.enrolled.d_ece.detach().cpu().double().numpy()
    order = np.argsort(-tested, kind="stable")[: np.isfinite(tested).sum()]
    tested = tested[order]
    enrolled = enrolled[order]
    ranks = np.arange(1, len(order) + 1)
    dots: dict[str, Any] = {"marker": "o", "linestyle": "none", "markersize": 3}
    if not np.array_equal(tested, enrolled, equal_nan=True):
        ax.plot(
            ranks,
            enrolled,
            **dots,
            fillstyle="none",
            color=COLOURS[1],
            label="enrolled",
            gid="enrolled",
        )
    ax.plot(ranks, tested, **dots, color=COLOURS[0], label="tested", gid="probed")
    ax.axhline(d_ece, **{**CHANCE, "linewidth": 1.0, "label": "all trials", "gid": "mean"})
    ax.set(xlabel="speakers, worst first", ylabel="$D_{ECE}$ of a speaker, bit")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    ax.margins(y=0.25)
    names = [as_label(speaker_name(speaker)) for speaker in order[:_NAMED_SPEAKERS]]
    _write_names(ax, names, np.column_stack([ranks, tested])[:_NAMED_SPEAKERS])
    return finish_axes(ax, title, loc="lower left")


def _write_names(ax: Axes, names: Sequence[str], points: NDArray[np.float64]) -> None:
    """Write a name at each point, above that of the next point where they would overlap."""
    ax.get_ylim()  # updates the limits, which the last points drawn may have changed
    heights = ax.transData.transform(points)[:, 1] * 72 / figure_of(ax).dpi
    font = FontProperties(size="x-small")
    spacing = 1.2 * font.get_size_in_points()
    heights_of_names = heights + _NAME_OFFSET
    for row in reversed(range(len(names) - 1)):
        heights_of_names[row] = max(heights_of_names[row], heights_of_names[row + 1] + spacing)
    for name, point, offset in zip(names, points, heights_of_names - heights, strict=True):
        text = ax.annotate(
            name, point, (5, offset), textcoords="offset points", fontproperties=font
        )
        text.set_path_effects([withStroke(linewidth=2, foreground="white")])
