"""The command itself: its options, and how it ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli.cases import run

from vpmetrics.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate"], "Expected embeddings or score files, but got neither"),
        (["evaluate", "missing.npz"], "missing.npz: cannot be read (No such file"),
        (["evaluate", "missing", "missing"], "missing: cannot be read (No such file"),
        (["evaluate", "--original", "missing.npy", "--protected", "p.npy"], "missing.npy: no such file for --original"),
        (["compare", "A=x.npz", "A=y.npz"], "Expected every system to have a name of its own"),
        (["demo", "--epochs", "0"], "Expected --epochs to be 1 at least"),
    ],
)
def test_wrong_use_ends_with_a_message_and_status_2(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    run(*arguments, expect=2)
    assert message in capsys.readouterr().err


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
