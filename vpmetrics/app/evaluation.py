"""Systems from what files hold, with notes on what must not pass for privacy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vpmetrics._report import ConditionReport, System, report_of_trials
from vpmetrics._scalars import key_of
from vpmetrics._trials.conditions import CONDITIONS
from vpmetrics._trials.scored import ScoredTrials
from vpmetrics.app.columns import Array
from vpmetrics.app.embeddings import Embeddings
from vpmetrics.app.errors import InputError
from vpmetrics.app.listed import Listed
from vpmetrics.app.speakers import Speakers
from vpmetrics.app.trials import Trials
from vpmetrics.suite import VoicePrivacy

_SAMPLE = 10_000  # trials looked for the other way round
_SCORES_ALONE = "scores give an attacker nothing to learn from; embeddings of both sides would"
NONE_WANTED = "none was asked for"


@contextmanager
def collected_notes(notes: list[str]) -> Iterator[None]:
    """Warnings of the library become notes of the report."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    notes += dict.fromkeys(str(warning.message) for warning in caught if warning.category is UserWarning)


def evaluate_embeddings(
    name: str, embeddings: Embeddings, metric: VoicePrivacy, weights: Mapping[str, float] | None = None
) -> System:
    """All of a system from its embeddings; one metric for several systems scores shared originals once."""
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
    attacks = attacks_of(metric)
    notes += _notes_on_sign(name, report.conditions, "an attacker who turns the sign undoes the protection")
    groups = {}
    for number, of_group in report.groups.items():
        own = embeddings.speakers if embeddings.groups is None else embeddings.speakers[embeddings.groups == number]
        group = embeddings.group_names[number]
        groups[group] = System(group, of_group, _named(own, embeddings), attacks=attacks, utterances=len(own))
    speakers, count = _named(embeddings.speakers, embeddings), len(embeddings.speakers)
    unattacked = "" if attacks else NONE_WANTED
    return System(name, report, speakers, tuple(notes), (), groups, weights or {}, attacks, count, unattacked)


def _named(speakers: Tensor, embeddings: Embeddings) -> tuple[str, ...]:
    return tuple(embeddings.speaker_names[number] for number in speakers.unique().tolist())


def attacks_of(metric: VoicePrivacy) -> tuple[tuple[str, str], ...]:
    """Name of every attack by its number, and what its attacker must have."""
    tried = metric.attacks or ()
    # Every attack has a number for each way it was fitted.
    needs = [getattr(tried[number % len(tried)], "needs", "") for number in range(len(metric.attack_names))]
    return tuple(zip(metric.attack_names, needs, strict=True))


def evaluate_trials(
    name: str,
    conditions: Mapping[str, Trials],
    fit: Trials | None = None,
    speakers: Speakers | None = None,
    similarity: str | None = None,
    confidence: float | None = None,
) -> System:
    """All of a system from its scores: ``fit`` those of another run, matrices where a list says who speaks."""
    speakers = speakers or Speakers()
    notes = [note for trials in conditions.values() for note in trials.notes]
    notes += [speakers.note] if confidence and speakers.note else []
    with collected_notes(notes):
        scored = {
            name: scored_trials(trials, speakers.speaker_of, one_sided=bool(name) and CONDITIONS[name].one_sided)
            for name, trials in conditions.items()
        }
        other = None if fit is None else scored_trials(fit)
        similarity = similarity if speakers.told else None
        confidence = None if speakers.speaker_of is None else confidence
        report = report_of_trials(scored, other, len(speakers.names), similarity, confidence)
    notes += _notes_on_sign(name, report.conditions, "scores seem to fall with likeness: negate them?")
    count = _count_names(conditions)
    return System(name, report, speakers.names, tuple(notes), utterances=count, unattacked=_SCORES_ALONE)


def evaluate_listed(name: str, listed: Listed, weights: Mapping[str, float], confidence: float | None = None) -> System:
    """All of a system from listed trials: of all together, of each group, and averaged over the groups."""
    system = evaluate_trials(name, listed.trials, speakers=listed.speakers, confidence=confidence)
    groups = {}
    for number, group in enumerate(listed.groups):
        own = {condition: group_of == number for condition, group_of in listed.group.items()}
        trials = {
            condition: Trials(*(column[own[condition]] for column in columns[:4]))
            for condition, columns in listed.trials.items()
            if own[condition].any()
        }
        speakers = listed.speakers.among(trials.values())
        groups[group] = evaluate_trials(f"{name}, {group}", trials, speakers=speakers, confidence=confidence)
    notes = [*listed.notes, *system.notes, *(note for group in groups.values() for note in group.notes)]
    return replace(system, notes=tuple(dict.fromkeys(notes)), groups=groups, weights=weights)


def _count_names(conditions: Mapping[str, Trials]) -> int:
    """How many names there are on either side of any trial."""
    seen = [np.bincount(side) > 0 for trials in conditions.values() for side in (trials.enrol, trials.trial)]
    longest = max(map(len, seen))
    return int(np.any([np.pad(one, (0, longest - len(one))) for one in seen], axis=0).sum())


def scored_trials(trials: Trials, speaker_of: Array | None = None, one_sided: bool = False) -> ScoredTrials:
    """Trials as tensors."""
    scores, is_target = torch.from_numpy(trials.scores), torch.from_numpy(trials.is_target)
    if speaker_of is None:
        return ScoredTrials(scores, is_target)
    sides = [torch.from_numpy(speaker_of[side]) for side in (trials.enrol, trials.trial)]
    return ScoredTrials(scores, is_target, torch.stack(sides), one_sided and _in_one_order(trials))


def _in_one_order(trials: Trials) -> bool:
    """Whether names are compared with one another, each pair whichever way round, as far as a sample of them tells.

    Where models are compared with utterances, a trial has a direction.
    """
    most = 1 + max(trials.enrol.max(initial=0), trials.trial.max(initial=0))
    enrolled = np.zeros(most, dtype=bool)
    enrolled[trials.enrol] = True
    if not enrolled[trials.trial].any():
        return False
    some = slice(None, None, 1 + len(trials.enrol) // _SAMPLE)
    turned = trials.trial[some] * most + trials.enrol[some]
    other = turned[trials.enrol[some] != trials.trial[some]]
    return not np.isin(trials.enrol * most + trials.trial, other).any()


def require_something(systems: Sequence[System]) -> None:
    """Refuse files of which no measure of privacy is defined: dashes must not pass for a result."""
    if any(_says_something(system) for system in systems):
        return
    first = systems[0]
    targets, nontargets = (
        max(condition.trials[kind] for condition in first.report.conditions.values()) for kind in (0, 1)
    )
    reasons = []
    if not targets:
        reasons.append("there are no target trials, two utterances of one speaker")
    if not nontargets:
        reasons.append("there are no non-target trials, utterances of two speakers")
    raise InputError(
        f"No measure of privacy is defined: {' and '.join(reasons) or '; '.join(first.notes) or 'all are NaN'}.",
        first.name or None,
    )


def _says_something(system: System) -> bool:
    keys = [key_of(condition, "d_ece") for condition in system.report.conditions]
    return not all(math.isnan(system.scalar(key)) for key in (*keys, "deid", "gvd"))


def _notes_on_sign(name: str, conditions: Mapping[str, ConditionReport], advice: str) -> list[str]:
    """Perfect privacy may be but a wrong sign of the scores, which an attacker would turn."""
    notes = []
    for condition, known in conditions.items():
        straight, turned = (float(known.scalars[key]) for key in ("d_ece", "d_ece_reversed"))
        # Few trials disclose a little in either direction by chance.
        if turned > 2 * straight + 0.01 + 2 / max(min(known.trials), 1):
            where = f"{name}, {condition}" if condition else name
            notes.append(f"{where}: D_ECE is {straight:.3f} bit, but {turned:.3f} with the sign turned; {advice}")
    return notes


def _notes_on_rows(name: str, embeddings: Embeddings) -> list[str]:
    """Embeddings of nothing are perfectly private, too."""
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
