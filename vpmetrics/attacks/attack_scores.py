"""Scores after attacks: counts by fold and bin, choice of settings and attacks, calibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._scores.measures import expected_disclosure
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.score_counts import Steps
from vpmetrics._scores.scorers import FEW_PAIRS, Scorer
from vpmetrics._util.dtypes import wide_dtype, widen
from vpmetrics._utterances.utterances import add_counts
from vpmetrics.attacks.attack_folds import (
    CHANCE_TARGET,
    NO_TRIAL,
    NONTARGET,
    TARGET,
    Comparison,
    FittedAttack,
    label_chance_and_targets,
)
from vpmetrics.attacks.base import choose_most_regularised, separation_of_sums
from vpmetrics.attacks.moments import divide_by_norm

COARSE, FINE = 1 << 11, 1 << 14  # bins of scores, for choices and for the result
_CELLS = 1 << 7  # of the score axis that attacks are chosen with
_CONSTANT = 1e-6  # standard deviation relative to the mean below which scores are equal but for rounding
_STRONG, _NOISE = 0.99, 0.001  # an attack ties with the strongest from this share of its disclosure, less these bits


class AttackAndSign(NamedTuple):
    """What a fold takes: the index of an attack on a condition, and whether its scores are negated."""

    attack: int
    is_negated: bool = False


class ScoredPairs(NamedTuple):
    """Scores and kinds ``(A, B)`` of some pairs, and the codes of the speakers on both sides."""

    scores: Tensor
    pair_kinds: Tensor
    rows: Tensor  # (A,)
    columns: Tensor  # (B,)


def score_blocks(
    comparison: Comparison, fitted: FittedAttack, num_speakers: int, mean_and_deviation: Tensor
) -> Iterator[ScoredPairs]:
    """Yield all pairs of a comparison after an attack, in blocks, with scores in [-1, 1].

    Speaker codes are below ``num_speakers``. Scores other than cosines are squashed by ``mean_and_deviation`` ``(2,)``.
    """
    a, b = comparison.map_and_enrol(fitted.attack, fitted.map_side)
    has_score = hasattr(fitted.attack, "score")
    if not has_score:
        a, b = divide_by_norm(a), (b if b is a else divide_by_norm(b))
    if len(a) * len(b) > FEW_PAIRS and a.dtype == torch.float64:
        a, b = a.float(), b.float()

    def score(first: Tensor, second: Tensor) -> Tensor:
        if has_score:
            return squash_scores(widen(fitted.attack.score(first, second).detach()), mean_and_deviation)
        return first @ second.mT

    scorer = Scorer(lambda rows: rows, score, lambda *rows: rows[-1], is_builtin=not has_score)
    enrolment = replace(comparison.enrolment, embeddings=a)
    test = enrolment if comparison.enrolment is comparison.test else replace(comparison.test, embeddings=b)
    pairs = PairBlocks(enrolment, test, num_speakers, scorer, comparison.condition)
    for block in pairs:
        rows = pairs.enrolment.speaker_index[block.rows]
        columns = pairs.test.speaker_index[block.columns]
        kinds = label_chance_and_targets(rows, columns, block.is_target, block.is_trial)
        yield ScoredPairs(block.scores, kinds, rows, columns)


def squash_scores(scores: Tensor, mean_and_deviation: Tensor) -> Tensor:
    """Map scores of any range to [-1, 1], by their mean and standard deviation ``(..., 2)``."""
    mean, deviation = mean_and_deviation[..., :1], mean_and_deviation[..., 1:]
    z = (scores - mean) / (4 * deviation).clamp(min=torch.finfo(scores.dtype).tiny)
    return z / (1 + z.abs())


def assign_bins(scores: Tensor, bins: int) -> Tensor:
    """Return the bin index of every score in [-1, 1], int32."""
    return scores.nan_to_num().add_(1).mul_(bins / 2).clamp_(0, bins - 1).to(torch.int32)


def count_by_setting_and_kind(scores: Tensor, kinds: Tensor, has_cosines: bool) -> tuple[Tensor, Tensor]:
    """Return counts ``(C, 3, B)`` by setting, kind and bin, from scores ``(C, P)`` and kinds ``(P,)``.

    Scores other than cosines are squashed by their mean and standard deviation, ``(C, 2)``, which are also returned.
    """
    scales = scores.new_zeros(len(scores), 2)
    if not has_cosines:
        weight = (kinds != NO_TRIAL).to(scores)
        mean = (scores * weight).sum(1) / weight.sum()
        deviation = ((scores - mean[:, None]).square() * weight).sum(1).div(weight.sum()).sqrt()
        # Rounding is no deviation.
        scales = torch.stack([mean, torch.where(deviation > _CONSTANT * mean.abs(), deviation, torch.inf)], dim=1)
        scores = squash_scores(scores, scales)
    slots = assign_bins(scores, COARSE) + kinds * COARSE
    slots = slots + 4 * COARSE * torch.arange(len(scores), device=slots.device, dtype=torch.int32)[:, None]
    counts = torch.zeros(4 * COARSE * len(scores), dtype=torch.int32, device=slots.device)
    add_counts(counts, slots)
    return counts.view(len(scores), 4, COARSE)[:, :NO_TRIAL], scales


def choose_settings(counts: Tensor, sizes: Sequence[int]) -> list[list[int]]:
    """Choose a setting for each attack and fold: the one that best separates speakers in the other folds.

    ``counts`` ``(C, K, 3, B)`` by setting of all attacks, fold, kind and bin; ``sizes``: settings of each attack.
    """
    centre = torch.linspace(-1, 1, COARSE, dtype=wide_dtype(counts.device), device=counts.device)
    sums = widen(counts) @ torch.stack([torch.ones_like(centre), centre, centre.square()], dim=1)
    by_class = torch.stack([sums[:, :, NONTARGET] + sums[:, :, CHANCE_TARGET], sums[:, :, TARGET]])  # (2, C, K, 3)
    separations = separation_of_sums(by_class.movedim(-1, 1))  # (C, K)
    by_others = (separations.sum(1, keepdim=True) - separations).cpu()
    return [[choose_most_regularised(column) for column in table.T] for table in by_others.split(list(sizes))]


def choose_attacks(targets: Tensor, nontargets: Tensor) -> tuple[tuple[AttackAndSign, ...], Tensor]:
    """Choose an attack and a sign for every fold: the first that nearly reach the largest D_ECE on all other folds.

    ``targets`` and ``nontargets`` ``(V, K, B)`` by attack, fold and bin. Also return D_ECE on all folds ``(V,)`` of
    every attack in its better direction.
    """
    # Coarser cells of each attack's score axis, with about equally many trials.
    shares = [counts.sum(1) / counts.sum((1, 2))[:, None].clamp(min=1) for counts in (targets, nontargets)]
    cell = (torch.stack(shares).sum(0).cumsum(-1) * (_CELLS / 2)).long().clamp(max=_CELLS - 1)[:, None]  # (V, 1, B)
    parts = []
    for counts in (targets, nontargets):
        empty = counts.new_zeros(*counts.shape[:2], _CELLS)
        condensed = empty.scatter_add(-1, cell.expand_as(counts), counts)
        # Each attack is followed by the same attack with negated scores.
        both = torch.stack([condensed, condensed.flip(-1)], dim=1).flatten(0, 1)  # (2 V, K, B)
        every = both.sum(1, keepdim=True)
        parts.append(torch.cat([every - both, every], dim=1))
    disclosure = expected_disclosure(Steps(parts[0].new_empty(0), *parts)).nan_to_num(-torch.inf)
    # An attack that happens to disclose more than on average in the other folds discloses less in this one, so the
    # largest is a biased choice.
    by_others = disclosure[:, :-1]
    is_strong = by_others >= _STRONG * by_others.amax(0) - _NOISE
    numbers = is_strong.to(torch.uint8).argmax(0).tolist()
    choices = tuple(AttackAndSign(number // 2, number % 2 == 1) for number in numbers)
    return choices, disclosure[:, -1].view(-1, 2).amax(1)


def split_by_class(counts: Tensor, has_chance_targets: bool = False) -> tuple[Tensor, Tensor]:
    """Return targets and non-targets ``(..., B)``; chance targets are pairs of a speaker and the next."""
    other_speakers, next_, same_speaker = widen(counts).unbind(-2)
    return (next_, other_speakers) if has_chance_targets else (same_speaker, other_speakers + next_)


def pool_folds_by_llr(
    counts: Mapping[int, tuple[Tensor, Tensor]], choices: Sequence[AttackAndSign]
) -> tuple[Steps, list[Tensor]]:
    """Pool the trials of all folds, each scored by the log-likelihood ratio of its attack, calibrated on all folds.

    ``counts`` by attack: targets and non-targets ``(K, B)`` by fold and bin. Return steps in ascending order of the
    ratios, and for every fold the step index of every bin ``(B,)``.
    """
    taken = {}
    for choice in sorted(set(choices)):
        sums = (part.sum(0).flip(0) if choice.is_negated else part.sum(0) for part in counts[choice.attack])
        taken[choice] = Steps(counts[choice.attack][0].new_empty(0), *sums)
    # One ratio per block of PAV: far fewer than bins.
    ratios = [steps.blocks.llr for steps in taken.values()]
    values, place = torch.cat(ratios).unique(return_inverse=True)
    step_of_bin = {
        choice: each[steps.block_of_step].flip(0) if choice.is_negated else each[steps.block_of_step]
        for (choice, steps), each in zip(taken.items(), place.split([len(each) for each in ratios]), strict=True)
    }
    totals = [values.new_zeros(len(values)) for _ in range(2)]
    for fold, choice in enumerate(choices):
        for total, part in zip(totals, counts[choice.attack], strict=True):
            total.index_add_(0, step_of_bin[choice], part[fold])
    return Steps(values.new_empty(0), *totals), [step_of_bin[choice] for choice in choices]
