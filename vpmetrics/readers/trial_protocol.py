"""Listed trials: which pairs they are, their scores from embeddings, and attacks on their
utterances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from vpmetrics._scores.registry import CI_SUFFIXES, scalar, scalar_key
from vpmetrics._scores.scorers import Scoring, resolve_scoring
from vpmetrics._util.inputs import InputError, quote
from vpmetrics._utterances.conditions import WITHOUT_SESSIONS
from vpmetrics.readers.embeddings import NO_ORIGINALS, Column, EmbeddingFiles
from vpmetrics.readers.evaluation import NOT_REQUESTED, collect_notes
from vpmetrics.readers.options import RowOptions
from vpmetrics.readers.progress import SetDone, show_progress
from vpmetrics.readers.trial_files import Trials, index_names, read_first_column, read_key, read_map
from vpmetrics.report.checks import Check, check_missing_trials, check_shared_text
from vpmetrics.report.privacy_report import EvaluatedSystem, PrivacyReport
from vpmetrics.report.verdict import disclosure_keys, make_headline
from vpmetrics.suite import VoicePrivacy

NOT_GIVEN = Column(np.zeros((0, 0)), [], "--original, which was not given")
_PAIRS_AT_ONCE = 1 << 12  # scored at a time
_MATRIX_KEYS = tuple(f"{key}{end}" for key in ("deid", "gvd") for end in ("", *CI_SUFFIXES))


class Protocol(NamedTuple):
    """Exactly these pairs are trials: a frame of ``enrol``, ``trial``, ``is_target``.

    ``enrolment_of``: the enrolment utterances of a speaker, for those enrolled as the mean of
    several.
    """

    trials: pl.DataFrame
    enrolment_of: Mapping[str, Sequence[str]]
    speaker_of: Mapping[str, str]
    group_of: Mapping[str, str]


class ListedTrials(NamedTuple):
    """Trials of each condition, with a column ``group``, and their speakers; ``pooled_groups``
    count together.
    """

    trials: Mapping[str, Trials]
    speaker_of: Mapping[str, str]
    groups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pooled_groups: tuple[str, ...] = ()

    def select_groups(self, groups: Sequence[str]) -> dict[str, Trials]:
        """Return the trials of some groups."""
        frames = {
            key: trials.frame.filter(pl.col("group").is_in(groups))
            for key, trials in self.trials.items()
        }
        return {
            key: Trials(frame, self.trials[key].notes)
            for key, frame in frames.items()
            if len(frame)
        }


def read_protocol(
    trials: Sequence[str | Path],
    enrolled: Sequence[str],
    speaker_of: Mapping[str, str],
    group_of: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
) -> Protocol:
    """Read files of lines ``enrol trial target|nontarget``, or of other ``columns``.

    The enrolment side is an utterance, or a speaker: the mean of those utterances of ``enrolled``
    that are theirs.
    """
    frame = pl.concat([read_key(path, columns).frame for path in trials])
    where, pairs = ", ".join(map(str, trials)), frame.select("enrol", "trial")
    if copies := len(pairs) - pairs.n_unique():
        raise InputError(
            f"expected every trial once, but {copies:,} of {len(pairs):,} occur again", where
        )
    if speaker_of:
        sides = [look_up_speakers_or_null(frame[side], speaker_of) for side in ("enrol", "trial")]
        differs = ((sides[0] == sides[1]) != frame["is_target"]).fill_null(False)
        if differs.any():
            first = quote(" ".join(pairs.filter(differs).row(0)))
            got = f"{int(differs.sum()):,} do not, first {first}"
            raise InputError(
                f"expected target labels to agree with the speakers of utt2spk, but {got}", where
            )
    enrolment_of: dict[str, list[str]] = {}
    for utterance in enrolled:
        enrolment_of.setdefault(speaker_of[utterance], []).append(utterance)
    return Protocol(frame, enrolment_of, speaker_of, group_of or {})


def read_protocol_options(
    options: RowOptions, trials: Sequence[str], columns: Sequence[str] | None = None
) -> Protocol:
    """Read the trials, enrolment utterances, speakers and groups in the files that options name."""
    speaker_of = {} if options.speakers is None else read_map(options.speakers)
    group_of = {} if options.groups is None else read_map(options.groups, "utterance group")
    enrolled = [] if options.enrolls is None else read_first_column(options.enrolls)
    if unknown := [utterance for utterance in enrolled if utterance not in speaker_of]:
        got = f"none of {quote(unknown[0])} in --utt2spk" if speaker_of else "no --utt2spk"
        raise InputError(
            f"expected the speaker of every enrolment utterance, but got {got}", options.enrolls
        )
    return read_protocol(trials, enrolled, speaker_of, group_of, columns)


def read_weights_or_empty(path: str | None, groups: set[str]) -> dict[str, float]:
    """Read the weight of each group in averages; empty without a file."""
    if path is None:
        return {}
    weights = read_map(path, "group weight")
    if got := ", ".join(sorted(set(weights) ^ groups)):
        raise InputError(
            f"expected a weight for each of {', '.join(sorted(groups))}, but {got} is in one only",
            path,
        )
    try:
        return {group: float(weight) for group, weight in weights.items()}
    except ValueError as error:
        raise InputError(f"expected `group weight`, but {error}", path) from None


def read_protocol_sides(
    files: EmbeddingFiles, original_sources: Sequence[str], protected_sources: Sequence[str]
) -> tuple[Column, Column]:
    """Read the embeddings of both sides of a list of trials; the original side is empty where it is
    not given.
    """
    protected = files.read_side(protected_sources, "protected")
    if files.container is None and not original_sources:
        return NOT_GIVEN, protected
    return files.read_side(original_sources, "original"), protected


def drop_missing_trials(protocol: Protocol, sides: Sequence[Column]) -> tuple[Protocol, Check]:
    """Return the trials that every side with such utterances has embeddings for, and a check that
    counts the others.
    """
    frame, enrolment_of = protocol.trials, protocol.enrolment_of
    for column in ("enrol", "trial"):
        names = frame[column].unique().to_list()
        for rows in (side.rows_by_name() for side in sides):
            present = [
                name
                for name in names
                if all(each in rows for each in enrolment_of.get(name, [name]))
            ]
            if present:
                frame = frame.filter(pl.col(column).is_in(present))
    check = check_missing_trials(len(protocol.trials) - len(frame), len(protocol.trials))
    return protocol._replace(trials=frame), check


def score_protocol(
    original: Column, protected: Column, protocol: Protocol, scoring: Scoring
) -> ListedTrials:
    """Score the trials of a protocol in every condition that both sides have the utterances for."""
    frame = protocol.trials
    names, (pair,) = index_names([frame])
    (enrolled, rows), (tested, columns) = (np.unique(side, return_inverse=True) for side in pair)
    enrolled_names, tested_names = ([names[at] for at in numbers] for numbers in (enrolled, tested))
    sides = {"O": original, "P": protected}
    references = {
        key: _average_enrolment(side, protocol, enrolled_names) for key, side in sides.items()
    }
    probes = {key: _find_vectors_if_any(side, tested_names, "trial") for key, side in sides.items()}
    group = _find_trial_groups(protocol)
    across = group.null_count() if protocol.group_of else 0
    notes: tuple[str, ...] = (
        (f"{across:,} trials across groups count in none of them",) if across else ()
    )
    if original is NOT_GIVEN:
        notes += (NO_ORIGINALS,)
    trials = {}
    for condition in WITHOUT_SESSIONS:
        if "O" in condition and original is NOT_GIVEN:
            continue
        left, right = references[condition[0]], probes[condition[1]]
        if left is None or right is None:
            what, key = ("enrolment", condition[0]) if left is None else ("trial", condition[1])
            notes += (
                f"{condition} left out: none of the {what} utterances is in {sides[key].source}",
            )
            continue
        with show_progress(f"scoring {condition}", len(frame)) as set_done:
            scores = score_pairs(
                left, right, torch.from_numpy(rows), torch.from_numpy(columns), scoring, set_done
            )
        if scores.isnan().any():
            first = " and ".join(
                frame.select("enrol", "trial").row(int(scores.isnan().nonzero()[0]))
            )
            raise InputError(
                f"Expected numbers as scores, but got NaN in {condition}, first for {quote(first)}."
            )
        trials[condition] = Trials(frame.with_columns(score=pl.Series(scores.numpy()), group=group))
    if not trials:
        raise InputError(f"Nothing to score: {'; '.join(notes)}.")
    return ListedTrials(
        trials, protocol.speaker_of, tuple(group.drop_nulls().unique().sort()), notes
    )


def score_pairs(
    left: Tensor,
    right: Tensor,
    rows: Tensor,
    columns: Tensor,
    scoring: Scoring,
    set_done: SetDone = lambda _: None,
) -> Tensor:
    """Return the scores ``(P,)`` of pairs of rows of ``left (A, D)`` and of ``right (B, D)``."""
    scorer = resolve_scoring(scoring)
    left, right = scorer.prepare(left), scorer.prepare(right)
    scores, done = left.new_empty(len(rows)), 0
    # by row, so that some pairs have few rows in all
    for pairs in rows.argsort(stable=True).split(_PAIRS_AT_ONCE):
        (some_rows, row), (some_columns, column) = (
            index[pairs].unique(return_inverse=True) for index in (rows, columns)
        )
        scores[pairs] = scorer.compare(left[some_rows], right[some_columns])[row, column]
        done += len(pairs)
        set_done(done)
    return scores


def _average_enrolment(side: Column, protocol: Protocol, names: Sequence[str]) -> Tensor | None:
    """Return the vector of each name ``(E, D)``, of an utterance or a speaker's mean; None if none
    is on this side.
    """
    row_of = side.rows_by_name()
    enrolments = [
        [name] if name in row_of else protocol.enrolment_of.get(name, [name]) for name in names
    ]
    vectors = _find_vectors_if_any(
        side, [utterance for each in enrolments for utterance in each], "enrolment"
    )
    if vectors is None:
        return None
    return torch.stack(
        [of_name.mean(0) for of_name in vectors.split([len(each) for each in enrolments])]
    )


def _find_vectors_if_any(side: Column, names: Sequence[str], role: str) -> Tensor | None:
    """Return the vectors of utterances ``(N, D)``; None if a side has none of them; raise if it
    lacks some.
    """
    row_of = side.rows_by_name()
    missing = [name for name in names if name not in row_of]
    if len(missing) == len(names):
        return None
    if missing:
        message = (
            f"expected all {role} utterances, but {len(missing):,} of {len(names):,} are missing"
        )
        hint = "; --enrolls says what a speaker is enrolled with" if role == "enrolment" else ""
        hint += "; --partial leaves such trials out"
        raise InputError(f"{message}, first {quote(missing[0])}{hint}", side.source)
    return side.to_tensor(role, names).double()


def _find_trial_groups(protocol: Protocol) -> pl.Series:
    """Return the group of every trial, by utterance or speaker; null where the groups of both sides
    differ.
    """
    frame, group_of = protocol.trials, protocol.group_of
    if not group_of:
        return pl.Series([None] * len(frame), dtype=pl.String)
    by_name = {
        name: group_of[who] for name, who in protocol.speaker_of.items() if who in group_of
    } | dict(group_of)
    enrol, trial = (
        frame[side].replace_strict(by_name, default=None, return_dtype=pl.String)
        for side in ("enrol", "trial")
    )
    if trial.is_null().any():
        name = quote(frame["trial"][int(trial.is_null().arg_max() or 0)])
        raise InputError(
            f"Expected the group of every trial utterance in --groups, but got none for {name}."
        )
    return pl.select(pl.when((enrol == trial).fill_null(True)).then(trial)).to_series()


def look_up_speakers_or_null(names: pl.Series, speaker_of: Mapping[str, str]) -> pl.Series:
    """Return the speaker of every name, an utterance or a speaker; null where ``speaker_of`` has
    neither.
    """
    by_name = {speaker: speaker for speaker in speaker_of.values()} | dict(speaker_of)
    old, new = (
        pl.Series(texts, dtype=pl.String) for texts in (list(by_name), list(by_name.values()))
    )
    return names.replace_strict(old, new, default=None)


class TrialEmbeddings(NamedTuple):
    """Both sides of some lists of trials; ``group`` is the name of these lists where a system has
    several.

    ``notes`` say how they were read.
    """

    original: Column
    protected: Column
    protocol: Protocol
    group: str = ""
    notes: tuple[str, ...] = ()

    def list_utterances(self) -> tuple[set[str], set[str]]:
        """Return the utterances that speakers are enrolled with, and those tested."""
        trials, enrolment_of = self.protocol.trials, self.protocol.enrolment_of
        references = {
            utterance
            for name in trials["enrol"].unique()
            for utterance in enrolment_of.get(name, ())
        }
        return references, set(trials["trial"].to_list())

    def explain_if_unattackable(self) -> str:
        """Return why no attack can be fitted; an empty text if one can."""
        references, tested = self.list_utterances()
        if not set(self.protocol.trials["enrol"].to_list()) <= set(self.protocol.enrolment_of):
            return "no list names the enrolment utterances of speakers"
        if references & tested:
            return f"{min(references & tested)!r} is enrolled with and tested as well"
        if unknown := (references | tested).difference(self.protocol.speaker_of):
            return f"the speaker of {min(unknown)!r} is not known"
        return self.describe_absent_utterance(self.protected)

    def describe_absent_utterance(self, side: Column) -> str:
        """Return a sentence that names one utterance missing on this side; empty if none is
        missing.
        """
        absent = set.union(*self.list_utterances()).difference(side.rows_by_name())
        return (
            f"it needs both sides of every utterance, and {min(absent)!r} is not in {side.source}"
            if absent
            else ""
        )


def add_attacks_and_matrices(
    system: EvaluatedSystem,
    embeddings: Sequence[TrialEmbeddings],
    scoring: Scoring,
    confidence: float | None,
    is_attacked: bool,
) -> EvaluatedSystem:
    """Return a system with the results of attacks on its listed utterances, and with DeID and G_VD.

    OP is attacked only if both sides have all listed utterances, and PP only if the protected side
    has. Attacks, DeID and G_VD use all pairs of an enrolled speaker and a tested utterance, within
    a group where there are groups.
    """
    if not embeddings:
        return system
    missing = next(filter(None, (one.explain_if_unattackable() for one in embeddings)), "")
    unpaired = missing or next(
        filter(None, (one.describe_absent_utterance(one.original) for one in embeddings)), ""
    )
    notes = [*system.notes]
    if unpaired and embeddings[0].original is not NOT_GIVEN:
        notes.append(f"no DeID and no G_VD: {unpaired}")
    no_attacks = missing if is_attacked else NOT_REQUESTED
    if missing or (unpaired and not is_attacked):
        return replace(system, notes=tuple(notes), no_attacks=no_attacks)
    attacks = "standard" if is_attacked else None
    metric = VoicePrivacy(
        scoring=scoring, enrolment="speaker", intervals=confidence, attacks=attacks, metrics="all"
    )
    with show_progress(f"attacking {system.name}"), collect_notes(notes):
        report, groups = _report_all_pairs(embeddings, metric, has_original=not unpaired)
    condition = "PP" if unpaired else "OP"
    if is_attacked and math.isnan(float(report.scalars[scalar_key(condition, "d_ece_strongest")])):
        no_attacks = "there are too few speakers"
    elif is_attacked and condition != system.report.main_condition:
        no_attacks = unpaired
    pairs, listed = (sum(each.conditions[condition].num_trials) for each in (report, system.report))
    if pairs != listed:
        what = "attacks, DeID and G_VD are" if is_attacked else "DeID and G_VD are"
        notes.append(
            f"{what} counted on all {pairs:,} pairs that could be trials; the list has {listed:,}"
        )
    merged = {
        name: _merge_reports(group, groups[name]) if name in groups else group
        for name, group in system.groups.items()
    }
    return replace(
        _merge_reports(system, report), groups=merged, notes=tuple(notes), no_attacks=no_attacks
    )


def _report_all_pairs(
    embeddings: Sequence[TrialEmbeddings], metric: VoicePrivacy, has_original: bool
) -> tuple[PrivacyReport, dict[str, PrivacyReport]]:
    """Report all pairs of the utterances of lists, and those of each group; an utterance of several
    counts in each.
    """
    original, protected = list[Tensor](), list[Tensor]()
    utterances, speakers, groups = list[str](), list[str](), list[str]()
    is_reference = list[bool]()
    for one in embeddings:
        references, tested = one.list_utterances()
        names, speaker_of, group_of = (
            sorted(references | tested),
            one.protocol.speaker_of,
            one.protocol.group_of,
        )
        protected.append(one.protected.to_tensor("protected", names).double())
        original += [one.original.to_tensor("original", names).double()] if has_original else []
        utterances += names
        speakers += [speaker_of[name] for name in names]
        is_reference += [name in references for name in names]
        groups += [
            one.group or group_of.get(name, group_of.get(speaker_of[name], "")) for name in names
        ]
    _, speaker_index = np.unique(np.array(speakers), return_inverse=True)
    group_names, group_index = np.unique(np.array(groups), return_inverse=True)
    metric.update(
        torch.cat(original) if has_original else None,
        torch.cat(protected),
        torch.from_numpy(speaker_index),
        torch.tensor(is_reference),
        groups=torch.from_numpy(group_index) if any(groups) else None,
    )
    report = metric.report()
    text_check = check_shared_text(utterances, speaker_index.tolist(), is_reference)
    if text_check is not None:
        report = replace(report, checks=(*report.checks, text_check))
    return report, dict(zip(group_names.tolist(), report.groups.values(), strict=False))


def _merge_reports(system: EvaluatedSystem, report: PrivacyReport) -> EvaluatedSystem:
    """Return a system with DeID, G_VD, checks and the results of attacks from another report."""
    reports = system.report.conditions
    scalars = {**system.report.scalars}
    for key, value in report.scalars.items():
        of_attack = scalar(key).family == "attack" and scalar(key).condition in reports
        if of_attack or (key in _MATRIX_KEYS and not math.isnan(float(value))):
            scalars[key] = value
    conditions = {
        name: replace(each, strongest=report.conditions[name].strongest)
        for name, each in reports.items()
    }
    sources = [
        key for key in disclosure_keys(conditions, scalars) if not math.isnan(float(scalars[key]))
    ]
    if sources:
        largest = max(sources, key=lambda key: float(scalars[key]))
        ends = [end for end in ("", *CI_SUFFIXES) if f"{largest}{end}" in scalars]
        scalars |= {f"disclosure{end}": scalars[f"{largest}{end}"] for end in ends}
    # The list alone was not attacked; the pairs of its utterances may have been.
    listed = [
        check for check in system.report.checks if check.name != "attacks" or not report.attacks
    ]
    checks = tuple({check.name: check for check in (*listed, *report.checks)}.values())
    merged = replace(
        system.report,
        scalars=scalars,
        conditions=conditions,
        attacks=report.attacks,
        checks=checks,
        risks=report.risks or system.report.risks,
        shorter_risks=report.shorter_risks,
        worst_speaker=report.worst_speaker,
        speakers=report.speakers,
        speaker_names=report.speaker_names,
    )
    return replace(system, report=replace(merged, headline=make_headline(merged)))
