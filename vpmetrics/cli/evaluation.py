"""Evaluated systems from embeddings or trials, with notes on what must not pass for privacy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import polars as pl
import torch
from torch import Tensor

from vpmetrics._engine.combination import combine_reports
from vpmetrics._engine.conditions import CONDITIONS
from vpmetrics._engine.registry import scalar_key
from vpmetrics._engine.report import ConditionReport, EvaluatedSystem
from vpmetrics._engine.trial_list import TrialList, report_trials
from vpmetrics.attributes import AttributeDisclosure
from vpmetrics.cli.embeddings import Embeddings
from vpmetrics.cli.errors import InputError, quote
from vpmetrics.cli.inputs import Array
from vpmetrics.cli.scores import Trials, number_names, read_attributes
from vpmetrics.cli.trials import ListedTrials, find_speakers
from vpmetrics.suite import VoicePrivacy

_SAMPLE = 10_000  # trials looked for the other way round
_SCORES_ALONE = "scores give an attacker nothing to learn from; embeddings of both sides would"
NONE_WANTED = "none was asked for"


@contextmanager
def collected_notes(notes: list[str]) -> Iterator[None]:
    """Turn warnings of the library into notes of the report."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    notes += dict.fromkeys(str(warning.message) for warning in caught if warning.category is UserWarning)


def evaluate_embeddings(
    name: str, embeddings: Embeddings, metric: VoicePrivacy, weights: Mapping[str, float] | None = None
) -> EvaluatedSystem:
    """Evaluate a system by its embeddings; one metric for several systems scores shared originals once."""
    notes = [*embeddings.notes, *_notes_on_rows(name, embeddings)]
    metric.reset()
    try:
        with collected_notes(notes):
            metric.update(
                embeddings.original,
                embeddings.protected,
                embeddings.speakers,
                embeddings.is_reference,
                embeddings.utterances,
                embeddings.sessions,
                embeddings.groups,
            )
            report = metric.report()
    except (TypeError, ValueError) as error:
        raise InputError(str(error), name or None) from None
    notes += _notes_on_sign(name, report.conditions, "an attacker who turns the sign undoes the protection")
    groups = {}
    for number, of_group in report.groups.items():
        speakers = (
            embeddings.speakers if embeddings.groups is None else embeddings.speakers[embeddings.groups == number]
        )
        group = embeddings.group_names[number]
        groups[group] = EvaluatedSystem(group, of_group, _names_of(speakers, embeddings), utterances=len(speakers))
    return EvaluatedSystem(
        name,
        report,
        _names_of(embeddings.speakers, embeddings),
        tuple(notes),
        groups=groups,
        weights=weights or {},
        utterances=len(embeddings.speakers),
        no_attacks="" if report.attacks else NONE_WANTED,
    )


def with_attributes(
    system: EvaluatedSystem, embeddings: Embeddings, path: str, confidence: float | None
) -> EvaluatedSystem:
    """Add what protected speech tells of attributes, whose labels are in a file."""
    labels = {name: embeddings.labels(label_of, path) for name, label_of in read_attributes(path).items()}
    notes, metric = list(system.notes), AttributeDisclosure(list(labels), intervals=confidence)
    with collected_notes(notes):
        metric.update(embeddings.original, embeddings.protected, embeddings.speakers, labels)
        values = metric.compute()
    kinds = {key: key for key in ("disclosure", "chance", "accuracy", "majority", "original")}
    kinds |= {"disclosure_low": "low", "disclosure_high": "high"} if confidence else {}
    found = {name: {key: float(values[f"{name}_{end}"]) for key, end in kinds.items()} for name in labels}
    return replace(system, notes=tuple(notes), attributes=found)


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
    return [leading, *systems.values()]


def _names_of(speakers: Tensor, embeddings: Embeddings) -> tuple[str, ...]:
    return tuple(embeddings.speaker_names[number] for number in speakers.unique().tolist())


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
    with collected_notes(notes):
        scored = {}
        for at, (condition, trials) in enumerate(conditions.items()):
            one_sided = bool(condition) and CONDITIONS[condition].is_one_sided
            within = one_sided and bool(speakers.sides) and _is_unordered(trials)
            scored[condition] = scored_trials(trials, speakers.sides[at] if speakers.sides else None, within)
        other = None if fit is None else scored_trials(fit)
        report = report_trials(
            scored,
            other,
            len(speakers.names),
            similarity if speakers.is_listed else None,
            confidence if speakers.sides else None,
        )
    notes += _notes_on_sign(name, report.conditions, "scores seem to fall with likeness: negate them?")
    count = _count_names([trials.frame for trials in conditions.values()])
    return EvaluatedSystem(name, report, speakers.names, tuple(notes), utterances=count, no_attacks=_SCORES_ALONE)


def evaluate_listed(
    name: str, listed: ListedTrials, weights: Mapping[str, float], confidence: float | None = None
) -> EvaluatedSystem:
    """Evaluate a system by listed trials: all together, each group, and averaged over the groups."""

    def evaluate(called: str, trials: Mapping[str, Trials]) -> EvaluatedSystem:
        return evaluate_trials(called, trials, speaker_of=listed.speaker_of, confidence=confidence)

    system = evaluate(name, listed.of_groups(listed.pooled) if listed.pooled else listed.trials)
    groups = {group: evaluate(f"{name}, {group}", listed.of_groups([group])) for group in listed.groups}
    notes = [*listed.notes, *system.notes, *(note for group in groups.values() for note in group.notes)]
    return replace(system, notes=tuple(dict.fromkeys(notes)), groups=groups, weights=weights)


def _count_names(frames: Sequence[pl.DataFrame]) -> int:
    """Return how many names stand on either side of any trial; without names, how many trials there are."""
    if all("trial" in frame.columns for frame in frames):
        return len(number_names(frames)[0])
    return max(map(len, frames))


def scored_trials(trials: Trials, speakers: Array | None = None, within: bool = False) -> TrialList:
    """Return trials as tensors."""
    scores, is_target = (torch.tensor(trials.frame[name].to_numpy()) for name in ("score", "is_target"))
    return TrialList(scores, is_target, None if speakers is None else torch.from_numpy(speakers), within)


def _is_unordered(trials: Trials) -> bool:
    """Return whether names are compared with one another, each pair whichever way round, by a sample of the trials.

    Where models are compared with utterances, a trial has a direction.
    """
    names, ((enrol, trial),) = number_names([trials.frame])
    if not np.isin(trial, enrol).any():
        return False
    sample = slice(None, None, 1 + len(enrol) // _SAMPLE)
    turned = (trial[sample] * len(names) + enrol[sample])[enrol[sample] != trial[sample]]
    return not np.isin(enrol * len(names) + trial, turned).any()


def require_something(systems: Sequence[EvaluatedSystem]) -> None:
    """Raise where no measure of privacy is defined: dashes must not pass for a result."""
    if any(_is_defined(system) for system in systems):
        return
    first = systems[0]
    targets, nontargets = (
        max(condition.num_trials[kind] for condition in first.report.conditions.values()) for kind in (0, 1)
    )
    reasons = []
    if not targets:
        each = "every speaker has one utterance, so " if len(first.speakers) == first.utterances else ""
        reasons.append(f"{each}there are no target trials, two utterances of one speaker")
    if not nontargets:
        one = f"there is one speaker, {quote(first.speakers[0])}, so " if len(first.speakers) == 1 else ""
        reasons.append(f"{one}there are no non-target trials, utterances of two speakers")
    reason = " and ".join(reasons) or "; ".join(first.notes) or "all are NaN"
    raise InputError(f"No measure of privacy is defined: {reason}.", first.name or None)


def _is_defined(system: EvaluatedSystem) -> bool:
    keys = [scalar_key(condition, "d_ece") for condition in system.report.conditions]
    return not all(math.isnan(system.scalar(key)) for key in (*keys, "deid", "gvd"))


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
    """Note embeddings of nothing, which are perfectly private, too."""
    notes = []
    for side, values in (("original", embeddings.original), ("protected", embeddings.protected)):
        lengths = torch.linalg.vector_norm(values.double(), dim=1)
        zero, rows = int((lengths == 0).sum()), len(values)
        if zero:
            notes.append(
                f"{name}: {zero:,} of {rows:,} rows of the {side} embeddings are all zero; no voice is in them"
            )
        if zero < rows and rows > 1:
            same = int(((values.double() - values[0].double()).abs().amax(1) <= 1e-6 * lengths[0]).sum())
            if same == rows:
                notes.append(f"{name}: all {rows:,} rows of the {side} embeddings are the same; no voice is in them")
    return notes
