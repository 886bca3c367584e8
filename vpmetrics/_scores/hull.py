"""PAV of many rows of counts: few of the steps can begin a block, and most others are known before any is pooled.

The blocks of PAV are the lower convex hull of the points (non-targets, targets) below each step. The hull of some of
these points lies nowhere below that of all, so whatever lies on or above the former is no corner of the latter.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._scores.pav import pav_blocks, sum_by_block
from vpmetrics._scores.steps import Steps, calibrate

_STRIDES = (64, 16, 8)  # steps from one point of the coarser hull to the next, as ever fewer are left


def thin(steps: Steps) -> Steps:
    """Steps ``(R, S)`` with many of those put together that PAV pools anyway, ``(R, K)``.

    Rows that need fewer than ``K`` end in steps without trials. Counts must be whole numbers, to be exact.
    """
    targets, nontargets = steps.targets, steps.nontargets
    for stride in _STRIDES:
        begins = _may_begin(targets, nontargets, stride)
        row, step = begins.nonzero(as_tuple=True)
        each = begins.sum(-1)
        place = torch.arange(len(row), device=row.device) - (each.cumsum(0) - each)[row]
        count = int(each.max()) + 1
        targets, nontargets = (_pool(part, row, step, place, count) for part in (targets, nontargets))
    return Steps(steps.edges.new_empty(0), targets, nontargets)


def _pool(counts: Tensor, row: Tensor, step: Tensor, place: Tensor, count: int) -> Tensor:
    """Counts from each step that begins something up to the next, ``(R, count - 1)``."""
    total = counts.cumsum(-1)
    below = total[:, -1:].repeat(1, count)
    below[row, place] = (total - counts)[row, step]
    return below.diff(dim=-1)


def _may_begin(targets: Tensor, nontargets: Tensor, stride: int) -> Tensor:
    """Which steps a block can begin at: those whose point lies below the hull of every so many points, or on it."""
    count = targets.shape[-1]
    y, x = (pad(counts, (0, -count % stride)).unflatten(-1, (-1, stride)) for counts in (targets, nontargets))
    rise, run = y.sum(-1), x.sum(-1)
    blocks = pav_blocks(torch.where(rise + run > 0, rise / (rise + run), 0), rise + run)
    first = torch.searchsorted(blocks, blocks)
    # The chord that each stretch of steps lies over, and the points of the steps as seen from where it starts.
    height, width = (sum_by_block(part, blocks).unsqueeze(-1) for part in (rise, run))
    up, right = (_points_from(counts, first) for counts in (y, x))
    below = (up * width < right * height) & (y > 0)
    below[..., 0] |= first == torch.arange(first.shape[-1], device=first.device)
    kept: Tensor = below.flatten(-2)[..., :count]
    return kept


def _points_from(counts: Tensor, first: Tensor) -> Tensor:
    """How many there are below each step ``(R, G, stride)`` from the start of the stretch ``first`` ``(R, G)`` on."""
    each = counts.sum(-1)
    start = each.cumsum(-1) - each
    return counts.cumsum(-1) - counts + (start - start.gather(-1, first)).unsqueeze(-1)


def around_crossing(steps: Steps) -> Steps:
    """Three steps with the raw EER of all ``(R, S)``: the one where its curves cross, what is below, what is above."""
    targets, nontargets = steps.targets.cumsum(-1), steps.nontargets.cumsum(-1)
    # Miss rate less false-alarm rate, times both numbers of trials; it only grows.
    excess = targets * nontargets[:, -1:] - (nontargets[:, -1:] - nontargets) * targets[:, -1:]
    at = torch.searchsorted(excess, torch.zeros_like(excess[:, :1])).clamp(max=excess.shape[-1] - 1)
    parts = []
    for counts, total in ((steps.targets, targets), (steps.nontargets, nontargets)):
        up_to, here = total.gather(-1, at), counts.gather(-1, at)
        parts.append((up_to - here, here, total[:, -1:] - up_to))
    tied = parts[1] if steps.tied is None else (parts[1][0], steps.tied.gather(-1, at), parts[1][2])
    return Steps(steps.edges, *(torch.cat(part, dim=-1) for part in (*parts, tied)))


def laplace_llr_of_rows(steps: Steps) -> Tensor:
    """Log-likelihood ratio of every step under Laplace's rule, ``(R, S)``."""
    whole = Steps(steps.edges, *(pad(counts, (1, 1), value=1.0) for counts in (steps.targets, steps.nontargets)))
    few = thin(whole)
    # Where each step lies among the few: by how many trials there are before it.
    before, few_before = (mass.cumsum(-1) - mass for mass in (each.targets + each.nontargets for each in (whole, few)))
    place = torch.searchsorted(few_before, before[:, 1:-1].contiguous(), right=True) - 1
    # The rule's labels do not count for the odds of the classes.
    odds, own = (each.targets.sum(-1, keepdim=True) / each.nontargets.sum(-1, keepdim=True) for each in (few, steps))
    return calibrate(few).gather(-1, place) + (odds / own).log()
