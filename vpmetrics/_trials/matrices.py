"""Similarity of all pairs of voices, and what it comes to, from the scores of their trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
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
from vpmetrics._trials.speakers import Evidence, SpeakerDisclosure, disclosure_of_sums
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
    return _matrix_of_means(grid, lambda: _similarities(grid, scores, similarity))


def averages_of_grid(grid: TrialGrid) -> Tensor:
    """Mean score of every pair of voices, ``(V, V)``."""
    return _matrix_of_means(grid, lambda: ((cells, _mean(cells)) for cells in grid.cells(lambda tile: [tile.scores])))


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
    grid: TrialGrid, scores: ConditionScores, similarity: str, by_speaker: bool = False
) -> tuple[Likeness, Tensor | None, SpeakerDisclosure | None]:
    """What the matrix of one condition comes to, some voices at a time; and the matrix, where they are few enough.

    Also what each speaker discloses, where that is asked for.
    """
    count, evidence = len(grid.voices), Evidence(scores) if by_speaker else None
    matrices = [_unknown(grid, count, count)] if count <= _MOST_KEPT else []
    nothing = _unknown(grid, count).zero_()

    def walk() -> tuple[Tensor, Tensor]:
        sums, strongest = nothing.expand(3, 5 if by_speaker else 3, -1).clone(), nothing.expand(2, -1).clone()
        for cells, mean in _similarities(grid, scores, similarity, evidence, strongest):
            for matrix in matrices:
                matrix[cells.rows, cells.columns] = mean
            known = ~mean.isnan()
            of_pairs = [torch.where(known, each, 0) for each in (torch.ones_like(mean), mean, mean.log2())]
            evident = [*cells.sums[1:], cells.trials] if by_speaker else []
            _add_by_voice(sums, cells, torch.stack([*of_pairs, *evident]))
        return sums, strongest

    sums, strongest = (torch.stack(parts) for parts in zip(*grid.by_threads(walk), strict=True))
    (sums,), (strongest, *matrices) = shares.totals(sums.sum(0)), shares.together(strongest.amax(0), *matrices)
    similar, evident = sums[:, :3], sums[:, 3:]
    disclosed = disclosure_of_sums(grid.voices, evident, strongest, grid.within) if by_speaker else None
    matrix = _in_order(grid, *matrices) if matrices else None
    return _likeness(grid, similar), matrix, disclosed


def _add_by_voice(sums: Tensor, cells: Cells, each: Tensor) -> None:
    """Add what pairs of voices are known by ``(K, v, w)``: of voices with themselves, of rows, and of columns."""
    if cells.near:
        own = each.diagonal(cells.row - cells.column, dim1=1, dim2=2)
        first = max(cells.row, cells.column)
        sums[0, :, first : first + own.shape[1]] += own
        own.fill_(0)
    sums[1, :, cells.rows] += each.sum(2)
    sums[2, :, cells.columns] += each.sum(1)


def _likeness(grid: TrialGrid, sums: Tensor) -> Likeness:
    """From sums of 1, of similarities and of their logarithms: of voices with themselves, of rows, and of columns."""
    (known, own, log_own), of_rows, of_columns = sums[..., grid.voices.argsort(stable=True)]
    own, log_own = own / known, log_own / known
    # Within one side, pairs are met in one order, and count for both of their voices.
    met = of_rows + of_columns
    compared, alike, _ = met if grid.within else of_rows
    others = alike / compared
    number, alike, log_alike = of_rows.sum(1)
    dominance = (own.nanmean() - alike / number).abs(), log_own.nanmean() - log_alike / number
    return Likeness(own, others, *dominance, met)


def _similarities(
    grid: TrialGrid,
    scores: ConditionScores,
    similarity: str,
    evidence: Evidence | None = None,
    strongest: Tensor | None = None,
) -> Iterator[tuple[Cells, Tensor]]:
    """Similarities of some pairs of voices, and what their trials add up to: their evidence, where that is asked for.

    ``strongest`` is filled in on the way.
    """
    llr = scores.llr_of_both_orders()
    tables = [logsigmoid(llr) if similarity == "geometric" else llr, *(evidence.tables if evidence else ())]
    find = cache(lambda number: scores.look_up(tables[:number]))

    def values_of(part: TrialGrid, tile: Tile) -> list[Tensor]:
        if evidence is None or strongest is None:
            return find(1)(tile.scores)
        evidence.strengthen(part, tile, strongest)
        if tile.same_speaker is None:
            return find(2)(tile.scores)
        value, of_nontarget, of_target = find(3)(tile.scores)
        return [value, torch.where(tile.same_speaker, of_target, of_nontarget)]

    for part in grid.parts():
        for cells in part.cells(partial(values_of, part)):
            mean = _mean(cells)
            yield cells, mean.exp() if similarity == "geometric" else mean.sigmoid()


def _mean(cells: Cells) -> Tensor:
    """Means of the first of what was added up; NaN where two voices have no trial."""
    return torch.where(cells.trials > 0, cells.sums[0] / cells.trials, torch.nan)


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
