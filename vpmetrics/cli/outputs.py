"""What an evaluation leaves behind: a summary in the terminal, and a folder of results, tables, figures and a page."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vpmetrics import __version__
from vpmetrics._engine.registry import CI_SUFFIXES
from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics.cli import end_at_once
from vpmetrics.cli.comparison import (
    Pair,
    check_all,
    pairs_of,
    table_of_changes,
    table_of_pairs,
    table_of_systems,
    verdict_of_systems,
)
from vpmetrics.cli.inputs import InputError, printable
from vpmetrics.cli.results import RESULTS, Run, as_json, check_folder, outdated_files, results_of, write_all
from vpmetrics.cli.summary import (
    THRESHOLDS,
    check_lines,
    comparison_lines,
    summary_lines,
    summary_rows,
    verdict_lines,
    verdict_of,
)
from vpmetrics.cli.tables import Cell, Table, clean, tables_of_system

if TYPE_CHECKING:
    from rich.console import Console

PAGE, TABLES, MODEL_CARD = "report.html", "tables", "model-card.md"
_DEFAULTS = {  # of the options of output
    "out": None, "json": None, "figures": ("png",), "all": False, "columns": ("default",), "latex_intervals": False,
    "samples": (),
}  # fmt: skip


class Sample(NamedTuple):
    """A recording to listen to, before and after protection: the bytes of two WAV files."""

    speaker: str
    label: str
    original: bytes
    protected: bytes


class Content(NamedTuple):
    """What a page shows in addition to its figures."""

    title: str
    lead: str
    systems: Sequence[EvaluatedSystem]
    tables: Sequence[Table]
    run: Run
    pairs: Sequence[Pair] = ()
    samples: Sequence[Sample] = ()

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


def publish(
    title: str,
    lead: str,
    systems: Sequence[EvaluatedSystem],
    console: Console,
    run: Run,
    options: Namespace,
    side_by_side: bool = False,
) -> None:
    """Print the summary and write the files that were asked for."""
    options = Namespace(**{**_DEFAULTS, **vars(options)})
    content = _collect(title, lead, systems, run, options, side_by_side)
    contents, outdated = ({}, []) if options.out is None else _render_files(content, options.out, options)
    only_json = str(options.json) == "-"
    results = as_json(results_of(systems, run, content.pairs)) if options.json is not None else b""
    if options.json is not None and not only_json:
        if options.json.resolve() in map(Path.resolve, contents):
            raise InputError("is written by --out as well; choose another name", options.json)
        contents[options.json] = results
    inputs = {Path(path).resolve() for path in run.inputs}
    if lost := next((path for path in contents if path.resolve() in inputs), None):
        raise InputError("is an input and would be lost; choose another name", lost)
    # Before anything is printed: the reader of the output may stop.
    write_all(contents, outdated)
    if only_json:
        console.file.write(results.decode())
    else:
        _print(content, options, console)


def save_systems(
    systems: Sequence[EvaluatedSystem],
    folder: str | Path,
    title: str = "Voice privacy",
    settings: Mapping[str, Any] | None = None,
    samples: Sequence[Sample] = (),
) -> Path:
    """Write the page, results, tables and figures of one or more systems into a new folder or one of a former run.

    ``samples``: recordings for the page.

    Returns:
        The path of the page.

    Raises:
        ValueError: If the folder holds anything else, or cannot be written.
    """
    folder, options = Path(folder), Namespace(**{**_DEFAULTS, "samples": samples})
    try:
        check_folder(folder)
        content = _collect(title, "", systems, Run(settings=settings or {}), options, len(systems) > 1)
        write_all(*_render_files(content, folder, options))
    except InputError as error:
        raise ValueError(str(error)) from None
    return folder / PAGE


def _collect(
    title: str, lead: str, systems: Sequence[EvaluatedSystem], run: Run, options: Namespace, side_by_side: bool
) -> Content:
    if not side_by_side:
        return Content(clean(title), clean(lead), systems, tables_of_system(systems[0]), run, (), options.samples)
    confidence = run.settings.get("intervals")
    pairs = pairs_of(systems, confidence)
    changes = table_of_changes(systems[0], systems[1], confidence) if len(systems) == 2 else []
    tables = [table_of_systems(systems, title, options.columns), *changes, *table_of_pairs(pairs)]
    details = [(system.name, table) for system in systems for table in tables_of_system(system)]
    tables += [table._replace(title=clean(f"{name}: {table.title}"), fold=clean(name)) for name, table in details]
    return Content(clean(title), clean(lead), systems, tables, run, pairs, options.samples)


def _render_files(content: Content, folder: Path, options: Namespace) -> tuple[dict[Path, bytes], list[Path]]:
    """Return contents of the files of a folder, and what another run has left there."""
    # Matplotlib is slow to import, and a table needs none of it.
    with end_at_once():
        from vpmetrics.cli.page import draw_figures, render_page
        from vpmetrics.cli.table_formats import as_csv, as_latex, as_markdown

    pictures = draw_figures(content.systems, options.figures)
    # A paper has one table of systems; the details of each are for the page.
    short = [table for table in content.tables if not (table.fold and len(content.systems) > 1)]
    files = {
        f"{TABLES}.csv": as_csv(short).encode(),
        f"{TABLES}.md": as_markdown(short).encode(),
        f"{TABLES}.tex": as_latex(short, options.latex_intervals).encode(),
        MODEL_CARD: write_model_card(content.systems, content.title).encode(),
        PAGE: render_page(content, pictures).encode(),
    }
    files |= {f"{p.key}.{kind}": data for p in pictures for kind, data in p.files.items() if kind in options.figures}
    outdated = outdated_files(folder, [RESULTS, *files])
    # Results come first and name everything, so that a run after one that was killed knows its own files.
    names = {*files, *(path.name for path in outdated)}
    results = as_json(results_of(content.systems, content.run, content.pairs, sorted(names)))
    return {folder / name: data for name, data in {RESULTS: results, **files}.items()}, outdated


def write_model_card(systems: Sequence[EvaluatedSystem], title: str) -> str:
    """Return a model card for the Hugging Face hub; its ``model-index`` holds the numbers of each summary."""
    from vpmetrics.cli.table_formats import as_markdown, escape_markdown

    def quote(text: str) -> str:
        return json.dumps(clean(text))  # JSON is YAML

    front = ["---", "tags:", "- voice-privacy", "- speaker-anonymization", "model-index:"]
    body = [f"# Voice privacy of {escape_markdown(clean(title))}", ""]
    for system in systems:
        verdict, several = verdict_of(system), len(systems) > 1
        rows = summary_rows(system)
        front += [f"- name: {quote(system.name or title)}", "  results:", "  - task:", "      type: audio-to-audio"]
        front += ["      name: Speaker anonymization", "    dataset:", "      type: speech"]
        front += [f"      name: {quote(title)}", "    metrics:"]
        for row in rows:
            kind = re.sub(r"\W+", "_", row.heading.lower()).strip("_")
            front += [f"    - type: {kind}", f"      name: {quote(row.heading)}", f"      value: {row.cell.value:.6g}"]
            if row.cell.interval:
                low, high = row.cell.ends
                front += ["      args:", f"        low: {low:.6g}", f"        high: {high:.6g}"]
        lead = f"{escape_markdown(clean(system.name))}: {verdict.title.lower()}" if several else verdict.title
        body += [f"**{lead}.** {' '.join(escape_markdown(clean(says)) for says in verdict.sentences)}", ""]
        cells = tuple((Cell(row.heading), row.cell, Cell(row.unit), Cell(row.note)) for row in rows)
        body += [as_markdown([Table("", ("measure", "value", "unit", "note"), cells)])]
    return "\n".join([*front, "---", "", *body, f"{THRESHOLDS} Measured with vpmetrics {__version__}.", ""])


def _print(content: Content, options: Namespace, console: Console) -> None:
    with end_at_once():
        from rich.markup import escape

        from vpmetrics.cli.table_formats import print_tables

    systems, lines = content.systems, summary_lines(content.systems[0])
    if len(systems) > 1:
        verdict = verdict_lines(verdict_of_systems(systems, content.pairs))
        lines = [*verdict, "", *check_lines(check_all(systems)), *comparison_lines(systems)]
    says = [(printable(f"{path}: {what}"), "dim") for path, what in content.run.inputs.items() if options.all]
    says += [(line, "bold" if number == 0 else "") for number, line in enumerate([*lines, ""])]
    for line, style in says:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
    if options.all:
        print_tables(content.tables, console)
        console.print(THRESHOLDS, style="dim", highlight=False)
    if content.intervals:
        console.print(f"In brackets: {content.intervals}.", style="dim", markup=False, highlight=False)
    for note in content.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    wrote = [] if options.json is None else [str(options.json)]
    if options.out is not None:
        wrote.append(f"{options.out / PAGE}, with figures, tables, model card and {RESULTS} beside it")
    for path in wrote:
        console.print(f"Wrote {escape(printable(path))}", soft_wrap=True)
