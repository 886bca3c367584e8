"""The figures a monitor draws of one validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure

from vpmetrics._plot import (
    PROFILE_LOG_ODDS,
    axes_or_new,
    draw_ece_profile,
    draw_path,
    draw_quadrants,
    draw_rank_histogram,
    draw_zoo,
    figure_of,
)
from vpmetrics._scores.measures import entropy_of_prior, least_cross_entropy
from vpmetrics.functional.beta_binomial import fit_beta_binomial
from vpmetrics.suite import PrivacyReport


def figures_of(report: PrivacyReport, history: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """All figures by name; the path over epochs where there is a history."""
    figures = {
        "quadrants": draw_quadrants(report.matrices, None)[0],
        "ece_profile": _ece_profiles(report),
        "zoo": _zoos(report),
        "ranks": _rank_histograms(report),
    }
    if history:
        deid, gvd, epochs = ([row[key] for row in history] for key in ("deid", "gvd", "epoch"))
        figures["path"] = draw_path(deid, gvd, epochs, ax=None)[0]
    return figures


def _ece_profiles(report: PrivacyReport) -> Figure:
    ax = axes_or_new(None)
    for name, condition in report.conditions.items():
        odds = torch.as_tensor(PROFILE_LOG_ODDS, device=condition.matrix.device)
        minimum = least_cross_entropy(condition.scores.counts.ascending, odds)
        draw_ece_profile(entropy_of_prior(odds), minimum, None, condition.scalars, ax, name)
    return figure_of(ax)


def _zoos(report: PrivacyReport) -> Figure:
    figure, axes = _pair()
    for ax, name in zip(axes, ("OP", "PP"), strict=True):
        draw_zoo(report.conditions[name].matrix, ax, name)
    return figure


def _rank_histograms(report: PrivacyReport) -> Figure:
    figure, axes = _pair()
    for ax, name in zip(axes, ("OP", "PP"), strict=True):
        condition = report.conditions[name]
        histogram = condition.identification.histogram
        draw_rank_histogram(histogram, fit_beta_binomial(histogram).probabilities, condition.scalars, ax, name)
    return figure


def _pair() -> tuple[Figure, Any]:
    figure = Figure(figsize=(8.6, 3.8), layout="constrained", dpi=150)
    return figure, figure.subplots(1, 2)
