"""Kaldi-style score and key files: read into numbers, and joined by sorting these."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from vpmetrics.app.columns import Array, line_of, read_columns
from vpmetrics.app.errors import InputError

_LABELS = {
    **dict.fromkeys((b"target", b"tgt", b"tar", b"1", b"true", b"same"), True),
    **dict.fromkeys((b"nontarget", b"non-target", b"non", b"imp", b"impostor", b"imposter", b"0", b"false"), False),
}


class Names:
    """A number for every name, the same in all files of one run."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, names: list[bytes]) -> Array:
        """The number of each name; new ones get the next."""
        table = self._numbers
        for name in sorted(set(names).difference(table)):
            table[name] = len(table)
        return np.fromiter(map(table.__getitem__, names), np.int64, len(names))

    def all(self) -> list[bytes]:
        """All names, by number."""
        return list(self._numbers)


class TrialFile(NamedTuple):
    """The trials of one file in its order: numbers of both names, and scores, labels or both."""

    path: Path
    enrol: Array
    trial: Array
    scores: Array | None
    is_target: Array | None

    def codes(self, names: Names) -> Array:
        """One number per trial; equal for equal trials."""
        return self.enrol * len(names) + self.trial


class Trials(NamedTuple):
    """Scored and labelled trials, and how many had to be left out."""

    enrol: Array
    trial: Array
    scores: Array
    is_target: Array
    notes: tuple[str, ...] = ()


def read_scores(path: Path, names: Names) -> TrialFile:
    """A file of lines ``enrol trial score``, or ``enrol trial score target|nontarget``."""
    return _read(path, names, "enrol trial score [target|nontarget]", score_column=2, label_column=3)


def read_key(path: Path, names: Names) -> TrialFile:
    """A file of lines ``enrol trial target|nontarget``; labels in a fourth column will do, too."""
    return _read(path, names, "enrol trial target|nontarget", score_column=None, label_column=2)


def looks_like_key(path: Path) -> bool:
    """Whether the first line is `enrol trial target|nontarget`, in words: 0 and 1 may as well be scores."""
    for _, columns in read_columns(path, (3, 4), "enrol trial score [target|nontarget]"):
        return len(columns) == 3 and columns[2][0].lower() in _LABELS and not columns[2][0].isdigit()
    return False


def label_trials(scores: TrialFile, key: TrialFile | None, names: Names, strict: bool = False) -> Trials:
    """Scores joined with their labels by name, in the order of the scores, whatever the order of the key."""
    _refuse_copies(scores, names)
    if key is None:
        if scores.is_target is None:
            raise InputError("expected a fourth column target|nontarget, or a key file, but got neither", scores.path)
        return Trials(scores.enrol, scores.trial, cast(Array, scores.scores), scores.is_target)
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


def _read(path: Path, names: Names, expected: str, score_column: int | None, label_column: int) -> TrialFile:
    enrol, trial, scores, labels = [], [], [], []
    for first, columns in read_columns(path, (3, 4), expected):
        enrol.append(names.numbers(columns[0]))
        trial.append(names.numbers(columns[1]))
        if score_column is not None:
            scores.append(_parse_scores(columns[score_column], path, first))
        if len(columns) > label_column:
            # In a key, labels are in the last column.
            column = columns[label_column] if score_column is not None else columns[-1]
            labels.append(_parse_labels(column, path, first))
    parts = (np.concatenate(part) if part else None for part in (scores, labels))
    return TrialFile(path, np.concatenate(enrol), np.concatenate(trial), *parts)


def _parse_scores(column: list[bytes], path: Path, first: int) -> Array:
    try:
        values = np.fromiter(map(float, column), np.float64, len(column))
        if not np.isnan(values).any():
            return values
        at = int(np.isnan(values).argmax())
    except ValueError:
        at = next(k for k, field in enumerate(column) if not _is_number(field))
    raise InputError(f"expected a number as score, but got {_show(column[at])}", path, line_of(path, first + at))


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _parse_labels(column: list[bytes], path: Path, first: int) -> Array:
    meaning = {field: _LABELS.get(field.lower()) for field in set(column)}
    if None in meaning.values():
        at = next(k for k, field in enumerate(column) if meaning[field] is None)
        raise InputError(f"expected target or nontarget, but got {_show(column[at])}", path, line_of(path, first + at))
    return np.fromiter(map(meaning.__getitem__, column), np.bool_, len(column))


def _show(field: bytes) -> str:
    return repr(field[:40].decode(errors="replace"))


def _refuse_copies(file: TrialFile, names: Names) -> None:
    codes = file.codes(names)
    again = _repeats(np.sort(codes))
    if again.any():
        one, other = _lines_of_repeat(file.path, codes)
        message = f"expected every trial once, but {int(again.sum()):,} occur again, the first on line {one}"
        raise InputError(message, file.path, other)


def _unique_labels(key: TrialFile, names: Names) -> tuple[Array, Array]:
    """Ascending codes of the trials of a key, and their labels; a trial may be repeated, but not contradicted."""
    if key.is_target is None:
        raise InputError("expected `enrol trial target|nontarget`", key.path, 1)
    # The label in the lowest bit, so that one sort does for both: sorting numbers is far faster than ordering rows.
    labelled = np.unique(2 * key.codes(names) + key.is_target)
    codes, labels = labelled // 2, labelled % 2 == 1
    if _repeats(codes).any():
        wrong = np.isin(key.codes(names), codes[1:][_repeats(codes)])
        one, other = _lines_of_repeat(key.path, np.where(wrong, key.codes(names), -1 - np.arange(len(wrong))))
        raise InputError(f"expected the label that line {one} gives this trial, but got the other one", key.path, other)
    return codes, labels


def _repeats(ascending: Array) -> Array:
    """For every place but the first, whether it repeats the one before."""
    return np.asarray(ascending[1:] == ascending[:-1])


def _lines_of_repeat(path: Path, codes: Array) -> tuple[int, int]:
    """Two lines that hold one trial."""
    order = np.argsort(codes, kind="stable")
    at = int(_repeats(codes[order]).argmax())
    return line_of(path, int(order[at])), line_of(path, int(order[at + 1]))


def _find(wanted: Array, ascending: Array) -> tuple[Array, Array]:
    places = np.searchsorted(ascending, wanted).clip(max=len(ascending) - 1)
    return places, ascending[places] == wanted


def _hint(scores: TrialFile, codes: Array, names: Names) -> str:
    swapped = scores._replace(enrol=scores.trial, trial=scores.enrol)
    found = int(_find(swapped.codes(names), codes)[1].sum())
    return f"; with its first two columns exchanged, {found:,} would be" if found else ""


def _notes(scores: TrialFile, key: TrialFile, found: Array, unscored: int, names: Names) -> list[str]:
    notes = []
    if not found.all():
        at = int(found.argmin())
        texts = [names.all()[column[at]].decode(errors="replace") for column in (scores.enrol, scores.trial)]
        example = f"line {line_of(scores.path, at)}: {' '.join(texts)}"
        notes.append(
            f"{scores.path}: {int((~found).sum()):,} of {len(found):,} scores left out, their trials are not "
            f"in {key.path} (first on {example})"
        )
    if unscored:
        notes.append(f"{scores.path}: {unscored:,} trials of {key.path} have no score")
    return notes
