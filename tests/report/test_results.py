"""Results as files.

JSON as documented, tables for spreadsheets and papers, figures in several formats.
"""

import base64
import hashlib
import json
import math
from dataclasses import replace

import pytest
import torch
import yaml
from cli.cases import Page, results_of, run, scored, write_npz

from vpmetrics import VoicePrivacy
from vpmetrics.cli.terminal import print_tables
from vpmetrics.report import results
from vpmetrics.report.outputs import Sample, render_model_card, save_systems
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.results import Run, encode_json, make_results
from vpmetrics.report.tables import Cell, Table
from vpmetrics.report.trial_report import report_trials


def example_in_documentation():
    """The example in the documentation of the results, as Python has it."""
    text = results.__doc__.partition("code-block:: json")[2]
    return json.loads(text)


def assert_same_form(got, documented, place="results"):
    """Check that dictionaries have the documented keys, and values the documented types."""
    if place.rpartition(".")[2] in (
        "scalars",
        "settings",
        "trials",
        "utility",
        "not_finite",
        "attributes",
    ):
        return
    if isinstance(documented, dict):
        assert set(got) == set(documented), place
        for key, value in documented.items():
            assert_same_form(got[key], value, f"{place}.{key}")
    elif isinstance(documented, list) and documented:
        for element in got:
            assert_same_form(element, documented[0], place)
    else:
        assert isinstance(got, (type(documented), type(None))), place


def test_results_have_the_documented_form_and_record_command_and_settings(tmp_path, voices, capsys):
    files = write_npz(tmp_path, voices)
    options = ["--scoring", "euclidean", "--no-attacks"]
    run("evaluate", *files, "--out", tmp_path / "out", *options)
    content = results_of(tmp_path / "out" / "results.json")
    assert content["version"] == results.VERSION
    assert_same_form({**content, "checks": []}, {**example_in_documentation(), "checks": []})
    assert content["command"] == [
        "vpmetrics",
        "evaluate",
        *map(str, (*files, "--out", tmp_path / "out")),
        *options,
    ]
    assert (
        content["settings"].items() >= {"similarity": "geometric", "scoring": "euclidean"}.items()
    )
    (source,) = content["inputs"]
    assert source["sha256"] == hashlib.sha256(files[0].read_bytes()).hexdigest()
    assert source["bytes"] == files[0].stat().st_size
    (system,) = content["systems"]
    assert (system["utterances"], system["speakers"]) == (60, 6)
    assert system["trials"]["OO"] == {"target": 270, "nontarget": 1500}
    assert set(content["scalars"]) == set(system["scalars"])
    assert system["headline"]["disclosure"] == system["scalars"]["disclosure"]
    assert system["headline"]["level"] in ("high", "moderate", "inconclusive")
    assert set(content["files"]) == {path.name for path in (tmp_path / "out").iterdir()} - {
        "results.json"
    }
    assert content["scalars"]["op_eer"]["direction"] == "high"
    capsys.readouterr()
    run("evaluate", *files, "--json", "-", *options)  # and nothing but JSON
    assert json.loads(capsys.readouterr().out)["systems"] == content["systems"]


def test_non_finite_scalars_are_null_and_listed(tmp_path):
    targets = scored()._replace(is_target=torch.ones(300, dtype=torch.bool))
    with pytest.warns(UserWarning, match="There are no non-target trials"):
        report = report_trials({"": targets})
    report.scalars["cllr"] = torch.tensor(math.inf)
    (tmp_path / "r.json").write_bytes(
        encode_json(make_results([EvaluatedSystem("x", report)], Run()))
    )
    (system,) = results_of(tmp_path / "r.json")["systems"]
    assert system["scalars"]["cllr"] is None
    assert system["scalars"]["d_ece"] is None
    assert system["scalars"]["tag"] == "?"
    assert (system["not_finite"]["cllr"], system["not_finite"]["d_ece"]) == ("inf", "nan")


def test_figures_are_written_in_the_formats_asked_for(tmp_path, voices):
    out = tmp_path / "out"
    files = write_npz(tmp_path, voices)
    run("evaluate", *files, "--no-attacks", "--out", out, "--figures", "pdf", "svg")
    assert not list(out.glob("*.png"))
    assert {path.stem for path in out.glob("*.pdf")} == {path.stem for path in out.glob("*.svg")}
    assert (out / "zoo.pdf").read_bytes().startswith(b"%PDF")
    before = (out / "zoo.svg").read_bytes()
    run("evaluate", *files, "--no-attacks", "--out", out, "--figures", "svg")
    assert (out / "zoo.svg").read_bytes() == before
    assert not list(out.glob("*.pdf"))  # of the run before


@pytest.mark.parametrize("width", [200, 80, 60, 40, 20])
def test_tables_keep_every_digit_in_a_narrow_terminal(capsys, width):
    from rich.console import Console

    names = (
        "a rather long name of a system with words",
        "averyveryverylongnamewithoutanyspaces",
        "B2",
    )
    rows = tuple(
        (Cell(name), *(Cell(f"{number}.{number:03}") for number in range(100, 112)))
        for name in names
    )
    table = Table("Systems", ("system", *(f"D_ECE of {n} [bit]" for n in range(12))), rows)
    print_tables([table], Console(width=width))
    shown = capsys.readouterr().out
    assert "…" not in shown
    for cell in rows[0][1:]:
        assert shown.count(cell.text) == len(rows)
    assert max(map(len, shown.splitlines())) <= width


def test_a_report_is_saved_from_python_as_by_the_command(tmp_path, voices):
    command = tmp_path / "command"
    python = tmp_path / "python"
    run("evaluate", *write_npz(tmp_path, voices), "--no-attacks", "--out", command)
    metric = VoicePrivacy(intervals=0.95, metrics="all", attacks=None)
    metric.update(voices.original, voices.protected["B2"], voices.speakers)
    one = EvaluatedSystem("B2", metric.report(), tuple("012345"), utterances=60)
    save_systems([one], python, "all.npz", {"intervals": 0.95})
    assert {path.name for path in python.iterdir()} == {path.name for path in command.iterdir()}
    for name in ("tables.csv", "tables.md", "tables.tex", "zoo.png"):
        assert (python / name).read_bytes() == (command / name).read_bytes(), name
    with pytest.raises(ValueError, match=r"expected a new folder.* holds 'all\.npz'"):
        save_systems([one], tmp_path)


def test_utility_attributes_and_recordings_are_shown_where_there_are_any(tmp_path):
    ones = [
        EvaluatedSystem(name, report_trials({"OP": scored(d)}))
        for name, d in (("a", 0.1), ("b", 2.0))
    ]
    save_systems(ones, tmp_path / "without")
    assert "<audio" not in (tmp_path / "without" / "report.html").read_text(encoding="utf-8")
    attributes = {"sex": {"disclosure": 0.25}}
    ones = [
        replace(ones[0], utility={"WER": 5.0}, attributes=attributes),
        replace(ones[1], utility={"WER": 6.0}),
    ]
    save_systems(
        ones,
        tmp_path / "with",
        samples=[Sample("p225", "<read>", b"RIFForiginal", b"RIFFprotected")],
    )
    text = (tmp_path / "with" / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    labels = [attributes["aria-label"] for tag, attributes in page.tags if tag == "audio"]
    assert labels == ["p225, <read>, original", "p225, <read>, protected"]
    assert base64.b64encode(b"RIFFprotected").decode() in text
    assert "WER ↓" in page.texts
    assert "Attributes" in "".join(page.texts)
    content = results_of(tmp_path / "with" / "results.json")
    assert content["systems"][1]["utility"] == {"WER": 6.0}
    assert content["systems"][0]["attributes"] == attributes
    assert (tmp_path / "with" / "utility.png").exists()


@pytest.mark.parametrize("title", ["B2", 'a "quoted": title\n- x # y', "系统"])
def test_a_model_card_has_front_matter_that_the_hub_reads(title):
    known = report_trials({"OP": scored()})
    text = render_model_card(
        [EvaluatedSystem("B2: x", known), EvaluatedSystem("---", known)], title
    )
    _, front, body = text.split("---\n", 2)
    content = yaml.safe_load(front)
    assert [entry["name"] for entry in content["model-index"]] == ["B2: x", "---"]
    (result,) = content["model-index"][0]["results"]
    assert result["dataset"]["name"] == "speech"
    assert result["task"]["type"] == "audio-to-audio"
    values = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert values["op_disclosure"] == pytest.approx(float(known.scalars["disclosure"]), rel=1e-5)
    assert "leakage" in body.lower()
    assert "0.03 and 0.12 bit from several utterances" in " ".join(body.split())
