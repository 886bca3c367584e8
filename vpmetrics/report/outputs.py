"""Outputs of an evaluation: a summary in the terminal, and a folder of results, tables, figures and a page."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vpmetrics import __version__
from vpmetrics._scores.registry import CI_SUFFIXES
from vpmetrics._util.inputs import InputError
from vpmetrics._util.scalar import printable
from vpmetrics.report import comparison, summary
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.results import (
    RESULTS,
    Run,
    check_and_find_outdated_files,
    check_output_folder,
    check_replaceable_file,
    encode_json,
    make_results,
    write_files,
)
from vpmetrics.report.tables import Cell, Table, clean, tables_of_system

if TYPE_CHECKING:
    from rich.console import Console

PAGE, TABLES, MODEL_CARD = "report.html", "tables", "model-card.md"


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
        return comparison.compare_pairs_by_disclosure(self.systems, self.run.settings.get("intervals"))

    @cached_property
    def tables(self) -> list[Table]:
        """All that is known of one system, or systems side by side, with the details of each folded."""
        systems = self.systems
        if len(systems) == 1 and tuple(self.columns) == ("default",):
            return tables_of_system(systems[0])
        tables = [comparison.table_of_systems(systems, self.title, self.columns)]
        if len(systems) == 2:
            tables.append(comparison.table_of_changes(systems[0], systems[1], self.run.settings.get("intervals")))
        tables.append(comparison.table_of_pairs(self.pairs))
        details = [(system.name, table) for system in systems for table in tables_of_system(system)]
        tables += [table._replace(title=clean(f"{name}: {table.title}"), fold=clean(name)) for name, table in details]
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


def check_output_options(options: Namespace) -> None:
    """Raise for unknown columns, and for a folder or JSON file that cannot be written, or that both would write."""
    comparison.check_columns(options.columns)
    if options.out is not None:
        check_output_folder(options.out)
    if options.json is None or str(options.json) == "-":
        return
    check_replaceable_file(options.json)
    if options.out is not None:
        from vpmetrics.report.figures import FIGURES

        figures = [f"{figure.key}.{kind}" for figure in FIGURES for kind in options.figures]
        tables = [f"{TABLES}.{suffix}" for suffix in ("csv", "md", "tex")]
        written = {(options.out / name).resolve() for name in (RESULTS, PAGE, MODEL_CARD, *tables, *figures)}
        if options.json.resolve() in written:
            raise InputError("is written by --out as well; choose another name", options.json)


def publish(content: Content, console: Console, options: Namespace) -> None:
    """Print the summary and write the files that were asked for."""
    contents, outdated = dict[Path, bytes](), list[Path]()
    if options.out is not None:
        contents, outdated = _render_files(content, options.out, options.figures, options.latex_intervals)
    only_json = str(options.json) == "-"
    if options.json is not None:
        results = encode_json(make_results(content.systems, content.run, content.pairs))
        contents |= {} if only_json else {options.json: results}
    inputs = {Path(path).resolve() for path in content.run.inputs}
    if lost := next((path for path in contents if path.resolve() in inputs), None):
        raise InputError("is an input and would be lost; choose another name", lost)
    # Files are written before anything is printed: the reader of the output may stop.
    write_files(contents, outdated)
    if only_json:
        console.file.write(results.decode())
    else:
        _print_summary(content, options, console)


def save_systems(
    systems: Sequence[EvaluatedSystem],
    folder: str | Path,
    title: str = "Voice privacy",
    settings: Mapping[str, Any] | None = None,
    samples: Sequence[Sample] = (),
) -> None:
    """Write the page, results, tables and figures of one or more systems into a new folder or one of a former run.

    ``samples``: recordings for the page.

    Raises:
        ValueError: If the folder holds anything else, or cannot be written.
    """
    folder = Path(folder)
    try:
        check_output_folder(folder)
        content = Content(clean(title), "", systems, Run(settings=settings or {}), samples=samples)
        write_files(*_render_files(content, folder))
    except InputError as error:
        raise ValueError(str(error)) from None


def _render_files(
    content: Content, folder: Path, formats: Sequence[str] = ("png",), latex_intervals: bool = False
) -> tuple[dict[Path, bytes], list[Path]]:
    """Return the contents of the files of a folder, and the files that a former run has left there."""
    # Matplotlib is slow to import, and a table needs none of it.
    from vpmetrics.report.page import draw_figures, render_page
    from vpmetrics.report.table_formats import as_csv, as_latex, as_markdown

    # The details of each of several systems are for the page.
    tables = [table for table in content.tables if not (table.fold and len(content.systems) > 1)]
    pictures = draw_figures(content.systems, formats)
    files = {
        f"{TABLES}.csv": as_csv(tables).encode(),
        f"{TABLES}.md": as_markdown(tables).encode(),
        f"{TABLES}.tex": as_latex(tables, latex_intervals).encode(),
        MODEL_CARD: render_model_card(content.systems, content.title).encode(),
        PAGE: render_page(content, pictures).encode(),
    }
    files |= {f"{p.key}.{kind}": data for p in pictures for kind, data in p.files.items() if kind in formats}
    outdated = check_and_find_outdated_files(folder, [RESULTS, *files])
    # The results are written first and list all files, so that a run after a killed one knows which files are its own.
    names = {*files, *(path.name for path in outdated)}
    results = encode_json(make_results(content.systems, content.run, content.pairs, sorted(names)))
    return {folder / name: data for name, data in {RESULTS: results, **files}.items()}, outdated


def render_model_card(systems: Sequence[EvaluatedSystem], title: str) -> str:
    """Return a model card for the Hugging Face hub; its ``model-index`` holds the numbers of each summary."""
    from vpmetrics.report.table_formats import as_markdown, escape_markdown

    models, body = [], [f"# Voice privacy of {escape_markdown(clean(title))}", ""]
    for system in systems:
        verdict, rows, metrics = summary.verdict_of(system), summary.summary_rows(system), []
        for row in rows:
            kind = re.sub(r"\W+", "_", row.heading.lower()).strip("_")
            ends = {"args": dict(zip(("low", "high"), row.cell.ends, strict=True))} if row.cell.interval else {}
            metrics.append({"type": kind, "name": row.heading, "value": float(f"{row.cell.value:.6g}"), **ends})
        result = {
            "task": {"type": "audio-to-audio", "name": "Speaker anonymization"},
            "dataset": {"type": "speech", "name": clean(title)},
            "metrics": metrics,
        }
        models.append({"name": clean(system.name or title), "results": [result]})
        lead = f"{escape_markdown(clean(system.name))}: " if len(systems) > 1 else ""
        body += [f"**{lead}{verdict.title}.** {' '.join(map(escape_markdown, map(clean, verdict.sentences)))}", ""]
        cells = tuple((Cell(row.heading), row.cell, Cell(row.unit), Cell(row.note)) for row in rows)
        body += [as_markdown([Table("", ("measure", "value", "unit", "note"), cells)])]
    # JSON is YAML.
    metadata = {"tags": ["voice-privacy", "speaker-anonymization"], "model-index": models}
    front_matter = json.dumps(metadata, indent=1, ensure_ascii=False)
    footer = f"{summary.THRESHOLDS} Measured with vpmetrics {__version__}."
    return "\n".join(["---", front_matter, "---", "", *body, footer, ""])


def _print_summary(content: Content, options: Namespace, console: Console) -> None:
    from rich.markup import escape

    from vpmetrics.report.table_formats import print_tables

    if len(content.systems) > 1:
        lines = [*summary.verdict_lines(comparison.verdict_of_systems(content.systems, content.pairs)), ""]
        lines += summary.check_lines(comparison.collect_checks(content.systems))
        lines += summary.comparison_lines(content.systems)
    else:
        lines = summary.summary_lines(content.systems[0])
    styled_lines = [(printable(f"{path}: {what}"), "dim") for path, what in content.run.inputs.items() if options.all]
    styled_lines += [(line, "" if number else "bold") for number, line in enumerate([*lines, ""])]
    for line, style in styled_lines:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
    if options.all:
        print_tables(content.tables, console)
        console.print(summary.THRESHOLDS, style="dim", highlight=False)
    if content.intervals:
        console.print(f"In brackets: {content.intervals}.", style="dim", markup=False, highlight=False)
    for note in content.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    folder = f"{options.out / PAGE}, with figures, tables, model card and {RESULTS} beside it" if options.out else None
    for path in filter(None, (options.json, folder)):
        console.print(f"Wrote {escape(printable(str(path)))}", soft_wrap=True)
