"""The only loop over pairs of utterances.

Blocks of scores with their labels, each one matrix product.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vpmetrics._scores.scorers import FEW_PAIRS, Scorer, prepare_rows, widest_affordable_dtype
from vpmetrics._util.distributed import SINGLE_PROCESS, Processes
from vpmetrics._util.dtypes import widen
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import Utterances, count_values

# rows and columns: large enough for a fast product, small enough for a core's cache
BLOCK_SIZE = 512
_GPU_BLOCK_SIZE = 8192  # a GPU is as fast with larger blocks, and launches fewer operations
_ROUNDED_BITS = {
    torch.float64: 12,
    torch.float32: 4,
}  # last bits dropped, so that mathematically equal scores are equal


class Block(NamedTuple):
    """Scores ``(A, B)`` of some enrolment rows against some test rows.

    ``is_target`` and ``is_trial`` ``(A, B)`` are None away from the diagonal, where all pairs are
    non-target trials.
    """

    rows: slice
    columns: slice
    scores: Tensor
    is_target: Tensor | None = None
    is_trial: Tensor | None = None


class RowGroup(NamedTuple):
    """Adjacent speakers whose enrolment rows are compared together.

    With the columns that they are compared with.
    """

    first_speaker: int
    last_speaker: int  # exclusive
    rows: range
    same_columns: range  # test rows of the same speakers
    # test rows of other speakers of their group; every pair is compared once
    other_columns: tuple[range, ...]


class PairBlocks:
    """All trials of a condition.

    Between two sides every pair of different recordings is a trial; within one side every unordered
    pair counts once. Pairs of two groups are no trials, nor are pairs of one speaker from sessions
    that the condition leaves out. Both sides are sorted by speaker, so only blocks near the
    diagonal hold targets and need masks.

    Args:
        enrolment: Enrolment side.
        test: Test side; the same object where every utterance is on both.
        num_speakers: How many speakers ``speaker_index`` counts.
        scorer: How embeddings are compared.
        condition: Which pairs of one speaker are trials.
        processes: Processes that share the blocks, if these are many.
        block_size: Rows and columns of a block.
        keep_digits: Whether scores of few pairs are computed in float64 and rounded, so that those
            that are mathematically equal compare as equal.
    """

    def __init__(
        self,
        enrolment: Utterances,
        test: Utterances,
        num_speakers: int,
        scorer: Scorer,
        condition: Condition,
        processes: Processes = SINGLE_PROCESS,
        block_size: int | None = None,
        keep_digits: bool = True,
    ) -> None:
        num_pairs = len(enrolment) * len(test)
        self.scorer = scorer
        self.condition = condition
        self.num_speakers = num_speakers
        self.is_exact = keep_digits and num_pairs <= FEW_PAIRS
        if num_pairs <= FEW_PAIRS:
            self.processes = SINGLE_PROCESS
        else:
            self.processes = processes
        is_on_cpu = enrolment.embeddings.device.type == "cpu"
        self.block_size = block_size or (BLOCK_SIZE if is_on_cpu else _GPU_BLOCK_SIZE)
        dtype = widest_affordable_dtype(scorer, enrolment.embeddings, num_pairs, self.is_exact)
        centre = enrolment.embeddings.new_zeros(())
        if scorer.is_shift_invariant and len(enrolment):
            centre = widen(enrolment.embeddings).mean(dim=0)
        self.enrolment = _sort_and_prepare(enrolment, scorer, centre, dtype)
        is_same_rows = enrolment is test
        self.test = self.enrolment
        if not is_same_rows:
            self.test = _sort_and_prepare(test, scorer, centre, dtype)
        self._dot_product_epsilon: Tensor | None = None
        self._read_ends_and_groups(is_same_rows)

    def _read_ends_and_groups(self, is_same_rows: bool) -> None:
        """Copy from the device where each speaker's rows end and what group they are in.

        Drop the kept blocks.
        """
        self.is_same_rows = is_same_rows
        self._kept_blocks: list[Block] = []
        sides = (self.enrolment, self.test)
        counts = torch.stack(
            [count_values(side.speaker_index, self.num_speakers) for side in sides]
        )
        group = torch.zeros_like(counts[0])
        for side in sides:
            if side.groups is not None:
                group = group.scatter(0, side.speaker_index, side.groups)
        # Speakers of a group are adjacent: numbers from 0, and for a speaker without rows that of
        # the one before.
        speakers = torch.arange(self.num_speakers, device=group.device)
        has_rows = counts.sum(dim=0) > 0
        group = group[torch.where(has_rows, speakers, 0).cummax(0).values]
        is_next = torch.zeros_like(group)
        is_next[1:] = group.diff() != 0
        self._row_ends, self._column_ends, self._groups = torch.stack(
            [*counts.cumsum(dim=1), is_next.cumsum(dim=0)]
        ).tolist()

    @property
    def num_pairs(self) -> int:
        """How many pairs are compared; all but a few are trials."""
        rows = len(self.enrolment)
        columns = len(self.test)
        if self.is_same_rows:
            return rows * (rows - 1) // 2
        return rows * columns

    def __iter__(self) -> Iterator[Block]:
        """Yield the blocks of this process."""
        if self._kept_blocks:
            yield from self._kept_blocks
            return
        for group in self.row_groups():
            yield from self.blocks(group)

    def round_and_keep_blocks(self) -> list[Block]:
        """Return all blocks and keep them, rounded.

        Mathematically equal scores are then equal.
        """
        if self._kept_blocks:
            return self._kept_blocks
        blocks = list(self)
        largest_of_blocks = [self.enrolment.embeddings.new_zeros(())]
        for block in blocks:
            if block.scores.numel():
                largest_of_blocks.append(block.scores.abs().nan_to_num(0, 0, 0).amax())
        largest = torch.stack(largest_of_blocks).amax()
        # A power of two well above the rounding of a matrix product, whose order of sums depends on
        # the block.
        unit = torch.finfo(largest.dtype).eps * 2 ** _ROUNDED_BITS[largest.dtype]
        exponent = torch.frexp(largest.masked_fill(largest == 0, 1)).exponent
        self._dot_product_epsilon = torch.ldexp(torch.full_like(largest, unit), exponent)
        for block in blocks:
            self._kept_blocks.append(block._replace(scores=self._round_scores(block.scores)))
        return self._kept_blocks

    def _round_scores(self, scores: Tensor) -> Tensor:
        unit = self._dot_product_epsilon
        if unit is None:
            return scores
        return (scores / unit).round_().mul_(unit)

    def row_groups(self) -> Sequence[RowGroup]:
        """Return the groups of whole speakers that this process works on.

        A group has about as many rows as a block.
        """
        row_groups: list[RowGroup] = []
        # Entry i: where the rows, or columns, of speaker i begin.
        first_row = [0, *self._row_ends]
        first_column = [0, *self._column_ends]
        speaker = 0
        while speaker < self.num_speakers:
            partition = self._groups[speaker]
            start_of_partition = bisect_left(self._groups, partition)
            end_of_partition = bisect_right(self._groups, partition)
            # One speaker at least, and none of another partition.
            stop_speaker = bisect_right(self._row_ends, first_row[speaker] + self.block_size)
            stop_speaker = min(max(stop_speaker, speaker + 1), end_of_partition)
            rows = range(first_row[speaker], first_row[stop_speaker])
            if rows:
                columns_before = range(first_column[start_of_partition], first_column[speaker])
                same_columns = range(first_column[speaker], first_column[stop_speaker])
                columns_after = range(first_column[stop_speaker], first_column[end_of_partition])
                other_columns: tuple[range, ...] = (columns_before, columns_after)
                if self.is_same_rows:
                    other_columns = (columns_after,)
                row_groups.append(
                    RowGroup(speaker, stop_speaker, rows, same_columns, other_columns)
                )
            speaker = stop_speaker
        return self.processes.share(row_groups)

    def blocks(self, group: RowGroup, has_targets: bool = False) -> Iterator[Block]:
        """Yield the blocks of one group of rows; with ``has_targets`` those near the diagonal."""
        if self._kept_blocks:
            for block in self._kept_blocks:
                is_wanted = block.is_target is not None or not has_targets
                if block.rows.start in group.rows and is_wanted:
                    yield block
            return
        for rows in self._cut_range(group.rows):
            for columns in self._cut_range(group.same_columns):
                if self.is_same_rows and columns.stop <= rows.start:
                    continue  # every pair is compared once
                is_target, is_trial = mark_group_trials(
                    self.enrolment, self.test, self.condition, self.is_same_rows, rows, columns
                )
                yield Block(rows, columns, self.compare(rows, columns), is_target, is_trial)
            if has_targets:
                continue
            for column_range in group.other_columns:
                for columns in self._cut_range(column_range):
                    yield Block(rows, columns, self.compare(rows, columns))

    def _cut_range(self, rows: range) -> Iterator[slice]:
        for start in range(rows.start, rows.stop, self.block_size):
            yield slice(start, min(start + self.block_size, rows.stop))

    def compare(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor:
        """Return the scores of some enrolment rows against some test rows."""
        enrolment_rows = self.enrolment.embeddings[rows]
        test_rows = self.test.embeddings[columns]
        with torch.autocast(enrolment_rows.device.type, enabled=False):
            return self._round_scores(self.scorer.compare(enrolment_rows, test_rows))

    def scores_and_labels(self, blocks: Sequence[Block] | None = None) -> tuple[Tensor, Tensor]:
        """Return scores and labels of the trials of some blocks, flat.

        Without blocks, of all trials of this process.
        """
        empty = self.enrolment.embeddings.new_empty(0)
        scores = [empty]
        labels = [empty.bool()]
        for block in self if blocks is None else blocks:
            if block.is_target is None or block.is_trial is None:
                scores.append(block.scores.flatten())
                labels.append(torch.zeros_like(scores[-1], dtype=torch.bool))
            else:
                scores.append(block.scores[block.is_trial])
                labels.append(block.is_target[block.is_trial])
        return torch.cat(scores), torch.cat(labels)

    def nontarget_and_target_scores(self) -> tuple[Tensor, Tensor]:
        """Return scores of the non-target and of the target trials of this process, ``(P,)`` each.

        Faster than to divide the scores by the labels of :meth:`scores_and_labels`: most blocks
        hold non-targets alone.
        """
        empty = self.enrolment.embeddings.new_empty(0)
        nontarget_scores = [empty]
        target_scores = [empty]
        for block in self:
            if block.is_target is None or block.is_trial is None:  # a block of non-targets alone
                nontarget_scores.append(block.scores.flatten())
            else:
                nontarget_scores.append(block.scores[~block.is_target & block.is_trial])
                target_scores.append(block.scores[block.is_target & block.is_trial])
        return torch.cat(nontarget_scores), torch.cat(target_scores)

    def target_scores(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield scores and speaker indices ``(P,)`` of target trials, block by block.

        They are those of all processes.
        """
        speaker_index = self.enrolment.speaker_index
        for block in self._target_blocks():
            if block.is_target is not None and block.is_trial is not None:
                is_target = block.is_target & block.is_trial
                yield (
                    block.scores[is_target],
                    speaker_index[block.rows].repeat_interleave(is_target.sum(1)),
                )

    def count_targets(self) -> Tensor:
        """Return the number of target trials of each speaker, of all processes, ``(S,)``."""
        speaker_index = self.enrolment.speaker_index
        counts = torch.zeros(self.num_speakers, dtype=torch.int64, device=speaker_index.device)
        for block in self._target_blocks():
            if block.is_target is not None and block.is_trial is not None:
                counts.index_add_(
                    0, speaker_index[block.rows], (block.is_target & block.is_trial).sum(1)
                )
        return counts

    def _target_blocks(self) -> Iterator[Block]:
        pairs = self.repeat_on_every_process()
        for group in pairs.row_groups():
            yield from pairs.blocks(group, has_targets=True)

    def trial_speakers(self, blocks: Sequence[Block] | None = None) -> Tensor:
        """Return the speaker index of both sides of trials, ``(2, P)``.

        In the order of :meth:`scores_and_labels`.
        """
        speakers_of_blocks = [self.enrolment.speaker_index.new_empty(2, 0)]
        for block in self if blocks is None else blocks:
            row_speaker = self.enrolment.speaker_index[block.rows]
            column_speaker = self.test.speaker_index[block.columns]
            speakers = torch.stack(torch.meshgrid(row_speaker, column_speaker, indexing="ij"))
            if block.is_trial is None:
                speakers_of_blocks.append(speakers.flatten(1))
            else:
                speakers_of_blocks.append(speakers[:, block.is_trial])
        return torch.cat(speakers_of_blocks, dim=1)

    def sample_scores(self, rows_per_side: int = 1024) -> Tensor:
        """Return the score matrix of pairs of neighbours from each side.

        Neighbours are often of one speaker, so that it holds some targets.
        """
        rows_of_sides: list[Tensor] = []
        for side in (self.enrolment, self.test):
            rows = torch.arange(len(side), device=side.speaker_index.device)
            if len(side) > rows_per_side:
                num_pairs = rows_per_side // 2
                first_of_pair = rows[:num_pairs] * (len(side) - 1) // num_pairs
                rows = torch.stack([first_of_pair, first_of_pair + 1], dim=1).flatten()
            rows_of_sides.append(rows)
        return self.compare(*rows_of_sides)

    def repeat_on_every_process(self) -> PairBlocks:
        """Return the same pairs, of which every process works through all blocks, not its share.

        For few blocks.
        """
        pairs = copy(self)
        pairs.processes = SINGLE_PROCESS
        return pairs

    def thin(self, max_pairs: int, side: Literal["test", "enrolment"] = "test") -> PairBlocks:
        """Return the pairs with fewer rows on one side, evenly spaced, if they are many."""
        stride = -(-len(self.enrolment) * len(self.test) // max_pairs)
        if stride < 2:
            return self
        every_nth = slice(None, None, stride)
        if side == "test":
            return self._replace_sides(self.enrolment, self.test.take(every_nth))
        return self._replace_sides(self.enrolment.take(every_nth), self.test)

    def _replace_sides(self, enrolment: Utterances, test: Utterances) -> PairBlocks:
        pairs = copy(self)
        pairs.enrolment = enrolment
        pairs.test = test
        pairs._read_ends_and_groups(is_same_rows=False)
        return pairs


def mark_group_trials(
    a: Utterances,
    b: Utterances,
    condition: Condition,
    is_same_rows: bool,
    rows: slice = slice(None),
    columns: slice = slice(None),
) -> tuple[Tensor, Tensor]:
    """Return which pairs ``(A, B)`` of one group are target pairs, and which are trials.

    Pairs are of enrolment and test rows.
    """
    is_target = a.speaker_index[rows, None] == b.speaker_index[None, columns]
    if is_same_rows:
        row_index = torch.arange(len(a), device=is_target.device)
        is_trial = row_index[rows, None] < row_index[None, columns]
    else:
        is_trial = torch.ones_like(is_target)
    if not is_same_rows or a.sessions is not None:
        is_trial = is_trial & ~(is_target & (a.ids[rows, None] == b.ids[None, columns]))
    if condition.target_sessions != "any" and a.sessions is not None and b.sessions is not None:
        is_left_out = a.sessions[rows, None] == b.sessions[None, columns]
        if condition.target_sessions == "same":
            is_left_out = ~is_left_out
        is_trial = is_trial & ~(is_target & is_left_out)
    return is_target, is_trial


def _sort_and_prepare(
    side: Utterances, scorer: Scorer, centre: Tensor, dtype: torch.dtype
) -> Utterances:
    """Return a side sorted by speaker, with its rows as they are compared."""
    side = side.take(side.speaker_index.argsort(stable=True))
    return replace(side, embeddings=prepare_rows(side.embeddings, scorer, centre, dtype))
