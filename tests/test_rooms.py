"""Imports go one way, and what looks public is."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import vpmetrics

PACKAGE = Path(vpmetrics.__file__).parent
# From the ground up: a module imports from its own layer and from those before it.
LAYERS = (
    ("_checks", "_names", "_precision"),
    ("_scores",),
    ("_trials",),
    ("_scalars",),
    ("functional",),
    ("_metric", "_crowds", "_intervals", "_identity"),
    ("scoring", "similarity", "zebra", "verification", "rank", "local", "trials", "attacks", "strongest", "crowd"),
    ("_report", "suite"),
    ("_plot", "_figures"),
    ("data", "losses", "lightning"),
    ("app",),
    ("__main__",),
)
HEIGHT = {room: height for height, layer in enumerate(LAYERS) for room in layer}
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")
# A metric draws itself by what is imported where it is needed.
DRAWING = {"_plot", "_figures"}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> list[tuple[str, bool]]:
    """Modules of the package a file imports, and whether it does so when it is loaded itself."""
    tree = ast.parse((PACKAGE / path).read_text())
    top = {id(node) for node in tree.body}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [(n.module or "", id(n) in top) for n in nodes if (n.module or "").startswith("vpmetrics.")]


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_go_one_way(path):
    own = path.parts[0].removesuffix(".py")
    for module, at_once in imports(path):
        room = room_of(module)
        assert room in HEIGHT, f"{path} imports {module}, which has no place in the order of layers"
        if room in DRAWING and not at_once:
            continue
        assert HEIGHT[room] <= HEIGHT[own], f"{path} imports {module}, a layer above its own"


def test_a_module_takes_no_private_name_of_another():
    for path in MODULES:
        for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vpmetrics"):
                taken = [name.name for name in node.names if name.name.startswith("_") and not name.name.endswith("__")]
                assert all(name in HEIGHT for name in taken), f"{path} takes {taken} from {node.module}"


def test_every_function_that_looks_public_is_exported():
    exported = set(importlib.import_module("vpmetrics.functional").__all__)
    for path in MODULES:
        if path.parts[0] == "functional" and path.name != "__init__.py":
            tree = ast.parse((PACKAGE / path).read_text())
            named = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert {name for name in named if not name.startswith("_")} <= exported, path
