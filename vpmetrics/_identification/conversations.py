"""Conversations for trials: random groups of one person's utterances, drawn several times.

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
_SESSION_STEPS = 1 << 20  # of [0, 1): each session has a step, and its rows lie within it
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
    """Return the largest length of conversations that leaves enough speakers two of them.

    Enough is half of the speakers with tests; with references one conversation of tests suffices.
    None if there is no such length.
    """
    if len(tests) == 0:
        return None
    names, speaker = tests.speaker_index.unique(return_inverse=True)
    fewest = 2
    if has_references:
        fewest = 1
    for length in LENGTHS:
        num_conversations = _count_conversations(tests, speaker, len(names), condition, length)
        if 2 * int((num_conversations >= fewest).sum()) >= len(names):
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
    """Return a number for each row's session, different for every speaker, and its speaker."""
    pairs, session_number = torch.stack([speaker, sessions]).unique(dim=1, return_inverse=True)
    return session_number, pairs[0]


def _draw_numbers(num_draws: int, count: int, device: torch.device, seed: int) -> Tensor:
    """Return random numbers ``(K, N)``, the same on every kind of device."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(num_draws, count, generator=generator, dtype=torch.float64, device="cpu")
    return numbers.to(device)


def _lay_out(
    side: Utterances,
    recording: Tensor,
    random_numbers: Tensor,
    condition: Condition,
    length: int,
    is_grouped: bool,
) -> _Layout:
    """Return the conversations of one side in every draw.

    ``recording`` ``(N,)``: column of ``random_numbers`` ``(K, R)``, the same for both sides.
    Without ``is_grouped`` every row is a conversation of its own.
    """
    num_draws = len(random_numbers)
    if side.groups is None:
        partition = torch.zeros_like(side.speaker_index)
    else:
        partition = side.groups
    if not is_grouped:
        rows = torch.arange(len(side), device=recording.device)
        members = rows[None, :, None].expand(num_draws, -1, 1)
        return _Layout(members, side.speaker_index, partition, side.speakers)
    groups = _group_rows(side, recording, random_numbers, condition, length)
    # Rows that are left out in a draw come last, after all groups.
    order = (groups.group_of_row + groups.position).argsort(dim=1)
    group_start = groups.size.cumsum(0) - groups.size
    num_kept = groups.size // length * length
    position = torch.arange(int(groups.size.sum()), device=recording.device)
    group_number = torch.arange(len(groups.size), device=recording.device)
    group_of_position = torch.repeat_interleave(group_number, groups.size)
    is_kept = position - group_start[group_of_position] < num_kept[group_of_position]
    members = order[:, position[is_kept]].view(num_draws, -1, length)
    # Who speaks in a conversation is the same in every draw.
    any_member = members[0, :, 0]
    return _Layout(
        members, side.speaker_index[any_member], partition[any_member], side.speakers[any_member]
    )


@dataclass(frozen=True, eq=False)
class _RowGroups:
    """Groups of rows that conversations are cut out of.

    ``group_of_row`` ``(K, N)`` or ``(N,)``, float64; a row that is left out has the number ``G``,
    after the last group. ``position`` ``(K, N)``, in [0, 1): rows of a group are taken in this
    order, so ``group_of_row + position`` sorts the rows of a draw. ``size`` ``(G,)``: rows per
    group.
    """

    group_of_row: Tensor
    position: Tensor
    size: Tensor


def _group_rows(
    side: Utterances, recording: Tensor, random_numbers: Tensor, condition: Condition, length: int
) -> _RowGroups:
    """Return the groups of rows that conversations are cut out of, with a random order in each.

    Rows of a group have one speaker and, where references are marked, are all references or all
    not. Where the condition asks for sessions, :func:`_group_by_session` divides them further.

    Args:
        side: Rows ``(N,)`` of one side, at least one.
        recording: ``(N,)``, the column of ``random_numbers`` that belongs to each row.
        random_numbers: ``(K, R)`` in [0, 1), of each draw and recording.
        condition: The condition.
        length: Utterances per conversation.
    """
    position = random_numbers[:, recording]
    labels = [side.speaker_index]
    if side.is_reference is not None:
        labels.append(side.is_reference.long())
    if condition.target_sessions != "any" and side.sessions is not None:
        session, _ = _number_sessions(side.sessions, side.speaker_index)
        return _group_by_session(session, labels, position, length)
    group, num_groups = _number_combinations(labels)
    if side.sessions is None:
        return _RowGroups(group.double(), position, count_values(group, num_groups))
    # With sessions, a recording may have been protected once in each.
    return _keep_one_version(recording, position, group, num_groups)


def _group_by_session(
    session: Tensor, labels: Sequence[Tensor], position: Tensor, length: int
) -> _RowGroups:
    """Return groups of rows that agree in ``labels``, divided by session where these are long.

    A session of at least ``length`` rows is a group of its own. All shorter sessions of a speaker
    are one group, in which sessions follow one another, so that a conversation has few of them.

    Args:
        session: ``(N,)``, the number of each row's session; no two speakers have one in common.
        labels: What rows of a group have in common, ``(N,)`` each.
        position: ``(K, N)``, see :class:`_RowGroups`; sessions are brought together in it.
        length: Utterances per conversation.
    """
    num_sessions = int(session.amax()) + 1
    is_long = (count_values(session, num_sessions) >= length)[session]
    all_short_sessions = num_sessions  # a number that no session has
    group, num_groups = _number_combinations(
        [*labels, torch.where(is_long, session, all_short_sessions)]
    )
    # Every session begins at a random step of [0, 1), and its rows keep their order within it.
    session_position = _draw_numbers(len(position), num_sessions, position.device, _SEED + 1)
    step = (session_position[:, session] * _SESSION_STEPS).floor()
    position = (step + position) / _SESSION_STEPS
    # A position rounded up to 1 would belong to the next group.
    position = position.clamp(max=1 - 1e-9)
    return _RowGroups(group.double(), position, count_values(group, num_groups))


def _number_combinations(labels: Sequence[Tensor]) -> tuple[Tensor, int]:
    """Return a number for the labels ``(N,)`` that each row combines, and how many there are."""
    combination_of_row = torch.stack(list(labels)).unique(dim=1, return_inverse=True)[1]
    return combination_of_row, int(combination_of_row.amax()) + 1


def _keep_one_version(
    recording: Tensor, position: Tensor, group: Tensor, num_groups: int
) -> _RowGroups:
    """Return the groups with one row, drawn at random, of each recording in a group.

    A recording that was protected several times has several rows, which are the same utterance.

    Args:
        recording: ``(N,)``, the number of each row's recording.
        position: ``(K, N)``, see :class:`_RowGroups`.
        group: ``(N,)``, the group of each row.
        num_groups: ``G``.
    """
    group_and_recording, version_of = torch.stack([group, recording]).unique(
        dim=1, return_inverse=True
    )
    num_recordings = group_and_recording.shape[1]
    size = count_values(group_and_recording[0], num_groups)
    if num_recordings == len(recording):
        return _RowGroups(group.double(), position, size)
    # Of the versions of a recording, the row with the lowest random number is taken.
    priority = _draw_numbers(len(position), len(recording), position.device, _SEED + 2)
    lowest = priority.new_ones(len(position), num_recordings)
    lowest = lowest.scatter_reduce(1, version_of.expand_as(priority), priority, "amin")
    is_taken = priority == lowest[:, version_of]
    left_out = num_groups
    group_in_draw = torch.where(is_taken, group, left_out)
    return _RowGroups(group_in_draw.double(), position, size)


@dataclass(frozen=True, eq=False)
class _Sides:
    """Conversations of both sides of a fold, and the recording of every row of each side."""

    enrolment: _Layout
    test: _Layout
    enrolment_recording: Tensor
    test_recording: Tensor
    is_same_side: bool
    has_references: bool


def _share_entries(
    sides: _Sides, own_pairs: Tensor, enrolment_values: Tensor, test_values: Tensor
) -> Tensor:
    """Return whether two conversations have a value in common, ``(K, T)``, for pairs ``(2, T)``.

    ``enrolment_values``: one per row of that side, ``test_values``: of the other side.
    """
    enrolment_members = sides.enrolment.members
    test_members = sides.test.members
    num_draws, _, length = enrolment_members.shape
    values_per_pair = num_draws * length * test_members.shape[2]
    pairs_at_once = max(1, _MOST_COMPARED // max(1, values_per_pair))
    is_shared = [torch.zeros(num_draws, 0, dtype=torch.bool, device=enrolment_values.device)]
    for pairs in own_pairs.split(pairs_at_once, dim=1):
        values = enrolment_values[enrolment_members[:, pairs[0]]]
        other_values = test_values[test_members[:, pairs[1]]]
        is_equal = values[..., :, None] == other_values[..., None, :]
        is_shared.append(is_equal.flatten(2).any(2))
    return torch.cat(is_shared, dim=1)


def _find_next_speaker(enrolment: _Layout, conversation: Tensor) -> Tensor:
    """Return the next speaker's conversation in the place of each enrolment conversation, ``(T,)``.

    Cyclic where that speaker has fewer; -1 where there is no other speaker in the partition.
    """
    names, speaker = enrolment.speaker.unique(return_inverse=True)
    num_conversations = count_values(speaker, len(names))
    start = num_conversations.cumsum(0) - num_conversations
    partition = torch.zeros_like(names).scatter(0, speaker, enrolment.partition)
    next_speaker = torch.arange(len(names), device=names.device)
    for name in partition.unique():  # two or three: sexes, data sets
        members = (partition == name).nonzero().flatten()
        next_speaker[members] = members.roll(-1)
    own_speaker = speaker[conversation]
    other_speaker = next_speaker[own_speaker]
    number_in_speaker = (conversation - start[own_speaker]) % num_conversations[other_speaker]
    return torch.where(other_speaker == own_speaker, -1, start[other_speaker] + number_in_speaker)


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
    of_folds: list[ConversationScores] = []
    for fold in folds:
        if len(fold.enrolment) and len(fold.test):
            is_same_side = not has_references and fold.has_same_rows
            num_trials = _count_trials(fold, length, is_same_side, is_enrolment_grouped)
            num_draws = _choose_draws(max_draws, num_trials * len(folds))
            sides = _lay_out_sides(
                fold, length, num_draws, is_same_side, has_references, is_enrolment_grouped
            )
            of_folds.append(_score_fold(fold, sides, len(folds)))
    if not of_folds:
        empty = torch.zeros(0, dtype=torch.float64)
        return ConversationScores(
            empty, empty.bool(), empty.long().expand(2, -1), empty, empty.bool()
        )
    return ConversationScores(
        torch.cat([of_fold.scores for of_fold in of_folds]),
        torch.cat([of_fold.is_target for of_fold in of_folds]),
        torch.cat([of_fold.labels for of_fold in of_folds], dim=1),
        torch.cat([of_fold.chance_scores for of_fold in of_folds]),
        torch.cat([of_fold.is_chance_target for of_fold in of_folds]),
    )


def _count_trials(
    fold: TrialRows, length: int, is_same_side: bool, is_enrolment_grouped: bool
) -> float:
    """Return about how many trials one draw has."""
    num_pairs = len(fold.enrolment) * len(fold.test) / length
    if is_enrolment_grouped:
        num_pairs = num_pairs / length
    if is_same_side:
        num_pairs = num_pairs / 2
    return num_pairs


def _choose_draws(max_draws: int, num_trials: float) -> int:
    """Return how many draws are made, fewer where one has very many trials."""
    if num_trials <= _MANY_TRIALS:
        return max_draws
    num_draws = max(_FEWEST_DRAWS, int(max_draws * _MANY_TRIALS / num_trials))
    return min(num_draws, max_draws)


def _lay_out_sides(
    fold: TrialRows,
    length: int,
    num_draws: int,
    is_same_side: bool,
    has_references: bool,
    is_enrolment_grouped: bool,
) -> _Sides:
    """Return the conversations of both sides of a fold, matched by recording."""
    recording = _number_by_first_row(torch.cat([fold.enrolment.ids, fold.test.ids]))
    num_recordings = int(recording.amax()) + 1
    random_numbers = _draw_numbers(num_draws, num_recordings, recording.device, _SEED)
    num_rows = [len(fold.enrolment), len(fold.test)]
    enrolment_recording, test_recording = recording.split(num_rows)
    enrolment_length = 1
    if is_enrolment_grouped:
        enrolment_length = length
    enrolment = _lay_out(
        fold.enrolment,
        enrolment_recording,
        random_numbers,
        fold.condition,
        enrolment_length,
        is_enrolment_grouped,
    )
    test = enrolment
    if not is_same_side:
        test = _lay_out(fold.test, test_recording, random_numbers, fold.condition, length, True)
    return _Sides(
        enrolment, test, enrolment_recording, test_recording, is_same_side, has_references
    )


def _score_fold(fold: TrialRows, sides: _Sides, num_folds: int) -> ConversationScores:
    """Score the conversations of one fold."""
    enrolment = sides.enrolment
    test = sides.test
    num_draws = len(enrolment.members)
    own_pairs = _pair_own(enrolment, test, sides.is_same_side)
    is_trial = _mark_trials(fold, sides, own_pairs)
    next_conversation = _find_next_speaker(enrolment, own_pairs[0])
    chance_pairs = torch.stack([next_conversation.clamp(min=0), own_pairs[1]])

    # Of very many non-target trials, those with every so many of the test conversations.
    num_compared = num_draws * len(enrolment.speaker) * len(test.speaker)
    stride = max(1, math.ceil(num_compared * num_folds / _MOST_TRIALS))
    columns = torch.arange(0, len(test.speaker), stride, device=test.speaker.device)
    is_dense = stride == 1
    other_pairs = _pair_others(enrolment, test, columns, sides.is_same_side and is_dense)

    scores_by_attacker = _compare_pairs(
        fold, sides, (own_pairs, other_pairs, chance_pairs), is_dense
    )
    own_scores, other_scores, _ = scores_by_attacker[0]
    _, chance_other_scores, chance_scores = scores_by_attacker[-1]
    targets = own_scores[is_trial]
    nontargets = other_scores.flatten()
    chance_targets = chance_scores[is_trial & (next_conversation >= 0)]
    other_labels = torch.stack([enrolment.label[other_pairs[0]], test.label[other_pairs[1]]])
    own_label = test.label[own_pairs[1]].expand(num_draws, -1)[is_trial]
    return ConversationScores(
        torch.cat([nontargets, targets]),
        _mark_last(len(nontargets), len(targets), targets.device),
        torch.cat([other_labels.repeat(1, num_draws), own_label.expand(2, -1)], dim=1),
        torch.cat([chance_other_scores.flatten(), chance_targets]),
        _mark_last(len(nontargets), len(chance_targets), targets.device),
    )


def _mark_last(num_first: int, num_last: int, device: torch.device) -> Tensor:
    return torch.arange(num_first + num_last, device=device) >= num_first


def _number_by_first_row(recordings: Tensor) -> Tensor:
    """Return a number for each recording by its first row, whatever it is called, ``(N,)``."""
    names, index = recordings.unique(return_inverse=True)
    row = torch.arange(len(recordings), device=recordings.device)
    first_row = torch.full_like(names, len(recordings)).scatter_reduce(0, index, row, "amin")
    return first_row.argsort().argsort()[index]


def _pair_own(enrolment: _Layout, test: _Layout, is_same_side: bool) -> Tensor:
    """Return the pairs of one speaker's conversations, ``(2, T)``; sides are sorted by speaker."""
    start = torch.searchsorted(enrolment.speaker, test.speaker)
    num_pairs = torch.searchsorted(enrolment.speaker, test.speaker, right=True) - start
    test_conversation = torch.arange(len(num_pairs), device=num_pairs.device)
    column = torch.repeat_interleave(test_conversation, num_pairs)
    pair = torch.arange(len(column), device=column.device)
    number_in_speaker = pair - (num_pairs.cumsum(0) - num_pairs)[column]
    own_pairs = torch.stack([start[column] + number_in_speaker, column])
    if is_same_side:
        return own_pairs[:, own_pairs[0] < own_pairs[1]]
    return own_pairs


def _pair_others(enrolment: _Layout, test: _Layout, columns: Tensor, is_unordered: bool) -> Tensor:
    """Return the pairs of two speakers of one partition, ``(2, T)``, in some test columns."""
    is_other = enrolment.speaker[:, None] != test.speaker[columns]
    is_other = is_other & (enrolment.partition[:, None] == test.partition[columns])
    if is_unordered:
        is_other = is_other.triu(1)
    rows, index = is_other.nonzero().unbind(1)
    return torch.stack([rows, columns[index]])


def _mark_trials(fold: TrialRows, sides: _Sides, own_pairs: Tensor) -> Tensor:
    """Return which pairs of conversations of one speaker are trials in each draw, ``(K, T)``."""
    num_draws = len(sides.enrolment.members)
    is_trial = torch.ones(num_draws, own_pairs.shape[1], dtype=torch.bool, device=own_pairs.device)
    # Within one side conversations share recordings only where there are versions of these.
    has_versions = fold.test.sessions is not None
    if not sides.has_references and (has_versions or not sides.is_same_side):
        is_shared = _share_entries(
            sides, own_pairs, sides.enrolment_recording, sides.test_recording
        )
        is_trial = is_trial & ~is_shared
    enrolment_sessions = fold.enrolment.sessions
    test_sessions = fold.test.sessions
    is_across = fold.condition.target_sessions == "other"
    if is_across and enrolment_sessions is not None and test_sessions is not None:
        is_shared = _share_entries(sides, own_pairs, enrolment_sessions, test_sessions)
        is_trial = is_trial & ~is_shared
    return is_trial


def _compare_pairs(
    fold: TrialRows, sides: _Sides, lists: Sequence[Tensor], is_dense: bool
) -> list[list[Tensor]]:
    """Return for each attacker the scores ``(K, P)`` of each list of pairs ``(2, P)``.

    With ``is_dense`` all pairs are compared at once, else only blocks that hold some of a list.
    """
    enrolment_members = sides.enrolment.members
    test_members = sides.test.members
    num_draws = len(enrolment_members)
    num_averaged = max(enrolment_members[0].numel(), test_members[0].numel())
    entries_of_draw = num_averaged * fold.enrolment_rows.shape[1]
    draws_at_once = max(1, _MOST_ENTRIES // max(1, entries_of_draw))
    # by attacker, list and some draws
    collected: list[list[list[Tensor]]] = []
    for first_draw in range(0, num_draws, draws_at_once):
        draws = slice(first_draw, first_draw + draws_at_once)
        averaged = fold.average(enrolment_members[draws], test_members[draws])
        for attacker, (enrolment_rows, test_rows) in enumerate(averaged):
            if attacker == len(collected):
                collected.append([[] for _ in lists])
            if is_dense:
                all_scores = round_scores(fold.compare(enrolment_rows, test_rows))
            for pairs, scores_of_draws in zip(lists, collected[attacker], strict=True):
                if is_dense:
                    scores_of_draws.append(all_scores[:, pairs[0], pairs[1]])
                else:
                    scores = _compare_listed(fold, enrolment_rows, test_rows, pairs)
                    scores_of_draws.append(scores)
    scores_by_attacker: list[list[Tensor]] = []
    for scores_by_list in collected:
        scores_by_attacker.append([torch.cat(scores) for scores in scores_by_list])
    return scores_by_attacker


def _compare_listed(
    fold: TrialRows, enrolment_rows: Tensor, test_rows: Tensor, pairs: Tensor
) -> Tensor:
    """Return the scores ``(K, P)`` of listed pairs ``(2, P)`` of many conversations, by block."""
    order = pairs[0].argsort(stable=True)
    ordered = pairs[:, order]
    num_draws, num_rows, _ = enrolment_rows.shape
    bounds = torch.arange(0, num_rows + _ROWS_AT_ONCE, _ROWS_AT_ONCE, device=pairs.device)
    ends = torch.searchsorted(ordered[0].contiguous(), bounds).tolist()
    scores_of_pairs = enrolment_rows.new_empty(num_draws, pairs.shape[1])
    for block, (start, end) in enumerate(pairwise(ends)):
        if start == end:
            continue
        first_row = block * _ROWS_AT_ONCE
        rows = enrolment_rows[:, first_row : first_row + _ROWS_AT_ONCE]
        columns, column = ordered[1, start:end].unique(return_inverse=True)
        block_scores = round_scores(fold.compare(rows, test_rows[:, columns]))
        row = ordered[0, start:end] - first_row
        scores_of_pairs[:, order[start:end]] = block_scores[:, row, column]
    return scores_of_pairs
