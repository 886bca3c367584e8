"""How often intervals cover the true value.

Simulated speakers, the true values of a large population, and methods.
"""

from dataclasses import dataclass, field

import torch
from torch.nn.functional import normalize

import vpmetrics as vp
from vpmetrics import functional as F

DIMENSIONS = 16
ATTACK_KEYS = ("disclosure", "op_d_ece_strongest", "op_eer_strongest")
MEASURES = {
    "eer": F.equal_error_rate,
    "raw_eer": F.raw_equal_error_rate,
    "min_cllr": F.min_cllr,
    "cllr": F.cllr,
    "linkability": F.linkability,
}
TOLERANCE = 1e-4  # D_ECE of negated scores is nearly 0 in the population and exactly 0 in most sets


def draw_labels(speakers, utterances, uneven, generator):
    counts = torch.full((speakers,), utterances)
    if uneven:
        counts = torch.randint(utterances // 3, 2 * utterances, (speakers,), generator=generator)
    return torch.arange(speakers).repeat_interleave(counts)


def mean_of(dictionaries):
    rows = list(dictionaries)
    return {key: sum(float(row[key]) for row in rows) / len(rows) for key in rows[0]}


def intervals_in(values):
    keys = [key.removesuffix("_low") for key in values if key.endswith("_low")]
    return {key: (float(values[f"{key}_low"]), float(values[f"{key}_high"])) for key in keys}


@dataclass(frozen=True)
class TrialPopulation:
    """Speakers N(0, spread) with utterances N(speaker, 1), compared by cosine."""

    spread: float
    utterances: int = 10
    uneven: bool = False  # a third to twice as many utterances per speaker
    sessions: float = 0.0  # distance between the two halves of a speaker's utterances

    def draw(self, speakers, generator):
        """Every pair of utterances of one set of speakers."""
        labels = draw_labels(speakers, self.utterances, self.uneven, generator)
        session = 2 * labels + torch.arange(len(labels)) % 2
        centres, shifts = (
            torch.randn(size, DIMENSIONS, generator=generator) for size in (speakers, 2 * speakers)
        )
        rows = self.spread * centres[labels] + self.sessions * shifts[session]
        rows = normalize(rows + torch.randn(len(labels), DIMENSIONS, generator=generator)).double()
        first, second = torch.triu_indices(len(labels), len(labels), 1)
        # Cosines are far too weak as log-likelihood ratios; four times the cosine has the right
        # size.
        return (
            4 * (rows @ rows.T)[first, second],
            labels[first] == labels[second],
            (labels[first], labels[second]),
        )

    def true_values(self, _):
        """The mean over a few large sets."""
        generator, found = torch.Generator().manual_seed(99), []
        for _ in range(30):
            trials = self.draw(300, generator)[:2]
            found.append(
                F.zebra_disclosure(*trials)
                | {key: function(*trials) for key, function in MEASURES.items()}
            )
        return {key: value for key, value in mean_of(found).items() if key not in ("l_w", "tag")}


def score_jackknife(trials):
    metrics = (vp.ZebraDisclosure, vp.EqualErrorRate, vp.MinCllr, vp.Cllr, vp.Linkability)
    values = [metric(intervals=0.95, validate_args=False)(*trials) for metric in metrics]
    return intervals_in({key: value for each in values for key, value in each.items()})


def score_independent(trials):
    """As if every trial had speakers of its own."""
    preds, target, _ = trials
    trial = torch.arange(len(preds))
    return score_jackknife((preds, target, (trial, trial)))


@dataclass(frozen=True)
class AnonymisedPopulation:
    """An anonymiser that keeps a share of every speaker N(0, 1).

    It adds a pseudo-voice per session.
    """

    kept: float
    uneven: bool = False
    sessions: int = 1

    def draw(self, speakers, generator):
        """Arguments of ``update`` for one set of speakers."""
        labels = draw_labels(speakers, 10, self.uneven, generator)
        session = torch.arange(len(labels)) % self.sessions
        centres, noise = (
            torch.randn(size, DIMENSIONS, generator=generator)
            for size in (speakers, 2 * len(labels))
        )
        keys = torch.randn(speakers * self.sessions, DIMENSIONS, generator=generator)
        original = centres[labels] + noise[: len(labels)]
        pseudo_voices = keys[labels * self.sessions + session]
        protected = self.kept * original + 0.5 * pseudo_voices + 0.7 * noise[len(labels) :]
        rows = {"original": original, "protected": protected, "speakers": labels}
        return rows | ({"sessions": session} if self.sessions > 1 else {})

    def true_values(self, speakers):
        """The mean over a few large sets.

        Ranks and local information are those among this number of speakers.
        """
        generator = torch.Generator().manual_seed(99)
        values = mean_of(suite_values(self.draw(300, generator)) for _ in range(30))
        histogram, bits = torch.zeros(speakers), []
        for _ in range(300):
            rows = self.draw(speakers, generator)
            identified = F.identify(rows["protected"], rows["speakers"], rows["original"])
            histogram, bits = histogram + identified.histogram, [*bits, identified.bits]
        mean_d = float(F.rank_disclosure(histogram)["mean_d"])
        return values | {"op_mean_d": mean_d, "op_alid": float(torch.cat(bits).mean())}


def suite_keys(rows):
    """The numbers that are computed without attacks."""
    keys = [
        "deid",
        "gvd",
        *(f"op_{key}" for key in ("d_ece", "eer", "min_cllr", "cllr", "linkability")),
    ]
    return [*keys, "op_mean_d", "op_alid"] + (["across_d_ece"] if "sessions" in rows else [])


def suite_values(rows, keys=None, attacks=None, intervals=None):
    keys = suite_keys(rows) if keys is None else keys
    suite = vp.VoicePrivacy(
        metrics=list(keys), attacks=attacks, intervals=intervals, validate_args=False
    )
    suite.update(**rows)
    return suite.compute()


def suite_jackknife(rows):
    return intervals_in(suite_values(rows, intervals=0.95))


@dataclass
class Coverage:
    """How often intervals covered the true value, by method and key."""

    true_values: dict
    covered: dict = field(default_factory=dict)

    def add(self, method, intervals):
        """Count the intervals of one set."""
        for key in self.true_values.keys() & intervals.keys():
            low, high = intervals[key]
            is_covered = low - TOLERANCE <= self.true_values[key] <= high + TOLERANCE
            self.covered.setdefault((method, key), []).append(is_covered)

    def share(self, method, key):
        """How often; NaN where there was no interval."""
        covered = self.covered.get((method, key), [])
        return sum(covered) / len(covered) if covered else float("nan")

    def table(self):
        """A row for each key, a column for each method."""
        methods = list(dict.fromkeys(method for method, _ in self.covered))
        rows = [f"{'':20}{'true value':>10}" + "".join(f"{method:>17}" for method in methods)]
        for key, value in self.true_values.items():
            rows.append(
                f"{key:20}{value:10.4f}"
                + "".join(f"{self.share(method, key):17.3f}" for method in methods)
            )
        return "\n".join(rows)


def cover(population, speakers, sets, methods):
    """Count how often the intervals of some methods cover the true values."""
    generator, coverage = (
        torch.Generator().manual_seed(7 + speakers),
        Coverage(population.true_values(speakers)),
    )
    for _ in range(sets):
        drawn = population.draw(speakers, generator)
        for method in methods:
            coverage.add(method.__name__, method(drawn))
    return coverage


def cover_attacks(population, speakers, sets):
    """An attack learns from the speakers of its set.

    So the true value is the mean over sets of this size.
    """
    generator = torch.Generator().manual_seed(7 + speakers)
    draws = (population.draw(speakers, generator) for _ in range(sets))
    values = [suite_values(rows, ATTACK_KEYS, "standard", 0.95) for rows in draws]
    coverage = Coverage(mean_of({key: value[key] for key in ATTACK_KEYS} for value in values))
    for value in values:
        coverage.add("suite_jackknife", intervals_in(value))
    return coverage
