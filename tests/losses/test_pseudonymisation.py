"""DistinctivenessLoss and PseudonymisationLoss: exact values."""

import numpy as np
import pytest
import torch
from loss_batches import batch, d_ece, keyed_batch, trials
from torch.testing import assert_close

from vpmetrics._engine.scalar import FULL_DISCLOSURE
from vpmetrics.losses import DisclosureLoss, DistinctivenessLoss, PseudonymisationLoss


def test_distinctiveness_is_what_pp_lacks_within_sessions():
    original, protected, speakers, sessions = keyed_batch()
    protected.requires_grad_()
    scores, target = trials(original, protected, speakers, "PP")
    row, column = np.triu_indices(len(speakers), 1)
    is_within = (target == 0) | (sessions[row] == sessions[column]).numpy()
    for labels, chosen in (((speakers,), target >= 0), ((speakers, sessions), is_within)):
        expected = FULL_DISCLOSURE - d_ece(scores[chosen], target[chosen])
        values = [DistinctivenessLoss(straight_through=exact)(original, protected, *labels) for exact in (0, 1)]
        assert values[1].item() == pytest.approx(expected, abs=1e-9)
        assert values[0].item() == pytest.approx(expected, abs=0.03)
        assert_close(*(torch.autograd.grad(value, protected)[0] for value in values), atol=0, rtol=0)


def test_pseudonymisation_is_the_weighted_sum():
    rows = batch()
    sessions = torch.arange(len(rows[2])) % 2
    loss = PseudonymisationLoss(disclosure=2.0, distinctiveness=0.5, centred=False, flatness=0.0)
    assert_close(loss(*rows), 2 * DisclosureLoss()(*rows) + 0.5 * DistinctivenessLoss()(*rows))
    expected = 2 * DisclosureLoss()(*rows, sessions) + 0.5 * DistinctivenessLoss()(*rows, sessions)
    assert_close(loss(*rows, sessions), expected)
