"""Evaluate systems from embeddings or trials, and note data that only look private."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from vpmetrics._scores.registry import scalar_key
from vpmetrics._util.inputs import Array, InputError, quote
from vpmetrics._util.scalar import printable
from vpmetrics._utterances.conditions import CONDITIONS
from vpmetrics.attributes import AttributeDisclosure
from vpmetrics.readers.embeddings import Embeddings
from vpmetrics.readers.trial_files import Trials, index_names, read_attributes
from vpmetrics.report.checks import check_shared_text, explain_missing_trials
from vpmetrics.report.privacy_report import ConditionReport, EvaluatedSystem, PrivacyReport
from vpmetrics.report.trial_report import ScoredTrials, report_trials
from vpmetrics.report.verdict import make_headline
from vpmetrics.suite import VoicePrivacy

if TYPE_CHECKING:
    from vpmetrics.readers.trial_protocol import ListedTrials

_SAMPLE_SIZE = 10_000  # trials whose reverse is looked up
_LEAST_TURNED_BITS = 0.01  # D_ECE by which negated scores must disclose more for a note
NOT_REQUESTED = "none was asked for"
_SCORES_ALONE = "scores give an attacker nothing to learn from; embeddings of both sides would"


@contextmanager
def collect_notes(notes: list[str]) -> Iterator[None]:
    """Turn warnings of the library into notes of the report."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    messages = [str(warning.message) for warning in caught if warning.category is UserWarning]
    notes += dict.fromkeys(messages)


def evaluate_embeddings(
    name: str,
    embeddings: Embeddings,
    metric: VoicePrivacy,
    weights: Mapping[str, float] | None = None,
) -> EvaluatedSystem:
    """Evaluate a system by its embeddings.

    One metric for several systems scores shared originals once.
    """
    notes = [*embeddings.notes, *_note_zero_rows(name, embeddings)]
    metric.reset()
    warned: list[str] = []
    try:
        with collect_notes(warned):
            metric.update(
                embeddings.by_encoder(embeddings.original),
                embeddings.by_encoder(embeddings.protected),
                embeddings.speakers,
                is_reference=embeddings.is_reference,
                sessions=embeddings.sessions,
                groups=embeddings.groups,
            )
            report = _add_text_check(metric.report(), embeddings)
            report = _name_speakers(report, embeddings.speaker_names)
    except (TypeError, ValueError) as error:
        raise InputError(str(error), name or None) from None
    for text in warned:
        # Without originals, there is a note already that OO and OP have no trials.
        if embeddings.original is not None or not text.startswith("There are no trials"):
            notes.append(text)
    advice = "an attacker who turns the sign undoes the protection"
    notes += _note_wrong_sign(name, report.conditions, advice)
    return EvaluatedSystem(
        name,
        report,
        _list_speaker_names(embeddings.speakers, embeddings.speaker_names),
        tuple(notes),
        groups=_name_groups(report, embeddings),
        weights=weights or {},
        utterances=len(embeddings.speakers),
        no_attacks="" if report.attacks else NOT_REQUESTED,
    )


def _note_zero_rows(name: str, embeddings: Embeddings) -> list[str]:
    """Return a note on each side with rows of zeros, which look perfectly private."""
    notes: list[str] = []
    for side, vectors in (("original", embeddings.original), ("protected", embeddings.protected)):
        if vectors is None:
            continue
        num_zeros = int((vectors == 0).all(dim=1).sum())
        if num_zeros:
            rows = f"{num_zeros:,} of {len(vectors):,} rows of the {side} embeddings"
            notes.append(f"{name}: {rows} are all zero; no voice is in them")
    return notes


def _list_speaker_names(speakers: Tensor, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(names[label] for label in speakers.unique().tolist())


def _name_groups(report: PrivacyReport, embeddings: Embeddings) -> dict[str, EvaluatedSystem]:
    """Return the report of each group as that of a system, by the name of the group."""
    groups: dict[str, EvaluatedSystem] = {}
    for label, group_report in report.groups.items():
        group_index = int(label)
        speakers = embeddings.speakers
        if embeddings.groups is not None:
            speakers = speakers[embeddings.groups == group_index]
        group_name = embeddings.group_names[group_index]
        speaker_names = _list_speaker_names(speakers, embeddings.speaker_names)
        groups[group_name] = EvaluatedSystem(
            group_name, group_report, speaker_names, utterances=len(speakers)
        )
    return groups


def _add_text_check(report: PrivacyReport, embeddings: Embeddings) -> PrivacyReport:
    """Return a report with the check on shared text, where names of utterances tell chapters."""
    is_reference = embeddings.is_reference
    check = check_shared_text(
        embeddings.utterance_names,
        embeddings.speakers.tolist(),
        None if is_reference is None else is_reference.tolist(),
    )
    if check is None:
        return report
    return replace(report, checks=(*report.checks, check))


def _name_speakers(report: PrivacyReport, names: Sequence[str]) -> PrivacyReport:
    """Return a report that calls speakers by their names in the files."""
    report = replace(report, speaker_names=dict(enumerate(names)))
    return replace(report, headline=make_headline(report))


def add_attributes(
    system: EvaluatedSystem, embeddings: Embeddings, path: str, confidence: float | None
) -> EvaluatedSystem:
    """Add the disclosure of attributes, whose labels are in a file."""
    if embeddings.original is None:
        raise InputError(
            "Expected original embeddings with --attributes: attributes are learnt from them."
        )
    labels: dict[str, list[str]] = {}
    for attribute, label_of in read_attributes(path).items():
        labels[attribute] = embeddings.look_up_labels(label_of, path)
    notes = list(system.notes)
    metric = AttributeDisclosure(list(labels), intervals=confidence)
    with collect_notes(notes):
        original = embeddings.of_first_encoder(embeddings.original)
        protected = embeddings.of_first_encoder(embeddings.protected)
        metric.update(original, protected, embeddings.speakers, labels)
        values = metric.compute()
    keys = ("disclosure", "chance", "accuracy", "majority", "original")
    suffix_of_key = dict(zip(keys, keys, strict=True))
    if confidence:
        suffix_of_key |= {"disclosure_low": "low", "disclosure_high": "high"}
    attributes: dict[str, dict[str, float]] = {}
    for attribute in labels:
        attributes[attribute] = {}
        for key, suffix in suffix_of_key.items():
            attributes[attribute][key] = float(values[f"{attribute}_{suffix}"])
    return replace(system, notes=tuple(notes), attributes=attributes)


def list_encoders(system: EvaluatedSystem) -> list[EvaluatedSystem]:
    """Return a system, followed by its result with each encoder alone, where there are several."""
    systems = [system]
    for encoder, report in system.report.encoders.items():
        systems.append(
            replace(
                system,
                name=f"{system.name}, {encoder}",
                report=report,
                part_of=system.name,
                notes=(),
                groups={},
                attributes={},
            )
        )
    return systems


def evaluate_trials(
    name: str,
    conditions: Mapping[str, Trials],
    fit: Trials | None = None,
    speaker_of: Mapping[str, str] | None = None,
    similarity: Literal["geometric", "sigmoid"] | None = None,
    confidence: float | None = None,
) -> EvaluatedSystem:
    """Evaluate a system by its scores in each condition, which is empty where scores have none.

    ``fit``: trials of another run to calibrate on. ``speaker_of``: the speaker of every name, for
    matrices, which are left out without ``similarity``, and for intervals, which are left out
    without ``confidence``.
    """
    notes: list[str] = []
    known_speakers = dict(speaker_of or {})
    for trials in conditions.values():
        notes += trials.notes
        known_speakers |= trials.speaker_of
    speakers = find_speakers(known_speakers, list(conditions.values()))
    if confidence and speakers.note:
        notes.append(speakers.note)
    with collect_notes(notes):
        scored: dict[str, ScoredTrials] = {}
        for index, (condition, trials) in enumerate(conditions.items()):
            trial_speakers = None
            if speakers.of_trials:
                trial_speakers = torch.from_numpy(speakers.of_trials[index])
            scored[condition] = _as_scored_trials(trials, condition, trial_speakers)
        fit_trials = None if fit is None else _as_scored_trials(fit)
        similarity = similarity if speakers.is_listed else None
        confidence = confidence if speakers.of_trials else None
        report = report_trials(scored, fit_trials, len(speakers.names), similarity, confidence)
    advice = "scores seem to fall with likeness: negate them?"
    notes += _note_wrong_sign(name, report.conditions, advice)
    return EvaluatedSystem(
        name,
        report,
        speakers.names,
        tuple(notes),
        utterances=_count_utterances([trials.frame for trials in conditions.values()]),
        no_attacks=_SCORES_ALONE,
    )


def _as_scored_trials(
    trials: Trials, condition: str = "", trial_speakers: Tensor | None = None
) -> ScoredTrials:
    """Return trials as tensors; ``trial_speakers``: those of both sides ``(2, P)``, if known."""
    is_same_side = bool(condition) and CONDITIONS[condition].is_same_side
    has_unordered_pairs = False
    if is_same_side and trial_speakers is not None:
        has_unordered_pairs = _has_unordered_pairs(trials)
    return ScoredTrials(
        torch.tensor(trials.frame["score"].to_numpy()),
        torch.tensor(trials.frame["is_target"].to_numpy()),
        trial_speakers,
        has_unordered_pairs,
    )


def _count_utterances(frames: Sequence[pl.DataFrame]) -> int:
    """Return how many names all trials have; without names, as many as trials."""
    if not all("trial" in frame.columns for frame in frames):
        return max(len(frame) for frame in frames)
    columns: list[pl.Series] = []
    for frame in frames:
        columns += [frame["enrol"], frame["trial"]]
    return pl.concat(columns).n_unique()


def evaluate_listed_trials(
    name: str, listed: ListedTrials, weights: Mapping[str, float], confidence: float | None
) -> EvaluatedSystem:
    """Evaluate a system by listed trials, pooled or all, and each group by itself.

    ``weights``: those of groups in averages.
    """
    evaluate = partial(evaluate_trials, speaker_of=listed.speaker_of, confidence=confidence)
    trials = listed.trials
    if listed.pooled_groups:
        trials = listed.select_groups(listed.pooled_groups)
    system = evaluate(name, trials)
    notes = [*listed.notes, *system.notes]
    groups: dict[str, EvaluatedSystem] = {}
    for group in listed.groups:
        groups[group] = evaluate(f"{name}, {group}", listed.select_groups([group]))
        notes += groups[group].notes
    unique_notes = tuple(dict.fromkeys(notes))
    return replace(system, notes=unique_notes, groups=groups, weights=weights)


def _has_unordered_pairs(trials: Trials) -> bool:
    """Return whether both sides share names, and each sampled pair is there in one order only.

    Models and utterances share no names.
    """
    pairs = trials.frame.select("enrol", "trial")
    if pairs.join(pairs, left_on="trial", right_on="enrol", how="semi").is_empty():
        return False
    stride = 1 + len(pairs) // _SAMPLE_SIZE
    sample = pairs.gather_every(stride).filter(pl.col("enrol") != pl.col("trial"))
    turned_sample = sample.select(enrol="trial", trial="enrol")
    return pairs.join(turned_sample, on=["enrol", "trial"], how="semi").is_empty()


class TrialSpeakers(NamedTuple):
    """The speakers of both sides ``(2, P)`` of the trials of each condition, and their names.

    ``is_listed``: the speakers come from a list. Otherwise they are inferred from target trials;
    ``note`` says so, or why they are unknown.
    """

    of_trials: tuple[Array, ...] = ()
    names: tuple[str, ...] = ()
    is_listed: bool = False
    note: str = ""


def find_speakers(speaker_of: Mapping[str, str], sets: Sequence[Trials]) -> TrialSpeakers:
    """Return the speakers of trials, from a list if it names all of them, else from targets."""
    frames = [trials.frame for trials in sets]
    if not all("trial" in frame.columns for frame in frames):
        return TrialSpeakers(note="No intervals: the scores do not name what they compare.")
    names, sides = index_names(frames)
    speaker_by_name = {speaker: speaker for speaker in speaker_of.values()} | dict(speaker_of)
    is_listed = all(name in speaker_by_name for name in names)
    if is_listed:
        speaker_names = [speaker_by_name[name] for name in names]
        note = ""
    else:
        is_target = [frame["is_target"].to_numpy() for frame in frames]
        first_name = _cluster_by_target_trials(len(names), sides, is_target)
        problem = _explain_unknown_speakers(names, sides, is_target, first_name)
        if problem:
            return TrialSpeakers(note=f"No intervals: {problem}")
        speaker_names = [names[index] for index in first_name]
        note = (
            "intervals take names that target trials join for one speaker:"
            f" {len(set(speaker_names)):,} speakers"
        )
    speakers, speaker_of_name = np.unique(np.array(speaker_names), return_inverse=True)
    of_trials: list[Array] = []
    for enrol, trial in sides:
        of_trials.append(np.stack([speaker_of_name[enrol], speaker_of_name[trial]]))
    printable_names = tuple(printable(speaker) for speaker in speakers.tolist())
    return TrialSpeakers(tuple(of_trials), printable_names, is_listed, note)


def _explain_unknown_speakers(
    names: Sequence[str],
    sides: Sequence[tuple[Array, Array]],
    is_target_of_set: Sequence[Array],
    first_name: Array,
) -> str:
    """Return why target trials do not tell the speakers; empty if they do."""
    is_alone = first_name < 0
    if is_alone.any():
        name = quote(names[int(first_name.argmin())])
        return (
            f"who speaks is not known, for {int(is_alone.sum()):,} names are in no target trial, as"
            f" {name}; --utt2spk would tell."
        )
    for (enrol, trial), is_target in zip(sides, is_target_of_set, strict=True):
        is_wrong = ~is_target & (first_name[enrol] == first_name[trial])
        if is_wrong.any():
            row = int(is_wrong.argmax())
            pair = f"{quote(names[enrol[row]])} and {quote(names[trial[row]])}"
            return f"{pair} are of one speaker by target trials, and of two by another."
    return ""


def _cluster_by_target_trials(
    num_names: int, sides: Sequence[tuple[Array, Array]], is_target_of_set: Sequence[Array]
) -> Array:
    """Return for each name the first name that target trials connect it with, ``(N,)``.

    It is -1 for a name in no target trial.
    """
    target_enrols: list[Array] = []
    target_trials: list[Array] = []
    for (enrol, trial), is_target in zip(sides, is_target_of_set, strict=True):
        target_enrols.append(enrol[is_target])
        target_trials.append(trial[is_target])
    enrols = np.concatenate(target_enrols)
    trials = np.concatenate(target_trials)
    first_name = np.arange(num_names)
    former = np.empty(0, dtype=np.int64)
    # connected components: the least index spreads along the pairs
    while not np.array_equal(first_name, former):
        former = first_name.copy()
        least = np.minimum(former[enrols], former[trials])
        for side in (enrols, trials):
            np.minimum.at(first_name, former[side], least)
        first_name = first_name[first_name]
    is_in_target_trial = np.isin(np.arange(num_names), [enrols, trials])
    return np.where(is_in_target_trial, first_name, -1)


def check_anything_defined(systems: Sequence[EvaluatedSystem]) -> None:
    """Raise if no measure of privacy is defined in any system: dashes are no result."""
    for system in systems:
        keys = ["deid", "gvd"]
        keys += [scalar_key(condition, "d_ece") for condition in system.report.conditions]
        if not all(math.isnan(system.get_or_nan(key)) for key in keys):
            return
    reason = _explain_undefined(systems[0])
    raise InputError(f"No measure of privacy is defined. {reason}", systems[0].name or None)


def _explain_undefined(system: EvaluatedSystem) -> str:
    """Return why a system has no measure: too few utterances, missing trials, or its notes."""
    missing = None
    if system.utterances:
        missing = explain_missing_trials(len(system.speakers), system.utterances)
    if missing:
        return missing
    counts = [report.num_trials for report in system.report.conditions.values()]
    lacking: list[str] = []
    if not any(num_targets for num_targets, _ in counts):
        lacking.append("target")
    if not any(num_nontargets for _, num_nontargets in counts):
        lacking.append("non-target")
    if lacking:
        return f"There are no {' and no '.join(lacking)} trials."
    return "; ".join(system.notes) or "All are NaN."


def _note_wrong_sign(
    name: str, conditions: Mapping[str, ConditionReport], advice: str
) -> list[str]:
    """Return a note on each condition whose scores seem to have the wrong sign.

    Such scores disclose much more when they are negated, as attackers would do: the disclosure
    D_ECE is more than twice as large, beyond what luck and rounding give.
    """
    notes: list[str] = []
    for condition, report in conditions.items():
        disclosure = float(report.scalars["d_ece"])
        turned_disclosure = float(report.scalars["d_ece_reversed"])
        num_targets, num_nontargets = report.num_trials
        # Few trials disclose a little in either direction by chance.
        chance = 2 / max(min(num_targets, num_nontargets), 1)
        if turned_disclosure > 2 * disclosure + _LEAST_TURNED_BITS + chance:
            where = f"{name}, {condition}" if condition else name
            notes.append(
                f"{where}: D_ECE is {disclosure:.3f} bit, but {turned_disclosure:.3f} with the sign"
                f" turned; {advice}"
            )
    return notes
