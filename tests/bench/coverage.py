"""How often intervals hold the truth: voices to draw, what is true of a large population, and ways to an interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

import vpmetrics as vp
from vpmetrics import functional as F

MEASURES = ("d_ece", "d_ece_reversed", "eer", "raw_eer", "min_cllr", "cllr", "linkability")
DIMENSIONS = 16
Trials = tuple[Tensor, Tensor, tuple[Tensor, Tensor]]
Ends = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Population:
    """Voices N(0, spread), utterances N(voice, 1): how alike a speaker's utterances are, and how they come."""

    spread: float
    utterances: int = 10
    uneven: bool = False  # a third to twice as many utterances
    sessions: float = 0.0  # how far the two halves of a speaker's utterances lie apart

    def draw(self, speakers: int, draw: torch.Generator) -> Trials:
        """Every pair of utterances of so many speakers."""
        counts = torch.full((speakers,), self.utterances)
        if self.uneven:
            counts = torch.randint(self.utterances // 3, 2 * self.utterances, (speakers,), generator=draw)
        names = torch.arange(speakers).repeat_interleave(counts)
        session = 2 * names + torch.arange(len(names)) % 2
        voices, shifts = (torch.randn(size, DIMENSIONS, generator=draw) for size in (speakers, 2 * speakers))
        rows = self.spread * voices[names] + self.sessions * shifts[session]
        rows = normalize(rows + torch.randn(len(names), DIMENSIONS, generator=draw)).double()
        one, other = torch.triu_indices(len(names), len(names), 1)
        # As log-likelihood ratios cosines are far too weak, and four times as strong of the right size.
        return 4 * (rows @ rows.T)[one, other], names[one] == names[other], (names[one], names[other])

    def truth(self, sets: int = 8, speakers: int = 300) -> dict[str, float]:
        """What each measure is for very many speakers."""
        draw, total = torch.Generator().manual_seed(99), dict.fromkeys(MEASURES, 0.0)
        for _ in range(sets):
            preds, target, _ = self.draw(speakers, draw)
            for key, value in values(preds, target).items():
                total[key] += float(value) / sets
        return total


def values(preds: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Every measure of some trials."""
    zebra = F.zebra_disclosure(preds, target)
    return {
        "d_ece": zebra["d_ece"],
        "d_ece_reversed": zebra["d_ece_reversed"],
        "eer": F.equal_error_rate(preds, target),
        "raw_eer": F.raw_equal_error_rate(preds, target),
        "min_cllr": F.min_cllr(preds, target),
        "cllr": F.cllr(preds, target),
        "linkability": F.linkability(preds, target),
    }


def by_leaving_out(preds: Tensor, target: Tensor, speakers: tuple[Tensor, Tensor]) -> Ends:
    """The intervals of the metrics of scores."""
    found: Ends = {}
    for metric in (vp.ZebraDisclosure, vp.EqualErrorRate, vp.MinCllr, vp.Cllr, vp.Linkability):
        value = metric(intervals=0.95, validate_args=False)(preds, target, speakers)
        found |= {
            key[:-4]: (float(low), float(value[f"{key[:-4]}_high"])) for key, low in value.items() if "_low" in key
        }
    return found


def by_drawing(preds: Tensor, target: Tensor, speakers: tuple[Tensor, Tensor]) -> Ends:
    """The intervals of speakers drawn anew."""
    found = F.bootstrap(preds, target, speakers, replicates=200, validate_args=False)
    return {key: (float(each.low), float(each.high)) for key, each in found.items()}


def as_if_independent(preds: Tensor, target: Tensor, _: tuple[Tensor, Tensor]) -> Ends:
    """The intervals of trials drawn anew, as if each were of speakers of its own."""
    alone = torch.arange(len(preds))
    found = F.bootstrap(preds, target, (alone, alone), replicates=60, validate_args=False)
    return {key: (float(each.low), float(each.high)) for key, each in found.items()}


WAYS: dict[str, Callable[..., Ends]] = {
    "leaving out": by_leaving_out,
    "drawing": by_drawing,
    "independent": as_if_independent,
}


def coverage(population: Population, speakers: int, sets: int, ways: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """The share of sets whose interval holds the truth, by way and measure."""
    draw, truth = torch.Generator().manual_seed(7), population.truth()
    held = {way: dict.fromkeys(MEASURES, 0.0) for way in ways}
    for _ in range(sets):
        trials = population.draw(speakers, draw)
        for way in ways:
            for key, (low, high) in WAYS[way](*trials).items():
                held[way][key] += (low <= truth[key] <= high) / sets
    return held
