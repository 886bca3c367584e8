"""Which scores there are and how often: in order, each for itself, or as values with counts."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from vpmetrics._precision import widen
from vpmetrics._scores.host import on_host, select

CHUNK = 1 << 20  # scores worked on at a time: about what the caches hold


class Ordered(NamedTuple):
    """Scores of both classes, ascending; NaN last. Non-targets in pieces, for counts add up and nothing is merged.

    What is counted is then found by looking for a few places, not by sending every score to one.
    """

    targets: Tensor
    nontargets: list[Tensor]

    def table(self) -> tuple[Tensor, Tensor]:
        """All scores, and which are of non-targets and of targets ``(2, P)``."""
        is_target = torch.arange(sum(self.numbers()), device=self.targets.device) < len(self.targets)
        return torch.cat([self.targets, *self.nontargets]), torch.stack([~is_target, is_target])

    def numbers(self) -> list[int]:
        """Of non-targets and of targets."""
        return [sum(map(len, self.nontargets)), len(self.targets)]

    @property
    def sizes(self) -> Tensor:
        """The same, ``(2,)``."""
        return torch.stack([self.targets.new_full((), number, dtype=torch.int64) for number in self.numbers()])

    def cllr_sums(self) -> tuple[Tensor, Tensor]:
        """Costs in nats of the scores taken as log-likelihood ratios, and numbers of trials: non-targets, targets."""
        costs = [softplus(widen(part)).sum() for piece in self.nontargets for part in piece.split(CHUNK)]
        return torch.stack([torch.stack(costs).sum(), softplus(-widen(self.targets)).sum()]), self.sizes

    def between(self, edges: Tensor) -> Tensor:
        """Non-targets and targets in each of the bins that edges part, ``(2, E + 1)``."""
        nontargets = torch.stack([torch.searchsorted(piece, edges) for piece in self.nontargets]).sum(0)
        below = nontargets, torch.searchsorted(self.targets, edges)
        ends = zip(below, self.numbers(), strict=True)
        return torch.stack([pad(pad(each, (1, 0)), (0, 1), value=number).diff() for each, number in ends])

    def span(self) -> tuple[Tensor, Tensor]:
        """The lowest score and the highest; NaN where one is NaN, infinite where there is none."""
        parts = [part for part in (self.targets, *self.nontargets) if len(part)]
        low, high = ([part[end] for part in parts] for end in (0, -1))
        none = self.targets.new_full((), torch.inf)
        return torch.stack([none, *low]).amin(), torch.stack([-none, *high]).amax()


class Counted(NamedTuple):
    """Values, and how often each occurs among non-targets and targets: ``(V,)`` and ``(2, V)``."""

    values: Tensor
    counts: Tensor

    def table(self) -> tuple[Tensor, Tensor]:
        """Values and counts."""
        return self.values, self.counts

    def numbers(self) -> list[float]:
        """Of non-targets and of targets."""
        found: list[float] = self.sizes.tolist()
        return found

    @property
    def sizes(self) -> Tensor:
        """The same, ``(2,)``."""
        return self.counts.sum(-1)

    def cllr_sums(self) -> tuple[Tensor, Tensor]:
        """As those of :class:`Ordered`."""
        # Only the side asked for: the other may be infinite, where the cost itself is 0.
        cost = softplus(torch.stack([self.values, -self.values]))
        return torch.where(self.counts > 0, self.counts * cost, 0).sum(-1), self.sizes

    def between(self, edges: Tensor) -> Tensor:
        """As those of :class:`Ordered`."""
        slots = torch.bucketize(self.values, edges, right=True)
        return widen(self.counts).new_zeros(2, len(edges) + 1).index_add(-1, slots, widen(self.counts))

    def span(self) -> tuple[Tensor, Tensor]:
        """As that of :class:`Ordered`."""
        seen, ends = (self.counts > 0).any(0), (self.values, -self.values)
        low, high = (pad(torch.where(seen, end, torch.inf), (0, 1), value=torch.inf).amin() for end in ends)
        return low, -high


def order_scores(scores: Tensor, is_target: Tensor) -> Ordered:
    """Trials ``(P,)`` in order."""
    return order_parts([(select(scores, is_target), select(scores, ~is_target))])


def order_parts(parts: Iterable[tuple[Tensor, Tensor]]) -> Ordered:
    """Targets and non-targets in order, given in parts, at least one; a single one is overwritten."""
    targets, nontargets = zip(*parts, strict=True)
    threads, others = torch.get_num_threads(), nontargets[0] if len(nontargets) == 1 else torch.cat(nontargets)
    # The fewer the pieces, the fewer places there are to look for a score in.
    pieces = others.split(max(CHUNK, -(-len(others) // threads)))
    if len(pieces) == 1:
        return Ordered(_put_in_order(torch.cat(targets)), [_put_in_order(others)])
    # NumPy lets go of the interpreter while it sorts, so that pieces are sorted side by side.
    with ThreadPoolExecutor(threads) as pool:
        return Ordered(_put_in_order(torch.cat(targets)), list(pool.map(_put_in_order, pieces)))


def _put_in_order(scores: Tensor) -> Tensor:
    """:func:`in_order`, and where that saves memory in place."""
    if not on_host(scores):
        return in_order(scores)
    scores.numpy().sort()
    return scores


def in_order(scores: Tensor) -> Tensor:
    """Scores ascending, NaN last."""
    return torch.from_numpy(np.sort(scores.numpy())) if on_host(scores) else scores.sort().values
