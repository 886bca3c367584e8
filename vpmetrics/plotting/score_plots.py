"""Figures of scores.

Distributions, error trade-offs, ECE profiles, calibration, and bars of disclosure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor
from torch.special import ndtr, ndtri

from vpmetrics._scores.measures import missed_and_rejected_counts, prior_entropy
from vpmetrics._scores.registry import scalar
from vpmetrics._scores.score_counts import CountedScores, OrderedScores, ScoresAndSteps, Steps
from vpmetrics.plotting.axes import (
    CHANCE,
    COLOURS,
    PlotResult,
    as_label,
    axes_or_new,
    axis_label,
    draw_chance,
    finish_axes,
    label_with_values,
    next_style,
    set_logarithmic_counts,
)

PROFILE_LOG_ODDS = np.linspace(-7, 7, 141)  # natural; beyond them the prior alone decides
_PROFILE_KEYS = ("d_ece", "l_w", "tag")
_DET_KEYS = ("raw_eer",)
_ROC_KEYS = ("tpr_at_1e-2", "tpr_at_1e-3")
_MARKED_FPR = (1e-2, 1e-3)  # of _ROC_KEYS
_LOWEST_FPR = 1e-4
_DET_TICKS = (0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95)
_HISTOGRAM_BINS = 60
_RELIABILITY_BINS = 15


def draw_score_histogram(
    scores: ScoresAndSteps, scalars: Mapping[str, Any], ax: Axes | None, title: str = ""
) -> PlotResult:
    """Draw the densities of target and non-target scores, and the threshold of the raw EER."""
    ax = axes_or_new(ax)
    lowest, highest = scores.trials.span_or_nan()
    low = float(lowest)
    high = float(highest)
    has_both_classes = bool((scores.trials.class_sizes > 0).all())
    if has_both_classes and 0 < high - low < math.inf:
        bin_edges = torch.linspace(low, high, _HISTOGRAM_BINS + 1)
        _draw_densities(ax, scores.trials, bin_edges.to(scores.counts.ascending.edges))
        ax.axvline(
            _find_eer_threshold(scores.counts.ascending),
            color="black",
            linewidth=1.2,
            linestyle=":",
            label=f"raw EER {scalar('raw_eer').show(float(scalars['raw_eer']))} %",
            gid="threshold",  # by which the line is found in the figure
        )
    ax.set(xlabel="score", ylabel="density")
    ax.set_ylim(0, 1.2 * ax.get_ylim()[1])  # room for the legend
    return finish_axes(ax, title, loc="upper center", ncols=3, handlelength=1.2, columnspacing=1.0)


def _draw_densities(ax: Axes, trials: OrderedScores | CountedScores, bin_edges: Tensor) -> None:
    """Draw a histogram of area 1 for each class, targets first."""
    # The first and the last edge are the ends of the scores, so the outer bins need no edge there.
    nontarget_counts, target_counts = trials.count_between(bin_edges[1:-1]).double().cpu().numpy()
    edges = bin_edges.double().cpu().numpy()
    for name, counts, colour in (
        ("target", target_counts, COLOURS[0]),
        ("non-target", nontarget_counts, COLOURS[1]),
    ):
        density = counts / counts.sum() / np.diff(edges)
        ax.stairs(density, edges, fill=True, color=colour, alpha=0.35, label=name)
        ax.stairs(density, edges, color=colour, linewidth=1.2)


def _find_eer_threshold(steps: Steps) -> float:
    """Return the lowest edge of a step at which the miss rate reaches the false-alarm rate."""
    # Trials below an edge are rejected; no edge follows the last step.
    miss_rate = steps.targets.cumsum(0)[:-1] / steps.targets.sum()
    rejection_rate = steps.nontargets.cumsum(0)[:-1] / steps.nontargets.sum()
    is_reached = miss_rate + rejection_rate >= 1  # the false-alarm rate is 1 - rejection_rate
    step = is_reached.to(torch.uint8).argmax()  # of the largest values, argmax finds the first
    return float(steps.edges[step])


def draw_det(steps: Steps, scalars: Mapping[str, Any], ax: Axes | None, label: str) -> PlotResult:
    """Draw the miss rate over the false-alarm rate on probit axes, and mark the raw EER."""
    ax = axes_or_new(ax)
    probits_of_ticks = ndtri(torch.tensor(_DET_TICKS, dtype=torch.float64)).tolist()
    limits = probits_of_ticks[0], probits_of_ticks[-1]
    if not ax.lines:
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks(probits_of_ticks, [f"{100 * rate:g}" for rate in _DET_TICKS])
        ax.set(xlim=limits, ylim=limits, xlabel="false-alarm rate, %", ylabel="miss rate, %")
        # The diagonal on which both error rates are equal.
        ax.plot(limits, limits, color="0.6", linewidth=0.8, linestyle=":")
        draw_chance(ax, limits, (-limits[0], -limits[1]))
    style = next_style(ax)
    x = torch.linspace(limits[0], limits[1], 300, dtype=torch.float64)
    y = ndtri(_miss_rates(steps, ndtr(x)).clamp(1e-9, 1 - 1e-9))
    ax.plot(x, y, color=style.colour, linestyle=style.line, linewidth=1.3)
    eer = float(ndtri(torch.tensor(float(scalars["raw_eer"]))))
    name = label_with_values(label, _DET_KEYS, scalars)
    ax.plot([eer], [eer], **style.marker_options, linestyle=style.line, label=name)
    return finish_axes(ax, keys=_DET_KEYS, loc="lower left")


def draw_log_roc(
    steps: Steps, scalars: Mapping[str, Any], ax: Axes | None, label: str
) -> PlotResult:
    """Draw the true-positive rate over the false-positive rate on logarithmic axes.

    Mark FPR 1 % and 0.1 %.
    """
    ax = axes_or_new(ax)
    if not ax.lines:
        limits = (_LOWEST_FPR, 1.0)
        ax.set(xscale="log", yscale="log", xlim=limits, ylim=(_LOWEST_FPR, 1.3))
        ax.set(xlabel="false-positive rate (FPR)", ylabel="true-positive rate (TPR)")
        for fpr in _MARKED_FPR:
            ax.axvline(fpr, color="0.6", linewidth=0.8, linestyle=":")
        draw_chance(ax, limits, limits)
    style = next_style(ax)
    rates = torch.logspace(math.log10(_LOWEST_FPR), 0, 300, dtype=torch.float64)
    ax.plot(
        rates,
        1 - _miss_rates(steps, rates),
        color=style.colour,
        linestyle=style.line,
        linewidth=1.3,
    )
    marked = [float(scalars[key]) for key in _ROC_KEYS]
    name = label_with_values(label, _ROC_KEYS, scalars)
    # NaN between the markers: only the legend shows a line.
    x = (_MARKED_FPR[0], math.nan, _MARKED_FPR[1])
    y = (marked[0], math.nan, marked[1])
    ax.plot(x, y, **style.marker_options, linestyle=style.line, label=name)
    return finish_axes(ax, keys=_ROC_KEYS, loc="lower right")


def _miss_rates(steps: Steps, false_alarm_rates: Tensor) -> Tensor:
    """Return the miss rate at each of ascending false-alarm rates.

    It is linear between the points of the ROC.
    """
    num_missed, num_rejected = missed_and_rejected_counts(steps)
    missed = (num_missed / num_missed[-1]).double().cpu().numpy()
    rejected = (num_rejected / num_rejected[-1]).double().cpu().numpy()
    return torch.from_numpy(np.interp(1 - false_alarm_rates.numpy(), rejected, missed))


def draw_ece_profile(
    minimum: Tensor,
    actual: Tensor | None,
    scalars: Mapping[str, Any],
    ax: Axes | None,
    label: str,
    interval: tuple[Tensor, Tensor] | None = None,
) -> PlotResult:
    """Draw the empirical cross-entropy over the prior.

    The line is that of the oracle calibration, the dotted line that of the scores.

    ``interval``: both ends of the confidence interval of ``minimum``, drawn as a band.
    """
    ax = axes_or_new(ax)
    odds = PROFILE_LOG_ODDS / math.log(10)
    if not ax.lines:
        prior = prior_entropy(torch.from_numpy(PROFILE_LOG_ODDS))
        ax.plot(odds, prior, color="black", linewidth=1.7, label="perfect privacy", zorder=3)
        ax.set(xlim=(odds[0], odds[-1]), ylim=(0, 1.05))
        ax.set(xlabel="prior log-odds, log$_{10}$", ylabel="empirical cross-entropy, bit")
    style = next_style(ax)
    ax.plot(
        odds,
        minimum.cpu(),
        **style.curve(len(odds)),
        label=label_with_values(label, _PROFILE_KEYS, scalars),
    )
    if interval is not None:
        low, high = interval
        ax.fill_between(
            odds, low.cpu().numpy(), high.cpu().numpy(), color=style.colour, alpha=0.18, linewidth=0
        )
    if actual is not None:
        ax.plot(odds, actual.cpu(), color=style.colour, linestyle=":", linewidth=1.2)
    # No profile reaches the upper left corner: none exceeds that of the prior.
    return finish_axes(ax, keys=_PROFILE_KEYS, loc="upper left")


def draw_attacker_profile(
    cross_entropy: Tensor, calibration_distortion: float, cllr: float, ax: Axes, label: str
) -> PlotResult:
    """Draw the ECE profile of scores that an attacker calibrated.

    The axes are those of :func:`draw_ece_profile`.
    """
    odds = PROFILE_LOG_ODDS / math.log(10)
    name = f"{as_label(label)} [{calibration_distortion:.3f}; {cllr:.3f}]"
    ax.plot(odds, cross_entropy.cpu(), **next_style(ax).curve(len(odds)), label=name)
    heading_suffix = ";\n[$C_{ECE}$ in bit; $C_{llr}$]"
    return finish_axes(ax, keys=_PROFILE_KEYS, heading_suffix=heading_suffix, loc="upper left")


def draw_share_by_posterior(llr: Tensor, counts: Tensor, ax: Axes | None, label: str) -> PlotResult:
    """Draw the share of targets over the posterior of log-likelihood ratios.

    The prior is the share of targets among the trials.

    ``llr`` ``(V,)`` occur ``counts`` ``(2, V)`` times among non-targets and targets.
    """
    ax = axes_or_new(ax, size=(4.2, 3.8))
    num_bins = _RELIABILITY_BINS
    nontargets, targets = counts.detach().double().cpu()
    prior = math.log(max(float(targets.sum()), 1) / max(float(nontargets.sum()), 1))
    posterior = (llr.detach().double().cpu() + prior).sigmoid().numpy()
    if not ax.lines:
        ax.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle=":", label="calibrated")
        ax.set(xlabel="posterior of a target", ylabel="share of targets", xlim=(0, 1), ylim=(0, 1))
    bin_of_value = np.clip((posterior * num_bins).astype(int), 0, num_bins - 1)
    trials = (nontargets + targets).numpy()
    count = np.bincount(bin_of_value, trials, num_bins)
    has_trials = count > 0
    sum_of_posteriors = np.bincount(bin_of_value, posterior * trials, num_bins)
    num_targets = np.bincount(bin_of_value, targets.numpy(), num_bins)
    mean_posterior = sum_of_posteriors[has_trials] / count[has_trials]
    share_of_targets = num_targets[has_trials] / count[has_trials]
    style = next_style(ax)
    options = {**style.marker_options, "linestyle": style.line, "linewidth": 1, "markersize": 4.5}
    ax.plot(mean_posterior, share_of_targets, **options, label=as_label(label))
    # Larger marks where more trials are, on a logarithmic scale that still shows bins of few
    # trials.
    sizes = 6 + 12 * np.log10(count[has_trials])
    ax.scatter(
        mean_posterior,
        share_of_targets,
        s=sizes,
        facecolor=style.face,
        edgecolor=style.colour,
        marker=style.marker,
        zorder=3,
    )
    return finish_axes(ax, loc="upper left")


def draw_attacks(
    disclosures: Mapping[str, float],
    chance: float,
    ax: Axes | None,
    title: str = "",
    fused: Sequence[float] = (math.nan,) * 3,
) -> PlotResult:
    """Draw the expected disclosure to each attack, sorted, with the chance level.

    That to all of them fused is on top.

    ``fused``: the disclosure to the fused attacker, and both ends of its confidence interval.
    """
    ax = axes_or_new(ax, size=(4.8, 3.6))
    defined = (row for row in disclosures.items() if math.isfinite(row[1]))
    bars = dict(sorted(defined, key=lambda row: row[1]))
    if math.isfinite(fused[0]):
        bars["all, fused"] = fused[0]
    _draw_interval(ax, len(bars) - 1, fused, "confidence interval")
    if math.isfinite(chance):
        ax.axvline(chance, **CHANCE)
    return _draw_bars(ax, bars, [*bars.values(), *fused], axis_label("d_ece"), title, COLOURS[1])


def draw_learning_curve(
    d_ece_by_speakers: Mapping[int, float],
    limit: float,
    chance: float,
    ax: Axes | None,
    label: str = "",
) -> PlotResult:
    """Draw D_ECE over the number of speakers that attacks are fitted on.

    A dotted line is its limit for very many speakers. The chance level is a line, too.
    """
    ax = axes_or_new(ax)
    if not ax.lines:
        ax.set(xlabel="speakers that attacks are fitted on", ylabel=axis_label("d_ece_strongest"))
        set_logarithmic_counts(ax, base=2)
    speaker_counts = sorted(d_ece_by_speakers)
    values = [d_ece_by_speakers[num_speakers] for num_speakers in speaker_counts]
    options = next_style(ax).marker_options
    name = as_label(label) if label else "fused attacker"
    (line,) = ax.plot(speaker_counts, values, **options, label=name)
    if math.isfinite(limit):
        ax.axhline(
            limit,
            color=line.get_color(),
            linestyle=":",
            label=f"{name}, very many speakers",
            gid="limit",
        )
    draw_chance(ax, speaker_counts, [chance] * len(speaker_counts))
    ax.set_ylim(bottom=0)
    return finish_axes(ax)


def draw_attribute_bits(
    attributes: Mapping[str, Mapping[str, float]], ax: Axes | None, title: str = ""
) -> PlotResult:
    """Draw the disclosure of each attribute, its chance level, and that of original speech.

    Each maps ``disclosure``, ``disclosure_low``, ``disclosure_high``, ``chance`` and ``original``
    to bits, where known.
    """
    ax = axes_or_new(ax, size=(4.8, 3.6))
    keys = ("disclosure", "disclosure_low", "disclosure_high", "chance", "original")
    bars: dict[str, float] = {}
    values: list[float] = []
    # The last bar is on top, and that is the first attribute.
    for height, name in enumerate(reversed(list(attributes))):
        bits = [attributes[name].get(key, math.nan) for key in keys]
        *interval, chance, original = bits
        bars[name] = bits[0]
        values += bits
        labels = ["_"] * 3
        if height == 0:
            labels = ["confidence interval", "chance", "original speech"]
        _draw_interval(ax, height, interval, labels[0])
        ax.plot([chance, chance], [height - 0.4, height + 0.4], **{**CHANCE, "label": labels[1]})
        ax.plot(
            original,
            height,
            "D",
            color=COLOURS[1],
            markerfacecolor="white",
            label=labels[2],
            gid="original",
        )
    return _draw_bars(ax, bars, values, "disclosure of an attribute, bit", title, COLOURS[0])


def _draw_bars(
    ax: Axes,
    bars: Mapping[str, float],
    values: Sequence[float],
    xlabel: str,
    title: str,
    last_colour: str,
) -> PlotResult:
    """Draw bars with their names and numbers, the last one on top.

    The axis reaches beyond all values.
    """
    heights = range(len(bars))
    colours = [*[COLOURS[0]] * (len(bars) - 1), last_colour]
    ax.barh(heights, list(bars.values()), color=colours[: len(bars)], height=0.7)
    for height, value in zip(heights, bars.values(), strict=True):
        # A column at the right, where no interval ends.
        text = ax.text(
            0.99, height, f"{value:.3f}", transform=ax.get_yaxis_transform(), fontsize="x-small"
        )
        text.set(ha="right", va="center")
    ax.set_yticks(heights, list(map(as_label, bars)), fontsize="small")
    ax.set_ylim(-0.5 - 0.13 * len(bars), len(bars) - 0.4)  # room for the legend below all bars
    longest = max(filter(math.isfinite, values), default=0.0)
    ax.set(xlim=(0, max(0.1, 1.2 * longest)), xlabel=xlabel)
    result = finish_axes(ax, title, loc="lower right", ncols=3, columnspacing=1.0, handlelength=1.5)
    ax.grid(visible=False, axis="y")
    return result


def _draw_interval(
    ax: Axes, height: int, interval: Sequence[float], label: str, marker: str = "none"
) -> None:
    """Draw value, low and high end in the lower part of a bar, where all are known."""
    value, low, high = interval
    if math.isfinite(value + low + high):
        xerr = [[max(0.0, value - low)], [max(0.0, high - value)]]
        ax.errorbar(
            value,
            height - 0.22,
            xerr=xerr,
            fmt=marker,
            color="black",
            markersize=4,
            capsize=2.5,
            label=label,
        )
