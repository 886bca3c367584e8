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
NOT_REQUESTED = "none was asked for"
_SCORES_ALONE = "scores give an attacker nothing to learn from; embeddings of both sides would"


@contextmanager
def collect_notes(notes: list[str]) -> Iterator[None]:
    """Turn warnings of the library into notes of the report."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    notes += dict.fromkeys(
        str(warning.message) for warning in caught if warning.category is UserWarning
    )


def evaluate_embeddings(
    name: str,
    embeddings: Embeddings,
    metric: VoicePrivacy,
    weights: Mapping[str, float] | None = None,
) -> EvaluatedSystem:
    """Evaluate a system by its embeddings; one metric for several systems scores shared originals
    once.
    """
    speakers = embeddings.speakers
    labels = {key: getattr(embeddings, key) for key in ("is_reference", "sessions", "groups")}
    notes = list(embeddings.notes)
    for side in ("original", "protected"):
        values = getattr(embeddings, side)
        if values is None:
            continue
        if zeros := int((values == 0).all(dim=1).sum()):  # which look perfectly private
            rows = f"{zeros:,} of {len(values):,} rows of the {side} embeddings"
            notes.append(f"{name}: {rows} are all zero; no voice is in them")
    metric.reset()
    warned: list[str] = []
    try:
        with collect_notes(warned):
            original = embeddings.by_encoder(embeddings.original)
            protected = embeddings.by_encoder(embeddings.protected)
            metric.update(original, protected, speakers, **labels)
            report = _add_text_check(metric.report(), embeddings)
            report = _name_speakers(report, embeddings.speaker_names)
    except (TypeError, ValueError) as error:
        raise InputError(str(error), name or None) from None
    # Without originals, a note says that OO and OP have no trials.
    notes += [
        text
        for text in warned
        if embeddings.original is not None or not text.startswith("There are no trials")
    ]
    notes += _note_wrong_sign(
        name, report.conditions, "an attacker who turns the sign undoes the protection"
    )
    groups, names = {}, embeddings.speaker_names
    for label, group_report in report.groups.items():
        number = int(label)
        members = speakers if embeddings.groups is None else speakers[embeddings.groups == number]
        group, member_names = (
            embeddings.group_names[number],
            tuple(names[at] for at in members.unique().tolist()),
        )
        groups[group] = EvaluatedSystem(group, group_report, member_names, utterances=len(members))
    return EvaluatedSystem(
        name,
        report,
        tuple(names[at] for at in speakers.unique().tolist()),
        tuple(notes),
        groups=groups,
        weights=weights or {},
        utterances=len(speakers),
        no_attacks="" if report.attacks else NOT_REQUESTED,
    )


def _add_text_check(report: PrivacyReport, embeddings: Embeddings) -> PrivacyReport:
    """Return a report with the check on shared text, where names of utterances tell chapters."""
    is_reference = embeddings.is_reference
    check = check_shared_text(
        embeddings.utterance_names,
        embeddings.speakers.tolist(),
        None if is_reference is None else is_reference.tolist(),
    )
    return report if check is None else replace(report, checks=(*report.checks, check))


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
    labels = {
        name: embeddings.look_up_labels(label_of, path)
        for name, label_of in read_attributes(path).items()
    }
    notes, metric = list(system.notes), AttributeDisclosure(list(labels), intervals=confidence)
    with collect_notes(notes):
        original = embeddings.of_first_encoder(embeddings.original)
        protected = embeddings.of_first_encoder(embeddings.protected)
        metric.update(original, protected, embeddings.speakers, labels)
        values = metric.compute()
    keys = {key: key for key in ("disclosure", "chance", "accuracy", "majority", "original")}
    keys |= {"disclosure_low": "low", "disclosure_high": "high"} if confidence else {}
    attributes = {
        name: {key: float(values[f"{name}_{end}"]) for key, end in keys.items()} for name in labels
    }
    return replace(system, notes=tuple(notes), attributes=attributes)


def list_encoders(system: EvaluatedSystem) -> list[EvaluatedSystem]:
    """Return a system, followed by its result with each encoder alone, where there are several."""
    systems = [system]
    for encoder, report in system.report.encoders.items():
        alone = replace(
            system, name=f"{system.name}, {encoder}", report=report, part_of=system.name
        )
        systems.append(replace(alone, notes=(), groups={}, attributes={}))
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
    notes = [note for trials in conditions.values() for note in trials.notes]
    known_speakers = dict(speaker_of or {})
    for trials in conditions.values():
        known_speakers.update(trials.speaker_of)
    speakers = find_speakers(known_speakers, list(conditions.values()))
    notes += [speakers.note] if confidence and speakers.note else []
    with collect_notes(notes):
        scored = {}
        for number, (condition, trials) in enumerate(conditions.items()):
            trial_speakers = (
                torch.from_numpy(speakers.of_trials[number]) if speakers.of_trials else None
            )
            is_same_side = (
                bool(condition)
                and CONDITIONS[condition].is_same_side
                and trial_speakers is not None
            )
            has_unordered_pairs = is_same_side and _has_unordered_pairs(trials)
            scored[condition] = ScoredTrials(
                *_make_tensors(trials), trial_speakers, has_unordered_pairs
            )
        fit_trials = None if fit is None else ScoredTrials(*_make_tensors(fit))
        similarity = similarity if speakers.is_listed else None
        confidence = confidence if speakers.of_trials else None
        report = report_trials(scored, fit_trials, len(speakers.names), similarity, confidence)
    notes += _note_wrong_sign(
        name, report.conditions, "scores seem to fall with likeness: negate them?"
    )
    frames = [trials.frame for trials in conditions.values()]
    # Without names, there are as many as trials.
    is_named = all("trial" in frame.columns for frame in frames)
    sides = [frame[side] for frame in frames for side in ("enrol", "trial") if is_named]
    count = pl.concat(sides).n_unique() if is_named else max(map(len, frames))
    return EvaluatedSystem(
        name, report, speakers.names, tuple(notes), utterances=count, no_attacks=_SCORES_ALONE
    )


def evaluate_listed_trials(
    name: str, listed: ListedTrials, weights: Mapping[str, float], confidence: float | None
) -> EvaluatedSystem:
    """Evaluate a system by listed trials: all or the pooled groups, and each group by itself, to
    average by weights.
    """
    evaluate = partial(evaluate_trials, speaker_of=listed.speaker_of, confidence=confidence)
    system = evaluate(
        name, listed.select_groups(listed.pooled_groups) if listed.pooled_groups else listed.trials
    )
    groups = {
        group: evaluate(f"{name}, {group}", listed.select_groups([group]))
        for group in listed.groups
    }
    notes = [
        *listed.notes,
        *system.notes,
        *(note for group in groups.values() for note in group.notes),
    ]
    return replace(system, notes=tuple(dict.fromkeys(notes)), groups=groups, weights=weights)


def _make_tensors(trials: Trials) -> tuple[Tensor, Tensor]:
    return torch.tensor(trials.frame["score"].to_numpy()), torch.tensor(
        trials.frame["is_target"].to_numpy()
    )


def _has_unordered_pairs(trials: Trials) -> bool:
    """Return whether both sides share names (models and utterances do not), and each sampled pair
    has one order.
    """
    pairs = trials.frame.select("enrol", "trial")
    sample = pairs.gather_every(1 + len(pairs) // _SAMPLE_SIZE).filter(
        pl.col("enrol") != pl.col("trial")
    )
    if pairs.join(pairs, left_on="trial", right_on="enrol", how="semi").is_empty():
        return False
    return pairs.join(
        sample.select(enrol="trial", trial="enrol"), on=["enrol", "trial"], how="semi"
    ).is_empty()


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
    """Return the speakers of trials, from a list where it names all of them, else from target
    trials.
    """
    frames = [trials.frame for trials in sets]
    if not all("trial" in frame.columns for frame in frames):
        return TrialSpeakers(note="No intervals: the scores do not name what they compare.")
    names, sides = index_names(frames)
    speaker_by_name = {speaker: speaker for speaker in speaker_of.values()} | dict(speaker_of)
    is_listed, note = all(name in speaker_by_name for name in names), ""
    if is_listed:
        speaker_names = [speaker_by_name[name] for name in names]
    else:
        targets = [frame["is_target"].to_numpy() for frame in frames]
        first = _cluster_by_target_trials(len(names), sides, targets)
        if (first < 0).any():
            why = (
                f"{int((first < 0).sum()):,} names are in no target trial, as"
                f" {quote(names[int(first.argmin())])}"
            )
            return TrialSpeakers(
                note=f"No intervals: who speaks is not known, for {why}; --utt2spk would tell."
            )
        for (enrol, trial), is_target in zip(sides, targets, strict=True):
            wrong = ~is_target & (first[enrol] == first[trial])
            if wrong.any():
                pair = " and ".join(
                    quote(names[side[int(wrong.argmax())]]) for side in (enrol, trial)
                )
                return TrialSpeakers(
                    note=(
                        f"No intervals: {pair} are of one speaker by target trials, and of two by"
                        " another."
                    )
                )
        speaker_names = [names[at] for at in first]
        note = (
            "intervals take names that target trials join for one speaker:"
            f" {len(set(speaker_names)):,} speakers"
        )
    speakers, speaker_index = np.unique(np.array(speaker_names), return_inverse=True)
    of_trials = tuple(
        np.stack([speaker_index[enrol], speaker_index[trial]]) for enrol, trial in sides
    )
    return TrialSpeakers(of_trials, tuple(map(printable, speakers.tolist())), is_listed, note)


def _cluster_by_target_trials(
    num_names: int, sides: Sequence[tuple[Array, Array]], targets: Sequence[Array]
) -> Array:
    """Return for each name the first name that target trials connect it with; -1 for a name in no
    target trial.
    """
    joined = [
        (enrol[is_target], trial[is_target])
        for (enrol, trial), is_target in zip(sides, targets, strict=True)
    ]
    enrols, trials = (np.concatenate(side) for side in zip(*joined, strict=True))
    first, before = np.arange(num_names), np.empty(0, dtype=np.int64)
    # connected components: the least index spreads along the pairs
    while not np.array_equal(first, before):
        before = first.copy()
        for side in (enrols, trials):
            np.minimum.at(first, before[side], np.minimum(before[enrols], before[trials]))
        first = first[first]
    return np.where(np.isin(np.arange(num_names), [enrols, trials]), first, -1)


def check_anything_defined(systems: Sequence[EvaluatedSystem]) -> None:
    """Raise if no measure of privacy is defined in any system: dashes must not pass for a
    result.
    """
    first = systems[0]
    for system in systems:
        names = [
            "deid",
            "gvd",
            *(scalar_key(condition, "d_ece") for condition in system.report.conditions),
        ]
        if not all(math.isnan(system.get_or_nan(name)) for name in names):
            return
    missing = (
        explain_missing_trials(len(first.speakers), first.utterances) if first.utterances else None
    )
    counts = map(
        max, zip(*(report.num_trials for report in first.report.conditions.values()), strict=True)
    )
    lacking = [
        kind for kind, count in zip(("target", "non-target"), counts, strict=True) if not count
    ]
    trials = f"There are no {' and no '.join(lacking)} trials." if lacking else ""
    reason = missing or trials or "; ".join(first.notes) or "All are NaN."
    raise InputError(f"No measure of privacy is defined. {reason}", first.name or None)


def _note_wrong_sign(
    name: str, conditions: Mapping[str, ConditionReport], advice: str
) -> list[str]:
    """Note conditions whose scores disclose more with the sign reversed, as an attacker would
    do.
    """
    notes = []
    for condition, report in conditions.items():
        straight, turned = (float(report.scalars[key]) for key in ("d_ece", "d_ece_reversed"))
        # Few trials disclose a little in either direction by chance.
        if turned > 2 * straight + 0.01 + 2 / max(min(report.num_trials), 1):
            where = f"{name}, {condition}" if condition else name
            notes.append(
                f"{where}: D_ECE is {straight:.3f} bit, but {turned:.3f} with the sign turned;"
                f" {advice}"
            )
    return notes
