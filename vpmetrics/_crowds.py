"""What becomes of people in a crowd: how often they are found, and how often one is singled out, over all groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import unsaid, warn_undefined
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.galleries import Listening, crowd_of_conversations, hear, trials_of_conversations
from vpmetrics._trials.isolation import isolation_rates
from vpmetrics._trials.left_out import Blocks
from vpmetrics._trials.left_out_ranks import LeftOutRanks, identify_without
from vpmetrics._trials.ranks import first_among, histogram_of_trials
from vpmetrics._trials.scorers import Scoring
from vpmetrics._trials.strongest import Attackers, Strongest
from vpmetrics._trials.utterances import Sides, places_of
from vpmetrics.functional.crowd import reidentification_rate


@dataclass(frozen=True, eq=False)
class Rates:
    """How often somebody is found in a condition, for any sizes and by any number of utterances: a pass each."""

    sides: Sides
    condition: Condition
    scoring: Scoring
    bandwidth: float | None = None
    attackers: Attackers | None = None
    strongest: Strongest | None = None

    def __call__(self, sizes: Sequence[int], utterances: int = 1) -> dict[str, Tensor]:
        """What :class:`vpmetrics.ReidentificationRate` returns."""
        listening = Listening(self.condition, utterances)
        return rates_of_sides(self.sides, listening, sizes, self.scoring, self.bandwidth)

    def of_strongest(self, sizes: Sequence[int], utterances: int = 1) -> dict[str, Tensor]:
        """The same after the attack that each fold of speakers was given; nothing without any.

        People are looked for within their fold, for the attack has seen all others. Larger folds would need less
        extrapolation, but leave so few to learn from that, of some dozens, the attack finds less than it could.
        """
        if self.attackers is None or self.strongest is None:
            return {}
        parts = [
            _rates(fold, Listening(self.condition, utterances, attack=attack), sizes, attack.compare)
            for fold, attack in self.attackers.chosen(self.condition, self.strongest)
        ]
        names = [*(f"rate_{size}" for size in sizes), *(f"chance_{size}" for size in sizes), "gallery"]
        unknown = torch.full_like(self.strongest.d_ece, torch.nan)
        return _averaged(parts) if parts else dict.fromkeys(names, unknown)

    def without(self, sizes: Sequence[int], blocks: Blocks) -> dict[str, Tensor]:
        """The rates of all speakers, then without each block, ``(1 + G,)``; of sizes that are counted everywhere."""
        return rates_without(self.sides, Listening(self.condition), sizes, self.scoring, blocks)

    def strongest_without(self, sizes: Sequence[int], blocks: Blocks) -> dict[str, Tensor]:
        """The same after the attack of each fold, as it was chosen and fitted."""
        if self.attackers is None or self.strongest is None:
            return {}
        chosen = self.attackers.chosen(self.condition, self.strongest)
        heard = [(fold, Listening(self.condition, attack=attack), attack.compare) for fold, attack in chosen]
        return _rates_without(heard, sizes, blocks)

    def isolation_of_strongest(self, sizes: Sequence[int]) -> dict[str, Tensor]:
        """How often a predicate singles one out of people whom that attack has not seen, and the error of it.

        There is no extrapolating this, so there are as many folds as still hold so many people. NaN for more than half
        of all.
        """
        if self.attackers is None or self.strongest is None:
            return {}
        names = [f"singling_out_{size}{end}" for size in sizes for end in ("", "_error")]
        values = dict.fromkeys(names, torch.full_like(self.strongest.d_ece, torch.nan))
        for most, some in groupby(sorted(sizes), self.attackers.folds_for):
            among = list(some)
            with unsaid():
                parts = [
                    _isolated(fold, Listening(self.condition, attack=attack), among, attack.compare)
                    for fold, attack in self.attackers.chosen(self.condition, self.strongest, most)
                ]
            values |= _averaged(parts) if parts else {}
        lacking = [size for size in sizes if bool(values[f"singling_out_{size}"].isnan())]
        if lacking and not bool(self.strongest.d_ece.isnan()):
            warn_undefined(
                f"Singling one out of {max(lacking)} people after an attack needs twice as many, each with two "
                "conversations, for the others teach the attack."
            )
        return values

    def longest(self) -> int:
        """How many utterances half of all people, at least, have for a conversation."""
        heard = hear(self.sides, Listening(self.condition))[1]
        counts = torch.bincount(places_of(heard, "sessions")[0])
        return int(counts.median()) if len(counts) else 0


def _rates_without(
    parts: Sequence[tuple[Sides, Listening, Scoring]], sizes: Sequence[int], blocks: Blocks
) -> dict[str, Tensor]:
    heard = [(trials_of_conversations(sides, listening), scoring) for sides, listening, scoring in parts]
    heard = [(trials, scoring) for trials, scoring in heard if len(trials.references.speakers) > 1]
    fewest = min((len(trials.references.speakers) for trials, _ in heard), default=0)
    counted = [size for size in sizes if size <= fewest]
    if not counted:  # beyond, the error of a model would come on top, which leaving speakers out does not show
        return {}
    found = [identify_without(trials, None, scoring, blocks) for trials, scoring in heard]
    rates = torch.stack([_first_of(each, counted) for each in found])
    inputs = torch.stack([each.histograms.sum(1) for each in found]).unsqueeze(1)
    means = torch.where(inputs > 0, inputs * rates, 0).sum(0) / inputs.sum(0)
    return {f"rate_{size}": mean for size, mean in zip(counted, means, strict=True)}


def _first_of(found: LeftOutRanks, sizes: Sequence[int]) -> Tensor:
    """Rates ``(sizes, 1 + G)`` among as many people, or among all who are left; there are few numbers of these."""
    rates = found.histograms.new_zeros(len(sizes), len(found.references))
    for number in found.references.unique().long().tolist():
        rows = (found.references == number).nonzero().flatten()
        shares = found.histograms[rows, :number]
        shares = shares / shares.sum(1, keepdim=True)
        rates[:, rows] = first_among(shares, [min(size, number) for size in sizes]).T
    return rates


class _Weighted(NamedTuple):
    """Values of one group, and how many probes or predicates they rest on."""

    values: dict[str, Tensor]
    weight: Tensor


def rates_of_sides(
    sides: Sides, listening: Listening, sizes: Sequence[int], scoring: Scoring, bandwidth: float | None = None
) -> dict[str, Tensor]:
    """How often the speaker of a conversation comes first among so many people of their group."""
    return _over_groups(sides, lambda part: _rates(part, listening, sizes, scoring, bandwidth))


def rates_without(
    sides: Sides, listening: Listening, sizes: Sequence[int], scoring: Scoring, blocks: Blocks
) -> dict[str, Tensor]:
    """The same of all speakers, then without each block, ``(1 + G,)``; of sizes that are counted everywhere."""
    groups = sides.groups()
    parts = [sides] if len(groups) < 2 else [sides.of_group(group) for group in groups]
    return _rates_without([(part, listening, scoring) for part in parts], sizes, blocks)


def _rates(
    sides: Sides, listening: Listening, sizes: Sequence[int], scoring: Scoring, bandwidth: float | None = None
) -> _Weighted:
    histogram = histogram_of_trials(trials_of_conversations(sides, listening), scoring, bandwidth)
    return _Weighted(reidentification_rate(histogram, sizes), histogram.detach().sum())


def isolation_of_sides(
    sides: Sides, listening: Listening, sizes: Sequence[int], scoring: Scoring, calibration: int = 9, draws: int = 20
) -> dict[str, Tensor]:
    """How often a predicate fires on exactly one of so many people of a group."""
    return _over_groups(sides, lambda part: _isolated(part, listening, sizes, scoring, calibration, draws))


def _isolated(
    sides: Sides, listening: Listening, sizes: Sequence[int], scoring: Scoring, calibration: int = 9, draws: int = 20
) -> _Weighted:
    crowd = crowd_of_conversations(sides, listening, calibration)
    values = isolation_rates(crowd, sizes, scoring, draws)
    return _Weighted(values, crowd.counts.new_tensor(len(crowd.predicates)))


def _over_groups(sides: Sides, value_of: Callable[[Sides], _Weighted]) -> dict[str, Tensor]:
    """The values where nobody named groups; otherwise their means over the groups that have them, by weight."""
    groups = sides.groups()
    if len(groups) < 2:
        return value_of(sides).values
    return _averaged([value_of(sides.of_group(group)) for group in groups])


def _averaged(parts: Sequence[_Weighted]) -> dict[str, Tensor]:
    """Means over those that have a value, by weight; the smallest of all galleries."""
    weights = torch.stack([part.weight for part in parts])
    return {key: _mean(key, torch.stack([part.values[key] for part in parts]), weights) for key in parts[0].values}


def _mean(key: str, values: Tensor, weights: Tensor) -> Tensor:
    known = ~values.isnan()
    if key == "gallery":  # from here on at least one of the groups is extrapolated
        smallest = torch.where(known, values, torch.inf).amin()
        return torch.where(smallest.isinf(), torch.nan, smallest)
    shares = torch.where(known, weights.to(values), 0)
    shares = shares / shares.sum()
    weighted = shares * values.nan_to_num(0)
    return weighted.square().sum().sqrt() if key.endswith("_error") else weighted.sum()
