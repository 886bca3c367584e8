"""The report of a system: its conditions, the numbers that compare them, checks and headline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._identification.identification import Identification
from vpmetrics._identification.population import PopulationRates
from vpmetrics._scores.condition_scores import ConditionScores
from vpmetrics._scores.jackknife import (
    Jackknife,
    JackknifeGroups,
    ReplicateCellCounts,
    add_intervals,
    profile_interval,
)
from vpmetrics._scores.measures import minimum_cross_entropy
from vpmetrics._scores.registry import SPEAKER, hidden_conditions, scalar_key, scalar_keys
from vpmetrics._scores.speaker_disclosure import SpeakerDisclosure
from vpmetrics._scores.speaker_similarity import (
    SimilarityMatrices,
    SimilaritySummary,
    dominance_ratio,
)
from vpmetrics._scores.worst_speaker import WorstSpeaker
from vpmetrics._util.dtypes import read_numbers, widen
from vpmetrics._util.validation import suppress_warnings
from vpmetrics._utterances.conditions import WITHOUT_SESSIONS
from vpmetrics._utterances.utterances import EvaluationData
from vpmetrics.functional.similarity import normalised_relatives
from vpmetrics.report.checks import Check, check_report
from vpmetrics.report.headline import Headline, Risk
from vpmetrics.report.verdict import LARGEST_KEYS, disclosure_keys, largest_key, make_headline

if TYPE_CHECKING:
    from vpmetrics.attacks.fusion import FusedAttacker
    from vpmetrics.attacks.results import FusedResult, ReportedAttack
    from vpmetrics.report.trial_report import ScoredTrials


@dataclass(frozen=True, eq=False)
class ConditionReport:
    """One condition: its scalars, and the data of its figures; None where nothing needed them.

    ``is_llr``: given scores may be log-likelihood ratios, cosines are none. ``calibrated()``: given
    scores of each half of the speakers, calibrated on the other half. ``num_tests``: test
    utterances, 0 where trials are given.
    """

    scalars: dict[str, Tensor]
    scores: ConditionScores
    matrix: Tensor | None = None
    similarity: SimilaritySummary | None = None
    identification: Identification | None = None
    is_llr: bool = False
    strongest: FusedResult | None = None
    population: PopulationRates | None = None
    speakers: SpeakerDisclosure | None = None
    jackknife: Jackknife | None = None
    counts: ReplicateCellCounts | None = None
    confidence: float | None = None
    calibrated: Callable[[], list[ScoredTrials]] | None = None
    num_tests: int = 0

    @property
    def num_trials(self) -> tuple[int, int]:
        """Target and non-target trials."""
        nontargets, targets = self.scores.trials.class_sizes.tolist()
        return int(targets), int(nontargets)

    def minimum_cross_entropy(self, prior_log_odds: Tensor) -> Tensor:
        """Return the empirical cross-entropy of the oracle calibration at each prior."""
        return minimum_cross_entropy(self.scores.counts.ascending, prior_log_odds)

    def cross_entropy_interval(self, prior_log_odds: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return both ends of the interval of :meth:`minimum_cross_entropy` at each prior."""
        if self.counts is None or self.confidence is None:
            return None
        profile = self.minimum_cross_entropy(prior_log_odds)
        return profile_interval(self.counts, profile, prior_log_odds, self.confidence)


class TransferredCalibration(NamedTuple):
    """Scores calibrated on those of another run.

    ``other``: the report of that run; ``llr``: the ratios by kind of calibration.
    """

    other: ConditionReport
    llr: dict[str, Tensor]
    counts: Tensor  # (2, P), 1 for non-targets in the first row and for targets in the second
    scalars: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class PrivacyReport:
    """All scalars by key, the conditions they come from, checks of the evaluation and the headline.

    ``speakers`` ``(S,)``: labels, ascending; ``speaker_names``: their names where they were given
    as strings. ``encoders``: the report of each alone, where there are several; ``groups``: that of
    each group. ``attacks``: those that were fused, with what each finds by itself and its share.
    ``encoder``: its name; ``is_encoder_adapted``: whether it was trained on protected speech.
    ``risks``: what the verdict follows from; ``shorter_risks``: those of shorter conversations,
    where the data cannot tell of longer ones.
    """

    scalars: dict[str, Tensor]
    conditions: dict[str, ConditionReport]
    matrices: SimilarityMatrices | None = None
    transfer: TransferredCalibration | None = None
    attacks: tuple[ReportedAttack, ...] = ()
    jackknife: Jackknife | None = None
    groups: Mapping[int | str, PrivacyReport] = field(default_factory=dict)
    encoders: Mapping[str, PrivacyReport] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    headline: Headline | None = None
    speakers: Tensor | None = None
    speaker_names: Mapping[int, str] = field(default_factory=dict)
    encoder: str = ""
    is_encoder_adapted: bool = False
    worst_speaker: WorstSpeaker | None = None
    risks: tuple[Risk, ...] = ()
    shorter_risks: tuple[Risk, ...] = ()

    @property
    def main_condition(self) -> str:
        """The condition to show first: OP, or the first one where there is no OP."""
        if "OP" in self.conditions:
            return "OP"
        return next(iter(self.conditions))

    def speaker_name(self, place: float) -> str:
        """Return the name of the speaker at a place among all, ascending.

        The label where names are unknown.
        """
        if self.speakers is None or not 0 <= place < len(self.speakers):
            return SPEAKER.show(place)
        label = int(self.speakers[int(place)])
        return self.speaker_names.get(label, SPEAKER.show(label))

    def save(self, folder: Any, name: str = "system") -> None:
        """Write the page, ``results.json``, tables and figures into a folder.

        Args:
            folder: A new folder, or one that was written before.
            name: Name of the system.
        """
        from vpmetrics.report.outputs import save_systems

        save_systems([EvaluatedSystem(name, self)], folder, name)

    def __str__(self) -> str:
        """Return a summary of some lines: verdict, checks and headline numbers."""
        from vpmetrics.report.summary import summary_lines

        return "\n".join(summary_lines(EvaluatedSystem("", self)))

    def _repr_html_(self) -> str:
        """Return the text of ``str(report)`` as HTML, for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"


@dataclass(frozen=True, eq=False)
class EvaluatedSystem:
    """A report with the name of its system, and what is shown with it.

    ``speakers``: names of the speakers, in the order of their labels. ``groups``: reports of parts
    of the trials, by name; ``weights``: their weights in an average.
    ``no_attacks``: why no attack was tried. ``utility``: values such as a word error rate, by name.
    ``attributes``: disclosure of each attribute of speakers. ``dataset``: the data set of a
    challenge. ``challenge_condition_names``: its name of each condition. ``part_of``: name of the
    system that combines this one with those of other encoders.
    """

    name: str
    report: PrivacyReport
    speakers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    groups: Mapping[str, EvaluatedSystem] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    utterances: int = 0
    no_attacks: str = ""
    utility: Mapping[str, float] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    dataset: str = ""
    challenge_condition_names: Mapping[str, str] = field(default_factory=dict)
    part_of: str = ""

    @cached_property
    def scalars(self) -> dict[str, float]:
        """All scalars of the report, in one transfer."""
        return read_numbers(self.report.scalars)

    def get_or_nan(self, key: str, condition: str = "") -> float:
        """Return a scalar of a condition, or of the whole system if none is named.

        NaN where it is missing.
        """
        return self.scalars.get(scalar_key(condition, key), math.nan)

    def speaker_name(self, place: float) -> str:
        """Return the name of the speaker at a place among all, ascending."""
        if 0 <= place < len(self.speakers):
            return self.speakers[int(place)]
        return self.report.speaker_name(place)


def choose_original_name(systems: Sequence[EvaluatedSystem]) -> str:
    """Return a name for original speech that no system has."""
    if all(system.name != "original" for system in systems):
        return "original"
    return "original speech"


def add_checks_and_headline(
    report: PrivacyReport, data: EvaluationData | None = None
) -> PrivacyReport:
    """Return the report with its checks and headline."""
    report = replace(report, checks=tuple(check_report(report, data)))
    return replace(report, headline=make_headline(report))


def join_conditions(
    conditions: dict[str, ConditionReport],
    labels: Tensor,
    dtype: torch.dtype | None = None,
    sizes: Sequence[int] = (),
    intervals: float | None = None,
    attacks: FusedAttacker | None = None,
    of_system: Mapping[str, Tensor] | None = None,
) -> PrivacyReport:
    """Return one report of all conditions, with the numbers that compare them.

    ``of_system``: further numbers of the whole system. Numbers have the order of the registry.
    """
    scalars: dict[str, Tensor] = {}
    for name, condition in conditions.items():
        for key, value in condition.scalars.items():
            scalars[scalar_key(name, key)] = value
    scalars |= _compare_conditions(scalars)
    scalars |= _largest_of_conditions(conditions, scalars)
    scalars |= of_system or {}
    if dtype is not None:
        # Together: one operation for many small numbers.
        if scalars:
            values = torch.stack(list(scalars.values())).to(dtype).unbind()
        else:
            values = ()
        scalars = dict(zip(scalars, values, strict=True))
    order = scalar_keys(("", *conditions), has_attacks=True, has_sessions=True, sizes=sizes)
    scalars = {key: scalars[key] for key in order if key in scalars}
    jackknife = _join_jackknives(conditions, scalars)
    if intervals is not None:
        scalars = add_intervals(scalars, jackknife, intervals)
    reported_attacks: tuple[ReportedAttack, ...] = ()
    if attacks is not None:
        reported_attacks = _join_attacks(attacks, conditions)
    return PrivacyReport(
        scalars,
        conditions,
        _join_matrices(conditions, labels),
        attacks=reported_attacks,
        jackknife=jackknife,
        speakers=labels.unique(),
    )


def _join_matrices(
    conditions: Mapping[str, ConditionReport], labels: Tensor
) -> SimilarityMatrices | None:
    """Return the similarity matrices, NaN where a condition has none; None where no one has any."""
    matrices: dict[str, Tensor] = {}
    for name, condition in conditions.items():
        if condition.matrix is not None:
            matrices[name] = condition.matrix
    if not matrices:
        return None
    undefined = torch.full_like(next(iter(matrices.values())), torch.nan)
    return SimilarityMatrices(
        matrices.get("OO", undefined),
        matrices.get("OP", undefined),
        matrices.get("PP", undefined),
        labels,
    )


def _join_attacks(
    attacks: FusedAttacker, conditions: Mapping[str, ConditionReport]
) -> tuple[ReportedAttack, ...]:
    """Return all attacks, with what each finds in every condition."""
    results: dict[str, FusedResult] = {}
    for name, condition in conditions.items():
        if condition.strongest is not None:
            results[name] = condition.strongest
    return attacks.report_attacks(results)


def _compare_conditions(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the numbers that compare conditions, of scalars ``()`` or replicates ``(G,)``."""
    oo = values.get("oo_d_diag")
    op = values.get("op_d_diag")
    pp = values.get("pp_d_diag")
    compared = {}
    if oo is not None and op is not None:
        compared["deid"] = 1 - dominance_ratio(op, oo)
    if oo is not None and pp is not None:
        compared["gvd"] = 10 * dominance_ratio(pp, oo).log10()
    if {scalar_key(name, "min_cllr") for name in WITHOUT_SESSIONS} <= set(values):
        compared |= normalised_relatives(values)
    return compared


def _largest_of_conditions(
    conditions: Mapping[str, ConditionReport], scalars: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the numbers of the headline that are the largest of some conditions.

    They are the conditions in which speakers should be hidden.
    """
    values = {}
    keys = disclosure_keys(conditions, scalars)
    if keys:
        values["disclosure"] = torch.stack([widen(scalars[key]) for key in keys]).amax()
    elif hidden_conditions(conditions):
        values["disclosure"] = torch.full_like(
            widen(next(iter(scalars.values())).detach()), torch.nan
        )
    for name, key in LARGEST_KEYS.items():
        keys = [scalar_key(condition, key) for condition in hidden_conditions(conditions)]
        keys = [computed_key for computed_key in keys if computed_key in scalars]
        largest = largest_key(conditions, scalars, key)
        if largest is not None:
            values[name] = widen(scalars[largest])
        elif keys:
            values[name] = torch.full_like(widen(scalars[keys[0]]), torch.nan)
    return values


def _join_jackknives(
    conditions: Mapping[str, ConditionReport], scalars: Mapping[str, Tensor]
) -> Jackknife | None:
    """Return the jackknife of all numbers of a system, also of those that compare conditions."""
    jackknife = _join_jackknives_by_condition(conditions)
    if jackknife is None:
        return None
    changes = jackknife.changes
    bias = jackknife.bias
    replicates: dict[str, Tensor] = {}
    for key, change in changes.items():
        if key in scalars:
            replicates[key] = widen(scalars[key]) + change
    with suppress_warnings():
        compared = _compare_conditions(replicates)
    for key, value in compared.items():
        if key in scalars:
            changes[key] = value - scalars[key]
    keys = [key for key in disclosure_keys(conditions, scalars) if key in changes]
    if keys:
        largest = max(keys, key=lambda key: scalars[key].item())
        changes["disclosure"] = changes[largest]
        if largest in bias:
            bias["disclosure"] = bias[largest]
    for name, key in LARGEST_KEYS.items():
        largest_of_name = largest_key(conditions, scalars, key)
        if largest_of_name is not None and largest_of_name in changes:
            changes[name] = changes[largest_of_name]
    return jackknife


def _join_jackknives_by_condition(conditions: Mapping[str, ConditionReport]) -> Jackknife | None:
    """Return the jackknife of the numbers of all conditions, by key; None where no one has any."""
    groups: JackknifeGroups | None = None
    changes: dict[str, Tensor] = {}
    bias: dict[str, Tensor] = {}
    gallery: dict[str, int] = {}
    for name, condition in conditions.items():
        jackknife = condition.jackknife
        if jackknife is None:
            continue
        if groups is None:
            groups = jackknife.groups
        for key, change in jackknife.changes.items():
            changes[scalar_key(name, key)] = change
        for key, bias_of_key in jackknife.bias.items():
            bias[scalar_key(name, key)] = bias_of_key
        for key, gallery_size in jackknife.gallery.items():
            gallery[scalar_key(name, key)] = gallery_size
    if groups is None:
        return None
    return Jackknife(changes, bias, groups, gallery)
