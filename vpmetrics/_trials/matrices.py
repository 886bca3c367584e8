"""Similarity of all pairs of voices, and what it comes to, from the scores of their trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from vpmetrics._checks import warn_undefined
from vpmetrics._precision import result_dtype, wide_dtype
from vpmetrics._trials import shares
from vpmetrics._trials.conditions import ALWAYS, CONDITIONS
from vpmetrics._trials.pairs import Cells, Tile, TrialGrid
from vpmetrics._trials.scorers import Scorer
from vpmetrics._trials.scores import ConditionScores, score_condition
from vpmetrics._trials.speakers import SpeakerTally
from vpmetrics._trials.utterances import Sides

SIMILARITIES = ("geometric", "sigmoid")
_MOST_KEPT = 2048  # voices whose matrix a report keeps for its figures


class SimilarityMatrices(NamedTuple):
    """Similarities ``(S, S)`` of all pairs of speakers: rows by the first letter, columns by the second."""

    oo: Tensor
    op: Tensor
    pp: Tensor
    speakers: Tensor


class Likeness(NamedTuple):
    """What a similarity matrix comes to, without the matrix.

    ``own`` and ``others`` ``(V,)``, by ascending speaker: how alike each voice is to itself, and on average to the
    others it is compared with. ``dominance`` and ``dominance_log``: see
    :func:`vpmetrics.functional.diagonal_dominance`, of similarities and of their logarithms. ``met`` ``(3, V)``: sums
    of 1, of similarities and of their logarithms over the pairs with another voice that each voice is in, on either
    side.
    """

    own: Tensor
    others: Tensor
    dominance: Tensor
    dominance_log: Tensor
    met: Tensor


def matrices_of_sides(
    sides: Sides,
    similarity: str,
    scorer: Scorer,
    bandwidth: float | None = None,
    conditions: tuple[str, ...] = ALWAYS,
) -> SimilarityMatrices:
    """The matrices of some conditions; NaN for the others and for those a side of which is absent."""
    dtype = result_dtype(sides.original.vectors, sides.protected.vectors)
    count = len(sides.voices)
    if count == 0:
        warn_undefined("There are no utterances.")
    matrices: list[Tensor] = []
    for name in ALWAYS:
        reference, probe = sides.pair(CONDITIONS[name])
        if name not in conditions or not (len(reference.speakers) and len(probe.speakers)):
            matrices.append(torch.full((count, count), torch.nan, dtype=dtype, device=sides.voices.device))
        else:
            grid = TrialGrid(reference, probe, sides.voices, scorer, CONDITIONS[name], digits=bandwidth is None)
            matrix = matrix_of_condition(grid, score_condition(grid, bandwidth), similarity)
            matrices.append(matrix.to(dtype))
    oo, op, pp = matrices
    return SimilarityMatrices(oo, op, pp, sides.voices.sort().values)


def matrix_of_condition(grid: TrialGrid, scores: ConditionScores, similarity: str) -> Tensor:
    """The matrix of one condition ``(V, V)``, from a second pass over its tiles."""
    return _matrix_of_means(grid, partial(_similarities, grid, scores, similarity))


def averages_of_grid(grid: TrialGrid) -> Tensor:
    """Mean score of every pair of voices, ``(V, V)``."""
    return _matrix_of_means(grid, partial(_means, grid, lambda tile: tile.scores))


def _matrix_of_means(grid: TrialGrid, means: Callable[[], Iterator[tuple[Cells, Tensor]]]) -> Tensor:
    matrix = _unknown(grid, len(grid.voices), len(grid.voices))

    def fill() -> None:
        for cells, mean in means():
            matrix[cells.rows, cells.columns] = mean

    grid.by_threads(fill)
    return _in_order(grid, *shares.together(matrix))


def _unknown(grid: TrialGrid, *shape: int) -> Tensor:
    device = grid.voices.device
    return torch.full(shape, torch.nan, dtype=wide_dtype(device), device=device)


def _in_order(grid: TrialGrid, matrix: Tensor) -> Tensor:
    """Both halves of a matrix, by ascending speaker: voices are ordered by group first."""
    matrix = torch.where(matrix.isnan(), matrix.T, matrix) if grid.within else matrix
    order = grid.voices.argsort(stable=True)
    return matrix[order][:, order]


def likeness_of_condition(
    grid: TrialGrid, scores: ConditionScores, similarity: str, tally: SpeakerTally | None = None
) -> tuple[Likeness, Tensor | None]:
    """What the matrix of one condition comes to, some voices at a time; and the matrix, where they are few enough.

    A ``tally`` of what each speaker discloses is filled in on the way.
    """
    count = len(grid.voices)
    own, matrices = _unknown(grid, count), [_unknown(grid, count, count)] if count <= _MOST_KEPT else []

    def walk() -> Tensor:
        sums = own.new_zeros(2, 3, count)
        for cells, mean in _similarities(grid, scores, similarity, tally):
            for matrix in matrices:
                matrix[cells.rows, cells.columns] = mean
            if cells.near:
                apart = cells.row - cells.column
                own[max(cells.row, cells.column) :][: len(mean.diagonal(apart))] = mean.diagonal(apart)
            _add_others(sums, cells, mean, both=grid.within)
        return sums

    sums = torch.stack(grid.by_threads(walk)).sum(0)
    (own, *matrices), (others, met) = shares.together(own, *matrices), shares.total(sums)
    number, alike, log_alike = others.sum(1)
    log_own = own.log2()
    dominance = (own.nanmean() - alike / number).abs(), log_own.nanmean() - log_alike / number
    order = grid.voices.argsort(stable=True)
    likeness = Likeness(own[order], (others[1] / others[0])[order], *dominance, met[:, order])
    return likeness, _in_order(grid, *matrices) if matrices else None


def _add_others(sums: Tensor, cells: Cells, mean: Tensor, both: bool) -> None:
    """Count other voices, and add up similarities with them and their logarithms: to those of rows, and of all met.

    ``both``: pairs are met in one order, and count for both of their voices.
    """
    known = ~mean.isnan()
    if cells.near:
        known.diagonal(cells.row - cells.column).fill_(False)
    each = torch.stack([torch.where(known, x, 0) for x in (torch.ones_like(mean), mean, mean.log2())])
    sums[:, :, cells.rows] += each.sum(2)
    sums[0 if both else 1 :, :, cells.columns] += each.sum(1)


def _similarities(
    grid: TrialGrid, scores: ConditionScores, similarity: str, tally: SpeakerTally | None = None
) -> Iterator[tuple[Cells, Tensor]]:
    llr = scores.llr_of_both_orders()
    per_step = logsigmoid(llr) if similarity == "geometric" else llr
    find = scores.look_up([per_step])
    for part in grid.parts():
        value_of = (lambda tile: find(tile.scores)[0]) if tally is None else tally.look_up(part, per_step)
        for cells, mean in _means(part, value_of):
            yield cells, mean.exp() if similarity == "geometric" else mean.sigmoid()


def _means(grid: TrialGrid, value_of: Callable[[Tile], Tensor]) -> Iterator[tuple[Cells, Tensor]]:
    """Means of the trials of some pairs of voices, some at a time; NaN where two voices have no trial."""
    for cells in grid.cells(value_of):
        yield cells, torch.where(cells.trials > 0, cells.sums / cells.trials, torch.nan)


def ratio_to_original(dominance: Tensor, original: Tensor) -> Tensor:
    """Diagonal dominance relative to that of original speech; NaN and one warning where there is none."""
    # Equal similarities average to equal numbers but for the last digits.
    digits = 16 * torch.finfo(original.dtype).eps
    original = torch.where(original > digits, original, torch.nan)
    ratio = torch.where(dominance <= digits, 0, dominance) / original
    undefined = "The original voices have no diagonal to compare with: too few or too similar speakers."
    warn_undefined(undefined, ratio.isnan())
    return ratio


def own_and_others(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The diagonal ``(S,)`` of a matrix, and the mean of each row without it, as far as it is known."""
    others = matrix.detach().clone().fill_diagonal_(torch.nan)
    return matrix.detach().diagonal(), others.nanmean(1)


def likeness_of_matrix(matrix: Tensor, within: bool) -> Likeness:
    """What a matrix comes to; ``within`` one side a pair of voices is met once, and stands in it in both orders."""
    own, others = own_and_others(matrix)
    apart = ~torch.eye(len(matrix), dtype=torch.bool, device=matrix.device) & ~matrix.isnan()
    apart = apart.triu() if within else apart
    each = torch.where(apart, torch.stack([torch.ones_like(matrix), matrix, matrix.log2()]), 0)
    met = each.sum(2) + each.sum(1)
    number, alike, log_alike = met.sum(1)
    dominance = (own.nanmean() - alike / number).abs(), own.log2().nanmean() - log_alike / number
    return Likeness(own, others, *dominance, met)
