"""The strongest of several attacks: fitted on other speakers than it attacks, chosen on other folds than it counts in.

For every fold of speakers attacks are fitted on all others. A first pass compares some rows of each fold after every
attack with every setting. From these scores each fold takes, by what is found in the *other* folds, the setting of each
attack and then the attack: the largest of several noisy numbers, taken where it is counted, would be too large. A
second pass counts all pairs within the folds after the attacks that were taken. Trials of a fold then have the
log-likelihood ratios of its attack, calibrated on all folds.

Plain comparison needs no fitting: it is counted on all trials of the condition, and the result is never below it.

Chance is the same for pairs that disclose nothing: instead of two utterances of one speaker, those of one speaker and
the next. As many pairs of as many speakers overfit as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._engine.attack_folds import (
    FEWEST_SPEAKERS,
    MOST_SAMPLED_FOLDS,
    NONE,
    OWN,
    AttackFold,
    AttackFolds,
    Fitted,
    Variant,
    deal_folds,
)
from vpmetrics._engine.attack_scores import (
    COARSE,
    FINE,
    CalibratedTrials,
    Choice,
    ScoredPairs,
    choose_attacks,
    choose_settings,
    count_sample,
    find_bins,
    pool_folds,
    score_blocks,
    score_sample,
    share_of_counts,
    squash_scores,
    targets_of,
)
from vpmetrics._engine.conditions import Condition
from vpmetrics._engine.distributed import SINGLE_PROCESS
from vpmetrics._engine.measures import eer_of_steps, expected_disclosure
from vpmetrics._engine.moments import Moments
from vpmetrics._engine.precision import all_finite, at_least_float32, wide_dtype, widen
from vpmetrics._engine.score_counts import ScoreCounts, Steps
from vpmetrics._engine.scorers import SCORERS
from vpmetrics._engine.utterances import EvaluationData, Utterances, index_speakers
from vpmetrics._engine.validation import warn_undefined
from vpmetrics.attacks.base import compare
from vpmetrics.attacks.linear import Plain

if TYPE_CHECKING:
    from vpmetrics._engine.jackknife import JackknifeGroups

_SOURCES = ("", ", per group", ", observed")  # what attacks are fitted on, as their names end
KEYS, _MEASURES = ("d_ece_strongest", "eer_strongest"), (expected_disclosure, eer_of_steps)


def describe_attacks(attacks: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """Return name and needs of the attacks that numbers stand for: fitted on all, per group, and on observed speech."""
    pairs = [(getattr(each, "name", type(each).__name__), getattr(each, "needs", "")) for each in with_plain(attacks)]
    return tuple((name + source, needs) for source in _SOURCES for name, needs in pairs)


def with_plain(attacks: Sequence[Any]) -> tuple[Any, ...]:
    """Return the attacks, with plain comparison after them where it is missing: no result is below it."""
    return tuple(attacks) if any(type(attack) is Plain for attack in attacks) else (*attacks, Plain())


class StrongestResult(NamedTuple):
    """What the strongest attack finds; scalars but for the last four.

    ``chance``: what the same procedure finds where there is nothing. ``attack``: the number of the attack that most
    folds took, or of plain comparison where that finds more; NaN where it is undefined. ``num_fitted_speakers``: how
    many speakers attacks were fitted on, at least. ``d_ece_by_attack``: D_ECE of every attack in its better direction,
    from the pairs that choices are made with; NaN for those that were not tried. ``choices``: what each fold took.
    ``replicates``: ``d_ece_strongest`` and ``eer_strongest`` of all speakers and without each group, ``(1 + G,)``.
    """

    d_ece: Tensor
    eer: Tensor
    chance: Tensor
    attack: Tensor
    num_fitted_speakers: Tensor
    d_ece_by_attack: Tensor
    choices: tuple[Choice, ...] = ()
    replicates: dict[str, Tensor] | None = None

    def scalars(self) -> dict[str, Tensor]:
        """Return the numbers by their keys."""
        return {
            "d_ece_strongest": self.d_ece,
            "eer_strongest": self.eer,
            "strongest": self.attack,
            "d_ece_chance": self.chance,
            "attack_speakers": self.num_fitted_speakers,
        }


class ChosenAttack(NamedTuple):
    """A fitted attack, and whether its scores are negated."""

    fitted: Fitted
    is_negated: bool

    def map_side(self, side: Utterances, name: str) -> Tensor:
        """Return the rows of the ``"original"`` or ``"protected"`` side as they are compared."""
        return self.fitted.map_side(side, name)

    def compare(self, tests: Tensor, references: Tensor) -> Tensor:
        """Return the scores ``(A, B)`` of mapped tests against mapped references."""
        scores = compare(self.fitted.attack, references, tests).detach().mT
        return -scores if self.is_negated else scores


class _Option(NamedTuple):
    """A way to attack: its number, all its trials, and those of all speakers and without each group ``(1 + G, S)``."""

    number: int
    steps: Steps
    replicates: Steps | None = None


class _Sampled(NamedTuple):
    """A variant on the sampled rows of a condition.

    ``counts`` ``(C, F, 3, B)`` by setting, sampled fold, kind of pair and bin; ``scales`` ``(C, F, 2)`` of scores that
    are no cosines; ``trials``: where the sample is all there is, the pairs of each fold of this rank; ``settings``:
    what every fold takes.
    """

    variant: Variant
    counts: Tensor
    scales: Tensor
    trials: dict[int, list[ScoredPairs]]
    settings: list[int]

    @classmethod
    def empty(cls, variant: Variant, folds: AttackFolds, num_folds: int, like: Tensor) -> _Sampled:
        """Return a variant before it is compared, in the type of a tensor."""
        size = folds.num_settings(variant), num_folds
        return cls(variant, like.new_zeros(*size, 3, COARSE, dtype=torch.int32), like.new_zeros(*size, 2), {}, [])

    def with_settings(self, counts: Tensor, scales: Tensor, settings: list[int]) -> _Sampled:
        """Return the same with what all ranks counted and chose, and without the scores of other settings."""
        trials = {
            fold: [each._replace(scores=each.scores[settings[fold]].clone()) for each in scored]
            for fold, scored in self.trials.items()
        }
        return _Sampled(self.variant, counts, scales, trials, settings)

    def chosen(self, sampled_folds: Sequence[int]) -> Tensor:
        """Return counts ``(F, 3, B)`` with the setting of each sampled fold."""
        taken = [self.settings[fold] for fold in sampled_folds]
        return widen(self.counts[taken, torch.arange(len(taken))])

    def scale(self, fold: int) -> Tensor:
        """Return mean and standard deviation ``(2,)`` of the scores with the setting of a fold."""
        return self.scales[self.settings[fold]].mean(0)


class CrossFittedAttacks:
    """Attacks on some utterances, fitted in folds of their speakers and, where speech was observed, on that.

    One object serves several conditions, which share the fits. Nothing is fitted before a result is asked for.

    Args:
        data: Both sides and their speakers.
        attacks: Attacks, not fitted.
        conditions: Conditions that results will be asked for.
        observed: Moments of observed speech, for linear attacks.
        enrolment: How speakers are enrolled, see :meth:`EvaluationData.sides`.
    """

    def __init__(
        self,
        data: EvaluationData,
        attacks: Sequence[Any],
        conditions: Sequence[Condition],
        observed: Moments | None = None,
        enrolment: str | None = None,
    ) -> None:
        # Attacks see directions, never the length of embeddings.
        original, protected = (
            replace(side, embeddings=SCORERS["cosine"].prepare(at_least_float32(side.embeddings.detach())))
            for side in (data.original, data.protected)
        )
        self.data, self.conditions = data._replace(original=original, protected=protected), tuple(conditions)
        self.descriptions, self.processes = describe_attacks(attacks), data.processes
        self._observed, folds = observed, deal_folds(self.data)
        self.folds = None if folds is None else AttackFolds(self.data, folds, with_plain(attacks), observed, enrolment)
        self._sampled: dict[str, list[_Sampled]] = {}
        self._counts: dict[tuple[str, int], Tensor] = {}
        self._folds: dict[int, AttackFold] = {}
        self._fitted: dict[tuple[int, int, int], Fitted] = {}

    def strongest(
        self,
        condition: Condition,
        groups: JackknifeGroups | None = None,
        plain: ScoreCounts | None = None,
        plain_replicates: ScoreCounts | None = None,
    ) -> StrongestResult:
        """Return the strongest attack on a condition; NaN and one warning where it is undefined.

        Args:
            condition: One of those named to the object.
            groups: Speakers that are left out together; attacks and choices stay as they are.
            plain: What plain comparison finds on all trials; the result is at least that, in the better direction.
            plain_replicates: The same of all speakers and without each group, with counts ``(1 + G, S)``.
        """
        with torch.no_grad(), torch.autocast(self.data.speakers.device.type, enabled=False):
            reason = self._why_undefined()
            if reason is None:
                if not self._sampled:
                    self._sample()
                result = self._strongest(condition, groups, plain, plain_replicates)
                if not bool(result.d_ece.isnan()):
                    return result
                reason = f"There are no trials of one kind to attack in {condition.name}."
            warn_undefined(reason)
            nan = torch.full(
                (), torch.nan, dtype=wide_dtype(self.data.speakers.device), device=self.data.speakers.device
            )
            replicates = None if groups is None else dict.fromkeys(KEYS, nan.expand(1 + groups.number))
            return StrongestResult(nan, nan, nan, nan, nan, nan.expand(len(self.descriptions)), (), replicates)

    def chosen_folds(self, condition: Condition, result: StrongestResult) -> list[tuple[EvaluationData, ChosenAttack]]:
        """Return the utterances of every fold and the fitted attack that it took; empty where none was possible."""
        found = []
        for number, choice in enumerate(result.choices):
            assert self.folds is not None
            is_inside = self.folds.folds.of_speaker == number
            sides = [side.take(is_inside[side.speaker_index]) for side in (self.data.original, self.data.protected)]
            with torch.no_grad():
                fitted = self._fit(number, self._sampled[condition.name][choice.variant])
            found.append((index_speakers(sides[0], sides[1], SINGLE_PROCESS), ChosenAttack(fitted, choice.is_negated)))
        return found

    def _why_undefined(self) -> str | None:
        if self.folds is None:
            return f"Attacks are fitted on other speakers, and that needs {FEWEST_SPEAKERS} of them."
        given = [self.data.original.embeddings, self.data.protected.embeddings]
        given += [] if self._observed is None else [*self._observed.tensors()]
        is_finite = torch.stack([all_finite(values) for values in given]).all()
        return None if bool(is_finite) else "Some embeddings, measured or observed, are not finite."

    def _sample(self) -> None:
        """Compare some rows of some folds after every attack with every setting, and choose the settings."""
        assert self.folds is not None
        folds, device = self.folds, self.data.speakers.device
        like = torch.zeros((), dtype=wide_dtype(device), device=device)
        tried = {
            (condition.name, variant.number): _Sampled.empty(variant, folds, len(self._sampled_folds), like)
            for condition in self.conditions
            for variant in folds.variants
            if variant.is_for(condition)
        }
        for index in self.processes.share(range(len(self._sampled_folds))):
            fold, kinds = AttackFold(folds, self._sampled_folds[index]), dict[tuple[str, bool], list[Tensor]]()
            for variant in folds.variants:
                conditions = [condition for condition in self.conditions if variant.is_for(condition)]
                fitted = [fold.fit(variant, each) for each in range(folds.num_settings(variant) if conditions else 0)]
                for condition in conditions:
                    rows = fold.compare(condition, variant.attack, is_sample=True)
                    pairs = condition.name, hasattr(variant.attack, "enrol")
                    if pairs not in kinds:
                        kinds[pairs] = [each.kinds() for each in rows]
                    sampled = tried[condition.name, variant.number]
                    scored = score_sample(fitted, rows, kinds[pairs])
                    sampled.counts[:, index], sampled.scales[:, index] = count_sample(variant.attack, scored)
                    if folds.is_sample_complete:
                        sampled.trials[fold.number] = scored
        parts = ([each.counts for each in tried.values()], [each.scales for each in tried.values()])
        counts, scales = self.processes.all_reduce(*map(torch.cat, parts))
        sizes = [len(each) for each in parts[0]]
        settings = choose_settings(share_of_counts(counts), sizes, self._sampled_folds, folds.folds.number)
        found = zip(counts.split(sizes), scales.split(sizes), settings, strict=True)
        for (key, sampled), each in zip(tried.items(), found, strict=True):
            self._sampled.setdefault(key[0], []).append(sampled.with_settings(*each))

    @property
    def _sampled_folds(self) -> range:
        """The folds that choices are made with: all, or every other one where they are many."""
        assert self.folds is not None
        return range(0, self.folds.folds.number, 1 if self.folds.folds.number <= MOST_SAMPLED_FOLDS else 2)

    def _strongest(
        self,
        condition: Condition,
        groups: JackknifeGroups | None,
        plain: ScoreCounts | None,
        plain_replicates: ScoreCounts | None,
    ) -> StrongestResult:
        assert self.folds is not None
        tried, dealt = self._sampled[condition.name], (self._sampled_folds, self.folds.folds.number)
        counts = torch.stack([each.chosen(self._sampled_folds) for each in tried])  # (V, F, 3, B)
        choices, pooled = choose_attacks(counts, *dealt)
        by_chance, _ = choose_attacks(counts, *dealt, is_chance=True)
        is_complete = self.folds.is_sample_complete
        needed = sorted({choice.variant for choice in (*choices, *(() if is_complete else (*by_chance, Choice(0))))})
        counted = dict(zip(needed, self._count(condition, [tried[each] for each in needed]), strict=True))
        known = dict(enumerate(counts)) if is_complete else counted
        lucky = {key: targets_of(each, is_chance=True) for key, each in known.items()}
        chance = [CalibratedTrials.of(lucky, by_chance).steps]
        chance += [pool_folds(*lucky[0], is_negated=each) for each in (False, True)]
        options = []
        if plain is not None:
            replicates = (None, None) if plain_replicates is None else plain_replicates
            options = [_Option(tried[0].variant.number, *each) for each in zip(plain, replicates, strict=True)]
        if not options or len(set(choices)) > 1 or choices[0].variant > 0:
            chosen = CalibratedTrials.of({key: targets_of(each) for key, each in counted.items()}, choices)
            numbers = [tried[choice.variant].variant.number for choice in choices]
            left_out = None if groups is None else self._leave_out(condition, choices, chosen, groups)
            options.insert(0, _Option(max(numbers, key=numbers.count), chosen.steps, left_out))
        d_ece, eer = (torch.stack([measure(each.steps) for each in options]) for measure in _MEASURES)
        best = d_ece.argmax()
        by_attack = d_ece.new_full((len(self.descriptions),), torch.nan)
        by_attack[[each.variant.number for each in tried]] = pooled
        return StrongestResult(
            d_ece[best],
            eer[best],
            torch.stack([expected_disclosure(steps) for steps in chance]).amax(),
            torch.tensor([each.number for each in options]).to(d_ece)[best],
            torch.full_like(d_ece[0], self.folds.folds.count_fitted()),
            by_attack,
            choices,
            None if groups is None else _replicates(options, d_ece, eer),
        )

    def _count(self, condition: Condition, tried: Sequence[_Sampled]) -> Tensor:
        """Return counts ``(V, K, 3, B)`` of all pairs within the folds after some attacks, each with its settings."""
        assert self.folds is not None
        number = self.folds.folds.number
        missing = [each for each in tried if (condition.name, each.variant.number) not in self._counts]
        counts = torch.zeros(len(missing), number, 3, FINE, dtype=torch.int64, device=self.data.speakers.device)
        for fold in self.processes.share(range(number)) if missing else ():
            for each, into in zip(missing, counts, strict=True):
                into[fold] = self._count_fold(condition, each, fold)
            self._fold(fold).forget_pairs()
        (counts,) = self.processes.all_reduce(counts) if missing else (counts,)
        for each, table in zip(missing, counts, strict=True):
            self._counts[condition.name, each.variant.number] = table
        return torch.stack([self._counts[condition.name, each.variant.number] for each in tried])

    def _fold(self, number: int) -> AttackFold:
        assert self.folds is not None
        if number not in self._folds:
            self._folds[number] = AttackFold(self.folds, number)
        return self._folds[number]

    def _fit(self, fold: int, taken: _Sampled) -> Fitted:
        """Return an attack with the setting that a fold takes; it is kept for other conditions."""
        key = fold, taken.variant.number, taken.settings[fold]
        if key not in self._fitted:
            self._fitted[key] = self._fold(fold).fit(taken.variant, taken.settings[fold])
        return self._fitted[key]

    def _trials(self, condition: Condition, taken: _Sampled, fold: int) -> Iterator[ScoredPairs]:
        """Yield all pairs of a fold after an attack with the setting of the fold, in blocks, with scores in [-1, 1]."""
        assert self.folds is not None
        has_score = hasattr(taken.variant.attack, "score")
        if fold in taken.trials:
            found: Iterator[ScoredPairs] = iter(taken.trials[fold])
        else:
            fitted = self._fit(fold, taken)
            rows = self._fold(fold).compare(condition, fitted.attack, is_sample=False)
            found = (
                each for comparison in rows for each in score_blocks(comparison, fitted, self.folds.folds.num_codes)
            )
        for each in found:
            yield each._replace(scores=squash_scores(each.scores, taken.scale(fold))) if has_score else each

    def _count_fold(self, condition: Condition, taken: _Sampled, fold: int) -> Tensor:
        """Return counts ``(3, B)`` of all pairs of a fold by kind and bin."""
        counts = torch.zeros(4 * FINE, dtype=torch.int32, device=self.data.speakers.device)
        for each in self._trials(condition, taken, fold):
            slots = find_bins(each.scores, FINE)
            slots = slots if each.kinds is None else slots.add_(each.kinds, alpha=FINE)
            counts.index_add_(0, slots.flatten(), counts.new_ones(()).expand(slots.numel()))
        return counts.view(4, FINE)[:NONE].long()

    def _leave_out(
        self, condition: Condition, choices: Sequence[Choice], chosen: CalibratedTrials, groups: JackknifeGroups
    ) -> Steps:
        """Return the trials of what was chosen, of all speakers and without each group, ``(1 + G, S)``."""
        assert self.folds is not None
        folds, size, tried = self.folds.folds, chosen.steps.targets.shape[-1], self._sampled[condition.name]
        group_of_code = torch.full((folds.number * folds.num_codes,), groups.number, device=folds.order.device)
        is_dealt = folds.order >= 0
        group_of_code[folds.order[is_dealt]] = groups.of(self.data.speakers)[is_dealt]
        counts = torch.zeros(2 * (groups.number + 1) * size + 1, dtype=torch.int64, device=groups.labels.device)
        one, nowhere = counts.new_ones(()), len(counts) - 1
        for fold in self.processes.share(range(folds.number)):
            taken, cell_of_bin = tried[choices[fold].variant], chosen.cells[fold]
            group = group_of_code[fold * folds.num_codes : (fold + 1) * folds.num_codes]
            for trials in self._trials(condition, taken, fold):
                place = cell_of_bin[find_bins(trials.scores, FINE).long()]
                if trials.kinds is not None:
                    place = place + (trials.kinds == OWN) * ((groups.number + 1) * size)
                    place = place.masked_fill_(trials.kinds == NONE, nowhere)
                first, second = group[trials.rows][:, None], group[trials.columns]
                # A trial of two speakers of one group is left out once.
                second = torch.where(first == second, groups.number, second)
                for each in (first, second):
                    slot = (place + each * size).clamp_(max=nowhere)
                    counts.index_add_(0, slot.flatten(), one.expand(slot.numel()))
        (counts,) = self.processes.all_reduce(counts)
        gone = pad(widen(counts[:-1].view(2, groups.number + 1, size)[:, : groups.number]), (0, 0, 1, 0))
        return Steps(gone.new_empty(0), chosen.steps.targets - gone[1], chosen.steps.nontargets - gone[0])


def _replicates(options: Sequence[_Option], d_ece: Tensor, eer: Tensor) -> dict[str, Tensor] | None:
    """Return the numbers of the best option, of all speakers and without each group; None where they are unknown."""
    found = []
    for values, measure in zip((d_ece, eer), _MEASURES, strict=True):
        # Replicates are counted in fewer cells than the value: what counts is by how much they differ from all.
        known = [(value, each.replicates) for value, each in zip(values, options, strict=True)]
        pairs = [(value, measure(steps)) for value, steps in known if steps is not None]
        if not pairs:
            return None
        found.append(torch.stack([value + row - row[0] for value, row in pairs]))
    best = found[0].argmax(0, keepdim=True)
    return {key: each.gather(0, best)[0] for key, each in zip(KEYS, found, strict=True)}
