"""Without an accelerator: every tensor is made on a stated device, and the host reads few values.

``update`` has its own check in ``test_contract.py``.
"""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from cases import ATTRIBUTE_CASE, CASES, RUN_CASES, feed, mapped
from device_modes import DeviceWatch, without_values
from loss_batches import keyed_batch
from samples import gaussians, people

import vpmetrics as vp
from vpmetrics import functional as F
from vpmetrics.losses import DisclosureLoss, DistinctivenessLoss, PseudonymisationLoss

LOSSES = {
    "OP": DisclosureLoss,
    "OP, against attackers": partial(
        DisclosureLoss,
        centred=True,
        flatness=1.0,
        attacks=("batch", "past"),
        session_invariance=1.0,
    ),
    "PP": DistinctivenessLoss,
    "both": PseudonymisationLoss,
}
ROWS = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))
FIXED_SHAPES = {  # functions whose results have a shape that no value decides
    "local_information": (F.local_information, (ROWS, torch.arange(24) % 8, 1.5)),
    "isotonic_regression": (F.isotonic_regression, (ROWS[:, 0],)),
    "fit_beta_binomial": (F.fit_beta_binomial, (ROWS[0].square(),)),
    "f0_histogram": (F.f0_histogram, (ROWS,)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_read_no_value_and_state_their_devices(name, monkeypatch):
    # The warning about batches that train nothing reads a value in the first, second, fourth, …
    # batch.
    monkeypatch.setattr(
        "vpmetrics.losses.embedding_loss.EmbeddingLoss._warn_of_useless_batches", lambda *_: None
    )
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # meta has none
    rows = keyed_batch(dtype=torch.float32)
    original, protected, speakers, sessions = mapped(rows, without_values)
    protected.requires_grad_()
    loss = LOSSES[name]().to("meta")
    with DeviceWatch() as watch:
        loss(original, protected, speakers, sessions).backward()
    assert protected.grad.shape == protected.shape
    assert watch.without_device == set()


@pytest.mark.parametrize("name", FIXED_SHAPES)
def test_functions_of_fixed_shape_read_no_value(name):
    function, arguments = FIXED_SHAPES[name]
    with DeviceWatch() as watch:
        function(*mapped(arguments, without_values))
    assert watch.without_device == set()


def watch_compute(metric, batches):
    """What `compute` of a metric did after some batches."""
    feed(metric, batches)
    with DeviceWatch() as watch:
        metric.compute()
    return watch


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compute_states_the_device_of_every_tensor_it_makes(case):
    watch = watch_compute(case.metric(), case.batches())
    assert watch.without_device == set()


def rows_of(case, count, each):
    """Batches of so many utterances, ``each`` of a speaker, or of as many trials."""
    if "preds" in case.batches()[0]:
        preds, target = gaussians(count // 3, count - count // 3)
        rows = {"preds": preds.float(), "target": target}
    else:
        columns = people(number=count // each, each=each, width=5, dtype=torch.float32)
        rows = dict(zip(("original", "protected", "speakers"), columns, strict=True))
    if case in RUN_CASES:
        return [rows | {"run": run} for run in (0, 1)]
    return [rows]


@pytest.mark.parametrize("case", [case for case in CASES if case is not ATTRIBUTE_CASE], ids=str)
def test_the_host_reads_no_more_values_of_more_data(case):
    reads = []
    for count, each in ((120, 6), (240, 12)):
        watch = watch_compute(case.metric(validate_args=False), rows_of(case, count, each))
        reads.append(sum(watch.reads.values()))
    fewer, more = reads
    assert more <= 1.25 * fewer + 8, reads


def test_the_watch_notices_what_it_is_for():
    with DeviceWatch() as watch:
        assert bool(torch.ones(3).sum() > 2)
        assert watch.reads == {"__bool__": 1}
        assert watch.without_device == set()  # made by a test, not by the library
        vp.functional.zebra_tag(3.0)  # a number has no device to follow
        assert watch.reads["__int__"] == 1
