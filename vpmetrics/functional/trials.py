"""Trials of embeddings: the scores and labels that any score metric takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from vpmetrics._scores.pair_blocks import PairBlocks, mark_group_trials
from vpmetrics._scores.scorers import Scoring, resolve_scoring
from vpmetrics._util.dtypes import result_dtype
from vpmetrics._util.validation import check_choice, check_whole_number, collect_warnings
from vpmetrics._utterances.conditions import look_up_condition
from vpmetrics._utterances.utterances import deduplicate_and_index, pack_utterances

_ROWS_AT_ONCE = 1024  # of the score matrix, where all trials are returned


class TrialBlocks(Sequence[tuple[Tensor, Tensor]]):
    """Blocks of trials, each one scored when it is asked for.

    ``blocks[i]``, ``blocks[rank::world_size]``, or a loop.

    A block holds the trials of some enrolment rows against all test rows: scores and labels
    ``(P,)``. The blocks do not depend on the order of the utterances.
    """

    def __init__(self, pairs: PairBlocks, row_ranges: Sequence[range], dtype: torch.dtype) -> None:
        self._pairs = pairs
        self._row_ranges = row_ranges
        self._dtype = dtype

    def __len__(self) -> int:
        return len(self._row_ranges)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in self._row_ranges:
            yield self._score_rows(rows)

    @overload
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]: ...

    @overload
    def __getitem__(self, index: slice) -> TrialBlocks: ...

    def __getitem__(self, index: int | slice) -> tuple[Tensor, Tensor] | TrialBlocks:
        if isinstance(index, slice):
            return TrialBlocks(self._pairs, self._row_ranges[index], self._dtype)
        return self._score_rows(self._row_ranges[index])

    def _score_rows(self, row_range: range) -> tuple[Tensor, Tensor]:
        """Return the scores and the labels of the trials of some enrolment rows."""
        pairs = self._pairs
        rows = slice(row_range.start, row_range.stop)
        columns = slice(0, len(pairs.test))
        is_target, is_trial = mark_group_trials(
            pairs.enrolment, pairs.test, pairs.condition, pairs.is_same_rows, rows, columns
        )
        if pairs.enrolment.groups is not None and pairs.test.groups is not None:
            is_trial = is_trial & (pairs.enrolment.groups[rows, None] == pairs.test.groups[None])
        scores = pairs.compare(rows, columns)
        return scores[is_trial].to(self._dtype), is_target[is_trial].long()


@overload
def trials(
    original: Tensor | None,
    protected: Tensor | None,
    speakers: Tensor,
    condition: str = "OP",
    block_rows: None = None,
    *,
    is_reference: Tensor | None = None,
    utterances: Tensor | None = None,
    sessions: Tensor | None = None,
    groups: Tensor | None = None,
    enrolment: Literal["utterance", "speaker"] | None = None,
    scoring: Scoring = "cosine",
    validate_args: bool = True,
) -> tuple[Tensor, Tensor]: ...


@overload
def trials(
    original: Tensor | None,
    protected: Tensor | None,
    speakers: Tensor,
    condition: str = "OP",
    block_rows: int = ...,
    *,
    is_reference: Tensor | None = None,
    utterances: Tensor | None = None,
    sessions: Tensor | None = None,
    groups: Tensor | None = None,
    enrolment: Literal["utterance", "speaker"] | None = None,
    scoring: Scoring = "cosine",
    validate_args: bool = True,
) -> TrialBlocks: ...


def trials(
    original: Tensor | None,
    protected: Tensor | None,
    speakers: Tensor,
    condition: str = "OP",
    block_rows: int | None = None,
    *,
    is_reference: Tensor | None = None,
    utterances: Tensor | None = None,
    sessions: Tensor | None = None,
    groups: Tensor | None = None,
    enrolment: Literal["utterance", "speaker"] | None = None,
    scoring: Scoring = "cosine",
    validate_args: bool = True,
) -> tuple[Tensor, Tensor] | TrialBlocks:
    """Score the trials of a condition, for any metric with ``update(preds, target)``.

    Such metrics are those of torchmetrics, too.

    Between two sides every pair of different recordings is a trial; within one side every unordered
    pair counts once. Scores carry a gradient where the embeddings do.

    Args:
        original: Embeddings ``(N, D)`` of the original speech, or None.
        protected: Embeddings ``(N, D)`` of the protected speech, row i that of row i of
            ``original``, or None.
        speakers: Speaker of each row, ``(N,)``.
        condition: ``"OO"``, ``"OP"`` or ``"PP"``: the enrolment side and the test side; with
            ``sessions`` also ``"within"`` and ``"across"``.
        block_rows: None returns all trials. A number returns an iterable of blocks, each of as many
            enrolment utterances against all tests: memory then grows with the utterances, not with
            their pairs.
        is_reference: Which rows are enrolled, ``(N,)``, for ``enrolment``.
        utterances: Recording of each row, ``(N,)``; copies of one count once.
        sessions: Session of each row, ``(N,)``.
        groups: Group of each row, ``(N,)``; pairs of two groups are no trials.
        enrolment: None takes every utterance for enrolment and test. ``"utterance"`` compares tests
            with each of the references, ``"speaker"`` with their mean per speaker.
        scoring: ``"cosine"``, ``"dot"``, ``"euclidean"``, or a callable from embeddings ``(A, D)``
            and ``(B, D)`` to scores ``(A, B)``, higher = more alike.
        validate_args: Whether NaN and infinite embeddings raise; forces a GPU sync.

    Returns:
        Scores ``(P,)`` and labels ``(P,)``, 1 = same speaker; with ``block_rows`` an iterable of
        such pairs, which has a length and may be sliced, so that processes share the work:
            ``blocks[rank::world_size]``.

    Example:
        >>> from vpmetrics import EqualErrorRate
        >>> original = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> protected, speakers = 1 - original, torch.tensor([3, 3, 8, 8])
        >>> EqualErrorRate()(*trials(original, protected, speakers))
        tensor(0.5000)
        >>> metric = EqualErrorRate(thresholds=100, score_range=(-1, 1))
        >>> for scores, target in trials(original, protected, speakers, block_rows=2):
        ...     metric.update(scores, target)
        >>> metric.compute()
        tensor(0.5000)
    """
    chosen = look_up_condition(condition)
    check_choice("enrolment", enrolment, (None, "utterance", "speaker"))
    if block_rows is not None:
        check_whole_number("block_rows", block_rows, least=1)
    if enrolment is not None and is_reference is None:
        raise ValueError(f"Expected `is_reference` with enrolment={enrolment!r}, but got None.")
    columns = pack_utterances(
        original,
        protected,
        speakers,
        is_reference,
        utterances,
        sessions,
        groups,
        validate_values=validate_args,
    )
    with collect_warnings():
        data = deduplicate_and_index(columns)
        enrolment_side, test_side = data.sides(chosen, enrolment)
    has_graph = torch.is_grad_enabled() and (
        columns.original.requires_grad or columns.protected.requires_grad
    )
    pairs = PairBlocks(
        enrolment_side,
        test_side,
        len(data.speakers),
        resolve_scoring(scoring),
        chosen,
        keep_digits=not has_graph,
    )
    if pairs.is_exact:
        pairs.round_and_keep_blocks()
    step = _ROWS_AT_ONCE if block_rows is None else block_rows
    num_rows = len(pairs.enrolment)
    row_ranges = [range(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]
    dtype = result_dtype(columns.original, columns.protected)
    blocks = TrialBlocks(pairs, row_ranges, dtype)
    if block_rows is not None:
        return blocks
    if len(blocks) == 0:
        no_scores = columns.original.new_zeros(0, dtype=dtype)
        return no_scores, no_scores.long()
    scores_of_blocks = []
    labels_of_blocks = []
    for scores, labels in blocks:
        scores_of_blocks.append(scores)
        labels_of_blocks.append(labels)
    return torch.cat(scores_of_blocks), torch.cat(labels_of_blocks)
