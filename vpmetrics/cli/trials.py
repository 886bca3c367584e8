"""Listed trials: which pairs they are, their scores from embeddings, and who speaks in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from vpmetrics._engine.scorers import ScoreFunction, Scoring, resolve_scoring
from vpmetrics.cli.embeddings import Column
from vpmetrics.cli.errors import InputError, printable, quote
from vpmetrics.cli.inputs import Array
from vpmetrics.cli.progress import Advance, show_progress
from vpmetrics.cli.scores import Trials, number_names, read_key, read_list, read_map

CONDITIONS = ("OO", "OP", "PP")
_PAIRS = 1 << 14  # scored at a time
_BLOCK = 1 << 10


@dataclass(frozen=True)
class Protocol:
    """Exactly these pairs are trials: a frame of ``enrol``, ``trial``, ``is_target``.

    ``members``: the enrolment utterances of a speaker, for those enrolled as the mean of several.
    """

    trials: pl.DataFrame
    members: Mapping[str, Sequence[str]] = field(default_factory=dict)
    speaker_of: Mapping[str, str] = field(default_factory=dict)
    group_of: Mapping[str, str] = field(default_factory=dict)


class ListedTrials(NamedTuple):
    """Trials of each condition, with a column ``group``; who speaks; ``pooled`` groups count together, all if none."""

    trials: Mapping[str, Trials]
    speaker_of: Mapping[str, str]
    groups: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pooled: tuple[str, ...] = ()

    def of_groups(self, groups: Sequence[str]) -> dict[str, Trials]:
        """Return the trials of some groups."""
        found = {key: trials.frame.filter(pl.col("group").is_in(groups)) for key, trials in self.trials.items()}
        return {key: Trials(frame, self.trials[key].notes) for key, frame in found.items() if len(frame)}


class Speakers(NamedTuple):
    """The speakers of both sides ``(2, P)`` of the trials of each condition, and their names.

    ``is_listed``: a list says who they are; otherwise target trials do, and ``note`` says so, or why nobody is known.
    """

    sides: tuple[Array, ...] = ()
    names: tuple[str, ...] = ()
    is_listed: bool = False
    note: str = ""


def read_protocol(
    trials: Sequence[str | Path],
    enrolled: Sequence[str],
    speaker_of: Mapping[str, str],
    group_of: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
) -> Protocol:
    """Read lists of trials.

    Args:
        trials: Files of lines ``enrol trial target|nontarget``; enrol is an utterance, or an enrolled speaker.
        enrolled: The utterances that speakers are enrolled with, as their mean.
        speaker_of: The speaker of every utterance.
        group_of: The group of every utterance or speaker.
        columns: The columns of the lists, where they are others.
    """
    frame = pl.concat([read_key(path, columns).frame for path in trials])
    where, pairs = ", ".join(map(str, trials)), frame.select("enrol", "trial")
    if copies := len(pairs) - pairs.n_unique():
        raise InputError(f"expected every trial once, but {copies:,} of {len(pairs):,} occur again", where)
    missing = next((utterance for utterance in enrolled if utterance not in speaker_of), None)
    if missing is not None:
        raise InputError(f"expected the speaker of every enrolment utterance, but got none of {quote(missing)}", where)
    if speaker_of:
        sides = [_look_up(frame[side], speaker_of) for side in ("enrol", "trial")]
        differs = ((sides[0] == sides[1]) != frame["is_target"]).fill_null(False)
        if differs.any():
            first = quote(" ".join(frame.filter(differs).select("enrol", "trial").row(0)))
            got = f"{int(differs.sum()):,} differ, first that of {first}"
            raise InputError(f"expected labels as utt2spk has speakers, but {got}", where)
    members: dict[str, list[str]] = {}
    for utterance in enrolled:
        members.setdefault(speaker_of[utterance], []).append(utterance)
    return Protocol(frame, members, speaker_of, group_of or {})


def read_enrolled(path: str | None, speaker_of: Mapping[str, str]) -> list[str]:
    """Read the utterances that speakers are enrolled with, whose speakers have to be known."""
    enrolled = [] if path is None else read_list(path)
    missing = next((utterance for utterance in enrolled if utterance not in speaker_of), None)
    if missing is not None:
        got = f"none of {quote(missing)} in --utt2spk" if speaker_of else "no --utt2spk"
        raise InputError(f"expected the speaker of every enrolment utterance, but got {got}", path)
    return enrolled


def read_weights(path: str | None, groups: set[str]) -> dict[str, float]:
    """Read what each group weighs in an average."""
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


def score_listed(original: Column, protected: Column, protocol: Protocol, scoring: Scoring = "cosine") -> ListedTrials:
    """Score the trials of a protocol in every condition that both sides have the utterances for."""
    frame = protocol.trials
    names, ((enrols, probes),) = number_names([frame])
    (enrolled, of_enrol), (probed, of_probe) = (np.unique(side, return_inverse=True) for side in (enrols, probes))
    sides = {"O": original, "P": protected}
    references = {key: _references(side, protocol, [names[at] for at in enrolled]) for key, side in sides.items()}
    tested = {key: _vectors(side, [names[at] for at in probed], "trial") for key, side in sides.items()}
    group, groups, notes = _groups_of_trials(protocol)
    trials = {}
    for condition in CONDITIONS:
        left, right = references[condition[0]], tested[condition[1]]
        if left is None or right is None:
            what, key = ("enrolment", condition[0]) if left is None else ("trial", condition[1])
            notes += (f"{condition} left out: none of the {what} utterances is in {sides[key].source}",)
            continue
        with show_progress(f"scoring {condition}", len(frame)) as advance:
            scores = score_pairs(left, right, torch.from_numpy(of_enrol), torch.from_numpy(of_probe), scoring, advance)
        if scores.isnan().any():
            pair = " and ".join(frame.select("enrol", "trial").row(int(scores.isnan().nonzero()[0])))
            raise InputError(f"Expected numbers as scores, but got NaN in {condition}, first for {quote(pair)}.")
        trials[condition] = Trials(frame.with_columns(score=pl.Series(scores.numpy()), group=group))
    if not trials:
        raise InputError(f"Nothing to score: {'; '.join(notes)}.")
    return ListedTrials(trials, protocol.speaker_of, groups, notes)


def score_pairs(
    left: Tensor, right: Tensor, rows: Tensor, columns: Tensor, scoring: Scoring, advance: Advance = lambda _: None
) -> Tensor:
    """Return the scores ``(P,)`` of pairs of rows of ``left (A, D)`` and of ``right (B, D)``."""
    scorer = resolve_scoring(scoring)
    left, right = scorer.prepare(left), scorer.prepare(right)
    if not isinstance(scoring, str):
        return _score_in_blocks(left, right, rows, columns, scorer.compare, advance)
    scores = left.new_empty(len(rows))
    for start in range(0, len(rows), _PAIRS):
        part = slice(start, start + _PAIRS)
        scores[part] = scorer.compare(left[rows[part], None], right[columns[part], None]).flatten()
        advance(start)
    return scores


def _score_in_blocks(
    left: Tensor, right: Tensor, rows: Tensor, columns: Tensor, compare: ScoreFunction, advance: Advance
) -> Tensor:
    """Score by a function that compares all rows of both sides: only the blocks that hold pairs."""
    wide = len(right) // _BLOCK + 1
    blocks, order = (rows // _BLOCK * wide + columns // _BLOCK).sort(stable=True)
    kinds, counts = blocks.unique_consecutive(return_counts=True)
    scores, start = left.new_empty(len(rows)), 0
    for block, count in zip(kinds.tolist(), counts.tolist(), strict=True):
        pairs = order[start : start + count]
        top, side = block // wide * _BLOCK, block % wide * _BLOCK
        of_block = compare(left[top : top + _BLOCK], right[side : side + _BLOCK])
        scores[pairs] = of_block[rows[pairs] - top, columns[pairs] - side]
        start += count
        advance(start)
    return scores


def _references(side: Column, protocol: Protocol, names: Sequence[str]) -> Tensor | None:
    """Return what each name is enrolled with, ``(E, D)``: the mean of a speaker's utterances, or one utterance."""
    row_of = side.rows_by_name()
    members = [[name] if name in row_of else protocol.members.get(name, [name]) for name in names]
    vectors = _vectors(side, [utterance for each in members for utterance in each], "enrolment")
    if vectors is None:
        return None
    counts = torch.tensor([len(each) for each in members])
    sums = vectors.new_zeros(len(names), vectors.shape[1])
    return sums.index_add(0, torch.arange(len(names)).repeat_interleave(counts), vectors) / counts[:, None]


def _vectors(side: Column, names: Sequence[str], what: str) -> Tensor | None:
    """Return the vectors of some utterances; None where a side has none of them, an error where it lacks some."""
    row_of = side.rows_by_name()
    missing = [name for name in names if name not in row_of]
    if len(missing) == len(names):
        return None
    if missing:
        message = f"expected all {what} utterances, but {len(missing):,} of {len(names):,} are missing"
        hint = "; --enrolls says what a speaker is enrolled with" if what == "enrolment" else ""
        raise InputError(f"{message}, first {quote(missing[0])}{hint}", side.source)
    return side.tensor(what).double()[[row_of[name] for name in names]]


def _groups_of_trials(protocol: Protocol) -> tuple[pl.Series, tuple[str, ...], tuple[str, ...]]:
    """Return the group of every trial, that of both its sides or null; the names of groups, and notes."""
    frame, group_of = protocol.trials, protocol.group_of
    if not group_of:
        return pl.Series([None] * len(frame), dtype=pl.String), (), ()

    def look_up(column: pl.Series) -> pl.Series:
        by_speaker = _look_up(_look_up(column, protocol.speaker_of), group_of)
        return _look_up(column, group_of).zip_with(column.is_in(list(group_of)), by_speaker)

    enrol, trial = (look_up(frame[side]) for side in ("enrol", "trial"))
    if trial.is_null().any():
        name = quote(frame["trial"][int(trial.is_null().arg_max() or 0)])
        raise InputError(f"Expected the group of every trial utterance in --groups, but got none for {name}.")
    across = (enrol != trial).fill_null(False)
    group = pl.select(pl.when(~across).then(trial)).to_series()
    notes = (f"{int(across.sum()):,} trials across groups count in none of them",) if across.any() else ()
    return group, tuple(group.drop_nulls().unique().sort().to_list()), notes


def _look_up(names: pl.Series, value_of: Mapping[str, str]) -> pl.Series:
    """Return the value of every name, null where there is none; a speaker's name stands for the speaker."""
    by_name = {value: value for value in value_of.values()} | dict(value_of)
    old, new = (pl.Series(texts, dtype=pl.String) for texts in (list(by_name), list(by_name.values())))
    return names.replace_strict(old, new, default=None)


def find_speakers(speaker_of: Mapping[str, str], sets: Sequence[Trials]) -> Speakers:
    """Return who speaks in trials, by a list where it names everybody, else by target trials."""
    frames = [trials.frame for trials in sets]
    if not all("trial" in frame.columns for frame in frames):
        return Speakers(note="No intervals: the scores do not name what they compare.")
    names, sides = number_names(frames)
    speakers = _look_up(pl.Series(names, dtype=pl.String), speaker_of)
    if not speakers.has_nulls():
        kinds, number = np.unique(speakers.to_numpy(), return_inverse=True)
        numbered = tuple(np.stack([number[enrol], number[trial]]) for enrol, trial in sides)
        return Speakers(numbered, tuple(map(printable, kinds.tolist())), is_listed=True)
    labels = [frame["is_target"].to_numpy() for frame in frames]
    return _speakers_of_targets(names, sides, labels)


def check_listed(speaker_of: Mapping[str, str], sets: Sequence[Trials], path: str) -> None:
    """Raise where a list of speakers lacks some names of the trials."""
    names = pl.concat([trials.frame[side] for trials in sets for side in ("enrol", "trial")]).unique().sort()
    missing = names.filter(_look_up(names, speaker_of).is_null())
    if len(missing):
        message = f"expected the speaker of every utterance, but {len(missing):,} are missing: {quote(missing[0])}"
        raise InputError(message, path)


def _speakers_of_targets(
    names: Sequence[str], sides: Sequence[tuple[Array, Array]], labels: Sequence[Array]
) -> Speakers:
    """Take names that target trials join for one speaker; nobody is known where a name is in none of them."""
    least, before = np.arange(len(names)), np.empty(0, dtype=np.int64)
    is_known = np.zeros(len(names), dtype=bool)
    while not np.array_equal(least, before):
        before = least.copy()
        for (enrol, trial), is_target in zip(sides, labels, strict=True):
            one, other = enrol[is_target], trial[is_target]
            is_known[one] = is_known[other] = True
            both = np.minimum(least[one], least[other])
            for side in (one, other):
                np.minimum.at(least, least[side], both)
                np.minimum.at(least, side, both)
        least = least[least]
    if not is_known.all():
        why = f"{int((~is_known).sum()):,} names are in no target trial, as {quote(names[int((~is_known).argmax())])}"
        return Speakers(note=f"No intervals: who speaks is not known, for {why}; --utt2spk would tell.")
    for (enrol, trial), is_target in zip(sides, labels, strict=True):
        wrong = ~is_target & (least[enrol] == least[trial])
        if wrong.any():
            at = int(wrong.argmax())
            pair = f"{quote(names[enrol[at]])} and {quote(names[trial[at]])}"
            return Speakers(note=f"No intervals: by target trials {pair} are of one speaker, by their own of two.")
    kinds, number = np.unique(least, return_inverse=True)
    note = f"intervals take names that target trials join for one speaker: {len(kinds):,} speakers"
    numbered = tuple(np.stack([number[enrol], number[trial]]) for enrol, trial in sides)
    return Speakers(numbered, tuple(printable(names[at]) for at in kinds), note=note)
