r"""Trials, condensed to what a calibration can tell apart.

Everything that comes from PAV depends on the order of the scores alone. So trials are condensed to *steps* of the
ascending score axis, each with its number of targets and non-targets, and all that follows (log-likelihood ratios,
D_ECE, min Cllr, EER) is a function of these two rows of counts. Three ways lead to them:

- exactly, from scores: a block of PAV can begin only at a target, so ``T`` targets and ``N`` non-targets are
  ``T + 1`` steps: what lies below the lowest target, then each target with the non-targets from it up to the next
  (targets of equal scores share a step);
- from a histogram, one step per bin;
- smoothly, one step per cell of a fine grid, with counts that carry a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._checks import warn_first
from vpmetrics._scores.cached import cached_property
from vpmetrics._scores.pav import pav_blocks, sum_by_block

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Steps:
    """Trials per step of the ascending score axis, and the calibration they have.

    ``edges`` ``(S - 1,)``: the lowest score of every step but the first.
    ``targets``, ``nontargets`` ``(S,)``: how many trials of each class, in the type sums are made in.
    ``tied`` ``(S,)``: how many of the non-targets have the very score of the targets, where the others are higher;
    None where the order within a step is unknown, as in a histogram, and all count as tied.
    """

    edges: Tensor
    targets: Tensor
    nontargets: Tensor
    tied: Tensor | None = None

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


def condense(steps: Steps) -> tuple[Steps, Tensor]:
    """The same steps with every one that has no target put to the one before; and where each of them went, ``(S,)``.

    No block of PAV begins at a step without targets, so nothing that follows from PAV changes.
    """
    begins = steps.targets > 0
    place = begins.cumsum(0)
    lowest = torch.cat([steps.edges.new_full((1,), -torch.inf), steps.edges])[begins]
    empty = steps.targets.new_zeros(len(lowest) + 1)
    tied = torch.where(begins, steps.nontargets if steps.tied is None else steps.tied, 0)
    sums = (empty.index_add(0, place, counts) for counts in (steps.targets, steps.nontargets, tied))
    return Steps(lowest, *sums), place


def defined_or_nan(counts: ScoreCounts, nan_seen: Tensor | None = None) -> ScoreCounts:
    """The counts, or NaN counts and one warning where no calibration exists."""
    targets, nontargets = (part.detach().sum() == 0 for part in (counts.ascending.targets, counts.ascending.nontargets))
    nan = torch.zeros_like(targets) if nan_seen is None else nan_seen
    warn_first(
        {
            "Some scores are NaN.": nan,
            "There are no trials, and a calibration needs both kinds.": targets & nontargets,
            "There are no target trials, and a calibration needs both kinds.": targets,
            "There are no non-target trials, and a calibration needs both kinds.": nontargets,
        }
    )
    known = torch.where(targets | nontargets | nan, torch.nan, 1)
    return ScoreCounts(
        *(replace(each, targets=each.targets * known, nontargets=each.nontargets * known) for each in counts)
    )


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
    return mean_over(steps.targets, values)


def mean_over_nontargets(steps: Steps, values: Tensor) -> Tensor:
    """Average over non-target trials of something known per step (last dimension)."""
    return mean_over(steps.nontargets, values)


def mean_over(counts: Tensor, values: Tensor) -> Tensor:
    """Average of values that occur ``counts`` times (last dimension)."""
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


def on_host(tensor: Tensor) -> bool:
    """Whether NumPy can work on the memory as it lies: its sort is several times faster on a CPU."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor
