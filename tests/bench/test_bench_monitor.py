"""A validation with a monitor, against the bare products its scores cannot do without."""

from __future__ import annotations

import time

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from bench.timing import afresh, in_turns, report
from vpmetrics.lightning import PrivacyMonitor
from vpmetrics.suite import VoicePrivacy

pytestmark = pytest.mark.bench


class Protect(pl.LightningModule):
    def validation_step(self, batch, _):
        return dict(zip(("original", "protected", "speakers"), batch, strict=True))


def products(original: torch.Tensor, protected: torch.Tensor) -> None:
    original, protected = (torch.nn.functional.normalize(side) for side in (original, protected))
    for one, other in ((original, original), (original, protected), (protected, protected)):
        for rows in one.split(1024):
            rows @ other.T


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


@pytest.mark.parametrize("attacks", [None, "standard"])
@pytest.mark.parametrize(("speakers", "each"), [(40, 50), (400, 50)])
def test_overhead_of_a_validation_with_monitor(speakers, each, attacks):
    draw = torch.Generator().manual_seed(0)
    names = torch.arange(speakers).repeat(each)
    original = torch.randn(speakers, 192, generator=draw)[names] + torch.randn(len(names), 192, generator=draw)
    protected = 0.5 * original + torch.randn(len(names), 192, generator=draw)
    data = DataLoader(TensorDataset(original, protected, names), 512)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    monitor = PrivacyMonitor(suite=VoicePrivacy(attacks=attacks), figures_every_n_epochs=None)
    monitored = pl.Trainer(callbacks=[monitor], **quiet)
    bare = pl.Trainer(**quiet)
    module = Protect()
    monitored.validate(module, data, verbose=False)  # original speech is scored once
    with_it, without = (seconds(lambda t=t: t.validate(module, data, verbose=False)) for t in (monitored, bare))
    report(
        f"{len(names)} x {speakers}, attacks {attacks}",
        with_it - without,
        "the three products",
        seconds(lambda: products(original, protected)),
    )


@pytest.mark.parametrize("attacks", [None, "standard"])
def test_a_choice_of_scalars_saves_time(attacks):
    draw = torch.Generator().manual_seed(0)
    names = torch.arange(40).repeat(50)
    original = torch.randn(40, 192, generator=draw)[names] + torch.randn(len(names), 192, generator=draw)
    protected = 0.5 * original + torch.randn(len(names), 192, generator=draw)
    suites = {
        "all": VoicePrivacy(attacks=attacks),
        **{name: VoicePrivacy(attacks=attacks, metrics=[name]) for name in ("deid", "op_d_ece", "op_max_d")},
    }
    for suite in suites.values():
        suite.update(original, protected, names)

    found = in_turns({name: lambda suite=suite: afresh(suite) for name, suite in suites.items()}, repeat=3)
    for name in list(found)[1:]:
        assert report(f"{name} alone, attacks {attacks}", found[name], "all", found["all"]) < 0.7
