"""Tables for CSV, Markdown and LaTeX, with the text of users escaped."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from html import escape

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
# measures with an index, escaped; other names are not changed
_INDEX = re.compile(r"\b([DGCl])\\_(ECE|VD|diag|w)\b")
# a spreadsheet takes text that begins so for a formula
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
_COLUMN_WIDTH = 46  # characters that fit one of two columns


def as_csv(tables: Sequence[Table]) -> str:
    """Return tables below each other, an empty line between them.

    An interval has two columns of its own.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for index, table in enumerate(tables):
        if index > 0:
            writer.writerow([])
        writer.writerows(zip(*_csv_columns(table), strict=True))
    return text.getvalue()


def _csv_columns(table: Table) -> list[list[str]]:
    """Return the columns of a table, each with its heading first."""
    row_heading = table.title
    if table.columns[0] == "system":
        row_heading = "system"
    heads = (row_heading, *table.columns[1:])
    columns: list[list[str]] = []
    for head, *cells in zip(heads, *table.rows, strict=True):
        fields = [_csv_field(cell.text, cell.value) for cell in cells]
        columns.append([_csv_field(head), *fields])
        if not any(cell.interval for cell in cells):
            continue
        for side, end in enumerate(("from", "to")):
            fields = [_csv_field(DASH, cell.ends[side]) for cell in cells]
            columns.append([_csv_field(f"{head}, {end}"), *fields])
    return columns


def _csv_field(text: str, value: float = math.nan) -> str:
    """Return a number with a decimal point, else text that no spreadsheet takes for a formula.

    A dash becomes an empty text.
    """
    if not math.isnan(value):
        return f"{value:.6g}"
    if text == DASH:
        return ""
    return f"'{text}" if text.startswith(_FORMULA) else text


def as_markdown(tables: Sequence[Table]) -> str:
    """Return tables under their titles, the best of each column in bold."""
    blocks: list[str] = []
    for table in tables:
        if table.title:
            blocks.append(f"**{escape_markdown(table.title)}**\n")
        rows = [
            [*map(escape_markdown, table.columns)],
            ["---", *["---:"] * (len(table.columns) - 1)],
        ]
        for row in table.rows:
            rows.append([_markdown_cell(cell) for cell in row])
        lines = [f"| {' | '.join(row)} |" for row in rows]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _markdown_cell(cell: Cell) -> str:
    text = escape_markdown(str(cell))
    return f"**{text}**" if cell.tone == "best" else text


def escape_markdown(text: str) -> str:
    """Return text of a user as Markdown that shows it as it is."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", escape(text, quote=False))


def as_latex(tables: Sequence[Table], intervals: bool = False) -> str:
    """Return tables with the rules of ``booktabs``, as wide as one of two columns, or as the page.

    Letters outside Latin, such as Chinese names, need ``lualatex`` and a font with these letters.
    """
    pieces = [_latex_table(table, intervals) for table in tables]
    return "% \\usepackage{booktabs,graphicx}\n" + "\n".join(pieces)


def _latex_table(table: Table, intervals: bool) -> str:
    if _latex_width(table, intervals) > _COLUMN_WIDTH:
        environment = "table*"
    else:
        environment = "table"
    # All headings but the first stand word below word.
    heads = [_set_indices(table.columns[0])]
    for text in table.columns[1:]:
        words = [_set_indices(word) for word in text.split()]
        stack = r" \\ ".join(words)
        heads.append(rf"\shortstack[r]{{{stack}}}" if len(words) > 1 else stack)
    title = f"{table.title}." if table.title else ""
    caption = _escape_latex(f"{title} {table.caption}".strip())
    lines = [
        rf"\begin{{{environment}}}[t]\centering\footnotesize\setlength{{\tabcolsep}}{{4pt}}",
        rf"\caption{{{caption}}}\vspace{{3pt}}",
        # Scaled down where even a page is too narrow.
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\toprule",
        rf"{' & '.join(heads)} \\",
        r"\midrule",
    ]
    for row in table.rows:
        cells = [_latex_cell(cell, intervals) for cell in row]
        lines.append(rf"{' & '.join(cells)} \\")
    lines += [r"\bottomrule", rf"\end{{tabular}}}}\end{{{environment}}}", ""]
    return "\n".join(lines)


def _latex_width(table: Table, intervals: bool) -> int:
    """Return how many characters wide a table is, with two between columns."""
    width = 0
    for at, head in enumerate(table.columns):
        texts = head.split()
        for row in table.rows:
            texts.append(str(row[at]) if intervals else row[at].text)
        width += 2 + max(map(len, texts), default=0)
    return width


def _latex_cell(cell: Cell, intervals: bool) -> str:
    text = _set_indices(cell.text)
    text = rf"\textbf{{{text}}}" if cell.tone == "best" else text
    if intervals and cell.interval:
        return f"{text} {_escape_latex(cell.interval)}"
    return text


def _set_indices(text: str) -> str:
    # A bracket after a line break would be the argument of that break.
    return _INDEX.sub(r"$\1_\\mathrm{\2}$", _escape_latex(text)).replace("[", "{[}")


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
