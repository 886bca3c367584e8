"""How often intervals cover the true value: simulated speakers, the true values of a large population, and methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

import vpmetrics as vp
from vpmetrics import functional as F

DIMENSIONS = 16
ATTACK_KEYS = ("disclosure", "op_d_ece_strongest", "op_eer_strongest")
_TOLERANCE = 1e-4  # D_ECE of negated scores is nearly 0 in the population and exactly 0 in most sets
Trials = tuple[Tensor, Tensor, tuple[Tensor, Tensor]]
Intervals = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class TrialPopulation:
    """Speakers N(0, spread) with utterances N(speaker, 1), compared by cosine."""

    spread: float
    utterances: int = 10
    uneven: bool = False  # a third to twice as many utterances per speaker
    sessions: float = 0.0  # distance between the two halves of a speaker's utterances

    def draw(self, speakers: int, generator: torch.Generator) -> Trials:
        """Every pair of utterances of one set of speakers."""
        labels = _draw_labels(speakers, self.utterances, self.uneven, generator)
        session = 2 * labels + torch.arange(len(labels)) % 2
        centres, shifts = (torch.randn(size, DIMENSIONS, generator=generator) for size in (speakers, 2 * speakers))
        rows = self.spread * centres[labels] + self.sessions * shifts[session]
        rows = normalize(rows + torch.randn(len(labels), DIMENSIONS, generator=generator)).double()
        first, second = torch.triu_indices(len(labels), len(labels), 1)
        # Cosines are far too weak as log-likelihood ratios; four times the cosine has the right size.
        return 4 * (rows @ rows.T)[first, second], labels[first] == labels[second], (labels[first], labels[second])

    def true_values(self, sets: int = 30, speakers: int = 300) -> dict[str, float]:
        """The mean over a few large sets."""
        generator = torch.Generator().manual_seed(99)
        return _mean(score_values(*self.draw(speakers, generator)[:2]) for _ in range(sets))


def _draw_labels(speakers: int, utterances: int, uneven: bool, generator: torch.Generator) -> Tensor:
    counts = torch.full((speakers,), utterances)
    if uneven:
        counts = torch.randint(utterances // 3, 2 * utterances, (speakers,), generator=generator)
    return torch.arange(speakers).repeat_interleave(counts)


def _mean(dictionaries: Iterable[dict[str, Any]]) -> dict[str, float]:
    rows = list(dictionaries)
    return {key: sum(float(row[key]) for row in rows) / len(rows) for key in rows[0]}


def score_values(preds: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Every measure of one set of trials."""
    zebra = F.zebra_disclosure(preds, target)
    names = ("equal_error_rate", "raw_equal_error_rate", "min_cllr", "cllr", "linkability")
    eer, raw_eer, *others = (getattr(F, name)(preds, target) for name in names)
    return {key: zebra[key] for key in ("d_ece", "d_ece_reversed")} | {
        "eer": eer,
        "raw_eer": raw_eer,
        **dict(zip(names[2:], others, strict=True)),
    }


def _pairs(values: dict[str, Any]) -> Intervals:
    """The intervals among the values of a metric."""
    keys = [key.removesuffix("_low") for key in values if key.endswith("_low")]
    return {key: (float(values[f"{key}_low"]), float(values[f"{key}_high"])) for key in keys}


def score_jackknife(preds: Tensor, target: Tensor, speakers: tuple[Tensor, Tensor]) -> Intervals:
    """Intervals of the score metrics."""
    metrics = (vp.ZebraDisclosure, vp.EqualErrorRate, vp.MinCllr, vp.Cllr, vp.Linkability)
    values = [_pairs(metric(intervals=0.95, validate_args=False)(preds, target, speakers)) for metric in metrics]
    return {key: interval for each in values for key, interval in each.items()}


def score_bootstrap(preds: Tensor, target: Tensor, speakers: tuple[Tensor, Tensor], replicates: int = 200) -> Intervals:
    """Intervals from speakers drawn with replacement."""
    values = F.bootstrap(preds, target, speakers, replicates=replicates, validate_args=False)
    return {key: (float(each.low), float(each.high)) for key, each in values.items()}


def score_independent(preds: Tensor, target: Tensor, _: tuple[Tensor, Tensor]) -> Intervals:
    """Intervals from trials drawn with replacement, as if every trial had speakers of its own."""
    return score_bootstrap(preds, target, (torch.arange(len(preds)),) * 2, replicates=60)


@dataclass(frozen=True)
class AnonymisedPopulation:
    """An anonymiser that keeps a share of every speaker N(0, 1) and adds a pseudo-voice per session."""

    kept: float
    uneven: bool = False
    sessions: int = 1

    def draw(self, speakers: int, generator: torch.Generator, utterances: int = 10) -> dict[str, Tensor]:
        """Arguments of ``update`` for one set of speakers."""
        labels = _draw_labels(speakers, utterances, self.uneven, generator)
        session = torch.arange(len(labels)) % self.sessions
        centres, noise = (torch.randn(size, DIMENSIONS, generator=generator) for size in (speakers, 2 * len(labels)))
        keys = torch.randn(speakers * self.sessions, DIMENSIONS, generator=generator)
        pseudo_voices = keys[labels * self.sessions + session]
        original = centres[labels] + noise[: len(labels)]
        protected = self.kept * original + 0.5 * pseudo_voices + 0.7 * noise[len(labels) :]
        rows = {"original": original, "protected": protected, "speakers": labels}
        return rows | ({"sessions": session} if self.sessions > 1 else {})

    @property
    def keys(self) -> list[str]:
        """The numbers that are computed without attacks."""
        keys = ["deid", "gvd"] + [f"op_{key}" for key in ("d_ece", "eer", "min_cllr", "cllr", "linkability")]
        return [*keys, "op_mean_d", "op_alid"] + (["across_d_ece"] if self.sessions > 1 else [])

    def true_values(self, speakers: int) -> dict[str, float]:
        """The mean over a few large sets; ranks and local information are those among this number of speakers."""
        generator = torch.Generator().manual_seed(99)
        keys = [key for key in self.keys if key not in ("op_mean_d", "op_alid")]
        values = _mean(suite_values(self.draw(300, generator), keys) for _ in range(30))
        histogram, bits = torch.zeros(speakers), []
        for _ in range(300):
            rows = self.draw(speakers, generator)
            identified = F.identify(rows["protected"], rows["speakers"], rows["original"])
            histogram, bits = histogram + identified.histogram, [*bits, identified.bits]
        mean_d = float(F.rank_disclosure(histogram)["mean_d"])
        return values | {"op_mean_d": mean_d, "op_alid": float(torch.cat(bits).mean())}


def suite_values(rows: dict[str, Tensor], keys: Sequence[str], attacks: Any = None, **settings: Any) -> dict[str, Any]:
    """What the suite computes of one set."""
    suite = vp.VoicePrivacy(metrics=list(keys), attacks=attacks, validate_args=False, **settings)
    suite.update(**rows)
    return suite.compute()


def suite_jackknife(rows: dict[str, Tensor], keys: Sequence[str]) -> Intervals:
    """Intervals of the suite."""
    return _pairs(suite_values(rows, keys, intervals=0.95))


def suite_bootstrap(rows: dict[str, Tensor], keys: Sequence[str]) -> Intervals:
    """Intervals from speakers drawn with replacement."""
    sides = {key: rows[key] for key in ("original", "protected", "speakers")}
    measures = [key for key in keys if not key.startswith("across")]
    values = F.bootstrap_embeddings(**sides, measures=measures, replicates=200, validate_args=False)
    return {key: (float(each.low), float(each.high)) for key, each in values.items()}


@dataclass
class Coverage:
    """How often intervals covered the true value, by method and key."""

    true_values: dict[str, float]
    covered: dict[tuple[str, str], list[bool]] = field(default_factory=dict)

    def add(self, method: str, intervals: Intervals) -> None:
        """Count the intervals of one set."""
        for key in self.true_values.keys() & intervals.keys():
            low, high = intervals[key]
            is_covered = low - _TOLERANCE <= self.true_values[key] <= high + _TOLERANCE
            self.covered.setdefault((method, key), []).append(is_covered)

    def share(self, method: str, key: str) -> float:
        """How often; NaN where there was no interval."""
        covered = self.covered.get((method, key), [])
        return sum(covered) / len(covered) if covered else float("nan")

    def table(self) -> str:
        """A row for each key, a column for each method."""
        methods = list(dict.fromkeys(method for method, _ in self.covered))
        rows = [f"{'':20}{'true value':>10}" + "".join(f"{method:>17}" for method in methods)]
        for key, value in self.true_values.items():
            rows.append(f"{key:20}{value:10.4f}" + "".join(f"{self.share(method, key):17.3f}" for method in methods))
        return "\n".join(rows)


def cover_scores(
    population: TrialPopulation, speakers: int, sets: int, methods: Sequence[Callable[..., Intervals]]
) -> Coverage:
    """Coverage of the score metrics."""
    generator, coverage = torch.Generator().manual_seed(7 + speakers), Coverage(population.true_values())
    for _ in range(sets):
        trials = population.draw(speakers, generator)
        for method in methods:
            coverage.add(method.__name__, method(*trials))
    return coverage


def cover_suite(
    population: AnonymisedPopulation, speakers: int, sets: int, methods: Sequence[Callable[..., Intervals]]
) -> Coverage:
    """Coverage of the numbers of the suite that need no attack."""
    generator, coverage = torch.Generator().manual_seed(7 + speakers), Coverage(population.true_values(speakers))
    for _ in range(sets):
        rows = population.draw(speakers, generator)
        for method in methods:
            coverage.add(method.__name__, method(rows, population.keys))
    return coverage


def cover_attacks(population: AnonymisedPopulation, speakers: int, sets: int) -> Coverage:
    """Coverage of the disclosure and the strongest attack.

    An attack learns from the speakers of its set, so the true value is the mean over sets of this size.
    """
    generator = torch.Generator().manual_seed(7 + speakers)
    draws = (population.draw(speakers, generator) for _ in range(sets))
    values = [suite_values(rows, ATTACK_KEYS, attacks="standard", intervals=0.95) for rows in draws]
    coverage = Coverage(_mean({key: value[key] for key in ATTACK_KEYS} for value in values))
    for value in values:
        coverage.add("suite_jackknife", _pairs(value))
    return coverage
