"""Attacks, DeID and G_VD beside the trials of lists: a weak attacker's number never stands alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vpmetrics._engine.headline import disclosure_sources, find_headline
from vpmetrics._engine.registry import CI_SUFFIXES, scalar, scalar_key
from vpmetrics._engine.report import EvaluatedSystem, PrivacyReport
from vpmetrics._engine.scorers import Scoring
from vpmetrics.cli.embeddings import Column
from vpmetrics.cli.evaluation import NONE_WANTED, collected_notes
from vpmetrics.cli.trials import Protocol
from vpmetrics.suite import VoicePrivacy

_OF_MATRICES = tuple(f"{key}{end}" for key in ("deid", "gvd") for end in ("", *CI_SUFFIXES))


class Attackable(NamedTuple):
    """Both sides of some lists of trials; ``group`` is what these are called among others."""

    original: Column
    protected: Column
    protocol: Protocol
    group: str = ""

    def utterances(self) -> tuple[set[str], set[str]]:
        """Return the utterances that speakers are enrolled with, and those tested."""
        trials, members = self.protocol.trials, self.protocol.members
        enrolled = trials["enrol"].unique().to_list()
        return {utterance for name in enrolled for utterance in members.get(name, ())}, set(trials["trial"].to_list())

    def missing(self) -> str:
        """Return what any attacker would have to know and nobody told; nothing where all is there."""
        references, tested = self.utterances()
        if not set(self.protocol.trials["enrol"].to_list()) <= set(self.protocol.members):
            return "no list says which utterances speakers are enrolled with"
        if references & tested:
            return f"{min(references & tested)!r} is enrolled with and tested as well"
        if unknown := (references | tested).difference(self.protocol.speaker_of):
            return f"the speaker of {min(unknown)!r} is not known"
        return _absent(self.protected, references | tested)

    def unpaired(self) -> str:
        """Return what attackers lack who learn from pairs of original and protected speech."""
        return _absent(self.original, set.union(*self.utterances()))

    def group_of(self, utterance: str) -> str:
        """Return the group of an utterance, or of its speaker."""
        groups, speaker = self.protocol.group_of, self.protocol.speaker_of[utterance]
        return self.group or groups.get(utterance, groups.get(speaker, ""))


def _absent(side: Column, utterances: set[str]) -> str:
    absent = utterances.difference(side.rows_by_name())
    return f"it needs both sides of every utterance, and {min(absent)!r} is not in {side.source}" if absent else ""


def with_attacks(
    system: EvaluatedSystem,
    sets: Sequence[Attackable],
    scoring: Scoring = "cosine",
    intervals: float | None = None,
    is_attacked: bool = True,
) -> EvaluatedSystem:
    """Return a system with what attacks on the utterances of its lists find, and with DeID and G_VD.

    Attackers learn from pairs of both sides, so that OP is attacked only where both have all utterances of the lists,
    and PP where protected speech has. Their trials are all pairs of an enrolled speaker and a tested utterance; of one
    group, where there are groups. So are the matrices of DeID and G_VD.
    """
    if missing := next(filter(None, (one.missing() for one in sets)), ""):
        noted = (*system.notes, f"no DeID and no G_VD: {missing}")
        return replace(system, notes=noted, no_attacks=missing if is_attacked else NONE_WANTED)
    unpaired = next(filter(None, (one.unpaired() for one in sets)), "")
    notes: list[str] = [*system.notes, *([f"no DeID and no G_VD: {unpaired}"] if unpaired else [])]
    if unpaired and not is_attacked:
        return replace(system, notes=tuple(notes), no_attacks=NONE_WANTED)
    attacks = "standard" if is_attacked else None
    metric = VoicePrivacy(scoring=scoring, enrolment="speaker", intervals=intervals, attacks=attacks, metrics="all")
    with collected_notes(notes):
        report, groups = _report_of_pairs(sets, metric, is_paired=not unpaired)
    where = "PP" if unpaired else "OP"
    no_attacks = "" if is_attacked else NONE_WANTED
    if is_attacked and math.isnan(float(report.scalars[scalar_key(where, "d_ece_strongest")])):
        no_attacks = "there are too few speakers"
    elif is_attacked and where != system.report.attacked:
        no_attacks = unpaired
    pairs, listed = (sum(each.conditions[where].num_trials) for each in (report, system.report))
    if pairs != listed:
        what = "attacks, DeID and G_VD are" if is_attacked else "DeID and G_VD are"
        notes += [f"{what} counted on all {pairs:,} pairs that could be trials; the list has {listed:,}"]
    merged = {name: _merge(group, groups[name]) if name in groups else group for name, group in system.groups.items()}
    return replace(_merge(system, report), groups=merged, notes=tuple(notes), no_attacks=no_attacks)


def _report_of_pairs(
    sets: Sequence[Attackable], metric: VoicePrivacy, is_paired: bool
) -> tuple[PrivacyReport, dict[str, PrivacyReport]]:
    """Report all pairs of the utterances of lists, and those of each group; an utterance of several counts in each."""
    original, protected = list[Tensor](), list[Tensor]()
    speakers, is_reference, groups = list[str](), list[bool](), list[str]()
    for one in sets:
        references, tested = one.utterances()
        names = sorted(references | tested)
        protected.append(_vectors(one.protected, names))
        original += [_vectors(one.original, names)] if is_paired else []
        speakers += [one.protocol.speaker_of[name] for name in names]
        is_reference += [name in references for name in names]
        groups += [one.group_of(name) for name in names]
    kinds, number = np.unique(np.array(groups), return_inverse=True)
    of_speaker = torch.from_numpy(np.unique(np.array(speakers), return_inverse=True)[1].astype(np.int64))
    of_group = torch.from_numpy(number.astype(np.int64)) if any(groups) else None
    rows = torch.cat(original) if is_paired else None
    metric.update(rows, torch.cat(protected), of_speaker, torch.tensor(is_reference), groups=of_group)
    report = metric.report()
    return report, dict(zip(kinds.tolist(), report.groups.values(), strict=False))


def _vectors(side: Column, utterances: Sequence[str]) -> Tensor:
    row_of = side.rows_by_name()
    return side.tensor("original").double()[[row_of[name] for name in utterances]]


def _merge(system: EvaluatedSystem, report: PrivacyReport) -> EvaluatedSystem:
    """Return a system with DeID, G_VD, checks and what belongs to attacks from another report."""
    known = system.report.conditions
    scalars = {**system.report.scalars}
    for key, value in report.scalars.items():
        of_attack = scalar(key).family == "attack" and scalar(key).condition in known
        if of_attack or (key in _OF_MATRICES and not math.isnan(float(value))):
            scalars[key] = value
    conditions = {name: replace(each, strongest=report.conditions[name].strongest) for name, each in known.items()}
    sources = [key for key in disclosure_sources(conditions, scalars) if not math.isnan(float(scalars[key]))]
    if sources:
        largest = max(sources, key=lambda key: float(scalars[key]))
        ends = [end for end in ("", *CI_SUFFIXES) if f"{largest}{end}" in scalars]
        scalars |= {f"disclosure{end}": scalars[f"{largest}{end}"] for end in ends}
    # The list alone was not attacked; the pairs of its utterances may have been.
    own = [check for check in system.report.checks if check.name != "attacks" or not report.attacks]
    checks = {check.name: check for check in (*own, *report.checks)}
    merged = replace(
        system.report,
        scalars=scalars,
        conditions=conditions,
        attacks=report.attacks,
        checks=tuple(checks.values()),
    )
    return replace(system, report=replace(merged, headline=find_headline(merged)))
