"""What the strongest attack would find without some of the speakers; which attack that is, is chosen anew.

Attacks stay as they were fitted on the folds. Where the others choose for a fold, calibrations stay, too: PAV
minimises what is compared there, so that to first order only the trials matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._precision import widen
from vpmetrics._scores.measures import eer_of_steps, evidence, expected_disclosure
from vpmetrics._scores.steps import Steps, calibrate
from vpmetrics._trials import shares
from vpmetrics._trials.attacked import compared
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.folds import Folds
from vpmetrics._trials.left_out import Blocks, Tally, thinned
from vpmetrics._trials.pairs import TrialGrid
from vpmetrics._trials.rows import cut_rows
from vpmetrics._trials.scorers import SCORERS
from vpmetrics._trials.utterances import places_in

_CELLS = 1 << 8  # of the score axis of an attack
_PAIRS = 1 << 18  # of two speakers, by attack and fold
_MAPPING = Lock()  # an attack of the caller's is not asked whether it may be called twice at once
_TILE = 256  # speakers of a fold are few, and only tiles near the diagonal hold their targets


class _Counts(NamedTuple):
    """Trials per cell of every attack, and then of every attack turned round.

    ``of_folds`` ``(2 A, K, C)``; ``of_rows`` ``(2 A, R, C)``, one row for each block in each fold it has speakers in.
    """

    of_folds: Tensor
    of_rows: Tensor

    @classmethod
    def both_ways(cls, of_folds: Tensor, of_rows: Tensor) -> _Counts:
        """From what there is of the attacks as they are."""
        return cls(*(torch.cat([each, each.flip(-1)]) for each in (of_folds, of_rows)))


class _Rows(NamedTuple):
    """The fold and the block of every row, and how many blocks there are."""

    fold: Tensor
    block: Tensor
    blocks: int


def attacks_without(
    folds: Folds,
    condition: Condition,
    enrolment: str | None,
    fitted: Sequence[list[Any]],
    counts: Tensor,
    blocks: Blocks,
    tolerance: tuple[float, float],
) -> dict[str, Tensor]:
    """D_ECE and EER of the strongest attack of all speakers, then without each block, ``(1 + G,)``.

    ``counts`` ``(A, K, 2, B)`` are non-targets and targets of each attack by fold and bin of their cosine. Of the
    attacks that find, but for ``tolerance``, as much as any, the first one is taken.
    """
    edges = [_edges(each) for each in counts.sum(1)]
    inside = blocks.of(folds.sides.voices)
    rows = _rows_of(folds, inside, blocks.number)
    # Targets and non-targets, of all speakers of a fold and of each row.
    whole = widen(counts).new_zeros(2, len(fitted), folds.number, _CELLS)
    parts = whole.new_zeros(2, len(fitted), len(rows.fold), _CELLS)

    def count() -> None:
        for fold in shares.of_thread(range(folds.number)):
            own = (rows.fold == fold).nonzero().flatten()
            block = places_in(rows.block[own], inside)
            for number, grid in _grids(folds, fold, condition, enrolment, fitted):
                table = widen(_table(grid, edges[number], block, len(own)))
                whole[:, number, fold], parts[:, number, own] = table[:, 0], table[:, 1:]

    shares.by_threads(count, counts.device)
    whole, parts = shares.total(whole), shares.total(parts)
    # Thinned, there are as many non-targets as there were.
    scale = (counts[:, :, 0].sum(-1) / whole[1].sum(-1)).nan_to_num(1)[..., None]
    targets, nontargets = (
        _Counts.both_ways(whole[0], parts[0]),
        _Counts.both_ways(whole[1] * scale, parts[1] * scale[:, rows.fold]),
    )
    return _value(targets, nontargets, rows, _choice(targets, nontargets, rows, tolerance))


def _rows_of(folds: Folds, block_of_voice: Tensor, blocks: int) -> _Rows:
    codes = (folds.fold_of_voice * (blocks + 1) + block_of_voice)[block_of_voice < blocks].unique()
    return _Rows(codes // (blocks + 1), codes % (blocks + 1), blocks)


def _edges(counts: Tensor) -> Tensor:
    """Between cells of one attack's cosines that hold as many trials each, both kinds weighing as much."""
    share = (widen(counts) / counts.sum(1, keepdim=True)).mean(0).cumsum(0)
    wanted = torch.arange(1, _CELLS, device=share.device, dtype=share.dtype) / _CELLS
    return (1 + torch.searchsorted(share, wanted)) * (2 / len(share)) - 1


def _grids(
    folds: Folds, fold: int, condition: Condition, enrolment: str | None, fitted: Sequence[list[Any]]
) -> Iterator[tuple[int, TrialGrid]]:
    """The pairs of a fold, as each attack that this process fitted compares them, with its number."""
    reference, probe = folds.pair(condition, enrolment, fold)
    voices = folds.sides.voices
    rows, columns = (cut_rows(side, len(voices), _TILE) for side in (reference, probe))
    for number, attack in enumerate(fitted):
        if attack[fold] is None:
            continue
        with _MAPPING:
            left, right = compared(attack[fold], reference, probe, condition, folds.few)
        known = rows._replace(side=reference._replace(vectors=left))
        unknown = known if reference is probe else columns._replace(side=probe._replace(vectors=right))
        yield number, TrialGrid.laid(known, unknown, voices, SCORERS["cosine"], condition, _TILE)


def _table(grid: TrialGrid, edges: Tensor, block: Tensor, number: int) -> Tensor:
    """Targets and non-targets of a fold, of all speakers and then of each block, ``(2, 1 + g, C)``."""
    tally = Tally(edges, torch.where(block < 0, number, block), number)
    with shares.alone():
        tally.add_targets(grid)
        tally.add_others(thinned(grid, _PAIRS))
    return torch.stack([counts.view(-1, _CELLS)[:-1] for counts in (tally.targets, tally.nontargets)])


def _choice(targets: _Counts, nontargets: _Counts, rows: _Rows, tolerance: tuple[float, float]) -> Tensor:
    """The attack that all other folds choose for each, ``(K, 1 + G)``: with all speakers, then without each block."""
    others = [each.of_folds.sum(1, keepdim=True) - each.of_folds for each in (targets, nontargets)]
    llr = calibrate(Steps(targets.of_folds.new_empty(0), *others))
    found = torch.zeros((), device=llr.device)
    for each, left, sign in ((targets, others[0], 1), (nontargets, others[1], -1)):
        value = evidence(sign * llr).nan_to_num(neginf=0)
        # A block is missing among the others wherever it is not in the fold itself.
        elsewhere = rows.fold != torch.arange(left.shape[1], device=rows.fold.device)[:, None]
        sums, counts = (
            ((weight * left).sum(-1), torch.einsum("akc,arc->akr", weight, each.of_rows) * elsewhere)
            for weight in (value, torch.ones_like(value))
        )
        total, number = (_less(whole, gone, rows) for whole, gone in (sums, counts))
        found = found + total / number
    found = found.nan_to_num(-torch.inf)
    share, noise = tolerance
    bound = share * found.amax(0) - noise * 2 * math.log(2)
    return (found >= bound).to(torch.uint8).argmax(0)


def _less(whole: Tensor, gone: Tensor, rows: _Rows) -> Tensor:
    """A sum, then that without each block, ``(..., 1 + G)``, from what is missing in every row."""
    missing = gone.new_zeros(*gone.shape[:-1], rows.blocks).index_add(-1, rows.block, gone)
    return whole[..., None] - pad(missing, (1, 0))


def _value(targets: _Counts, nontargets: _Counts, rows: _Rows, best: Tensor) -> dict[str, Tensor]:
    """What is found by the attacks chosen, each calibrated on all folds."""
    folds, sets = (torch.arange(size, device=best.device) for size in best.shape)
    some, place = best.unique(return_inverse=True)  # few of all attacks
    pooled = [_less(each.of_folds[some].sum(1), each.of_rows[some].mT, rows).mT for each in (targets, nontargets)]
    llr = calibrate(Steps(pooled[0].new_empty(0), *pooled))[place, sets]
    counts = []
    for each in (targets, nontargets):
        left = each.of_folds[best, folds[:, None]]
        chosen = best[rows.fold, 1 + rows.block]
        gone = each.of_rows[chosen, torch.arange(len(rows.fold), device=best.device)]
        counts.append(left.index_put((rows.fold, 1 + rows.block), -gone, accumulate=True))
    steps = _by_llr(llr.movedim(0, 1).flatten(1), *(each.movedim(0, 1).flatten(1) for each in counts))
    return {"d_ece_strongest": expected_disclosure(steps), "eer_strongest": eer_of_steps(steps)}


def _by_llr(llr: Tensor, targets: Tensor, nontargets: Tensor) -> Steps:
    """Steps in the order of their log-likelihood ratios; of equal ones those with more targets first, so PAV pools."""
    share = torch.where(targets > 0, targets / (targets + nontargets), 0)
    order = share.argsort(dim=-1, descending=True, stable=True)
    order = order.gather(-1, llr.gather(-1, order).argsort(dim=-1, stable=True))
    return Steps(llr.new_empty(0), targets.gather(-1, order), nontargets.gather(-1, order))
