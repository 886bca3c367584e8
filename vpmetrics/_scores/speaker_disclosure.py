"""What the trials of every single speaker disclose, and what they would with speakers permuted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._scores.condition_scores import ConditionScores
from vpmetrics._scores.jackknife import CountingCells
from vpmetrics._scores.measures import d_ece_term, expected_disclosure, linkability_of_bins
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.score_counts import Finder, steps_of_both_signs
from vpmetrics._util.dtypes import wide_dtype, widen
from vpmetrics._utterances.utterances import add_counts

if TYPE_CHECKING:
    from vpmetrics._identification.identification import Identification

_PERMUTATIONS = 19  # of speakers: luck exceeds the highest of them in one of 20 evaluations
_PERMUTED_ENTRIES = 1 << 24  # of embeddings of permuted test rows that are compared at once
_MOST_PAIRS = 1 << 20  # non-target pairs that are counted by speaker
_MOST_COUNTS = 1 << 22  # that are calibrated at once


class TrialSideDisclosure(NamedTuple):
    """Disclosure by the trials of each speaker on one side; all fields ``(S,)``, NaN where there are no trials."""

    of_targets: Tensor  # first half of the speaker's D_ECE, in bits
    of_nontargets: Tensor  # second half
    targets: Tensor  # number of trials
    nontargets: Tensor
    l_w: Tensor  # strongest evidence

    @property
    def d_ece(self) -> Tensor:
        """D_ECE of each speaker, both kinds of trials with equal weight; NaN where one kind is missing."""
        return self.of_targets + self.of_nontargets

    @property
    def contributions(self) -> Tensor:
        """What each speaker adds to the D_ECE of all trials, which is the sum of these."""
        halves, trials = torch.stack(self[:2]), torch.stack(self[2:4])
        return (torch.where(trials > 0, halves * trials, 0) / trials.sum(1, keepdim=True)).sum(0)


class SpeakerDisclosure(NamedTuple):
    """Disclosure of every speaker by the calibration of all trials: as enrolled, as tested, and as either.

    ``speakers`` ``(S,)``, ascending. A target trial counts once in ``both``, a non-target trial for both its speakers.
    """

    speakers: Tensor
    enrolled: TrialSideDisclosure
    probed: TrialSideDisclosure
    both: TrialSideDisclosure


class SpeakerIdentification(NamedTuple):
    """Mean bits of the inputs of each speaker in identification, and how many these are, ``(S,)``."""

    speakers: Tensor
    inputs: Tensor
    mean_d: Tensor
    alid: Tensor


def _make_evidence_finder(scores: ConditionScores) -> Finder:
    """Return a function from scores to the evidence of non-targets, of targets, and its strength by Laplace's rule."""
    steps = scores.counts.ascending
    return scores.make_finder([d_ece_term(-steps.llr), d_ece_term(steps.llr), steps.laplace_llr().abs().detach()])


def compute_speaker_disclosure(pairs: PairBlocks, scores: ConditionScores, speakers: Tensor) -> SpeakerDisclosure:
    """Return the disclosure of every speaker, from one more pass over the pairs."""
    find, dtype = _make_evidence_finder(scores), wide_dtype(speakers.device)
    # Evidence and numbers of trials: of targets, of non-targets by enrolled and by tested speaker.
    sums = torch.zeros(3, 2, len(speakers), dtype=dtype, device=speakers.device)
    strongest = torch.zeros_like(sums[0])
    for block in pairs:
        index = pairs.enrolment.speaker_index[block.rows], pairs.test.speaker_index[block.columns]
        nontarget, target, strength = (values.to(dtype) for values in find(block.scores.clone()))
        trials = torch.ones_like(nontarget)
        if block.is_target is not None and block.is_trial is not None:
            chosen = block.is_target & block.is_trial
            each = torch.stack([torch.where(chosen, target, 0).sum(1), chosen.to(dtype).sum(1)])
            sums[0].index_add_(1, index[0], each)
            trials = (~block.is_target & block.is_trial).to(dtype)
            nontarget, strength = torch.where(trials > 0, nontarget, 0), torch.where(block.is_trial, strength, 0)
        for side in (0, 1):
            strongest[side].scatter_reduce_(0, index[side], strength.amax(1 - side), "amax")
            sums[1 + side].index_add_(1, index[side], torch.stack([nontarget.sum(1 - side), trials.sum(1 - side)]))
    (sums,), (strongest,) = pairs.processes.all_reduce(sums), pairs.processes.all_reduce(strongest, op="MAX")
    return speaker_disclosure_of_sums(speakers, sums, strongest, scores.has_unordered_pairs)


def compute_disclosure_of_trials(
    scores: ConditionScores, preds: Tensor, is_target: Tensor, places: Tensor, names: Tensor
) -> SpeakerDisclosure:
    """Return the disclosure of every speaker from given trials ``(P,)``; ``places`` ``(2, P)`` refer to ``names``."""
    nontarget, target, strengths = _make_evidence_finder(scores)(preds.clone())
    each = torch.where(is_target, target, nontarget)
    each = torch.stack([each, torch.ones_like(each)])
    empty = each.new_zeros(2, len(names))
    sums = [empty.index_add(1, places[0], each * is_target)]
    sums += [empty.index_add(1, place, each * ~is_target) for place in places]
    strongest = empty.scatter_reduce(1, places, strengths.expand(2, -1), "amax")
    return speaker_disclosure_of_sums(names, torch.stack(sums), strongest, scores.has_unordered_pairs)


def speaker_disclosure_of_sums(
    names: Tensor, sums: Tensor, strongest: Tensor, has_unordered_pairs: bool
) -> SpeakerDisclosure:
    """Return the disclosure from sums of evidence, numbers of trials ``(3, 2, S)`` and largest evidence ``(2, S)``."""
    order = names.argsort(stable=True)
    target_sums, enrolled, probed = sums[..., order]
    worst = strongest[:, order]
    sides = [(enrolled, worst[0]), (probed, worst[1]), (enrolled + probed, worst.amax(0))]
    disclosures = []
    # If both sides are the same utterances, it is arbitrary which of two is the row.
    for nontarget_sums, largest in sides[-1:] * 3 if has_unordered_pairs else sides:
        (of_targets, targets), (of_nontargets, nontargets) = target_sums, nontarget_sums
        halves = of_targets / targets / (2 * math.log(2)), of_nontargets / nontargets / (2 * math.log(2))
        is_known = (targets + nontargets > 0) & ~(of_targets + of_nontargets).isnan()
        l_w = torch.where(is_known, largest / math.log(10), torch.nan)
        disclosures.append(TrialSideDisclosure(*halves, targets, nontargets, l_w))
    return SpeakerDisclosure(names[order], *disclosures)


def average_bits_by_speaker(identification: Identification) -> SpeakerIdentification:
    """Return the mean bits of the inputs of each speaker, ascending."""
    names, place, inputs = identification.speakers.unique(return_inverse=True, return_counts=True)
    rank_bits, bits = identification.rank_bits, identification.bits
    bits = torch.full_like(rank_bits, torch.nan) if bits is None else bits.to(rank_bits.dtype)
    sums = rank_bits.new_zeros(2, len(names)).index_add(1, place, torch.stack([rank_bits, bits]))
    return SpeakerIdentification(names, inputs, *(sums / inputs))


class SelfCalibratedDisclosure(NamedTuple):
    """D_ECE of each tested speaker's trials, calibrated on these alone, and the chance level of the largest of them.

    ``d_ece`` ``(S,)``: by speaker index, for the sign of scores that discloses more. ``chance``: the largest of all
    speakers with speakers permuted, the mean over permutations. ``most_by_chance``: the largest over permutations. Both
    are NaN where no group has three speakers.
    """

    d_ece: Tensor
    chance: Tensor
    most_by_chance: Tensor


def find_largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest number and its index, as a floating number; NaN for both where there is none."""
    values = pad(values, (0, 1), value=math.nan)
    place = torch.where(values.isnan(), -torch.inf, values).argmax(0, keepdim=True)
    largest = values.gather(0, place).squeeze(0)
    return largest, torch.where(largest.isnan(), torch.nan, place.squeeze(0).to(largest.dtype))


def speaker_scalars(disclosed: SpeakerDisclosure, identified: SpeakerIdentification | None = None) -> dict[str, Tensor]:
    """Return which tested speaker is protected worst, and how far speakers are apart."""
    values = disclosed.probed.d_ece
    worst, place = find_largest(values)
    deviations, others = values - values.nanmean(), ((~values.isnan()).sum() - 1).clamp(min=0)
    scalars = {
        "worst_speaker_d_ece": worst,
        "worst_speaker": place,
        "speaker_d_ece_spread": (deviations.square().nansum() / others).sqrt(),
    }
    if identified is not None:
        for key in ("mean_d", "alid"):
            scalars[f"worst_speaker_{key}"], _ = find_largest(getattr(identified, key))
    return scalars


def count_targets_per_permutation(pairs: PairBlocks, cells: CountingCells) -> Tensor:
    """Return the target trials per permutation, tested speaker and cell, ``(K, S, C)``; at most 19 are counted."""
    shape = max(0, min(_PERMUTATIONS, pairs.num_speakers - 1)), pairs.num_speakers, cells.num_cells
    counts = torch.zeros(math.prod(shape), dtype=torch.int64, device=cells.edges.device)
    at_once = max(1, _PERMUTED_ENTRIES // max(1, pairs.test.embeddings.numel()))
    for first in range(0, shape[0], at_once):
        permuted, speaker, shift = pairs.permute_speakers(range(first + 1, min(first + at_once, shape[0]) + 1))
        first_slot = ((shift - 1) * pairs.num_speakers + speaker) * cells.num_cells
        for group in permuted.row_groups():
            for block in permuted.blocks(group, has_targets=True):
                add_counts(counts, (cells.find_cells(block.scores) + first_slot[block.columns])[block.is_target])
    return pairs.processes.all_reduce(counts)[0].view(shape)


def compute_self_calibrated_disclosure(
    pairs: PairBlocks, cells: CountingCells, permuted_targets: Tensor
) -> SelfCalibratedDisclosure:
    """Return the disclosure of each tested speaker's trials, calibrated on these alone, and its chance level."""
    shape, thinned = permuted_targets.shape[1:], pairs.thin(_MOST_PAIRS, side="enrolment")
    targets = torch.zeros(shape.numel(), dtype=torch.int64, device=cells.edges.device)
    for target_scores, speaker_index in pairs.target_scores():
        add_counts(targets, cells.find_cells(target_scores) + cells.num_cells * speaker_index)
    nontargets = torch.zeros_like(targets)
    for block in thinned:
        slots = cells.find_cells(block.scores) + cells.num_cells * thinned.test.speaker_index[block.columns]
        if block.is_target is not None and block.is_trial is not None:
            slots = slots[~block.is_target & block.is_trial]
        add_counts(nontargets, slots)
    (nontargets,) = thinned.processes.all_reduce(nontargets)
    targets, nontargets = (widen(counts).view(shape) for counts in (targets, nontargets))
    # The cells have a place for scores that are NaN, too.
    is_undefined = torch.stack(cells.trials.span_or_nan()).isnan().any()
    values = _better_sign_disclosure(targets, nontargets).masked_fill(is_undefined, torch.nan)
    if len(permuted_targets) == 0:
        return SelfCalibratedDisclosure(values, *values.new_full((2,), torch.nan))
    # Permuted targets are also among the non-targets of this speaker: count them once.
    share, largest = len(thinned.enrolment) / max(1, len(pairs.enrolment)), []
    for taken in widen(permuted_targets).split(max(1, _MOST_COUNTS // max(1, shape.numel()))):
        by_chance = _better_sign_disclosure(taken, (nontargets - share * taken).clamp(min=0))
        largest += [find_largest(each)[0] for each in by_chance]
    by_chance = torch.stack(largest).masked_fill(is_undefined, torch.nan)
    return SelfCalibratedDisclosure(values, by_chance.nanmean(), find_largest(by_chance)[0])


def _better_sign_disclosure(targets: Tensor, nontargets: Tensor) -> Tensor:
    """Return D_ECE of counts ``(..., C)`` by cell, for scores or for negated scores: the larger one."""
    return torch.stack([expected_disclosure(steps) for steps in steps_of_both_signs(targets, nontargets)]).amax(0)


def linkability_chance_level(scores: ConditionScores, cells: CountingCells, permuted_targets: Tensor) -> Tensor:
    """Return the linkability with speakers permuted, the mean over all permutations."""
    edges = cells.linkability_edges
    nontargets = widen(scores.trials.count_between(edges))[0]
    bin_of_cell = torch.bucketize(cells.values, widen(edges), right=True)
    targets = nontargets.new_zeros(len(permuted_targets), len(nontargets))
    targets.index_add_(1, bin_of_cell, widen(permuted_targets.sum(1)))
    value = linkability_of_bins(torch.stack([nontargets.expand_as(targets), targets])).nanmean()
    return torch.where(edges[0].isnan(), torch.nan, value)
