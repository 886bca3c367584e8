"""The strongest attack beside the trials of lists: a weak attacker's number never stands alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vpmetrics._report import PrivacyReport, System
from vpmetrics._scalars import key_of, scalar
from vpmetrics._trials.scorers import Scoring
from vpmetrics.app.embeddings import tensor_of
from vpmetrics.app.evaluation import attacks_of, collected_notes
from vpmetrics.app.protocol import Protocol
from vpmetrics.app.sides import Column, rows_by_name
from vpmetrics.suite import VoicePrivacy


class Attackable(NamedTuple):
    """Both sides of some lists of trials; ``group`` is what these are called among others."""

    original: Column
    protected: Column
    protocol: Protocol
    group: str = ""


class _Rows(NamedTuple):
    """The utterances of lists on both sides, ``(N, D)``, and labels of each."""

    original: Tensor | None
    protected: Tensor
    speakers: list[str]
    is_reference: list[bool]
    groups: list[str]


def with_attacks(
    system: System, sets: Sequence[Attackable], scoring: Scoring = "cosine", intervals: float | None = None
) -> System:
    """The same system with what attacks on the utterances of its lists find.

    Attackers learn from pairs of both sides, so that OP is attacked only where both have all utterances of the lists,
    and PP where protected speech has. Their trials are all pairs of an enrolled speaker and a probe; of one group,
    where there are groups.
    """
    unknown, unpaired = (next(filter(None, map(why, sets)), "") for why in (_unknown, _unpaired))
    if unknown:
        return replace(system, unattacked=unknown)
    rows = _joined([_rows_of(one, paired=not unpaired) for one in sets])
    notes, metric = list(system.notes), VoicePrivacy(scoring=scoring, enrolment="speaker", intervals=intervals)
    with collected_notes(notes):
        found, group_names = _attack(rows, metric)
    where = "PP" if unpaired else "OP"
    if math.isnan(float(found.scalars[key_of(where, "d_ece_strongest")])):
        return replace(system, notes=tuple(notes), unattacked="there are too few speakers")
    all_pairs, listed = (sum(report.conditions[where].trials) for report in (found, system.report))
    if all_pairs != listed:
        notes += [f"attacks are counted on all {all_pairs:,} pairs that could be trials; the list has {listed:,}"]
    attacks, of_group = attacks_of(metric), dict(zip(group_names, found.groups.values(), strict=True))
    groups = {name: _merged(group, of_group[name], attacks) for name, group in system.groups.items()}
    missed = unpaired if where != system.report.attacked else ""
    return replace(_merged(system, found, attacks), groups=groups, notes=tuple(notes), unattacked=missed)


def _attack(rows: _Rows, metric: VoicePrivacy) -> tuple[PrivacyReport, tuple[str, ...]]:
    """What attacks find in all rows and in those of each group, whose names are given in order."""
    groups, names = _numbered(rows.groups) if any(rows.groups) else (None, ())
    speakers, _ = _numbered(rows.speakers)
    metric.update(rows.original, rows.protected, speakers, torch.tensor(rows.is_reference), groups=groups)
    return metric.report(), names


def _merged(system: System, found: PrivacyReport, attacks: tuple[tuple[str, str], ...]) -> System:
    of_attacks = {
        key: value
        for key, value in found.scalars.items()
        if scalar(key).family == "attack" and scalar(key).condition in system.report.conditions
    }
    conditions = {
        name: replace(known, strongest=found.conditions[name].strongest)
        for name, known in system.report.conditions.items()
    }
    report = system.report._replace(
        scalars={**system.report.scalars, **of_attacks},
        conditions=conditions,
        attack_names=found.attack_names,
    )
    return replace(system, report=report, attacks=attacks, unattacked="")


def _unknown(one: Attackable) -> str:
    """What any attacker would have to know of some lists; nothing where all of it is there."""
    protocol = one.protocol
    enrolled, references, probes = _utterances(protocol)
    if not enrolled <= set(protocol.members):
        return "no list says which utterances speakers are enrolled with"
    if references & probes:
        return f"{min(references & probes)!r} is enrolled with and tried as well"
    if absent := (references | probes).difference(protocol.speaker_of):
        return f"the speaker of {min(absent)!r} is not known"
    return _absent(one.protected, references | probes)


def _unpaired(one: Attackable) -> str:
    """What those would have to know who learn from pairs of original and protected speech."""
    _, references, probes = _utterances(one.protocol)
    return _absent(one.original, references | probes)


def _absent(side: Column, utterances: set[str]) -> str:
    absent = utterances.difference(rows_by_name(side))
    return f"it needs both sides of every utterance, and {min(absent)!r} is not in {side.source}" if absent else ""


def _utterances(protocol: Protocol) -> tuple[set[str], set[str], set[str]]:
    """Names enrolled, the utterances they are enrolled with, and those tried."""
    names, trials = protocol.names, protocol.trials
    enrolled, probes = ({names[number] for number in np.unique(side)} for side in (trials.enrol, trials.trial))
    return enrolled, {utterance for name in enrolled for utterance in protocol.members.get(name, ())}, probes


def _rows_of(one: Attackable, paired: bool) -> _Rows:
    _, references, probes = _utterances(one.protocol)
    utterances = sorted(references | probes)
    speaker_of, group_of = one.protocol.speaker_of, one.protocol.group_of
    return _Rows(
        original=_vectors(one.original, utterances) if paired else None,
        protected=_vectors(one.protected, utterances),
        speakers=[speaker_of[name] for name in utterances],
        is_reference=[name in references for name in utterances],
        groups=[one.group or _group_of(name, group_of, speaker_of) for name in utterances],
    )


def _vectors(side: Column, utterances: Sequence[str]) -> Tensor:
    row_of = rows_by_name(side)
    return tensor_of(side, "original").double()[[row_of[name] for name in utterances]]


def _group_of(name: str, group_of: Mapping[str, str], speaker_of: Mapping[str, str]) -> str:
    return group_of.get(name, group_of.get(speaker_of[name], ""))


def _joined(parts: Sequence[_Rows]) -> _Rows:
    """Rows of all lists; an utterance of several counts in each."""
    original, protected, *labels = zip(*parts, strict=True)
    return _Rows(
        None if None in original else torch.cat(original),
        torch.cat(protected),
        *([label for part in column for label in part] for column in labels),
    )


def _numbered(labels: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    kinds, numbers = np.unique(np.array(labels), return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(kinds.tolist())
