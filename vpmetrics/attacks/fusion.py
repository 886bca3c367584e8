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

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._scores.condition_scores import collect_pair_scores
from vpmetrics._scores.measures import eer_of_steps, found_among_of_steps, tpr_at_fpr_of_steps
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.score_counts import Steps, StepsOfBothSigns, expected_disclosure
from vpmetrics._scores.scorers import FEW_PAIRS, SCORERS
from vpmetrics._util.dtypes import is_finite_everywhere, wide_dtype, widen
from vpmetrics._util.scalar import FULL_DISCLOSURE
from vpmetrics._util.validation import warn_undefined
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import (
    EvaluationData,
    Utterances,
    add_counts,
    renumber_speakers,
)
from vpmetrics.attacks.features import (
    PROFILES,
    AttackFeatures,
    AttackName,
    FeatureBlock,
    attack_name,
    name_on_encoder,
    unit_length,
)
from vpmetrics.attacks.fold_rows import FoldRows, FoldRowsOfCondition, WeightedRows
from vpmetrics.attacks.folds import (
    CHANCE_TARGET,
    FEWEST_SPEAKERS,
    NO_TRIAL,
    NONTARGET,
    TARGET,
    CellRows,
    Sample,
    arrange_in_cells,
    assign_folds,
    choose_sample,
    label_pairs,
    take_sample,
)
from vpmetrics.attacks.linear import Plain
from vpmetrics.attacks.logistic import fit_logistic_weights
from vpmetrics.attacks.moments import MomentSums, divide_by_norm

if TYPE_CHECKING:
    from vpmetrics._scores.jackknife import JackknifeGroups

PROFILE_KEYS = ("nothing", "protected", "labelled", "pairs")
"""How keys of the profiles end: ``op_d_ece_pairs``."""

_MEASURES: dict[str, Callable[[Steps], Tensor]] = {
    "d_ece_strongest": expected_disclosure,
    "eer_strongest": eer_of_steps,
    "tpr_at_1e-2_strongest": partial(tpr_at_fpr_of_steps, fpr=1e-2),
    "tpr_at_1e-3_strongest": partial(tpr_at_fpr_of_steps, fpr=1e-3),
    "found_in_100": found_among_of_steps,
}
_BINS = 1 << 14  # of fused and of single scores
_CELLS = 1 << 10  # of the axis that replicates are counted in
_CLIP = 6.0  # standardised scores beyond it are clipped for the regression
_LINEAR_RANGE = 4.0  # deviations up to which bins of the fused score are about equal
_FEWEST_FOR_LIMIT = 32  # speakers fitted on, for a learning curve
_CONSTANT = 1e-6  # deviation relative to the mean below which scores are equal but for rounding
_MOST_TARGETS, _MOST_NONTARGETS = 1 << 12, 1 << 13  # pairs that weights are fitted on
_ENTRIES_AT_ONCE = 1 << 24  # scores of all attacks held at a time
_ROW_ENTRIES_AT_ONCE = 1 << 25  # entries of mapped rows held at a time


class AttackShare(NamedTuple):
    """What one attack finds by itself, and its share of the fused score.

    ``d_ece``: in its better direction, from a sample of pairs, the largest of its settings.
    ``share``: what its scores add to the distance between the means of targets and of non-targets,
    over that distance; shares add up to 1.
    """

    name: str
    needs: str
    d_ece: float
    share: float


class ReportedAttack(NamedTuple):
    """An attack of a report: D_ECE in bits and share of the fused score, by condition."""

    name: str
    needs: str
    d_ece: Mapping[str, float]
    share: Mapping[str, float]


class LearningCurve(NamedTuple):
    """D_ECE by the number of speakers that attacks are fitted on.

    ``limit``: ``a`` of ``a + b / n`` through half of the ``n`` speakers of the other folds and all
    that attacks are fitted on, observed ones included; at least the value of all; NaN where that is
    within chance, or for fewer than 32 speakers.
    """

    num_speakers: int
    from_half: Tensor
    from_all: Tensor
    limit: Tensor


class FusedFold(NamedTuple):
    """Utterances of a fold whose embeddings are fused rows, and how a test is compared with a
    reference.
    """

    data: EvaluationData
    score: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class FusedResult:
    """What the fused attacker learns in one condition.

    ``measures``: by key, of the chosen branch. ``by_profile``: D_ECE by key of the profile, each at
    least that of the profiles it includes. ``profile``: number of the chosen profile; None where
    plain comparison finds at least as much, then ``plain_encoder`` and ``is_negated`` tell which
    one. ``attacks``: the table of attacks by themselves. ``curve``: the learning curve, where it
    was asked for. ``replicates``: measures of all speakers and without each group, ``(1 + G,)``.
    """

    measures: dict[str, Tensor]
    chance: Tensor
    num_fitted_speakers: Tensor
    by_profile: dict[str, Tensor]
    profile: int | None = None
    plain_encoder: int = 0
    is_negated: bool = False
    attacks: tuple[AttackShare, ...] = ()
    curve: LearningCurve | None = None
    replicates: dict[str, Tensor] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether plain comparison finds at least as much as the fused attacker."""
        return self.profile is None

    @property
    def name(self) -> str:
        """What is compared."""
        return "plain" if self.is_plain else "fused attacks"

    @property
    def needs(self) -> str:
        """What the attacker must have."""
        return PROFILES[self.profile or 0]

    def scalars(self) -> dict[str, Tensor]:
        """Return the numbers by their keys."""
        profiles = {f"d_ece_{name}": value for name, value in self.by_profile.items()}
        return {
            **self.measures,
            "d_ece_chance": self.chance,
            "attack_speakers": self.num_fitted_speakers,
            **profiles,
        }


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
        half: Fit on every other speaker of the other folds, from this one on; None for all of them.
    """

    def __init__(
        self,
        data: EvaluationData,
        attacks: Sequence[Any],
        conditions: Sequence[Condition],
        observed: MomentSums | None = None,
        enrolment: Literal["utterance", "speaker"] | None = None,
        half: Literal[0, 1] | None = None,
    ) -> None:
        count = max(1, len(data.encoders))
        self._encoders = [_prepare(data.of_encoder(index)) for index in range(count)]
        self._encoder_names = [encoder.name for encoder in data.encoders] if count > 1 else [""]
        self.data = self._encoders[0]
        self.attacks, self.conditions = append_plain_attack(attacks), tuple(conditions)
        self.processes, self.enrolment = data.processes, enrolment
        self._observed = observed
        self._observed_by_encoder: list[MomentSums | None] = [observed] * count
        if observed is not None and count > 1:
            self._observed_by_encoder = [
                observed.of_encoder(data.encoders, index) for index in range(count)
            ]
        self.folds = assign_folds(self.data)
        self._all_encoders, self._half = data, half
        self._is_fitted_on = torch.ones_like(self.folds.code, dtype=torch.bool)
        if half is not None:
            self._is_fitted_on = self.folds.code % 2 == half
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
        names = [
            AttackName(name_on_encoder(attack_name(attack), encoder), getattr(attack, "needs", ""))
            for encoder in self._encoder_names
            for attack in self.attacks
        ]
        found = {
            condition: {entry[:2]: entry for entry in result.attacks}
            for condition, result in results.items()
        }
        for entries in found.values():
            names += [AttackName(*name) for name in entries]
        reported = []
        for name in dict.fromkeys(names):
            known = {
                condition: entries[name] for condition, entries in found.items() if name in entries
            }
            d_ece = {condition: entry.d_ece for condition, entry in known.items()}
            share = {condition: entry.share for condition, entry in known.items()}
            reported.append(ReportedAttack(name.name, name.needs, d_ece, share))
        return tuple(reported)

    def learning_curve(
        self,
        condition: Condition,
        result: FusedResult,
        plain: StepsOfBothSigns | Sequence[StepsOfBothSigns] = (),
    ) -> LearningCurve:
        """Return what the attacker learns from half of the speakers and from all, and the limit of
        many speakers.

        Maps and weights are fitted again on either half of the speakers of the other folds, without
        what was observed; the attacked trials stay the same. See :class:`LearningCurve`.
        """
        value = result.measures["d_ece_strongest"]
        undefined = torch.full_like(value, torch.nan)
        number = self.num_fitted_speakers
        few = self.folds.fewest_training_speakers // 2
        if number < _FEWEST_FOR_LIMIT or bool(value.isnan()):
            return LearningCurve(number, undefined, value, undefined)
        from_halves = []
        halves: tuple[Literal[0], Literal[1]] = (0, 1)
        for half in halves:
            attacker = FusedAttacker(
                self._all_encoders,
                self.attacks,
                [condition],
                observed=None,
                enrolment=self.enrolment,
                half=half,
            )
            from_halves.append(attacker.result(condition, plain=plain).measures["d_ece_strongest"])
        from_half = torch.stack(from_halves).mean()
        # D(n) = a + b / n for few and all of the speakers: a = (n D(n) - m D(m)) / (n - m).
        limit = (number * value - few * from_half) / (number - few)
        limit = torch.maximum(limit.clamp(max=FULL_DISCLOSURE), value)
        limit = torch.where(value > result.chance, limit, torch.nan)
        return LearningCurve(number, from_half, value, limit)

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
                else dict.fromkeys(_MEASURES, nan.expand(1 + groups.num_groups))
            )
            return FusedResult(
                dict.fromkeys(_MEASURES, nan),
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
        sample = _SampledPairs.from_cells(
            standardised, kinds.masked_fill(~is_fitted_on, NO_TRIAL), cell_fold
        )
        weights, shares = self._fit_weights(sample, labels)
        fused = torch.einsum("kqa,kan->kqn", weights[cell_fold], standardised.flatten(2))
        is_trial = (kinds != NO_TRIAL).flatten(1)[:, None]
        scale = (torch.where(is_trial, fused.square(), 0).sum((0, 2)) / is_trial.sum()).sqrt()
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
            count_single_attacks(standardised, kinds),
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

    def _fit_weights(
        self, sample: _SampledPairs, labels: Sequence[AttackName]
    ) -> tuple[Tensor, Tensor]:
        """Return the weights ``(K, 2 P, A)`` of each fold, and the share of each feature in each
        profile ``(P, A)``.
        """
        num_folds, num_profiles = self.folds.num_folds, len(PROFILES)
        device = sample.fold.device
        is_outside = sample.fold != torch.arange(num_folds, device=device)[:, None]
        target_kind = torch.tensor([TARGET, CHANCE_TARGET], device=device)[:, None, None]
        is_target = (sample.kind == target_kind).expand(-1, num_folds, -1).flatten(0, 1)  # (2 K, P)
        pair_weights = balance_classes(is_outside.repeat(2, 1), is_target, sample.kind == NONTARGET)
        weights = sample.scores.new_zeros(num_profiles, 2 * num_folds, len(labels))
        profile = torch.tensor([label.profile for label in labels], device=device)
        order = profile.argsort(stable=True)
        sizes = [sum(label.profile <= number for label in labels) for number in range(num_profiles)]
        # The poorer profiles have few features, so that one regression fits them all.
        for profiles in (range(num_profiles - 1), range(num_profiles - 1, num_profiles)):
            features = order[: sizes[profiles[-1]]]
            richest = torch.tensor(profiles, device=device)[:, None]
            is_used = (profile[features] <= richest).repeat_interleave(2 * num_folds, dim=0)
            count = len(profiles)
            found = fit_logistic_weights(
                sample.scores[:, features],
                is_target.repeat(count, 1),
                pair_weights.repeat(count, 1),
                is_used,
            )
            weights[profiles.start : profiles.stop, :, features] = found.unflatten(0, (count, -1))
        shares = share_of_distance(weights[:, :num_folds].mean(1), sample.scores, sample.kind)
        by_fold = weights.unflatten(1, (2, num_folds)).permute(2, 0, 1, 3)  # (K, P, 2, A)
        return by_fold.flatten(1, 2), shares

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
        number = fusion.weights.shape[1]
        counts = torch.zeros(
            number, NO_TRIAL + 1, _BINS, dtype=torch.int32, device=self.data.speakers.device
        )
        first_slot = torch.arange(number, dtype=torch.int32, device=counts.device) * (
            (NO_TRIAL + 1) * _BINS
        )
        for block in self._score_all_pairs(fusion, range(number)):
            slots = assign_bins(block.scores)  # (c, Q, a, b)
            slots += first_slot[:, None, None]
            slots += block.kinds[:, None] * _BINS
            add_counts(counts.view(-1), slots)
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
        measures = {key: measure(chosen) for key, measure in _MEASURES.items()}
        return FusedResult(
            measures=measures,
            chance=chance.amax(),
            num_fitted_speakers=torch.full_like(d_ece[0], self.num_fitted_speakers),
            by_profile=dict(zip(PROFILE_KEYS, by_profile, strict=True)),
            profile=None if is_plain else best_profile,
            plain_encoder=best_plain // 2,
            is_negated=is_plain and best_plain % 2 == 1,
            attacks=tabulate_attacks(fusion, own.view(2, -1).amax(0)),
            replicates=None if replicates is None else _measure_replicates(measures, replicates),
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
        cell_of_bin = merge_bins(steps)
        size = int(cell_of_bin[-1]) + 1
        num_cells, longest = len(fusion.mean), int(folds.code.amax()) + 1
        group_of_code = groups.group_of_label.new_full((num_cells * longest,), groups.num_groups)
        is_attacked = folds.of_speaker >= 0
        place = folds.cell_of_speaker * longest + folds.code
        group_of_code[place[is_attacked]] = groups.find_groups(self.data.speakers)[is_attacked]
        group_of_code = group_of_code.view(num_cells, longest)
        counts = torch.zeros(
            2 * (groups.num_groups + 1) * size + 1, dtype=torch.int64, device=place.device
        )
        unused = len(counts) - 1
        for block in self._score_all_pairs(fusion, [number]):
            cells = group_of_code[block.first_cell : block.first_cell + len(block.kinds)]
            first = cells.gather(1, block.enrolment_codes.clamp(min=0))[:, :, None]
            second = cells.gather(1, block.test_codes.clamp(min=0))[:, None, :]
            slots = cell_of_bin[assign_bins(block.scores[:, 0]).long()]
            slots = slots + (block.kinds == TARGET) * ((groups.num_groups + 1) * size)
            slots = slots.masked_fill(block.kinds == NO_TRIAL, unused)
            # A trial of two speakers of one group is left out once.
            second = torch.where(first == second, groups.num_groups, second)
            for each in (first, second):
                add_counts(counts, (slots + each * size).clamp_(max=unused))
        (counts,) = self.processes.all_reduce(counts)
        left_out = pad(widen(counts[:-1].view(2, -1, size)[:, :-1]), (0, 0, 1, 0))
        empty = steps.targets.new_zeros(size)
        targets = empty.index_add(0, cell_of_bin, steps.targets)
        nontargets = empty.index_add(0, cell_of_bin, steps.nontargets)
        return Steps(left_out.new_empty(0), targets - left_out[1], nontargets - left_out[0])


class _ScoredBlock(NamedTuple):
    """Fused scores ``(c, Q, a, b)`` over their deviation, kinds ``(c, a, b)``, codes of both sides,
    the first cell.
    """

    scores: Tensor
    kinds: Tensor
    enrolment_codes: Tensor
    test_codes: Tensor
    first_cell: int


class _SampledPairs(NamedTuple):
    """Clipped standardised scores ``(P, A)`` of sampled pairs, with their kinds and folds
    ``(P,)``.
    """

    scores: Tensor
    kind: Tensor
    fold: Tensor
    has_both_kinds: bool

    @classmethod
    def from_cells(cls, scores: Tensor, kinds: Tensor, cell_fold: Tensor) -> _SampledPairs:
        """Return evenly spaced pairs of each kind, from scores ``(C, A, r, r')`` and kinds ``(C, r,
        r')``.
        """
        flat_kinds = kinds.flatten()
        chosen = []
        for kind in (NONTARGET, CHANCE_TARGET, TARGET):
            places = (flat_kinds == kind).nonzero().flatten()
            count = min(len(places), _MOST_NONTARGETS if kind == NONTARGET else _MOST_TARGETS)
            chosen.append(
                places[torch.arange(count, device=places.device) * len(places) // max(1, count)]
            )
        has_both_kinds = len(chosen[0]) + len(chosen[1]) > 0 and len(chosen[2]) > 0
        places = torch.cat(chosen)
        per_cell = kinds[0].numel()
        cell = places // per_cell
        values = scores.flatten(2)[cell, :, places % per_cell].clamp(-_CLIP, _CLIP)
        return cls(values, flat_kinds[places], cell_fold[cell], has_both_kinds)


def tabulate_attacks(fusion: _ConditionFusion, own_d_ece: Tensor) -> tuple[AttackShare, ...]:
    """Return what each attack finds by itself, its best setting, and its share of the richest
    profile.
    """
    names = list(dict.fromkeys(fusion.labels))
    table = torch.stack([own_d_ece, fusion.shares[-1]]).tolist()
    d_ece = dict.fromkeys(names, -math.inf)
    share = dict.fromkeys(names, 0.0)
    for label, bits, part in zip(fusion.labels, *table, strict=True):
        d_ece[label] = max(d_ece[label], bits)
        share[label] += part
    return tuple(AttackShare(*name, d_ece[name], share[name]) for name in names)


def _prepare(data: EvaluationData) -> EvaluationData:
    """Return the data with rows of unit length."""
    return data._replace(original=unit_length(data.original), protected=unit_length(data.protected))


def _as_list(value: StepsOfBothSigns | Sequence[StepsOfBothSigns] | None) -> list[StepsOfBothSigns]:
    if value is None:
        return []
    return [value] if isinstance(value, StepsOfBothSigns) else list(value)


def make_fused_fold(
    enrolment: Utterances, test: Utterances, rows: tuple[Tensor, Tensor], condition: Condition
) -> FusedFold:
    """Return the fold with enrolment rows in the first half of the columns and test rows in the
    second half.
    """
    enrolment_rows, test_rows = rows
    width = enrolment_rows.shape[1]

    def score(tests: Tensor, references: Tensor) -> Tensor:
        return tests[:, width:] @ references[:, :width].mT

    if condition.is_same_side and len(enrolment) == len(test):
        protected = replace(test, embeddings=torch.cat([enrolment_rows, test_rows], dim=1))
        original = protected.take(slice(0, 0))
    else:
        original = replace(enrolment, embeddings=pad(enrolment_rows, (0, width)))
        protected = replace(test, embeddings=pad(test_rows, (width, 0)))
    return FusedFold(renumber_speakers(original, protected), score)


def append_plain_attack(attacks: Sequence[Any]) -> tuple[Any, ...]:
    """Return the attacks, with plain comparison put first where it is missing."""
    return (
        tuple(attacks) if any(type(attack) is Plain for attack in attacks) else (Plain(), *attacks)
    )


def gather_scores(blocks: Sequence[FeatureBlock], num_features: int) -> Tensor:
    """Return the scores of all features, ``(C, A, r, r')``, in the order of their numbers."""
    parts = [block.score() for block in blocks]
    numbers = [number for block in blocks for number in block.features]
    wide = max((part.dtype for part in parts), key=lambda dtype: dtype.itemsize)
    scores = torch.cat([part.to(wide) for part in parts])
    order = torch.tensor(numbers, device=scores.device).argsort()
    assert len(order) == num_features
    return scores[order].transpose(0, 1)


def standardise_in_cells(scores: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores with mean 0 and deviation 1 in each cell, without labels; their means and
    deviations ``(C, A)``.

    A feature whose scores are constant, infinite or missing in some cell is 0 everywhere; its
    deviation is infinite.
    """
    is_trial = (kinds != NO_TRIAL)[:, None]
    number = is_trial.sum((2, 3)).clamp(min=1)
    known = torch.where(is_trial, scores, 0)
    mean = known.sum((2, 3)) / number
    centred = torch.where(is_trial, scores - mean[..., None, None], 0)
    deviation = (centred.square().sum((2, 3)) / number).sqrt()
    has_trials = is_trial.any(3).any(2)
    is_usable = (deviation.isfinite() & (deviation > _CONSTANT * mean.abs()) | ~has_trials).all(0)
    deviation = torch.where(is_usable & has_trials, deviation, torch.inf)
    mean = torch.where(is_usable, mean, 0)
    standardised = torch.where(is_usable[:, None, None], centred / deviation[..., None, None], 0)
    return standardised, mean, deviation


def balance_classes(is_outside: Tensor, is_target: Tensor, is_nontarget: Tensor) -> Tensor:
    """Return the weight of each pair ``(P,)`` in each problem ``(K, P)``: those of a class add up
    to 1/2.
    """
    of_targets = (is_outside & is_target).to(wide_dtype(is_outside.device))
    of_nontargets = (is_outside & is_nontarget).to(of_targets)
    share_of_target = 0.5 / of_targets.sum(1, keepdim=True).clamp(min=1)
    share_of_nontarget = 0.5 / of_nontargets.sum(1, keepdim=True).clamp(min=1)
    return of_targets * share_of_target + of_nontargets * share_of_nontarget


def share_of_distance(weights: Tensor, scores: Tensor, kind: Tensor) -> Tensor:
    """Return what each feature adds to the distance between the means of targets and of others,
    over that distance.
    """
    means = []
    for one_kind in (TARGET, NONTARGET):
        is_of_kind = (kind == one_kind).to(scores)
        means.append(is_of_kind @ scores / is_of_kind.sum().clamp(min=1))
    distance = weights * (means[0] - means[1])
    return (distance / distance.sum(-1, keepdim=True)).nan_to_num(0, 0, 0)


def count_single_attacks(standardised: Tensor, kinds: Tensor) -> Tensor:
    """Return the counts ``(A, 3, B)`` by the score of each feature, from scores ``(C, A, r, r')``
    of all cells.
    """
    num_features = standardised.shape[1]
    first_slot = torch.arange(num_features, dtype=torch.int32, device=kinds.device) * (
        (NO_TRIAL + 1) * _BINS
    )
    counts = torch.zeros(num_features, NO_TRIAL + 1, _BINS, dtype=torch.int32, device=kinds.device)
    slots = assign_bins(standardised) + kinds[:, None] * _BINS + first_slot[:, None, None]
    add_counts(counts.view(-1), slots)
    return counts[:, :NO_TRIAL]


def steps_of_counts(counts: Tensor, is_permuted: bool) -> Steps:
    """Return the steps of counts ``(..., 3, B)`` by kind; permuted targets are pairs of a speaker
    and the next.
    """
    nontargets, next_speaker, targets = counts.unbind(-2)
    edges = counts.new_empty(0)
    return (
        Steps(edges, next_speaker, nontargets)
        if is_permuted
        else Steps(edges, targets, nontargets + next_speaker)
    )


def take_row(steps: Steps, row: int) -> Steps:
    """Return one row of steps ``(..., S)``, with the pools that are known already."""
    one = Steps(steps.edges, steps.targets[row], steps.nontargets[row])
    one.__dict__["pool_of_step"] = steps.pool_of_step[row]
    return one


def join_all_steps(fused: Tensor, own: Tensor) -> Steps:
    """Return the steps ``(2 P + 2 A, B)`` of all that is calibrated, so that one PAV serves it.

    ``fused`` ``(2 P, 3, B)`` holds each profile, for speakers and for permuted ones; ``own`` ``(A,
    3, B)`` single features. First come all profiles, then those of permuted speakers, single
    features, and these with negated scores.
    """
    real = steps_of_counts(fused[0::2], is_permuted=False)
    permuted = steps_of_counts(fused[1::2], is_permuted=True)
    single = steps_of_counts(own, is_permuted=False)
    targets = [real.targets, permuted.targets, single.targets, single.targets.flip(-1)]
    nontargets = [
        real.nontargets,
        permuted.nontargets,
        single.nontargets,
        single.nontargets.flip(-1),
    ]
    return Steps(real.edges, torch.cat(targets), torch.cat(nontargets))


def cut_into_blocks(
    enrolment: CellRows, test: CellRows, num_features: int, is_same_rows: bool
) -> Iterator[tuple[slice, slice]]:
    """Yield slices of enrolment and test rows, so that the scores of all features fit into
    memory.
    """
    num_cells, num_rows = enrolment.code.shape
    num_columns = test.code.shape[1]
    entries = _ENTRIES_AT_ONCE
    # many pairs: memory counts more than the number of products
    if enrolment.embeddings.dtype == torch.float32:
        entries //= 4
    most = max(1, entries // max(1, num_features * num_cells))
    columns_at_once = num_columns if 32 * num_columns <= most else max(64, int(most**0.5))
    rows_at_once = max(1, most // columns_at_once)
    for start in range(0, num_rows, rows_at_once):
        for first in range(0, num_columns, columns_at_once):
            if not is_same_rows or first + columns_at_once > start:
                yield slice(start, start + rows_at_once), slice(first, first + columns_at_once)


def weigh_blocks(
    blocks: Sequence[FeatureBlock], scale: Tensor, offset: Tensor, rows: slice, columns: slice
) -> Tensor:
    """Return weighted sums ``(c, Q, a, b)`` of the scores of all features; ``scale`` ``(c, Q,
    A)``.
    """
    fused: Tensor | None = None
    for block in blocks:
        scores = block.score(rows, columns).transpose(0, 1)  # (c, A, a, b)
        weights = scale[..., list(block.features)].to(scores)
        part = (weights @ scores.flatten(2)).unflatten(2, scores.shape[2:])
        fused = part if fused is None else fused + part
    assert fused is not None
    return fused + offset[..., None, None].to(fused)


def assign_bins(scores: Tensor) -> Tensor:
    """Return the bin of fused scores over their deviation, int32: about equal near 0, and wider
    outwards.
    """
    squashed = scores / (scores.abs() + _LINEAR_RANGE)  # in (-1, 1)
    return ((squashed + 1) * (_BINS / 2)).nan_to_num(0).clamp(0, _BINS - 1).to(torch.int32)


def merge_bins(steps: Steps) -> Tensor:
    """Return for each bin a coarser cell of about as many trials; pools of PAV begin with a
    cell.
    """
    share = steps.targets / (2 * steps.targets.sum()) + steps.nontargets / (
        2 * steps.nontargets.sum()
    )
    number = ((share.cumsum(0) - share) * _CELLS).floor()
    begins = (number.diff() > 0) | (steps.pool_of_step.diff() > 0)
    return pad(begins.long().cumsum(0), (1, 0))


def _measure_replicates(measures: dict[str, Tensor], replicates: Steps) -> dict[str, Tensor]:
    """Return each measure of all speakers and without each group, ``(1 + G,)``."""
    values = {}
    for key, measure in _MEASURES.items():
        # Replicates are counted in coarser bins than the value, so only their difference from the
        # first row, of all speakers, is added to the value.
        rows = measure(replicates)
        values[key] = measures[key] + rows - rows[0]
    return values
