"""Options and fixtures of all tests.

One thread for each of several test processes: more would only wait for one another.
``--fail-on-skip`` is for a machine on which everything is installed: there a test that skips was
forgotten.
"""

import os

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes they start


def pytest_addoption(parser):
    parser.addoption("--fail-on-skip", action="store_true", help="fail where a test skips")


def pytest_sessionfinish(session):
    """Fail the session where a test skipped, if that was asked for.

    With several processes, the main one does.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not session.config.getoption("--fail-on-skip") or reporter is None:
        return
    skipped = reporter.stats.get("skipped", [])
    for report in skipped:
        reporter.write_line(f"SKIPPED {report.nodeid}: {report.longrepr[2]}", red=True)
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_collection_finish(session):
    """Register the second device before any gradient is calculated.

    PyTorch counts its devices then, once for all.
    """
    if any("device" in getattr(item, "fixturenames", ()) for item in session.items):
        from second_device import compiler, second_device

        if compiler() is not None:
            second_device()


@pytest.fixture(scope="session")
def device():
    """A device with memory of its own, built for the tests."""
    from second_device import compiler, second_device

    if compiler() is None:
        pytest.skip("no C++ compiler to build a second device with")
    return second_device()
