"""``vpmetrics demo``: an anonymiser trained with the library's loss, watched by its metrics, beside baselines."""

from __future__ import annotations

import logging
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import TensorBoardLogger
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from vpmetrics._report import System
from vpmetrics.app.anonymiser import Anonymiser, SpeakerBatches, Split, average_speakers, split_speakers
from vpmetrics.app.embeddings import Embeddings
from vpmetrics.app.errors import InputError
from vpmetrics.app.evaluation import evaluate_embeddings
from vpmetrics.app.output import check_folder
from vpmetrics.app.report import Wanted, publish
from vpmetrics.app.results import Run
from vpmetrics.data import DemoVoices, demo_voices
from vpmetrics.lightning.monitor import PrivacyMonitor
from vpmetrics.suite import VoicePrivacy

HELD_OUT = 12  # of 37 speakers
STEPS = 10  # per epoch
OURS = "trained"
_BASELINES = {"B2": "B2", "B2r": "B2r0", "B2u": "B2u"}


def demo(options: Namespace, console: Console) -> None:
    """Train, measure on the speakers held out, and report."""
    if options.epochs < 1:
        raise InputError(f"Expected --epochs to be 1 at least, but got {options.epochs}.")
    if not 0 <= options.seed < 1 << 63:
        raise InputError(f"Expected --seed to be from 0 to 2^63 - 1, but got {options.seed}.")
    check_folder(options.out)
    began = time.monotonic()
    torch.set_num_threads(1)  # tensors are small, and on a busy machine threads would only wait for one another
    voices, draw = demo_voices(), torch.Generator().manual_seed(options.seed)
    split = split_speakers(voices, HELD_OUT, draw)
    console.print(
        f"Training on {len(voices.speaker_names) - HELD_OUT} synthetic speakers, measuring on {HELD_OUT} others "
        f"({int(split.held_out.sum())} utterances)."
    )
    model = train(voices, split, draw, options)
    systems = measure(voices, split, model, draw)
    lead = (
        f"{len(voices.speaker_names) - HELD_OUT} synthetic speakers to train on, {HELD_OUT} others to measure all "
        f"systems on; {options.epochs * STEPS} steps, seed {options.seed}; last weights, none chosen by results"
    )
    run = Run(("vpmetrics", *options.argv), {"seed": options.seed, "epochs": options.epochs})
    publish("Speakers held out of training", lead, systems, console, run, Wanted(options.out), side_by_side=True)
    console.print(f"\n{verdict(systems)}")
    console.print(f"\n{time.monotonic() - began:.0f} s. All curves and figures of the training:")
    console.print(f"  tensorboard --logdir {escape(str(options.out / 'tensorboard'))}", soft_wrap=True)


def train(voices: DemoVoices, split: Split, draw: torch.Generator, options: Namespace) -> Anonymiser:
    """An anonymiser of the speakers to train on, watched on the others."""
    torch.manual_seed(options.seed)
    model = Anonymiser(width=voices.original.shape[1])
    batches = SpeakerBatches(voices.original[split.training], voices.speakers[split.training], draw, STEPS)
    held_out = TensorDataset(voices.original[split.held_out], voices.speakers[split.held_out])
    monitor = PrivacyMonitor(figures_every_n_epochs=10)
    with _quiet(), _bar(options.epochs, monitor) as bar:
        trainer = pl.Trainer(
            max_epochs=options.epochs,
            accelerator="cpu",
            logger=TensorBoardLogger(options.out, name="tensorboard", default_hp_metric=False),
            callbacks=[monitor, bar],
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            num_sanity_val_steps=0,
            log_every_n_steps=STEPS,
        )
        try:
            trainer.fit(model, DataLoader(batches, batch_size=None), DataLoader(held_out, batch_size=len(held_out)))
        except SystemExit:  # how Lightning ends when it is interrupted
            raise KeyboardInterrupt from None
    return model.eval()


def measure(voices: DemoVoices, split: Split, model: Anonymiser, draw: torch.Generator) -> list[System]:
    """All systems on the same speakers, none of which the model has seen."""
    rows = split.held_out
    original = voices.original[rows]
    with torch.no_grad():
        ours = model(original)
    protected: dict[str, Tensor] = {
        **{name: voices.protected[key][rows] for name, key in _BASELINES.items()},
        "averaging": average_speakers(voices, split, draw),
        OURS: ours,
    }
    metric = VoicePrivacy()
    names = tuple(name for name in voices.speaker_names)
    systems = [
        evaluate_embeddings(name, Embeddings(original, side, voices.speakers[rows], names), metric)
        for name, side in protected.items()
    ]
    return [*systems[:-1], replace(systems[-1], notes=(*systems[-1].notes, limits(systems[-1])))]


def limits(ours: System) -> str:
    """What the trained system is not, in one sentence."""
    within, before = ours.scalars["pp_d_ece"], ours.scalars["oo_d_ece"]
    return (
        f"the {OURS} model moves embeddings and makes no speech, unlike {', '.join(_BASELINES)}; an attacker who "
        f"enrols with the same model {'still tells' if within > 0.05 else 'hardly tells'} speakers "
        f"(PP D_ECE {within:.3f} bit, {before:.3f} of original speech)"
    )


def verdict(systems: Sequence[System]) -> str:
    """How the trained system compares with each baseline in both measures, whatever the outcome."""
    *baselines, ours = systems
    lines = []
    for system in baselines:
        deid = 100 * (ours.scalars["deid"] - system.scalars["deid"])
        gvd = ours.scalars["gvd"] - system.scalars["gvd"]
        both = "ahead in both" if deid > 0 and gvd > 0 else "behind in both" if deid < 0 and gvd < 0 else "a trade-off"
        lines.append(f"{OURS} against {system.name}: {both} (DeID {deid:+.1f} points, G_VD {gvd:+.2f} dB)")
    return "\n".join(lines)


class _Bar(pl.Callback):
    """One bar for the whole training, with the last measurement beside it."""

    def __init__(self, progress: Progress, task: Any, monitor: PrivacyMonitor) -> None:
        self.progress, self.task, self.monitor = progress, task, monitor

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """An epoch further."""
        last = self.monitor.history[-1] if self.monitor.history else {"deid": torch.nan, "gvd": torch.nan}
        says = f"DeID {100 * last['deid']:.1f} %  G_VD {last['gvd']:+.2f} dB"
        self.progress.update(self.task, completed=trainer.current_epoch + 1, says=says)


@contextmanager
def _bar(epochs: int, monitor: PrivacyMonitor) -> Iterator[_Bar]:
    columns = (TextColumn("epoch"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[says]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        yield _Bar(progress, progress.add_task("", total=epochs, says=""), monitor)


@contextmanager
def _quiet() -> Iterator[None]:
    """Lightning's advice on workers and hardware is not for who watches a demonstration."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric", "lightning.pytorch")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
