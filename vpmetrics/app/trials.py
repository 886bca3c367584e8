"""Trials: scores joined with their labels, by sorting numbers."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import polars as pl

from vpmetrics.app.columns import Array
from vpmetrics.app.errors import InputError
from vpmetrics.app.lists import Names, TrialFile


class Trials(NamedTuple):
    """Scored and labelled trials, and how many had to be left out."""

    enrol: Array
    trial: Array
    scores: Array
    is_target: Array
    notes: tuple[str, ...] = ()


def label_trials(scores: TrialFile, key: TrialFile | None, names: Names, strict: bool = False) -> Trials:
    """Scores joined with their labels by name, in the order of the scores, whatever the order of the key."""
    _refuse_copies(scores, names)
    if key is None:
        if scores.is_target is None:
            raise InputError("expected a fourth column target|nontarget, or a key file, but got neither", scores.path)
        return Trials(scores.enrol, scores.trial, cast(Array, scores.scores), scores.is_target)
    if not (scores.has_names and key.has_names):
        nameless = key if scores.has_names else scores
        raise InputError(f"expected the names of both sides of a trial, but got {nameless.layout}", nameless.path)
    codes, labels = _unique_labels(key, names)
    places, found = _find(scores.codes(names), codes)
    if not found.any():
        raise InputError(
            f"none of its {len(found):,} trials is in the key {key.path}{_hint(scores, codes, names)}", scores.path
        )
    notes = _notes(scores, key, found, len(codes) - int(found.sum()), names)
    if strict and notes:
        raise InputError("; ".join(notes))
    enrol, trial, values = (column[found] for column in (scores.enrol, scores.trial, cast(Array, scores.scores)))
    return Trials(enrol, trial, values, labels[places[found]], tuple(notes))


def _refuse_copies(file: TrialFile, names: Names) -> None:
    codes = file.codes(names)
    again = _repeats(np.sort(codes))
    if again.any():
        one, other = _lines_of_repeat(file, codes)
        message = f"expected every trial once, but {int(again.sum()):,} occur again, the first on line {one}"
        raise InputError(message, file.path, other)


def _unique_labels(key: TrialFile, names: Names) -> tuple[Array, Array]:
    """Ascending codes of the trials of a key, and their labels; a trial may be repeated, but not contradicted."""
    if key.is_target is None:
        raise InputError("expected `enrol trial target|nontarget`", key.path, 1)
    # The label in the lowest bit, so that one sort does for both: sorting numbers is far faster than ordering rows, and
    # than `np.unique`, which hashes.
    labelled = np.sort(2 * key.codes(names) + key.is_target)
    labelled = labelled[np.concatenate([[True], ~_repeats(labelled)])]
    codes, labels = labelled // 2, labelled % 2 == 1
    if _repeats(codes).any():
        wrong = np.isin(key.codes(names), codes[1:][_repeats(codes)])
        one, other = _lines_of_repeat(key, np.where(wrong, key.codes(names), -1 - np.arange(len(wrong))))
        raise InputError(f"expected the label that line {one} gives this trial, but got the other one", key.path, other)
    return codes, labels


def _repeats(ascending: Array) -> Array:
    """For every place but the first, whether it repeats the one before."""
    return np.asarray(ascending[1:] == ascending[:-1])


def _lines_of_repeat(file: TrialFile, codes: Array) -> tuple[int | None, int | None]:
    """Two lines that hold one trial."""
    order = np.argsort(codes, kind="stable")
    at = int(_repeats(codes[order]).argmax())
    return file.line(int(order[at])), file.line(int(order[at + 1]))


def _find(wanted: Array, codes: Array) -> tuple[Array, Array]:
    """Where each of the wanted codes is, and which are there at all: joined, for a search jumps about in memory."""
    places = pl.DataFrame({"code": codes, "place": np.arange(len(codes), dtype=np.uint32)})
    joined = pl.DataFrame({"code": wanted}).join(places, on="code", how="left", maintain_order="left")["place"]
    return joined.fill_null(0).to_numpy(), joined.is_not_null().to_numpy()


def _hint(scores: TrialFile, codes: Array, names: Names) -> str:
    swapped = scores._replace(enrol=scores.trial, trial=scores.enrol)
    found = int(_find(swapped.codes(names), codes)[1].sum())
    return f"; with its first two columns exchanged, {found:,} would be" if found else ""


def _notes(scores: TrialFile, key: TrialFile, found: Array, unscored: int, names: Names) -> list[str]:
    notes = []
    if not found.all():
        at = int(found.argmin())
        example = f"line {scores.line(at)}: {names[scores.enrol[at]]} {names[scores.trial[at]]}"
        notes.append(
            f"{scores.path}: {int((~found).sum()):,} of {len(found):,} scores left out, their trials are not "
            f"in {key.path} (first on {example})"
        )
    if unscored:
        notes.append(f"{scores.path}: {unscored:,} trials of {key.path} have no score")
    return notes
