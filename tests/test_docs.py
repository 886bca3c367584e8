"""What documents and project files promise: their code runs, their links and names exist."""

import ast
import dataclasses
import importlib
import inspect
import math
import os
import re
import sys
import typing
from pathlib import Path

import pytest
import torch

import vpmetrics
from notebooks import NOTEBOOKS, read_notebook
from vpmetrics.cli import main
from vpmetrics.data import demo_voices

ROOT = Path(__file__).parents[1]
GUIDE = ".github/CONTRIBUTING.md"
PROJECT = "pyproject.toml"
PAGES = [
    "README.md",
    "CHANGELOG.md",
    GUIDE,
    "vpmetrics/data/README.md",
    "notebooks/voices/README.md",
]
SOURCES = sorted((ROOT / "vpmetrics").rglob("*.py"))
PUBLIC = ["attacks", "audio", "data", "functional", "lightning", "losses", "report", "scoring"]
OBJECTS = {
    f"{module.__name__}.{name}": thing
    for module in (vpmetrics, *(importlib.import_module(f"vpmetrics.{name}") for name in PUBLIC))
    for name in module.__all__
    if inspect.isfunction(thing := getattr(module, name))
    or (inspect.isclass(thing) and not issubclass(thing, Exception))
}
METRICS = [name for name in vpmetrics.__all__ if name[0].isupper()]
FOREIGN_CLASSES = {
    "EarlyStopping",
    "LightningModule",
    "MetricCollection",
    "MetricTracker",
    "MinMaxMetric",
}
DISTRIBUTIONS = {"pytorch_lightning": "pytorch-lightning", "PIL": "pillow"}
EXTRAS = {  # of the packages that need more than the core
    "plotting": ("plot",),
    "lightning": ("plot", "lightning"),
    "cli": ("plot", "lightning", "cli", "audio"),
    "audio": ("cli", "audio", "f0"),
    "report": ("plot", "report", "cli"),
    "readers": ("cli",),
}


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page, language):
    """Fenced blocks of a page, each with the number of lines before it."""
    text = text_of(page)
    matches = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)), match[1]) for match in matches]


def test_readme_code_runs_in_order_and_prints_what_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for lines_before, code in blocks("README.md", "python"):
        exec(compile("\n" * lines_before + code, "README.md", "exec"), names)
        printed = capsys.readouterr().out
        if "print(" in code:
            assert f"```python\n{code}```\n\n```text\n{printed}```\n" in text_of("README.md")
    assert names["best"].chosen is not None


def test_readme_is_short_and_its_constants_are_those_of_the_library():
    text = text_of("README.md")
    assert len(text.split()) <= 1400
    assert f"{1 / (2 * math.log(2)):.2f} bit is\neverything" in text
    assert f"embeddings of {len(demo_voices().speakers.unique())} synthetic voices" in text
    for badge, floor in {
        "Python": r'requires-python = ">=([\d.]+)"',
        "PyTorch": r'"torch>=([\d.]+)"',
    }.items():
        assert f"![{badge} {re.search(floor, text_of(PROJECT))[1]} or later]" in text
    assert len(set(re.findall(r"torch==([\d.]+)", text + text_of(GUIDE)))) == 1
    assert sorted(set(re.findall(r"\(notebooks/(\w+)\.ipynb\)", text))) == list(NOTEBOOKS)


def test_readme_table_and_changelog_list_every_metric():
    rows = [line for line in text_of("README.md").splitlines() if line.startswith("|")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert sorted(listed & set(dir(vpmetrics))) == sorted(METRICS)
    assert [name for name in METRICS if f"`{name}`" not in text_of("CHANGELOG.md")] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_exist(page):
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text_of(page))
    for link in filter(lambda link: not re.match(r"[a-z]+:", link), map("".join, links)):
        target = ((ROOT / page).parent / link).resolve()
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
    for path in re.findall(r"`((?:vpmetrics|tests|notebooks|\.ci)/[\w./-]+)`", text_of(page)):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`(vpmetrics(?:\.\w+)+)`", text_of(page)):
        module, _, name = path.rpartition(".")
        assert name in PUBLIC or hasattr(importlib.import_module(module), name), path


def test_commands_in_shell_blocks_exist(capsys):
    shell = "\n".join(code for page in PAGES for _, code in blocks(page, "bash"))
    commands = set(re.findall(r"\bvpmetrics ([a-z]\w*)", shell))
    assert commands >= {"challenge", "compare", "demo", "embed", "evaluate", "scores"}
    for command in commands:
        with pytest.raises(SystemExit, match=r"^0$"):
            main([command, "--help"])
        assert f"vpmetrics {command}" in capsys.readouterr().out


def test_classes_and_benches_named_in_pages_and_notebooks_exist():
    pages = [text_of("README.md"), text_of("CHANGELOG.md")]
    for name in NOTEBOOKS:
        for cell in read_notebook(name):
            if cell["cell_type"] == "markdown":
                pages.append(cell["source"])
    prose = "\n".join(pages)
    prose = re.sub(r"^```.*?^```$", "", prose, flags=re.MULTILINE | re.DOTALL)
    names = set(re.findall(r"`((?:[A-Z][a-z]+){2,})`", prose)) - FOREIGN_CLASSES
    assert names <= {thing.__name__ for thing in OBJECTS.values()}
    benches = set(re.findall(r"test_bench_\w+\.py", prose))
    assert len(benches) > 5
    assert [name for name in benches if not (ROOT / "tests/bench" / name).exists()] == []


@pytest.mark.parametrize("name", OBJECTS)
def test_docstrings_are_complete(name):
    thing = OBJECTS[name]
    text = inspect.getdoc(thing) or ""
    assert len(text.splitlines()[0]) > 20
    # results
    if isinstance(thing, type) and (issubclass(thing, tuple) or dataclasses.is_dataclass(thing)):
        assert not text.startswith(f"{thing.__name__}("), "made by NamedTuple, not by us"
        return
    # which takes anything
    has_own_init = getattr(thing, "__init__", None) is not torch.nn.Module.__init__
    if has_own_init:
        parameters = inspect.signature(thing).parameters
    else:
        parameters = {}
    assert "\nExample:\n    " in text
    described = set(re.findall(r"^    (\w+):", text, re.MULTILINE))
    assert [parameter for parameter in parameters if parameter not in described] == []
    assert "\nReturns:\n" in text or isinstance(thing, type) or not parameters


def functions_of(thing):
    """A function itself, or the public methods of a class with its initialiser."""
    if inspect.isfunction(thing):
        return [thing]
    methods = []
    for name, method in vars(thing).items():
        if name == "__init__" or not name.startswith("_"):
            methods.append(method)
    # Dataclasses and named tuples have methods that nobody wrote.
    written = []
    for method in methods:
        if inspect.isfunction(method) and method.__code__.co_filename[0] != "<":
            written.append(method)
    return written


def names_for_types(function):
    """What a module imports for its annotations only, under ``if TYPE_CHECKING``."""
    names = {}
    tree = ast.parse(Path(sys.modules[function.__module__].__file__).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), "annotations", "exec"), names)
    return names


@pytest.mark.skipif(sys.version_info < (3, 11), reason="`typing.Self` came with Python 3.11")
@pytest.mark.parametrize("name", OBJECTS)
def test_types_of_public_signatures_resolve(name):
    for function in functions_of(OBJECTS[name]):
        hints = typing.get_type_hints(function, localns=names_for_types(function))
        annotated = {
            parameter for parameter in inspect.signature(function).parameters if parameter != "self"
        }
        assert annotated <= set(hints) | {"cls"}, function


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_the_version_stands_in_one_place():
    project = importlib.import_module("tomllib").loads(text_of(PROJECT))["project"]
    assert project["dynamic"] == ["version"]
    assert "version" not in project
    assert f"version = {{{vpmetrics.__version__}}}" in text_of("README.md")
    assert f"## {vpmetrics.__version__}" in text_of("CHANGELOG.md")


def test_actions_are_pinned_by_commit_and_permissions_are_stated():
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        actions = re.findall(r"uses: (\S+)", text)
        assert actions
        for action in actions:
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert re.search(r"^permissions:", text, re.MULTILINE), path


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imported_packages_are_declared_dependencies(path):
    tree = ast.parse(path.read_text())
    for_types = set()
    for branch in ast.walk(tree):
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING":
            for_types |= {id(node) for node in ast.walk(branch)}
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types:
            names.append(node.module or "")
        elif isinstance(node, ast.Import) and id(node) not in for_types:
            names.extend(alias.name for alias in node.names)
    imported = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"vpmetrics"}
    project = pytest.importorskip("tomllib").loads(text_of(PROJECT))["project"]
    extras = EXTRAS.get(path.relative_to(ROOT / "vpmetrics").parts[0], ())
    declared = list(project["dependencies"])
    for extra in extras:
        declared += project["optional-dependencies"][extra]
    assert {DISTRIBUTIONS.get(name, name) for name in imported} <= {
        re.split(r"[\[>=<]", line)[0] for line in declared
    }


def test_ci_runs_all_checks_with_the_oldest_versions_and_hooks_run_its_linters():
    for script in (".ci/run", ".ci/oldest"):
        assert os.access(ROOT / script, os.X_OK)
        assert re.search(
            rf"run: .*{re.escape(script)}$", text_of(".github/workflows/ci.yml"), re.MULTILINE
        )
    floors = set(re.findall(r'"([\w.-]+)>=[\d.]+', text_of(PROJECT)))
    assert {
        "torch",
        "torchmetrics",
        "numpy",
        "matplotlib",
        "pytorch-lightning",
        "lightning",
    } <= floors
    assert not re.findall(r'"([\w.-]+)(?:==|~=|<|>(?!=))', text_of(PROJECT))
    linters = re.findall(r"^((?:ruff|mypy|lint-imports).*)$", text_of(".ci/run"), re.MULTILINE)
    assert re.findall(r"entry: (.*)", text_of(".pre-commit-config.yaml")) == linters
    assert "http" not in text_of(".pre-commit-config.yaml")


def test_contributing_guide_lists_every_module_and_uses_names_that_exist():
    guide = text_of(GUIDE)
    code = "\n".join(
        path.read_text(encoding="utf-8") for path in (*SOURCES, *(ROOT / "tests").rglob("*.py"))
    )
    tables = re.findall(r"^### `(vpmetrics/(?:\w+/)?)`.*\n\n((?:\|.*\n)+)", guide, re.MULTILINE)
    listed = []
    for folder, table in tables:
        for name in re.findall(r"^\| `(\w+\.py)`", table, re.MULTILINE):
            listed.append(folder + name)
    assert sorted(listed) == sorted(
        str(path.relative_to(ROOT)) for path in SOURCES if "__" not in path.name
    )
    names = set(re.findall(r"`([A-Za-z_]\w+)(?:\(.*?\))?`", guide))
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []
