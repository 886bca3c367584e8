"""Memory over a long training with figures and attacks: flat, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.bench

TRAINING = """
import sys, tempfile, warnings
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset
from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor

warnings.simplefilter("ignore")
names = torch.arange(8).repeat(4)
original = torch.randn(8, 16)[names] + 0.5 * torch.randn(32, 16)

class Anonymiser(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)
    def training_step(self, batch, _):
        return (self.layer(batch[0]) - batch[0].flip(0)).square().mean()
    def validation_step(self, batch, _):
        self.log("val/loss", self.training_step(batch, 0))
        return {"original": batch[0], "protected": self.layer(batch[0]), "speakers": batch[1]}
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-3)

class Watch(pl.Callback):
    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch + 1 in (20, 60, 100, 140, 200):
            with open("/proc/self/status") as status:
                print(next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS")))

data = DataLoader(TensorDataset(original, names), 32)
with tempfile.TemporaryDirectory() as folder:
    callbacks = [PrivacyMonitor(figures_every_n_epochs=5), PrivacyCheckpoint(dirpath=folder), Watch()]
    logger = pl.loggers.TensorBoardLogger(folder)
    pl.Trainer(max_epochs=200, callbacks=callbacks, logger=logger, accelerator="cpu", enable_progress_bar=False,
               enable_model_summary=False, log_every_n_steps=1).fit(Anonymiser(), data, data)
"""


def test_memory_is_flat_over_two_hundred_epochs_with_figures_and_attacks():
    done = subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True, check=True)
    megabytes = [float(line) for line in done.stdout.split("\n") if line.replace(".", "").isdigit()]
    print("\nresident after 20, 60, 100, 140, 200 epochs, MB:", *(round(each) for each in megabytes))
    assert len(megabytes) == 5
    # 36 sets of figures, 2 MB of pixels each figure, are not among what stays.
    assert megabytes[-1] - megabytes[0] < 25
