"""Tables as CSV, Markdown and LaTeX, safe for whatever reads them."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from html import escape

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
_INDEX = re.compile(r"\b([DGCl])\\_(ECE|VD|diag|w)\b")  # of measures, escaped; other names are left as they are
_FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")  # what a spreadsheet would run
_COLUMN, _LONGEST = 46, 40  # characters that fit a column of two, rows that fit a page


def as_csv(tables: Sequence[Table]) -> str:
    """Return tables below each other, an empty line between them; an interval has two columns of its own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, table in enumerate(tables):
        writer.writerows([[]] * (number > 0))
        heads = (table.columns[0] if table.columns[0] == "system" else table.title, *table.columns[1:])
        columns = [_split(head, cells) for head, *cells in zip(heads, *table.rows, strict=True)]
        writer.writerows(zip(*(column for several in columns for column in several), strict=True))
    return text.getvalue()


def as_markdown(tables: Sequence[Table]) -> str:
    """Return tables under their titles, the best of each column in bold."""
    parts = []
    for table in tables:
        lines = [_row(map(_escape_markdown, table.columns)), _row(["---", *["---:"] * (len(table.columns) - 1)])]
        for row in table.rows:
            texts = [_escape_markdown(str(cell)) for cell in row]
            lines.append(_row(f"**{t}**" if c.tone == "best" else t for t, c in zip(texts, row, strict=True)))
        title = f"**{_escape_markdown(table.title)}**\n\n" if table.title else ""
        parts.append(title + "\n".join(lines) + "\n")
    return "\n".join(parts)


def as_latex(tables: Sequence[Table], intervals: bool = False) -> str:
    """Return tables with the rules of ``booktabs``, as wide as a column of two or as a page, and never wider.

    Letters beyond Latin, as of names in Chinese, need ``lualatex`` and a font that has them.
    """
    pieces = [
        table._replace(rows=table.rows[at : at + _LONGEST])
        for table in tables
        for at in range(0, max(len(table.rows), 1), _LONGEST)
    ]
    return "% \\usepackage{booktabs,graphicx}\n" + "\n".join(_latex(table, intervals) for table in pieces)


def _latex(table: Table, intervals: bool) -> str:
    rows = [[_latex_cell(cell, intervals) for cell in row] for row in table.rows]
    lengths = [
        max(map(len, [*head.split(), *(str(row[at]) if intervals else row[at].text for row in table.rows)]))
        for at, head in enumerate(table.columns)
    ]
    kind = "table*" if sum(lengths) + 2 * len(lengths) > _COLUMN else "table"
    head = " & ".join(_latex_heading(text, stacked=at > 0) for at, text in enumerate(table.columns))
    caption = _escape_latex(" ".join(filter(None, (table.title and f"{table.title}.", table.caption))))
    return "\n".join(
        [
            rf"\begin{{{kind}}}[t]\centering\footnotesize\setlength{{\tabcolsep}}{{4pt}}",
            rf"\caption{{{caption}}}",
            # Scaled down where even a page is too narrow.
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"\toprule",
            rf"{head} \\",
            r"\midrule",
            *(" & ".join(row) + r" \\" for row in rows),
            r"\bottomrule",
            rf"\end{{tabular}}}}\end{{{kind}}}",
            "",
        ]
    )


def _latex_cell(cell: Cell, intervals: bool) -> str:
    text = _set_indices(_escape_latex(cell.text))
    text = rf"\textbf{{{text}}}" if cell.tone == "best" else text
    return f"{text} {_escape_latex(cell.interval)}" if intervals and cell.interval else text


def _latex_heading(text: str, stacked: bool) -> str:
    """Return a heading word by word below each other, its index set low as the papers print it."""
    words = [_set_indices(_escape_latex(word)) for word in (text.split() if stacked else [text])]
    stack = r" \\ ".join(words)
    return rf"\shortstack[r]{{{stack}}}" if len(words) > 1 else stack


def _set_indices(escaped: str) -> str:
    # A bracket after a line break would be the argument of that break.
    return _INDEX.sub(r"$\1_\\mathrm{\2}$", escaped).replace("[", "{[}")


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", escape(text, quote=False))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _split(heading: str, cells: Sequence[Cell]) -> list[list[str]]:
    """Return a column as it is, or three where there are intervals: a value and both ends."""
    columns = [[_guard(heading), *map(_plain, cells)]]
    if any(cell.interval for cell in cells):
        columns += [
            [_guard(f"{heading}, {end}"), *(_number(cell.ends[at]) for cell in cells)]
            for at, end in enumerate(("from", "to"))
        ]
    return columns


def _plain(cell: Cell) -> str:
    """Return a number as programs read it, a text as no spreadsheet runs it, nothing for what is not known."""
    return _number(cell.value) or ("" if cell.text == DASH else _guard(cell.text))


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


def _guard(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
