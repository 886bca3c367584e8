"""Memory over a long training with figures and attacks: flat, in a process of its own."""

import pytest

from bench.timing import run_script

pytestmark = pytest.mark.bench

TRAINING = """
import tempfile, warnings
import pytorch_lightning as pl
from leaking_voices import loader
from training import anonymiser, fit, tensorboard
from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor

class Watch(pl.Callback):
    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch + 1 in (20, 60, 100, 140, 200):
            print(megabytes("VmRSS"))

warnings.simplefilter("ignore")
with tempfile.TemporaryDirectory() as folder:
    callbacks = [PrivacyMonitor(figures_every_n_epochs=5), PrivacyCheckpoint(dirpath=folder), Watch()]
    fit(pl, callbacks, anonymiser(pl), loader(32, speakers=8), epochs=200, logger=tensorboard(pl, folder))
"""


def test_memory_is_flat_over_two_hundred_epochs_with_figures_and_attacks():
    megabytes = [float(line) for line in run_script(TRAINING).split("\n") if line.replace(".", "").isdigit()]
    print("\nresident after 20, 60, 100, 140, 200 epochs, MB:", *(round(each) for each in megabytes))
    assert len(megabytes) == 5
    # 36 sets of figures, 2 MB of pixels each figure, are not among what stays.
    assert megabytes[-1] - megabytes[0] < 25
