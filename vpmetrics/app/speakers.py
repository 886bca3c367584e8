"""Who speaks in trials: as a list says, or as far as target trials tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from vpmetrics.app.columns import Array
from vpmetrics.app.errors import InputError, printable
from vpmetrics.app.lists import Names
from vpmetrics.app.pairs import read_pairs
from vpmetrics.app.trials import Trials


class Speakers(NamedTuple):
    """The speaker of every name by number, −1 where it is in no trial, and the names of the speakers.

    ``told``: a list says who they are; otherwise target trials do, and ``note`` says so, or why nobody is known.
    """

    speaker_of: Array | None = None
    names: tuple[str, ...] = ()
    told: bool = False
    note: str = ""

    def among(self, sets: Collection[Trials]) -> Speakers:
        """Those who speak in some of the trials."""
        if self.speaker_of is None:
            return self
        numbers, places = np.unique(self.speaker_of[_used(sets)], return_inverse=True)
        speaker_of = np.full(len(self.speaker_of), -1)
        speaker_of[_used(sets)] = places
        return self._replace(speaker_of=speaker_of, names=tuple(self.names[number] for number in numbers))


def read_speakers(path: str | None, sets: Collection[Trials], names: Names) -> Speakers:
    """The speaker of every name in the trials, from a file of lines ``utterance speaker`` where there is one."""
    if path is None:
        return speakers_of_targets(sets, names)
    columns = read_pairs(path)
    if len(columns) != 2:
        raise InputError("expected lines `utterance speaker`", path, 1)
    if not len(names):
        raise InputError("Expected the names of both sides of a trial for --utt2spk, but the scores name none.")
    speaker_of = dict(zip(columns[0], columns[1], strict=True))
    missing = _missing(speaker_of, sets, names)
    if missing:
        message = f"expected the speaker of every utterance, but {len(missing):,} are missing: {missing[0]!r}"
        raise InputError(message, path)
    return speakers_of(speaker_of, sets, names)


def speakers_of(speaker_of: Mapping[str, str], sets: Collection[Trials], names: Names) -> Speakers:
    """The speaker of every name in the trials by a list of them, or by target trials where it lacks some."""
    if _missing(speaker_of, sets, names):
        return speakers_of_targets(sets, names)
    known, used = _by_name(speaker_of), _used(sets)
    return _numbered(np.array([known[names[number]] for number in used]), used, names)._replace(told=True)


def speakers_of_targets(sets: Collection[Trials], names: Names) -> Speakers:
    """Names that target trials join are of one speaker; nobody is known where some name is in none of them."""
    if not len(names):
        return Speakers(note="No intervals: the scores do not name what they compare.")
    used, joined = _used(sets), _join(sets, len(names))
    is_known = np.zeros(len(names), dtype=bool)
    for trials in sets:
        for side in (trials.enrol, trials.trial):
            is_known[side[trials.is_target]] = True
    lone = used[~is_known[used]]
    if len(lone):
        why = f"{len(lone):,} names are in no target trial, as {names[lone[0]]!r}"
        return Speakers(note=f"No intervals: who speaks is not known, for {why}; --utt2spk would tell.")
    for trials in sets:
        wrong = ~trials.is_target & (joined[trials.enrol] == joined[trials.trial])
        if wrong.any():
            at = int(wrong.argmax())
            pair = f"{names[trials.enrol[at]]!r} and {names[trials.trial[at]]!r}"
            return Speakers(note=f"No intervals: by target trials {pair} are of one speaker, by their own of two.")
    speakers = _numbered(np.array([names[number] for number in joined[used]]), used, names)
    count = f"{len(speakers.names):,} speakers"
    return speakers._replace(note=f"intervals take names that target trials join for one speaker: {count}")


def _join(sets: Collection[Trials], count: int) -> Array:
    """The least of all names that target trials join with each, from one to the next."""
    least, before = np.arange(count), np.empty(0, dtype=np.int64)
    while not np.array_equal(least, before):
        before = least.copy()
        for trials in sets:
            one, other = trials.enrol[trials.is_target], trials.trial[trials.is_target]
            both = np.minimum(least[one], least[other])
            for side in (one, other):
                np.minimum.at(least, least[side], both)
                np.minimum.at(least, side, both)
        least = least[least]
    return least


def _used(sets: Collection[Trials]) -> Array:
    return np.unique(np.concatenate([side for trials in sets for side in (trials.enrol, trials.trial)]))


def _by_name(speaker_of: Mapping[str, str]) -> dict[str, str]:
    """An enrolment may be called by its speaker instead of an utterance."""
    return {speaker: speaker for speaker in speaker_of.values()} | dict(speaker_of)


def _missing(speaker_of: Mapping[str, str], sets: Collection[Trials], names: Names) -> list[str]:
    known = _by_name(speaker_of)
    return [names[number] for number in _used(sets) if names[number] not in known]


def _numbered(speakers: Array, used: Array, names: Names) -> Speakers:
    """Speakers of the names used, ascending."""
    kinds, numbers = np.unique(speakers, return_inverse=True)
    speaker_of = np.full(len(names), -1, dtype=np.int64)
    speaker_of[used] = numbers
    return Speakers(speaker_of, tuple(map(printable, kinds.tolist())))
