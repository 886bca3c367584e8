"""Who is looked for with what: an attacker's utterances, averaged per speaker, and conversations of the others."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.conversations import averaged, dealt_places, whole
from vpmetrics._trials.isolation import Crowd, gather_crowd
from vpmetrics._trials.references import Trials, form_trials
from vpmetrics._trials.utterances import Side, Sides, places_of, with_voices

ACCUMULATED = ("probes", "references", "both")


class Listening(NamedTuple):
    """How much speech an attacker hears, and what they do with it.

    ``utterances`` of a speaker and session are averaged to a probe, to a reference, or to either of them, as
    ``accumulated`` says; otherwise a probe is one utterance, and a reference the mean of all the attacker has of
    somebody. ``attack`` changes utterances before they are averaged; ``condition`` says what is compared with what.
    """

    condition: Condition
    utterances: int = 1
    accumulated: str = "probes"
    attack: Any = None


def hear(sides: Sides, listening: Listening) -> tuple[Side, Side]:
    """The utterances an attacker knows the speakers of, and conversations of which they do not."""
    condition, length = listening.condition, listening.utterances
    reference, probe = _dealt(*sides.pair(condition, enrolment="utterance"))
    if listening.accumulated != "probes":
        by_session = ("sessions",) if condition.own_session != "any" else ()
        reference = _first_conversation(reference, length, *by_session)
    members = _conversations(probe, 1 if listening.accumulated == "references" else length, "sessions")
    known = _attacked(reference, condition.reference, listening.attack)
    vectors = averaged(_attacked(probe, condition.probe, listening.attack).vectors, members)
    return known, probe.take(members[:, 0])._replace(vectors=vectors)


def trials_of_conversations(sides: Sides, listening: Listening) -> Trials:
    """Conversations, each to be identified among one reference per known speaker."""
    known, heard = hear(sides, listening)
    return form_trials(known, heard, torch.full_like(heard.utterances, -1), listening.condition.own_session)


def crowd_of_conversations(sides: Sides, listening: Listening, most: int) -> Crowd:
    """One reference per known speaker, and the conversations out of which one may be singled out."""
    known, heard = hear(sides, listening)
    references = form_trials(known, known, torch.full_like(known.utterances, -1)).references
    places = dealt_places(heard.speakers, heard.keys)
    means = references.whole().to(known.vectors.dtype)
    return gather_crowd(means, references.speakers, heard.vectors, heard.speakers, places, most)


def _dealt(reference: Side, probe: Side) -> tuple[Side, Side]:
    """The attacker's utterances and the others: as chosen, or half of every speaker's recordings to each."""
    if reference.is_reference is not None:
        return reference, probe
    recording, _, places = _dealt_recordings(reference, probe)
    known = (places % 2 == 0)[recording]
    return reference.take(known[: len(reference.utterances)]), probe.take(~known[len(reference.utterances) :])


def _dealt_recordings(first: Side, second: Side) -> tuple[Tensor, Tensor, Tensor]:
    """The recording of every row of two sides; whose each recording is, as a number; and its place among theirs.

    A recording is dealt once, whatever versions of it there are, and by what all of them have in common.
    """
    recordings, recording = torch.cat([first.utterances, second.utterances]).unique(return_inverse=True)
    keys = _smallest(torch.cat([first.keys, second.keys]), recording, len(recordings))
    columns = [name for name in ("speakers", "sessions", "groups", "is_reference") if getattr(second, name) is not None]
    known_of = [torch.cat([getattr(first, name), getattr(second, name)]).long() for name in columns]
    codes = torch.stack([_smallest(column, recording, len(recordings)) for column in known_of])
    group = codes.unique(dim=1, return_inverse=True)[1]
    return recording, group, dealt_places(group, keys)


def conversations_of_sides(sides: Sides, length: int) -> Sides:
    """Means of so many recordings of everybody as utterances of their own, of the same recordings on both sides."""
    recording, group, places = _dealt_recordings(sides.original, sides.protected)
    together = torch.stack([group, places // length]).unique(dim=1, return_inverse=True)[1]
    parts = recording.split([len(sides.original.utterances), len(sides.protected.utterances)])
    both = zip((sides.original, sides.protected), parts, (None, sides.protected.sessions), strict=True)
    return with_voices(*(_averaged(side, together[of], places[of], length, drawn) for side, of, drawn in both))


def _averaged(side: Side, together: Tensor, places: Tensor, length: int, drawn: Tensor | None) -> Side:
    """Rows that go together, in a session where there are any, as one; what is not complete is dropped."""
    columns = together[None] if drawn is None else torch.stack([together, drawn])
    members = whole(columns.unique(dim=1, return_inverse=True)[1], places % length, length)
    first = members[:, 0]
    return side.take(first)._replace(vectors=averaged(side.vectors, members), utterances=together[first])


def _smallest(values: Tensor, place: Tensor, count: int) -> Tensor:
    return values.new_empty(count).scatter_reduce(0, place, values, "amin", include_self=False)


def _conversations(side: Side, length: int, *columns: str) -> Tensor:
    """Rows of the conversations of every speaker and combination of ``columns``, in their order, ``(C, L)``."""
    group, _ = places_of(side, *columns)
    return whole(group, dealt_places(group, side.keys), length)


def _first_conversation(side: Side, length: int, *columns: str) -> Side:
    """As many utterances of everybody as a conversation has; nothing of those of whom there is less."""
    group, _ = places_of(side, *columns)
    places = dealt_places(group, side.keys)
    members = whole(group, places, length)
    return side.take(members[places[members[:, 0]] == 0].flatten())


def _attacked(side: Side, name: str, attack: Any) -> Side:
    """A side as the attacker compares it."""
    if attack is None:
        return side
    original, protected = attack.attack(*((side.vectors, None) if name == "original" else (None, side.vectors)))
    return side._replace(vectors=original if name == "original" else protected)
