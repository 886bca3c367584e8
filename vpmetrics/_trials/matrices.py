"""Similarity of all pairs of speakers, from the scores of their trials."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from vpmetrics._checks import warn_undefined
from vpmetrics._precision import result_dtype
from vpmetrics._scores.steps import calibrate
from vpmetrics._trials.pairs import TrialGrid
from vpmetrics._trials.scorers import Scorer
from vpmetrics._trials.scores import ConditionScores, score_condition
from vpmetrics._trials.utterances import CONDITIONS, Sides

SIMILARITIES = ("geometric", "sigmoid")


class SimilarityMatrices(NamedTuple):
    """Similarities ``(S, S)`` of all pairs of speakers: rows by the first letter, columns by the second."""

    oo: Tensor
    op: Tensor
    pp: Tensor
    speakers: Tensor


def matrices_of_sides(
    sides: Sides,
    similarity: str,
    scorer: Scorer,
    bandwidth: float | None = None,
    conditions: tuple[str, ...] = CONDITIONS,
) -> SimilarityMatrices:
    """The matrices of some conditions; NaN for the others and for those a side of which is absent."""
    names = names_of(sides)
    dtype = result_dtype(sides.original.vectors, sides.protected.vectors)
    if len(names) == 0:
        warn_undefined("There are no utterances.")
    matrices: list[Tensor] = []
    for condition in CONDITIONS:
        reference, probe = sides.pair(condition)
        if condition not in conditions or not (len(reference.speakers) and len(probe.speakers)):
            matrices.append(torch.full((len(names),) * 2, torch.nan, dtype=dtype, device=names.device))
        else:
            grid = TrialGrid(reference, probe, names, scorer)
            matrices.append(similarity_of_condition(grid, score_condition(grid, bandwidth), similarity).to(dtype))
    oo, op, pp = matrices
    return SimilarityMatrices(oo, op, pp, names)


def names_of(sides: Sides) -> Tensor:
    """All speakers of either side, ascending."""
    names: Tensor = torch.unique(torch.cat([sides.original.speakers, sides.protected.speakers]))
    return names


def similarity_of_condition(grid: TrialGrid, scores: ConditionScores, similarity: str) -> Tensor:
    """The matrix of one condition, from a second pass over its tiles."""
    llr = calibrate(scores.counts.ascending, laplace=True)
    per_step = logsigmoid(llr) if similarity == "geometric" else llr
    sums, trials = grid.sums_by_speakers(lambda tile: scores.look_up(per_step, tile))
    mean = torch.where(trials > 0, sums / trials, torch.nan)
    return mean.exp() if similarity == "geometric" else mean.sigmoid()
