"""The fused attacker on one fold.

Rows whose inner products are fused scores, also of conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, overload

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import EvaluationData, Utterances, renumber_speakers
from vpmetrics.attacks.moments import divide_by_norm

_FEW_ROWS_PER_MEMBER = 32


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Rows of some attacks, and what their scores weigh in the fused one.

    Rows of each side are ``(..., A, R, d)``.

    ``weight``, ``mean``, ``deviation`` ``(A,)``: weight of the standardised score; mean and
    deviation of the scores. ``chance_weight`` ``(A,)``: the weight with speakers permuted.
    """

    enrolment: Tensor
    test: Tensor
    weight: Tensor
    mean: Tensor
    deviation: Tensor
    is_cosine: bool = True
    chance_weight: Tensor | None = None

    def average(self, enrolment_members: Tensor, test_members: Tensor) -> WeightedRows:
        """Return the rows of conversations, standardised again, see :meth:`FoldRows.average`."""
        enrolment = _average_rows(self.enrolment, enrolment_members, self.is_cosine)
        test = _average_rows(self.test, test_members, self.is_cosine)
        scores = enrolment @ test.mT  # (K, A, C, B)
        mean = scores.mean((0, 2, 3))
        deviation = scores.std((0, 2, 3), correction=0)
        return replace(self, enrolment=enrolment, test=test, mean=mean, deviation=deviation)

    def join(self, is_permuted: bool = False) -> tuple[Tensor, Tensor]:
        """Return enrolment and test rows whose inner product is the weighted sum of scores.

        Rows are ``(..., R, E)``, scores are standardised.

        With ``is_permuted`` weights are those that were fitted with speakers permuted.
        """
        weight = self.weight
        if is_permuted and self.chance_weight is not None:
            weight = self.chance_weight
        scale = torch.where(self.deviation > 0, weight / self.deviation.clamp(min=1e-30), 0)
        offset = -(scale * self.mean).sum()
        enrolment = (self.enrolment * scale[:, None, None]).transpose(-3, -2).flatten(-2)
        test = self.test.transpose(-3, -2).flatten(-2)
        enrolment = torch.cat([enrolment, offset.expand(*enrolment.shape[:-1], 1)], dim=-1)
        return enrolment, pad(test, (0, 1), value=1.0)


def _average_rows(rows: Tensor, members: Tensor, is_cosine: bool) -> Tensor:
    """Return the mean of the member rows, ``(K, A, C, d)``.

    Rows are ``(A, R, d)``, members ``(K, C, L)``.
    """
    num_draws, num_conversations, length = members.shape
    # one product is faster than gathering all members
    if rows.shape[1] <= _FEW_ROWS_PER_MEMBER * length:
        share = rows.new_zeros(num_draws * num_conversations, rows.shape[1])
        share.scatter_add_(
            1, members.flatten(0, 1), share.new_full((), 1 / length).expand(len(share), length)
        )
        means = (share @ rows).unflatten(1, (num_draws, num_conversations)).movedim(0, 1)
    else:
        means = rows[:, members].mean(-2).movedim(0, 1)
    return divide_by_norm(means) if is_cosine else means


@dataclass(frozen=True, eq=False)
class FoldRows:
    """One fold of speakers (of one partition) after the fused attack.

    ``enrolment``, ``test``: the utterances of the fold, sorted by speaker, in the order of the
    rows.
    """

    enrolment: Utterances
    test: Utterances
    rows_of_attacks: Sequence[WeightedRows]

    @property
    def enrolment_rows(self) -> Tensor:
        """Return enrolment rows ``(A, E)`` for the fused score.

        The inner product with a test row is the fused score of the trial, higher = more alike.
        """
        return torch.cat([weighted.join()[0] for weighted in self.rows_of_attacks], dim=-1)

    @property
    def test_rows(self) -> Tensor:
        """Rows ``(B, E)``."""
        return torch.cat([weighted.join()[1] for weighted in self.rows_of_attacks], dim=-1)

    def join(self, is_permuted: bool = False) -> tuple[Tensor, Tensor]:
        """Return the rows of both sides.

        ``is_permuted``: whether they have the weights of permuted speakers.
        """
        sides = [weighted.join(is_permuted) for weighted in self.rows_of_attacks]
        enrolment_rows = torch.cat([enrolment for enrolment, _ in sides], dim=-1)
        test_rows = torch.cat([test for _, test in sides], dim=-1)
        return enrolment_rows, test_rows

    def average(self, enrolment_members: Tensor, test_members: Tensor) -> FoldRows:
        """Return rows of conversations, several draws of them at once.

        Of each attack the unit rows of a conversation are averaged, and the means have unit length
        again. The scores of each attack are standardised over all pairs of conversations of the
        same draw, pooled over draws.

        Args:
            enrolment_members: ``(K, C, L)``, the enrolment rows in each of ``C`` conversations of
                ``K`` draws.
            test_members: ``(K, B, L')``, the same for test rows.

        Returns:
            The same utterances, with ``enrolment_rows`` ``(K, C, E)`` and ``test_rows`` ``(K, B,
            E)``.
        """
        averages = []
        for weighted in self.rows_of_attacks:
            averages.append(weighted.average(enrolment_members, test_members))
        return replace(self, rows_of_attacks=averages)


class FoldRowsOfCondition(Sequence[FoldRows]):
    """The rows of all folds; those of a few folds at a time are in memory."""

    def __init__(self, count: int, make: Callable[[int], FoldRows]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> FoldRows: ...

    @overload
    def __getitem__(self, index: slice) -> list[FoldRows]: ...

    def __getitem__(self, index: int | slice) -> FoldRows | list[FoldRows]:
        """Return the rows of a fold."""
        if isinstance(index, slice):
            return [self._make(fold) for fold in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"Expected one of {self._count} folds, but got {index}.")
        return self._make(index % self._count)

    def __iter__(self) -> Iterator[FoldRows]:
        for fold in range(self._count):
            yield self._make(fold)


class FusedFold(NamedTuple):
    """Utterances of a fold whose embeddings are fused rows, and how two rows are compared."""

    data: EvaluationData
    score: Callable[[Tensor, Tensor], Tensor]


def make_fused_fold(
    enrolment: Utterances, test: Utterances, rows: tuple[Tensor, Tensor], condition: Condition
) -> FusedFold:
    """Return the fold with enrolment rows in the first half of the columns.

    Test rows are in the second half.
    """
    enrolment_rows, test_rows = rows
    width = enrolment_rows.shape[1]

    def score(tests: Tensor, references: Tensor) -> Tensor:
        return tests[:, width:] @ references[:, :width].mT

    if condition.is_same_side and len(enrolment) == len(test):
        protected = replace(test, embeddings=torch.cat([enrolment_rows, test_rows], dim=1))
        original = protected.take(slice(0, 0))
    else:
        original = replace(enrolment, embeddings=pad(enrolment_rows, (0, width)))
        protected = replace(test, embeddings=pad(test_rows, (width, 0)))
    return FusedFold(renumber_speakers(original, protected), score)
