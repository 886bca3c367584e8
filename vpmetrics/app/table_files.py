"""Tables as CSV, Markdown, and LaTeX in the layout of the papers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

from vpmetrics.app.tables import Table, split_interval

_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "–": "--",
}


def as_csv(tables: Sequence[Table]) -> str:
    """Tables below each other, an empty line between them; numbers as programs read them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, table in enumerate(tables):
        if number:
            writer.writerow([])
        columns = [_split(heading, cells) for heading, *cells in zip(table.headings, *table.rows, strict=True)]
        first, *others = zip(*(column for several in columns for column in several), strict=True)
        writer.writerow([first[0] or table.title, *first[1:]])
        writer.writerows([row[0], *map(_plain, row[1:])] for row in others)
    return text.getvalue()


def as_markdown(tables: Sequence[Table]) -> str:
    """Tables under their titles."""
    parts = []
    for table in tables:
        lines = [table.headings, ("---", *["---:"] * (len(table.headings) - 1)), *table.rows]
        rows = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        parts.append(f"**{_escape_markdown(table.title)}**\n\n{rows}\n")
    return "\n".join(parts)


def as_latex(tables: Sequence[Table]) -> str:
    """Tables with the rules of ``booktabs``."""
    return "% \\usepackage{booktabs}\n" + "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    columns = "l" + "r" * (len(table.headings) - 1)
    rows = [" & ".join(map(_escape_latex, row)) for row in table.rows]
    head = " & ".join(map(_heading, table.headings))
    lines = [
        rf"\begin{{table}}[t]\centering\caption{{{_heading(table.title)}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        rf"{head} \\",
        r"\midrule",
        *(rf"{row} \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _heading(text: str) -> str:
    """A heading with its index set low, as the papers print it."""
    parts = re.split(r"\b([A-Za-z])_(\w+)", text)
    pieces = [_escape_latex(part) for part in parts]
    for at in range(1, len(parts), 3):
        pieces[at : at + 2] = [rf"${parts[at]}_\mathrm{{{parts[at + 1]}}}$", ""]
    return "".join(pieces)


def _escape_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>])", r"\\\1", text)


def _split(heading: str, cells: Sequence[str]) -> list[tuple[str, ...]]:
    """A column as it is, or three where there are intervals: a value and both ends."""
    parts = list(zip(*map(split_interval, cells), strict=True))
    if not any(parts[1]):
        return [(heading, *cells)]
    return [(f"{heading}{end}", *part) for end, part in zip(("", ", from", ", to"), parts, strict=True)]


def _plain(cell: str) -> str:
    """A number without the marks of print: a hyphen for minus, nothing for what is not known."""
    return "" if cell == "–" else cell.replace("−", "-").replace(",", "").removeprefix("≈ ")
