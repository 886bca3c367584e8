"""Speakers dealt to folds, so that whoever attacks some has learnt from others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._trials import shares
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.utterances import Side, Sides, keys_of_means, places_in

FEWEST_SPEAKERS = 6  # two folds of three: with fewer, a fold has no pairs that could stand for chance
_OF_FOLD = 3
_FOLDS, _MANY, MOST_FOLDS = 5, 100, 10  # of so many speakers and more, folds are large enough to be more
_FEW_ROWS = 512  # of a fold, on average


class Folds(NamedTuple):
    """Both sides with their rows in an order that only their values determine, and where folds begin and end.

    Voices are numbered by fold, so those of a fold lie side by side, the next of a voice being the one after it. Where
    processes keep their rows apart, voices are those of all of them, and rows those of one.
    """

    sides: Sides
    fold_of_voice: Tensor  # (V,)
    bounds: tuple[list[int], list[int]]  # where the rows of each fold begin, of the original and the protected side
    groups: list[range]  # the folds of each group
    few: bool  # whether folds have so few rows that it costs nothing to compare them in all digits

    @property
    def number(self) -> int:
        """How many folds there are."""
        return len(self.bounds[0]) - 1

    def fewest(self, most: int = MOST_FOLDS) -> int:
        """How many speakers every fold would have at least, were there at most so many folds of each group."""
        counts: list[int] = torch.bincount(self.fold_of_voice).tolist()
        return min(sum(counts[fold] for fold in folds) // min(len(folds), most) for folds in self.groups)

    def rows(self, fold: int) -> tuple[slice, slice]:
        """Rows of the original and of the protected side."""
        first, second = (slice(bounds[fold], bounds[fold + 1]) for bounds in self.bounds)
        return first, second

    def cut(self, side: Side) -> Iterator[Side]:
        """The rows of each fold, of some that are in order of voices."""
        every = torch.arange(1, self.number, device=side.voices.device)
        first_voice = torch.searchsorted(self.fold_of_voice, every)
        ends = [0, *torch.searchsorted(side.voices, first_voice).tolist(), len(side.voices)]
        return (side.take(slice(*both)) for both in pairwise(ends))

    def pair(self, condition: Condition, enrolment: str | None, fold: int | None = None) -> tuple[Side, Side]:
        """References and probes of a condition in order of voices, of all folds or of one."""
        both = (self.sides if fold is None else self.part(fold)).pair(condition, enrolment)
        if enrolment is None:
            return both
        first, second = (side.take(side.voices.argsort(stable=True)) for side in both)  # means are in that of speakers
        return first, second

    def part(self, fold: int) -> Sides:
        """The utterances of a fold."""
        first, second = self.rows(fold)
        return self.sides._replace(
            original=self.sides.original.take(first), protected=self.sides.protected.take(second)
        )


def deal_speakers(sides: Sides, most: int = MOST_FOLDS) -> Folds | None:
    """Folds of speakers, within each group; None where there are too few speakers anywhere.

    They depend on the embeddings alone: neither on numbers of speakers, nor on rows, batches or processes. There
    are at most so many of each group.
    """
    originals, others = (shares.number_of_all(len(side.voices)) for side in (sides.original, sides.protected))
    side, own = (sides.original if originals else sides.protected), len(sides.voices)
    keys = shares.of_all(keys_of_means(side.vectors, side.voices, own, side.by_value))
    group = shares.of_all(_groups_of_voices(sides, own))
    order = keys.argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    fold_of_voice, groups = _folds_of(group, order, most)
    if not (groups and originals + others):
        return None
    # Number voices by fold; those in none come last and are dropped.
    by_fold = order[fold_of_voice[order].argsort(stable=True)]
    number = torch.empty_like(by_fold).scatter(0, by_fold, torch.arange(len(by_fold), device=by_fold.device))
    folds_of = fold_of_voice[by_fold]
    folds_of = folds_of[folds_of < groups[-1].stop]
    first, every = shares.first(own), torch.arange(groups[-1].stop + 1, device=number.device)
    arranged = [_arranged(each, number[first:][:own], len(folds_of)) for each in (sides.original, sides.protected)]
    bounds = torch.stack([torch.searchsorted(folds_of[each.voices].contiguous(), every) for each in arranged]).tolist()
    original, protected = arranged
    named = Sides(original, protected, shares.of_all(sides.voices)[by_fold[: len(folds_of)]])
    few = max(originals, others) <= _FEW_ROWS * groups[-1].stop
    return Folds(named, folds_of, (bounds[0], bounds[1]), groups, few)


def _folds_of(group: Tensor, order: Tensor, most: int) -> tuple[Tensor, list[range]]:
    """The fold of each voice, one beyond all for those in none, and the folds of each group; voices in order by group.

    Voices are dealt in turns.
    """
    fold, first, groups = torch.full_like(group, -1), 0, list[range]()
    for size, begin in _runs(group[order]):
        if size < FEWEST_SPEAKERS:
            continue
        folds = min(most, MOST_FOLDS if size >= _MANY else min(_FOLDS, size // _OF_FOLD))
        fold[order[begin : begin + size]] = first + torch.arange(size, device=order.device) % folds
        groups.append(range(first, first + folds))
        first += folds
    return torch.where(fold < 0, first, fold), groups


def _arranged(side: Side, number: Tensor, kept: int) -> Side:
    voices = number[side.voices]
    order = side.ordered_by(voices)
    order = order[voices[order] < kept]
    return side.take(order)._replace(voices=voices[order])


def _groups_of_voices(sides: Sides, count: int) -> Tensor:
    group = torch.zeros(count, dtype=torch.int64, device=sides.voices.device)
    for side in (sides.original, sides.protected):
        if side.groups is not None:
            group = group.scatter(0, side.voices, side.groups)
    return group


def _runs(ordered: Tensor) -> list[tuple[int, int]]:
    """Length and start of every run of equal values."""
    counts = torch.unique_consecutive(ordered, return_counts=True)[1].tolist()
    return list(zip(counts, accumulate(counts, initial=0), strict=False))


def pairs_of(sides: Sides) -> tuple[Tensor, Tensor]:
    """Rows of both sides that are one recording: of the original side, and of the protected one."""
    place = places_in(sides.original.utterances, sides.protected.utterances)
    found = (place >= 0).nonzero().flatten()
    return place[found], found


def is_bounded(attack: Any) -> bool:
    """Whether the attack says how many rows it learns from at most."""
    return getattr(attack, "most_rows", None) is not None


def is_linear(attack: Any) -> bool:
    """Whether moments are all that the attack needs to be fitted in every fold at once."""
    return hasattr(attack, "fit_groups_for") and hasattr(attack, "fit_moments")
