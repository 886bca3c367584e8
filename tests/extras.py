"""Skip tests that need more than the extra ``[test]``, and say which extra brings it."""

from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType

import pytest


def reason_for(module: str, extra: str) -> str:
    return f'needs {module}: pip install -e ".[{extra}]"'


def needs(module: str, extra: str = "dev") -> list[pytest.MarkDecorator]:
    """Return the marks of tests that need a module, for ``pytestmark`` or a parameter."""
    is_missing = find_spec(module) is None
    skip = pytest.mark.skipif(is_missing, reason=reason_for(module, extra))
    return [pytest.mark.dev, skip]


def import_or_skip(module: str, extra: str = "dev") -> ModuleType:
    """Import a module that a test, or a whole file of tests, cannot do without."""
    return pytest.importorskip(module, reason=reason_for(module, extra))


def needs_weights(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test of Resemblyzer: without the package its weights would be downloaded."""
    for mark in needs("resemblyzer"):
        test = mark(test)
    return test
