"""The strongest of several attacks: each fitted on other speakers than it attacks, chosen on others than it counts for.

Pairs within a fold of speakers are scored after attacks that were fitted on all other folds. For each fold the first
attack and direction are taken that disclose as much as any in the *other* folds: the largest of several noisy numbers,
chosen where it is counted, is too large. Trials of a fold then count as the calibration of its attack, pooled over
folds, has them.

Chance is the same procedure for pairs that disclose nothing: instead of two utterances of one speaker, those of one
speaker and the next. As many pairs of as many speakers overfit as much.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import warn_undefined
from vpmetrics._precision import all_finite, wide_dtype
from vpmetrics._scores.host import on_host
from vpmetrics._trials import shares
from vpmetrics._trials.attacked import ChosenAttack, compared
from vpmetrics._trials.choices import AS_STRONG, NOISE, choose
from vpmetrics._trials.conditions import CONDITIONS, Condition
from vpmetrics._trials.folds import FEWEST_SPEAKERS, MOST_FOLDS, Folds, deal_speakers, is_bounded, is_linear, pairs_of
from vpmetrics._trials.left_out import Blocks
from vpmetrics._trials.left_out_attacks import attacks_without
from vpmetrics._trials.moments import Moments, Picked, moments_of
from vpmetrics._trials.pairs import TILE, excluded_pairs
from vpmetrics._trials.passing import visits
from vpmetrics._trials.utterances import Side, Sides, evenly

_BINS = 1 << 14  # of cosines
_AT_ONCE = 4  # attacks whose rows are held: more would take more room, and fewer tell kinds of pairs more often
_OTHERS, _NEXT, _OWN, _NONE = range(4)  # pairs of two speakers, of one and the next, of one speaker; no trials


class Strongest(NamedTuple):
    """What the strongest attack finds, and what chance would; all scalars but the last.

    ``attack``: the number of the attack most folds chose. ``each`` ``(A,)``: D_ECE of every attack, in its better
    direction, pooled over all folds. ``chosen`` ``(2, K)``: the number of each fold's attack, and whether the direction
    of its scores is turned. ``without``: the first two for all speakers and without each block of speakers,
    ``(1 + G,)``, where that was asked for.
    """

    d_ece: Tensor
    eer: Tensor
    attack: Tensor
    chance: Tensor
    each: Tensor
    chosen: Tensor
    without: dict[str, Tensor] | None = None

    def scalars(self) -> dict[str, Tensor]:
        """By the names of the table; a number of -1, where no attack was possible, is NaN."""
        number = torch.where(self.attack < 0, torch.nan, self.attack.to(self.d_ece.dtype))
        return {
            "d_ece_strongest": self.d_ece,
            "eer_strongest": self.eer,
            "strongest": number,
            "d_ece_chance": self.chance,
        }


class Attackers:
    """Attacks on some embeddings, fitted in folds of their speakers and, where they watched others, on those.

    One object serves several conditions, named beforehand.
    """

    def __init__(
        self,
        sides: Sides,
        attacks: Sequence[Any],
        watched: Moments | None = None,
        enrolment: str | None = None,
        conditions: Sequence[str] = ("OP", "PP"),
    ) -> None:
        self.sides, self.attacks, self._watched, self.enrolment = sides, attacks, watched, enrolment
        self._kinds = tuple(sorted({_kind_of(CONDITIONS[name]) for name in conditions}))
        self._given = sides.original.vectors, sides.protected.vectors, *(() if watched is None else watched.tensors())
        self.folds = deal_speakers(sides)
        with _exactly(sides):
            self._fits = None if self.folds is None else _Fits(self.folds, attacks, watched, self._kinds)
        self._fewer: dict[int, tuple[_Fits, dict[str, dict[int, list[Any]]]]] = {}

    def strongest(self, condition: Condition, blocks: Blocks | None = None) -> Strongest:
        """The strongest attack on one condition; NaN and one warning where there are too few speakers.

        With ``blocks`` of speakers, also what it would be without each of them.
        """
        folds, fits = self.folds, self._fits
        if folds is None or fits is None:
            warn_undefined(f"Attacks are fitted on other speakers, and that needs {FEWEST_SPEAKERS} of them.")
            return self._nothing()
        if not self._finite:
            warn_undefined("Some embeddings, measured or observed, are not finite.")
            return self._nothing()
        with _exactly(self.sides):
            fitted = fits.of(_kind_of(condition))
            counts, own = self._counts(condition, fitted, whole=blocks is not None)
            others, after, of_one = (counts[own, :, kind] for kind in (_OTHERS, _NEXT, _OWN))
            sets = (of_one, others + after), (after, others)
            found, chance = choose(sets, own, len(fitted))
            without = None
            if blocks is not None and not bool(found.d_ece.isnan()):
                attacks = list(fitted.values())
                known = torch.stack([counts[:, :, _OTHERS] + counts[:, :, _NEXT], counts[:, :, _OWN]], dim=2)
                without = attacks_without(folds, condition, self.enrolment, attacks, known, blocks, (AS_STRONG, NOISE))
        undefined = found.d_ece.isnan()
        warn_undefined(f"There are no trials of one kind to attack in {condition.name}.", undefined)
        numbers = torch.tensor(list(fitted), device=counts.device)
        each = found.each.new_full((3 * len(self.attacks),), torch.nan).scatter(0, numbers, found.each)
        return Strongest(
            d_ece=found.d_ece,
            attack=torch.where(undefined, -1, numbers.index_select(0, found.attack.view(1)).squeeze(0)),
            chance=torch.where(undefined, torch.nan, chance.d_ece),
            each=torch.where(undefined, torch.nan, each),
            eer=torch.where(undefined, torch.nan, found.eer),
            chosen=torch.where(undefined, -1, torch.stack([numbers[found.chosen[0]], found.chosen[1]])),
            without=without,
        )

    def _counts(
        self, condition: Condition, fitted: dict[int, list[Any]], whole: bool
    ) -> tuple[Tensor, slice | list[int]]:
        """Counts of pairs by attack, and for which attacks they are here; for each they are in one of the processes.

        Where an attack was fitted it has been counted; of those fitted fold by fold, or whose rows are apart, counts
        are added up, and of all where every process needs the ``whole``.
        """
        assert self.folds is not None
        attacks = list(fitted.values())
        counts = _count(self.folds, condition, self.enrolment, attacks)
        linear = [is_linear(self.attacks[number % len(self.attacks)]) for number in fitted]
        shared = [at for at, is_whole in enumerate(linear) if shares.apart() or not is_whole]
        if whole:
            counts = shares.total(counts)
        elif shared:
            for at, sums in zip(shared, shares.totals(*(counts[at] for at in shared)), strict=True):
                counts[at] = sums
        turn = shares.in_turns(len(attacks))
        own = [at for at, maps in enumerate(attacks) if (at in turn if at in shared else maps[0] is not None)]
        return counts, slice(None) if len(own) == len(attacks) else own

    @cached_property
    def _finite(self) -> bool:
        finite = torch.stack([all_finite(values) for values in self._given]).all()
        (some_are_not,) = shares.most((~finite).to(torch.uint8))
        return not bool(some_are_not)

    def folds_for(self, people: int) -> int:
        """How many folds there are at most where each is to hold so many people; two where half of all are fewer.

        The more there are, the more speakers teach the attack on each.
        """
        most = MOST_FOLDS
        while self.folds is not None and most > 2 and self.folds.fewest(most) < people:
            most = (most + 1) // 2
        return most

    def chosen(
        self, condition: Condition, found: Strongest, most: int = MOST_FOLDS
    ) -> Iterator[tuple[Sides, ChosenAttack]]:
        """The utterances of every fold, and the attack that was chosen for it; nothing where none was possible.

        Where folds are to be fewer than the choice was made with, each is attacked by what most of those chose.
        """
        fits = self._fits
        if fits is None or bool(found.d_ece.isnan()):
            return
        kind, choices = _kind_of(condition), found.chosen.T.tolist()
        fitted = fits.of(kind)
        if max(map(len, fits.folds.groups)) > most:
            choice = max(choices, key=choices.count)
            fits, fitted = self._fitted_in(most, choice[0], kind)
            choices = [choice] * fits.folds.number
        for fold, (number, is_turned) in enumerate(choices):
            with _exactly(self.sides):
                attack = fitted[number][fold]
                attack = fits.anew(number, fold, kind) if attack is None else attack
            yield fits.folds.part(fold), ChosenAttack(attack, bool(is_turned), fits.folds.few)

    def _fitted_in(self, most: int, number: int, kind: str) -> tuple[_Fits, dict[int, list[Any]]]:
        """One attack, fitted once for every one of so many folds of each group."""
        with _exactly(self.sides):
            if most not in self._fewer:
                folds = deal_speakers(self.sides, most)
                assert folds is not None
                fits = _Fits(folds, self.attacks, self._watched, self._kinds)
                self._fewer[most] = fits, {kind: {} for kind in self._kinds}
            fits, known = self._fewer[most]
            if number not in known[kind]:
                known[kind][number] = [fits.anew(number, fold, kind) for fold in range(fits.folds.number)]
        return fits, known[kind]

    def _nothing(self) -> Strongest:
        device = self.sides.voices.device
        value = torch.full((), torch.nan, dtype=wide_dtype(device), device=device)
        attack = torch.full((), -1, dtype=torch.int64, device=device)
        each, chosen = value.expand(3 * len(self.attacks)), attack.expand(2, 0)
        return Strongest(value, value, attack, value, each, chosen)


def _count(folds: Folds, condition: Condition, enrolment: str | None, fitted: Sequence[list[Any]]) -> Tensor:
    """Pairs by attack, fold, kind and bin of their score, ``(A, K, 4, B)``, of what this process has fitted."""
    counts = torch.zeros(len(fitted), folds.number, 4 * _BINS, dtype=torch.int32, device=folds.fold_of_voice.device)
    for fold, reference, probe, within in _pairs_of_folds(folds, condition, enrolment):
        own = [number for number, attack in enumerate(fitted) if attack[fold] is not None]
        for some in (own[start : start + _AT_ONCE] for start in range(0, len(own), _AT_ONCE)):
            mapped = (compared(fitted[number][fold], reference, probe, condition, folds.few) for number in some)
            rows = [(counts[number, fold], *both) for number, both in zip(some, mapped, strict=True)]
            _count_tiles(rows, _tiles(reference, probe, condition, within))
            del rows  # or those of twice as many would be held
    by_kind: Tensor = counts.unflatten(-1, (4, _BINS))
    return by_kind


def _count_tiles(
    rows: Sequence[tuple[Tensor, Tensor, Tensor]], tiles: Iterable[tuple[slice, slice, Tensor | None]]
) -> None:
    """Count scores of tiles by kind, of references and probes as each attack maps them."""
    for a, b, kinds in tiles:
        for counts, left, right in rows:
            scores = left[a] @ right[b].mT.to(left.dtype)
            slots = scores.add_(1).mul_(_BINS / 2).clamp_(0, _BINS - 1).to(torch.int32)
            slots = slots if kinds is None else slots.add_(kinds)
            counts.index_add_(0, slots.flatten(), counts.new_ones(()).expand(slots.numel()))


def _pairs_of_folds(
    folds: Folds, condition: Condition, enrolment: str | None
) -> Iterator[tuple[int, Side, Side, bool]]:
    """References and probes of each fold; where rows are apart, with those of one process after the other.

    And whether both are rows of one side, of which each pair is met once.
    """
    if not shares.apart():
        for fold in range(folds.number):
            reference, probe = folds.part(fold).pair(condition, enrolment)
            yield fold, reference, probe, reference is probe
        return
    known, unknown = folds.pair(condition, enrolment)
    for reference, probe in visits(known, unknown):
        both = (reference,) if reference is probe else (reference, probe)
        for fold, parts in enumerate(zip(*map(folds.cut, both), strict=True)):
            yield fold, parts[0], parts[-1], known is unknown


@contextmanager
def _exactly(sides: Sides) -> Iterator[None]:
    """Without a graph, and in the precision that tensors have."""
    with torch.no_grad(), torch.autocast(sides.voices.device.type, enabled=False):
        yield


def _kind_of(condition: Condition) -> str:
    """The condition whose pairs attacks are fitted for."""
    return "PP" if condition.one_sided else "OP"


def names_of_attacks(attacks: Sequence[Any]) -> tuple[str, ...]:
    """What numbers of attacks mean: fitted in folds of all speakers, of those of a group, or on what was observed."""
    names = [getattr(attack, "name", type(attack).__name__) for attack in attacks]
    return (*names, *(f"{name}, per group" for name in names), *(f"{name}, observed" for name in names))


class _Fits:
    """All attacks, fitted to what folds of speakers say, for some kinds of conditions: ``"OP"`` and ``"PP"``."""

    def __init__(self, folds: Folds, attacks: Sequence[Any], watched: Moments | None, kinds: Sequence[str]) -> None:
        self.folds, self.attacks, self.watched, self.kinds = folds, attacks, watched, kinds
        sides, (left, right) = folds.sides, pairs_of(folds.sides)
        self.paired = shares.number_of_all(len(left)) > 0
        if not self.paired:  # then there is protected speech alone, for those who need no more
            left = right = torch.arange(len(sides.protected.voices), device=sides.voices.device)
        originals = (sides.original if self.paired else sides.protected).vectors
        self.pairs = Picked(originals, left), Picked(sides.protected.vectors, right)
        self.voices = sides.protected.voices[right]
        self.fold = folds.fold_of_voice[self.voices]
        # What does not depend on the condition is found once.
        self.moments = [self._moments(range(folds.number))]
        if len(folds.groups) > 1:
            self.moments += [self._moments(group) for group in folds.groups]
        self._known: dict[str, dict[int, list[Any]]] = {}

    def of(self, kind: str) -> dict[int, list[Any]]:
        """For every attack, by its number, what maps the rows of each fold: maps, or a fitted attack.

        None where another process fits it: attacks are dealt, those that are no moments' fold by fold. Where rows are
        apart, every process needs all of them.
        """
        if not self._known:
            self._fit_all()
        return self._known[kind]

    def _fit_all(self) -> None:
        """Fit each attack for all kinds of conditions, which share most of the work."""
        found: dict[str, dict[int, list[Any]]] = {kind: {} for kind in self.kinds}
        count, own = len(self.attacks), _turns(len(self.attacks))
        for number, attack in enumerate(self.attacks):
            if not self.paired and getattr(attack, "needs", "").startswith("pairs"):
                continue
            if not is_linear(attack):
                learnt = self._learn(attack)
                for fitted in found.values():
                    fitted[number] = learnt
                continue
            parts = [_maps_of_folds(attack, part, self.kinds, number in own) for part in self.moments]
            for kind, together, *by_group in zip(self.kinds, *parts, strict=True):
                found[kind][number] = together
                if by_group:
                    found[kind][count + number] = [maps for group in by_group for maps in group]
                if self.watched is not None:
                    watcher = self._watcher(attack, kind) if number in own else None
                    found[kind][2 * count + number] = [watcher] * self.folds.number
        self._known = {kind: dict(sorted(fitted.items())) for kind, fitted in found.items()}

    def anew(self, number: int, fold: int, kind: str) -> Any:
        """What maps the rows of one fold, where another process has it."""
        how, number = divmod(number, len(self.attacks))
        attack = self.attacks[number]
        if not is_linear(attack):
            return self._fit_without(attack, fold)
        if how == 2:
            return self._watcher(attack, kind)
        parts = self.moments[1:] if how else self.moments[:1]
        return [maps for part in parts for maps in _maps_of_folds(attack, part, (kind,), own=True)[0]][fold]

    def _watcher(self, attack: Any, kind: str) -> Any:
        """An attack fitted on what was watched, which all processes know."""
        with shares.alone():
            return copy.deepcopy(attack).fit_moments(self.watched, kind)

    def _moments(self, chosen: range) -> Moments:
        some = ((self.fold >= chosen.start) & (self.fold < chosen.stop)).nonzero().flatten()
        original, protected = (side.take(some) for side in self.pairs)
        return moments_of(original, protected, self.voices[some], self.fold[some] - chosen.start, len(chosen))

    def _learn(self, attack: Any) -> list[Any]:
        folds, own = range(self.folds.number), _turns(self.folds.number)
        return [self._fit_without(attack, fold) if fold in own else None for fold in folds]

    def _fit_without(self, attack: Any, fold: int) -> Any:
        """An attack fitted on the pairs of all folds but one; of those of all processes, on those it would choose."""
        some = (self.fold != fold).nonzero().flatten()
        if is_bounded(attack):  # then all others need not be copied
            original, protected = (side.take(some) for side in self.pairs)
            keys = shares.of_all(self.folds.sides.protected.keys[protected.rows])
            places = evenly(keys.argsort(stable=True), attack.most_rows)
            chosen = [shares.picked(column, places) for column in (original, protected, self.voices[some])]
        else:
            chosen = [column[some] for column in (*self.pairs, self.voices)]
        fitted = copy.deepcopy(attack)
        with shares.alone(), torch.enable_grad():  # an attacker may learn by descent
            fitted.fit(*chosen)
        return fitted


def _maps_of_folds(attack: Any, moments: Moments, kinds: Sequence[str], own: bool) -> list[list[Any]]:
    """Maps of every fold for each kind of condition; None where they are not to be found here."""
    folds = range(len(moments.within_oo))
    found = attack.fit_groups_for(moments, kinds) if own else [None] * len(kinds)
    return [[None if maps is None else maps.of(fold) for fold in folds] for maps in found]


def _turns(count: int) -> range:
    return range(count) if shares.apart() else shares.in_turns(count)


def _tiles(
    reference: Side, probe: Side, condition: Condition, within: bool
) -> Iterator[tuple[slice, slice, Tensor | None]]:
    """Blocks of rows and columns, and the kind of every pair in them as an offset; what is no trial lies beyond all.

    None where all are of two speakers, of whom neither is the next.
    """
    one, (of_rows, of_columns) = reference is probe, (_spans(side.voices) for side in (reference, probe))
    for number, (first, last) in enumerate(of_rows):
        a = slice(number * TILE, (number + 1) * TILE)
        for other, (low, high) in enumerate(of_columns):
            if one and other < number:
                continue
            b = slice(other * TILE, (other + 1) * TILE)
            rows, columns = reference.voices[a, None], probe.voices[None, b]
            same = kinds = None
            if low <= last + 1 and first <= high + 1:  # few of all, as rows are in order of voices
                same, after = rows == columns, rows + 1 == columns
                if within:  # who visits may come before those who are here, or after them
                    after = after | (rows == columns + 1)
                kinds = (torch.where(same, _OWN, torch.where(after, _NEXT, _OTHERS)) * _BINS).int()
            excluded = excluded_pairs(reference, probe, condition, a, b, same)
            if excluded is not None:
                kinds = torch.zeros_like(excluded, dtype=torch.int32) if kinds is None else kinds
                kinds.masked_fill_(excluded, _NONE * _BINS)
            yield a, b, kinds


def _spans(voices: Tensor) -> list[tuple[float, float]]:
    """The lowest and the highest voice of each tile; those of all there could be, where to look would cost time."""
    tiles = voices.split(TILE) if len(voices) else ()
    return [(rows.amin().item(), rows.amax().item()) if on_host(rows) else (-math.inf, math.inf) for rows in tiles]
