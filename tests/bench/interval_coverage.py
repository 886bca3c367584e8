"""How often intervals hold the truth: voices to draw, what is true of a large population, and ways to an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

import vpmetrics as vp
from vpmetrics import functional as F

MEASURES = ("d_ece", "d_ece_reversed", "eer", "raw_eer", "min_cllr", "cllr", "linkability")
DIMENSIONS = 16
_NOTHING = 1e-4  # of what is all but 0, as D_ECE of the negated scores, most sets say that it is 0
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

    def truth(self, sets: int = 30, speakers: int = 300) -> dict[str, float]:
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


@dataclass(frozen=True)
class System:
    """An anonymiser that keeps a share of every voice N(0, 1), under a voice of its own in each session."""

    kept: float
    uneven: bool = False
    sessions: int = 1

    def draw(self, speakers: int, draw: torch.Generator, utterances: int = 10) -> dict[str, Tensor]:
        """Utterances of so many speakers, as ``update`` takes them."""
        counts = torch.full((speakers,), utterances)
        if self.uneven:
            counts = torch.randint(utterances // 3, 2 * utterances, (speakers,), generator=draw)
        names = torch.arange(speakers).repeat_interleave(counts)
        session = torch.arange(len(names)) % self.sessions
        voices, noise = (torch.randn(size, DIMENSIONS, generator=draw) for size in (speakers, 2 * len(names)))
        keys = torch.randn(speakers * self.sessions, DIMENSIONS, generator=draw)[names * self.sessions + session]
        original = voices[names] + noise[: len(names)]
        given = {"original": original, "protected": self.kept * original + 0.5 * keys + 0.7 * noise[len(names) :]}
        return {**given, "speakers": names} | ({"sessions": session} if self.sessions > 1 else {})

    @property
    def measures(self) -> tuple[str, ...]:
        """What is told of it."""
        return ("deid", "gvd", *(f"op_{key}" for key in _OF_OP), *(("across_d_ece",) if self.sessions > 1 else ()))

    def truth(self, speakers: int) -> dict[str, float]:
        """What each measure is for very many speakers; of ranks and local bits, among so many of them."""
        draw, sets, of_ranks = torch.Generator().manual_seed(99), 30, ("op_mean_d", "op_alid")
        found = [told(self.draw(300, draw), [key for key in self.measures if key not in of_ranks]) for _ in range(sets)]
        total = {key: sum(float(each[key]) for each in found) / sets for key in found[0]}
        histogram, bits = torch.zeros(speakers), []
        for _ in range(300):
            rows = self.draw(speakers, draw)
            known = F.identify(rows["protected"], rows["speakers"], rows["original"])
            histogram, bits = histogram + known.histogram, [*bits, known.bits]
        return total | {
            "op_mean_d": float(F.rank_disclosure(histogram)["mean_d"]),
            "op_alid": float(torch.cat(bits).mean()),
        }


_OF_OP = ("d_ece", "eer", "min_cllr", "cllr", "linkability", "mean_d", "alid")


def told(rows: dict[str, Tensor], measures: Sequence[str], **settings: Any) -> dict[str, Tensor]:
    """What the suite tells of a set, without attackers."""
    suite = vp.VoicePrivacy(metrics=list(measures), attacks=None, validate_args=False, **settings)
    suite.update(**rows)
    return suite.compute()


def of_suite(rows: dict[str, Tensor], measures: Sequence[str]) -> Ends:
    """The intervals of the suite."""
    value = told(rows, measures, intervals=0.95)
    return {key: (float(value[f"{key}_low"]), float(value[f"{key}_high"])) for key in measures}


def of_drawing(rows: dict[str, Tensor], measures: Sequence[str]) -> Ends:
    """The intervals of speakers drawn anew."""
    sides = {key: rows[key] for key in ("original", "protected", "speakers")}
    found = F.bootstrap_embeddings(
        **sides, measures=[key for key in measures if key[:6] != "across"], replicates=200, validate_args=False
    )
    return {key: (float(each.low), float(each.high)) for key, each in found.items()}


WAYS_OF_EMBEDDINGS: dict[str, Callable[..., Ends]] = {"suite": of_suite, "drawing": of_drawing}


class Coverage:
    """How often intervals held the truth, by way and key."""

    def __init__(self, truth: dict[str, float]) -> None:
        self.truth, self.held = truth, {}

    def add(self, way: str, ends: Ends) -> None:
        """The intervals of one set."""
        for key in self.truth.keys() & ends.keys():
            low, high = ends[key]
            self.held.setdefault((way, key), []).append(low - _NOTHING <= self.truth[key] <= high + _NOTHING)

    def share(self, way: str, key: str) -> float:
        """How often; NaN where there was no interval."""
        held = self.held.get((way, key), [])
        return sum(held) / len(held) if held else float("nan")

    def table(self, ways: Sequence[str]) -> str:
        """A row for each key."""
        rows = [f"{'':16}{'truth':>9}" + "".join(f"{way:>14}" for way in ways)]
        for key, truth in self.truth.items():
            rows.append(f"{key:16}{truth:9.4f}" + "".join(f"{self.share(way, key):14.3f}" for way in ways))
        return "\n".join(rows)


def cover_trials(
    population: Population, speakers: int, sets: int, ways: Sequence[str], truth: dict[str, float] | None = None
) -> Coverage:
    """Intervals of trials, of many sets."""
    draw, found = torch.Generator().manual_seed(7 + speakers), Coverage(truth or population.truth())
    for _ in range(sets):
        trials = population.draw(speakers, draw)
        for way in ways:
            found.add(way, WAYS[way](*trials))
    return found


def cover_embeddings(system: System, speakers: int, sets: int, ways: Sequence[str]) -> Coverage:
    """Intervals of embeddings, of many sets."""
    draw, found = torch.Generator().manual_seed(7 + speakers), Coverage(system.truth(speakers))
    for _ in range(sets):
        rows = system.draw(speakers, draw)
        for way in ways:
            found.add(way, WAYS_OF_EMBEDDINGS[way](rows, system.measures))
    return found


def cover_strongest(system: System, speakers: int, sets: int) -> Coverage:
    """Intervals of the strongest attack, of many sets.

    An attacker learns from as many speakers as there are, so what is true is what one finds on average of as many.
    """
    draw, keys = torch.Generator().manual_seed(7 + speakers), ("op_d_ece_strongest", "op_eer_strongest")
    names = [f"{key}{end}" for key in keys for end in ("", "_low", "_high")]
    values = []
    for _ in range(sets):
        suite = vp.VoicePrivacy(metrics=list(keys), intervals=0.95, validate_args=False)
        suite.update(**system.draw(speakers, draw))
        values.append({name: float(value) for name, value in suite.compute().items() if name in names})
    found = Coverage({key: sum(value[key] for value in values) / sets for key in keys})
    for value in values:
        found.add("suite", {key: (value[f"{key}_low"], value[f"{key}_high"]) for key in keys})
    return found
