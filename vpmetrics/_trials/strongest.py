"""The strongest of several attacks: each fitted on other speakers than it attacks, chosen on others than it counts for.

Pairs within a fold of speakers are scored after attacks that were fitted on all other folds. For each fold the attack
and the direction are taken that disclose most in the *other* folds: the largest of several noisy numbers, chosen where
it is counted, is too large. Trials of a fold then count as the calibration of its attack, pooled over folds, has them.

Chance is the same procedure for pairs that disclose nothing: instead of two utterances of one speaker, those of one
speaker and the next. As many pairs of as many speakers overfit as much.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import warn_undefined
from vpmetrics._precision import wide_dtype, widen
from vpmetrics._scores.measures import eer_of_steps, expected_disclosure
from vpmetrics._scores.steps import Steps, calibrate
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.folds import FEWEST_SPEAKERS, Folds, deal_speakers, is_linear, pairs_of
from vpmetrics._trials.moments import Moments, moments_of
from vpmetrics._trials.pairs import TILE, excluded_pairs
from vpmetrics._trials.scorers import SCORERS
from vpmetrics._trials.separation import map_rows
from vpmetrics._trials.utterances import Side, Sides

_BINS = 1 << 14  # of cosines
_STEPS = 1 << 10  # of the score axis that choices are made with
_OTHERS, _NEXT, _OWN, _NONE = range(4)  # pairs of two speakers, of one and the next, of one speaker; no trials


class Strongest(NamedTuple):
    """What the strongest attack finds, and what chance would; all scalars but the last.

    ``attack``: the number of the attack most folds chose. ``each`` ``(A,)``: D_ECE of every attack, in its better
    direction, pooled over all folds.
    """

    d_ece: Tensor
    eer: Tensor
    attack: Tensor
    chance: Tensor
    each: Tensor


class Attackers:
    """Attacks on some embeddings, fitted in folds of their speakers and, where they watched others, on those.

    One object serves several conditions.
    """

    def __init__(self, sides: Sides, attacks: Sequence[Any], watched: Moments | None = None) -> None:
        self.sides, self.attacks, self._watched = sides, attacks, watched
        self.folds = deal_speakers(sides)
        self._fitted: dict[bool, dict[int, list[Any]]] = {}

    def strongest(self, condition: Condition) -> Strongest:
        """The strongest attack on one condition; NaN and one warning where there are too few speakers."""
        folds, sides = self.folds, self.sides
        if folds is None:
            warn_undefined(f"Attacks are fitted on other speakers, and that needs {FEWEST_SPEAKERS} of them.")
            return self._nothing()
        if not bool(sides.original.vectors.isfinite().all() & sides.protected.vectors.isfinite().all()):
            warn_undefined("Some embeddings are not finite.")
            return self._nothing()
        with torch.no_grad():
            one_sided = condition.one_sided
            if one_sided not in self._fitted:
                self._fitted[one_sided] = _fit(folds, self.attacks, self._watched, "PP" if one_sided else "OP")
            fitted = self._fitted[one_sided]
            counts = _count(folds, condition, list(fitted.values()))
            found = _choose(counts[:, :, _OWN], counts[:, :, _OTHERS] + counts[:, :, _NEXT])
            chance = _choose(counts[:, :, _NEXT], counts[:, :, _OTHERS])
        numbers = torch.tensor(list(fitted), device=counts.device)
        each = found.each.new_full((3 * len(self.attacks),), torch.nan).scatter(0, numbers, found.each)
        return found._replace(attack=numbers[found.attack], chance=chance.d_ece, each=each)

    def _nothing(self) -> Strongest:
        device = self.sides.voices.device
        value = torch.full((), torch.nan, dtype=wide_dtype(device), device=device)
        attack = torch.full((), -1, dtype=torch.int64, device=device)
        return Strongest(value, value, attack, value, value.expand(3 * len(self.attacks)))


def _count(folds: Folds, condition: Condition, fitted: Sequence[list[Any]]) -> Tensor:
    """Pairs by attack, fold, kind and bin of their score, ``(A, K, 4, B)``."""
    counts = torch.zeros(len(fitted), folds.number, 4 * _BINS, dtype=torch.int32, device=folds.fold_of_voice.device)
    one = counts.new_ones(())
    for fold in range(folds.number):
        first, second = folds.rows(fold)
        original, protected = folds.sides.original.take(first), folds.sides.protected.take(second)
        reference = original if condition.reference == "original" else protected
        probe = protected if condition.probe == "protected" else original
        rows = [_compared(attack[fold], original, protected, condition) for attack in fitted]
        for a, b, kinds in _tiles(reference, probe, condition):
            for number, (left, right) in enumerate(rows):
                slots = (left[a] @ right[b].mT).add_(1).mul_(_BINS / 2).clamp_(0, _BINS - 1).to(torch.int32)
                slots += kinds
                counts[number, fold].index_add_(0, slots.flatten(), one.expand(slots.numel()))
    by_kind: Tensor = counts.unflatten(-1, (4, _BINS))
    return by_kind


def names_of_attacks(attacks: Sequence[Any]) -> tuple[str, ...]:
    """What numbers of attacks mean: fitted in folds of all speakers, of those of a group, or on what was observed."""
    names = [getattr(attack, "name", type(attack).__name__) for attack in attacks]
    return (*names, *(f"{name}, per group" for name in names), *(f"{name}, observed" for name in names))


def _fit(folds: Folds, attacks: Sequence[Any], watched: Moments | None, condition: str) -> dict[int, list[Any]]:
    """For every attack, by its number, what maps the rows of each fold: maps, or a fitted attack."""
    sides, (left, right) = folds.sides, pairs_of(folds.sides)
    paired = len(left) > 0
    if not paired:  # then there is protected speech alone, for those who need no more
        left = right = torch.arange(len(sides.protected.voices), device=sides.voices.device)
    originals = (sides.original if paired else sides.protected).vectors[left]
    pairs = originals, sides.protected.vectors[right], sides.protected.voices[right]
    fold = folds.fold_of_voice[pairs[2]]
    moments = _of_folds(pairs, fold, range(folds.number))
    fitted: dict[int, list[Any]] = {}
    for number, attack in enumerate(attacks):
        if not paired and getattr(attack, "needs", "").startswith("pairs"):
            continue
        if not is_linear(attack):
            fitted[number] = [_fit_on(attack, *(part[fold != k] for part in pairs)) for k in range(folds.number)]
            continue
        fitted[number] = _maps_of_folds(attack, moments, condition)
        if len(folds.groups) > 1:
            fitted[len(attacks) + number] = [
                maps
                for group in folds.groups
                for maps in _maps_of_folds(attack, _of_folds(pairs, fold, group), condition)
            ]
        if watched is not None:
            fitted[2 * len(attacks) + number] = [copy.deepcopy(attack).fit_moments(watched, condition)] * folds.number
    return dict(sorted(fitted.items()))


def _maps_of_folds(attack: Any, moments: Moments, condition: str) -> list[Any]:
    maps = attack.fit_groups(moments, condition)
    return [maps.of(fold) for fold in range(len(moments.within_oo))]


def _of_folds(pairs: tuple[Tensor, Tensor, Tensor], fold: Tensor, chosen: range) -> Moments:
    rows = (fold >= chosen.start) & (fold < chosen.stop)
    original, protected, speakers = (part[rows] for part in pairs)
    return moments_of(original, protected, speakers, fold[rows] - chosen.start, len(chosen))


def _fit_on(attack: Any, original: Tensor, protected: Tensor, speakers: Tensor, rows: Tensor) -> Any:
    fitted = copy.deepcopy(attack)
    with torch.enable_grad():  # an attacker may learn by descent
        fitted.fit(original[rows], protected[rows], speakers[rows])
    return fitted


def _compared(fitted: Any, original: Side, protected: Side, condition: Condition) -> tuple[Tensor, Tensor]:
    """References and probes as the attacker compares them, at length 1."""
    one_sided = condition.one_sided
    if hasattr(fitted, "attack"):
        left, right = fitted.attack(None if one_sided else original.vectors, protected.vectors)
    else:
        left = None if one_sided else map_rows(original.vectors, fitted.mean_o, fitted.map_o)
        right = map_rows(protected.vectors, fitted.mean_p, fitted.map_p)
    prepare = SCORERS["cosine"].prepare
    probes = prepare(right.detach().to(torch.float32)).nan_to_num()
    return probes if one_sided else prepare(left.detach().to(torch.float32)).nan_to_num(), probes


def _tiles(reference: Side, probe: Side, condition: Condition) -> Iterator[tuple[slice, slice, Tensor]]:
    """Blocks of rows and columns, and the kind of every pair in them as an offset; what is no trial lies beyond all."""
    within = condition.one_sided
    for start in range(0, len(reference.voices), TILE):
        a = slice(start, start + TILE)
        for other in range(start if within else 0, len(probe.voices), TILE):
            b = slice(other, other + TILE)
            rows, columns = reference.voices[a, None], probe.voices[None, b]
            same, after = rows == columns, rows + 1 == columns
            kinds = torch.where(same, _OWN, torch.where(after, _NEXT, _OTHERS))
            kinds = (kinds * _BINS).int()
            excluded = excluded_pairs(reference, probe, condition, a, b, same)
            yield a, b, kinds if excluded is None else kinds.masked_fill_(excluded, _NONE * _BINS)


def _choose(targets: Tensor, nontargets: Tensor) -> Strongest:
    """What is found where for every fold the others choose the attack; counts ``(A, K, B)``."""
    targets, nontargets = _condense(targets, nontargets)
    attacks, folds = targets.shape[:2]
    # Two directions of every attack: (2 A, K, S).
    targets, nontargets = (torch.cat([counts, counts.flip(-1)]) for counts in (targets, nontargets))
    pooled = Steps(targets.new_empty(0), targets.sum(1), nontargets.sum(1))
    each = expected_disclosure(pooled)
    others = Steps(targets.new_empty(0), pooled.targets[:, None] - targets, pooled.nontargets[:, None] - nontargets)
    best = expected_disclosure(others).nan_to_num(-torch.inf).argmax(0)
    llr, fold = calibrate(pooled)[best], torch.arange(folds, device=best.device)
    together = _steps_of_llr(llr.flatten(), targets[best, fold].flatten(), nontargets[best, fold].flatten())
    attack = (best % attacks).mode().values
    d_ece = expected_disclosure(together)
    return Strongest(d_ece, eer_of_steps(together), attack, d_ece, each.view(2, attacks).amax(0))


def _condense(targets: Tensor, nontargets: Tensor) -> tuple[Tensor, Tensor]:
    """Counts in steps that hold as many targets each, ``(A, K, S)``; what lies beyond all targets stays by itself."""
    targets, nontargets = widen(targets), widen(nontargets)
    mass = targets.sum(1)
    up_to, total = mass.cumsum(-1), mass.sum(-1, keepdim=True)
    inner = 1 + ((up_to - mass) / total * _STEPS).nan_to_num().long().clamp(max=_STEPS - 1)
    step = torch.where(up_to == 0, 0, torch.where(up_to - mass >= total, _STEPS + 1, inner))[:, None]
    empty = targets.new_zeros(*targets.shape[:2], _STEPS + 2)
    condensed = [empty.scatter_add(-1, step.expand_as(counts), counts) for counts in (targets, nontargets)]
    return condensed[0], condensed[1]


def _steps_of_llr(llr: Tensor, targets: Tensor, nontargets: Tensor) -> Steps:
    """Steps of log-likelihood ratios that occur so often in each class."""
    values, place = torch.unique(llr, return_inverse=True)
    sums = (counts.new_zeros(len(values)).index_add(0, place, counts) for counts in (targets, nontargets))
    return Steps(values[1:], *sums)
