"""Published results of other evaluations, to compare ours with them.

These are systems with their lists, tables, curves and score matrices.

Systems of the repository on local information are folders with ``embeddings.parquet``, and share
lists of utterances in CSV. Curves and score matrices are those of the legally validated evaluation
framework. Neither is part of this package.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vpmetrics._util.inputs import InputError, describe_error
from vpmetrics.functional import (
    equal_error_rate,
    fit_local_slope,
    linkability,
    local_information_disclosure,
    min_cllr,
    rank_disclosure,
    rank_histogram,
    raw_equal_error_rate,
    zebra_disclosure,
)
from vpmetrics.readers.embeddings import Column, EmbeddingFiles
from vpmetrics.readers.trial_files import read_map

_EMBEDDINGS = "embeddings.parquet"
_SPLITS = ("test", "dev")
_LISTS_FOLDER = "shared"
_MATRIX_NAME = re.compile(r"scores_(?P<attacker>.+)_L(?P<utterances>\d+)\.npy")
# What others call a measure; their Cllr is that after isotonic regression.
_MEASURE_OF_NAME = {
    "lid+": "lid_pos",
    "lid-": "lid_neg",
    "cllr": "min_cllr",
    "eer": "raw_eer",
}


@dataclass(frozen=True)
class UtteranceLists:
    """Two lists of utterances and their speakers.

    The first are those that speakers are enrolled with, the second those tested.
    """

    enrolment: Path
    trials: Path


@dataclass(frozen=True)
class PublishedSystem:
    """A system in a folder: its embeddings, and lists of the utterances it is evaluated on.

    ``development``: lists of other speakers, whom the slope of local information is fitted on.
    """

    name: str
    embeddings: Path
    test: UtteranceLists
    development: UtteranceLists | None


@dataclass(frozen=True)
class PublishedMatrix:
    """A score matrix in a file, of an attacker and a number of utterances per conversation."""

    path: Path
    attacker: str
    utterances: int


@dataclass(frozen=True)
class _ScoredTrials:
    """The scores of tests against one reference per enrolled speaker."""

    scores: Tensor  # (T, N), cosines
    target_index: Tensor  # (T,), the column of the own speaker
    tests: Tensor  # (T, D), unit rows
    references: Tensor  # (N, D), means of unit rows


@dataclass(frozen=True)
class Difference:
    """A number of ours, and the one that was published."""

    system: str
    measure: str
    ours: float
    published: float

    @property
    def difference(self) -> float:
        """Return how much ours is larger."""
        return self.ours - self.published


@dataclass(frozen=True)
class CurvePoint:
    """A point of a published curve.

    It has the mean of a measure for a number of people, and its chance level.
    """

    measure: str
    attacker: str
    utterances: int
    people: int
    mean: float
    deviation: float
    chance: float


def find_published_systems(folder: str | Path) -> list[PublishedSystem]:
    """List the systems below a folder.

    A system has ``<system>/embeddings/embeddings.parquet``. Next to it or above are the lists
    ``shared/test_enrolls.csv``, ``shared/test_trials.csv`` and the same of ``dev``.
    """
    root = Path(folder)
    systems: list[PublishedSystem] = []
    for embeddings in sorted(root.rglob(_EMBEDDINGS)):
        system_folder = embeddings.parent
        if system_folder.name == "embeddings":
            system_folder = system_folder.parent
        lists = {split: _find_lists(system_folder, root, split) for split in _SPLITS}
        test = lists["test"]
        if test is None:
            raise InputError(
                f"expected {_LISTS_FOLDER}/test_enrolls.csv and test_trials.csv beside or above it,"
                " but found none",
                embeddings,
            )
        systems.append(PublishedSystem(system_folder.name, embeddings, test, lists["dev"]))
    if not systems:
        raise InputError(f"expected folders with {_EMBEDDINGS}, but found none", folder)
    return systems


def _find_lists(system_folder: Path, root: Path, split: str) -> UtteranceLists | None:
    """Return the lists of a split that are nearest to a system's folder; None if there are none."""
    for parent in (system_folder, *system_folder.parents):
        for candidate in (parent, parent / _LISTS_FOLDER):
            lists = UtteranceLists(
                candidate / f"{split}_enrolls.csv", candidate / f"{split}_trials.csv"
            )
            if lists.enrolment.is_file() and lists.trials.is_file():
                return lists
        if parent == root:
            break
    return None


def measure_published_system(system: PublishedSystem) -> dict[str, float]:
    """Return local information, rank disclosure and verification measures, by short names.

    As its authors do: a reference is the mean of a speaker's unit embeddings, listed utterances
    without an embedding are left out, and the slope is fitted on the development lists (without
    them ``slope`` and all of local information are missing). ``w`` is the slope for scores that
    are standardised by the sample deviation, as they publish it.
    """
    column = EmbeddingFiles().read_column(str(system.embeddings), "protected")
    if column.utterances is None:
        raise InputError(
            "expected a column that names utterances, as utterance_id", system.embeddings
        )
    trials = _score_lists(column, system.test)
    values: dict[str, Tensor] = {}
    if system.development is not None:
        development = _score_lists(column, system.development)
        slope = fit_local_slope(development.scores, development.target_index)
        values |= local_information_disclosure(trials.scores, trials.target_index, slope)
        num_references = development.scores.shape[1]
        values["slope"] = slope
        values["w"] = slope * math.sqrt(num_references / (num_references - 1))
    num_references = trials.scores.shape[1]
    histogram = rank_histogram(
        trials.tests, trials.target_index, trials.references, torch.arange(num_references)
    )
    values |= rank_disclosure(histogram)
    is_target = trials.target_index.unsqueeze(1) == torch.arange(num_references)
    scores = trials.scores.flatten()
    target = is_target.flatten().long()
    values["d_ece"] = zebra_disclosure(scores, target)["d_ece"]
    values["eer"] = equal_error_rate(scores, target)
    values["raw_eer"] = raw_equal_error_rate(scores, target)
    values["min_cllr"] = min_cllr(scores, target)
    values["linkability"] = linkability(scores, target)
    return {name: float(value) for name, value in values.items()}


def _score_lists(column: Column, lists: UtteranceLists) -> _ScoredTrials:
    """Score the tests of a list against the enrolled speakers of another, float64."""
    row_of = column.rows_by_name()
    enrolled, enrolled_speakers = _read_present(lists.enrolment, row_of)
    tested, tested_speakers = _read_present(lists.trials, row_of)
    names = sorted(set(enrolled_speakers))
    index_of = {name: index for index, name in enumerate(names)}
    is_enrolled = [speaker in index_of for speaker in tested_speakers]
    if not all(is_enrolled):
        speaker = tested_speakers[is_enrolled.index(False)]
        raise InputError(
            f"expected tests of enrolled speakers, but {speaker!r} is not in"
            f" {lists.enrolment.name}",
            lists.trials,
        )
    enrolled_rows = normalize(column.to_tensor("protected", enrolled).double())
    tests = normalize(column.to_tensor("protected", tested).double())
    speaker_index = torch.tensor([index_of[speaker] for speaker in enrolled_speakers])
    sums = tests.new_zeros(len(names), tests.shape[1]).index_add(0, speaker_index, enrolled_rows)
    references = sums / torch.bincount(speaker_index).unsqueeze(1)
    target_index = torch.tensor([index_of[speaker] for speaker in tested_speakers])
    return _ScoredTrials(tests @ normalize(references).T, target_index, tests, references)


def _read_present(path: Path, row_of: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Return the utterances of a list that have embeddings, and their speakers."""
    speaker_of = read_map(path)
    present = [name for name in speaker_of if name in row_of]
    if not present:
        raise InputError(f"expected utterances of {_EMBEDDINGS}, but none is there", path)
    return present, [speaker_of[name] for name in present]


def find_published_matrices(folder: str | Path) -> list[PublishedMatrix]:
    """List the score matrices of a folder, files ``scores_<attacker>_L<utterances>.npy``."""
    matrices: list[PublishedMatrix] = []
    for path in sorted(Path(folder).glob("scores_*.npy")):
        match = _MATRIX_NAME.fullmatch(path.name)
        if match is not None:
            utterances = int(match["utterances"])
            matrices.append(PublishedMatrix(path, match["attacker"], utterances))
    if not matrices:
        raise InputError(
            "expected files scores_<attacker>_L<utterances>.npy, but found none", folder
        )
    return matrices


def read_published_table(path: str | Path) -> dict[str, dict[str, float]]:
    """Read a table with a row for each system and a measure in each column.

    The first column names the systems, the others are measures, which get our names. Percentages,
    whose column says so, become shares.
    """
    table: dict[str, dict[str, float]] = {}
    for row in _read_rows(path):
        headings = list(row)
        values: dict[str, float] = {}
        for heading in headings[1:]:
            value = _parse_number(row[heading])
            if math.isnan(value):
                continue
            measure = _normalise_name(heading)
            scale = 100 if "%" in heading else 1
            values[_MEASURE_OF_NAME.get(measure, measure)] = value / scale
        table[row[headings[0]].strip()] = values
    return table


def compare_with_published(
    ours: Mapping[str, Mapping[str, float]], published: Mapping[str, Mapping[str, float]]
) -> list[Difference]:
    """Return every number that both have, with the published one, in the order of ours.

    Names of systems may differ in case, in units in brackets, and in spaces or hyphens between
    words. Names of measures must be equal.

    Args:
        ours: By system, values by the name of the measure.
        published: The same of published results.
    """
    published_by_name = {_normalise_name(system): values for system, values in published.items()}
    differences: list[Difference] = []
    for system, values in ours.items():
        published_values = published_by_name.get(_normalise_name(system), {})
        for measure, value in values.items():
            if measure in published_values:
                difference = Difference(system, measure, value, published_values[measure])
                differences.append(difference)
    return differences


def read_published_curves(folder: str | Path) -> list[CurvePoint]:
    """Read curves from all files ``<measure>_results.csv`` of a folder.

    A file has a row for each attacker, length and size.
    """
    points: list[CurvePoint] = []
    for path in sorted(Path(folder).glob("*_results.csv")):
        measure = path.name.removesuffix("_results.csv")
        for line_number, row in enumerate(_read_rows(path), start=2):
            try:
                mean = next(value for key, value in row.items() if key.endswith("_mean"))
                deviation = next(value for key, value in row.items() if key.endswith("std"))
                attacker = row["attacker"].lower().replace("-", "_")
                people = int(row["enrollment_speakers"])
                point = CurvePoint(
                    measure,
                    attacker,
                    int(row["L"]),
                    people,
                    float(mean),
                    float(deviation),
                    float(row["chance"]),
                )
            except (KeyError, ValueError, StopIteration) as error:
                expected = "attacker,L,enrollment_speakers,<measure>_mean,<measure>_std,chance"
                raise InputError(
                    f"expected columns {expected} ({describe_error(error)})", path, line_number
                ) from None
            points.append(point)
    if not points:
        raise InputError("expected files <measure>_results.csv, but found none", folder)
    return points


def _read_rows(path: str | Path) -> list[dict[str, str]]:
    """Return the rows of a table by heading; texts that are missing are empty."""
    rows: list[dict[str, str]] = []
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            for row in csv.DictReader(file):
                texts: dict[str, str] = {}
                for heading, text in row.items():
                    # Fields beyond the headings have none.
                    if heading is not None:
                        texts[heading] = text or ""
                rows.append(texts)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read as CSV ({describe_error(error)})", path) from None
    if not rows or not rows[0]:
        raise InputError(
            "expected a first line of column names and others below it, but got none", path
        )
    return rows


def _normalise_name(name: str) -> str:
    """Return a name as a key: lower case, without units, with underscores between words."""
    name = name.split("[")[0].split("(")[0].strip().lower()
    return re.sub(r"[\s-]+(?=\w)", "_", name)


def _parse_number(text: str) -> float:
    """Return the number that a cell begins with, as in ``0.52 ± 0.03``; NaN where there is none."""
    words = text.replace("±", " ").replace("%", " ").split()
    try:
        return float(words[0]) if words else math.nan
    except ValueError:
        return math.nan
