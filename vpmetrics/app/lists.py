"""Lists of trials, with scores or labels: which column is what, and names as numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import polars as pl

from vpmetrics.app.columns import NUMBER, Array, Layout, Role, Rows
from vpmetrics.app.files import STANDARD_INPUT, saw
from vpmetrics.app.frames import holds_matrix
from vpmetrics.app.parquet import is_parquet, open_parquet
from vpmetrics.app.records import line_of, read_columns
from vpmetrics.app.text import first_fields

_TARGET = "target", "tgt", "tar", "1", "1.0", "true", "same"
_NONTARGET = "nontarget", "non-target", "non", "imp", "impostor", "imposter", "0", "0.0", "false", "different"
_LABEL = re.compile("|".join(map(re.escape, (*_TARGET, *_NONTARGET))), re.IGNORECASE)

# Names of columns in the first line of a file, in any case.
_HEADINGS = {
    "enrol": {"reference", "ref", "speaker", "speaker_id", "spk", "utt1", "file1", "path1", "wav1"}
    | {f"{name}{end}" for name in ("enrol", "enroll", "enrolment", "enrollment", "model") for end in ("", "_id", "id")},
    "trial": {"trial", "trial_id", "test", "test_id", "probe", "probe_id", "segment", "segmentid"}
    | {"utt2", "file2", "path2", "wav2", "utterance", "utt"},
    "score": {"score", "scores", "llr", "similarity", "cosine", "sim", "value", "pred", "preds"},
    "label": {"label", "labels", "target", "targets", "targettype", "key", "class", "is_target", "truth", "same"},
}
_ROLE_OF = {heading: role for role, headings in _HEADINGS.items() for heading in headings}
_SCORES = "enrol trial score [target|nontarget]"
_KEY = "enrol trial target|nontarget"
_SCORE_LAYOUTS = (
    ("enrol", "trial", "score"),
    ("enrol", "trial", "score", "label"),
    ("enrol", "trial", "label", "score"),  # SpeechBrain
    ("label", "enrol", "trial", "score"),
    ("score", "label"),
    ("label", "score"),
)
_KEY_LAYOUTS = (
    ("enrol", "trial", "label"),
    ("label", "enrol", "trial"),  # VoxCeleb
    ("enrol", "trial", "", "label"),
    ("enrol", "trial", "label", ""),
    ("label", "enrol", "trial", ""),
)


class Names:
    """A number for every name, the same in all files of one run."""

    def __init__(self) -> None:
        self.role = Role(pl.Categorical(pl.Categories.random()))  # numbers of its own, forgotten with it
        self._pool = pl.Series([], dtype=self.role.dtype)  # Polars numbers anew once no series is left
        self._texts: list[str] = []

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, number: int) -> str:
        return self._texts[number]

    def all(self) -> list[str]:
        """All names, by number."""
        return list(self._texts)

    def learn(self, columns: pl.DataFrame) -> list[Array]:
        """The numbers of the names in columns of :attr:`role`; those first met here get the next."""
        if not columns.width:
            return []
        kinds = pl.concat([column.unique() for column in columns]).unique()
        fresh = kinds.filter(kinds.to_physical() >= len(self))
        numbers = fresh.to_physical().to_list()
        self._texts += [""] * (max(numbers, default=-1) + 1 - len(self))
        for number, text in zip(numbers, fresh.cast(pl.String).to_list(), strict=True):
            self._texts[number] = text
        return [column.to_physical().to_numpy() for column in columns]


class TrialFile(NamedTuple):
    """The trials of one file in its order: numbers of both names, and scores, labels or both."""

    path: str
    layout: Layout
    enrol: Array
    trial: Array
    scores: Array | None
    is_target: Array | None

    @property
    def has_names(self) -> bool:
        """Whether the file says whom a trial compares; where it does not, trials count as different from each other."""
        return "trial" in self.layout.roles

    def codes(self, names: Names) -> Array:
        """One number per trial; equal for equal trials."""
        return self.enrol.astype(np.int64) * len(names) + self.trial if self.has_names else self.trial

    def line(self, record: int) -> int | None:
        """The line a trial stands on."""
        return line_of(self.path, record, self.layout)


def read_scores(path: str | Path, names: Names) -> TrialFile:
    """A file of lines ``enrol trial score``, with the label before or after it, in front, or without names."""
    return _read(path, names, _SCORE_LAYOUTS, "score", _SCORES)


def read_key(path: str | Path, names: Names) -> TrialFile:
    """A file of lines ``enrol trial target|nontarget``, or with the label in front; scores in it are passed over."""
    return _read(path, names, _KEY_LAYOUTS, "label", _KEY)


def looks_like_key(path: str | Path) -> bool:
    """Whether the first lines are `enrol trial target|nontarget`, in words: 0 and 1 may as well be scores."""
    if str(path) == STANDARD_INPUT:
        return False
    fields = first_fields(path)
    return len(fields) == 3 and any(_LABEL.fullmatch(fields[k]) and not NUMBER.fullmatch(fields[k]) for k in (0, 2))


def holds_trials(path: str) -> bool:
    """Whether a Parquet file is a list: it has a column of scores by name, or none that could be embeddings."""
    if str(path) == STANDARD_INPUT or not is_parquet(path):
        return False
    schema = open_parquet(path).collect_schema()
    return "score" in _headings(schema.names()) or not holds_matrix(schema)


def _read(path: str | Path, names: Names, layouts: Sequence[tuple[str, ...]], needed: str, expected: str) -> TrialFile:
    label = Role(pl.Categorical(pl.Categories.random()), _LABEL, "target or nontarget")
    roles = {"enrol": names.role, "trial": names.role, "label": label}
    if needed == "score":
        roles["score"] = Role(pl.Float64, NUMBER, "a number as score")
    parts = list(read_columns(path, roles, partial(_choose, layouts, needed), expected))
    layout, columns = parts[0].layout, pl.concat([part.columns for part in parts])
    saw(path, f"{len(columns):,} trials, {layout}")
    named = [role for role in ("enrol", "trial") if role in columns.columns]
    numbers = dict(zip(named, names.learn(columns.select(named)), strict=True))
    enrol, trial = (numbers.get(role, np.arange(len(columns))) for role in ("enrol", "trial"))
    scores = columns["score"].to_numpy(writable=True) if "score" in columns.columns else None
    is_target = _is_target(columns["label"]) if "label" in columns.columns else None
    return TrialFile(str(path), layout, enrol, trial, scores, is_target)


def _choose(
    layouts: Sequence[tuple[str, ...]], needed: str, rows: Rows, lenient: bool
) -> tuple[tuple[str, ...], bool] | None:
    """The first layout that all lines fit; else the first line has to name the columns."""
    headings = _headings(rows[0])
    if all(field.lower() in _ROLE_OF for field in rows[0]) and needed in headings:
        return headings, True  # before anything else: `target` is a heading and a label
    possible = [layout for layout in layouts if len(layout) == len(rows[0])]
    for asked in (rows, rows[:1]):
        for layout in possible:
            if all(_fits(row, layout) for row in asked):
                return layout, False
    if needed in headings and len(headings) > 1:
        return headings, True
    return (possible[0], False) if lenient and len(rows[0]) > 2 and possible else None


def _fits(row: Sequence[str], layout: tuple[str, ...]) -> bool:
    patterns = {"score": NUMBER, "label": _LABEL}
    return all(role not in patterns or patterns[role].fullmatch(field) for role, field in zip(layout, row, strict=True))


def _headings(row: Sequence[str]) -> tuple[str, ...]:
    """Roles by the names of columns; the first columns of unknown name are those compared, unless others are."""
    roles = [_ROLE_OF.get(field.lower().strip("#\"' "), "") for field in row]
    roles = [role if role not in roles[:at] else "" for at, role in enumerate(roles)]
    for role in ("enrol", "trial"):
        if role not in roles and "" in roles:
            roles[roles.index("")] = role
    return tuple(roles)


def _is_target(labels: pl.Series) -> Array:
    kinds = labels.unique()
    numbers = kinds.to_physical().to_numpy()
    meaning = np.zeros(numbers.max() + 1, dtype=np.bool_)
    meaning[numbers] = [text.lower() in _TARGET for text in kinds.cast(pl.String).to_list()]
    return cast(Array, meaning[labels.to_physical().to_numpy()])
