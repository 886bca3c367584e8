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
_ROLE_OF: dict[str, str] = {}
for _role, _names in _ROLES.items():
    _ROLE_OF |= dict.fromkeys(_names, _role)
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
    """Trials with columns ``enrol`` and ``trial`` if named, and ``score``, ``is_target`` or both.

    ``notes`` tell of missing trials. ``speaker_of``: the speaker of every name, where the file has
    both speakers of a trial.
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
    usual = {3: "enrol trial label"}
    return _read_trials(path, columns, "label", expected, usual, option="--key-columns")


def read_map(path: str | Path, expected: str = "utterance speaker") -> dict[str, str]:
    """Read a list of two columns, such as utt2spk, as a dictionary.

    ``expected`` names the columns in messages.
    """
    names, values = read_labels(path, expected, requires_names=True)
    return dict(zip(names or (), values, strict=True))


def read_labels(
    path: str | Path, expected: str, requires_names: bool = False
) -> tuple[list[str] | None, list[str]]:
    """Read lines ``utterance label``, or lines ``label``, whose names are None.

    A table whose first line names its columns may have them in any order, and others besides.
    ``requires_names``: raise for lines ``label``.
    """
    table = _read_table(path, expected)
    columns = list(table.frame.columns)
    if table.is_headed:
        label_word = expected.split()[-1]
        columns = _find_name_and_label(columns, label_word) or columns
    if len(columns) != 2 and (requires_names or len(columns) > 2):
        got = shorten(table.describe_columns(columns))
        raise InputError(f"expected lines `{expected}`, but got {got}", path, 1)
    labels = table.read_names(columns[-1]).to_list()
    if len(columns) != 2:
        return None, labels
    return table.read_names(columns[0]).to_list(), labels


def _find_name_and_label(columns: Sequence[str], label_word: str) -> list[str] | None:
    """Return the column of names and that whose name has the word; None if either is unclear."""
    name_columns: list[str] = []
    label_columns: list[str] = []
    for column in columns:
        if _column_role(column) in ("name", "enrol", "trial"):
            name_columns.append(column)
        words = re.split(r"[\W_]+", column.lower().replace("spk", "speaker"))
        if label_word in words:
            label_columns.append(column)
    if len(name_columns) != 1 or len(label_columns) != 1:
        return None
    return [name_columns[0], label_columns[0]]


def read_attributes(path: str | Path) -> dict[str, dict[str, str]]:
    """Read the value of each utterance or speaker, by attribute and name.

    Lines are ``utterance-or-speaker value``; a table with headings has a column for each attribute.
    """
    table = _read_table(path, "utterance-or-speaker value")
    columns = table.frame.columns
    if len(columns) < 2 or (len(columns) > 2 and not table.is_headed):
        got = f"{len(columns)} columns without headings"
        raise InputError(
            f"expected `utterance-or-speaker value`, or a table with headings, but got {got}",
            path,
            1,
        )
    names = table.read_names(columns[0]).to_list()
    name_of_file = Path(path).name.split(".")[0].removeprefix("spk2").removeprefix("utt2")
    value_of: dict[str, dict[str, str]] = {}
    for column in columns[1:]:
        attribute = column if table.is_headed else name_of_file
        values = table.read_names(column).to_list()
        value_of[attribute] = dict(zip(names, values, strict=True))
    return value_of


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
    if is_named:
        _check_no_trial_twice(scores)
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
    labels = _read_one_label_per_trial(key)
    scored_pairs = scores.frame.select(*_PAIR, "score")
    joined = scored_pairs.join(labels, on=_PAIR, how="left", maintain_order="left")
    unlabelled = joined.filter(pl.col("is_target").is_null())
    if len(unlabelled) == len(joined):
        raise _explain_foreign_key(joined, labels, scores.path, key.path)
    notes = []
    if len(unlabelled):
        first_name = shorten(" ".join(unlabelled.select(_PAIR).row(0)))
        left_out = f"{len(unlabelled):,} of {len(joined):,} scores left out"
        notes.append(
            f"{scores.path}: {left_out}, their trials are not in {key.path} (first {first_name})"
        )
    num_labelled = len(joined) - len(unlabelled)
    num_unscored = len(labels) - num_labelled
    if num_unscored:
        notes.append(f"{scores.path}: {num_unscored:,} trials of {key.path} have no score")
    if strict and notes:
        raise InputError("; ".join(notes))
    return Trials(joined.drop_nulls("is_target"), tuple(notes))


def _check_no_trial_twice(scores: Trials) -> None:
    """Raise where two lines score one trial."""
    pairs = scores.frame.select(_PAIR)
    is_repeated = pairs.is_duplicated()
    if is_repeated.any():
        first_name = shorten(" ".join(pairs.filter(is_repeated).row(0)))
        count = len(pairs) - pairs.n_unique()
        got = f"{count:,} of {len(pairs):,} lines repeat an earlier trial, first {first_name}"
        raise InputError(f"expected every trial once, but {got}", scores.path)


def _read_one_label_per_trial(key: Trials) -> pl.DataFrame:
    """Return the label of every trial of a key; raise where a trial has both."""
    labels = key.frame.select(*_PAIR, "is_target").unique()
    has_both = labels.select(_PAIR).is_duplicated()
    if has_both.any():
        name = " ".join(labels.filter(has_both).select(_PAIR).sort(_PAIR).row(0))
        raise InputError(
            f"expected one label per trial, but {shorten(name)} is target and non-target", key.path
        )
    return labels


def _explain_foreign_key(
    joined: pl.DataFrame, labels: pl.DataFrame, scores_path: str, key_path: str
) -> InputError:
    """Return the error of scores none of which is in the key; it tells if columns are swapped."""
    swapped_labels = labels.select(enrol="trial", trial="enrol")
    num_swapped = len(joined.join(swapped_labels, on=_PAIR, how="semi"))
    message = f"none of its {len(joined):,} trials is in the key {key_path}"
    if num_swapped:
        message += f"; {num_swapped:,} would be in it if its first two columns were swapped"
    return InputError(message, scores_path)


def index_names(frames: Sequence[pl.DataFrame]) -> tuple[list[str], list[tuple[Array, Array]]]:
    """Return all names of trials, ascending, and the index of both sides of each trial among them.

    The index is a pair of arrays ``(P,)`` for each frame: enrolments and tests.
    """
    columns: list[pl.Series] = []
    for frame in frames:
        columns += [frame["enrol"], frame["trial"]]
    names = pl.concat(columns).unique().sort()
    as_index = pl.col(_PAIR).cast(pl.Enum(names)).to_physical().cast(pl.Int64)
    pairs: list[tuple[Array, Array]] = []
    for frame in frames:
        index = frame.select(as_index)
        pairs.append((index["enrol"].to_numpy(), index["trial"].to_numpy()))
    return names.to_list(), pairs


class _Table(NamedTuple):
    """A list as texts, the number of each line, and whether the file names its columns."""

    path: str | Path
    frame: pl.DataFrame
    lines: pl.Series
    is_headed: bool

    def describe_columns(self, columns: Sequence[str]) -> str:
        """Return the names of columns, or their number where the file does not name them."""
        if self.is_headed:
            return f"columns {', '.join(columns)}"
        return f"{len(columns)} columns"

    def read_names(self, column: str) -> pl.Series:
        """Return a column; raise where a text is missing."""
        texts = self.frame[column]
        self.check_values(texts, texts != "", "a name")
        return texts

    def check_values(self, column: pl.Series, is_valid: pl.Series, expected: str) -> None:
        """Raise for the first value that is not valid, with its line."""
        is_wrong = ~is_valid.fill_null(False)
        num_wrong = int(is_wrong.sum())
        if not num_wrong:
            return
        first_row = int(is_wrong.arg_max() or 0)
        value = column[first_row]
        got = "nothing" if value in (None, "") else quote(value)
        if num_wrong > 1:
            got += f" ({num_wrong:,} of {len(column):,} lines)"
        raise InputError(f"expected {expected}, but got {got}", self.path, self.lines[first_row])


def _read_trials(
    path: str | Path,
    columns: Sequence[str] | None,
    required: str,
    expected: str,
    usual: dict[int, str],
    option: str,
) -> Trials:
    """Read trials whose columns have the roles that are given, named in the file, or usual.

    ``required``: the role that must be there, ``score`` or ``label``. ``expected`` describes a line
    in messages. ``usual``: the roles of columns without names, by their number. ``option`` names
    the option that gives ``columns``.
    """
    table = _read_table(path, expected)
    roles = _find_roles(table, columns, usual)
    has_speakers = {"enrol_speaker", "trial_speaker"} <= set(roles)
    is_complete = required in roles or (required == "label" and has_speakers)
    width = table.frame.width
    if len(roles) != width or not is_complete:
        got = shorten(table.describe_columns(table.frame.columns))
        hint = f"{option} names the columns of another order"
        if width == 1:
            hint = "a table with commas is named .csv"
        raise InputError(f"expected `{expected}`, but got {got}; {hint}", path, 1)

    column_of = {role: table.frame.columns[roles.index(role)] for role in _ROLES if role in roles}
    names = {side: table.read_names(column_of[side]) for side in _PAIR if side in column_of}
    trials: dict[str, pl.Series] = dict(names)
    if "score" in column_of and required == "score":
        trials["score"] = _read_score_column(table, column_of["score"])
    speaker_of: dict[str, str] = {}
    if has_speakers:
        speakers = {
            "enrol": table.read_names(column_of["enrol_speaker"]),
            "trial": table.read_names(column_of["trial_speaker"]),
        }
        names = _name_sides(names, speakers)
        trials = {**names, **{role: trials[role] for role in trials if role not in names}}
        trials["is_target"] = speakers["enrol"] == speakers["trial"]
        for side in _PAIR:
            speaker_of.update(zip(names[side].to_list(), speakers[side].to_list(), strict=True))
    elif "label" in column_of:
        trials["is_target"] = _read_label_column(table, column_of["label"])
    record_file(path, f"{len(table.frame):,} trials, columns {' '.join(column_of)}")
    return Trials(pl.DataFrame(trials), path=str(path), speaker_of=speaker_of)


def _find_roles(
    table: _Table, columns: Sequence[str] | None, usual: Mapping[int, str]
) -> list[str]:
    """Return the role of each column; none where neither options, names nor their number tell."""
    if columns:
        return list(columns)
    if table.is_headed:
        return [_column_role(name) for name in table.frame.columns]
    return usual.get(table.frame.width, "").split()


def _read_score_column(table: _Table, column: str) -> pl.Series:
    """Return a column of numbers; raise for anything else."""
    texts = table.frame[column]
    scores = texts.cast(pl.Float64, strict=False)
    table.check_values(texts, scores.is_not_null() & scores.is_not_nan(), "a number as score")
    return scores


def _read_label_column(table: _Table, column: str) -> pl.Series:
    """Return whether each trial is a target; raise for what is neither label."""
    texts = table.frame[column]
    labels = texts.str.to_lowercase()
    is_target = labels.is_in(_TARGET)
    table.check_values(texts, is_target | labels.is_in(_NONTARGET), "target or nontarget")
    return is_target


def _name_sides(
    given_names: Mapping[str, pl.Series], speakers: Mapping[str, pl.Series]
) -> dict[str, pl.Series]:
    """Return the names of both sides of each trial, which are of one speaker each.

    A side that has no names is called by its speaker: the enrolment is one of each speaker, every
    test one of its own.
    """
    names = dict(given_names)
    if "enrol" not in names:
        names["enrol"] = speakers["enrol"]
    if "trial" not in names:
        num_trials = len(speakers["trial"])
        names["trial"] = pl.Series(range(1, num_trials + 1)).cast(pl.String)
    sides = [pl.DataFrame({"name": names[side], "speaker": speakers[side]}) for side in _PAIR]
    pairs = pl.concat(sides).unique()
    # numbers of utterances that start again with every speaker
    if pairs["name"].is_duplicated().any():
        names["trial"] = speakers["trial"] + "/" + names["trial"]
        if "enrol" in given_names:
            names["enrol"] = speakers["enrol"] + "/" + names["enrol"]
    return {side: names[side] for side in _PAIR}


def _column_role(name: str) -> str:
    """Return the role of a column by its name; empty where the name is unknown."""
    name = name.strip("#\"' \r")
    known_role = _ROLE_OF.get(name.lower())
    if known_role is not None:
        return known_role
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)  # as in TestUtterance
    words = spaced.replace("_", " ").replace("-", " ").lower().split()
    is_enrol = bool(_ENROL_WORDS.intersection(words))
    is_trial = bool(_TRIAL_WORDS.intersection(words))
    known_words = _ENROL_WORDS | _TRIAL_WORDS | _SPEAKER_WORDS | _UTTERANCE_WORDS
    if is_enrol == is_trial or not known_words.issuperset(words):
        return ""
    side = "enrol" if is_enrol else "trial"
    if _SPEAKER_WORDS.intersection(words):
        return f"{side}_speaker"
    return side


def _are_column_names(fields: Sequence[str], roles: Sequence[str]) -> bool:
    """Return whether the first line of a comma-separated table names its columns.

    It does if no field is a number, and at least one field is a known name of a column and not a
    label.

    Args:
        fields: The texts of the first line.
        roles: What :func:`_column_role` finds for each text; empty where it is no known name.
    """
    num_names = 0
    for field, role in zip(fields, roles, strict=True):
        text = field.lower()
        if re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", text):
            return False  # a line of data
        # "target" names a column, and is a label too.
        is_label = text in _TARGET or text in _NONTARGET
        if role and not is_label:
            num_names += 1
    return num_names > 0


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
    """Read all lines that are not blank as texts; a first line of known names names the columns."""
    with open_unpacked(path) as file:
        content = file.read()
    if format_suffix(path) == "parquet":
        table = _read_parquet_as_texts(content, path)
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


def _read_parquet_as_texts(content: bytes, path: str | Path) -> _Table:
    """Return the columns of a Parquet file that are no lists, as texts."""
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
    return _Table(path, frame, pl.Series(range(1, len(frame) + 1)), is_headed=True)


def _parse_lines(text: str, path: str | Path, expected: str) -> _Table:
    """Split the lines of a text, and check that all have as many fields.

    Fields are separated by blanks, unless the suffix of the file says more.
    """
    separator = {"csv": ",", "tsv": "\t"}.get(format_suffix(path))
    if separator is None:
        fields_by_line = pl.Series(text.split("\n"), dtype=pl.String).str.extract_all(r"\S+")
    else:
        fields_by_line = _split_delimited(text, separator, path)
    lines = pl.DataFrame({"fields": fields_by_line}).with_row_index("line", offset=1)
    lines = lines.filter(pl.col("fields").list.len() > 0)
    if not len(lines):
        got = "none" if text else "an empty file"
        raise InputError(f"expected lines `{expected}`, but got {got}", path)

    num_fields = lines["fields"].list.len()
    width = num_fields[0]
    if width > _MOST_COLUMNS:
        raise InputError(f"expected lines `{expected}`, but got {width:,} columns", path, 1)
    is_of_other_width = num_fields != width
    if is_of_other_width.any():
        row = int(is_of_other_width.arg_max() or 0)
        message = f"expected {width} columns as in the lines before, but got {num_fields[row]}"
        raise InputError(message, path, lines["line"][row])
    columns: list[pl.Expr] = []
    for index in range(width):
        columns.append(pl.col("fields").list.get(index).alias(f"column_{index + 1}"))
    frame = lines.select(columns)

    headings = list(frame.row(0))
    roles = [_column_role(heading) for heading in headings]
    if separator is None:
        is_headed = all(roles)
    else:
        is_headed = _are_column_names(headings, roles)
    if width < 2 or not is_headed:
        return _Table(path, frame, lines["line"], is_headed=False)
    new_names: dict[str, str] = {}
    for index, (column, heading) in enumerate(zip(frame.columns, headings, strict=True)):
        is_repeated = heading in headings[:index]
        new_names[column] = f"{heading} ({index + 1})" if is_repeated else heading
    return _Table(path, frame[1:].rename(new_names), lines["line"][1:], is_headed=True)


def _split_delimited(text: str, separator: str, path: str | Path) -> pl.Series:
    """Return the fields of each line of a table of separated values, without blanks around them."""
    csv.field_size_limit(1 << 30)
    source = io.StringIO(text, newline="")
    rows = csv.reader(source, delimiter=separator, skipinitialspace=True)
    fields_by_line: list[list[str]] = []
    try:
        for row in rows:
            fields_by_line.append([field.strip() for field in row])
    except csv.Error as error:
        raise InputError(f"cannot be read ({describe_error(error)})", path, rows.line_num) from None
    return pl.Series(fields_by_line, dtype=pl.List(pl.String))
