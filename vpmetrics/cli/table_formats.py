"""Tables for terminal, CSV, Markdown and LaTeX, with the text of users escaped."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from html import escape

from rich import box, markup
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable

from vpmetrics._engine.registry import DASH
from vpmetrics.cli.tables import Cell, Table

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
            columns.append([_guard_formula(head), *map(_as_plain, cells)])
            for at, end in enumerate(("from", "to") if any(cell.interval for cell in cells) else ()):
                columns.append([_guard_formula(f"{head}, {end}"), *(_number_or_empty(cell.ends[at]) for cell in cells)])
        writer.writerows([[]] * (number > 0))
        writer.writerows(zip(*columns, strict=True))
    return text.getvalue()


def _as_plain(cell: Cell) -> str:
    """Return a number with a decimal point, text that no spreadsheet takes for a formula, and nothing for a dash."""
    return _number_or_empty(cell.value) or ("" if cell.text == DASH else _guard_formula(cell.text))


def _number_or_empty(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def _guard_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def as_markdown(tables: Sequence[Table]) -> str:
    """Return tables under their titles, the best of each column in bold."""
    parts = []
    for table in tables:
        lines = [
            _markdown_row(map(escape_markdown, table.columns)),
            _markdown_row(["---", *["---:"] * (len(table.columns) - 1)]),
        ]
        for row in table.rows:
            cells = [(escape_markdown(str(cell)), cell.tone == "best") for cell in row]
            lines.append(_markdown_row(f"**{text}**" if is_best else text for text, is_best in cells))
        title = f"**{escape_markdown(table.title)}**\n\n" if table.title else ""
        parts.append(title + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


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
    columns = zip(table.columns, *rows, strict=True)
    lengths = [
        max(map(len, [*head.split(), *(str(cell) if intervals else cell.text for cell in cells)]))
        for head, *cells in columns
    ]
    kind = "table*" if sum(lengths) + 2 * len(lengths) > _COLUMN_WIDTH else "table"
    head = " & ".join(_latex_heading(text, is_stacked=at > 0) for at, text in enumerate(table.columns))
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
    text = _set_indices(_escape_latex(cell.text))
    text = rf"\textbf{{{text}}}" if cell.tone == "best" else text
    return f"{text} {_escape_latex(cell.interval)}" if intervals and cell.interval else text


def _latex_heading(text: str, is_stacked: bool) -> str:
    """Return a heading, its words below each other if ``is_stacked``, indices as subscripts."""
    words = [_set_indices(_escape_latex(word)) for word in (text.split() if is_stacked else [text])]
    stack = r" \\ ".join(words)
    return rf"\shortstack[r]{{{stack}}}" if len(words) > 1 else stack


def _set_indices(escaped: str) -> str:
    # A bracket after a line break would be the argument of that break.
    return _INDEX.sub(r"$\1_\\mathrm{\2}$", escaped).replace("[", "{[}")


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Print tables; columns that do not fit the terminal follow in a second table, so that no digit is cut."""
    for table in tables:
        columns = zip(table.columns, *table.rows, strict=True)
        widths = [
            max(cell_len(text) for text in (*_split_heading(head, is_stacked=at > 0), *map(str, cells)))
            for at, (head, *cells) in enumerate(columns)
        ]
        gap = 2 if sum(widths) + 2 * len(widths) <= console.width else 1
        room, start = console.width - min(widths[0], console.width // 2), 1
        while start < len(widths):
            stop = start + 1
            while stop < len(widths) and sum(widths[start : stop + 1]) + gap * (stop + 1 - start) <= room:
                stop += 1
            title = table.title if start == 1 else f"{table.title} (continued)"
            console.print(_rich_table(table, title, [0, *range(start, stop)], gap))
            start = stop


def _rich_table(table: Table, title: str, places: Sequence[int], gap: int) -> RichTable:
    grid = RichTable(
        title=markup.escape(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,  # which puts one space between columns
        padding=(0, gap - 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    for at in places:
        # Word by word, so that a dozen columns fit into 80 characters.
        text = markup.escape("\n".join(_split_heading(table.columns[at], is_stacked=at > 0)))
        grid.add_column(text, justify="right" if at else "left", no_wrap=bool(at), overflow="fold")
    for row in table.rows:
        cells = [(markup.escape(str(row[at])), _STYLES.get(row[at].tone)) for at in places]
        grid.add_row(*(f"[{style}]{text}[/]" if style else text for text, style in cells))
    return grid


def _split_heading(text: str, is_stacked: bool) -> list[str]:
    return text.split(" ") if is_stacked else [text]
