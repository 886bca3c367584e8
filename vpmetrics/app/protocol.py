"""A protocol: which pairs are trials, who enrols with what, and the groups that results are given by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np

from vpmetrics.app.columns import Array
from vpmetrics.app.errors import InputError
from vpmetrics.app.lists import Names, TrialFile, read_key
from vpmetrics.app.pairs import read_map, read_pairs


@dataclass(frozen=True)
class Protocol:
    """Exactly these pairs are trials, whatever the sides hold.

    ``members``: the enrolment utterances of a speaker, for those enrolled as the mean of several.
    """

    names: Names
    trials: TrialFile
    is_target: Array
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)
    speaker_of: Mapping[str, str] = field(default_factory=dict)
    group_of: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)


def read_protocol(
    trials: Sequence[str],
    enrolls: str | None = None,
    utt2spk: str | None = None,
    groups: str | None = None,
    weights: str | None = None,
) -> Protocol:
    """A protocol from its files.

    Args:
        trials: Lists of lines ``enrol trial target|nontarget``; enrol is an utterance, or a speaker in ``enrolls``.
        enrolls: The utterances that speakers are enrolled with.
        utt2spk: Lines ``utterance speaker``.
        groups: Lines ``utterance group`` or ``speaker group``.
        weights: Lines ``group weight``.
    """
    speaker_of = {} if utt2spk is None else read_map(utt2spk, ("utterance", "speaker"))
    enrolled = [] if enrolls is None else read_pairs(enrolls, ("utterance",))[0]
    missing = next((utterance for utterance in enrolled if utterance not in speaker_of), None)
    if missing is not None:
        what = "no --utt2spk" if utt2spk is None else f"none of {missing!r} in {utt2spk}"
        raise InputError(f"expected the speaker of every enrolment utterance, but got {what}", enrolls)
    group_of = {} if groups is None else read_map(groups, ("utterance", "group"))
    protocol = make_protocol(trials, enrolled, speaker_of, Names())
    return replace(protocol, group_of=group_of, weights=read_weights(weights, set(group_of.values())))


def make_protocol(
    trials: Sequence[str | Path], enrolled: Sequence[str], speaker_of: Mapping[str, str], names: Names
) -> Protocol:
    """A protocol of lists of trials, and of the utterances enrolled."""
    listed = _join([read_key(path, names) for path in trials], names)
    is_target = cast(Array, listed.is_target)  # a key has labels
    _check_labels(listed, is_target, names, speaker_of)
    members: dict[str, list[str]] = {}
    for utterance in enrolled:
        members.setdefault(speaker_of[utterance], []).append(utterance)
    return Protocol(names, listed, is_target, members, speaker_of)


def _join(files: Sequence[TrialFile], names: Names) -> TrialFile:
    """Several lists as one, in which every trial is once."""
    first = files[0]
    enrol, trial, is_target = (
        np.concatenate([np.asarray(getattr(one, part)) for one in files]) for part in ("enrol", "trial", "is_target")
    )
    joined = first._replace(path=", ".join(one.path for one in files), enrol=enrol, trial=trial, is_target=is_target)
    codes = joined.codes(names)
    copies = len(codes) - len(np.unique(codes))
    if copies:
        again = f"{copies:,} of {len(codes):,} occur again"
        raise InputError(f"expected every trial once, but {again}", joined.path)
    return joined


def read_weights(path: str | None, groups: set[str]) -> dict[str, float]:
    """What each group weighs in an average."""
    if path is None:
        return {}
    weights = read_map(path, ("group", "weight"))
    if set(weights) != groups:
        got = ", ".join(sorted(set(weights) ^ groups))
        raise InputError(f"expected a weight for each of {', '.join(sorted(groups))}, but {got} is in one only", path)
    try:
        return {group: float(weight) for group, weight in weights.items()}
    except ValueError as error:
        raise InputError(f"expected `group weight`, but {error}", path) from None


def _check_labels(trials: TrialFile, is_target: Array, names: Names, speaker_of: Mapping[str, str]) -> None:
    """A label that contradicts utt2spk is a mistake in one of them."""
    speakers = np.array(lookup(names, speaker_of))
    both = (speakers[trials.enrol] != "") & (speakers[trials.trial] != "")
    wrong = both & ((speakers[trials.enrol] == speakers[trials.trial]) != is_target)
    if wrong.any():
        at = int(wrong.argmax())
        pair = f"{names[trials.enrol[at]]} {names[trials.trial[at]]}"
        message = f"expected labels as utt2spk has speakers, but {int(wrong.sum()):,} differ, first that of {pair!r}"
        raise InputError(message, trials.path)


def lookup(names: Names, speaker_of: Mapping[str, str]) -> list[str]:
    """The speaker of every name, utterance or speaker; empty where that is not known."""
    by_name = {speaker: speaker for speaker in speaker_of.values()} | dict(speaker_of)
    return [by_name.get(name, "") for name in names.all()]
