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
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._checks import warn_first
from vpmetrics._scores.cached import cached_property
from vpmetrics._scores.pav import blocks_of_counts, number_of_blocks, sum_by_block


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
    def block(self) -> Tensor:
        """The PAV block that each step belongs to, ``(S,)``."""
        return blocks_of_counts(self.targets, self.nontargets)

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks themselves: far fewer than steps, and all that most measures need."""
        counts = [_sum_blocks(counts, self.block) for counts in (self.targets, self.nontargets)]
        nothing = (counts[0] + counts[1]) == 0  # a ratio of 0, so that no NaN joins the gradient
        ratio = _log_ratio(*(part.masked_fill(nothing, 1) for part in counts))
        return Blocks(ratio - _log_ratio(*self._totals), *counts)

    @cached_property
    def llr(self) -> Tensor:
        """See :func:`calibrate`; several measures of the same trials share it."""
        return self.blocks.llr.gather(-1, self.block)

    @cached_property
    def llr_laplace(self) -> Tensor:
        """The same under Laplace's rule."""
        return self.llr_of_orders(1)

    def llr_of_orders(self, orders: int) -> Tensor:
        """The same under Laplace's rule, every trial counted so many times."""
        # One label of each class below the lowest score and again above the highest. They join blocks and part none.
        counts = [pad(orders * counts, (1, 1), value=1.0) for counts in (self.blocks.targets, self.blocks.nontargets)]
        block = blocks_of_counts(*counts)
        ratio = _log_ratio(*(sum_by_block(part, block) for part in counts))[..., 1:-1]
        return (ratio - _log_ratio(*(orders * total for total in self._totals))).gather(-1, self.block)

    @property
    def apart(self) -> Steps:
        """The same with all non-targets of a tie below its targets: no order within a tie discloses more."""
        tied = self.nontargets if self.tied is None else self.tied
        nontargets = pad(self.nontargets - tied, (1, 0)) + pad(tied, (0, 1))
        below = torch.cat([self.edges.new_full((1,), -torch.inf), self.edges])
        return Steps(below, pad(self.targets, (1, 0)), nontargets, torch.zeros_like(nontargets))

    @property
    def _totals(self) -> tuple[Tensor, Tensor]:
        return self.targets.sum(-1, keepdim=True), self.nontargets.sum(-1, keepdim=True)


class Blocks(NamedTuple):
    """The PAV blocks in ascending order: log-likelihood ratio, targets and non-targets of each, ``(B,)``.

    Where it would wait for a device to count the blocks, there are as many as steps, and the last ones hold no trials.
    """

    llr: Tensor
    targets: Tensor
    nontargets: Tensor


def _sum_blocks(counts: Tensor, block: Tensor) -> Tensor:
    return torch.zeros_like(counts).scatter_add(-1, block, counts)[..., : number_of_blocks(counts, block)]


def _log_ratio(targets: Tensor, nontargets: Tensor) -> Tensor:
    return targets.log() - nontargets.log()


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


def mean_over(counts: Tensor, values: Tensor) -> Tensor:
    """Average of values that occur ``counts`` times (last dimension)."""
    # A step without trials of a class has no say, even where the value is infinite.
    return torch.where(counts == 0, 0, counts * values).sum(-1) / counts.sum(-1)
