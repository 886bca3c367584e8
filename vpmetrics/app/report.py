"""What a command leaves behind: tables in the terminal, and files with results, tables, figures and a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from vpmetrics._report import System
from vpmetrics._scalars import ENDS
from vpmetrics.app.differences import Pair, table_of_pairs
from vpmetrics.app.errors import printable
from vpmetrics.app.interrupts import ending_at_once
from vpmetrics.app.output import write_all
from vpmetrics.app.results import Run, as_file, as_json, results_of
from vpmetrics.app.table_files import as_csv, as_latex, as_markdown
from vpmetrics.app.tables import Table, table_of_systems, tables_of_system
from vpmetrics.app.verdict import verdict_of, verdict_of_systems

PAGE, RESULTS, TABLES = "report.html", "results.json", "tables"


class Content(NamedTuple):
    """What a page shows beside its figures."""

    title: str
    lead: str
    systems: Sequence[System]
    tables: Sequence[Table]
    notes: Sequence[str]
    results: dict[str, Any]
    pairs: Sequence[Pair] = ()

    @property
    def intervals(self) -> str:
        """What stands in brackets; nothing where there are none."""
        return describe_intervals(self.systems, self.results["settings"].get("intervals"))


class Wanted(NamedTuple):
    """Where results go besides the terminal: a folder, a file of JSON (``-`` for standard output), kinds of figures."""

    folder: Path | None = None
    json: Path | None = None
    figures: Sequence[str] = ("png",)


def publish(
    title: str,
    lead: str,
    systems: Sequence[System],
    console: Console,
    run: Run,
    wanted: Wanted,
    side_by_side: bool = False,
    pairs: Sequence[Pair] = (),
) -> None:
    """Say it in the terminal and, where asked for, in files."""
    tables = tables_of_system(systems[0])
    if side_by_side:
        tables = [table_of_systems(systems, title), *table_of_pairs(pairs)]
    notes = list(dict.fromkeys(note for system in systems for note in system.notes))
    only_json = wanted.json is not None and str(wanted.json) == "-"
    contents: dict[Path, bytes] = {}
    if wanted.json is not None and not only_json:
        contents[wanted.json] = as_json(systems, run, pairs)
    outdated: Sequence[Path] = ()
    if wanted.folder is not None:
        content = Content(title, lead, systems, tables, notes, results_of(systems, run, pairs), pairs)
        added, outdated = _folder(content, wanted.folder, wanted.figures)
        contents |= added
    # Before anything is printed: whoever reads it may stop.
    write_all(contents, outdated)
    if only_json:
        console.file.write(as_json(systems, run, pairs).decode())
        return
    print_files(run, console)
    print_tables(tables, console)
    if says := describe_intervals(systems, run.settings.get("intervals")):
        console.print(f"In brackets: {says}.", style="dim", highlight=False)
    print_verdict(systems, pairs, console)
    print_notes(notes, console)
    if wanted.json is not None:
        console.print(f"Wrote {escape(printable(str(wanted.json)))}", soft_wrap=True)
    if wanted.folder is not None:
        page = printable(str(wanted.folder / PAGE))
        console.print(f"Wrote {escape(page)}, its figures, {RESULTS} and {TABLES}.csv, .md, .tex", soft_wrap=True)


def _folder(content: Content, folder: Path, formats: Sequence[str]) -> tuple[dict[Path, bytes], list[Path]]:
    """Contents of the files of a folder, and what another run may have left there."""
    # Matplotlib is slow to import, and a table needs none of it.
    with ending_at_once():
        from vpmetrics.app.figures import draw_figures, possible_files
        from vpmetrics.app.page import render_page

    pictures = draw_figures(content.systems, formats)
    contents = {folder / f"{p.key}.{kind}": data for p in pictures for kind, data in p.files.items() if kind in formats}
    for kind, write in (("csv", as_csv), ("md", as_markdown), ("tex", as_latex)):
        contents[folder / f"{TABLES}.{kind}"] = write(content.tables).encode()
    contents[folder / RESULTS] = as_file(content.results)
    contents[folder / PAGE] = render_page(content, pictures).encode()
    return contents, possible_files(folder)


def print_files(run: Run, console: Console) -> None:
    """What each file turned out to be, so that a wrong guess is seen; of a long path, its end."""
    for path, what in run.inputs.items():
        end = str(Path(*Path(path).parts[-2:])) if len(path) > console.width // 2 else path
        console.print(printable(f"{end}: {what}"), style="dim", markup=False, highlight=False)


def describe_intervals(systems: Sequence[System], confidence: float | None) -> str:
    """What the numbers in brackets are; nothing where there are none."""
    known = confidence and any(key.endswith(ENDS) for system in systems for key in system.scalars)
    return f"{100 * (confidence or 0):g} % intervals, from leaving speakers out" if known else ""


def print_verdict(systems: Sequence[System], pairs: Sequence[Pair], console: Console) -> None:
    """What the tables come to, as the page has it."""
    verdict = verdict_of(systems[0]) if len(systems) == 1 else verdict_of_systems(systems, pairs)
    console.print(printable(verdict.headline), style="bold", markup=False, highlight=False)
    for sentence in verdict.sentences:
        console.print(printable(sentence), markup=False, highlight=False)


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Tables for the terminal; one too wide for it goes on below, so that no digit is ever cut."""
    for table in tables:
        widths = _widths(table)
        gap = 2 if sum(widths) + 2 * len(widths) <= console.width else 1
        for part in _fitting(table, widths, gap, console.width):
            _print_table(part, gap, console)


def _print_table(table: Table, gap: int, console: Console) -> None:
    grid = RichTable(
        title=escape(printable(table.title)),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,  # which puts one space between columns
        padding=(0, gap - 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    for number, heading in enumerate(table.headings):
        # Word by word, so that a dozen columns fit into 80 characters.
        text = escape("\n".join(map(printable, _words(heading, number))))
        grid.add_column(text, justify="right" if number else "left", no_wrap=bool(number), overflow="fold")
    for row in table.rows:
        grid.add_row(*(escape(printable(cell)) for cell in row))
    console.print(grid)


def _widths(table: Table) -> list[int]:
    widths = []
    for at, heading in enumerate(table.headings):
        texts = [*_words(heading, at), *(row[at] for row in table.rows)]
        widths.append(max(cell_len(printable(text)) for text in texts))
    return widths


def _fitting(table: Table, widths: Sequence[int], gap: int, width: int) -> Iterator[Table]:
    """Pieces of a table that fit a width: the first column with as many of the others as there is room for."""
    room = width - min(widths[0], width // 2)
    start = 1
    while start < len(widths):
        stop, left = start, room
        while stop < len(widths) and (stop == start or widths[stop] + gap <= left):
            left -= widths[stop] + gap
            stop += 1
        columns = [0, *range(start, stop)]
        rows = [tuple(row[at] for at in columns) for row in table.rows]
        title = table.title if start == 1 else "(continued)"
        yield Table(title, tuple(table.headings[at] for at in columns), rows, table.keys)
        start = stop


def _words(text: str, column: int) -> list[str]:
    return (text.split(" ") if column else [text]) or [""]


def print_notes(notes: Sequence[str], console: Console) -> None:
    """What the user should know about the numbers."""
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(printable(note))}", soft_wrap=True)
