"""Scores of attacked pairs within folds: counted by bin, compared to choose attacks by, and calibrated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._engine.attack_folds import NEXT, NONE, OTHER, OWN, Comparison, Fitted, label_pairs
from vpmetrics._engine.measures import expected_disclosure
from vpmetrics._engine.moments import unit_length
from vpmetrics._engine.pair_blocks import FEW_PAIRS, PairBlocks
from vpmetrics._engine.precision import wide_dtype, widen
from vpmetrics._engine.score_counts import Steps
from vpmetrics._engine.scorers import Scorer
from vpmetrics.attacks.base import choose_setting, compare, share_of_sums

COARSE, FINE = 1 << 11, 1 << 14  # bins of scores, for choices and for the result
_CELLS = 1 << 7  # of the score axis that attacks are chosen with
_STRONG, _NOISE = 0.99, 0.001  # share of the strongest attack's disclosure, and bits, within which attacks are alike


class ScoredPairs(NamedTuple):
    """Scores of some pairs, their kinds (None where all are ``OTHER``), and the codes of the speakers on both sides."""

    scores: Tensor  # (A, B), or (C, A, B) with several settings
    kinds: Tensor | None
    rows: Tensor  # (A,)
    columns: Tensor  # (B,)


class Choice(NamedTuple):
    """What a fold took: a variant, by its place, and whether its scores are negated."""

    variant: int
    is_negated: bool = False


def choose_attacks(
    counts: Tensor, sampled_folds: Sequence[int], num_folds: int, is_chance: bool = False
) -> tuple[tuple[Choice, ...], Tensor]:
    """Return for every fold the first attack and direction that is strong in others, and D_ECE of every attack.

    Args:
        counts: Counts ``(V, F, 3, B)`` by attack, sampled fold, kind and bin.
        sampled_folds: Number of each sampled fold.
        num_folds: How many folds there are.
        is_chance: Whether targets are pairs of a speaker and the next.
    """
    parts = []
    for each in _condense(*targets_of(counts, is_chance)):
        both = torch.stack([each, each.flip(-1)], dim=1).flatten(0, 1)  # (2 V, F, B)
        whole = both.sum(1, keepdim=True)
        parts.append(torch.cat([whole - both, whole], dim=1))
    found = expected_disclosure(Steps(parts[0].new_empty(0), *parts)).nan_to_num(-torch.inf)  # (2 V, F + 1)
    # Of attacks that find the same the one that is best elsewhere is worst here, so that the first is taken.
    is_strong = found >= _STRONG * found.amax(0) - _NOISE
    *others, every = is_strong.to(torch.uint8).argmax(0).tolist()
    first = [every] * num_folds
    for fold, number in zip(sampled_folds, others, strict=True):
        first[fold] = number
    return tuple(Choice(number // 2, number % 2 == 1) for number in first), found[:, -1].view(-1, 2).amax(1)


class CalibratedTrials(NamedTuple):
    """Trials of all folds by the log-likelihood ratios of the attacks that folds took.

    ``steps``: of ascending ratios. ``cells``: for every fold, the step of every bin ``(B,)``.
    """

    steps: Steps
    cells: list[Tensor]

    @classmethod
    def of(cls, counts: dict[int, tuple[Tensor, Tensor]], choices: Sequence[Choice]) -> CalibratedTrials:
        """Return what folds took, from targets and non-targets ``(K, B)`` of every variant that was taken."""
        taken = {choice: pool_folds(*counts[choice.variant], choice.is_negated) for choice in sorted(set(choices))}
        none = counts[choices[0].variant][0].new_empty(0)
        ratios = [steps.blocks.llr for steps in taken.values()]
        # Few ratios, of blocks of PAV, that all bins have.
        values, place = torch.cat(ratios).unique(return_inverse=True)
        cell_of_bin = {
            choice: each[steps.block].flip(0) if choice.is_negated else each[steps.block]
            for (choice, steps), each in zip(taken.items(), place.split([len(each) for each in ratios]), strict=True)
        }
        cells = [cell_of_bin[choice] for choice in choices]
        sums = [none.new_zeros(len(values)) for _ in range(2)]
        for fold, choice in enumerate(choices):
            for total, part in zip(sums, counts[choice.variant], strict=True):
                total.index_add_(0, cells[fold], part[fold])
        return cls(Steps(none, *sums), cells)


def pool_folds(targets: Tensor, nontargets: Tensor, is_negated: bool = False) -> Steps:
    """Return the trials of all folds, from counts ``(K, B)``, in the order of scores or of negated scores."""
    sums = (counts.sum(0).flip(0) if is_negated else counts.sum(0) for counts in (targets, nontargets))
    return Steps(targets.new_empty(0), *sums)


def targets_of(counts: Tensor, is_chance: bool = False) -> tuple[Tensor, Tensor]:
    """Return targets and non-targets ``(..., B)`` of counts by kind; by chance those of a speaker and the next."""
    other, next_, own = widen(counts).unbind(-2)
    return (next_, other) if is_chance else (own, other + next_)


def _condense(targets: Tensor, nontargets: Tensor) -> tuple[Tensor, Tensor]:
    """Return counts ``(V, K, B)`` in cells of the score axis of each attack that hold about as many trials."""
    shares = (counts.sum(1) / counts.sum((1, 2))[:, None].clamp(min=1) for counts in (targets, nontargets))
    cell = (torch.stack([*shares]).sum(0).cumsum(-1) * (_CELLS / 2)).long().clamp(max=_CELLS - 1)[:, None]  # (V, 1, B)
    empty = targets.new_zeros(*targets.shape[:2], _CELLS)
    condensed = [empty.scatter_add(-1, cell.expand_as(counts), counts) for counts in (targets, nontargets)]
    return condensed[0], condensed[1]


def score_sample(fitted: Sequence[Fitted], rows: Sequence[Comparison], kinds: Sequence[Tensor]) -> list[ScoredPairs]:
    """Return sampled pairs after an attack with each setting."""
    scored = []
    for comparison, kind in zip(rows, kinds, strict=True):
        scores = torch.stack([compare(each.attack, *comparison.attacked(each)) for each in fitted])
        codes = comparison.enrolment.speaker_index, comparison.test.speaker_index
        scored.append(ScoredPairs(widen(scores.detach()), kind, *codes))
    return scored


def count_sample(attack: Any, scored: Sequence[ScoredPairs]) -> tuple[Tensor, Tensor]:
    """Return counts ``(C, 3, B)`` of sampled pairs by setting, kind and bin, and the scales ``(C, 2)``."""
    scores = torch.cat([each.scores.flatten(1) for each in scored], dim=1)
    kinds = torch.cat([each.kinds.flatten() for each in scored if each.kinds is not None])
    scale = scores.new_zeros(len(scores), 2)
    if hasattr(attack, "score"):
        weight = (kinds != NONE).to(scores)
        mean = (scores * weight).sum(1) / weight.sum()
        deviation = ((scores - mean[:, None]).square() * weight).sum(1).div(weight.sum()).sqrt()
        scale = torch.stack([mean, deviation], dim=1)
        scores = squash_scores(scores, scale)
    slots = find_bins(scores, COARSE) + kinds * COARSE
    slots = slots + 4 * COARSE * torch.arange(len(scores), device=slots.device, dtype=torch.int32)[:, None]
    counts = torch.zeros(4 * COARSE * len(scores), dtype=torch.int32, device=slots.device)
    counts.index_add_(0, slots.flatten(), counts.new_ones(()).expand(slots.numel()))
    return counts.view(len(scores), 4, COARSE)[:, :NONE], scale


def share_of_counts(counts: Tensor) -> Tensor:
    """Return how well each setting separates speakers in each fold, ``(C, K)``, see :func:`share_of_sums`."""
    centre = torch.linspace(-1, 1, COARSE, dtype=wide_dtype(counts.device), device=counts.device)
    sums = widen(counts) @ torch.stack([torch.ones_like(centre), centre, centre.square()], dim=1)
    by_class = torch.stack([sums[:, :, OTHER] + sums[:, :, NEXT], sums[:, :, OWN]])  # (2, C, K, 3)
    return share_of_sums(by_class.movedim(-1, 1))


def choose_settings(
    shares: Tensor, sizes: Sequence[int], sampled_folds: Sequence[int], num_folds: int
) -> list[list[int]]:
    """Return for each attack the setting that every fold takes, by what is found in all other sampled folds.

    Args:
        shares: How well each setting of all attacks separates speakers in each sampled fold, ``(C, F)``.
        sizes: How many settings each attack has.
        sampled_folds: Number of each sampled fold.
        num_folds: How many folds there are.
    """
    every = shares.sum(1, keepdim=True)
    chosen = []
    for table in torch.cat([every - shares, every], dim=1).cpu().split(list(sizes)):
        *by_others, by_all = (choose_setting(column) for column in table.T)
        settings = [by_all] * num_folds
        for fold, setting in zip(sampled_folds, by_others, strict=True):
            settings[fold] = setting
        chosen.append(settings)
    return chosen


def squash_scores(scores: Tensor, scale: Tensor) -> Tensor:
    """Return scores of any range in [-1, 1], by their mean and deviation ``(..., 2)``."""
    z = (scores - scale[..., :1]) / (4 * scale[..., 1:]).clamp(min=torch.finfo(scores.dtype).tiny)
    return z / (1 + z.abs())


def find_bins(scores: Tensor, bins: int) -> Tensor:
    """Return the bin of every score in [-1, 1] as int32."""
    return scores.nan_to_num().add_(1).mul_(bins / 2).clamp_(0, bins - 1).to(torch.int32)


def score_blocks(comparison: Comparison, fitted: Fitted, num_codes: int) -> Iterator[ScoredPairs]:
    """Yield all pairs of a comparison after an attack, in blocks."""
    a, b = comparison.attacked(fitted)
    has_score = hasattr(fitted.attack, "score")
    if not has_score:
        a, b = unit_length(a), (b if b is a else unit_length(b))
    if len(a) * len(b) > FEW_PAIRS and a.dtype == torch.float64:
        a, b = a.float(), b.float()

    def score(first: Tensor, second: Tensor) -> Tensor:
        return widen(fitted.attack.score(first, second).detach()) if has_score else first @ second.mT

    scorer = Scorer(lambda rows: rows, score, lambda *rows: rows[-1], is_builtin=not has_score)
    enrolment = replace(comparison.enrolment, embeddings=a)
    test = enrolment if comparison.is_one_side else replace(comparison.test, embeddings=b)
    pairs = PairBlocks(enrolment, test, num_codes, scorer, comparison.condition)
    codes = [side.speaker_index for side in (pairs.enrolment, pairs.test)]
    ends = [each.tolist() for each in codes] if codes[0].device.type == "cpu" else None
    for block in pairs:
        rows, columns = codes[0][block.rows], codes[1][block.columns]
        kinds = None
        if block.is_target is not None or ends is None or _are_near(ends, block.rows, block.columns):
            kinds = label_pairs(rows, columns, block.is_target, block.is_trial)
        yield ScoredPairs(block.scores, kinds, rows, columns)


def _are_near(codes: list[list[int]], rows: slice, columns: slice) -> bool:
    """Return whether a block may hold a speaker and the next."""
    first, second = codes
    return bool(first[rows.stop - 1] + 1 >= second[columns.start] and first[rows.start] < second[columns.stop - 1])
