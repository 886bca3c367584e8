"""Trainer runs for the tests of the callbacks."""

import importlib
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from extras import needs
from leaking_voices import NAMES, loader, protect
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vpmetrics.lightning.checkpoint import PrivacyCheckpoint
from vpmetrics.lightning.monitor import PrivacyMonitor, name_of_key
from vpmetrics.suite import VoicePrivacy

PACKAGES = ("pytorch_lightning", "lightning.pytorch")


def _parameter(package):
    """A package as the parameter of a test, which skips where the package is not installed."""
    root = package.partition(".")[0]
    module = None
    if find_spec(root):
        module = importlib.import_module(package)
    marks = []
    if package != PACKAGES[0]:
        marks = needs(root)
    return pytest.param(module, marks=marks, id=package)


both_packages = pytest.mark.parametrize("pl", [_parameter(package) for package in PACKAGES])
QUIET = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "log_every_n_steps": 1,
}


def anonymiser(pl, shares=(0.9, 0.6, 0.3, 0.1), losses=(4.0, 3.0, 2.0, 1.0), **methods):
    """A module that keeps a given share of a voice in each epoch, at a given loss.

    It learns the number of its epoch.
    """

    class Anonymiser(pl.LightningModule):
        def __init__(self, width=8):
            super().__init__()
            self.save_hyperparameters()
            self.layer = torch.nn.Linear(width, 1)
            self.register_buffer("trained", torch.zeros(()))

        def training_step(self, batch, batch_idx):
            self.trained.fill_(self.current_epoch + 1)
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            original, noise, speakers, *utterances = batch
            epoch = min(self.current_epoch, len(shares) - 1)
            self.log("val/loss", losses[epoch])
            protected = protect(original, noise, shares[epoch])
            columns = (original, protected, speakers, *utterances)
            outputs = dict(zip((*NAMES, "utterances"), columns, strict=False))
            outputs["loss"] = torch.zeros(())
            return outputs

        test_step = validation_step

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    for name, value in methods.items():
        setattr(Anonymiser, name, value)
    return Anonymiser()


def stepping(pl, change):
    """A module whose validation step returns what a function makes of a batch."""
    return anonymiser(
        pl, validation_step=lambda self, batch, _: dict(zip(NAMES, change(batch), strict=True))
    )


def watch(metrics="headline", intervals=None, attacks=None, **kwargs):
    """A monitor without attacks and conversations, which take most of its time."""
    suite = VoicePrivacy(attacks=attacks, metrics=metrics, intervals=intervals, conversations=0)
    return PrivacyMonitor(suite=suite, **kwargs)


def keeper(privacy="val/privacy_conditions/op_d_ece", budget=0.05, **kwargs):
    """A checkpoint by the plainest disclosure."""
    return PrivacyCheckpoint(privacy, budget, **kwargs)


def fit(pl, callbacks, module=None, val=None, epochs=4, ckpt_path=None, **kwargs):
    has_checkpoint = any(isinstance(callback, PrivacyCheckpoint) for callback in callbacks)
    options = {**QUIET, "logger": False, "enable_checkpointing": has_checkpoint, **kwargs}
    trainer = pl.Trainer(max_epochs=epochs, callbacks=callbacks, **options)
    if module is None:
        module = anonymiser(pl)
    if val is None:
        val = loader()
    trainer.fit(module, loader(), val, ckpt_path=ckpt_path)
    return trainer


def tensorboard(pl, folder, **kwargs):
    return importlib.import_module(f"{pl.__name__}.loggers").TensorBoardLogger(folder, **kwargs)


def events(logger):
    return EventAccumulator(logger.log_dir, size_guidance={"images": 0, "scalars": 0}).Reload()


def assert_same(actual, expected):
    # Processes add float32 in another order.
    values = {key: float(value) for key, value in expected.items()}
    assert {key: float(actual[key]) for key in values} == pytest.approx(
        values, abs=1e-6, rel=1e-5, nan_ok=True
    )


def assert_logged(trainer, expected, suffix=""):
    logged = {}
    for key in expected:
        name = name_of_key("val/privacy", key) + suffix
        logged[key] = trainer.callback_metrics[name]
    assert_same(logged, expected)


def names_in(folder):
    return sorted(path.name for path in folder.glob("*.ckpt"))


def run_script(folder, text, *arguments, timeout=120):
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    paths = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parent)])
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stderr[-3000:]
