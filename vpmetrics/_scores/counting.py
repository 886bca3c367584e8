"""From trials to steps: exactly from scores, from two histograms, or smoothly."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._checks import check_bandwidth, check_trials
from vpmetrics._precision import at_least_float32, widen
from vpmetrics._scores.host import on_host
from vpmetrics._scores.ordered import Ordered, order_scores
from vpmetrics._scores.smooth import Grid, count_on, lay_grid
from vpmetrics._scores.steps import ScoreCounts, Steps, defined_or_nan


def count_by_score(
    preds: Tensor, target: Tensor, bandwidth: float | None = None, validate_args: bool = True
) -> ScoreCounts:
    """The steps of trials in any shape; NaN and one warning where a class is missing or a score is NaN.

    Exact steps, or those of the smooth surrogate where ``bandwidth`` is given.
    """
    check_trials(preds, target, validate_args)
    check_bandwidth(bandwidth)
    if bandwidth is not None:
        return counts_on_grid(lay_grid(preds.flatten(), bandwidth), preds.flatten(), target.flatten())
    scores, is_target = at_least_float32(preds.detach().flatten()), target.detach().flatten().bool()
    return count_ordered(order_scores(scores, is_target))


def count_ordered(ordered: Ordered) -> ScoreCounts:
    """The exact steps of trials in order, as :func:`count_by_score` returns them."""
    number = sum(map(len, ordered.nontargets))
    targets, times = ordered.targets.unique_consecutive(return_counts=True)
    below, up_to = _ranks(targets, ordered.nontargets)
    times, tied = widen(times), widen(up_to - below)
    low, high = _gaps(below, number), _gaps(up_to, number)
    ascending = Steps(targets, pad(times, (1, 0)), low, pad(tied, (1, 0)))
    descending = Steps(-targets.flip(0), pad(times.flip(0), (1, 0)), high.flip(0), pad(tied.flip(0), (1, 0)))
    # Sorting puts NaN last, so the last scores tell.
    last = torch.cat([part[-1:] for part in (targets, *ordered.nontargets)])
    return defined_or_nan(ScoreCounts(ascending, descending), last.isnan().any())


def counts_on_grid(grid: Grid, preds: Tensor, target: Tensor) -> ScoreCounts:
    """The steps of the smooth surrogate, one per cell, with counts that carry a gradient to ``preds`` ``(P,)``."""
    targets, nontargets = count_on(grid, preds, target)
    points = grid.points
    return count_by_bin((points[1:] + points[:-1]) / 2, targets, nontargets, nan_seen=targets.isnan().any())


def count_by_bin(
    edges: Tensor,
    targets: Tensor,
    nontargets: Tensor,
    nan_seen: Tensor | None = None,
    separated: bool = False,
) -> ScoreCounts:
    """The steps of two histograms with bins ``(-inf, edges[0]), [edges[0], edges[1]), ...``.

    With ``separated`` every bin is taken as if all its non-targets lay below its targets (for the negated scores, the
    other way round). The truth lies between: pooling a bin forgets an order, and no order discloses more than this.
    """
    targets, nontargets = widen(targets), widen(nontargets)
    if not separated:
        upward = Steps(edges, targets, nontargets)
        downward = Steps(-edges.flip(0), targets.flip(0), nontargets.flip(0))
    else:
        nothing = torch.zeros_like(targets)
        edges = torch.cat([edges.repeat_interleave(2), edges[-1:]])
        late, early = _interleave(nothing, targets), _interleave(nontargets, nothing)
        upward = Steps(edges, late, early)
        late, early = _interleave(targets, nothing), _interleave(nothing, nontargets)
        downward = Steps(-edges.flip(0), late.flip(0), early.flip(0))
    return defined_or_nan(ScoreCounts(upward, downward), nan_seen)


def _interleave(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack([first, second], dim=-1).flatten()


def _gaps(ranks: Tensor, total: int) -> Tensor:
    """How many of ``total`` lie below the first rank, between neighbours, and above the last."""
    return widen(torch.cat([pad(ranks, (1, 0)), ranks.new_full((1,), total)]).diff())


def _ranks(targets: Tensor, nontargets: list[Tensor]) -> tuple[Tensor, Tensor]:
    """For every sorted target, the non-targets below it and those up to it, added up over their sorted pieces."""
    below, up_to = (torch.zeros_like(targets, dtype=torch.int64) for _ in range(2))
    for piece in nontargets:
        found = _ranks_in_piece(targets, piece)
        below, up_to = below + found[0], up_to + found[1]
    return below, up_to


def _ranks_in_piece(targets: Tensor, piece: Tensor) -> tuple[Tensor, Tensor]:
    if not on_host(piece):
        return torch.searchsorted(piece, targets), torch.searchsorted(piece, targets, right=True)
    values, ordered = targets.numpy(), piece.numpy()
    below = np.searchsorted(ordered, values)
    up_to, ties = below.copy(), np.flatnonzero(below < len(ordered))
    ties = ties[ordered[below[ties]] == values[ties]]  # few, and a second search for them alone
    up_to[ties] = np.searchsorted(ordered, values[ties], "right")
    return torch.from_numpy(below), torch.from_numpy(up_to)
