"""Utterances as rows, and the two sides, original and protected, that trials are formed from."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import check_embedding_values, check_embeddings, check_recordings, warn_undefined, warn_where
from vpmetrics._precision import at_least_float32, wide_dtype, widen
from vpmetrics._scores.cached import cached_property
from vpmetrics._trials import shares
from vpmetrics._trials.conditions import Condition

# What a row holds, as bits of one small number.
_ORIGINAL, _PROTECTED, _UTTERANCE, _CHOOSES, _REFERENCE, _SESSION, _GROUP = (1 << bit for bit in range(7))


class Rows(NamedTuple):
    """Utterances as they are kept: as many rows of each, whatever was left out."""

    original: Tensor
    protected: Tensor
    speakers: Tensor
    utterances: Tensor
    sessions: Tensor
    groups: Tensor
    row_holds: Tensor


class _Columns(NamedTuple):
    vectors: Tensor
    speakers: Tensor
    utterances: Tensor
    voices: Tensor
    is_reference: Tensor | None = None
    sessions: Tensor | None = None
    groups: Tensor | None = None


class Side(_Columns):
    """Embeddings of one side, original or protected, with what is known of each row.

    ``vectors`` ``(N, D)``; ``speakers`` ``(N,)``; ``utterances`` ``(N,)``, the same number for the same recording on
    both sides; ``voices`` ``(N,)``, the place in :attr:`Sides.voices`; ``is_reference``, ``sessions`` and ``groups``
    ``(N,)``, or None where nobody said.
    """

    @cached_property
    def keys(self) -> Tensor:
        """A number per row, ``(N,)``, see :func:`row_keys`."""
        return row_keys(self.vectors)

    @cached_property
    def by_value(self) -> Tensor:
        """Positions of the rows, in an order that their values alone determine."""
        return self.keys.argsort(stable=True)

    def ordered_by(self, numbers: Tensor) -> Tensor:
        """Positions of the rows in the order of a number of each, and by value where that is the same."""
        return self.by_value[numbers[self.by_value].argsort(stable=True)]

    def take(self, rows: Tensor | slice) -> Side:
        """Some of the rows, by number, by a mask, or side by side."""
        return Side(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]


class Sides(NamedTuple):
    """The two sides trials are formed from, and the voices on them.

    A voice is a speaker within a group; where nobody named groups, a speaker. ``voices`` ``(V,)`` are their speakers,
    those of a group side by side and ascending.
    """

    original: Side
    protected: Side
    voices: Tensor

    def pair(self, condition: Condition, enrolment: str | None = None) -> tuple[Side, Side]:
        """References and probes of a condition; one and the same side where every utterance is both.

        With ``enrolment`` only chosen references are references, and no probes: one by one (``"utterance"``), or as the
        mean of those of a speaker (``"speaker"``).
        """
        reference, probe = getattr(self, condition.reference), getattr(self, condition.probe)
        if condition.own_session != "any" and probe.sessions is None:
            warn_undefined(f"Nobody said which sessions there are, which {condition.name!r} tells apart.")
            return reference.take(slice(0, 0)), probe.take(slice(0, 0))
        if enrolment is None or reference.is_reference is None or probe.is_reference is None:
            return reference, probe
        known, unknown = reference.take(reference.is_reference), probe.take(~probe.is_reference)
        return (_averaged(known, condition.own_session != "any") if enrolment == "speaker" else known), unknown

    def groups(self) -> list[int]:
        """All groups, ascending; none where nobody named any."""
        named = [side.groups for side in (self.original, self.protected) if side.groups is not None]
        return torch.unique(shares.of_all(torch.cat(named))).tolist() if named else []

    def of_group(self, group: int) -> Sides:
        """The utterances of one group."""
        both = (self.original, self.protected)
        chosen = (side if side.groups is None else side.take(side.groups == group) for side in both)
        return with_voices(*(side._replace(groups=None) for side in chosen))


def pack(
    original: Tensor | None = None,
    protected: Tensor | None = None,
    speakers: Tensor | None = None,
    is_reference: Tensor | None = None,
    utterances: Tensor | None = None,
    sessions: Tensor | None = None,
    groups: Tensor | None = None,
    *,
    width: int | None = None,
    values: bool = False,
) -> Rows:
    """Checked arguments as rows, with their graph; a side that was left out is zeros marked as absent.

    ``width`` is that of rows before; with ``values``, what is in the embeddings is checked, too.
    """
    numbers = {"utterances": utterances, "sessions": sessions, "groups": groups}
    check_embeddings(original, protected, speakers, is_reference, numbers, width)
    if values:
        check_embedding_values(original, protected)
        if utterances is not None:
            check_recordings(utterances, speakers=speakers, groups=groups)
    given = next(side for side in (original, protected) if side is not None)
    sides = [at_least_float32(given).detach().new_zeros(given.shape) if s is None else s for s in (original, protected)]
    wide = torch.promote_types(torch.promote_types(sides[0].dtype, sides[1].dtype), torch.float32)
    names = given.new_empty(0, dtype=torch.int64) if speakers is None else speakers.to(torch.int64)
    bits = {_ORIGINAL: original, _PROTECTED: protected, _CHOOSES: is_reference}
    bits |= {_UTTERANCE: utterances, _SESSION: sessions, _GROUP: groups}
    holds = sum(bit for bit, column in bits.items() if column is not None)
    row_holds = torch.full_like(names, holds, dtype=torch.uint8)
    if is_reference is not None:
        row_holds = row_holds + is_reference.to(torch.uint8) * _REFERENCE
    utterance, session, group = (
        torch.zeros_like(names) if column is None else column.to(torch.int64) for column in numbers.values()
    )
    left, right = (side.to(wide) for side in sides)
    return Rows(left, right, names, utterance, session, group, row_holds)


def check_rows(rows: Rows) -> None:
    """Refuse a recording of two speakers, which no batch may show on its own."""
    numbered = (rows.row_holds & _UTTERANCE) != 0
    check_recordings(rows.utterances[numbered], speakers=rows.speakers[numbered], groups=rows.groups[numbered])


def told(row_holds: Tensor) -> Tensor:
    """Whether anybody said which rows are references, of which session, and of which group, ``(3,)``: 0 or 1."""
    return torch.stack([(row_holds & bit).any() for bit in (_CHOOSES, _SESSION, _GROUP)]).to(torch.uint8)


def sides_of(rows: Rows) -> Sides:
    """The two sides of kept rows, every utterance once on each."""
    count = len(rows.speakers)
    numbered = (rows.row_holds & _UTTERANCE) != 0
    # An utterance without a number is one of its own.
    own = torch.arange(count, 2 * count, device=rows.speakers.device)
    ids = torch.where(numbered, torch.unique(rows.utterances, return_inverse=True)[1], own) + 2 * shares.first(count)
    given = shares.most(told(rows.row_holds))[0].tolist()
    columns = (rows.row_holds & _REFERENCE) != 0, rows.sessions, rows.groups
    known = [column if said else None for column, said in zip(columns, given, strict=True)]
    # Protected anew in another session, a recording is another one; its original is still the same.
    drawn = ids if known[1] is None else torch.unique(torch.stack([ids, rows.sessions]), dim=1, return_inverse=True)[1]
    sides = []
    for vectors, numbers, bit in ((rows.original, ids, _ORIGINAL), (rows.protected, drawn, _PROTECTED)):
        kept = _first_of_each(numbers, (rows.row_holds & bit) != 0)
        side = Side(vectors, rows.speakers, ids, rows.speakers, *known)
        sides.append(side if len(kept) == count else side.take(kept))  # ascending: all are the rows as they stand
    found = with_voices(*sides)
    # Protected recordings may well come out alike; only where there is nothing else to look at are they looked at.
    name = "original" if len(found.original.speakers) else "protected"
    _warn_of_copies(name, getattr(found, name))
    return found


def with_voices(original: Side, protected: Side) -> Sides:
    """The two sides and the voices there are on them, numbered anew."""
    speakers = torch.cat([original.speakers, protected.speakers])
    names, place = torch.unique(speakers, return_inverse=True)
    if original.groups is not None and protected.groups is not None:
        groups = torch.unique(torch.cat([original.groups, protected.groups]), return_inverse=True)[1]
        codes, place = torch.unique(groups * len(names) + place, return_inverse=True)
        names = names[codes % max(1, len(names))]
    first, second = place.split([len(original.speakers), len(protected.speakers)])
    return Sides(original._replace(voices=first), protected._replace(voices=second), names)


def runs_of_sessions(sides: Sides, most: int = 2048) -> tuple[Sides, Sides]:
    """The protected utterances of half of every speaker's sessions, and of the other half; originals in both.

    Speakers with a single session are left out. Of many utterances ``most`` are taken, evenly spaced, from each side.
    """
    side = with_sessions_in_order(sides.protected)
    if side.sessions is None:
        raise ValueError("Expected `sessions` to tell runs apart, but got none.")
    pairs, place = torch.unique(torch.stack([side.voices, side.sessions]), dim=1, return_inverse=True)
    count = occurrences(pairs[0], len(sides.voices))
    turn = torch.arange(pairs.shape[1], device=place.device) - (count.cumsum(0) - count)[pairs[0]]
    later, several = (2 * turn >= count[pairs[0]])[place], (count[pairs[0]] > 1)[place]
    original = _thinned(sides.original, most)
    first, second = (with_voices(original, _thinned(side.take(several & half), most)) for half in (~later, later))
    return first, second


def _thinned(side: Side, most: int) -> Side:
    """Some of the rows of all processes, the same ones in whatever order they come."""
    every = shares.number_of_all(len(side.speakers))
    if every <= most:
        places = torch.arange(every, device=side.speakers.device)
    else:
        places = evenly(shares.of_all(side.keys).argsort(stable=True), most)
    return Side(*(None if column is None else shares.picked(column, places) for column in side))  # type: ignore[arg-type]


def evenly(order: Tensor, most: int) -> Tensor:
    """At most so many, evenly spaced."""
    count = min(most, len(order))
    return order[torch.arange(count, device=order.device) * len(order) // max(1, count)]


def places_of(side: Side, *columns: str) -> tuple[Tensor, Tensor]:
    """For every row the number of its combination of speaker and ``columns``, and one row of each combination."""
    known = [side.speakers, *(column for name in columns if (column := getattr(side, name)) is not None)]
    combinations, place = torch.unique(torch.stack(known), dim=1, return_inverse=True)
    first = torch.full((combinations.shape[1],), len(place), device=place.device)
    return place, first.scatter_reduce(0, place, torch.arange(len(place), device=place.device), "amin")


def places_in(values: Tensor, wanted: Tensor) -> Tensor:
    """Where each wanted value stands among others, all different; -1 for one that does not."""
    if len(values) == 0:
        return torch.full_like(wanted, -1)
    ordered, order = values.sort()
    place = torch.searchsorted(ordered, wanted.contiguous()).clamp(max=len(values) - 1)
    return torch.where(ordered[place] == wanted, order[place], -1)


def _averaged(side: Side, by_session: bool) -> Side:
    """The mean of every speaker's rows, within a group and, where sessions matter, within a session."""
    place, first = places_of(side, "groups", *(["sessions"] if by_session else []))
    sums = widen(side.vectors).new_zeros(len(first), side.vectors.shape[1])
    sums = sums.index_add(0, place, widen(side.vectors))
    means = sums / occurrences(place, len(first)).unsqueeze(1)
    # A mean is no recording: a number of its own, below those of all that are.
    numbers = -1 - torch.arange(len(first), device=place.device)
    return side.take(first)._replace(vectors=means.to(side.vectors.dtype), utterances=numbers)


def _first_of_each(ids: Tensor, present: Tensor) -> Tensor:
    """Positions of the first present row of every number, ascending."""
    positions = present.nonzero().flatten()
    order = ids[positions].argsort(stable=True)
    ordered = ids[positions][order]
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    return positions[order[fresh]].sort().values


def row_keys(vectors: Tensor) -> Tensor:
    """A number per row that equal rows share and different rows hardly ever do."""
    weights = torch.arange(vectors.shape[1], device=vectors.device, dtype=wide_dtype(vectors.device)).cos()
    keys = weights.new_empty(len(vectors))  # before all that passes, or what stays would lie in between
    # In pieces, so that there is never a wider copy of all rows.
    for rows, own in zip(*(each.split(_rows_at_once(vectors)) for each in (vectors.detach(), keys)), strict=True):
        own.copy_((widen(rows) * weights).sum(1))
    return keys


def _rows_at_once(vectors: Tensor) -> int:
    return max(1, 2**20 // max(1, vectors.shape[1]))


def occurrences(values: Tensor, count: int) -> Tensor:
    """How often each of ``0 ... count - 1`` occurs; bincount would look on the device for a larger one."""
    return torch.zeros(count, dtype=torch.int64, device=values.device).index_add_(0, values, torch.ones_like(values))


def keys_of_means(vectors: Tensor, place: Tensor, count: int, by_value: Tensor | None = None) -> Tensor:
    """A number for the mean of the rows at each place, which no order of rows changes."""
    sums, counts = _sums_of(vectors, place, count, by_value)
    return row_keys(sums / counts.clamp(min=1))


def _sums_of(vectors: Tensor, place: Tensor, count: int, by_value: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums of the rows at each place, and how many these are ``(count, 1)``."""
    sums = vectors.new_zeros(count, vectors.shape[1], dtype=wide_dtype(vectors.device))
    # Rows in an order of their own: a sum depends on the order of what it adds.
    order = row_keys(vectors).argsort(stable=True) if by_value is None else by_value
    for rows in order.split(_rows_at_once(vectors)):  # so that there is never a wider copy of all of them
        sums.index_add_(0, place[rows], widen(vectors.detach()[rows]))
    return sums, occurrences(place, count).to(sums)[:, None]


def with_sessions_in_order(side: Side) -> Side:
    """The side with sessions numbered by what was said in them, so that it does not matter what they were called.

    One order for all speakers: those who share a secret keep sharing it.
    """
    if side.sessions is None:
        return side
    first, count = shares.first(len(side.sessions)), len(side.sessions)
    names, place = shares.of_all(side.sessions).unique(return_inverse=True)
    place = place[first:][:count]
    sums, counts = shares.pooled(*_sums_of(side.vectors, place, len(names), side.by_value))
    number = row_keys(sums / counts).argsort(stable=True).argsort()
    return side._replace(sessions=number[place])


def _warn_of_copies(name: str, side: Side) -> None:
    """Two recordings never have the same embedding; a sampler that fills up its last batch makes such rows."""
    vectors, one, other = side.vectors.detach(), side.by_value[1:], side.by_value[:-1]
    alike = side.speakers[one] == side.speakers[other]
    for a, b, both in zip(*(each.split(_rows_at_once(vectors)) for each in (one, other, alike)), strict=True):
        both &= (vectors[a] == vectors[b]).all(1)
    warn_where(
        alike.sum(),
        lambda copies: (
            f"{copies:.0f} of {len(vectors)} {name} embeddings equal another one of their speaker. If a "
            "sampler repeated utterances, pass `utterances=` so that each counts once."
            if 0 < copies < len(vectors) - 1
            else None
        ),
    )
