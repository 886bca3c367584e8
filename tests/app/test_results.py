"""Results as files: JSON by its schema, tables for spreadsheets and papers, figures in several formats."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from pathlib import Path

import jsonschema
import pytest
import torch
from app.cases import expected_scalars, run, scalars_of, trials_of, write_key, write_npz, write_scores

import vpmetrics.app
from vpmetrics._report import System, report_of_trials
from vpmetrics._trials.scored import ScoredTrials
from vpmetrics.app.report import print_tables
from vpmetrics.app.results import Run, results_of
from vpmetrics.app.table_files import as_csv, as_latex, as_markdown
from vpmetrics.app.tables import Table

SCHEMA = json.loads((Path(vpmetrics.app.__file__).parent / "results.schema.json").read_text())


def scored(seed=0, distance=1.0):
    draw = torch.Generator().manual_seed(seed)
    is_target = torch.arange(300) % 5 == 0
    return ScoredTrials(torch.randn(300, generator=draw, dtype=torch.float64) + distance * is_target, is_target)


def test_results_follow_the_schema_and_say_what_led_to_them(tmp_path, voices):
    files = write_npz(tmp_path, voices)
    run("evaluate", *files, "--out", tmp_path / "out", "--similarity", "sigmoid")
    content = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    jsonschema.validate(content, SCHEMA)
    assert content["command"] == ["vpmetrics", "evaluate", *map(str, files), "--out", str(tmp_path / "out"),
                                  "--similarity", "sigmoid"]  # fmt: skip
    assert content["settings"]["similarity"] == "sigmoid"
    assert content["settings"]["scoring"] == "cosine"
    (source,) = content["inputs"]
    assert source["sha256"] == hashlib.sha256(Path(files[0]).read_bytes()).hexdigest()
    assert source["bytes"] == Path(files[0]).stat().st_size
    (system,) = content["systems"]
    assert (system["utterances"], system["speakers"]) == (60, 6)
    assert system["trials"]["OO"] == {"target": 270, "nontarget": 1500}
    assert set(content["scalars"]) == set(system["scalars"]) == set(expected_scalars(voices))
    assert content["scalars"]["op_eer"]["private"] == "high"


def test_whatever_is_not_finite_is_null_and_named():
    targets = scored()._replace(is_target=torch.ones(300, dtype=torch.bool))
    with pytest.warns(UserWarning, match="There are no non-target trials"):
        report = report_of_trials({"": targets})
    report.scalars["cllr"] = torch.tensor(math.inf)
    content = results_of([System("x", report)], Run())
    jsonschema.validate(content, SCHEMA)
    (system,) = content["systems"]
    assert system["scalars"]["cllr"] is None
    assert system["scalars"]["d_ece"] is None
    assert system["scalars"]["tag"] == "?"
    assert (system["not_finite"]["cllr"], system["not_finite"]["d_ece"]) == ("inf", "nan")


def test_json_to_standard_output_is_nothing_else(tmp_path, voices, capsys):
    files = write_npz(tmp_path, voices)
    run("evaluate", *files, "--json", tmp_path / "file.json")
    capsys.readouterr()
    run("evaluate", *files, "--json", "-")
    assert json.loads(capsys.readouterr().out)["systems"] == json.loads((tmp_path / "file.json").read_text())["systems"]


def test_names_of_scores_are_counted_once(tmp_path, voices):
    scores = write_scores(tmp_path / "scores", voices, trials_of(voices, "OP"))
    run("evaluate", scores, write_key(tmp_path / "key", voices), "--json", tmp_path / "r.json")
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["systems"][0]["utterances"] == 60
    assert {Path(source["path"]).name for source in content["inputs"]} == {"scores", "key"}
    assert scalars_of(tmp_path / "r.json")["tag"] in "0ABCDEF"


def test_figures_are_written_in_the_formats_asked_for(tmp_path, voices):
    files = write_npz(tmp_path, voices)
    run("evaluate", *files, "--out", tmp_path, "--figures", "pdf", "svg")
    assert not list(tmp_path.glob("*.png"))
    assert {path.stem for path in tmp_path.glob("*.pdf")} == {path.stem for path in tmp_path.glob("*.svg")}
    assert (tmp_path / "zoo.pdf").read_bytes().startswith(b"%PDF")
    before = (tmp_path / "zoo.svg").read_bytes()
    run("evaluate", *files, "--out", tmp_path, "--figures", "svg")
    assert (tmp_path / "zoo.svg").read_bytes() == before
    assert not list(tmp_path.glob("*.pdf"))  # of the run before


TABLE = Table("Title with D_ECE & 50 %", ("system", "G_VD [dB]", "tag"), [("a_b|c", "−1.50", "A"), ("b", "–", "?")])


def test_tables_for_spreadsheets_hold_numbers():
    rows = list(csv.reader(as_csv([TABLE, TABLE]).splitlines()))
    assert rows[:3] == [["system", "G_VD [dB]", "tag"], ["a_b|c", "-1.50", "A"], ["b", "", "?"]]
    assert rows[3] == []
    assert rows[4:] == rows[:3]


def test_tables_for_markdown_have_as_many_cells_as_headings():
    lines = as_markdown([TABLE]).splitlines()
    assert lines[2:] == ["| system | G_VD [dB] | tag |", "| --- | ---: | ---: |", r"| a_b\|c | −1.50 | A |",
                         "| b | – | ? |"]  # fmt: skip


def test_tables_for_latex_escape_names_and_set_indices_low():
    text = as_latex([TABLE])
    assert r"\caption{Title with $D_\mathrm{ECE}$ \& 50 \%}" in text
    assert r"system & $G_\mathrm{VD}$ [dB] & tag \\" in text
    assert r"a\_b|c & $-$1.50 & A \\" in text


@pytest.mark.parametrize("width", [200, 80, 60, 40, 20])
def test_no_terminal_is_too_narrow_for_every_digit(capsys, width):
    from rich.console import Console

    names = ("a rather long name of a system with words", "averyveryverylongnamewithoutanyspaces", "B2")
    rows = [(name, *(f"{number}.{number:03}" for number in range(100, 112))) for name in names]
    table = Table("Systems", ("system", *(f"D_ECE of {n} [bit]" for n in range(12))), rows)
    print_tables([table], Console(width=width))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for cell in rows[0][1:]:
        assert shown.count(cell) == len(rows)
    assert max(map(len, shown.splitlines())) <= width
