"""Predicates that fire on exactly one conversation of a set: scored in tiles, sets drawn as blocks of a shuffle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import warn_undefined
from vpmetrics._precision import result_dtype, widen
from vpmetrics._trials.references import slices, tile_rows
from vpmetrics._trials.scorers import Scorer, Scoring, prepared, resolve_scoring
from vpmetrics._trials.utterances import row_keys


class Crowd(NamedTuple):
    """Who is looked for, and the conversations they are looked for in.

    In every fold one conversation of each speaker is tested and others, up to C, calibrate. A speaker who has fewer has
    some of them twice in the table, of which ``counts`` says how many to take.
    """

    predicates: Tensor  # (R, D), references, each of which says: this is the one
    own: Tensor  # (R,), whose each is, as a row of ``counts``
    conversations: Tensor  # (K, D)
    tested: Tensor  # (F, S), rows of conversations
    calibration: Tensor  # (F, S, C), rows of conversations
    counts: Tensor  # (S,)


class Isolation(NamedTuple):
    """Share of predicates that single out one conversation, and the standard error that drawing sets leaves."""

    rate: Tensor  # (sizes,)
    error: Tensor  # (sizes,)


def gather_crowd(
    references: Tensor,
    reference_speakers: Tensor,
    conversations: Tensor,
    speakers: Tensor,
    places: Tensor,
    most: int,
    folds: int | None = None,
) -> Crowd:
    """The crowd of all speakers with two conversations at least, in the order of their ``places`` ``(K,)``.

    In fold f a speaker's conversation f is tested, and f + 1, f + 2 and so on calibrate, round and round, ``most`` of
    them. There are as many folds as conversations, unless it is said how many.
    """
    order = places.argsort(stable=True)
    order = order[speakers[order].argsort(stable=True)]
    names, counts = torch.unique_consecutive(speakers[order], return_counts=True)
    first = counts.cumsum(0) - counts
    # Neither the numbers of the speakers nor the order of the rows may show in who is drawn together.
    by_value = row_keys(conversations[order[first]]).argsort(stable=True)
    by_value = by_value[counts[by_value] > 1]
    names, counts, first = names[by_value], counts[by_value], first[by_value]
    largest = int(counts.amax()) if len(counts) else 1
    turns = torch.arange(min(largest, most + 1) if folds is None else folds, device=order.device)
    steps = turns.view(-1, 1, 1) + torch.arange(min(largest, most + 1), device=order.device)
    table = order[first.unsqueeze(1) + steps % counts.unsqueeze(1)]
    known, own = _find(names, reference_speakers)
    return Crowd(references[known], own, conversations, table[..., 0], table[..., 1:], (counts - 1).clamp(max=most))


def _find(names: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the wanted are among the names, and where."""
    ordered, order = names.sort()
    place = torch.searchsorted(ordered, wanted.contiguous()).clamp(max=max(0, len(names) - 1))
    known = ordered[place] == wanted if len(names) else torch.zeros_like(wanted, dtype=torch.bool)
    return known, order[place[known]]


def isolation_rates(crowd: Crowd, sizes: Sequence[int], scoring: Scoring, draws: int) -> dict[str, Tensor]:
    """The values of :func:`isolate` by name, NaN where they are undefined."""
    people, dtype = len(crowd.counts), result_dtype(crowd.predicates)
    possible = [size for size in sizes if size <= people and len(crowd.predicates)]
    unknown = widen(crowd.predicates.new_full((), torch.nan))
    values: dict[int, Sequence[Tensor]] = dict.fromkeys(sizes, (unknown, unknown))
    if len(possible) < len(values):
        known = f"{people}, and references of {len(crowd.predicates)} of them"
        warn_undefined(
            f"Singling one out of {max(sizes)} people needs as many with two conversations; there are {known}."
        )
    elif not bool(crowd.predicates.isfinite().all() & crowd.conversations.isfinite().all()):
        warn_undefined("Some embeddings are NaN.")
        possible = []
    if possible:
        found = isolate(crowd, possible, scoring, draws)
        values |= {size: pair for size, *pair in zip(possible, found.rate, found.error, strict=True)}
    named = {f"singling_out_{size}": value for size, (value, _) in values.items()}
    named |= {f"singling_out_{size}_error": error for size, (_, error) in values.items()}
    return {name: value.to(dtype) for name, value in named.items()}


def isolate(crowd: Crowd, sizes: Sequence[int], scoring: Scoring, draws: int) -> Isolation:
    """How often a predicate fires exactly once in a set of N speakers, its own and N - 1 others.

    The sets of a size are the blocks of N speakers in a shuffle. A block that lacks a predicate's own speaker takes it
    in for its last member, which makes it a random set with that speaker. All sizes share the scores of a shuffle.
    """
    folds, speakers = crowd.tested.shape
    blocks = [min(speakers // size, draws) for size in sizes]
    # With everybody in the set there is nothing to draw: folds are all that differs.
    shuffles = [min(folds, draws) if n == speakers else -(-draws // b) for n, b in zip(sizes, blocks, strict=True)]
    shares: list[list[Tensor]] = [[] for _ in sizes]
    for shuffle in range(max(shuffles)):
        wanted = [number for number, count in enumerate(shuffles) if shuffle < count]
        sets = [(sizes[number], blocks[number]) for number in wanted]
        for number, share in zip(wanted, _isolated(crowd, shuffle, sets, resolve_scoring(scoring)), strict=True):
            shares[number].append(share)
    every = [torch.cat(of_size) for of_size in shares]
    errors = [
        share.std() / math.sqrt(len(share)) if size < speakers else share.new_zeros(())
        for size, share in zip(sizes, every, strict=True)
    ]
    return Isolation(torch.stack([share.mean() for share in every]), torch.stack(errors))


def _isolated(crowd: Crowd, shuffle: int, sets: list[tuple[int, int]], scorer: Scorer) -> list[Tensor]:
    """Share of predicates that fire exactly once in each block of a shuffle, ``(blocks,)`` for every size."""
    folds, speakers = crowd.tested.shape
    device, fold = crowd.own.device, shuffle % folds
    # Drawn on the host, since every kind of device has numbers of its own.
    order = torch.randperm(speakers, generator=torch.Generator().manual_seed(shuffle), device="cpu").to(device)
    place = order.argsort()[crowd.own]
    counts, missing = crowd.counts[crowd.own], _missing(crowd, order)
    dtype, centre = result_dtype(crowd.predicates), widen(crowd.conversations[:1]).sum(dim=0)
    tested, calibration = (
        prepared(crowd.conversations[rows[fold, order].flatten()], scorer, centre, dtype)
        for rows in (crowd.tested, crowd.calibration)
    )
    hits = [torch.zeros(blocks, dtype=torch.int64, device=device) for _, blocks in sets]
    for rows in slices(len(place), tile_rows(tested, len(tested) + len(calibration))):
        predicates = prepared(crowd.predicates[rows], scorer, centre, dtype)
        with torch.autocast(device.type, enabled=False):
            scores, levels = scorer.compare(predicates, tested), scorer.compare(predicates, calibration)
            rounding = scorer.rounding(predicates, tested, scores, scores[:, :1])
        levels = levels.unflatten(1, missing.shape).masked_fill_(missing, -torch.inf)
        tile = _Tile(scores, levels, place[rows].unsqueeze(1), counts[rows], rounding)
        for hit, (size, blocks) in zip(hits, sets, strict=True):
            hit += tile.isolated(size, blocks).sum(dim=0)
    return [widen(hit) / len(place) for hit in hits]


def _missing(crowd: Crowd, order: Tensor) -> Tensor:
    """Which entries of the calibration table are there for the second time, ``(S, C)``."""
    return torch.arange(crowd.calibration.shape[2], device=order.device) >= crowd.counts[order].unsqueeze(1)


class _Tile(NamedTuple):
    """Scores of a few predicates with the conversations of all speakers, in the order of a shuffle."""

    tested: Tensor  # (b, S)
    calibration: Tensor  # (b, S, C), -inf where there is none
    place: Tensor  # (b, 1), of the predicate's own speaker
    counts: Tensor  # (b,), of that speaker's calibration conversations
    rounding: Tensor  # (b, 1), differences up to this are no differences

    def isolated(self, size: int, blocks: int) -> Tensor:
        """Whether each predicate fires on exactly one conversation of each block, ``(b, blocks)``."""
        own = self.place // size == torch.arange(blocks, device=self.place.device)
        tested, last_tested = self._sets(self.tested.unsqueeze(2), own, size)
        levels, last_levels = self._sets(self.calibration, own, size)
        threshold = self._threshold(levels, last_levels) + self.rounding.unsqueeze(2)
        # A mask of the scores' own type: comparing and summing it runs many times as fast as with booleans.
        fires = torch.gt(tested, threshold, out=torch.empty_like(tested)).sum(dim=2)
        return fires + (last_tested > threshold).sum(dim=2) == 1

    def _sets(self, scores: Tensor, own: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Scores of all members but the last, ``(b, blocks, (N - 1) C)``, and of the last, ``(b, blocks, C)``.

        In a block that lacks the own speaker, that one is the last.
        """
        columns = scores.shape[2]
        sets = scores[:, : size * own.shape[1]].flatten(1).unflatten(1, (own.shape[1], size * columns))
        of_own = scores.take_along_dim(self.place.unsqueeze(2), dim=1)
        return sets[..., :-columns], torch.where(own.unsqueeze(2), sets[..., -columns:], of_own)

    def _threshold(self, levels: Tensor, last: Tensor) -> Tensor:
        """Midway between the M-th highest level and the next, M that of the own speaker's, ``(b, blocks, 1)``."""
        count = self.calibration.shape[2] + 1
        others = levels.topk(min(count, levels.shape[2]), dim=2).values
        highest = torch.cat([others, last], dim=2).topk(count, dim=2).values
        own = self.counts.view(-1, 1, 1).expand(-1, levels.shape[1], 1)
        return (highest.gather(2, own - 1) + highest.gather(2, own)) / 2
