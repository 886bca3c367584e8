"""Tables for terminal, CSV, Markdown and LaTeX, with the text of users escaped."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from html import escape

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from vpmetrics._scores.registry import DASH
from vpmetrics.report.tables import Cell, Table

_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "−": "$-$",
    "–": "--",
    "≈": r"$\approx$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "▲": r"$\uparrow$",
    "▼": r"$\downarrow$",
    "…": r"\ldots{}",
}
_INDEX = re.compile(r"\b([DGCl])\\_(ECE|VD|diag|w)\b")  # measures with an index, escaped; other names are not changed
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # a spreadsheet takes text that begins so for a formula
_COLUMN_WIDTH, _PAGE_ROWS = 46, 40  # characters that fit one of two columns; rows that fit a page
_STYLES = {"best": "bold", "better": "green", "worse": "red"}


def as_csv(tables: Sequence[Table]) -> str:
    """Return tables below each other, an empty line between them; an interval has two columns of its own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, table in enumerate(tables):
        heads = (table.columns[0] if table.columns[0] == "system" else table.title, *table.columns[1:])
        columns = []
        for head, *cells in zip(heads, *table.rows, strict=True):
            columns.append([_csv_field(head), *(_csv_field(cell.text, cell.value) for cell in cells)])
            for at, end in enumerate(("from", "to") if any(cell.interval for cell in cells) else ()):
                columns.append([_csv_field(f"{head}, {end}"), *(_csv_field(DASH, cell.ends[at]) for cell in cells)])
        if number > 0:
            writer.writerow([])
        writer.writerows(zip(*columns, strict=True))
    return text.getvalue()


def _csv_field(text: str, value: float = math.nan) -> str:
    """Return a number with a decimal point, else text that no spreadsheet takes for a formula; nothing for a dash."""
    text = "" if text == DASH else f"'{text}" if text.startswith(_FORMULA) else text
    return text if math.isnan(value) else f"{value:.6g}"


def as_markdown(tables: Sequence[Table]) -> str:
    """Return tables under their titles, the best of each column in bold."""
    parts = []
    for table in tables:
        if table.title:
            parts.append(f"**{escape_markdown(table.title)}**\n")
        rows = [[*map(escape_markdown, table.columns)], ["---", *["---:"] * (len(table.columns) - 1)]]
        for row in table.rows:
            marks = ["**" * (cell.tone == "best") for cell in row]
            rows.append([f"{mark}{escape_markdown(str(cell))}{mark}" for mark, cell in zip(marks, row, strict=True)])
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n")
    return "\n".join(parts)


def escape_markdown(text: str) -> str:
    """Return text of a user as Markdown that shows it as it is."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", escape(text, quote=False))


def as_latex(tables: Sequence[Table], intervals: bool = False) -> str:
    """Return tables with the rules of ``booktabs``, as wide as one of two columns, or as the page.

    Letters outside Latin, such as Chinese names, need ``lualatex`` and a font with these letters.
    """
    pieces = [
        _latex_table(table, table.rows[at : at + _PAGE_ROWS], intervals)
        for table in tables
        for at in range(0, max(len(table.rows), 1), _PAGE_ROWS)
    ]
    return "% \\usepackage{booktabs,graphicx}\n" + "\n".join(pieces)


def _latex_table(table: Table, rows: Sequence[Sequence[Cell]], intervals: bool) -> str:
    texts = [table.columns, *([str(cell) if intervals else cell.text for cell in row] for row in rows)]
    lengths = [max(map(len, [*head.split(), *cells])) for head, *cells in zip(*texts, strict=True)]
    kind = "table*" if sum(lengths) + 2 * len(lengths) > _COLUMN_WIDTH else "table"
    # All headings but the first stand word below word.
    stacks = [r" \\ ".join(map(_set_indices, text.split() if at else [text])) for at, text in enumerate(table.columns)]
    head = " & ".join(rf"\shortstack[r]{{{stack}}}" if r" \\ " in stack else stack for stack in stacks)
    caption = _escape_latex(" ".join(filter(None, (table.title and f"{table.title}.", table.caption))))
    lines = [
        rf"\begin{{{kind}}}[t]\centering\footnotesize\setlength{{\tabcolsep}}{{4pt}}",
        rf"\caption{{{caption}}}\vspace{{3pt}}",
        # Scaled down where even a page is too narrow.
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
        *(" & ".join(_latex_cell(cell, intervals) for cell in row) + r" \\" for row in rows),
        r"\bottomrule",
        rf"\end{{tabular}}}}\end{{{kind}}}",
        "",
    ]
    return "\n".join(lines)


def _latex_cell(cell: Cell, intervals: bool) -> str:
    text = _set_indices(cell.text)
    text = rf"\textbf{{{text}}}" if cell.tone == "best" else text
    return f"{text} {_escape_latex(cell.interval)}" if intervals and cell.interval else text


def _set_indices(text: str) -> str:
    # A bracket after a line break would be the argument of that break.
    return _INDEX.sub(r"$\1_\\mathrm{\2}$", _escape_latex(text)).replace("[", "{[}")


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Print tables; columns that do not fit the terminal follow in a second table, so that no digit is cut."""
    for table in tables:
        # Headings stand word by word, so that a dozen columns fit into 80 characters.
        heads = [text.replace(" ", "\n") if at else text for at, text in enumerate(table.columns)]
        columns = zip(heads, *table.rows, strict=True)
        widths = [max(map(cell_len, (*head.split("\n"), *map(str, cells)))) for head, *cells in columns]
        gap = 2 if sum(widths) + 2 * len(widths) <= console.width else 1
        room, start = console.width - min(widths[0], console.width // 2), 1
        while start < len(widths):
            stop = start + 1
            while stop < len(widths) and sum(widths[start : stop + 1]) + gap * (stop + 1 - start) <= room:
                stop += 1
            grid = RichTable(
                title=Text(table.title if start == 1 else f"{table.title} (continued)", "bold"),
                title_justify="left",
                box=box.SIMPLE_HEAD,  # which puts one space between columns
                padding=(0, gap - 1, 0, 0),
                show_edge=False,
                pad_edge=False,
            )
            places = [0, *range(start, stop)]
            for at in places:
                grid.add_column(Text(heads[at]), justify="right" if at else "left", no_wrap=bool(at), overflow="fold")
            for row in table.rows:
                grid.add_row(*(Text(str(row[at]), _STYLES.get(row[at].tone, "")) for at in places))
            console.print(grid)
            start = stop
