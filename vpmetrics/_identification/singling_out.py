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
    rates = []
    weights = []
    for partition_data in data.by_group():
        enrolment, test = form_enrolment_and_conversations(partition_data, protocol)
        references = form_trials(enrolment, enrolment).references
        number_in_speaker = count_within(test.speakers)
        means = references.unit_means().to(enrolment.embeddings.dtype)
        population = form_population(
            means,
            references.speakers,
            test.embeddings,
            test.speakers,
            number_in_speaker,
            calibration,
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

    Every reference of such a speaker is a predicate. Each speaker's conversations are numbered from
    0 in the order of their places. In fold f conversation f is tested, and the next
    ``num_calibration`` calibrate; after the last conversation comes the first again.

    Args:
        references: ``(R, D)``, rows of which each becomes a predicate.
        reference_speakers: ``(R,)``, the speaker of each reference.
        conversations: ``(K, D)``, one row per conversation.
        speakers: ``(K,)``, the speaker of each conversation.
        places: ``(K,)``, the place of each conversation among those of its speaker.
        num_calibration: How many conversations of a speaker calibrate in one fold, at most.
        num_folds: The number of folds; without it as many as the largest number of conversations
            of one speaker, at most ``num_calibration + 1``.
    """
    # Conversations of one speaker are adjacent in this order.
    order = lexsort_columns(places, speakers)
    all_labels, all_counts = torch.unique_consecutive(speakers[order], return_counts=True)
    all_starts = all_counts.cumsum(0) - all_counts
    ranking = _order_by_content(all_labels, references, reference_speakers, conversations, speakers)
    kept_speakers = ranking[all_counts[ranking] > 1]
    labels = all_labels[kept_speakers]
    num_conversations = all_counts[kept_speakers]
    start = all_starts[kept_speakers]

    most_conversations = 1
    if len(labels):
        most_conversations = int(num_conversations.amax())
    num_taken = min(most_conversations, num_calibration + 1)  # in one fold: tested and calibrating
    if num_folds is None:
        num_folds = num_taken
    fold = torch.arange(num_folds, device=order.device).view(-1, 1, 1)
    number_in_speaker = fold + torch.arange(num_taken, device=order.device)  # (F, 1, taken)
    number_in_speaker = number_in_speaker % num_conversations.unsqueeze(1)  # (F, S, taken)
    taken_rows = order[start.unsqueeze(1) + number_in_speaker]

    # Predicates in the order of speakers, so that sums over them do not depend on labels.
    speaker_index = find_indices(labels, reference_speakers)
    kept_references = (speaker_index >= 0).nonzero().flatten()
    kept_references = kept_references[speaker_index[kept_references].argsort(stable=True)]
    return Population(
        predicates=references[kept_references],
        speaker_index=speaker_index[kept_references],
        conversations=conversations,
        tested=taken_rows[..., 0],
        calibration=taken_rows[..., 1:],
        counts=(num_conversations - 1).clamp(max=num_calibration),
    )


def _order_by_content(
    labels: Tensor,
    references: Tensor,
    reference_speakers: Tensor,
    conversations: Tensor,
    speakers: Tensor,
) -> Tensor:
    """Return the indices of the speakers ``labels`` ``(S,)`` sorted by hashes of their rows.

    Speakers are later shuffled into sets with a fixed seed. These sets must not depend on labels or
    on the order of rows, so speakers are sorted by their conversations, and those of equal
    conversations by their references.
    """
    num_speakers = len(labels)
    speaker_of_conversation = find_indices(labels, speakers)
    speaker_of_reference = find_indices(labels, reference_speakers)
    # References of speakers without a conversation are summed in one more entry, which is dropped.
    speaker_of_reference = torch.where(speaker_of_reference < 0, num_speakers, speaker_of_reference)
    conversation_hashes = sum_hashes(
        hash_rows(conversations), speaker_of_conversation, num_speakers
    )
    reference_hashes = sum_hashes(hash_rows(references), speaker_of_reference, num_speakers + 1)
    return lexsort_columns(reference_hashes[:num_speakers], conversation_hashes)


def isolation_rates_and_standard_errors(
    population: Population, sizes: Sequence[int], scoring: Scoring, draws: int
) -> dict[str, Tensor]:
    """Return how often a predicate fires exactly once in N speakers, and its standard error."""
    num_speakers = len(population.counts)
    num_predicates = len(population.predicates)
    possible = [size for size in sizes if size <= num_speakers and num_predicates]
    if not bool(population.predicates.isfinite().all() & population.conversations.isfinite().all()):
        warn_undefined("Some embeddings are NaN.")
        possible = []
    elif len(possible) < len(sizes):
        warn_undefined(
            f"Singling one out of {max(sizes)} people needs as many with two conversations; "
            f"there are {num_speakers}, and references of {num_predicates} of them."
        )
    undefined = population.predicates.new_full((), torch.nan)
    rates = dict.fromkeys(sizes, undefined)
    errors = dict.fromkeys(sizes, undefined)
    for size in possible:
        scorer = resolve_scoring(scoring)
        num_sets = min(num_speakers // size, draws)
        # The set of all speakers is always the same: then only the folds can vary.
        if size == num_speakers:
            num_shuffles = min(len(population.tested), draws)
        else:
            num_shuffles = -(-draws // num_sets)
        shares_by_shuffle = [
            _set_isolation_rates(population, seed, size, num_sets, scorer)
            for seed in range(num_shuffles)
        ]
        shares = torch.cat(shares_by_shuffle)
        rates[size] = shares.mean()
        if size < num_speakers:
            errors[size] = shares.std() / math.sqrt(len(shares))
        else:
            errors[size] = shares.new_zeros(())
    dtype = result_dtype(population.predicates)
    values = {f"singling_out_{size}": rates[size].to(dtype) for size in sizes}
    values |= {f"singling_out_{size}_error": errors[size].to(dtype) for size in sizes}
    return values


def _set_isolation_rates(
    population: Population, shuffle_seed: int, size: int, num_sets: int, scorer: Scorer
) -> Tensor:
    """Return the share of predicates that isolate a speaker in each set, ``(num_sets,)``.

    The speakers are shuffled, and the first ``num_sets * size`` of them are cut into sets of
    ``size``. A predicate isolates a speaker where it fires on exactly one member of the set, see
    :func:`_count_isolating`. The seed also chooses the fold: which conversation is tested.
    """
    num_folds, num_speakers = population.tested.shape
    num_calibration = population.calibration.shape[2]
    device = population.speaker_index.device
    fold = shuffle_seed % num_folds

    # Drawn on the host, since every kind of device has random numbers of its own.
    generator = torch.Generator().manual_seed(shuffle_seed)
    shuffled_speakers = torch.randperm(num_speakers, generator=generator, device="cpu").to(device)
    place_of_speaker = shuffled_speakers.argsort()
    # Of the predicate's own speaker, (R,): the place, and how many conversations calibrate.
    own_place = place_of_speaker[population.speaker_index]
    own_count = population.counts[population.speaker_index]
    # (S, C), conversations that only fill up the table of a speaker with fewer.
    is_repeated = torch.arange(num_calibration, device=device) >= population.counts[
        shuffled_speakers
    ].unsqueeze(1)

    num_predicates = len(own_place)
    centre = widen(population.conversations[:1]).sum(dim=0)
    dtype = widest_affordable_dtype(
        scorer, population.predicates, num_predicates * population.calibration[0].numel()
    )
    tested_rows = population.tested[fold, shuffled_speakers]  # (S,)
    tested = prepare_rows(population.conversations[tested_rows], scorer, centre, dtype)
    calibration_rows = population.calibration[fold, shuffled_speakers].flatten()  # (S * C,)
    calibration = prepare_rows(population.conversations[calibration_rows], scorer, centre, dtype)

    num_isolating = torch.zeros(num_sets, dtype=torch.int64, device=device)
    predicates_at_once = num_rows_at_once(tested, len(tested) + len(calibration))
    for rows in torch.arange(num_predicates, device=device).split(predicates_at_once):
        predicates = prepare_rows(population.predicates[rows], scorer, centre, dtype)
        with torch.autocast(device.type, enabled=False):
            scores = scorer.compare(predicates, tested)  # (b, S)
            calibration_scores = scorer.compare(predicates, calibration)  # (b, S * C)
            rounding = scorer.rounding(predicates, tested, scores, scores[:, :1])
        # The caller's function may keep what it returns, and the scores are overwritten.
        if not scorer.is_builtin:
            scores = scores.clone()
            calibration_scores = calibration_scores.clone()
        calibration_scores = calibration_scores.unflatten(1, is_repeated.shape)  # (b, S, C)
        calibration_scores = calibration_scores.masked_fill_(is_repeated, -torch.inf)
        member_scores = _split_into_sets(
            scores.unsqueeze(2), own_place[rows], size, num_sets
        ).squeeze(3)
        calibration_of_set = _split_into_sets(
            calibration_scores, own_place[rows], size, num_sets
        ).flatten(2)
        num_isolating += _count_isolating(
            member_scores, calibration_of_set, own_count[rows], rounding, num_calibration
        )
    return widen(num_isolating) / num_predicates


def _count_isolating(
    member_scores: Tensor,
    calibration_scores: Tensor,
    own_count: Tensor,
    rounding: Tensor,
    num_calibration: int,
) -> Tensor:
    """Return how many predicates fire on exactly one member of each set, ``(sets,)``.

    A predicate fires on scores above its threshold. Its own speaker has n calibrating
    conversations, and a perfect predicate would fire on these alone. So the threshold lets n of the
    set's calibration scores pass: it is the middle between the n-th highest of them and the next.

    Args:
        member_scores: ``(b, sets, N)``, each predicate's score of the tested conversation of every
            member.
        calibration_scores: ``(b, sets, N * C)``, its scores of their calibrating conversations.
        own_count: ``(b,)``, the number n of each predicate.
        rounding: ``(b, 1)``, scores that differ by no more are tied, and do not fire.
        num_calibration: C, the largest n.
    """
    highest = calibration_scores.topk(num_calibration + 1, dim=2).values
    num_sets = member_scores.shape[1]
    own_count = own_count.view(-1, 1, 1).expand(-1, num_sets, 1)
    last_above = highest.gather(2, own_count - 1)
    first_below = highest.gather(2, own_count)
    threshold = (last_above + first_below) / 2 + rounding.unsqueeze(2)
    # A mask of the scores' own type: comparing and summing it is many times as fast as with
    # booleans.
    fires = torch.gt(member_scores, threshold, out=torch.empty_like(member_scores))
    return (fires.sum(dim=2) == 1).sum(dim=0)


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
