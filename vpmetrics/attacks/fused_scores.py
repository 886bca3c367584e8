"""The fused scores of each condition: features of sampled pairs, their weights, and all pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from vpmetrics._scores.score_counts import Steps
from vpmetrics._scores.scorers import FEW_PAIRS
from vpmetrics._util.dtypes import wide_dtype, widen
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import EvaluationData, Utterances
from vpmetrics.attacks.feature_blocks import (
    FeatureBlock,
    cut_into_blocks,
    gather_scores,
    weigh_blocks,
)
from vpmetrics.attacks.features import AttackFeatures, AttackName
from vpmetrics.attacks.folds import (
    NO_TRIAL,
    CellRows,
    Folds,
    Sample,
    arrange_in_cells,
    choose_sample,
    label_pairs,
    take_sample,
)
from vpmetrics.attacks.fused_counts import ReplicateCounts, add_pairs, empty_counts
from vpmetrics.attacks.moments import MomentSums, divide_by_norm
from vpmetrics.attacks.weights import SampledPairs, fit_weights, standardise_in_cells

if TYPE_CHECKING:
    from vpmetrics._scores.jackknife import JackknifeGroups

_ROW_ENTRIES_AT_ONCE = 1 << 25  # entries of mapped rows held at a time


@dataclass(frozen=True, eq=False)
class ConditionFusion:
    """The fusion of one condition: its rows, and the weights of its features.

    ``mean``, ``deviation`` ``(C, A)`` of the scores of each cell. ``weights`` ``(C, 2 P, A)``: of
    each profile, for speakers and then for permuted ones. ``scale`` ``(2 P,)``: deviation of each
    fused score. ``shares`` ``(P, A)``. ``own_counts`` ``(A, 3, B)``: sampled pairs by the score of
    each feature.
    """

    condition: Condition
    enrolment: list[CellRows]  # by encoder
    test: list[CellRows]
    labels: list[AttackName]
    mean: Tensor
    deviation: Tensor
    weights: Tensor
    scale: Tensor
    shares: Tensor
    own_counts: Tensor
    has_both_kinds: bool = True

    @property
    def is_same_rows(self) -> bool:
        """Whether every unordered pair is compared once."""
        return self.enrolment[0] is self.test[0]


class FusedScores:
    """Fused scores of the pairs within each fold, of several conditions that share the fits.

    Args:
        encoders: The utterances as each encoder embeds them, with rows of unit length.
        encoder_names: Their names; empty where there is only one.
        folds: Speakers by fold.
        attacks: The attacks to fuse.
        conditions: Those that are asked for.
        observed: Moments of further pairs, by encoder.
        enrolment: How speakers are enrolled, see :meth:`EvaluationData.sides`.
        is_fitted_on: ``(S,)``, the speakers that maps and weights may be fitted on.
    """

    def __init__(
        self,
        encoders: Sequence[EvaluationData],
        encoder_names: Sequence[str],
        folds: Folds,
        attacks: Sequence[Any],
        conditions: Sequence[Condition],
        observed: Sequence[MomentSums | None],
        enrolment: Literal["utterance", "speaker"] | None,
        is_fitted_on: Tensor,
    ) -> None:
        self._encoders = encoders
        self._encoder_names = encoder_names
        self._data = encoders[0]
        self._folds = folds
        self._attacks = attacks
        self._conditions = conditions
        self._observed = observed
        self._enrolment = enrolment
        self._is_fitted_on = is_fitted_on
        self._processes = self._data.processes
        self._fusions: dict[str, ConditionFusion] = {}
        self._arranged: list[tuple[Utterances, torch.dtype, CellRows]] = []
        self._samples: list[tuple[CellRows, Sample | None]] = []
        # all features of the last condition, where these are few
        self._kept_blocks: dict[str, list[FeatureBlock]] = {}

    @cached_property
    def _features(self) -> list[AttackFeatures]:
        features = []
        for data, name, observed in zip(
            self._encoders, self._encoder_names, self._observed, strict=True
        ):
            of_encoder = AttackFeatures(
                data,
                self._folds,
                self._attacks,
                self._conditions,
                observed,
                self._enrolment,
                self._is_fitted_on,
            )
            of_encoder.name_encoder(name)
            features.append(of_encoder)
        return features

    def fuse(self, condition: Condition) -> ConditionFusion:
        """Return the fusion of a condition, fitted the first time it is asked for."""
        if condition.name not in self._fusions:
            with torch.no_grad(), torch.autocast(self._data.speakers.device.type, enabled=False):
                self._fusions[condition.name] = self._fit_fusion(condition)
        return self._fusions[condition.name]

    def _fit_fusion(self, condition: Condition) -> ConditionFusion:
        """Fit the weights of each profile on a sample of pairs.

        Pairs are scored by every feature, and scores are standardised.
        """
        enrolment, test = self._arrange(condition)
        is_same_rows = enrolment[0] is test[0]
        labels: list[AttackName] = []
        for features in self._features:
            labels += features.labels(condition)
        all_folds = range(self._folds.num_folds)
        enrolment_sample = self._choose_sample(enrolment[0])
        test_sample = self._choose_sample(test[0])
        sampled_enrolment = [take_sample(cells, enrolment_sample) for cells in enrolment]
        sampled_test = sampled_enrolment
        if not is_same_rows:
            sampled_test = [take_sample(cells, test_sample) for cells in test]
        sampled_kinds = label_pairs(sampled_enrolment[0], sampled_test[0], condition, is_same_rows)
        if len(self._cut_rows(enrolment, test, len(labels))) == 1:  # all rows are mapped once
            all_blocks = self._compare_rows(condition, enrolment, test, all_folds)
            self._kept_blocks = {condition.name: all_blocks}
            blocks = [block.take_columns(enrolment_sample, test_sample) for block in all_blocks]
        else:
            blocks = self._compare_rows(condition, sampled_enrolment, sampled_test, all_folds)
        scores = widen(gather_scores(blocks, len(labels)))  # (C, A, r, r')
        standardised, mean, deviation = standardise_in_cells(scores, sampled_kinds)
        cell = torch.arange(len(sampled_kinds), device=sampled_kinds.device)
        cell_fold = cell // self._folds.num_partitions
        is_fitted_on = self._mark_pairs_fitted_on(condition, sampled_enrolment[0], sampled_test[0])
        sample = SampledPairs.from_cells(
            standardised, sampled_kinds.masked_fill(~is_fitted_on, NO_TRIAL), cell_fold
        )
        num_folds = self._folds.num_folds
        _, tests = self._data.sides(condition, self._enrolment)
        num_utterances = len(tests) * (num_folds - 1) // num_folds
        weights, shares = fit_weights(sample, labels, num_folds, num_utterances)
        fused = torch.einsum("kqa,kan->kqn", weights[cell_fold], standardised.flatten(2))
        is_trial = (sampled_kinds != NO_TRIAL).flatten(1)[:, None]
        sum_of_squares = torch.where(is_trial, fused.square(), 0).sum((0, 2))
        scale = (sum_of_squares / is_trial.sum()).sqrt()
        own_counts = empty_counts(len(labels), sampled_kinds.device)
        add_pairs(own_counts, standardised, sampled_kinds)
        return ConditionFusion(
            condition=condition,
            enrolment=enrolment,
            test=test,
            labels=labels,
            mean=mean,
            deviation=deviation,
            weights=weights[cell_fold],
            scale=torch.where(scale > 0, scale, 1),
            shares=shares,
            own_counts=own_counts[:, :NO_TRIAL],
            has_both_kinds=sample.has_both_kinds,
        )

    def _arrange(self, condition: Condition) -> tuple[list[CellRows], list[CellRows]]:
        """Return enrolment and test rows of each encoder in their cells.

        The same objects where these are the same.
        """
        enrolment = []
        test = []
        for data in self._encoders:
            enrolled, tested = data.sides(condition, self._enrolment)
            dtype = wide_dtype(enrolled.embeddings.device)
            if len(enrolled) * len(tested) > FEW_PAIRS:
                dtype = torch.float32
            if self._enrolment == "speaker" and enrolled is not tested:
                # means are not of unit length
                enrolled = replace(enrolled, embeddings=divide_by_norm(enrolled.embeddings))
            enrolment.append(self._arrange_side(enrolled, dtype))
            test.append(self._arrange_side(tested, dtype))
        return enrolment, test

    def _mark_pairs_fitted_on(
        self, condition: Condition, enrolment: CellRows, test: CellRows
    ) -> Tensor:
        """Return which pairs ``(C, r, r')`` have two speakers that weights may be fitted on."""
        sides = self._data.sides(condition, self._enrolment)
        is_row = self._is_fitted_on[sides[0].speaker_index][enrolment.row]
        is_column = self._is_fitted_on[sides[1].speaker_index][test.row]
        return is_row[:, :, None] & is_column[:, None]

    def _arrange_side(self, side: Utterances, dtype: torch.dtype) -> CellRows:
        """Return the rows of a side in their cells; conditions share the object."""
        for arranged_side, arranged_dtype, cells in self._arranged:
            if arranged_side is side and arranged_dtype == dtype:
                return cells
        cells = arrange_in_cells(side, self._folds, dtype)
        self._arranged.append((side, dtype, cells))
        return cells

    def _choose_sample(self, cells: CellRows) -> Sample | None:
        for sampled_cells, sample in self._samples:
            if sampled_cells is cells:
                return sample
        self._samples.append((cells, choose_sample(cells)))
        return self._samples[-1][1]

    def cut_folds(self, fusion: ConditionFusion) -> list[range]:
        """Return the folds that are worked on at a time."""
        return self._cut_rows(fusion.enrolment, fusion.test, len(fusion.labels))

    def _cut_rows(
        self, enrolment: Sequence[CellRows], test: Sequence[CellRows], num_features: int
    ) -> list[range]:
        """Return the folds that are worked on at a time.

        Their mapped rows fit into memory.
        """
        num_rows = enrolment[0].code.shape[1] + test[0].code.shape[1]
        width = sum(cells.embeddings.shape[-1] for cells in enrolment)
        num_folds = self._folds.num_folds
        features_per_encoder = max(1, num_features // len(enrolment))
        entries_of_fold = num_rows * self._folds.num_partitions * width * features_per_encoder
        folds_at_once = max(1, min(num_folds, _ROW_ENTRIES_AT_ONCE // max(1, entries_of_fold)))
        chunks = []
        for first_fold in range(0, num_folds, folds_at_once):
            chunks.append(range(first_fold, min(first_fold + folds_at_once, num_folds)))
        return chunks

    def compare(self, fusion: ConditionFusion, folds: range) -> list[FeatureBlock]:
        """Return the features of all pairs of some folds."""
        if fusion.condition.name in self._kept_blocks:
            return self._kept_blocks[fusion.condition.name]
        cells = self._cells_of(folds)
        enrolment = [rows.select_cells(cells) for rows in fusion.enrolment]
        test = enrolment
        if not fusion.is_same_rows:
            test = [rows.select_cells(cells) for rows in fusion.test]
        return self._compare_rows(fusion.condition, enrolment, test, folds)

    def _compare_rows(
        self,
        condition: Condition,
        enrolment: Sequence[CellRows],
        test: Sequence[CellRows],
        folds: range,
    ) -> list[FeatureBlock]:
        blocks: list[FeatureBlock] = []
        first_feature = 0
        for features, enrolled, tested in zip(self._features, enrolment, test, strict=True):
            for block in features.compare(enrolled, tested, condition, folds):
                blocks.append(block.shift_numbers(first_feature))
            first_feature += len(features.labels(condition))
        return blocks

    def _cells_of(self, folds: range) -> slice:
        return slice(
            folds.start * self._folds.num_partitions, folds.stop * self._folds.num_partitions
        )

    def _score_all_pairs(
        self, fusion: ConditionFusion, chosen: Sequence[int]
    ) -> Iterator[_ScoredBlock]:
        """Yield all pairs of all folds by some fused scores, and by plain comparison."""
        turn = 0
        for folds in self.cut_folds(fusion):
            cells = self._cells_of(folds)
            enrolment = fusion.enrolment[0].select_cells(cells)
            test = fusion.test[0].select_cells(cells)
            blocks = self.compare(fusion, folds)
            scale = fusion.weights[cells][:, list(chosen)] / fusion.deviation[cells][:, None]
            scale = scale / fusion.scale[list(chosen)][:, None]
            offset = -(scale * fusion.mean[cells][:, None]).sum(-1)  # (c, Q)
            for rows, columns in cut_into_blocks(
                enrolment, test, len(fusion.labels), fusion.is_same_rows
            ):
                turn += 1
                if turn % self._processes.world_size != self._processes.process_rank:
                    continue
                kind_of_pair = label_pairs(
                    enrolment, test, fusion.condition, fusion.is_same_rows, rows, columns
                )
                fused = weigh_blocks(blocks, scale, offset, rows, columns)
                yield _ScoredBlock(
                    fused, kind_of_pair, enrolment.code[:, rows], test.code[:, columns], cells.start
                )

    def count_pairs(self, fusion: ConditionFusion) -> Tensor:
        """Return the counts of all pairs ``(2 P, 3, B)``, by fused score, kind and bin."""
        num_scores = fusion.weights.shape[1]
        counts = empty_counts(num_scores, self._data.speakers.device)
        for block in self._score_all_pairs(fusion, range(num_scores)):
            add_pairs(counts, block.scores, block.kind_of_pair)
        (counts,) = self._processes.all_reduce(counts)
        return counts[:, :NO_TRIAL]

    def count_replicates(
        self, fusion: ConditionFusion, score: int, steps: Steps, groups: JackknifeGroups
    ) -> Steps:
        """Return the trial counts of all speakers, then without each group, ``(1 + G, S)``.

        They are counted by one fused score.
        """
        folds = self._folds
        num_cells = len(fusion.mean)
        num_codes = int(folds.code.amax()) + 1
        group_of_code = groups.group_of_label.new_full((num_cells * num_codes,), groups.num_groups)
        is_attacked = folds.of_speaker >= 0
        slot_of_speaker = folds.cell_of_speaker * num_codes + folds.code
        group_of_speaker = groups.find_groups(self._data.speakers)
        group_of_code[slot_of_speaker[is_attacked]] = group_of_speaker[is_attacked]
        group_of_code = group_of_code.view(num_cells, num_codes)
        replicates = ReplicateCounts(steps, groups.num_groups)
        for block in self._score_all_pairs(fusion, [score]):
            cells = slice(block.first_cell, block.first_cell + len(block.kind_of_pair))
            group_in_cell = group_of_code[cells]
            group = group_in_cell.gather(1, block.enrolment_codes.clamp(min=0))
            other_group = group_in_cell.gather(1, block.test_codes.clamp(min=0))
            replicates.add(
                block.scores[:, 0], block.kind_of_pair, group[:, :, None], other_group[:, None, :]
            )
        (counts,) = self._processes.all_reduce(replicates.counts)
        return replicates.steps(counts)


class _ScoredBlock(NamedTuple):
    """Fused scores ``(c, Q, a, b)`` over their deviation.

    With the kind of each pair ``(c, a, b)``, the codes of both sides, and the first cell.
    """

    scores: Tensor
    kind_of_pair: Tensor
    enrolment_codes: Tensor
    test_codes: Tensor
    first_cell: int
