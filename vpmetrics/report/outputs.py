"""The folder of an evaluation: results, tables, figures, a page and a model card."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from vpmetrics import __version__
from vpmetrics._scores.registry import CI_SUFFIXES
from vpmetrics._util.inputs import InputError
from vpmetrics.report import comparison, summary
from vpmetrics.report.folder import RESULTS, check_output_folder, replace_folder
from vpmetrics.report.headline import Risk, describe_utterances
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.results import Run, encode_json, make_results
from vpmetrics.report.tables import Cell, Table, clean, tables_of_system

PAGE = "report.html"
TABLES = "tables"
TABLE_SUFFIXES = ("csv", "md", "tex")
FIGURE_SUFFIXES = ("png", "pdf", "svg")
MODEL_CARD = "model-card.md"


class Sample(NamedTuple):
    """A recording to listen to, before and after protection: the bytes of two WAV files."""

    speaker: str
    label: str
    original: bytes
    protected: bytes


@dataclass(frozen=True)
class Content:
    """Tables, checks and notes on some systems; the page shows them with figures."""

    title: str
    lead: str
    systems: Sequence[EvaluatedSystem]
    run: Run
    columns: Sequence[str] = ("default",)
    samples: Sequence[Sample] = ()

    @cached_property
    def pairs(self) -> list[comparison.Pair]:
        """The pairs of systems that can be compared."""
        return comparison.compare_pairs_by_disclosure(
            self.systems, self.run.settings.get("intervals")
        )

    @cached_property
    def tables(self) -> list[Table]:
        """All that is known of one system, or systems side by side.

        The details of each are folded.
        """
        systems = self.systems
        if len(systems) == 1 and tuple(self.columns) == ("default",):
            return tables_of_system(systems[0])
        tables = [comparison.table_of_systems(systems, self.title, self.columns)]
        if len(systems) == 2:
            tables.append(
                comparison.table_of_changes(
                    systems[0], systems[1], self.run.settings.get("intervals")
                )
            )
        tables.append(comparison.table_of_pairs(self.pairs))
        for system in systems:
            for table in tables_of_system(system):
                title = clean(f"{system.name}: {table.title}")
                tables.append(table._replace(title=title, fold=clean(system.name)))
        return [table for table in tables if table.rows]

    @property
    def notes(self) -> list[str]:
        """The notes of all systems, each once."""
        notes: list[str] = []
        for system in self.systems:
            notes += map(clean, system.notes)
        return list(dict.fromkeys(notes))

    @property
    def intervals(self) -> str:
        """What stands in brackets; nothing where there are none."""
        has_intervals = False
        for system in self.systems:
            has_intervals |= any(key.endswith(CI_SUFFIXES) for key in system.scalars)
        if not has_intervals:
            return ""
        confidence = self.run.settings.get("intervals")
        level = f"{100 * confidence:g} % " if confidence else ""
        return f"{level}confidence intervals (leave-one-speaker-out jackknife)"


def save_systems(
    systems: Sequence[EvaluatedSystem],
    folder: str | Path,
    title: str = "Voice privacy",
    settings: Mapping[str, Any] | None = None,
    samples: Sequence[Sample] = (),
) -> None:
    """Write the page, results, tables and figures of one or more systems.

    Into a new folder, or one of a former run.

    ``samples``: recordings for the page.

    Raises:
        ValueError: If the folder holds anything else, or cannot be written.
    """
    folder = Path(folder)
    run = Run(settings=settings or {})
    content = Content(clean(title), "", systems, run, samples=samples)
    try:
        check_output_folder(folder, own_file_names())
        replace_folder(folder, render_files(content), own_file_names())
    except InputError as error:
        raise ValueError(str(error)) from None


def own_file_names() -> list[str]:
    """Return the names of all files that a run may write into its folder."""
    with _naming_the_extra():
        from vpmetrics.report.figures import FIGURES
    names = [RESULTS, PAGE, MODEL_CARD]
    names += [f"{TABLES}.{suffix}" for suffix in TABLE_SUFFIXES]
    for figure in FIGURES:
        names += [f"{figure.key}.{suffix}" for suffix in FIGURE_SUFFIXES]
    return names


def render_files(content: Content, formats: Sequence[str] = ("png",)) -> dict[str, bytes]:
    """Return the files of a folder by name.

    Page, results, tables, model card, and figures in these formats.
    """
    with _naming_the_extra():
        from vpmetrics.report.page import draw_figures, render_page
    from vpmetrics.report.table_formats import as_csv, as_latex, as_markdown

    # The details of each of several systems are for the page.
    tables = [table for table in content.tables if not (table.fold and len(content.systems) > 1)]
    pictures = draw_figures(content.systems, formats)
    files = {
        f"{TABLES}.csv": as_csv(tables).encode(),
        f"{TABLES}.md": as_markdown(tables).encode(),
        f"{TABLES}.tex": as_latex(tables).encode(),
        MODEL_CARD: render_model_card(content.systems, content.title).encode(),
        PAGE: render_page(content, pictures).encode(),
    }
    for picture in pictures:
        for suffix in formats:
            if suffix in picture.files:
                files[f"{picture.key}.{suffix}"] = picture.files[suffix]
    files[RESULTS] = render_results(content, sorted(files))
    return files


def _name_dataset(system: EvaluatedSystem) -> str:
    """Return the data set of a challenge, or on how much speech a system was measured."""
    if system.dataset:
        return clean(system.dataset)
    num_speakers = len(system.speakers)
    if not num_speakers and system.report.speakers is not None:
        num_speakers = len(system.report.speakers)
    texts = []
    if num_speakers:
        texts.append(f"{num_speakers} speakers")
    if system.utterances:
        texts.append(f"{system.utterances} utterances")
    return ", ".join(texts) or "speech"


@contextmanager
def _naming_the_extra() -> Iterator[None]:
    """Name the extra to install where a library of the page is missing.

    These are imported late: they are slow to load.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        if library == "vpmetrics":
            raise
        message = f"A page needs {library}: pip install 'vpmetrics[report]'."
        raise ModuleNotFoundError(message, name=library) from None


def render_results(content: Content, files: Sequence[str] = ()) -> bytes:
    """Return the results as JSON; ``files`` are the names of the files written with them."""
    return encode_json(make_results(content.systems, content.run, content.pairs, files))


def _describe_risk(risk: Risk) -> dict[str, Any]:
    """Return a risk as a metric of the hub."""
    condition = f"{risk.condition.lower()}_" if risk.condition else ""
    name = f"{risk.condition} {risk.name.replace('_', ' ')}".strip()
    described: dict[str, Any] = {
        "type": f"{condition}{risk.name}",
        "name": f"{name}, {describe_utterances(risk.utterances)}",
        "value": float(f"{risk.value:.6g}"),
    }
    if not math.isnan(risk.low):
        described["args"] = {"low": risk.low, "high": risk.high}
    return described


def render_model_card(systems: Sequence[EvaluatedSystem], title: str) -> str:
    """Return a model card for the Hugging Face hub.

    Its ``model-index`` holds the risks and the numbers of each summary.
    """
    from vpmetrics.report.table_formats import escape_markdown

    models = [_describe_model(system, title) for system in systems]
    body = [f"# Voice privacy of {escape_markdown(clean(title))}", ""]
    for system in systems:
        if len(systems) > 1:
            name = f"{escape_markdown(clean(system.name))}: "
        else:
            name = ""
        body += _describe_in_markdown(system, name)
    # JSON is YAML.
    metadata = {"tags": ["voice-privacy", "speaker-anonymization"], "model-index": models}
    front_matter = json.dumps(metadata, indent=1, ensure_ascii=False)
    footer = f"{summary.RULE} {summary.LIMITS} Measured with vpmetrics {__version__}."
    return "\n".join(["---", front_matter, "---", "", *body, footer, ""])


def _describe_model(system: EvaluatedSystem, title: str) -> dict[str, Any]:
    """Return the numbers of a system as the hub reads them."""
    metrics: list[dict[str, Any]] = []
    for risk in summary.headline_of(system).risks:
        if not math.isnan(risk.value):
            metrics.append(_describe_risk(risk))
    for row in summary.summary_rows(system):
        metric: dict[str, Any] = {
            "type": re.sub(r"\W+", "_", row.heading.lower()).strip("_"),
            "name": row.heading,
            "value": float(f"{row.cell.value:.6g}"),
        }
        if row.cell.interval:
            low, high = row.cell.ends
            metric["args"] = {"low": low, "high": high}
        metrics.append(metric)
    result = {
        "task": {"type": "audio-to-audio", "name": "Speaker anonymization"},
        "dataset": {"type": "speech", "name": _name_dataset(system)},
        "metrics": metrics,
    }
    return {"name": clean(system.name or title), "results": [result]}


def _describe_in_markdown(system: EvaluatedSystem, name: str) -> list[str]:
    """Return the verdict on a system, its risks and its other numbers."""
    from vpmetrics.report.table_formats import as_markdown, escape_markdown

    verdict = summary.verdict_of(system)
    sentences = " ".join(escape_markdown(clean(sentence)) for sentence in verdict.sentences)
    body = [f"**{name}{verdict.title}.** {sentences}", ""]
    risk_cells: list[tuple[Cell, ...]] = []
    for risk in summary.risk_rows(system):
        limits = " and ".join(risk.limits)
        texts = (risk.heading, risk.value, risk.interval, risk.chance, limits, risk.level)
        risk_cells.append(tuple(map(Cell, texts)))
    if risk_cells:
        heads = ("risk", "value", "95 % interval", "chance", "limits", "level")
        body.append(as_markdown([Table("", heads, tuple(risk_cells))]))
    cells: list[tuple[Cell, ...]] = []
    for row in summary.summary_rows(system):
        cells.append((Cell(row.heading), row.cell, Cell(row.unit), Cell(row.note)))
    body.append(as_markdown([Table("", ("measure", "value", "unit", "note"), tuple(cells))]))
    return body
