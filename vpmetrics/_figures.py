"""Which figures a report has: what draws one of a system or several, for a card of a logger or for a page.

A line in ``FIGURES`` adds one everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vpmetrics._checks import unsaid
from vpmetrics._crowds import Rates
from vpmetrics._plot.axes import as_label, axes_in_grid, axes_or_new, axis_of, figure_of, legend_beside
from vpmetrics._plot.crowd import draw_over_utterances, draw_rate_over_people, sizes_for_curve, sizes_of
from vpmetrics._plot.ranks import draw_local_information, draw_rank_histogram
from vpmetrics._plot.scores import (
    PROFILE_LOG_ODDS,
    draw_attacks,
    draw_calibrated_profile,
    draw_ece_profile,
    draw_reliability,
)
from vpmetrics._plot.speakers import draw_speakers
from vpmetrics._plot.systems import draw_path, draw_trade_off
from vpmetrics._plot.voices import draw_quadrants, draw_zoo
from vpmetrics._report import ConditionReport, System, Transfer, report_of_trials, unprotected
from vpmetrics._scalars import ENDS, key_of, scalar
from vpmetrics._scores.measures import actual_cross_entropy, entropy_of_prior
from vpmetrics._trials.matrices import own_and_others
from vpmetrics._trials.scored import ScoredTrials
from vpmetrics.functional.beta_binomial import fit_beta_binomial

Part = TypeVar("Part")

_MOST_NAMES, _LONGEST_NAME = 20, 5  # what can still be read along a heat map


class Layout(NamedTuple):
    """Where figures are shown: how large, how many panels side by side, and with what never changes in a training."""

    size: tuple[float, float]  # inches, of axes by themselves and the legend beside them
    scale: float  # of panels
    columns: int
    shows_original: bool

    def one(self) -> Axes:
        """The axes of a figure that has only these."""
        return axes_in_grid(1, self.size, 1)[0]

    def panels(self, count: int, size: tuple[float, float]) -> list[Axes]:
        """Axes of a figure of several."""
        return axes_in_grid(count, (self.scale * size[0], self.scale * size[1]), self.columns)

    def of_interest(self, shown: list[tuple[Shown, Part]]) -> list[tuple[Shown, Part]]:
        """What a panel is spent on."""
        protected = [pair for pair in shown if pair[0].condition != "OO"]
        return shown if self.shows_original or not protected else protected


# A card of TensorBoard gives a picture some 440 by 210 pixels: small inches, so that letters stay large.
CARD = Layout(size=(5.4, 2.6), scale=0.7, columns=2, shows_original=False)
PAGE = Layout(size=(7.2, 3.8), scale=1.0, columns=3, shows_original=True)


class FigureKind(NamedTuple):
    """A figure that can be drawn of some systems, or None where they lack what it shows."""

    key: str
    title: str
    says: str
    draw: Callable[[Sequence[System], Layout], Figure | None]


class Shown(NamedTuple):
    """A condition of a system, under the name it has in a figure."""

    label: str
    system: System
    condition: str
    known: ConditionReport

    @property
    def title(self) -> str:
        """Label and condition, where the one does not say the other."""
        return self.label if self.label == self.condition else f"{self.label}, {self.condition}"

    def numbers(self, *keys: str) -> dict[str, float]:
        """Scalars of the condition."""
        return {key: self.system.scalar(key, self.condition) for key in keys}


def figures_of(systems: Sequence[System], layout: Layout) -> dict[str, Figure]:
    """All figures there is something to show in, by their keys."""
    drawn = {kind.key: kind.draw(systems, layout) for kind in FIGURES}
    return {key: figure for key, figure in drawn.items() if figure is not None}


def _shown(systems: Sequence[System], part: Callable[[ConditionReport], Part | None]) -> list[tuple[Shown, Part]]:
    """The conditions of one system, or the attacked condition of several beside unprotected speech.

    Each with the part of it that is drawn; those that lack it are left out.
    """
    first = systems[0]
    shown = [Shown(name or "scores", first, name, known) for name, known in first.report.conditions.items()]
    if len(systems) > 1:
        shown = [one._replace(label=unprotected(systems)) for one in shown if one.condition == "OO"]
        for system in systems:
            attacked = system.report.attacked
            shown.append(Shown(system.name, system, attacked, system.report.conditions[attacked]))
    return [(one, found) for one in shown if (found := part(one.known)) is not None]


def _draw_profile(one: Shown, ax: Axes, actual: bool) -> None:
    odds = torch.as_tensor(PROFILE_LOG_ODDS, device=one.known.scores.counts.ascending.targets.device)
    stand = one.known.actual_cross_entropy(odds) if actual and one.known.claims_llr else None
    values = {key: float(one.known.scalars[key]) for key in ("d_ece", "l_w", "tag")}
    least, ends = one.known.cross_entropy(odds), one.known.ends_of_cross_entropy(odds)
    draw_ece_profile(entropy_of_prior(odds), least, stand, values, ax, one.label, ends)


def _profiles(systems: Sequence[System], layout: Layout) -> Figure | None:
    ax = layout.one()
    for one, _ in _shown(systems, lambda known: known):
        _draw_profile(one, ax, actual=True)
    legend_beside(ax)
    return figure_of(ax)


def _calibrated(systems: Sequence[System], layout: Layout) -> Figure | None:
    shown = [(system, transfer) for system in systems if (transfer := system.report.transfer) is not None]
    if not shown:
        return None
    panels = [layout.one()] if len(shown) == 1 else axes_in_grid(len(shown), (7.2, 3.8), 1)
    for (system, transfer), ax in zip(shown, panels, strict=True):
        _draw_transfer(system, transfer, ax)
        ax.set_title(as_label(system.name) if len(shown) > 1 else "")
        legend_beside(ax)
    return figure_of(panels[0])


def _draw_transfer(system: System, transfer: Transfer, ax: Axes) -> None:
    attacked = system.report.attacked
    _draw_profile(Shown("learnt on", system, "", transfer.other), ax, actual=False)
    _draw_profile(Shown("attacked", system, attacked, system.report.conditions[attacked]), ax, actual=False)
    odds = torch.as_tensor(PROFILE_LOG_ODDS, device=transfer.counts.device)
    for kind, llr in transfer.llr.items():
        profile = actual_cross_entropy(llr, transfer.counts, odds)
        c_ece, cllr = (float(transfer.scalars[f"{name}_{kind}"]) for name in ("c_ece", "cllr"))
        draw_calibrated_profile(profile, c_ece, cllr, ax, kind)


def draw_transfer_of_trials(
    preds: Tensor, target: Tensor, fit_preds: Tensor, fit_target: Tensor, ax: Axes | None
) -> tuple[Figure, Axes]:
    """Figure 8 of the 2022 paper: both runs as an oracle knows them, and one calibrated on the other."""
    attacked, fit = ScoredTrials(preds, target), ScoredTrials(fit_preds, fit_target)
    system = System("", report_of_trials({"": attacked}, fit))
    ax = axes_or_new(ax)
    if system.report.transfer is not None:
        _draw_transfer(system, system.report.transfer, ax)
    return figure_of(ax), ax


def _reliability(systems: Sequence[System], layout: Layout) -> Figure | None:
    shown = _shown(systems, lambda known: known.scores if known.claims_llr else None)
    if not shown:
        return None
    ax = layout.one()
    for one, scores in shown:
        draw_reliability(*scores.trials.table(), ax, one.label)
        # Twice as many curves of several systems could not be told apart.
        halves = one.known.calibrated() if one.known.calibrated is not None and len(systems) == 1 else []
        if halves:
            llr, is_target = (torch.cat(column) for column in list(zip(*halves, strict=True))[:2])
            draw_reliability(llr, torch.stack([~is_target, is_target]), ax, f"{one.label}, by other speakers")
        transfer = one.system.report.transfer
        if transfer is not None and one.condition == one.system.report.attacked:
            for kind, llr in transfer.llr.items():
                draw_reliability(llr, transfer.counts, ax, f"{one.label}, {kind}")
    legend_beside(ax)
    return figure_of(ax)


def _trade_off(systems: Sequence[System], layout: Layout) -> Figure | None:
    known = [
        (system.name, system.scalars)
        for system in systems
        if math.isfinite(system.scalar("deid")) and math.isfinite(system.scalar("gvd"))
    ]
    if not known or (len(systems) == 1 and systems[0].history):
        return None  # where there is a path, it ends in the point
    ax = layout.one()
    # Unprotected speech is where the metrics begin, and gives a single point its scale.
    draw_trade_off([(unprotected(systems), {"deid": 0.0, "gvd": 0.0}), *known], ax)
    legend_beside(ax)
    return figure_of(ax)


def _path(systems: Sequence[System], layout: Layout) -> Figure | None:
    systems = [system for system in systems if system.history and {"deid", "gvd"} <= set(system.scalars)]
    if not systems:
        return None
    panels = [layout.one()] if len(systems) == 1 else layout.panels(len(systems), (4.8, 3.4))
    for system, ax in zip(systems, panels, strict=True):
        deid, gvd, epochs = ([row[key] for row in system.history] for key in ("deid", "gvd", "epoch"))
        draw_path(deid, gvd, epochs, ax)
    return figure_of(panels[0])


def _quadrants(systems: Sequence[System], layout: Layout) -> Figure | None:
    shown = [(system, system.report.matrices) for system in systems if system.report.matrices is not None]
    if not shown:
        return None
    panels = layout.panels(len(shown), (4.8, 4.2))
    for (system, matrices), ax in zip(shown, panels, strict=True):
        draw_quadrants(matrices, ax, _names(system), system.name)
    return figure_of(panels[0])


def _zoo(systems: Sequence[System], layout: Layout) -> Figure | None:
    return _zoos(layout.of_interest(_shown(systems, lambda known: known.alike)), layout, "similarity")


def _zoo_of_scores(systems: Sequence[System], layout: Layout) -> Figure | None:
    # Of very many voices no matrix is made, of scores neither.
    averages = _shown(systems, lambda known: known.average_scores if known.matrix is not None else None)
    return _zoos([(one, own_and_others(average())) for one, average in layout.of_interest(averages)], layout, "score")


def _zoos(shown: Sequence[tuple[Shown, tuple[Tensor, Tensor]]], layout: Layout, what: str) -> Figure | None:
    if not shown:
        return None
    panels = layout.panels(len(shown), (4.2, 3.6))
    for (one, (own, others)), ax in zip(shown, panels, strict=True):
        draw_zoo(own, others, ax, one.title, _names(one.system), what)
    _share_axes(panels)
    return figure_of(panels[0])


def _speakers(systems: Sequence[System], layout: Layout) -> Figure | None:
    shown = layout.of_interest(_shown(systems, lambda known: known.speakers))
    if not shown:
        return None
    panels = layout.panels(len(shown), (4.2, 3.6))
    for (one, found), ax in zip(shown, panels, strict=True):
        draw_speakers(found, one.numbers("d_ece")["d_ece"], one.system.name_of, ax, one.title)
    return figure_of(panels[0])


def _attacks(systems: Sequence[System], layout: Layout) -> Figure | None:
    shown = _shown(systems, lambda known: known.strongest)
    if not shown:
        return None
    panels = axes_in_grid(len(shown), (5.2 * layout.scale, 3.8 * layout.scale), min(layout.columns, 2))
    for (one, found), ax in zip(shown, panels, strict=True):
        names, each, chance = one.system.report.attack_names, found.each.tolist(), float(found.chance)
        strongest = one.numbers("d_ece_strongest", *(f"d_ece_strongest{end}" for end in ENDS))
        draw_attacks(names, each, chance, ax, one.title, strongest)
    return figure_of(panels[0])


def _ranks(systems: Sequence[System], layout: Layout) -> Figure | None:
    shown = layout.of_interest(_shown(systems, lambda known: known.identification))
    if not shown:
        return None
    panels = layout.panels(len(shown), (4.2, 3.6))
    for (one, found), ax in zip(shown, panels, strict=True):
        fit = fit_beta_binomial(found.histogram).probabilities
        draw_rank_histogram(found.histogram, fit, one.numbers("max_d", "mean_d"), ax, one.label)
    return figure_of(panels[0])


def _local(systems: Sequence[System], layout: Layout) -> Figure | None:
    shown = _shown(systems, lambda known: known.identification)
    if not shown:
        return None
    ax = layout.one()
    for one, found in shown:
        draw_local_information(found.bits, len(found.histogram), one.numbers("alid", "pdr"), ax, one.label)
    legend_beside(ax)
    return figure_of(ax)


def _rates(known: ConditionReport) -> Rates | None:
    """What is known of a crowd, where there are people to be found."""
    return known.rates if known.rates is not None and bool(known.scalars["gallery"].isfinite()) else None


def _people(systems: Sequence[System], layout: Layout) -> Figure | None:
    shown = _shown(systems, _rates)
    if not shown:
        return None
    ax = layout.one()
    for one, rates in shown:
        sizes = sizes_for_curve(max(100, *sizes_of(one.known.scalars)))
        with unsaid():
            drawn = ((rates(sizes), one.label), (rates.of_strongest(sizes), f"{one.label}, attacked"))
        for values, label in drawn:
            if values and bool(values["gallery"].isfinite()):
                curve = {n: float(values[f"rate_{n}"]) for n in sizes}
                draw_rate_over_people(curve, float(values["gallery"]), ax, label)
    legend_beside(ax)
    return figure_of(ax)


def _utterances(systems: Sequence[System], layout: Layout) -> Figure | None:
    shown = _shown(systems, _rates)
    if not shown or max(rates.longest() for _, rates in shown) < 2:
        return None
    ax, people = layout.one(), min(sizes_of(shown[0][0].known.scalars))
    for one, rates in shown:
        lengths = [2**power for power in range(6) if 2**power <= rates.longest()]
        for values_of, label in ((rates, one.label), (rates.of_strongest, f"{one.label}, attacked")):
            with unsaid():
                found = {length: values_of((people,), length) for length in lengths}
            if curve := _curve(found, f"rate_{people}"):
                draw_over_utterances(curve, 1 / people, ax, label, f"share found among {people}")
    legend_beside(ax)
    return figure_of(ax)


def _bits(systems: Sequence[System], layout: Layout) -> Figure | None:
    shown = [one for one, _ in _shown(systems, _rates) if one.condition not in ("OO", "within")]
    if not shown or max(one.known.rates.longest() for one in shown if one.known.rates) < 2:
        return None
    left, right = layout.panels(2, (4.8, 3.6))
    for one in shown:
        found, most = _bits_over(one), 1.02 * math.log2(max(2.0, float(one.known.scalars["gallery"])))
        for key, label in (("d_ece", one.title), ("d_ece_strongest", f"{one.title}, attacked")):
            if curve := _curve(found, key_of(one.condition, key)):
                draw_over_utterances(curve, math.nan, left, label, axis_of("d_ece"), scalar("d_ece").range[1])
        chance = _curve(found, key_of(one.condition, "mean_d_chance"))
        curve = _curve(found, key_of(one.condition, "mean_d"))
        draw_over_utterances(curve, chance, right, one.title, axis_of("mean_d"), most)
    return figure_of(left)


def _bits_over(one: Shown) -> dict[int, dict[str, Tensor]]:
    """What a condition discloses over conversations as long as most people have."""
    over, rates = one.system.report.bits_over, one.known.rates
    longest = 0 if rates is None else rates.longest()
    return {} if over is None else over([2**power for power in range(6) if 2**power <= longest])


def _curve(found: Mapping[int, Mapping[str, Tensor]], key: str) -> dict[int, float]:
    """One number over the lengths at which it is known."""
    values = {length: float(each[key]) for length, each in found.items() if key in each}
    return {length: value for length, value in values.items() if math.isfinite(value)}


def _names(system: System) -> tuple[str, ...] | None:
    names = system.speakers
    short = 0 < len(names) <= _MOST_NAMES and max(map(len, names)) <= _LONGEST_NAME
    return names if short else None


def _share_axes(panels: Sequence[Axes]) -> None:
    """Limits as wide for all, so that panels can be compared, and wider than any dot."""
    for get, put in ((Axes.get_xlim, Axes.set_xlim), (Axes.get_ylim, Axes.set_ylim)):
        limits = [limit for ax in panels for limit in get(ax)]
        margin = 0.04 * (max(limits) - min(limits))
        for ax in panels:
            put(ax, min(limits) - margin, max(limits) + margin)


FIGURES = (
    FigureKind(
        "deid_gvd",
        "De-identification and voice distinctiveness",
        "Each system as a point: to the right speakers are hidden better from who only compares voices, further up "
        "protected voices are told apart better. Whiskers, where drawn, are intervals.",
        _trade_off,
    ),
    FigureKind(
        "path",
        "Path of the training",
        "De-identification and voice distinctiveness from epoch to epoch; the circle is the last one.",
        _path,
    ),
    FigureKind(
        "attacks",
        "What each attack finds",
        "Expected disclosure to each attacker, fitted on other speakers than it is counted for, in its better "
        "direction. The longest bar is the largest of many noisy numbers; the strongest attack in the tables is chosen "
        "on other speakers, and stands there with its interval where that is known.",
        _attacks,
    ),
    FigureKind(
        "ece_profile",
        "ECE profiles",
        "What an attacker does not know after the scores, over all priors. The closer to the black curve, the more "
        "private: D_ECE is the gap, averaged over all priors, to an attacker who only compares voices. Dotted, where "
        "drawn: scores taken as log-likelihood ratios as they stand. A band is an interval: other speakers would have "
        "given another curve.",
        _profiles,
    ),
    FigureKind(
        "calibration",
        "Calibration learnt on another run",
        "The oracle's profiles of the run that was learnt on and of the one attacked, and what remains unknown to an "
        "attacker who calibrated the second on the first. Above the black curve guessing would do better.",
        _calibrated,
    ),
    FigureKind(
        "reliability",
        "Calibration plot",
        "Share of target trials where scores, taken as log-likelihood ratios, promise a posterior; larger marks are of "
        "more trials. On the dotted line scores mean what they say. Where it is known who speaks, also of the scores "
        "under a linear calibration learnt on other speakers.",
        _reliability,
    ),
    FigureKind(
        "quadrants",
        "Voice similarity matrices",
        "Speakers by speakers; a bright diagonal between original and protected speech is a speaker recognised, one "
        "within protected speech is a voice of one's own.",
        _quadrants,
    ),
    FigureKind(
        "zoo",
        "Zoo plot",
        "Each speaker by how alike own utterances are and how alike those of others. Further right a speaker is "
        "easier to recognise, further up easier to confuse with others. The title says of which similarity matrix: OP "
        "is of original against protected speech. An animal is a speaker in the outer quarter of both.",
        _zoo,
    ),
    FigureKind(
        "zoo_scores",
        "Zoo plot of scores",
        "The same from average scores, before any calibration.",
        _zoo_of_scores,
    ),
    FigureKind(
        "speakers",
        "Who is protected worst",
        "Expected disclosure of each speaker to who only compares voices, calibrated for all together, as the one "
        "looked for and, where that is another side, as the one who is known. The largest of many noisy numbers is too "
        "large; whoever is above the others by far is not protected as they are.",
        _speakers,
    ),
    FigureKind(
        "ranks",
        "Similarity rank disclosure",
        "How often the true speaker is the most similar one, the second, and so on; flat along the dashed line nothing "
        "is disclosed.",
        _ranks,
    ),
    FigureKind(
        "local_information",
        "Local information disclosure",
        "Share of trials that disclose more than so many bits about their speaker.",
        _local,
    ),
    FigureKind(
        "people",
        "In a crowd",
        "How often the speaker of an utterance is the most similar of so many people, by cosine and, where attacks "
        "were tried, after the strongest, which looks among the people of a fold, whom it has not learnt "
        "from. Dotted, it is extrapolated beyond the people there are.",
        _people,
    ),
    FigureKind(
        "utterances",
        "Longer conversations",
        "How often the speaker is found by the mean of several utterances, by cosine and, where attacks were tried, "
        "after the strongest: what grows is hidden by noise that listening for longer takes away.",
        _utterances,
    ),
    FigureKind(
        "bits_over_utterances",
        "Longer conversations, in bits",
        "What the means of several utterances disclose to who compares them, to the strongest attack where any was "
        "tried, and by ranks; dashed, what ranks of as few conversations show by chance.",
        _bits,
    ),
)
