"""Tables as files.

Numbers for spreadsheets, nothing that runs, and LaTeX that compiles for whatever name.
"""

import csv
import re
import shutil
import subprocess

import pytest

from vpmetrics.report.table_formats import as_csv, as_latex, as_markdown
from vpmetrics.report.tables import Cell, Table

ROWS = (
    (Cell("a_b|c"), Cell("−1.50", -1.5, "[−2.00, −1.00]", (-2.0, -1.0), "best"), Cell("A")),
    (Cell("b"), Cell("–"), Cell("?")),
)
TABLE = Table("Title with D_ECE & 50 %", ("system", "G_VD [dB]", "tag ↓"), ROWS)
HOSTILE = (
    "=cmd|' /C calc'!A0",
    "+1",
    "@SUM(A1)",
    "-2+3",
    "＝1",
    "<script>x</script>",
    "a|b`*_[x](y)",
    "\\input{x}",
)


def test_csv_has_numbers_and_separate_interval_columns():
    rows = list(csv.reader(as_csv([TABLE, TABLE]).splitlines()))
    assert rows[:3] == [
        ["system", "G_VD [dB]", "G_VD [dB], from", "G_VD [dB], to", "tag ↓"],
        ["a_b|c", "-1.5", "-2", "-1", "A"],
        ["b", "", "", "", "?"],
    ]
    assert rows[3] == []
    assert rows[4:] == rows[:3]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_cell_is_a_formula_or_a_tag(text):
    table = Table(
        text, ("measure", text), ((Cell(text), Cell(text)), (Cell("x"), Cell("−1", -1.0)))
    )
    rows = list(csv.reader(as_csv([table]).splitlines()))
    assert all(cell[0] not in "=+-@＝＋－＠" for row in rows[:2] for cell in row)
    assert rows[2] == ["x", "-1"]
    assert "<script>" not in as_markdown([table])
    assert {
        len(re.findall(r"(?<!\\)\|", line)) for line in as_markdown([table]).splitlines()[2:]
    } == {3}


def test_tables_for_markdown_have_intervals_and_the_best_in_bold():
    assert as_markdown([TABLE]).splitlines()[2:] == [
        r"| system | G\_VD \[dB\] | tag ↓ |",
        "| --- | ---: | ---: |",
        r"| a\_b\|c | **−1.50 \[−2.00, −1.00\]** | A |",
        "| b | – | ? |",
    ]


def test_latex_escapes_names_and_writes_subscripts():
    text = as_latex([TABLE])
    # a title is left as its author wrote it
    assert r"\caption{Title with D\_ECE \& 50 \%.}" in text
    assert r"\shortstack[r]{$G_\mathrm{VD}$ \\ {[}dB]}" in text
    assert r"a\_b\textbar{}c & \textbf{$-$1.50} & A \\" in text
    assert "2.00" not in text
    assert "2.00" in as_latex([TABLE], intervals=True)


def test_wide_tables_span_both_columns():
    wide = Table(
        "",
        ("system", *(f"measure{n} [bit]" for n in range(9))),
        ((Cell("x"), *[Cell("0.123")] * 9),),
    )
    assert "table*" in as_latex([wide])
    assert "table*" not in as_latex([TABLE])


TITLES = (
    "b_new_v_2",
    "two\nlines",
    "$\\foo$ 50 % & #1 {x} ~^",
    "é ü ñ",
    "x" * 40,
    *HOSTILE[:4],
    *HOSTILE[5:],
)


@pytest.mark.parametrize("compiler", ["pdflatex", "lualatex"])
def test_latex_compiles_for_any_title_without_overfull_boxes(tmp_path, compiler):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    wide = tuple(
        Cell(f"{n}.123", 1.0, "[0.123, 0.456]", (0.1, 0.4), "best" if n % 3 else "")
        for n in range(14)
    )
    tables = [
        Table(
            title,
            (title, *(f"OP strongest D_ECE ↓ [bit] {n}" for n in range(k))),
            ((Cell(title), *wide[:k]),),
        )
        for title in (TITLES if compiler == "pdflatex" else ("系统 b_new_v_2",))
        for k in (1, 4, 14)
    ]
    packages = r"\usepackage{booktabs,graphicx}" + (
        r"\usepackage[utf8]{inputenc}" if compiler == "pdflatex" else ""
    )
    for intervals in (False, True):
        lines = [
            r"\documentclass[twocolumn]{article}",
            packages,
            r"\begin{document}",
            as_latex(tables, intervals),
        ]
        (tmp_path / "x.tex").write_text(
            "\n".join([*lines, r"\clearpage", r"\end{document}"]), encoding="utf-8"
        )
        command = [compiler, "-interaction=nonstopmode", "-halt-on-error", "x.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
        log = (tmp_path / "x.log").read_text(errors="replace")
        assert done.returncode == 0, log[-2000:]
        assert "Overfull" not in log
