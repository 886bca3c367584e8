"""What the trials of every speaker disclose, by the calibration all trials have together.

A trial of two speakers is one of either: on the enrolled side it belongs to the reference's speaker, on the probed side
to the probe's. Sums per row and column come from the pass that makes similarity matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import wide_dtype
from vpmetrics._scores.look_up import Finder
from vpmetrics._scores.measures import evidence
from vpmetrics._scores.steps import calibrate
from vpmetrics._trials import shares
from vpmetrics._trials.identification import Identification
from vpmetrics._trials.pairs import Tile, TrialGrid
from vpmetrics._trials.scores import ConditionScores


class Disclosed(NamedTuple):
    r"""What the trials of each speaker on one side disclose; all fields ``(S,)``.

    ``of_targets`` and ``of_nontargets`` are the two halves of a speaker's D_ECE in bits, and ``targets`` and
    ``nontargets`` how many trials each is the mean of; NaN for none. ``l_w``: the strongest evidence among them.
    """

    of_targets: Tensor
    of_nontargets: Tensor
    targets: Tensor
    nontargets: Tensor
    l_w: Tensor

    @property
    def d_ece(self) -> Tensor:
        """D_ECE of each speaker, both kinds of trials weighing the same; NaN where one kind is missing."""
        return self.of_targets + self.of_nontargets

    @property
    def contributions(self) -> Tensor:
        """What each speaker adds to the D_ECE of all, which is the sum of these.

        The half of targets weighs as the speaker's share of all targets, that of non-targets as the share of those.
        """
        halves = (self.of_targets, self.targets), (self.of_nontargets, self.nontargets)
        parts = [torch.where(trials > 0, half * trials, 0) / trials.sum() for half, trials in halves]
        return parts[0] + parts[1]


class SpeakerDisclosure(NamedTuple):
    """Disclosure of every speaker: as the one who is known, as the one who is looked for, and as either.

    ``speakers`` ``(S,)``, ascending. A target trial has the same speaker on both sides. In ``both`` it counts once, and
    a non-target trial for each of its two speakers.
    """

    speakers: Tensor
    enrolled: Disclosed
    probed: Disclosed
    both: Disclosed


class SpeakerIdentification(NamedTuple):
    """Bits that the inputs of each speaker disclose in identification; all fields ``(S,)``.

    ``mean_d`` is the mean of what their ranks disclose, by the empirical histogram of all, and ``alid`` that of their
    local information. Weighted by ``inputs``, the number of them, both recombine to those of all.
    """

    speakers: Tensor
    inputs: Tensor
    mean_d: Tensor
    alid: Tensor


class _Sums(NamedTuple):
    """Of non-targets and of targets ``(2, N)``: sums of evidence, and numbers of trials; lowest and highest scores."""

    evidence: Tensor
    trials: Tensor
    low: Tensor  # (N,)
    high: Tensor  # (N,)

    @classmethod
    def empty(cls, count: int, like: Tensor) -> _Sums:
        """Of no trials yet."""
        zeros = like.new_zeros(2, count, dtype=wide_dtype(like.device))
        return cls(zeros, zeros.clone(), zeros[0] + torch.inf, zeros[0] - torch.inf)

    def by_tile(self, starts: Sequence[int]) -> list[_Sums]:
        """Those of the rows of each tile, in the same memory."""
        return [_Sums(*(part[..., start:end] for part in self)) for start, end in pairwise(starts)]

    def by_voice(self, voices: Tensor, count: int) -> _Sums:
        """Added up."""
        empty = _Sums.empty(count, self.evidence)
        return _Sums(
            empty.evidence.index_add(1, voices, self.evidence),
            empty.trials.index_add(1, voices, self.trials),
            empty.low.scatter_reduce(0, voices, self.low, "amin"),
            empty.high.scatter_reduce(0, voices, self.high, "amax"),
        )

    def beside(self, other: _Sums) -> _Sums:
        """Both sides together, where the targets of one are those of the other."""
        own = 1 - torch.arange(2, device=self.low.device, dtype=self.evidence.dtype).unsqueeze(1)  # non-targets
        low, high = torch.minimum(self.low, other.low), torch.maximum(self.high, other.high)
        return _Sums(self.evidence + own * other.evidence, self.trials + own * other.trials, low, high)


_OfRows = tuple[_Sums, Tensor]  # of each row, and its voice


class SpeakerTally:
    """Evidence per speaker in the making, tile by tile."""

    def __init__(self, grid: TrialGrid, scores: ConditionScores) -> None:
        self._voices, self._within, self._scores, self._tables = grid.voices, grid.within, scores, _tables(scores)
        self._places = torch.arange(len(grid.voices), device=grid.voices.device)
        self._found: tuple[list[_OfRows], list[_OfRows]] = [], []  # by all who look up: of rows, and of columns

    def look_up(self, part: TrialGrid, per_step: Tensor) -> Callable[[Tile], Tensor]:
        """What finds values of what is known per step at the scores of a tile, and tallies its trials on the way.

        Each of several threads has one of its own, and so has each part of a grid.
        """
        of_kinds = cache(lambda kinds: self._scores.look_up([per_step, *self._tables[:kinds]]))
        of_tiles = []
        for found, rows in zip(self._found, (part.rows, part.columns), strict=True):
            if shares.apart() and found:  # parts come one after the other, as many as there are processes
                found[:] = [(self._by_voice(found), self._places)]
            found.append((_Sums.empty(len(rows.side.voices), part.vectors[0]), rows.side.voices))
            of_tiles.append(found[-1][0].by_tile(rows.starts))
        rows_of, columns_of = of_tiles
        return lambda tile: _tally(tile, of_kinds, (rows_of[tile.row], columns_of[tile.column]))

    def _by_voice(self, found: Sequence[_OfRows]) -> _Sums:
        """What all who looked up have found."""
        parts = [sums.by_voice(voices, len(self._voices)) for sums, voices in found]
        evidence, trials, low, high = map(torch.stack, zip(*parts, strict=True))
        return _Sums(evidence.sum(0), trials.sum(0), low.amin(0), high.amax(0))

    def disclosure(self) -> SpeakerDisclosure:
        """What each speaker's trials disclose, of all tiles tallied; speakers of several groups once for each."""
        both = _of_all_processes(*map(self._by_voice, self._found))
        return _disclosure(self._scores, self._voices, *both, self._within)


def _tally(tile: Tile, of_kinds: Callable[[int], Finder], sides: tuple[_Sums, _Sums]) -> Tensor:
    """Look up the scores of a tile, and add its trials to sums of its rows and of its columns."""
    low, high = _masked(tile, torch.inf), _masked(tile, -torch.inf)
    for sums, dim in zip(sides, (1, 0), strict=True):
        torch.minimum(sums.low, low.amin(dim), out=sums.low)
        torch.maximum(sums.high, high.amax(dim), out=sums.high)
    kinds = 1 if tile.same_speaker is None else 2
    found, *values = of_kinds(kinds)(tile.scores)
    for kind in range(kinds):
        _add(kind, values[kind], _trials_of_kind(tile, kind), sides)
    return found


def _add(kind: int, values: Tensor, kept: Tensor | None, sides: tuple[_Sums, _Sums]) -> None:
    counted = None if kept is None else kept.float()  # sums of booleans run many times as long
    if kept is not None:
        values = torch.where(kept, values, 0)
    for sums, dim in zip(sides, (1, 0), strict=True):
        sums.evidence[kind] += values.sum(dim)
        sums.trials[kind] += values.shape[dim] if counted is None else counted.sum(dim)


def disclosure_of_trials(
    scores: ConditionScores, preds: Tensor, is_target: Tensor, speakers: Tensor, names: Tensor
) -> SpeakerDisclosure:
    """The same of trials ``(P,)`` and the places ``(2, P)`` of their speakers among the names ``(S,)``."""
    known = torch.stack(scores.look_up(_tables(scores))(preds))
    of_kind = torch.stack([~is_target, is_target])
    values = torch.where(of_kind, known, 0)
    preds = preds.detach().to(wide_dtype(preds.device))
    one = _Sums(values, of_kind.to(values.dtype), preds, preds)
    rows, columns = (one.by_voice(place, len(names)) for place in speakers)
    return _disclosure(scores, names, rows, columns, scores.within)


def identification_by_speaker(found: Identification) -> SpeakerIdentification:
    """What all inputs of each speaker disclose, by ascending speaker."""
    names, place, inputs = found.speakers.unique(return_inverse=True, return_counts=True)
    bits = torch.stack([found.rank_bits, found.bits]).to(wide_dtype(names.device))
    means = bits.new_zeros(2, len(names)).index_add(1, place, bits) / inputs
    names, inputs, means = map(shares.of_all, (names, inputs, means.mT))
    return SpeakerIdentification(names, inputs, *means.unbind(1))


def _of_all_processes(rows: _Sums, columns: _Sums) -> tuple[_Sums, _Sums]:
    """Those of both sides of all processes that share the walk."""
    both = rows, columns
    sums = shares.totals(*(part for side in both for part in side[:2]))
    ends = shares.largest(*(end for side in both for end in (-side.low, side.high)))
    first, second = (_Sums(sums[at], sums[at + 1], -ends[at], ends[at + 1]) for at in (0, 2))
    return first, second


def _tables(scores: ConditionScores) -> tuple[Tensor, Tensor]:
    """Evidence of a non-target and of a target at every step."""
    llr = calibrate(scores.counts.ascending)
    return evidence(-llr), evidence(llr)


def _trials_of_kind(tile: Tile, kind: int) -> Tensor | None:
    """Which pairs of a tile are non-targets (0) or targets (1); None where all are."""
    if tile.same_speaker is None:
        return None if tile.excluded is None else ~tile.excluded
    of_kind = tile.same_speaker if kind else ~tile.same_speaker
    return of_kind if tile.excluded is None else of_kind & ~tile.excluded


def _masked(tile: Tile, value: float) -> Tensor:
    scores = tile.scores.detach()
    return scores if tile.excluded is None else scores.masked_fill(tile.excluded, value)


def _disclosure(scores: ConditionScores, names: Tensor, rows: _Sums, columns: _Sums, within: bool) -> SpeakerDisclosure:
    order, both = names.argsort(stable=True), rows.beside(columns)
    # Where both sides are the same, which of two utterances was the row says nothing.
    sides = [both] if within else [rows, columns, both]
    # Evidence grows with the score, so the strongest is that of the lowest score or of the highest.
    seen = torch.stack([side.trials.sum(0) > 0 for side in sides])
    ends = torch.stack([torch.stack([side.low, side.high]) for side in sides], dim=1)
    ends = torch.where(seen, ends, 0)
    (strongest,) = scores.look_up([calibrate(scores.counts.ascending, laplace=True).abs()])(ends)
    l_w = torch.where(seen, strongest.amax(0) / math.log(10), torch.nan)
    disclosed = [_disclosed(*each) for each in zip(sides, l_w, strict=True)] * (3 if within else 1)
    enrolled, probed, either = (Disclosed(*(column[order] for column in side)) for side in disclosed)
    return SpeakerDisclosure(names[order], enrolled, probed, either)


def _disclosed(sums: _Sums, l_w: Tensor) -> Disclosed:
    means = torch.where(sums.trials > 0, sums.evidence / sums.trials, torch.nan) / (2 * math.log(2))
    return Disclosed(means[1], means[0], sums.trials[1], sums.trials[0], l_w)
