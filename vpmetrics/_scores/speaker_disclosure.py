"""What the trials of every single speaker disclose, and what they would with speakers permuted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._scores.condition_scores import ConditionScores
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.score_counts import Finder, d_ece_term
from vpmetrics._util.dtypes import wide_dtype

if TYPE_CHECKING:
    from vpmetrics._identification.identification import Identification


class TrialSideDisclosure(NamedTuple):
    """Disclosure by the trials of each speaker on one side.

    All fields ``(S,)``, NaN where there are no trials.
    """

    of_targets: Tensor  # first half of the speaker's D_ECE, in bits
    of_nontargets: Tensor  # second half
    targets: Tensor  # number of trials
    nontargets: Tensor
    l_w: Tensor  # strongest evidence

    @property
    def d_ece(self) -> Tensor:
        """D_ECE of each speaker, both kinds of trials with equal weight.

        NaN where one kind is missing.
        """
        return self.of_targets + self.of_nontargets

    @property
    def contributions(self) -> Tensor:
        """What each speaker adds to the D_ECE of all trials, which is the sum of these."""
        halves = torch.stack(self[:2])
        trials = torch.stack(self[2:4])
        return (torch.where(trials > 0, halves * trials, 0) / trials.sum(1, keepdim=True)).sum(0)


class SpeakerDisclosure(NamedTuple):
    """Disclosure of every speaker as enrolled, as tested and as either, calibrated on all trials.

    ``speakers`` ``(S,)``, ascending. A target trial counts once in ``both``, a non-target trial for
    both its speakers.
    """

    speakers: Tensor
    enrolled: TrialSideDisclosure
    probed: TrialSideDisclosure
    both: TrialSideDisclosure


class SpeakerIdentification(NamedTuple):
    """Mean bits of the inputs of each speaker in identification.

    With the number of these inputs, ``(S,)`` each.
    """

    speakers: Tensor
    inputs: Tensor
    mean_d: Tensor
    alid: Tensor


def _make_evidence_finder(scores: ConditionScores) -> Finder:
    """Return a function from scores to evidence: of non-targets, of targets, and its strength.

    The strength is that by Laplace's rule.
    """
    steps = scores.counts.ascending
    return scores.make_finder(
        [d_ece_term(-steps.llr), d_ece_term(steps.llr), steps.laplace_llr().abs().detach()]
    )


def compute_speaker_disclosure(
    pairs: PairBlocks, scores: ConditionScores, speakers: Tensor
) -> SpeakerDisclosure:
    """Return the disclosure of every speaker, from one more pass over the pairs."""
    find = _make_evidence_finder(scores)
    dtype = wide_dtype(speakers.device)
    # Evidence and numbers of trials: of targets, of non-targets by enrolled and by tested speaker.
    sums = torch.zeros(3, 2, len(speakers), dtype=dtype, device=speakers.device)
    strongest = torch.zeros_like(sums[0])
    for block in pairs:
        enrolled_speaker = pairs.enrolment.speaker_index[block.rows]
        tested_speaker = pairs.test.speaker_index[block.columns]
        found = find(block.scores.clone())
        nontarget_evidence = found[0].to(dtype)
        target_evidence = found[1].to(dtype)
        strength = found[2].to(dtype)
        num_nontargets = torch.ones_like(nontarget_evidence)
        if block.is_target is not None and block.is_trial is not None:
            is_target = block.is_target & block.is_trial
            evidence_of_row = torch.where(is_target, target_evidence, 0).sum(1)
            targets_of_row = is_target.to(dtype).sum(1)
            sums[0].index_add_(1, enrolled_speaker, torch.stack([evidence_of_row, targets_of_row]))
            num_nontargets = (~block.is_target & block.is_trial).to(dtype)
            nontarget_evidence = torch.where(num_nontargets > 0, nontarget_evidence, 0)
            strength = torch.where(block.is_trial, strength, 0)
        for side, speaker in enumerate((enrolled_speaker, tested_speaker)):
            other_side = 1 - side
            strongest[side].scatter_reduce_(0, speaker, strength.amax(other_side), "amax")
            evidence_of_speaker = nontarget_evidence.sum(other_side)
            nontargets_of_speaker = num_nontargets.sum(other_side)
            sums[1 + side].index_add_(
                1, speaker, torch.stack([evidence_of_speaker, nontargets_of_speaker])
            )
    (sums,) = pairs.processes.all_reduce(sums)
    (strongest,) = pairs.processes.all_reduce(strongest, op="MAX")
    return speaker_disclosure_of_sums(speakers, sums, strongest, scores.has_unordered_pairs)


def compute_disclosure_of_trials(
    scores: ConditionScores, preds: Tensor, is_target: Tensor, places: Tensor, names: Tensor
) -> SpeakerDisclosure:
    """Return the disclosure of every speaker from given trials ``(P,)``.

    ``places`` ``(2, P)`` refer to ``names``.
    """
    nontarget, target, strengths = _make_evidence_finder(scores)(preds.clone())
    evidence = torch.where(is_target, target, nontarget)
    evidence_and_count = torch.stack([evidence, torch.ones_like(evidence)])  # (2, P)
    empty = evidence_and_count.new_zeros(2, len(names))
    sums = [empty.index_add(1, places[0], evidence_and_count * is_target)]
    for speaker_of_trial in places:
        sums.append(empty.index_add(1, speaker_of_trial, evidence_and_count * ~is_target))
    strongest = empty.scatter_reduce(1, places, strengths.expand(2, -1), "amax")
    return speaker_disclosure_of_sums(
        names, torch.stack(sums), strongest, scores.has_unordered_pairs
    )


def speaker_disclosure_of_sums(
    names: Tensor, sums: Tensor, strongest: Tensor, has_unordered_pairs: bool
) -> SpeakerDisclosure:
    """Return the disclosure from sums of evidence.

    Numbers of trials are ``(3, 2, S)``, the largest evidence is ``(2, S)``.
    """
    order = names.argsort(stable=True)
    target_sums, enrolled, probed = sums[..., order]
    worst = strongest[:, order]
    sides = [(enrolled, worst[0]), (probed, worst[1]), (enrolled + probed, worst.amax(0))]
    if has_unordered_pairs:
        # Both sides are the same utterances: it is arbitrary which of two is the row.
        sides = sides[-1:] * 3
    target_evidence, num_targets = target_sums
    target_half = target_evidence / num_targets / (2 * math.log(2))
    disclosures = []
    for nontarget_sums, largest in sides:
        nontarget_evidence, num_nontargets = nontarget_sums
        nontarget_half = nontarget_evidence / num_nontargets / (2 * math.log(2))
        has_nan = (target_evidence + nontarget_evidence).isnan()
        is_defined = (num_targets + num_nontargets > 0) & ~has_nan
        l_w = torch.where(is_defined, largest / math.log(10), torch.nan)
        disclosures.append(
            TrialSideDisclosure(target_half, nontarget_half, num_targets, num_nontargets, l_w)
        )
    return SpeakerDisclosure(names[order], *disclosures)


def average_bits_by_speaker(identification: Identification) -> SpeakerIdentification:
    """Return the mean bits of the inputs of each speaker, ascending."""
    names, speaker_of_input, inputs = identification.speakers.unique(
        return_inverse=True, return_counts=True
    )
    rank_bits = identification.rank_bits
    bits = identification.bits
    if bits is None:
        bits = torch.full_like(rank_bits, torch.nan)
    else:
        bits = bits.to(rank_bits.dtype)
    sums = rank_bits.new_zeros(2, len(names))
    sums = sums.index_add(1, speaker_of_input, torch.stack([rank_bits, bits]))
    return SpeakerIdentification(names, inputs, *(sums / inputs))


def find_largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest number and its index, as a floating number.

    NaN for both where there is none.
    """
    values = pad(values, (0, 1), value=math.nan)
    index = torch.where(values.isnan(), -torch.inf, values).argmax(0, keepdim=True)
    largest = values.gather(0, index).squeeze(0)
    return largest, torch.where(largest.isnan(), torch.nan, index.squeeze(0).to(largest.dtype))


def speaker_scalars(
    disclosed: SpeakerDisclosure, identified: SpeakerIdentification | None = None
) -> dict[str, Tensor]:
    """Return which tested speaker is protected worst, and how far speakers are apart."""
    values = disclosed.probed.d_ece
    worst, worst_index = find_largest(values)
    deviations = values - values.nanmean()
    degrees_of_freedom = ((~values.isnan()).sum() - 1).clamp(min=0)
    scalars = {
        "worst_speaker_d_ece": worst,
        "worst_speaker": worst_index,
        "speaker_d_ece_spread": (deviations.square().nansum() / degrees_of_freedom).sqrt(),
    }
    if identified is not None:
        for key in ("mean_d", "alid"):
            scalars[f"worst_speaker_{key}"], _ = find_largest(getattr(identified, key))
    return scalars
