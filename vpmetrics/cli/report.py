"""What an evaluation leaves behind: a summary in the terminal, and a folder of results, tables, figures and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vpmetrics._engine.checks import check_systems
from vpmetrics._engine.registry import CI_SUFFIXES
from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics.cli.comparison import table_of_systems
from vpmetrics.cli.differences import Pair, pairs_of, table_of_changes, table_of_pairs, verdict_of_systems
from vpmetrics.cli.errors import InputError, printable
from vpmetrics.cli.headline import THRESHOLDS
from vpmetrics.cli.interrupts import ending_at_once
from vpmetrics.cli.model_card import write_model_card
from vpmetrics.cli.output import RESULTS, check_folder, outdated_files, write_all
from vpmetrics.cli.results import Run, as_json, results_of
from vpmetrics.cli.summary import check_lines, comparison_lines, summary_lines, verdict_lines
from vpmetrics.cli.table_files import as_csv, as_latex, as_markdown
from vpmetrics.cli.tables import Table, clean, tables_of_system

if TYPE_CHECKING:
    from rich.console import Console

PAGE, TABLES, MODEL_CARD = "report.html", "tables", "model-card.md"


class Sample(NamedTuple):
    """A recording to listen to, before and after protection: the bytes of two WAV files."""

    speaker: str
    label: str
    original: bytes
    protected: bytes


class OutputOptions(NamedTuple):
    """Where results go besides the terminal, and what they show.

    Args:
        folder: Gets the page, the results, tables and figures.
        json: Gets the results; ``-`` stands for standard output.
        figures: Kinds of files of figures: ``"png"``, ``"pdf"``, ``"svg"``.
        show_all: Whether the terminal shows every number.
        columns: Of tables of several systems, see :func:`vpmetrics.cli.tables.table_of_systems`.
        intervals_in_latex: Whether tables for papers hold intervals; those for spreadsheets always do.
        samples: Recordings for the page.
    """

    folder: Path | None = None
    json: Path | None = None
    figures: Sequence[str] = ("png",)
    show_all: bool = False
    columns: Sequence[str] = ("default",)
    intervals_in_latex: bool = False
    samples: Sequence[Sample] = ()


class Content(NamedTuple):
    """What a page shows beside its figures."""

    title: str
    lead: str
    systems: Sequence[EvaluatedSystem]
    tables: Sequence[Table]
    notes: Sequence[str]
    run: Run
    pairs: Sequence[Pair] = ()
    samples: Sequence[Sample] = ()

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
    options: OutputOptions,
    side_by_side: bool = False,
    pairs: Sequence[Pair] = (),
) -> None:
    """Print the summary and write the files that were asked for."""
    content = _collect(title, lead, systems, run, options, side_by_side, pairs)
    contents: dict[Path, bytes] = {}
    outdated: Sequence[Path] = ()
    if options.folder is not None:
        contents, outdated = _folder(content, options)
    only_json = options.json is not None and str(options.json) == "-"
    if options.json is not None and not only_json:
        contents[options.json] = as_json(results_of(content.systems, run, pairs))
    # Before anything is printed: whoever reads it may stop.
    write_all(contents, outdated)
    if only_json:
        console.file.write(as_json(results_of(content.systems, run, pairs)).decode())
        return
    _print(content, options, console)


def save_systems(
    systems: Sequence[EvaluatedSystem],
    folder: str | Path,
    title: str = "Voice privacy",
    settings: Mapping[str, Any] | None = None,
    options: OutputOptions | None = None,
) -> Path:
    """Write the page, results, tables and figures of one or more systems into a new folder or one of a former run.

    Returns:
        The path of the page.

    Raises:
        ValueError: If the folder holds anything else, or cannot be written.
    """
    options, run = (options or OutputOptions())._replace(folder=Path(folder)), Run(settings=settings or {})
    pairs = pairs_of(systems, run.settings.get("intervals"))
    try:
        check_folder(Path(folder))
        content = _collect(title, "", systems, run, options, len(systems) > 1, pairs)
        write_all(*_folder(content, options))
    except InputError as error:
        raise ValueError(str(error)) from None
    return Path(folder) / PAGE


def _collect(
    title: str,
    lead: str,
    systems: Sequence[EvaluatedSystem],
    run: Run,
    options: OutputOptions,
    side_by_side: bool,
    pairs: Sequence[Pair],
) -> Content:
    tables = tables_of_system(systems[0])
    if side_by_side:
        changes = table_of_changes(systems[0], systems[1], run.settings.get("intervals")) if len(systems) == 2 else []
        tables = [table_of_systems(systems, title, options.columns), *changes, *table_of_pairs(pairs)]
        details = [(system.name, table) for system in systems for table in tables_of_system(system)]
        tables += [table._replace(title=clean(f"{name}: {table.title}"), fold=clean(name)) for name, table in details]
    notes = list(dict.fromkeys(clean(note) for system in systems for note in system.notes))
    return Content(clean(title), clean(lead), systems, tables, notes, run, pairs, options.samples)


def _folder(content: Content, options: OutputOptions) -> tuple[dict[Path, bytes], list[Path]]:
    """Return contents of the files of a folder, and what another run has left there."""
    # Matplotlib is slow to import, and a table needs none of it.
    with ending_at_once():
        from vpmetrics.cli.figures import draw_figures
        from vpmetrics.cli.page import render_page

    assert options.folder is not None
    folder = options.folder
    pictures = draw_figures(content.systems, options.figures)
    # A paper has one table of systems; the details of each are for the page.
    short = [table for table in content.tables if not (table.fold and len(content.systems) > 1)]
    files = {
        f"{TABLES}.csv": as_csv(short).encode(),
        f"{TABLES}.md": as_markdown(short).encode(),
        f"{TABLES}.tex": as_latex(short, options.intervals_in_latex).encode(),
        MODEL_CARD: write_model_card(content.systems, content.title).encode(),
        PAGE: render_page(content, pictures).encode(),
    }
    files |= {f"{p.key}.{kind}": data for p in pictures for kind, data in p.files.items() if kind in options.figures}
    outdated = outdated_files(folder, [RESULTS, *files])
    # Results come first and name everything, so that a run after one that was killed knows its own files.
    names = {*files, *(path.name for path in outdated)}
    results = as_json(results_of(content.systems, content.run, content.pairs, sorted(names)))
    return {folder / name: data for name, data in {RESULTS: results, **files}.items()}, outdated


def _print(content: Content, options: OutputOptions, console: Console) -> None:
    with ending_at_once():
        from rich.markup import escape

        from vpmetrics.cli.terminal import print_tables

    several = len(content.systems) > 1
    for path, what in content.run.inputs.items() if options.show_all else ():
        console.print(printable(f"{path}: {what}"), style="dim", markup=False, highlight=False)
    lines = summary_lines(content.systems[0])
    if several:
        reports = {system.name: system.report for system in content.systems}
        headline = verdict_of_systems(content.systems, content.pairs)
        lines = [
            *verdict_lines(headline),
            "",
            *check_lines(check_systems(reports)),
        ]
        lines += comparison_lines(content.systems)
    console.print(lines[0], style="bold", markup=False, highlight=False, soft_wrap=True)
    for line in lines[1:]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print()
    if options.show_all:
        print_tables(content.tables, console)
        console.print(THRESHOLDS, style="dim", highlight=False)
    if content.intervals:
        console.print(f"In brackets: {content.intervals}.", style="dim", markup=False, highlight=False)
    for note in content.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    if options.json is not None:
        console.print(f"Wrote {escape(printable(str(options.json)))}", soft_wrap=True)
    if options.folder is not None:
        page = escape(printable(str(options.folder / PAGE)))
        console.print(f"Wrote {page}, its figures, {RESULTS}, {MODEL_CARD} and {TABLES}.csv, .md, .tex", soft_wrap=True)
