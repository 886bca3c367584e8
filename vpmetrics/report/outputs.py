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
        """All that is known of one system, or systems side by side, with the details of each
        folded.
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
        details = [(system.name, table) for system in systems for table in tables_of_system(system)]
        tables += [
            table._replace(title=clean(f"{name}: {table.title}"), fold=clean(name))
            for name, table in details
        ]
        return [table for table in tables if table.rows]

    @property
    def notes(self) -> list[str]:
        """The notes of all systems, each once."""
        return list(dict.fromkeys(clean(note) for system in self.systems for note in system.notes))

    @property
    def intervals(self) -> str:
        """What stands in brackets; nothing where there are none."""
        if not any(key.endswith(CI_SUFFIXES) for system in self.systems for key in system.scalars):
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
    """Write the page, results, tables and figures of one or more systems into a new folder or one
    of a former run.

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
    names += [f"{figure.key}.{suffix}" for figure in FIGURES for suffix in FIGURE_SUFFIXES]
    return names


def render_files(content: Content, formats: Sequence[str] = ("png",)) -> dict[str, bytes]:
    """Return the files of a folder by name: page, results, tables, model card, and figures in these
    formats.
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
    speakers = len(system.speakers) or len(
        system.report.speakers if system.report.speakers is not None else ()
    )
    known = {"speakers": speakers, "utterances": system.utterances}
    return ", ".join(f"{count} {what}" for what, count in known.items() if count) or "speech"


@contextmanager
def _naming_the_extra() -> Iterator[None]:
    """Say what to install where a library of the page is missing. These are imported late: they are
    slow to load.
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
    """Return the results as JSON; ``files`` are the names of what is written beside them."""
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
    """Return a model card for the Hugging Face hub; its ``model-index`` holds the numbers of each
    summary.
    """
    from vpmetrics.report.table_formats import as_markdown, escape_markdown

    models, body = [], [f"# Voice privacy of {escape_markdown(clean(title))}", ""]
    for system in systems:
        verdict = summary.verdict_of(system)
        risks = summary.risk_rows(system)
        rows = summary.summary_rows(system)
        metrics = [_describe_risk(risk) for risk in summary.headline_of(system).risks]
        metrics = [metric for metric in metrics if not math.isnan(metric["value"])]
        for row in rows:
            kind = re.sub(r"\W+", "_", row.heading.lower()).strip("_")
            ends = (
                {"args": dict(zip(("low", "high"), row.cell.ends, strict=True))}
                if row.cell.interval
                else {}
            )
            metrics.append(
                {"type": kind, "name": row.heading, "value": float(f"{row.cell.value:.6g}"), **ends}
            )
        result = {
            "task": {"type": "audio-to-audio", "name": "Speaker anonymization"},
            "dataset": {"type": "speech", "name": _name_dataset(system)},
            "metrics": metrics,
        }
        models.append({"name": clean(system.name or title), "results": [result]})
        lead = f"{escape_markdown(clean(system.name))}: " if len(systems) > 1 else ""
        body += [
            (
                f"**{lead}{verdict.title}.**"
                f" {' '.join(map(escape_markdown, map(clean, verdict.sentences)))}"
            ),
            "",
        ]
        risk_cells = []
        for risk in risks:
            limits = " and ".join(risk.limits)
            texts = (risk.heading, risk.value, risk.interval, risk.chance, limits, risk.level)
            risk_cells.append(tuple(map(Cell, texts)))
        heads = ("risk", "value", "95 % interval", "chance", "limits", "level")
        if risk_cells:
            body += [as_markdown([Table("", heads, tuple(risk_cells))])]
        cells = tuple((Cell(row.heading), row.cell, Cell(row.unit), Cell(row.note)) for row in rows)
        body += [as_markdown([Table("", ("measure", "value", "unit", "note"), cells)])]
    # JSON is YAML.
    metadata = {"tags": ["voice-privacy", "speaker-anonymization"], "model-index": models}
    front_matter = json.dumps(metadata, indent=1, ensure_ascii=False)
    footer = f"{summary.RULE} {summary.LIMITS} Measured with vpmetrics {__version__}."
    return "\n".join(["---", front_matter, "---", "", *body, footer, ""])
