"""Speakers dealt to folds, so that whoever attacks some has learnt from others."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._trials.utterances import Side, Sides, keys_of_means, places_in, row_keys

FEWEST_SPEAKERS = 6  # two folds of three: with fewer, a fold has no pairs that could stand for chance
_OF_FOLD = 3
_FOLDS, _MANY, MOST_FOLDS = 5, 100, 10  # of so many speakers and more, folds are large enough to be more


class Folds(NamedTuple):
    """Both sides with their rows in an order that only their values determine, and where folds begin and end.

    Voices are numbered by fold, so those of a fold lie side by side, the next of a voice being the one after it.
    """

    sides: Sides
    fold_of_voice: Tensor  # (V,)
    bounds: tuple[list[int], list[int]]  # where the rows of each fold begin, of the original and the protected side
    groups: list[range]  # the folds of each group

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
    side = sides.original if len(sides.original.voices) else sides.protected
    count = len(sides.voices)
    if count == 0 or len(side.voices) == 0:
        return None
    keys = keys_of_means(side.vectors, side.voices, count)
    group = _groups_of_voices(sides, count)
    order = keys.argsort(stable=True)
    order = order[group[order].argsort(stable=True)]
    fold_of_voice, first, kept, groups = torch.full_like(group, -1), 0, 0, []
    for size_of_group, begin in _runs(group[order]):
        if size_of_group < FEWEST_SPEAKERS:
            continue
        folds = MOST_FOLDS if size_of_group >= _MANY else min(_FOLDS, size_of_group // _OF_FOLD)
        folds = min(folds, most)
        place = torch.arange(size_of_group, device=order.device)
        fold_of_voice[order[begin : begin + size_of_group]] = first + place % folds
        groups.append(range(first, first + folds))
        first, kept = first + folds, kept + size_of_group
    if not groups:
        return None
    # Number voices by fold; those in none come last and are dropped.
    by_fold = order[torch.where(fold_of_voice < 0, first, fold_of_voice)[order].argsort(stable=True)]
    number = torch.empty_like(by_fold).scatter(0, by_fold, torch.arange(count, device=by_fold.device))
    arranged = [_arranged(each, number, kept) for each in (sides.original, sides.protected)]
    folds_of = fold_of_voice[by_fold[:kept]]
    every = torch.arange(first + 1, device=number.device)
    bounds = torch.stack([torch.searchsorted(folds_of[each.voices].contiguous(), every) for each in arranged]).tolist()
    original, protected = arranged
    named = Sides(original, protected, sides.voices[by_fold[:kept]])
    return Folds(named, folds_of, (bounds[0], bounds[1]), groups)


def _arranged(side: Side, number: Tensor, kept: int) -> Side:
    voices = number[side.voices]
    order = row_keys(side.vectors).argsort(stable=True)
    order = order[voices[order].argsort(stable=True)]
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


def is_linear(attack: Any) -> bool:
    """Whether moments are all that the attack needs to be fitted in every fold at once."""
    return hasattr(attack, "fit_groups") and hasattr(attack, "fit_moments")
