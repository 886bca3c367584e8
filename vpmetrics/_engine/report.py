"""Everything known of one system, from its embeddings or from its trials, each condition scored once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from vpmetrics._engine.calibration import isotonic_map, linear_map
from vpmetrics._engine.checks import Check, check_report
from vpmetrics._engine.condition_scores import ConditionScores, score_pairs, score_trials
from vpmetrics._engine.conditions import CONDITIONS, WITHOUT_SESSIONS, Condition
from vpmetrics._engine.headline import Headline, disclosure_sources, find_headline
from vpmetrics._engine.identification import (
    Identification,
    expected_mean_d,
    identify_condition,
    jackknife_identification,
    mean_over_groups,
    pool_histograms,
)
from vpmetrics._engine.jackknife import (
    Jackknife,
    JackknifeGroups,
    ProfileIntervals,
    ReplicateCounts,
    add_intervals,
    count_replicates,
    count_trial_replicates,
    group_labels,
    group_speakers,
    jackknife_of,
    join_jackknives,
    replicate_dominance,
    similarity_slopes,
)
from vpmetrics._engine.measures import (
    SCORE_MEASURES,
    actual_cross_entropy,
    cllr_from_sums,
    cllr_sums,
    expected_disclosure,
    llr_disclosure,
    minimum_cross_entropy,
)
from vpmetrics._engine.pair_blocks import PairBlocks
from vpmetrics._engine.population import (
    EnrolmentProtocol,
    average_rates,
    average_utterances,
    longest_conversation,
    rates_of_group,
    reidentification_rates,
    replicate_rates,
    singling_out_rates,
)
from vpmetrics._engine.precision import numbers_of, result_dtype, widen
from vpmetrics._engine.registry import CONDITION_TITLES, OF_POPULATION, SPEAKER, scalar_key, scalar_keys
from vpmetrics._engine.scorers import Scoring, resolve_scoring
from vpmetrics._engine.similarity import (
    SimilarityMatrices,
    SimilaritySummary,
    dominance_ratio,
    mean_score_matrix,
    summarize_matrix,
    summarize_similarity,
)
from vpmetrics._engine.speakers import (
    SpeakerDisclosure,
    SpeakerIdentification,
    WorstSpeaker,
    disclose_speakers,
    disclose_trial_speakers,
    find_largest,
    find_worst_speaker,
    identify_speakers,
    linkability_chance,
    permute_targets,
)
from vpmetrics._engine.trial_list import TrialList, calibrate_across_sessions, mean_distortion
from vpmetrics._engine.utterances import EvaluationData
from vpmetrics._engine.validation import collect_warnings, suppress_warnings, warn_if
from vpmetrics.functional.local import summarise_information
from vpmetrics.functional.rank import rank_disclosure
from vpmetrics.functional.similarity import normalised_relatives

if TYPE_CHECKING:
    from vpmetrics._engine.cross_fitting import CrossFittedAttacks, StrongestResult

_COARSE_BINS = 0.01  # bits that binning may hide before a warning
_CALIBRATIONS = {"linear": linear_map, "isotonic": isotonic_map}


class Settings(NamedTuple):
    """How embeddings are compared and what is computed from their scores, see :class:`vpmetrics.VoicePrivacy`.

    ``families``: pairs of a condition and a family of numbers, ``measures``: score measures; None asks for all.
    """

    similarity: str = "geometric"
    scoring: Scoring = "cosine"
    slope: float | None = None
    rank_model: str = "empirical"
    bandwidth: float | None = None
    enrolment: str | None = None
    sizes: tuple[int, ...] = ()
    families: frozenset[tuple[str, str]] | None = None
    intervals: float | None = None
    measures: frozenset[str] | None = None

    def needs(self, condition: str, *families: str) -> bool:
        """Whether anything of a condition is needed, or anything of some families of it."""
        return self.families is None or any(
            name == condition and (not families or family in families) for name, family in self.families
        )


@dataclass(frozen=True, eq=False)
class PopulationRates:
    """How often speakers of a condition are found, for any sizes and any number of utterances."""

    data: EvaluationData
    condition: Condition
    scoring: Scoring
    bandwidth: float | None = None
    attacks: CrossFittedAttacks | None = None
    strongest: StrongestResult | None = None

    def __call__(self, sizes: Sequence[int], utterances: int = 1) -> dict[str, Tensor]:
        """Return what :class:`vpmetrics.ReidentificationRate` returns."""
        protocol = EnrolmentProtocol(self.condition, utterances)
        return reidentification_rates(self.data, protocol, sizes, self.scoring, self.bandwidth)

    def of_strongest(self, sizes: Sequence[int], utterances: int = 1) -> dict[str, Tensor]:
        """Return the same after the attack chosen for each fold of speakers; NaN for more people than a fold has.

        People are searched among their fold, since the attack has seen all others.
        """
        parts = [
            rates_of_group(data, protocol, sizes, scoring, is_extrapolated=False)
            for data, protocol, scoring in self._attacked_folds(utterances)
        ]
        if parts:
            return average_rates(parts)
        unknown = torch.tensor(torch.nan)
        return dict.fromkeys([*(f"rate_{size}" for size in sizes), "gallery"], unknown) if self.attacks else {}

    def _attacked_folds(self, utterances: int = 1) -> list[tuple[EvaluationData, EnrolmentProtocol, Any]]:
        if self.attacks is None or self.strongest is None:
            return []
        return [
            (data, EnrolmentProtocol(self.condition, utterances, attack=attack), attack.compare)
            for data, attack in self.attacks.chosen_folds(self.condition, self.strongest)
        ]

    def replicates(self, sizes: Sequence[int], groups: JackknifeGroups) -> dict[str, Tensor]:
        """Return the rates of all speakers and then without each group, ``(1 + G,)``."""
        protocol = EnrolmentProtocol(self.condition)
        plain = replicate_rates([(part, protocol, self.scoring) for part in self.data.by_group()], sizes, groups)
        attacked = replicate_rates(self._attacked_folds(), sizes, groups)
        return plain | {f"{key}_strongest": value for key, value in attacked.items()}

    def longest(self) -> int:
        """Return how many utterances half of all speakers, at least, have for a conversation."""
        return longest_conversation(self.data, self.condition)


@dataclass(frozen=True, eq=False)
class ConditionReport:
    """What is known of one condition: its scalars, and what its figures are drawn from.

    ``mean_scores()`` ``(S, S)`` costs another pass over the trials. ``is_llr``: scores that somebody gave may be
    log-likelihood ratios as they stand, cosines are not. ``calibrated()``: given scores, as either half of the speakers
    has them calibrated by the other.
    """

    scalars: dict[str, Tensor]
    scores: ConditionScores
    matrix: Tensor | None = None
    similarity: SimilaritySummary | None = None
    identification: Identification | None = None
    mean_scores: Callable[[], Tensor] | None = None
    is_llr: bool = False
    strongest: StrongestResult | None = None
    population: PopulationRates | None = None
    speakers: SpeakerDisclosure | None = None
    identified: SpeakerIdentification | None = None
    worst_speaker: WorstSpeaker | None = None
    jackknife: Jackknife | None = None
    profiles: ProfileIntervals | None = None
    calibrated: Callable[[], list[TrialList]] | None = None

    @property
    def num_trials(self) -> tuple[int, int]:
        """Target and non-target trials."""
        nontargets, targets = self.scores.trials.sizes.tolist()
        return int(targets), int(nontargets)

    def minimum_cross_entropy(self, prior_log_odds: Tensor) -> Tensor:
        """Return the empirical cross-entropy of the oracle calibration at each prior."""
        return minimum_cross_entropy(self.scores.counts.ascending, prior_log_odds)

    def cross_entropy_interval(self, prior_log_odds: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return both ends of the confidence interval of :meth:`minimum_cross_entropy` at each prior."""
        if self.profiles is None:
            return None
        return self.profiles.interval(self.minimum_cross_entropy(prior_log_odds), prior_log_odds)

    def actual_cross_entropy(self, prior_log_odds: Tensor) -> Tensor:
        """Return that of the scores taken as log-likelihood ratios."""
        return actual_cross_entropy(*self.scores.trials.table(), prior_log_odds)


class Transfer(NamedTuple):
    """Scores calibrated on those of another run: what is known of that run, and the ratios by kind of calibration."""

    other: ConditionReport
    llr: dict[str, Tensor]
    counts: Tensor  # (2, P), which of the ratios are of non-targets and of targets
    scalars: dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class PrivacyReport:
    """All scalars by key, the conditions they come from, checks of the evaluation and the headline.

    ``speakers`` ``(S,)``: labels, ascending; ``speaker_names``: their names where they were given as strings.
    ``attacks``: name of each attack by its number, and what its attacker needs.
    """

    scalars: dict[str, Tensor]
    conditions: dict[str, ConditionReport]
    matrices: SimilarityMatrices | None = None
    transfer: Transfer | None = None
    attacks: tuple[tuple[str, str], ...] = ()
    jackknife: Jackknife | None = None
    groups: Mapping[int, PrivacyReport] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    headline: Headline | None = None
    speakers: Tensor | None = None
    speaker_names: Mapping[int, str] = field(default_factory=dict)
    num_utterances: int = 0
    bits_over: Callable[[Sequence[int]], dict[int, dict[str, Tensor]]] | None = None

    @property
    def attacked(self) -> str:
        """The condition that shows how well speakers are hidden."""
        return "OP" if "OP" in self.conditions else next(iter(self.conditions))

    def save(self, folder: Any, name: str = "system") -> None:
        """Write the page, ``results.json``, tables and figures into a folder.

        Args:
            folder: A new folder, or one that was written before.
            name: Name of the system.
        """
        from vpmetrics.cli.report import save_systems

        save_systems([EvaluatedSystem(name, self)], folder, name)

    def __str__(self) -> str:
        """A summary of some lines: verdict, checks and headline numbers."""
        from vpmetrics.cli.summary import summary_lines

        return "\n".join(summary_lines(EvaluatedSystem("", self)))

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


@dataclass(frozen=True, eq=False)
class EvaluatedSystem:
    """A report under the name it is shown by, with notes and what led to it.

    ``speakers``: names of the speakers, in the order of their labels. ``history``: one row of scalars per measurement
    of a training. ``groups``: the same of parts of the trials, by name; ``weights``: their weights in an average.
    ``no_attacks``: why no attack was tried. ``utility``: values such as a word error rate, by name. ``attributes``:
    what protected speech tells of each attribute of speakers. ``dataset``: the set of a challenge it was measured on.
    ``attack_models``: what a challenge calls its conditions.
    """

    name: str
    report: PrivacyReport
    speakers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    history: Sequence[Mapping[str, float]] = ()
    groups: Mapping[str, EvaluatedSystem] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    utterances: int = 0
    no_attacks: str = ""
    utility: Mapping[str, float] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    dataset: str = ""
    attack_models: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def scalars(self) -> dict[str, float]:
        """All scalars of the report, in one transfer."""
        return numbers_of(self.report.scalars)

    def scalar(self, key: str, condition: str = "") -> float:
        """Return a scalar of the system or of a condition; NaN where it is unknown."""
        return self.scalars.get(scalar_key(condition, key), math.nan)

    def speaker_name(self, place: float) -> str:
        """Return the name of the speaker at a place among all, ascending; the label where names are unknown."""
        if math.isnan(place):
            return SPEAKER.show(place)
        if self.speakers:
            return self.speakers[int(place)]
        labels = self.report.speakers
        if labels is None:
            return SPEAKER.show(place)
        label = int(labels[int(place)])
        return self.report.speaker_names.get(label, SPEAKER.show(label))


def original_name(systems: Sequence[EvaluatedSystem]) -> str:
    """Return what to call original speech beside systems, one of which may have that name."""
    return "original" if all(system.name != "original" for system in systems) else "original speech"


def report_embeddings(
    data: EvaluationData,
    settings: Settings,
    make_attacks: Callable[[Sequence[Condition]], CrossFittedAttacks] | None = None,
) -> PrivacyReport:
    """Return everything that ``settings`` asks for of all utterances together."""
    has_sessions = data.protected.sessions is not None
    names = [name for name in CONDITIONS if has_sessions or name in WITHOUT_SESSIONS]
    names = [name for name in names if settings.needs(name)]
    attacked = [name for name in names if name != "OO" and settings.needs(name, "attack", "attacked_population")]
    attacks = None
    if make_attacks is not None and attacked:
        attacks = make_attacks([CONDITIONS[name] for name in attacked])
    conditions = {name: report_condition(data, CONDITIONS[name], settings, attacks) for name in names}
    if has_sessions and settings.needs("OP", "calibration"):
        conditions["OP"] = _add_session_calibration(conditions["OP"], data, settings)
    labels = data.speakers.sort().values
    dtype = result_dtype(data.original.embeddings, data.protected.embeddings)
    report = join_conditions(conditions, labels, dtype, settings.sizes, settings.intervals, attacks)
    if settings.sizes:
        report = replace(report, bits_over=partial(_bits_over, data, settings, make_attacks))
    return report


def assess_report(report: PrivacyReport, data: EvaluationData | None = None) -> PrivacyReport:
    """Return the report with its checks and headline, which cost as much as a few numbers."""
    if data is not None:
        report = replace(report, num_utterances=len(torch.cat([data.original.ids, data.protected.ids]).unique()))
    report = replace(report, checks=tuple(check_report(report, data)))
    return replace(report, headline=find_headline(report))


def _bits_over(
    data: EvaluationData, settings: Settings, make_attacks: Any, lengths: Sequence[int]
) -> dict[int, dict[str, Tensor]]:
    """Return what protected speech discloses in bits over conversations of so many utterances, for a figure."""
    conditions = [name for name in CONDITIONS if name not in ("OO", "within")]
    families = frozenset((name, family) for name in conditions for family in ("score", "rank", "attack"))
    settings = settings._replace(sizes=(), intervals=None, families=families)
    with suppress_warnings():
        return {
            length: report_embeddings(average_utterances(data, length), settings, make_attacks).scalars
            for length in lengths
        }


def report_condition(
    data: EvaluationData, condition: Condition, settings: Settings, attacks: CrossFittedAttacks | None = None
) -> ConditionReport:
    """Return one condition of embeddings; of what is not needed, only the scores."""
    name, order = condition.name, data.speakers.argsort(stable=True)
    groups = None if settings.intervals is None else group_speakers(data)
    scored = _report_scores(data, condition, settings, groups)
    scalars, jackknives = dict(scored.scalars), [] if scored.jackknife is None else [scored.jackknife]
    identification = identified = strongest = population = None
    if settings.needs(name, "rank", "local", "speaker"):
        values, identification, jackknife = _identify(data, condition, settings, groups)
        scalars |= values
        identified = identify_speakers(identification)
        jackknives += [] if jackknife is None else [jackknife]
    if scored.speakers is not None:
        scalars |= _speaker_scalars(scored.speakers, identified)
    if attacks is not None and name != "OO" and settings.needs(name, "attack", "attacked_population"):
        replicates = None if scored.profiles is None else scored.profiles.counts.counted.counts
        strongest = attacks.strongest(condition, groups, scored.scores.counts, replicates)
        scalars |= strongest.scalars()
        if groups is not None and strongest.replicates is not None:
            jackknives.append(jackknife_of(strongest.replicates, groups))
    if settings.sizes and settings.needs(name, *OF_POPULATION):
        population = PopulationRates(data, condition, settings.scoring, settings.bandwidth, attacks, strongest)
        scalars |= _population_scalars(population, settings)
        if groups is not None:
            jackknives.append(jackknife_of(population.replicates(settings.sizes, groups), groups))
    return replace(
        scored,
        scalars=scalars,
        identification=identification,
        mean_scores=lambda: mean_score_matrix(_pairs(data, condition, settings))[order][:, order],
        strongest=strongest,
        population=population,
        identified=identified,
        jackknife=join_jackknives(jackknives),
    )


def _report_scores(
    data: EvaluationData, condition: Condition, settings: Settings, groups: JackknifeGroups | None
) -> ConditionReport:
    """Return what the scores of one condition give: measures, similarities, speakers and their jackknife."""
    pairs, name = _pairs(data, condition, settings), condition.name
    scores, order = score_pairs(pairs, settings.bandwidth), data.speakers.argsort(stable=True)
    scalars = {
        key: measure(scores.counted)
        for key, measure in SCORE_MEASURES.items()
        if settings.measures is None or key in settings.measures
    }
    _warn_of_coarse_bins(name, scores)
    summary = matrix = worst = jackknife = profiles = None
    if settings.needs(name, "matrix"):
        summary, matrix = summarize_similarity(pairs, scores, settings.similarity)
        scalars |= {"d_diag": summary.dominance, "d_diag_log": summary.dominance_log}
    if groups is not None and settings.intervals is not None and settings.needs(name, "score", "matrix", "attack"):
        counts = count_replicates(pairs, scores, groups, data.speakers, summary, matrix, settings.similarity)
        if counts is not None:
            jackknife = _jackknife_scores(
                counts, scalars, groups, groups.of(data.speakers), summary, scores.is_one_sided, settings.similarity
            )
            profiles = ProfileIntervals(counts, groups.ratio, settings.intervals)
    has_chance, has_worst = settings.needs(name, "chance"), settings.needs(name, "worst") and name == "OP"
    if (has_chance or has_worst) and settings.bandwidth is None:
        permuted = permute_targets(pairs)
        if has_chance:
            scalars["linkability_chance"] = linkability_chance(scores, permuted)
        if has_worst:
            worst = find_worst_speaker(pairs, scores, permuted)
            worst = worst._replace(d_ece=worst.d_ece[order])
    return ConditionReport(
        scalars,
        scores,
        None if matrix is None else matrix[order][:, order],
        None if summary is None else _sort_summary(summary, order),
        speakers=disclose_speakers(pairs, scores, data.speakers) if settings.needs(name, "speaker") else None,
        worst_speaker=worst,
        jackknife=jackknife,
        profiles=profiles,
    )


def _jackknife_scores(
    counts: ReplicateCounts,
    scalars: Mapping[str, Tensor],
    groups: JackknifeGroups,
    group_of_speaker: Tensor,
    summary: SimilaritySummary | None,
    is_one_sided: bool,
    similarity: str,
) -> Jackknife:
    """Return the jackknife of the measures of scores, and of diagonal dominance where similarities are known."""
    replicates = counts.measures(scalars)
    if summary is not None:
        replicates |= replicate_dominance(counts, summary, group_of_speaker, groups, is_one_sided, similarity)
    return jackknife_of(replicates, groups, counts.has_enough)


def _sort_summary(summary: SimilaritySummary, order: Tensor) -> SimilaritySummary:
    within, between = summary.within_speaker[order], summary.between_speakers[order]
    return summary._replace(within_speaker=within, between_speakers=between, pair_sums=summary.pair_sums[:, order])


def _pairs(data: EvaluationData, condition: Condition, settings: Settings) -> PairBlocks:
    sides, scorer = data.sides(condition, settings.enrolment), resolve_scoring(settings.scoring)
    keep_digits = settings.bandwidth is None
    return PairBlocks(*sides, len(data.speakers), scorer, condition, data.processes, keep_digits=keep_digits)


def _warn_of_coarse_bins(name: str, scores: ConditionScores) -> None:
    if scores.worst_counts is None:
        return
    # Pooling a bin forgets an order, so its D_ECE is the least there can be; with all bins separated it is the most.
    most, least = (expected_disclosure(each.ascending) for each in (scores.worst_counts(), scores.counts))
    warn_if(
        most - least,
        lambda bound: (
            f"Scores of {name} share bins that are too wide: its D_ECE may be off by {bound:.3f} bit. "
            "Measure fewer utterances, or scale what is compared."
            if bound > _COARSE_BINS
            else None
        ),
    )


def _identify(
    data: EvaluationData, condition: Condition, settings: Settings, groups: JackknifeGroups | None
) -> tuple[dict[str, Tensor], Identification, Jackknife | None]:
    """Return scalars of ranks and local information over all groups, the inputs of all groups, and the jackknife."""
    has_bits, model = settings.needs(condition.name, "local", "speaker"), settings.rank_model
    parts = identify_condition(data, condition, settings.scoring, settings.slope, has_bits, settings.bandwidth is None)
    jackknife = None
    if groups is not None:
        jackknife = jackknife_parts(parts, settings.scoring, groups, model)
    if settings.bandwidth is not None:
        from vpmetrics._engine.identification import rank_condition

        smooth = rank_condition(data, condition, settings.scoring, settings.bandwidth)
        parts = [(t, found._replace(histogram=h)) for (t, found), h in zip(parts, smooth, strict=True)]
    values = rank_scalars([found for _, found in parts], model)
    together = pool_parts([found for _, found in parts])
    if has_bits and together.bits is not None:
        values |= summarise_information(together.bits, together.linked)
        if settings.bandwidth is None:
            chance = together.chance_bits
            values["alid_chance"] = torch.full_like(values["alid"], torch.nan) if chance is None else chance
    return values, together, jackknife


def rank_scalars(parts: Sequence[Identification], model: str) -> dict[str, Tensor]:
    """Return what the ranks of all groups disclose, and their chance level."""
    inputs = torch.stack([found.histogram.detach().sum() for found in parts])
    values = mean_over_groups([rank_disclosure(found.histogram, model, validate_args=False) for found in parts], inputs)
    chances = []
    for found in parts:
        expected = expected_mean_d(found.histogram, model, len(found.trials))
        if found.chance_histograms is not None:
            # Inputs of one speaker err together, so the closed form is a lower bound.
            permuted = rank_disclosure(found.chance_histograms, model, validate_args=False)["mean_d"].mean()
            expected = torch.maximum(expected, widen(permuted))
        chances.append({"mean_d": expected})
    return values | {"mean_d_chance": mean_over_groups(chances, inputs)["mean_d"]}


def pool_parts(parts: Sequence[Identification]) -> Identification:
    """Return the inputs of all groups as one result."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    bits = None if first.bits is None else torch.cat([part.bits for part in parts if part.bits is not None])
    chance_bits = [part.chance_bits for part in parts if part.chance_bits is not None]
    return first._replace(
        histogram=pool_histograms([part.histogram for part in parts]),
        bits=bits,
        linked=torch.cat([part.linked for part in parts]),
        trials=torch.cat([part.trials for part in parts]),
        speakers=torch.cat([part.speakers for part in parts]),
        rank_bits=torch.cat([part.rank_bits for part in parts]),
        chance_histograms=None,
        chance_bits=torch.stack(chance_bits).mean() if chance_bits else None,
    )


def jackknife_parts(parts: Sequence[Any], scoring: Scoring, groups: JackknifeGroups, model: str) -> Jackknife:
    """Return the jackknife of the numbers of identification, over all groups."""
    replicates = [
        jackknife_identification(trials, scoring, groups.of(trials.references.speakers), groups.number, found.slopes)
        for trials, found in parts
    ]
    inputs = torch.stack([each.histograms.sum(1) for each in replicates])
    values = mean_over_groups(
        [_rank_replicates(each.histograms, each.references, model) for each in replicates], inputs
    )
    count, positive_sum, negative_sum, positive, linked = torch.stack([each.sums for each in replicates]).sum(0)
    values |= {
        "alid": (positive_sum + negative_sum) / count,
        "pdr": positive / count,
        "ndr": 1 - positive / count,
        "link_rate": linked / inputs.sum(0),
    }
    has_enough = all(len(found.speakers.unique()) >= 3 for _, found in parts[:1])
    jackknife = jackknife_of(values, groups, has_enough)
    # With fewer references there is less to disclose, so the bias shows where inputs alone are left out.
    fewer = [rank_disclosure(each.fewer_inputs, model)["mean_d"] for each in replicates]
    weights = torch.stack([each.fewer_inputs.sum(1) for each in replicates])
    mean_d = mean_over_groups([{"mean_d": each} for each in fewer], weights)["mean_d"]
    return jackknife._replace(bias={"mean_d": groups.ratio * (mean_d[1:] - mean_d[0]).mean()})


def _rank_replicates(histograms: Tensor, references: Tensor, model: str) -> dict[str, Tensor]:
    """Return rank disclosure of each histogram among as many references as it has."""
    values = {key: histograms.new_full((len(histograms),), torch.nan) for key in ("max_d", "mean_d", "id_rate")}
    for number in references.unique().long().tolist():
        rows = (references == number).nonzero().flatten()
        if number > 1:
            found = rank_disclosure(histograms[rows, :number], model)
            values = {key: each.index_copy(0, rows, found[key].to(each.dtype)) for key, each in values.items()}
    return values


def _speaker_scalars(
    disclosed: SpeakerDisclosure, identified: SpeakerIdentification | None = None
) -> dict[str, Tensor]:
    """Return which tested speaker is protected worst, and how far speakers are apart."""
    values = disclosed.probed.d_ece
    worst, place = find_largest(values)
    deviations, others = values - values.nanmean(), ((~values.isnan()).sum() - 1).clamp(min=0)
    scalars = {
        "worst_speaker_d_ece": worst,
        "worst_speaker": place,
        "speaker_d_ece_spread": (deviations.square().nansum() / others).sqrt(),
    }
    if identified is not None:
        for key in ("mean_d", "alid"):
            scalars[f"worst_speaker_{key}"], _ = find_largest(getattr(identified, key))
    return scalars


def _population_scalars(population: PopulationRates, settings: Settings) -> dict[str, Tensor]:
    scalars: dict[str, Tensor] = {}
    if settings.needs(population.condition.name, "population"):
        scalars |= population(settings.sizes)
        if (
            population.condition.name in WITHOUT_SESSIONS
        ):  # conversations of several sessions cannot calibrate each other
            protocol = EnrolmentProtocol(population.condition)
            scalars |= singling_out_rates(population.data, protocol, settings.sizes, settings.scoring)
    if settings.needs(population.condition.name, "attacked_population"):
        attacked = population.of_strongest(settings.sizes)
        scalars |= {f"{key}_strongest": value for key, value in attacked.items()}
    return {key: value for key, value in scalars.items() if not key.startswith("chance")}


def _add_session_calibration(report: ConditionReport, data: EvaluationData, settings: Settings) -> ConditionReport:
    """Return the report of OP with C_ECE between sessions, by a linear calibration that stays whoever is left out."""

    def trials_of(run: EvaluationData) -> TrialList:
        pairs = _pairs(run, CONDITIONS["OP"], settings)
        scores, is_target = pairs.all_trials()
        return TrialList(scores, is_target, run.speakers[pairs.trial_speakers()])

    runs = calibrate_across_sessions(data, trials_of)
    scalars, jackknife = {**report.scalars, "c_ece": mean_distortion(runs)}, report.jackknife
    if jackknife is not None:
        groups = jackknife.groups
        placed = [run._replace(speakers=torch.searchsorted(groups.labels, run.places().contiguous())) for run in runs]
        replicates = torch.stack([run.replicate_disclosure(run.scores, groups) for run in placed]).mean(0)
        jackknife = join_jackknives([jackknife, jackknife_of({"c_ece": replicates}, groups)])
    return replace(report, scalars=scalars, jackknife=jackknife)


def report_trials(
    trials: Mapping[str, TrialList],
    fit: TrialList | None = None,
    speakers: int = 0,
    similarity: str | None = "geometric",
    intervals: float | None = None,
) -> PrivacyReport:
    """Return everything that scores of trials give, by condition, of speakers ``0 ... speakers - 1``.

    ``fit``: trials of another run, on which the scores are calibrated. Without ``similarity`` there are no matrices.
    """
    settings = Settings(similarity or "", intervals=intervals)
    labels = torch.arange(speakers)
    with collect_warnings():
        conditions = {name: _report_trial_list(given, name, labels, settings) for name, given in trials.items()}
        report = join_conditions(conditions, labels, intervals=intervals)
        if fit is not None:
            transfer, jackknife = _transfer(trials[report.attacked], fit, labels if intervals else None)
            scalars = transfer.scalars
            if intervals is not None:
                scalars = add_intervals(scalars, jackknife, intervals)
            report = replace(report, scalars={**report.scalars, **scalars}, transfer=transfer)
    return assess_report(report)


def join_conditions(
    conditions: dict[str, ConditionReport],
    labels: Tensor,
    dtype: torch.dtype | None = None,
    sizes: Sequence[int] = (),
    intervals: float | None = None,
    attacks: CrossFittedAttacks | None = None,
) -> PrivacyReport:
    """Return one report of all conditions, with the numbers that compare them, in the order of the registry."""
    matrices = {name: each.matrix for name, each in conditions.items() if each.matrix is not None}
    scalars = {scalar_key(name, key): value for name, each in conditions.items() for key, value in each.scalars.items()}
    dominance = {name: each.scalars["d_diag"] for name, each in conditions.items() if "d_diag" in each.scalars}
    if {"OO", "OP"} <= set(dominance):
        scalars["deid"] = 1 - dominance_ratio(dominance["OP"], dominance["OO"])
    if {"OO", "PP"} <= set(dominance):
        scalars["gvd"] = 10 * dominance_ratio(dominance["PP"], dominance["OO"]).log10()
    if {scalar_key(name, "min_cllr") for name in WITHOUT_SESSIONS} <= set(scalars):
        scalars |= normalised_relatives(scalars)
    scalars |= _headline_scalars(conditions, scalars)
    if dtype is not None:
        scalars = {key: value.to(dtype) for key, value in scalars.items()}
    order = scalar_keys(("", *CONDITION_TITLES), attacks=True, sessions=True, sizes=sizes)
    scalars = {key: scalars[key] for key in order if key in scalars}
    jackknife = _join_system_jackknife(scalars, {name: each.jackknife for name, each in conditions.items()})
    if intervals is not None:
        scalars = add_intervals(scalars, jackknife, intervals)
    oo, op, pp = (matrices.get(name) for name in WITHOUT_SESSIONS)
    known = next(iter(matrices.values()), None)
    joined = None
    if known is not None:
        unknown = torch.full_like(known, torch.nan)
        oo, op, pp = (unknown if each is None else each for each in (oo, op, pp))
        joined = SimilarityMatrices(oo, op, pp, labels)
    return PrivacyReport(
        scalars,
        conditions,
        joined,
        attacks=() if attacks is None else attacks.descriptions,
        jackknife=jackknife,
        speakers=labels.unique(),
    )


def _headline_scalars(conditions: Mapping[str, ConditionReport], scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
    values = {}
    keys = [key for key in disclosure_sources(conditions, scalars) if not bool(scalars[key].isnan())]
    if keys:
        values["disclosure"] = torch.stack([widen(scalars[key]) for key in keys]).amax()
    elif {"OP", "PP", "across", ""} & set(conditions):
        known = next(iter(scalars.values()))
        values["disclosure"] = torch.full_like(widen(known.detach()), torch.nan)
    worst = conditions["OP"].worst_speaker if "OP" in conditions else None
    if worst is not None:
        values |= {"worst_speaker_disclosure": worst.largest[0], "worst_speaker_chance": worst.chance}
    return values


def _join_system_jackknife(
    scalars: Mapping[str, Tensor], conditions: Mapping[str, Jackknife | None]
) -> Jackknife | None:
    """Return the jackknife of all numbers of a system, by key, and of those that compare conditions."""
    parts = []
    for name, each in conditions.items():
        if each is not None:
            parts.append(each.with_prefix({key: scalar_key(name, key) for key in each.changes}))
    jackknife = join_jackknives(parts)
    if jackknife is None:
        return None
    changes, bias = dict(jackknife.changes), dict(jackknife.bias)
    replicates = {key: widen(scalars[key]) + change for key, change in changes.items() if key in scalars}
    if {"oo_d_diag", "op_d_diag"} <= set(replicates):
        changes["deid"] = 1 - replicates["op_d_diag"] / replicates["oo_d_diag"] - scalars["deid"]
    if {"oo_d_diag", "pp_d_diag"} <= set(replicates):
        changes["gvd"] = 10 * (replicates["pp_d_diag"] / replicates["oo_d_diag"]).log10() - scalars["gvd"]
    if "d_ece_op_oo" in scalars and set(replicates) >= {f"{name}_d_ece" for name in ("oo", "op", "pp")}:
        changes |= {key: value - scalars[key] for key, value in normalised_relatives(replicates).items()}
    keys = [key for key in disclosure_sources(conditions, scalars) if key in changes]
    if keys and "disclosure" in scalars:
        attained = max(keys, key=lambda key: float(scalars[key]))
        changes["disclosure"] = changes[attained]
        bias |= {"disclosure": bias[attained]} if attained in bias else {}
    return Jackknife(changes, bias, jackknife.groups)


def _report_trial_list(given: TrialList, condition: str, labels: Tensor, settings: Settings) -> ConditionReport:
    scores, similarity = score_trials(given.scores, given.is_target, given.is_one_sided), settings.similarity
    scalars = {key: measure(scores.counted) for key, measure in SCORE_MEASURES.items()}
    if given.speakers is None:
        return ConditionReport(scalars, scores, is_llr=True)
    labels = labels.to(given.scores.device)
    summary = matrix = speakers = mean_scores = None
    if condition and similarity:
        (llr,) = scores.look_up([scores.llr_of_both_orders()])(given.scores)
        mean = given.pair_means(llr if similarity == "sigmoid" else logsigmoid(llr), len(labels))
        matrix = mean.sigmoid() if similarity == "sigmoid" else mean.exp()
        summary = summarize_matrix(matrix, given.is_one_sided)
        mean_scores = partial(given.pair_means, given.scores, len(labels))
        speakers = disclose_trial_speakers(scores, given.scores, given.is_target, given.speakers, labels)
        scalars |= {"d_diag": summary.dominance, "d_diag_log": summary.dominance_log}
        scalars |= _speaker_scalars(speakers)
    jackknife = profiles = None
    if settings.intervals is not None:
        groups, weights = group_labels(labels), None
        if summary is not None and matrix is not None:
            weights = given.similarity_weights(similarity_slopes(summary, matrix, similarity)[1])
        counts = count_trial_replicates(scores, given.scores, given.is_target, given.speakers, groups, weights)
        if counts is not None:
            of_speaker, is_one_sided = groups.group_of_label, given.is_one_sided
            jackknife = _jackknife_scores(counts, scalars, groups, of_speaker, summary, is_one_sided, similarity)
            profiles = ProfileIntervals(counts, groups.ratio, settings.intervals)
    return ConditionReport(
        scalars,
        scores,
        matrix,
        summary,
        mean_scores=mean_scores,
        is_llr=True,
        speakers=speakers,
        jackknife=jackknife,
        profiles=profiles,
        calibrated=given.calibrate_across_speakers,
    )


def _transfer(attacked: TrialList, fit: TrialList, labels: Tensor | None) -> tuple[Transfer, Jackknife | None]:
    """Return what an attacker makes of scores with a calibration learnt on another run (figure 8 of the 2022 paper)."""
    scores = score_trials(fit.scores, fit.is_target)
    scalars_of_fit = {key: measure(scores.counted) for key, measure in SCORE_MEASURES.items()}
    other = ConditionReport(scalars_of_fit, scores, is_llr=True)
    llr = {kind: learn(fit.scores, fit.is_target)(attacked.scores) for kind, learn in _CALIBRATIONS.items()}
    groups = None
    if labels is not None and attacked.speakers is not None:
        groups = group_labels(labels.to(attacked.scores.device))
    scalars, replicates = {}, {}
    for kind, values in llr.items():
        scalars[f"c_ece_{kind}"] = llr_disclosure(values, attacked.is_target)
        scalars[f"cllr_{kind}"] = cllr_from_sums(*cllr_sums(values, attacked.is_target))
        if groups is not None:
            replicates[f"c_ece_{kind}"] = attacked.replicate_disclosure(values, groups)
            replicates[f"cllr_{kind}"] = attacked.replicate_cllr(values, groups)
    transfer = Transfer(other, llr, torch.stack([~attacked.is_target, attacked.is_target]), scalars)
    return transfer, None if groups is None else jackknife_of(replicates, groups)
