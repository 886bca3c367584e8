"""Singling out: how often an attacker's predicate fires on exactly one of N people.

Vauquier et al., "Legally validated evaluation framework for voice anonymization", Interspeech 2025.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._identification.population import (
    ConversationProtocol,
    average_rates,
    form_enrolment_and_conversations,
)
from vpmetrics._identification.references import form_trials, num_rows_at_once
from vpmetrics._scores.scorers import (
    Scorer,
    Scoring,
    prepare_rows,
    resolve_scoring,
    widest_affordable_dtype,
)
from vpmetrics._util.dtypes import result_dtype, widen
from vpmetrics._util.validation import warn_undefined
from vpmetrics._utterances.canonical_order import (
    count_within,
    hash_rows,
    lexsort_columns,
    sum_hashes,
)
from vpmetrics._utterances.utterances import EvaluationData, find_indices


def singling_out_rates(
    data: EvaluationData,
    protocol: ConversationProtocol,
    sizes: Sequence[int],
    calibration: int = 9,
    draws: int = 20,
) -> dict[str, Tensor]:
    """Return how often a predicate fires on exactly one of N people of a group."""
    rates, weights = [], []
    for part in data.by_group():
        enrolment, test = form_enrolment_and_conversations(part, protocol)
        references = form_trials(enrolment, enrolment).references
        places = count_within(test.speakers)
        means = references.unit_means().to(enrolment.embeddings.dtype)
        population = form_population(
            means, references.speakers, test.embeddings, test.speakers, places, calibration
        )
        rates.append(
            isolation_rates_and_standard_errors(population, sizes, protocol.scoring, draws)
        )
        weights.append(len(population.predicates))
    return average_rates(rates, data.speakers.new_tensor(weights))


class Population(NamedTuple):
    """Predicates, and conversations that are tested and that calibrate.

    In each of F folds, others are tested.
    """

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
    """Return the population of all speakers with at least two conversations.

    They are in the order of their ``places`` ``(K,)``.

    Every reference is a predicate. In fold f a speaker's conversation f is tested, and the next
    ``num_calibration`` calibrate, cyclically. Without ``num_folds`` there are as many folds as a
    speaker has conversations, at most ``num_calibration + 1``.
    """
    order = lexsort_columns(places, speakers)
    names, counts = torch.unique_consecutive(speakers[order], return_counts=True)
    first = counts.cumsum(0) - counts
    # The sets that are drawn must not depend on labels or on the order of rows.
    people = len(names)
    speaker_of_reference = find_indices(names, reference_speakers)
    # of no one
    speaker_of_reference = torch.where(speaker_of_reference < 0, people, speaker_of_reference)
    hashes = sum_hashes(hash_rows(conversations), find_indices(names, speakers), people)
    ties = sum_hashes(hash_rows(references), speaker_of_reference, people + 1)[:people]
    canonical = lexsort_columns(ties, hashes)
    canonical = canonical[counts[canonical] > 1]
    names, counts, first = names[canonical], counts[canonical], first[canonical]
    largest = int(counts.amax()) if len(counts) else 1
    turns = torch.arange(
        min(largest, num_calibration + 1) if num_folds is None else num_folds, device=order.device
    )
    steps = turns.view(-1, 1, 1) + torch.arange(
        min(largest, num_calibration + 1), device=order.device
    )
    table = order[first.unsqueeze(1) + steps % counts.unsqueeze(1)]
    speaker_index = find_indices(names, reference_speakers)
    # Predicates in the order of speakers, so that sums over them do not depend on labels.
    kept = (speaker_index >= 0).nonzero().flatten()
    kept = kept[speaker_index[kept].argsort(stable=True)]
    usable = (counts - 1).clamp(max=num_calibration)
    return Population(
        references[kept], speaker_index[kept], conversations, table[..., 0], table[..., 1:], usable
    )


def isolation_rates_and_standard_errors(
    population: Population, sizes: Sequence[int], scoring: Scoring, draws: int
) -> dict[str, Tensor]:
    """Return how often a predicate fires exactly once in N speakers.

    With it comes the standard error of drawing sets.
    """
    people, predicates = len(population.counts), len(population.predicates)
    possible = [size for size in sizes if size <= people and predicates]
    if not bool(population.predicates.isfinite().all() & population.conversations.isfinite().all()):
        warn_undefined("Some embeddings are NaN.")
        possible = []
    elif len(possible) < len(sizes):
        warn_undefined(
            f"Singling one out of {max(sizes)} people needs as many with two conversations; "
            f"there are {people}, and references of {predicates} of them."
        )
    isolated: dict[int, tuple[Tensor, Tensor]] = {}
    for size in possible:
        scorer = resolve_scoring(scoring)
        num_sets = min(people // size, draws)
        # The set of all speakers is always the same: then only the folds can vary.
        shuffles = min(len(population.tested), draws) if size == people else -(-draws // num_sets)
        shares = torch.cat(
            [
                _set_isolation_rates(population, seed, size, num_sets, scorer)
                for seed in range(shuffles)
            ]
        )
        error = shares.std() / math.sqrt(len(shares)) if size < people else shares.new_zeros(())
        isolated[size] = shares.mean(), error
    unknown = population.predicates.new_full((2,), torch.nan)
    return {
        f"singling_out_{size}{suffix}": isolated.get(size, unknown)[index].to(
            result_dtype(population.predicates)
        )
        for index, suffix in enumerate(("", "_error"))
        for size in sizes
    }


def _set_isolation_rates(
    population: Population, shuffle_seed: int, size: int, num_sets: int, scorer: Scorer
) -> Tensor:
    """Return the share of predicates that fire exactly once in each set, ``(num_sets,)``.

    A set is a number of shuffled speakers.
    """
    folds, speakers = population.tested.shape
    device, fold = population.speaker_index.device, shuffle_seed % folds
    # Drawn on the host, since every kind of device has random numbers of its own.
    order = torch.randperm(
        speakers, generator=torch.Generator().manual_seed(shuffle_seed), device="cpu"
    ).to(device)
    place, counts = (
        order.argsort()[population.speaker_index],
        population.counts[population.speaker_index],
    )
    is_repeated = torch.arange(population.calibration.shape[2], device=device) >= population.counts[
        order
    ].unsqueeze(1)
    centre = widen(population.conversations[:1]).sum(dim=0)
    dtype = widest_affordable_dtype(
        scorer, population.predicates, len(place) * population.calibration[0].numel()
    )
    tested, calibration = (
        prepare_rows(population.conversations[rows[fold, order].flatten()], scorer, centre, dtype)
        for rows in (population.tested, population.calibration)
    )
    hits = torch.zeros(num_sets, dtype=torch.int64, device=device)
    for rows in torch.arange(len(place), device=device).split(
        num_rows_at_once(tested, len(tested) + len(calibration))
    ):
        predicates = prepare_rows(population.predicates[rows], scorer, centre, dtype)
        with torch.autocast(device.type, enabled=False):
            scores, calibrating = (
                scorer.compare(predicates, side) for side in (tested, calibration)
            )
            rounding = scorer.rounding(predicates, tested, scores, scores[:, :1])
        # the caller's function may keep what it returns, and it is overwritten
        if not scorer.is_builtin:
            scores, calibrating = scores.clone(), calibrating.clone()
        calibrating = calibrating.unflatten(1, is_repeated.shape).masked_fill_(
            is_repeated, -torch.inf
        )
        members = _split_into_sets(scores.unsqueeze(2), place[rows], size, num_sets).squeeze(3)
        highest = _split_into_sets(calibrating, place[rows], size, num_sets).flatten(2)
        highest = highest.topk(is_repeated.shape[1] + 1, dim=2).values
        last = counts[rows].view(-1, 1, 1).expand(-1, num_sets, 1)
        threshold = (
            highest.gather(2, last - 1) + highest.gather(2, last)
        ) / 2 + rounding.unsqueeze(2)
        # A mask of the scores' own type: comparing and summing it is many times as fast as with
        # booleans.
        hits += (torch.gt(members, threshold, out=torch.empty_like(members)).sum(dim=2) == 1).sum(
            dim=0
        )
    return widen(hits) / len(place)


def _split_into_sets(scores: Tensor, own_place: Tensor, size: int, num_sets: int) -> Tensor:
    """Return ``scores`` ``(b, S, C)`` of S speakers by set, ``(b, sets, N, C)``, a view of them.

    The predicate's own speaker, at ``own_place`` ``(b,)``, replaces the last member of all other
    sets, in place: so every set is a random one that contains the speaker.
    """
    of_own = scores.take_along_dim(own_place.view(-1, 1, 1), dim=1)
    is_own = (own_place // size).unsqueeze(1) == torch.arange(num_sets, device=own_place.device)
    sets: Tensor = scores[:, : size * num_sets].unflatten(1, (num_sets, size))
    sets[:, :, -1] = torch.where(is_own.unsqueeze(2), sets[:, :, -1], of_own)
    return sets
