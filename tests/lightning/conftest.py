"""What the tests of the callbacks share.

A package, a small figure, and silence about workers and folders.
"""

import importlib
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from training import PACKAGES

from vpmetrics.report.figures import FIGURES

# Lightning's own remarks on few workers, few batches, loggers and folders.
_REMARKS = pytest.mark.filterwarnings(
    "ignore::UserWarning:.*lightning.*",
    "ignore::FutureWarning",
    # Most tests limit what plain comparison discloses, which takes no time; one expects this.
    "ignore:PrivacyCheckpoint limits 'val/privacy_conditions/op_d_ece",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(_REMARKS)


@pytest.fixture
def pl():
    return importlib.import_module(PACKAGES[0])


@pytest.fixture
def one_small_figure(monkeypatch):
    """For tests of when figures are drawn, not of what is on them."""
    monkeypatch.setattr(
        "vpmetrics.report.figures.draw_all_figures", lambda *_: {"zoo": Figure((0.3, 0.3))}
    )


@pytest.fixture
def some_figures(monkeypatch):
    """For tests of where figures are logged: a few of them, by key."""
    kinds = tuple(kind for kind in FIGURES if kind.key in {"deid_gvd", "quadrants"})
    monkeypatch.setattr("vpmetrics.report.figures.FIGURES", kinds)
    return {kind.key for kind in kinds}


@pytest.fixture(autouse=True)
def working_folder(monkeypatch, tmp_path):
    """Files that a Trainer writes to the working folder."""
    monkeypatch.chdir(tmp_path)
