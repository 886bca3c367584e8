"""What every attack scores.

Fitted once on the speakers outside each fold, and compared within the fold.

Each attack with each of its settings, on each kind of training set and each encoder, is a *feature*
of a pair.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vpmetrics._scores.scorers import FEW_PAIRS
from vpmetrics._util.dtypes import at_least_float32
from vpmetrics._utterances.conditions import Condition, SideName
from vpmetrics._utterances.utterances import EvaluationData, Utterances, find_indices, take_evenly
from vpmetrics.attacks.base import (
    LABELLED,
    NOTHING,
    PAIRS,
    PROTECTED,
    LinearAttack,
    has_batched_score,
    has_builtin_fit,
    has_own_score,
    is_made_for,
    learns_from_moments,
)
from vpmetrics.attacks.feature_blocks import FeatureBlock, merge_blocks
from vpmetrics.attacks.folds import CellRows, Folds
from vpmetrics.attacks.moments import (
    MomentSums,
    TrainingSets,
    choose_views_by_spread,
    divide_by_norm,
    unit_rows,
)
from vpmetrics.attacks.own_scores import score_cell
from vpmetrics.attacks.solutions import AnySolution, SeparateSolutions, Solution

PROFILES = (NOTHING, PROTECTED, LABELLED, PAIRS)
"""What an attacker may have, from the least to the most; each includes the ones before."""

# pairs that an attack is fitted on, at most; more change the result very little
_MOST_ROWS = 1 << 13
_VIEWED_ROWS = 1 << 10  # rows that the spread of variance over dimensions is estimated from
_FITTED_ON = ("", ", per group", ", observed")  # how the name of an attack ends


class AttackName(NamedTuple):
    """An attack of the table: its name with what it was fitted on, and what the attacker needs."""

    name: str
    needs: str

    @property
    def profile(self) -> int:
        """Index of the poorest profile that has what the attack needs.

        The richest where that is unknown.
        """
        if self.needs in PROFILES:
            return PROFILES.index(self.needs)
        return len(PROFILES) - 1


@dataclass(frozen=True, eq=False)
class FittedAttack:
    """An attack with all its settings, fitted on a number of training sets.

    ``fitted``: the copy of a user's attack that was fitted on each training set; None for attacks
    of this library. ``num_sets``: folds, cells, or 1 where all cells have the same.
    """

    attack: Any
    label: AttackName
    solution: AnySolution
    num_sets: int
    num_settings: int = 1
    fitted: Sequence[Any] | None = None

    def map_rows(
        self, rows: Tensor, side: SideName, sets: slice, normalised: dict[int, Tensor]
    ) -> Tensor:
        """Return rows ``(C, R, D)`` of some cells as they are compared, ``(S, C, R, d)``.

        ``normalised`` keeps the rows of each normalisation, since attacks share it.
        """
        num_cells, num_rows, width = rows.shape
        num_sets = 1 if self.num_sets == 1 else sets.stop - sets.start
        rows_by_set = rows.reshape(num_sets, -1, width)
        solution = self.solution
        if isinstance(solution, Solution):
            normaliser, solution = solution.split_normaliser(side)
            if normaliser is not None:
                if id(normaliser) not in normalised:
                    normalised[id(normaliser)] = normaliser.select_sets(sets)(rows_by_set)
                rows_by_set = normalised[id(normaliser)]
        if self.num_sets > 1:
            solution = solution.select_sets(sets)
        mapped = solution.map_side(rows_by_set, side)
        return mapped.reshape(len(mapped), num_cells, num_rows, mapped.shape[-1])


class AttackFeatures:
    """All attacks on the embeddings of one encoder, fitted on the speakers outside each fold."""

    def __init__(
        self,
        data: EvaluationData,
        folds: Folds,
        attacks: Sequence[Any],
        conditions: Sequence[Condition],
        observed: MomentSums | None = None,
        enrolment: Literal["utterance", "speaker"] | None = None,
        is_fitted_on: Tensor | None = None,
    ) -> None:
        self.data = data
        self.folds = folds
        self.enrolment = enrolment
        self._is_fitted_on = is_fitted_on
        # Many pairs are compared in float32, and maps of that type take half of the memory.
        self._is_large = len(data.protected) ** 2 > FEW_PAIRS
        has_same_side = {condition.is_same_side for condition in conditions}
        wanted = []
        for attack in attacks:
            if any(is_made_for(attack, is_same_side) for is_same_side in has_same_side):
                wanted.append(attack)
        self._fit(wanted, observed)

    def _fit(self, attacks: Sequence[Any], observed: MomentSums | None) -> None:
        """Fit the attacks on the other folds and on observed pairs.

        They are fitted on the folds of all partitions, and on those of each partition.
        """
        original, protected, speakers = self._pair_rows()
        has_pairs = original is not None
        fold = torch.arange(self.folds.num_folds, device=speakers.device)
        is_outside = fold[:, None] != self.folds.of_speaker[speakers]
        if self._is_fitted_on is not None:
            is_outside = is_outside & self._is_fitted_on[speakers]
        views = self._choose_views()
        self.fitted: list[FittedAttack] = []
        pooled = TrainingSets(original, protected, speakers, is_outside, views)
        for attack in attacks:
            if has_pairs or _name_needs(attack) != PAIRS:
                self._fit_attack(attack, pooled, _label(attack, _FITTED_ON[0]))
        if self.folds.num_partitions > 1:
            partition = torch.arange(self.folds.num_partitions, device=speakers.device)
            is_inside = partition[:, None] == self.folds.partition[speakers]
            is_member = (is_outside[:, None] & is_inside).flatten(0, 1)
            by_partition = TrainingSets(original, protected, speakers, is_member, views)
            for attack in attacks:
                if _is_fitted_by_partition(attack) and (has_pairs or _name_needs(attack) != PAIRS):
                    self._fit_attack(attack, by_partition, _label(attack, _FITTED_ON[1]))
        if observed is not None:
            self._fit_on_observed(attacks, observed, pooled if has_pairs else None)

    def _fit_attack(self, attack: Any, sets: TrainingSets, label: AttackName) -> None:
        if not has_builtin_fit(attack):
            fitted: list[Any] = []
            for training_set in range(sets.num_sets):
                fitted.append(_fit_user_attack(attack, sets, training_set, self.data))
            # an attack may keep tensors of the dtype it was fitted in
            dtype = self.data.protected.embeddings.dtype
            functions = [[_make_row_map(fitted_attack, dtype) for fitted_attack in fitted]]
            self.fitted.append(
                FittedAttack(attack, label, SeparateSolutions(functions), sets.num_sets, 1, fitted)
            )
            return
        for view in attack.views or sets.views:
            solution = attack.solve(sets, view, attack.settings)
            if self._is_large and isinstance(solution, Solution):
                solution = solution.convert_dtype(torch.float32)
            self.fitted.append(
                FittedAttack(attack, label, solution, sets.num_sets, len(attack.settings))
            )

    def _fit_on_observed(
        self, attacks: Sequence[Any], observed: MomentSums, pooled: TrainingSets | None
    ) -> None:
        """Fit attacks on observed pairs.

        Those of the other folds are added where there are any.
        """
        if pooled is None:
            statistics = observed.statistics()
        else:
            statistics = pooled.statistics_with(observed)
        for attack in attacks:
            if learns_from_moments(attack):
                label = _label(attack, _FITTED_ON[2])
                solution = attack.solve_statistics(statistics, attack.settings)
                num_settings = len(attack.settings)
                num_sets = len(statistics.pp)
                self.fitted.append(FittedAttack(attack, label, solution, num_sets, num_settings))

    def _pair_rows(self) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return original and protected rows of the same recordings, and their speakers.

        Without such pairs there are no original rows, and all protected ones.
        """
        protected = self.data.protected
        original = self.data.original
        row_of_original = find_indices(original.ids, protected.ids)
        is_paired = row_of_original >= 0
        if not bool(is_paired.any()):
            rows = take_evenly(
                torch.arange(len(protected), device=row_of_original.device), _MOST_ROWS
            )
            return None, protected.embeddings[rows], protected.speaker_index[rows]
        rows = take_evenly(is_paired.nonzero().flatten(), _MOST_ROWS)
        return (
            original.embeddings[row_of_original[rows]],
            protected.embeddings[rows],
            protected.speaker_index[rows],
        )

    def _choose_views(self) -> tuple[str, ...]:
        return choose_views_by_spread(
            _take_viewed_rows(self.data.original), _take_viewed_rows(self.data.protected)
        )

    def compare(
        self, enrolment: CellRows, test: CellRows, condition: Condition, folds: range
    ) -> list[FeatureBlock]:
        """Return the features of pairs of enrolment and test rows.

        ``(C, R)`` are those of the cells of some folds.
        """
        blocks = []
        first_feature = 0
        normalised_enrolment: dict[int, Tensor] = {}
        normalised_test: dict[int, Tensor] = {}
        for fitted in self._made_for(condition):
            sets = self._sets_of_folds(fitted, folds)
            left = fitted.map_rows(
                enrolment.embeddings, condition.enrolment, sets, normalised_enrolment
            )
            right = left
            if test is not enrolment:
                right = fitted.map_rows(test.embeddings, condition.test, sets, normalised_test)
            block = self._compare_mapped(fitted, left, right, enrolment, test, folds)
            blocks.append(
                replace(block, features=range(first_feature, first_feature + fitted.num_settings))
            )
            first_feature += fitted.num_settings
        return merge_blocks(blocks)

    def name_encoder(self, encoder: str) -> None:
        """Add the name of the encoder to those of the attacks, where there are several."""
        named = []
        for fitted in self.fitted:
            label = fitted.label._replace(name=name_on_encoder(fitted.label.name, encoder))
            named.append(replace(fitted, label=label))
        self.fitted = named

    def labels(self, condition: Condition) -> list[AttackName]:
        """Return the attack that each feature of a condition belongs to."""
        labels: list[AttackName] = []
        for fitted in self._made_for(condition):
            labels += [fitted.label] * fitted.num_settings
        return labels

    def _made_for(self, condition: Condition) -> list[FittedAttack]:
        is_same_side = condition.is_same_side
        return [fitted for fitted in self.fitted if is_made_for(fitted.attack, is_same_side)]

    def _sets_of_folds(self, fitted: FittedAttack, folds: range) -> slice:
        per_fold = max(1, fitted.num_sets // self.folds.num_folds)
        return slice(folds.start * per_fold, folds.stop * per_fold)

    def _compare_mapped(
        self,
        fitted: FittedAttack,
        left: Tensor,
        right: Tensor,
        enrolment: CellRows,
        test: CellRows,
        folds: range,
    ) -> FeatureBlock:
        attack = fitted.attack
        if has_own_score(attack) or hasattr(attack, "enrol"):
            return FeatureBlock(
                (), matrix=self._score_by_own_method(fitted, left, right, enrolment, test, folds)
            )
        is_cosine = not hasattr(attack, "score")
        is_same = right is left
        if is_cosine:
            left = divide_by_norm(left)
        # Where a setting changes one side only, the other side is repeated.
        left = left.expand(fitted.num_settings, *left.shape[1:])
        if is_same:
            return FeatureBlock((), left, left, is_cosine=is_cosine)
        if is_cosine:
            right = divide_by_norm(right)
        right = right.expand(fitted.num_settings, *right.shape[1:])
        return FeatureBlock((), left, right, is_cosine=is_cosine)

    def _score_by_own_method(
        self,
        fitted: FittedAttack,
        left: Tensor,
        right: Tensor,
        enrolment: CellRows,
        test: CellRows,
        folds: range,
    ) -> Tensor:
        """Return the scores ``(S, C, R, R')`` of an attack with methods of its own."""
        if fitted.fitted is None and has_batched_score(fitted.attack):
            batched: Tensor = fitted.attack.score(left, right)
            return batched
        num_settings = fitted.num_settings
        scores = left.new_zeros(num_settings, left.shape[1], left.shape[2], right.shape[2])
        sizes = torch.stack([enrolment.is_row.sum(1), test.is_row.sum(1)], dim=1).tolist()
        for cell, (num_rows, num_columns) in enumerate(sizes):
            fold = folds.start + cell // self.folds.num_partitions
            if fitted.fitted is None:
                attack = fitted.attack
            else:
                attack = fitted.fitted[fold]
            for setting in range(num_settings):
                rows = left[min(setting, len(left) - 1), cell, :num_rows]
                columns = right[min(setting, len(right) - 1), cell, :num_columns]
                if fitted.fitted is not None:
                    dtype = self.data.protected.embeddings.dtype
                    rows = rows.to(dtype)
                    columns = columns.to(dtype)
                found = score_cell(
                    attack, rows, columns, enrolment, test, cell, self.enrolment is None
                )
                scores[setting, cell, :num_rows, :num_columns] = found.to(scores)
        return scores


def _name_needs(attack: Any) -> str:
    return getattr(attack, "needs", "")


def _label(attack: Any, source: str) -> AttackName:
    """Return the name of an attack with what it was fitted on, and what it needs."""
    return AttackName(attack_name(attack) + source, _name_needs(attack))


def _is_fitted_by_partition(attack: Any) -> bool:
    """Return whether an attack is also fitted on one partition: linear ones, which are cheap."""
    if not has_builtin_fit(attack) or not isinstance(attack, LinearAttack):
        return False
    return _name_needs(attack) != NOTHING


def _take_viewed_rows(side: Utterances) -> Tensor:
    rows = torch.arange(len(side), device=side.ids.device)
    return unit_rows(side.embeddings[take_evenly(rows, _VIEWED_ROWS)])


def attack_name(attack: Any) -> str:
    """Return the name of an attack, or of its class."""
    return str(getattr(attack, "name", type(attack).__name__))


def name_on_encoder(attack: str, encoder: str) -> str:
    """Return the name of an attack on the embeddings of one of several encoders.

    ``encoder`` is empty where there is only one.
    """
    return f"{attack} on {encoder}" if encoder else attack


def _fit_user_attack(attack: Any, sets: TrainingSets, number: int, data: EvaluationData) -> Any:
    """Return a copy of a user's attack fitted on one training set.

    It is fitted on as many rows of the set as it asks for.
    """
    rows = sets.is_member[number].nonzero().flatten()
    most = getattr(attack, "most_rows", None)
    if most is not None:
        rows = take_evenly(rows, most)
    dtype = data.protected.embeddings.dtype
    fitted = copy.deepcopy(attack)
    with torch.enable_grad():  # an attacker may learn by descent
        fitted.fit(
            sets.original[rows].to(dtype), sets.protected[rows].to(dtype), sets.speaker_index[rows]
        )
    return fitted


def _make_row_map(fitted: Any, dtype: torch.dtype) -> Any:
    if not hasattr(fitted, "attack"):
        return lambda rows, _: rows

    def map_rows(rows: Tensor, side: SideName) -> Tensor:
        if side == "original":
            mapped: Tensor = fitted.attack(rows.to(dtype), None)[0]
        else:
            mapped = fitted.attack(None, rows.to(dtype))[1]
        return mapped.detach()

    return map_rows


def unit_length(side: Utterances) -> Utterances:
    """Return a side with rows of unit length.

    Attacks see directions, never the length of embeddings.
    """
    rows = at_least_float32(side.embeddings.detach())
    return replace(side, embeddings=unit_rows(rows).to(rows.dtype))
