"""Similarity of pairs of speakers, diagonal dominance, de-identification and distinctiveness."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from vpmetrics._scores.condition_scores import ConditionScores, collect_pair_scores
from vpmetrics._scores.pair_blocks import PairBlocks, RowGroup
from vpmetrics._scores.scorers import Scorer
from vpmetrics._util.dtypes import result_dtype, wide_dtype
from vpmetrics._util.validation import collect_warnings, warn_if, warn_undefined
from vpmetrics._utterances.conditions import CONDITIONS, WITHOUT_SESSIONS, Condition
from vpmetrics._utterances.utterances import EvaluationData, count_values

SIMILARITIES = ("geometric", "sigmoid")
_MOST_SPEAKERS = 2048  # of more speakers, a report keeps no matrix for its figures


class SimilarityMatrices(NamedTuple):
    """Similarities ``(S, S)`` of all pairs of speakers.

    Rows by the first letter, columns by the second.
    """

    oo: Tensor
    op: Tensor
    pp: Tensor
    speakers: Tensor


class SimilaritySummary(NamedTuple):
    """Sums over a similarity matrix, and its :func:`vpmetrics.functional.diagonal_dominance`."""

    within_speaker: Tensor  # (S,), similarity of each speaker to itself
    between_speakers: Tensor  # (S,), mean similarity to others
    dominance: Tensor  # of similarities
    dominance_log: Tensor  # of their logarithms
    # (3, S), of 1, similarities and their logarithms over the pairs with others, on either side
    pair_sums: Tensor


def compute_dominance(
    data: EvaluationData,
    condition: Condition,
    similarity: str,
    scorer: Scorer,
    bandwidth: float | None = None,
) -> Tensor:
    """Return the diagonal dominance of a condition.

    Its matrix is never held, only some of its rows at a time.
    """
    dtype = result_dtype(data.original.embeddings, data.protected.embeddings)
    if len(data.speakers) == 0:
        warn_undefined("There are no utterances.")
    enrolment, test = data.sides(condition)
    if len(enrolment) == 0 or len(test) == 0:
        return torch.full((), torch.nan, dtype=dtype, device=data.speakers.device)
    pairs = PairBlocks(
        enrolment,
        test,
        len(data.speakers),
        scorer,
        condition,
        data.processes,
        keep_digits=bandwidth is None,
    )
    scores = collect_pair_scores(pairs, bandwidth)
    summary, _ = summarise_similarity(pairs, scores, similarity, keeps_matrix=False)
    return summary.dominance.to(dtype)


def compute_matrices(
    data: EvaluationData,
    similarity: str,
    scorer: Scorer,
    bandwidth: float | None = None,
    conditions: tuple[str, ...] = WITHOUT_SESSIONS,
) -> SimilarityMatrices:
    """Return the matrices of some conditions, speakers ascending.

    NaN for others and where a side is missing.
    """
    dtype = result_dtype(data.original.embeddings, data.protected.embeddings)
    count = len(data.speakers)
    if count == 0:
        warn_undefined("There are no utterances.")
    order = data.speakers.argsort(stable=True)
    matrices: list[Tensor] = []
    for name in WITHOUT_SESSIONS:
        enrolment, test = data.sides(CONDITIONS[name])
        matrix = torch.full((count, count), torch.nan, dtype=dtype, device=data.speakers.device)
        if name in conditions and len(enrolment) and len(test):
            pairs = PairBlocks(
                enrolment,
                test,
                count,
                scorer,
                CONDITIONS[name],
                data.processes,
                keep_digits=bandwidth is None,
            )
            rows = _similarity_rows(pairs, collect_pair_scores(pairs, bandwidth), similarity)
            matrix = _join_rows(pairs, rows).to(dtype)[order][:, order]
        matrices.append(matrix)
    oo, op, pp = matrices
    return SimilarityMatrices(oo, op, pp, data.speakers[order])


def _join_rows(pairs: PairBlocks, parts: Iterable[tuple[RowGroup, Tensor]]) -> Tensor:
    """Return the matrix ``(S, S)`` of the rows of all processes, both halves of one side."""
    device = pairs.enrolment.speaker_index.device
    matrix = torch.full(
        (pairs.num_speakers,) * 2, torch.nan, dtype=wide_dtype(device), device=device
    )
    for group, means in parts:
        matrix[group.first_speaker : group.last_speaker] = means
    if pairs.processes.world_size > 1:
        # Whatever a process did not compute is -inf, and the largest of all processes is the value.
        (matrix,) = pairs.processes.all_reduce(
            torch.where(matrix.isnan(), -torch.inf, matrix), op="MAX"
        )
        matrix = torch.where(matrix == -torch.inf, torch.nan, matrix)
    if pairs.is_same_rows:
        return torch.where(matrix.isnan(), matrix.T, matrix)
    return matrix


def _similarity_rows(
    pairs: PairBlocks, scores: ConditionScores, similarity: str
) -> Iterator[tuple[RowGroup, Tensor]]:
    """Yield similarities ``(v, S)`` of the speakers of a row group with all speakers.

    NaN where there is no trial.
    """
    llr = scores.laplace_llr_of_steps()
    is_geometric = similarity == "geometric"
    value_of_step = logsigmoid(llr) if is_geometric else llr
    find = scores.make_finder([value_of_step])
    for group, means in _pair_means(pairs, lambda block_scores: find(block_scores)[0]):
        if is_geometric:
            yield group, means.exp()
        else:
            yield group, means.sigmoid()


def _pair_means(
    pairs: PairBlocks, values_of: Callable[[Tensor], Tensor]
) -> Iterator[tuple[RowGroup, Tensor]]:
    """Yield means ``(v, S)`` of a function of scores, speakers of a row group by all speakers.

    Where both sides are the same utterances, every pair of speakers appears once, in ascending
    order.
    """
    rows = pairs.enrolment.speaker_index
    columns = pairs.test.speaker_index
    dtype = wide_dtype(rows.device)
    for group in pairs.row_groups():
        num_speakers = group.last_speaker - group.first_speaker
        sums = torch.zeros(num_speakers, pairs.num_speakers, dtype=dtype, device=rows.device)
        counts = torch.zeros_like(sums)
        # Every pair of these columns is a trial, so that rows and columns need only be counted.
        speaker_of_row = rows[group.rows.start : group.rows.stop] - group.first_speaker
        num_rows = count_values(speaker_of_row, num_speakers)
        for column_range in group.other_columns:
            speaker_of_column = columns[column_range.start : column_range.stop]
            num_columns = count_values(speaker_of_column, pairs.num_speakers)
            counts += num_rows[:, None] * num_columns
        for block in pairs.blocks(group):
            speaker_of_row = rows[block.rows] - group.first_speaker
            speaker_of_column = columns[block.columns]
            scores = block.scores.clone() if pairs.is_exact else block.scores
            values = values_of(scores).to(dtype)
            if block.is_trial is not None:
                values = values.masked_fill(~block.is_trial, 0)
                is_trial = block.is_trial.to(dtype)
                _add_by_speakers(counts, is_trial, speaker_of_row, speaker_of_column)
            _add_by_speakers(sums, values, speaker_of_row, speaker_of_column)
        yield group, torch.where(counts > 0, sums / counts, torch.nan)


def _add_by_speakers(
    sums: Tensor, values: Tensor, speaker_of_row: Tensor, speaker_of_column: Tensor
) -> None:
    """Add the values ``(b, c)`` of a block to the sums ``(v, S)`` of its pairs of speakers."""
    sums_of_rows = values.new_zeros(len(sums), values.shape[1])
    sums_of_rows = sums_of_rows.index_add(0, speaker_of_row, values)
    sums.index_add_(1, speaker_of_column, sums_of_rows)


def summarise_similarity(
    pairs: PairBlocks, scores: ConditionScores, similarity: str, keeps_matrix: bool = True
) -> tuple[SimilaritySummary, Tensor | None]:
    """Return sums over the similarity matrix of one condition.

    The matrix comes with them if it has at most 2048 rows.
    """
    has_matrix = keeps_matrix and pairs.num_speakers <= _MOST_SPEAKERS
    device = pairs.test.ids.device
    sums = torch.zeros(3, 3, pairs.num_speakers, dtype=wide_dtype(device), device=device)
    rows: list[tuple[RowGroup, Tensor]] = []
    for group, means in _similarity_rows(pairs, scores, similarity):
        sums = sums + _sum_rows(means, group.first_speaker)
        if has_matrix:
            rows.append((group, means.detach()))
    (sums,) = pairs.processes.all_reduce(sums)
    summary = _summarise_sums(sums, pairs.is_same_rows)
    matrix = _join_rows(pairs, rows) if has_matrix else None
    return summary, matrix


def _sum_rows(similarities: Tensor, first_speaker: int) -> Tensor:
    """Return sums of 1, similarities and their logarithms of some rows ``(v, S)``, ``(3, 3, S)``.

    First index: 0 the diagonal, 1 row sums, 2 column sums, both without the diagonal. Row 0 is
    ``first_speaker``.
    """
    num_rows, num_speakers = similarities.shape
    terms = torch.stack([torch.ones_like(similarities), similarities, similarities.log2()])
    terms = torch.where(similarities.isnan(), 0, terms)  # (3, v, S)
    # Zeros for the speakers before and after these rows.
    margins = (first_speaker, num_speakers - first_speaker - num_rows)
    diagonal = pad(terms.diagonal(first_speaker, dim1=1, dim2=2), margins)
    row_sums = pad(terms.sum(2), margins) - diagonal
    column_sums = terms.sum(1) - diagonal
    return torch.stack([diagonal, row_sums, column_sums])


def _summarise_sums(sums: Tensor, has_unordered_pairs: bool) -> SimilaritySummary:
    """Return the summary of what :func:`_sum_rows` returns, added over all rows."""
    diagonal, row_sums, column_sums = sums
    counts, within, log_within = diagonal
    within = within / counts
    log_within = log_within / counts
    # If both sides are the same utterances, a pair appears once and counts for both of its
    # speakers.
    pair_sums = row_sums + column_sums
    sums_of_speaker = pair_sums if has_unordered_pairs else row_sums
    num_compared, similarity_to_others, _ = sums_of_speaker
    num_pairs, total, log_total = row_sums.sum(1)
    dominance = (within.nanmean() - total / num_pairs).abs()
    log_dominance = log_within.nanmean() - log_total / num_pairs
    row_means = similarity_to_others / num_compared
    return SimilaritySummary(within, row_means, dominance, log_dominance, pair_sums)


def summarise_matrix(matrix: Tensor, has_unordered_pairs: bool) -> SimilaritySummary:
    """Return sums over a matrix.

    ``has_unordered_pairs``: the matrix is symmetric, each pair counts once.
    """
    is_double = torch.ones_like(matrix, dtype=torch.bool).tril(-1) & has_unordered_pairs
    return _summarise_sums(
        _sum_rows(matrix.masked_fill(is_double, torch.nan), 0), has_unordered_pairs
    )


def diagonal_and_row_means(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the diagonal ``(S,)`` of a matrix, and the mean of each row without it."""
    without_diagonal = matrix.detach().clone().fill_diagonal_(torch.nan)
    return matrix.detach().diagonal(), without_diagonal.nanmean(1)


def deid_of_dominances(original: Tensor, protected: Tensor) -> Tensor:
    """Return DeID from the diagonal dominance of OO and that of OP."""
    return 1 - dominance_ratio(protected, original)


def gvd_of_dominances(original: Tensor, protected: Tensor) -> Tensor:
    """Return G_VD in dB from the diagonal dominance of OO and that of PP; warn where it is -inf."""
    message = (
        "Protected speech has no dominant diagonal: its voices are all alike, and G_VD is -inf."
    )
    with collect_warnings():
        gain = 10 * dominance_ratio(protected, original).log10()
        warn_if(gain.isneginf(), lambda is_so: message if is_so else None)
    return gain


def dominance_ratio(dominance: Tensor, original: Tensor) -> Tensor:
    """Return diagonal dominance relative to original speech.

    NaN and one warning if that has none.
    """
    # The means of equal similarities may differ in the last digits.
    digits = 16 * torch.finfo(original.dtype).eps
    original = torch.where(original > digits, original, torch.nan)
    ratio = torch.where(dominance <= digits, 0, dominance) / original
    reason = (
        "The matrix of original speech has no dominant diagonal: too few or too similar speakers."
    )
    warn_undefined(reason, ratio.isnan())
    return ratio
