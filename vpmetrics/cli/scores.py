"""Lists from files: trials with scores or labels, speakers and groups of utterances.

Text files are separated by blanks or tabs, ``.csv`` files by commas, ``.tsv`` files by tabs; Parquet is read as well. A
first line of known column names names the columns; without it they stand in the usual order.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from vpmetrics.cli.errors import InputError, quote, reason_of, shorten
from vpmetrics.cli.inputs import Array, read_bytes, record_file, suffix_of

_TARGET = "target", "tgt", "tar", "1", "1.0", "true", "same"
_NONTARGET = "nontarget", "non-target", "non", "imp", "impostor", "imposter", "0", "0.0", "false", "different"
_ROLES = {
    "enrol": {"reference", "ref", "utt1", "file1", "path1", "wav1"}
    | {f"{name}{end}" for name in ("enrol", "enroll", "enrolment", "enrollment", "model") for end in ("", "_id", "id")},
    "trial": {"trial", "trial_id", "test", "test_id", "probe", "probe_id", "segment", "utt2", "file2", "path2", "wav2"},
    "score": {"score", "scores", "llr", "similarity", "cosine"},
    "label": {"label", "labels", "target", "targettype", "is_target", "key"},
    "name": {"utterance", "utt", "utterance_id", "utt_id", "id", "name", "file", "row", "index", "idx"},
    "value": {"speaker", "spk", "speaker_id", "spk_id", "group", "gender", "sex", "set", "weight", "value"},
}
_ROLE_OF = {name: role for role, names in _ROLES.items() for name in names}
_SCORES = (
    "enrol trial score [target|nontarget]",
    {2: "score label", 3: "enrol trial score", 4: "enrol trial score label"},
)
_KEY = "enrol trial target|nontarget", {3: "enrol trial label"}
_MOST_COLUMNS = 1000


class TrialFile(NamedTuple):
    """The trials of one file in its order: columns ``enrol`` and ``trial`` if named, ``score``, ``is_target``."""

    path: str
    frame: pl.DataFrame

    @property
    def is_named(self) -> bool:
        """Whether the file names what its trials compare."""
        return "trial" in self.frame.columns


class Trials(NamedTuple):
    """Trials with columns ``score``, ``is_target`` and, if named, ``enrol`` and ``trial``; what was left out."""

    frame: pl.DataFrame
    notes: tuple[str, ...] = ()


def read_scores(path: str | Path, columns: Sequence[str] | None = None) -> TrialFile:
    """Read lines ``enrol trial score``, with a label after it if any, or lines ``score label``.

    Args:
        path: The file.
        columns: Names of its columns, ``enrol``, ``trial``, ``score``, ``label`` or others, in another order.
    """
    return _read_trials(path, columns, "score", *_SCORES)


def read_key(path: str | Path, columns: Sequence[str] | None = None) -> TrialFile:
    """Read lines ``enrol trial target|nontarget``; other columns are left out."""
    return _read_trials(path, columns, "label", *_KEY)


def read_map(path: str | Path, headings: tuple[str, str] = ("utterance", "speaker")) -> dict[str, str]:
    """Read a list of two columns, such as utt2spk, as a dictionary."""
    table = _read_table(path, " ".join(headings))
    if table.frame.width != 2:
        raise InputError(f"expected lines `{' '.join(headings)}`, but got {table.frame.width} columns", path, 1)
    keys, values = (table.texts(column) for column in table.frame.columns)
    return dict(zip(keys.to_list(), values.to_list(), strict=True))


def read_labels(path: str | Path, heading: str) -> tuple[list[str] | None, list[str]]:
    """Read lines ``utterance label``, or lines ``label`` in the order of rows, whose names are None."""
    table = _read_table(path, f"utterance {heading}")
    if table.frame.width > 2:
        raise InputError(f"expected lines `utterance {heading}`, but got {table.frame.width} columns", path, 1)
    columns = [table.texts(column).to_list() for column in table.frame.columns]
    return columns[0] if len(columns) == 2 else None, columns[-1]


def read_attributes(path: str | Path) -> dict[str, dict[str, str]]:
    """Read lines ``utterance-or-speaker value``, or a table with a column for each attribute, by attribute and name."""
    table = _read_table(path, "utterance-or-speaker value")
    if table.frame.width < 2 or (table.frame.width > 2 and not table.headings and suffix_of(path) != "parquet"):
        got = f"{table.frame.width} columns without headings"
        raise InputError(f"expected `utterance-or-speaker value`, or a table with headings, but got {got}", path, 1)
    first, *others = table.frame.columns
    names = table.texts(first).to_list()
    is_titled = table.headings or suffix_of(path) == "parquet"
    titles = others if is_titled else [Path(path).name.split(".")[0].removeprefix("spk2").removeprefix("utt2")]
    return {
        title: dict(zip(names, table.texts(column).to_list(), strict=True))
        for title, column in zip(titles, others, strict=True)
    }


def read_list(path: str | Path) -> list[str]:
    """Read the first column of a list, such as the utterances of enrolment."""
    table = _read_table(path, "utterance")
    return table.texts(table.frame.columns[0]).to_list()


def has_scores(path: str) -> bool:
    """Return whether a table, which may hold embeddings or scores, has a column of scores."""
    if suffix_of(path) == "parquet":
        names = _read_table(path, "columns").frame.columns
    else:
        names = re.split("[,\t]", read_bytes(path)[: 1 << 16].decode(errors="replace").split("\n")[0])
    return "score" in map(_role_of, names)


def label_trials(scores: TrialFile, key: TrialFile | None, strict: bool = False) -> Trials:
    """Join scores with their labels by name, in the order of the scores.

    Args:
        scores: The scores, labelled or not.
        key: The labels; None where the scores have them.
        strict: Raise for scores without a label and labels without a score.
    """
    pair = ["enrol", "trial"]
    if scores.is_named and (copies := scores.frame.select(pair).is_duplicated()).any():
        first, number = (
            " ".join(scores.frame.filter(copies).row(0)[:2]),
            len(copies) - scores.frame.select(pair).n_unique(),
        )
        raise InputError(f"expected every trial once, but {number:,} occur again, first {shorten(first)}", scores.path)
    if key is None:
        if "is_target" not in scores.frame.columns:
            expected = "a fourth column target|nontarget, or a key (--key KEY)"
            raise InputError(f"expected {expected}, but got neither", scores.path)
        return Trials(scores.frame)
    if not scores.is_named:
        raise InputError("expected the names of both sides of a trial, but got scores and labels alone", scores.path)
    labels = key.frame.select(*pair, "is_target").unique()
    if (twice := labels.select(pair).is_duplicated()).any():
        first = " ".join(labels.filter(twice).select(pair).sort(pair).row(0))
        raise InputError(f"expected one label per trial, but {shorten(first)} is target and non-target", key.path)
    joined = scores.frame.select(*pair, "score").join(labels, on=pair, how="left", maintain_order="left")
    labelled = joined["is_target"].is_not_null()
    if not labelled.any():
        turned = labels.select(enrol="trial", trial="enrol")
        number = len(joined.join(turned, on=pair, how="semi"))
        hint = f"; with its first two columns exchanged, {number:,} would be" if number else ""
        raise InputError(f"none of its {len(joined):,} trials is in the key {key.path}{hint}", scores.path)
    notes = []
    if not labelled.all():
        first = shorten(" ".join(joined.filter(~labelled).select(pair).row(0)))
        left_out = f"{int((~labelled).sum()):,} of {len(joined):,} scores left out"
        notes.append(f"{scores.path}: {left_out}, their trials are not in {key.path} (first {first})")
    if unscored := len(labels) - int(labelled.sum()):
        notes.append(f"{scores.path}: {unscored:,} trials of {key.path} have no score")
    if strict and notes:
        raise InputError("; ".join(notes))
    return Trials(joined.filter(labelled), tuple(notes))


def number_names(frames: Sequence[pl.DataFrame]) -> tuple[list[str], list[tuple[Array, Array]]]:
    """Return all names of trials, ascending, and the positions of both sides of each trial among them."""
    names = pl.concat([frame[side] for frame in frames for side in ("enrol", "trial")]).unique().sort()
    kind = pl.Enum(names)

    def positions(column: pl.Series) -> Array:
        return column.cast(kind).to_physical().to_numpy().astype("int64")

    return names.to_list(), [(positions(frame["enrol"]), positions(frame["trial"])) for frame in frames]


class _Table(NamedTuple):
    """The lines of a list as texts, and how many lines of headings stand before them."""

    path: str | Path
    frame: pl.DataFrame
    headings: int

    def texts(self, column: str) -> pl.Series:
        """Return a column in which every text is required."""
        texts = self.frame[column]
        self.require(texts, texts.is_not_null() & (texts != ""), "a name")
        return texts

    def require(self, column: pl.Series, is_valid: pl.Series, expected: str) -> None:
        """Raise for the first value that is not valid, with its line."""
        wrong = ~is_valid.fill_null(False)
        if wrong.any():
            record = int(wrong.arg_max() or 0)
            got = "nothing" if column[record] is None else quote(column[record])
            count = f" ({int(wrong.sum()):,} of {len(column):,} lines)" if int(wrong.sum()) > 1 else ""
            raise InputError(f"expected {expected}, but got {got}{count}", self.path, self._line_of(record))

    def _line_of(self, record: int) -> int:
        if suffix_of(self.path) == "parquet":
            return record + 1
        record += self.headings
        lines = (number for number, line in enumerate(read_bytes(self.path).split(b"\n"), 1) if line.strip())
        return next(number for at, number in enumerate(lines) if at == record)


def _read_trials(
    path: str | Path, columns: Sequence[str] | None, needed: str, expected: str, usual: dict[int, str]
) -> TrialFile:
    table = _read_table(path, expected)
    named = [_role_of(name) for name in table.frame.columns]
    roles = list(columns or []) or (named if table.headings or suffix_of(path) == "parquet" else [])
    roles = roles or usual.get(table.frame.width, "").split()
    if needed not in roles or len(roles) != table.frame.width:
        got = f"columns {', '.join(table.frame.columns)}" if any(named) else f"{table.frame.width} columns"
        hint = "; a table with commas is named .csv" if table.frame.width == 1 else ""
        raise InputError(f"expected `{expected}`, but got {shorten(got)}{hint}", path, 1)
    used = {role: table.frame.columns[roles.index(role)] for role in _ROLES if role in roles}
    made: dict[str, pl.Series] = {side: table.texts(used[side]) for side in ("enrol", "trial") if side in used}
    if needed == "score":
        texts = table.frame[used["score"]]
        made["score"] = scores = texts.cast(pl.Float64, strict=False)
        table.require(texts, scores.is_not_null() & scores.is_not_nan(), "a number as score")
    if "label" in used:
        texts = table.frame[used["label"]]
        labels = texts.str.to_lowercase()
        made["is_target"] = is_target = labels.is_in(_TARGET)
        table.require(texts, is_target | labels.is_in(_NONTARGET), "target or nontarget")
    record_file(path, f"{len(table.frame):,} trials, columns {' '.join(used)}")
    return TrialFile(str(path), pl.DataFrame(made))


def _role_of(name: str) -> str:
    return _ROLE_OF.get(name.strip("#\"' \r").lower(), "")


def _read_table(path: str | Path, expected: str) -> _Table:
    """Read all lines that are not blank as texts; columns are named by a first line of known names."""
    content, suffix = read_bytes(path), suffix_of(path)
    if suffix == "parquet":
        try:
            frame = pl.read_parquet(io.BytesIO(content))
            frame = frame.select(pl.exclude(pl.List, pl.Array, pl.Struct).cast(pl.String))
        except Exception as error:  # whatever polars raises for a damaged file
            raise InputError(f"is not a readable Parquet file ({reason_of(error)})", path) from None
        table = _Table(path, frame, 0)
    else:
        table = _parse_text(content, {"csv": ",", "tsv": "\t"}.get(suffix, " "), path, expected)
    if not len(table.frame):
        raise InputError(f"expected lines `{expected}`, but got none", path)
    return table


def _parse_text(content: bytes, separator: str, path: str | Path, expected: str) -> _Table:
    content = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    if b"\0" in content[: 1 << 12]:
        raise InputError("expected text, but got a binary file", path)
    text = _tidy(content, separator)
    if not text:
        raise InputError(f"expected lines `{expected}`, but got {'none' if content else 'an empty file'}", path)
    width = 1 + text[: text.find(b"\n") % (len(text) + 1)].count(separator.encode())
    if width > _MOST_COLUMNS:
        raise InputError(f"expected lines `{expected}`, but got {width:,} columns", path, 1)
    quote_char = None if separator == " " else '"'
    try:
        frame = pl.read_csv(text, separator=separator, quote_char=quote_char, has_header=False, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        _raise_for_line(content, separator, path)
        raise InputError(f"cannot be read ({reason_of(error)})", path) from None
    if frame.select(pl.any_horizontal(pl.all().is_null()).any()).item():
        _raise_for_line(content, separator, path)
    first = [str(field or "") for field in frame.row(0)]
    roles = [_role_of(field) for field in first]
    if len(first) < 2 or not any(roles) or (separator == " " and not all(roles)):
        return _Table(path, frame, 0)
    names = [name if name not in first[:at] else f"{name} ({at + 1})" for at, name in enumerate(first)]
    return _Table(path, frame[1:].rename(dict(zip(frame.columns, names, strict=True))), 1)


def _tidy(content: bytes, separator: str) -> bytes:
    """Return a text with one separator between two fields, none around them, and no blank lines, as polars wants it."""
    if separator == " ":
        if any(mark in content for mark in (b"  ", b"\t", b" \n", b"\n ")):
            content = re.sub(rb"[ \t]+", b" ", content).replace(b" \n", b"\n").replace(b"\n ", b"\n")
    elif re.search(rb" %b|%b " % (separator.encode(), separator.encode()), content):
        content = re.sub(rb" *%b *" % separator.encode(), separator.encode(), content)
    if b"\n\n" in content:
        content = re.sub(rb"\n+", b"\n", content)
    return content.strip(b" \n")


def _raise_for_line(content: bytes, separator: str, path: str | Path) -> None:
    """Raise for the first line that is no text, or has another number of fields than the first."""
    width = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise InputError(f"expected text in UTF-8, but got {quote(line[:100])}", path, number) from None
        if text.strip():
            fields = (
                next(csv.reader([text], delimiter=separator)) if '"' in text else text.split(separator.strip() or None)
            )
            width = width or len(fields)
            if len(fields) != width:
                raise InputError(
                    f"expected {width} columns as in the lines before, but got {len(fields)}", path, number
                )
