"""Listed trials: their pairs, their scores from embeddings, and attacks on their utterances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

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
from vpmetrics.report.privacy_report import ConditionReport, EvaluatedSystem, PrivacyReport
from vpmetrics.report.verdict import disclosure_keys, make_headline
from vpmetrics.suite import VoicePrivacy

NOT_GIVEN = Column(np.zeros((0, 0)), [], "--original, which was not given")
_PAIRS_AT_ONCE = 1 << 12  # scored at a time
_MATRIX_KEYS = (
    "deid",
    *(f"deid{suffix}" for suffix in CI_SUFFIXES),
    "gvd",
    *(f"gvd{suffix}" for suffix in CI_SUFFIXES),
)


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
    """Trials of each condition, with a column ``group``, and their speakers.

    ``pooled_groups`` count together.
    """

    trials: Mapping[str, Trials]
    speaker_of: Mapping[str, str]
    groups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pooled_groups: tuple[str, ...] = ()

    def select_groups(self, groups: Sequence[str]) -> dict[str, Trials]:
        """Return the trials of some groups, of the conditions that have any."""
        selected: dict[str, Trials] = {}
        for condition, trials in self.trials.items():
            frame = trials.frame.filter(pl.col("group").is_in(groups))
            if len(frame):
                selected[condition] = Trials(frame, trials.notes)
        return selected


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
    source = ", ".join(str(path) for path in trials)
    pairs = frame.select("enrol", "trial")
    num_repeated = len(pairs) - pairs.n_unique()
    if num_repeated:
        raise InputError(
            f"expected every trial once, but {num_repeated:,} of {len(pairs):,} occur again", source
        )
    if speaker_of:
        enrol_speakers = look_up_speakers_or_null(frame["enrol"], speaker_of)
        trial_speakers = look_up_speakers_or_null(frame["trial"], speaker_of)
        is_same_speaker = enrol_speakers == trial_speakers
        is_wrong = (is_same_speaker != frame["is_target"]).fill_null(False)
        if is_wrong.any():
            first_pair = quote(" ".join(pairs.filter(is_wrong).row(0)))
            got = f"{int(is_wrong.sum()):,} do not, first {first_pair}"
            raise InputError(
                f"expected target labels to agree with the speakers of utt2spk, but {got}", source
            )
    enrolment_of: dict[str, list[str]] = {}
    for utterance in enrolled:
        enrolment_of.setdefault(speaker_of[utterance], []).append(utterance)
    return Protocol(frame, enrolment_of, speaker_of, group_of or {})


def read_protocol_options(
    options: RowOptions, trials: Sequence[str], columns: Sequence[str] | None = None
) -> Protocol:
    """Read the trials, enrolment utterances, speakers and groups in the files that options name."""
    if options.speakers is None:
        speaker_of = {}
    else:
        speaker_of = read_map(options.speakers)
    if options.groups is None:
        group_of = {}
    else:
        group_of = read_map(options.groups, "utterance group")
    if options.enrolls is None:
        enrolled = []
    else:
        enrolled = read_first_column(options.enrolls)
    unknown = [utterance for utterance in enrolled if utterance not in speaker_of]
    if unknown:
        got = "no --utt2spk"
        if speaker_of:
            got = f"none of {quote(unknown[0])} in --utt2spk"
        raise InputError(
            f"expected the speaker of every enrolment utterance, but got {got}", options.enrolls
        )
    return read_protocol(trials, enrolled, speaker_of, group_of, columns)


def read_weights_or_empty(path: str | None, groups: set[str]) -> dict[str, float]:
    """Read the weight of each group in averages; empty without a file."""
    if path is None:
        return {}
    weights = read_map(path, "group weight")
    in_one_only = set(weights) ^ groups
    if in_one_only:
        got = f"{', '.join(sorted(in_one_only))} is in one only"
        raise InputError(
            f"expected a weight for each of {', '.join(sorted(groups))}, but {got}", path
        )
    try:
        return {group: float(weight) for group, weight in weights.items()}
    except ValueError as error:
        raise InputError(f"expected `group weight`, but {error}", path) from None


def read_protocol_sides(
    files: EmbeddingFiles, original_sources: Sequence[str], protected_sources: Sequence[str]
) -> tuple[Column, Column]:
    """Read the embeddings of both sides of a list of trials; a missing original side is empty."""
    protected = files.read_side(protected_sources, "protected")
    if files.container is None and not original_sources:
        return NOT_GIVEN, protected
    return files.read_side(original_sources, "original"), protected


def drop_missing_trials(protocol: Protocol, sides: Sequence[Column]) -> tuple[Protocol, Check]:
    """Return the trials with embeddings on all sides, and a check that counts the others.

    A side without any of the utterances does not count.
    """
    frame = protocol.trials
    for column in ("enrol", "trial"):
        utterances_of: dict[str, Sequence[str]] = {}
        for name in frame[column].unique().to_list():
            utterances_of[name] = protocol.enrolment_of.get(name, [name])
        for side in sides:
            rows = side.rows_by_name()
            present = [name for name in utterances_of if rows.keys() >= set(utterances_of[name])]
            if present:
                frame = frame.filter(pl.col(column).is_in(present))
    num_trials = len(protocol.trials)
    check = check_missing_trials(num_trials - len(frame), num_trials)
    return protocol._replace(trials=frame), check


class _ListedPairs(NamedTuple):
    """The pairs of a list as indices of the names of each side."""

    enrolled_names: list[str]
    tested_names: list[str]
    enrolled_index: Tensor  # (P,)
    tested_index: Tensor  # (P,)


def score_protocol(
    original: Column, protected: Column, protocol: Protocol, scoring: Scoring
) -> ListedTrials:
    """Score the trials of a protocol in every condition that both sides have the utterances for."""
    frame = protocol.trials
    pairs = _index_pairs(frame)
    sides = {"O": original, "P": protected}
    references: dict[str, Tensor | None] = {}
    probes: dict[str, Tensor | None] = {}
    for letter, side in sides.items():
        references[letter] = _average_enrolment(side, protocol, pairs.enrolled_names)
        probes[letter] = _find_vectors_if_any(side, pairs.tested_names, "trial")
    group = _find_trial_groups(protocol)
    notes: list[str] = []
    num_across = group.null_count() if protocol.group_of else 0
    if num_across:
        notes.append(f"{num_across:,} trials across groups count in none of them")
    if original is NOT_GIVEN:
        notes.append(NO_ORIGINALS)
    trials: dict[str, Trials] = {}
    for condition in WITHOUT_SESSIONS:
        if "O" in condition and original is NOT_GIVEN:
            continue
        enrolment_letter = condition[0]
        test_letter = condition[1]
        vectors = references[enrolment_letter]
        tests = probes[test_letter]
        if vectors is None or tests is None:
            what = "enrolment" if vectors is None else "trial"
            letter = enrolment_letter if vectors is None else test_letter
            source = sides[letter].source
            notes.append(f"{condition} left out: none of the {what} utterances is in {source}")
            continue
        with show_progress(f"scoring {condition}", len(frame)) as set_done:
            scores = score_pairs(
                vectors, tests, pairs.enrolled_index, pairs.tested_index, scoring, set_done
            )
        _check_no_score_is_nan(scores, frame, condition)
        trials[condition] = Trials(frame.with_columns(score=pl.Series(scores.numpy()), group=group))
    if not trials:
        raise InputError(f"Nothing to score: {'; '.join(notes)}.")
    group_names = tuple(group.drop_nulls().unique().sort())
    return ListedTrials(trials, protocol.speaker_of, group_names, tuple(notes))


def _index_pairs(frame: pl.DataFrame) -> _ListedPairs:
    names, (pair,) = index_names([frame])
    enrolled, enrolled_index = np.unique(pair[0], return_inverse=True)
    tested, tested_index = np.unique(pair[1], return_inverse=True)
    return _ListedPairs(
        [names[index] for index in enrolled],
        [names[index] for index in tested],
        torch.from_numpy(enrolled_index),
        torch.from_numpy(tested_index),
    )


def _check_no_score_is_nan(scores: Tensor, frame: pl.DataFrame, condition: str) -> None:
    is_nan = scores.isnan()
    if is_nan.any():
        names = frame.select("enrol", "trial").row(int(is_nan.nonzero()[0]))
        raise InputError(
            f"Expected numbers as scores, but got NaN in {condition}, first for"
            f" {quote(' and '.join(names))}."
        )


def score_pairs(
    enrolment: Tensor,
    tests: Tensor,
    enrolled_index: Tensor,
    tested_index: Tensor,
    scoring: Scoring,
    set_done: SetDone = lambda _: None,
) -> Tensor:
    """Return the scores ``(P,)`` of pairs of rows of ``enrolment (A, D)`` and ``tests (B, D)``."""
    scorer = resolve_scoring(scoring)
    enrolment = scorer.prepare(enrolment)
    tests = scorer.prepare(tests)
    scores = enrolment.new_empty(len(enrolled_index))
    num_done = 0
    # by row, so that a few thousand pairs have few rows in all
    for pairs in enrolled_index.argsort(stable=True).split(_PAIRS_AT_ONCE):
        enrolled_rows, row = enrolled_index[pairs].unique(return_inverse=True)
        tested_rows, column = tested_index[pairs].unique(return_inverse=True)
        block = scorer.compare(enrolment[enrolled_rows], tests[tested_rows])
        scores[pairs] = block[row, column]
        num_done += len(pairs)
        set_done(num_done)
    return scores


def _average_enrolment(side: Column, protocol: Protocol, names: Sequence[str]) -> Tensor | None:
    """Return the vector of each name ``(E, D)``, of an utterance or a speaker's mean.

    It is None if none is on this side.
    """
    row_of = side.rows_by_name()
    utterances: list[str] = []
    num_utterances: list[int] = []
    for name in names:
        utterances_of_name: Sequence[str] = [name]
        if name not in row_of:
            utterances_of_name = protocol.enrolment_of.get(name, [name])
        utterances += utterances_of_name
        num_utterances.append(len(utterances_of_name))
    vectors = _find_vectors_if_any(side, utterances, "enrolment")
    if vectors is None:
        return None
    return torch.stack(
        [vectors_of_name.mean(0) for vectors_of_name in vectors.split(num_utterances)]
    )


def _find_vectors_if_any(side: Column, names: Sequence[str], role: str) -> Tensor | None:
    """Return vectors of utterances ``(N, D)``, None if a side has none; raise if it lacks some."""
    row_of = side.rows_by_name()
    missing = [name for name in names if name not in row_of]
    if len(missing) == len(names):
        return None
    if missing:
        message = (
            f"expected all {role} utterances, but {len(missing):,} of {len(names):,} are missing,"
            f" first {quote(missing[0])}"
        )
        if role == "enrolment":
            message += "; --enrolls says what a speaker is enrolled with"
        raise InputError(f"{message}; --partial leaves such trials out", side.source)
    return side.to_tensor(role, names).double()


def _find_trial_groups(protocol: Protocol) -> pl.Series:
    """Return the group of every trial, by utterance or speaker; null where both sides differ."""
    frame = protocol.trials
    group_of = protocol.group_of
    if not group_of:
        return pl.Series([None] * len(frame), dtype=pl.String)
    group_of_name: dict[str, str] = {}
    for name, speaker in protocol.speaker_of.items():
        if speaker in group_of:
            group_of_name[name] = group_of[speaker]
    group_of_name |= group_of
    options: dict[str, Any] = {"default": None, "return_dtype": pl.String}
    enrol_group = frame["enrol"].replace_strict(group_of_name, **options)
    trial_group = frame["trial"].replace_strict(group_of_name, **options)
    if trial_group.is_null().any():
        row = int(trial_group.is_null().arg_max() or 0)
        name = quote(frame["trial"][row])
        raise InputError(
            f"Expected the group of every trial utterance in --groups, but got none for {name}."
        )
    is_one_group = (enrol_group == trial_group).fill_null(True)
    return pl.select(pl.when(is_one_group).then(trial_group)).to_series()


def look_up_speakers_or_null(names: pl.Series, speaker_of: Mapping[str, str]) -> pl.Series:
    """Return the speaker of every name, an utterance or a speaker; null for any other name."""
    by_name = {speaker: speaker for speaker in speaker_of.values()} | dict(speaker_of)
    known_names = pl.Series(list(by_name), dtype=pl.String)
    speakers = pl.Series(list(by_name.values()), dtype=pl.String)
    return names.replace_strict(known_names, speakers, default=None)


class TrialEmbeddings(NamedTuple):
    """Both sides of some lists of trials; ``notes`` describe how they were read.

    ``group`` is the name of these lists where a system has several.
    """

    original: Column
    protected: Column
    protocol: Protocol
    group: str = ""
    notes: tuple[str, ...] = ()

    def list_utterances(self) -> tuple[set[str], set[str]]:
        """Return the utterances that speakers are enrolled with, and those tested."""
        trials = self.protocol.trials
        references: set[str] = set()
        for name in trials["enrol"].unique():
            references.update(self.protocol.enrolment_of.get(name, ()))
        return references, set(trials["trial"].to_list())

    def explain_if_unattackable(self) -> str:
        """Return why no attack can be fitted; an empty text if one can."""
        references, tested = self.list_utterances()
        if not set(self.protocol.trials["enrol"].to_list()) <= set(self.protocol.enrolment_of):
            return "no list names the enrolment utterances of speakers"
        shared = references & tested
        if shared:
            return f"{min(shared)!r} is enrolled with and tested as well"
        unknown = (references | tested).difference(self.protocol.speaker_of)
        if unknown:
            return f"the speaker of {min(unknown)!r} is not known"
        return self.describe_absent_utterance(self.protected)

    def describe_absent_utterance(self, side: Column) -> str:
        """Return a sentence that names one utterance missing on this side; empty if none is."""
        references, tested = self.list_utterances()
        absent = (references | tested).difference(side.rows_by_name())
        if not absent:
            return ""
        return (
            f"it needs both sides of every utterance, and {min(absent)!r} is not in {side.source}"
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
    missing = _first_text([lists.explain_if_unattackable() for lists in embeddings])
    unpaired = missing
    if not missing:
        unpaired = _first_text(
            [lists.describe_absent_utterance(lists.original) for lists in embeddings]
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
    warned: list[str] = []
    with show_progress(f"attacking {system.name}"), collect_notes(warned):
        report, groups = _report_all_pairs(embeddings, metric, has_original=not unpaired)
    # Without originals, there is a note already that OO and OP have no trials.
    notes += [text for text in warned if not (unpaired and text.startswith("There are no trials"))]
    condition = "PP" if unpaired else "OP"
    if is_attacked and math.isnan(float(report.scalars[scalar_key(condition, "d_ece_strongest")])):
        no_attacks = "there are too few speakers"
    elif is_attacked and condition != system.report.main_condition:
        no_attacks = unpaired
    num_pairs = sum(report.conditions[condition].num_trials)
    num_listed = sum(system.report.conditions[condition].num_trials)
    if num_pairs != num_listed:
        measures = "attacks, DeID and G_VD" if is_attacked else "DeID and G_VD"
        notes.append(
            f"{measures} are counted on all {num_pairs:,} pairs that could be trials; the list has"
            f" {num_listed:,}"
        )
    merged_groups = dict(system.groups)
    for name in system.groups:
        if name in groups:
            merged_groups[name] = _merge_reports(system.groups[name], groups[name])
    return replace(
        _merge_reports(system, report),
        groups=merged_groups,
        notes=tuple(notes),
        no_attacks=no_attacks,
    )


def _first_text(texts: Sequence[str]) -> str:
    """Return the first text that is not empty; an empty one if all are."""
    return next((text for text in texts if text), "")


def _report_all_pairs(
    embeddings: Sequence[TrialEmbeddings], metric: VoicePrivacy, has_original: bool
) -> tuple[PrivacyReport, dict[str, PrivacyReport]]:
    """Report all pairs of the utterances of lists, and those of each group.

    An utterance of several lists counts in each.
    """
    original: list[Tensor] = []
    protected: list[Tensor] = []
    utterances: list[str] = []
    speakers: list[str] = []
    groups: list[str] = []
    is_reference: list[bool] = []
    for lists in embeddings:
        references, tested = lists.list_utterances()
        names = sorted(references | tested)
        protected.append(lists.protected.to_tensor("protected", names).double())
        if has_original:
            original.append(lists.original.to_tensor("original", names).double())
        utterances += names
        for name in names:
            speaker = lists.protocol.speaker_of[name]
            group_of = lists.protocol.group_of
            speakers.append(speaker)
            is_reference.append(name in references)
            groups.append(lists.group or group_of.get(name, group_of.get(speaker, "")))
    speaker_index = np.unique(np.array(speakers), return_inverse=True)[1]
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
    listed = system.report
    scalars = dict(listed.scalars)
    for key, value in report.scalars.items():
        description = scalar(key)
        is_of_attack = description.family == "attack" and description.condition in listed.conditions
        if is_of_attack or (key in _MATRIX_KEYS and not math.isnan(float(value))):
            scalars[key] = value
    conditions: dict[str, ConditionReport] = {}
    for name, condition in listed.conditions.items():
        conditions[name] = replace(condition, strongest=report.conditions[name].strongest)
    scalars |= _find_largest_disclosure(conditions, scalars)
    merged = replace(
        listed,
        scalars=scalars,
        conditions=conditions,
        attacks=report.attacks,
        checks=_merge_checks(listed, report),
        risks=report.risks or listed.risks,
        shorter_risks=report.shorter_risks,
        worst_speaker=report.worst_speaker,
        speakers=report.speakers,
        speaker_names=report.speaker_names,
    )
    return replace(system, report=replace(merged, headline=make_headline(merged)))


def _find_largest_disclosure(
    conditions: Mapping[str, ConditionReport], scalars: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return ``disclosure`` and its interval, the largest that is defined; none if none is."""
    largest_key = ""
    for key in disclosure_keys(conditions, scalars):
        value = float(scalars[key])
        if math.isnan(value):
            continue
        if not largest_key or value > float(scalars[largest_key]):
            largest_key = key
    if not largest_key:
        return {}
    found = {"disclosure": scalars[largest_key]}
    for suffix in CI_SUFFIXES:
        if f"{largest_key}{suffix}" in scalars:
            found[f"disclosure{suffix}"] = scalars[f"{largest_key}{suffix}"]
    return found


def _merge_checks(listed: PrivacyReport, report: PrivacyReport) -> tuple[Check, ...]:
    """Return the checks of both reports, of a name that both have that of the second."""
    check_of_name: dict[str, Check] = {}
    for check in listed.checks:
        # The list alone was not attacked; the pairs of its utterances may have been.
        if check.name != "attacks" or not report.attacks:
            check_of_name[check.name] = check
    for check in report.checks:
        check_of_name[check.name] = check
    return tuple(check_of_name.values())
