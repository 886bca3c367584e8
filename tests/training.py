"""Trainer runs for the tests of the callbacks: voices, an anonymiser that leaks as told, and what to expect."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from vpmetrics.lightning.checkpoint import PrivacyCheckpoint
from vpmetrics.lightning.monitor import PrivacyMonitor
from vpmetrics.suite import VoicePrivacy

PACKAGES = ("pytorch_lightning", "lightning.pytorch")
both_packages = pytest.mark.parametrize("pl", [importlib.import_module(name) for name in PACKAGES], ids=PACKAGES)
FIGURES = {"quadrants", "ece_profile", "zoo", "zoo_scores", "ranks", "local_information", "speakers", "path"}
QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
HEADLINE = {"deid", "gvd", "op_d_ece", "pp_d_ece"}  # what loggers show among what a module logs
SHARES, LOSSES = (1.0, 0.02, 0.6, 0.3, 0.45), (1.0, 3.5, 2.0, 2.5, 2.6)


def voices(speakers=6, utterances=4, seed=0):
    """Embeddings ``(N, 8)`` that tell speakers apart, noise that does not, and who speaks."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(speakers, 8, generator=generator)
    names = torch.arange(speakers).repeat(utterances)
    original = centres[names] + 0.4 * torch.randn(len(names), 8, generator=generator)
    return original, torch.randn(len(names), 8, generator=generator), names


def loader(batch_size=5, **kwargs):
    return DataLoader(TensorDataset(*voices(**kwargs)), batch_size)


def numbered(**kwargs):
    """A number of utterances that two processes share evenly only with a copy; each has a number of its own."""
    parts = [part[:21] for part in voices(speakers=7, utterances=3, **kwargs)]
    return DataLoader(TensorDataset(*parts, torch.arange(21)), 4)


def protect(original, noise, share):
    return share * original + (1 - share) * noise


def anonymiser(pl, shares=(0.9, 0.6, 0.3, 0.1), losses=(4.0, 3.0, 2.0, 1.0), **changes):
    """A module that leaks a given share of a voice in each epoch, at a given loss; it learns its epoch's number."""

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
            return {
                "original": original,
                "protected": protect(original, noise, shares[epoch]),
                "speakers": speakers,
                "loss": torch.tensor(losses[epoch]),
                **({"utterances": utterances[0]} if utterances else {}),
            }

        test_step = validation_step

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    for name, value in changes.items():
        setattr(Anonymiser, name, value)
    return Anonymiser()


def watch(**kwargs):
    """A monitor without attackers, who take most of its time, for tests of anything else."""
    return PrivacyMonitor(suite=VoicePrivacy(attacks=None), **kwargs)


def keeper(privacy="val/privacy/op_d_ece", budget=None, **kwargs):
    """A checkpoint by the plainest disclosure, for tests of what is kept rather than of who attacks."""
    return PrivacyCheckpoint(privacy, budget, **kwargs)


def by_hand(share, **kwargs):
    original, noise, speakers = voices(**kwargs)
    metric = VoicePrivacy(attacks=None)
    metric.update(original, protect(original, noise, share), speakers)
    return {name: float(value) for name, value in metric.compute().items()}


def fit(pl, callbacks, module=None, val=None, epochs=4, ckpt_path=None, **kwargs):
    options = {"logger": False, "enable_checkpointing": any(isinstance(c, PrivacyCheckpoint) for c in callbacks)}
    trainer = pl.Trainer(max_epochs=epochs, callbacks=callbacks, **{**QUIET, **options, **kwargs})
    trainer.fit(module or anonymiser(pl), loader(), loader() if val is None else val, ckpt_path=ckpt_path)
    return trainer


def tensorboard(pl, folder, **kwargs):
    return importlib.import_module(f"{pl.__name__}.loggers").TensorBoardLogger(folder, **kwargs)


def events(logger):
    accumulator = EventAccumulator(logger.log_dir, size_guidance={"images": 0, "scalars": 0})
    accumulator.Reload()
    return accumulator


def assert_same(found, expected):
    expected, found = ([value[key] for key in sorted(expected)] for value in (expected, found))
    # Processes add float32 in another order.
    assert_close(torch.tensor(found), torch.tensor(expected), atol=1e-6, rtol=1e-5, equal_nan=True)


def names_in(folder):
    return sorted(path.name for path in folder.glob("*.ckpt"))


def run_script(folder, text, *arguments):
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    paths = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done
