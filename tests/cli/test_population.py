"""Populations on the page: their numbers, and what is no size of a population."""

import json

import pytest
from cli.cases import run, scalars_of, write_npz

from vpmetrics import ReidentificationRate


def test_populations_are_searched_where_asked_for(tmp_path, voices, capsys):
    options = ["--population", "3,5", "--no-attacks", "--json", tmp_path / "result.json", "--out", tmp_path / "report"]
    run("evaluate", *write_npz(tmp_path, voices), *options)
    metric = ReidentificationRate((3, 5), condition="OP")
    metric.update(voices.original, voices.protected["B2"], voices.speakers)
    assert scalars_of(tmp_path / "result.json")["op_rate_3"] == pytest.approx(
        metric.compute()["rate_3"].item(), abs=1e-6
    )
    assert json.loads((tmp_path / "result.json").read_text())["settings"]["population"] == [3, 5]
    assert "found among 3" not in capsys.readouterr().out  # but in
    (page,) = (tmp_path / "report").glob("*.html")
    assert "Re-identification in a population" in page.read_text()
    assert "found among 3 ↓ [%]" in page.read_text()
    assert "singled out of 5" in page.read_text()


@pytest.mark.parametrize("population", ["1", "20,20", "many", "20,", "2.5"])
def test_other_than_sizes_of_populations_are_refused(tmp_path, voices, capsys, population):
    with pytest.raises(SystemExit) as ended:
        run("evaluate", *write_npz(tmp_path, voices), "--population", population)
    assert ended.value.code == 2
    assert "--population: expected different numbers of at least 2" in capsys.readouterr().err
