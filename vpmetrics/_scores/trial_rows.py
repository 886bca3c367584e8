"""Rows on both sides of a condition, and which pairs of them are trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.scorers import Scorer
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import Utterances

# last bits dropped, so that equal scores stay equal
_ROUNDED_BITS = {torch.float64: 12, torch.float32: 4}


def inner_products(enrolment_rows: Tensor, test_rows: Tensor) -> Tensor:
    """Return the inner products of rows, ``(..., A, B)``."""
    return enrolment_rows @ test_rows.mT


@dataclass(frozen=True, eq=False)
class TrialRows:
    """Rows of both sides of a condition, whose comparison is the score of a trial.

    ``enrolment`` and ``test``: the utterances with their labels, sorted by ``speaker_index``.
    ``enrolment_rows`` ``(A, E)`` and ``test_rows`` ``(B, E)``: what is compared of them.

    ``average``: a function from K draws of conversations to their rows. Its arguments are the
    indices of the L utterances of each conversation, ``(K, C, L)`` into the enrolment rows and
    ``(K, D, L)`` into the test rows. It returns pairs of ``(K, C, E)`` and ``(K, D, E)``: one of
    the attacker and, where these differ, one of the attacker whom permuted speakers taught.

    ``compare``: a function from rows ``(..., A, E)`` and ``(..., B, E)`` to scores ``(..., A, B)``.
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

    def take(self, enrolment_index: Tensor, test_index: Tensor) -> TrialRows:
        """Return some of the rows of each side, by index."""

        def average(
            enrolment_members: Tensor, test_members: Tensor
        ) -> Sequence[tuple[Tensor, Tensor]]:
            return self.average(enrolment_index[enrolment_members], test_index[test_members])

        return replace(
            self,
            enrolment=self.enrolment.take(enrolment_index),
            test=self.test.take(test_index),
            enrolment_rows=self.enrolment_rows[enrolment_index],
            test_rows=self.test_rows[test_index],
            average=average,
        )


def make_plain_rows(pairs: PairBlocks) -> TrialRows:
    """Return the rows of plain comparison: embeddings as they are compared without any attack."""
    scorer = pairs.scorer
    enrolment_rows = pairs.enrolment.embeddings.detach()
    test_rows = enrolment_rows
    if not pairs.is_same_rows:
        test_rows = pairs.test.embeddings.detach()

    def average(enrolment_members: Tensor, test_members: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        enrolment_means = _average_rows(enrolment_rows, enrolment_members, scorer)
        test_means = _average_rows(test_rows, test_members, scorer)
        # One pair: nothing was taught, so permuted speakers give the same rows.
        return [(enrolment_means, test_means)]

    def compare(first_rows: Tensor, second_rows: Tensor) -> Tensor:
        has_draws = first_rows.dim() > 2
        if scorer.is_builtin or not has_draws:
            return scorer.compare(first_rows, second_rows)
        # A function of the caller compares two matrices, so it takes one draw after the other.
        scores_of_draws: list[Tensor] = []
        for first_matrix, second_matrix in zip(first_rows, second_rows, strict=True):
            scores_of_draws.append(scorer.compare(first_matrix, second_matrix))
        return torch.stack(scores_of_draws)

    return TrialRows(
        enrolment=pairs.enrolment,
        test=pairs.test,
        enrolment_rows=enrolment_rows,
        test_rows=test_rows,
        condition=pairs.condition,
        average=average,
        compare=compare,
    )


def _average_rows(rows: Tensor, members: Tensor, scorer: Scorer) -> Tensor:
    """Return mean rows ``(K, C, E)``, ready for comparison; ``members`` ``(K, C, L)`` of them."""
    means = rows[members].mean(dim=2)
    return scorer.prepare(means.flatten(0, 1)).view(means.shape)


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
