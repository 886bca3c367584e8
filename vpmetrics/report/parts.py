"""The parts of a report of one condition.

Each is computed by one function, from what it is given and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from vpmetrics._identification.conversations import DRAWS, ConversationScores, score_conversations
from vpmetrics._identification.identification import Identification
from vpmetrics._identification.population import ConversationProtocol, PopulationRates
from vpmetrics._identification.singling_out import singling_out_rates
from vpmetrics._scores.condition_scores import ConditionScores, collect_pair_scores
from vpmetrics._scores.group_sums import SumsWithoutGroups
from vpmetrics._scores.jackknife import (
    Jackknife,
    JackknifeGroups,
    ReplicateCellCounts,
    count_replicates,
    make_jackknife,
    replicate_diagonal_dominance,
)
from vpmetrics._scores.measures import (
    SCORE_MEASURES,
    choose_sign,
    found_among_of_steps,
    linkability_edges,
)
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.score_counts import Steps, expected_disclosure, lay_edges_at_targets
from vpmetrics._scores.scorers import Scoring, resolve_scoring
from vpmetrics._scores.speaker_disclosure import (
    SpeakerDisclosure,
    average_bits_by_speaker,
    compute_speaker_disclosure,
    speaker_scalars,
)
from vpmetrics._scores.speaker_similarity import SimilaritySummary, summarise_similarity
from vpmetrics._scores.trial_rows import TrialRows, make_plain_rows
from vpmetrics._scores.worst_speaker import linkability_by_chance
from vpmetrics._util.dtypes import wide_dtype, widen
from vpmetrics._util.validation import suppress_warnings, warn_if
from vpmetrics._utterances.conditions import WITHOUT_SESSIONS, Condition
from vpmetrics._utterances.utterances import EvaluationData, add_counts
from vpmetrics.attacks.features import PROFILES
from vpmetrics.report.trial_report import ScoredTrials, calibrate_across_session_halves, mean_c_ece

if TYPE_CHECKING:
    from vpmetrics.attacks.fold_rows import FoldRows
    from vpmetrics.attacks.fusion import FusedAttacker
    from vpmetrics.attacks.results import FusedResult

_FEW_ENTRIES = 1 << 18  # of embeddings, of which rows after all attacks are kept: 50 times as many
_LARGEST_BINNING_ERROR = 0.01  # bits of D_ECE; of a larger error by binning there is a warning


class ReportPart(Enum):
    """A part of the report of a condition: a family of numbers of the registry.

    Score measures are always computed: every other part needs the scores.
    """

    SCORES = "score"
    SIMILARITY = "matrix"
    LINKABILITY_CHANCE = "chance"
    RANKS = "rank"
    LOCAL = "local"
    SPEAKERS = "speaker"
    WORST_SPEAKER = "worst"
    ATTACKS = "attack"
    ATTACK_LIMIT = "attack_limit"
    FOUND = "found"
    CONVERSATIONS = "conversation"
    POPULATION = "population"
    ATTACKED_POPULATION = "attacked_population"
    CALIBRATION = "calibration"


ATTACKED_PARTS = frozenset(
    [ReportPart.ATTACKS, ReportPart.ATTACK_LIMIT, ReportPart.ATTACKED_POPULATION]
)
RISK_PARTS = frozenset([ReportPart.FOUND, ReportPart.CONVERSATIONS, ReportPart.WORST_SPEAKER])


@dataclass(frozen=True)
class ReportSettings:
    """How embeddings are compared, and what is computed from their scores.

    See :class:`vpmetrics.VoicePrivacy`.

    ``families``: pairs of a condition and a family of numbers, ``measures``: score measures; None
    asks for all. ``has_risk_intervals``: whether the risks of a verdict are replicated where
    ``intervals`` does not ask for it. ``distractors``: more enrolled speakers ``(G, D)`` by side.
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
    conversations: int = DRAWS
    has_risk_intervals: bool = False
    distractors: Mapping[str, Tensor] | None = None

    def distractors_of(self, condition: Condition) -> Tensor | None:
        """Return further enrolled speakers ``(G, D)`` of a condition; None where it has none."""
        if self.distractors is None:
            return None
        return self.distractors.get(condition.enrolment)

    def needs_condition(self, condition: str) -> bool:
        """Return whether any number of a condition is needed."""
        return self.families is None or any(name == condition for name, _ in self.families)

    def report_parts_of(self, condition: str, hidden: Collection[str]) -> frozenset[ReportPart]:
        """Return the parts that the report of a condition needs.

        Speakers should be ``hidden`` in these conditions; others have no risks.
        """
        if self.families is not None:
            families = [family for name, family in self.families if name == condition]
            return frozenset(map(ReportPart, families))
        if condition in hidden:
            return frozenset(ReportPart)
        return frozenset(ReportPart) - RISK_PARTS


@dataclass(frozen=True, eq=False)
class Numbers:
    """Numbers of a condition by key, and with intervals those without each jackknife group."""

    scalars: dict[str, Tensor]
    replicates: Jackknife | None = None


@dataclass(frozen=True, eq=False)
class ScoresPart(Numbers):
    """Score measures, and the scores and counts that they are computed from."""

    scores: ConditionScores = field(kw_only=True)
    counts: ReplicateCellCounts | None = None


@dataclass(frozen=True, eq=False)
class SimilarityPart(Numbers):
    """Similarities of speakers: a summary, and their matrix where it is small enough to keep."""

    summary: SimilaritySummary = field(kw_only=True)
    matrix: Tensor | None = None


@dataclass(frozen=True, eq=False)
class IdentificationPart(Numbers):
    """What the ranks of probes disclose and, where needed, their local information."""

    identification: Identification = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class SpeakersPart(Numbers):
    """What the trials of every single speaker disclose."""

    disclosure: SpeakerDisclosure = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class AttacksPart(Numbers):
    """What the fused attacker, fitted on other speakers, learns."""

    strongest: FusedResult = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class PopulationPart(Numbers):
    """How often speakers are found in a population."""

    rates: PopulationRates = field(kw_only=True)


def form_all_pairs(
    data: EvaluationData, condition: Condition, settings: ReportSettings
) -> PairBlocks:
    """Return all trials of a condition, not scored yet."""
    enrolment, test = data.sides(condition, settings.enrolment)
    return PairBlocks(
        enrolment,
        test,
        len(data.speakers),
        resolve_scoring(settings.scoring),
        condition,
        data.processes,
        keep_digits=settings.bandwidth is None,
    )


def score_pairs(
    pairs: PairBlocks, condition: Condition, settings: ReportSettings
) -> ConditionScores:
    """Return the scores of all trials; warn where bins are too wide to know their D_ECE."""
    scores = collect_pair_scores(pairs, settings.bandwidth)
    if scores.worst_counts is None:  # scores are not binned
        return scores
    # The order of scores within a bin is lost. Ties give the lowest possible D_ECE, perfect
    # separation the highest.
    separated_counts = scores.worst_counts()
    lowest = expected_disclosure(scores.counts.ascending)
    highest = expected_disclosure(separated_counts.ascending)

    def describe_error(bits: float) -> str | None:
        if not bits > _LARGEST_BINNING_ERROR:
            return None
        return (
            f"Scores of {condition.name} share bins that are too wide: its D_ECE may be off by"
            f" {bits:.3f} bit. Measure fewer utterances, or scale what is compared."
        )

    # The error stays on the device until all warnings are read at once, and is described then.
    warn_if(highest - lowest, describe_error)
    return scores


def measure_scores(scores: ConditionScores, settings: ReportSettings) -> dict[str, Tensor]:
    """Compute the score measures that are asked for."""
    scalars: dict[str, Tensor] = {}
    for key, measure in SCORE_MEASURES.items():
        if settings.measures is None or key in settings.measures:
            scalars[key] = measure(scores.measure_input)
    return scalars


def replicate_scores(
    scalars: dict[str, Tensor],
    pairs: PairBlocks,
    scores: ConditionScores,
    speakers: Tensor,
    groups: JackknifeGroups | None,
    settings: ReportSettings,
    replicated_similarity: tuple[SimilaritySummary, Tensor | None] | None,
) -> ScoresPart:
    """Return the score measures with their replicates.

    ``replicated_similarity``: summary and matrix, where replicates of these are needed.
    """
    if groups is None or not scores.is_defined:
        return ScoresPart(scalars, scores=scores)
    summary: SimilaritySummary | None = None
    matrix: Tensor | None = None
    if replicated_similarity is not None:
        summary, matrix = replicated_similarity
    counts = count_replicates(pairs, scores, groups, speakers, summary, matrix, settings.similarity)
    return ScoresPart(scalars, counts.make_jackknife(scalars), scores=scores, counts=counts)


def summarise_pairs(
    pairs: PairBlocks, scores: ConditionScores, settings: ReportSettings
) -> tuple[SimilaritySummary, Tensor | None]:
    """Return the similarities of speakers as a summary, and their matrix where it is kept."""
    return summarise_similarity(pairs, scores, settings.similarity)


def compute_linkability_chance(pairs: PairBlocks, scores: ConditionScores) -> Tensor:
    """Compute the linkability with speakers permuted, in the bins of all trials."""
    with suppress_warnings():
        edges = linkability_edges(scores.trials)
    return linkability_by_chance(make_plain_rows(pairs), edges)


def compute_similarity(
    similarity: tuple[SimilaritySummary, Tensor | None],
    scored: ScoresPart,
    speakers: Tensor,
    settings: ReportSettings,
    has_replicates: bool,
) -> SimilarityPart:
    """Compute the diagonal dominance of the similarity matrix.

    The part has speakers in the order of their labels.
    """
    summary, matrix = similarity
    scalars = {"d_diag": summary.dominance, "d_diag_log": summary.dominance_log}
    replicates = None
    counts = scored.counts
    if counts is not None and has_replicates:
        group_of_speaker = counts.groups.find_groups(speakers)
        values = replicate_diagonal_dominance(
            counts,
            summary,
            group_of_speaker,
            scored.scores.has_unordered_pairs,
            settings.similarity,
        )
        replicates = make_jackknife(values, counts.groups, counts.min_speakers_per_class)
    order = speakers.argsort(stable=True)
    ordered_summary = summary._replace(
        within_speaker=summary.within_speaker[order],
        between_speakers=summary.between_speakers[order],
        pair_sums=summary.pair_sums[:, order],
    )
    ordered_matrix = None
    if matrix is not None:
        ordered_matrix = matrix[order][:, order]
    return SimilarityPart(scalars, replicates, summary=ordered_summary, matrix=ordered_matrix)


def compute_speakers(
    pairs: PairBlocks, scores: ConditionScores, speakers: Tensor, identification: Identification
) -> SpeakersPart:
    """Compute what the trials and the probes of every speaker disclose."""
    disclosure = compute_speaker_disclosure(pairs, scores, speakers)
    scalars = speaker_scalars(disclosure, average_bits_by_speaker(identification))
    return SpeakersPart(scalars, disclosure=disclosure)


def compute_attacks(
    attacks: FusedAttacker,
    condition: Condition,
    scored: ScoresPart,
    groups: JackknifeGroups | None,
    has_limit: bool = False,
) -> AttacksPart:
    """Compute what the fused attacker learns in a condition; never less than by plain comparison.

    ``has_limit``: whether also what it would learn from very many speakers, which needs two more
    fits.
    """
    plain_replicates = None
    if scored.counts is not None:
        plain_replicates = scored.counts.measure_input.counts
    strongest = attacks.result(condition, groups, scored.scores.counts, plain_replicates)
    replicates = None
    if groups is not None and strongest.replicates is not None:
        replicates = make_jackknife(strongest.replicates, groups)
    scalars = strongest.scalars()
    if has_limit:
        curve = attacks.learning_curve(condition, strongest, scored.scores.counts)
        scalars["attack_limit"] = curve.limit
        strongest = replace(strongest, curve=curve)
    return AttacksPart(scalars, replicates, strongest=strongest)


def compute_found(scored: ScoresPart, groups: JackknifeGroups | None) -> Numbers:
    """Compute how often the better sign of plain scores finds the right one of 100 people."""
    sign = choose_sign(scored.scores.counts)
    scalars = {"found_in_100": found_among_of_steps(scored.scores.counts[sign])}
    if groups is None or scored.counts is None:
        return Numbers(scalars)
    replicates = {"found_in_100": found_among_of_steps(scored.counts.measure_input.counts[sign])}
    jackknife = make_jackknife(replicates, groups, scored.counts.min_speakers_per_class)
    return Numbers(scalars, jackknife)


@dataclass(frozen=True, eq=False)
class FoldsOfCondition:
    """Rows of a condition whose comparison gives its scores.

    ``plain``: rows of plain comparison by encoder, one fold of all speakers each. ``attacked``: of
    each fold of speakers after the fused attack, with the profile that finds most by single
    utterances; None where none was tried. ``single_speakers``: rows in which single speakers are
    looked for; after the attack with all that an attacker may have, since a choice by what all
    speakers disclose would favour the real ones over permuted ones.
    """

    plain: Sequence[TrialRows]
    attacked: Collection[TrialRows] | None
    single_speakers: Collection[TrialRows]


class _AttackedFolds(Collection[TrialRows]):
    """Rows of all folds after the fused attack; where they are many, formed again every time."""

    def __init__(self, folds: Sequence[FoldRows], condition: Condition) -> None:
        self._folds = folds
        self._condition = condition

    def __len__(self) -> int:
        return len(self._folds)

    def __contains__(self, fold: object) -> bool:
        return False

    def __iter__(self) -> Iterator[TrialRows]:
        for fold in self._folds:
            yield _as_trial_rows(fold, self._condition)


def _as_trial_rows(fold: FoldRows, condition: Condition) -> TrialRows:
    """Return the rows of a fold as they are compared."""

    def average(enrolment_members: Tensor, test_members: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        conversations = fold.average(enrolment_members, test_members)
        return [conversations.join(), conversations.join(is_permuted=True)]

    enrolment_rows, test_rows = fold.join()
    return TrialRows(fold.enrolment, fold.test, enrolment_rows, test_rows, condition, average)


def form_folds(
    pairs: PairBlocks,
    settings: ReportSettings,
    attacks: FusedAttacker | None,
    strongest: FusedResult | None,
) -> FoldsOfCondition:
    """Return the rows of plain comparison, and of the fused attacker where one was tried."""
    condition = pairs.condition
    plain = [make_plain_rows(pairs)]
    if attacks is None or strongest is None or not strongest.attacks:
        return FoldsOfCondition(plain, None, plain)
    # A scoring may be fitted to the first encoder.
    by_cosine = replace(settings, scoring="cosine")
    for other_encoder in attacks.encoders[1:]:
        other_pairs = form_all_pairs(other_encoder, pairs.condition, by_cosine)
        plain.append(make_plain_rows(other_pairs))
    num_rows = len(plain[0].enrolment) + len(plain[0].test)
    num_entries = num_rows * plain[0].enrolment_rows.shape[1]

    def form_attacked(profile: int) -> Collection[TrialRows]:
        folds = attacks.fold_rows(condition, PROFILES[profile])
        if num_entries <= _FEW_ENTRIES:
            folds = list(folds)
        return _AttackedFolds(folds, condition)

    richest = len(PROFILES) - 1
    of_richest = form_attacked(richest)
    if strongest.profile is None or strongest.profile == richest:
        return FoldsOfCondition(plain, of_richest, of_richest)
    return FoldsOfCondition(plain, form_attacked(strongest.profile), of_richest)


@dataclass(frozen=True, eq=False)
class _ScoredConversations:
    """Numbers of conversations as one attacker scores them, and the disclosure by chance."""

    d_ece: Tensor
    chance: Tensor
    found: Tensor
    replicates: Jackknife | None


def compute_conversations(
    folds: FoldsOfCondition,
    length: int | None,
    settings: ReportSettings,
    groups: JackknifeGroups | None,
) -> Numbers:
    """Compute what ``length`` utterances of one person disclose to the best of several attackers.

    The attackers are plain comparison by each encoder, with either sign of the score, and the fused
    attacker where one was tried. The chance level is the largest of theirs, because the best one is
    chosen among them. Numbers are NaN without a length.
    """
    keys = ("d_ece_conversation", "d_ece_conversation_chance", "found_in_100_conversation")
    device = folds.plain[0].enrolment_rows.device
    if length is None:
        nan = torch.full((), torch.nan, dtype=wide_dtype(device), device=device)
        return Numbers(dict.fromkeys(keys, nan))
    has_references = settings.enrolment is not None
    # With "speaker", a row is the mean of a speaker's references, and is not grouped again.
    is_enrolment_grouped = settings.enrolment != "speaker"

    def score(folds_of_rows: Collection[TrialRows]) -> ConversationScores:
        return score_conversations(
            folds_of_rows,
            length,
            settings.conversations,
            has_references=has_references,
            is_enrolment_grouped=is_enrolment_grouped,
        )

    with suppress_warnings():
        attackers: list[_ScoredConversations] = []
        for plain_rows in folds.plain:
            one_fold_of_all_speakers = [plain_rows]
            attackers += _measure_conversations(
                score(one_fold_of_all_speakers), groups, num_signs=2
            )
        if folds.attacked is not None:
            # The fused attacker has learnt the sign on other speakers.
            attackers += _measure_conversations(score(folds.attacked), groups, num_signs=1)
    disclosures = torch.stack([attacker.d_ece for attacker in attackers])
    best = attackers[int(disclosures.nan_to_num(-torch.inf).argmax())]
    chances = torch.stack([attacker.chance for attacker in attackers])
    largest_chance = chances.nan_to_num(-torch.inf).amax()
    chance = torch.where(chances.isnan().all(), torch.nan, largest_chance)
    scalars = dict(zip(keys, (best.d_ece, chance, best.found), strict=True))
    return Numbers(scalars, best.replicates)


def _measure_conversations(
    scored: ConversationScores, groups: JackknifeGroups | None, num_signs: int
) -> list[_ScoredConversations]:
    """Return the numbers of conversations for scores and, with two signs, for negated scores."""
    target_scores = scored.scores[scored.is_target]
    chance_target_scores = scored.chance_scores[scored.is_chance_target]
    edges = lay_edges_at_targets([target_scores, chance_target_scores])
    num_cells = len(edges) + 1
    # Trials and then trials by chance; non-targets and then targets.
    counts = torch.zeros(2, 2, num_cells, dtype=torch.int64, device=edges.device)
    cell = torch.bucketize(scored.scores, edges, right=True)
    chance_cell = torch.bucketize(scored.chance_scores, edges, right=True)
    add_counts(counts[0].view(-1), cell + num_cells * scored.is_target)
    add_counts(counts[1].view(-1), chance_cell + num_cells * scored.is_chance_target)
    both_signs = torch.stack([counts, counts.flip(-1)][:num_signs], dim=1)  # (2, signs, 2, C)
    nontargets, targets = widen(both_signs).unbind(2)
    steps = Steps(edges, targets, nontargets)
    has_nan = scored.scores.isnan().any() | scored.chance_scores.isnan().any()
    disclosure, chance = torch.where(has_nan, torch.nan, expected_disclosure(steps))
    found, _ = torch.where(has_nan, torch.nan, found_among_of_steps(steps))
    replicates: list[Jackknife | None] = [None] * num_signs
    if groups is not None and not bool(disclosure[0].isnan()):
        replicates = _replicate_conversations(scored, groups, cell, num_cells, num_signs)
    of_signs: list[_ScoredConversations] = []
    for sign in range(num_signs):
        of_signs.append(
            _ScoredConversations(disclosure[sign], chance[sign], found[sign], replicates[sign])
        )
    return of_signs


def _replicate_conversations(
    scored: ConversationScores,
    groups: JackknifeGroups,
    cell: Tensor,
    num_cells: int,
    num_signs: int,
) -> list[Jackknife | None]:
    """Return the replicates of the numbers of conversations, for scores and for negated scores."""
    label_index = torch.searchsorted(groups.labels, scored.labels.contiguous())
    enrolment_group, test_group = groups.group_of_label[label_index]

    def count_class(is_of_class: Tensor) -> Tensor:
        sums = SumsWithoutGroups(groups.num_groups, num_cells, torch.int64, cell.device)
        sums.add(cell[is_of_class], enrolment_group[is_of_class], test_group[is_of_class])
        return widen(sums.of_all_and_without_groups())

    nontargets = count_class(~scored.is_target)
    targets = count_class(scored.is_target)
    num_speakers = min(_count_groups_that_matter(nontargets), _count_groups_that_matter(targets))
    jackknives: list[Jackknife | None] = []
    for flipped_axes in ((), (-1,))[:num_signs]:
        steps = Steps(
            targets.new_empty(0), targets.flip(flipped_axes), nontargets.flip(flipped_axes)
        )
        values = {
            "d_ece_conversation": expected_disclosure(steps),
            "found_in_100_conversation": found_among_of_steps(steps),
        }
        jackknives.append(make_jackknife(values, groups, num_speakers))
    return jackknives


def _count_groups_that_matter(counts: Tensor) -> int:
    """Return without how many groups the counts ``(1 + G, C)`` differ."""
    return int((counts[1:] != counts[:1]).any(1).sum())


def compute_population(
    data: EvaluationData,
    condition: Condition,
    settings: ReportSettings,
    parts: frozenset[ReportPart],
    groups: JackknifeGroups | None,
    attacks: FusedAttacker | None,
    attacked: AttacksPart | None,
) -> PopulationPart:
    """Compute how often speakers are found among as many people as ``settings.sizes`` says."""
    sizes = settings.sizes
    protocol = ConversationProtocol(
        condition, settings.scoring, distractors=settings.distractors_of(condition)
    )
    strongest = None
    if attacked is not None:
        strongest = attacked.strongest
    rates = PopulationRates(data, protocol, attacks, strongest)
    scalars: dict[str, Tensor] = {}
    if ReportPart.POPULATION in parts:
        scalars |= rates(sizes)
        # Conversations of several sessions cannot calibrate each other.
        if condition.name in WITHOUT_SESSIONS:
            scalars |= singling_out_rates(data, protocol, sizes)
    if ReportPart.ATTACKED_POPULATION in parts:
        for key, value in rates.after_strongest_attack(sizes).items():
            scalars[f"{key}_strongest"] = value
    replicates = None
    if groups is not None:
        replicates = make_jackknife(rates.replicates(sizes, groups), groups)
    return PopulationPart(scalars, replicates, rates=rates)


def compute_calibration(
    data: EvaluationData,
    condition: Condition,
    settings: ReportSettings,
    groups: JackknifeGroups | None,
) -> Numbers:
    """Compute C_ECE with a calibration from other sessions, the same for every replicate."""

    def score_run(run: EvaluationData) -> ScoredTrials:
        pairs = form_all_pairs(run, condition, settings)
        scores, is_target = pairs.scores_and_labels()
        return ScoredTrials(scores, is_target, run.speakers[pairs.trial_speakers()])

    runs = calibrate_across_session_halves(data, score_run)
    scalars = {"c_ece": mean_c_ece(runs)}
    if groups is None:
        return Numbers(scalars)
    costs = torch.stack([_replicate_c_ece(run, groups) for run in runs])
    return Numbers(scalars, make_jackknife({"c_ece": costs.mean(0)}, groups))


def _replicate_c_ece(run: ScoredTrials, groups: JackknifeGroups) -> Tensor:
    """Return C_ECE of calibrated trials of all speakers and without each group, ``(1 + G,)``."""
    speaker_index = torch.searchsorted(groups.labels, run.speakers_or_raise().contiguous())
    return run._replace(speakers=speaker_index).replicate_costs("c_ece", run.scores, groups)
