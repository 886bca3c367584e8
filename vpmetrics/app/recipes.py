"""What a folder of a challenge holds, as trials by condition and set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from vpmetrics._trials.scorers import Scoring
from vpmetrics.app.challenge import Part, Results
from vpmetrics.app.errors import InputError
from vpmetrics.app.listed import CONDITIONS, Listed, score_listed
from vpmetrics.app.lists import Names, read_key, read_map, read_pairs, read_scores
from vpmetrics.app.protocol import Protocol, make_protocol
from vpmetrics.app.sides import Column, Files, merge
from vpmetrics.app.trials import Trials, label_trials


def read_results(results: Results, scoring: Scoring, utt2spk: str | None = None) -> Listed:
    """The trials of all sets; embeddings are scored, where there are no scores already."""
    names = Names()
    if all("OP" in part.scores or "PP" in part.scores for part in results.parts):
        read: list[Mapping[str, Trials]] = [_read_scores(part, names) for part in results.parts]
        notes: list[str] = []
    else:
        listed = [_score_vectors(part, results.side, scoring, utt2spk, names) for part in results.parts]
        read, notes = [one.trials for one in listed], [note for one in listed for note in one.notes]
    trials, group = {}, {}
    for condition in CONDITIONS:
        known = {number: one[condition] for number, one in enumerate(read) if condition in one}
        if known:
            trials[condition] = _join(list(known.values()))
            group[condition] = np.repeat(list(known), [len(one.scores) for one in known.values()])
    notes += [note for one in trials.values() for note in one.notes]
    return Listed(trials, group, tuple(part.name for part in results.parts), tuple(notes))


def _read_scores(part: Part, names: Names) -> dict[str, Trials]:
    files = {condition: read_scores(path, names) for condition, path in part.scores.items()}
    labelled = all(file.is_target is not None for file in files.values())
    key = None if labelled else read_key(part.trials(), names)
    return {condition: label_trials(file, key, names) for condition, file in files.items()}


def _score_vectors(part: Part, side: str, scoring: Scoring, utt2spk: str | None, names: Names) -> Listed:
    files = Files(None)

    def of(suffix: str) -> Column:
        there = [part.vectors[name] for name in (part.enrol + suffix, part.trial + suffix) if name in part.vectors]
        if not there:
            what = f"{part.trial}{suffix}/speaker_vectors.pt"
            raise InputError(f"expected embeddings of both sides, but found no {what}", part.lists.folder)
        return merge([files.column(str(path), "original") for path in there])

    return score_listed(of(""), of(side), _protocol(part, utt2spk, files, names), scoring)


def _protocol(part: Part, utt2spk: str | None, files: Files, names: Names) -> Protocol:
    """As the recipes have it: a speaker is enrolled with the mean of their utterances in the set for that."""
    enrolment = files.arrays(str(part.vectors[part.enrol]))
    listed = part.lists.find(part.enrol, "enrolls")
    enrolled = read_pairs(listed, ("utterance",))[0] if listed else enrolment.utterances or []
    path = utt2spk or part.lists.find(part.enrol, "utt2spk") or part.lists.find("", "utt2spk")
    if path is not None:
        speaker_of = read_map(path, ("utterance", "speaker"))
    elif "speakers" in enrolment.by_name:
        speakers = enrolment.by_name["speakers"].tolist()
        speaker_of = dict(zip(enrolment.utterances or [], speakers, strict=True))
    else:
        raise InputError(f"expected the speakers of {part.enrol}, but found no {part.enrol}/utt2spk", part.lists.folder)
    return make_protocol([part.trials()], enrolled, speaker_of, names)


def _join(trials: Sequence[Trials]) -> Trials:
    enrol, trial, scores, is_target = (np.concatenate(column) for column in zip(*(t[:4] for t in trials), strict=True))
    return Trials(enrol, trial, scores, is_target, tuple(note for one in trials for note in one.notes))
