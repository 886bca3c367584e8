"""Score matrices: by blocks as all at once, ranks against plain NumPy, wrong files."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from cli.cases import run
from reference.verification import score_measures

from vpmetrics._util.inputs import InputError
from vpmetrics.readers import score_matrices
from vpmetrics.readers.score_matrices import (
    evaluate_score_matrices,
    is_score_matrix,
    rank_matrix,
    read_score_matrix,
)


@pytest.fixture
def scored():
    """Scores of 30 enrolled speakers and 50 tests.

    Ten of the speakers are distractors, two tests are of unknown speakers.
    """
    draw = np.random.default_rng(0)
    rows = [f"s{k:02d}" for k in range(30)]
    columns = [*(f"s{k % 20:02d}" for k in range(48)), "x1", "x2"]
    is_target = np.array(rows)[:, None] == np.array(columns)
    scores = (draw.normal(size=(30, 50)) + 2 * is_target).round(1)  # with ties
    return scores.astype("f"), rows, columns


def write_sidecar(path, scores, rows, columns):
    np.save(path, scores)
    path.with_name(f"{path.name}.json").write_text(
        json.dumps({"enroll_speakers": rows, "test_speakers": columns})
    )
    return (path,)


def write_lists(path, scores, rows, columns):
    np.save(path, scores)
    files = [path.with_name(name) for name in ("rows", "columns")]
    for file, names in zip(files, (rows, columns), strict=True):
        file.write_text("".join(f"{name}\n" for name in names))
    return (path, *files)


def write_archive(path, scores, rows, columns):
    path = path.with_suffix(".npz")
    np.savez_compressed(path, scores=scores, rows=rows, test_speakers=columns)
    return (path,)


@pytest.mark.parametrize("write", [write_sidecar, write_lists, write_archive])
@pytest.mark.parametrize("values_at_once", [1, 120, 1 << 20])
def test_a_matrix_is_read_by_blocks(tmp_path, monkeypatch, scored, write, values_at_once):
    monkeypatch.setattr(score_matrices, "_VALUES_AT_ONCE", values_at_once)
    files = write(tmp_path / "m.npy", *scored)
    assert is_score_matrix(files[0]) == (write is not write_lists)
    matrix = read_score_matrix(*files)
    assert matrix.shape == (30, 50)
    np.testing.assert_array_equal(torch.cat([scores for _, scores in matrix.blocks()]), scored[0])


@pytest.mark.parametrize("few_trials", [0, 1 << 22])
def test_measures_match_the_reference(tmp_path, monkeypatch, scored, few_trials):
    monkeypatch.setattr(score_matrices, "_FEW_TRIALS", few_trials)
    scores, rows, columns = scored
    matrix = read_score_matrix(*write_sidecar(tmp_path / "m.npy", *scored))
    system = evaluate_score_matrices("m", {"PP": matrix}, confidence=0.95)
    is_target = (np.array(rows)[:, None] == np.array(columns)).flatten()
    expected = score_measures(scores.flatten().astype("d"), is_target)
    for key in ("d_ece", "eer", "min_cllr"):
        assert float(system.report.scalars[f"pp_{key}"]) == pytest.approx(
            expected[key], abs=1e-6
        ), key
    assert system.report.conditions["PP"].num_trials == (48, 30 * 50 - 48)
    assert system.notes[-1] == "PP: 30 enrolled speakers, 10 of them without a test, and 50 tests"
    assert ("pp_d_ece_high" in system.report.scalars) == bool(few_trials)
    assert any("No intervals" in note for note in system.notes) == (not few_trials)


def test_a_large_matrix_that_leaks_is_said_to_leak(tmp_path, monkeypatch):
    """Without intervals, many trials above the upper limit are enough."""
    monkeypatch.setattr(score_matrices, "_FEW_TRIALS", 0)
    draw = np.random.default_rng(1)
    rows = [f"s{k:02d}" for k in range(30)]
    columns = [f"s{k % 30:02d}" for k in range(150)]
    is_target = np.array(rows)[:, None] == np.array(columns)
    scores = (draw.normal(size=(30, 150)) + 3 * is_target).astype("f")
    matrix = read_score_matrix(*write_sidecar(tmp_path / "m.npy", scores, rows, columns))
    headline = evaluate_score_matrices("m", {"PP": matrix}, confidence=0.95).report.headline
    assert headline.level == "high"
    assert headline.risks


def test_ranks_match_numpy(tmp_path, scored):
    scores, rows, columns = scored
    matrix = read_score_matrix(*write_sidecar(tmp_path / "m.npy", *scored))
    expected = np.zeros(30)
    for column, speaker in enumerate(columns[:48]):
        own = scores[rows.index(speaker), column]
        above = (scores[:, column] > own).sum()
        equal = (scores[:, column] == own).sum()
        expected[above : above + equal] += 1 / equal
    histogram = rank_matrix(matrix).histogram
    torch.testing.assert_close(histogram, torch.from_numpy(expected))
    assert float(rank_matrix(matrix).rates([30])["rate_30"]) == pytest.approx(expected[0] / 48)
    system = evaluate_score_matrices("m", {"PP": matrix})
    assert float(system.report.scalars["pp_id_rate"]) == pytest.approx(expected[0] / 48)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path, *_: np.save(path, np.zeros((29, 50))),
            "a speaker for each of its rows, but got 30 for 29 rows",
        ),
        (
            lambda path, *_: np.save(path, np.full((30, 50), np.nan)),
            "but got NaN in row 0, column 0",
        ),
        (
            lambda path, *_: np.save(path, np.asfortranarray(np.ones((30, 50)))),
            "but got columns one after the other",
        ),
        (
            lambda path, *_: np.save(path, np.full((30, 50), "a")),
            "expected rows of numbers, but got <U1",
        ),
        (lambda path, *_: path.write_bytes(path.read_bytes()[:-9]), "is cut off"),
        (lambda path, *_: path.write_bytes(b"x"), "is not a readable score matrix"),
        (
            lambda path, *_: path.with_name("m.npy.json").write_text("{"),
            "m.npy.json: is not readable as JSON",
        ),
        (
            lambda path, *_: path.with_name("m.npy.json").write_text("[]"),
            "with two lists of speakers, but got list",
        ),
        (
            lambda path, *_: path.with_name("m.npy.json").write_text('{"rows": ["a"]}'),
            "a list 'test_speakers'",
        ),
        (
            lambda path, *_: path.with_name("m.npy.json").unlink(),
            "--row-speakers FILE with a speaker a line",
        ),
    ],
)
def test_what_is_no_score_matrix_raises(tmp_path, scored, change, message):
    path = tmp_path / "m.npy"
    write_sidecar(path, *scored)
    change(path)
    with pytest.raises(InputError, match=message):
        list(read_score_matrix(path).blocks())


def test_ranks_need_rows_of_different_speakers(tmp_path, scored):
    scores, rows, columns = scored
    matrix = read_score_matrix(
        *write_sidecar(tmp_path / "m.npy", scores, [rows[0], *rows[:-1]], columns)
    )
    with pytest.raises(InputError, match="rows of different speakers"):
        rank_matrix(matrix)
    assert "pp_id_rate" not in evaluate_score_matrices("m", {"PP": matrix}).report.scalars


MEMORY = """
import resource, sys
from vpmetrics.readers.score_matrices import evaluate_score_matrices, read_score_matrix
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
system = evaluate_score_matrices("m", {"PP": read_score_matrix(sys.argv[1])})
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) >> 10, float(system.report.scalars["pp_eer"]))
"""


def test_memory_does_not_grow_with_the_matrix(tmp_path):
    """100 MB of scores, 4,000 × 6,250; the peak is that of a block."""
    draw = np.random.default_rng(0)
    path = tmp_path / "m.npy"
    np.save(path, draw.standard_normal((4000, 6250), dtype="f"))
    lists = {"enroll_speakers": list(range(4000)), "test_speakers": [k % 3000 for k in range(6250)]}
    path.with_name("m.npy.json").write_text(json.dumps(lists))
    printed = subprocess.run(
        [sys.executable, "-c", MEMORY, path], capture_output=True, text=True, check=True
    ).stdout
    grown, eer = printed.split()
    assert int(grown) < 80
    assert float(eer) == pytest.approx(0.5, abs=0.02)


def test_a_matrix_is_evaluated_by_the_command(tmp_path, evaluate_scores, scored):
    (path,) = write_archive(tmp_path / "m.npz", *scored)
    (system,) = evaluate_scores("--pp", path, "--intervals", "0")
    expected = evaluate_score_matrices("m", {"PP": read_score_matrix(path)})
    assert system["scalars"]["pp_d_ece"] == pytest.approx(
        float(expected.report.scalars["pp_d_ece"])
    )
    path, *lists = write_lists(tmp_path / "m.npy", *scored)
    options = ["--row-speakers", lists[0], "--column-speakers", lists[1], "--intervals", "0"]
    (told,) = evaluate_scores("--pp", path, *options)
    assert told["scalars"] == system["scalars"]


def test_options_of_lists_do_nothing_with_a_matrix(tmp_path, capsys, scored):
    (path,) = write_archive(tmp_path / "m.npz", *scored)
    run("scores", path, "--key", "key", expect=2)
    assert "Expected no --key with a matrix: it would do nothing" in capsys.readouterr().err
    run("scores", path, "--strict", expect=2)
    assert "Expected no --strict with a matrix" in capsys.readouterr().err


@pytest.mark.parametrize("write", [write_sidecar, write_archive])
def test_evaluate_sends_a_matrix_to_the_command_for_scores(tmp_path, capsys, scored, write):
    (path,) = write(tmp_path / "m.npy", *scored)
    run("evaluate", "--protected", path, expect=2)
    assert f"is a score matrix: vpmetrics scores {path}" in capsys.readouterr().err


@pytest.mark.parametrize("content", ['{"created": "today"}', "no JSON", "[1, 2]"])
def test_an_array_beside_other_json_is_no_score_matrix(tmp_path, content):
    np.save(tmp_path / "m.npy", np.zeros((3, 4)))
    (tmp_path / "m.json").write_text(content)
    assert not is_score_matrix(tmp_path / "m.npy")
