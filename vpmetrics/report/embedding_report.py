"""The report of embeddings: each condition is scored once, and only the requested numbers are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from vpmetrics._identification.population import ConversationProtocol, PopulationRates, average_utterances
from vpmetrics._identification.singling_out import singling_out_rates
from vpmetrics._scores.condition_scores import ConditionScores, collect_pair_scores
from vpmetrics._scores.jackknife import (
    CountingCells,
    Jackknife,
    ReplicateCellCounts,
    count_replicates,
    group_speakers,
    join_jackknives,
    make_jackknife,
    replicate_diagonal_dominance,
)
from vpmetrics._scores.measures import SCORE_MEASURES, expected_disclosure
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.scorers import Scoring, resolve_scoring
from vpmetrics._scores.speaker_disclosure import (
    SelfCalibratedDisclosure,
    SpeakerDisclosure,
    average_bits_by_speaker,
    compute_self_calibrated_disclosure,
    compute_speaker_disclosure,
    count_targets_per_permutation,
    linkability_chance_level,
    speaker_scalars,
)
from vpmetrics._scores.speaker_similarity import SimilaritySummary, mean_score_matrix, summarise_similarity
from vpmetrics._util.dtypes import result_dtype
from vpmetrics._util.validation import suppress_warnings, warn_if
from vpmetrics._utterances.conditions import CONDITIONS, WITHOUT_SESSIONS, Condition
from vpmetrics._utterances.utterances import EvaluationData
from vpmetrics.report.identification_scalars import IdentificationNumbers, identify_all_groups
from vpmetrics.report.privacy_report import ConditionReport, PrivacyReport, join_conditions
from vpmetrics.report.trial_report import ScoredTrials, calibrate_across_session_halves, mean_c_ece

if TYPE_CHECKING:
    from vpmetrics.attacks.cross_fitting import CrossFittedAttacks, StrongestResult

_SPEAKER_CELLS = 1 << 8  # of the score axis that trials of single speakers are counted in
_COARSE_BINS = 0.01  # bits of D_ECE; a larger error by binning is warned of
_ScalarsAndJackknife = tuple[dict[str, Tensor], Jackknife | None]  # scalars of some families, and their jackknife


class ReportSettings(NamedTuple):
    """How embeddings are compared and what is computed from their scores, see :class:`vpmetrics.VoicePrivacy`.

    ``families``: pairs of a condition and a family of numbers, ``measures``: score measures; None asks for all.
    """

    similarity: str = "geometric"
    scoring: Scoring = "cosine"
    slope: float | None = None
    rank_model: str = "empirical"
    bandwidth: float | None = None
    enrolment: Literal["utterance", "speaker"] | None = None
    sizes: tuple[int, ...] = ()
    families: frozenset[tuple[str, str]] | None = None
    intervals: float | None = None
    measures: frozenset[str] | None = None

    def needs(self, condition: str, *families: str) -> bool:
        """Return whether a condition is needed; with ``families`` whether one of these is needed for it."""
        return self.families is None or any(
            name == condition and (not families or family in families) for name, family in self.families
        )


class _ConditionEvaluation:
    """One condition of embeddings. Properties that several families share are computed once, on first use."""

    def __init__(
        self, data: EvaluationData, condition: Condition, settings: ReportSettings, attacks: CrossFittedAttacks | None
    ) -> None:
        self.data, self.condition, self.settings = data, condition, settings
        is_attacked = condition.name != "OO" and self.needs("attack", "attacked_population")
        self.attacks = attacks if is_attacked else None
        self.groups = None if settings.intervals is None else group_speakers(data)

    def needs(self, *families: str) -> bool:
        """Return whether any number of these families is needed."""
        return self.settings.needs(self.condition.name, *families)

    def make_jackknife(self, replicates: dict[str, Tensor] | None, num_speakers: int | None = None) -> Jackknife | None:
        """Return the jackknife of replicates ``(1 + G,)`` by key; None if no intervals are requested."""
        if self.groups is None or replicates is None:
            return None
        return make_jackknife(replicates, self.groups, num_speakers)

    @cached_property
    def pairs(self) -> PairBlocks:
        return _form_all_pairs(self.data, self.condition, self.settings)

    @cached_property
    def scores(self) -> ConditionScores:
        scores = collect_pair_scores(self.pairs, self.settings.bandwidth)
        if scores.worst_counts is not None:
            # The order of scores within a bin is lost. Ties give the lowest possible D_ECE, separation the highest.
            most, least = (expected_disclosure(each.ascending) for each in (scores.worst_counts(), scores.counts))
            text = (
                f"Scores of {self.condition.name} share bins that are too wide: its D_ECE may be off by {{:.3f}} bit. "
                "Measure fewer utterances, or scale what is compared."
            )
            warn_if(most - least, lambda bound: text.format(bound) if bound > _COARSE_BINS else None)
        return scores

    @cached_property
    def similarity(self) -> tuple[SimilaritySummary, Tensor | None]:
        return summarise_similarity(self.pairs, self.scores, self.settings.similarity)

    @cached_property
    def replicate_counts(self) -> ReplicateCellCounts | None:
        if self.groups is None or not self.scores.is_defined:
            return None
        summary, matrix = self.similarity if self.needs("matrix") else (None, None)
        return count_replicates(
            self.pairs, self.scores, self.groups, self.data.speakers, summary, matrix, self.settings.similarity
        )

    @cached_property
    def permutation_cells(self) -> CountingCells:
        return CountingCells(self.scores, max_cells=_SPEAKER_CELLS)

    @cached_property
    def permuted_counts_by_speaker(self) -> Tensor:
        return count_targets_per_permutation(self.pairs, self.permutation_cells)

    @cached_property
    def speakers(self) -> SpeakerDisclosure:
        return compute_speaker_disclosure(self.pairs, self.scores, self.data.speakers)

    @cached_property
    def identification(self) -> IdentificationNumbers:
        settings, has_bits = self.settings, self.needs("local", "speaker")
        return identify_all_groups(
            self.data, self.condition, settings.scoring, settings.slope, settings.rank_model, settings.bandwidth,
            self.groups, has_bits,
        )  # fmt: skip

    @cached_property
    def strongest(self) -> StrongestResult | None:
        if self.attacks is None:
            return None
        replicates = None if self.replicate_counts is None else self.replicate_counts.measure_input.counts
        return self.attacks.strongest(self.condition, self.groups, self.scores.counts, replicates)

    @cached_property
    def population(self) -> PopulationRates | None:
        settings = self.settings
        if not settings.sizes:
            return None
        protocol = ConversationProtocol(self.condition, settings.scoring)
        return PopulationRates(self.data, protocol, settings.bandwidth, self.attacks, self.strongest)

    @cached_property
    def worst_op_speaker(self) -> SelfCalibratedDisclosure | None:
        if self.condition.name != "OP" or self.settings.bandwidth is not None:
            return None
        worst = compute_self_calibrated_disclosure(self.pairs, self.permutation_cells, self.permuted_counts_by_speaker)
        return worst._replace(d_ece=worst.d_ece[self.data.speakers.argsort(stable=True)])

    def compute_score_measures(self) -> _ScalarsAndJackknife:
        keys = set(SCORE_MEASURES) if self.settings.measures is None else self.settings.measures
        trials = self.scores.measure_input
        scalars = {key: measure(trials) for key, measure in SCORE_MEASURES.items() if key in keys}
        return scalars, None if self.replicate_counts is None else self.replicate_counts.make_jackknife(scalars)

    def compute_diagonal_dominance(self) -> _ScalarsAndJackknife:
        (summary, _), counts = self.similarity, self.replicate_counts
        scalars = {"d_diag": summary.dominance, "d_diag_log": summary.dominance_log}
        if counts is None:
            return scalars, None
        group, has_unordered_pairs = counts.groups.find_groups(self.data.speakers), self.scores.has_unordered_pairs
        replicates = replicate_diagonal_dominance(counts, summary, group, has_unordered_pairs, self.settings.similarity)
        return scalars, self.make_jackknife(replicates, counts.min_speakers_per_class)

    def compute_linkability_chance(self) -> tuple[dict[str, Tensor], None]:
        if self.settings.bandwidth is not None:
            return {}, None
        level = linkability_chance_level(self.scores, self.permutation_cells, self.permuted_counts_by_speaker)
        return {"linkability_chance": level}, None

    def compute_speakers(self) -> tuple[dict[str, Tensor], None]:
        return speaker_scalars(self.speakers, average_bits_by_speaker(self.identification.pooled)), None

    def compute_attacks(self) -> _ScalarsAndJackknife:
        strongest = self.strongest
        return ({}, None) if strongest is None else (strongest.scalars(), self.make_jackknife(strongest.replicates))

    def compute_population(self) -> _ScalarsAndJackknife:
        population, sizes = self.population, self.settings.sizes
        if population is None:
            return {}, None
        scalars = population(sizes) if self.needs("population") else {}
        # Conversations of several sessions cannot calibrate each other.
        if self.needs("population") and self.condition.name in WITHOUT_SESSIONS:
            scalars |= singling_out_rates(self.data, population.protocol, sizes)
        if self.needs("attacked_population"):
            attacked = population.after_strongest_attack(sizes)
            scalars |= {f"{key}_strongest": value for key, value in attacked.items()}
        return scalars, None if self.groups is None else self.make_jackknife(population.replicates(sizes, self.groups))

    def compute_c_ece_across_sessions(self) -> _ScalarsAndJackknife:
        """Return C_ECE with a calibration from other sessions, fitted once and used for every replicate."""
        if self.condition.name != "OP" or self.data.protected.sessions is None:
            return {}, None

        def score_run(run: EvaluationData) -> ScoredTrials:
            pairs = _form_all_pairs(run, self.condition, self.settings)
            return ScoredTrials(*pairs.scores_and_labels(), run.speakers[pairs.trial_speakers()])

        runs, replicates = calibrate_across_session_halves(self.data, score_run), None
        if self.groups is not None:
            labels, costs = self.groups.labels, []
            for run in runs:
                placed = run._replace(speakers=torch.searchsorted(labels, run.speakers_or_raise().contiguous()))
                costs.append(placed.replicate_costs("c_ece", run.scores, self.groups))
            replicates = {"c_ece": torch.stack(costs).mean(0)}
        return {"c_ece": mean_c_ece(runs)}, self.make_jackknife(replicates)


# Families of the registry, and the method that computes their scalars and replicates.
_METHODS: dict[tuple[str, ...], Callable[[_ConditionEvaluation], _ScalarsAndJackknife]] = {
    ("matrix",): _ConditionEvaluation.compute_diagonal_dominance,
    ("chance",): _ConditionEvaluation.compute_linkability_chance,
    ("rank", "local", "speaker"): lambda each: (each.identification.scalars, each.identification.jackknife),
    ("speaker",): _ConditionEvaluation.compute_speakers,
    ("attack", "attacked_population"): _ConditionEvaluation.compute_attacks,
    ("population", "attacked_population"): _ConditionEvaluation.compute_population,
    ("calibration",): _ConditionEvaluation.compute_c_ece_across_sessions,
}


def report_condition(
    data: EvaluationData, condition: Condition, settings: ReportSettings, attacks: CrossFittedAttacks | None = None
) -> ConditionReport:
    """Return the report of one condition: its score measures, and the families that are needed."""
    evaluation = _ConditionEvaluation(data, condition, settings, attacks)
    scalars, jackknife = evaluation.compute_score_measures()
    # Before the other families, of which the results are kept: it needs the most memory.
    worst_speaker = evaluation.worst_op_speaker if evaluation.needs("worst") else None
    jackknives = [jackknife]
    for families, compute in _METHODS.items():
        if evaluation.needs(*families):
            values, jackknife = compute(evaluation)
            scalars |= values
            jackknives.append(jackknife)
    known_jackknives = [each for each in jackknives if each is not None]
    computed, order = vars(evaluation), data.speakers.argsort(stable=True)  # holds the properties computed so far
    summary, matrix = computed.get("similarity", (None, None))
    if summary is not None:
        within, between = summary.within_speaker[order], summary.between_speakers[order]
        pair_sums = summary.pair_sums[:, order]
        summary = summary._replace(within_speaker=within, between_speakers=between, pair_sums=pair_sums)
    return ConditionReport(
        scalars,
        evaluation.scores,
        None if matrix is None else matrix[order][:, order],
        summary,
        evaluation.identification.pooled if "identification" in computed else None,
        mean_scores=lambda: mean_score_matrix(_form_all_pairs(data, condition, settings))[order][:, order],
        strongest=computed.get("strongest"),
        population=computed.get("population"),
        speakers=computed.get("speakers"),
        worst_speaker=worst_speaker,
        jackknife=join_jackknives(known_jackknives) if known_jackknives else None,
        counts=evaluation.replicate_counts,
        confidence=settings.intervals,
    )


def _form_all_pairs(data: EvaluationData, condition: Condition, settings: ReportSettings) -> PairBlocks:
    sides, scorer = data.sides(condition, settings.enrolment), resolve_scoring(settings.scoring)
    keep_digits = settings.bandwidth is None
    return PairBlocks(*sides, len(data.speakers), scorer, condition, data.processes, keep_digits=keep_digits)


def report_embeddings(
    data: EvaluationData,
    settings: ReportSettings,
    make_attacks: Callable[[Sequence[Condition]], CrossFittedAttacks] | None = None,
) -> PrivacyReport:
    """Return the report of all utterances, with the numbers that ``settings`` asks for."""
    has_sessions = data.protected.sessions is not None
    names = [name for name in CONDITIONS if has_sessions or name in WITHOUT_SESSIONS]
    names = [name for name in names if settings.needs(name)]
    attacked = [name for name in names if name != "OO" and settings.needs(name, "attack", "attacked_population")]
    attacks = None
    if make_attacks is not None and attacked:
        attacks = make_attacks([CONDITIONS[name] for name in attacked])
    conditions = {name: report_condition(data, CONDITIONS[name], settings, attacks) for name in names}
    labels = data.speakers.sort().values
    dtype = result_dtype(data.original.embeddings, data.protected.embeddings)
    report = join_conditions(conditions, labels, dtype, settings.sizes, settings.intervals, attacks)
    if settings.sizes:
        report = replace(report, bits_over=partial(_scalars_of_averages, data, settings, make_attacks))
    return report


def _scalars_of_averages(
    data: EvaluationData, settings: ReportSettings, make_attacks: Any, lengths: Sequence[int]
) -> dict[int, dict[str, Tensor]]:
    """Return the scalars after averaging each number of utterances, for a figure."""
    conditions = [name for name in CONDITIONS if name not in ("OO", "within")]
    families = frozenset((name, family) for name in conditions for family in ("score", "rank", "attack"))
    settings = settings._replace(sizes=(), intervals=None, families=families)
    with suppress_warnings():
        return {
            length: report_embeddings(average_utterances(data, length), settings, make_attacks).scalars
            for length in lengths
        }
