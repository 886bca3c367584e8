"""Some of the bundled voices, for all tests of the command."""

from types import SimpleNamespace

import pytest
import torch

from vpmetrics.cli.page import FIGURES  # by way of the page, which would else be imported with some figures only
from vpmetrics.data import demo_voices

NAMES = ("anna", "ben", "cleo", "dora", "emil", "finn")
SOME_FIGURES = {"deid_gvd", "ece_profile", "zoo", "utility", "people"}


@pytest.fixture(scope="session")
def voices():
    """Sixty utterances of six speakers, with names."""
    data = demo_voices()
    rows = torch.cat([(data.speakers == speaker).nonzero()[:10, 0] for speaker in (1, 5, 9, 14, 20, 30)])
    speakers = torch.arange(6).repeat_interleave(10)
    return SimpleNamespace(
        original=data.original[rows],
        protected={name: side[rows] for name, side in data.protected.items()},
        speakers=speakers,
        names=[NAMES[s] for s in speakers],
        utterances=[f"{NAMES[s]}-{k:02d}" for k, s in enumerate(speakers)],
    )


@pytest.fixture(autouse=True)
def some_figures(request, monkeypatch):
    """Draw a few figures only, as all of them take most of the time of a report; ``all_figures`` draws them all."""
    if "all_figures" not in request.fixturenames:
        kinds = tuple(kind for kind in FIGURES if kind.key in SOME_FIGURES)
        monkeypatch.setattr("vpmetrics.plotting.figures.FIGURES", kinds)


@pytest.fixture
def all_figures():
    """Turn ``some_figures`` off."""
