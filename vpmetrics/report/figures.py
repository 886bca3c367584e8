"""The list of figures: what a report shows of one system or several.

They are drawn on cards of a logger or on a page.

To add one, write a function that draws it and an entry of :data:`FIGURES`: page, loggers and tests
follow from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vpmetrics._scores.measures import SCORE_MEASURES, actual_cross_entropy
from vpmetrics._scores.registry import CI_SUFFIXES, utility_direction
from vpmetrics._util.validation import suppress_warnings
from vpmetrics.plotting import identification_plots, score_plots
from vpmetrics.plotting.axes import (
    as_label,
    axes_in_grid,
    axes_or_new,
    figure_of,
    move_legend_beside,
)
from vpmetrics.plotting.speaker_plots import (
    draw_similarity_matrices,
    draw_tested_and_enrolled,
    draw_zoo,
)
from vpmetrics.plotting.system_plots import draw_deid_gvd, draw_utility
from vpmetrics.report.privacy_report import ConditionReport, EvaluatedSystem, choose_original_name
from vpmetrics.report.trial_report import ScoredTrials, report_trials

_MOST_NAMES = 20  # that are legible along a heat map
_LONGEST_NAME = 5  # letters of such a name


class FigureLayout(NamedTuple):
    """How large figures are: for a card of a logger, or for a page.

    ``size``: width and height in inches of axes of full width; ``scale``: factor on the size of
    panels; ``columns``: most panels side by side; ``is_page``: whether every condition is drawn,
    and attacks on means of utterances too.
    """

    size: tuple[float, float]
    scale: float
    columns: int
    is_page: bool

    def make_axes(self, count: int = 1, size: tuple[float, float] | None = None) -> list[Axes]:
        """Return axes on one new figure.

        Panels of a size side by side, or of full width, one below the other.
        """
        # on a card, one panel has the full width
        if size is None or (count == 1 and not self.is_page):
            return axes_in_grid(count, self.size, 1)
        return axes_in_grid(count, (self.scale * size[0], self.scale * size[1]), self.columns)


# TensorBoard scales a picture to 410 by 220 pixels: a figure of few inches has large letters.
CARD = FigureLayout(size=(4.4, 2.4), scale=0.62, columns=2, is_page=False)
# A phone of 390 pixels shrinks five inches to three quarters, and letters are still read.
PAGE = FigureLayout(size=(5.3, 3.5), scale=1.0, columns=3, is_page=True)
_WIDE_PANEL = 5  # inches, with names of attacks: a card has room for one
Draw = Callable[[Sequence[EvaluatedSystem], FigureLayout], Figure | None]


class FigureKind(NamedTuple):
    """A figure of some systems; ``draw`` returns None where they lack what it shows."""

    key: str
    title: str
    description: str
    draw: Draw


def draw_all_figures(systems: Sequence[EvaluatedSystem], layout: FigureLayout) -> dict[str, Figure]:
    """Draw all figures that the systems have data for; return them by key."""
    drawn: dict[str, Figure] = {}
    for figure_kind in FIGURES:
        figure = figure_kind.draw(systems, layout)
        if figure is not None:
            drawn[figure_kind.key] = figure
    return drawn


class _LazyScalars(dict[str, Any]):
    """Scalars of a condition.

    Missing score measures are computed, other missing scalars are NaN.
    """

    def __init__(self, report: ConditionReport) -> None:
        super().__init__(report.scalars)
        self.report = report

    def __missing__(self, key: str) -> Any:
        if key not in SCORE_MEASURES:
            return math.nan
        return SCORE_MEASURES[key](self.report.scores.measure_input)


class ShownCondition:
    """A condition of a system under the label it has in a figure.

    ``is_single``: there is no other system.
    """

    def __init__(
        self,
        label: str,
        system: EvaluatedSystem,
        condition: str,
        report: Any,
        is_single: bool = False,
    ) -> None:
        self.label = label
        self.system = system
        self.condition = condition
        self.is_single = is_single
        self.title = label
        if condition not in ("", label):
            self.title = f"{label}, {condition}"
        # a ConditionReport, with the parts that `has_data` of a figure asks for
        self.report = report
        self.steps = report.scores.counts.ascending
        self.scalars = _LazyScalars(report)


DrawCondition = Callable[[ShownCondition, Axes], object]
HasData = Callable[[ConditionReport], bool]


def _choose_conditions(
    systems: Sequence[EvaluatedSystem], has_data: HasData
) -> list[ShownCondition]:
    """Return the conditions to draw.

    All of one system, or original speech and the attacked condition of several.
    """
    if len(systems) == 1:
        chosen = _conditions_of_one_system(systems[0])
    else:
        chosen = _attacked_conditions(systems)
    return [shown for shown in chosen if has_data(shown.report)]


def _conditions_of_one_system(system: EvaluatedSystem) -> list[ShownCondition]:
    chosen: list[ShownCondition] = []
    for name, report in system.report.conditions.items():
        chosen.append(ShownCondition(name or "scores", system, name, report, is_single=True))
    return chosen


def _attacked_conditions(systems: Sequence[EvaluatedSystem]) -> list[ShownCondition]:
    """Return original speech, if there is any, and the attacked condition of each system."""
    chosen: list[ShownCondition] = []
    of_first_system = systems[0].report.conditions
    if "OO" in of_first_system:
        label = choose_original_name(systems)
        chosen.append(ShownCondition(label, systems[0], "OO", of_first_system["OO"]))
    for system in systems:
        condition = system.report.main_condition
        report = system.report.conditions[condition]
        chosen.append(ShownCondition(system.name, system, condition, report))
    return chosen


def _overlay_conditions(draw: DrawCondition, has_data: HasData = lambda _: True) -> Draw:
    """Return a function that draws all conditions on the same axes."""

    def draw_figure(systems: Sequence[EvaluatedSystem], layout: FigureLayout) -> Figure | None:
        chosen = _choose_conditions(systems, has_data)
        axes = layout.make_axes(min(1, len(chosen)))
        for shown in chosen:
            draw(shown, axes[0])
        return _finish_figure(axes)

    return draw_figure


def _panel_per_condition(
    draw: DrawCondition,
    has_data: HasData = lambda _: True,
    size: tuple[float, float] = (4.2, 3.6),
    shared_axes: Sequence[str] = (),
) -> Draw:
    """Return a function that draws each condition in a panel.

    ``shared_axes``: those with equal limits in all.
    """

    def draw_figure(systems: Sequence[EvaluatedSystem], layout: FigureLayout) -> Figure | None:
        chosen = _choose_conditions(systems, has_data)
        if not layout.is_page:
            chosen = _choose_for_card(chosen, most=2 if size[0] < _WIDE_PANEL else 1)
        axes = layout.make_axes(len(chosen), size)
        if not axes:
            return None
        for shown, ax in zip(chosen, axes, strict=True):
            draw(shown, ax)
        for name in shared_axes:
            _share_limits(axes, name)
        return figure_of(axes[0])

    return draw_figure


def _choose_for_card(chosen: list[ShownCondition], most: int) -> list[ShownCondition]:
    """Return the conditions that a card has room for: OP, and that of protected enrolment."""
    protected = "PP"
    if any(shown.condition == "across" for shown in chosen):
        protected = "across"
    hidden = [shown for shown in chosen if shown.condition in ("OP", protected)]
    return (hidden or chosen)[:most]


def _share_limits(axes: Sequence[Axes], name: str) -> None:
    """Give all panels the same limits on the axis called ``name``."""
    limits: list[float] = []
    for ax in axes:
        limits.extend(getattr(ax, f"get_{name}lim")())
    for ax in axes:
        ax.set(**{f"{name}lim": (min(limits), max(limits))})


def _axes_per_system(
    draw: Callable[[Any, Axes], object],
    has_data: Callable[[EvaluatedSystem], object],
    size: tuple[float, float] | None = None,
) -> Draw:
    """Return a function that draws each system on its own axes.

    Panels of a size, or one below the other.
    """

    def draw_figure(systems: Sequence[EvaluatedSystem], layout: FigureLayout) -> Figure | None:
        chosen = [system for system in systems if has_data(system)]
        axes = layout.make_axes(len(chosen), size)
        for system, ax in zip(chosen, axes, strict=True):
            draw(system, ax)
            title = as_label(system.name) if len(chosen) > 1 else ""
            ax.set_title(title, fontsize="medium")
        if size is None:
            return _finish_figure(axes)
        return figure_of(axes[0]) if axes else None

    return draw_figure


def _finish_figure(axes: Sequence[Axes]) -> Figure | None:
    """Move the legends out of the axes and return the figure; None if there are no axes."""
    for ax in axes:
        move_legend_beside(ax)
    return figure_of(axes[0]) if axes else None


def _draw_deid_gvd_figure(
    systems: Sequence[EvaluatedSystem], layout: FigureLayout
) -> Figure | None:
    points = []
    for system in systems:
        if math.isfinite(system.get_or_nan("deid")) and math.isfinite(system.get_or_nan("gvd")):
            points.append((system.name, system.scalars))
    if not points:
        return None
    (ax,) = layout.make_axes()
    # Original speech gives a single point its scale.
    draw_deid_gvd([(choose_original_name(systems), {"deid": 0, "gvd": 0}), *points], ax)
    return _finish_figure([ax])


def _draw_utility_figure(systems: Sequence[EvaluatedSystem], layout: FigureLayout) -> Figure | None:
    measured = [system for system in systems if math.isfinite(system.get_or_nan("disclosure"))]
    utilities: dict[str, None] = {}
    for system in measured:
        utilities |= dict.fromkeys(system.utility)
    axes = layout.make_axes(len(utilities))
    for name, ax in zip(utilities, axes, strict=True):
        points = []
        for system in measured:
            if name in system.utility:
                points.append((system.name, system.scalars, system.utility[name]))
        draw_utility(points, name, utility_direction(name) == "low", ax)
    return _finish_figure(axes)


def _draw_det_figure(systems: Sequence[EvaluatedSystem], layout: FigureLayout) -> Figure | None:
    chosen = _choose_conditions(systems, lambda _: True)
    if not chosen:
        return None
    det_axes, roc_axes = layout.make_axes(2)
    for shown in chosen:
        score_plots.draw_det(shown.steps, shown.scalars, det_axes, shown.label)
        score_plots.draw_log_roc(shown.steps, shown.scalars, roc_axes, shown.label)
    return _finish_figure([det_axes, roc_axes])


def _draw_attacks(shown: ShownCondition, ax: Axes) -> None:
    strongest = shown.report.strongest
    fused: list[float] = []
    for suffix in ("", *CI_SUFFIXES):
        fused.append(shown.system.get_or_nan(f"d_ece_strongest{suffix}", shown.condition))
    values = {attack.name: attack.d_ece for attack in strongest.attacks}
    score_plots.draw_attacks(values, float(strongest.chance), ax, shown.title, fused)


def _has_learning_curve(report: ConditionReport) -> bool:
    """Return whether attacks were also fitted on fewer speakers."""
    strongest = report.strongest
    if strongest is None or strongest.curve is None:
        return False
    return len(strongest.curve.num_speakers) > 1


def _draw_learning_curve(shown: ShownCondition, ax: Axes) -> None:
    strongest = shown.report.strongest
    curve = strongest.curve
    d_ece = [float(value) for value in curve.d_ece]
    d_ece_by_speakers = dict(zip(curve.num_speakers, d_ece, strict=True))
    score_plots.draw_learning_curve(
        d_ece_by_speakers, float(curve.limit), float(strongest.chance), ax, shown.label
    )


def _draw_ece_profile(shown: ShownCondition, ax: Axes, has_actual: bool = True) -> None:
    odds = torch.as_tensor(score_plots.PROFILE_LOG_ODDS, device=shown.steps.targets.device)
    actual = None
    if has_actual and shown.report.is_llr:
        values, counts = shown.report.scores.trials.values_and_counts()
        actual = actual_cross_entropy(values, counts, odds)
    minimum = shown.report.minimum_cross_entropy(odds)
    interval = shown.report.cross_entropy_interval(odds)
    score_plots.draw_ece_profile(minimum, actual, shown.scalars, ax, shown.label, interval)


def _draw_calibrated_profiles(system: EvaluatedSystem, ax: Axes) -> None:
    """Draw ECE profiles of two runs.

    The one that calibrations are learnt on, and the attacked one under each of them.
    """
    transfer: Any = system.report.transfer
    runs = {
        "learnt on": transfer.other,
        "attacked": system.report.conditions[system.report.main_condition],
    }
    for label, run in runs.items():
        _draw_ece_profile(ShownCondition(label, system, "", run), ax, has_actual=False)
    odds = torch.as_tensor(score_plots.PROFILE_LOG_ODDS, device=transfer.counts.device)
    for calibration, llr in transfer.llr.items():
        profile = actual_cross_entropy(llr, transfer.counts, odds)
        distortion = float(transfer.scalars[f"c_ece_{calibration}"])
        cllr = float(transfer.scalars[f"cllr_{calibration}"])
        score_plots.draw_attacker_profile(profile, distortion, cllr, ax, calibration)


def draw_calibration_transfer(
    preds: Tensor, target: Tensor, fit_preds: Tensor, fit_target: Tensor, ax: Axes | None
) -> tuple[Figure, Axes]:
    """Draw figure 8 of the 2022 paper.

    Both runs with the oracle calibration, and one calibrated on the other.
    """
    report = report_trials({"": ScoredTrials(preds, target)}, ScoredTrials(fit_preds, fit_target))
    ax = axes_or_new(ax)
    _draw_calibrated_profiles(EvaluatedSystem("", report), ax)
    return figure_of(ax), ax


def _draw_reliability(shown: ShownCondition, ax: Axes) -> None:
    values, counts = shown.report.scores.trials.values_and_counts()
    score_plots.draw_share_by_posterior(values, counts, ax, shown.label)
    # Several systems would have too many curves.
    halves = None
    if shown.is_single and shown.report.calibrated is not None:
        halves = shown.report.calibrated()
    if halves:
        llr = torch.cat([half.scores for half in halves])
        is_target = torch.cat([half.is_target for half in halves])
        counts_by_class = torch.stack([~is_target, is_target])
        score_plots.draw_share_by_posterior(llr, counts_by_class, ax, f"{shown.label}, calibrated")
    transfer = shown.system.report.transfer
    if transfer is not None and shown.condition == shown.system.report.main_condition:
        for calibration, llr in transfer.llr.items():
            label = f"{shown.label}, {calibration}"
            score_plots.draw_share_by_posterior(llr, transfer.counts, ax, label)


def _legible_speaker_names(system: EvaluatedSystem) -> tuple[str, ...] | None:
    """Return the names of the speakers.

    Return None where they are too many or too long to be read in a figure.
    """
    names = system.speakers
    if not 0 < len(names) <= _MOST_NAMES or max(map(len, names)) > _LONGEST_NAME:
        return None
    return names


def _has_gallery(report: ConditionReport, min_utterances: int = 1) -> bool:
    """Return whether there is a gallery.

    Its speakers have at least this many utterances in the median.
    """
    population = report.population
    if population is None or not bool(report.scalars["gallery"].isfinite()):
        return False
    return population.median_num_test_utterances() >= min_utterances


_has_conversations = partial(_has_gallery, min_utterances=2)


def _draw_population_rates(shown: ShownCondition, ax: Axes) -> None:
    population = shown.report.population
    largest = max(100, *identification_plots.find_population_sizes(shown.report.scalars))
    sizes = identification_plots.spread_population_sizes(largest)
    with suppress_warnings():
        rates = {
            shown.label: population(sizes),
            f"{shown.label}, attacked": population.after_strongest_attack(sizes),
        }
    for label, values in rates.items():
        if values and bool(values["gallery"].isfinite()):
            curve = {size: float(values[f"rate_{size}"]) for size in sizes}
            identification_plots.draw_population_rate(curve, float(values["gallery"]), ax, label)


def _draw_conversation_lengths(shown: ShownCondition, ax: Axes) -> None:
    population = shown.report.population
    size = min(identification_plots.find_population_sizes(shown.report.scalars))
    lengths = _doubling_conversation_lengths(shown)
    searches = {
        shown.label: population,
        f"{shown.label}, attacked": population.after_strongest_attack,
    }
    for label, search in searches.items():
        with suppress_warnings():
            values = {length: search((size,), length) for length in lengths}
        curve = _curve_of_key(values, f"rate_{size}")
        if curve:
            name = f"re-identification rate\namong {size} people"
            identification_plots.draw_over_conversation_lengths(curve, 1 / size, ax, label, name)


def _doubling_conversation_lengths(shown: ShownCondition) -> list[int]:
    """Return 1, 2, 4, … up to the median number of test utterances of a speaker, at most 32."""
    most = shown.report.population.median_num_test_utterances()
    return [2**power for power in range(6) if 2**power <= most]


def _curve_of_key(values: Mapping[int, Mapping[str, Tensor]], key: str) -> dict[int, float]:
    """Return one number over the lengths at which it is known."""
    curve: dict[int, float] = {}
    for length, rates in values.items():
        rate = float(rates.get(key, math.nan))
        if math.isfinite(rate):
            curve[length] = rate
    return curve


FIGURES = (
    FigureKind(
        "deid_gvd",
        "De-identification and voice distinctiveness",
        "One point per system. Further right: original and protected voices of a speaker are harder"
        " to match by cosine. Further up: protected voices are more distinct. Whiskers are"
        " confidence intervals.",
        _draw_deid_gvd_figure,
    ),
    FigureKind(
        "utility",
        "Privacy and utility",
        "One point per system. Further left: it discloses less to the strongest attacker tried. No"
        " system is better than those on the line in both disclosure and utility. Whiskers are"
        " confidence intervals.",
        _draw_utility_figure,
    ),
    FigureKind(
        "attacks",
        "Disclosure to each attack",
        "Expected disclosure to each attack, in either direction, fitted on other speakers than it"
        " is tried on. On top the fused attacker, who weighs them all by weights fitted on others."
        " The longest of the other bars is the largest of many noisy numbers.",
        _panel_per_condition(
            _draw_attacks, lambda report: report.strongest is not None, (5.2, 3.8)
        ),
    ),
    FigureKind(
        "learning_curve",
        "What more speakers would teach the attacker",
        "Expected disclosure to the fused attacker, fitted on a quarter, half and all of the other"
        " speakers, on the same trials. Where the curve still rises, an attacker who knows more"
        " speakers learns more: dotted, the estimate for very many.",
        _overlay_conditions(_draw_learning_curve, _has_learning_curve),
    ),
    FigureKind(
        "attributes",
        "Disclosure of attributes",
        "What protected speech discloses about attributes such as sex, to a classifier fitted on"
        " other speakers. Dashed: chance level. Diamonds: original speech.",
        _axes_per_system(
            lambda system, ax: score_plots.draw_attribute_bits(system.attributes, ax),
            lambda system: system.attributes,
            (5.2, 3.8),
        ),
    ),
    FigureKind(
        "score_histogram",
        "Distribution of scores",
        "Densities of the scores of target trials (same speaker) and non-target trials (other"
        " speakers). The more they overlap, the more private. At the dotted threshold misses are as"
        " frequent as false alarms.",
        _panel_per_condition(
            lambda shown, ax: score_plots.draw_score_histogram(
                shown.report.scores.measure_input, shown.scalars, ax, shown.title
            )
        ),
    ),
    FigureKind(
        "det",
        "DET curve",
        "First: miss rate over false-alarm rate for all thresholds, on probit axes. The marker is"
        " the raw equal error rate (EER). Second: share of target trials found (TPR) over the share"
        " of non-target trials mistaken for them (FPR), on logarithmic axes. Markers: FPR of 1 %"
        " and 0.1 %, what an attacker finds who must rarely be wrong. The closer to the dashed line"
        " of chance, the more private.",
        _draw_det_figure,
    ),
    FigureKind(
        "ece_profile",
        "ECE profiles",
        "Empirical cross-entropy: the uncertainty of an attacker who sees the scores, over all"
        " priors. The closer to the black curve, the more private; D_ECE is the mean gap. Dotted:"
        " scores taken as log-likelihood ratios as they are. Bands are confidence intervals.",
        _overlay_conditions(_draw_ece_profile),
    ),
    FigureKind(
        "calibration",
        "Calibration learnt on another run",
        "ECE profiles of the run that the attacker learns on and of the attacked run, both with the"
        " oracle calibration, and of the attacked run with the calibration learnt on the other."
        " Above the black curve guessing is better.",
        _axes_per_system(
            _draw_calibrated_profiles, lambda system: system.report.transfer is not None
        ),
    ),
    FigureKind(
        "reliability",
        "Calibration plot",
        "Share of target trials over the posterior that the scores give as log-likelihood ratios."
        " Larger markers: more trials. On the dotted line the scores are calibrated. Where speakers"
        " are known, also after a linear calibration learnt on other speakers.",
        _overlay_conditions(_draw_reliability, lambda report: report.is_llr),
    ),
    FigureKind(
        "quadrants",
        "Voice similarity matrices",
        "Similarity of all pairs of speakers. A bright diagonal between original and protected"
        " speech (OP): speakers are recognised. A bright diagonal within protected speech (PP):"
        " each speaker keeps a distinct voice.",
        _axes_per_system(
            lambda system, ax: draw_similarity_matrices(
                system.report.matrices, ax, _legible_speaker_names(system)
            ),
            lambda system: system.report.matrices is not None,
            (4.8, 4.2),
        ),
    ),
    FigureKind(
        "zoo",
        "Zoo plot",
        "One point per speaker: mean similarity of own trials and of trials with others. Further"
        " right: easier to recognise. Further up: easier to confuse with others. The title names"
        " the condition. An animal is a speaker in the outer quarter of both.",
        _panel_per_condition(
            lambda shown, ax: draw_zoo(
                shown.report.similarity.within_speaker,
                shown.report.similarity.between_speakers,
                ax,
                shown.title,
                _legible_speaker_names(shown.system),
            ),
            lambda report: report.similarity is not None,
            shared_axes="xy",
        ),
    ),
    FigureKind(
        "speakers",
        "Disclosure of each speaker",
        "Expected disclosure of each speaker by cosine, with one calibration for all: as the tested"
        " speaker and as the enrolled one. The largest of many noisy numbers is too large; a"
        " speaker far above the others is protected worse.",
        _panel_per_condition(
            lambda shown, ax: draw_tested_and_enrolled(
                shown.report.speakers,
                shown.scalars["d_ece"],
                shown.system.speaker_name,
                ax,
                shown.title,
            ),
            lambda report: report.speakers is not None,
        ),
    ),
    FigureKind(
        "ranks",
        "Similarity rank disclosure",
        "How often the true speaker is the most similar one, the second, and so on. On the dashed"
        " line nothing is disclosed.",
        _panel_per_condition(
            lambda shown, ax: identification_plots.draw_rank_histogram(
                shown.report.identification.histogram, shown.scalars, ax, shown.title
            ),
            lambda report: report.identification is not None,
        ),
    ),
    FigureKind(
        "people",
        "Re-identification in a population",
        "How often the speaker of an utterance is the most similar of N people: by cosine and,"
        " where attacks were tried, after the strongest attack, which searches among speakers it"
        " was not fitted on. Dotted: extrapolated beyond the gallery.",
        _overlay_conditions(_draw_population_rates, _has_gallery),
    ),
    FigureKind(
        "utterances",
        "Re-identification from several utterances",
        "How often the speaker is found by the mean of several utterances: by cosine and, where"
        " attacks were tried, after the strongest attack. A rising curve: protection by noise,"
        " which averaging removes.",
        _overlay_conditions(_draw_conversation_lengths, _has_conversations),
    ),
)
