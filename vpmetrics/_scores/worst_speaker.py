"""The speaker who is protected worst, and a test whether luck alone would explain as much.

A speaker's own trials are calibrated on themselves. The largest of many noisy numbers is large, so
it is compared with what the largest is when test utterances are dealt out to the speakers anew:
every permuted speaker has as many utterances and trials as the real one, among rows that nobody
needs to have spoken together. Where sessions are known whole sessions are dealt out, since the
utterances of a session may have one voice in common. All pairs of a speaker's rows are looked at in
every permutation, so of a speaker with very many rows only the first ones are.

Speakers who exchange test utterances are a *neighbourhood*. Each of their test rows is also a
*slot*, which stays with its speaker: a permutation puts other test rows into the slots. A *unit* is
what is dealt out as a whole, a session or a single row. Counts are by *cell* of the score axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._scores.measures import linkability_of_bins
from vpmetrics._scores.score_counts import Steps, expected_disclosure
from vpmetrics._scores.trial_rows import TrialRows, round_scores
from vpmetrics._util.dtypes import wide_dtype, widen
from vpmetrics._utterances.canonical_order import count_within
from vpmetrics._utterances.utterances import Utterances, add_counts, count_values

DRAWS = 99  # permutations: the smallest p-value is .01
FEWEST_PERMUTATIONS = 20  # different ones, below which a p-value of .05 is out of reach
# of the score axis; with twice as many, D_ECE of single speakers grows by .004 bit on average
_CELLS = 128
_EXTREME = 9.0  # log-odds of the share of scores in the outermost cells: about one in ten thousand
_SAMPLED_SCORES = 1 << 20  # that the cells are laid by
_MOST_SCORES = 1 << 21  # that are counted at once
# Utterances are exchanged within neighbourhoods of so many speakers, so that memory is bounded. In
# larger ones a permuted speaker would keep fewer of the own utterances than one in thirty.
_MOST_SPEAKERS = 32
_FEWEST_SPEAKERS = 6
_MOST_ROWS = 1 << 12  # of a neighbourhood of more than the fewest speakers
# of each speaker and side, up to 262,144 pairs; twice as many take four times the memory and time
_MOST_ROWS_OF_SPEAKER = 512
_SEED = 8461  # of the permutations: the same for every call
_LINKABILITY_DRAWS = 19


@dataclass(frozen=True)
class WorstSpeaker:
    """The largest disclosure of one speaker's own trials.

    ``place`` among all speakers in the order of their labels, -1 where unknown; ``chance``: the
    mean of what the largest is with speakers permuted; ``p``: the share of permutations, this order
    included, in which it is as large. ``disclosure_of_speaker`` ``(S,)``.
    """

    disclosure: float
    place: int
    chance: float
    p: float
    disclosure_of_speaker: Tensor

    def scalars(self, device: torch.device) -> dict[str, Tensor]:
        """Return the numbers by their keys."""
        values = {
            "worst_speaker_disclosure": self.disclosure,
            "worst_speaker_chance": self.chance,
            "worst_speaker_p": self.p,
        }
        return {
            key: torch.tensor(value, dtype=wide_dtype(device), device=device)
            for key, value in values.items()
        }


@dataclass(frozen=True, eq=False)
class _SpeakerRows:
    """Rows of both sides with the place of their speakers among those of these rows.

    ``enrolment_speaker`` ``(A,)`` and ``test_speaker`` ``(B,)``. ``first_row`` and ``num_rows``
    ``(S,)``: where the enrolment rows of a speaker begin, and how many they are. ``partition``
    ``(S,)``; ``label`` ``(S,)``.
    """

    rows: TrialRows
    enrolment_speaker: Tensor
    test_speaker: Tensor
    first_row: Tensor
    num_rows: Tensor
    partition: Tensor
    label: Tensor
    is_same_side: bool

    @property
    def num_speakers(self) -> int:
        """How many speakers there are."""
        return len(self.label)


def _limit_rows(rows: TrialRows) -> TrialRows:
    """Return the first rows of every speaker, in canonical order, which looks random."""
    is_enrolment_taken = count_within(rows.enrolment.speaker_index) < _MOST_ROWS_OF_SPEAKER
    is_test_taken = count_within(rows.test.speaker_index) < _MOST_ROWS_OF_SPEAKER
    if bool(is_enrolment_taken.all() & is_test_taken.all()):
        return rows
    return rows.take(
        is_enrolment_taken.nonzero().flatten(),
        is_test_taken.nonzero().flatten(),
    )


def _index_speakers(rows: TrialRows) -> _SpeakerRows:
    """Return the rows with the places of their speakers, at most so many rows of each speaker."""
    rows = _limit_rows(rows)
    enrolment = rows.enrolment
    test = rows.test
    codes = torch.cat([enrolment.speaker_index, test.speaker_index])
    names, index = codes.unique(return_inverse=True)
    enrolment_speaker, test_speaker = index.split([len(enrolment), len(test)])
    num_rows = count_values(enrolment_speaker, len(names))
    labels = torch.cat([enrolment.speakers, test.speakers])
    label = torch.zeros_like(names).scatter(0, index, labels)
    partition = torch.zeros_like(names)
    if enrolment.groups is not None and test.groups is not None:
        partition = partition.scatter(0, index, torch.cat([enrolment.groups, test.groups]))
    return _SpeakerRows(
        rows,
        enrolment_speaker,
        test_speaker,
        num_rows.cumsum(0) - num_rows,
        num_rows,
        # Speakers of a partition are adjacent: numbered in their order, whatever they are called.
        partition.unique_consecutive(return_inverse=True)[1],
        label,
        rows.has_same_rows,
    )


@dataclass(frozen=True, eq=False)
class _Neighbourhood:
    """Speakers of one partition who exchange their test rows.

    ``speakers`` ``(S,)``: their indices among all speakers. ``test_rows`` ``(R,)``: all test rows
    of these speakers; row r belongs to slot r before a permutation. ``speaker_of_slot`` ``(R,)``:
    the speaker of each slot, an index into ``speakers``. ``enrolment_rows`` ``(E,)``: all enrolment
    rows of these speakers.
    """

    speakers: Tensor
    test_rows: Tensor
    speaker_of_slot: Tensor
    enrolment_rows: Tensor


def _split_into_neighbourhoods(speaker_rows: _SpeakerRows) -> Iterator[_Neighbourhood]:
    """Yield speakers of one partition, about equally many at a time."""
    num_tests = count_values(speaker_rows.test_speaker, speaker_rows.num_speakers)
    for name in speaker_rows.partition.unique():  # two or three: sexes, data sets
        members = (speaker_rows.partition == name).nonzero().flatten()
        rows_per_speaker = max(1, int(num_tests[members].sum()) // len(members))
        most_speakers = min(_MOST_SPEAKERS, max(_FEWEST_SPEAKERS, _MOST_ROWS // rows_per_speaker))
        num_neighbourhoods = math.ceil(len(members) / most_speakers)
        for speakers in members.tensor_split(num_neighbourhoods):
            new_place = torch.full_like(speaker_rows.label, -1)
            new_place[speakers] = torch.arange(len(speakers), device=speakers.device)
            speaker_of_test = new_place[speaker_rows.test_speaker]
            test_rows = (speaker_of_test >= 0).nonzero().flatten()
            is_enrolled = new_place[speaker_rows.enrolment_speaker] >= 0
            if len(test_rows):
                yield _Neighbourhood(
                    speakers,
                    test_rows,
                    speaker_of_test[test_rows],
                    is_enrolled.nonzero().flatten(),
                )


@dataclass(frozen=True, eq=False)
class _Units:
    """What is dealt out as a whole: the test rows of a speaker and session, or single rows.

    ``unit_of_slot`` ``(R,)``: the unit of each slot. ``place_in_unit`` ``(R,)``: the place of the
    slot in its unit, from 0. ``order`` ``(R,)``: the slots, sorted by unit; those of unit u are
    ``order[start[u] : start[u] + size[u]]``, with ``start`` and ``size`` ``(U,)``.
    """

    unit_of_slot: Tensor
    place_in_unit: Tensor
    order: Tensor
    start: Tensor
    size: Tensor

    def deal(self, new_unit: Tensor) -> Tensor:
        """Return the slot whose row comes into each slot ``(K, R)``, of permuted units ``(K, U)``.

        A shorter unit is repeated.
        """
        unit = new_unit[:, self.unit_of_slot]
        return self.order[self.start[unit] + self.place_in_unit % self.size[unit]]


def _find_units(test: Utterances, neighbourhood: _Neighbourhood) -> _Units:
    """Return the units of a neighbourhood: sessions where these are known, else single rows."""
    num_slots = len(neighbourhood.test_rows)
    slot = torch.arange(num_slots, device=neighbourhood.test_rows.device)
    if test.sessions is None:
        return _Units(
            unit_of_slot=slot,
            place_in_unit=torch.zeros_like(slot),
            order=slot,
            start=slot,
            size=torch.ones_like(slot),
        )
    session_of_slot = test.sessions[neighbourhood.test_rows]
    labels = torch.stack([neighbourhood.speaker_of_slot, session_of_slot])
    distinct_labels, label_of_slot = labels.unique(dim=1, return_inverse=True)
    num_units = distinct_labels.shape[1]
    # Units are numbered in the order of their first slots, so that the names of sessions do not
    # matter.
    first_slot = torch.full((num_units,), num_slots, device=slot.device)
    first_slot = first_slot.scatter_reduce(0, label_of_slot, slot, "amin")
    unit_of_label = first_slot.argsort().argsort()
    unit_of_slot = unit_of_label[label_of_slot]
    size = count_values(unit_of_slot, num_units)
    start = size.cumsum(0) - size
    order = unit_of_slot.argsort(stable=True)
    place_in_order = order.argsort()
    place_in_unit = place_in_order - start[unit_of_slot]
    return _Units(unit_of_slot, place_in_unit, order, start, size)


def _count_permutations(units: _Units, neighbourhood: _Neighbourhood) -> float:
    """Return the logarithm of the number of different ways to deal units out to speakers."""
    num_units = len(units.size)
    speaker_of_unit = neighbourhood.speaker_of_slot[units.order[units.start]]
    units_of_speaker = count_values(speaker_of_unit, len(neighbourhood.speakers)).tolist()
    ways_within_speakers = sum(math.lgamma(1 + num_own) for num_own in units_of_speaker)
    return math.lgamma(num_units + 1) - ways_within_speakers


def _permute_units(num_units: int, num_draws: int, generator: torch.Generator) -> Tensor:
    """Return units as they are and then ``num_draws`` permutations of them, ``(1 + K, U)``."""
    # On the host, since every kind of device has random numbers of its own.
    numbers = torch.rand(
        num_draws, num_units, generator=generator, dtype=torch.float64, device="cpu"
    )
    as_they_are = torch.arange(num_units, device="cpu")
    return torch.cat([as_they_are[None], numbers.argsort(dim=1)])


def lay_cells(speaker_rows: _SpeakerRows, num_cells: int = _CELLS) -> Tensor:
    """Return the edges between cells of the score axis, fine at both ends.

    They do not depend on who spoke: edges laid at target scores would tell real targets apart, and
    not those of permuted speakers.
    """
    rows = speaker_rows.rows
    stride = max(1, math.ceil(len(rows.enrolment) * len(rows.test) / _SAMPLED_SCORES))
    scores = round_scores(rows.compare(rows.enrolment_rows, rows.test_rows[::stride]))
    is_trial = rows.enrolment.ids[:, None] != rows.test.ids[::stride]
    ordered = scores[is_trial & scores.isfinite()].sort().values
    if len(ordered) == 0:
        return scores.new_zeros(1)
    log_odds = torch.linspace(
        -_EXTREME, _EXTREME, num_cells, dtype=torch.float64, device=scores.device
    )
    rank = (log_odds.sigmoid() * (len(ordered) - 1)).round().long()
    edges: Tensor = ordered[rank].unique()
    return edges


@dataclass(frozen=True, eq=False)
class _CellsOfScores:
    """Cells of the scores of the R test rows of a neighbourhood.

    ``by_row`` ``(R, C)``: how many trials of a test row, with the enrolment rows of all speakers of
    the partition, fall into each of C cells. ``own`` ``(R, E)``: the cell of the score with each
    enrolment row of the neighbourhood, C where both are one recording, which is no trial.
    """

    by_row: Tensor
    own: Tensor
    num_cells: int


def _find_cells(
    speaker_rows: _SpeakerRows, neighbourhood: _Neighbourhood, edges: Tensor
) -> _CellsOfScores:
    """Return the cells between ``edges`` ``(C - 1,)`` that scores of the neighbourhood fall into.

    Its test rows are compared with all enrolment rows, some at a time. What is no trial has cell C.
    """
    rows = speaker_rows.rows
    num_cells = len(edges) + 1
    num_columns = num_cells + 1  # the last one holds what is not counted
    partition = speaker_rows.partition[neighbourhood.speakers[0]]
    is_in_partition = speaker_rows.partition[speaker_rows.enrolment_speaker] == partition  # (A,)
    counts_of_blocks: list[Tensor] = []
    own_of_blocks: list[Tensor] = []
    rows_at_once = max(1, _MOST_SCORES // max(1, len(rows.enrolment)))
    for test_rows in neighbourhood.test_rows.split(rows_at_once):
        num_rows = len(test_rows)
        scores = round_scores(rows.compare(rows.enrolment_rows, rows.test_rows[test_rows])).mT
        cell = torch.bucketize(scores.contiguous(), edges, right=True)  # (rows, A)
        is_one_recording = rows.test.ids[test_rows][:, None] == rows.enrolment.ids
        cell = cell.masked_fill(is_one_recording, num_cells)
        # Counts are added in a flat table with a row of columns for each test row.
        first_entry = torch.arange(num_rows, device=cell.device)[:, None] * num_columns
        counts = cell.new_zeros(num_rows * num_columns)
        add_counts(counts, first_entry + cell.masked_fill(~is_in_partition, num_cells))
        counts_of_blocks.append(counts.view(num_rows, -1)[:, :num_cells])
        own_of_blocks.append(cell[:, neighbourhood.enrolment_rows].to(torch.int16))
    return _CellsOfScores(
        by_row=torch.cat(counts_of_blocks), own=torch.cat(own_of_blocks), num_cells=num_cells
    )


@dataclass(frozen=True, eq=False)
class _SlotTrials:
    """For every slot the enrolment rows of its speaker, as a table.

    The table ``(R, U)`` has a row for each of R slots, and a column for each row of the speaker
    with most of them. Speakers with fewer have padding at the end.

    ``enrolment``: the place of the row among the enrolment rows of the neighbourhood, 0 for
    padding. ``is_row``: whether the entry is no padding. ``is_trial``: whether the entry is a
    target trial of the slot.
    """

    enrolment: Tensor
    is_row: Tensor
    is_trial: Tensor


def _find_slot_trials(speaker_rows: _SpeakerRows, neighbourhood: _Neighbourhood) -> _SlotTrials:
    """Return the enrolment rows of every slot's speaker, and which are its target trials.

    A slot is a test row that belongs to one speaker. Permutations put other test rows into it; its
    speaker, and so its number of trials, stays.
    """
    num_enrolment_rows = len(speaker_rows.rows.enrolment)
    speaker = neighbourhood.speakers[neighbourhood.speaker_of_slot]  # (R,)
    num_rows = speaker_rows.num_rows[speaker][:, None]
    first_row = speaker_rows.first_row[speaker][:, None]
    # A neighbourhood has at least one slot, so there is a maximum.
    column = torch.arange(int(num_rows.amax()), device=speaker.device)
    is_row = column < num_rows  # (R, U)
    # The rows of a speaker are adjacent. Padding may lie beyond the last row of all.
    row = (first_row + column).clamp(max=max(0, num_enrolment_rows - 1))

    # All enrolment rows of the neighbourhood's speakers are among its rows, so every entry that is
    # no padding finds its place.
    place_of_row = torch.zeros(num_enrolment_rows, dtype=torch.int64, device=row.device)
    num_enrolled = len(neighbourhood.enrolment_rows)
    place_of_row[neighbourhood.enrolment_rows] = torch.arange(num_enrolled, device=row.device)
    return _SlotTrials(
        enrolment=place_of_row[row].masked_fill(~is_row, 0),
        is_row=is_row,
        is_trial=is_row & _mark_target_trials(speaker_rows, row, neighbourhood.test_rows),
    )


def _mark_target_trials(speaker_rows: _SpeakerRows, row: Tensor, test_rows: Tensor) -> Tensor:
    """Return which pairs of one speaker are trials, ``(R, U)``.

    ``row`` ``(R, U)``: enrolment rows of the speaker of each of the ``test_rows`` ``(R,)``.
    """
    enrolment = speaker_rows.rows.enrolment
    test = speaker_rows.rows.test
    # A recording is not compared with itself.
    is_trial = enrolment.ids[row] != test.ids[test_rows][:, None]
    if speaker_rows.is_same_side:
        # Each unordered pair is one trial: of the slot with the later row.
        is_trial = is_trial & (row < test_rows[:, None])
    target_sessions = speaker_rows.rows.condition.target_sessions
    if target_sessions == "any" or enrolment.sessions is None or test.sessions is None:
        return is_trial
    is_same_session = enrolment.sessions[row] == test.sessions[test_rows][:, None]
    if target_sessions == "other":
        return is_trial & ~is_same_session
    return is_trial & is_same_session


def _count_dealt(
    cells: _CellsOfScores,
    trials: _SlotTrials,
    neighbourhood: _Neighbourhood,
    slot_of_slot: Tensor,
    is_same_side: bool,
) -> tuple[Tensor, Tensor]:
    """Return counts of targets and of non-targets by cell, ``(K, S, C)`` each.

    ``slot_of_slot`` ``(K, R)``: the slot whose row comes into each slot, in K permutations.
    Enrolment rows stay with their speaker, but within one side they are the same rows and are dealt
    out as well.
    """
    num_draws = len(slot_of_slot)
    num_speakers = len(neighbourhood.speakers)
    num_cells = cells.num_cells
    num_columns = num_cells + 1  # the last one holds what is not counted
    device = cells.own.device
    enrolment = trials.enrolment.expand(num_draws, -1, -1)
    if is_same_side:
        enrolment = slot_of_slot[:, trials.enrolment]
    cell = cells.own[slot_of_slot[..., None], enrolment].long()  # (K, R, U)

    # Counts are added in flat tables: the column of a cell in the row of a draw and a speaker.
    draw = torch.arange(num_draws, device=device)[:, None]
    table_row = draw * num_speakers + neighbourhood.speaker_of_slot  # (K, R)
    first_entry = (table_row * num_columns)[..., None]
    table_size = num_draws * num_speakers * num_columns
    targets = torch.zeros(table_size, dtype=torch.int64, device=device)
    own_speaker = torch.zeros_like(targets)
    add_counts(targets, first_entry + cell.masked_fill(~trials.is_trial, num_cells))
    add_counts(own_speaker, first_entry + cell.masked_fill(~trials.is_row, num_cells))
    table_shape = (num_draws, num_speakers, num_columns)
    targets = targets.view(table_shape)[..., :num_cells]
    own_speaker = own_speaker.view(table_shape)[..., :num_cells]

    every_speaker = cells.by_row.new_zeros(num_draws, num_speakers, num_cells)
    every_speaker.index_add_(1, neighbourhood.speaker_of_slot, cells.by_row[slot_of_slot])
    # A short unit fills a longer one by repetition, and takes its trials away twice.
    nontargets = (every_speaker - own_speaker).clamp(min=0)
    return targets, nontargets


@dataclass(frozen=True, eq=False)
class _Counts:
    """Trials of some speakers by cell of the score axis: as they are, and then permuted.

    ``speakers`` ``(S,)``; ``targets`` and ``nontargets`` ``(1 + K, S, C)``.
    """

    speakers: Tensor
    targets: Tensor
    nontargets: Tensor
    log_permutations: float


def _count_speakers(
    speaker_rows: _SpeakerRows, edges: Tensor, num_draws: int, seed: int
) -> Iterator[_Counts]:
    """Yield the counts of some speakers after the other."""
    generator = torch.Generator().manual_seed(seed)
    for neighbourhood in _split_into_neighbourhoods(speaker_rows):
        units = _find_units(speaker_rows.rows.test, neighbourhood)
        new_unit = _permute_units(len(units.size), num_draws, generator)
        slot_of_slot = units.deal(new_unit.to(edges.device))
        trials = _find_slot_trials(speaker_rows, neighbourhood)
        cells = _find_cells(speaker_rows, neighbourhood, edges)
        entries_of_draw = len(units.order) * max(trials.enrolment.shape[1], cells.num_cells)
        draws_at_once = max(1, _MOST_SCORES // entries_of_draw)
        targets: list[Tensor] = []
        nontargets: list[Tensor] = []
        for some_draws in slot_of_slot.split(draws_at_once):
            counted = _count_dealt(
                cells, trials, neighbourhood, some_draws, speaker_rows.is_same_side
            )
            targets.append(counted[0])
            nontargets.append(counted[1])
        yield _Counts(
            neighbourhood.speakers,
            torch.cat(targets),
            torch.cat(nontargets),
            _count_permutations(units, neighbourhood),
        )


def _better_sign_disclosure(targets: Tensor, nontargets: Tensor) -> Tensor:
    """Return the larger D_ECE of scores and of negated scores, for counts ``(..., C)`` by cell."""
    is_used = (targets + nontargets).flatten(0, -2).sum(0) > 0
    targets = widen(targets[..., is_used])
    nontargets = widen(nontargets[..., is_used])
    both_targets = torch.stack([targets, targets.flip(-1)])
    both_nontargets = torch.stack([nontargets, nontargets.flip(-1)])
    return expected_disclosure(Steps(targets.new_empty(0), both_targets, both_nontargets)).amax(0)


def find_worst_speaker(
    rows_by_condition: Iterable[Iterable[TrialRows]], labels: Tensor
) -> WorstSpeaker:
    """Find the speaker who discloses most in any condition, and test it against permuted speakers.

    Args:
        rows_by_condition: For each condition the rows of every fold of speakers, after the attack
            of the fold.
        labels: All speakers, ascending, ``(S,)``.

    Returns:
        :class:`WorstSpeaker`; NaN where no speaker has trials of both kinds, and chance and p are
        NaN for fewer than 20 different permutations.
    """
    largest = _LargestDisclosures(labels.cpu())
    for folds in rows_by_condition:
        log_permutations = 0.0
        for fold, rows in enumerate(folds):
            if len(rows.enrolment) == 0 or len(rows.test) == 0:
                continue
            if not bool(rows.enrolment_rows.isfinite().all() & rows.test_rows.isfinite().all()):
                return _LargestDisclosures(labels.cpu()).find_worst_speaker()
            speaker_rows = _index_speakers(rows)
            edges = lay_cells(speaker_rows)
            # The same permutations in every condition.
            for counts in _count_speakers(speaker_rows, edges, DRAWS, _SEED + fold):
                largest.add(counts, speaker_rows.label[counts.speakers])
                log_permutations += counts.log_permutations
        largest.log_permutations = max(largest.log_permutations, log_permutations)
    return largest.find_worst_speaker()


class _LargestDisclosures:
    """The largest disclosures over conditions and folds that were counted so far.

    ``of_speaker`` ``(S,)``: of every speaker; ``by_draw`` ``(1 + K,)``: of all speakers as they
    are, and then permuted. ``log_permutations``: logarithm of the number of different ones.
    """

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels
        self.of_speaker = torch.full((len(labels),), -torch.inf, dtype=torch.float64, device="cpu")
        self.by_draw = torch.full((1 + DRAWS,), -torch.inf, dtype=torch.float64, device="cpu")
        self.log_permutations = 0.0

    def add(self, counts: _Counts, speaker_labels: Tensor) -> None:
        """Add the trials of some speakers."""
        disclosure = _better_sign_disclosure(counts.targets, counts.nontargets)
        disclosure = disclosure.cpu().nan_to_num(-torch.inf)
        index = torch.searchsorted(self.labels, speaker_labels.cpu())
        self.of_speaker[index] = torch.maximum(self.of_speaker[index], disclosure[0])
        self.by_draw = torch.maximum(self.by_draw, disclosure.amax(1))

    def find_worst_speaker(self) -> WorstSpeaker:
        """Return the speaker who discloses most, and how often permuted ones do as much."""
        disclosure_or_nan = torch.where(self.of_speaker.isfinite(), self.of_speaker, torch.nan)
        if not bool(self.of_speaker.isfinite().any()):
            return WorstSpeaker(math.nan, -1, math.nan, math.nan, disclosure_or_nan)
        disclosure, speaker = self.of_speaker.max(0)
        by_chance = self.by_draw[1:]
        chance = math.nan
        p_value = math.nan
        is_enough = self.log_permutations >= math.log(FEWEST_PERMUTATIONS)
        if is_enough and bool(by_chance.isfinite().all()):
            chance = float(by_chance.mean())
            # Rounding of equal disclosures must not decide.
            num_as_large = int((by_chance >= disclosure - 1e-9).sum())
            p_value = (1 + num_as_large) / (DRAWS + 1)
        return WorstSpeaker(float(disclosure), int(speaker), chance, p_value, disclosure_or_nan)


def linkability_by_chance(rows: TrialRows, edges: Tensor) -> Tensor:
    """Return the mean linkability over permutations of speakers; ``edges`` of bins ``(99,)``."""
    undefined = torch.full((), torch.nan, dtype=torch.float64, device=edges.device)
    if bool(edges[0].isnan()) or len(rows.enrolment) == 0 or len(rows.test) == 0:
        return undefined
    speaker_rows = _index_speakers(rows)
    bin_edges = edges[edges.isfinite()].to(rows.enrolment_rows.dtype)
    nontargets = torch.zeros(
        1 + _LINKABILITY_DRAWS, len(bin_edges) + 1, dtype=torch.int64, device=edges.device
    )
    targets = torch.zeros_like(nontargets)
    has_permutations = False
    for counts in _count_speakers(speaker_rows, bin_edges, _LINKABILITY_DRAWS, _SEED):
        targets = targets + counts.targets.sum(1)
        nontargets = nontargets + counts.nontargets.sum(1)
        has_permutations = has_permutations or counts.log_permutations > 0
    if not has_permutations:
        return undefined
    counts_by_class = torch.stack([widen(nontargets[1:]), widen(targets[1:])])
    padding = 1 + len(edges) - counts_by_class.shape[-1]
    value: Tensor = linkability_of_bins(pad(counts_by_class, (0, padding))).nanmean()
    return value
