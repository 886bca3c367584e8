"""Rows to compare on both sides of a condition.

Every pair of an enrolment and a test row that is a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import Utterances

# last bits dropped, so that equal scores stay equal
_ROUNDED_BITS = {torch.float64: 12, torch.float32: 4}


def inner_products(enrolment_rows: Tensor, test_rows: Tensor) -> Tensor:
    """Return the inner products of rows, ``(..., A, B)``."""
    return enrolment_rows @ test_rows.mT


@dataclass(frozen=True, eq=False)
class TrialRows:
    """Rows ``(A, E)`` and ``(B, E)`` whose comparison is the score of a trial, with their labels.

    ``enrolment`` and ``test`` hold the labels, sorted by ``speaker_index``. ``average(members,
    members)`` returns rows of conversations ``(K, C, E)`` and ``(K, B, E)`` for members ``(K, C,
    L)`` and ``(K, B, L)`` of both sides: those of the attacker, and those of the attacker whom
    permuted speakers taught, where these differ.
    """

    enrolment: Utterances
    test: Utterances
    enrolment_rows: Tensor
    test_rows: Tensor
    condition: Condition
    average: Callable[[Tensor, Tensor], Sequence[tuple[Tensor, Tensor]]]
    compare: Callable[[Tensor, Tensor], Tensor] = inner_products

    @property
    def has_same_rows(self) -> bool:
        """Whether both sides are the same utterances, so that a trial is an unordered pair."""
        return self.condition.is_same_side and torch.equal(self.enrolment.ids, self.test.ids)


def make_plain_rows(pairs: PairBlocks) -> TrialRows:
    """Return the rows of plain comparison, those of the pairs."""
    scorer = pairs.scorer
    enrolment_rows = pairs.enrolment.embeddings.detach()
    test_rows = enrolment_rows
    if not pairs.is_same_rows:
        test_rows = pairs.test.embeddings.detach()

    def average_side(rows: Tensor, members: Tensor) -> Tensor:
        means = rows[members].mean(dim=2)
        return scorer.prepare(means.flatten(0, 1)).view(means.shape)

    def average(enrolment_members: Tensor, test_members: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        return [
            (average_side(enrolment_rows, enrolment_members), average_side(test_rows, test_members))
        ]

    def compare(first: Tensor, second: Tensor) -> Tensor:
        if scorer.is_builtin or first.dim() == 2:
            return scorer.compare(first, second)
        return torch.stack([scorer.compare(*pair) for pair in zip(first, second, strict=True)])

    return TrialRows(
        pairs.enrolment,
        pairs.test,
        enrolment_rows,
        test_rows,
        pairs.condition,
        average,
        compare,
    )


def round_scores(scores: Tensor) -> Tensor:
    """Return scores without their last bits.

    Scores that are equal in exact arithmetic then compare as equal.
    """
    if scores.numel():
        largest = scores.detach().abs().nan_to_num(0, 0, 0).amax()
    else:
        largest = scores.new_zeros(())
    unit = torch.finfo(scores.dtype).eps * 2 ** _ROUNDED_BITS[scores.dtype]
    exponent = torch.frexp(torch.where(largest > 0, largest, 1)).exponent
    step = torch.ldexp(torch.full_like(largest, unit), exponent)
    return (scores / step).round_().mul_(step)
