"""Drawing identification: ranks of the true speaker, and what each recording discloses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter
from torch import Tensor

from vpmetrics._plot.axes import (
    COLOURS,
    SMALL_LEGEND,
    PlotResult,
    as_label,
    axes_or_new,
    figure_of,
    next_style,
    titles_of,
    values_of,
)
from vpmetrics._scalars import scalar


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
    title = ", ".join(f"{scalar(key).heading} {values_of((key,), disclosure)} bit" for key in keys)
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
    legend = f"{as_label(label)} ({values_of(keys, summary)})"
    above = 1 - np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
    # To the bits that name the speaker, which no trial exceeds.
    x, y = np.concatenate([ordered[:1], ordered, [most]]), np.concatenate([np.ones(len(ordered[:1])), above, [0.0]])
    ax.plot(x, y, **next_style(ax).of_curve(len(x)), drawstyle="steps-post", label=legend, gid="system")
    ax.legend(title=titles_of(keys), loc="lower left", **SMALL_LEGEND)
    return figure_of(ax), ax
