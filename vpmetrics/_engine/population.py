"""Re-identification in a population: who is found among N people, and who is singled out.

Vauquier et al., "Legally validated evaluation framework for voice anonymization", Interspeech 2025.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._engine.beta_binomial import fit_beta_binomial
from vpmetrics._engine.conditions import Condition
from vpmetrics._engine.identification import (
    IdentificationReplicates,
    jackknife_identification,
    rank_histogram_of,
)
from vpmetrics._engine.jackknife import JackknifeGroups
from vpmetrics._engine.precision import result_dtype, widen
from vpmetrics._engine.references import IdentificationTrials, form_trials, rows_at_once, slices
from vpmetrics._engine.scorers import Scorer, Scoring, prepare_rows, resolve_scoring
from vpmetrics._engine.utterances import (
    EvaluationData,
    Utterances,
    find_indices,
    index_speakers,
    number_combinations,
    number_sessions_by_value,
    row_keys,
)
from vpmetrics._engine.validation import warn_undefined

ACCUMULATED = ("probes", "references", "both")
_SEED = 5489  # of the draw that deals utterances: the same for every call, so that equal data are dealt equally


class EnrolmentProtocol(NamedTuple):
    """How much speech an attacker has of each speaker, and what they do with it.

    ``utterances`` of a speaker and session are averaged to a probe, to a reference, or to either, as ``accumulated``
    says; otherwise a probe is one utterance, and a reference the mean of all that the attacker has of a speaker.
    ``attack`` maps utterances before they are averaged.
    """

    condition: Condition
    utterances: int = 1
    accumulated: str = "probes"
    attack: Any = None


def deal_places(groups: Tensor, keys: Tensor) -> Tensor:
    """Return a place 0, 1, ... for every row among those of its group, ``(N,)``: random, and the same for equal data.

    Args:
        groups: Group of each row, ``(N,)`` integers.
        keys: A number for each row that depends on its values alone, so that row order and labels change nothing.
    """
    names, group = groups.unique(return_inverse=True)
    smallest = keys.new_full((len(names),), torch.inf).scatter_reduce(0, group, keys, "amin")
    order = _sort_by(keys, group, smallest[group])
    # Places by key would put similar utterances together, so every row draws a number. Drawn on the host, since every
    # kind of device has random numbers of its own.
    generator = torch.Generator().manual_seed(_SEED)
    numbers = torch.rand(len(keys), generator=generator, dtype=keys.dtype, device="cpu").to(keys.device)
    drawn = torch.empty_like(keys).scatter_(0, order, numbers)
    order = _sort_by(drawn, group)
    return torch.empty_like(order).scatter_(0, order, _number_runs(group[order]))


def _sort_by(*columns: Tensor) -> Tensor:
    """Return row indices sorted by the last column, then by the one before, and so on."""
    order = columns[0].argsort(stable=True)
    for column in columns[1:]:
        order = order[column[order].argsort(stable=True)]
    return order


def _number_runs(ordered: Tensor) -> Tensor:
    """Return 0, 1, ... for every run of equal values."""
    _, counts = torch.unique_consecutive(ordered, return_counts=True)
    first: Tensor = (counts.cumsum(0) - counts).repeat_interleave(counts)
    return torch.arange(len(ordered), device=ordered.device) - first


def form_conversations(groups: Tensor, places: Tensor, length: int) -> Tensor:
    """Return rows of conversations of ``length`` utterances each, ``(C, length)``; incomplete ones are dropped."""
    order = _sort_by(places, groups)
    _, counts = torch.unique_consecutive(groups[order], return_counts=True)
    kept = places[order] < (counts // length * length).repeat_interleave(counts)
    return order[kept].view(-1, length)


def average_rows(embeddings: Tensor, members: Tensor) -> Tensor:
    """Return the mean of the rows of each conversation, ``(C, D)``, for members ``(C, L)``.

    Deviations from the first row are averaged, so that the mean of equal rows is that row to the last bit.
    """
    if members.shape[1] == 1:
        return embeddings[members[:, 0]]
    means = [embeddings[:0]]
    for part in members.split(max(1, 2**22 // max(1, members.shape[1] * embeddings.shape[1]))):
        first, every = widen(embeddings[part[:, 0]]), widen(embeddings[part])
        means.append((first + (every - first.unsqueeze(1)).mean(dim=1)).to(embeddings.dtype))
    return torch.cat(means)


def split_enrolment(data: EvaluationData, protocol: EnrolmentProtocol) -> tuple[Utterances, Utterances]:
    """Return the utterances whose speakers the attacker knows, and conversations of unknown speakers."""
    condition, length = protocol.condition, protocol.utterances
    data = data._replace(protected=number_sessions_by_value(data.protected))
    enrolment, test = _halve_recordings(*data.sides(condition, enrolment="utterance"))
    if protocol.accumulated != "probes":
        by_session = ("sessions",) if condition.target_sessions != "any" else ()
        enrolment = _first_conversation(enrolment, length, *by_session)
    group, _ = number_combinations(test, "sessions")
    size = 1 if protocol.accumulated == "references" else length
    members = form_conversations(group, deal_places(group, test.keys), size)
    enrolment = _map_side(enrolment, condition.enrolment, protocol.attack)
    means = average_rows(_map_side(test, condition.test, protocol.attack).embeddings, members)
    return enrolment, replace(test.take(members[:, 0]), embeddings=means)


def form_population_trials(data: EvaluationData, protocol: EnrolmentProtocol) -> IdentificationTrials:
    """Return conversations, each to be identified among one reference per known speaker."""
    enrolment, test = split_enrolment(data, protocol)
    own = torch.full_like(test.ids, -1)
    return form_trials(enrolment, test, own, protocol.condition.target_sessions, data.processes)


def average_utterances(data: EvaluationData, length: int) -> EvaluationData:
    """Return means of so many recordings of each speaker as utterances, of the same recordings on both sides."""
    recording, group, places = _deal_recordings(data.original, data.protected)
    together = torch.stack([group, places // length]).unique(dim=1, return_inverse=True)[1]
    sides = []
    counts = [len(data.original), len(data.protected)]
    for side, of, sessions in zip(data[:2], recording.split(counts), (None, data.protected.sessions), strict=True):
        columns = together[of][None] if sessions is None else torch.stack([together[of], sessions])
        members = form_conversations(columns.unique(dim=1, return_inverse=True)[1], places[of] % length, length)
        first = members[:, 0]
        means = average_rows(side.embeddings, members)
        sides.append(replace(side.take(first), embeddings=means, ids=together[of][first]))
    return index_speakers(sides[0], sides[1], data.processes)


def longest_conversation(data: EvaluationData, condition: Condition) -> int:
    """Return how many utterances half of all speakers, at least, have for a conversation."""
    _, test = split_enrolment(data, EnrolmentProtocol(condition))
    counts = torch.bincount(number_combinations(test, "sessions")[0])
    return int(counts.median()) if len(counts) else 0


def _halve_recordings(enrolment: Utterances, test: Utterances) -> tuple[Utterances, Utterances]:
    """Return the attacker's utterances and the others: as marked, or half of every speaker's recordings to each."""
    if enrolment.is_reference is not None:
        return enrolment, test
    recording, _, places = _deal_recordings(enrolment, test)
    is_known = (places % 2 == 0)[recording]
    return enrolment.take(is_known[: len(enrolment)]), test.take(~is_known[len(enrolment) :])


def _deal_recordings(first: Utterances, second: Utterances) -> tuple[Tensor, Tensor, Tensor]:
    """Return the recording of every row of both sides, the group of each recording, and its place in that group.

    A recording is dealt once, whatever versions of it there are, by what all of them have in common.
    """
    recordings, recording = torch.cat([first.ids, second.ids]).unique(return_inverse=True)
    keys = _smallest(torch.cat([first.keys, second.keys]), recording, len(recordings))
    names = [name for name in ("speakers", "sessions", "groups", "is_reference") if getattr(second, name) is not None]
    columns = [torch.cat([getattr(first, name), getattr(second, name)]).long() for name in names]
    codes = torch.stack([_smallest(column, recording, len(recordings)) for column in columns])
    group = codes.unique(dim=1, return_inverse=True)[1]
    return recording, group, deal_places(group, keys)


def _smallest(values: Tensor, place: Tensor, count: int) -> Tensor:
    return values.new_empty(count).scatter_reduce(0, place, values, "amin", include_self=False)


def _first_conversation(side: Utterances, length: int, *columns: str) -> Utterances:
    """Return as many utterances of each speaker as a conversation has; none of speakers with fewer."""
    group, _ = number_combinations(side, *columns)
    places = deal_places(group, side.keys)
    members = form_conversations(group, places, length)
    return side.take(members[places[members[:, 0]] == 0].flatten())


def _map_side(side: Utterances, name: str, attack: Any) -> Utterances:
    if attack is None:
        return side
    if hasattr(attack, "map_side"):
        return replace(side, embeddings=attack.map_side(side, name))
    original, protected = attack.attack(*((side.embeddings, None) if name == "original" else (None, side.embeddings)))
    return replace(side, embeddings=original if name == "original" else protected)


class WeightedRates(NamedTuple):
    """Rates of one group, and how many probes or predicates they rest on."""

    values: dict[str, Tensor]
    weight: Tensor


def reidentification_rates(
    data: EvaluationData,
    protocol: EnrolmentProtocol,
    sizes: Sequence[int],
    scoring: Scoring,
    bandwidth: float | None = None,
) -> dict[str, Tensor]:
    """Return how often the speaker of a conversation comes first among so many people of their group."""
    return average_rates([rates_of_group(part, protocol, sizes, scoring, bandwidth) for part in data.by_group()])


def rates_of_group(
    data: EvaluationData,
    protocol: EnrolmentProtocol,
    sizes: Sequence[int],
    scoring: Scoring,
    bandwidth: float | None = None,
    is_extrapolated: bool = True,
) -> WeightedRates:
    """Return the rates of one group; without extrapolation NaN for more people than there are references."""
    histogram = rank_histogram_of(form_population_trials(data, protocol), scoring, bandwidth)
    values = rates_of_histogram(histogram, sizes)
    if not is_extrapolated:
        beyond = [f"rate_{size}" for size in sizes if size > len(histogram)]
        values |= {key: torch.full_like(values[key], torch.nan) for key in beyond}
    return WeightedRates(values, histogram.detach().sum())


def rates_of_histogram(histogram: Tensor, sizes: Sequence[int]) -> dict[str, Tensor]:
    """Return ``rate_<N>``, ``chance_<N>`` and ``gallery`` from the ranks ``(M,)`` among all references."""
    people, counts = len(histogram), widen(histogram)
    shares, names = counts / counts.sum(), [*(f"rate_{n}" for n in sizes), *(f"chance_{n}" for n in sizes), "gallery"]
    if people < 2 or bool(shares.isnan().any()):
        missing = f"two references at least, but there are {people}" if people < 2 else "inputs, and none that are NaN"
        warn_undefined(f"Re-identification needs {missing}.")
        values = [counts.new_full((), torch.nan)] * len(names)
    else:
        if people == 2 < max(sizes):
            warn_undefined("Rates beyond the references need three of them at least, but there are two.")
        chances = [torch.full_like(counts[0], 1 / n) for n in sizes]
        values = [*_rates(shares, sizes), *chances, torch.full_like(counts[0], people)]
    return {name: value.to(result_dtype(histogram)) for name, value in zip(names, values, strict=True)}


def _rates(shares: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    counted, beyond = [n for n in sizes if n <= len(shares)], [n for n in sizes if n > len(shares)]
    rates = [*count_first(shares, counted).unbind(), *_extrapolate(shares, beyond)]
    by_size = dict(zip([*counted, *beyond], rates, strict=True))
    return [by_size[size] for size in sizes]


def count_first(shares: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the identification rate among so many people, ``(..., sizes)``, from shares of ranks ``(..., M)``.

    The chance of a rank follows from the one before by a factor, so no binomial coefficient is formed.
    """
    people = shares.shape[-1]
    left = people - torch.arange(1, people, dtype=shares.dtype, device=shares.device)
    rates = [shares[..., :0]]
    for some in slices(len(sizes), max(1, 2**22 // people)):
        drawn = torch.tensor(sizes[some], dtype=shares.dtype, device=shares.device).unsqueeze(1) - 1
        chances = torch.log1p(-(drawn / left).clamp(max=1)).cumsum(dim=1).exp()
        rates.append(shares[..., :1] + (chances * shares[..., None, 1:]).sum(dim=-1))
    return torch.cat(rates, dim=-1)


def _extrapolate(shares: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return the rate for sizes above the number of references, from a beta-binomial fit to the ranks."""
    if not sizes:
        return []
    people, is_certain = len(shares), shares[0] >= 1
    fit = fit_beta_binomial(shares)
    first = torch.where(is_certain, 0.5, fit.probabilities[0])
    is_concave = fit.alpha <= 1
    alpha = torch.where(is_concave & ~is_certain, fit.alpha, 1.0)
    beta = torch.where(is_concave & ~is_certain, fit.beta, first * (people - 1) / (1 - first))
    drawn = torch.tensor(sizes, dtype=shares.dtype, device=shares.device) - 1
    fall = _log_gamma_ratio(beta + drawn, alpha) - _log_gamma_ratio(beta + people - 1, alpha)
    rates = torch.where(is_certain, 1.0, first * (-fall).exp())
    return list((rates if people > 2 else torch.full_like(rates, torch.nan)).unbind())


def _log_gamma_ratio(y: Tensor, a: Tensor) -> Tensor:
    """Return the logarithm of Gamma(y + a) / Gamma(y), plus a, by Stirling's series.

    Differences of log-gammas cancel.
    """
    near, far = 1 / y, 1 / (y + a)
    series = (far - near) / 12 - (far**3 - near**3) / 360 + (far**5 - near**5) / 1260
    return (y - 0.5) * torch.log1p(a / y) + a * torch.log(y + a) + series


def average_rates(parts: Sequence[WeightedRates]) -> dict[str, Tensor]:
    """Return means over the groups that have a value, by weight; of ``gallery`` the smallest."""
    if len(parts) == 1:
        return parts[0].values
    weights = torch.stack([part.weight for part in parts])
    return {key: _mean(key, torch.stack([part.values[key] for part in parts]), weights) for key in parts[0].values}


def _mean(key: str, values: Tensor, weights: Tensor) -> Tensor:
    is_known = ~values.isnan()
    if key == "gallery":  # beyond it, one of the groups at least is extrapolated
        smallest = torch.where(is_known, values, torch.inf).amin()
        return torch.where(smallest.isinf(), torch.nan, smallest)
    shares = torch.where(is_known, weights.to(values), 0)
    shares = shares / shares.sum()
    weighted = shares * values.nan_to_num(0)
    return weighted.square().sum().sqrt() if key.endswith("_error") else weighted.sum()


def replicate_rates(
    parts: Iterable[tuple[EvaluationData, EnrolmentProtocol, Scoring]], sizes: Sequence[int], groups: JackknifeGroups
) -> dict[str, Tensor]:
    """Return rates of all speakers and then without each group, ``(1 + G,)``; of sizes that no part extrapolates."""
    formed = [(form_population_trials(data, protocol), scoring) for data, protocol, scoring in parts]
    formed = [(trials, scoring) for trials, scoring in formed if trials.num_references > 1]
    fewest = min((trials.num_references for trials, _ in formed), default=0)
    counted = [size for size in sizes if size <= fewest]
    if not counted:  # beyond, the error of the model would come on top
        return {}
    replicates = [
        jackknife_identification(trials, scoring, groups.of(trials.references.speakers), groups.number, None)
        for trials, scoring in formed
    ]
    rates = torch.stack([_rates_of_replicates(each, counted) for each in replicates])
    inputs = torch.stack([each.histograms.sum(1) for each in replicates]).unsqueeze(1)
    means = torch.where(inputs > 0, inputs * rates, 0).sum(0) / inputs.sum(0)
    return {f"rate_{size}": mean for size, mean in zip(counted, means, strict=True)}


def _rates_of_replicates(replicates: IdentificationReplicates, sizes: Sequence[int]) -> Tensor:
    """Return rates ``(sizes, 1 + G)`` among as many people, or among all who are left."""
    rates = replicates.histograms.new_zeros(len(sizes), len(replicates.references))
    for number in replicates.references.unique().long().tolist():
        rows = (replicates.references == number).nonzero().flatten()
        shares = replicates.histograms[rows, :number]
        shares = shares / shares.sum(1, keepdim=True)
        rates[:, rows] = count_first(shares, [min(size, number) for size in sizes]).T
    return rates


def singling_out_rates(
    data: EvaluationData,
    protocol: EnrolmentProtocol,
    sizes: Sequence[int],
    scoring: Scoring,
    calibration: int = 9,
    draws: int = 20,
) -> dict[str, Tensor]:
    """Return how often a predicate fires on exactly one of so many people of a group."""
    parts = []
    for part in data.by_group():
        enrolment, test = split_enrolment(part, protocol)
        references = form_trials(enrolment, enrolment, torch.full_like(enrolment.ids, -1)).references
        places = deal_places(test.speakers, test.keys)
        means = references.first_gallery().to(enrolment.embeddings.dtype)
        population = gather_population(means, references.speakers, test.embeddings, test.speakers, places, calibration)
        values = isolation_rates(population, sizes, scoring, draws)
        parts.append(WeightedRates(values, population.counts.new_tensor(len(population.predicates))))
    return average_rates(parts)


class Population(NamedTuple):
    """Predicates, and the conversations they are tested on.

    In every fold one conversation of each speaker is tested and others, up to C, calibrate. A speaker with fewer has
    some of them twice in the table, of which ``counts`` says how many to use.
    """

    predicates: Tensor  # (R, D), references, each of which says: this is the one
    own: Tensor  # (R,), whose each is, as a row of ``counts``
    conversations: Tensor  # (K, D)
    tested: Tensor  # (F, S), rows of conversations
    calibration: Tensor  # (F, S, C), rows of conversations
    counts: Tensor  # (S,)


class Isolation(NamedTuple):
    """Share of predicates that single out one conversation, and the standard error from drawing sets; ``(sizes,)``."""

    rate: Tensor
    error: Tensor


def gather_population(
    references: Tensor,
    reference_speakers: Tensor,
    conversations: Tensor,
    speakers: Tensor,
    places: Tensor,
    most: int,
    folds: int | None = None,
) -> Population:
    """Return the population of all speakers with at least two conversations, in the order of their ``places`` ``(K,)``.

    In fold f a speaker's conversation f is tested, and f + 1, f + 2 and so on calibrate, cyclically, ``most`` of them.
    There are as many folds as conversations, unless ``folds`` is given.
    """
    order = _sort_by(places, speakers)
    names, counts = torch.unique_consecutive(speakers[order], return_counts=True)
    first = counts.cumsum(0) - counts
    # Neither labels of speakers nor the order of rows may show in who is drawn together.
    by_value = row_keys(conversations[order[first]]).argsort(stable=True)
    by_value = by_value[counts[by_value] > 1]
    names, counts, first = names[by_value], counts[by_value], first[by_value]
    largest = int(counts.amax()) if len(counts) else 1
    turns = torch.arange(min(largest, most + 1) if folds is None else folds, device=order.device)
    steps = turns.view(-1, 1, 1) + torch.arange(min(largest, most + 1), device=order.device)
    table = order[first.unsqueeze(1) + steps % counts.unsqueeze(1)]
    own = find_indices(names, reference_speakers)
    is_known = own >= 0
    # Predicates in the order of their values, so that sums over them do not depend on labels.
    kept = is_known.nonzero().flatten()
    kept = kept[row_keys(references[kept]).argsort(stable=True)]
    usable = (counts - 1).clamp(max=most)
    return Population(references[kept], own[kept], conversations, table[..., 0], table[..., 1:], usable)


def isolation_rates(population: Population, sizes: Sequence[int], scoring: Scoring, draws: int) -> dict[str, Tensor]:
    """Return ``singling_out_<N>`` and ``singling_out_<N>_error``, NaN where they are undefined."""
    people, dtype = len(population.counts), result_dtype(population.predicates)
    possible = [size for size in sizes if size <= people and len(population.predicates)]
    unknown = widen(population.predicates.new_full((), torch.nan))
    values: dict[int, Sequence[Tensor]] = dict.fromkeys(sizes, (unknown, unknown))
    if len(possible) < len(values):
        given = f"{people}, and references of {len(population.predicates)} of them"
        warn_undefined(
            f"Singling one out of {max(sizes)} people needs as many with two conversations; there are {given}."
        )
    elif not bool(population.predicates.isfinite().all() & population.conversations.isfinite().all()):
        warn_undefined("Some embeddings are NaN.")
        possible = []
    if possible:
        isolation = isolate(population, possible, scoring, draws)
        values |= {size: pair for size, *pair in zip(possible, isolation.rate, isolation.error, strict=True)}
    named = {f"singling_out_{size}": value for size, (value, _) in values.items()}
    named |= {f"singling_out_{size}_error": error for size, (_, error) in values.items()}
    return {name: value.to(dtype) for name, value in named.items()}


def isolate(population: Population, sizes: Sequence[int], scoring: Scoring, draws: int) -> Isolation:
    """Return how often a predicate fires exactly once in a set of N speakers, its own and N - 1 others.

    The sets of a size are blocks of N speakers of a shuffle. In a block that lacks a predicate's own speaker, that
    speaker replaces the last member, which makes it a random set with that speaker. All sizes share the scores of a
    shuffle.
    """
    folds, speakers = population.tested.shape
    blocks = [min(speakers // size, draws) for size in sizes]
    # With everybody in the set nothing is drawn, and only folds differ.
    shuffles = [min(folds, draws) if n == speakers else -(-draws // b) for n, b in zip(sizes, blocks, strict=True)]
    shares: list[list[Tensor]] = [[] for _ in sizes]
    for shuffle in range(max(shuffles)):
        numbers = [number for number, count in enumerate(shuffles) if shuffle < count]
        sets = [(sizes[number], blocks[number]) for number in numbers]
        for number, share in zip(numbers, _isolate(population, shuffle, sets, resolve_scoring(scoring)), strict=True):
            shares[number].append(share)
    every = [torch.cat(of_size) for of_size in shares]
    errors = [
        share.std() / math.sqrt(len(share)) if size < speakers else share.new_zeros(())
        for size, share in zip(sizes, every, strict=True)
    ]
    return Isolation(torch.stack([share.mean() for share in every]), torch.stack(errors))


def _isolate(population: Population, shuffle: int, sets: list[tuple[int, int]], scorer: Scorer) -> list[Tensor]:
    """Return the share of predicates that fire exactly once in each block of a shuffle, ``(blocks.

    )`` for every size.
    """
    folds, speakers = population.tested.shape
    device, fold = population.own.device, shuffle % folds
    # Drawn on the host, since every kind of device has random numbers of its own.
    order = torch.randperm(speakers, generator=torch.Generator().manual_seed(shuffle), device="cpu").to(device)
    place = order.argsort()[population.own]
    counts = population.counts[population.own]
    is_repeated = torch.arange(population.calibration.shape[2], device=device) >= population.counts[order].unsqueeze(1)
    dtype, centre = result_dtype(population.predicates), widen(population.conversations[:1]).sum(dim=0)
    tested, calibration = (
        prepare_rows(population.conversations[rows[fold, order].flatten()], scorer, centre, dtype)
        for rows in (population.tested, population.calibration)
    )
    hits = [torch.zeros(blocks, dtype=torch.int64, device=device) for _, blocks in sets]
    for rows in slices(len(place), rows_at_once(tested, len(tested) + len(calibration))):
        predicates = prepare_rows(population.predicates[rows], scorer, centre, dtype)
        with torch.autocast(device.type, enabled=False):
            scores, levels = scorer.compare(predicates, tested), scorer.compare(predicates, calibration)
            rounding = scorer.rounding(predicates, tested, scores, scores[:, :1])
        levels = levels.unflatten(1, is_repeated.shape).masked_fill_(is_repeated, -torch.inf)
        part = _PredicateScores(scores, levels, place[rows].unsqueeze(1), counts[rows], rounding)
        for hit, (size, blocks) in zip(hits, sets, strict=True):
            hit += part.isolates(size, blocks).sum(dim=0)
    return [widen(hit) / len(place) for hit in hits]


class _PredicateScores(NamedTuple):
    """Scores of some predicates with the conversations of all speakers, in the order of a shuffle."""

    tested: Tensor  # (b, S)
    calibration: Tensor  # (b, S, C), -inf where there is none
    place: Tensor  # (b, 1), of the predicate's own speaker
    counts: Tensor  # (b,), of that speaker's calibration conversations
    rounding: Tensor  # (b, 1), differences up to this are rounding

    def isolates(self, size: int, blocks: int) -> Tensor:
        """Return whether each predicate fires on exactly one conversation of each block, ``(b, blocks)``."""
        own = self.place // size == torch.arange(blocks, device=self.place.device)
        tested, last_tested = self._sets(self.tested.unsqueeze(2), own, size)
        levels, last_levels = self._sets(self.calibration, own, size)
        threshold = self._threshold(levels, last_levels) + self.rounding.unsqueeze(2)
        # A mask of the scores' own type: comparing and summing it is many times as fast as with booleans.
        fires = torch.gt(tested, threshold, out=torch.empty_like(tested)).sum(dim=2)
        return fires + (last_tested > threshold).sum(dim=2) == 1

    def _sets(self, scores: Tensor, own: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """Return scores of all members but the last, ``(b, blocks, (N - 1) C)``, and of the last, ``(b, blocks.

        C)``.
        """
        columns = scores.shape[2]
        sets = scores[:, : size * own.shape[1]].flatten(1).unflatten(1, (own.shape[1], size * columns))
        of_own = scores.take_along_dim(self.place.unsqueeze(2), dim=1)
        return sets[..., :-columns], torch.where(own.unsqueeze(2), sets[..., -columns:], of_own)

    def _threshold(self, levels: Tensor, last: Tensor) -> Tensor:
        """Return the midpoint of the M-th highest level and the next, M those of the own speaker, ``(b, blocks.

        1)``.
        """
        count = self.calibration.shape[2] + 1
        others = levels.topk(min(count, levels.shape[2]), dim=2).values
        highest = torch.cat([others, last], dim=2).topk(count, dim=2).values
        own = self.counts.view(-1, 1, 1).expand(-1, levels.shape[1], 1)
        return (highest.gather(2, own - 1) + highest.gather(2, own)) / 2
