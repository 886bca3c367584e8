"""Lists from files: trials with scores or labels, speakers and groups of utterances.

Text files are separated by blanks or tabs, ``.csv`` files by commas, ``.tsv`` files by tabs;
Parquet is read as well. A first line of known column names names the columns; without it they stand
in the usual order.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from vpmetrics._util.inputs import (
    Array,
    InputError,
    check_unpacked_size,
    describe_error,
    format_suffix,
    open_unpacked,
    quote,
    record_file,
    shorten,
)

_TARGET = "target", "tgt", "tar", "1", "1.0", "true", "same"
_NONTARGET = (
    "nontarget",
    "non-target",
    "non",
    "imp",
    "impostor",
    "imposter",
    "0",
    "0.0",
    "false",
    "different",
)
_ROLES = {
    "enrol": {"reference", "ref", "utt1", "file1", "path1", "wav1"},
    "trial": {"utt2", "file2", "path2", "wav2"},
    "enrol_speaker": {"spk1", "speaker1"},
    "trial_speaker": {"spk2", "speaker2"},
    "score": {"score", "scores", "llr", "similarity", "cosine"},
    "label": {"label", "labels", "target", "targettype", "is_target", "key"},
    "name": {
        "utterance",
        "utt",
        "utterance_id",
        "utt_id",
        "id",
        "name",
        "file",
        "row",
        "index",
        "idx",
    },
    "value": {
        "speaker",
        "spk",
        "speaker_id",
        "spk_id",
        "group",
        "gender",
        "sex",
        "set",
        "weight",
        "value",
    },
}
_ROLE_OF = {name: role for role, names in _ROLES.items() for name in names}
# Words in the names of columns of trials, as in enroll_spk or TestUtterance.
_ENROL_WORDS = {
    "enrol",
    "enroll",
    "enrolment",
    "enrollment",
    "enrolled",
    "reference",
    "ref",
    "model",
    "gallery",
}
_TRIAL_WORDS = {"trial", "test", "probe", "segment"}
_SPEAKER_WORDS = {"speaker", "spk", "spkr"}
_UTTERANCE_WORDS = {"id", "utterance", "utt", "name", "file", "wav", "path", "seg"}
_MOST_COLUMNS = 1000
_BYTES_PER_VALUE = 8  # of a table in memory, about
_PAIR = ("enrol", "trial")


class Trials(NamedTuple):
    """Trials with columns ``enrol`` and ``trial`` if named, ``score`` or ``is_target``; notes on
    missing ones.

    ``speaker_of``: the speaker of every name, where the file has both speakers of a trial.
    """

    frame: pl.DataFrame
    notes: tuple[str, ...] = ()
    path: str = ""
    speaker_of: Mapping[str, str] = {}


def read_scores(path: str | Path, columns: Sequence[str] | None = None) -> Trials:
    """Read lines ``enrol trial score``, with a label after it if any, or lines ``score label``.

    A table with both speakers of every trial, as ``enroll_spk,trial_spk,trial_id,score``, needs no
    labels. ``columns``: their names, ``enrol``, ``trial``, ``score``, ``label`` or others, where
    they are in another order.
    """
    usual = {2: "score label", 3: "enrol trial score", 4: "enrol trial score label"}
    expected = "enrol trial score [target|nontarget]"
    return _read_trials(path, columns, "score", expected, usual, option="--score-columns")


def read_key(path: str | Path, columns: Sequence[str] | None = None) -> Trials:
    """Read lines ``enrol trial target|nontarget``; other columns are left out."""
    expected = "enrol trial target|nontarget"
    return _read_trials(
        path, columns, "label", expected, {3: "enrol trial label"}, option="--key-columns"
    )


def read_map(path: str | Path, expected: str = "utterance speaker") -> dict[str, str]:
    """Read a list of two columns, such as utt2spk, as a dictionary; ``expected`` names the columns
    in messages.
    """
    names, values = read_labels(path, expected, requires_names=True)
    return dict(zip(names or (), values, strict=True))


def read_labels(
    path: str | Path, expected: str, requires_names: bool = False
) -> tuple[list[str] | None, list[str]]:
    """Read lines ``utterance label``, or, unless ``requires_names``, lines ``label``, whose names
    are None.

    A table whose first line names its columns may have them in any order, and others besides.
    """
    table = _read_table(path, expected)
    columns = list(table.frame.columns)
    if table.is_headed:
        columns = _find_name_and_label(columns, expected.split()[-1]) or columns
    if len(columns) != 2 and (requires_names or len(columns) > 2):
        got = f"columns {', '.join(columns)}" if table.is_headed else f"{len(columns)} columns"
        raise InputError(f"expected lines `{expected}`, but got {shorten(got)}", path, 1)
    values = [table.read_names(column).to_list() for column in columns]
    return values[0] if len(values) == 2 else None, values[-1]


def _find_name_and_label(columns: Sequence[str], label: str) -> list[str] | None:
    """Return the column that names utterances and the one whose name has the word ``label``; None
    if unclear.
    """
    names = [column for column in columns if _column_role(column) in ("name", "enrol", "trial")]
    labels = [
        column
        for column in columns
        if label in re.split(r"[\W_]+", column.lower().replace("spk", "speaker"))
    ]
    return [names[0], labels[0]] if len(names) == len(labels) == 1 else None


def read_attributes(path: str | Path) -> dict[str, dict[str, str]]:
    """Read lines ``utterance-or-speaker value``, or a table with a column for each attribute, by
    attribute and name.
    """
    table = _read_table(path, "utterance-or-speaker value")
    if table.frame.width < 2 or (table.frame.width > 2 and not table.is_headed):
        got = f"{table.frame.width} columns without headings"
        raise InputError(
            f"expected `utterance-or-speaker value`, or a table with headings, but got {got}",
            path,
            1,
        )
    names, *values = (table.read_names(column).to_list() for column in table.frame.columns)
    titles = [Path(path).name.split(".")[0].removeprefix("spk2").removeprefix("utt2")]
    titles = table.frame.columns[1:] if table.is_headed else titles
    return {
        title: dict(zip(names, column, strict=True))
        for title, column in zip(titles, values, strict=True)
    }


def read_first_column(path: str | Path) -> list[str]:
    """Read the first column of a list, such as the utterances of enrolment."""
    table = _read_table(path, "utterance")
    return table.read_names(table.frame.columns[0]).to_list()


def has_score_column(path: str) -> bool:
    """Return whether a table, which may hold embeddings or scores, has a column of scores."""
    if format_suffix(path) == "parquet":
        return "score" in map(_column_role, _read_table(path, "columns").frame.columns)
    with open_unpacked(path) as file:
        line = file.readline(1 << 16).decode(errors="replace").strip()
    return "score" in map(_column_role, re.split("[,\t]", line))


def label_trials(scores: Trials, key: Trials | None, strict: bool = False) -> Trials:
    """Join scores with their labels by name, in the order of the scores.

    Without ``key``, ``scores`` must contain the labels. ``strict``: raise for scores without a
    label and labels without a score.
    """
    is_named = "trial" in scores.frame.columns
    if is_named and (copies := scores.frame.select(_PAIR).is_duplicated()).any():
        first = shorten(" ".join(scores.frame.filter(copies).select(_PAIR).row(0)))
        count = len(copies) - scores.frame.select(_PAIR).n_unique()
        got = f"{count:,} of {len(copies):,} lines repeat an earlier trial, first {first}"
        raise InputError(f"expected every trial once, but {got}", scores.path)
    if key is None:
        if "is_target" not in scores.frame.columns:
            expected = (
                "a fourth column target|nontarget, both speakers (enrol_speaker,trial_speaker), or"
                " a key (--key KEY)"
            )
            raise InputError(f"expected {expected}, but got neither", scores.path)
        return Trials(scores.frame, speaker_of=scores.speaker_of)
    if not is_named:
        expected = "the names of both sides of each trial, to find its label in the key"
        raise InputError(f"expected {expected}, but got only scores and labels", scores.path)
    labels = key.frame.select(*_PAIR, "is_target").unique()
    if (twice := labels.select(_PAIR).is_duplicated()).any():
        first = " ".join(labels.filter(twice).select(_PAIR).sort(_PAIR).row(0))
        raise InputError(
            f"expected one label per trial, but {shorten(first)} is target and non-target", key.path
        )
    joined = scores.frame.select(*_PAIR, "score").join(
        labels, on=_PAIR, how="left", maintain_order="left"
    )
    unlabelled = joined.filter(pl.col("is_target").is_null())
    if len(unlabelled) == len(joined):
        count = len(joined.join(labels.select(enrol="trial", trial="enrol"), on=_PAIR, how="semi"))
        hint = f"; {count:,} would be in it if its first two columns were swapped" if count else ""
        raise InputError(
            f"none of its {len(joined):,} trials is in the key {key.path}{hint}", scores.path
        )
    notes = []
    if len(unlabelled):
        first = shorten(" ".join(unlabelled.select(_PAIR).row(0)))
        left_out = f"{len(unlabelled):,} of {len(joined):,} scores left out"
        notes.append(
            f"{scores.path}: {left_out}, their trials are not in {key.path} (first {first})"
        )
    if unscored := len(labels) - len(joined) + len(unlabelled):
        notes.append(f"{scores.path}: {unscored:,} trials of {key.path} have no score")
    if strict and notes:
        raise InputError("; ".join(notes))
    return Trials(joined.drop_nulls("is_target"), tuple(notes))


def index_names(frames: Sequence[pl.DataFrame]) -> tuple[list[str], list[tuple[Array, Array]]]:
    """Return all names of trials, ascending, and the positions of both sides of each trial among
    them.
    """
    names = pl.concat([frame[side] for frame in frames for side in _PAIR]).unique().sort()
    codes = (
        frame.select(pl.col(_PAIR).cast(pl.Enum(names)).to_physical().cast(pl.Int64))
        for frame in frames
    )
    return names.to_list(), [
        (of_frame["enrol"].to_numpy(), of_frame["trial"].to_numpy()) for of_frame in codes
    ]


class _Table(NamedTuple):
    """A list as texts, the number of each line, and whether the file names its columns."""

    path: str | Path
    frame: pl.DataFrame
    lines: pl.Series
    is_headed: bool

    def read_names(self, column: str) -> pl.Series:
        """Return a column; raise where a text is missing."""
        texts = self.frame[column]
        self.check_values(texts, texts != "", "a name")
        return texts

    def check_values(self, column: pl.Series, is_valid: pl.Series, expected: str) -> None:
        """Raise for the first value that is not valid, with its line."""
        wrong = ~is_valid.fill_null(False)
        if wrong.any():
            first = int(wrong.arg_max() or 0)
            got = "nothing" if column[first] in (None, "") else quote(column[first])
            count = (
                f" ({int(wrong.sum()):,} of {len(column):,} lines)" if int(wrong.sum()) > 1 else ""
            )
            raise InputError(
                f"expected {expected}, but got {got}{count}", self.path, self.lines[first]
            )


def _read_trials(
    path: str | Path,
    columns: Sequence[str] | None,
    required: str,
    expected: str,
    usual: dict[int, str],
    option: str,
) -> Trials:
    """Read trials by the role of each column: as given, as named in the file, or as usual for their
    number.
    """
    table = _read_table(path, expected)
    width = table.frame.width
    roles = list(columns or [])
    if not roles and table.is_headed:
        roles = [_column_role(name) for name in table.frame.columns]
    elif not roles:
        roles = usual.get(width, "").split()
    has_speakers = {"enrol_speaker", "trial_speaker"} <= set(roles)
    is_complete = required in roles or (required == "label" and has_speakers)
    if len(roles) != width or not is_complete:
        got = f"columns {', '.join(table.frame.columns)}" if table.is_headed else f"{width} columns"
        hint = (
            "; a table with commas is named .csv"
            if width == 1
            else f"; {option} names the columns of another order"
        )
        raise InputError(f"expected `{expected}`, but got {shorten(got)}{hint}", path, 1)
    column_of = {role: table.frame.columns[roles.index(role)] for role in _ROLES if role in roles}
    trials: dict[str, pl.Series] = {
        side: table.read_names(column_of[side]) for side in _PAIR if side in column_of
    }
    if "score" in column_of and required == "score":
        texts = table.frame[column_of["score"]]
        scores = texts.cast(pl.Float64, strict=False)
        table.check_values(texts, scores.is_not_null() & scores.is_not_nan(), "a number as score")
        trials["score"] = scores
    speaker_of: dict[str, str] = {}
    if has_speakers:
        enrol_speakers = table.read_names(column_of["enrol_speaker"])
        trial_speakers = table.read_names(column_of["trial_speaker"])
        names = _name_sides(trials, enrol_speakers, trial_speakers)
        trials = {**names, **{role: values for role, values in trials.items() if role not in names}}
        trials["is_target"] = enrol_speakers == trial_speakers
        for side, speakers in (("enrol", enrol_speakers), ("trial", trial_speakers)):
            speaker_of.update(zip(names[side].to_list(), speakers.to_list(), strict=True))
    elif "label" in column_of:
        texts = table.frame[column_of["label"]]
        labels = texts.str.to_lowercase()
        is_target = labels.is_in(_TARGET)
        table.check_values(texts, is_target | labels.is_in(_NONTARGET), "target or nontarget")
        trials["is_target"] = is_target
    record_file(path, f"{len(table.frame):,} trials, columns {' '.join(column_of)}")
    return Trials(pl.DataFrame(trials), path=str(path), speaker_of=speaker_of)


def _name_sides(
    trials: Mapping[str, pl.Series], enrol_speakers: pl.Series, trial_speakers: pl.Series
) -> dict[str, pl.Series]:
    """Return the names of both sides of each trial, which are of one speaker each.

    A side that has no names is called by its speaker: the enrolment is one of each speaker, every
    test one of its own.
    """
    lines = pl.Series(range(1, len(enrol_speakers) + 1)).cast(pl.String)
    names = {"enrol": trials.get("enrol", enrol_speakers), "trial": trials.get("trial", lines)}
    speakers = {"enrol": enrol_speakers, "trial": trial_speakers}
    pairs = pl.concat(
        [pl.DataFrame({"name": names[side], "speaker": speakers[side]}) for side in _PAIR]
    ).unique()
    # numbers of utterances that begin anew with every speaker
    if pairs["name"].is_duplicated().any():
        names["trial"] = trial_speakers + "/" + names["trial"]
        if "enrol" in trials:
            names["enrol"] = enrol_speakers + "/" + names["enrol"]
    return names


def _column_role(name: str) -> str:
    """Return the role of a column by its name; empty where the name is unknown."""
    name = name.strip("#\"' \r")
    if known := _ROLE_OF.get(name.lower()):
        return known
    words = (
        re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
        .replace("_", " ")
        .replace("-", " ")
        .lower()
        .split()
    )
    is_enrol = bool(_ENROL_WORDS.intersection(words))
    is_trial = bool(_TRIAL_WORDS.intersection(words))
    known_words = _ENROL_WORDS | _TRIAL_WORDS | _SPEAKER_WORDS | _UTTERANCE_WORDS
    if is_enrol == is_trial or not known_words.issuperset(words):
        return ""
    side = "enrol" if is_enrol else "trial"
    return f"{side}_speaker" if _SPEAKER_WORDS.intersection(words) else side


def _are_column_names(fields: Sequence[str], roles: Sequence[str]) -> bool:
    """Return whether the first line of a table of comma-separated values names its columns."""
    is_label = [field.lower() in (*_TARGET, *_NONTARGET) for field in fields]
    is_number = [
        re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", field.lower()) is not None for field in fields
    ]
    return any(role and not label for role, label in zip(roles, is_label, strict=True)) and not any(
        is_number
    )


def read_parquet(content: bytes, path: str | Path) -> pl.DataFrame:
    """Return the table in the bytes of a Parquet file; raise if it asks for too much memory."""
    lazy = pl.scan_parquet(io.BytesIO(content))
    num_rows = int(lazy.select(pl.len()).collect().item())
    first_row = lazy.head(1).collect()
    num_values = 0
    for column in first_row:
        is_list = isinstance(column.dtype, (pl.List, pl.Array))
        num_values += len(column.explode()) if is_list else 1
    check_unpacked_size(num_rows * num_values * _BYTES_PER_VALUE, path)
    return lazy.collect()


def _read_table(path: str | Path, expected: str) -> _Table:
    """Read all lines that are not blank as texts; columns are named by a first line of known
    names.
    """
    with open_unpacked(path) as file:
        content = file.read()
    if format_suffix(path) == "parquet":
        try:
            frame = read_parquet(content, path)
            frame = frame.select(pl.exclude(pl.List, pl.Array, pl.Struct).cast(pl.String))
        except InputError:
            raise
        # whatever polars raises for a damaged file
        except (Exception, pl.exceptions.PanicException) as error:
            raise InputError(
                f"is not a readable Parquet file ({describe_error(error)})", path
            ) from None
        table = _Table(path, frame, pl.Series(range(1, len(frame) + 1)), is_headed=True)
    elif b"\0" in content[: 1 << 12]:
        raise InputError("expected text, but got a binary file", path)
    else:
        try:
            table = _parse_lines(content.decode("utf-8-sig"), path, expected)
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            got = quote(content.split(b"\n")[line - 1][:100])
            raise InputError(f"expected text in UTF-8, but got {got}", path, line) from None
    if not len(table.frame):
        raise InputError(f"expected lines `{expected}`, but got none", path)
    return table


def _parse_lines(text: str, path: str | Path, expected: str) -> _Table:
    """Split the lines of a text, at blanks unless the suffix says more, and check that all have as
    many fields.
    """
    separator = {"csv": ",", "tsv": "\t"}.get(format_suffix(path))
    if separator is None:
        column = pl.Series(text.split("\n"), dtype=pl.String).str.extract_all(r"\S+")
    else:
        csv.field_size_limit(1 << 30)
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
        try:
            column = pl.Series(
                [[field.strip() for field in row] for row in rows], dtype=pl.List(pl.String)
            )
        except csv.Error as error:
            raise InputError(
                f"cannot be read ({describe_error(error)})", path, rows.line_num
            ) from None
    lines = pl.DataFrame({"fields": column}).with_row_index("line", offset=1)
    lines = lines.filter(pl.col("fields").list.len() > 0)
    if not len(lines):
        raise InputError(
            f"expected lines `{expected}`, but got {'none' if text else 'an empty file'}", path
        )
    lengths = lines["fields"].list.len()
    width = lengths[0]
    if width > _MOST_COLUMNS:
        raise InputError(f"expected lines `{expected}`, but got {width:,} columns", path, 1)
    if (differs := lengths != width).any():
        at = int(differs.arg_max() or 0)
        message = f"expected {width} columns as in the lines before, but got {lengths[at]}"
        raise InputError(message, path, lines["line"][at])
    frame = lines.select(
        pl.col("fields").list.get(at).alias(f"column_{at + 1}") for at in range(width)
    )
    first = list(frame.row(0))
    roles = [*map(_column_role, first)]
    is_headed = all(roles) if separator is None else _are_column_names(first, roles)
    if len(first) < 2 or not is_headed:
        return _Table(path, frame, lines["line"], is_headed=False)
    names = [
        name if name not in first[:at] else f"{name} ({at + 1})" for at, name in enumerate(first)
    ]
    return _Table(
        path,
        frame[1:].rename(dict(zip(frame.columns, names, strict=True))),
        lines["line"][1:],
        True,
    )
