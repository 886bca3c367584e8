"""What a folder of a challenge holds, as trials by condition and set."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence

import numpy as np

from vpmetrics._trials.scorers import Scoring
from vpmetrics.app.attacked import Attackable
from vpmetrics.app.challenge import Part, Results
from vpmetrics.app.errors import InputError
from vpmetrics.app.listed import CONDITIONS, Listed, score_listed
from vpmetrics.app.lists import Names, read_key, read_scores
from vpmetrics.app.pairs import read_map, read_pairs
from vpmetrics.app.protocol import Protocol, make_protocol
from vpmetrics.app.sides import Column, Files, merge
from vpmetrics.app.speakers import speakers_of
from vpmetrics.app.trials import Trials, label_trials


def read_results(results: Results, scoring: Scoring, utt2spk: str | None = None) -> tuple[Listed, list[Attackable]]:
    """The trials of all sets, and what attackers have of each: embeddings are scored, where there are no scores."""
    names = Names()
    sets: list[Attackable] = []
    notes: list[str] = []
    listed_as = {} if utt2spk is None else read_map(utt2spk, ("utterance", "speaker"))
    if results.scored:
        read: list[Mapping[str, Trials]] = [_read_scores(part, names) for part in results.parts]
        known = [listed_as or _listed_speakers(part) for part in results.parts]
    else:
        sets = [_read_vectors(part, results.side, listed_as, names) for part in results.parts]
        known = [dict(one.protocol.speaker_of) for one in sets]
        listed = [score_listed(*one[:3], scoring) for one in sets]
        read, notes = [one.trials for one in listed], [note for one in listed for note in one.notes]
    trials, group = {}, {}
    for condition in CONDITIONS:
        there = {number: one[condition] for number, one in enumerate(read) if condition in one}
        if there:
            trials[condition] = _join(list(there.values()))
            group[condition] = np.repeat(list(there), [len(one.scores) for one in there.values()])
    notes += [note for one in trials.values() for note in one.notes]
    speakers = speakers_of(dict(ChainMap(*known)), trials.values(), names)
    return Listed(trials, group, tuple(part.name for part in results.parts), tuple(notes), speakers), sets


def _read_scores(part: Part, names: Names) -> dict[str, Trials]:
    files = {condition: read_scores(path, names) for condition, path in part.scores.items()}
    labelled = all(file.is_target is not None for file in files.values())
    key = None if labelled else read_key(part.trials(), names)
    return {condition: label_trials(file, key, names) for condition, file in files.items()}


def _read_vectors(part: Part, side: str, listed_as: dict[str, str], names: Names) -> Attackable:
    files = Files(None)
    original, protected = (_side(part, suffix, files) for suffix in ("", side))
    return Attackable(original, protected, _protocol(part, side, listed_as, files, names), part.name)


def _side(part: Part, suffix: str, files: Files) -> Column:
    """One side of enrolments and trials; an attacker who protects recordings as well needs no original speech."""
    there = [part.vectors[name] for name in (part.enrol + suffix, part.trial + suffix) if name in part.vectors]
    if not there:
        return Column(np.zeros((0, 0)), [], f"{part.trial}{suffix}/speaker_vectors.pt, which is not there")
    return merge([files.column(str(path), "original") for path in there])


def _protocol(part: Part, side: str, listed_as: dict[str, str], files: Files, names: Names) -> Protocol:
    """As the recipes have it: a speaker is enrolled with the mean of their utterances in the set for that."""
    path = part.vectors.get(part.enrol) or part.vectors.get(part.enrol + side)
    if path is None:
        raise InputError(f"expected embeddings of {part.enrol}, but found no speaker_vectors.pt", part.lists.folder)
    listed = part.lists.find(part.enrol, "enrolls")
    enrolled = read_pairs(listed, ("utterance",))[0] if listed else files.arrays(str(path)).utterances or []
    speaker_of = listed_as or _speakers(part, files)
    if not set(enrolled) <= set(speaker_of):
        raise InputError(f"expected the speakers of {part.enrol}, but found no {part.enrol}/utt2spk", part.lists.folder)
    return make_protocol([part.trials()], enrolled, speaker_of, names)


def _speakers(part: Part, files: Files) -> dict[str, str]:
    """The speaker of every utterance: from lists, or from what stands beside the vectors."""
    speaker_of: dict[str, str] = {}
    for path in part.vectors.values():
        arrays = files.arrays(str(path))
        if "speakers" in arrays.by_name:
            speaker_of |= zip(arrays.utterances or [], arrays.by_name["speakers"].tolist(), strict=True)
    return speaker_of | _listed_speakers(part)


def _listed_speakers(part: Part) -> dict[str, str]:
    speaker_of: dict[str, str] = {}
    for dataset in ("", part.enrol, part.trial):
        listed = part.lists.find(dataset, "utt2spk")
        speaker_of |= {} if listed is None else read_map(listed, ("utterance", "speaker"))
    return speaker_of


def _join(trials: Sequence[Trials]) -> Trials:
    enrol, trial, scores, is_target = (np.concatenate(column) for column in zip(*(t[:4] for t in trials), strict=True))
    return Trials(enrol, trial, scores, is_target, tuple(note for one in trials for note in one.notes))
