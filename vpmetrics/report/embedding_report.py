"""The report of embeddings: each condition is scored once, and only the requested numbers are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from vpmetrics._scores.condition_scores import ConditionScores
from vpmetrics._scores.jackknife import CountingCells, Jackknife, JackknifeGroups, group_speakers, join_jackknives
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.speaker_disclosure import (
    SelfCalibratedDisclosure,
    compute_self_calibrated_disclosure,
    count_targets_per_permutation,
    linkability_chance_level,
)
from vpmetrics._scores.speaker_similarity import mean_score_matrix
from vpmetrics._util.dtypes import result_dtype
from vpmetrics._utterances.conditions import CONDITIONS, WITHOUT_SESSIONS, Condition
from vpmetrics._utterances.utterances import EvaluationData
from vpmetrics.report.identification_scalars import identify_all_groups
from vpmetrics.report.parts import (
    IdentificationPart,
    Part,
    ReportSettings,
    compute_attacks,
    compute_calibration,
    compute_population,
    compute_scores,
    compute_similarity,
    compute_speakers,
    form_all_pairs,
    score_pairs,
    summarise_pairs,
)
from vpmetrics.report.privacy_report import ConditionReport, PrivacyReport, join_conditions

if TYPE_CHECKING:
    from vpmetrics.attacks.fusion import FusedAttacker

_SPEAKER_CELLS = 1 << 8  # of the score axis that trials of single speakers are counted in


def report_condition(
    data: EvaluationData, condition: Condition, settings: ReportSettings, attacks: FusedAttacker | None = None
) -> ConditionReport:
    """Return the report of one condition: its score measures, and the parts that are needed."""
    parts = settings.parts_of(condition.name)
    groups = None if settings.intervals is None else group_speakers(data)
    pairs = form_all_pairs(data, condition, settings)
    scores = score_pairs(pairs, condition, settings)
    scalars: dict[str, Tensor] = {}
    jackknives: list[Jackknife | None] = []

    # First, since it needs the most memory.
    worst_speaker = None
    if {Part.WORST_SPEAKER, Part.LINKABILITY_CHANCE} & parts and settings.bandwidth is None:
        chance, worst_speaker = _permute_speakers(pairs, scores, condition, data.speakers, parts)
        scalars |= chance

    similarity = None
    if Part.SIMILARITY in parts:
        similarity = summarise_pairs(pairs, scores, settings)
    scored = compute_scores(pairs, scores, data.speakers, groups, settings, similarity)
    scalars = scored.scalars | scalars
    jackknives.append(scored.replicates)

    matrix_part = None
    if similarity is not None:
        matrix_part = compute_similarity(similarity, scored, data.speakers, settings)
        scalars |= matrix_part.scalars
        jackknives.append(matrix_part.replicates)

    identification_part = None
    if {Part.RANKS, Part.LOCAL, Part.SPEAKERS} & parts:
        identification_part = _compute_identification(data, condition, settings, parts, groups)
        scalars |= identification_part.scalars
        jackknives.append(identification_part.replicates)

    speakers_part = None
    if Part.SPEAKERS in parts and identification_part is not None:
        speakers_part = compute_speakers(pairs, scores, data.speakers, identification_part.identification)
        scalars |= speakers_part.scalars

    attacks_part = None
    if attacks is not None and condition.name != "OO" and {Part.ATTACKS, Part.ATTACKED_POPULATION} & parts:
        attacks_part = compute_attacks(attacks, condition, scored, groups)
        scalars |= attacks_part.scalars
        jackknives.append(attacks_part.replicates)

    population_part = None
    if settings.sizes and {Part.POPULATION, Part.ATTACKED_POPULATION} & parts:
        used_attacks = None if attacks_part is None else attacks
        population_part = compute_population(data, condition, settings, parts, groups, used_attacks, attacks_part)
        scalars |= population_part.scalars
        jackknives.append(population_part.replicates)

    has_sessions = data.protected.sessions is not None
    if Part.CALIBRATION in parts and condition.name == "OP" and has_sessions:
        calibration_part = compute_calibration(data, condition, settings, groups)
        scalars |= calibration_part.scalars
        jackknives.append(calibration_part.replicates)

    known_jackknives = [jackknife for jackknife in jackknives if jackknife is not None]
    order = data.speakers.argsort(stable=True)
    return ConditionReport(
        scalars,
        scores,
        matrix=None if matrix_part is None else matrix_part.matrix,
        similarity=None if matrix_part is None else matrix_part.summary,
        identification=None if identification_part is None else identification_part.identification,
        mean_scores=lambda: mean_score_matrix(form_all_pairs(data, condition, settings))[order][:, order],
        strongest=None if attacks_part is None else attacks_part.strongest,
        population=None if population_part is None else population_part.rates,
        speakers=None if speakers_part is None else speakers_part.disclosure,
        worst_speaker=worst_speaker,
        jackknife=join_jackknives(known_jackknives) if known_jackknives else None,
        counts=scored.counts,
        confidence=settings.intervals,
    )


def _compute_identification(
    data: EvaluationData,
    condition: Condition,
    settings: ReportSettings,
    parts: frozenset[Part],
    groups: JackknifeGroups | None,
) -> IdentificationPart:
    """Compute what ranks disclose; with local information or single speakers also the bits of every probe."""
    has_bits = Part.LOCAL in parts or Part.SPEAKERS in parts
    numbers = identify_all_groups(
        data,
        condition,
        settings.scoring,
        settings.slope,
        settings.rank_model,
        settings.bandwidth,
        groups,
        has_bits,
    )
    return IdentificationPart(numbers.scalars, numbers.jackknife, numbers.pooled)


def _permute_speakers(
    pairs: PairBlocks, scores: ConditionScores, condition: Condition, speakers: Tensor, parts: frozenset[Part]
) -> tuple[dict[str, Tensor], SelfCalibratedDisclosure | None]:
    """Return the linkability by chance, and the worst speaker of OP, where these parts are needed."""
    cells = CountingCells(scores, max_cells=_SPEAKER_CELLS)
    permuted_targets = count_targets_per_permutation(pairs, cells)
    scalars: dict[str, Tensor] = {}
    if Part.LINKABILITY_CHANCE in parts:
        scalars["linkability_chance"] = linkability_chance_level(scores, cells, permuted_targets)
    if Part.WORST_SPEAKER not in parts or condition.name != "OP":
        return scalars, None
    worst = compute_self_calibrated_disclosure(pairs, cells, permuted_targets)
    return scalars, worst._replace(d_ece=worst.d_ece[speakers.argsort(stable=True)])


def report_embeddings(
    data: EvaluationData,
    settings: ReportSettings,
    make_attacks: Callable[[Sequence[Condition]], FusedAttacker] | None = None,
) -> PrivacyReport:
    """Return the report of all utterances, with the numbers that ``settings`` asks for."""
    has_sessions = data.protected.sessions is not None
    names = [name for name in CONDITIONS if has_sessions or name in WITHOUT_SESSIONS]
    names = [name for name in names if settings.needs_condition(name)]
    attack_parts = {Part.ATTACKS, Part.ATTACKED_POPULATION}
    attacked = [name for name in names if name != "OO" and attack_parts & settings.parts_of(name)]
    attacks = None
    if make_attacks is not None and attacked:
        attacks = make_attacks([CONDITIONS[name] for name in attacked])
    conditions = {name: report_condition(data, CONDITIONS[name], settings, attacks) for name in names}
    labels = data.speakers.sort().values
    dtype = result_dtype(data.original.embeddings, data.protected.embeddings)
    return join_conditions(conditions, labels, dtype, settings.sizes, settings.intervals, attacks)
