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
from vpmetrics._engine.conditions import Condition, SideName
from vpmetrics._engine.identification import identify, jackknife_identification
from vpmetrics._engine.jackknife import JackknifeGroups
from vpmetrics._engine.precision import result_dtype, widen
from vpmetrics._engine.references import IdentificationTrials, form_trials, num_rows_at_once
from vpmetrics._engine.scorers import Scorer, Scoring, prepare_rows, resolve_scoring, widest_affordable_dtype
from vpmetrics._engine.utterances import (
    EvaluationData,
    Utterances,
    combination_index_and_first_rows,
    count_values,
    find_indices,
    hash_values,
    index_speakers_by_group,
    lexsort_columns,
    number_sessions_by_value,
    row_sort_keys,
)
from vpmetrics._engine.validation import warn_undefined

ACCUMULATED = ("probes", "references", "both")
_SEED = 5489  # of the random order of utterances: the same for every call, so that equal data give equal conversations


class ConversationProtocol(NamedTuple):
    """How conversations are formed: of how many utterances, on which side, after which attack.

    ``accumulated`` is ``"probes"``, ``"references"`` or ``"both"``: which of them average ``utterances`` of a speaker
    and session. Otherwise a probe is one utterance, and a reference the mean of all that the attacker has of a speaker.
    ``attack`` maps utterances before they are averaged.
    """

    condition: Condition
    utterances: int = 1
    accumulated: str = "probes"
    attack: Any = None


def draw_places(groups: Tensor, keys: Tensor) -> Tensor:
    """Return a place 0, 1, ... for every row among those of its group, ``(N,)``: random, and the same for equal data.

    Args:
        groups: Group of each row, ``(N,)`` integers.
        keys: A number for each row that depends on its values alone, so that row order and labels change nothing.
    """
    names, group = groups.unique(return_inverse=True)
    smallest = _reduce_by_place(keys, group, len(names), "amin")
    # Groups with the same smallest row are ordered by a hash of all their rows.
    order = lexsort_columns(keys, group, hash_values(keys, group, len(names))[group], smallest[group])
    # Places by key would put similar utterances together, so every row draws a number. Drawn on the host, since every
    # kind of device has random numbers of its own.
    generator = torch.Generator().manual_seed(_SEED)
    numbers = torch.rand(len(keys), generator=generator, dtype=keys.dtype, device="cpu").to(keys.device)
    drawn = torch.empty_like(keys).scatter_(0, order, numbers)
    order = lexsort_columns(drawn, group)
    counts = count_values(group, len(names))
    places = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[group[order]]
    return torch.empty_like(order).scatter_(0, order, places)


def form_conversations(groups: Tensor, places: Tensor, length: int) -> Tensor:
    """Return rows of conversations of ``length`` utterances each, ``(C, length)``; incomplete ones are dropped."""
    order = lexsort_columns(places, groups)
    _, counts = torch.unique_consecutive(groups[order], return_counts=True)
    kept = places[order] < (counts // length * length).repeat_interleave(counts)
    return order[kept].view(-1, length)


def average_members(embeddings: Tensor, members: Tensor) -> Tensor:
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


def form_enrolment_and_conversations(
    data: EvaluationData, protocol: ConversationProtocol
) -> tuple[Utterances, Utterances]:
    """Return the utterances whose speakers the attacker knows, and conversations of unknown speakers."""
    condition, length = protocol.condition, protocol.utterances
    data = number_sessions_by_value(data)
    enrolment, test = data.sides(condition, references_per="utterance")
    if enrolment.is_reference is None:
        enrolment, test = _split_recordings_between_sides(enrolment, test)
    if protocol.accumulated != "probes":
        by_session = ("sessions",) if condition.target_sessions != "any" else ()
        group, _ = combination_index_and_first_rows(enrolment, *by_session)
        places = draw_places(group, enrolment.keys)
        members = form_conversations(group, places, length)  # none of a group with fewer utterances
        enrolment = enrolment.take(members[places[members[:, 0]] == 0].flatten())
    group, _ = combination_index_and_first_rows(test, "sessions")
    size = 1 if protocol.accumulated == "references" else length
    members = form_conversations(group, draw_places(group, test.keys), size)
    enrolment = _map_side(enrolment, condition.enrolment, protocol.attack)
    means = average_members(_map_side(test, condition.test, protocol.attack).embeddings, members)
    return enrolment, replace(test.take(members[:, 0]), embeddings=means)


def form_population_trials(data: EvaluationData, protocol: ConversationProtocol) -> IdentificationTrials:
    """Return conversations, each to be identified among one reference per known speaker."""
    enrolment, test = form_enrolment_and_conversations(data, protocol)
    target_sessions = protocol.condition.target_sessions
    return form_trials(enrolment, test, target_sessions=target_sessions, processes=data.processes)


def average_utterances(data: EvaluationData, length: int) -> EvaluationData:
    """Return means of ``length`` recordings of each speaker as utterances, of the same recordings on both sides."""
    group, place = _recording_groups_and_places(data.original, data.protected)
    together = torch.stack([group, place // length]).unique(dim=1, return_inverse=True)[1]
    sides = []
    parts = (part.split([len(data.original), len(data.protected)]) for part in (together, place))
    for side, ids, places, sessions in zip(data[:2], *parts, (None, data.protected.sessions), strict=True):
        columns = ids[None] if sessions is None else torch.stack([ids, sessions])
        members = form_conversations(columns.unique(dim=1, return_inverse=True)[1], places % length, length)
        first = members[:, 0]
        means = average_members(side.embeddings, members)
        sides.append(replace(side.take(first), embeddings=means, ids=ids[first]))
    return index_speakers_by_group(sides[0], sides[1])._replace(processes=data.processes)


def _split_recordings_between_sides(enrolment: Utterances, test: Utterances) -> tuple[Utterances, Utterances]:
    """Return sides without a common recording: half of every speaker's recordings enrolled, the others tested."""
    is_known = _recording_groups_and_places(enrolment, test)[1] % 2 == 0
    return enrolment.take(is_known[: len(enrolment)]), test.take(~is_known[len(enrolment) :])


def _recording_groups_and_places(first: Utterances, second: Utterances) -> tuple[Tensor, Tensor]:
    """Return the group of each row's recording, and the recording's random place in it, for all rows of both sides.

    Recordings of a group share speaker, session, group and ``is_reference``. All rows of a recording have one place.
    """
    recordings, recording = torch.cat([first.ids, second.ids]).unique(return_inverse=True)
    versions = torch.cat([first.keys, second.keys])
    # Numbered by their smallest key, and by the largest where that is equal, as where all protected rows are.
    ends = torch.stack([_reduce_by_place(versions, recording, len(recordings), reduce) for reduce in ("amin", "amax")])
    order = lexsort_columns(*ends.flip(0))
    is_new = (ends[:, order].diff(dim=1, prepend=ends[:, order[:1]]) != 0).any(0)
    keys = torch.empty_like(ends[0]).scatter_(0, order, is_new.cumsum(0).to(ends.dtype))
    names = [name for name in ("speakers", "sessions", "groups", "is_reference") if getattr(second, name) is not None]
    columns = [torch.cat([getattr(first, name), getattr(second, name)]).long() for name in names]
    codes = torch.stack([_reduce_by_place(column, recording, len(recordings), "amin") for column in columns])
    group = codes.unique(dim=1, return_inverse=True)[1]
    return group[recording], draw_places(group, keys)[recording]


def _reduce_by_place(values: Tensor, place: Tensor, count: int, reduce: str) -> Tensor:
    return values.new_empty(count).scatter_reduce(0, place, values, reduce, include_self=False)


def _map_side(side: Utterances, name: SideName, attack: Any) -> Utterances:
    """Return the side called ``name`` with embeddings mapped by the attack; as it is without one."""
    if attack is None:
        return side
    if hasattr(attack, "map_side"):
        return replace(side, embeddings=attack.map_side(side, name))
    original, protected = attack.attack(*((side.embeddings, None) if name == "original" else (None, side.embeddings)))
    return replace(side, embeddings=original if name == "original" else protected)


class WeightedRates(NamedTuple):
    """Rates of one group by key, and how many probes or predicates they rest on, their weight in a mean."""

    values: dict[str, Tensor]
    weight: Tensor


def reidentification_rates(
    data: EvaluationData,
    protocol: ConversationProtocol,
    sizes: Sequence[int],
    scoring: Scoring,
    bandwidth: float | None = None,
) -> dict[str, Tensor]:
    """Return how often the speaker of a conversation comes first among N people of their group."""
    return average_rates([compute_group_rates(part, protocol, sizes, scoring, bandwidth) for part in data.by_group()])


def compute_group_rates(
    data: EvaluationData,
    protocol: ConversationProtocol,
    sizes: Sequence[int],
    scoring: Scoring,
    bandwidth: float | None = None,
    is_extrapolated: bool = True,
) -> WeightedRates:
    """Return the rates of one group; without extrapolation NaN for more people than there are references."""
    trials = form_population_trials(data, protocol)
    histogram = identify(trials, scoring, has_bits=False, bandwidth=bandwidth).histogram
    values = rates_of_histogram(histogram, sizes)
    if not is_extrapolated:
        beyond = [f"rate_{size}" for size in sizes if size > len(histogram)]
        values |= {key: torch.full_like(values[key], torch.nan) for key in beyond}
    return WeightedRates(values, histogram.detach().sum())


def average_rates(parts: Sequence[WeightedRates]) -> dict[str, Tensor]:
    """Return means over the groups that have a value, by weight, and their errors; of ``gallery`` the smallest."""
    if len(parts) == 1:
        return parts[0].values
    means, weights = {}, torch.stack([part.weight for part in parts])
    for key in parts[0].values:
        values = torch.stack([part.values[key] for part in parts])
        if key == "gallery":  # beyond it, one of the groups at least is extrapolated
            smallest = values.nan_to_num(torch.inf).amin()
            means[key] = torch.where(smallest.isinf(), torch.nan, smallest)
            continue
        share = torch.where(values.isnan(), 0, weights.to(values))
        weighted = share / share.sum() * values.nan_to_num(0)
        means[key] = weighted.square().sum().sqrt() if key.endswith("_error") else weighted.sum()
    return means


def rates_of_histogram(histogram: Tensor, sizes: Sequence[int]) -> dict[str, Tensor]:
    """Return ``rate_<N>``, ``chance_<N>`` and ``gallery`` from the ranks ``(M,)`` among all references."""
    people, counts = len(histogram), widen(histogram)
    shares = counts / counts.sum()
    is_undefined = people < 2 or bool(shares.isnan().any())
    if is_undefined:
        missing = f"two references at least, but there are {people}" if people < 2 else "inputs, and none that are NaN"
        warn_undefined(f"Re-identification needs {missing}.")
        rates: dict[int, Tensor] = {}
    else:
        if people == 2 < max(sizes):
            warn_undefined("Rates beyond the references need three of them at least, but there are two.")
        counted, beyond = [n for n in sizes if n <= people], [n for n in sizes if n > people]
        rates = dict(zip(counted, rank_one_rates(shares, counted), strict=True))
        rates |= dict(zip(beyond, _extrapolate_rates(shares, beyond), strict=True)) if beyond else {}
    values: dict[str, Any] = {f"rate_{n}": rates.get(n, torch.nan) for n in sizes}
    values |= {f"chance_{n}": torch.nan if is_undefined else 1 / n for n in sizes}
    values["gallery"] = torch.nan if is_undefined else float(people)
    like = counts.new_zeros((), dtype=result_dtype(histogram))
    return {name: v.to(like) if isinstance(v, Tensor) else torch.full_like(like, v) for name, v in values.items()}


def rank_one_rates(rank_shares: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the rank-1 rate of each gallery size, ``(..., sizes)``, from the share of inputs per rank ``(..., M)``."""
    people = rank_shares.shape[-1]
    left = people - torch.arange(1, people, dtype=rank_shares.dtype, device=rank_shares.device)
    rates = []
    for size in sizes:
        # The chance of a rank follows from the one before by a factor, so no binomial coefficient is formed.
        chances = torch.log1p(-((size - 1) / left).clamp(max=1)).cumsum(dim=0).exp()
        rates.append(rank_shares[..., 0] + (chances * rank_shares[..., 1:]).sum(dim=-1))
    return torch.stack(rates, dim=-1) if rates else rank_shares[..., :0]


def _extrapolate_rates(rank_shares: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the rank-1 rates among more people than there are references, from a beta-binomial fit to the ranks."""
    people, is_certain = len(rank_shares), rank_shares[0] >= 1
    fit = fit_beta_binomial(rank_shares)
    first = torch.where(is_certain, 0.5, fit.probabilities[0])
    keeps_fit = (fit.alpha <= 1) & ~is_certain
    alpha = torch.where(keeps_fit, fit.alpha, 1.0)
    beta = torch.where(keeps_fit, fit.beta, first * (people - 1) / (1 - first))
    drawn = torch.tensor(sizes, dtype=rank_shares.dtype, device=rank_shares.device) - 1
    fall = _log_gamma_ratio(beta + drawn, alpha) - _log_gamma_ratio(beta + people - 1, alpha)
    rates = torch.where(is_certain, 1.0, first * (-fall).exp())
    return rates if people > 2 else torch.full_like(rates, torch.nan)


def _log_gamma_ratio(y: Tensor, a: Tensor) -> Tensor:
    """Return the logarithm of Gamma(y + a) / Gamma(y) by Stirling's series: differences of lgamma cancel."""
    near, far = 1 / y, 1 / (y + a)
    series = (far - near) / 12 - (far**3 - near**3) / 360 + (far**5 - near**5) / 1260
    return (y - 0.5) * torch.log1p(a / y) + a * (torch.log(y + a) - 1) + series


def replicate_rates(
    parts: Iterable[tuple[EvaluationData, ConversationProtocol, Scoring]], sizes: Sequence[int], groups: JackknifeGroups
) -> dict[str, Tensor]:
    """Return rates of all speakers, then without each group, ``(1 + G,)``, for sizes that need no extrapolation."""
    formed = [(form_population_trials(data, protocol), scoring) for data, protocol, scoring in parts]
    formed = [(trials, scoring) for trials, scoring in formed if trials.num_references > 1]
    fewest = min((trials.num_references for trials, _ in formed), default=0)
    counted = [size for size in sizes if size <= fewest]
    if not counted:  # larger sizes are extrapolated, and the jackknife would miss the error of that model
        return {}
    sums, inputs = [], []
    for trials, scoring in formed:
        group = groups.find_groups(trials.references.speakers)
        replicates = jackknife_identification(trials, scoring, group, groups.num_groups, None)
        histograms, number = replicates.histograms, replicates.histograms.sum(1)
        rates = histograms.new_zeros(len(counted), len(histograms))
        for people in replicates.references.unique().long().tolist():  # among as many, or among all who are left
            rows = replicates.references == people
            shares = histograms[rows, :people] / number[rows, None]
            rates[:, rows] = rank_one_rates(shares, [min(size, people) for size in counted]).T
        inputs.append(number)
        sums.append(torch.where(number > 0, number * rates, 0))
    means = torch.stack(sums).sum(0) / torch.stack(inputs).sum(0)
    return {f"rate_{size}": mean for size, mean in zip(counted, means, strict=True)}


def singling_out_rates(
    data: EvaluationData,
    protocol: ConversationProtocol,
    sizes: Sequence[int],
    scoring: Scoring,
    calibration: int = 9,
    draws: int = 20,
) -> dict[str, Tensor]:
    """Return how often a predicate fires on exactly one of N people of a group."""
    parts = []
    for part in data.by_group():
        enrolment, test = form_enrolment_and_conversations(part, protocol)
        references = form_trials(enrolment, enrolment).references
        places = draw_places(test.speakers, test.keys)
        means = references.first_unit_means().to(enrolment.embeddings.dtype)
        population = form_population(means, references.speakers, test.embeddings, test.speakers, places, calibration)
        values = isolation_rates_and_standard_errors(population, sizes, scoring, draws)
        parts.append(WeightedRates(values, population.counts.new_tensor(len(population.predicates))))
    return average_rates(parts)


class Population(NamedTuple):
    """Predicates and, in each of F folds, the conversations that are tested and those that calibrate."""

    predicates: Tensor  # (R, D), references
    speaker_index: Tensor  # (R,), the speaker of each reference
    conversations: Tensor  # (K, D)
    tested: Tensor  # (F, S), rows of conversations, one of each speaker
    calibration: Tensor  # (F, S, C), rows of conversations, repeated where a speaker has fewer
    counts: Tensor  # (S,), how many of the C to use


def form_population(
    references: Tensor,
    reference_speakers: Tensor,
    conversations: Tensor,
    speakers: Tensor,
    places: Tensor,
    num_calibration: int,
    num_folds: int | None = None,
) -> Population:
    """Return the population of all speakers with at least two conversations, in the order of their ``places`` ``(K,)``.

    Every reference is a predicate. In fold f a speaker's conversation f is tested, and the next ``num_calibration``
    calibrate, cyclically. Without ``num_folds`` there are as many folds as a speaker has conversations, at most
    ``num_calibration + 1``.
    """
    order = lexsort_columns(places, speakers)
    names, counts = torch.unique_consecutive(speakers[order], return_counts=True)
    first = counts.cumsum(0) - counts
    # The sets that are drawn must not depend on labels or on the order of rows. Speakers with the same first
    # conversation are ordered by a hash of all their conversations, then by their references.
    keys, hashes = row_sort_keys(conversations), []
    for values, labels in ((row_sort_keys(references), reference_speakers), (keys, speakers)):
        place = find_indices(names, labels)  # -1, the last one, for references of no one
        hashes.append(hash_values(values, place % (len(names) + 1), len(names) + 1)[:-1])
    by_value = lexsort_columns(*hashes, keys[order[first]])
    by_value = by_value[counts[by_value] > 1]
    names, counts, first = names[by_value], counts[by_value], first[by_value]
    largest = int(counts.amax()) if len(counts) else 1
    turns = torch.arange(min(largest, num_calibration + 1) if num_folds is None else num_folds, device=order.device)
    steps = turns.view(-1, 1, 1) + torch.arange(min(largest, num_calibration + 1), device=order.device)
    table = order[first.unsqueeze(1) + steps % counts.unsqueeze(1)]
    speaker_index = find_indices(names, reference_speakers)
    is_known = speaker_index >= 0
    # Predicates in the order of their values, so that sums over them do not depend on labels.
    kept = is_known.nonzero().flatten()
    kept = kept[row_sort_keys(references[kept]).argsort(stable=True)]
    usable = (counts - 1).clamp(max=num_calibration)
    return Population(references[kept], speaker_index[kept], conversations, table[..., 0], table[..., 1:], usable)


def isolation_rates_and_standard_errors(
    population: Population, sizes: Sequence[int], scoring: Scoring, draws: int
) -> dict[str, Tensor]:
    """Return ``singling_out_<N>``: how often a predicate fires exactly once in a set of N speakers.

    ``singling_out_<N>_error`` is the standard error of drawing sets. Both are NaN where they are undefined.
    """
    people, predicates = len(population.counts), len(population.predicates)
    possible = [size for size in sizes if size <= people and predicates]
    if len(possible) < len(sizes):
        warn_undefined(
            f"Singling one out of {max(sizes)} people needs as many with two conversations; "
            f"there are {people}, and references of {predicates} of them."
        )
    elif not bool(population.predicates.isfinite().all() & population.conversations.isfinite().all()):
        warn_undefined("Some embeddings are NaN.")
        possible = []
    isolated: dict[int, tuple[Tensor, Tensor]] = {}
    for size in possible:
        scorer = resolve_scoring(scoring)
        num_sets = min(people // size, draws)
        # The set of all speakers is always the same: then only the folds can vary.
        shuffles = min(len(population.tested), draws) if size == people else -(-draws // num_sets)
        shares = torch.cat([_set_isolation_rates(population, seed, size, num_sets, scorer) for seed in range(shuffles)])
        error = shares.std() / math.sqrt(len(shares)) if size < people else shares.new_zeros(())
        isolated[size] = shares.mean(), error
    unknown = population.predicates.new_full((2,), torch.nan)
    return {
        f"singling_out_{size}{suffix}": isolated.get(size, unknown)[index].to(result_dtype(population.predicates))
        for index, suffix in enumerate(("", "_error"))
        for size in sizes
    }


def _set_isolation_rates(population: Population, shuffle_seed: int, size: int, num_sets: int, scorer: Scorer) -> Tensor:
    """Return the share of predicates that fire exactly once in each set of a shuffle of the speakers, ``(num_sets,)``.

    If the predicate's own speaker is not among the N of a set, that speaker takes the place of the last member; so
    every set is a random one that contains the speaker.
    """
    folds, speakers = population.tested.shape
    device, fold = population.speaker_index.device, shuffle_seed % folds
    # Drawn on the host, since every kind of device has random numbers of its own.
    order = torch.randperm(speakers, generator=torch.Generator().manual_seed(shuffle_seed), device="cpu").to(device)
    place, counts = order.argsort()[population.speaker_index], population.counts[population.speaker_index]
    is_repeated = torch.arange(population.calibration.shape[2], device=device) >= population.counts[order].unsqueeze(1)
    centre = widen(population.conversations[:1]).sum(dim=0)
    dtype = widest_affordable_dtype(scorer, population.predicates, len(place) * population.calibration[0].numel())
    tested, calibration = (
        prepare_rows(population.conversations[rows[fold, order].flatten()], scorer, centre, dtype)
        for rows in (population.tested, population.calibration)
    )
    hits = torch.zeros(num_sets, dtype=torch.int64, device=device)
    step = num_rows_at_once(tested, len(tested) + len(calibration))
    for rows in torch.arange(len(place), device=device).split(step):
        predicates = prepare_rows(population.predicates[rows], scorer, centre, dtype)
        with torch.autocast(device.type, enabled=False):
            scores, calibration_scores = scorer.compare(predicates, tested), scorer.compare(predicates, calibration)
            rounding = scorer.rounding(predicates, tested, scores, scores[:, :1])
        calibration_scores = calibration_scores.unflatten(1, is_repeated.shape).masked_fill_(is_repeated, -torch.inf)
        members, last = _split_off_last_or_own(scores.unsqueeze(2), place[rows], size, num_sets)
        calibrating = _split_off_last_or_own(calibration_scores, place[rows], size, num_sets)
        threshold = _midpoint_threshold(*calibrating, counts[rows], is_repeated.shape[1]) + rounding.unsqueeze(2)
        # A mask of the scores' own type: comparing and summing it is many times as fast as with booleans.
        fires = torch.gt(members, threshold, out=torch.empty_like(members)).sum(dim=2)
        hits += (fires + (last > threshold).sum(dim=2) == 1).sum(dim=0)
    return widen(hits) / len(place)


def _split_off_last_or_own(scores: Tensor, own_place: Tensor, size: int, num_sets: int) -> tuple[Tensor, Tensor]:
    """Return scores of each set's first N - 1 members, ``(b, sets, (N - 1) C)``, and of its last, ``(b, sets, C)``.

    ``scores`` ``(b, S, C)`` hold one set of N speakers after the other. The predicate's own speaker, at ``own_place``
    ``(b,)``, replaces the last member of all other sets.
    """
    columns = scores.shape[2]
    sets = scores[:, : size * num_sets].flatten(1).unflatten(1, (num_sets, size * columns))
    is_own = (own_place // size).unsqueeze(1) == torch.arange(num_sets, device=own_place.device)
    of_own = scores.take_along_dim(own_place.view(-1, 1, 1), dim=1)
    return sets[..., :-columns], torch.where(is_own.unsqueeze(2), sets[..., -columns:], of_own)


def _midpoint_threshold(scores: Tensor, last_scores: Tensor, num_above: Tensor, max_num_above: int) -> Tensor:
    """Return the midpoint of the M-th highest score and the next, ``(b, sets, 1)``; M is ``num_above`` ``(b,)``."""
    count = max_num_above + 1
    highest = scores.topk(min(count, scores.shape[2]), dim=2).values
    highest = torch.cat([highest, last_scores], dim=2).topk(count, dim=2).values
    index = num_above.view(-1, 1, 1).expand(-1, scores.shape[1], 1)
    return (highest.gather(2, index - 1) + highest.gather(2, index)) / 2
