"""Which attack is chosen for each fold of speakers by what it finds in the others, and what is found in this way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import widen
from vpmetrics._scores.measures import eer_of_steps, expected_disclosure
from vpmetrics._scores.steps import Steps, calibrate
from vpmetrics._trials import shares

STEPS = 1 << 10  # of the score axis that choices are made with
AS_STRONG, NOISE = 0.97, 0.001  # share of the strongest, and bits below that


class Choice(NamedTuple):
    """What is found by the attacks that folds have chosen; see :class:`vpmetrics._trials.strongest.Strongest`."""

    d_ece: Tensor
    eer: Tensor
    attack: Tensor
    each: Tensor
    chosen: Tensor


class _Candidates(NamedTuple):
    """The attacks that are here, then each turned round: where they stand among all, and their trials by step."""

    place: Tensor  # (2 a,)
    targets: Tensor  # (2 a, K, S)
    nontargets: Tensor

    @classmethod
    def of(cls, targets: Tensor, nontargets: Tensor, own: slice | list[int], attacks: int) -> _Candidates:
        """From counts ``(a, K, B)``."""
        place = torch.arange(attacks, device=targets.device)[own]
        both = (torch.cat([counts, counts.flip(-1)]) for counts in _condense(targets, nontargets))
        return cls(torch.cat([place, attacks + place]), *both)

    @property
    def pooled(self) -> Steps:
        """All folds of each."""
        return Steps(self.targets.new_empty(0), self.targets.sum(1), self.nontargets.sum(1))

    def found(self, attacks: int) -> Tensor:
        """D_ECE of every attack in all folds but each, and then in all, ``(2 A, K + 1)``; 0 for those elsewhere."""
        sums = [counts.sum(1, keepdim=True) for counts in (self.targets, self.nontargets)]
        both = (torch.cat([whole - counts, whole], dim=1) for whole, counts in zip(sums, self[1:], strict=True))
        found = expected_disclosure(Steps(self.targets.new_empty(0), *both))
        return found.new_zeros(2 * attacks, found.shape[1]).index_copy(0, self.place, found)

    def of_best(self, best: Tensor) -> Tensor:
        """Calibrated steps of each fold's attack, its targets and non-targets there, ``(3, K, S)``; 0 if elsewhere."""
        if len(self.place) == 0:
            return self.targets.new_zeros(3, *self.targets.shape[1:])
        is_best = self.place[:, None] == best
        at, fold = is_best.to(torch.uint8).argmax(0), torch.arange(len(best), device=best.device)
        rows = torch.stack([calibrate(self.pooled)[at], self.targets[at, fold], self.nontargets[at, fold]])
        return torch.where(is_best.any(0)[:, None], rows, 0)


def choose(sets: Sequence[tuple[Tensor, Tensor]], own: slice | list[int], attacks: int) -> list[Choice]:
    """What is found where for every fold the others choose the attack, in several sets of targets and non-targets.

    Counts ``(a, K, B)`` are those of the attacks that are here, which stand at ``own`` among all of them; what
    processes tell each other is what they find, and then the few steps that are chosen.
    """
    here = [_Candidates.of(*counts, own, attacks) for counts in sets]
    found = shares.totals(*(each.found(attacks) for each in here))
    best = [_best_of(each[:, :-1]) for each in found]
    rows = shares.totals(*(each.of_best(of) for each, of in zip(here, best, strict=True)))
    return [_choice(*each, attacks) for each in zip(found, best, rows, strict=True)]


def _best_of(found: Tensor) -> Tensor:
    """The first that is as strong but for noise: of those that find the same, the one best elsewhere is worst here."""
    found = found.nan_to_num(-torch.inf)
    return (found >= AS_STRONG * found.amax(0) - NOISE).to(torch.uint8).argmax(0)


def _choice(found: Tensor, best: Tensor, rows: Tensor, attacks: int) -> Choice:
    together = _steps_of_llr(*rows.flatten(1))
    chosen = torch.stack([best % attacks, best // attacks])
    each = found[:, -1].view(2, attacks).amax(0)
    return Choice(expected_disclosure(together), eer_of_steps(together), chosen[0].mode().values, each, chosen)


def _condense(targets: Tensor, nontargets: Tensor) -> tuple[Tensor, Tensor]:
    """Counts in steps that hold as many targets each, ``(A, K, S)``.

    Bins without targets are a step of their own where they lie between two such, or beyond all targets, so that with
    few targets nothing is lost in either direction.
    """
    targets, nontargets = widen(targets), widen(nontargets)
    mass = targets.sum(1)
    up_to, total = mass.cumsum(-1), mass.sum(-1, keepdim=True)

    def step_of(number: Tensor) -> Tensor:
        return (number * STEPS / total).nan_to_num().floor().clamp(-1, STEPS - 1).long()

    after, before = step_of(up_to), step_of(up_to - 1)
    between = 2 * before + torch.where((after == before) & (up_to < total), 0, 1)
    step = 1 + torch.where(mass > 0, 2 * step_of(up_to - mass), between)
    step = torch.where(up_to == 0, 0, step)[:, None]
    empty = targets.new_zeros(*targets.shape[:2], 2 * STEPS + 1)
    condensed = [empty.scatter_add(-1, step.expand_as(counts), counts) for counts in (targets, nontargets)]
    return condensed[0], condensed[1]


def _steps_of_llr(llr: Tensor, targets: Tensor, nontargets: Tensor) -> Steps:
    """Steps of log-likelihood ratios that occur so often in each class."""
    values, place = torch.unique(llr, return_inverse=True)
    sums = (counts.new_zeros(len(values)).index_add(0, place, counts) for counts in (targets, nontargets))
    return Steps(values[1:], *sums)
