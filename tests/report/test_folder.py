"""The output folder: nothing of anybody else's is lost.

Of several runs into one folder the last one wins whole.
"""

import contextlib
import json
import multiprocessing
import os
import random
import time
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from vpmetrics._util.inputs import InputError
from vpmetrics.report.folder import (
    check_output_file,
    check_output_folder,
    replace_file,
    replace_folder,
)

OWN_NAMES = ["results.json", "report.html", "zoo.png", "ranks.png"]
STEPS = (
    "mkdir",
    "open",
    "write_bytes",
    "rename",
    "unlink",
    "rmdir",
    "iterdir",
    "exists",
    "resolve",
)


def results_of(run):
    return json.dumps({"vpmetrics": run, "systems": []}).encode()


def contents_of(run):
    """What a run writes: each has a figure that the others have not always."""
    contents = {"results.json": results_of(run), "report.html": run.encode() * 1000}
    contents["zoo.png" if len(run) % 2 else "ranks.png"] = run.encode()
    return contents


def write_run(folder, run):
    replace_folder(folder, contents_of(run), OWN_NAMES)


def found_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_former_run(folder):
    folder.mkdir(parents=True)
    for name, content in contents_of("former").items():
        (folder / name).write_bytes(content)
    return folder


class Interruption:
    """Call a function before the given step of the file system, once; steps are counted."""

    def __init__(self, patch, step, function):
        self.step = step
        self.function = function
        self.passed = 0
        self.is_inside = False
        for name in STEPS:
            patch.setattr(Path, name, self.wrap(getattr(Path, name)))

    def wrap(self, method):
        def wrapped(*arguments, **options):
            if not self.is_inside:
                self.is_inside = True
                if self.passed == self.step:
                    self.function()
                self.is_inside = False
                self.passed += 1
            return method(*arguments, **options)

        return wrapped


def count_steps(folder, is_new=False):
    """Count the steps of a run, into a new folder or into that of a former run."""
    if not is_new:
        write_former_run(folder)
    with pytest.MonkeyPatch.context() as patch:
        steps = Interruption(patch, -1, lambda: None)
        write_run(folder, "a")
    return steps.passed


def write_with_interruption(folder, step, function):
    with pytest.MonkeyPatch.context() as patch:
        Interruption(patch, step, function)
        write_run(folder, "a")


@pytest.mark.parametrize("is_new", [True, False])
def test_a_run_inside_another_at_every_step_leaves_one_whole_result(tmp_path, is_new):
    steps = count_steps(tmp_path / "count", is_new)
    assert steps > 20
    winners = []
    for step in range(steps):
        folder = tmp_path / str(step) / "report"
        if not is_new:
            write_former_run(folder)
        write_with_interruption(folder, step, lambda folder=folder: write_run(folder, "bb"))
        found = found_in(folder)
        winners.append("a" if found == contents_of("a") else "bb")
        assert found == contents_of(winners[-1]), step
        assert [path.name for path in folder.parent.iterdir()] == ["report"], step
    # The last one to take the place wins: the outer run until it has done so, the inner one after
    # that.
    assert winners == sorted(winners)
    assert set(winners) == {"a", "bb"}


def test_three_runs_inside_each_other_leave_one_whole_result(tmp_path):
    steps = count_steps(tmp_path / "count")
    for first, second in combinations(range(0, steps, 2), 2):
        folder = write_former_run(tmp_path / f"{first}-{second}" / "report")

        def write_two(folder=folder, step=second - first):
            with pytest.MonkeyPatch.context() as patch:
                Interruption(patch, step, lambda: write_run(folder, "ccc"))
                write_run(folder, "bb")

        write_with_interruption(folder, first, write_two)
        assert found_in(folder) in [contents_of(run) for run in ("a", "bb", "ccc")]
        assert [path.name for path in folder.parent.iterdir()] == ["report"]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=str
)
def test_an_error_at_every_step_loses_nothing(tmp_path, error):
    def fail():
        raise error

    for step in range(count_steps(tmp_path / "count")):
        folder = write_former_run(tmp_path / str(step) / "report")
        with contextlib.suppress(InputError, OSError, KeyboardInterrupt):
            write_with_interruption(folder, step, fail)
        # Whole results are there, in the folder or, for an end between two renames, beside it.
        whole = [found_in(path) for path in folder.parent.iterdir()]
        assert contents_of("former") in whole or contents_of("a") in whole, step
        write_run(folder, "bb")
        assert found_in(folder) == contents_of("bb"), step


def write_after_a_while(folder, run, seed):
    time.sleep(random.Random(seed).random() / 500)
    write_run(folder, run)


@pytest.mark.parametrize(("runs", "times"), [(2, 6), (3, 4)])
def test_concurrent_processes_leave_one_whole_result(tmp_path, runs, times):
    check_concurrent_processes(tmp_path, runs, times)


def check_concurrent_processes(tmp_path, runs, times):
    names = ["a", "bb", "ccc"][:runs]
    context = multiprocessing.get_context("spawn" if os.name == "nt" else "fork")
    folder = tmp_path / "report"
    for repetition in range(times):
        processes = [
            context.Process(target=write_after_a_while, args=(folder, name, 10 * repetition + at))
            for at, name in enumerate(names)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * runs
        assert found_in(folder) in [contents_of(name) for name in names]
        assert [path.name for path in tmp_path.iterdir()] == ["report"]


def test_a_folder_is_new_empty_or_holds_nothing_but_a_former_run(tmp_path):
    check_output_folder(tmp_path / "new" / "below", OWN_NAMES)
    (tmp_path / "empty").mkdir()
    check_output_folder(tmp_path / "empty", OWN_NAMES)
    former = write_former_run(tmp_path / "former")
    check_output_folder(former, OWN_NAMES)
    for text in ("", "{}", "[]", "[" * 100_000, '{"systems": 1}'):
        (former / "results.json").write_text(text)
        with pytest.raises(InputError, match="expected a new folder"):
            check_output_folder(former, OWN_NAMES)


def test_forged_results_delete_nothing(tmp_path):
    folder = tmp_path / "report"
    folder.mkdir()
    (tmp_path / "outside").write_text("mine")
    (folder / "thesis.tex").write_text("mine")
    forged = {
        "vpmetrics": "",
        "systems": [],
        "files": ["thesis.tex", "../outside", str(tmp_path / "outside")],
    }
    (folder / "results.json").write_text(json.dumps(forged))
    with pytest.raises(InputError, match=r"expected a new folder.* holds 'thesis\.tex'"):
        check_output_folder(folder, OWN_NAMES)
    with pytest.raises(InputError, match=r"holds 'thesis\.tex'"):
        write_run(folder, "a")
    assert (folder / "thesis.tex").read_text() == "mine"
    assert (tmp_path / "outside").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"report", "outside"}


def test_a_file_that_somebody_adds_in_the_meantime_is_kept(tmp_path):
    for step in range(count_steps(tmp_path / "count")):
        folder = write_former_run(tmp_path / str(step) / "report")

        def add(folder=folder):
            folder.mkdir(exist_ok=True)
            (folder / "thesis.tex").write_text("mine")

        with contextlib.suppress(InputError):
            write_with_interruption(folder, step, add)
        assert [path.read_text() for path in folder.parent.rglob("thesis.tex")] == ["mine"], step


def test_a_folder_that_cannot_be_replaced_is_refused(tmp_path, monkeypatch):
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "below")
    for path in (Path(), Path(".."), tmp_path / "here" / "below"):
        with pytest.raises(
            InputError, match=r"expected a new folder|in use and cannot be replaced; name"
        ):
            check_output_folder(path, OWN_NAMES)
    check_output_folder(Path("new"), OWN_NAMES)


def test_a_link_stays_a_link(tmp_path):
    write_former_run(tmp_path / "true" / "report")
    (tmp_path / "link").symlink_to(tmp_path / "true" / "report")
    write_run(tmp_path / "link", "a")
    assert (tmp_path / "link").is_symlink()
    assert found_in(tmp_path / "true" / "report") == contents_of("a")
    assert [path.name for path in (tmp_path / "true").iterdir()] == ["report"]


def test_only_results_files_are_replaced(tmp_path):
    np.savez(tmp_path / "in.npz", x=1)
    with pytest.raises(InputError, match="holds no results of vpmetrics and would be lost"):
        check_output_file(tmp_path / "in.npz")
    (tmp_path / "empty").touch()
    (tmp_path / "r.json").write_bytes(results_of("former"))
    for path in (tmp_path / "new.json", tmp_path / "empty", tmp_path / "r.json", Path("/dev/null")):
        check_output_file(path)
        replace_file(path, results_of("a"))
    assert (
        (tmp_path / "new.json").read_bytes()
        == (tmp_path / "r.json").read_bytes()
        == results_of("a")
    )
    assert {path.name for path in tmp_path.iterdir()} == {"in.npz", "empty", "r.json", "new.json"}


@pytest.mark.parametrize(
    "check", [check_output_file, lambda path: check_output_folder(path, OWN_NAMES)]
)
def test_too_long_file_name_raises_a_short_error(tmp_path, check):
    with pytest.raises(InputError, match=r"cannot be written \(File name too long\)") as caught:
        check(tmp_path / ("x" * 300))
    assert len(str(caught.value)) < 400
