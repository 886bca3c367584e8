"""Weights of the fused score: standardised scores of sampled pairs, and the regressions on them.

The weights of a fold come from pairs of the other folds. They are fitted for every profile, once
for the speakers as they are and once for permuted speakers, which gives the chance level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vpmetrics._util.dtypes import wide_dtype
from vpmetrics.attacks.features import PROFILES, AttackName
from vpmetrics.attacks.folds import CHANCE_TARGET, NO_TRIAL, NONTARGET, TARGET
from vpmetrics.attacks.logistic import fit_logistic_weights

_CLIP = 6.0  # standardised scores beyond it are clipped for the regression
_CONSTANT = 1e-6  # deviation relative to the mean below which scores are equal but for rounding
# Of the weight of the best attack. Tuned on Gaussian voices of 6 to 40 speakers, seeds 0 to 3, of
# five systems; twice as much finds .001 bit less there on average, .003 less on the bundled voices.
_PRIOR_DEVIATION = 0.5
# Of the gap between the classes, relative to the best attack. Without a smallest one, negative
# weights of attacks that find nothing by themselves would never be tried.
_SMALLEST_GAP = 0.1
# Pairs that weights are fitted on, of each kind. Twice as many change D_ECE by less than .001
# (Gaussian voices of 40 speakers x 10).
_MOST_TARGETS = 1 << 11
_MOST_NONTARGETS = 1 << 12


@dataclass(frozen=True, eq=False)
class SampledPairs:
    """Clipped standardised scores of sampled pairs: non-targets first, targets after them.

    The first dimension, of 2, is that of targets: pairs of one speaker, and pairs of a speaker and
    the next one, which are the targets of permuted speakers. The non-targets are the same.

    ``scores`` ``(2, P, A)``; ``fold`` ``(2, P)``; ``is_pair`` ``(2, P)``, False where a kind of
    target is filled up; ``is_target`` ``(P,)``.
    """

    scores: Tensor
    fold: Tensor
    is_pair: Tensor
    is_target: Tensor
    has_both_kinds: bool

    @classmethod
    def from_cells(cls, scores: Tensor, kinds: Tensor, cell_fold: Tensor) -> SampledPairs:
        """Return evenly spaced pairs of each kind.

        Scores are ``(C, A, r, r')``, kinds ``(C, r, r')``.
        """
        nontargets = _choose_evenly(kinds, NONTARGET, _MOST_NONTARGETS)
        targets = _choose_evenly(kinds, TARGET, _MOST_TARGETS)
        next_speakers = _choose_evenly(kinds, CHANCE_TARGET, _MOST_TARGETS)
        has_both_kinds = len(nontargets) + len(next_speakers) > 0 and len(targets) > 0
        num_targets = max(len(targets), len(next_speakers))
        position = torch.arange(len(nontargets) + num_targets, device=kinds.device)
        pairs = []
        is_pair = []
        for targets_of_kind in (targets, next_speakers):
            filled = position.new_zeros(num_targets)
            filled[: len(targets_of_kind)] = targets_of_kind
            pairs.append(torch.cat([nontargets, filled]))
            is_pair.append(position < len(nontargets) + len(targets_of_kind))
        pair = torch.stack(pairs)  # index into the flat kinds
        num_pairs_of_cell = kinds[0].numel()
        cell = pair // num_pairs_of_cell
        chosen = scores.flatten(2)[cell, :, pair % num_pairs_of_cell]
        return cls(
            scores=chosen.clamp(-_CLIP, _CLIP),
            fold=cell_fold[cell],
            is_pair=torch.stack(is_pair),
            is_target=position >= len(nontargets),
            has_both_kinds=has_both_kinds,
        )


def _choose_evenly(kinds: Tensor, kind: int, most: int) -> Tensor:
    """Return the indices of at most ``most`` evenly spaced pairs of one kind; forces a GPU sync."""
    pairs_of_kind = (kinds.flatten() == kind).nonzero().flatten()
    num_pairs = len(pairs_of_kind)
    num_chosen = min(num_pairs, most)
    chosen = torch.arange(num_chosen, device=kinds.device) * num_pairs // max(1, num_chosen)
    return pairs_of_kind[chosen]


def standardise_in_cells(scores: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return scores with mean 0 and deviation 1 in each cell, and their means and deviations.

    These are ``(C, A)``. No labels are used.

    A feature whose scores are constant, infinite or missing in some cell is 0 everywhere; its
    deviation is infinite.
    """
    is_trial = (kinds != NO_TRIAL)[:, None]
    num_trials = is_trial.sum((2, 3)).clamp(min=1)
    trial_scores = torch.where(is_trial, scores, 0)
    mean = trial_scores.sum((2, 3)) / num_trials
    centred = torch.where(is_trial, scores - mean[..., None, None], 0)
    deviation = (centred.square().sum((2, 3)) / num_trials).sqrt()
    has_trials = is_trial.any(3).any(2)
    is_usable = (deviation.isfinite() & (deviation > _CONSTANT * mean.abs()) | ~has_trials).all(0)
    deviation = torch.where(is_usable & has_trials, deviation, torch.inf)
    mean = torch.where(is_usable, mean, 0)
    standardised = torch.where(is_usable[:, None, None], centred / deviation[..., None, None], 0)
    return standardised, mean, deviation


def fit_weights(
    sample: SampledPairs, labels: Sequence[AttackName], num_folds: int, num_utterances: int
) -> tuple[Tensor, Tensor]:
    """Fit the weights of each fold on the pairs of the others.

    Every utterance counts as one observation, since the pairs of an utterance err together. The
    prior of a weight is normal; its deviation is proportional to how far apart the attack by itself
    brings the classes. So the ridge on the mean cost falls with the number of utterances, and is
    larger for attacks that find little: few data hardly leave the best attacks, and many weigh all
    of them freely.

    Args:
        sample: Pairs of all folds.
        labels: The attack of each feature, ``A``.
        num_folds: ``K``.
        num_utterances: How many utterances the pairs of all but one fold have.

    Returns:
        Weights ``(K, 2 P, A)``, of each of ``P`` profiles for speakers and then for permuted ones,
        and the share of each feature in each profile ``(P, A)``.
    """
    num_profiles = len(PROFILES)
    device = sample.fold.device
    fold = torch.arange(num_folds, device=device)[:, None]
    is_outside = (sample.fold[:, None] != fold) & sample.is_pair[:, None]  # (2, K, N)
    pair_weights = balance_classes(is_outside, sample.is_target)
    profile = torch.tensor([label.profile for label in labels], device=device)
    order = profile.argsort(stable=True)
    weights = sample.scores.new_zeros(2, num_profiles, num_folds, len(labels))
    gap = separate_classes(sample.scores, sample.is_target, pair_weights).abs()  # (2, K, A)
    # The poorer profiles have few features, so that one regression fits them all.
    for profiles in (range(num_profiles - 1), range(num_profiles - 1, num_profiles)):
        num_features = sum(label.profile <= profiles[-1] for label in labels)
        features = order[:num_features]
        richest = torch.tensor(profiles, device=device)[:, None]
        is_used = (profile[features] <= richest).repeat_interleave(num_folds, dim=0)
        used_gap = gap[..., features].repeat(1, len(profiles), 1) * is_used
        largest_gap = used_gap.amax(-1, keepdim=True).clamp(min=torch.finfo(gap.dtype).tiny)
        deviation = _PRIOR_DEVIATION * (used_gap / largest_gap).clamp(min=_SMALLEST_GAP)
        fitted = fit_logistic_weights(
            sample.scores[..., features],
            sample.is_target,
            pair_weights.repeat(1, len(profiles), 1),
            ridge=1 / (max(1, num_utterances) * deviation.square()),
            is_used=is_used,
        )
        fitted = fitted.unflatten(1, (len(profiles), num_folds))
        weights[:, profiles.start : profiles.stop, :, features] = fitted
    shares = share_of_distance(weights[0].mean(1), sample)
    return weights.permute(2, 1, 0, 3).flatten(1, 2), shares


def balance_classes(is_used: Tensor, is_target: Tensor) -> Tensor:
    """Return the weight of each pair in each problem ``(..., P)``.

    Those of a class add up to 1/2.

    ``is_used`` ``(..., P)``; ``is_target`` ``(P,)``.
    """
    balanced = torch.zeros_like(is_used, dtype=wide_dtype(is_used.device))
    for is_of_class in (is_target, ~is_target):
        members = (is_used & is_of_class).to(balanced)
        balanced = balanced + members * (0.5 / members.sum(-1, keepdim=True).clamp(min=1))
    return balanced


def separate_classes(scores: Tensor, is_target: Tensor, pair_weights: Tensor) -> Tensor:
    """Return the distance between the class means of each score, ``(..., K, A)``.

    The unit is the deviation within a class. Scores are ``(..., P, A)``, weights ``(..., K, P)``.
    """
    mean_of_class: list[Tensor] = []
    variance = torch.zeros(1, dtype=scores.dtype, device=scores.device)
    squares = scores.square()
    for is_of_class in (~is_target, is_target):
        weights = pair_weights * is_of_class
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
        mean = weights @ scores
        variance = variance + 0.5 * (weights @ squares - mean.square())
        mean_of_class.append(mean)
    nontarget_mean, target_mean = mean_of_class
    return (target_mean - nontarget_mean) / variance.clamp(min=_CONSTANT**2).sqrt()


def share_of_distance(weights: Tensor, sample: SampledPairs) -> Tensor:
    """Return what each feature adds to the distance between the class means, as a share.

    Weights are ``(P, A)``; the classes are targets and others.
    """
    mean_of_class: list[Tensor] = []
    for is_of_class in (sample.is_target, ~sample.is_target):
        is_member = (sample.is_pair[0] & is_of_class).to(sample.scores)
        mean_of_class.append(is_member @ sample.scores[0] / is_member.sum().clamp(min=1))
    target_mean, nontarget_mean = mean_of_class
    distance = weights * (target_mean - nontarget_mean)
    return (distance / distance.sum(-1, keepdim=True)).nan_to_num(0, 0, 0)
