"""Confidence intervals by the bootstrap over speakers: slower than the jackknife, and a check of its intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from vpmetrics._identification.identification import count_above_tied_nan, identify
from vpmetrics._identification.references import IdentificationTrials, form_condition_trials, score_inputs
from vpmetrics._scores.condition_scores import ConditionScores, collect_pair_scores, collect_trial_scores
from vpmetrics._scores.jackknife import CountingCells, check_enough_speakers, clopper_pearson_or_0, students_t_quantile
from vpmetrics._scores.measures import SCORE_MEASURES, linkability_edges
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.registry import scalar
from vpmetrics._scores.score_counts import CountedScores, ScoresAndSteps, Steps, steps_of_both_signs
from vpmetrics._scores.scorers import Scoring, resolve_scoring
from vpmetrics._scores.speaker_similarity import SIMILARITIES
from vpmetrics._util.dtypes import result_dtype, widen
from vpmetrics._util.validation import (
    check_choice,
    check_choices,
    check_confidence,
    check_speakers_of_trials,
    check_trials,
    check_whole_number,
    collect_warnings,
    warn_undefined,
)
from vpmetrics._utterances.conditions import CONDITIONS, WITHOUT_SESSIONS
from vpmetrics._utterances.utterances import (
    EvaluationData,
    count_values,
    deduplicate_and_index,
    order_speakers_by_value,
    pack_utterances,
)
from vpmetrics.functional.rank import rank_disclosure

MEASURES = tuple(key for key, measure in SCORE_MEASURES.items() if measure.has_interval)
_COMPARED_WITH_OO = {"deid": "op", "gvd": "pp"}
EMBEDDING_MEASURES = (
    *_COMPARED_WITH_OO,
    *(f"{name.lower()}_{measure}" for name in WITHOUT_SESSIONS for measure in (*MEASURES, "mean_d", "alid")),
)
_MOST_CELLS = 1 << 12  # up to this number of different scores each has a cell of its own
_MOST_COUNTS = 1 << 22  # of the replicates worked on at a time


class IntervalWithReplicates(NamedTuple):
    """A value, both ends of its interval, and the value of each replicate ``(R,)``, NaN where it is undefined."""

    value: Tensor
    low: Tensor
    high: Tensor
    replicates: Tensor


Replicates = dict[str, tuple[Tensor, int]]
"""For each measure ``(1 + R,)`` values, of all speakers and of replicates, and the ``num_speakers`` of its trials."""


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

    In every replicate, calibrated by itself, a target trial of speaker i weighs :math:`w_i`, the number of times that
    the speaker is drawn, and a non-target trial of speakers i and j weighs :math:`w_i w_j`. With the mean
    :math:`\bar\theta` and the standard deviation :math:`\sigma` of the replicates the interval of a value
    :math:`\theta` is, corrected for bias,

    .. math:: \theta - (\bar\theta - \theta) \pm t_{S - 1}\, \sigma \sqrt{S / (S - 1)}

    with Student's t for S speakers. Where all replicates are the same end of a range, the reach is a Clopper–Pearson
    bound on the share of speakers that differ.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike; for ``cllr``, log-likelihood ratios.
        target: 1 (same speaker) or 0 (different), of the same shape.
        speakers: Speakers of the enrolment side and of the test side: two integer tensors of the same shape.
        measures: Score measures with an interval, such as ``d_ece``; ``linkability`` has the bins of all trials.
        replicates: Number of replicates.
        confidence: Confidence level.
        seed: Seed of the draws; labels of speakers and the order of trials change nothing.
        validate_args: Whether values are validated (NaN, labels, speakers); forces a GPU sync.

    Returns:
        ``value``, ``low``, ``high`` and ``replicates`` ``(R,)`` of each measure. Replicates without one class of trials
        are NaN and left out. With one warning everything is NaN without one class at all, and the interval is NaN for
        fewer than three speakers with trials of both classes.

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
    check_choices("measures", measures, MEASURES)
    check_whole_number("replicates", replicates, least=2)
    check_whole_number("seed", seed, least=0)
    check_confidence("confidence", confidence)
    scores, is_target = preds.detach().flatten(), target.flatten().bool()
    labels, places = torch.stack([side.flatten() for side in speakers]).unique(return_inverse=True)
    # The sums of ranks identify a speaker whatever the labels are.
    rank = scores.argsort(stable=True).argsort() * 2 + is_target
    order = rank.new_zeros(len(labels)).index_add(0, places.flatten(), rank.repeat(2)).argsort(stable=True)
    weights = _draw_weights(order, replicates, seed)
    with collect_warnings():
        trials = SpeakerTrials(collect_trial_scores(scores, is_target), scores, is_target, places, len(labels))
        values = trials.compute_measures(weights, measures)
        return _bias_corrected_t_intervals(values, len(labels), confidence, result_dtype(preds))


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

    For ``deid`` and ``gvd`` a speaker drawn :math:`w` times is :math:`w` rows and columns of the matrices. For
    ``mean_d`` and ``alid`` the inputs are resampled; references and slopes stay. Every score is kept, so use it for
    some thousand utterances at most.

    Args:
        original: Embeddings ``(N, D)`` of the original speech.
        protected: Embeddings ``(N, D)`` of the protected speech, row i that of row i of ``original``.
        speakers: Speaker of each row, ``(N,)`` integers.
        measures: ``deid``, ``gvd``, or a measure of :func:`bootstrap`, ``mean_d`` or ``alid`` after ``oo_``, ``op_`` or
            ``pp_``.
        replicates: Number of replicates.
        confidence: Confidence level.
        seed: As in :func:`bootstrap`.
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
    check_choices("measures", measures, EMBEDDING_MEASURES)
    check_whole_number("replicates", replicates, least=2)
    check_whole_number("seed", seed, least=0)
    check_confidence("confidence", confidence)
    check_choice("similarity", similarity, SIMILARITIES)
    data = deduplicate_and_index(pack_utterances(original, protected, speakers, validate_values=validate_args))
    num_speakers = len(data.speakers)
    with collect_warnings():
        if num_speakers > 1:
            side = data.original if len(data.original) else data.protected
            order = order_speakers_by_value(num_speakers, side, data.protected)
            weights = _draw_weights(order, replicates, seed)
            values = _replicate_embedding_measures(data, measures, weights, scoring, similarity)
        else:
            warn_undefined("The bootstrap needs two speakers.")
            unknown = widen(original.new_full((1 + replicates,), torch.nan))
            values = dict.fromkeys(measures, (unknown, num_speakers))
        requested = {key: values[key] for key in measures}
        return _bias_corrected_t_intervals(requested, num_speakers, confidence, result_dtype(original, protected))


def _draw_weights(order: Tensor, replicates: int, seed: int) -> Tensor:
    """Return a row of ones, then how often each speaker is drawn, ``(1 + R, S)``; speakers are drawn in this order."""
    size = replicates, len(order)
    # On the host, so that devices agree.
    chosen = torch.randint(max(1, len(order)), size, generator=torch.Generator().manual_seed(seed))
    drawn = torch.zeros(size).scatter_add(1, chosen, torch.ones(size))
    return widen(pad(drawn, (0, 0, 1, 0), value=1.0).to(order.device))[:, order.argsort()]


def _replicate_embedding_measures(
    data: EvaluationData, measures: Sequence[str], weights: Tensor, scoring: Scoring, similarity: str
) -> Replicates:
    """Return the replicates of the measures, and of the numbers that they are computed from."""
    values: Replicates = {}
    with_matrix = {name for key in _COMPARED_WITH_OO.keys() & set(measures) for name in (_COMPARED_WITH_OO[key], "oo")}
    for name in map(str.lower, WITHOUT_SESSIONS):
        keys = [key[3:] for key in measures if key.startswith(f"{name}_")]
        if not keys and name not in with_matrix:
            continue
        condition = CONDITIONS[name.upper()]
        pairs = PairBlocks(*data.sides(condition), len(data.speakers), resolve_scoring(scoring), condition)
        scored = collect_pair_scores(pairs)
        trials = SpeakerTrials(scored, *pairs.scores_and_labels(), pairs.trial_speakers(), len(data.speakers))
        computed = trials.compute_measures(weights, [key for key in keys if key in MEASURES])
        if name in with_matrix:
            computed["d_diag"] = trials.diagonal_dominance(weights, similarity), trials.num_speakers
        if not set(keys) <= set(computed):
            histograms, bits, inputs = _sum_inputs_by_speaker(form_condition_trials(data, condition), scoring)
            computed["mean_d"] = rank_disclosure(weights @ histograms)["mean_d"], trials.num_speakers
            computed["alid"] = (weights @ bits) / (weights @ inputs), trials.num_speakers
        values |= {f"{name}_{key}": each for key, each in computed.items()}
    for key in _COMPARED_WITH_OO.keys() & set(measures):
        (dominance, number), (original, most) = values[f"{_COMPARED_WITH_OO[key]}_d_diag"], values["oo_d_diag"]
        ratio = dominance / original
        values[key] = (1 - ratio if key == "deid" else 10 * ratio.log10()), min(number, most)
    return values


class SpeakerTrials:
    """Trials counted by pair of speakers and cell of the score axis, under many weightings of the speakers.

    ``places`` ``(2, P)``: the index of the enrolment speaker and of the test speaker of each trial.
    ``num_speakers`` with target trials, or with non-target trials if these are fewer.
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
        self.num_speakers = min(len(self.pairs[:, has_trials].unique()) for has_trials in self.table.sum(2) > 0)

    def compute_measures(self, weights: Tensor, measures: Sequence[str]) -> Replicates:
        """Return score measures under weightings ``(R, S)`` of whole numbers; NaN if undefined."""
        if not (measures and self.scored.is_defined):
            unknown = weights.new_full((len(weights),), torch.nan)
            return dict.fromkeys(measures, (unknown, self.num_speakers))
        edges = linkability_edges(self.scored.trials) if "linkability" in measures else self.values[:0]
        columns: dict[str, list[Tensor]] = {name: [] for name in measures}
        for _, counts in self._weigh_counts(weights):
            nontargets, targets = counts
            steps = steps_of_both_signs(targets, nontargets)
            trials = ScoresAndSteps(CountedScores(self.values, counts), steps, edges)
            is_defined = (targets.sum(1) > 0) & (nontargets.sum(1) > 0)
            for name, column in columns.items():
                column.append(torch.where(is_defined, widen(SCORE_MEASURES[name](trials)), torch.nan))
        return {name: (torch.cat(column), self.num_speakers) for name, column in columns.items()}

    def diagonal_dominance(self, weights: Tensor, similarity: str) -> Tensor:
        """Return diagonal dominance under each weighting, recalibrated, ``(R,)``."""
        trials, is_own, values = self.table.sum(0), self.pairs[0] == self.pairs[1], []
        for (first, second), (nontargets, targets) in self._weigh_counts(weights):
            llr = Steps(self.values[:0], targets, nontargets).laplace_llr(2 if self.scored.has_unordered_pairs else 1)
            mean = (logsigmoid(llr) if similarity == "geometric" else llr) @ trials.T / trials.sum(1)
            similarities = mean.exp() if similarity == "geometric" else mean.sigmoid()
            pair_weights = first * is_own, first * second * ~is_own
            on, off = ((similarities * each).sum(1) / each.sum(1) for each in pair_weights)
            values.append((on - off).abs())
        return torch.cat(values)

    def _weigh_counts(self, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, for some weightings at a time, weights of both speakers of each pair, and counts per cell.

        Shapes are ``(2, R, K)``, and ``(2, R, C)`` for non-targets and targets.
        """
        for some in weights.split(max(1, _MOST_COUNTS // max(1, *self.table.shape[1:]))):
            first, second = both = some[:, self.pairs].transpose(0, 1)
            # Whole numbers in double precision, so that equal counts are equal.
            yield both, torch.stack([(first * second) @ self.table[0], first @ self.table[1]]).round()


def _sum_inputs_by_speaker(trials: IdentificationTrials, scoring: Scoring) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rank histogram ``(S, S)``, the sum of local information and the number of inputs of each speaker."""
    count = trials.num_references  # every speaker has a reference
    # Each input counts 1, in equal shares over the ranks it is tied for: a step up at the first of them, and one down
    # after the last. The cumulative sum of the steps is the histogram.
    steps, has_nan = widen(trials.references.sums.new_zeros(count * (count + 1))), trials.usable.new_zeros(())
    for block in score_inputs(trials, scoring):
        above, tied, unknown = count_above_tied_nan(block).long()
        tied, start = tied.clamp(min=1), trials.column[block.rows] * (count + 1) + above
        mass = widen(trials.usable[block.rows]) / tied
        steps = steps.index_add(0, start, mass).index_add(0, start + tied, -mass)
        has_nan = has_nan | (unknown > 0).any()
    histograms = torch.where(has_nan, torch.nan, steps.view(count, count + 1).cumsum(1)[:, :-1])
    identification = identify(trials, scoring)
    assert identification.bits is not None
    speaker, bits = trials.column[identification.trials], widen(identification.bits)
    return histograms, bits.new_zeros(count).index_add(0, speaker, bits), count_values(speaker, count).to(bits)


def _bias_corrected_t_intervals(
    values: Replicates, num_speakers: int, confidence: float, dtype: torch.dtype
) -> dict[str, IntervalWithReplicates]:
    """Return t intervals; NaN where fewer than 3 speakers have trials of either class."""
    bootstrapped = {}
    for key, (column, number) in values.items():
        value, replicates = column[0], column[1:]
        defined = replicates[~replicates.isnan()]
        low = high = torch.full_like(value, torch.nan)
        if check_enough_speakers(number) and len(defined) > 1:
            error = defined.std() * math.sqrt(num_speakers / (num_speakers - 1))
            reach = students_t_quantile(confidence, num_speakers - 1) * error
            centre, bounds = 2 * value - defined.mean(), scalar(key).range_among(num_speakers)
            reach = reach + clopper_pearson_or_0(value, reach, num_speakers, confidence, *bounds)
            low, high = ((centre + sign * reach).clamp(*bounds) for sign in (-1, 1))
        bootstrapped[key] = IntervalWithReplicates(*(each.to(dtype) for each in (value, low, high, replicates)))
    return bootstrapped
