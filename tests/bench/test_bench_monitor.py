"""What a monitor adds to a validation: beside the metric, its figures, and in epochs that it leaves out."""

from __future__ import annotations

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from bench.timing import afresh, in_turns, report
from vpmetrics.lightning import PrivacyMonitor
from vpmetrics.suite import VoicePrivacy

pytestmark = pytest.mark.bench


def voices(speakers: int, each: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    names = torch.arange(speakers).repeat(each)
    original = torch.randn(speakers, 192, generator=draw)[names] + torch.randn(len(names), 192, generator=draw)
    return original, 0.5 * original + torch.randn(len(names), 192, generator=draw), names


class Protect(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, _):
        return self.weight.square()

    def validation_step(self, batch, _):
        return dict(zip(("original", "protected", "speakers"), batch, strict=True))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.parametrize("attacks", [None, "standard"])
@pytest.mark.parametrize(("speakers", "each"), [(40, 10), (40, 50)])
def test_overhead_of_a_validation_with_monitor(speakers, each, attacks, tmp_path):
    columns, epochs = voices(speakers, each), 6
    data = DataLoader(TensorDataset(*columns), 128)
    monitor = PrivacyMonitor(suite=VoicePrivacy(attacks=attacks), figures_every_n_epochs=1)
    trainer = pl.Trainer(
        callbacks=[monitor],
        max_epochs=epochs,
        limit_train_batches=1,
        logger=pl.loggers.TensorBoardLogger(tmp_path),
        profiler="simple",
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Protect(), data, data)

    def spent(action: str) -> list[float]:
        durations = trainer.profiler.recorded_durations
        return next(values for name, values in durations.items() if "PrivacyMonitor" in name and name.endswith(action))

    compute, figures = spent("PrivacyMonitor.compute"), spent("PrivacyMonitor.figures")
    ends = spent("on_validation_epoch_end")[-epochs:]  # the sanity check is before
    hooks = sum(spent("on_validation_batch_end")) + sum(ends) - sum(compute) - sum(figures)
    suite = VoicePrivacy(attacks=attacks)
    suite.update(*columns)
    alone = in_turns({"suite": lambda: afresh(suite)}, repeat=3)["suite"]
    label = f"{len(columns[2])} x {speakers}, attacks {attacks}"
    for name, (first, *rest) in {"compute": compute, "figures": figures}.items():
        print(f"\n{label}: {name} {min(rest):.3f} s (first {first:.3f})", end="")
        assert first < 1.5 * max(rest)  # the first epoch takes no longer than others
    print(f"\n{label}: all else {hooks / epochs:.3f} s per validation")
    report(f"{label}: monitor without figures", min(compute[1:]) + hooks / epochs, "the suite alone", alone)


@pytest.mark.parametrize("attacks", [None, "standard"])
def test_a_choice_of_scalars_saves_time(attacks):
    suites = {
        "all": VoicePrivacy(attacks=attacks),
        **{name: VoicePrivacy(attacks=attacks, metrics=[name]) for name in ("deid", "op_d_ece", "op_max_d")},
    }
    for suite in suites.values():
        suite.update(*voices(40, 50))
    found = in_turns({name: lambda suite=suite: afresh(suite) for name, suite in suites.items()}, repeat=3)
    for name in list(found)[1:]:
        assert report(f"{name} alone, attacks {attacks}", found[name], "all", found["all"]) < 0.7
