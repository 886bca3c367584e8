"""What the trials of a condition would say without some of the speakers.

Trials share speakers, so how sure a number is cannot be told from single trials: speakers are left out instead, one
after the other, with all trials they take part in. Nothing is walked anew for that. Every trial is counted in the cell
of the score axis it falls in, once in all and once for each of its speakers; what is left without a speaker is a
difference of two histograms, and PAV calibrates all of them at once.

Targets are counted one by one. Non-targets of large sets are thinned: the probes are, evenly, as every speaker still
meets thousands of others' then.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad, softplus

from vpmetrics._precision import widen
from vpmetrics._scores.host import select
from vpmetrics._scores.measures import (
    cross_entropy,
    eer_of_steps,
    expected_disclosure,
    linkability_of_bins,
    min_cllr_of_steps,
    min_dcf_of_steps,
    raw_eer_of_steps,
)
from vpmetrics._scores.steps import Steps, calibrate, mean_over
from vpmetrics._trials import shares
from vpmetrics._trials.matrices import Likeness
from vpmetrics._trials.pairs import TrialGrid
from vpmetrics._trials.rows import cut_rows
from vpmetrics._trials.utterances import Sides, keys_of_means

MOST = 250  # left out one after the other: a standard error of so many is known to 4 %; as many of every fold
_CELLS = 1 << 10  # of the score axis, each with as large a share of the trials
_FINE = 1 << 16  # bins that a score is looked up in
_PAIRS = 1 << 23  # of two speakers, counted one by one


class Blocks(NamedTuple):
    """Speakers that are left out together: one at a time, or where there are many, some."""

    names: Tensor  # (S,), ascending
    of_name: Tensor  # (S,), the block of every speaker; ``number`` for those that are never left out
    number: int
    size: int  # speakers in each

    @property
    def ratio(self) -> float:
        """Speakers kept over speakers left out."""
        return (len(self.names) - self.size) / max(self.size, 1)

    def same_as(self, other: Blocks) -> bool:
        """Whether the speakers of each place are left out together with those of the same places."""
        return torch.equal(self.of_name, other.of_name)

    def of(self, speakers: Tensor) -> Tensor:
        """The block of each of some speakers."""
        return self.of_name[torch.searchsorted(self.names, speakers.contiguous())]


def deal_blocks(sides: Sides) -> Blocks:
    """Blocks of equally many speakers, which depend on their embeddings alone; a speaker of two groups is one."""
    names, place = sides.voices.unique(return_inverse=True)
    turn = torch.arange(len(names), device=names.device)
    if len(names) > MOST:
        side = sides.original if len(sides.original.voices) else sides.protected
        keys = keys_of_means(side.vectors, place[side.voices], len(names), side.by_value)
        turn = keys.argsort(stable=True).argsort()
    return deal_in_turn(names, turn)


def deal_in_turn(names: Tensor, turn: Tensor) -> Blocks:
    """Blocks of speakers ``(S,)``, ascending, each in turn; as many as there may be."""
    number = min(len(names), MOST)
    size = len(names) // max(number, 1)
    return Blocks(names, torch.where(turn < number * size, turn % max(number, 1), number), number, size)


class Counts(NamedTuple):
    """Trials per cell of the score axis, ``(1 + G, C)``: of all speakers, then of all but those of each block.

    ``step`` ``(C,)``: the step that PAV sees each cell in. ``own`` and ``others`` ``(2, C)``: by how much the mean
    similarity of voices with themselves and with others, and that of its logarithm, grows with what a trial of each
    cell adds to what is averaged.
    """

    edges: Tensor
    step: Tensor
    targets: Tensor
    nontargets: Tensor
    own: Tensor
    others: Tensor

    def by(self, place: Tensor) -> tuple[Tensor, Tensor]:
        """Targets and non-targets with cells put together."""
        number = int(place[-1]) + 1
        targets, nontargets = (
            counts.new_zeros(len(counts), number).index_add(1, place, counts)
            for counts in (self.targets, self.nontargets)
        )
        return targets, nontargets

    def least_cross_entropy(self, prior_log_odds: Tensor) -> Tensor:
        """Empirical cross-entropy in bits at one prior, with the scores calibrated by PAV, ``(1 + G,)``."""
        targets, nontargets = self.by(self.step)
        llr = calibrate(Steps(self.edges, targets, nontargets))
        miss = mean_over(targets, softplus(-llr - prior_log_odds))
        return cross_entropy(miss, mean_over(nontargets, softplus(llr + prior_log_odds)), prior_log_odds)


def count_without(
    grid: TrialGrid, steps: Steps, linked: Tensor, blocks: Blocks, slopes: Slopes | None = None
) -> Counts:
    """One more walk, over the targets and over some of the non-targets; cells end at ``linked``, too."""
    edges = lay_edges(steps)
    finest = torch.cat([edges, linked]).unique()
    tally = Tally(finest, blocks.of(grid.voices), blocks.number, slopes)
    tally.add_targets(grid)
    tally.add_others(thinned(grid, _PAIRS))
    step = torch.cat([edges.new_zeros(1, dtype=torch.int64), torch.searchsorted(edges, finest, right=True)])
    return tally.counts(step, steps)


def lay_edges(steps: Steps) -> Tensor:
    """Ends of cells between steps of PAV, that hold as many trials each, both kinds weighing as much."""
    share = steps.targets / (2 * steps.targets.sum()) + steps.nontargets / (2 * steps.nontargets.sum())
    number = ((share.cumsum(0) - share) * _CELLS).nan_to_num().round(decimals=6).floor()
    return widen(steps.edges)[number[1:] > number[:-1]]


class Slopes(NamedTuple):
    """How similarities and their logarithms follow what they average, by place of the voices.

    ``own`` ``(2, V)``, of a voice with itself; ``others`` ``(2, V, V)``, of two, or ``(2, 1, 1)`` of any two.
    """

    own: Tensor
    others: Tensor


def slopes_of(own: Tensor, others: Tensor, similarity: str) -> Slopes:
    """From what is known of the similarities of a condition; of too many voices for a matrix, all count for as much."""
    # Voices that never meet have no similarity, and no trial that it could grow with.
    own, others = own.nan_to_num(0), others.nan_to_num(0)
    if similarity == "geometric":
        return Slopes(*(torch.stack([m, torch.ones_like(m)]) for m in (own, others)))
    return Slopes(*(torch.stack([m * (1 - m), 1 - m]) for m in (own, others)))


def slopes_of_grid(grid: TrialGrid, likeness: Likeness, matrix: Tensor | None, similarity: str) -> Slopes:
    """The same by the places that voices have in a grid."""
    place = grid.voices.argsort(stable=True).argsort()
    others = likeness.others.nanmean().view(1, 1) if matrix is None else matrix[place][:, place]
    return slopes_of(likeness.own[place], others, similarity)


def thinned(grid: TrialGrid, pairs: int) -> TrialGrid:
    """All references against evenly spaced probes, where all pairs would be too many to be counted one by one."""
    rows, columns = grid.rows.side, grid.columns.side
    stride = -(-len(rows.voices) * len(columns.voices) // pairs)
    if stride < 2:
        return grid
    some = cut_rows(columns.take(columns.by_value[::stride].sort().values), len(grid.voices), grid.tile)
    return TrialGrid.laid(grid.rows, some, grid.voices, grid.scorer, grid.condition, grid.tile)


class Tally:
    """Counts in the making: of all trials, of those of each block, and of those in none.

    ``block`` ``(V,)``: that of every voice. With ``slopes``, also what similarities grow with.
    """

    def __init__(self, edges: Tensor, block: Tensor, number: int, slopes: Slopes | None = None) -> None:
        self.edges, self.block, self.slopes = edges, block, slopes
        self.count = len(edges) + 1
        counts = torch.zeros((number + 2) * self.count, dtype=torch.int64, device=edges.device)
        self.targets, self.nontargets = counts, counts.clone()
        self.own, self.others = edges.new_zeros(2, self.count), edges.new_zeros(2, self.count)
        self.pairs = edges.new_zeros(())  # of voices
        low, high = (edges[0], edges[-1]) if len(edges) else edges.new_tensor([0.0, 1.0])
        self.low, self.scale = low, (_FINE - 2) / (high - low).clamp(min=torch.finfo(low.dtype).tiny)
        # A step begins at a target, so a fine bin that holds an edge lies above it.
        ends = low + torch.arange(_FINE, device=edges.device) / self.scale
        self.cell_of_bin = torch.searchsorted(edges, ends)

    def _cells(self, scores: Tensor) -> Tensor:
        """By way of fine equal bins: a search for every score would take longer than the scores."""
        x = (scores - self.low.to(scores.dtype)).mul_(self.scale.to(scores.dtype)).add_(1).nan_to_num_()
        bins = x.clamp_(0, _FINE - 1).to(torch.int32)
        return self.cell_of_bin.index_select(0, bins.flatten()).view(x.shape)

    def add_targets(self, grid: TrialGrid) -> None:
        """Count trials of one speaker."""
        voice, cell = (
            torch.cat(parts) for parts in zip(*grid.by_threads(partial(self._find_targets, grid)), strict=True)
        )
        for slot in (cell, cell + self.count * (1 + self.block[voice])):
            self.targets.index_add_(0, slot, torch.ones_like(slot))
        if self.slopes is not None:
            trials = shares.total(torch.bincount(voice, minlength=len(grid.voices)))
            self.own.index_add_(1, cell, (self.slopes.own / ((trials > 0).sum() * trials))[:, voice])

    def _find_targets(self, grid: TrialGrid) -> tuple[Tensor, Tensor]:
        """The voice and the cell of each trial of one speaker."""
        voices, cells = [self.targets[:0]], [self.targets[:0]]
        for tile in grid.near():
            assert tile.same_speaker is not None
            kept = tile.same_speaker if tile.excluded is None else tile.same_speaker & ~tile.excluded
            voices.append(grid.voices_of(tile)[0].repeat_interleave(kept.sum(1)))
            cells.append(self._cells(select(tile.scores, kept)))
        return torch.cat(voices), torch.cat(cells)

    def add_others(self, grid: TrialGrid) -> None:
        """Count trials of two speakers, once for each of them."""
        for nontargets, others, pairs in grid.by_threads(partial(self._count_others, grid)):
            self.nontargets += nontargets
            self.others, self.pairs = self.others + others, self.pairs + pairs

    def _count_others(self, grid: TrialGrid) -> tuple[Tensor, Tensor, Tensor]:
        """Trials of two speakers by cell and block, what similarities grow with, and pairs of voices."""
        counts, others, pairs = (torch.zeros_like(part) for part in (self.nontargets, self.others, self.pairs))
        one, nowhere = counts.new_ones(()), len(counts) - 1
        for tile in grid.shared():
            cell, (a, b) = self._cells(tile.scores), grid.voices_of(tile)
            masks = [mask for mask in (tile.same_speaker, tile.excluded) if mask is not None]
            drop = torch.stack(masks).any(0) if masks else None
            if self.slopes is not None:
                each, grown = self._weights(grid, a, b, drop)
                others.index_add_(1, cell.flatten(), grown.flatten(1))
                pairs += each.sum()
            first, second = (1 + self.block[a])[:, None], (1 + self.block[b])[None]
            # A trial of two speakers of one block is one trial of the block.
            both = torch.where(first == second, nowhere, cell + self.count * second)
            for slot in (cell, cell + self.count * first, both):
                slot = slot if drop is None else slot.masked_fill(drop, nowhere)
                counts.index_add_(0, slot.flatten(), one.expand(slot.numel()))
        return counts, others, pairs

    def _weights(self, grid: TrialGrid, a: Tensor, b: Tensor, drop: Tensor | None) -> tuple[Tensor, Tensor]:
        """How much of a pair of voices each trial is, and what it then adds to what similarities grow with."""
        assert self.slopes is not None
        rows, columns = (
            torch.bincount(side.side.voices, minlength=len(grid.voices)) for side in (grid.rows, grid.columns)
        )
        each = (1 / rows[a].to(self.edges.dtype))[:, None] / columns[b]
        each = each if drop is None else each.masked_fill_(drop, 0)
        slopes = self.slopes.others
        return each, each * (slopes if slopes.shape[-1] == 1 else slopes[:, a][:, :, b])

    def _join(self) -> None:
        """Add up what all processes have found."""
        self.targets, self.nontargets = shares.total(torch.stack([self.targets, self.nontargets]))
        weights = torch.cat([self.own, self.others, self.pairs.expand(1, self.count)])
        self.own, self.others, pairs = shares.total(weights).split([2, 2, 1])
        self.pairs = pairs[0, 0]

    def counts(self, step: Tensor, steps: Steps) -> Counts:
        """What is left without each block, as many non-targets in all as there are."""
        self._join()
        targets, nontargets = (widen(counts.view(-1, self.count)[:-1]) for counts in (self.targets, self.nontargets))
        nontargets = nontargets * (steps.nontargets.sum() / nontargets[0].sum())
        targets, nontargets = (torch.cat([all_[:1], all_[:1] - all_[1:]]) for all_ in (targets, nontargets))
        own = torch.where(targets[0] > 0, self.own / targets[0], 0)
        others = torch.where(nontargets[0] > 0, self.others / (self.pairs * nontargets[0]), 0)
        return Counts(self.edges, step, targets, nontargets, own, others)


def scores_without(counts: Counts, values: Tensor, links: Tensor) -> dict[str, Tensor]:
    """The scalars of scores of all speakers, then without each block, ``(1 + G,)``, as far as cells can tell."""
    targets, nontargets = counts.by(counts.step)
    nowhere, levels = counts.edges.new_empty(0), _middles(counts.edges, values)
    ascending, descending = Steps(nowhere, targets, nontargets), Steps(nowhere, targets.flip(1), nontargets.flip(1))
    return {
        "d_ece": expected_disclosure(ascending),
        "d_ece_reversed": expected_disclosure(descending),
        "min_cllr": min_cllr_of_steps(ascending),
        "cllr": _cllr(counts, levels),
        "eer": eer_of_steps(ascending),
        "raw_eer": raw_eer_of_steps(ascending),
        "min_dcf": min_dcf_of_steps(ascending, p_target=0.01, c_miss=1.0, c_fa=1.0),
        "linkability": linkability_of_bins(torch.stack(counts.by(torch.searchsorted(links, levels, right=True))[::-1])),
    }


def _middles(edges: Tensor, values: Tensor) -> Tensor:
    low, high = values.aminmax()
    first, last = (edges[:1], edges[-1:]) if len(edges) else (low[None], high[None])  # all scores may be one
    ends = torch.cat([torch.minimum(low, first), edges, torch.maximum(high, last)])
    return (ends[1:] + ends[:-1]) / 2


def _cllr(counts: Counts, levels: Tensor) -> Tensor:
    cost = mean_over(counts.targets, softplus(-levels)) + mean_over(counts.nontargets, softplus(levels))
    return cost / (2 * math.log(2))


def dominance_without(
    counts: Counts, likeness: Likeness, block: Tensor, blocks: Blocks, within: bool, similarity: str
) -> dict[str, Tensor]:
    """Diagonal dominance of all speakers, then without each block, ``(1 + G,)``; ``block`` is that of every voice.

    Similarities of the voices that are left are those of all, corrected for what their calibration would be without
    the block: to first order what is averaged in every cell changes them in proportion to the trials they have there.
    """
    times = 2 if within else 1
    targets, nontargets = counts.by(counts.step)
    averaged = Steps(counts.edges, times * targets, times * nontargets).llr_laplace[:, counts.step]
    averaged = logsigmoid(averaged) if similarity == "geometric" else averaged
    change = averaged - averaged[:1]
    sums = likeness.own, likeness.own.log2(), torch.ones_like(likeness.own)
    known = ~likeness.own.isnan()
    own, log_own, voices = (_sum_without(torch.where(known, each, 0), block, blocks) for each in sums)
    pairs, alike, log_alike = (_sum_without(each, block, blocks) - each.sum() / 2 for each in likeness.met)
    gaps = own / voices - alike / pairs, log_own / voices - log_alike / pairs
    # What is averaged in a cell is less by the trials that are gone, and so is what a change of it counts for.
    own_left = counts.targets * (voices[0] / voices)[:, None]
    others_left = counts.nontargets * (pairs[0] / pairs)[:, None]
    moved = [
        (change * (own_left * counts.own[k] - others_left * counts.others[k])).sum(1) / unit
        for k, unit in enumerate((1, math.log(2)))
    ]
    return {"d_diag": (gaps[0] + moved[0]).abs(), "d_diag_log": gaps[1] + moved[1]}


def _sum_without(values: Tensor, block: Tensor, blocks: Blocks) -> Tensor:
    """Sum of a value of every voice, then without those of each block, ``(1 + G,)``."""
    of_block = values.new_zeros(blocks.number + 1).index_add(0, block, values)[:-1]
    return values.sum() - pad(of_block, (1, 0))
