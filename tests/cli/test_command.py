"""The command itself: its options, how it ends, and hostile names."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cli.cases import run, systems_of, write_embeddings

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "evaluate",
            "Expected ORIGINAL and PROTECTED, but got neither; see `vpmetrics evaluate --help`",
        ),
        ("evaluate missing.npz", "missing.npz: cannot be read (No such file"),
        ("evaluate missing other", "missing: no such file"),
        (
            "evaluate e.npz e.npz e.npz",
            "Expected ORIGINAL and PROTECTED, or one file of all arrays, but got 3 files",
        ),
        (
            "evaluate e.npz e.npz --protected e.npz",
            "but got 2 files beside --original or --protected",
        ),
        (
            "evaluate --original missing.npy --protected p.npy",
            "missing.npy: no such file for --original",
        ),
        ("evaluate LONG", "error: File name too long"),
        ("evaluate /dev/null", "/dev/null: expected a file or a folder"),
        ("evaluate e.npz --plda-fit x", "Expected --scoring plda and --plda-fit FILE together"),
        ("evaluate e.npz --weights x", "x: cannot be read"),
        ("evaluate e.npz --attributes x", "x: cannot be read"),
        ("evaluate e.npz --distractors x", "x: no such file for --distractors"),
        (
            "evaluate e.npz --encoder resemblyzer",
            "Expected no --encoder with embeddings: it would do nothing",
        ),
        (
            "evaluate one.npy",
            "one.npy: expected several arrays, but got one; give it by --original or --protected",
        ),
        # Inputs of other commands.
        ("evaluate scores", "scores of trials are for `vpmetrics scores scores`"),
        ("evaluate trials.csv", "scores of trials are for `vpmetrics scores trials.csv`"),
        ("compare A=scores", "scores of trials are for `vpmetrics scores scores`"),
        ("evaluate results", "results: holds results of a challenge: vpmetrics challenge results"),
        (
            "evaluate speech",
            "Expected two folders of recordings, original and protected, but got speech",
        ),
        (
            "compare A=speech",
            "Expected two folders of recordings, original and protected, but got speech",
        ),
        ("challenge speech", "speech: expected results of a VoicePrivacy challenge"),
        ("challenge scores", "scores: expected a folder of results of a challenge"),
        ("scores", "Expected files of scores, but got none"),
        ("scores /dev/null", "/dev/null: expected lines `enrol trial score"),
        ("scores scores --op scores", "Expected FILE, or --oo, --op, --pp, but got both"),
        ("scores --op scores --similarity sigmoid", "Expected --utt2spk with --similarity"),
        (
            "scores scores --utt2spk utt2spk --intervals 0",
            "Expected --oo, --op or --pp with --utt2spk",
        ),
        (
            "scores scores --utt2spk utt2spk --similarity sigmoid",
            "Expected --oo, --op or --pp with --similarity",
        ),
        ("scores A=scores B=scores --fit scores", "Expected one system with --fit, but got 2"),
        ("compare A=x.npz A=y.npz", "Expected every system to have a name of its own"),
        ("compare A= B=x.npz", "error: Expected NAME=FILE, but got 'A='"),
        ("compare original=e.npz B=e.npz", "original is what tables call unprotected speech"),
        ("demo --epochs 0", "Expected --epochs to be 1 at least"),
        ("demo --seed -1", "Expected --seed to be from 0 to 2^63 - 1"),
        # Before anything is read: other measurements, and where to write.
        (
            "evaluate missing.npz --utility WER=x",
            "Expected a number in --utility 'WER=x', but got 'x'",
        ),
        ("evaluate missing.npz --utility WER", "WER: cannot be read as NAME=VALUE or CSV"),
        (
            "compare missing.npz --utility nowhere.csv",
            "nowhere.csv: cannot be read as NAME=VALUE or CSV",
        ),
        (
            "compare missing.npz --utility other.csv",
            "other.csv: expected a column system, but got name, WER",
        ),
        (
            "compare missing.npz --utility wrong.csv",
            "wrong.csv: expected one of missing, but got 'f'",
        ),
        ("compare missing.npz --columns eeer", "Expected `columns` to name a key such as op_eer"),
        ("evaluate missing.npz --out e.npz", "e.npz: expected a folder"),
        ("evaluate missing.npz --out e.npz/below", "e.npz/below: cannot be written"),
        ("evaluate missing.npz --out speech", "speech: expected a new folder"),
        ("evaluate missing.npz --json .", "expected a file, but got a folder"),
        (
            "evaluate missing.npz --out new --json new/report.html",
            "new/report.html: is in the folder of --out",
        ),
        ("evaluate e.npz --json e.npz", "e.npz: holds no results of vpmetrics and would be lost"),
        ("scores missing --json missing", "missing: holds the input missing and would be lost"),
        ("embed missing --out e.npz", "exists already"),
        ("embed missing --out new.npy", "expected a name that ends in .npz"),
    ],
)
def test_invalid_usage_prints_one_line_and_exits_with_2(
    tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    before = write_embeddings(tmp_path / "e.npz").read_bytes()
    np.save(tmp_path / "one.npy", np.eye(4))
    (tmp_path / "scores").write_text("a b 2 target\na c 1 nontarget\n")
    (tmp_path / "utt2spk").write_text("a s\nb s\nc t\n")
    (tmp_path / "trials.csv").write_text("enroll_spk,trial_spk,trial_id,score\na,a,u,1\n")
    (tmp_path / "results" / "ASV-libri_test_enrolls-libri_test_trials_f_anon").mkdir(parents=True)
    (tmp_path / "results" / "ASV-libri_test_enrolls-libri_test_trials_f_anon" / "scores").touch()
    (tmp_path / "speech").mkdir()
    (tmp_path / "speech" / "a.wav").touch()
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
        (
            "--population",
            ("1", "20,20", "many", "20,", "2.5"),
            "expected different numbers of at least 2",
        ),
        ("--intervals", ("1", "-0.1", "most", "95"), "expected a number from 0 to below 1"),
        (
            "--score-columns",
            ("enrol,enrol,score", "enrol,test,score", "score,,label"),
            "expected each of enrol, trial, score, label at most once, or _",
        ),
        ("--out", ("",), "expected a name, but got an empty one"),
        ("FILE", ("",), "expected a name, but got an empty one"),
    ],
)
def test_a_value_that_an_option_does_not_take_ends_with_status_2(capsys, option, values, message):
    command = "scores" if option == "--score-columns" else "evaluate"
    for value in values:
        with pytest.raises(SystemExit, match="2"):
            run(command, "e.npz", *([f"{option}={value}"] if option.startswith("--") else [value]))
        assert f"{option}: {message}" in capsys.readouterr().err, value


@pytest.mark.parametrize(
    ("command", "most_options"),
    [("evaluate", 30), ("compare", 31), ("scores", 20), ("challenge", 13), ("embed", 6)],
)
def test_help_is_short_and_begins_with_what_most_need(capsys, command, most_options):
    with pytest.raises(SystemExit, match="0"):
        run(command, "--help")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("  --") for line in lines) <= most_options
    if command in ("evaluate", "compare", "challenge"):
        first = next(line for line in lines if line.startswith("  --out"))
        assert lines.index(first) < 24


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "evaluate e.npz --distractor x",
            "vpmetrics evaluate: error: unknown argument --distractor; closest: --distractors",
        ),
        ("evaluate e.npz --key k", "unknown argument --key: an option of vpmetrics scores"),
        (
            "scores s --no-attacks",
            "unknown argument --no-attacks: an option of vpmetrics evaluate, compare, challenge",
        ),
        ("--all", "unknown argument --all"),
    ],
)
def test_an_unknown_option_is_told_the_closest_one(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        run(*arguments.split())
    assert message in capsys.readouterr().err


def test_an_interrupted_command_ends_with_status_130(monkeypatch, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("vpmetrics.cli.evaluate.evaluate", interrupt)
    run("evaluate", tmp_path / "missing.npz", expect=130)


@pytest.mark.parametrize(
    "command", [None, "evaluate", "compare", "scores", "challenge", "embed", "demo"]
)
def test_help_fits_the_terminal(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    if command is None:
        run(expect=2)
    else:
        with pytest.raises(SystemExit, match="0"):
            run(command, "--help")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= 80


def test_the_command_runs_as_a_process_on_a_terminal_without_unicode(tmp_path):
    write_embeddings(tmp_path / "e.npz")
    command = [
        sys.executable,
        "-m",
        "vpmetrics",
        "evaluate",
        "e.npz",
        "--no-attacks",
        "--intervals",
        "0",
    ]
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"DeID" in done.stdout
    assert b"Traceback" not in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_files_are_written_when_stdout_is_closed(tmp_path):
    write_embeddings(tmp_path / "e.npz")
    script = (
        f"{sys.executable} -m vpmetrics evaluate e.npz --no-attacks --json r.json | true; echo"
        " ${PIPESTATUS[0]}"
    )
    command = ["bash", "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=tmp_path, env=ENVIRONMENT
    )
    assert (done.stdout.strip(), done.stderr) == ("141", "")
    assert systems_of(tmp_path / "r.json")


def test_mathematics_and_escape_sequences_in_names_are_escaped(tmp_path, capsys):
    data = dict(np.load(write_embeddings(tmp_path / "e.npz")))
    names = np.array([f"$\\foo{number}$ \x1b[31m" for number in data["speakers"]])
    np.savez(tmp_path / "e.npz", **{**data, "speakers": names})
    options = [
        "--title",
        "$\\foo$ \x1b[31mred",
        "--no-attacks",
        "--out",
        tmp_path / "out",
        "--figures",
        "svg",
    ]
    run(
        "compare",
        f"_hidden={tmp_path / 'e.npz'}",
        f"$\\foo$\x1b[31m={tmp_path / 'e.npz'}",
        *options,
    )
    assert "\x1b" not in (said := capsys.readouterr().out)
    assert "_hidden" in said  # which Matplotlib would hide
    assert "_hidden" in (tmp_path / "out/deid_gvd.svg").read_text(encoding="utf-8")
    for path in (tmp_path / "out").glob("*.[hmts]*"):
        assert "\x1b" not in path.read_text(encoding="utf-8"), path
    run("evaluate", "x\x1b[31m.npz", expect=2)
    assert "x\\x1b[31m.npz: cannot be read" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_undecodable_file_name_is_escaped(tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/b\xff.npz")
    os.link(write_embeddings(tmp_path / "e.npz"), name)
    run("evaluate", name, "--no-attacks", "--intervals", "0", "--out", tmp_path / "out")
    assert systems_of(tmp_path / "out/results.json")[0]["name"] == "b\\udcff.npz"
