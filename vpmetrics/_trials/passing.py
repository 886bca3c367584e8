"""Embeddings that stay apart: each process keeps those of some speakers, and blocks of them pass from one to the next.

No process ever holds more than its own rows and a block that visits, so memory falls as there are more of them. As
all rows of a voice are in one place, what the pairs of two voices add up to is known where their blocks meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from vpmetrics._precision import widen
from vpmetrics._trials import shares
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.pairs import TILE, Cells, Tile, TrialGrid, are_few, type_of_pairs
from vpmetrics._trials.rows import SortedRows, cut_rows, lay_out
from vpmetrics._trials.scorers import Scorer
from vpmetrics._trials.utterances import Rows, Side, Sides

_SENT, _VISITING = 1 << 20, 1 << 23  # numbers of rows at once: who visits is compared, and takes steps of its own


def rows_by_speaker(batches: Mapping[str, Sequence[Tensor]]) -> Rows:
    """All rows of some speakers, of whichever process had them; each process gets about as many.

    ``batches``: those of each column of :class:`Rows`.
    """
    speakers = torch.cat(list(batches["speakers"]))
    own, place, counts = speakers.unique(return_inverse=True, return_counts=True)
    names, speaker = shares.of_all(own).unique(return_inverse=True)
    sizes = torch.zeros_like(names).index_add(0, speaker, shares.of_all(counts))
    # A speaker goes where their middle lies, when all rows stand in order.
    middle = 2 * sizes.cumsum(0) - sizes
    owner = (middle * shares.place()[1] // (2 * sizes.sum()).clamp(min=1))[torch.searchsorted(names, own)][place]
    columns = (partial(_some, batches[name]) for name in Rows._fields)
    return Rows(*shares.sent(owner, columns, _times(len(owner), batches["original"][0].shape[1], _SENT)))


def _times(rows: int, width: int, most: int) -> int:
    """In how many parts so many rows of each process have at most so many numbers."""
    return max(1, -(-max(shares.lengths(rows)) * width // most))


def _some(batches: Sequence[Tensor], start: int, end: int) -> Tensor:
    """Some rows of batches, one after the other."""
    places = zip(batches, pairwise(accumulate(map(len, batches), initial=0)), strict=True)
    chosen = [
        rows[max(0, start - first) : end - first] for rows, (first, last) in places if first < end and last > start
    ]
    return torch.cat([batches[0][:0], *chosen])


class _Block(TrialGrid):
    """All trials of rows with others, which this process walks alone."""

    def shared(self) -> Iterator[Tile]:
        return iter(self)


class PassedGrid(TrialGrid):
    """The trials of a condition whose rows are apart; to this process fall those of its own rows with all that visits.

    Of two blocks of one side, one process compares both, or each of the two does a half. Rows are sorted and prepared
    once, before they go round; where pairs are few, what has visited is kept.
    """

    def __init__(self, sides: Sides, condition: Condition, scorer: Scorer, enrolment: str | None = None) -> None:
        self.tile, self.scorer, self.condition = TILE, scorer, condition
        self.voices = shares.of_all(sides.voices)
        reference, probe = sides.pair(condition, enrolment)
        centre = _middle(reference.vectors) if scorer.centred else reference.vectors.new_zeros(())
        first = shares.first(len(sides.voices))  # as all processes number voices
        both, few = (reference,) if reference is probe else (reference, probe), are_few(reference, probe)
        dtype = type_of_pairs(reference.vectors, few and scorer.any_precision)
        rows = [self._cut(_numbered(lay_out(side, scorer, centre, dtype), first)) for side in both]
        self._lay(rows[0], rows[-1], few)
        self._blocks = list(self._met()) if few else []

    def shared(self) -> Iterator[Tile]:
        """The tiles of this process's rows with all that visits."""
        for block in self.parts():
            yield from block

    def cells(self, values_of: Callable[[Tile], Sequence[Tensor]]) -> Iterator[Cells]:
        """What the trials of this process add up to, for each pair of voices."""
        for block in self.parts():
            yield from block.cells(values_of)

    def parts(self) -> Iterator[TrialGrid]:
        """The trials of this process's rows with its own columns, and with those of each process that visit."""
        return iter(self._blocks) if self.few else self._met()

    def _met(self) -> Iterator[TrialGrid]:
        for reference, probe in visits(self.rows.side, self.columns.side):
            rows = self.rows if reference is self.rows.side else self._cut(reference)
            columns = self.columns if probe is self.columns.side else self._cut(probe)
            yield _Block.laid(rows, columns, self.voices, self.scorer, self.condition, self.tile)

    def _cut(self, side: Side) -> SortedRows:
        return cut_rows(side, len(self.voices), self.tile)


def visits(reference: Side, probe: Side) -> Iterator[tuple[Side, Side]]:
    """References of this process with its probes, and where rows are apart, with those of each process that visit.

    Both are sorted by voice. Where they are one side, each pair of two rows is met once, by one of the processes.
    Those who visit come in several parts, as whoever passes on holds what comes beside what goes.
    """
    yield reference, probe
    if not shares.apart():
        return
    within, (number, processes) = reference is probe, shares.place()
    halves = 2 if within and processes % 2 == 0 else 1
    times, first = _times(len(probe.voices), probe.vectors.shape[1], _VISITING), _parts(reference, halves)[0]
    parts = -(-times // halves) * halves
    for place, part in enumerate(_parts(probe, parts)):
        columns = [part.vectors, part.voices, *([] if part.groups is None else [part.groups])]
        passing = shares.visitors(columns, processes // 2 if within else processes - 1)
        for step, (vectors, voices, *groups) in enumerate(passing, start=1):
            # A voice is on one process, with all its recordings and sessions: none of them is met again.
            none = torch.full_like(voices, torch.iinfo(voices.dtype).min)
            visitor = Side(vectors, voices, none, voices, groups=groups[0] if groups else None)
            if not within or 2 * step < processes:
                yield reference, visitor
            elif number < step:  # each of the two has the other as a visitor
                yield first, visitor
            elif 2 * place >= parts:
                yield reference, visitor


def _numbered(side: Side, first: int) -> Side:
    """A side with voices numbered from the first of this process."""
    return side._replace(speakers=side.voices + first, voices=side.voices + first)


def _middle(vectors: Tensor) -> Tensor:
    """The mean of the rows of all processes, on all of them."""
    sums = torch.stack([widen(rows).sum(0) for rows in vectors.split(TILE)]).sum(0)
    whole, count = shares.totals(sums, torch.full_like(sums[:1], len(vectors)))
    return whole / count.clamp(min=1)


def _parts(side: Side, number: int) -> list[Side]:
    """A side sorted by voice in so many parts, about equally long, of whole voices; no copy."""
    rows = torch.arange(number, device=side.voices.device) * len(side.voices) // number
    starts = torch.searchsorted(side.voices, side.voices[rows]).tolist() if len(side.voices) else [0] * number
    return [side.take(slice(*both)) for both in pairwise([*starts, len(side.voices)])]
