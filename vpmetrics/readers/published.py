"""Published results of other evaluations, to hold ours beside them: systems with their lists,
tables, curves.

Systems of the repository on local information are folders with ``embeddings.parquet`` and lists in
CSV; curves are those of the legally validated evaluation framework, a row for each point. Neither
is part of this package.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vpmetrics._util.inputs import InputError, describe_error, quote
from vpmetrics.local import LocalInformationDisclosure
from vpmetrics.rank import SimilarityRankDisclosure
from vpmetrics.readers.embeddings import EmbeddingFiles
from vpmetrics.readers.trial_files import read_first_column, read_map
from vpmetrics.suite import VoicePrivacy

_EMBEDDINGS = "embeddings.parquet"
_ENROLMENT_WORDS = ("enrol", "reference")
_VERIFICATION = ("d_ece", "eer", "min_cllr", "linkability")


@dataclass(frozen=True)
class PublishedSystem:
    """A system in a folder: its embeddings, a list of enrolment utterances, and one of the speakers
    of utterances.
    """

    name: str
    embeddings: Path
    enrolment: Path | None
    speakers: Path | None


@dataclass(frozen=True)
class Difference:
    """A number of ours beside the one that was published."""

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
    """A point of a published curve: the mean of a measure for a number of people, and its chance
    level.
    """

    measure: str
    attacker: str
    utterances: int
    people: int
    mean: float
    deviation: float
    chance: float


def find_published_systems(folder: str | Path) -> list[PublishedSystem]:
    """List the systems below a folder, each a folder with ``embeddings.parquet`` and lists in
    CSV.
    """
    systems: list[PublishedSystem] = []
    for embeddings in sorted(Path(folder).rglob(_EMBEDDINGS)):
        lists = sorted(embeddings.parent.glob("*.csv"))
        enrolment = [
            path for path in lists if any(word in path.stem.lower() for word in _ENROLMENT_WORDS)
        ]
        speakers = [path for path in lists if _names_utterances_and_speakers(path)]
        systems.append(
            PublishedSystem(
                embeddings.parent.relative_to(folder).as_posix(),
                embeddings,
                enrolment[0] if enrolment else None,
                speakers[0] if speakers else None,
            )
        )
    if not systems:
        raise InputError(f"expected folders with {_EMBEDDINGS}, but found none", folder)
    return systems


def _names_utterances_and_speakers(path: Path) -> bool:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        header = file.readline().lower()
    return "utt" in header and ("speaker" in header or "spk" in header) and "score" not in header


def measure_published_system(system: PublishedSystem) -> dict[str, float]:
    """Return rank disclosure, local information and verification measures of protected speech, PP,
    by short names.
    """
    files = EmbeddingFiles()
    column = files.read_column(str(system.embeddings), "protected")
    protected = column.to_tensor("protected")
    if column.utterances is None:
        raise InputError(
            "expected a column that names utterances, as utterance_id", system.embeddings
        )
    if files.has_speakers(column) or system.speakers is None:
        names = files.read_speakers(None, None, column)
        speakers, _ = names.number_labels(len(protected))
    else:
        speaker_of = read_map(system.speakers)
        missing = [name for name in column.utterances if name not in speaker_of]
        if missing:
            raise InputError(
                f"expected the speaker of every utterance, but not of {quote(missing[0])}",
                system.speakers,
            )
        numbers = np.unique(
            np.array([speaker_of[name] for name in column.utterances]), return_inverse=True
        )[1]
        speakers = torch.from_numpy(numbers)
    is_reference = None
    if system.enrolment is not None:
        enrolled = set(read_first_column(system.enrolment))
        is_reference = torch.tensor([name in enrolled for name in column.utterances])
    keys = [f"pp_{key}" for key in _VERIFICATION]
    suite = VoicePrivacy(metrics=keys, attacks=None, enrolment="speaker")
    values: dict[str, float] = {}
    for metric in (suite, SimilarityRankDisclosure(), LocalInformationDisclosure()):
        metric.update(protected=protected, speakers=speakers, is_reference=is_reference)
        for key, value in metric.compute().items():
            values[key.removeprefix("pp_")] = float(value)
    return values


def read_published_table(path: str | Path) -> dict[str, dict[str, float]]:
    """Read a table with a row for each system, named in the first column, and a measure in each of
    the others.
    """
    table: dict[str, dict[str, float]] = {}
    for row in _read_rows(path):
        name, *texts = row.values()
        measures = [_normalise_name(key) for key in list(row)[1:]]
        table[name.strip()] = {
            measure: number
            for measure, text in zip(measures, texts, strict=True)
            if not math.isnan(number := _parse_number(text))
        }
    return table


def compare_with_published(
    ours: Mapping[str, Mapping[str, float]], published: Mapping[str, Mapping[str, float]]
) -> list[Difference]:
    """Return every number that both have, of systems and measures of one name, in the order of
    ours.
    """
    published_by_name = {_normalise_name(system): values for system, values in published.items()}
    differences: list[Difference] = []
    for system, values in ours.items():
        others = published_by_name.get(_normalise_name(system), {})
        shared = [measure for measure in values if measure in others]
        differences += [
            Difference(system, measure, values[measure], others[measure]) for measure in shared
        ]
    return differences


def read_published_curves(folder: str | Path) -> list[CurvePoint]:
    """Read curves from all files ``<measure>_results.csv`` of a folder: a row for each attacker,
    length and size.
    """
    points: list[CurvePoint] = []
    for path in sorted(Path(folder).glob("*_results.csv")):
        measure = path.name.removesuffix("_results.csv")
        for number, row in enumerate(_read_rows(path), start=2):
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
                    f"expected columns {expected} ({describe_error(error)})", path, number
                ) from None
            points.append(point)
    if not points:
        raise InputError("expected files <measure>_results.csv, but found none", folder)
    return points


def _read_rows(path: str | Path) -> list[dict[str, str]]:
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = [
                {key or "": value or "" for key, value in row.items() if key is not None}
                for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot be read as CSV ({describe_error(error)})", path) from None
    if not rows:
        raise InputError(
            "expected a first line of column names and others below it, but got none", path
        )
    return rows


def _normalise_name(name: str) -> str:
    """Return a name as a key: lower case, with underscores, without units."""
    name = name.split("[")[0].split("(")[0].strip().lower()
    return name.replace("-", "_").replace(" ", "_")


def _parse_number(text: str) -> float:
    """Return the number that a cell begins with, as in ``0.52 ± 0.03``; NaN where there is none."""
    words = text.replace("±", " ").replace("%", " ").split()
    try:
        return float(words[0]) if words else math.nan
    except ValueError:
        return math.nan
