"""What each command was asked for, as dataclasses.

Nothing here imports torch, so that ``--help`` is quick.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from vpmetrics.readers.options import RowOptions

CONFIDENCE = 0.95  # of intervals
Options = TypeVar("Options")


@dataclass(frozen=True)
class OutputOptions:
    """What a command prints and writes.

    ``out``: a folder for everything; ``json``: a file for the results, ``-`` prints them and
    nothing else. ``utility``: ``NAME=VALUE`` or tables of other measurements.
    """

    title: str | None = None
    out: Path | None = None
    json: Path | None = None
    all: bool = False
    utility: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("default",)
    figures: tuple[str, ...] = ("png",)

    @property
    def is_json_printed(self) -> bool:
        """Whether the results are printed as JSON, and nothing else is."""
        return str(self.json) == "-"


@dataclass(frozen=True)
class MeasureOptions:
    """How embeddings are compared and what is measured."""

    scoring: str | None = None
    plda_fit: str | None = None
    population: tuple[int, ...] = ()
    distractors: str | None = None
    no_attacks: bool = False
    intervals: float | None = CONFIDENCE


@dataclass(frozen=True)
class RecordingOptions:
    """How recordings are embedded."""

    encoder: tuple[str, ...] = ()
    feature: tuple[str, ...] = ()
    device: str | None = None
    no_audio: bool = False


@dataclass(frozen=True)
class SpeechOptions:
    """What is common to ``evaluate`` and ``compare``.

    Original and protected speech, as recordings or embeddings.
    """

    rows: RowOptions
    measures: MeasureOptions
    recordings: RecordingOptions
    output: OutputOptions
    arguments: tuple[str, ...]
    trials: tuple[str, ...]
    key_columns: tuple[str, ...]
    weights: str | None
    attributes: str | None


@dataclass(frozen=True)
class EvaluateOptions(SpeechOptions):
    """``inputs``: one file of all arrays, or one of each side. Sides may also be named."""

    inputs: tuple[str, ...]
    original: tuple[str, ...]
    protected: tuple[str, ...]


@dataclass(frozen=True)
class CompareOptions(SpeechOptions):
    """``systems``: ``NAME=FILE``."""

    systems: tuple[str, ...]
    original: tuple[str, ...]


@dataclass(frozen=True)
class ScoresOptions:
    """Files of scores: one or two for each system, or those of one system by condition."""

    output: OutputOptions
    arguments: tuple[str, ...]
    files: tuple[str, ...]
    oo: str | None
    op: str | None
    pp: str | None
    key: str | None
    speakers: str | None
    row_speakers: str | None
    column_speakers: str | None
    similarity: str | None
    intervals: float | None
    score_columns: tuple[str, ...]
    key_columns: tuple[str, ...]
    strict: bool
    fit: tuple[str, ...]


@dataclass(frozen=True)
class ChallengeOptions:
    """Folders of results of a challenge."""

    output: OutputOptions
    arguments: tuple[str, ...]
    folders: tuple[str, ...]
    speakers: str | None
    weights: str | None
    scoring: str | None
    plda_fit: str | None
    no_attacks: bool
    intervals: float | None


@dataclass(frozen=True)
class EmbedOptions:
    """Recordings, and where their embeddings are written."""

    source: str
    out: Path
    encoder: str
    speakers: str | None
    speaker_pattern: str | None
    partial: bool
    device: str | None


@dataclass(frozen=True)
class DemoOptions:
    """The training of the demo."""

    out: Path
    seed: int
    epochs: int
    arguments: tuple[str, ...]


def read_options(kind: type[Options], parsed: Namespace) -> Options:
    """Return what was parsed as a dataclass, whose fields may be dataclasses."""
    types = get_type_hints(kind)
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if is_dataclass(types[field.name]):
            values[field.name] = read_options(types[field.name], parsed)
        elif hasattr(parsed, field.name):
            value = getattr(parsed, field.name)
            if isinstance(value, list):
                value = tuple(value)
            values[field.name] = value
    return kind(**values)


def describe_settings(options: Any) -> dict[str, Any]:
    """Return what was chosen, by name.

    Inputs, outputs and options that were not set are left out.
    """
    settings: dict[str, Any] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, OutputOptions) or field.name == "arguments":
            continue
        if is_dataclass(value):
            settings |= describe_settings(value)
        elif value not in (None, False, ()) or field.name == "intervals":
            settings[field.name] = value
    return settings
