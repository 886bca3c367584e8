"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from vpmetrics.cli.tables import Table

_STYLES = {"best": "bold", "better": "green", "worse": "red"}


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Print tables; one too wide for the terminal goes on below, so that no digit is ever cut."""
    for table in tables:
        widths = _widths(table)
        gap = 2 if sum(widths) + 2 * len(widths) <= console.width else 1
        for part in _split_columns(table, widths, gap, console.width):
            _print_table(part, gap, console)


def _print_table(table: Table, gap: int, console: Console) -> None:
    grid = RichTable(
        title=escape(table.title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,  # which puts one space between columns
        padding=(0, gap - 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    for number, heading in enumerate(table.columns):
        # Word by word, so that a dozen columns fit into 80 characters.
        text = escape("\n".join(_words(heading, number)))
        grid.add_column(text, justify="right" if number else "left", no_wrap=bool(number), overflow="fold")
    for row in table.rows:
        cells = [(escape(str(cell)), _STYLES.get(cell.tone)) for cell in row]
        grid.add_row(*(f"[{style}]{text}[/]" if style else text for text, style in cells))
    console.print(grid)


def _widths(table: Table) -> list[int]:
    columns = zip(table.columns, *table.rows, strict=True)
    return [
        max(cell_len(text) for text in (*_words(heading, at), *map(str, cells)))
        for at, (heading, *cells) in enumerate(columns)
    ]


def _split_columns(table: Table, widths: Sequence[int], gap: int, width: int) -> Iterator[Table]:
    """Yield pieces of a table that fit: the first column with as many of the others as there is room for."""
    room, start = width - min(widths[0], width // 2), 1
    while start < len(widths):
        stop, left = start, room
        while stop < len(widths) and (stop == start or widths[stop] + gap <= left):
            left -= widths[stop] + gap
            stop += 1
        places = [0, *range(start, stop)]
        rows = tuple(tuple(row[at] for at in places) for row in table.rows)
        title = table.title if start == 1 else f"{table.title} (continued)"
        yield Table(title, tuple(table.columns[at] for at in places), rows)
        start = stop


def _words(text: str, column: int) -> list[str]:
    return (text.split(" ") if column else [text]) or [""]
