"""Figures of identification: ranks, local information, and re-identification in a population."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from vpmetrics._identification.beta_binomial import fit_beta_binomial
from vpmetrics._scores.registry import scalar
from vpmetrics.plotting.axes import (
    CHANCE,
    COLOURS,
    PlotResult,
    as_label,
    axes_or_new,
    draw_chance,
    finish_axes,
    label_with_values,
    next_style,
    set_logarithmic_counts,
)

_RANK_KEYS = ("max_d", "mean_d")
_LOCAL_KEYS = ("alid", "pdr")


def draw_rank_histogram(
    histogram: Tensor, scalars: Mapping[str, Any], ax: Axes | None, title: str
) -> PlotResult:
    """Draw the share of utterances at each rank of the true speaker.

    The beta-binomial fit and the chance level are lines.
    """
    ax = axes_or_new(ax)
    counts = histogram.detach().double().cpu().numpy()
    num_ranks = max(len(counts), 1)
    ranks = np.arange(1, len(counts) + 1)
    with np.errstate(invalid="ignore"):
        shares = counts / counts.sum()
    is_seen = shares > 0  # a logarithmic axis has no 0
    ax.plot(
        ranks[is_seen],
        shares[is_seen],
        "o",
        markersize=3.5,
        color=COLOURS[0],
        label="observed",
        gid="system",
    )
    fit = fit_beta_binomial(histogram.detach()).probabilities.cpu()
    ax.plot(ranks, fit, color=COLOURS[1], label="beta-binomial fit", gid="fit")
    ax.axhline(1 / num_ranks, **CHANCE)
    set_logarithmic_counts(ax)
    # The same limits for any counts, so that panels of several systems can be compared.
    ax.set(yscale="log", xlim=(0.9, 1.1 * num_ranks), ylim=(1 / num_ranks / 50, 1.4))
    ax.set(xlabel="rank of the true speaker", ylabel="share of utterances")
    texts: list[str] = []
    for key in _RANK_KEYS:
        entry = scalar(key)
        texts.append(f"{entry.heading} {entry.show(float(scalars[key]))}")
    disclosed = ", ".join(texts)
    ax.set_title(
        f"{as_label(title)}\n{disclosed} bit" if title else f"{disclosed} bit", fontsize="small"
    )
    return finish_axes(ax)


def draw_local_information(
    bits: Tensor, num_references: int, scalars: Mapping[str, Any], ax: Axes | None, label: str
) -> PlotResult:
    """Draw the share of trials that disclose more than x bits, over x."""
    ax = axes_or_new(ax)
    limit = math.log2(max(num_references, 1))
    if not ax.lines:
        ax.axvline(0, color="black", linewidth=1.2)
        ax.set(
            ylim=(0, 1.02),
            xlabel="local information disclosure, bit",
            ylabel="share of trials above",
        )
    # Once for systems with the same number of speakers.
    if limit not in [text.get_position()[0] for text in ax.texts]:
        ax.axvline(limit, color="black", linewidth=1.0, linestyle=":")
        ax.text(limit, 1.04, "speaker identified", fontsize="small", ha="center", va="bottom")
    ordered = np.sort(bits.detach().double().cpu().numpy())
    above = 1 - np.arange(1, len(ordered) + 1) / max(len(ordered), 1)
    # The curve ends at the bits that identify the speaker, which no trial exceeds.
    x = np.concatenate([ordered[:1], ordered, [limit]])
    y = np.concatenate([np.ones(len(ordered[:1])), above, [0.0]])
    name = label_with_values(label, _LOCAL_KEYS, scalars)
    ax.plot(x, y, **next_style(ax).curve(len(x)), drawstyle="steps-post", label=name)
    return finish_axes(ax, keys=_LOCAL_KEYS, loc="lower left")


def spread_population_sizes(largest: int) -> list[int]:
    """Return numbers of people from 2 to the largest, evenly spread over a logarithmic axis."""
    return sorted({round(2 * (largest / 2) ** (step / 40)) for step in range(41)} | {2, largest})


def find_population_sizes(keys: Iterable[str]) -> list[int]:
    """Return the numbers of people among keys of rates, ascending."""
    return sorted(int(size) for key in keys if (size := key.removeprefix("rate_")).isdigit())


def draw_population_rate(
    curve: Mapping[int, float], gallery: float, ax: Axes | None, label: str = ""
) -> PlotResult:
    """Draw the re-identification rate over the size of the population.

    A line, and dots where it is extrapolated.
    """
    ax = axes_or_new(ax)
    sizes = sorted(curve)
    style = next_style(ax)
    if not ax.lines:
        set_logarithmic_counts(ax)
        ax.set(yscale="log", xlabel="size of the population", ylabel="re-identification rate")
    rates = [curve[size] for size in sizes]
    inside = sum(size <= gallery for size in sizes)
    if label:
        name = f"{as_label(label)} (gallery of {gallery:.0f})"
    else:
        name = f"gallery of {gallery:.0f}"
    ax.plot(sizes[:inside], rates[:inside], **style.curve(inside), label=name)
    if inside < len(sizes):
        last = max(0, inside - 1)
        is_named = any(line.get_gid() == "extrapolated" for line in ax.lines)
        label = "_" if is_named else "extrapolated"
        ax.plot(
            sizes[last:], rates[last:], ":", color=style.colour, label=label, gid="extrapolated"
        )
    draw_chance(ax, sizes, [1 / size for size in sizes])
    return finish_axes(ax)


def draw_over_conversation_lengths(
    curve: Mapping[int, float],
    chance: float | Mapping[int, float],
    ax: Axes | None,
    label: str = "",
    name: str = "re-identification rate",
    highest: float = 1.0,
) -> PlotResult:
    """Draw a number over how many utterances are averaged, and its chance level.

    From 0 to its highest value.

    ``chance``: one level, or one for each number of utterances.
    """
    ax = axes_or_new(ax)
    lengths = sorted(curve)
    if not ax.lines:
        ax.set(xlabel="utterances averaged", ylabel=name, ylim=(-0.02 * highest, 1.02 * highest))
        set_logarithmic_counts(ax, base=2)
    values = [curve[length] for length in lengths]
    ax.plot(
        lengths, values, **next_style(ax).marker_options, label=as_label(label) if label else name
    )
    if isinstance(chance, Mapping):
        levels = [chance.get(length, math.nan) for length in lengths]
    else:
        levels = [chance] * len(lengths)
    if not np.isnan(levels).all():
        draw_chance(ax, lengths, levels)
    return finish_axes(ax)


def draw_singling_out(
    population_rates: Mapping[int, tuple[float, float]], ax: Axes | None, label: str
) -> PlotResult:
    """Draw rates of singling out by population size.

    The error bars are twice the standard errors. The chance level is a line.
    """
    ax = axes_or_new(ax)
    sizes = [size for size in sorted(population_rates) if not math.isnan(population_rates[size][0])]
    if not ax.lines:
        set_logarithmic_counts(ax)
        ax.set(xlabel="size of the population", ylabel="rate of singling out", ylim=(-0.02, 1.02))
    rates, errors = np.array([population_rates[size] for size in sizes]).reshape(-1, 2).T
    style = next_style(ax)
    ax.plot(sizes, rates, **style.marker_options, label=as_label(label) if label else "singled out")
    ax.vlines(sizes, rates - 2 * errors, rates + 2 * errors, color=style.colour, linewidth=1.0)
    draw_chance(ax, sizes, [math.exp(-1)] * len(sizes))
    return finish_axes(ax)
