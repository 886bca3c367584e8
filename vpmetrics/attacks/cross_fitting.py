"""The strongest of several attacks; the attack on a fold of speakers is fitted and chosen on other speakers.

1. Choose, from a sample of rows: every attack with every setting compares some rows of each fold. From these scores
   each fold takes, by the disclosure in the *other* folds, the setting of each attack and then the attack. By its own
   disclosure it would take the largest of several noisy numbers, which is too large.
2. Count all pairs within each fold after the attack that it took, by bins of the score.
3. Calibrate: trials of a fold have the log-likelihood ratios of its attack, calibrated on all folds.

Plain comparison needs no fitting: it is counted on all trials of the condition, and the result is never below it.

The chance level is the same for targets that disclose nothing: pairs of a speaker and the next one instead of pairs of
one speaker. As many pairs of as many speakers overfit as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._scores.measures import eer_of_steps, expected_disclosure
from vpmetrics._scores.score_counts import Steps, StepsOfBothSigns
from vpmetrics._scores.scorers import SCORERS
from vpmetrics._util.dtypes import at_least_float32, is_finite_everywhere, wide_dtype, widen
from vpmetrics._util.validation import warn_undefined
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import EvaluationData, add_counts, index_speakers_by_group
from vpmetrics.attacks.attack_folds import (
    FEWEST_SPEAKERS,
    NO_TRIAL,
    TARGET,
    AttackFolds,
    FittedAttack,
    UnfittedAttack,
    assign_folds,
)
from vpmetrics.attacks.attack_scores import (
    COARSE,
    FINE,
    AttackAndSign,
    ScoredPairs,
    assign_bins,
    choose_attacks,
    choose_settings,
    count_by_setting_and_kind,
    pool_folds_by_llr,
    score_blocks,
    split_by_class,
)
from vpmetrics.attacks.base import is_made_for, score_mapped_rows
from vpmetrics.attacks.linear import Plain
from vpmetrics.attacks.moments import MomentSums

if TYPE_CHECKING:
    from vpmetrics._scores.jackknife import JackknifeGroups

_MOST_SAMPLED_FOLDS = 5
_SOURCES = ("", ", per group", ", observed")  # what attacks are fitted on, as their names end
_MEASURES = {"d_ece_strongest": expected_disclosure, "eer_strongest": eer_of_steps}


def variant_names_and_needs(attacks: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """Return name and needs of each variant of an attack: all attacks on all pairs, then per group, then observed."""
    return tuple(
        (getattr(each, "name", type(each).__name__) + source, getattr(each, "needs", ""))
        for source in _SOURCES
        for each in append_plain_attack(attacks)
    )


def append_plain_attack(attacks: Sequence[Any]) -> tuple[Any, ...]:
    """Return the attacks, with plain comparison appended where it is missing: no result may be weaker than it."""
    return tuple(attacks) if any(type(attack) is Plain for attack in attacks) else (*attacks, Plain())


class StrongestResult(NamedTuple):
    """Disclosure after the strongest attack; scalars but for the last three.

    ``attack``: the number of the attack that most folds took, or of plain comparison where that finds more; NaN where
    it is undefined. ``num_fitted_speakers``: how many speakers attacks were fitted on, at least. ``d_ece_by_attack``:
    D_ECE of every attack in its better direction, from the sampled pairs; NaN for those that were not tried.
    ``choices``: what each fold took. ``replicates``: ``d_ece_strongest`` and ``eer_strongest`` of all speakers and
    without each group, ``(1 + G,)``.
    """

    d_ece: Tensor
    eer: Tensor
    chance: Tensor
    attack: Tensor
    num_fitted_speakers: Tensor
    d_ece_by_attack: Tensor
    choices: tuple[AttackAndSign, ...] = ()
    replicates: dict[str, Tensor] | None = None

    def scalars(self) -> dict[str, Tensor]:
        """Return the numbers by their keys."""
        keys = ("d_ece_strongest", "eer_strongest", "d_ece_chance", "strongest", "attack_speakers")
        return dict(zip(keys, self[:5], strict=True))


class _AttackWithSettings(NamedTuple):
    """An attack on a condition, with the setting that each fold takes.

    ``counts`` ``(K, 3, B)`` of sampled pairs by fold, kind of pair and bin; ``scales`` ``(K, 2)``: mean and
    standard deviation of the scores of each fold, where these are not cosines.
    """

    unfitted: UnfittedAttack
    settings: list[int]
    counts: Tensor
    scales: Tensor


class CrossFittedAttacks:
    """Attacks on some utterances, fitted on the speakers of other folds and, if given, on moments of observed speech.

    One object serves several conditions, which share the fits. Nothing is fitted before a result is asked for.
    ``enrolment``: how speakers are enrolled, see :meth:`EvaluationData.sides`.
    """

    def __init__(
        self,
        data: EvaluationData,
        attacks: Sequence[Any],
        conditions: Sequence[Condition],
        observed: MomentSums | None = None,
        enrolment: Literal["utterance", "speaker"] | None = None,
    ) -> None:
        # Attacks see directions, never the length of embeddings.
        original, protected = (
            replace(side, embeddings=SCORERS["cosine"].prepare(at_least_float32(side.embeddings.detach())))
            for side in (data.original, data.protected)
        )
        self.data, self.conditions = data._replace(original=original, protected=protected), tuple(conditions)
        self.descriptions, self.processes = variant_names_and_needs(attacks), data.processes
        self._observed, self.folds = observed, assign_folds(self.data)
        self.attack_folds = AttackFolds(self.data, self.folds, append_plain_attack(attacks), observed, enrolment)
        # Choices are made with every other fold where there are many.
        self._sampled_folds = range(0, self.folds.num_folds, 1 if self.folds.num_folds <= _MOST_SAMPLED_FOLDS else 2)
        self._attacks: dict[str, list[_AttackWithSettings]] = {}

    def strongest(
        self,
        condition: Condition,
        groups: JackknifeGroups | None = None,
        plain: StepsOfBothSigns | None = None,
        plain_replicates: StepsOfBothSigns | None = None,
    ) -> StrongestResult:
        """Return the strongest attack on a condition; NaN and one warning where it is undefined.

        ``groups`` are left out one by one; attacks and choices stay as they are. ``plain``: what plain comparison finds
        on all trials; the result is at least that, in the better direction. ``plain_replicates`` ``(1 + G, S)``: the
        same of all speakers and without each group.
        """
        device = self.data.speakers.device
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            given = [self.data.original.embeddings, self.data.protected.embeddings, *(self._observed or ())]
            if self.folds.num_folds == 0:
                reason = f"Attacks are fitted on other speakers, and that needs {FEWEST_SPEAKERS} of them."
            elif not bool(torch.stack([is_finite_everywhere(values) for values in given]).all()):
                reason = "Some embeddings, measured or observed, are not finite."
            else:
                if not self._attacks:
                    self._choose_settings()
                result = self._evaluate_strongest(condition, groups, plain, plain_replicates)
                if not bool(result.d_ece.isnan()):
                    return result
                reason = f"There are no trials of one kind to attack in {condition.name}."
            warn_undefined(reason)
            nan = torch.full((), torch.nan, dtype=wide_dtype(device), device=device)
            replicates = None if groups is None else dict.fromkeys(_MEASURES, nan.expand(1 + groups.num_groups))
            return StrongestResult(nan, nan, nan, nan, nan, nan.expand(len(self.descriptions)), (), replicates)

    def chosen_folds(self, condition: Condition, result: StrongestResult) -> list[tuple[EvaluationData, FittedAttack]]:
        """Return the utterances of every fold, and the attack chosen for it, fitted; an empty list where undefined."""
        chosen = []
        for fold, choice in enumerate(result.choices):
            is_inside = self.folds.of_speaker == fold
            sides = (side.take(is_inside[side.speaker_index]) for side in self.data[:2])
            data = index_speakers_by_group(*sides)
            with torch.no_grad():
                fitted = self._fit_chosen_setting(fold, self._attacks[condition.name][choice.attack])
            chosen.append((data, fitted._replace(is_negated=choice.is_negated)))
        return chosen

    def _choose_settings(self) -> None:
        """Compare some rows of some folds after every attack with every setting, and choose the settings."""
        device = self.data.speakers.device
        tried = [
            (unfitted, [each for each in self.conditions if is_made_for(unfitted.attack, each.is_same_side)])
            for unfitted in self.attack_folds.unfitted_attacks
        ]
        names = [(condition.name, unfitted) for unfitted, conditions in tried for condition in conditions]
        sizes = [len(unfitted.settings) for _, unfitted in names]
        shape = sum(sizes), self.folds.num_folds
        counts = torch.zeros(*shape, 3, COARSE, dtype=torch.int32, device=device)
        scales = torch.zeros(*shape, 2, dtype=wide_dtype(device), device=device)
        for fold in self.processes.share(self._sampled_folds):
            counts[:, fold], scales[:, fold] = self._sampled_counts_and_scales(fold, tried)
        counts, scales = self.processes.all_reduce(counts, scales)
        settings = choose_settings(counts, sizes)
        taken = torch.tensor(settings, device=device)  # one copy to the device
        folds, sampled_scales = torch.arange(shape[1], device=device), scales[:, :: self._sampled_folds.step]
        parts = zip(names, settings, taken, counts.split(sizes), sampled_scales.split(sizes), strict=True)
        for (name, unfitted), chosen, setting, count, scale in parts:
            counts_of_chosen, scales_of_chosen = widen(count[setting, folds]), scale[setting].mean(1)
            attack = _AttackWithSettings(unfitted, chosen, counts_of_chosen, scales_of_chosen)
            self._attacks.setdefault(name, []).append(attack)

    def _sampled_counts_and_scales(
        self, fold: int, tried: Sequence[tuple[UnfittedAttack, Sequence[Condition]]]
    ) -> tuple[Tensor, Tensor]:
        """Return counts ``(C, 3, B)`` and scales ``(C, 2)`` of some rows of a fold after every attack and setting."""
        parts = []
        for unfitted, conditions in tried:
            attack = unfitted.attack
            settings = range(len(unfitted.settings) if conditions else 0)
            fitted = (self.attack_folds.fit(fold, unfitted, setting) for setting in settings)
            maps = [cache(each.map_side) for each in fitted]  # conditions share rows
            for condition in conditions:
                scored = []
                for rows in self.attack_folds.form_comparisons(fold, condition, attack, is_subsample=True):
                    sides = (rows.map_and_enrol(attack, each) for each in maps)
                    scores = torch.stack([score_mapped_rows(attack, *each).detach() for each in sides])
                    scored.append((widen(scores).flatten(1), rows.pair_kinds.expand(1, -1, -1).flatten(1)))
                scores, (kinds,) = (torch.cat(each, dim=1) for each in zip(*scored, strict=True))
                parts.append(count_by_setting_and_kind(scores, kinds, has_cosines=not hasattr(attack, "score")))
        counts, scales = (torch.cat(each) for each in zip(*parts, strict=True))
        return counts, scales

    def _evaluate_strongest(
        self,
        condition: Condition,
        groups: JackknifeGroups | None,
        plain: StepsOfBothSigns | None,
        plain_replicates: StepsOfBothSigns | None,
    ) -> StrongestResult:
        """Choose an attack for each fold, count all pairs after it, and compare the result with plain comparison."""
        attacks = self._attacks[condition.name]
        sampled = torch.stack([each.counts for each in attacks])  # (V, K, 3, B)
        (choices, disclosure), (chance_choices, _) = (
            choose_attacks(*split_by_class(sampled, is_chance)) for is_chance in (False, True)
        )
        counts = self._count_pairs(condition, sorted({0, *(each.attack for each in (*choices, *chance_choices))}))
        chance_targets = {key: split_by_class(each, has_chance_targets=True) for key, each in counts.items()}
        plain_choices = ([AttackAndSign(0, is_negated)] * len(choices) for is_negated in (False, True))
        chance = [pool_folds_by_llr(chance_targets, each)[0] for each in (chance_choices, *plain_choices)]
        candidates = []
        if plain is not None:
            both_signs = zip(plain, (None, None) if plain_replicates is None else plain_replicates, strict=True)
            candidates = [(attacks[0].unfitted.number, *_measure_steps(*each)) for each in both_signs]
        if not candidates or len(set(choices)) > 1 or choices[0].attack > 0:
            by_class = {key: split_by_class(each) for key, each in counts.items()}
            steps, step_of_bin = pool_folds_by_llr(by_class, choices)
            replicates = None
            if groups is not None:
                replicates = self._count_replicates(condition, choices, steps, step_of_bin, groups)
            taken = [attacks[choice.attack].unfitted.number for choice in choices]
            candidates.insert(0, (max(taken, key=taken.count), *_measure_steps(steps, replicates)))
        numbers, values, replicates_or_none = zip(*candidates, strict=True)
        d_ece, eer = torch.stack(values, dim=1)
        best = d_ece.argmax()
        by_number = d_ece.new_full((len(self.descriptions),), torch.nan)
        by_number[[each.unfitted.number for each in attacks]] = disclosure
        return StrongestResult(
            d_ece[best],
            eer[best],
            torch.stack([expected_disclosure(steps) for steps in chance]).amax(),
            d_ece.new_tensor(numbers)[best],
            torch.full_like(d_ece[0], self.folds.fewest_training_speakers),
            by_number,
            choices,
            _find_strongest_replicates([each for each in replicates_or_none if each is not None]),
        )

    def _count_pairs(self, condition: Condition, attacks: Sequence[int]) -> dict[int, Tensor]:
        """Return by attack the counts ``(K, 3, B)`` of all pairs within each fold, scored after that attack."""
        number, device = self.folds.num_folds, self.data.speakers.device
        counts = torch.zeros(len(attacks), number, 4, FINE, dtype=torch.int32, device=device)
        for fold in self.processes.share(range(number)):
            for attack, counts_of_folds in zip(attacks, counts, strict=True):
                for each in self._score_pairs(condition, self._attacks[condition.name][attack], fold):
                    slots = assign_bins(each.scores, FINE).add_(each.pair_kinds, alpha=FINE)
                    add_counts(counts_of_folds[fold].view(-1), slots)
        (counts,) = self.processes.all_reduce(counts)
        return dict(zip(attacks, counts[:, :, :NO_TRIAL], strict=True))

    def _fit_chosen_setting(self, fold: int, attack: _AttackWithSettings) -> FittedAttack:
        """Return an attack with the setting that a fold takes; it is kept for other conditions."""
        folds, unfitted, setting = self.attack_folds, attack.unfitted, attack.settings[fold]
        return folds.get_or_make(("fit", fold, unfitted.number, setting), lambda: folds.fit(fold, unfitted, setting))

    def _score_pairs(self, condition: Condition, attack: _AttackWithSettings, fold: int) -> Iterator[ScoredPairs]:
        """Yield blocks of scores in [-1, 1] of all pairs of a fold, after an attack."""
        fitted = self._fit_chosen_setting(fold, attack)
        for comparison in self.attack_folds.form_comparisons(fold, condition, fitted.attack, is_subsample=False):
            yield from score_blocks(comparison, fitted, self.folds.num_codes, attack.scales[fold])

    def _count_replicates(
        self,
        condition: Condition,
        choices: Sequence[AttackAndSign],
        steps: Steps,
        step_of_bin: Sequence[Tensor],
        groups: JackknifeGroups,
    ) -> Steps:
        """Return the trial counts after the chosen attacks, of all speakers and without each group, ``(1 + G, S)``."""
        folds, size, attacks = self.folds, len(steps.targets), self._attacks[condition.name]
        # The last entry is of speakers without a fold, whose key is -1.
        group_of_code = groups.group_of_label.new_full((folds.num_folds * folds.num_codes + 1,), groups.num_groups)
        group_of_code[folds.sort_key_by_speaker] = groups.find_groups(self.data.speakers)
        counts = torch.zeros(2 * (groups.num_groups + 1) * size + 1, dtype=torch.int64, device=groups.labels.device)
        unused = len(counts) - 1
        for fold in self.processes.share(range(folds.num_folds)):
            group = group_of_code[fold * folds.num_codes : (fold + 1) * folds.num_codes]
            for trials in self._score_pairs(condition, attacks[choices[fold].attack], fold):
                place = step_of_bin[fold][assign_bins(trials.scores, FINE).long()]
                place = place + (trials.pair_kinds == TARGET) * ((groups.num_groups + 1) * size)
                place = place.masked_fill_(trials.pair_kinds == NO_TRIAL, unused)
                first, second = group[trials.rows][:, None], group[trials.columns]
                # A trial of two speakers of one group is left out once.
                second = torch.where(first == second, groups.num_groups, second)
                for each in (first, second):
                    add_counts(counts, (place + each * size).clamp_(max=unused))
        (counts,) = self.processes.all_reduce(counts)
        left_out = pad(widen(counts[:-1].view(2, -1, size)[:, :-1]), (0, 0, 1, 0))
        return Steps(left_out.new_empty(0), steps.targets - left_out[1], steps.nontargets - left_out[0])


def _measure_steps(steps: Steps, replicates: Steps | None) -> tuple[Tensor, Tensor | None]:
    """Return D_ECE and EER, ``(2,)``; and of all speakers and without each group, ``(2, 1 + G)``, where counted."""
    values = torch.stack([measure(steps) for measure in _MEASURES.values()])
    if replicates is None:
        return values, None
    # Replicates are counted in coarser bins than the value, so only their difference from the first row, of all
    # speakers, is added to the value.
    rows = torch.stack([measure(replicates) for measure in _MEASURES.values()])
    return values, values[:, None] + rows - rows[:, :1]


def _find_strongest_replicates(values: Sequence[Tensor]) -> dict[str, Tensor] | None:
    """Return the largest D_ECE in each replicate ``(1 + G,)``, and the EER of the same trials; None without values."""
    if not values:
        return None
    table = torch.stack(list(values), dim=1)  # (2, T, 1 + G)
    strongest = table.gather(1, table[:1].argmax(1, keepdim=True).expand(2, -1, -1))[:, 0]
    return dict(zip(_MEASURES, strongest, strict=True))
