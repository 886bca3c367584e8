"""Trials that come with their scores, and calibration carried from one run to another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from vpmetrics._engine.calibration import linear_map, transferred_llr
from vpmetrics._engine.distributed import SINGLE_PROCESS
from vpmetrics._engine.jackknife import JackknifeGroups
from vpmetrics._engine.measures import evidence, llr_disclosure
from vpmetrics._engine.precision import wide_dtype, widen
from vpmetrics._engine.utterances import EvaluationData, split_sessions
from vpmetrics._engine.validation import suppress_warnings


class TrialList(NamedTuple):
    """Trials of one condition: scores and labels ``(P,)``, and the places of both speakers ``(2, P)`` where known.

    ``is_one_sided``: both sides are the same utterances, and each pair is there once.
    """

    scores: Tensor
    is_target: Tensor
    speakers: Tensor | None = None
    is_one_sided: bool = False

    def pair_means(self, values: Tensor, speakers: int) -> Tensor:
        """Return means of a value of every trial by its two speakers, ``(S, S)``; NaN where there is no trial."""
        sums, trials = self._pair_sums(torch.stack([values, torch.ones_like(values)]), speakers)
        return torch.where(trials > 0, sums / trials, torch.nan)

    def _pair_sums(self, values: Tensor, speakers: int) -> Tensor:
        rows, columns = self.places()
        sums = values.new_zeros(len(values), speakers * speakers, dtype=wide_dtype(values.device))
        sums = sums.index_add(1, rows * speakers + columns, values.to(sums.dtype)).view(-1, speakers, speakers)
        return sums + sums.mT if self.is_one_sided else sums

    def places(self) -> Tensor:
        """Return the places of both speakers, ``(2, P)``."""
        if self.speakers is None:
            raise ValueError("Expected `speakers` of the trials, but got None.")
        return self.speakers

    def similarity_weights(self, slopes: Tensor) -> Tensor:
        """Return by how much mean similarities grow with the calibrated value of each trial, ``(2, P)``.

        ``slopes`` ``(2, S, S)``: by how much similarities and their logarithms grow with what they average.
        """
        rows, columns = self.places()
        trials = self._pair_sums(torch.ones_like(slopes[:1, 0, 0]).expand(1, len(rows)), slopes.shape[1])[0]
        is_own = torch.eye(len(trials), dtype=torch.bool, device=trials.device)
        is_known = trials > 0
        pairs = torch.where(is_own, (is_known & is_own).sum(), (is_known & ~is_own).sum())
        # Within one side a pair stands in both orders, and so do its trials.
        return (slopes / (trials * pairs))[:, rows, columns] * (2 if self.is_one_sided else 1)

    def calibrate_across_speakers(self) -> list[TrialList]:
        """Return trials within either half of the speakers, calibrated linearly as learnt within the other half.

        Empty where either half has no such calibration.
        """
        halves = [(self.places() % 2 == number).all(0) for number in (0, 1)]
        trials = [(self.scores[half], self.is_target[half]) for half in halves]
        with suppress_warnings():
            runs = [TrialList(linear_map(*fit)(own[0]), own[1]) for own, fit in (trials, trials[::-1])]
        return [] if any(bool(run.scores.isnan().any()) or not len(run.scores) for run in runs) else runs

    def replicate_disclosure(self, llr: Tensor, groups: JackknifeGroups) -> Tensor:
        """Return D_ECE of log-likelihood ratios of all trials, then without each group, ``(1 + G,)``."""
        return self._replicate_costs(evidence(torch.where(self.is_target, llr, -llr)), groups)

    def replicate_cllr(self, llr: Tensor, groups: JackknifeGroups) -> Tensor:
        """Return the same of Cllr."""
        return self._replicate_costs(softplus(torch.where(self.is_target, -llr, llr)), groups)

    def _replicate_costs(self, values: Tensor, groups: JackknifeGroups) -> Tensor:
        means = []
        for kind in (self.is_target, ~self.is_target):
            first, second = groups.group_of_label[self.places()[:, kind]]
            second = torch.where(first == second, groups.number, second)
            each = torch.stack([widen(values)[kind], torch.ones_like(widen(values)[kind])])
            gone = each.new_zeros(2, groups.number + 1).index_add(1, first, each).index_add(1, second, each)
            sums = each.sum(1, keepdim=True) - pad(gone[:, :-1], (1, 0))
            means.append(sums[0] / sums[1])
        return (means[0] + means[1]) / (2 * math.log(2))


def calibrate_across_sessions(
    data: EvaluationData, trials_of: Callable[[EvaluationData], TrialList], calibration: str = "linear"
) -> list[TrialList]:
    """Return the trials of either half of every speaker's sessions, calibrated as learnt on the other half."""
    runs = [trials_of(half._replace(processes=SINGLE_PROCESS)) for half in split_sessions(data)]
    return [
        attacked._replace(scores=transferred_llr(*attacked[:2], *fit[:2], calibration, validate_args=False))
        for attacked, fit in (runs, runs[::-1])
    ]


def mean_distortion(runs: Sequence[TrialList]) -> Tensor:
    """Return C_ECE, the mean over runs; NaN where nobody has two sessions."""
    return torch.stack([llr_disclosure(run.scores, run.is_target) for run in runs]).mean()
