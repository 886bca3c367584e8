"""Trials that come with their scores, and their report.

Calibration may be carried from one run to another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from vpmetrics._scores.calibration import CALIBRATIONS, fit_linear_map, transferred_llr
from vpmetrics._scores.condition_scores import ConditionScores, collect_trial_scores
from vpmetrics._scores.group_sums import SumsWithoutGroups
from vpmetrics._scores.jackknife import (
    Jackknife,
    JackknifeGroups,
    add_intervals,
    count_trial_replicates,
    differentiate_similarity_by_llr,
    join_jackknives,
    make_jackknife,
    replicate_diagonal_dominance,
    split_labels_into_groups,
)
from vpmetrics._scores.measures import (
    SCORE_MEASURES,
    choose_sign,
    cllr_costs_and_sizes,
    cllr_from_sums,
    found_among_of_steps,
    llr_disclosure,
)
from vpmetrics._scores.score_counts import d_ece_term
from vpmetrics._scores.speaker_disclosure import compute_disclosure_of_trials, speaker_scalars
from vpmetrics._scores.speaker_similarity import summarise_matrix
from vpmetrics._util.distributed import SINGLE_PROCESS
from vpmetrics._util.dtypes import wide_dtype, widen
from vpmetrics._util.validation import collect_warnings, suppress_warnings
from vpmetrics._utterances.utterances import EvaluationData, split_sessions
from vpmetrics.report.privacy_report import (
    ConditionReport,
    PrivacyReport,
    TransferredCalibration,
    add_checks_and_headline,
    join_conditions,
)
from vpmetrics.report.verdict import collect_risks

# What a trial adds to a number, of its log-likelihood ratio with the sign turned for non-targets.
_COSTS: dict[str, Callable[[Tensor], Tensor]] = {
    "c_ece": d_ece_term,
    "cllr": lambda llr: softplus(-llr),
}


class ScoredTrials(NamedTuple):
    """Trials of one condition: scores and labels ``(P,)``.

    ``speakers`` ``(2, P)``: the places of both speakers, where known. ``has_unordered_pairs``: both
    sides are the same utterances, and each pair is there once.
    """

    scores: Tensor
    is_target: Tensor
    speakers: Tensor | None = None
    has_unordered_pairs: bool = False

    def pair_means(self, values: Tensor, num_speakers: int) -> Tensor:
        """Return the mean value ``(S, S)`` of each pair of speakers; NaN without trials."""
        sums, trials = self._pair_sums(torch.stack([values, torch.ones_like(values)]), num_speakers)
        return torch.where(trials > 0, sums / trials, torch.nan)

    def _pair_sums(self, value_rows: Tensor, num_speakers: int) -> Tensor:
        """Return sums ``(K, S, S)`` of K values of each trial, ``(K, P)``.

        Unordered pairs count in both orders.
        """
        rows, columns = self.speakers_or_raise()
        sums = value_rows.new_zeros(
            len(value_rows), num_speakers**2, dtype=wide_dtype(value_rows.device)
        )
        sums = sums.index_add(1, rows * num_speakers + columns, value_rows.to(sums.dtype))
        sums = sums.view(-1, num_speakers, num_speakers)
        if self.has_unordered_pairs:
            return sums + sums.mT
        return sums

    def speakers_or_raise(self) -> Tensor:
        """Return ``speakers``, ``(2, P)``; raise if they are None."""
        if self.speakers is None:
            raise ValueError("Expected `speakers` of the trials, but got None.")
        return self.speakers

    def similarity_weight_per_trial(self, pair_derivatives: Tensor) -> Tensor:
        """Return derivatives of mean similarities by the calibrated value of trials, ``(2, P)``.

        ``pair_derivatives`` ``(2, S, S)``: those of similarities and their logarithms by the mean
        of such values.
        """
        rows, columns = self.speakers_or_raise()
        ones = pair_derivatives.new_ones(()).expand(1, len(rows))
        trials = self._pair_sums(ones, pair_derivatives.shape[1])[0]
        is_own = torch.eye(len(trials), dtype=torch.bool, device=trials.device)
        is_known = trials > 0
        pairs = torch.where(is_own, (is_known & is_own).sum(), (is_known & ~is_own).sum())
        weights = (pair_derivatives / (trials * pairs))[:, rows, columns]
        if self.has_unordered_pairs:
            # Within one side a pair stands in both orders, and so do its trials.
            return weights * 2
        return weights

    def calibrate_across_speaker_halves(self) -> list[ScoredTrials]:
        """Return the trials within each half of the speakers, calibrated on the other.

        The list is empty where a half cannot be calibrated.
        """
        parity = self.speakers_or_raise() % 2
        halves: list[ScoredTrials] = []
        for half in (0, 1):
            is_within = (parity == half).all(0)
            halves.append(ScoredTrials(self.scores[is_within], self.is_target[is_within]))
        calibrated: list[ScoredTrials] = []
        with suppress_warnings():
            for half_trials, other_half in (halves, halves[::-1]):
                calibrate = fit_linear_map(other_half.scores, other_half.is_target)
                scores = calibrate(half_trials.scores)
                calibrated.append(ScoredTrials(scores, half_trials.is_target))
        for half_trials in calibrated:
            if len(half_trials.scores) == 0 or bool(half_trials.scores.isnan().any()):
                return []
        return calibrated

    def replicate_costs(self, key: str, llr: Tensor, groups: JackknifeGroups) -> Tensor:
        """Return C_ECE or Cllr of all trials and then without each group, ``(1 + G,)``."""
        costs = widen(_COSTS[key](torch.where(self.is_target, llr, -llr)))
        first_group, second_group = groups.group_of_label[self.speakers_or_raise()]
        num_classes = 2
        sums = SumsWithoutGroups(groups.num_groups, num_classes, costs.dtype, costs.device)
        trials = SumsWithoutGroups(groups.num_groups, num_classes, torch.int64, costs.device)
        class_index = self.is_target.long()
        sums.add(class_index, first_group, second_group, values=costs)
        trials.add(class_index, first_group, second_group)
        means = sums.of_all_and_without_groups() / trials.of_all_and_without_groups()
        return means.sum(1) / (2 * math.log(2))


def calibrate_across_session_halves(
    data: EvaluationData,
    trials_of: Callable[[EvaluationData], ScoredTrials],
    calibration: str = "linear",
) -> list[ScoredTrials]:
    """Return the trials of each half of every speaker's sessions, calibrated on the other half."""
    runs = [trials_of(half._replace(processes=SINGLE_PROCESS)) for half in split_sessions(data)]
    calibrated: list[ScoredTrials] = []
    for attacked, fit in (runs, runs[::-1]):
        scores = transferred_llr(
            attacked.scores,
            attacked.is_target,
            fit.scores,
            fit.is_target,
            calibration,
            validate_args=False,
        )
        calibrated.append(attacked._replace(scores=scores))
    return calibrated


def mean_c_ece(runs: Sequence[ScoredTrials]) -> Tensor:
    """Return C_ECE, the mean over runs; NaN where no speaker has two sessions."""
    return torch.stack([llr_disclosure(run.scores, run.is_target) for run in runs]).mean()


def report_trials(
    trials: Mapping[str, ScoredTrials],
    fit: ScoredTrials | None = None,
    num_speakers: int = 0,
    similarity: str | None = "geometric",
    intervals: float | None = None,
) -> PrivacyReport:
    """Return the report of scored trials by condition, of speakers ``0 ... num_speakers - 1``.

    ``fit``: trials of another run, on which the scores are calibrated. Without ``similarity`` there
    are no matrices.
    """
    labels = torch.arange(num_speakers)
    with collect_warnings():
        conditions: dict[str, ConditionReport] = {}
        for name, trials_of_condition in trials.items():
            similarity_of_condition = None
            if name:
                similarity_of_condition = similarity
            conditions[name] = _report_condition(
                trials_of_condition,
                labels,
                similarity_of_condition,
                intervals,
                is_hidden=name != "OO",
            )
        report = join_conditions(conditions, labels, intervals=intervals)
        if fit is not None:
            attacked = trials[report.main_condition]
            replicated_labels = None
            if intervals:
                replicated_labels = labels
            transfer, jackknife = _transfer_calibration(attacked, fit, replicated_labels)
            if intervals is None:
                scalars = transfer.scalars
            else:
                scalars = add_intervals(transfer.scalars, jackknife, intervals)
            report = replace(report, scalars={**report.scalars, **scalars}, transfer=transfer)
    report = replace(report, risks=collect_risks(report))
    return add_checks_and_headline(report)


def report_condition_scores(scores_by_condition: Mapping[str, ConditionScores]) -> PrivacyReport:
    """Return the report of scores that were counted by blocks, by condition, without speakers."""
    with collect_warnings():
        conditions: dict[str, ConditionReport] = {}
        for name, scores in scores_by_condition.items():
            scalars: dict[str, Tensor] = {}
            for key, measure in SCORE_MEASURES.items():
                scalars[key] = measure(scores.measure_input)
            conditions[name] = ConditionReport(scalars, scores, is_llr=True)
        report = join_conditions(conditions, torch.empty(0, dtype=torch.int64), intervals=None)
    report = replace(report, risks=collect_risks(report))
    return add_checks_and_headline(report)


def _report_condition(
    trials: ScoredTrials,
    labels: Tensor,
    similarity: str | None,
    confidence: float | None,
    is_hidden: bool,
) -> ConditionReport:
    """Return the report of one condition; without who is found where speakers need not hide."""
    scores = collect_trial_scores(trials.scores, trials.is_target, trials.has_unordered_pairs)
    scalars = {key: measure(scores.measure_input) for key, measure in SCORE_MEASURES.items()}
    sign = choose_sign(scores.counts)
    if is_hidden:
        scalars["found_in_100"] = found_among_of_steps(scores.counts[sign])
    report = ConditionReport(scalars, scores, is_llr=True)
    if trials.speakers is None:
        return report
    report = replace(report, calibrated=trials.calibrate_across_speaker_halves)
    labels = labels.to(trials.scores.device)
    groups = split_labels_into_groups(labels)
    weights = None
    if similarity:
        (llr,) = scores.make_finder([scores.laplace_llr_of_steps()])(trials.scores)
        if similarity == "sigmoid":
            matrix = trials.pair_means(llr, len(labels)).sigmoid()
        else:
            matrix = trials.pair_means(logsigmoid(llr), len(labels)).exp()
        summary = summarise_matrix(matrix, trials.has_unordered_pairs)
        _, between_speakers = differentiate_similarity_by_llr(summary, matrix, similarity)
        weights = trials.similarity_weight_per_trial(between_speakers)
        speakers = compute_disclosure_of_trials(
            scores, trials.scores, trials.is_target, trials.speakers, labels
        )
        scalars |= {
            "d_diag": summary.dominance,
            "d_diag_log": summary.dominance_log,
            **speaker_scalars(speakers),
        }
        report = replace(report, matrix=matrix, similarity=summary, speakers=speakers)
    if not scores.is_defined:
        return report
    # The verdict goes by intervals, whether they are asked for or not.
    counts = count_trial_replicates(
        scores, trials.scores, trials.is_target, trials.speakers, groups, weights
    )
    warnings_of_intervals: AbstractContextManager[None] = nullcontext()
    if confidence is None:
        warnings_of_intervals = suppress_warnings()
    with warnings_of_intervals:
        jackknives = [counts.make_jackknife(scalars)]
        if is_hidden:
            found = {"found_in_100": found_among_of_steps(counts.measure_input.counts[sign])}
            jackknives.append(make_jackknife(found, groups, counts.min_speakers_per_class))
    if report.similarity is not None and similarity and confidence is not None:
        replicates = replicate_diagonal_dominance(
            counts, report.similarity, groups.group_of_label, trials.has_unordered_pairs, similarity
        )
        jackknives.append(make_jackknife(replicates, groups, counts.min_speakers_per_class))
    if confidence is None:
        return replace(report, jackknife=join_jackknives(jackknives))
    return replace(
        report, jackknife=join_jackknives(jackknives), counts=counts, confidence=confidence
    )


def _transfer_calibration(
    attacked: ScoredTrials, fit: ScoredTrials, labels: Tensor | None
) -> tuple[TransferredCalibration, Jackknife | None]:
    """Return the scores under a calibration fitted on another run, and their jackknife.

    See figure 8 of the 2022 paper.
    """
    llr: dict[str, Tensor] = {}
    scalars: dict[str, Tensor] = {}
    for name, learn in CALIBRATIONS.items():
        calibrated = learn(fit.scores, fit.is_target)(attacked.scores)
        llr[name] = calibrated
        scalars[f"c_ece_{name}"] = llr_disclosure(calibrated, attacked.is_target)
        costs = cllr_costs_and_sizes(calibrated, attacked.is_target)
        scalars[f"cllr_{name}"] = cllr_from_sums(*costs)
    fit_without_speakers = ScoredTrials(fit.scores, fit.is_target)
    fit_report = _report_condition(fit_without_speakers, torch.empty(0), None, None, is_hidden=True)
    counts = torch.stack([~attacked.is_target, attacked.is_target])
    transfer = TransferredCalibration(fit_report, llr, counts, scalars)
    if labels is None or attacked.speakers is None:
        return transfer, None
    groups = split_labels_into_groups(labels.to(attacked.scores.device))
    replicates: dict[str, Tensor] = {}
    for name, calibrated in llr.items():
        for key in _COSTS:
            replicates[f"{key}_{name}"] = attacked.replicate_costs(key, calibrated, groups)
    return transfer, make_jackknife(replicates, groups)
