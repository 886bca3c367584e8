"""Ranks where embeddings stay apart: each process ranks its own inputs, and references pass from one to the next."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vpmetrics._precision import result_dtype
from vpmetrics._trials import shares
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.ranks import counts_of_steps, no_ranks, rank_inputs, steps_of_ranks
from vpmetrics._trials.references import Trials, form_trials, trials_of_sides, walk
from vpmetrics._trials.scorers import Scoring
from vpmetrics._trials.utterances import Side, Sides


def histogram_of_passed(sides: Sides, condition: Condition, scoring: Scoring) -> tuple[Tensor, int]:
    """The rank histogram of all processes, and of how many inputs it is.

    An input is compared with its own speaker first, who is where it is, and then with all that visit.
    """
    own = trials_of_sides(sides, condition)
    ranks, match, rounding = no_ranks(own), *own.references.sums.new_zeros(2, len(own.inputs), 1)
    undefined = ~own.finite
    for tile in walk(own, scoring):
        ranks[:, tile.rows] = rank_inputs(tile)
        match[tile.rows], rounding[tile.rows] = tile.match.to(match.dtype), tile.rounding.to(match.dtype)
    for visited in _visited(own, *sides.pair(condition)):
        undefined = undefined | ~visited.finite
        for tile in walk(visited, scoring):
            known = (of[tile.rows].to(tile.scores.dtype) for of in (match, rounding))
            ranks[:, tile.rows] += rank_inputs(tile._replace(**dict(zip(("match", "rounding"), known, strict=True))))
    references, inputs = (sum(shares.lengths(len(part))) for part in (own.references.speakers, own.inputs))
    steps = steps_of_ranks(ranks, own.usable, references, inputs)
    steps, undefined, used = shares.totals(steps, (undefined | ranks[2].any()).long(), own.usable.sum())
    return counts_of_steps(steps, inputs, undefined > 0).to(result_dtype(own.inputs)), int(used)


def _visited(own: Trials, reference: Side, probe: Side) -> Iterator[Trials]:
    """Inputs with the references of one other process after the other; the own speaker is never among these."""
    sizes, (number, processes) = shares.lengths(len(reference.speakers)), shares.place()
    for step in range(1, processes):
        length = sizes[(number + step) % processes]
        vectors, speakers = shares.passed_on([reference.vectors, reference.speakers], length)
        reference = Side(vectors, speakers, torch.full_like(speakers, -1), speakers)
        there = form_trials(reference, probe, torch.full_like(probe.speakers, -1))
        if length:  # inputs leave out of each reference what they leave out of their own
            yield own._replace(references=there.references, column=there.column, finite=there.finite)
