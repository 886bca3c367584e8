"""Conversations for trials: random groups of utterances of one person, drawn several times, and
their scores.

One draw has too few trials, and a calibration fits their noise, so the trials of several draws are
pooled. Trials are formed within a draw only, and never between a conversation and its own
recordings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from vpmetrics._scores.trial_rows import TrialRows, round_scores
from vpmetrics._utterances.conditions import Condition
from vpmetrics._utterances.utterances import Utterances, count_values

LENGTHS = (30, 10, 5, 3, 2)  # utterances of a conversation, of which the largest possible is taken
# one draw overstates private systems: .030 bit from one, .009 from ten, .007 from forty (30 x 10)
DRAWS = 20
_FEWEST_DRAWS = 3
_MANY_TRIALS = 1 << 20  # non-target trials of one draw, from which fewer draws are taken
_MOST_TRIALS = 1 << 22  # non-target trials of all draws that are scored
_MOST_ENTRIES = 1 << 24  # of rows that are averaged at once
_MOST_COMPARED = 1 << 24  # pairs of recordings that are compared at once
_ROWS_AT_ONCE = 512  # enrolment conversations that are compared at once, where there are many
_SEED = 2971  # of the draws: the same for every call


@dataclass(frozen=True, eq=False)
class ConversationScores:
    """Scores of conversations: of the trials, and of the trials with speakers permuted.

    ``scores`` ``(P,)``, ``is_target`` ``(P,)``, ``labels`` ``(2, P)``: of the speakers of both
    sides. ``chance_scores`` and ``is_chance_target``: the same non-targets, and one speaker against
    the next as targets.
    """

    scores: Tensor
    is_target: Tensor
    labels: Tensor
    chance_scores: Tensor
    is_chance_target: Tensor


@dataclass(frozen=True, eq=False)
class _Layout:
    """Conversations of one side, the same in every draw but for their members.

    ``members`` ``(K, C, L)``: row indices; ``speaker`` ``(C,)``: code, ``partition`` and ``label``
    ``(C,)``.
    """

    members: Tensor
    speaker: Tensor
    partition: Tensor
    label: Tensor


def choose_length(tests: Utterances, condition: Condition, has_references: bool) -> int | None:
    """Return how many utterances a conversation has: the largest length that leaves enough speakers
    two of them.

    Enough is half of the speakers with tests; with references one conversation of tests suffices.
    None if there is no such length.
    """
    if len(tests) == 0:
        return None
    names, speaker = tests.speaker_index.unique(return_inverse=True)
    wanted = 1 if has_references else 2
    for length in LENGTHS:
        number = _count_conversations(tests, speaker, len(names), condition, length)
        if 2 * int((number >= wanted).sum()) >= len(names):
            return length
    return None


def _count_conversations(
    tests: Utterances, speaker: Tensor, num_speakers: int, condition: Condition, length: int
) -> Tensor:
    """Return how many conversations of a speaker may be compared with each other, ``(S,)``."""
    if condition.target_sessions == "other" and tests.sessions is not None:
        session, speaker_of_session = _number_sessions(tests.sessions, speaker)
        size = count_values(session, len(speaker_of_session))
        is_long = size >= length
        in_short_sessions = size.new_zeros(num_speakers).index_add(
            0, speaker_of_session[~is_long], size[~is_long]
        )
        num_long = count_values(speaker_of_session[is_long], num_speakers)
        from_short = in_short_sessions // length
        # Two conversations of several sessions share one, as likely as not.
        return torch.where(num_long > 0, num_long + from_short.clamp(max=1), from_short)
    key = speaker
    if tests.is_reference is not None:
        key = 2 * speaker + tests.is_reference
        size = count_values(key, 2 * num_speakers).view(-1, 2)
        return (size // length).sum(1)
    return count_values(key, num_speakers) // length


def _number_sessions(sessions: Tensor, speaker: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of each row's session, different for every speaker, and the speaker of each
    session.
    """
    pairs, number = torch.stack([speaker, sessions]).unique(dim=1, return_inverse=True)
    return number, pairs[0]


def _draw_numbers(num_draws: int, count: int, device: torch.device, seed: int) -> Tensor:
    """Return random numbers ``(K, N)``; from the host, since every kind of device has random
    numbers of its own.
    """
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(num_draws, count, generator=generator, dtype=torch.float64, device="cpu")
    return numbers.to(device)


def _lay_out(
    side: Utterances,
    recording: Tensor,
    numbers: Tensor,
    condition: Condition,
    length: int,
    is_grouped: bool,
) -> _Layout:
    """Return the conversations of one side in every draw.

    ``recording`` ``(N,)``: column of the random ``numbers`` ``(K, R)``, the same for both sides.
    Without ``is_grouped`` every row is a conversation of its own.
    """
    num_draws = len(numbers)
    partition = torch.zeros_like(side.speaker_index) if side.groups is None else side.groups
    if not is_grouped:
        rows = torch.arange(len(side), device=recording.device)
        members = rows[None, :, None].expand(num_draws, -1, 1)
        return _Layout(members, side.speaker_index, partition, side.speakers)
    group, rank_in_group, size = _group_rows(side, recording, numbers, condition, length)
    # Rows that are left out in a draw come last, after all groups.
    order = (group + rank_in_group).argsort(dim=1)
    start = size.cumsum(0) - size
    kept = size // length * length
    place = torch.arange(int(size.sum()), device=size.device)
    group_of_place = torch.repeat_interleave(torch.arange(len(size), device=size.device), size)
    is_kept = place - start[group_of_place] < kept[group_of_place]
    members = order[:, place[is_kept]].view(num_draws, -1, length)
    first = members[0, :, 0]
    return _Layout(members, side.speaker_index[first], partition[first], side.speakers[first])


def _group_rows(
    side: Utterances, recording: Tensor, numbers: Tensor, condition: Condition, length: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the group ``(K, N)`` or ``(N,)`` and random rank in [0, 1) ``(K, N)`` of rows, and
    group sizes ``(G,)``.

    A conversation is cut out of one group: rows of one speaker and side of ``is_reference``; across
    sessions also of one session where it is long enough, else of several sessions one after the
    other.
    """
    rank = numbers[:, recording]
    columns = [side.speaker_index]
    if side.is_reference is not None:
        columns.append(side.is_reference.long())
    if condition.target_sessions == "any" or side.sessions is None:
        group = torch.stack(columns).unique(dim=1, return_inverse=True)[1]
        num_groups = int(group.amax()) + 1 if len(group) else 0
        if side.sessions is None:
            return group.double(), rank, count_values(group, num_groups)
        return _keep_one_version(recording, rank, group, num_groups)
    session, _ = _number_sessions(side.sessions, side.speaker_index)
    num_sessions = int(session.amax()) + 1
    is_long = (count_values(session, num_sessions) >= length)[session]
    columns.append(torch.where(is_long, session, num_sessions))
    group = torch.stack(columns).unique(dim=1, return_inverse=True)[1]
    # In a group of several sessions, rows of one session follow each other.
    of_session = _draw_numbers(len(numbers), num_sessions, rank.device, _SEED + 1)[:, session]
    steps = 1 << 20
    rank = ((of_session * steps).floor() + rank) / steps
    rank = rank.clamp(max=1 - 1e-9)
    return group.double(), rank, count_values(group, int(group.amax()) + 1)


def _keep_one_version(
    recording: Tensor, rank: Tensor, group: Tensor, num_groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`_group_rows` returns, with one version of every recording that was
    protected several times.
    """
    recordings, index = torch.stack([group, recording]).unique(dim=1, return_inverse=True)
    size = count_values(recordings[0], num_groups)
    if recordings.shape[1] == len(recording):
        return group.double(), rank, size
    draw = _draw_numbers(len(rank), len(recording), rank.device, _SEED + 2)
    lowest = draw.new_ones(len(rank), recordings.shape[1])
    lowest = lowest.scatter_reduce(1, index.expand_as(draw), draw, "amin")
    is_chosen = draw == lowest[:, index]
    return torch.where(is_chosen, group, num_groups).double(), rank, size


def _share_entries(
    values: Tensor,
    first: Tensor,
    second: Tensor,
    first_members: Tensor,
    second_members: Tensor,
    other: Tensor,
) -> Tensor:
    """Return whether two conversations have an entry in common, ``(K, T)``, for pairs of
    conversations ``(T,)``.

    ``values``: one entry per row of the first side, ``other``: of the second side.
    """
    num_draws, _, length = first_members.shape
    at_once = max(1, _MOST_COMPARED // max(1, num_draws * length * second_members.shape[2]))
    parts = [torch.zeros(num_draws, 0, dtype=torch.bool, device=values.device)]
    for one, another in zip(first.split(at_once), second.split(at_once), strict=True):
        first_values = values[first_members[:, one]]
        second_values = other[second_members[:, another]]
        is_equal = first_values[..., :, None] == second_values[..., None, :]
        parts.append(is_equal.flatten(2).any(2))
    return torch.cat(parts, dim=1)


def _next_speaker(enrolment: _Layout, first: Tensor) -> Tensor:
    """Return for enrolment conversations the conversation of the next speaker at the same place,
    ``(T,)``.

    Cyclic where that speaker has fewer; -1 where there is no other speaker in the partition.
    """
    names, index = enrolment.speaker.unique(return_inverse=True)
    size = count_values(index, len(names))
    start = size.cumsum(0) - size
    partition = torch.zeros_like(names).scatter(0, index, enrolment.partition)
    following = torch.arange(len(names), device=names.device)
    for name in partition.unique():  # two or three: sexes, data sets
        members = (partition == name).nonzero().flatten()
        following[members] = members.roll(-1)
    own = index[first]
    other = following[own]
    row = start[other] + (first - start[own]) % size[other]
    return torch.where(other == own, -1, row)


def score_conversations(
    folds: Collection[TrialRows],
    length: int,
    max_draws: int = DRAWS,
    has_references: bool = False,
    is_enrolment_grouped: bool = True,
) -> ConversationScores:
    """Score conversations of ``length`` utterances, of all folds and draws.

    Args:
        folds: Rows of each fold of speakers, as their attack maps them.
        length: Utterances per conversation.
        max_draws: Random draws of conversations; fewer where one draw has more than a million
            non-target trials.
        has_references: Whether enrolment and tests are different utterances.
        is_enrolment_grouped: Whether enrolment rows are grouped; not where they are means of
            references.
    """
    parts = []
    for fold in folds:
        if len(fold.enrolment) and len(fold.test):
            part = _score_fold(
                fold, length, max_draws, len(folds), has_references, is_enrolment_grouped
            )
            parts.append(part)
    if not parts:
        empty = torch.zeros(0, dtype=torch.float64)
        return ConversationScores(
            empty, empty.bool(), empty.long().expand(2, -1), empty, empty.bool()
        )
    return ConversationScores(
        torch.cat([part.scores for part in parts]),
        torch.cat([part.is_target for part in parts]),
        torch.cat([part.labels for part in parts], dim=1),
        torch.cat([part.chance_scores for part in parts]),
        torch.cat([part.is_chance_target for part in parts]),
    )


def _score_fold(
    fold: TrialRows,
    length: int,
    max_draws: int,
    num_folds: int,
    has_references: bool,
    is_enrolment_grouped: bool,
) -> ConversationScores:
    """Score the conversations of one fold."""
    is_same_side = not has_references and fold.has_same_rows
    num_pairs = len(fold.enrolment) * len(fold.test) / length ** (2 if is_enrolment_grouped else 1)
    if is_same_side:
        num_pairs = num_pairs / 2
    num_draws = max_draws
    if num_pairs * num_folds > _MANY_TRIALS:
        num_draws = max(_FEWEST_DRAWS, int(max_draws * _MANY_TRIALS / (num_pairs * num_folds)))
        num_draws = min(num_draws, max_draws)
    recordings = torch.cat([fold.enrolment.ids, fold.test.ids])
    recording = _number_by_first_row(recordings)
    numbers = _draw_numbers(num_draws, int(recording.amax()) + 1, recordings.device, _SEED)
    enrolment_recording, test_recording = recording.split([len(fold.enrolment), len(fold.test)])
    condition = fold.condition
    enrolment = _lay_out(
        fold.enrolment,
        enrolment_recording,
        numbers,
        condition,
        length if is_enrolment_grouped else 1,
        is_enrolment_grouped,
    )
    test = enrolment
    if not is_same_side:
        test = _lay_out(fold.test, test_recording, numbers, condition, length, True)

    first, second = _pair_own(enrolment, test, is_same_side)
    is_trial = _mark_trials(
        fold,
        enrolment,
        test,
        first,
        second,
        enrolment_recording,
        test_recording,
        is_same_side,
        has_references,
    )
    next_row = _next_speaker(enrolment, first)
    # Of very many non-target trials, those with every so many of the test conversations.
    num_compared = num_draws * len(enrolment.speaker) * len(test.speaker)
    stride = max(1, math.ceil(num_compared * num_folds / _MOST_TRIALS))
    columns = torch.arange(0, len(test.speaker), stride, device=test.speaker.device)
    rows, columns = _pair_others(enrolment, test, columns, is_same_side and stride == 1)

    own_pairs = torch.stack([first, second])
    chance_pairs = torch.stack([next_row.clamp(min=0), second])
    other_pairs = torch.stack([rows, columns])
    scores_by_attacker = _compare_pairs(
        fold,
        enrolment.members,
        test.members,
        (own_pairs, other_pairs, chance_pairs),
        is_dense=stride == 1,
    )
    own_scores, other_scores, _ = scores_by_attacker[0]
    _, chance_other_scores, chance_scores = scores_by_attacker[-1]
    targets = own_scores[is_trial]
    nontargets = other_scores.flatten()
    chance_targets = chance_scores[is_trial & (next_row >= 0)]
    other_labels = torch.stack([enrolment.label[rows], test.label[columns]]).repeat(1, num_draws)
    own_label = test.label[second].expand(num_draws, -1)[is_trial]
    return ConversationScores(
        torch.cat([nontargets, targets]),
        _mark_last(len(nontargets), len(targets), targets.device),
        torch.cat([other_labels, own_label.expand(2, -1)], dim=1),
        torch.cat([chance_other_scores.flatten(), chance_targets]),
        _mark_last(len(nontargets), len(chance_targets), targets.device),
    )


def _mark_last(num_first: int, num_last: int, device: torch.device) -> Tensor:
    return torch.arange(num_first + num_last, device=device) >= num_first


def _number_by_first_row(recordings: Tensor) -> Tensor:
    """Return a number for each recording in the order of first rows, whatever the recordings are
    called, ``(N,)``.
    """
    names, index = recordings.unique(return_inverse=True)
    place = torch.arange(len(recordings), device=recordings.device)
    first_row = torch.full_like(names, len(recordings)).scatter_reduce(0, index, place, "amin")
    return first_row.argsort().argsort()[index]


def _pair_own(enrolment: _Layout, test: _Layout, is_same_side: bool) -> tuple[Tensor, Tensor]:
    """Return the pairs of conversations of one speaker, ``(T,)`` each; both sides are sorted by
    speaker.
    """
    start = torch.searchsorted(enrolment.speaker, test.speaker)
    number = torch.searchsorted(enrolment.speaker, test.speaker, right=True) - start
    second = torch.repeat_interleave(torch.arange(len(number), device=number.device), number)
    place = torch.arange(len(second), device=number.device) - (number.cumsum(0) - number)[second]
    first = start[second] + place
    if is_same_side:
        is_ordered = first < second
        return first[is_ordered], second[is_ordered]
    return first, second


def _pair_others(
    enrolment: _Layout, test: _Layout, columns: Tensor, is_unordered: bool
) -> tuple[Tensor, Tensor]:
    """Return the pairs of conversations of two speakers of one partition, for some test
    conversations.
    """
    is_other = enrolment.speaker[:, None] != test.speaker[columns]
    is_other = is_other & (enrolment.partition[:, None] == test.partition[columns])
    if is_unordered:
        is_other = is_other.triu(1)
    rows, index = is_other.nonzero().unbind(1)
    return rows, columns[index]


def _mark_trials(
    fold: TrialRows,
    enrolment: _Layout,
    test: _Layout,
    first: Tensor,
    second: Tensor,
    enrolment_recording: Tensor,
    test_recording: Tensor,
    is_same_side: bool,
    has_references: bool,
) -> Tensor:
    """Return which pairs of conversations of one speaker are trials in each draw, ``(K, T)``."""
    is_trial = torch.ones(len(enrolment.members), len(first), dtype=torch.bool, device=first.device)
    pairs = (first, second, enrolment.members, test.members)
    has_versions = fold.test.sessions is not None
    if not has_references and not (is_same_side and not has_versions):
        is_trial = is_trial & ~_share_entries(enrolment_recording, *pairs, test_recording)
    wanted = fold.condition.target_sessions
    if wanted == "other" and fold.enrolment.sessions is not None and fold.test.sessions is not None:
        is_trial = is_trial & ~_share_entries(fold.enrolment.sessions, *pairs, fold.test.sessions)
    return is_trial


def _compare_pairs(
    fold: TrialRows,
    enrolment_members: Tensor,
    test_members: Tensor,
    lists: Sequence[Tensor],
    is_dense: bool,
) -> list[list[Tensor]]:
    """Return for each attacker the scores of several lists of pairs of conversations ``(2, P)``,
    ``(K, P)`` each.

    With ``is_dense`` all pairs are compared at once, else only blocks that hold some of a list.
    """
    num_draws = len(enrolment_members)
    entries = (
        max(enrolment_members[0].numel(), test_members[0].numel()) * fold.enrolment_rows.shape[1]
    )
    at_once = max(1, _MOST_ENTRIES // max(1, entries))
    chunks: list[list[list[Tensor]]] = []  # by chunk of draws, attacker and list
    for start in range(0, num_draws, at_once):
        draws = slice(start, start + at_once)
        by_attacker = []
        for enrolment_rows, test_rows in fold.average(
            enrolment_members[draws], test_members[draws]
        ):
            if is_dense:
                scores = round_scores(fold.compare(enrolment_rows, test_rows))
                by_attacker.append([scores[:, pairs[0], pairs[1]] for pairs in lists])
            else:
                by_attacker.append(
                    [_compare_listed(fold, enrolment_rows, test_rows, pairs) for pairs in lists]
                )
        chunks.append(by_attacker)
    return [
        [torch.cat(scores_of_chunks) for scores_of_chunks in zip(*scores_of_attacker, strict=True)]
        for scores_of_attacker in zip(*chunks, strict=True)
    ]


def _compare_listed(
    fold: TrialRows, enrolment_rows: Tensor, test_rows: Tensor, pairs: Tensor
) -> Tensor:
    """Return the scores of listed pairs ``(2, P)`` of many conversations, ``(K, P)``, block by
    block.
    """
    order = pairs[0].argsort(stable=True)
    ordered = pairs[:, order]
    num_draws, num_rows, _ = enrolment_rows.shape
    bounds = torch.arange(0, num_rows + _ROWS_AT_ONCE, _ROWS_AT_ONCE, device=pairs.device)
    ends = torch.searchsorted(ordered[0].contiguous(), bounds).tolist()
    result = enrolment_rows.new_empty(num_draws, pairs.shape[1])
    for block, (start, end) in enumerate(pairwise(ends)):
        if start == end:
            continue
        first = block * _ROWS_AT_ONCE
        columns, column = ordered[1, start:end].unique(return_inverse=True)
        scores = fold.compare(
            enrolment_rows[:, first : first + _ROWS_AT_ONCE], test_rows[:, columns]
        )
        result[:, order[start:end]] = round_scores(scores)[:, ordered[0, start:end] - first, column]
    return result
