"""What all losses have in common.

Arguments, lengths, gradients, precision, devices, and batches that train nothing.
"""

import copy
import warnings

import pytest
import torch
from loss_batches import batch, each_loss, keyed_batch, train_on
from second_device import looking
from torch import nn
from torch.testing import assert_close

from vpmetrics.losses import DisclosureLoss, DistinctivenessLoss, PseudonymisationLoss

each_class = pytest.mark.parametrize(
    "make", [DisclosureLoss, DistinctivenessLoss, PseudonymisationLoss]
)


@each_loss
def test_loss_is_independent_of_order_and_labels(loss):
    original, protected, speakers = batch(dtype=torch.float64)
    order = torch.randperm(len(speakers), generator=torch.Generator().manual_seed(0))
    expected = loss(original, protected, speakers)
    assert_close(
        loss(original[order], protected[order], 1000 - 7 * speakers[order]),
        expected,
        atol=1e-9,
        rtol=0,
    )
    names = [f"speaker {number}" for number in speakers.tolist()]
    assert_close(
        loss(original, protected[:, None], names, names),
        loss(original, protected, speakers, speakers),
    )


@each_loss
def test_row_gain_changes_only_the_gradient_norm(loss):
    original, protected, *labels = keyed_batch()
    gains = torch.randn(
        2, 48, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).exp()
    results = []
    for gain_o, gain_p in (torch.ones_like(gains), gains):
        module = copy.deepcopy(loss)
        rows = (gain_p * protected).requires_grad_()
        for seed in range(12):  # the past is that of louder and softer rows, too
            before = keyed_batch(1 + seed)
            module(gain_o * before[0], (gain_p * before[1]).requires_grad_(), *before[2:])
        value = module(gain_o * original, rows, *labels)
        (gradient,) = torch.autograd.grad(value, rows)
        assert_close(
            (gradient * rows).sum(1), torch.zeros(48, dtype=torch.float64), atol=1e-12, rtol=0
        )
        results.append((value, gain_p * gradient))
    assert_close(results[1], results[0], atol=1e-9, rtol=1e-9)


ZERO = torch.zeros(12, 4)
ONE = torch.ones(12, 4)
EYE = torch.eye(4).repeat(3, 1)
STAGES = {
    "zero": (ZERO, ZERO),
    "tied": (ONE, ONE),
    "protected tied": (EYE, ONE),
    "separated": (EYE, EYE),
    "reversed": (EYE, -EYE),
    "original tied": (ONE, EYE),
    "extreme lengths": (1e-30 * EYE, 1e30 * EYE),
}


@each_loss
@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_of_training_has_a_finite_gradient(loss, stage):
    original, protected = (side.clone() for side in STAGES[stage])
    value = loss(original, protected.requires_grad_(), torch.arange(12) % 4)
    value.backward()
    assert value.isfinite()
    assert protected.grad.isfinite().all()


@each_loss
@pytest.mark.parametrize("spread", [0, 1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("length", [0, 1, 100])
def test_nearly_constant_output_has_a_bounded_gradient(loss, spread, length):
    original, protected, speakers = batch(number=16, each=8)
    constant = (
        length * (torch.ones_like(protected) / 12**0.5 + spread * protected)
    ).requires_grad_()
    loss = copy.deepcopy(loss)
    sessions = torch.arange(len(speakers)) % 2
    # that attack begins with the eleventh batch
    for _ in range(12 if "past" in getattr(loss, "attacks", ()) else 2):
        (gradient,) = torch.autograd.grad(loss(original, constant, speakers, sessions), constant)
        assert gradient.norm() <= 20 / max(length, 0.01)


@pytest.mark.filterwarnings("ignore:.*batches so far had no two utterances")
@each_class
@pytest.mark.parametrize(
    "speakers", [[], [3], [3, 3, 3], [1, 2, 3, 4]], ids=["nobody", "row", "speaker", "no target"]
)
@pytest.mark.parametrize("exact", [False, True])
def test_loss_without_both_classes_is_zero_with_a_graph(make, speakers, exact):
    original, protected = torch.randn(
        2, len(speakers), 5, generator=torch.Generator().manual_seed(0)
    ).unbind()
    protected.requires_grad_()
    value = make(straight_through=exact)(
        original, protected, torch.tensor(speakers, dtype=torch.long)
    )
    value.backward()
    assert value.item() == 0
    assert (protected.grad == 0).all()


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
def test_loss_does_not_sync(loss, device):
    original, protected, speakers = (each.to(device) for each in batch())
    protected.requires_grad_()
    sessions = torch.arange(len(speakers), device=device) % 2
    loss = copy.deepcopy(loss).to(device).train()
    for _ in range(4):  # of these, the first, second and fourth look for batches that train nothing
        loss(original, protected, speakers, sessions).backward()
    for _ in range(3):
        with looking() as seen:
            loss(original, protected, speakers, sessions).backward()
        assert not any(seen[0]), seen


@pytest.mark.parametrize("keyed", [False, True])
def test_gradient_matches_finite_differences(keyed):
    # The share within sessions has the gradient of another value, which tests of attackers check.
    loss, _ = train_on(
        PseudonymisationLoss(bandwidth=0.1, attacks=("past",), session_invariance=0.0)
    )
    original, protected, *labels = keyed_batch()
    evaluate = lambda rows: loss.eval()(original, rows, *labels[: 1 + keyed])  # noqa: E731
    protected.requires_grad_()
    # every fifth entry
    gradient = torch.autograd.grad(evaluate(protected), protected)[0].flatten()[::5]
    with torch.no_grad():
        steps = (
            torch.eye(protected.numel(), dtype=torch.float64).view(-1, *protected.shape)[::5] * 1e-5
        )
        expected = (
            torch.stack([evaluate(protected + step) - evaluate(protected - step) for step in steps])
            / 2e-5
        )
    # The partition of PAV has no derivative, so single entries differ where a block joins another.
    assert nn.functional.cosine_similarity(gradient, expected, dim=0) > 0.98
    assert (gradient - expected).norm() < 0.2 * expected.norm()


@each_class
def test_batches_without_gradient_warn_once_at_the_caller(make):
    original, protected, speakers = batch()
    loss = make()
    late = make()
    with pytest.warns(
        UserWarning, match="1 of 1 batches so far had no two utterances of one speaker"
    ) as caught:
        loss(original, protected, torch.arange(len(original)))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(original, protected, torch.arange(len(original)))
        for names in (speakers, speakers, torch.zeros_like(speakers)):
            late(original, protected, names)
    with pytest.warns(UserWarning, match="1 of 4 batches so far"):
        late(original, protected, speakers)
