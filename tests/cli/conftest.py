"""What all tests of the command share.

Some of the bundled voices, the layout of a challenge, and its results.
"""

from types import SimpleNamespace

import pytest
import torch
from cli.cases import NAMES, assert_scalars, expected_scalars, run, systems_of
from cli.libri import CONDITIONS, expected_scores, write_libri_test
from reference.verification import cllr, equal_error_rate, min_cllr

from vpmetrics.data import demo_voices

# by way of the page, which would else be imported with some figures only
from vpmetrics.report.page import FIGURES

SOME_FIGURES = {"deid_gvd", "ece_profile", "zoo", "utility", "people"}


@pytest.fixture(scope="session")
def voices():
    """Sixty utterances of six speakers, with names."""
    data = demo_voices()
    rows = torch.cat(
        [(data.speakers == speaker).nonzero()[:10, 0] for speaker in (1, 5, 9, 14, 20, 30)]
    )
    speakers = torch.arange(6).repeat_interleave(10)
    return SimpleNamespace(
        original=data.original[rows],
        protected={name: side[rows] for name, side in data.protected.items()},
        speakers=speakers,
        names=[NAMES[s] for s in speakers],
        utterances=[f"{NAMES[s]}-{k:02d}" for k, s in enumerate(speakers)],
    )


@pytest.fixture(scope="session")
def libri(tmp_path_factory):
    return write_libri_test(tmp_path_factory.mktemp("libri"))


@pytest.fixture(scope="session")
def libri_measures(libri):
    """Measures of libri_test by sex and condition, in plain NumPy."""
    measures = {"eer": equal_error_rate, "min_cllr": min_cllr, "cllr": cllr}
    measures_of = {}
    for sex in "fm":
        for condition in CONDITIONS:
            scores, is_target = expected_scores(libri, sex, condition)
            values = {name: measure(scores, is_target) for name, measure in measures.items()}
            measures_of[sex, condition] = values
    return measures_of


def make_runner(command, tmp_path):
    """Run a command, and return the systems of its results."""

    def run_command(*arguments):
        run(command, *arguments, "--json", tmp_path / "result.json")
        return systems_of(tmp_path / "result.json")

    return run_command


@pytest.fixture
def evaluate(tmp_path):
    """Run ``vpmetrics evaluate``, and return the systems of its results."""
    return make_runner("evaluate", tmp_path)


@pytest.fixture
def evaluate_scores(tmp_path):
    """Run ``vpmetrics scores``, and return the systems of its results."""
    return make_runner("scores", tmp_path)


@pytest.fixture
def evaluate_challenge(tmp_path):
    """Run ``vpmetrics challenge``, and return the systems of its results."""
    return make_runner("challenge", tmp_path)


@pytest.fixture
def assert_same_as_suite(evaluate, voices):
    """Run ``vpmetrics evaluate`` without attacks, and compare it with the suite.

    Every scalar is compared.
    """

    def run_and_compare(*arguments):
        (system,) = evaluate(*arguments, "--no-attacks")
        assert_scalars(system["scalars"], expected_scalars(voices, attacks=None))

    return run_and_compare


@pytest.fixture(autouse=True)
def some_figures(request, monkeypatch):
    """Draw a few figures only, as all of them take most of the time of a report.

    ``all_figures`` draws them all.
    """
    if "all_figures" in request.fixturenames:
        return
    drawn = tuple(figure for figure in FIGURES if figure.key in SOME_FIGURES)
    monkeypatch.setattr("vpmetrics.report.figures.FIGURES", drawn)


@pytest.fixture
def all_figures():
    """Turn ``some_figures`` off."""
