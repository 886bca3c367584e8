"""Identification where embeddings stay apart: each process looks for its own inputs, and references pass round.

Scores come in parts, so what an input's references have in common is known only after all of these have been there:
ranks and moments are found in one round, and local information, which takes standardised scores, in another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from vpmetrics._precision import result_dtype, widen
from vpmetrics._trials import shares
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.identification import Identification, deal, order_of_speakers, tell, type_of_scores
from vpmetrics._trials.ranks import counts_of_steps, no_ranks, rank_inputs, steps_of_ranks
from vpmetrics._trials.references import Tile, Trials, build_references, known_and_unknown, trials_between, walk
from vpmetrics._trials.scorers import Scoring
from vpmetrics._trials.utterances import Side, Sides


def identify_passed(
    sides: Sides, condition: Condition, scoring: Scoring, slope: float | None, informed: bool
) -> Identification:
    """What is known of the inputs of this process, by the rank histogram of all; bits only where ``informed``."""
    rounds = _Rounds(sides, condition, scoring)
    ranks = no_ranks(rounds.own)
    bits = slopes = torch.full_like(ranks[0], torch.nan)
    if informed and rounds.references > 1 and rounds.inputs > 0:
        bits, slopes = _inform(rounds, ranks, slope)
    else:
        for _, tile in rounds:
            ranks[:, tile.rows] += rank_inputs(tile)
    return tell(rounds.own, ranks, bits, slopes, _histogram(rounds, ranks))


def _histogram(rounds: _Rounds, ranks: Tensor) -> Tensor:
    """That of the ranks of all processes."""
    steps = steps_of_ranks(ranks, rounds.own.usable, rounds.references, rounds.inputs)
    steps, undefined = shares.totals(steps, (~rounds.own.finite | ranks[2].any()).long())
    return counts_of_steps(steps, rounds.inputs, undefined > 0).to(result_dtype(rounds.own.inputs))


def _inform(rounds: _Rounds, ranks: Tensor, slope: float | None) -> tuple[Tensor, Tensor]:
    """Local information and slope of each input; ranks are filled in on the way."""
    own, first = rounds.own, rounds.first(shares.place()[0])
    # Whose reference is nowhere is at whatever place there is.
    column = (own.column + first).clamp(max=rounds.references - 1)
    dealt = deal(order_of_speakers(own), column, rounds.inputs)
    # A slope that is given is fitted on nothing.
    chosen = dealt.chosen if slope is None else dealt.chosen[:, :0]
    some = ranks.new_zeros(chosen.shape, dtype=type_of_scores(own, rounds.scoring))
    moments = torch.zeros_like(ranks)
    for start, tile in rounds:
        ranks[:, tile.rows] += rank_inputs(tile)
        some[tile.rows] = _chosen_of(tile, chosen[tile.rows] - start, some[tile.rows])
        moments[:, tile.rows] = _with_scores(moments[:, tile.rows], tile)
    count, mean, squares = moments.unsqueeze(2)
    deviation = (squares / count).sqrt()
    deviation = torch.where(deviation > rounds.rounding, deviation, torch.inf)
    if slope is None:
        z, match = (((scores - mean) / deviation).to(some.dtype) for scores in (some, rounds.match))
        slopes = dealt.fit(z, match, chosen == column.unsqueeze(1), own.usable)
    else:
        slopes = torch.full_like(ranks[0], slope)
    return _bits(rounds, mean, slopes.unsqueeze(1) / deviation).squeeze(1), slopes


def _chosen_of(tile: Tile, column: Tensor, others: Tensor) -> Tensor:
    """Those scores of a tile that slopes are fitted on, in their places among others."""
    here = (column >= 0) & (column < tile.scores.shape[1])
    return torch.where(here, tile.scores.gather(1, torch.where(here, column, 0)).to(others.dtype), others)


def _with_scores(moments: Tensor, tile: Tile) -> Tensor:
    """Number, mean and squared deviations from it of scores ``(3, b)``, with those of a tile, which are overwritten.

    As Chan, Golub and LeVeque join two parts (1983): no difference of large sums.
    """
    count, mean, squares = moments
    here, number = tile.scores.mean(dim=1, keepdim=True), tile.scores.shape[1]
    deviation = torch.linalg.vector_norm(tile.scores.sub_(here), dim=1)
    both, apart = count + number, widen(here[:, 0]) - mean
    squares = squares + widen(deviation).square() + apart.square() * count * number / both
    return torch.stack([both, mean + apart * number / both, squares])


def _bits(rounds: _Rounds, mean: Tensor, slope: Tensor) -> Tensor:
    """Local information of each input ``(B, 1)``, by the slope over the deviation of its scores."""
    top, total = torch.full_like(mean, -torch.inf), torch.zeros_like(mean)
    for _, tile in rounds:
        centre, steepness, before = (of[tile.rows] for of in (mean, slope, top))
        logits = tile.scores.sub_(centre.to(tile.scores.dtype)).mul_(steepness.to(tile.scores.dtype))
        highest = torch.maximum(before, widen(logits.amax(dim=1, keepdim=True)))
        summed = widen(logits.sub_(highest.to(logits.dtype)).exp_().sum(dim=1, keepdim=True))
        total[tile.rows] = total[tile.rows] * (before - highest).exp() + summed
        top[tile.rows] = highest
    # The mean of exponentials, not their sum: equal scores then give 0 exactly.
    bits: Tensor = (slope * (rounds.match - mean) - top - (total / rounds.references).log()) / math.log(2)
    return bits


class _Rounds:
    """The scores of this process's inputs against the references of all processes, any number of times.

    An input meets its own speaker first, who is where it is, and then all that visit.
    """

    def __init__(self, sides: Sides, condition: Condition, scoring: Scoring) -> None:
        self._reference, probe = known_and_unknown(sides, condition)
        self.own, self.scoring = trials_between(self._reference, probe, condition), scoring
        self._by_session = condition.own_session != "any"
        self._speakers = shares.lengths(len(self.own.references.speakers))
        self.references, self.inputs = sum(self._speakers), sum(shares.lengths(len(self.own.inputs)))
        self.match, self.rounding = self.own.references.sums.new_zeros(2, len(self.own.inputs), 1)

    def first(self, number: int) -> int:
        """The number of the first reference of a process among those of all."""
        return sum(self._speakers[:number])

    def __iter__(self) -> Iterator[tuple[int, Tile]]:
        """Tiles, and the number of their first reference."""
        first = self.first(shares.place()[0])
        for tile in walk(self.own, self.scoring):
            self.match[tile.rows], self.rounding[tile.rows] = widen(tile.match), widen(tile.rounding)
            yield first, tile
        for first, visited in self._visited():
            for tile in walk(visited, self.scoring):
                match, rounding = (of[tile.rows].to(tile.scores.dtype) for of in (self.match, self.rounding))
                yield first, tile._replace(match=match, rounding=rounding)
            del visited  # before the next comes

    def _visited(self) -> Iterator[tuple[int, Trials]]:
        """Inputs with the references of one other process after the other; the own speaker is never among these."""
        known, (number, processes) = self._reference, shares.place()
        told = [known.sessions] if self._by_session and known.sessions is not None else []
        passing = shares.visitors([known.vectors, known.speakers, *told], processes - 1)
        for step, (vectors, speakers, *sessions) in enumerate(passing, start=1):
            visitor = Side(vectors, speakers, speakers, speakers, sessions=sessions[0] if sessions else None)
            if len(speakers):
                yield self.first((number + step) % processes), self._against(visitor)

    def _against(self, visitor: Side) -> Trials:
        """Inputs with other references, which lack what their own lack."""
        references, *_ = build_references(visitor, self._by_session)
        return self.own._replace(references=references, column=torch.zeros_like(self.own.column))
