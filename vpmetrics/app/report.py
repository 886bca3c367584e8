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
from vpmetrics.app.errors import printable
from vpmetrics.app.output import write_all
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
    contents: dict[Path, bytes] = {}
    if json_file is not None:
        contents[json_file] = as_json_file(systems)
    if out is not None:
        contents |= _folder(title, lead, tables, systems, notes, out, side_by_side)
    # Before anything is printed: whoever reads it may stop.
    write_all(contents, [] if out is None else earlier_figures(out))
    print_tables(tables, console)
    print_notes(notes, console)
    if json_file is not None:
        console.print(f"Wrote {escape(printable(str(json_file)))}", soft_wrap=True)
    if out is not None:
        console.print(f"Wrote {escape(printable(str(out / PAGE)))} and its figures", soft_wrap=True)


def earlier_figures(out: Path) -> list[Path]:
    """What another run may have left in the folder."""
    from vpmetrics._figures import FIGURES

    return [out / f"{kind.key}.png" for kind in FIGURES]


def as_json_file(systems: Sequence[System]) -> bytes:
    """All scalars of all systems."""
    content = {"vpmetrics": __version__, "systems": [as_json(system) for system in systems]}
    return (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _folder(
    title: str,
    lead: str,
    tables: Sequence[Table],
    systems: Sequence[System],
    notes: Sequence[str],
    out: Path,
    wide: bool,
) -> dict[Path, bytes]:
    # Matplotlib is slow to import, and a table needs none of it.
    from vpmetrics.app.figures import draw_figures
    from vpmetrics.app.page import render_page

    pictures = draw_figures(systems)
    page = render_page(title, lead, tables, pictures, notes, wide)
    return {**{out / picture.file: picture.png for picture in pictures}, out / PAGE: page.encode()}
