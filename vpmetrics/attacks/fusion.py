"""The fused attacker: all attacks, all settings, all encoders, weighted into one score.

1. Every attack with every setting is fitted on the speakers outside each fold, and scores pairs
   within the fold (:mod:`vpmetrics.attacks.features`). Scores are standardised within the fold,
   without labels.
2. A logistic regression with balanced classes weighs them. The weights of a fold come from pairs of
    the other folds.
3. All pairs within each fold are counted by their weighted sum, and pooled over folds.

This is done for what an attacker may have, from nothing to pairs of original and protected speech.
Plain comparison needs no fitting: it is counted on all trials of the condition, and no result is
below it.

The chance level is the same for targets that disclose nothing: pairs of a speaker and the next one
instead of pairs of one speaker. As many pairs of as many speakers overfit as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from vpmetrics._scores.condition_scores import collect_pair_scores
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.score_counts import Steps, StepsOfBothSigns, expected_disclosure
from vpmetrics._scores.scorers import FEW_PAIRS, SCORERS
from vpmetrics._util.dtypes import is_finite_everywhere, wide_dtype, widen
from vpmetrics._util.scalar import FULL_DISCLOSURE
from vpmetrics._util.validation import warn_undefined
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import EvaluationData, Utterances, count_values
from vpmetrics.attacks.feature_blocks import (
    FeatureBlock,
    cut_into_blocks,
    gather_scores,
    weigh_blocks,
)
from vpmetrics.attacks.features import (
    PROFILES,
    AttackFeatures,
    AttackName,
    attack_name,
    name_on_encoder,
    unit_length,
)
from vpmetrics.attacks.fold_rows import (
    FoldRows,
    FoldRowsOfCondition,
    FusedFold,
    WeightedRows,
    make_fused_fold,
)
from vpmetrics.attacks.folds import (
    FEWEST_SPEAKERS,
    NO_TRIAL,
    CellRows,
    Sample,
    arrange_in_cells,
    assign_folds,
    choose_sample,
    label_pairs,
    take_sample,
)
from vpmetrics.attacks.fused_counts import (
    MEASURES,
    ReplicateCounts,
    add_pairs,
    empty_counts,
    join_all_steps,
    measure_replicates,
    take_row,
)
from vpmetrics.attacks.linear import Plain
from vpmetrics.attacks.moments import MomentSums, divide_by_norm
from vpmetrics.attacks.results import (
    PROFILE_KEYS,
    FusedResult,
    LearningCurve,
    ReportedAttack,
    report_attacks,
    tabulate_attacks,
)
from vpmetrics.attacks.weights import SampledPairs, fit_weights, standardise_in_cells

if TYPE_CHECKING:
    from vpmetrics._scores.jackknife import JackknifeGroups

_FEWEST_FOR_LIMIT = 32  # speakers fitted on, for a learning curve
_CURVE_SHARES = (4, 2, 1)  # of the speakers of other folds, 1/4 and so on; 1 beside observed ones
_SUBSETS_OF_SHARE = 2  # subsets of such a share that are averaged
_ROW_ENTRIES_AT_ONCE = 1 << 25  # entries of mapped rows held at a time


@dataclass(frozen=True, eq=False)
class _ConditionFusion:
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


class FusedAttacker:
    """All attacks on some utterances as one attacker, fitted on the speakers of other folds.

    One object serves several conditions, which share the fits. Nothing is fitted before a result is
    asked for.

    Args:
        data: Utterances of one or several encoders.
        attacks: The attacks to fuse; plain comparison is added where it is missing.
        conditions: Those that are asked for.
        observed: Moments of further pairs that attacks are also fitted on.
        enrolment: How speakers are enrolled, see :meth:`EvaluationData.sides`.
    """

    def __init__(
        self,
        data: EvaluationData,
        attacks: Sequence[Any],
        conditions: Sequence[Condition],
        observed: MomentSums | None = None,
        enrolment: Literal["utterance", "speaker"] | None = None,
    ) -> None:
        count = max(1, len(data.encoders))
        self._all_encoders = data
        self._encoders = [_prepare(data.of_encoder(index)) for index in range(count)]
        self._encoder_names = [encoder.name for encoder in data.encoders] if count > 1 else [""]
        self.data = self._encoders[0]
        self.attacks = append_plain_attack(attacks)
        self.conditions = tuple(conditions)
        self.processes = data.processes
        self.enrolment = enrolment
        self._observed = observed
        self._observed_by_encoder: list[MomentSums | None] = [observed] * count
        if observed is not None and count > 1:
            self._observed_by_encoder = [
                observed.of_encoder(data.encoders, index) for index in range(count)
            ]
        self.folds = assign_folds(self.data)
        self._is_fitted_on = torch.ones_like(self.folds.code, dtype=torch.bool)
        self._fusions: dict[str, _ConditionFusion] = {}
        self._arranged: list[tuple[Utterances, torch.dtype, CellRows]] = []
        self._samples: list[tuple[CellRows, Sample | None]] = []
        # all features of the last condition, where these are few
        self._kept_blocks: dict[str, list[FeatureBlock]] = {}

    @property
    def encoders(self) -> Sequence[EvaluationData]:
        """The utterances as each encoder embeds them."""
        return self._encoders

    def report_attacks(self, results: Mapping[str, FusedResult]) -> tuple[ReportedAttack, ...]:
        """Return all attacks, with what each finds by itself, and its share, in the results by
        condition.
        """
        known = []
        for encoder in self._encoder_names:
            for attack in self.attacks:
                name = name_on_encoder(attack_name(attack), encoder)
                known.append(AttackName(name, getattr(attack, "needs", "")))
        return report_attacks(known, results)

    def learning_curve(
        self,
        condition: Condition,
        result: FusedResult,
        plain: StepsOfBothSigns | Sequence[StepsOfBothSigns] = (),
    ) -> LearningCurve:
        """Return what the attacker learns from a quarter and half of the speakers, and from all,
        and the limit of many speakers.

        Maps and weights are fitted again on some of the speakers of the other folds, without what
        was observed; the attacked trials stay the same. See :class:`LearningCurve`.
        """
        value = result.measures["d_ece_strongest"]
        num_all = self.num_fitted_speakers
        if num_all < _FEWEST_FOR_LIMIT or bool(value.isnan()):
            return LearningCurve((num_all,), (value,), torch.full_like(value, torch.nan))
        cell = self.folds.cell_of_speaker
        smallest_cell = int(count_values(cell[cell >= 0], int(cell.amax()) + 1).amin())
        num_speakers = []
        d_ece = []
        for share in _CURVE_SHARES:
            if (share == 1 and self._observed is None) or smallest_cell < 2 * share:
                continue
            num_speakers.append(self.folds.fewest_training_speakers // share)
            found = []
            for subset in range(min(share, _SUBSETS_OF_SHARE)):
                attacker = self._fit_on_share(condition, subset, share)
                measures = attacker.result(condition, plain=plain).measures
                found.append(measures["d_ece_strongest"])
            d_ece.append(torch.stack(found).mean())
        limit = torch.full_like(value, torch.nan)
        for num_few, from_few in zip(num_speakers, d_ece, strict=True):
            if 2 * num_few <= num_all:  # the last one of these
                # D(n) = a + b / n for some and for all: a = (n D(n) - m D(m)) / (n - m).
                limit = (num_all * value - num_few * from_few) / (num_all - num_few)
                limit = torch.maximum(limit.clamp(max=FULL_DISCLOSURE), value)
        limit = torch.where(value > result.chance, limit, torch.nan)
        return LearningCurve((*num_speakers, num_all), (*d_ece, value), limit)

    def _fit_on_share(self, condition: Condition, subset: int, share: int) -> FusedAttacker:
        """Return the attacker fitted on every so many speakers of each fold, beginning with
        ``subset``.
        """
        attacker = FusedAttacker(
            self._all_encoders, self.attacks, [condition], enrolment=self.enrolment
        )
        attacker._is_fitted_on = self.folds.code % share == subset
        return attacker

    def fused_folds(self, condition: Condition, result: FusedResult) -> list[FusedFold]:
        """Return the utterances of each fold, with what the chosen branch compares; an empty list
        where undefined.
        """
        if not result.attacks:
            return []
        profile = PROFILES[result.profile or 0]
        folds = []
        for rows in self.fold_rows(condition, profile):
            enrolment, test = rows.enrolment, rows.test
            sides = (rows.enrolment_rows, rows.test_rows)
            if result.is_plain:
                sign = -1.0 if result.is_negated else 1.0
                sides = (sign * enrolment.embeddings, test.embeddings)
            folds.append(make_fused_fold(enrolment, test, sides, condition))
        return folds

    @cached_property
    def num_fitted_speakers(self) -> int:
        """How many speakers the attack of a fold is fitted on, at least, observed ones included."""
        number = self.folds.fewest_training_speakers
        if self._observed is not None:
            number += int((~torch.isin(self._observed.names, self.data.speakers)).sum())
        return number

    @cached_property
    def _is_finite(self) -> bool:
        given = list(self._observed or ())
        for data in self._encoders:
            given += [data.original.embeddings, data.protected.embeddings]
        return bool(torch.stack([is_finite_everywhere(values) for values in given]).all())

    @cached_property
    def _features(self) -> list[AttackFeatures]:
        features = []
        for data, name, observed in zip(
            self._encoders, self._encoder_names, self._observed_by_encoder, strict=True
        ):
            of_encoder = AttackFeatures(
                data,
                self.folds,
                self.attacks,
                self.conditions,
                observed,
                self.enrolment,
                self._is_fitted_on,
            )
            of_encoder.name_encoder(name)
            features.append(of_encoder)
        return features

    def result(
        self,
        condition: Condition,
        groups: JackknifeGroups | None = None,
        plain: StepsOfBothSigns | Sequence[StepsOfBothSigns] = (),
        plain_replicates: StepsOfBothSigns | Sequence[StepsOfBothSigns] | None = None,
    ) -> FusedResult:
        """Return what the fused attacker learns in a condition; NaN and one warning where it is
        undefined.

        ``groups`` are left out one by one; attacks and weights stay as they are. ``plain``: what
        plain comparison finds on all trials, by encoder; the result is at least that, in the better
        direction. ``plain_replicates`` ``(1 + G, S)``: the same of all speakers and without each
        group.
        """
        device = self.data.speakers.device
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            reason = self._find_reason_undefined(condition)
            if reason is None:
                return self._evaluate(
                    condition, groups, _as_list(plain), _as_list(plain_replicates)
                )
            warn_undefined(reason)
            nan = torch.full((), torch.nan, dtype=wide_dtype(device), device=device)
            replicates = (
                None
                if groups is None
                else dict.fromkeys(MEASURES, nan.expand(1 + groups.num_groups))
            )
            return FusedResult(
                dict.fromkeys(MEASURES, nan),
                nan,
                nan,
                dict.fromkeys(PROFILE_KEYS, nan),
                replicates=replicates,
            )

    def _find_reason_undefined(self, condition: Condition) -> str | None:
        if self.folds.num_folds == 0:
            return (
                f"Attacks are fitted on other speakers, and that needs {FEWEST_SPEAKERS} of them."
            )
        if not self._is_finite:
            return "Some embeddings, measured or observed, are not finite."
        enrolment, test = self.data.sides(condition, self.enrolment)
        if len(enrolment) == 0 or len(test) == 0 or not self._fuse(condition).has_both_kinds:
            return f"There are no trials of one kind to attack in {condition.name}."
        return None

    def fold_rows(
        self, condition: Condition, profile: str | None = None, is_permuted: bool = False
    ) -> Sequence[FoldRows]:
        """Return the rows of each fold (of each partition) after the fused attack.

        ``profile``: what the attacker has, one of :data:`PROFILES`; the richest by default. With
        ``is_permuted`` weights are those of the chance level.
        """
        if self._find_reason_undefined(condition) is not None:
            return []
        number = len(PROFILES) - 1 if profile is None else PROFILES.index(profile)
        fusion = self._fuse(condition)
        sides = self.data.sides(condition, self.enrolment)
        cells_per_chunk = len(self._chunks(fusion)[0]) * self.folds.num_partitions
        cached: dict[int, list[FeatureBlock]] = {}

        def make(cell: int) -> FoldRows:
            chunk = cell // cells_per_chunk
            with torch.no_grad(), torch.autocast(self.data.speakers.device.type, enabled=False):
                if chunk not in cached:
                    cached.clear()
                    cached[chunk] = self._compare(fusion, self._chunks(fusion)[chunk])
                weights = fusion.weights[cell, 2 * number + is_permuted]
                weights_by_chance = fusion.weights[cell, 2 * number + 1]
                inside = cell - chunk * cells_per_chunk
                return self._make_fold_rows(
                    fusion, sides, cached[chunk], cell, inside, (weights, weights_by_chance)
                )

        return FoldRowsOfCondition(len(fusion.mean), make)

    def _make_fold_rows(
        self,
        fusion: _ConditionFusion,
        sides: tuple[Utterances, Utterances],
        blocks: Sequence[FeatureBlock],
        cell: int,
        cell_in_chunk: int,
        weights: tuple[Tensor, Tensor],
    ) -> FoldRows:
        is_row = fusion.enrolment[0].is_row[cell]
        is_column = fusion.test[0].is_row[cell]
        enrolment = sides[0].take(fusion.enrolment[0].row[cell][is_row])
        test = sides[1].take(fusion.test[0].row[cell][is_column])
        parts = []
        for block in blocks:
            rows, columns = block.select_cell(cell_in_chunk)
            columns = (
                columns[:, is_column][..., is_column]
                if block.matrix is not None
                else columns[:, is_column]
            )
            rows = rows[:, is_row][..., is_column] if block.matrix is not None else rows[:, is_row]
            index = torch.tensor(list(block.features), device=fusion.mean.device)
            weight, chance_weight = (values[index].to(rows) for values in weights)
            mean, deviation = (
                values[cell, index].to(rows) for values in (fusion.mean, fusion.deviation)
            )
            parts.append(
                WeightedRows(rows, columns, weight, mean, deviation, block.is_cosine, chance_weight)
            )
        return FoldRows(enrolment, test, parts)

    # --- Fitting

    def _fuse(self, condition: Condition) -> _ConditionFusion:
        if condition.name not in self._fusions:
            with torch.no_grad(), torch.autocast(self.data.speakers.device.type, enabled=False):
                self._fusions[condition.name] = self._fit_fusion(condition)
        return self._fusions[condition.name]

    def _fit_fusion(self, condition: Condition) -> _ConditionFusion:
        """Score a sample of pairs by every feature, standardise, and fit the weights of each
        profile.
        """
        enrolment, test = self._arrange(condition)
        is_same_rows = enrolment[0] is test[0]
        labels = [label for features in self._features for label in features.labels(condition)]
        all_folds = range(self.folds.num_folds)
        columns = self._choose_sample(enrolment[0]), self._choose_sample(test[0])
        sampled_enrolment = [take_sample(cells, columns[0]) for cells in enrolment]
        sampled_test = (
            sampled_enrolment
            if is_same_rows
            else [take_sample(cells, columns[1]) for cells in test]
        )
        kinds = label_pairs(sampled_enrolment[0], sampled_test[0], condition, is_same_rows)
        if len(self._cut_folds(enrolment, test, len(labels))) == 1:  # all rows are mapped once
            kept = self._compare_rows(condition, enrolment, test, all_folds)
            self._kept_blocks = {condition.name: kept}
            blocks = [block.take_columns(*columns) for block in kept]
        else:
            blocks = self._compare_rows(condition, sampled_enrolment, sampled_test, all_folds)
        scores = widen(gather_scores(blocks, len(labels)))  # (C, A, r, r')
        standardised, mean, deviation = standardise_in_cells(scores, kinds)
        cell_fold = torch.arange(len(kinds), device=kinds.device) // self.folds.num_partitions
        is_fitted_on = self._mark_pairs_fitted_on(condition, sampled_enrolment[0], sampled_test[0])
        sample = SampledPairs.from_cells(
            standardised, kinds.masked_fill(~is_fitted_on, NO_TRIAL), cell_fold
        )
        num_folds = self.folds.num_folds
        num_utterances = len(self.data.sides(condition, self.enrolment)[1])
        num_utterances = num_utterances * (num_folds - 1) // num_folds
        weights, shares = fit_weights(sample, labels, num_folds, num_utterances)
        fused = torch.einsum("kqa,kan->kqn", weights[cell_fold], standardised.flatten(2))
        is_trial = (kinds != NO_TRIAL).flatten(1)[:, None]
        scale = (torch.where(is_trial, fused.square(), 0).sum((0, 2)) / is_trial.sum()).sqrt()
        own_counts = empty_counts(len(labels), kinds.device)
        add_pairs(own_counts, standardised, kinds)
        return _ConditionFusion(
            condition,
            enrolment,
            test,
            labels,
            mean,
            deviation,
            weights[cell_fold],
            torch.where(scale > 0, scale, 1),
            shares,
            own_counts[:, :NO_TRIAL],
            sample.has_both_kinds,
        )

    def _arrange(self, condition: Condition) -> tuple[list[CellRows], list[CellRows]]:
        """Return enrolment and test rows of each encoder in their cells; the same objects where
        these are the same.
        """
        enrolment, test = [], []
        for data in self._encoders:
            first, second = data.sides(condition, self.enrolment)
            dtype = wide_dtype(first.embeddings.device)
            if len(first) * len(second) > FEW_PAIRS:
                dtype = torch.float32
            if self.enrolment == "speaker" and first is not second:  # means are not of unit length
                first = replace(first, embeddings=divide_by_norm(first.embeddings))
            enrolment.append(self._arrange_side(first, dtype))
            test.append(self._arrange_side(second, dtype))
        return enrolment, test

    def _mark_pairs_fitted_on(
        self, condition: Condition, enrolment: CellRows, test: CellRows
    ) -> Tensor:
        """Return which pairs ``(C, r, r')`` have two speakers that weights may be fitted on."""
        sides = self.data.sides(condition, self.enrolment)
        is_row = self._is_fitted_on[sides[0].speaker_index][enrolment.row]
        is_column = self._is_fitted_on[sides[1].speaker_index][test.row]
        return is_row[:, :, None] & is_column[:, None]

    def _arrange_side(self, side: Utterances, dtype: torch.dtype) -> CellRows:
        """Return the rows of a side in their cells; conditions share the object."""
        for known, of_dtype, cells in self._arranged:
            if known is side and of_dtype == dtype:
                return cells
        cells = arrange_in_cells(side, self.folds, dtype)
        self._arranged.append((side, dtype, cells))
        return cells

    def _choose_sample(self, cells: CellRows) -> Sample | None:
        for known, sample in self._samples:
            if known is cells:
                return sample
        self._samples.append((cells, choose_sample(cells)))
        return self._samples[-1][1]

    # --- Scoring

    def _chunks(self, fusion: _ConditionFusion) -> list[range]:
        return self._cut_folds(fusion.enrolment, fusion.test, len(fusion.labels))

    def _cut_folds(
        self, enrolment: Sequence[CellRows], test: Sequence[CellRows], num_features: int
    ) -> list[range]:
        """Return the folds that are worked on at a time, so that their mapped rows fit into
        memory.
        """
        num_rows = enrolment[0].code.shape[1] + test[0].code.shape[1]
        width = sum(cells.embeddings.shape[-1] for cells in enrolment)
        per_fold = (
            num_rows * self.folds.num_partitions * width * max(1, num_features // len(enrolment))
        )
        count = max(1, min(self.folds.num_folds, _ROW_ENTRIES_AT_ONCE // max(1, per_fold)))
        starts = range(0, self.folds.num_folds, count)
        return [range(start, min(start + count, self.folds.num_folds)) for start in starts]

    def _compare(self, fusion: _ConditionFusion, folds: range) -> list[FeatureBlock]:
        """Return the features of all pairs of some folds."""
        if fusion.condition.name in self._kept_blocks:
            return self._kept_blocks[fusion.condition.name]
        cells = self._cells_of(folds)
        enrolment = [rows.select_cells(cells) for rows in fusion.enrolment]
        test = (
            enrolment if fusion.is_same_rows else [rows.select_cells(cells) for rows in fusion.test]
        )
        return self._compare_rows(fusion.condition, enrolment, test, folds)

    def _compare_rows(
        self,
        condition: Condition,
        enrolment: Sequence[CellRows],
        test: Sequence[CellRows],
        folds: range,
    ) -> list[FeatureBlock]:
        blocks: list[FeatureBlock] = []
        number = 0
        for features, rows, columns in zip(self._features, enrolment, test, strict=True):
            found = features.compare(rows, columns, condition, folds)
            blocks += [block.shift_numbers(number) for block in found]
            number += len(features.labels(condition))
        return blocks

    def _cells_of(self, folds: range) -> slice:
        return slice(
            folds.start * self.folds.num_partitions, folds.stop * self.folds.num_partitions
        )

    def _score_all_pairs(
        self, fusion: _ConditionFusion, chosen: Sequence[int]
    ) -> Iterator[_ScoredBlock]:
        """Yield all pairs of all folds by the fused scores with these numbers, and by plain
        comparison.
        """
        turn = 0
        for folds in self._chunks(fusion):
            cells = self._cells_of(folds)
            enrolment, test = (
                fusion.enrolment[0].select_cells(cells),
                fusion.test[0].select_cells(cells),
            )
            blocks = self._compare(fusion, folds)
            scale = fusion.weights[cells][:, list(chosen)] / fusion.deviation[cells][:, None]
            scale = scale / fusion.scale[list(chosen)][:, None]
            offset = -(scale * fusion.mean[cells][:, None]).sum(-1)  # (c, Q)
            for rows, columns in cut_into_blocks(
                enrolment, test, len(fusion.labels), fusion.is_same_rows
            ):
                turn += 1
                if turn % self.processes.world_size != self.processes.process_rank:
                    continue
                kinds = label_pairs(
                    enrolment, test, fusion.condition, fusion.is_same_rows, rows, columns
                )
                fused = weigh_blocks(blocks, scale, offset, rows, columns)
                yield _ScoredBlock(
                    fused, kinds, enrolment.code[:, rows], test.code[:, columns], cells.start
                )

    def _count_pairs(self, fusion: _ConditionFusion) -> Tensor:
        """Return the counts ``(2 P, 3, B)`` of all pairs by each fused score, kind of pair and
        bin.
        """
        num_scores = fusion.weights.shape[1]
        counts = empty_counts(num_scores, self.data.speakers.device)
        for block in self._score_all_pairs(fusion, range(num_scores)):
            add_pairs(counts, block.scores, block.kinds)
        (counts,) = self.processes.all_reduce(counts)
        return counts[:, :NO_TRIAL]

    def _evaluate(
        self,
        condition: Condition,
        groups: JackknifeGroups | None,
        plain: Sequence[StepsOfBothSigns],
        plain_replicates: Sequence[StepsOfBothSigns],
    ) -> FusedResult:
        fusion = self._fuse(condition)
        for index in range(max(1, len(plain)), len(self._encoders)):
            counts_of_encoder, replicates_of_encoder = self._compare_plainly(
                condition, index, groups
            )
            plain = [*plain, counts_of_encoder]
            plain_replicates = [*plain_replicates, *replicates_of_encoder]
        counts = widen(self._count_pairs(fusion))
        steps = join_all_steps(counts, widen(fusion.own_counts))
        num_profiles, num_features = len(PROFILES), len(fusion.labels)
        d_ece, chance, own = expected_disclosure(steps).split(
            [num_profiles, num_profiles, 2 * num_features]
        )
        # Plain comparison, with its negation, is the first profile before its sign is chosen.
        floor = torch.stack(
            [expected_disclosure(each) for both in plain for each in both] or [d_ece.new_zeros(())]
        )
        best_plain, best_profile = int(floor.argmax()), int(d_ece.argmax())
        by_profile = torch.maximum(d_ece.cummax(0).values, floor.amax())
        is_plain = bool(plain) and bool(floor[best_plain] >= d_ece[best_profile])
        if is_plain:
            chosen = plain[best_plain // 2][best_plain % 2]
            replicates = (
                plain_replicates[best_plain // 2][best_plain % 2] if plain_replicates else None
            )
        else:
            chosen = take_row(steps, best_profile)
            replicates = None
            if groups is not None:
                replicates = self._count_replicates(fusion, 2 * best_profile, chosen, groups)
        measures = {key: measure(chosen) for key, measure in MEASURES.items()}
        table = torch.stack([own.view(2, -1).amax(0), fusion.shares[-1]])
        d_ece_of_feature, shares = table.tolist()
        return FusedResult(
            measures=measures,
            chance=chance.amax(),
            num_fitted_speakers=torch.full_like(d_ece[0], self.num_fitted_speakers),
            by_profile=dict(zip(PROFILE_KEYS, by_profile, strict=True)),
            profile=None if is_plain else best_profile,
            plain_encoder=best_plain // 2,
            is_negated=is_plain and best_plain % 2 == 1,
            attacks=tabulate_attacks(fusion.labels, d_ece_of_feature, shares),
            replicates=None if replicates is None else measure_replicates(measures, replicates),
        )

    def _compare_plainly(
        self, condition: Condition, index: int, groups: JackknifeGroups | None
    ) -> tuple[StepsOfBothSigns, list[StepsOfBothSigns]]:
        """Return what plain comparison finds by one encoder on all trials, and with groups without
        each of them.
        """
        enrolment, test = self._encoders[index].sides(condition, self.enrolment)
        num_speakers = len(self.data.speakers)
        pairs = PairBlocks(
            enrolment, test, num_speakers, SCORERS["cosine"], condition, self.processes
        )
        scores = collect_pair_scores(pairs)
        if groups is None:
            return scores.counts, []
        from vpmetrics._scores.jackknife import count_replicates

        counted = count_replicates(pairs, scores, groups, self.data.speakers)
        return scores.counts, [counted.measure_input.counts]

    def _count_replicates(
        self, fusion: _ConditionFusion, number: int, steps: Steps, groups: JackknifeGroups
    ) -> Steps:
        """Return the trial counts by one fused score, of all speakers and without each group, ``(1
        + G, S)``.
        """
        folds = self.folds
        num_cells = len(fusion.mean)
        num_codes = int(folds.code.amax()) + 1
        group_of_code = groups.group_of_label.new_full((num_cells * num_codes,), groups.num_groups)
        is_attacked = folds.of_speaker >= 0
        slot_of_speaker = folds.cell_of_speaker * num_codes + folds.code
        group_of_speaker = groups.find_groups(self.data.speakers)
        group_of_code[slot_of_speaker[is_attacked]] = group_of_speaker[is_attacked]
        group_of_code = group_of_code.view(num_cells, num_codes)
        replicates = ReplicateCounts(steps, groups.num_groups)
        for block in self._score_all_pairs(fusion, [number]):
            group_in_cell = group_of_code[block.first_cell : block.first_cell + len(block.kinds)]
            group = group_in_cell.gather(1, block.enrolment_codes.clamp(min=0))
            other_group = group_in_cell.gather(1, block.test_codes.clamp(min=0))
            replicates.add(
                block.scores[:, 0], block.kinds, group[:, :, None], other_group[:, None, :]
            )
        (counts,) = self.processes.all_reduce(replicates.counts)
        return replicates.steps(counts)


class _ScoredBlock(NamedTuple):
    """Fused scores ``(c, Q, a, b)`` over their deviation, kinds ``(c, a, b)``, codes of both sides,
    the first cell.
    """

    scores: Tensor
    kinds: Tensor
    enrolment_codes: Tensor
    test_codes: Tensor
    first_cell: int


def _prepare(data: EvaluationData) -> EvaluationData:
    """Return the data with rows of unit length."""
    return data._replace(original=unit_length(data.original), protected=unit_length(data.protected))


def _as_list(value: StepsOfBothSigns | Sequence[StepsOfBothSigns] | None) -> list[StepsOfBothSigns]:
    if value is None:
        return []
    return [value] if isinstance(value, StepsOfBothSigns) else list(value)


def append_plain_attack(attacks: Sequence[Any]) -> tuple[Any, ...]:
    """Return the attacks, with plain comparison put first where it is missing."""
    return (
        tuple(attacks) if any(type(attack) is Plain for attack in attacks) else (Plain(), *attacks)
    )
