r"""Trials, condensed to what a calibration can tell apart.

Everything that comes from PAV depends on the order of the scores alone. So trials are condensed to *steps* of the
ascending score axis, each with its number of targets and non-targets, and all that follows (log-likelihood ratios,
D_ECE, min Cllr, EER) is a function of these two rows of counts. Three ways lead to them:

- exactly, from scores: a block of PAV can begin only at a target, so ``T`` targets and ``N`` non-targets are
  ``T + 1`` steps: what lies below the lowest target, then each target with the non-targets from it up to the next;
- from a histogram, one step per bin;
- smoothly, one step per cell of a fine grid, with counts that carry a gradient.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._checks import check_bandwidth, check_trials, warn_undefined
from vpmetrics._precision import at_least_float32, wide_dtype, widen
from vpmetrics.functional._pav import pav_blocks, sum_by_block
from vpmetrics.functional._surrogate import Grid, count_on, lay_grid

Array = np.ndarray[Any, Any]

_CHUNK = 1 << 20  # scores sorted at a time: about what one core's cache holds
_CELLS = 1 << 16  # equal cells of the score axis to look up many scores by


@dataclass(frozen=True, eq=False)
class Steps:
    """Trials per step of the ascending score axis, and the calibration they have.

    ``edges`` ``(S - 1,)``: the lowest score of every step but the first.
    ``targets``, ``nontargets`` ``(S,)``: how many trials of each class, in the type sums are made in.
    """

    edges: Tensor
    targets: Tensor
    nontargets: Tensor

    @cached_property
    def llr(self) -> Tensor:
        """See :func:`calibrate`; several measures of the same trials share it."""
        return _calibrate(self, laplace=False)

    @cached_property
    def llr_laplace(self) -> Tensor:
        """The same under Laplace's rule."""
        return _calibrate(self, laplace=True)


class ScoreCounts(NamedTuple):
    """The steps of the scores, and the steps of the negated scores: an attacker may flip the sign."""

    ascending: Steps
    descending: Steps


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
    targets, nontargets = _split(scores, is_target)
    targets = targets.sort().values
    below, up_to, nan_seen = _ranks(targets, nontargets)
    one_each = pad(torch.ones_like(targets, dtype=wide_dtype(scores.device)), (1, 0))
    ascending = Steps(targets, one_each, _gaps(below, len(nontargets)))
    descending = Steps(-targets.flip(0), one_each, _gaps(up_to, len(nontargets)).flip(0))
    return defined_or_nan(ScoreCounts(ascending, descending), nan_seen)


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


def condense(steps: Steps) -> tuple[Steps, Tensor]:
    """The same steps with every one that has no target put to the one before; and where each of them went, ``(S,)``.

    No block of PAV begins at a step without targets, so nothing that follows from PAV changes.
    """
    begins = steps.targets > 0
    place = begins.cumsum(0)
    lowest = torch.cat([steps.edges.new_full((1,), -torch.inf), steps.edges])[begins]
    empty = steps.targets.new_zeros(int(place[-1]) + 1)
    targets, nontargets = (empty.index_add(0, place, counts) for counts in (steps.targets, steps.nontargets))
    return Steps(lowest, targets, nontargets), place


def _interleave(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack([first, second], dim=-1).flatten()


def defined_or_nan(counts: ScoreCounts, nan_seen: Tensor | None = None) -> ScoreCounts:
    """The counts, or NaN counts and one warning where no calibration exists."""
    steps = counts.ascending
    missing = [steps.targets.detach().sum() == 0, steps.nontargets.detach().sum() == 0]
    no_targets, no_nontargets, *nan = torch.stack(missing if nan_seen is None else [*missing, nan_seen]).tolist()
    if any(nan):
        warn_undefined("Some scores are NaN.")
    elif no_targets or no_nontargets:
        kind = "" if no_targets and no_nontargets else "target " if no_targets else "non-target "
        warn_undefined(f"There are no {kind}trials, and a calibration needs both kinds.")
    else:
        return counts
    return ScoreCounts(*(Steps(each.edges, each.targets * torch.nan, each.nontargets * torch.nan) for each in counts))


def calibrate(steps: Steps, laplace: bool = False) -> Tensor:
    """Natural-log likelihood ratio of every step, ``(S,)``: that of its PAV block; -inf and +inf are legal."""
    return steps.llr_laplace if laplace else steps.llr


def _calibrate(steps: Steps, laplace: bool) -> Tensor:
    targets, nontargets = steps.targets, steps.nontargets
    if laplace:  # one label of each class below the lowest score and again above the highest
        targets, nontargets = pad(targets, (1, 1), value=1.0), pad(nontargets, (1, 1), value=1.0)
    mass = (targets + nontargets).detach()
    blocks = pav_blocks(torch.where(mass > 0, targets.detach() / mass, 0), mass)
    ratio = sum_by_block(targets, blocks).log() - sum_by_block(nontargets, blocks).log()
    llr = ratio - (steps.targets.sum(-1, keepdim=True).log() - steps.nontargets.sum(-1, keepdim=True).log())
    return llr[..., 1:-1] if laplace else llr


def mean_over_targets(steps: Steps, values: Tensor) -> Tensor:
    """Average over target trials of something known per step (last dimension)."""
    return _mean(steps.targets, values)


def mean_over_nontargets(steps: Steps, values: Tensor) -> Tensor:
    """Average over non-target trials of something known per step (last dimension)."""
    return _mean(steps.nontargets, values)


def _mean(counts: Tensor, values: Tensor) -> Tensor:
    # A step without trials of a class has no say, even where the value is infinite.
    return torch.where(counts == 0, 0, counts * values).sum(-1) / counts.sum(-1)


class Blocks(NamedTuple):
    """The PAV blocks in ascending order: log-likelihood ratio, targets and non-targets of each, ``(B,)``."""

    llr: Tensor
    targets: Tensor
    nontargets: Tensor


def gather_blocks(steps: Steps, llr: Tensor) -> Blocks:
    """The steps of each block put together: far fewer numbers, for what needs a row for each of many priors."""
    block = pad((llr[1:] != llr[:-1]).cumsum(0), (1, 0))
    count = int(block[-1]) + 1
    empty = torch.zeros(count, dtype=llr.dtype, device=llr.device)
    first = torch.searchsorted(block, torch.arange(count, device=llr.device))
    return Blocks(llr[first], empty.index_add(0, block, steps.targets), empty.index_add(0, block, steps.nontargets))


def look_up(steps: Steps, llr: Tensor, scores: Tensor) -> Tensor:
    """The log-likelihood ratio of every score, in the shape of the scores."""
    if bool(llr.isnan().any()):
        return torch.full_like(scores, torch.nan, dtype=llr.dtype)
    # Blocks are far fewer than steps, and a shorter table is a faster one.
    begins = llr[1:] != llr[:-1]
    edges, values = steps.edges[begins], torch.cat([llr[:1], llr[1:][begins]])
    scores = scores.to(edges.dtype)
    if _on_host(scores) and scores.numel() > _CELLS and len(edges) > 1 and 1e-30 < float(edges[-1] - edges[0]) < 1e30:
        return _look_up_by_cell(edges, values, scores.flatten()).view(scores.shape)
    return values[torch.searchsorted(edges, scores, right=True)]


def _look_up_by_cell(edges: Tensor, values: Tensor, scores: Tensor) -> Tensor:
    """:func:`look_up` of many scores: most equal cells of the axis lie in one block and need no search."""
    scale = (_CELLS - 1) / (edges[-1] - edges[0])

    def cell_of(x: Tensor) -> Tensor:
        return x.sub(edges[0]).mul_(scale).clamp_(-1, _CELLS).floor_().to(torch.int32) + 1

    with_edge = cell_of(edges).long()
    edges_up_to = torch.bincount(with_edge, minlength=_CELLS + 2).cumsum(0)
    table = values[edges_up_to].index_fill(0, with_edge, torch.nan)
    found = torch.empty_like(scores, dtype=values.dtype)
    for piece, into in zip(scores.split(_CHUNK // 4), found.split(_CHUNK // 4), strict=True):
        torch.index_select(table, 0, cell_of(piece), out=into)
        unsure = into.isnan().nonzero().flatten()
        into[unsure] = values[torch.searchsorted(edges, piece[unsure], right=True)]
    return found


def _split(scores: Tensor, is_target: Tensor) -> tuple[Tensor, Tensor]:
    if _on_host(scores):
        array, chosen = scores.numpy(), is_target.numpy()
        return torch.from_numpy(array[chosen]), torch.from_numpy(array[~chosen])
    return scores[is_target], scores[~is_target]


def _gaps(ranks: Tensor, total: int) -> Tensor:
    """How many of ``total`` lie below the first rank, between neighbours, and above the last."""
    return widen(torch.cat([pad(ranks, (1, 0)), ranks.new_full((1,), total)]).diff())


def _ranks(targets: Tensor, nontargets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For every sorted target, the non-targets below it and those up to it; and whether any score is NaN."""
    # Sorting puts NaN last, so the last score tells.
    nan_seen = targets[-1:].isnan().any()
    if not _on_host(nontargets):
        ordered = nontargets.sort().values
        below = torch.searchsorted(ordered, targets)
        return below, torch.searchsorted(ordered, targets, right=True), nan_seen | ordered[-1:].isnan().any()
    # Counts add up over pieces, so the pieces are sorted side by side and never merged.
    values, pieces = targets.numpy(), nontargets.split(_CHUNK)
    with ThreadPoolExecutor(min(len(pieces), torch.get_num_threads())) as pool:
        results = list(pool.map(lambda piece: _ranks_in_piece(values, piece.numpy()), pieces))
    below, up_to, nan = (torch.as_tensor(np.sum([result[k] for result in results], axis=0)) for k in range(3))
    return below, up_to, nan_seen | (nan > 0)


def _ranks_in_piece(values: Array, piece: Array) -> tuple[Array, Array, Array]:
    ordered = np.sort(piece)
    return np.searchsorted(ordered, values), np.searchsorted(ordered, values, "right"), np.isnan(ordered[-1:]).any()


def _on_host(tensor: Tensor) -> bool:
    """Whether NumPy can work on the memory as it lies: its sort is several times faster on a CPU."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor
