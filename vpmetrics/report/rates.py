"""How often people are found, with what each rate depends on.

A rate says little without the number of people it is among, the gallery that these are drawn from,
how many utterances the attacker has, and who attacks: so tables and results always hold all four.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vpmetrics._scores.registry import (
    CI_SUFFIXES,
    bare_population_keys,
    hidden_conditions,
    is_extrapolated,
    scalar_key,
)
from vpmetrics.report.privacy_report import ConditionReport, EvaluatedSystem

if TYPE_CHECKING:
    from vpmetrics.attacks.results import FusedResult

PLAIN = "plain comparison"
_SINGLED_OUT_BY_CHANCE = math.exp(-1)


@dataclass(frozen=True)
class Search:
    """Who searches for whom: the condition, the attacker and what they have of a person.

    ``gallery``: the number of enrolled speakers; ``distractors`` of them have no tests.
    """

    condition: str
    attacker: str
    gallery: int
    distractors: int = 0
    utterances: int = 1


@dataclass(frozen=True)
class Rate:
    """How often a person is found among some people, as a share, and what chance gives.

    ``key``: that of the number, without its condition. ``name``: what happens to the person.
    ``is_extrapolated``: whether there are more people than enrolled speakers.
    """

    key: str
    name: str
    people: int
    search: Search
    value: float
    low: float
    high: float
    chance: float
    is_extrapolated: bool = False


def name_attacker(strongest: FusedResult) -> str:
    """Return the name of the strongest attack: plain comparison, where no attack finds more."""
    return PLAIN if strongest.is_plain else strongest.name


def collect_rates(system: EvaluatedSystem) -> list[Rate]:
    """Return all rates that are known in conditions where speakers should be hidden."""
    rates: list[Rate] = []
    for condition in hidden_conditions(system.report.conditions):
        report = system.report.conditions[condition]
        rates += _rates_among_random_others(system, condition, report)
        rates += _rates_in_gallery(system, condition, report)
    return [rate for rate in rates if not math.isnan(rate.value)]


def _read_rate(
    system: EvaluatedSystem, search: Search, key: str, people: int, chance: float
) -> Rate:
    """Return a rate with its interval."""
    value = system.get_or_nan(key, search.condition)
    low = system.get_or_nan(f"{key}{CI_SUFFIXES[0]}", search.condition)
    high = system.get_or_nan(f"{key}{CI_SUFFIXES[1]}", search.condition)
    name = "singled out" if key.startswith("singling_out") else "found"
    is_guessed = is_extrapolated(scalar_key(search.condition, key), system.scalars)
    return Rate(key, name, people, search, value, low, high, chance, is_guessed)


def _count_speakers(system: EvaluatedSystem) -> int:
    speakers = system.report.speakers
    return 0 if speakers is None else len(speakers)


def _rates_among_random_others(
    system: EvaluatedSystem, condition: str, report: ConditionReport
) -> list[Rate]:
    """Return how often the right one of 100 is found, by one utterance and by a conversation."""
    attacker = PLAIN
    is_attacked = not math.isnan(system.get_or_nan("d_ece_strongest", condition))
    if report.strongest is not None and is_attacked:
        attacker = name_attacker(report.strongest)
    search = Search(condition, attacker, _count_speakers(system))
    rates = [_read_rate(system, search, "found_in_100", people=100, chance=0.01)]
    utterances = system.get_or_nan("conversation_utterances")
    if not math.isnan(utterances):
        search = replace(search, utterances=int(utterances))
        rates.append(
            _read_rate(system, search, "found_in_100_conversation", people=100, chance=0.01)
        )
    return rates


def _rates_in_gallery(
    system: EvaluatedSystem, condition: str, report: ConditionReport
) -> list[Rate]:
    """Return how often a person is found among all enrolled speakers, and among some of them."""
    rates: list[Rate] = []
    num_distractors = 0
    if report.population is not None and report.population.protocol.distractors is not None:
        num_distractors = len(report.population.protocol.distractors)
    if report.identification is not None:
        gallery = len(report.identification.histogram)
        search = Search(condition, PLAIN, gallery, num_distractors)
        chance = 1 / gallery if gallery else math.nan
        rates.append(_read_rate(system, search, "id_rate", gallery, chance))

    of_population = Search(condition, PLAIN, _gallery(system, "gallery", condition))
    of_population = replace(of_population, distractors=num_distractors)
    of_singling_out = Search(condition, PLAIN, _count_speakers(system))
    of_attack = Search(condition, PLAIN, _gallery(system, "gallery_strongest", condition))
    if report.strongest is not None:
        of_attack = replace(of_attack, attacker=name_attacker(report.strongest))
    prefix = f"{condition.lower()}_" if condition else ""
    keys = [key for key in system.scalars if key.startswith(prefix)]
    for key in bare_population_keys(keys):
        measure, _, people = key.removesuffix("_strongest").rpartition("_")
        if measure == "singling_out":
            rates.append(
                _read_rate(system, of_singling_out, key, int(people), _SINGLED_OUT_BY_CHANCE)
            )
        elif measure == "rate":
            # After an attack, people are searched in a fold, without distractors.
            search = of_attack if key.endswith("_strongest") else of_population
            rates.append(_read_rate(system, search, key, int(people), 1 / int(people)))
    return rates


def _gallery(system: EvaluatedSystem, key: str, condition: str) -> int:
    """Return the number of references that a rate counts among; 0 where it is not known."""
    gallery = system.get_or_nan(key, condition)
    return 0 if math.isnan(gallery) else int(gallery)
