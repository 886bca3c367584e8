"""Folds of speakers: the speakers of each, what the attack on them is fitted on, and which rows it compares."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from vpmetrics._scores.pair_blocks import mark_group_trials
from vpmetrics._utterances.conditions import Condition, SideName
from vpmetrics._utterances.utterances import (
    EvaluationData,
    Utterances,
    count_values,
    find_indices,
    order_speakers_by_value,
    row_sort_keys,
    take_evenly,
)
from vpmetrics.attacks.base import NOTHING, PAIRS, LinearAttack, has_builtin_fit, learns_from_moments, score_mapped_rows
from vpmetrics.attacks.linear import Plain
from vpmetrics.attacks.moments import (
    UNIT,
    MomentSums,
    RowNormalisation,
    Solution,
    TrainingPairs,
    ValueCache,
    choose_views_by_spread,
    divide_by_norm,
    unit_rows,
)

FEWEST_SPEAKERS = 6  # two folds of three speakers: fewer in a fold give no chance level
_PER_FOLD, _FOLDS = 3, 5  # speakers in a fold, at least, and folds
_MANY, _MORE_FOLDS = 100, 10  # from this number of speakers on, this number of folds
_SAMPLED_ROWS, _SAMPLED_PER_SPEAKER = 128, 4  # rows that settings are chosen on: per fold and side, per speaker
_MOST_ROWS = 1 << 13  # pairs that an attack is fitted on, at most; more change the result very little
_VIEWED_ROWS = 1 << 10  # rows that the spread of variance over dimensions is estimated from
# Kinds of pairs: of two speakers; of a speaker and the next one; of one speaker; no trial.
NONTARGET, CHANCE_TARGET, TARGET, NO_TRIAL = range(4)


class Folds(NamedTuple):
    """Speakers divided into folds, within each group, by the values of their embeddings only.

    ``of_speaker`` ``(S,)``: the fold; -1 for speakers of a group with too few, who are fitted on but not attacked.
    ``code`` ``(S,)``: place in the fold; only the next speaker of the same group has the next number.
    ``fewest_training_speakers``: how many speakers the attack of a fold is fitted on, at least.
    """

    of_speaker: Tensor
    code: Tensor
    num_folds: int = 0
    num_codes: int = 0
    fewest_training_speakers: int = 0

    @property
    def sort_key_by_speaker(self) -> Tensor:
        """A number per speaker, ascending by fold and code; negative for those in no fold."""
        return torch.where(self.of_speaker < 0, -1, self.of_speaker * self.num_codes + self.code)


def assign_folds(data: EvaluationData) -> Folds:
    """Return folds that depend neither on names nor on the order of rows; no folds where there are too few speakers."""
    side, count = (data.original if len(data.original) else data.protected), len(data.speakers)
    group = torch.zeros(count, dtype=torch.int64, device=data.speakers.device)
    for each in data[:2]:
        if each.groups is not None:
            group = group.scatter(0, each.speaker_index, each.groups)
    _, group, size = group.unique(return_inverse=True, return_counts=True)
    sizes = [each for each in size.tolist() if each >= FEWEST_SPEAKERS]
    if not sizes:
        return Folds(torch.full_like(group, -1), torch.zeros_like(group))
    number = _MORE_FOLDS if min(sizes) >= _MANY else min(_FOLDS, min(sizes) // _PER_FOLD)
    order = order_speakers_by_value(count, side, data.protected)
    order = order[group[order].argsort(stable=True)]
    place = torch.arange(count, device=order.device) - (size.cumsum(0) - size)[group[order]]
    place = torch.empty_like(place).scatter(0, order, place)
    longest = max(sizes) // number + 2  # leaves a number unused: consecutive numbers mean one group
    fold = torch.where(size[group] >= FEWEST_SPEAKERS, place % number, -1)
    in_first_fold = sum(-(-each // number) for each in sizes)  # the largest fold
    code = group * longest + place // number
    return Folds(fold, code, number, longest * len(size), count - in_first_fold)


class UnfittedAttack(NamedTuple):
    """An attack, its number among all, and what it is fitted on: all pairs, those of each group, or observed speech.

    ``settings`` to choose from, each with a way of normalising rows.
    """

    number: int
    attack: Any
    settings: Sequence[tuple[RowNormalisation, Any]]
    groups: Sequence[int | None] = (None,)
    is_observed: bool = False


class FittedAttack(NamedTuple):
    """An attack fitted with one setting: its maps for all speakers or for each group; whether scores are negated."""

    attack: Any
    solutions: dict[int | None, Solution]
    is_negated: bool = False

    def map_side(self, side: Utterances, name: SideName) -> Tensor:
        """Return the rows of a side as the attack compares them; ``name`` tells which of its two maps applies."""
        parts = {group: solution.map_side(side.embeddings, name) for group, solution in self.solutions.items()}
        first = next(iter(parts.values()))
        if len(parts) == 1 or side.groups is None:
            return first
        rows = first.new_zeros(len(side), max(part.shape[1] for part in parts.values()))
        for group, part in parts.items():
            is_inside = (side.groups == torch.as_tensor(group, device=rows.device))[:, None]
            rows[:, : part.shape[1]] = torch.where(is_inside, part, rows[:, : part.shape[1]])
        return rows

    def compare(self, tests: Tensor, references: Tensor) -> Tensor:
        """Return the scores ``(A, B)`` of mapped tests against mapped references."""
        scores = score_mapped_rows(self.attack, references, tests).detach().mT
        return -scores if self.is_negated else scores


@dataclass(frozen=True, eq=False)
class Comparison:
    """Enrolment and test rows of a fold, sorted by speaker; their ``speaker_index`` is the code in the fold.

    Where both are one object, every unordered pair is compared once.
    """

    enrolment: Utterances
    test: Utterances
    condition: Condition

    @cached_property
    def pair_kinds(self) -> Tensor:
        """The kind of every pair, ``(A, B)``."""
        a, b = self.enrolment, self.test
        is_target, is_trial = mark_group_trials(a, b, self.condition, is_same_rows=a is b)
        if a.groups is not None and b.groups is not None:
            is_trial = is_trial & (a.groups[:, None] == b.groups)
        return label_chance_and_targets(a.speaker_index, b.speaker_index, is_target, is_trial)

    def map_and_enrol(self, attack: Any, map_side: Callable[[Utterances, SideName], Tensor]) -> tuple[Tensor, Tensor]:
        """Return the mapped rows of enrolment and test; an attack with ``enrol`` then changes the enrolment rows."""
        test = map_side(self.test, self.condition.test)
        enrolment = test if self.enrolment is self.test else map_side(self.enrolment, self.condition.enrolment)
        if hasattr(attack, "enrol"):
            enrolment = attack.enrol(enrolment, self.enrolment.speaker_index).detach()
        return enrolment, test


def label_chance_and_targets(
    enrolment_codes: Tensor, test_codes: Tensor, is_target: Tensor | None, is_trial: Tensor | None
) -> Tensor:
    """Return the kind of every pair, ``(A, B)`` int32; without masks no pair is a target and all are trials."""
    kinds = ((enrolment_codes[:, None] + 1) == test_codes).to(torch.int32)  # 1 is CHANCE_TARGET, 0 is NONTARGET
    if is_target is None or is_trial is None:
        return kinds
    return kinds.masked_fill_(is_target, TARGET).masked_fill_(~is_trial, NO_TRIAL)


def subsample_and_renumber(side: Utterances, kept_codes: Tensor, max_rows_per_speaker: int) -> Utterances:
    """Return evenly spaced rows of each speaker in ``kept_codes``; their codes are then counted from 0."""
    number = torch.searchsorted(kept_codes, side.speaker_index).clamp(max=len(kept_codes) - 1)
    is_kept = kept_codes[number] == side.speaker_index
    side, number = side.take(is_kept), number[is_kept]
    size = count_values(number, len(kept_codes))
    place = torch.arange(len(number), device=number.device) - (size.cumsum(0) - size)[number]
    size = size[number]
    shares = size.clamp(max=max_rows_per_speaker)
    # Row j of n is taken where floor(j m / n) grows.
    is_taken = place * shares % size < shares
    if side.groups is not None:  # leave a number unused: consecutive numbers mean one group
        number = number + side.groups.unique(return_inverse=True)[1]
    return replace(side, speaker_index=number).take(is_taken)


class AttackFolds(ValueCache):
    """All folds of utterances of unit length: the attacks fitted for each, and the rows they compare in it."""

    def __init__(
        self,
        data: EvaluationData,
        folds: Folds,
        attacks: Sequence[Any],
        observed: MomentSums | None = None,
        enrolment: Literal["utterance", "speaker"] | None = None,
    ) -> None:
        super().__init__()
        self.data, self.folds, self.attacks, self.enrolment = data, folds, attacks, enrolment
        self._observed = None if observed is None else observed.statistics()
        self._pairs: dict[tuple[int, int | None], TrainingPairs] = {}

    @cached_property
    def paired_rows(self) -> tuple[Tensor, Tensor]:
        """Original and protected rows of the same recordings; without such pairs no original and all protected rows."""
        side = self.data.protected
        rows = side.argsort_by(self.folds.sort_key_by_speaker[side.speaker_index])
        place = find_indices(self.data.original.ids, side.ids[rows])
        is_paired = place >= 0
        return place[is_paired], (rows[is_paired] if bool(is_paired.any()) else rows)

    @cached_property
    def views(self) -> tuple[RowNormalisation, ...]:
        """Ways of normalising rows that are tried."""
        sides = (self.data.original, self.data.protected)
        return choose_views_by_spread(
            *(unit_rows(side.embeddings[take_evenly(side.value_order, _VIEWED_ROWS)]) for side in sides)
        )

    @cached_property
    def unfitted_attacks(self) -> list[UnfittedAttack]:
        """All attacks that can be fitted, each on whatever it can be fitted on; plain comparison first."""
        groups, number, unfitted_attacks = self.data.groups(), len(self.attacks), list[UnfittedAttack]()
        for index, attack in enumerate(self.attacks):
            needs, is_builtin = getattr(attack, "needs", ""), has_builtin_fit(attack)
            settings = attack.choices(self.views) if is_builtin else [(UNIT, None)]
            has_pairs = len(self.paired_rows[0]) > 0 or needs != PAIRS
            if has_pairs:
                unfitted_attacks.append(UnfittedAttack(index, attack, settings))
            is_linear = is_builtin and isinstance(attack, LinearAttack) and needs != NOTHING
            if has_pairs and is_linear and len(groups) > 1:
                unfitted_attacks.append(UnfittedAttack(number + index, attack, settings, groups))
            if self._observed is not None and learns_from_moments(attack):
                settings = attack.choices((UNIT,))
                unfitted_attacks.append(UnfittedAttack(2 * number + index, attack, settings, is_observed=True))
        return sorted(unfitted_attacks, key=lambda each: (type(each.attack) is not Plain, each.number))

    def fit(self, fold: int, unfitted: UnfittedAttack, setting: int) -> FittedAttack:
        """Return an attack fitted with its setting of that index, on the speakers of all other folds."""
        attack, choice = unfitted.attack, unfitted.settings[setting]
        if unfitted.is_observed:
            return FittedAttack(attack, {None: attack.solve_moments(self._observed, choice[1])})
        pairs = {group: self._training_pairs(fold, group) for group in unfitted.groups}
        if has_builtin_fit(attack):
            return FittedAttack(attack, {group: attack.solve(each, *choice) for group, each in pairs.items()})
        return _fit_user_attack(attack, pairs[None], self.data.protected.embeddings.dtype)

    def _training_pairs(self, fold: int, only_group: int | None) -> TrainingPairs:
        """Return the pairs of all other folds, of one group or of all; the pairs for one fold at a time are cached."""
        if (fold, only_group) not in self._pairs:
            self._pairs = {key: pairs for key, pairs in self._pairs.items() if key[0] == fold}
            data, (original, protected) = self.data, self.paired_rows
            speakers = data.protected.speaker_index[protected]
            is_known = self.folds.of_speaker[speakers] != fold
            if only_group is not None and data.protected.groups is not None:
                is_known = is_known & (data.protected.groups[protected] == only_group)
            some = take_evenly(is_known.nonzero().flatten(), _MOST_ROWS)
            rows_o = data.original.embeddings[original[some]] if len(original) else None
            rows_p = data.protected.embeddings[protected[some]]
            self._pairs[fold, only_group] = TrainingPairs(rows_o, rows_p, speakers[some], self.views)
        return self._pairs[fold, only_group]

    def form_comparisons(self, fold: int, condition: Condition, attack: Any, is_subsample: bool) -> list[Comparison]:
        """Return the enrolment and test rows of a fold, not scored yet: all rows, or a subsample of them.

        For an attack that enrols speakers there are two comparisons: each half of the recordings with the other half.
        """
        is_halved = hasattr(attack, "enrol") and self.enrolment is None

        def form() -> list[Comparison]:
            a, b = self.get_or_make(condition.name, partial(self._sides_by_fold, condition))[fold]
            if is_subsample:
                a, b = (self.get_or_make((side, "sample"), partial(self._subsample, fold, side)) for side in (a, b))
            if not is_halved:
                return [Comparison(a, b, condition)]
            is_second_a, is_second_b = mark_disjoint_halves(a, b)
            halves = ((a.take(is_second_a == half), b.take(is_second_b != half)) for half in (False, True))
            return [Comparison(*each, condition) for each in halves]

        return self.get_or_make((fold, condition.name, is_halved, is_subsample), form)

    def _sides_by_fold(self, condition: Condition) -> list[tuple[Utterances, Utterances]]:
        """Return the enrolment and the test rows of each fold; conditions share the objects of a side."""
        enrolment, test = self.data.sides(condition, self.enrolment)
        if self.enrolment == "speaker" and enrolment is not test:  # means are not of unit length
            enrolment = replace(enrolment, embeddings=divide_by_norm(enrolment.embeddings))
        parts = (self.get_or_make(side, partial(self._split_by_fold, side)) for side in (enrolment, test))
        return list(zip(*parts, strict=True))

    def _split_by_fold(self, side: Utterances) -> list[Utterances]:
        """Return the rows of each fold, sorted by speaker, with speakers numbered by code."""
        number, codes = self.folds.sort_key_by_speaker[side.speaker_index], self.folds.num_codes
        rows = side.argsort_by(number)
        first_keys = torch.arange(self.folds.num_folds + 1, device=rows.device) * codes
        bounds = torch.searchsorted(number[rows].contiguous(), first_keys).tolist()
        ordered = replace(side, speaker_index=number % codes).take(rows)
        return [ordered.take(slice(*ends)) for ends in pairwise(bounds)]

    def _subsample(self, fold: int, side: Utterances) -> Utterances:
        """Return at most a few rows of a few speakers of a fold."""
        if len(side) <= _SAMPLED_ROWS:
            return side
        codes = self.folds.code[self.folds.of_speaker == fold].unique()
        per_speaker = max(_SAMPLED_PER_SPEAKER, _SAMPLED_ROWS // len(codes))
        codes = take_evenly(codes, max(2, _SAMPLED_ROWS // per_speaker))
        return subsample_and_renumber(side, codes, per_speaker)


def mark_disjoint_halves(enrolment: Utterances, test: Utterances) -> tuple[Tensor, Tensor]:
    """Return a mask of each side's rows: those in the second half of their speaker's recordings, sorted by value."""
    ids, place = torch.cat([enrolment.ids, test.ids]).unique(return_inverse=True)
    keys = torch.cat([row_sort_keys(enrolment.embeddings), row_sort_keys(test.embeddings)])
    key = keys.new_full((len(ids),), torch.inf).scatter_reduce(0, place, keys, "amin")
    speaker = torch.zeros_like(ids).scatter(0, place, torch.cat([enrolment.speaker_index, test.speaker_index]))
    order = key.argsort(stable=True)
    order = order[speaker[order].argsort(stable=True)]
    turn = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
    is_second = (turn % 2 == 1)[place]
    return is_second[: len(enrolment)], is_second[len(enrolment) :]


def _fit_user_attack(attack: Any, pairs: TrainingPairs, dtype: torch.dtype) -> FittedAttack:
    """Return a copy of a user's attack fitted on the pairs, or on as many of them as it asks for."""
    columns = [pairs.original.to(dtype), pairs.protected.to(dtype), pairs.speaker_index]
    if (max_rows := getattr(attack, "most_rows", None)) is not None:
        some = take_evenly(row_sort_keys(pairs.protected).argsort(stable=True), max_rows)
        columns = [column[some] for column in columns]
    fitted = copy.deepcopy(attack)
    with torch.enable_grad():  # an attacker may learn by descent
        fitted.fit(*columns)
    maps = Solution((), ())
    if hasattr(fitted, "attack"):
        maps = Solution(
            (lambda rows: fitted.attack(rows, None)[0].detach(),),
            (lambda rows: fitted.attack(None, rows)[1].detach(),),
        )
    return FittedAttack(fitted, {None: maps})
