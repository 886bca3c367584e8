"""Score matrices: a row for each enrolled speaker, a column for each test.

Two lists give their speakers.

``m.npy`` with the speakers in ``m.npy.json`` or in two text files, or ``m.npz`` with all three.
Matrices are read by blocks of rows, since they may be larger than the memory.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from vpmetrics._identification.population import rates_of_histogram
from vpmetrics._scores.condition_scores import collect_block_scores
from vpmetrics._scores.registry import scalar_key
from vpmetrics._util.inputs import (
    InputError,
    describe_error,
    format_suffix,
    quote,
    record_file,
    shorten,
)
from vpmetrics.functional.rank import rank_disclosure
from vpmetrics.readers.formats import check_array_header
from vpmetrics.readers.trial_files import read_labels
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.trial_report import ScoredTrials, report_condition_scores, report_trials

_VALUES_AT_ONCE = 1 << 20  # of a block of rows
_FEW_TRIALS = 1 << 22  # up to which every trial is kept, for intervals
_SAMPLE_ROWS = 64  # that say where the bins of a histogram are to be
_ROW_WORDS = {
    "enrol",
    "enroll",
    "enrolment",
    "enrollment",
    "row",
    "rows",
    "reference",
    "references",
    "gallery",
    "model",
}
_COLUMN_WORDS = {"test", "trial", "trials", "tests", "column", "columns", "probe", "probes"}
_NO_ATTACKS = "scores give an attacker nothing to learn from; embeddings of both sides would"


@dataclass(frozen=True)
class ScoreMatrix:
    """A matrix in a file, ``(A, B)``, and the speakers of its rows and columns.

    A trial is a target where both speakers are the same. Speakers of rows without a column are
    distractors.
    """

    path: str
    member: str  # of an archive; empty for a file of the matrix alone
    row_speakers: tuple[str, ...]
    column_speakers: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return len(self.row_speakers), len(self.column_speakers)

    def speaker_indices(self) -> tuple[Tensor, Tensor, tuple[str, ...]]:
        """Return a number for the speaker of every row and column, and the speakers' names."""
        names, index = np.unique(
            np.array([*self.row_speakers, *self.column_speakers]), return_inverse=True
        )
        rows, columns = torch.from_numpy(index).split(list(self.shape))
        return rows, columns, tuple(names.tolist())

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield some rows after others, and their scores ``(b, B)``, floating."""
        num_rows, num_columns = self.shape
        step = max(1, _VALUES_AT_ONCE // max(1, num_columns))
        with _open_matrix(self.path, self.member) as file:
            dtype = _read_header(file, self.path).dtype
            for start in range(0, num_rows, step):
                stop = min(start + step, num_rows)
                count = (stop - start) * num_columns
                content = file.read(count * dtype.itemsize)
                if len(content) < count * dtype.itemsize:
                    raise InputError(
                        "is cut off in row"
                        f" {start + len(content) // (num_columns * dtype.itemsize)}",
                        self.path,
                    )
                values = np.frombuffer(content, dtype).reshape(-1, num_columns)
                wide = np.float64 if dtype == np.float64 else np.float32
                scores = torch.from_numpy(values.astype(wide))
                if bool(scores.isnan().any()):
                    row, column = scores.isnan().nonzero()[0].tolist()
                    got = f"NaN in row {start + row}, column {column}"
                    raise InputError(f"expected numbers as scores, but got {got}", self.path)
                yield slice(start, stop), scores


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def is_score_matrix(path: str | Path) -> bool:
    """Return whether a file is a score matrix.

    It has a sidecar with the speakers, or holds them.
    """
    try:
        if format_suffix(path) == "npy":
            sidecar = _find_sidecar(path)
            return sidecar is not None and len(_read_sidecar(sidecar)) == 2
        if format_suffix(path) != "npz" or not Path(path).is_file():
            return False
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except (InputError, OSError, zipfile.BadZipFile):
        return False
    return (
        _find_by_words(names, _ROW_WORDS) is not None
        and _find_by_words(names, _COLUMN_WORDS) is not None
    )


def read_score_matrix(
    path: str | Path,
    row_speakers: str | Path | None = None,
    column_speakers: str | Path | None = None,
) -> ScoreMatrix:
    """Read the shape of a score matrix and the speakers of its rows and columns.

    Args:
        path: A file ``.npy``, or ``.npz`` with one matrix.
        row_speakers: A text with the speaker of each row, a line each; by default they are in the
            archive, or in ``<path>.json``.
        column_speakers: The same of the columns.
    """
    member = ""
    lists: dict[str, list[str]] = {}
    try:
        sidecar = _find_sidecar(path)
        if format_suffix(path) == "npz":
            member, lists = _read_archived_lists(path)
        elif sidecar is not None:
            lists = _read_sidecar(sidecar)
        with _open_matrix(path, member) as file:
            header = _read_header(file, path)
    except InputError:
        raise
    except Exception as error:  # whatever NumPy raises for a damaged file
        raise InputError(
            f"is not a readable score matrix ({describe_error(error)})", path
        ) from None
    for side, source in (("rows", row_speakers), ("columns", column_speakers)):
        if source is not None:
            lists[side] = read_labels(source, "speaker")[1]
    for axis, side in enumerate(("rows", "columns")):
        if side not in lists:
            option = "--row-speakers" if side == "rows" else "--column-speakers"
            expected = (
                f"{option} FILE with a speaker a line, or {Path(path).name}.json with both lists"
            )
            raise InputError(f"expected the speakers of its {side}: {expected}", path)
        if len(lists[side]) != header.shape[axis]:
            got = f"{len(lists[side]):,} for {header.shape[axis]:,} {side}"
            raise InputError(f"expected a speaker for each of its {side}, but got {got}", path)
    record_file(path, f"score matrix {header.shape[0]:,} x {header.shape[1]:,}")
    return ScoreMatrix(str(path), member, tuple(lists["rows"]), tuple(lists["columns"]))


def _find_by_words(names: Sequence[str], words: set[str]) -> str | None:
    """Return the only name with one of some words in it; None if there is none."""
    found = [name for name in names if words.intersection(re.split(r"[\W_]+", name.lower()))]
    return found[0] if len(found) == 1 else None


def _find_sidecar(path: str | Path) -> Path | None:
    for name in (f"{path}.json", str(Path(path).with_suffix(".json"))):
        if Path(name).is_file():
            return Path(name)
    return None


def _read_sidecar(path: Path) -> dict[str, list[str]]:
    """Read both lists of speakers of a JSON file.

    Keys are found by their words, as in ``enroll_speakers``.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"is not readable as JSON ({describe_error(error)})", path) from None
    if not isinstance(content, dict):
        raise InputError(
            f"expected an object with two lists of speakers, but got {type(content).__name__}", path
        )
    lists: dict[str, list[str]] = {}
    names = [name for name, value in content.items() if isinstance(value, list)]
    for side, words in (("rows", _ROW_WORDS), ("columns", _COLUMN_WORDS)):
        name = _find_by_words(names, words)
        if name is None:
            expected = "enroll_speakers" if side == "rows" else "test_speakers"
            got = shorten(", ".join(content), 100) or "nothing"
            raise InputError(
                f"expected a list {quote(expected)} of the speakers of {side}, but got {got}", path
            )
        if not all(isinstance(speaker, (str, int)) for speaker in content[name]):
            raise InputError(f"expected names of speakers in {name}, but got other values", path)
        lists[side] = [str(speaker) for speaker in content[name]]
    return lists


def _read_archived_lists(path: str | Path) -> tuple[str, dict[str, list[str]]]:
    """Return the name of the only matrix of an archive, and its lists of speakers."""
    matrices: list[str] = []
    lists: dict[str, list[str]] = {}
    with zipfile.ZipFile(path) as archive:
        vectors: dict[str, zipfile.ZipInfo] = {}
        for entry in archive.infolist():
            with archive.open(entry) as file:
                header = _read_header(file, path, entry.file_size)
            if len(header.shape) == 2:
                matrices.append(entry.filename)
            elif len(header.shape) == 1:
                vectors[entry.filename.removesuffix(".npy")] = entry
        for side, words in (("rows", _ROW_WORDS), ("columns", _COLUMN_WORDS)):
            name = _find_by_words(list(vectors), words)
            if name is not None:
                with archive.open(vectors[name]) as file:
                    lists[side] = (
                        np.lib.format.read_array(file, allow_pickle=False).astype(str).tolist()
                    )
    if len(matrices) != 1:
        raise InputError(f"expected one matrix of scores, but got {len(matrices)}", path)
    return matrices[0], lists


@contextmanager
def _open_matrix(path: str | Path, member: str) -> Iterator[IO[bytes]]:
    if not member:
        with Path(path).open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive, archive.open(member) as packed:
        yield packed


def _read_header(file: IO[bytes], path: str | Path, size: int | None = None) -> _Header:
    """Read the shape of an array, and leave the file where its numbers begin."""
    if size is None:
        size = file.seek(0, 2)
        file.seek(0)
    shape, is_fortran_order, dtype = check_array_header(file, size, str(path))
    if len(shape) == 2 and (dtype.kind not in "fiu" or is_fortran_order):
        if is_fortran_order:
            got = "columns one after the other"
        else:
            got = str(dtype)
        raise InputError(
            f"expected rows of numbers, but got {got}; save np.ascontiguousarray(scores)", path
        )
    return _Header(shape, dtype)


@dataclass(frozen=True)
class MatrixRanks:
    """How often the own speaker of a test comes first, second and so on among all rows.

    The histogram has counts ``(A,)``, float64.
    """

    histogram: Tensor

    def rates(self, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Return ``rate_<N>``, ``chance_<N>`` and ``gallery``.

        They are what :class:`vpmetrics.ReidentificationRate` returns.
        """
        return rates_of_histogram(self.histogram, sizes)


def rank_matrix(matrix: ScoreMatrix) -> MatrixRanks:
    """Count the ranks of the own speakers of tests among all rows; rows are of different speakers.

    Tests of speakers without a row are left out. Rows with equal scores share their ranks.
    """
    row_speaker, column_speaker, _ = matrix.speaker_indices()
    if len(row_speaker.unique()) < len(row_speaker):
        raise InputError(
            "expected rows of different speakers, to rank them, but some are of one speaker",
            matrix.path,
        )
    row_of_speaker = torch.full((int(max(row_speaker.max(), column_speaker.max())) + 1,), -1)
    row_of_speaker[row_speaker] = torch.arange(len(row_speaker))
    own_row = row_of_speaker[column_speaker]
    tested = (own_row >= 0).nonzero().flatten()
    own_row = own_row[tested]
    own_score = torch.zeros(len(tested), dtype=torch.float64)
    for rows, scores in matrix.blocks():
        is_here = (own_row >= rows.start) & (own_row < rows.stop)
        own_score[is_here] = scores[own_row[is_here] - rows.start, tested[is_here]].double()
    num_above = torch.zeros(len(tested), dtype=torch.int64)
    num_equal = torch.zeros(len(tested), dtype=torch.int64)  # and the own speaker
    for _, scores in matrix.blocks():
        own = own_score.to(scores.dtype)
        num_above += (scores[:, tested] > own).sum(0)
        num_equal += (scores[:, tested] == own).sum(0)
    share = 1 / num_equal.double()
    steps = torch.zeros(len(row_speaker) + 1, dtype=torch.float64)
    steps.index_add_(0, num_above, share)
    steps.index_add_(0, num_above + num_equal, -share)
    return MatrixRanks(steps.cumsum(0)[:-1])


def evaluate_score_matrices(
    name: str, matrices: Mapping[str, ScoreMatrix], confidence: float | None = None
) -> EvaluatedSystem:
    """Evaluate a system by its score matrix in each condition.

    The key of ``matrices`` is the condition, empty where it is not known.

    Matrices of up to four million scores get confidence intervals; the scores of larger ones are
    counted by blocks. Ranks are computed of matrices whose rows are different speakers.
    """
    num_scores = max(matrix.shape[0] * matrix.shape[1] for matrix in matrices.values())
    notes: list[str] = []
    if num_scores <= _FEW_TRIALS:
        trials, speakers = _collect_trials(matrices)
        report = report_trials(
            trials, num_speakers=len(speakers), similarity=None, intervals=confidence
        )
    else:
        scores = {condition: _count_scores(matrix) for condition, matrix in matrices.items()}
        report = report_condition_scores(scores)
        speakers = _list_tested_speakers(matrices)
        if confidence:
            notes.append(
                f"No intervals: the matrix has {num_scores:,} scores, more than {_FEW_TRIALS:,}."
            )
    scalars = dict(report.scalars)
    for condition, matrix in matrices.items():
        notes.append(_describe_matrix(condition, matrix))
        num_row_speakers = len(set(matrix.row_speakers))
        if num_row_speakers < matrix.shape[0]:
            continue  # several rows of a speaker have no rank of that speaker
        ranks = rank_disclosure(rank_matrix(matrix).histogram, validate_args=False)
        if condition:
            for key in ("max_d", "mean_d", "id_rate"):
                scalars[scalar_key(condition, key)] = ranks[key]
        else:
            # Tables show ranks by condition; of an unnamed one there is a note.
            notes.append(
                f"the own speaker comes first in {float(ranks['id_rate']):.1%} of the tests that"
                " have one"
            )
    tests = max(matrix.shape[1] for matrix in matrices.values())
    return EvaluatedSystem(
        name,
        replace(report, scalars=scalars),
        speakers,
        tuple(notes),
        utterances=tests,
        no_attacks=_NO_ATTACKS,
    )


def _list_tested_speakers(matrices: Mapping[str, ScoreMatrix]) -> tuple[str, ...]:
    """Return the speakers of the columns of all matrices, sorted."""
    tested: set[str] = set()
    for matrix in matrices.values():
        tested.update(matrix.column_speakers)
    return tuple(sorted(tested))


def _describe_matrix(condition: str, matrix: ScoreMatrix) -> str:
    """Return a note on the size of a matrix."""
    num_rows, num_columns = matrix.shape
    num_distractors = len(set(matrix.row_speakers) - set(matrix.column_speakers))
    start = f"{condition}: " if condition else ""
    return (
        f"{start}{num_rows:,} enrolled speakers, {num_distractors:,} of them without a"
        f" test, and {num_columns:,} tests"
    )


def _collect_trials(
    matrices: Mapping[str, ScoreMatrix],
) -> tuple[dict[str, ScoredTrials], tuple[str, ...]]:
    """Return every trial of small matrices, and the names of speakers."""
    every_speaker: set[str] = set()
    for matrix in matrices.values():
        every_speaker.update(matrix.row_speakers, matrix.column_speakers)
    names = tuple(sorted(every_speaker))
    index_of = {name: index for index, name in enumerate(names)}
    trials: dict[str, ScoredTrials] = {}
    for condition, matrix in matrices.items():
        row_speaker = torch.tensor([index_of[name] for name in matrix.row_speakers])
        column_speaker = torch.tensor([index_of[name] for name in matrix.column_speakers])
        scores = torch.cat([scores for _, scores in matrix.blocks()])
        sides = torch.meshgrid(row_speaker, column_speaker, indexing="ij")
        speakers = torch.stack(sides).flatten(1)
        trials[condition] = ScoredTrials(scores.flatten(), speakers[0] == speakers[1], speakers)
    return trials, names


def _count_scores(matrix: ScoreMatrix) -> Any:
    row_speaker, column_speaker, _ = matrix.speaker_indices()

    def label_blocks() -> Iterator[tuple[Tensor, Tensor]]:
        for rows, scores in matrix.blocks():
            yield scores, row_speaker[rows, None] == column_speaker

    return collect_block_scores(_sample_scores(matrix), label_blocks())


def _sample_scores(matrix: ScoreMatrix) -> Tensor:
    """Return the scores of some rows, evenly spaced."""
    stride = max(1, matrix.shape[0] // _SAMPLE_ROWS)
    sampled: list[Tensor] = []
    for rows, scores in matrix.blocks():
        is_sampled = torch.arange(rows.start, rows.stop) % stride == 0
        sampled.append(scores[is_sampled])
    return torch.cat(sampled)
