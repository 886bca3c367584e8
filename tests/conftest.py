"""One thread for each of several test processes: more would only wait for one another. And a second device."""

import os

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def device():
    """A device with memory of its own, built for the tests."""
    from second_device import compiler, second_device

    if compiler() is None:
        pytest.skip("no C++ compiler to build a second device with")
    return second_device()
