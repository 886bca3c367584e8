"""The losses: exact values, both directions, flatness, and training on the bundled voices."""

import math

import numpy as np
import pytest
import torch
from loss_batches import batch, d_ece, keyed_batch, train_on, trials, two_sided, unit
from torch import nn
from torch.nn.functional import normalize
from torch.testing import assert_close

from vpmetrics._util.scalar import FULL_DISCLOSURE
from vpmetrics.data import demo_voices
from vpmetrics.functional import zebra_disclosure
from vpmetrics.losses import DisclosureLoss, DistinctivenessLoss, PseudonymisationLoss


def test_straight_through_returns_exact_values_with_the_gradient_of_smooth_ones():
    original, protected, speakers = batch(dtype=torch.float64)
    sides = [unit(original), unit(protected)]
    centred = [torch.tensor(side - side.mean(0)) for side in sides]
    expected = two_sided(*trials(original, protected, speakers)) + two_sided(
        *trials(*centred, speakers)
    )
    protected.requires_grad_()
    values = [
        DisclosureLoss(centred=True, straight_through=exact)(original, protected, speakers)
        for exact in (0, 1)
    ]
    assert values[1].item() == pytest.approx(expected, abs=1e-9)
    assert values[0].item() == pytest.approx(expected, abs=0.06)
    assert_close(*(torch.autograd.grad(value, protected)[0] for value in values), atol=0, rtol=0)


def test_loss_with_sessions_adds_cross_session_trials():
    original, protected, speakers, sessions = keyed_batch()
    scores, target = trials(original, protected, speakers, "PP")
    row, column = np.triu_indices(len(speakers), 1)
    is_across = (target == 0) | (sessions[row] != sessions[column]).numpy()
    expected = two_sided(*trials(original, protected, speakers)) + two_sided(
        scores[is_across], target[is_across]
    )
    loss = DisclosureLoss(straight_through=True)
    assert loss(original, protected, speakers, sessions).item() == pytest.approx(expected, abs=1e-9)
    # Session numbers may repeat from speaker to speaker.
    assert_close(
        loss(original, protected, speakers, sessions % 2),
        loss(original, protected, speakers, sessions),
    )


def test_flatness_is_the_correlation_ratio():
    original, protected, _ = rows = batch(dtype=torch.float64)
    added = DisclosureLoss(flatness=2.0)(*rows) - DisclosureLoss()(*rows)
    scores = unit(original) @ unit(protected).T
    means = scores.reshape(8, 6, 8, 6).mean((1, 3))
    assert added.item() == pytest.approx(2 * means.var() / scores.var(), abs=1e-9)


@pytest.mark.parametrize(("rows", "most"), [(8, 0.2), (32, 0.02), (128, 0.005)])
def test_the_value_hardly_depends_on_the_size_of_the_batch(rows, most):
    draws = [
        torch.randn(2, rows, 64, generator=torch.Generator().manual_seed(seed)) for seed in range(8)
    ]
    values = [DisclosureLoss()(*sides, torch.arange(rows) % (rows // 4)) for sides in draws]
    assert sum(values) / 8 < most  # calibration fits noise: 1.4 would be everything


def test_distinctiveness_loss_is_full_minus_pp_disclosure():
    original, protected, speakers, sessions = keyed_batch()
    protected.requires_grad_()
    scores, target = trials(original, protected, speakers, "PP")
    row, column = np.triu_indices(len(speakers), 1)
    is_within = (target == 0) | (sessions[row] == sessions[column]).numpy()
    for labels, chosen in (((speakers,), target >= 0), ((speakers, sessions), is_within)):
        expected = FULL_DISCLOSURE - d_ece(scores[chosen], target[chosen])
        values = [
            DistinctivenessLoss(straight_through=exact)(original, protected, *labels)
            for exact in (0, 1)
        ]
        assert values[1].item() == pytest.approx(expected, abs=1e-9)
        assert values[0].item() == pytest.approx(expected, abs=0.03)
        assert_close(
            *(torch.autograd.grad(value, protected)[0] for value in values), atol=0, rtol=0
        )


def test_pseudonymisation_is_the_weighted_sum():
    rows = batch()
    sessions = torch.arange(len(rows[2])) % 2
    loss = PseudonymisationLoss(disclosure=2.0, distinctiveness=0.5, centred=False, flatness=0.0)
    assert_close(loss(*rows), 2 * DisclosureLoss()(*rows) + 0.5 * DistinctivenessLoss()(*rows))
    disclosure = DisclosureLoss(session_invariance=1.0)
    expected = 2 * disclosure(*rows, sessions) + 0.5 * DistinctivenessLoss()(*rows, sessions)
    assert_close(loss(*rows, sessions), expected)


def test_parts_add_up_to_the_loss_without_gradients():
    original, protected, speakers, sessions = keyed_batch()
    protected.requires_grad_()
    loss = PseudonymisationLoss(disclosure=2.0)
    assert loss.parts == {}
    value = loss(original, protected, speakers)
    assert list(loss.parts) == ["op", "flatness", "distinctiveness"]
    assert_close(sum(loss.parts.values()), value.detach())
    value = loss(original, protected, speakers, sessions)
    assert list(loss.parts) == ["op", "flatness", "across", "session_invariance", "distinctiveness"]
    assert_close(sum(loss.parts.values()), value.detach())
    assert not any(part.requires_grad for part in loss.parts.values())
    assert_close(
        loss.parts["op"], 2 * DisclosureLoss(centred=True)(original, protected, speakers).detach()
    )
    loss(original[:1], protected[:1], speakers[:1])
    assert loss.parts == {}


def test_the_penalty_does_not_rise_when_past_batches_make_it_known():
    """An unknown share of the variance counts as the largest one, 1."""
    rows = keyed_batch()
    loss = DisclosureLoss(session_invariance=2.0)
    loss(*rows)
    unknown = float(loss.parts["session_invariance"])
    assert unknown == pytest.approx(2 * math.log1p(1 / 1e-3))
    train_on(loss, 12)
    loss(*rows)
    assert 0 < float(loss.parts["session_invariance"]) < unknown


def one_sided_loss(original, protected, speakers):
    """D_ECE of OP in one direction."""
    is_trial = ~torch.eye(len(speakers), dtype=torch.bool)
    scores = (normalize(original) @ normalize(protected).T)[is_trial]
    target = speakers[:, None] == speakers
    return zebra_disclosure(scores, target[is_trial], bandwidth=0.02)["d_ece"]


def train(loss, voices, anonymise, parameters, steps, lr):
    """Train on batches of 16 of the 37 speakers with 6 utterances each.

    The bundled voices lie speaker by speaker.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(37 * 28).view(37, 28)
    optimiser = torch.optim.Adam(parameters, lr=lr)
    for _ in range(steps):
        speakers, utterances = (
            torch.randperm(n, generator=generator)[:k] for n, k in ((37, 16), (28, 6))
        )
        chosen = rows[speakers][:, utterances].flatten()
        optimiser.zero_grad()
        loss(voices.original[chosen], anonymise(chosen), voices.speakers[chosen]).backward()
        optimiser.step()


def disclosures(voices, protected):
    """D_ECE of OP, of its negated scores, and of PP; every fourth utterance is enough."""
    rows = voices.original[::4], protected.detach()[::4], voices.speakers[::4]
    scores, target = trials(*rows)
    return d_ece(scores, target), d_ece(-scores, target), d_ece(*trials(*rows, "PP"))


@pytest.fixture(scope="module")
def voices():
    voices = demo_voices()
    assert torch.equal(voices.speakers, torch.arange(37).repeat_interleave(28))
    return voices


def test_loss_avoids_the_blind_spot_of_one_sided_training(voices):
    def train_rows(loss, steps):
        protected = voices.original.clone().requires_grad_()
        train(loss, voices, lambda chosen: protected[chosen], [protected], steps, lr=1e-2)
        return disclosures(voices, protected)[:2]

    forwards, backwards, _ = disclosures(voices, voices.original)
    assert backwards < 0.01 < 0.69 < forwards
    forwards, backwards = train_rows(one_sided_loss, steps=200)
    assert forwards < 0.001 < 0.01 < backwards
    forwards, backwards = train_rows(DisclosureLoss(), steps=100)
    assert forwards < 0.012
    assert backwards < 0.005


def test_pseudonymisation_training_hides_and_separates_speakers(voices):
    torch.manual_seed(0)
    change = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))

    def anonymise(rows):
        return voices.original[rows] + change(voices.original[rows])

    train(PseudonymisationLoss(), voices, anonymise, change.parameters(), steps=100, lr=1e-3)
    forwards, backwards, distinct = disclosures(voices, anonymise(slice(None)))
    assert max(forwards, backwards) < 0.02
    assert distinct > 0.7
