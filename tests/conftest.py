"""One thread for each of several test processes: more would only wait for one another. And a second device."""

import os

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes they start


def pytest_collection_finish(session):
    """Register the second device before any gradient is calculated: PyTorch counts its devices then, once for all."""
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
