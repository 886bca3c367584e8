"""One thread for each of several test processes: more would only wait for one another."""

import os

import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)
