"""The report of embeddings.

Each condition is scored once, and only the requested numbers are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vpmetrics._identification.conversations import LENGTHS, choose_length
from vpmetrics._scores.jackknife import Jackknife, JackknifeGroups, group_speakers, join_jackknives
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.registry import hidden_conditions, scalar_key
from vpmetrics._scores.worst_speaker import WorstSpeaker, find_worst_speaker
from vpmetrics._util.dtypes import result_dtype
from vpmetrics._utterances.conditions import CONDITIONS, WITHOUT_SESSIONS, Condition
from vpmetrics._utterances.utterances import EvaluationData
from vpmetrics.report.headline import Risk
from vpmetrics.report.identification_scalars import identify_all_groups
from vpmetrics.report.parts import (
    ATTACKED_PARTS,
    RISK_PARTS,
    AttacksPart,
    FoldsOfCondition,
    IdentificationPart,
    Numbers,
    ReportPart,
    ReportSettings,
    ScoresPart,
    compute_attacks,
    compute_calibration,
    compute_conversations,
    compute_found,
    compute_linkability_chance,
    compute_population,
    compute_similarity,
    compute_speakers,
    form_all_pairs,
    form_folds,
    measure_scores,
    replicate_scores,
    score_pairs,
    summarise_pairs,
)
from vpmetrics.report.privacy_report import ConditionReport, PrivacyReport, join_conditions
from vpmetrics.report.verdict import MAIN_RISKS, collect_risks

if TYPE_CHECKING:
    from vpmetrics._scores.trial_rows import TrialRows
    from vpmetrics.attacks.fusion import FusedAttacker


@dataclass(frozen=True, eq=False)
class _ComputedCondition:
    """The report of a condition, and what risks of the whole system are computed from."""

    report: ConditionReport
    report_parts: frozenset[ReportPart]
    folds: FoldsOfCondition | None
    groups: JackknifeGroups | None


class _Collected:
    """Scalars and replicates of the parts of a condition that were computed so far."""

    def __init__(self) -> None:
        self.scalars: dict[str, Tensor] = {}
        self.jackknives: list[Jackknife] = []

    def add(self, numbers: Numbers) -> None:
        """Add the scalars of a part, and its replicates where it has any."""
        self.scalars |= numbers.scalars
        if numbers.replicates is not None:
            self.jackknives.append(numbers.replicates)

    def join_jackknives(self) -> Jackknife | None:
        """Return the replicates of all parts; None where no part has any."""
        if not self.jackknives:
            return None
        return join_jackknives(self.jackknives)


def _group_where(data: EvaluationData, has_intervals: bool) -> JackknifeGroups | None:
    """Return the speakers that are left out together where there are intervals."""
    if has_intervals:
        return group_speakers(data)
    return None


def report_condition(
    data: EvaluationData,
    condition: Condition,
    settings: ReportSettings,
    parts: frozenset[ReportPart],
    attacks: FusedAttacker | None = None,
    length: int | None = None,
) -> _ComputedCondition:
    """Return the report of one condition: its score measures, and the parts that are needed.

    ``length``: how many utterances a conversation has; None where there are none.
    """
    groups = _group_where(data, settings.intervals is not None)
    risk_groups = _group_where(data, settings.has_risk_intervals or groups is not None)
    collected = _Collected()
    pairs = form_all_pairs(data, condition, settings)
    scores = score_pairs(pairs, condition, settings)

    # Measured first, so that one PAV serves both signs.
    scalars = measure_scores(scores, settings)
    similarity = None
    if ReportPart.SIMILARITY in parts:
        similarity = summarise_pairs(pairs, scores, settings)
    scored = replicate_scores(
        scalars,
        pairs,
        scores,
        data.speakers,
        risk_groups,
        settings,
        replicated_similarity=None if groups is None else similarity,
    )
    collected.add(scored)
    if ReportPart.LINKABILITY_CHANCE in parts and settings.bandwidth is None:
        chance = compute_linkability_chance(pairs, scores)
        collected.add(Numbers({"linkability_chance": chance}))

    matrix_part = None
    if similarity is not None:
        matrix_part = compute_similarity(
            similarity, scored, data.speakers, settings, has_replicates=groups is not None
        )
        collected.add(matrix_part)

    identification_part = None
    if {ReportPart.RANKS, ReportPart.LOCAL, ReportPart.SPEAKERS} & parts:
        identification_part = _compute_identification(data, condition, settings, parts, groups)
        collected.add(identification_part)

    speakers_part = None
    if ReportPart.SPEAKERS in parts and identification_part is not None:
        speakers_part = compute_speakers(
            pairs, scores, data.speakers, identification_part.identification
        )
        collected.add(speakers_part)

    attacks_part = None
    if attacks is not None and condition.name != "OO" and ATTACKED_PARTS & parts:
        attacks_part = compute_attacks(
            attacks, condition, scored, risk_groups, has_limit=ReportPart.ATTACK_LIMIT in parts
        )
        collected.add(attacks_part)

    folds = _compute_risks(
        pairs,
        settings,
        parts,
        scored,
        risk_groups,
        length,
        attacks,
        attacks_part,
        collected,
    )

    population_part = None
    if settings.sizes and {ReportPart.POPULATION, ReportPart.ATTACKED_POPULATION} & parts:
        used_attacks = None if attacks_part is None else attacks
        population_part = compute_population(
            data, condition, settings, parts, groups, used_attacks, attacks_part
        )
        collected.add(population_part)

    has_sessions = data.protected.sessions is not None
    if ReportPart.CALIBRATION in parts and condition.name == "OP" and has_sessions:
        collected.add(compute_calibration(data, condition, settings, groups))

    report = ConditionReport(
        collected.scalars,
        scores,
        matrix=None if matrix_part is None else matrix_part.matrix,
        similarity=None if matrix_part is None else matrix_part.summary,
        identification=None if identification_part is None else identification_part.identification,
        strongest=None if attacks_part is None else attacks_part.strongest,
        population=None if population_part is None else population_part.rates,
        speakers=None if speakers_part is None else speakers_part.disclosure,
        jackknife=collected.join_jackknives(),
        counts=scored.counts,
        confidence=settings.intervals,
        num_tests=len(data.sides(condition, settings.enrolment)[1]),
    )
    return _ComputedCondition(report, parts, folds, risk_groups)


def _compute_risks(
    pairs: PairBlocks,
    settings: ReportSettings,
    parts: frozenset[ReportPart],
    scored: ScoresPart,
    groups: JackknifeGroups | None,
    length: int | None,
    attacks: FusedAttacker | None,
    attacked: AttacksPart | None,
    collected: _Collected,
) -> FoldsOfCondition | None:
    """Add who is found among 100 people and what conversations disclose.

    Returns the rows that were compared.
    """
    if settings.bandwidth is not None or not RISK_PARTS & parts:
        return None
    is_attacked = "found_in_100" in collected.scalars and not bool(
        collected.scalars["d_ece_strongest"].isnan()
    )
    if ReportPart.FOUND in parts and not is_attacked:
        collected.add(compute_found(scored, groups))
    strongest = None
    if attacked is not None:
        strongest = attacked.strongest
    folds = form_folds(pairs, settings, attacks, strongest)
    if ReportPart.CONVERSATIONS in parts and settings.conversations:
        collected.add(compute_conversations(folds, length, settings, groups))
    return folds


def _compute_identification(
    data: EvaluationData,
    condition: Condition,
    settings: ReportSettings,
    parts: frozenset[ReportPart],
    groups: JackknifeGroups | None,
) -> IdentificationPart:
    """Compute what ranks disclose, and the bits of every probe where these are needed."""
    has_bits = ReportPart.LOCAL in parts or ReportPart.SPEAKERS in parts
    numbers = identify_all_groups(
        data,
        condition,
        settings.scoring,
        settings.slope,
        settings.rank_model,
        settings.bandwidth,
        groups,
        has_bits,
        settings.distractors_of(condition),
    )
    return IdentificationPart(numbers.scalars, numbers.jackknife, identification=numbers.pooled)


def report_embeddings(
    data: EvaluationData,
    settings: ReportSettings,
    make_attacks: Callable[[Sequence[Condition]], FusedAttacker] | None = None,
) -> PrivacyReport:
    """Return the report of all utterances, with the numbers that ``settings`` asks for."""
    has_sessions = data.protected.sessions is not None
    names = [name for name in CONDITIONS if has_sessions or name in WITHOUT_SESSIONS]
    names = [name for name in names if settings.needs_condition(name)]
    hidden = hidden_conditions(CONDITIONS if has_sessions else WITHOUT_SESSIONS)
    parts_of_condition = {name: settings.report_parts_of(name, hidden) for name in names}
    attacks = None
    attacked = _select_conditions(parts_of_condition, ATTACKED_PARTS)
    attacked = [name for name in attacked if name != "OO"]
    with_conversations = _select_conditions(parts_of_condition, {ReportPart.CONVERSATIONS})
    if make_attacks is not None and attacked:
        attacks = make_attacks([CONDITIONS[name] for name in attacked])
    length = None
    if with_conversations and settings.conversations:
        length = _choose_length(data, with_conversations, settings)
    computed = {}
    for name, report_parts in parts_of_condition.items():
        computed[name] = report_condition(
            data, CONDITIONS[name], settings, report_parts, attacks, length
        )
    conditions = {name: condition.report for name, condition in computed.items()}

    labels = data.speakers.sort().values
    dtype = result_dtype(data.original.embeddings, data.protected.embeddings)
    of_system: dict[str, Tensor] = {}
    if with_conversations and settings.conversations and settings.bandwidth is None:
        of_system["conversation_utterances"] = labels.new_tensor(
            math.nan if length is None else float(length), dtype=dtype
        )
    worst_speaker = None
    all_parts = frozenset[ReportPart]().union(*parts_of_condition.values())
    if ReportPart.WORST_SPEAKER in all_parts and settings.bandwidth is None:
        worst_speaker = _find_worst_speaker(computed, labels.unique())
        of_system |= worst_speaker.scalars(data.speakers.device)
    report = join_conditions(
        conditions, labels, dtype, settings.sizes, settings.intervals, attacks, of_system
    )
    report = replace(report, worst_speaker=worst_speaker)
    if settings.has_risk_intervals:
        report = replace(report, risks=collect_risks(report))
        if length is not None:
            report = replace(
                report, shorter_risks=_try_shorter_conversations(report, computed, settings, length)
            )
    return report


def _select_conditions(
    parts_of_condition: Mapping[str, frozenset[ReportPart]], wanted: Collection[ReportPart]
) -> list[str]:
    """Return the conditions whose report has any of the wanted parts."""
    conditions: list[str] = []
    for name, report_parts in parts_of_condition.items():
        if not report_parts.isdisjoint(wanted):
            conditions.append(name)
    return conditions


def _choose_length(
    data: EvaluationData, names: Sequence[str], settings: ReportSettings
) -> int | None:
    """Return how many utterances a conversation has in all conditions; None where too few."""
    has_references = settings.enrolment is not None
    lengths: list[int] = []
    for name in names:
        _, tests = data.sides(CONDITIONS[name], settings.enrolment)
        length = choose_length(tests, CONDITIONS[name], has_references)
        # A condition without conversations is unknown; it does not take them from the others.
        if length is not None:
            lengths.append(length)
    return min(lengths, default=None)


def _find_worst_speaker(computed: Mapping[str, _ComputedCondition], labels: Tensor) -> WorstSpeaker:
    """Find the speaker who discloses most in any condition in which speakers should be hidden."""
    rows_by_condition: list[Collection[TrialRows]] = []
    for condition in computed.values():
        if ReportPart.WORST_SPEAKER in condition.report_parts and condition.folds is not None:
            rows_by_condition.append(condition.folds.single_speakers)
    return find_worst_speaker(rows_by_condition, labels)


def _try_shorter_conversations(
    report: PrivacyReport,
    computed: Mapping[str, _ComputedCondition],
    settings: ReportSettings,
    length: int,
) -> tuple[Risk, ...]:
    """Return the risks of the next shorter conversations, where longer ones are left open."""
    levels = {risk.level for risk in report.risks}
    levels_of_conversations = {risk.level for risk in report.risks if risk.utterances > 1}
    is_shown = not levels.isdisjoint(("moderate", "high"))
    if is_shown or "inconclusive" not in levels_of_conversations:
        return ()
    shorter = [*LENGTHS, 1][LENGTHS.index(length) + 1]
    utterances = torch.full_like(report.scalars["conversation_utterances"], shorter)
    scalars = {**report.scalars, "conversation_utterances": utterances}
    changes: dict[str, Tensor] = {}
    if report.jackknife is not None:
        changes |= report.jackknife.changes
    compared_length = None
    if shorter > 1:
        compared_length = shorter
    for name, condition in computed.items():
        if ReportPart.CONVERSATIONS not in condition.report_parts or condition.folds is None:
            continue
        conversations = compute_conversations(
            condition.folds, compared_length, settings, condition.groups
        )
        for key, value in conversations.scalars.items():
            scalars[scalar_key(name, key)] = value
        if conversations.replicates is not None:
            for key, change in conversations.replicates.changes.items():
                changes[scalar_key(name, key)] = change
    jackknife = report.jackknife
    if jackknife is not None:
        jackknife = jackknife._replace(changes=changes)
    risks = collect_risks(replace(report, scalars=scalars, jackknife=jackknife))
    return tuple(risk for risk in risks if risk.name in MAIN_RISKS)
