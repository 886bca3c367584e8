"""What the trials of every speaker disclose, by the calibration all trials have together.

A trial of two speakers is one of either: on the enrolled side it belongs to the reference's speaker, on the probed side
to the probe's. Sums per pair of voices come from the pass that makes similarity matrices.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import wide_dtype
from vpmetrics._scores.measures import evidence
from vpmetrics._scores.steps import calibrate
from vpmetrics._trials import shares
from vpmetrics._trials.identification import Identification
from vpmetrics._trials.pairs import Tile, TrialGrid
from vpmetrics._trials.scores import ConditionScores


class Disclosed(NamedTuple):
    r"""What the trials of each speaker on one side disclose; all fields ``(S,)``.

    ``of_targets`` and ``of_nontargets`` are the two halves of a speaker's D_ECE in bits, and ``targets`` and
    ``nontargets`` how many trials each is the mean of; NaN for none. ``l_w``: the strongest evidence among them.
    """

    of_targets: Tensor
    of_nontargets: Tensor
    targets: Tensor
    nontargets: Tensor
    l_w: Tensor

    @property
    def d_ece(self) -> Tensor:
        """D_ECE of each speaker, both kinds of trials weighing the same; NaN where one kind is missing."""
        return self.of_targets + self.of_nontargets

    @property
    def contributions(self) -> Tensor:
        """What each speaker adds to the D_ECE of all, which is the sum of these.

        The half of targets weighs as the speaker's share of all targets, that of non-targets as the share of those.
        """
        halves = (self.of_targets, self.targets), (self.of_nontargets, self.nontargets)
        parts = [torch.where(trials > 0, half * trials, 0) / trials.sum() for half, trials in halves]
        return parts[0] + parts[1]


class SpeakerDisclosure(NamedTuple):
    """Disclosure of every speaker: as the one who is known, as the one who is looked for, and as either.

    ``speakers`` ``(S,)``, ascending. A target trial has the same speaker on both sides. In ``both`` it counts once, and
    a non-target trial for each of its two speakers.
    """

    speakers: Tensor
    enrolled: Disclosed
    probed: Disclosed
    both: Disclosed


class SpeakerIdentification(NamedTuple):
    """Bits that the inputs of each speaker disclose in identification; all fields ``(S,)``.

    ``mean_d`` is the mean of what their ranks disclose, by the empirical histogram of all, and ``alid`` that of their
    local information. Weighted by ``inputs``, the number of them, both recombine to those of all.
    """

    speakers: Tensor
    inputs: Tensor
    mean_d: Tensor
    alid: Tensor


class Evidence:
    """What finds the evidence of trials, and the strongest that each voice has met, by a calibration of all of them."""

    def __init__(self, scores: ConditionScores) -> None:
        llr = calibrate(scores.counts.ascending)
        self.tables = evidence(-llr), evidence(llr)  # of non-targets and of targets
        self.strengths = calibrate(scores.counts.ascending, laplace=True).abs().detach()
        self._strength_of = scores.look_up([self.strengths])

    def strengthen(self, part: TrialGrid, tile: Tile, strongest: Tensor) -> None:
        """Take in the strongest of a tile, for each voice as a reference and as a probe ``(2, V)``."""
        places = part.rows.voices_at(tile.row), part.columns.voices_at(tile.column)
        scores = tile.scores.detach()
        low, high = (scores if tile.excluded is None else scores.masked_fill(tile.excluded, end) for end in _NOWHERE)
        for side, (voices, place) in enumerate(zip(part.voices_of(tile), places, strict=True)):
            # Evidence grows with the score, so the strongest is that of the lowest score or of the highest.
            ends = torch.stack([low.amin(1 - side), high.amax(1 - side)])
            unseen = ends[0] > ends[1]  # without a trial
            found = self._strength_of(ends)[0].amax(0).masked_fill(unseen, 0)
            strongest[side, place].scatter_reduce_(0, voices - place.start, found, "amax")


_NOWHERE = (torch.inf, -torch.inf)  # neither the lowest nor the highest


def disclosure_of_trials(
    scores: ConditionScores, preds: Tensor, is_target: Tensor, speakers: Tensor, names: Tensor
) -> SpeakerDisclosure:
    """What trials ``(P,)`` disclose of the names ``(S,)`` among which their speakers have the places ``(2, P)``."""
    known = Evidence(scores)
    of_nontargets, of_targets, strengths = scores.look_up([*known.tables, known.strengths])(preds.clone())
    each = torch.where(is_target, of_targets, of_nontargets)
    each = torch.stack([each, torch.ones_like(each)])
    empty = each.new_zeros(2, len(names))
    sums = [empty.index_add(1, speakers[0], each * is_target)]
    sums += [empty.index_add(1, place, each * ~is_target) for place in speakers]
    strongest = empty.scatter_reduce(1, speakers, strengths.expand(2, -1), "amax")
    return disclosure_of_sums(names, torch.stack(sums), strongest, scores.within)


def identification_by_speaker(found: Identification) -> SpeakerIdentification:
    """What all inputs of each speaker disclose, by ascending speaker."""
    names, place, inputs = found.speakers.unique(return_inverse=True, return_counts=True)
    bits = torch.stack([found.rank_bits, found.bits]).to(wide_dtype(names.device))
    means = bits.new_zeros(2, len(names)).index_add(1, place, bits) / inputs
    names, inputs, means = map(shares.of_all, (names, inputs, means.mT))
    return SpeakerIdentification(names, inputs, *means.unbind(1))


def disclosure_of_sums(names: Tensor, sums: Tensor, strongest: Tensor, within: bool) -> SpeakerDisclosure:
    """What adds up to so much evidence, and so many trials, of each name ``(3, 2, S)``.

    With itself, with others as the one who is known, and as the one who is looked for; ``strongest``: as one of these.
    """
    order = names.argsort(stable=True)
    own, *others = sums[..., order]
    sides = [(other, worst) for other, worst in zip(others, strongest[:, order], strict=True)]
    sides.append((others[0] + others[1], strongest.amax(0)[order]))
    # Where both sides are the same, which of two utterances was the row says nothing.
    return SpeakerDisclosure(names[order], *(_disclosed(own, *(sides[-1] if within else side)) for side in sides))


def _disclosed(own: Tensor, others: Tensor, strongest: Tensor) -> Disclosed:
    of_targets, of_nontargets = (sums / trials / (2 * math.log(2)) for sums, trials in (own, others))
    sums, trials = own + others
    # Of what is unknown to one process another may know a strongest.
    l_w = torch.where((trials > 0) & ~sums.isnan(), strongest / math.log(10), torch.nan)
    return Disclosed(of_targets, of_nontargets, own[1], others[1], l_w)
