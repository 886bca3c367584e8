"""Confidence intervals by the bootstrap over speakers: slower than the jackknife, and a check of its intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from vpmetrics._engine.condition_scores import ConditionScores, collect_pair_scores, collect_trial_scores
from vpmetrics._engine.conditions import CONDITIONS, WITHOUT_SESSIONS
from vpmetrics._engine.identification import count_above_tied_nan, identify
from vpmetrics._engine.jackknife import CountingCells, check_enough_speakers, clopper_pearson_or_0, students_t_quantile
from vpmetrics._engine.measures import SCORE_MEASURES, linkability_edges
from vpmetrics._engine.pair_blocks import PairBlocks
from vpmetrics._engine.precision import result_dtype, widen
from vpmetrics._engine.references import IdentificationTrials, form_condition_trials, score_inputs
from vpmetrics._engine.registry import scalar
from vpmetrics._engine.score_counts import CountedScores, ScoresAndSteps, Steps, steps_of_both_signs
from vpmetrics._engine.scorers import Scoring, resolve_scoring
from vpmetrics._engine.speaker_similarity import SIMILARITIES
from vpmetrics._engine.utterances import (
    EvaluationData,
    count_values,
    deduplicate_and_index,
    order_speakers_by_value,
    pack_utterances,
)
from vpmetrics._engine.validation import (
    check_choice,
    check_choices,
    check_confidence,
    check_speakers_of_trials,
    check_trials,
    check_whole_number,
    collect_warnings,
    warn_undefined,
)
from vpmetrics.functional.rank import rank_disclosure

MEASURES = tuple(key for key, measure in SCORE_MEASURES.items() if measure.has_interval)
_OF_MATRICES = {"deid": ("OO", "OP"), "gvd": ("OO", "PP")}
_OF_INPUTS = ("mean_d", "alid")
EMBEDDING_MEASURES = (
    *_OF_MATRICES,
    *(f"{name.lower()}_{measure}" for name in WITHOUT_SESSIONS for measure in (*MEASURES, *_OF_INPUTS)),
)
_MOST_CELLS = 1 << 12  # up to this number of different scores each has a cell of its own
_MOST_COUNTS = 1 << 22  # of the replicates worked on at a time


SpeakerCounts = dict[str, int]
"""For each measure, the smaller of the two numbers of speakers: with target trials, and with non-target trials."""


class IntervalWithReplicates(NamedTuple):
    """A value, both ends of its interval, and the value of each replicate ``(R,)``, NaN where it is undefined."""

    value: Tensor
    low: Tensor
    high: Tensor
    replicates: Tensor


def bootstrap(
    preds: Tensor,
    target: Tensor,
    speakers: Sequence[Tensor],
    measures: Sequence[str] = MEASURES,
    replicates: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    validate_args: bool = True,
) -> dict[str, IntervalWithReplicates]:
    r"""Compute confidence intervals by resampling speakers with replacement, never trials, since trials share speakers.

    A speaker drawn :math:`w` times weighs :math:`w`: in every replicate a target trial of speaker i weighs
    :math:`w_i`, a non-target trial of speakers i and j weighs :math:`w_i w_j`, so copies of one speaker never meet.
    Every replicate is calibrated by itself. With the mean :math:`\bar\theta` and the standard deviation :math:`\sigma`
    of the replicates the interval of a value :math:`\theta` is

    .. math:: \theta - (\bar\theta - \theta) \pm t_{S - 1}\, \sigma \sqrt{S / (S - 1)}

    with Student's t for S speakers, corrected for bias: a calibration overfits its own trials. Where all replicates are
    the same end of a range, the reach is a Clopper–Pearson bound on the share of speakers that differ.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike; for ``cllr``, log-likelihood ratios.
        target: 1 (same speaker) or 0 (different), of the same shape.
        speakers: Speakers of the enrolment side and of the test side: two integer tensors of the same shape.
        measures: Score measures with an interval, such as ``d_ece`` or ``eer``; ``linkability`` has the bins of all
            trials.
        replicates: Number of replicates.
        confidence: Confidence level.
        seed: Seed of the draws; labels of speakers and the order of trials change nothing.
        validate_args: Whether values are validated (NaN, labels, speakers); forces a GPU sync.

    Returns:
        ``value``, ``low``, ``high`` and ``replicates`` ``(R,)`` of each measure. Replicates without one class of trials
        are NaN and left out; without one class at all everything is NaN, with one warning. Fewer than three speakers
        with trials of both classes have no interval: NaN, with one warning.

    Example:
        >>> speakers = torch.arange(60).repeat_interleave(60) % 12, torch.arange(60).repeat(60) % 12
        >>> target = speakers[0] == speakers[1]
        >>> preds = torch.randn(3600, generator=torch.Generator().manual_seed(0)) + target
        >>> value, low, high, _ = bootstrap(preds, target, speakers, measures=["eer"], replicates=200)["eer"]
        >>> value, low, high
        (tensor(0.2938), tensor(0.2590), tensor(0.3343))
    """
    check_trials(preds, target, validate_args)
    check_speakers_of_trials(speakers, target, validate_args)
    _check_arguments(measures, MEASURES, replicates, confidence, seed)
    scores, is_target = preds.detach().flatten(), target.flatten().bool()
    labels, places = torch.stack([side.flatten() for side in speakers]).unique(return_inverse=True)
    # The sums of ranks identify a speaker whatever the labels are.
    rank = scores.argsort(stable=True).argsort() * 2 + is_target
    order = rank.new_zeros(len(labels)).index_add(0, places.flatten(), rank.repeat(2)).argsort(stable=True)
    weights = _weights_of_all_and_replicates(len(labels), replicates, seed).to(preds.device)[:, order.argsort()]
    with collect_warnings():
        trials = SpeakerTrials(collect_trial_scores(scores, is_target), scores, is_target, places, len(labels))
        values = trials.compute_measures(weights, measures)
        counts = dict.fromkeys(measures, trials.fewest_speakers_per_class())
        return _bias_corrected_t_intervals(values, counts, len(labels), confidence, result_dtype(preds))


def bootstrap_embeddings(
    original: Tensor,
    protected: Tensor,
    speakers: Tensor,
    measures: Sequence[str] = ("deid", "gvd", "op_d_ece", "op_mean_d", "op_alid"),
    replicates: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    scoring: Scoring = "cosine",
    similarity: str = "geometric",
    validate_args: bool = True,
) -> dict[str, IntervalWithReplicates]:
    r"""Compute confidence intervals from embeddings by resampling speakers, as :func:`bootstrap` does.

    For ``deid`` and ``gvd`` every replicate calibrates each condition by itself, under Laplace's rule, and averages its
    own matrices: a speaker drawn :math:`w` times is :math:`w` rows and columns. For ``mean_d`` and ``alid`` the inputs
    are resampled; references and slopes stay. Every score is kept, so use it for some thousand utterances at most.

    Args:
        original: Embeddings ``(N, D)`` of the original speech.
        protected: Embeddings ``(N, D)`` of the protected speech, row i that of row i of ``original``.
        speakers: Speaker of each row, ``(N,)`` integers.
        measures: ``deid``, ``gvd``, and after ``oo_``, ``op_`` or ``pp_`` a measure of :func:`bootstrap`, ``mean_d`` or
            ``alid``.
        replicates: Number of replicates.
        confidence: Confidence level.
        seed: Seed of the draws; labels of speakers and the order of rows change nothing.
        scoring: How embeddings are compared, see :class:`vpmetrics.VoicePrivacy`.
        similarity: ``"geometric"`` or ``"sigmoid"``, see :func:`voice_similarity_matrix`.
        validate_args: Whether NaN and infinite embeddings raise; forces a GPU sync once.

    Returns:
        What :func:`bootstrap` returns, by the names of ``measures``.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> speakers = torch.arange(8).repeat_interleave(5)
        >>> original = torch.randn(8, 16, generator=draw)[speakers] + torch.randn(40, 16, generator=draw)
        >>> protected = 0.5 * original + torch.randn(40, 16, generator=draw)
        >>> value, low, high, _ = bootstrap_embeddings(original, protected, speakers, ["deid"], 100)["deid"]
        >>> value, low, high
        (tensor(0.3973), tensor(0.3154), tensor(0.5277))
    """
    _check_arguments(measures, EMBEDDING_MEASURES, replicates, confidence, seed)
    check_choice("similarity", similarity, SIMILARITIES)
    data = deduplicate_and_index(pack_utterances(original, protected, speakers, validate_values=validate_args))
    num_speakers = len(data.speakers)
    with collect_warnings():
        if num_speakers > 1:
            values, counts = _replicate_embedding_measures(data, measures, seed, replicates, scoring, similarity)
        else:
            warn_undefined("The bootstrap needs two speakers.")
            values = dict.fromkeys(measures, widen(original.new_full((1 + replicates,), torch.nan)))
            counts = dict.fromkeys(measures, num_speakers)
        values = {key: values[key] for key in measures}
        return _bias_corrected_t_intervals(values, counts, num_speakers, confidence, result_dtype(original, protected))


def _check_arguments(
    measures: Sequence[str], choices: Sequence[str], replicates: int, confidence: float, seed: int
) -> None:
    check_choices("measures", measures, choices)
    check_whole_number("replicates", replicates, least=2)
    check_whole_number("seed", seed, least=0)
    check_confidence("confidence", confidence)


def _replicate_embedding_measures(
    data: EvaluationData, measures: Sequence[str], seed: int, replicates: int, scoring: Scoring, similarity: str
) -> tuple[dict[str, Tensor], SpeakerCounts]:
    """Return every measure of all speakers, followed by its value in each replicate, ``(1 + R,)``."""
    matrices = {key: pair for key, pair in _OF_MATRICES.items() if key in measures}
    with_matrix = {name for pair in matrices.values() for name in pair}
    needed = with_matrix | {key[:2].upper() for key in measures if key[2] == "_"}
    side = data.original if len(data.original) else data.protected
    order = order_speakers_by_value(len(data.speakers), side, data.protected)
    weights = widen(_weights_of_all_and_replicates(len(order), replicates, seed).to(order.device))[:, order.argsort()]
    counted = {name: _count_condition_trials(data, name, scoring) for name in WITHOUT_SESSIONS if name in needed}
    dominance = {name: counted[name].diagonal_dominance(weights, similarity) for name in with_matrix}
    values = {}
    by_condition = {name: trials.fewest_speakers_per_class() for name, trials in counted.items()}
    counts = {key: min(by_condition[name] for name in pair) for key, pair in matrices.items()}
    if "deid" in measures:
        values["deid"] = 1 - dominance["OP"] / dominance["OO"]
    if "gvd" in measures:
        values["gvd"] = 10 * (dominance["PP"] / dominance["OO"]).log10()
    for name, condition_trials in counted.items():
        keys = [key[3:] for key in measures if key[:3] == f"{name.lower()}_"]
        computed = condition_trials.compute_measures(weights, [key for key in keys if key in MEASURES])
        if not set(keys) <= set(computed):
            trials = form_condition_trials(data, CONDITIONS[name])
            computed["mean_d"] = rank_disclosure(weights @ _rank_histogram_per_speaker(trials, scoring))["mean_d"]
            bits, inputs = _sum_bits_per_speaker(trials, scoring)
            computed["alid"] = (weights @ bits) / (weights @ inputs)
        values |= {f"{name.lower()}_{key}": value for key, value in computed.items()}
        counts |= {f"{name.lower()}_{key}": by_condition[name] for key in computed}
    return values, counts


class SpeakerTrials:
    """Trials counted by pair of speakers and cell of the score axis, under many weightings of the speakers.

    ``places`` ``(2, P)``: the index of the enrolment speaker and of the test speaker of each trial.
    """

    def __init__(
        self, scored: ConditionScores, scores: Tensor, is_target: Tensor, places: Tensor, num_speakers: int
    ) -> None:
        self.scored, scores = scored, widen(scores)
        values, cell = scores.unique(return_inverse=True)
        if len(values) > _MOST_CELLS:
            cells = CountingCells(scored, max_cells=_MOST_CELLS)
            values, cell = cells.values, torch.searchsorted(cells.edges, scores, right=True)
        codes, pair = (places[0] * num_speakers + places[1]).unique(return_inverse=True)
        self.values, self.pairs = values, torch.stack([codes // max(1, num_speakers), codes % max(1, num_speakers)])
        # Non-targets and targets, by pair and cell.
        index = (is_target * len(codes) + pair) * len(values) + cell
        table = torch.zeros(2 * len(codes) * len(values), dtype=values.dtype, device=values.device)
        table.index_add_(0, index, torch.ones_like(index, dtype=table.dtype))
        self.table: Tensor = table.view(2, len(codes), len(values))

    def fewest_speakers_per_class(self) -> int:
        """Return how many speakers have target trials, or how many have non-target trials if these are fewer."""
        return min(len(self.pairs[:, has_trials].unique()) for has_trials in self.table.sum(2) > 0)

    def compute_measures(self, weights: Tensor, measures: Sequence[str]) -> dict[str, Tensor]:
        """Return score measures under weightings ``(R, S)`` of whole numbers, ``(R,)`` each; NaN if undefined."""
        if not measures:
            return {}
        if not self.scored.is_defined:
            unknown = weights.new_full((len(weights),), torch.nan, dtype=self.values.dtype)
            return dict.fromkeys(measures, unknown)
        edges = linkability_edges(self.scored.trials) if "linkability" in measures else self.values[:0]

        def measure_replicates(chunk: Tensor) -> Tensor:
            counts = self._weigh_counts(chunk)
            nontargets, targets = counts
            steps = steps_of_both_signs(targets, nontargets)
            trials = ScoresAndSteps(CountedScores(self.values, counts), steps, edges)
            is_defined = (targets.sum(1) > 0) & (nontargets.sum(1) > 0)
            table = torch.stack([widen(SCORE_MEASURES[name](trials)) for name in measures], dim=1)
            return torch.where(is_defined[:, None], table, torch.nan)

        return dict(zip(measures, self._map_replicates(measure_replicates, weights).T, strict=True))

    def diagonal_dominance(self, weights: Tensor, similarity: str) -> Tensor:
        """Return diagonal dominance under each weighting, recalibrated, ``(R,)``."""
        trials = self.table.sum(0)
        is_own = self.pairs[0] == self.pairs[1]

        def dominance_of_replicates(chunk: Tensor) -> Tensor:
            nontargets, targets = self._weigh_counts(chunk)
            llr = Steps(self.values[:0], targets, nontargets).laplace_llr(2 if self.scored.has_unordered_pairs else 1)
            mean = (logsigmoid(llr) if similarity == "geometric" else llr) @ trials.T / trials.sum(1)
            similarities = mean.exp() if similarity == "geometric" else mean.sigmoid()
            first, second = widen(chunk)[:, self.pairs].unbind(1)
            pair_weights = first * is_own, first * second * ~is_own
            on, off = ((similarities * each).sum(1) / each.sum(1) for each in pair_weights)
            return (on - off).abs()

        return self._map_replicates(dominance_of_replicates, weights)

    def _weigh_counts(self, weights: Tensor) -> Tensor:
        """Return non-targets and targets per cell under each weighting, ``(2, R, C)``."""
        first, second = widen(weights)[:, self.pairs].unbind(1)
        # Whole numbers in double precision, so that equal counts are equal.
        return torch.stack([(first * second) @ self.table[0], first @ self.table[1]]).round()

    def _map_replicates(self, function: Callable[[Tensor], Tensor], weights: Tensor) -> Tensor:
        size = max(self.table.shape[1:])
        return torch.cat([function(chunk) for chunk in weights.split(max(1, _MOST_COUNTS // max(1, size)))])


def _count_condition_trials(data: EvaluationData, condition_name: str, scoring: Scoring) -> SpeakerTrials:
    condition = CONDITIONS[condition_name]
    pairs = PairBlocks(*data.sides(condition), len(data.speakers), resolve_scoring(scoring), condition)
    scored = collect_pair_scores(pairs)
    scores, is_target = pairs.scores_and_labels()
    return SpeakerTrials(scored, scores, is_target, pairs.trial_speakers(), len(data.speakers))


def _rank_histogram_per_speaker(trials: IdentificationTrials, scoring: Scoring) -> Tensor:
    """Return the rank histogram of the inputs of each speaker, ``(S, S)``; every speaker has a reference."""
    num_references = trials.num_references
    # Each input counts 1, in equal shares over the ranks it is tied for: a step up at the first of them, and one down
    # after the last. The cumulative sum of the steps is the histogram.
    steps = widen(trials.references.sums.new_zeros(num_references * (num_references + 1)))
    for block in score_inputs(trials, scoring):
        above, tied, _ = count_above_tied_nan(block).long()
        tied = tied.clamp(min=1)
        start = trials.column[block.rows] * (num_references + 1) + above
        mass = widen(trials.usable[block.rows]) / tied
        steps = steps.index_add(0, start, mass).index_add(0, start + tied, -mass)
    return steps.view(num_references, num_references + 1).cumsum(1)[:, :-1]


def _sum_bits_per_speaker(trials: IdentificationTrials, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """Return the sum of the local information of each speaker's inputs, and how many these are, ``(S,)`` each."""
    identification = identify(trials, scoring)
    assert identification.bits is not None
    speaker, bits = trials.column[identification.trials], widen(identification.bits)
    sums = bits.new_zeros(trials.num_references).index_add(0, speaker, bits)
    return sums, count_values(speaker, trials.num_references).to(bits)


def _weights_of_all_and_replicates(num_speakers: int, replicates: int, seed: int) -> Tensor:
    """Return a row of ones, then how often each speaker is drawn, ``(1 + R, S)``; on the host, so devices agree."""
    chosen = torch.randint(
        max(1, num_speakers), (replicates, num_speakers), generator=torch.Generator().manual_seed(seed)
    )
    drawn = torch.zeros(replicates, num_speakers).scatter_add(1, chosen, torch.ones(replicates, num_speakers))
    return pad(drawn, (0, 0, 1, 0), value=1.0)


def _bias_corrected_t_intervals(
    values: dict[str, Tensor], counts: SpeakerCounts, num_speakers: int, confidence: float, dtype: torch.dtype
) -> dict[str, IntervalWithReplicates]:
    """Return t intervals of values ``(1 + R,)``, of all speakers and of replicates; NaN if ``counts`` is below 3."""
    bootstrapped = {}
    for key, column in values.items():
        value, replicates = column[0], column[1:]
        defined = replicates[~replicates.isnan()]
        low = high = torch.full_like(value, torch.nan)
        if check_enough_speakers(counts[key]) and len(defined) > 1:
            error = defined.std() * math.sqrt(num_speakers / (num_speakers - 1))
            reach = students_t_quantile(confidence, num_speakers - 1) * error
            centre, bounds = 2 * value - defined.mean(), scalar(key).range_among(num_speakers)
            reach = reach + clopper_pearson_or_0(value, reach, num_speakers, confidence, *bounds)
            low, high = ((centre + sign * reach).clamp(*bounds) for sign in (-1, 1))
        bootstrapped[key] = IntervalWithReplicates(value.to(dtype), low.to(dtype), high.to(dtype), replicates.to(dtype))
    return bootstrapped
