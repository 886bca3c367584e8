"""Misuse of the command line: options without effect, lost names, files that stay or are overwritten."""

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli.cases import run, systems_of, write_conditions, write_embeddings, write_utt2spk

from vpmetrics._engine.scalar import printable

ROOT = Path(__file__).parents[2]


def test_similarity_option_applies_to_score_files(tmp_path, evaluate, voices):
    options = [*write_conditions(tmp_path, voices), "--utt2spk", write_utt2spk(tmp_path, voices)]
    geometric, sigmoid = (evaluate(*options, "--similarity", kind)[0] for kind in ("geometric", "sigmoid"))
    assert abs(geometric["scalars"]["deid"] - sigmoid["scalars"]["deid"]) > 1e-3


def test_a_system_whose_name_begins_with_an_underscore_is_shown(tmp_path, capsys):
    path = write_embeddings(tmp_path / "e.npz")
    run("compare", f"_hidden={path}", f"B={path}", "--no-attacks", "--out", tmp_path / "out", "--figures", "svg")
    assert "_hidden" in capsys.readouterr().out
    assert "_hidden" in (tmp_path / "out" / "deid_gvd.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_terminal_without_unicode_shows_the_numbers(tmp_path, monkeypatch, encoding):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", terminal)
    run("evaluate", write_embeddings(tmp_path / "e.npz"), "--no-attacks")
    terminal.flush()
    assert b"DeID" in terminal.buffer.getvalue()


def test_the_command_runs_as_a_process(tmp_path):
    write_embeddings(tmp_path / "e.npz")
    command = [sys.executable, "-m", "vpmetrics", "evaluate", "e.npz", "--no-attacks", "--intervals", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"DeID" in done.stdout
    assert b"Traceback" not in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_files_are_written_when_stdout_is_closed(tmp_path):
    write_embeddings(tmp_path / "e.npz")
    script = f"{sys.executable} -m vpmetrics evaluate e.npz --no-attacks --json r.json | true; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = ["bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    assert done.stdout.strip() == "141"
    assert done.stderr == ""
    assert systems_of(tmp_path / "r.json")


def test_mathematics_and_escape_sequences_in_names_are_escaped(tmp_path, capsys):
    data = dict(np.load(write_embeddings(tmp_path / "e.npz")))
    names = np.array([f"$\\foo{number}$ \x1b[31m" for number in data["speakers"]])
    np.savez(tmp_path / "e.npz", **{**data, "speakers": names})
    options = ["--title", "$\\foo$ \x1b[31mred", "--no-attacks", "--out", tmp_path / "out"]
    run("evaluate", tmp_path / "e.npz", *options)
    run("compare", f"$\\foo$\x1b[31m={tmp_path / 'e.npz'}", *options)
    assert "\x1b" not in capsys.readouterr().out
    for path in (tmp_path / "out").glob("*.[hmt]*"):  # page, tables and model card
        assert "\x1b" not in path.read_text(encoding="utf-8"), path
    run("evaluate", "x\x1b[31m.npz", expect=2)
    assert "x\\x1b[31m.npz: cannot be read" in capsys.readouterr().err
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"


def test_compare_accepts_a_system_with_one_speaker(tmp_path):
    write_embeddings(tmp_path / "one.npz", speakers=1, each=40)
    write_embeddings(tmp_path / "many.npz")
    systems = f"A={tmp_path / 'many.npz'}", f"B={tmp_path / 'one.npz'}"
    run("compare", *systems, "--no-attacks", "--json", tmp_path / "r.json")
    counts = [system["trials"]["OP"] for system in systems_of(tmp_path / "r.json")]
    assert counts == [{"target": 120, "nontarget": 1440}, {"target": 40 * 39, "nontarget": 0}]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_undecodable_file_name_is_escaped(tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/b\xff.npz")
    os.link(write_embeddings(tmp_path / "e.npz"), name)
    run("evaluate", name, "--no-attacks", "--intervals", "0", "--out", tmp_path / "out")
    assert systems_of(tmp_path / "out/results.json")[0]["name"] == "b\\udcff.npz"
