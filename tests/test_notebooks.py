"""Stored notebooks: they ran in order, quote their numbers, and show the same again."""

import json
import os
import re

import pytest
from extras import import_or_skip

from notebooks import NOTEBOOKS, ROOT, join_lines, read_notebook

each_notebook = pytest.mark.parametrize("name", NOTEBOOKS)


def code_cells(cells):
    return [cell for cell in cells if cell["cell_type"] == "code"]


def text_of_output(output):
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        return "figure"
    return join_lines(data.get("text/markdown", data.get("text/plain", "")))


def shape_of_outputs(cell):
    """What a cell shows, but for the digits: those of a training depend on the machine."""
    shapes = []
    for output in cell["outputs"]:
        text = re.sub(r"[-+\s\d.e]+", " ", text_of_output(output)).strip()
        shapes.append((output["output_type"], *sorted(output.get("data", {})), text))
    return shapes


@each_notebook
def test_stored_notebook_ran_in_order(name):
    cells = read_notebook(name)
    metadata = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))["metadata"]
    assert metadata["kernelspec"]["name"] == "python3"
    assert NOTEBOOKS[name].stat().st_size < 1_000_000
    assert all(cell["metadata"] == {} for cell in cells)
    counts = [cell["execution_count"] for cell in code_cells(cells)]
    assert counts == list(range(1, len(counts) + 1))


@each_notebook
def test_text_of_a_notebook_quotes_its_numbers(name):
    cells = read_notebook(name)
    sources = [cell["source"] for cell in code_cells(cells)]
    outputs = [text_of_output(output) for cell in code_cells(cells) for output in cell["outputs"]]
    if name != "09_published":  # which draws what readers bring
        assert "figure" in outputs
    values = [float(number) for number in re.findall(r"\d+\.\d+", "\n".join(sources + outputs))]
    prose = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    prose = re.sub(r"`[^`]*`|\$[^$]*\$|^\|.*$", "", prose, flags=re.MULTILINE)
    for number in re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", prose):
        digits = len(number.split(".")[1])
        assert any(f"{value:.{digits}f}" == number for value in values), number


@pytest.mark.notebook
@each_notebook
def test_notebook_runs_and_shows_what_is_stored(name, tmp_path):
    nbclient = import_or_skip("nbclient")
    nbformat = import_or_skip("nbformat")
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    # Of this checkout, and with one thread: other processes of the test run have the other cores.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    resources = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(
        notebook, kernel_name="python3", timeout=300, coalesce_streams=True, resources=resources
    )
    client.execute(env=env)
    shown = code_cells(notebook.cells)
    for cell in shown:
        for output in cell.outputs:
            assert output.get("name") != "stderr", output.text
    for before, now in zip(code_cells(read_notebook(name)), shown, strict=True):
        assert shape_of_outputs(before) == shape_of_outputs(now), before["source"]
