"""Embeddings that stay apart: each process keeps those of some speakers, and blocks of them pass from one to the next.

No process ever holds more than its own rows and one block that visits, so memory falls as there are more of them. As
all rows of a voice are in one place, what the pairs of two voices add up to is known where their blocks meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from vpmetrics._trials import shares
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.pairs import Cells, Tile, TrialGrid
from vpmetrics._trials.scorers import Scorer
from vpmetrics._trials.utterances import Rows, Side, Sides


def rows_by_speaker(rows: Rows) -> Rows:
    """All rows of some speakers, of whichever process had them; each process gets about as many."""
    own, place, counts = rows.speakers.unique(return_inverse=True, return_counts=True)
    names, speaker = shares.of_all(own).unique(return_inverse=True)
    sizes = torch.zeros_like(names).index_add(0, speaker, shares.of_all(counts))
    # A speaker goes where their middle lies, when all rows stand in order.
    middle = 2 * sizes.cumsum(0) - sizes
    owner = middle * shares.place()[1] // (2 * sizes.sum()).clamp(min=1)
    return Rows(*shares.sent(owner[torch.searchsorted(names, own)][place], rows))


class _Block(TrialGrid):
    """All trials of one block of rows with another, which this process walks alone."""

    def shared(self) -> Iterator[Tile]:
        return iter(self)


class PassedGrid(TrialGrid):
    """The trials of a condition whose rows are apart; to this process fall those of its own rows with all that visits.

    Of two blocks of one side, one process compares both, or each of the two does a half.
    """

    def __init__(self, sides: Sides, condition: Condition, scorer: Scorer) -> None:
        first = sum(shares.lengths(len(sides.voices))[: shares.place()[0]])  # as all processes number voices
        both = [side._replace(voices=side.voices + first) for side in (sides.original, sides.protected)]
        voices = shares.of_all(sides.voices)
        numbered = Sides(both[0], both[1], voices)
        super().__init__(*numbered.pair(condition), voices, scorer, condition, digits=False)

    def shared(self) -> Iterator[Tile]:
        """The tiles of this process's rows with all that visits."""
        for block in self._blocks():
            yield from block

    def cells(self, value_of: Callable[[Tile], Tensor]) -> Iterator[Cells]:
        """What the trials of this process add up to, for each pair of voices."""
        for block in self._blocks():
            yield from block.cells(value_of)

    def _some(self, rows: Tensor, size: int) -> Tensor:
        return shares.of_all(super()._some(rows, max(2, size // shares.place()[1])))

    def _blocks(self) -> Iterator[TrialGrid]:
        own, visitor = self.rows.side, self.columns.side
        yield self._block(own, visitor)
        number, processes = shares.place()
        sizes = shares.lengths(len(visitor.voices))
        for step in range(1, processes // 2 + 1 if self.within else processes):
            size = sizes[(number + step) % processes]
            vectors, voices = shares.passed_on([visitor.vectors, visitor.voices], size)
            # A recording is on one process: none is met again, whatever its number.
            visitor = Side(vectors, voices, torch.full_like(voices, -1), voices)
            if not self.within or 2 * step < processes:
                yield self._block(own, visitor)
            elif number < step:  # each of the two has the other as a visitor
                yield self._block(_half(own, second=False), visitor)
            else:
                yield self._block(own, _half(visitor, second=True))

    def _block(self, rows: Side, columns: Side) -> TrialGrid:
        return _Block(rows, columns, self.voices, self.scorer, self.condition, self.tile, digits=False)


def _half(side: Side, second: bool) -> Side:
    """Whole voices of a side sorted by them: those before the one in the middle, or all others."""
    middle = side.voices[len(side.voices) // 2 :][:1]
    later = side.voices >= middle if len(middle) else torch.zeros_like(side.voices, dtype=torch.bool)
    return side.take(later if second else ~later)
