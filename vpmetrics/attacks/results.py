"""What the fused attacker returns.

Its result in a condition, the table of attacks and the learning curve.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from vpmetrics.attacks.features import PROFILES, AttackName

PROFILE_KEYS = ("nothing", "protected", "labelled", "pairs")
"""How keys of the profiles end: ``op_d_ece_pairs``."""


class AttackShare(NamedTuple):
    """What one attack finds by itself, and its share of the fused score.

    ``d_ece``: in its better direction, from a sample of pairs, the largest of its settings.
    ``share``: what its scores add to the distance between the means of targets and of non-targets,
    over that distance; shares add up to 1.
    """

    name: str
    needs: str
    d_ece: float
    share: float


class ReportedAttack(NamedTuple):
    """An attack of a report: D_ECE in bits and share of the fused score, by condition."""

    name: str
    needs: str
    d_ece: Mapping[str, float]
    share: Mapping[str, float]


class LearningCurve(NamedTuple):
    """D_ECE by the number of speakers that attacks are fitted on.

    ``num_speakers``, ``d_ece``: points of the curve, from few speakers to all. ``limit``: ``a`` of
    ``a + b / n`` through the last point of at most half of the speakers and that of all, observed
    ones included; at least the value of all; NaN where that is within chance, or for fewer than 32
    speakers.
    """

    num_speakers: tuple[int, ...]
    d_ece: tuple[Tensor, ...]
    limit: Tensor


@dataclass(frozen=True, eq=False)
class FusedResult:
    """What the fused attacker learns in one condition.

    ``measures``: by key, of the chosen branch. ``by_profile``: D_ECE by key of the profile, each at
    least that of the profiles it includes. ``profile``: number of the chosen profile; None where
    plain comparison finds at least as much, then ``plain_encoder`` and ``is_negated`` tell which
    one. ``attacks``: the table of attacks by themselves. ``curve``: the learning curve, where it
    was asked for. ``replicates``: measures of all speakers and without each group, ``(1 + G,)``.
    """

    measures: dict[str, Tensor]
    chance: Tensor
    num_fitted_speakers: Tensor
    by_profile: dict[str, Tensor]
    profile: int | None = None
    plain_encoder: int = 0
    is_negated: bool = False
    attacks: tuple[AttackShare, ...] = ()
    curve: LearningCurve | None = None
    replicates: dict[str, Tensor] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether plain comparison finds at least as much as the fused attacker."""
        return self.profile is None

    @property
    def name(self) -> str:
        """What is compared."""
        return "plain" if self.is_plain else "fused attacks"

    @property
    def needs(self) -> str:
        """What the attacker must have."""
        return PROFILES[self.profile or 0]

    def scalars(self) -> dict[str, Tensor]:
        """Return the numbers by their keys."""
        profiles = {f"d_ece_{name}": value for name, value in self.by_profile.items()}
        return {
            **self.measures,
            "d_ece_chance": self.chance,
            "attack_speakers": self.num_fitted_speakers,
            **profiles,
        }


def tabulate_attacks(
    labels: Sequence[AttackName], d_ece_of_feature: Sequence[float], shares: Sequence[float]
) -> tuple[AttackShare, ...]:
    """Return what each attack finds by itself in its best setting, and its share.

    The share is that of all its settings.
    """
    best = dict.fromkeys(labels, -math.inf)
    share = dict.fromkeys(labels, 0.0)
    for label, d_ece, share_of_feature in zip(labels, d_ece_of_feature, shares, strict=True):
        best[label] = max(best[label], d_ece)
        share[label] += share_of_feature
    return tuple(AttackShare(*label, best[label], share[label]) for label in best)


def report_attacks(
    known: Sequence[AttackName], results: Mapping[str, FusedResult]
) -> tuple[ReportedAttack, ...]:
    """Return all attacks in the results by condition.

    Each has the disclosure it finds by itself, and its share.

    ``known``: attacks that are listed first, whether some condition has them or not.
    """
    d_ece: dict[tuple[str, str], dict[str, float]] = {(name, needs): {} for name, needs in known}
    share: dict[tuple[str, str], dict[str, float]] = {(name, needs): {} for name, needs in known}
    for condition, result in results.items():
        for attack in result.attacks:
            key = (attack.name, attack.needs)
            d_ece.setdefault(key, {})[condition] = attack.d_ece
            share.setdefault(key, {})[condition] = attack.share
    return tuple(ReportedAttack(*key, d_ece[key], share[key]) for key in d_ece)
