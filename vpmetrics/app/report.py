"""What a command leaves behind: tables in the terminal, JSON, figures and a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from vpmetrics import __version__
from vpmetrics._report import System
from vpmetrics.app.errors import InputError
from vpmetrics.app.tables import Table, as_json, table_of_systems, tables_of_system

PAGE = "report.html"


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Tables for the terminal, as narrow as they can be; nothing breaks a number."""
    for table in tables:
        grid = RichTable(
            title=escape(table.title),
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            show_edge=False,
            pad_edge=False,
        )
        for number, heading in enumerate(table.headings):
            # A heading word by word, so that a dozen columns fit into 80 characters.
            grid.add_column(
                escape(heading.replace(" ", "\n") if number else heading),
                justify="right" if number else "left",
                no_wrap=True,
            )
        for row in table.rows:
            grid.add_row(*map(escape, row))
        wanted = console.measure(grid, options=console.options.update(max_width=10_000)).maximum
        if wanted > console.width:
            grid.padding = (0, 0, 0, 0)  # one space between columns instead of two
        console.print(grid)


def print_notes(notes: Sequence[str], console: Console) -> None:
    """What the user should know about the numbers."""
    for note in notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)


def publish(
    title: str,
    lead: str,
    systems: Sequence[System],
    console: Console,
    out: Path | None = None,
    json_file: Path | None = None,
    side_by_side: bool = False,
) -> None:
    """Say it in the terminal and, where asked for, in files."""
    tables = [table_of_systems(systems, title)] if side_by_side else tables_of_system(systems[0])
    notes = list(dict.fromkeys(note for system in systems for note in system.notes))
    print_tables(tables, console)
    print_notes(notes, console)
    try:
        if json_file is not None:
            write_json(systems, json_file)
            console.print(f"Wrote {escape(str(json_file))}", soft_wrap=True)
        if out is not None:
            _write_folder(title, lead, tables, systems, notes, out, side_by_side)
            console.print(f"Wrote {escape(str(out / PAGE))} and its figures", soft_wrap=True)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", error.filename) from None


def write_json(systems: Sequence[System], path: Path) -> None:
    """All scalars of all systems."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"vpmetrics": __version__, "systems": [as_json(system) for system in systems]}
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _write_folder(
    title: str,
    lead: str,
    tables: Sequence[Table],
    systems: Sequence[System],
    notes: Sequence[str],
    out: Path,
    wide: bool,
) -> None:
    # Matplotlib is slow to import, and a table needs none of it.
    from vpmetrics.app.figures import draw_figures, save
    from vpmetrics.app.page import render_page

    pictures = draw_figures(systems)
    out.mkdir(parents=True, exist_ok=True)
    save(pictures, out)
    (out / PAGE).write_text(render_page(title, lead, tables, pictures, notes, wide), encoding="utf-8")
