"""What is differentiated compiles to one graph, with the values and gradients it has without."""

import pytest
import torch
from torch.testing import assert_close

from vpmetrics import functional as F
from vpmetrics.losses import PseudonymisationLoss

TARGET = torch.arange(60) % 4 == 0
SESSIONS = torch.arange(24) // 4 % 2


def scores(values):
    given = {
        "preds": values.flatten()[:60],
        "target": TARGET,
        "bandwidth": 0.5,
        "validate_args": False,
    }
    disclosed = F.zebra_disclosure(**given)
    return disclosed["d_ece"] + disclosed["l_w"] + F.equal_error_rate(**given)


# few cells: graphs grow with their number and take long to trace
LOSS = PseudonymisationLoss(bandwidth=0.5)


def loss(values):
    return LOSS(values[:24].detach() + 1, values[:24], torch.arange(24) % 4, SESSIONS)


@pytest.mark.parametrize(
    "function", [scores, pytest.param(loss, marks=pytest.mark.slow)], ids=["surrogate", "losses"]
)
def test_surrogate_and_losses_compile_to_one_graph(function):
    torch._dynamo.reset()
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(24, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    found = []
    for run in (function, torch.compile(function, fullgraph=True, backend="eager")):
        value = run(values)
        found.append((value.detach(), *torch.autograd.grad(value, values)))
    assert_close(found[1], found[0], atol=1e-12, rtol=1e-9)
    torch._dynamo.reset()
