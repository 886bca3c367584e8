"""The strongest attack beside the trials of a list: a weak attacker's number never stands alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from vpmetrics._report import System
from vpmetrics._scalars import scalar
from vpmetrics._trials.scorers import Scoring
from vpmetrics.app.embeddings import Embeddings, tensor_of
from vpmetrics.app.evaluation import evaluate_embeddings
from vpmetrics.app.protocol import Protocol
from vpmetrics.app.sides import Column, rows_by_name
from vpmetrics.suite import VoicePrivacy


def with_attacks(
    system: System, original: Column, protected: Column, protocol: Protocol, scoring: Scoring = "cosine"
) -> System:
    """The same system with what attacks on the utterances of its list find.

    Attackers learn from pairs of both sides, so that they are tried only where both have all utterances of the list.
    Their trials are all pairs of an enrolled speaker and a probe; of one group, where there are groups.
    """
    embeddings = _embeddings_of(original, protected, protocol)
    if embeddings is None:
        return system
    attacked = evaluate_embeddings(system.name, embeddings, VoicePrivacy(scoring=scoring, enrolment="speaker"))
    notes = system.notes
    all_pairs, listed = (sum(one.report.conditions["OP"].trials) for one in (attacked, system))
    if all_pairs != listed:
        notes += (f"attacks are counted on all {all_pairs:,} pairs that could be trials; the list has {listed:,}",)
    groups = {name: _merged(group, attacked.groups[name]) for name, group in system.groups.items()}
    return replace(_merged(system, attacked), groups=groups, notes=notes)


def _merged(system: System, attacked: System) -> System:
    found = {key: value for key, value in attacked.report.scalars.items() if scalar(key).family == "attack"}
    conditions = {
        name: replace(known, strongest=attacked.report.conditions[name].strongest)
        if name in attacked.report.conditions
        else known
        for name, known in system.report.conditions.items()
    }
    report = system.report._replace(
        scalars={**system.report.scalars, **found},
        conditions=conditions,
        attack_names=attacked.report.attack_names,
    )
    return replace(system, report=report, attacks=attacked.attacks)


def _embeddings_of(original: Column, protected: Column, protocol: Protocol) -> Embeddings | None:
    """Both sides of the utterances of a list; None where one is missing, or speakers or enrolments are not known."""
    names = protocol.names
    enrolled = {names[number] for number in np.unique(protocol.trials.enrol)}
    probes = {names[number] for number in np.unique(protocol.trials.trial)}
    references = {utterance for speaker in enrolled for utterance in protocol.members.get(speaker, ())}
    utterances = sorted(references | probes)
    sides = [rows_by_name(side) for side in (original, protected)]
    if not enrolled <= set(protocol.members) or references & probes:
        return None
    if any(name not in known for name in utterances for known in (*sides, protocol.speaker_of)):
        return None
    vectors = [
        tensor_of(side, "original").double()[[rows[name] for name in utterances]]
        for side, rows in zip((original, protected), sides, strict=True)
    ]
    speakers, speaker_names = _numbered([protocol.speaker_of[name] for name in utterances])
    is_reference = torch.tensor([name in references for name in utterances])
    before, after = vectors
    embeddings = Embeddings(before, after, speakers, speaker_names, is_reference=is_reference)
    if not protocol.group_of:
        return embeddings
    groups, group_names = _numbered([_group_of(name, protocol.group_of, protocol.speaker_of) for name in utterances])
    return embeddings._replace(groups=groups, group_names=group_names)


def _group_of(name: str, group_of: Mapping[str, str], speaker_of: Mapping[str, str]) -> str:
    return group_of.get(name, group_of.get(speaker_of[name], ""))


def _numbered(labels: list[str]) -> tuple[torch.Tensor, tuple[str, ...]]:
    kinds, numbers = np.unique(np.array(labels), return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), tuple(kinds.tolist())
