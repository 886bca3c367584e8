"""What the documents promise: their code runs and prints what they show, links lead somewhere, names exist."""

import importlib
import inspect
import math
import os
import re
from pathlib import Path

import nbformat
import pytest
import torch
from nbclient import NotebookClient

import vpmetrics
from vpmetrics.data import demo_voices

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md",
    "CHANGELOG.md",
    ".github/CONTRIBUTING.md",
    "vpmetrics/data/README.md",
    "notebooks/voices/README.md",
]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
MODULES = [
    "vpmetrics",
    *(f"vpmetrics.{name}" for name in ["attacks", "audio", "data", "functional", "lightning", "losses", "scoring"]),
]
OBJECTS = [
    (module, name)
    for module in MODULES
    for name in importlib.import_module(module).__all__
    if inspect.isfunction(thing := getattr(importlib.import_module(module), name))
    or (inspect.isclass(thing) and not issubclass(thing, Exception))
]
METRICS = [name for name in vpmetrics.__all__ if name[0].isupper()]
FOREIGN_CLASSES = {"EarlyStopping", "LightningModule", "MetricCollection", "MetricTracker", "MinMaxMetric"}


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[tuple[int, str]]:
    """Fenced blocks of a page, each with the number of lines before it."""
    text = text_of(page)
    matches = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in matches]


# Pages


def test_readme_code_runs_in_order_and_prints_what_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for lines_before, code in blocks("README.md", "python"):
        exec(compile("\n" * lines_before + code, "README.md", "exec"), names)
        printed = capsys.readouterr().out
        if "print(" in code:
            assert f"```python\n{code}```\n\n```text\n{printed}```\n" in text_of("README.md")
    assert names["best"].within_budget


def test_readme_is_short():
    assert len(text_of("README.md").split()) <= 1400


def test_constants_in_the_readme_are_those_of_the_library():
    text, project = text_of("README.md"), text_of("pyproject.toml")
    assert f"{1 / (2 * math.log(2)):.2f} bit is\neverything" in text
    assert f"embeddings of {len(demo_voices().speakers.unique())} synthetic voices" in text
    for badge, floor in {"Python": r'requires-python = ">=([\d.]+)"', "PyTorch": r'"torch>=([\d.]+)"'}.items():
        assert f"![{badge} {re.search(floor, project)[1]} or later]" in text
    assert len(set(re.findall(r"torch==([\d.]+)", text + text_of(".github/CONTRIBUTING.md")))) == 1


@pytest.mark.parametrize("page", PAGES)
def test_internal_links_resolve(page):
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text_of(page))
    for link in filter(lambda link: not re.match(r"[a-z]+:", link), map("".join, links)):
        target = ((ROOT / page).parent / link).resolve()
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link


def test_commands_in_shell_blocks_exist(capsys):
    from vpmetrics.cli import main

    shell = "\n".join(code for page in PAGES for _, code in blocks(page, "bash"))
    commands = set(re.findall(r"\bvpmetrics ([a-z]\w*)", shell))
    assert commands >= {"compare", "demo", "embed", "evaluate"}
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0, command
        assert f"vpmetrics {command}" in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES)
def test_paths_named_in_pages_exist(page):
    for path in re.findall(r"`((?:vpmetrics|tests|notebooks|\.ci)/[\w./-]+)`", text_of(page)):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`(vpmetrics(?:\.\w+)+)`", text_of(page)):
        module, _, name = path.rpartition(".")
        assert path in MODULES or hasattr(importlib.import_module(module), name), path


# Names


def test_readme_table_and_changelog_list_every_metric():
    rows = [line for line in text_of("README.md").splitlines() if line.startswith("|")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert sorted(listed & set(dir(vpmetrics))) == sorted(METRICS)
    assert [name for name in METRICS if f"`{name}`" not in text_of("CHANGELOG.md")] == []


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_pages_name_only_classes_that_exist(page):
    prose = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    names = set(re.findall(r"`((?:[A-Z][a-z]+){2,})`", prose))
    assert sorted(names - {name for _, name in OBJECTS} - FOREIGN_CLASSES) == []


@pytest.mark.parametrize(("module", "name"), OBJECTS)
def test_docstrings_are_complete(module, name):
    thing = getattr(importlib.import_module(module), name)
    text = inspect.getdoc(thing) or ""
    assert len(text.splitlines()[0]) > 20
    if isinstance(thing, type) and issubclass(thing, tuple):
        assert not text.startswith(f"{name}("), "made by NamedTuple, not by us"
        return
    has_own_init = getattr(thing, "__init__", None) is not torch.nn.Module.__init__  # which takes anything
    parameters = inspect.signature(thing).parameters if has_own_init else {}
    assert "\nExample:\n    " in text
    missing = [each for each in parameters if not re.search(rf"^    {each}:", text, re.MULTILINE)]
    assert missing == []
    assert "\nReturns:\n" in text or isinstance(thing, type) or not parameters


# Notebooks


def read_notebook(name: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text_of_output(output: nbformat.NotebookNode) -> str:
    data = output.get("data", {"text/plain": output.get("text", "")})
    return "figure" if "image/png" in data else data.get("text/markdown", data.get("text/plain", ""))


def shape_of_outputs(cell: nbformat.NotebookNode) -> list[tuple[str, ...]]:
    """What a cell shows, but for the digits: those of a training depend on the machine."""
    return [
        (
            output.output_type,
            *sorted(output.get("data", {})),
            re.sub(r"[-+\s\d.e]+", " ", text_of_output(output)).strip(),
        )
        for output in cell.outputs
    ]


def test_readme_links_every_notebook():
    linked = re.findall(r"\(notebooks/(\w+)\.ipynb\)", text_of("README.md"))
    assert sorted(set(linked)) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_stored_notebook_cells_ran_in_order(name):
    notebook, cells = read_notebook(name), code_cells(read_notebook(name))
    assert notebook.metadata.kernelspec.name == "python3"
    assert (ROOT / "notebooks" / f"{name}.ipynb").stat().st_size < 1_000_000
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
    assert all(cell.metadata == {} for cell in notebook.cells)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_text_quotes_the_numbers_of_its_outputs(name):
    notebook = read_notebook(name)
    cells = code_cells(notebook)
    shown = "\n".join([cell.source for cell in cells] + [text_of_output(one) for cell in cells for one in cell.outputs])
    values = [float(number) for number in re.findall(r"\d+\.\d+", shown)]
    prose = re.sub(
        r"`[^`]*`|\$[^$]*\$|^\|.*$", "", "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
    )
    for number in re.findall(r"(?<![\d.])\d+\.\d+(?![\d.])", prose):
        digits = len(number.split(".")[1])
        assert any(f"{value:.{digits}f}" == number for value in values), number


def test_benches_and_classes_named_in_notebooks_exist():
    prose = "\n".join(
        cell.source for name in NOTEBOOKS for cell in read_notebook(name).cells if "markdown" in cell.cell_type
    )
    benches = set(re.findall(r"test_bench_\w+\.py", prose))
    assert len(benches) > 5
    assert [name for name in benches if not (ROOT / "tests/bench" / name).exists()] == []
    names = set(re.findall(r"`((?:[A-Z][a-z]+){2,})`", prose))
    assert sorted(names - {name for _, name in OBJECTS} - FOREIGN_CLASSES) == []


@pytest.mark.notebook
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_runs_and_shows_what_is_stored(name, tmp_path):
    stored, notebook = read_notebook(name), read_notebook(name)
    # Of this checkout, and with one thread: the other processes of the test run have the other cores.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    settings = {"timeout": 300, "coalesce_streams": True, "resources": {"metadata": {"path": str(tmp_path)}}}
    NotebookClient(notebook, kernel_name="python3", **settings).execute(env=env)
    warned = [output.text for cell in code_cells(notebook) for output in cell.outputs if output.get("name") == "stderr"]
    assert warned == []
    for before, now in zip(code_cells(stored), code_cells(notebook), strict=True):
        assert shape_of_outputs(before) == shape_of_outputs(now), before.source
