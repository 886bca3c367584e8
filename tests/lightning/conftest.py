"""What the tests of the callbacks share: a package, a small figure, and silence about workers and folders."""

import importlib
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from training import PACKAGES

from vpmetrics import _figures as figures

# Lightning's own remarks: few workers, few batches, a logger or a folder that is or is not there.
# And ours on weak attackers, whom most tests are not about.
_REMARKS = pytest.mark.filterwarnings(
    "ignore::UserWarning:.*lightning.*", "ignore::FutureWarning", "ignore:PrivacyCheckpoint watches .* measure of an"
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
    monkeypatch.setattr(figures, "figures_of", lambda *_: {"zoo": Figure((0.3, 0.3))})


@pytest.fixture(autouse=True)
def started_elsewhere(monkeypatch, tmp_path):
    """What a Trainer leaves where it was started is left in a folder of the test."""
    monkeypatch.chdir(tmp_path)
