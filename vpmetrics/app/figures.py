"""The figures of the report. One line in ``FIGURES`` adds one to every command."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vpmetrics._plot import (
    axes_in_grid,
    axes_or_new,
    draw_calibrated_profile,
    draw_ece_profile,
    draw_local_information,
    draw_quadrants,
    draw_rank_histogram,
    draw_trade_off,
    draw_zoo,
    figure_of,
    legend_beside,
)
from vpmetrics._scores.measures import entropy_of_prior
from vpmetrics._trials.matrices import SimilarityMatrices
from vpmetrics.app.evaluation import PRIORS, Evaluation, Profile, key_of

_WIDE = (7.2, 3.9)  # inches, with a legend beside the axes
_MOST_NAMES, _LONGEST_NAME = 20, 5  # what can still be read along a heat map


class FigureKind(NamedTuple):
    """A figure that can be drawn of some systems, or None where they lack what it shows."""

    file: str
    title: str
    says: str
    draw: Callable[[Sequence[Evaluation]], Figure | None]


class Picture(NamedTuple):
    """A figure, drawn; its width in pixels of CSS."""

    file: str
    title: str
    says: str
    png: bytes
    width: int


def draw_figures(systems: Sequence[Evaluation]) -> list[Picture]:
    """All figures there is something to show in."""
    drawn = ((kind, kind.draw(systems)) for kind in FIGURES)
    return [
        Picture(kind.file, kind.title, kind.says, _png(figure), round(96 * figure.get_figwidth()))
        for kind, figure in drawn
        if figure is not None
    ]


def save(pictures: Sequence[Picture], folder: Path) -> None:
    """Write them as files."""
    for picture in pictures:
        (folder / picture.file).write_bytes(picture.png)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _trade_off(systems: Sequence[Evaluation]) -> Figure | None:
    points = {system.name: (system.scalars["deid"], system.scalars["gvd"]) for system in systems if _has_both(system)}
    if not points:
        return None
    # Unprotected speech is where the metrics begin, and gives a single point its scale.
    figure, ax = draw_trade_off({"original": (0.0, 0.0), **points}, axes_or_new(None, _WIDE))
    legend_beside(ax)
    return figure


def _has_both(system: Evaluation) -> bool:
    values = torch.tensor([system.scalars.get(key, torch.nan) for key in ("deid", "gvd")])
    return bool(values.isfinite().all())


def _by_label(
    systems: Sequence[Evaluation], known: Callable[[Evaluation], Mapping[str, object]]
) -> dict[str, tuple[Evaluation, str]]:
    """The conditions of one system, or the attacked condition of several beside unprotected speech."""
    first = systems[0]
    if len(systems) == 1:
        return {condition or "scores": (first, condition) for condition in known(first)}
    unprotected = {"original": (first, "OO")} if "OO" in known(first) else {}
    return unprotected | {system.name: (system, system.attacked) for system in systems if known(system)}


def _profiles(systems: Sequence[Evaluation]) -> Figure | None:
    ax = axes_or_new(None, _WIDE)
    for label, (system, condition) in _by_label(systems, lambda system: system.profiles).items():
        _draw_profile(system.profiles[condition], ax, label)
    legend_beside(ax)
    return figure_of(ax)


def _draw_profile(profile: Profile, ax: Axes, label: str) -> None:
    d_ece, l_w = (torch.tensor(value) for value in profile.legend)
    if profile.minimum is not None:
        draw_ece_profile(
            entropy_of_prior(PRIORS), profile.minimum, profile.actual, {"d_ece": d_ece, "l_w": l_w}, ax, label
        )


def _calibrated(systems: Sequence[Evaluation]) -> Figure | None:
    systems = [system for system in systems if system.calibrated]
    if not systems:
        return None
    panels = axes_in_grid(len(systems), _WIDE, columns=1)
    for system, ax in zip(systems, panels, strict=True):
        _draw_profile(system.profiles[system.attacked]._replace(actual=None), ax, system.name)
        for kind, profile in system.calibrated.items():
            if profile.actual is not None:
                draw_calibrated_profile(profile.actual, *profile.legend, ax, kind)
        legend_beside(ax)
    return figure_of(panels[0])


def _quadrants(systems: Sequence[Evaluation]) -> Figure | None:
    systems = [system for system in systems if system.matrices is not None]
    if not systems:
        return None
    panels = axes_in_grid(len(systems), size=(4.8, 4.2))
    for system, ax in zip(systems, panels, strict=True):
        if system.matrices is not None:
            draw_quadrants(system.matrices, ax, _names(system))
            ax.set_title(system.name)
    return figure_of(panels[0])


def _names(system: Evaluation) -> tuple[str, ...] | None:
    short = len(system.speakers) <= _MOST_NAMES and max(map(len, system.speakers)) <= _LONGEST_NAME
    return system.speakers if short else None


def _zoo(systems: Sequence[Evaluation]) -> Figure | None:
    """The conditions of one system, or the attacked condition of several, from their matrices."""
    curves = _by_label(systems, lambda system: _known_matrices(system.matrices))
    if not curves:
        return None
    panels = axes_in_grid(len(curves), size=(4.2, 3.5))
    for (label, (system, condition)), ax in zip(curves.items(), panels, strict=True):
        says = label if label == condition else f"{label}, {condition}"
        draw_zoo(_known_matrices(system.matrices)[condition], ax, says, _names(system))
    _share_axes(panels)
    return figure_of(panels[0])


def _share_axes(panels: Sequence[Axes]) -> None:
    """The widest limits for all, so that panels can be compared."""
    horizontal, vertical = ([limits for ax in panels for limits in get(ax)] for get in (Axes.get_xlim, Axes.get_ylim))
    for ax in panels:
        ax.set(xlim=(min(horizontal), max(horizontal)), ylim=(min(vertical), max(vertical)))


def _known_matrices(matrices: SimilarityMatrices | None) -> dict[str, Tensor]:
    if matrices is None:
        return {}
    named = {"OO": matrices.oo, "OP": matrices.op, "PP": matrices.pp}
    return {condition: matrix for condition, matrix in named.items() if not bool(matrix.isnan().all())}


def _ranks(systems: Sequence[Evaluation]) -> Figure | None:
    curves = _by_label(systems, lambda system: system.identified)
    if not curves:
        return None
    panels = axes_in_grid(len(curves), size=(3.6, 3.4))
    for (label, (system, condition)), ax in zip(curves.items(), panels, strict=True):
        known = system.identified[condition]
        values = {key: torch.tensor(system.scalars[key_of(condition, key)]) for key in ("max_d", "mean_d")}
        draw_rank_histogram(known.histogram, known.fit, values, ax, label)
    return figure_of(panels[0])


def _local(systems: Sequence[Evaluation]) -> Figure | None:
    curves = _by_label(systems, lambda system: system.identified)
    if not curves:
        return None
    ax = axes_or_new(None, _WIDE)
    for label, (system, condition) in curves.items():
        known = system.identified[condition]
        values = {key: torch.tensor(system.scalars[key_of(condition, key)]) for key in ("alid", "pdr")}
        draw_local_information(known.bits, len(known.histogram), values, ax, label)
    legend_beside(ax)
    return figure_of(ax)


FIGURES = (
    FigureKind(
        "deid_gvd.png",
        "De-identification and voice distinctiveness",
        "Each system as a point: to the right speakers are hidden better, further up protected voices are told apart "
        "better.",
        _trade_off,
    ),
    FigureKind(
        "ece_profiles.png",
        "ECE profiles",
        "What an attacker does not know after the scores, over all priors. The closer to the black curve, the more "
        "private: D_ECE is the gap, averaged over all priors. Dotted, where drawn: scores taken as "
        "log-likelihood ratios as they stand.",
        _profiles,
    ),
    FigureKind(
        "calibration.png",
        "Calibration learnt on another run",
        "Dashed: what remains unknown to an attacker who calibrated on another run of the same safeguard. Above the "
        "black curve the attacker had better guess.",
        _calibrated,
    ),
    FigureKind(
        "similarity.png",
        "Voice similarity matrices",
        "Speakers by speakers; a bright diagonal between original and protected speech is a speaker recognised, one "
        "within protected speech is a voice of one's own.",
        _quadrants,
    ),
    FigureKind(
        "zoo.png",
        "Zoo plot",
        "Each speaker by how alike own utterances are and how alike those of others. Further right a speaker is "
        "easier to recognise, further up easier to confuse with others. The title says of which similarity matrix: OP "
        "is of original against protected speech. An animal is a speaker in the outer quarter of both.",
        _zoo,
    ),
    FigureKind(
        "ranks.png",
        "Similarity rank disclosure",
        "How often the true speaker is the most similar one, the second, and so on; flat along the dashed line nothing "
        "is disclosed.",
        _ranks,
    ),
    FigureKind(
        "local_information.png",
        "Local information disclosure",
        "Share of trials that disclose more than so many bits about their speaker.",
        _local,
    ),
)
