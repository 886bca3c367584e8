"""The writer: nothing of anybody else's is lost, and a run that was killed leaves what the next one knows."""

import contextlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from cli.cases import scored

from vpmetrics._util.inputs import InputError
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.results import (
    Run,
    check_and_find_outdated_files,
    check_output_folder,
    check_replaceable_file,
    encode_json,
    list_written_files,
    make_results,
    write_files,
)
from vpmetrics.report.trial_report import report_trials


def write_results(path, files=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    one = EvaluatedSystem("x", report_trials({"": scored()}))
    path.write_bytes(encode_json(make_results([one], Run(), files=files)))
    return path


def test_a_folder_is_new_empty_or_of_a_former_run(tmp_path):
    check_output_folder(tmp_path / "new" / "below")
    (tmp_path / "tensorboard").mkdir()
    check_output_folder(tmp_path, ignored=("tensorboard",))
    (tmp_path / "ranks.svg").write_text("mine")
    with pytest.raises(InputError, match=r"expected a new folder.* holds 'ranks\.svg'"):
        check_output_folder(tmp_path, ignored=("tensorboard",))
    for text in ("", "{}", "[]", "[" * 100_000, '{"systems": 1}'):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(InputError, match="expected a new folder"):
            check_output_folder(tmp_path)
    write_results(tmp_path / "results.json")
    check_output_folder(tmp_path)


def test_only_files_that_a_former_run_lists_are_replaced_or_removed(tmp_path):
    write_results(tmp_path / "results.json", ["zoo.png", "gone.png", "../outside.png", "/etc/hosts"])
    (tmp_path / "zoo.png").write_text("of a former run")
    (tmp_path / "ranks.svg").write_text("mine")
    (tmp_path.parent / "outside.png").write_text("mine")
    assert list_written_files(tmp_path / "results.json") == {"zoo.png", "gone.png", "results.json"}
    assert check_and_find_outdated_files(tmp_path, ["results.json", "new.png"]) == [tmp_path / "zoo.png"]
    with pytest.raises(InputError, match=r"ranks\.svg: is of no former run and would be lost"):
        check_and_find_outdated_files(tmp_path, ["results.json", "ranks.svg"])


def test_only_results_files_are_replaced(tmp_path):
    np.savez(tmp_path / "in.npz", x=1)
    with pytest.raises(InputError, match="holds no results of vpmetrics and would be lost"):
        check_replaceable_file(tmp_path / "in.npz")
    (tmp_path / "empty").touch()
    for path in (tmp_path / "new.json", tmp_path / "empty", write_results(tmp_path / "r.json"), Path("/dev/null")):
        check_replaceable_file(path)


@pytest.mark.parametrize("check", [check_replaceable_file, check_output_folder])
def test_too_long_file_name_raises_a_short_error(tmp_path, check):
    with pytest.raises(InputError, match=r"cannot be written \(File name too long\)") as caught:
        check(tmp_path / ("x" * 300))
    assert len(str(caught.value)) < 400


FORMER = {"results.json": ["a.png", "b.png"], "a.png": "old", "b.png": "old", "notes.txt": "mine", ".notes": "mine"}
LATER = {"results.json": ["a.png", "b.png", "c.png"], "a.png": "new", "c.png": "new"}
STEPS = ((Path, "write_bytes"), (shutil, "copyfile"), (Path, "replace"), (Path, "unlink"))


def contents_of(files):
    results = encode_json({"vpmetrics": "", "systems": [], "files": files["results.json"]})
    return {name: results if name == "results.json" else text.encode() * 10_000 for name, text in files.items()}


def found_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".vpmetrics"}


def rewrite(folder, step=-1, end=lambda: None):
    """Write the later results over the former ones; before the given step the process ends."""
    passed = iter(range(10**9))

    def ends(function):
        def wrapped(*arguments, **options):
            if next(passed) == step:
                end()
            return function(*arguments, **options)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in STEPS:
            patch.setattr(owner, name, ends(getattr(owner, name)))
        write_files({folder / name: data for name, data in contents_of(LATER).items()}, [folder / "b.png"])
    return next(passed)


@pytest.fixture
def former(tmp_path):
    def make(name):
        (tmp_path / name).mkdir()
        for file, data in contents_of(FORMER).items():
            (tmp_path / name / file).write_bytes(data)
        return tmp_path / name

    return make


FOREIGN = {name: data for name, data in contents_of(FORMER).items() if name.endswith("notes") or name == "notes.txt"}


def interrupt(folder, step, error):
    """Raise an error before a step, or kill the process if there is none."""

    def fail():
        raise error

    if error is not None:
        with contextlib.suppress(InputError, KeyboardInterrupt, OSError):
            rewrite(folder, step, fail)
    elif (child := os.fork()) == 0:
        rewrite(folder, step, lambda: os._exit(9))
        os._exit(0)
    else:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # Python 3.12
@pytest.mark.parametrize("error", [OSError(13, "Permission denied"), KeyboardInterrupt(), None], ids=str)
def test_an_end_at_any_step_leaves_complete_files(former, error):
    if error is None and not hasattr(os, "fork"):
        pytest.skip("no fork")
    states, later = [], FOREIGN | contents_of(LATER)
    for step in range(rewrite(former("whole"))):
        folder = former(str(step))
        interrupt(folder, step, error)
        found = found_in(folder)
        for name, data in found.items():
            assert data in (contents_of(FORMER).get(name), contents_of(LATER).get(name)), name
        assert FOREIGN.items() <= found.items()
        assert set(found) - set(FOREIGN) <= list_written_files(folder / "results.json")
        is_later = later.items() <= found.items()
        states.append("former" if found == contents_of(FORMER) else "later" if is_later else "between")
        check_output_folder(folder)
        rewrite(folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == later
    # Files are replaced one right after the other, after all are written: a kill at two of three is between.
    assert states == sorted(states, key=["former", "between", "later"].index)
    assert states.count("between") == (2 if error is None else 0)
    assert states.count("former") >= 6


def test_folder_of_a_killed_first_run_is_usable(tmp_path):
    (tmp_path / ".results.json.123.new.vpmetrics").write_bytes(b"{")
    check_output_folder(tmp_path)
    write_files({tmp_path / name: data for name, data in contents_of(LATER).items()})
    assert {path.name for path in tmp_path.iterdir()} == set(LATER)
