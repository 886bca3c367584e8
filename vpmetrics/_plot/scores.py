"""Drawing what scores disclose: profiles over the prior, calibration, attacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from vpmetrics._plot.axes import (
    COLOURS,
    SMALL_LEGEND,
    PlotResult,
    as_label,
    axes_or_new,
    axis_of,
    figure_of,
    next_style,
    reach_of,
    titles_of,
    values_of,
)

PROFILE_LOG_ODDS = np.linspace(-7, 7, 141)  # natural; beyond, nothing is left to be known


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
    legend = f"{as_label(label)} ({values_of(keys, triple)})"
    ax.plot(odds, minimum.cpu(), **style.of_curve(len(odds)), label=legend, gid="system")
    if ends is not None:
        ax.fill_between(odds, ends[0].cpu(), ends[1].cpu(), color=style.colour, alpha=0.18, linewidth=0)
    if actual is not None:
        ax.plot(odds, actual.cpu(), color=style.colour, linestyle=":", linewidth=1.2)
    # The corner no profile reaches: none exceeds what is unknown beforehand.
    ax.legend(title=titles_of(keys), loc="upper left", **SMALL_LEGEND)
    return figure_of(ax), ax


def draw_calibrated_profile(profile: Tensor, c_ece: float, cllr: float, ax: Axes, label: str) -> PlotResult:
    """ECE of scores as an attacker calibrated them, on the axes of :func:`draw_ece_profile`.

    It may rise above the prior's own curve: there guessing would do better.
    """
    legend = f"{as_label(label)} [{c_ece:.3f}; {cllr:.3f}]"
    odds = PROFILE_LOG_ODDS / math.log(10)
    ax.plot(odds, profile.cpu(), **next_style(ax).of_curve(len(odds)), label=legend, gid="system")
    before = titles_of(("d_ece", "l_w", "tag"))
    ax.legend(title=f"{before};\n[$C_{{ECE}}$ in bit; $C_{{llr}}$]", loc="upper left", **SMALL_LEGEND)
    return figure_of(ax), ax


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
        value, reach = strongest["d_ece_strongest"], reach_of("d_ece_strongest", strongest)
        ax.errorbar(value, places[-1] - 0.22, xerr=reach, fmt="d", color="black", markersize=4, capsize=2.5,
                    label="chosen elsewhere, with interval")  # fmt: skip
    if math.isfinite(chance):
        ax.axvline(chance, color="black", linewidth=1.0, linestyle="--", label="chance")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="lower right", ncols=2, columnspacing=1.0, **{**SMALL_LEGEND, "handlelength": 1.5})
        ax.set_ylim(-1.4, len(known) - 0.4)  # below all bars, which may be as long as the axis
    ax.set_yticks(places, [as_label(name) for _, name in known], fontsize="small")
    longest = [value for value, _ in known] + [(strongest or {}).get("d_ece_strongest_high", math.nan)]
    ax.set(xlim=(0, max(0.1, 1.15 * max(filter(math.isfinite, longest), default=0.0))), xlabel=axis_of("d_ece"))
    ax.set_title(as_label(label), fontsize="medium")
    ax.grid(axis="x", alpha=0.3)
    return figure_of(ax), ax
