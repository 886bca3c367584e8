"""Trials of embeddings that a list names: scored pair by pair, and by the group they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vpmetrics._trials.scorers import ScoreFunction, Scoring, resolve_scoring
from vpmetrics.app.columns import Array
from vpmetrics.app.embeddings import tensor_of
from vpmetrics.app.errors import InputError
from vpmetrics.app.progress import Advance, phase
from vpmetrics.app.protocol import Protocol, lookup
from vpmetrics.app.sides import Column, rows_by_name
from vpmetrics.app.speakers import Speakers, speakers_of
from vpmetrics.app.trials import Trials

CONDITIONS = ("OO", "OP", "PP")

_PAIRS = 1 << 14  # scored at a time
_TILE = 1 << 10


class Listed(NamedTuple):
    """The trials of each condition, the number of each trial's group, −1 where it is in none, and who speaks."""

    trials: Mapping[str, Trials]
    group: Mapping[str, Array]
    groups: tuple[str, ...]
    notes: tuple[str, ...] = ()
    speakers: Speakers = Speakers()


def score_listed(original: Column, protected: Column, protocol: Protocol, scoring: Scoring = "cosine") -> Listed:
    """The scores of a protocol's trials in every condition that the sides have the utterances for."""
    enrols, of_enrol = np.unique(protocol.trials.enrol, return_inverse=True)
    probes, of_probe = np.unique(protocol.trials.trial, return_inverse=True)
    sides = {"O": original, "P": protected}
    references = {key: _references(side, protocol, enrols) for key, side in sides.items()}
    tested = {key: _probes(side, protocol, probes) for key, side in sides.items()}
    trials = {}
    group, groups, notes = _groups(protocol)
    listed = protocol.trials
    for condition in CONDITIONS:
        left, right = references[condition[0]], tested[condition[1]]
        if left is None or right is None:
            what, key = ("enrolment", condition[0]) if left is None else ("trial", condition[1])
            notes += (f"{condition} left out: none of the {what} utterances is in {sides[key].source}",)
            continue
        with phase(f"scoring {condition}", len(of_enrol)) as advance:
            scores = score_pairs(left, right, torch.from_numpy(of_enrol), torch.from_numpy(of_probe), scoring, advance)
        if scores.isnan().any():
            at = int(scores.isnan().nonzero()[0])
            pair = f"{protocol.names[protocol.trials.enrol[at]]} and {protocol.names[protocol.trials.trial[at]]}"
            raise InputError(f"Expected numbers as scores, but got NaN in {condition}, first for {pair}.")
        trials[condition] = Trials(listed.enrol, listed.trial, scores.numpy(), protocol.is_target)
    if not trials:
        raise InputError(f"Nothing to score: {'; '.join(notes)}.")
    speakers = speakers_of(protocol.speaker_of, trials.values(), protocol.names)
    return Listed(trials, dict.fromkeys(trials, group), groups, notes, speakers)


def score_pairs(
    left: Tensor, right: Tensor, rows: Tensor, columns: Tensor, scoring: Scoring, advance: Advance = lambda _: None
) -> Tensor:
    """Scores ``(P,)`` of pairs of rows of ``left (A, D)`` and of ``right (B, D)``, some at a time."""
    scorer = resolve_scoring(scoring)
    left, right = scorer.prepare(left), scorer.prepare(right)
    if not isinstance(scoring, str):
        return _score_in_tiles(left, right, rows, columns, scorer.compare, advance)
    scores = left.new_empty(len(rows))
    for start in range(0, len(rows), _PAIRS):
        part = slice(start, start + _PAIRS)
        scores[part] = scorer.compare(left[rows[part], None], right[columns[part], None]).flatten()
        advance(start)
    return scores


def _score_in_tiles(
    left: Tensor, right: Tensor, rows: Tensor, columns: Tensor, compare: ScoreFunction, advance: Advance
) -> Tensor:
    """By a scorer that takes all rows of both sides against each other: only the tiles that hold pairs."""
    wide = len(right) // _TILE + 1
    tiles, order = (rows // _TILE * wide + columns // _TILE).sort(stable=True)
    kinds, counts = tiles.unique_consecutive(return_counts=True)
    scores, start = left.new_empty(len(rows)), 0
    for tile, count in zip(kinds.tolist(), counts.tolist(), strict=True):
        pairs = order[start : start + count]
        top, side = tile // wide * _TILE, tile % wide * _TILE
        of_tile = compare(left[top : top + _TILE], right[side : side + _TILE])
        scores[pairs] = of_tile[rows[pairs] - top, columns[pairs] - side]
        start += count
        advance(start)
    return scores


def _references(side: Column, protocol: Protocol, enrols: Array) -> Tensor | None:
    """What each name is enrolled with, ``(E, D)``: the mean of a speaker's utterances, or the utterance itself."""
    row_of = rows_by_name(side)
    names = [protocol.names[number] for number in enrols]
    members = [[name] if name in row_of else protocol.members.get(name, [name]) for name in names]
    rows = _rows(row_of, [utterance for each in members for utterance in each], side, "enrolment")
    if rows is None:
        return None
    counts = torch.tensor([len(each) for each in members])
    vectors = tensor_of(side, "enrolment").double()[rows]
    sums = vectors.new_zeros(len(names), vectors.shape[1])
    return sums.index_add(0, torch.arange(len(names)).repeat_interleave(counts), vectors) / counts[:, None]


def _probes(side: Column, protocol: Protocol, probes: Array) -> Tensor | None:
    rows = _rows(rows_by_name(side), [protocol.names[number] for number in probes], side, "trial")
    return None if rows is None else tensor_of(side, "trial").double()[rows]


def _rows(row_of: Mapping[str, int], names: Sequence[str], side: Column, what: str) -> Tensor | None:
    """Where the utterances are; none of them need be there, but if one is, then all."""
    missing = [name for name in names if name not in row_of]
    if len(missing) == len(names):
        return None
    if missing:
        message = f"expected all {what} utterances, but {len(missing):,} of {len(names):,} are missing"
        hint = "; --enrolls says what a speaker is enrolled with" if what == "enrolment" else ""
        raise InputError(f"{message}, first {missing[0]!r}{hint}", side.source)
    return torch.tensor([row_of[name] for name in names])


def _groups(protocol: Protocol) -> tuple[Array, tuple[str, ...], tuple[str, ...]]:
    """The group of every trial, that of both its sides, and the names of the groups."""
    trials, group_of = protocol.trials, protocol.group_of
    if not group_of:
        return np.full(len(trials.trial), -1), (), ()
    speakers = lookup(protocol.names, protocol.speaker_of)
    texts = np.array(
        [group_of.get(name) or group_of.get(s, "") for name, s in zip(protocol.names.all(), speakers, strict=True)]
    )
    without = texts[trials.trial] == ""
    if without.any():
        name = protocol.names[trials.trial[int(without.argmax())]]
        raise InputError(f"Expected the group of every trial utterance in --groups, but got none for {name!r}.")
    kinds, numbers = np.unique(texts, return_inverse=True)
    across = (texts[trials.enrol] != texts[trials.trial]) & (texts[trials.enrol] != "")
    group = np.where(across, -1, numbers[trials.trial])
    notes = (f"{int(across.sum()):,} trials across groups count in none of them",) if across.any() else ()
    kept = np.unique(group[group >= 0])
    return np.searchsorted(kept, group) - (group < 0), tuple(kinds[kept].tolist()), notes
