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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from vpmetrics._scores.condition_scores import collect_pair_scores
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.score_counts import Steps, StepsOfBothSigns, expected_disclosure
from vpmetrics._scores.scorers import SCORERS
from vpmetrics._util.dtypes import is_finite_everywhere, wide_dtype, widen
from vpmetrics._util.scalar import FULL_DISCLOSURE
from vpmetrics._util.validation import warn_undefined
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import EvaluationData, count_values
from vpmetrics.attacks.feature_blocks import (
    FeatureBlock,
)
from vpmetrics.attacks.features import (
    PROFILES,
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
    assign_folds,
)
from vpmetrics.attacks.fused_counts import (
    MEASURES,
    join_all_steps,
    measure_replicates,
    take_row,
)
from vpmetrics.attacks.fused_scores import ConditionFusion, FusedScores
from vpmetrics.attacks.linear import Plain
from vpmetrics.attacks.moments import MomentSums
from vpmetrics.attacks.results import (
    PROFILE_KEYS,
    AttackShare,
    FusedResult,
    LearningCurve,
    ReportedAttack,
    report_attacks,
    tabulate_attacks,
)

if TYPE_CHECKING:
    from vpmetrics._scores.jackknife import JackknifeGroups

_FEWEST_FOR_LIMIT = 32  # speakers fitted on, for a learning curve
_CURVE_SHARES = (4, 2, 1)  # of the speakers of other folds, 1/4 and so on; 1 beside observed ones
_SUBSETS_OF_SHARE = 2  # subsets of such a share that are averaged


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
        if count > 1:
            self._encoder_names = [encoder.name for encoder in data.encoders]
        else:
            self._encoder_names = [""]
        self.data = self._encoders[0]
        self.attacks = append_plain_attack(attacks)
        self.conditions = tuple(conditions)
        self.processes = data.processes
        self.enrolment = enrolment
        self._observed = observed
        self._observed_by_encoder: list[MomentSums | None] = [observed] * count
        if observed is not None and count > 1:
            for index in range(count):
                self._observed_by_encoder[index] = observed.of_encoder(data.encoders, index)
        self.folds = assign_folds(self.data)
        self._scores = self._make_scores(torch.ones_like(self.folds.code, dtype=torch.bool))

    def _make_scores(self, is_fitted_on: Tensor) -> FusedScores:
        return FusedScores(
            self._encoders,
            self._encoder_names,
            self.folds,
            self.attacks,
            self.conditions,
            self._observed_by_encoder,
            self.enrolment,
            is_fitted_on,
        )

    @property
    def encoders(self) -> Sequence[EvaluationData]:
        """The utterances as each encoder embeds them."""
        return self._encoders

    def report_attacks(self, results: Mapping[str, FusedResult]) -> tuple[ReportedAttack, ...]:
        """Return all attacks in the results by condition.

        Each has the disclosure it finds by itself, and its share.
        """
        names = []
        for encoder in self._encoder_names:
            for attack in self.attacks:
                name = name_on_encoder(attack_name(attack), encoder)
                names.append(AttackName(name, getattr(attack, "needs", "")))
        return report_attacks(names, results)

    def learning_curve(
        self,
        condition: Condition,
        result: FusedResult,
        plain: StepsOfBothSigns | Sequence[StepsOfBothSigns] = (),
    ) -> LearningCurve:
        """Return what the attacker learns from a quarter, half and all of the speakers.

        The last value is the limit of many speakers.

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
        """Return the attacker fitted on every so many speakers of each fold.

        The first of them is ``subset``.
        """
        attacker = FusedAttacker(
            self._all_encoders, self.attacks, [condition], enrolment=self.enrolment
        )
        attacker._scores = attacker._make_scores(self.folds.code % share == subset)
        return attacker

    def fused_folds(self, condition: Condition, result: FusedResult) -> list[FusedFold]:
        """Return the utterances of each fold, with what the chosen branch compares.

        An empty list where undefined.
        """
        if not result.attacks:
            return []
        profile = PROFILES[result.profile or 0]
        folds = []
        for rows in self.fold_rows(condition, profile):
            enrolment = rows.enrolment
            test = rows.test
            sides = (rows.enrolment_rows, rows.test_rows)
            if result.is_plain:
                sign = -1.0 if result.is_negated else 1.0
                sides = (sign * enrolment.embeddings, test.embeddings)
            folds.append(make_fused_fold(enrolment, test, sides, condition))
        return folds

    @cached_property
    def num_fitted_speakers(self) -> int:
        """How many speakers the attack of a fold is fitted on, at least, observed ones included."""
        num_speakers = self.folds.fewest_training_speakers
        if self._observed is not None:
            is_measured = torch.isin(self._observed.names, self.data.speakers)
            num_speakers += int((~is_measured).sum())
        return num_speakers

    @cached_property
    def _is_finite(self) -> bool:
        inputs = list(self._observed or ())
        for data in self._encoders:
            inputs += [data.original.embeddings, data.protected.embeddings]
        return bool(torch.stack([is_finite_everywhere(values) for values in inputs]).all())

    def result(
        self,
        condition: Condition,
        groups: JackknifeGroups | None = None,
        plain: StepsOfBothSigns | Sequence[StepsOfBothSigns] = (),
        plain_replicates: StepsOfBothSigns | Sequence[StepsOfBothSigns] | None = None,
    ) -> FusedResult:
        """Return what the fused attacker learns in a condition.

        NaN and one warning where it is undefined.

        ``groups`` are left out one by one; attacks and weights stay as they are. ``plain``: what
        plain comparison finds on all trials, by encoder; the result is at least that, in the better
        direction. Encoders missing there are compared here; without any, the result is that of the
        fused scores alone. ``plain_replicates`` ``(1 + G, S)``: the same of all speakers and
        without each group.
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
            replicates = None
            if groups is not None:
                replicates = dict.fromkeys(MEASURES, nan.expand(1 + groups.num_groups))
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
        if len(enrolment) == 0 or len(test) == 0 or not self._scores.fuse(condition).has_both_kinds:
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
        profile_index = PROFILES.index(profile or PROFILES[-1])
        fusion = self._scores.fuse(condition)
        sides = self.data.sides(condition, self.enrolment)
        chunks = self._scores.cut_folds(fusion)
        cells_per_chunk = len(chunks[0]) * self.folds.num_partitions
        blocks_of_chunk: dict[int, list[FeatureBlock]] = {}

        def make(cell: int) -> FoldRows:
            chunk = cell // cells_per_chunk
            with torch.no_grad(), torch.autocast(self.data.speakers.device.type, enabled=False):
                if chunk not in blocks_of_chunk:
                    blocks_of_chunk.clear()
                    blocks_of_chunk[chunk] = self._scores.compare(fusion, chunks[chunk])
                cell_in_chunk = cell - chunk * cells_per_chunk
                rows_of_attacks = []
                for block in blocks_of_chunk[chunk]:
                    rows_of_attacks.append(
                        _weigh_rows(fusion, block, cell, cell_in_chunk, profile_index, is_permuted)
                    )
            is_row = fusion.enrolment[0].is_row[cell]
            is_column = fusion.test[0].is_row[cell]
            enrolment = sides[0].take(fusion.enrolment[0].row[cell][is_row])
            test = sides[1].take(fusion.test[0].row[cell][is_column])
            return FoldRows(enrolment, test, rows_of_attacks)

        return FoldRowsOfCondition(len(fusion.mean), make)

    def _evaluate(
        self,
        condition: Condition,
        groups: JackknifeGroups | None,
        plain: Sequence[StepsOfBothSigns],
        plain_replicates: Sequence[StepsOfBothSigns],
    ) -> FusedResult:
        """Return what the fused score finds, or plain comparison where that finds at least as much.

        ``plain`` and ``plain_replicates``: by encoder, as in :meth:`result`.
        """
        fusion = self._scores.fuse(condition)
        plain_attackers = self._list_plain_attackers(condition, groups, plain, plain_replicates)
        counts = widen(self._scores.count_pairs(fusion))  # (2 P, 3, B)
        # A profile is what an attacker may have; a feature is one attack with one setting. One PAV
        # serves all rows (2 P + 2 A, B), in this order: the P profiles, these profiles on permuted
        # speakers, the A single features, and these with negated scores.
        steps = join_all_steps(counts, widen(fusion.own_counts))
        num_profiles = len(PROFILES)
        num_features = len(fusion.labels)
        d_ece_of_profile, chance_of_profile, d_ece_of_features = expected_disclosure(steps).split(
            [num_profiles, num_profiles, 2 * num_features]
        )
        plain_disclosures = [expected_disclosure(attacker.steps) for attacker in plain_attackers]
        if not plain_attackers:
            plain_disclosures.append(d_ece_of_profile.new_zeros(()))
        d_ece_of_plain = torch.stack(plain_disclosures)
        best_plain = int(d_ece_of_plain.argmax())
        best_profile = int(d_ece_of_profile.argmax())
        # A profile has all that the profiles before it have, and any attacker can compare plainly.
        at_least = torch.maximum(d_ece_of_profile.cummax(0).values, d_ece_of_plain.amax())

        plain_attacker = None
        if plain_attackers and bool(d_ece_of_plain[best_plain] >= d_ece_of_profile[best_profile]):
            plain_attacker = plain_attackers[best_plain]
            chosen_steps = plain_attacker.steps
            replicates = plain_attacker.replicates
        else:
            chosen_steps = take_row(steps, best_profile)
            replicates = self._replicate_profile(fusion, best_profile, chosen_steps, groups)
        measures = {key: measure(chosen_steps) for key, measure in MEASURES.items()}
        replicates_by_key = None
        if replicates is not None:
            replicates_by_key = measure_replicates(measures, replicates)
        result = FusedResult(
            measures=measures,
            chance=chance_of_profile.amax(),
            num_fitted_speakers=torch.full_like(d_ece_of_profile[0], self.num_fitted_speakers),
            by_profile=dict(zip(PROFILE_KEYS, at_least, strict=True)),
            profile=best_profile,
            attacks=_tabulate_features(fusion, d_ece_of_features.view(2, num_features)),
            replicates=replicates_by_key,
        )
        if plain_attacker is None:
            return result
        return replace(
            result,
            profile=None,
            plain_encoder=plain_attacker.encoder,
            is_negated=plain_attacker.is_negated,
        )

    def _replicate_profile(
        self, fusion: ConditionFusion, profile: int, steps: Steps, groups: JackknifeGroups | None
    ) -> Steps | None:
        """Return the trials by the fused score of a profile, without each group, ``(1 + G, S)``.

        None without ``groups``. ``steps`` ``(B,)``: all trials by this score.
        """
        if groups is None:
            return None
        # Fused scores alternate: a profile, and the same on permuted speakers.
        fused_score = 2 * profile
        return self._scores.count_replicates(fusion, fused_score, steps, groups)

    def _list_plain_attackers(
        self,
        condition: Condition,
        groups: JackknifeGroups | None,
        plain: Sequence[StepsOfBothSigns],
        plain_replicates: Sequence[StepsOfBothSigns],
    ) -> list[_PlainAttacker]:
        """Return plain comparison by each encoder, in both directions of the score.

        Encoders beyond those in ``plain`` are compared here. An empty ``plain`` asks for the fused
        scores alone, so the list is empty.
        """
        if not plain:
            return []
        attackers = []
        for encoder in range(len(self._encoders)):
            replicates = None
            if encoder < len(plain):
                steps = plain[encoder]
                if encoder < len(plain_replicates):
                    replicates = plain_replicates[encoder]
            else:
                steps, replicates = self._compare_plainly(condition, encoder, groups)
            for is_negated in (False, True):
                replicates_of_sign = None
                if replicates is not None:
                    replicates_of_sign = replicates[is_negated]
                attackers.append(
                    _PlainAttacker(encoder, is_negated, steps[is_negated], replicates_of_sign)
                )
        return attackers

    def _compare_plainly(
        self, condition: Condition, encoder: int, groups: JackknifeGroups | None
    ) -> tuple[StepsOfBothSigns, StepsOfBothSigns | None]:
        """Return the steps of plain comparison by one encoder, and the replicates of the jackknife.

        The steps ``(S,)`` count all trials. The replicates ``(1 + G, S)`` count the trials of all
        speakers and without each group; None without ``groups``.
        """
        enrolment, test = self._encoders[encoder].sides(condition, self.enrolment)
        num_speakers = len(self.data.speakers)
        pairs = PairBlocks(
            enrolment, test, num_speakers, SCORERS["cosine"], condition, self.processes
        )
        scores = collect_pair_scores(pairs)
        if groups is None:
            return scores.counts, None
        from vpmetrics._scores.jackknife import count_replicates

        counted = count_replicates(pairs, scores, groups, self.data.speakers)
        return scores.counts, counted.measure_input.counts


@dataclass(frozen=True, eq=False)
class _PlainAttacker:
    """Plain comparison by one encoder, in one direction of the score.

    ``encoder``: its index. ``is_negated``: whether a low score speaks for the same speaker.
    ``steps`` ``(S,)``: all trials. ``replicates`` ``(1 + G, S)``: those of all speakers and without
    each jackknife group.
    """

    encoder: int
    is_negated: bool
    steps: Steps
    replicates: Steps | None


def _weigh_rows(
    fusion: ConditionFusion,
    block: FeatureBlock,
    cell: int,
    cell_in_chunk: int,
    profile_index: int,
    is_permuted: bool,
) -> WeightedRows:
    """Return the rows of some attacks in one cell, with the weights of a profile."""
    is_row = fusion.enrolment[0].is_row[cell]
    is_column = fusion.test[0].is_row[cell]
    enrolment, test = block.select_cell(cell_in_chunk)
    enrolment = enrolment[:, is_row]
    test = test[:, is_column]
    if block.matrix is not None:  # a column of scores for each test row
        enrolment = enrolment[..., is_column]
        test = test[..., is_column]
    features = torch.tensor(list(block.features), device=fusion.mean.device)
    weights = fusion.weights[cell].to(enrolment)
    return WeightedRows(
        enrolment=enrolment,
        test=test,
        weight=weights[2 * profile_index + is_permuted, features],
        mean=fusion.mean[cell, features].to(enrolment),
        deviation=fusion.deviation[cell, features].to(enrolment),
        is_cosine=block.is_cosine,
        chance_weight=weights[2 * profile_index + 1, features],
    )


def _tabulate_features(fusion: ConditionFusion, d_ece_by_sign: Tensor) -> tuple[AttackShare, ...]:
    """Return what each attack finds by itself, and its share of the fused score.

    ``d_ece_by_sign`` ``(2, A)``: disclosure by each feature, and by its negated scores. The shares
    are those in the richest profile, which has all attacks.
    """
    d_ece_of_better_sign = d_ece_by_sign.amax(0)
    shares_in_richest_profile = fusion.shares[-1]
    # One copy from the device instead of two.
    table = torch.stack([d_ece_of_better_sign, shares_in_richest_profile])
    d_ece_of_feature, share_of_feature = table.tolist()
    return tabulate_attacks(fusion.labels, d_ece_of_feature, share_of_feature)


def _prepare(data: EvaluationData) -> EvaluationData:
    """Return the data with rows of unit length."""
    return data._replace(original=unit_length(data.original), protected=unit_length(data.protected))


def _as_list(value: StepsOfBothSigns | Sequence[StepsOfBothSigns] | None) -> list[StepsOfBothSigns]:
    if value is None:
        return []
    return [value] if isinstance(value, StepsOfBothSigns) else list(value)


def append_plain_attack(attacks: Sequence[Any]) -> tuple[Any, ...]:
    """Return the attacks, with plain comparison put first where it is missing."""
    if any(type(attack) is Plain for attack in attacks):
        return tuple(attacks)
    return (Plain(), *attacks)
