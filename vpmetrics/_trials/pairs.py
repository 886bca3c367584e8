"""How pairs of embeddings are walked without being stored: tile by tile, each a matrix product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, product, starmap
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from vpmetrics._precision import at_least_float32, wide_dtype
from vpmetrics._scores.host import select
from vpmetrics._trials import shares
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.rows import Layouts, Runs, SortedRows
from vpmetrics._trials.scorers import Scorer
from vpmetrics._trials.utterances import Side

if TYPE_CHECKING:
    from typing_extensions import Self

_T = TypeVar("_T")

TILE = 512  # rows and columns: large enough for a fast matrix product, small enough to stay in a core's cache
_SAMPLE = 1024  # rows and columns of the scores that tell in which range all of them lie
# In both orders: up to here every score is its own, with all digits there are; beyond, those of a bin are one.
FEW_PAIRS = 1 << 22
_BLOCKS = 4  # of columns whose sums are put together


class Tile(NamedTuple):
    """The scores ``(A, B)`` of some rows of one side against some rows of the other, and what they are."""

    row: int
    column: int
    scores: Tensor
    same_speaker: Tensor | None  # (A, B), or None where no pair shares a speaker
    excluded: Tensor | None  # (A, B), or None where every pair is a trial

    def trials(self) -> tuple[Tensor, Tensor]:
        """Scores and labels of the trials among the pairs, flat."""
        same = torch.zeros_like(self.scores, dtype=torch.bool) if self.same_speaker is None else self.same_speaker
        if self.excluded is None:
            return self.scores.flatten(), same.flatten()
        kept = ~self.excluded
        return self.scores[kept], same[kept]

    def classes(self) -> tuple[Tensor, Tensor]:
        """Scores of the targets and of the non-targets among the pairs, flat."""
        if self.same_speaker is None:
            return self.scores.new_empty(0), (
                self.scores.flatten() if self.excluded is None else select(self.scores, ~self.excluded)
            )
        none = torch.zeros_like(self.same_speaker) if self.excluded is None else self.excluded
        return select(self.scores, self.same_speaker & ~none), select(self.scores, ~(self.same_speaker | none))


def excluded_pairs(
    reference: Side, probe: Side, condition: Condition, a: slice, b: slice, same: Tensor | None
) -> Tensor | None:
    """Which pairs of some rows are no trials, ``(A, B)``, given which are of one voice; None where all are trials."""
    masks = []
    if reference.groups is not None and probe.groups is not None:
        masks.append(reference.groups[a, None] != probe.groups[None, b])
    if same is not None:
        within = reference is probe
        if within and a == b:
            masks.append(torch.ones_like(same).tril())
        if not within or reference.sessions is not None:
            masks.append(reference.utterances[a, None] == probe.utterances[None, b])
        if condition.own_session != "any" and reference.sessions is not None and probe.sessions is not None:
            one = reference.sessions[a, None] == probe.sessions[None, b]
            masks.append(same & (one if condition.own_session == "other" else ~one))
    return None if not masks else masks[0] if len(masks) == 1 else torch.stack(masks).any(dim=0)


def are_few(reference: Side, probe: Side) -> bool:
    """Whether there are so few pairs that each is a score for itself, with all digits.

    Scores that are equal on paper can then be told from those that are not. In both orders, so that a system that does
    nothing goes the same way within a side as between sides.
    """
    rows, columns = (shares.number_of_all(len(side.voices)) for side in (reference, probe))
    return rows * columns <= FEW_PAIRS


def type_of_pairs(vectors: Tensor, widest: bool) -> torch.dtype:
    """In which rows are compared."""
    return wide_dtype(vectors.device) if widest else at_least_float32(vectors[:0]).dtype


class Cells(NamedTuple):
    """All trials of some voices with some others: what they add up to, and how many there are."""

    row: int  # the first voice of either side
    column: int
    sums: Tensor  # (K, v, w)
    trials: Tensor  # (v, w)

    @property
    def near(self) -> bool:
        """Whether some voice is on both sides."""
        height, width = self.trials.shape
        return self.row < self.column + width and self.column < self.row + height

    @property
    def rows(self) -> slice:
        """The voices of the rows."""
        return slice(self.row, self.row + self.trials.shape[0])

    @property
    def columns(self) -> slice:
        """The voices of the columns."""
        return slice(self.column, self.column + self.trials.shape[1])


class TrialGrid:
    """All trials of a condition.

    Between two sets of utterances: every pair but a recording and itself. Within one: every unordered pair once, so
    that only the tiles on and above the diagonal are walked. Pairs of two groups are none, nor are pairs of one speaker
    from sessions the condition leaves out. Rows are sorted by voice, so that only tiles near the diagonal hold trials
    of one speaker and need a mask.
    """

    def __init__(
        self,
        reference: Side,
        probe: Side,
        voices: Tensor,
        scorer: Scorer,
        condition: Condition,
        tile: int | None = None,
        digits: bool = True,
        layouts: Layouts | None = None,
    ) -> None:
        self.voices, self.scorer, self.condition = voices, scorer, condition
        self.tile = tile or (TILE if voices.device.type == "cpu" else 2 * TILE)
        few = are_few(reference, probe) and digits
        dtype = type_of_pairs(reference.vectors, few and scorer.any_precision)
        laid = Layouts() if layouts is None else layouts
        rows, columns = (laid.of(side, reference, len(voices), self.tile, scorer, dtype) for side in (reference, probe))
        self._lay(rows, columns, few)

    @classmethod
    def laid(
        cls, rows: SortedRows, columns: SortedRows, voices: Tensor, scorer: Scorer, condition: Condition, tile: int
    ) -> Self:
        """All trials of rows that are sorted, cut into such tiles and prepared already."""
        grid = cls.__new__(cls)
        grid.voices, grid.scorer, grid.condition, grid.tile = voices, scorer, condition, tile
        grid._lay(rows, columns)
        return grid

    def _lay(self, rows: SortedRows, columns: SortedRows, few: bool = False) -> None:
        """Take rows that are sorted, cut into tiles and prepared."""
        self.rows, self.columns, self.within, self.few = rows, columns, rows is columns, few
        self.vectors = rows.side.vectors, columns.side.vectors
        self._kept: dict[tuple[int, int], Tile] = {}

    @property
    def nan_seen(self) -> Tensor:
        """Whether a number of some row is NaN: the largest tells, and is found faster than each is looked at."""
        largest = [rows.detach().amax() for rows in self.vectors if rows.numel()]
        return torch.stack([self.vectors[0].new_zeros(()), *largest]).isnan().any()

    @property
    def pairs(self) -> int:
        """Pairs walked; all but a few are trials."""
        rows, columns = len(self.rows.side.voices), len(self.columns.side.voices)
        return rows * (rows - 1) // 2 if self.within else rows * columns

    def __iter__(self) -> Iterator[Tile]:
        return starmap(self._tile, self._places((block, 0, cost) for block, cost in enumerate(self._costs())))

    def shared(self) -> Iterator[Tile]:
        """Those tiles that fall to this process where several share a walk: whole pairs of blocks."""
        return starmap(self._tile, self._places(shares.spans(self._costs())))

    def parts(self) -> Iterator[TrialGrid]:
        """Grids that together are this one: itself, unless its rows meet one block of columns after the other."""
        yield self

    def by_threads(self, work: Callable[[], _T]) -> list[_T]:
        """What each of the threads finds by the same work on the tiles of this process, which are divided among them.

        One does all of it where pairs are few or scores have a graph, and for a scorer of the caller's, who is not
        asked whether it may be called twice at once.
        """
        vectors, own = self.vectors[0], self.scorer.any_precision
        alone = self.pairs <= FEW_PAIRS or vectors.requires_grad or not own
        return [work()] if alone else shares.by_threads(work, vectors.device)

    def near(self) -> Iterator[Tile]:
        """Those of them with some voice on both sides, which alone hold trials of one speaker; few of all."""
        places = self._places(shares.spans(self._costs()))
        return starmap(self._tile, (place for place in places if self._is_near(*place)))

    def _is_near(self, row: int, column: int) -> bool:
        rows, columns = self.rows, self.columns
        return rows.first[row] <= columns.last[column] and columns.first[column] <= rows.last[row]

    def _places(self, spans: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
        """Where the tiles are of some blocks of rows with those of columns whose middle lies in a span of the cost."""
        for block, begin, end in spans:
            others, height = self._columns(block), self.rows.size(range(block, block + 1))
            edge, extra = self.columns.begin(others.start), self._extra(block)
            for other in others:
                middle = self.columns.begin(other) + self.columns.begin(other + 1) - 2 * edge
                middle += extra if other == block else 2 * extra
                if 2 * begin <= height * middle < 2 * end:
                    places = product(self.rows.blocks[block], self.columns.blocks[other])
                    yield from (place for place in places if not self.within or place[0] <= place[1])

    def _costs(self) -> list[int]:
        """Pairs of each block of rows with all it is compared with, of a block with itself twice."""
        blocks = range(len(self.rows.blocks))
        widths = (self.columns.size(self._columns(at)) + self._extra(at) for at in blocks)
        return [self.rows.size(range(at, at + 1)) * width for at, width in zip(blocks, widths, strict=True)]

    def _extra(self, block: int) -> int:
        """Columns to count more where a block meets itself: to tell which of its pairs are trials takes as long again.

        Between two sides there are as many of these in every stretch of rows, and none need be told.
        """
        return self.rows.size(range(block, block + 1)) if self.within else 0

    def _columns(self, block: int) -> range:
        """The blocks of columns that a block of rows is compared with."""
        others = self.columns.compared_with(self.rows, block)
        return range(max(others.start, block), others.stop) if self.within else others

    def voices_of(self, tile: Tile) -> tuple[Tensor, Tensor]:
        """The voices of its rows and of its columns."""
        places = (self.rows, tile.row), (self.columns, tile.column)
        first, second = (rows.side.voices[rows.at(number)] for rows, number in places)
        return first, second

    def keep(self, tiles: Sequence[Tile]) -> None:
        """Take these from now on, for few pairs, instead of comparing anew."""
        self._kept = {(tile.row, tile.column): tile for tile in tiles}

    def _tile(self, row: int, column: int) -> Tile:
        if self._kept:
            return self._kept[row, column]
        rows, columns = self.rows, self.columns
        a, b = rows.at(row), columns.at(column)
        scores = self._scores(row - column, self.vectors[0][a], self.vectors[1][b])
        same = rows.side.voices[a, None] == columns.side.voices[None, b] if self._is_near(row, column) else None
        return Tile(row, column, scores, same, excluded_pairs(rows.side, columns.side, self.condition, a, b, same))

    def speakers_of(self, tiles: Iterable[Tile]) -> tuple[Tensor, Tensor]:
        """Who speaks on both sides of the trials of some tiles, as :meth:`trials_of` has them."""
        rows, columns = self.rows, self.columns
        parts = [(rows.side.speakers[:0], columns.side.speakers[:0])]
        for tile in tiles:
            ends = rows.side.speakers[rows.at(tile.row)], columns.side.speakers[columns.at(tile.column)]
            one, other = torch.meshgrid(*ends, indexing="ij")
            kept = torch.ones_like(one, dtype=torch.bool) if tile.excluded is None else ~tile.excluded
            parts.append((one[kept], other[kept]))
        first, second = (torch.cat(part) for part in zip(*parts, strict=True))
        return first, second

    def all_trials(self) -> tuple[Tensor, Tensor]:
        """Scores and labels of every trial, flat: for sets small enough to be kept."""
        return self.trials_of(self)

    def trials_of(self, tiles: Iterable[Tile]) -> tuple[Tensor, Tensor]:
        """Scores and labels of the trials of some tiles, flat."""
        parts = [tile.trials() for tile in tiles]
        scores = torch.cat([self.vectors[0].new_empty(0), *(scores for scores, _ in parts)])
        return scores, torch.cat([self.voices.new_empty(0, dtype=torch.bool), *(labels for _, labels in parts)])

    def sample(self, size: int = _SAMPLE) -> Tensor:
        """Scores of pairs of neighbours spread over both sides: some of one speaker, most of two."""
        return self._compare(*(self._some(rows, size) for rows in self.vectors))

    def _some(self, rows: Tensor, size: int) -> Tensor:
        """Pairs of neighbours, spread over all rows."""
        count = shares.number_of_all(len(rows))
        if count <= size:
            return shares.of_all(rows)
        starts = torch.arange(size // 2, device=rows.device) * (count - 1) // (size // 2)
        return shares.picked(rows, torch.stack([starts, starts + 1], dim=1).flatten())

    def cells(self, values_of: Callable[[Tile], Sequence[Tensor]]) -> Iterator[Cells]:
        """Sums of values over the trials of each pair of voices that falls to this process, some at once.

        Within one side a pair of voices is met in one order only, from the lower one to the higher.
        """
        rows, columns = self.rows, self.columns
        of_row, of_column = rows.block_of_tile(), columns.block_of_tile()
        of_rows, of_columns = rows.runs(), columns.runs()
        # All pairs of two voices lie in one pair of blocks; some blocks at once take as few steps as one.
        for _, tiles in groupby(self.shared(), key=lambda tile: (of_row[tile.row], of_column[tile.column] // _BLOCKS)):
            found = dict[tuple[int, int], Tensor]()
            for tile in tiles:
                sums = _sum_by_voice(tile, values_of(tile), of_rows[tile.row], of_columns[tile.column])
                at = rows.first[tile.row], columns.first[tile.column]
                found[at] = found[at] + sums if at in found else sums
            (row, first), (_, last) = min(found), max(found)
            # Voices without rows on this side stand between tiles.
            whole = sums.new_zeros(*sums.shape[:2], last - first + found[row, last].shape[2])
            for (_, column), part in found.items():
                whole[..., column - first :][..., : part.shape[2]] = part
            yield Cells(row, first, whole[:-1], whole[-1])

    def _scores(self, below: int, a: Tensor, b: Tensor) -> Tensor:
        """Scores of a tile, below the diagonal from the product the other way round.

        Where both sides are the same, a pair then has the same digits in both orders, and within a side and between
        sides: a system that does nothing is seen to do nothing.
        """
        if self.within or below < 0 or not self.scorer.any_precision:
            return self._compare(a, b)
        turned = self._compare(b, a).mT
        return turned if below else self._compare(a, b).triu() + turned.tril(-1)

    def _compare(self, a: Tensor, b: Tensor) -> Tensor:
        with torch.autocast(a.device.type, enabled=False):
            return self.scorer.compare(a, b)


def _sum_by_voice(tile: Tile, values: Sequence[Tensor], of_rows: Runs, of_columns: Runs) -> Tensor:
    """Sums of values over the trials of every two voices of a tile, and how many these are, ``(K + 1, v, w)``."""
    values = [each.to(wide_dtype(each.device)) for each in values]
    if tile.excluded is None:
        trials = (of_rows.lengths[:, None] * of_columns.lengths).to(values[0].dtype)
    else:
        values = [each.masked_fill(tile.excluded, 0) for each in values]
        trials = _add_up((~tile.excluded).to(values[0].dtype), of_rows, of_columns)
    return torch.stack([*(_add_up(each, of_rows, of_columns) for each in values), trials])


def _add_up(values: Tensor, of_rows: Runs, of_columns: Runs) -> Tensor:
    """Along that side first which would otherwise be jumped over."""
    if values.stride(0) < values.stride(1):
        return _add_up(values.mT, of_columns, of_rows).mT
    return of_columns.add_up(of_rows.add_up(values).mT.contiguous()).mT
