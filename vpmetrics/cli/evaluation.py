"""Evaluated systems from embeddings or trials, with notes on what must not pass for privacy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vpmetrics._engine.combination import combine_reports
from vpmetrics._engine.conditions import CONDITIONS
from vpmetrics._engine.report import ConditionReport, EvaluatedSystem
from vpmetrics._engine.trial_list import TrialList, report_trials
from vpmetrics._engine.verdict import explain_missing_trials
from vpmetrics.attributes import AttributeDisclosure
from vpmetrics.cli.embeddings import Embeddings
from vpmetrics.cli.inputs import Array, InputError, printable, quote
from vpmetrics.cli.trial_files import Trials, number_names, read_attributes
from vpmetrics.suite import VoicePrivacy

if TYPE_CHECKING:
    from vpmetrics.cli.trial_protocol import ListedTrials

_SAMPLE = 10_000  # trials looked for the other way round
NONE_WANTED = "none was asked for"
_SCORES_ALONE = "scores give an attacker nothing to learn from; embeddings of both sides would"


@contextmanager
def collect_notes(notes: list[str]) -> Iterator[None]:
    """Turn warnings of the library into notes of the report."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    notes += dict.fromkeys(str(warning.message) for warning in caught if warning.category is UserWarning)


def evaluate_embeddings(
    name: str, embeddings: Embeddings, metric: VoicePrivacy, weights: Mapping[str, float] | None = None
) -> EvaluatedSystem:
    """Evaluate a system by its embeddings; one metric for several systems scores shared originals once."""
    sides, speakers = (embeddings.original, embeddings.protected), embeddings.speakers
    labels = {key: getattr(embeddings, key) for key in ("is_reference", "utterances", "sessions", "groups")}
    notes = [*embeddings.notes, *_notes_on_rows(name, embeddings)]
    metric.reset()
    try:
        with collect_notes(notes):
            metric.update(*sides, speakers, **labels)
            report = metric.report()
    except (TypeError, ValueError) as error:
        raise InputError(str(error), name or None) from None
    notes += _notes_on_sign(name, report.conditions, "an attacker who turns the sign undoes the protection")

    def names_of(some: Tensor) -> tuple[str, ...]:
        return tuple(embeddings.speaker_names[number] for number in some.unique().tolist())

    groups = {}
    for number, of_group in report.groups.items():
        some = speakers if embeddings.groups is None else speakers[embeddings.groups == number]
        group = embeddings.group_names[number]
        groups[group] = EvaluatedSystem(group, of_group, names_of(some), utterances=len(some))
    return EvaluatedSystem(
        name,
        report,
        names_of(speakers),
        tuple(notes),
        groups=groups,
        weights=weights or {},
        utterances=len(speakers),
        no_attacks="" if report.attacks else NONE_WANTED,
    )


def add_attributes(
    system: EvaluatedSystem, embeddings: Embeddings, path: str, confidence: float | None
) -> EvaluatedSystem:
    """Add what protected speech tells of attributes, whose labels are in a file."""
    labels = {name: embeddings.labels(label_of, path) for name, label_of in read_attributes(path).items()}
    notes, metric = list(system.notes), AttributeDisclosure(list(labels), intervals=confidence)
    with collect_notes(notes):
        metric.update(embeddings.original, embeddings.protected, embeddings.speakers, labels)
        values = metric.compute()
    kinds = {key: key for key in ("disclosure", "chance", "accuracy", "majority", "original")}
    kinds |= {"disclosure_low": "low", "disclosure_high": "high"} if confidence else {}
    disclosures = {name: {key: float(values[f"{name}_{end}"]) for key, end in kinds.items()} for name in labels}
    return replace(system, notes=tuple(notes), attributes=disclosures)


def combine_systems(name: str, systems: Mapping[str, EvaluatedSystem]) -> list[EvaluatedSystem]:
    """Put the system as the attacker sees it who picks the best of several encoders before the system by encoder."""
    if len(systems) < 2:
        return list(systems.values())
    try:
        combined = combine_reports({encoder: system.report for encoder, system in systems.items()})
    except ValueError as error:  # other speakers
        raise InputError(str(error), name) from None
    notes = dict.fromkeys(note for system in systems.values() for note in system.notes)
    leading = replace(systems[combined.encoder], name=name, report=combined.report, notes=tuple(notes))
    return [leading, *(replace(system, part_of=name) for system in systems.values())]


def evaluate_trials(
    name: str,
    conditions: Mapping[str, Trials],
    fit: Trials | None = None,
    speaker_of: Mapping[str, str] | None = None,
    similarity: str | None = None,
    confidence: float | None = None,
) -> EvaluatedSystem:
    """Evaluate a system by its scores.

    Args:
        name: What to call it.
        conditions: Trials by condition, or of none.
        fit: The trials of another run, to calibrate on.
        speaker_of: The speaker of every name, for matrices and intervals.
        similarity: Of the matrices; None for none.
        confidence: Of intervals; None for none.
    """
    notes = [note for trials in conditions.values() for note in trials.notes]
    speakers = find_speakers(speaker_of or {}, list(conditions.values()))
    notes += [speakers.note] if confidence and speakers.note else []
    with collect_notes(notes):
        scored = {}
        for at, (condition, trials) in enumerate(conditions.items()):
            is_one_sided = bool(condition) and CONDITIONS[condition].is_one_sided and bool(speakers.sides)
            sides = torch.from_numpy(speakers.sides[at]) if speakers.sides else None
            scored[condition] = TrialList(*_tensors_of(trials), sides, is_one_sided and _is_unordered(trials))
        report = report_trials(
            scored,
            None if fit is None else TrialList(*_tensors_of(fit)),
            len(speakers.names),
            similarity if speakers.is_listed else None,
            confidence if speakers.sides else None,
        )
    notes += _notes_on_sign(name, report.conditions, "scores seem to fall with likeness: negate them?")
    frames = [trials.frame for trials in conditions.values()]
    # Without names, there are as many as trials.
    is_named = all("trial" in frame.columns for frame in frames)
    count = len(number_names(frames)[0]) if is_named else max(map(len, frames))
    return EvaluatedSystem(name, report, speakers.names, tuple(notes), utterances=count, no_attacks=_SCORES_ALONE)


def evaluate_listed_trials(
    name: str, listed: ListedTrials, weights: Mapping[str, float], confidence: float | None = None
) -> EvaluatedSystem:
    """Evaluate a system by listed trials: all together, each group, and averaged over the groups."""

    def evaluate(called: str, trials: Mapping[str, Trials]) -> EvaluatedSystem:
        return evaluate_trials(called, trials, speaker_of=listed.speaker_of, confidence=confidence)

    system = evaluate(name, listed.select_groups(listed.pooled_groups) if listed.pooled_groups else listed.trials)
    groups = {group: evaluate(f"{name}, {group}", listed.select_groups([group])) for group in listed.groups}
    notes = [*listed.notes, *system.notes, *(note for group in groups.values() for note in group.notes)]
    return replace(system, notes=tuple(dict.fromkeys(notes)), groups=groups, weights=weights)


def _tensors_of(trials: Trials) -> tuple[Tensor, Tensor]:
    score, is_target = (torch.tensor(trials.frame[name].to_numpy()) for name in ("score", "is_target"))
    return score, is_target


def _is_unordered(trials: Trials) -> bool:
    """Return whether names are compared with one another, each pair in one order only, by a sample of the trials.

    Where models are compared with utterances, a trial has a direction.
    """
    names, ((enrol, trial),) = number_names([trials.frame])
    if not np.isin(trial, enrol).any():
        return False
    sample = slice(None, None, 1 + len(enrol) // _SAMPLE)
    turned = (trial[sample] * len(names) + enrol[sample])[enrol[sample] != trial[sample]]
    return not np.isin(enrol * len(names) + trial, turned).any()


class Speakers(NamedTuple):
    """The speakers of both sides ``(2, P)`` of the trials of each condition, and their names.

    ``is_listed``: a list names them; otherwise target trials tell them, and ``note`` says so, or why they are unknown.
    """

    sides: tuple[Array, ...] = ()
    names: tuple[str, ...] = ()
    is_listed: bool = False
    note: str = ""


def find_speakers(speaker_of: Mapping[str, str], sets: Sequence[Trials]) -> Speakers:
    """Return the speakers of trials, from a list where it names all of them, else from target trials."""
    frames = [trials.frame for trials in sets]
    if not all("trial" in frame.columns for frame in frames):
        return Speakers(note="No intervals: the scores do not name what they compare.")
    names, sides = number_names(frames)
    speaker_by_name = {speaker: speaker for speaker in speaker_of.values()} | dict(speaker_of)
    is_listed, note = all(name in speaker_by_name for name in names), ""
    if is_listed:
        kinds, number = np.unique(np.array([speaker_by_name[name] for name in names]), return_inverse=True)
    else:
        targets = [frame["is_target"].to_numpy() for frame in frames]
        first = _first_of_speaker(len(names), sides, targets)
        if (first < 0).any():
            why = f"{int((first < 0).sum()):,} names are in no target trial, as {quote(names[int(first.argmin())])}"
            return Speakers(note=f"No intervals: who speaks is not known, for {why}; --utt2spk would tell.")
        for (enrol, trial), is_target in zip(sides, targets, strict=True):
            wrong = ~is_target & (first[enrol] == first[trial])
            if wrong.any():
                pair = " and ".join(quote(names[side[int(wrong.argmax())]]) for side in (enrol, trial))
                return Speakers(note=f"No intervals: by target trials {pair} are of one speaker, by their own of two.")
        kinds, number = np.unique(np.array(names)[first], return_inverse=True)
        note = f"intervals take names that target trials join for one speaker: {len(kinds):,} speakers"
    numbered = tuple(np.stack([number[enrol], number[trial]]) for enrol, trial in sides)
    return Speakers(numbered, tuple(map(printable, kinds.tolist())), is_listed, note)


def _first_of_speaker(count: int, sides: Sequence[tuple[Array, Array]], targets: Sequence[Array]) -> Array:
    """Return the first of the names that target trials join with each name; -1 for a name in none of them."""
    joined = [(enrol[is_target], trial[is_target]) for (enrol, trial), is_target in zip(sides, targets, strict=True)]
    one, other = (np.concatenate(part) for part in zip(*joined, strict=True))
    least, before = np.arange(count), np.empty(0, dtype=np.int64)
    while not np.array_equal(least, before):
        before = least.copy()
        for side in (one, other):
            np.minimum.at(least, before[side], np.minimum(before[one], before[other]))
        least = least[least]
    return np.where(np.isin(np.arange(count), [one, other]), least, -1)


def check_anything_defined(systems: Sequence[EvaluatedSystem]) -> None:
    """Raise where no measure of privacy is defined: dashes must not pass for a result."""
    for system in systems:
        values = [system.scalar("d_ece", condition) for condition in system.report.conditions]
        if not all(math.isnan(value) for value in (*values, system.scalar("deid"), system.scalar("gvd"))):
            return
    first = systems[0]
    targets, nontargets = (
        max(condition.num_trials[kind] for condition in first.report.conditions.values()) for kind in (0, 1)
    )
    missing = explain_missing_trials(len(first.speakers), first.utterances) if first.utterances else None
    lacking = [kind for kind, count in (("target", targets), ("non-target", nontargets)) if not count]
    trials = f"There are no {' and no '.join(lacking)} trials." if lacking else ""
    reason = missing or trials or "; ".join(first.notes) or "All are NaN."
    raise InputError(f"No measure of privacy is defined. {reason}", first.name or None)


def _notes_on_sign(name: str, conditions: Mapping[str, ConditionReport], advice: str) -> list[str]:
    """Note where perfect privacy may be a wrong sign of the scores, which an attacker would turn."""
    notes = []
    for condition, report in conditions.items():
        straight, turned = (float(report.scalars[key]) for key in ("d_ece", "d_ece_reversed"))
        # Few trials disclose a little in either direction by chance.
        if turned > 2 * straight + 0.01 + 2 / max(min(report.num_trials), 1):
            where = f"{name}, {condition}" if condition else name
            notes.append(f"{where}: D_ECE is {straight:.3f} bit, but {turned:.3f} with the sign turned; {advice}")
    return notes


def _notes_on_rows(name: str, embeddings: Embeddings) -> list[str]:
    """Note embeddings of nothing, which look perfectly private."""
    notes = []
    for side, values in (("original", embeddings.original), ("protected", embeddings.protected)):
        rows, of_side = len(values), f"rows of the {side} embeddings are"
        if zero := int((values == 0).all(dim=1).sum()):
            notes.append(f"{name}: {zero:,} of {rows:,} {of_side} all zero; no voice is in them")
    return notes
