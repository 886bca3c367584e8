"""Trials of the fused attacker counted by score, from which all measures and replicates follow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._scores.measures import eer_of_steps, found_among_of_steps, tpr_at_fpr_of_steps
from vpmetrics._scores.score_counts import Steps, expected_disclosure
from vpmetrics._utterances.utterances import add_counts
from vpmetrics.attacks.folds import NO_TRIAL, TARGET

MEASURES: dict[str, Callable[[Steps], Tensor]] = {
    "d_ece_strongest": expected_disclosure,
    "eer_strongest": eer_of_steps,
    "tpr_at_1e-2_strongest": partial(tpr_at_fpr_of_steps, fpr=1e-2),
    "tpr_at_1e-3_strongest": partial(tpr_at_fpr_of_steps, fpr=1e-3),
    "found_in_100": found_among_of_steps,
}
# Bins of fused and of single scores. Twice as many change D_ECE by 2e-5 on the voices
# bundled.
NUM_BINS = 1 << 14
_LINEAR_RANGE = 4.0  # deviations up to which bins of the fused score are about equal
_NUM_CELLS = 1 << 10  # of the axis that replicates are counted in


def assign_bins(scores: Tensor) -> Tensor:
    """Return the bin of fused scores over their deviation, int32.

    About equal near 0, and wider outwards.
    """
    squashed = scores / (scores.abs() + _LINEAR_RANGE)  # in (-1, 1)
    bins = ((squashed + 1) * (NUM_BINS / 2)).nan_to_num(0)
    return bins.clamp(0, NUM_BINS - 1).to(torch.int32)


def empty_counts(num_scores: int, device: torch.device) -> Tensor:
    """Return counts of zero ``(Q, 4, B)``: by score, kind of pair and bin."""
    return torch.zeros(num_scores, NO_TRIAL + 1, NUM_BINS, dtype=torch.int32, device=device)


def add_pairs(counts: Tensor, scores: Tensor, kinds: Tensor) -> None:
    """Add pairs to counts ``(Q, 4, B)``, from scores ``(C, Q, a, b)`` and kinds ``(C, a, b)``."""
    first_slot = torch.arange(len(counts), dtype=torch.int32, device=counts.device)
    first_slot = first_slot * ((NO_TRIAL + 1) * NUM_BINS)
    slots = assign_bins(scores)
    slots += first_slot[:, None, None]
    slots += kinds[:, None] * NUM_BINS
    add_counts(counts.view(-1), slots)


def steps_of_counts(counts: Tensor, is_permuted: bool) -> Steps:
    """Return the steps of counts ``(..., 3, B)`` by kind.

    Permuted targets are pairs of a speaker and the next.
    """
    nontargets, next_speaker, targets = counts.unbind(-2)
    edges = counts.new_empty(0)
    if is_permuted:
        return Steps(edges, next_speaker, nontargets)
    return Steps(edges, targets, nontargets + next_speaker)


def join_all_steps(fused: Tensor, own: Tensor) -> Steps:
    """Return the steps ``(2 P + 2 A, B)`` of all that is calibrated, so that one PAV serves it.

    ``fused`` ``(2 P, 3, B)`` holds each profile, for speakers and for permuted ones; ``own`` ``(A,
    3, B)`` single features. First come all profiles, then those of permuted speakers, single
    features, and these with negated scores.
    """
    real = steps_of_counts(fused[0::2], is_permuted=False)
    permuted = steps_of_counts(fused[1::2], is_permuted=True)
    single = steps_of_counts(own, is_permuted=False)
    targets = [real.targets, permuted.targets, single.targets, single.targets.flip(-1)]
    nontargets = [
        real.nontargets,
        permuted.nontargets,
        single.nontargets,
        single.nontargets.flip(-1),
    ]
    return Steps(real.edges, torch.cat(targets), torch.cat(nontargets))


def take_row(steps: Steps, row: int) -> Steps:
    """Return one row of steps ``(..., S)``, with the pools that are known already."""
    one_score = Steps(steps.edges, steps.targets[row], steps.nontargets[row])
    one_score.__dict__["pool_of_step"] = steps.pool_of_step[row]
    return one_score


def merge_bins(steps: Steps) -> Tensor:
    """Return for each bin a coarser cell of about as many trials.

    Pools of PAV begin with a cell.
    """
    share_of_targets = steps.targets / (2 * steps.targets.sum())
    share_of_nontargets = steps.nontargets / (2 * steps.nontargets.sum())
    share = share_of_targets + share_of_nontargets
    cell = ((share.cumsum(0) - share) * _NUM_CELLS).floor()
    begins = (cell.diff() > 0) | (steps.pool_of_step.diff() > 0)
    return pad(begins.long().cumsum(0), (1, 0))


class ReplicateCounts:
    """Counts of the trials that each group of speakers leaves out, in merged bins.

    Args:
        steps: All trials, by bin.
        num_groups: ``G``.
    """

    def __init__(self, steps: Steps, num_groups: int) -> None:
        self._steps = steps
        self._num_groups = num_groups
        self._cell_of_bin = merge_bins(steps)
        self._num_cells = int(self._cell_of_bin[-1]) + 1
        # one more row for trials of two speakers of one group, and a last slot for pairs that are
        # no trials
        num_slots = 2 * (num_groups + 1) * self._num_cells + 1
        device = self._cell_of_bin.device
        self.counts = torch.zeros(num_slots, dtype=torch.int64, device=device)

    def add(self, scores: Tensor, kinds: Tensor, group: Tensor, other_group: Tensor) -> None:
        """Add pairs with scores and kinds ``(C, a, b)`` and groups ``(C, a, 1)``, ``(C, 1, b)``."""
        unused = len(self.counts) - 1
        slots = self._cell_of_bin[assign_bins(scores).long()]
        slots = slots + (kinds == TARGET) * ((self._num_groups + 1) * self._num_cells)
        slots = slots.masked_fill(kinds == NO_TRIAL, unused)
        # A trial of two speakers of one group is left out once.
        other_group = torch.where(group == other_group, self._num_groups, other_group)
        for left_out in (group, other_group):
            add_counts(self.counts, (slots + left_out * self._num_cells).clamp_(max=unused))

    def steps(self, counts: Tensor) -> Steps:
        """Return the trials of all speakers and without each group, ``(1 + G, S)``."""
        steps = self._steps
        left_out = counts[:-1].view(2, -1, self._num_cells)[:, :-1].to(steps.targets)
        nontargets_left_out, targets_left_out = pad(left_out, (0, 0, 1, 0))
        empty = steps.targets.new_zeros(self._num_cells)
        targets = empty.index_add(0, self._cell_of_bin, steps.targets)
        nontargets = empty.index_add(0, self._cell_of_bin, steps.nontargets)
        return Steps(
            steps.targets.new_empty(0), targets - targets_left_out, nontargets - nontargets_left_out
        )


def measure_replicates(measures: dict[str, Tensor], replicates: Steps) -> dict[str, Tensor]:
    """Return each measure of all speakers and without each group, ``(1 + G,)``."""
    values = {}
    for key, measure in MEASURES.items():
        # Replicates are counted in coarser bins than the value, so only their difference from the
        # first row, of all speakers, is added to the value.
        of_cells = measure(replicates)
        values[key] = measures[key] + of_cells - of_cells[0]
    return values
