"""Batches for the losses, and slow references of what they compute."""

from functools import partial

import numpy as np
import pytest
import reference
import torch
from samples import people

from vpmetrics.losses import DisclosureLoss, DistinctivenessLoss, PseudonymisationLoss

LOSSES = [
    DisclosureLoss(),
    DisclosureLoss(centred=True, flatness=1.0, attacks=("batch", "past"), session_invariance=1.0),
    DistinctivenessLoss(),
    PseudonymisationLoss(),
]
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=["OP", "OP+", "PP", "both"])


batch = partial(people, number=8, width=12, noise=0.5, dtype=torch.float32)


def keyed_batch(seed=0, speakers=6, width=5, dtype=torch.float64):
    """Rows of two sessions per speaker.

    Protected rows are a voice per session plus a linear map of the original.
    """
    original, _, names = people(seed, speakers, 8, width, 0.5, dtype)
    row_number = torch.arange(len(names))
    sessions = 2 * (row_number // 8) + row_number % 2
    draw = torch.Generator().manual_seed(seed)
    voice_of_session = torch.randn(2 * speakers, width, generator=draw, dtype=torch.float64)
    draw = torch.Generator().manual_seed(7)
    mixing = torch.randn(width, width, generator=draw, dtype=torch.float64)
    protected = voice_of_session[sessions] + 0.5 * original @ mixing.to(dtype)
    return original, protected.to(dtype), names, sessions


def train_on(loss, batches=12, **settings):
    """The loss after some batches, and these batches."""
    past = [keyed_batch(seed, **settings) for seed in range(1, batches + 1)]
    for original, protected, speakers, sessions in past:
        loss(original, protected.clone().requires_grad_(), speakers, sessions)
    return loss, past


def unit(rows):
    rows = np.asarray(rows, dtype=float)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def trials(original, protected, speakers, condition="OP"):
    """Scores and labels by definition: OP every ordered pair but k = l, PP every unordered pair."""
    rows_of_side = {"O": unit(original.detach()), "P": unit(protected.detach())}
    enrolment_side, test_side = condition
    scores = rows_of_side[enrolment_side] @ rows_of_side[test_side].T
    names = speakers.numpy()
    is_same_speaker = names[:, None] == names
    is_trial = ~np.eye(len(names), dtype=bool)
    if condition == "PP":
        is_trial = np.triu(is_trial)
    return scores[is_trial], is_same_speaker[is_trial].astype(int)


def d_ece(scores, target):
    return reference.zebra.zebra_disclosure(scores, target)["d_ece"]


def two_sided(scores, target):
    return d_ece(scores, target) + d_ece(-scores, target)
