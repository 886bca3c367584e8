"""What once misled or broke: options that did nothing, names that vanished, files that stayed or were lost."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli.cases import run, scalars_of, trials_of, write_key, write_scores, write_utt2spk

from vpmetrics._engine.scalar import printable

ROOT = Path(__file__).parents[2]


def write_embeddings(path, speakers=10, each=4):
    draw = np.random.default_rng(0)
    original = draw.normal(size=(speakers * each, 8)) + draw.normal(size=(speakers, 8)).repeat(each, 0)
    protected = original + draw.normal(size=original.shape)
    np.savez(path, original=original, protected=protected, speakers=np.arange(speakers).repeat(each))
    return path


def write_conditions(folder, voices):
    options = ["--key", write_key(folder / "key", voices)]
    for condition in ("OO", "OP", "PP"):
        path = write_scores(folder / condition, voices, trials_of(voices, condition))
        options += [f"--{condition.lower()}", path]
    return options


def test_similarity_of_score_files_is_that_asked_for(tmp_path, voices):
    options = [*write_conditions(tmp_path, voices), "--utt2spk", write_utt2spk(tmp_path, voices)]
    for kind in ("geometric", "sigmoid"):
        run("evaluate", *options, "--similarity", kind, "--json", tmp_path / kind)
    geometric, sigmoid = (scalars_of(tmp_path / kind)["deid"] for kind in ("geometric", "sigmoid"))
    assert abs(geometric - sigmoid) > 1e-3


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--scoring", "dot"], "Expected no --scoring with score files: it would do nothing"),
        (["--utterances", "nonexistent"], "Expected no --utterances with score files"),
        (["--similarity", "sigmoid"], "Expected --utt2spk with --similarity"),
        (["--partial"], "Expected no --partial with score files"),
        (["--groups", "x"], "Expected no --groups with score files"),
        (["--no-attacks"], "Expected no --no-attacks with score files"),
        (["--population", "20"], "Expected no --population with score files"),
    ],
)
def test_an_option_that_would_do_nothing_with_score_files_is_refused(tmp_path, voices, capsys, extra, message):
    run("evaluate", *write_conditions(tmp_path, voices), *extra, expect=2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--strict"], "Expected no --strict with embeddings"),
        (["--plda-fit", "x"], "Expected --scoring plda and --plda-fit FILE together"),
        (["--scoring", "plda"], "Expected --scoring plda and --plda-fit FILE together"),
        (["--weights", "x"], "x: cannot be read"),
    ],
)
def test_an_option_that_would_do_nothing_with_embeddings_is_refused(tmp_path, capsys, extra, message):
    run("evaluate", write_embeddings(tmp_path / "e.npz"), *extra, expect=2)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "idle"), [(("--intervals", "0"), "--utt2spk"), (("--similarity", "sigmoid"), "--similarity")]
)
def test_what_does_nothing_for_scores_without_a_condition_is_refused(tmp_path, voices, capsys, given, idle):
    scores = write_scores(tmp_path / "s", voices, trials_of(voices, "OP"), fourth=True)
    run("evaluate", scores, "--utt2spk", write_utt2spk(tmp_path, voices), *given, expect=2)
    assert f"Expected --oo, --op or --pp with {idle}" in capsys.readouterr().err


def test_no_system_is_called_as_unprotected_speech_is(tmp_path, capsys):
    path = write_embeddings(tmp_path / "e.npz")
    run("compare", f"original={path}", f"B={path}", expect=2)
    assert "original is what tables call unprotected speech" in capsys.readouterr().err


def test_a_system_whose_name_begins_with_an_underscore_is_shown(tmp_path, capsys):
    path = write_embeddings(tmp_path / "e.npz")
    run("compare", f"_hidden={path}", f"B={path}", "--no-attacks", "--out", tmp_path / "out", "--figures", "svg")
    assert "_hidden" in capsys.readouterr().out
    assert "_hidden" in (tmp_path / "out" / "deid_gvd.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(("out", "message"), [("afile", "expected a folder"), ("afile/below", "cannot be written")])
def test_where_to_write_is_checked_before_anything_is_read(tmp_path, capsys, out, message):
    (tmp_path / "afile").write_text("")
    run("evaluate", tmp_path / "missing.npz", "--out", tmp_path / out, expect=2)
    assert f"{tmp_path / out}: {message}" in capsys.readouterr().err
    run("demo", "--out", tmp_path / out, expect=2)
    assert message in capsys.readouterr().err
    run("evaluate", tmp_path / "missing.npz", "--json", tmp_path, expect=2)
    assert "expected a file, but got a folder" in capsys.readouterr().err


@pytest.mark.parametrize("seed", [-1, 2**70])
def test_a_seed_that_cannot_be_one_is_refused(tmp_path, capsys, seed):
    run("demo", "--seed", seed, "--out", tmp_path, expect=2)
    assert "Expected --seed to be from 0 to 2^63 - 1" in capsys.readouterr().err


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


def test_files_are_written_although_nobody_reads_what_is_printed(tmp_path):
    write_embeddings(tmp_path / "e.npz")
    script = f"{sys.executable} -m vpmetrics evaluate e.npz --no-attacks --json r.json | true; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert done.stdout.strip() == "141"
    assert done.stderr == ""
    assert json.loads((tmp_path / "r.json").read_text())["systems"]


def test_mathematics_and_escape_sequences_in_names_are_but_letters(tmp_path, capsys):
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


def test_one_speaker_beside_many_gives_dashes(tmp_path, capsys):
    write_embeddings(tmp_path / "one.npz", speakers=1, each=40)
    write_embeddings(tmp_path / "many.npz")
    run("evaluate", tmp_path / "one.npz", "--no-attacks", expect=2)
    assert "No measure of privacy is defined" in capsys.readouterr().err
    systems = f"A={tmp_path / 'many.npz'}", f"B={tmp_path / 'one.npz'}"
    run("compare", *systems, "--no-attacks", "--json", tmp_path / "r.json")
    counts = [system["trials"]["OP"] for system in json.loads((tmp_path / "r.json").read_text())["systems"]]
    assert counts == [{"target": 120, "nontarget": 1440}, {"target": 40 * 39, "nontarget": 0}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", 5000 * "x"], "error: File name too long"),
        (["evaluate", "--original", 5000 * "x", "--protected", "p.npz"], "error: File name too long"),
        (["compare", "A=", "B=x.npz"], "error: Expected NAME=FILE, but got 'A='"),
        (["compare", "=x.npz"], "error: Expected NAME=FILE, but got '=x.npz'"),
        (["evaluate", "/dev/null"], "/dev/null: expected lines `enrol trial score"),
        (["evaluate", "e.npz", "--json", "e.npz"], "e.npz: holds no results of vpmetrics and would be lost"),
        (
            # Found before the input is read, which is missing.
            ["evaluate", "missing.npz", "--out", "new", "--json", "new/report.html"],
            "new/report.html: is written by --out as well; choose another name",
        ),
    ],
)
def test_no_name_of_a_file_ends_in_a_traceback(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    write_embeddings(tmp_path / "e.npz")
    before = (tmp_path / "e.npz").read_bytes()
    run(*arguments, expect=2)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert (tmp_path / "e.npz").read_bytes() == before


@pytest.mark.parametrize("arguments", [["evaluate", ""], ["evaluate", "e.npz", "--out", ""], ["demo", "--out", ""]])
def test_empty_names_are_refused(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        run(*arguments)
    assert "expected a name, but got an empty one" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_no_text_is_written_as_escapes(tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/b\xff.npz")
    os.link(write_embeddings(tmp_path / "e.npz"), name)
    run("evaluate", name, "--no-attacks", "--intervals", "0", "--out", tmp_path / "out")
    content = json.loads((tmp_path / "out/results.json").read_text(encoding="utf-8"))
    assert content["systems"][0]["name"] == "b\\udcff.npz"
