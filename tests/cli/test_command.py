"""The command itself: its options, and how it ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.cases import run, write_embeddings

from vpmetrics.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("evaluate", "Expected embeddings or score files, but got neither"),
        ("evaluate missing.npz", "missing.npz: cannot be read (No such file"),
        ("evaluate missing missing", "missing: cannot be read (No such file"),
        ("evaluate --original missing.npy --protected p.npy", "missing.npy: no such file for --original"),
        ("evaluate LONG", "error: File name too long"),
        ("evaluate --original LONG --protected p.npz", "error: File name too long"),
        ("evaluate /dev/null", "/dev/null: expected lines `enrol trial score"),
        ("evaluate e.npz --strict", "Expected no --strict with embeddings"),
        ("evaluate e.npz --plda-fit x", "Expected --scoring plda and --plda-fit FILE together"),
        ("evaluate e.npz --scoring plda", "Expected --scoring plda and --plda-fit FILE together"),
        ("evaluate e.npz --weights x", "x: cannot be read"),
        ("evaluate --op scores --scoring dot", "Expected no --scoring with score files: it would do nothing"),
        ("evaluate --op scores --similarity sigmoid", "Expected --utt2spk with --similarity"),
        *(
            (f"evaluate --op scores {option}", f"Expected no {option.split()[0]} with score files")
            for option in ("--utterances x", "--partial", "--groups x", "--no-attacks", "--population 20")
        ),
        ("evaluate scores --utt2spk utt2spk --intervals 0", "Expected --oo, --op or --pp with --utt2spk"),
        ("evaluate scores --utt2spk utt2spk --similarity sigmoid", "Expected --oo, --op or --pp with --similarity"),
        ("compare A=x.npz A=y.npz", "Expected every system to have a name of its own"),
        ("compare A= B=x.npz", "error: Expected NAME=FILE, but got 'A='"),
        ("compare =x.npz", "error: Expected NAME=FILE, but got '=x.npz'"),
        ("compare original=e.npz B=e.npz", "original is what tables call unprotected speech"),
        ("compare e.npz --no-attacks --utility WER=x", "Expected a number in --utility 'WER=x', but got 'x'"),
        ("compare e.npz --no-attacks --utility nowhere.csv", "nowhere.csv: cannot be read as NAME=VALUE or CSV"),
        ("compare e.npz --no-attacks --utility other.csv", "other.csv: expected a column system, but got name, WER"),
        ("compare e.npz --no-attacks --utility wrong.csv", "wrong.csv: expected one of e, but got 'f'"),
        ("demo --epochs 0", "Expected --epochs to be 1 at least"),
        ("demo --seed -1", "Expected --seed to be from 0 to 2^63 - 1"),
        (f"demo --seed {2**70}", "Expected --seed to be from 0 to 2^63 - 1"),
        # Where to write is checked before anything is read.
        ("evaluate missing.npz --out e.npz", "e.npz: expected a folder"),
        ("evaluate missing.npz --out e.npz/below", "e.npz/below: cannot be written"),
        ("evaluate missing.npz --json .", "expected a file, but got a folder"),
        ("evaluate missing.npz --out new --json new/report.html", "new/report.html: is written by --out as well"),
        ("evaluate e.npz --json e.npz", "e.npz: holds no results of vpmetrics and would be lost"),
        ("demo --out e.npz", "expected a folder"),
        ("demo --out e.npz/below", "cannot be written"),
        ("embed missing --out e.npz", "exists already"),
        ("embed missing --out new.npy", "expected a name that ends in .npz"),
        ("embed missing --out e.npz/new.npz", "cannot be written"),
    ],
)
def test_invalid_usage_prints_one_line_and_exits_with_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    before = write_embeddings(tmp_path / "e.npz").read_bytes()
    (tmp_path / "scores").write_text("a b 2 target\na c 1 nontarget\n")
    (tmp_path / "utt2spk").write_text("a s\nb s\nc t\n")
    (tmp_path / "other.csv").write_text("name,WER\ne,1\n")
    (tmp_path / "wrong.csv").write_text("system,WER\nf,1\n")
    run(*arguments.replace("LONG", 5000 * "x").split(), expect=2)
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert (tmp_path / "e.npz").read_bytes() == before


@pytest.mark.parametrize(
    ("option", "values", "message"),
    [
        ("--population", ("1", "20,20", "many", "20,", "2.5"), "expected different numbers of at least 2"),
        ("--intervals", ("1", "-0.1", "most", "95"), "expected a number from 0 to below 1"),
        ("--score-columns", ("enrol,enrol,score", "enrol,test,score", "score,,label"),
         "expected each of enrol, trial, score, label once, or _"),
        ("--out", ("",), "expected a name, but got an empty one"),
    ],
)  # fmt: skip
def test_a_value_that_an_option_does_not_take_ends_with_status_2(capsys, option, values, message):
    for value in values:
        with pytest.raises(SystemExit) as ended:
            run("evaluate", "e.npz", f"{option}={value}")
        assert ended.value.code == 2
        assert f"{option}: {message}" in capsys.readouterr().err, value


@pytest.mark.parametrize("arguments", [["evaluate", ""], ["demo", "--out", ""]])
def test_empty_names_raise(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        run(*arguments)
    assert "expected a name, but got an empty one" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


BREAKS = """
import os, signal, sys, time

class Finder:  # breaks as NumPy does when interrupted while it is imported
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "matplotlib"):
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)
            except KeyboardInterrupt:
                raise ImportError("cannot load module more than once per process")

sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from vpmetrics.cli import main
sys.exit(main(["evaluate", "missing.npz"]))
"""


def test_an_interrupt_while_libraries_are_imported_is_quiet():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", BREAKS], capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_without_a_command_there_is_help(capsys):
    run(expect=2)
    assert "evaluate" in capsys.readouterr().out


@pytest.mark.parametrize("command", [[], ["evaluate"], ["compare"], ["demo"]])
def test_help_fits_the_terminal(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= 80
