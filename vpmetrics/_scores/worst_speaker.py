"""The speaker who is protected worst, and a test whether luck alone would explain as much.

A speaker's own trials are calibrated on themselves. The largest of many noisy numbers is large, so
it is compared with what the largest is when speakers are permuted: the test rows of every speaker
meet the enrolment rows of another one, in as many trials as the speaker really has. Trials are
counted block by block and never listed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._scores.measures import expected_disclosure, linkability_of_bins
from vpmetrics._scores.score_counts import Steps
from vpmetrics._scores.trial_rows import TrialRows, round_scores
from vpmetrics._util.dtypes import wide_dtype, widen
from vpmetrics._utterances.utterances import Utterances, add_counts, count_values

DRAWS = 99  # permutations: the smallest p-value is .01
FEWEST_DRAWS = 20  # different permutations below which a p-value of .05 is out of reach
# of the score axis; with twice as many, D_ECE of single speakers grows by .004 bit on average
_CELLS = 64
_EXTREME = 7.0  # log-odds of the share of scores in the outermost cells: about one in a thousand
_SAMPLED_SCORES = 1 << 20  # that the cells are laid by
_MOST_SCORES = 1 << 21  # that are counted at once
_MOST_COUNTS = 1 << 22  # of permuted speakers that are calibrated at once
_MOST_SHIFTED_SPEAKERS = 1 << 13  # speakers times shifts, beyond which fewer shifts are drawn from
_SEED = 8461  # of the shifts: the same for every call
_LINKABILITY_SHIFTS = 19


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
class _OwnTrials:
    """What is needed to count the trials of single speakers, and of permuted ones.

    ``enrolment_speaker`` ``(A,)`` and ``test_speaker`` ``(B,)``: index among the speakers of these
    rows. ``first_row`` and ``num_rows`` ``(S,)``: where the enrolment rows of a speaker begin, and
    how many they are. ``partition`` ``(S,)``; ``label`` ``(S,)``.
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


def _index_speakers(rows: TrialRows) -> _OwnTrials:
    enrolment, test = rows.enrolment, rows.test
    codes = torch.cat([enrolment.speaker_index, test.speaker_index])
    names, index = codes.unique(return_inverse=True)
    enrolment_speaker, test_speaker = index.split([len(enrolment), len(test)])
    num_rows = count_values(enrolment_speaker, len(names))
    label = torch.zeros_like(names).scatter(
        0, index, torch.cat([enrolment.speakers, test.speakers])
    )
    partition = torch.zeros_like(names)
    if enrolment.groups is not None and test.groups is not None:
        partition = partition.scatter(0, index, torch.cat([enrolment.groups, test.groups]))
    return _OwnTrials(
        rows,
        enrolment_speaker,
        test_speaker,
        num_rows.cumsum(0) - num_rows,
        num_rows,
        partition.unique(return_inverse=True)[1],
        label,
        rows.has_same_rows,
    )


def mark_own_trials(
    enrolment: Utterances, test: Utterances, trials: _OwnTrials, columns: slice
) -> Tensor:
    """Return which enrolment rows of their own speaker some test rows have trials with, ``(R, U)``.

    Column u is the enrolment row u of that speaker. Within one side every unordered pair is one
    trial.
    """
    speaker = trials.test_speaker[columns]
    longest = int(trials.num_rows.amax()) if len(trials.num_rows) else 0
    place = torch.arange(longest, device=speaker.device)
    is_row = place < trials.num_rows[speaker][:, None]
    row = (trials.first_row[speaker][:, None] + place).clamp(max=max(0, len(enrolment) - 1))
    is_own = is_row & (enrolment.ids[row] != test.ids[columns][:, None])
    if trials.is_same_side:
        test_row = torch.arange(len(test), device=row.device)[columns]
        is_own = is_own & (row < test_row[:, None])
    wanted = trials.rows.condition.target_sessions
    if wanted != "any" and enrolment.sessions is not None and test.sessions is not None:
        is_same_session = enrolment.sessions[row] == test.sessions[columns][:, None]
        is_own = is_own & (is_same_session if wanted == "same" else ~is_same_session)
    return is_own


def lay_cells(trials: _OwnTrials, num_cells: int = _CELLS) -> Tensor:
    """Return the edges between cells of the score axis, fine at both ends; targets and non-targets
    weigh the same.
    """
    rows = trials.rows
    stride = max(1, math.ceil(len(rows.enrolment) * len(rows.test) / _SAMPLED_SCORES))
    scores = round_scores(rows.compare(rows.enrolment_rows, rows.test_rows[::stride]))
    is_target = trials.enrolment_speaker[:, None] == trials.test_speaker[::stride]
    log_odds = torch.linspace(
        -_EXTREME, _EXTREME, num_cells // 2, dtype=torch.float64, device=scores.device
    )
    edges = []
    for scores_of_class in (scores[is_target], scores[~is_target]):
        ordered = scores_of_class[scores_of_class.isfinite()].sort().values
        if len(ordered):
            place = (log_odds.sigmoid() * (len(ordered) - 1)).round().long()
            edges.append(ordered[place])
    return torch.cat(edges).unique() if edges else scores.new_zeros(1)


def rotate_speakers(partition: Tensor, has_rows: Tensor, shifts: Tensor) -> Tensor:
    """Return for each shift and speaker the speaker so many places further in the same partition,
    ``(K, S)``.

    Speakers without enrolment rows stay where they are.
    """
    new_speaker = torch.arange(len(partition), device=partition.device).repeat(len(shifts), 1)
    for name in partition.unique():  # two or three: sexes, data sets
        members = ((partition == name) & has_rows).nonzero().flatten()
        place = torch.arange(len(members), device=partition.device)
        new_speaker[:, members] = members[(place + shifts[:, None]) % max(1, len(members))]
    return new_speaker


def _iterate_test_rows(
    trials: _OwnTrials, most_rows: int, most_speakers: int
) -> Iterator[tuple[int, int, slice]]:
    """Yield the first and the last speaker of adjacent ones, exclusive, and the test rows of
    these.
    """
    ends = count_values(trials.test_speaker, trials.num_speakers).cumsum(0).tolist()
    first = 0
    while first < trials.num_speakers:
        start = ends[first - 1] if first else 0
        last = first + 1
        while (
            last < trials.num_speakers
            and last - first < most_speakers
            and ends[last] - start <= most_rows
        ):
            last += 1
        yield first, last, slice(start, ends[last - 1])
        first = last


def _count_block(
    trials: _OwnTrials,
    edges: Tensor,
    partner: Tensor,
    columns: slice,
    first_speaker: int,
    num_speakers: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts of some test rows: targets and non-targets ``(S, C)``, permuted targets ``(K,
    S, C)``.
    """
    rows = trials.rows
    num_cells = len(edges) + 1
    num_shifts = len(partner)
    device = edges.device
    targets = torch.zeros(num_speakers * num_cells + 1, dtype=torch.int64, device=device)
    nontargets = torch.zeros_like(targets)
    permuted = torch.zeros(
        num_shifts * num_speakers * num_cells + 1, dtype=torch.int64, device=device
    )
    scores = round_scores(rows.compare(rows.enrolment_rows, rows.test_rows[columns]))
    cell = torch.bucketize(scores.contiguous(), edges, right=True).mT  # (R, A)
    speaker = trials.test_speaker[columns]
    local_speaker = speaker - first_speaker
    slot = cell + (local_speaker * num_cells)[:, None]
    is_nontarget = trials.enrolment_speaker != speaker[:, None]
    is_nontarget = is_nontarget & (
        trials.partition[trials.enrolment_speaker] == trials.partition[speaker][:, None]
    )
    add_counts(nontargets, slot.masked_fill(~is_nontarget, len(nontargets) - 1))

    is_own = mark_own_trials(rows.enrolment, rows.test, trials, columns)
    place = torch.arange(is_own.shape[1], device=device)
    own_row = (trials.first_row[speaker][:, None] + place).clamp(
        max=max(0, len(rows.enrolment) - 1)
    )
    own_slot = slot.gather(1, own_row)
    add_counts(targets, own_slot.masked_fill(~is_own, len(targets) - 1))

    # The same trials against another speaker's rows, cyclic where that speaker has fewer.
    other = partner[:, speaker]  # (K, R)
    is_moved = (other != speaker) & (trials.num_rows[other] > 0)
    other_row = (
        trials.first_row[other][..., None] + place % trials.num_rows[other].clamp(min=1)[..., None]
    )
    other_row = other_row.clamp(max=max(0, len(rows.enrolment) - 1))
    shift = torch.arange(num_shifts, device=device)[:, None, None]
    other_slot = slot.expand(num_shifts, -1, -1).gather(2, other_row) + shift * (
        num_speakers * num_cells
    )
    is_used = is_own & is_moved[..., None]
    add_counts(permuted, other_slot.masked_fill(~is_used, len(permuted) - 1))
    return (
        targets[:-1].view(num_speakers, num_cells),
        nontargets[:-1].view(num_speakers, num_cells),
        permuted[:-1].view(num_shifts, num_speakers, num_cells),
    )


def _count_speakers(
    trials: _OwnTrials, edges: Tensor, shifts: Sequence[int]
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Yield adjacent speakers and their counts: targets, non-targets ``(S, C)``, permuted targets
    ``(K, S, C)``.
    """
    has_rows = trials.num_rows > 0
    partner = rotate_speakers(
        trials.partition, has_rows, torch.tensor(shifts, device=has_rows.device)
    )
    longest = max(1, int(trials.num_rows.amax()))
    per_row = max(1, len(trials.rows.enrolment), len(shifts) * longest)
    most_rows = max(1, _MOST_SCORES // per_row)
    most_speakers = max(1, _MOST_COUNTS // (len(shifts) * (len(edges) + 1)))
    for first, last, columns in _iterate_test_rows(trials, most_rows, most_speakers):
        counts: tuple[Tensor, Tensor, Tensor] | None = None
        for start in range(columns.start, max(columns.stop, columns.start + 1), most_rows):
            block = slice(start, min(start + most_rows, columns.stop))
            counted = _count_block(trials, edges, partner, block, first, last - first)
            if counts is None:
                counts = counted
            else:
                counts = (counts[0] + counted[0], counts[1] + counted[1], counts[2] + counted[2])
        if counts is not None:
            yield slice(first, last), *counts


def _better_sign_disclosure(targets: Tensor, nontargets: Tensor) -> Tensor:
    """Return D_ECE of counts ``(..., C)`` by cell, for scores or for negated scores: the larger
    one.
    """
    both_targets = torch.stack([targets, targets.flip(-1)])
    both_nontargets = torch.stack([nontargets, nontargets.flip(-1)])
    return expected_disclosure(Steps(targets.new_empty(0), both_targets, both_nontargets)).amax(0)


def _drop_empty_cells(targets: Tensor, nontargets: Tensor) -> tuple[Tensor, Tensor]:
    is_used = (targets + nontargets).flatten(0, -2).sum(0) > 0
    return targets[..., is_used], nontargets[..., is_used]


def _measure_speakers(trials: _OwnTrials, shifts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return the disclosure of each speaker's trials, ``(S,)``, and of the permuted ones by shift,
    ``(K, S)``.
    """
    edges = lay_cells(trials)
    own = edges.new_full((trials.num_speakers,), torch.nan, dtype=torch.float64)
    permuted = edges.new_full((len(shifts), trials.num_speakers), torch.nan, dtype=torch.float64)
    for speakers, targets, nontargets, permuted_targets in _count_speakers(trials, edges, shifts):
        # Permuted targets are also among the non-targets of this speaker: count them once.
        others = (nontargets - permuted_targets).clamp(min=0)
        every_target = torch.cat([targets[None], permuted_targets])
        every_nontarget = torch.cat([nontargets[None], others])
        every_target, every_nontarget = _drop_empty_cells(every_target, every_nontarget)
        values = _better_sign_disclosure(widen(every_target), widen(every_nontarget)).to(own.dtype)
        own[speakers] = values[0]
        permuted[:, speakers] = values[1:]
    return own, permuted


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
    disclosure = torch.full((len(labels),), -torch.inf, dtype=torch.float64, device="cpu")
    largest_by_draw = torch.full((DRAWS,), -torch.inf, dtype=torch.float64, device="cpu")
    drawn_shifts: list[Tensor] = []
    for folds in rows_by_condition:
        for index, rows in enumerate(folds):
            if len(rows.enrolment) == 0 or len(rows.test) == 0:
                continue
            if not bool(rows.enrolment_rows.isfinite().all() & rows.test_rows.isfinite().all()):
                return WorstSpeaker(
                    math.nan, -1, math.nan, math.nan, torch.full_like(disclosure, torch.nan)
                )
            trials = _index_speakers(rows)
            shift_of_draw = _draw_shifts(trials, seed=_SEED + index)  # (DRAWS, partitions)
            drawn_shifts.append(shift_of_draw)
            shifts, column_of_draw = shift_of_draw.unique(return_inverse=True)
            own, permuted = _measure_speakers(trials, shifts.tolist())
            place = torch.searchsorted(labels.cpu(), trials.label.cpu())
            disclosure[place] = torch.maximum(disclosure[place], own.cpu().nan_to_num(-torch.inf))
            column = column_of_draw[:, trials.partition.cpu()]  # (DRAWS, S)
            of_draw = permuted.cpu().nan_to_num(-torch.inf).gather(0, column)
            largest_by_draw = torch.maximum(largest_by_draw, of_draw.amax(1))
    by_speaker = torch.where(disclosure.isfinite(), disclosure, torch.nan)
    if not bool(disclosure.isfinite().any()):
        return WorstSpeaker(math.nan, -1, math.nan, math.nan, by_speaker)
    value, worst_place = disclosure.max(0)
    num_distinct = len(torch.cat(drawn_shifts, dim=1).unique(dim=0))
    chance = p = math.nan
    if num_distinct >= FEWEST_DRAWS and bool(largest_by_draw.isfinite().all()):
        chance = float(largest_by_draw.mean())
        # Rounding of equal disclosures must not decide.
        num_as_large = int((largest_by_draw >= value - 1e-9).sum())
        p = (1 + num_as_large) / (DRAWS + 1)
    return WorstSpeaker(float(value), int(worst_place), chance, p, by_speaker)


def _draw_shifts(trials: _OwnTrials, seed: int) -> Tensor:
    """Return the shift of each partition in every draw, ``(DRAWS, partitions)``; 0 where nobody can
    be moved.

    A fold has the same shifts in every condition.
    """
    partition = trials.partition.cpu()
    has_rows = (trials.num_rows > 0).cpu()
    num_partitions = int(partition.amax()) + 1
    # On the host, since every kind of device has random numbers of its own.
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.rand(
        DRAWS, num_partitions, generator=generator, dtype=torch.float64, device="cpu"
    )
    shifts = torch.zeros(DRAWS, num_partitions, dtype=torch.int64, device="cpu")
    most_shifts = max(FEWEST_DRAWS, _MOST_SHIFTED_SPEAKERS // max(1, trials.num_speakers))
    for index in range(num_partitions):  # two or three: sexes, data sets
        num_members = int(((partition == index) & has_rows).sum())
        num_shifts = min(num_members - 1, most_shifts)
        if num_shifts > 0:
            choice = (numbers[:, index] * num_shifts).long()
            shifts[:, index] = 1 + choice * (num_members - 1) // num_shifts
    return shifts


def linkability_by_chance(rows: TrialRows, edges: Tensor) -> Tensor:
    """Return the linkability with speakers permuted, the mean over permutations; ``edges`` of its
    bins ``(99,)``.
    """
    if bool(edges[0].isnan()) or len(rows.enrolment) == 0 or len(rows.test) == 0:
        return torch.full((), torch.nan, dtype=torch.float64, device=edges.device)
    trials = _index_speakers(rows)
    num_shifts = min(
        _LINKABILITY_SHIFTS, int(count_values(trials.partition, len(trials.label)).amax()) - 1
    )
    if num_shifts < 1:
        return torch.full((), torch.nan, dtype=torch.float64, device=edges.device)
    shifts = list(range(1, num_shifts + 1))
    bin_edges = edges[edges.isfinite()].to(rows.enrolment_rows.dtype)
    nontargets = torch.zeros(len(bin_edges) + 1, dtype=torch.int64, device=edges.device)
    targets = torch.zeros(num_shifts, len(bin_edges) + 1, dtype=torch.int64, device=edges.device)
    for _, _, other, permuted in _count_speakers(trials, bin_edges, shifts):
        nontargets = nontargets + other.sum(0)
        targets = targets + permuted.sum(1)
    counts = torch.stack([widen(nontargets).expand(num_shifts, -1), widen(targets)])
    padding = 1 + len(edges) - counts.shape[-1]
    value: Tensor = linkability_of_bins(pad(counts, (0, padding))).nanmean()
    return value
