"""What the project says of itself: dependencies, the jobs of CI, the guide for those who join."""

import ast
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = {"pytorch_lightning": "pytorch-lightning", "PIL": "pillow"}
EXTRAS = {  # of the packages that need more than the core
    "plotting": ("plot",),
    "lightning": ("plot", "lightning"),
    "cli": ("plot", "lightning", "cli", "audio"),
    "audio": ("cli", "audio", "f0"),
}


def text_of(path: str) -> str:
    return (ROOT / path).read_text()


def imported(path: Path) -> set[str]:
    """Other people's packages that a file imports when it runs."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types:
            names.append(node.module or "")
        elif isinstance(node, ast.Import) and id(node) not in for_types:
            names.extend(alias.name for alias in node.names)
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"vpmetrics"}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "vpmetrics").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_imported_packages_are_declared_dependencies(path):
    project = pytest.importorskip("tomllib").loads(text_of("pyproject.toml"))["project"]
    room = path.relative_to(ROOT / "vpmetrics").parts[0]
    declared = [
        *project["dependencies"],
        *(line for extra in EXTRAS.get(room, ()) for line in project["optional-dependencies"][extra]),
    ]
    names = {re.split(r"[\[>=<]", line)[0] for line in declared}
    assert {DISTRIBUTIONS.get(name, name) for name in imported(path)} <= names


def test_ci_runs_all_checks_and_the_oldest_versions():
    for script in (".ci/run", ".ci/oldest"):
        assert os.access(ROOT / script, os.X_OK)
        assert re.search(rf"run: .*{re.escape(script)}$", text_of(".github/workflows/ci.yml"), re.MULTILINE)


def test_every_minimum_version_is_installed_in_ci():
    floors = re.findall(r'"([\w.-]+)>=([\d.]+)"', text_of("pyproject.toml"))
    others = re.findall(r'"([\w.-]+)(?:==|~=|<|>(?!=))', text_of("pyproject.toml"))
    assert {"torch", "torchmetrics", "numpy", "matplotlib", "pytorch-lightning", "lightning"} <= {
        name for name, _ in floors
    }
    assert not others


def test_hooks_run_the_linters_of_the_gate():
    linters = re.findall(r"^((?:ruff|mypy|lint-imports).*)$", text_of(".ci/run"), re.MULTILINE)
    assert re.findall(r"entry: (.*)", text_of(".pre-commit-config.yaml")) == linters
    assert "http" not in text_of(".pre-commit-config.yaml")


def test_contributing_guide_lists_every_module():
    guide = text_of(".github/CONTRIBUTING.md")
    tables = re.findall(r"^### `(vpmetrics/(?:\w+/)?)`.*\n\n((?:\|.*\n)+)", guide, re.MULTILINE)
    listed = [folder + name for folder, table in tables for name in re.findall(r"^\| `(\w+\.py)`", table, re.MULTILINE)]
    modules = [str(path.relative_to(ROOT)) for path in (ROOT / "vpmetrics").rglob("*.py") if "__" not in path.name]
    assert sorted(listed) == sorted(modules)


def test_the_guide_uses_names_that_exist():
    guide = text_of(".github/CONTRIBUTING.md")
    code = "\n".join(path.read_text() for path in (ROOT / "vpmetrics").rglob("*.py"))
    names = set(re.findall(r"`([A-Za-z_]\w+)(?:\(.*?\))?`", guide))
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []
