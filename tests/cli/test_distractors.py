"""The option ``--distractors``: enrolled speakers without tests, who widen the gallery."""

import numpy as np
import pytest
from cli.cases import run, systems_of
from torch.testing import assert_close

from vpmetrics import ReidentificationRate


@pytest.fixture
def files(tmp_path, voices):
    """Four speakers to evaluate, two as distractors."""
    is_tested = voices.speakers < 4
    for name, rows in (("tested", is_tested), ("others", ~is_tested)):
        np.savez(
            tmp_path / f"{name}.npz",
            original=voices.original[rows],
            protected=voices.protected["B2"][rows],
            speakers=voices.speakers[rows],
        )
    return tmp_path


def test_distractors_widen_the_gallery(files, voices, evaluate):
    options = ["--no-attacks", "--intervals", "0", "--population", "5"]
    (plain,) = evaluate(files / "tested.npz", *options)
    (system,) = evaluate(files / "tested.npz", *options, "--distractors", files / "others.npz")
    assert plain["scalars"]["pp_gallery"] == 4
    assert system["scalars"]["op_gallery"] == system["scalars"]["pp_gallery"] == 6
    is_tested = voices.speakers < 4
    protected = voices.protected["B2"]
    distractors = [protected[voices.speakers == speaker].double().mean(0) for speaker in (4, 5)]
    metric = ReidentificationRate(sizes=(5,), distractors=np.stack(distractors).astype("f"))
    metric.update(None, protected[is_tested], voices.speakers[is_tested])
    expected = float(metric.compute()["rate_5"])
    assert_close(system["scalars"]["pp_rate_5"], expected, atol=1e-6, rtol=0)
    assert any("2 distractors join the gallery" in note for note in system["notes"])


def test_every_system_is_searched_among_distractors(files, tmp_path):
    options = ["--no-attacks", "--intervals", "0", "--json", tmp_path / "result.json"]
    tested = files / "tested.npz"
    distractors = ["--distractors", files / "others.npz"]
    run("compare", f"A={tested}", f"B={tested}", *distractors, *options)
    for system in systems_of(tmp_path / "result.json"):
        assert system["scalars"]["pp_gallery"] == 6


def test_distractors_that_are_evaluated_raise(files, capsys):
    tested = files / "tested.npz"
    run("evaluate", tested, "--distractors", tested, "--no-attacks", expect=2)
    assert "expected distractors who are not evaluated" in capsys.readouterr().err
