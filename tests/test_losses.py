"""The losses: their values, their edges, the blind spot they close, and a short training on the bundled voices."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch
from dispatched import Dispatched
from torch import nn
from torch.testing import assert_close

from vpmetrics._scores.measures import expected_disclosure
from vpmetrics._scores.smooth import soft_counts
from vpmetrics._scores.steps import Steps
from vpmetrics.data import demo_voices
from vpmetrics.functional import zebra_disclosure
from vpmetrics.losses import FULL_DISCLOSURE, DisclosureLoss, DistinctivenessLoss, PseudonymisationLoss

LOSSES = [DisclosureLoss(), DisclosureLoss(centred=True, flatness=1.0), DistinctivenessLoss(), PseudonymisationLoss()]
each_loss = pytest.mark.parametrize("loss", LOSSES, ids=["OP", "OP+", "PP", "both"])


def batch(seed=0, speakers=8, utterances=6, width=12, noise=0.5, dtype=torch.float32):
    draw = torch.Generator().manual_seed(seed)
    names = torch.arange(speakers).repeat_interleave(utterances)
    voices, voices_after = (torch.randn(speakers, width, generator=draw, dtype=torch.float64) for _ in range(2))
    original, protected = (
        side[names] + noise * torch.randn(len(names), width, generator=draw, dtype=torch.float64)
        for side in (voices, voices + voices_after)
    )
    return original.to(dtype), protected.to(dtype), names


def trials(original, protected, speakers, condition):
    """Scores and labels, by the definition: OP every ordered pair but k = l, PP every unordered pair."""
    sides = {"O": original.double().numpy(), "P": protected.double().numpy()}
    first, second = (sides[side] / np.linalg.norm(sides[side], axis=1, keepdims=True) for side in condition)
    pairs = [
        (k, l)
        for k in range(len(first))
        for l in range(len(first))  # noqa: E741
        if (k < l if condition == "PP" else k != l)
    ]
    rows, columns = np.array(pairs).T
    names = speakers.numpy()
    return (first[rows] * second[columns]).sum(1), (names[rows] == names[columns]).astype(int)


def exact(original, protected, speakers, condition="OP", sign=1):
    scores, target = trials(original.detach(), protected.detach(), speakers, condition)
    return reference.zebra.zebra_disclosure(sign * scores, target)["d_ece"]


def test_straight_through_returns_the_exact_values():
    rows = batch(dtype=torch.float64)
    both_ways = exact(*rows) + exact(*rows, sign=-1)
    assert DisclosureLoss(straight_through=True)(*rows).item() == pytest.approx(both_ways, abs=1e-9)
    missing = FULL_DISCLOSURE - exact(*rows, condition="PP")
    assert DistinctivenessLoss(straight_through=True)(*rows).item() == pytest.approx(missing, abs=1e-9)
    original, protected, speakers = rows
    centred = [nn.functional.normalize(side) for side in (original, protected)]
    centred = [side - side.mean(0) for side in centred]
    both_ways += exact(*centred, speakers) + exact(*centred, speakers, sign=-1)
    assert DisclosureLoss(centred=True, straight_through=True)(*rows).item() == pytest.approx(both_ways, abs=1e-9)


@pytest.mark.parametrize("make", [DisclosureLoss, DistinctivenessLoss, PseudonymisationLoss])
def test_straight_through_has_the_gradient_of_the_surrogate(make):
    original, protected, speakers = batch()
    protected.requires_grad_()
    gradients = [
        torch.autograd.grad(make(straight_through=exactly)(original, protected, speakers), protected)[0]
        for exactly in (False, True)
    ]
    assert_close(*gradients, atol=0, rtol=0)


def test_the_loss_is_near_the_exact_value():
    rows = batch()
    for make in (DisclosureLoss, DistinctivenessLoss):
        assert make()(*rows).item() == pytest.approx(make(straight_through=True)(*rows).item(), abs=0.03)


def test_flatness_is_the_correlation_ratio():
    rows = batch(dtype=torch.float64)
    added = (DisclosureLoss(flatness=2.0)(*rows) - DisclosureLoss()(*rows)).item()
    original, protected, speakers = rows
    scores = (nn.functional.normalize(original) @ nn.functional.normalize(protected).T).numpy()
    means = scores.copy()
    for a in range(8):
        for b in range(8):
            cell = np.ix_(speakers.numpy() == a, speakers.numpy() == b)
            means[cell] = scores[cell].mean()
    assert added == pytest.approx(2 * means.var() / scores.var(), abs=1e-9)


def test_pseudonymisation_is_the_weighted_sum():
    rows = batch()
    loss = PseudonymisationLoss(disclosure=2.0, distinctiveness=0.5, centred=False, flatness=0.0)
    assert_close(loss(*rows), 2 * DisclosureLoss()(*rows) + 0.5 * DistinctivenessLoss()(*rows))


@each_loss
def test_order_and_names_of_speakers_do_not_show(loss):
    original, protected, speakers = batch(dtype=torch.float64)
    order = torch.randperm(len(speakers), generator=torch.Generator().manual_seed(0))
    moved = loss(original[order], protected[order], 1000 - 7 * speakers[order])
    assert_close(moved, loss(original, protected, speakers), atol=1e-9, rtol=0)


@each_loss
@pytest.mark.parametrize(
    ("original", "protected"),
    [
        (torch.zeros(12, 4), torch.zeros(12, 4)),
        (torch.ones(12, 4), torch.ones(12, 4)),
        (torch.eye(4)[torch.arange(12) % 4], torch.ones(12, 4)),
        (torch.eye(4)[torch.arange(12) % 4], torch.eye(4)[torch.arange(12) % 4]),
        (torch.eye(4)[torch.arange(12) % 4], -torch.eye(4)[torch.arange(12) % 4]),
        (torch.ones(12, 4), torch.eye(4)[torch.arange(12) % 4]),
        (1e-20 * torch.eye(4).repeat(3, 1), 1e18 * torch.eye(4).repeat(3, 1)),
    ],
    ids=["zero", "tied", "protected tied", "separated", "reversed", "original tied", "extreme lengths"],
)
def test_every_stage_of_training_has_a_finite_gradient(loss, original, protected):
    protected = protected.clone().requires_grad_()
    value = loss(original, protected, torch.arange(12) % 4)
    value.backward()
    assert value.isfinite()
    assert protected.grad.isfinite().all()


@each_loss
@pytest.mark.parametrize(
    "speakers", [[], [3], [3, 3, 3], [1, 2, 3, 4]], ids=["nobody", "one row", "one speaker", "no target"]
)
@pytest.mark.parametrize("exactly", [False, True])
def test_without_both_kinds_of_trials_it_is_zero_with_a_graph(loss, speakers, exactly):
    original, protected = torch.randn(2, len(speakers), 5).unbind()
    protected.requires_grad_()
    loss.straight_through = exactly
    value = loss(original, protected, torch.tensor(speakers, dtype=torch.long))
    loss.straight_through = False
    value.backward()
    assert value.item() == 0
    assert (protected.grad == 0).all()


@each_loss
def test_nan_is_not_hidden(loss):
    original, protected, speakers = batch()
    protected[3, 2] = torch.nan
    assert loss(original, protected, speakers).isnan()


@each_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_scores_in_float32(loss, dtype):
    original, protected, speakers = batch()
    layer = nn.Linear(12, 12, bias=False)
    with torch.autocast("cpu", dtype=dtype):
        narrow = layer(protected)
        value = loss(original, narrow, speakers)
    assert narrow.dtype == dtype
    assert value.dtype == torch.float32
    assert_close(value, loss(original, narrow.float(), speakers))
    value.backward()
    assert layer.weight.grad.isfinite().all()


@each_loss
def test_nothing_is_read_from_the_device(loss):
    original, protected, speakers = batch()
    protected.requires_grad_()
    with Dispatched() as run:
        loss(original, protected, speakers).backward()
    assert run.synchronisations == 0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"original": None}, TypeError, "Expected `original` to be a tensor, but got NoneType"),
        ({"protected": torch.ones(48, 12).long()}, TypeError, "Expected `protected` to have a floating dtype"),
        ({"protected": torch.ones(48, 11)}, ValueError, r"Expected `protected` to have shape \(48, 12\)"),
        ({"speakers": torch.ones(48)}, TypeError, "Expected `speakers` to have an integer dtype"),
        ({"speakers": torch.ones(47).long()}, ValueError, r"Expected `speakers` to have shape \(48,\)"),
    ],
)
def test_wrong_batches_are_refused(change, error, message):
    original, protected, speakers = batch()
    rows = {"original": original, "protected": protected, "speakers": speakers} | change
    for loss in LOSSES:
        with pytest.raises(error, match=message):
            loss(**rows)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"bandwidth": 0}, ValueError, "Expected `bandwidth` to be above 0, but got 0"),
        ({"bandwidth": None}, TypeError, "Expected `bandwidth` to be a number, but got NoneType"),
        ({"flatness": -1}, ValueError, "Expected `flatness` to be at least 0 and finite, but got -1"),
        ({"disclosure": math.inf}, ValueError, "Expected `disclosure` to be at least 0 and finite, but got inf"),
    ],
)
def test_wrong_settings_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        PseudonymisationLoss(**settings)


class Anonymiser(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.change = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, embeddings):
        return embeddings + self.change(embeddings)


def one_sided(original, protected, speakers):
    """What the two-sided loss is not: D_ECE of OP alone."""
    scores = nn.functional.normalize(original) @ nn.functional.normalize(protected).T
    off = ~torch.eye(len(speakers), dtype=torch.bool)
    target = (speakers[:, None] == speakers)[off].long()
    grid, targets, nontargets = soft_counts(scores[off], target, 0.02)
    return expected_disclosure(Steps(grid[1:], targets, nontargets))


def batches(steps, seed=0, utterances=6):
    """Rows of 16 of the 37 speakers; the bundled voices lie speaker by speaker."""
    draw, rows = torch.Generator().manual_seed(seed), torch.arange(37 * 28).view(37, 28)
    for _ in range(steps):
        some = torch.randperm(37, generator=draw)[:16]
        yield rows[some][:, torch.randperm(28, generator=draw)[:utterances]].flatten()


def train(loss, voices, steps):
    """Protected embeddings from an anonymiser after some steps."""
    torch.manual_seed(0)
    net = Anonymiser()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for rows in batches(steps):
        optimiser.zero_grad()
        loss(voices.original[rows], net(voices.original[rows]), voices.speakers[rows]).backward()
        optimiser.step()
    with torch.no_grad():
        return net(voices.original)


def push(loss, voices, steps):
    """Protected embeddings moved one by one: the most obedient anonymiser there is."""
    protected = voices.original.clone().requires_grad_()
    optimiser = torch.optim.Adam([protected], lr=1e-2)
    for rows in batches(steps):
        optimiser.zero_grad()
        loss(voices.original[rows], protected[rows], voices.speakers[rows]).backward()
        optimiser.step()
    return protected.detach()


def both_directions(voices, protected):
    keep = slice(0, None, 4)  # 7 utterances of each speaker are enough to see
    rows = voices.original[keep], protected[keep], voices.speakers[keep]
    return exact(*rows), exact(*rows, sign=-1), exact(*rows, condition="PP")


@pytest.fixture(scope="module")
def voices():
    voices = demo_voices()
    assert torch.equal(voices.speakers, torch.arange(37).repeat_interleave(28))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors this small are calculated before a second thread has woken up
    yield voices
    torch.set_num_threads(threads)


def test_the_one_sided_value_leads_into_its_blind_spot_and_the_loss_does_not(voices):
    before, before_reversed, _ = both_directions(voices, voices.original)
    assert before > 0.69
    assert before_reversed < 0.01
    forwards, backwards, _ = both_directions(voices, push(one_sided, voices, steps=200))
    assert forwards < 0.001
    assert backwards > 0.01
    forwards, backwards, _ = both_directions(voices, push(DisclosureLoss(), voices, steps=100))
    assert forwards < 0.012
    assert backwards < 0.005


def test_pseudonymisation_hides_the_voice_and_keeps_voices_apart(voices):
    forwards, backwards, distinct = both_directions(voices, train(PseudonymisationLoss(), voices, steps=100))
    assert forwards < 0.02
    assert backwards < 0.02
    assert distinct > 0.7


def test_the_metric_agrees_with_the_reference_used_here():
    rows = batch(dtype=torch.float64)
    scores, target = trials(*rows, "OP")
    value = zebra_disclosure(torch.from_numpy(scores), torch.from_numpy(target))["d_ece"].item()
    assert value == pytest.approx(exact(*rows), abs=1e-9)
