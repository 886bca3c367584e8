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
from vpmetrics.app.anonymiser import Anonymiser, Split, average_speakers, split_speakers, two_sessions
from vpmetrics.app.differences import Pair, pairs_of
from vpmetrics.app.embeddings import Embeddings
from vpmetrics.app.errors import InputError
from vpmetrics.app.evaluation import evaluate_embeddings
from vpmetrics.app.output import check_folder
from vpmetrics.app.report import Wanted, publish
from vpmetrics.app.results import Run
from vpmetrics.app.settings import CONFIDENCE
from vpmetrics.app.verdict import disclosed
from vpmetrics.attacks import Centred, Plain, RidgeToOriginal, WithinClassWhitening
from vpmetrics.data import DemoVoices, SpeakerBatchSampler, demo_voices
from vpmetrics.lightning.monitor import PrivacyMonitor
from vpmetrics.suite import VoicePrivacy

HELD_OUT = 12  # of 37 speakers
OURS = "trained"
_BASELINES = ("B2", "B2r", "B2u")
_MEASUREMENTS = 8  # along the training
# Of the battery, those that find within 0.01 bit what all of it finds on these voices, in a quarter of the time.
_ATTACKS = (Plain, Centred, RidgeToOriginal, WithinClassWhitening)


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
    model = train(voices, split, options)
    systems = measure(voices, split, model, draw)
    lead = (
        f"{len(voices.speaker_names) - HELD_OUT} synthetic speakers to train on, {HELD_OUT} others to measure all "
        f"systems on, in two sessions each; attackers learn from both; {options.epochs} epochs, seed {options.seed}; "
        "last weights, none chosen by results"
    )
    settings = {"seed": options.seed, "epochs": options.epochs, "intervals": CONFIDENCE}
    run, pairs = Run(("vpmetrics", *options.argv), settings), pairs_of(systems, CONFIDENCE)
    publish("Speakers held out of training", lead, systems, console, run, Wanted(options.out), True, pairs)
    console.print(f"\n{verdict(systems, pairs)}")
    console.print(f"\n{time.monotonic() - began:.0f} s. All curves and figures of the training:")
    console.print(f"  tensorboard --logdir {escape(str(options.out / 'tensorboard'))}", soft_wrap=True)


def train(voices: DemoVoices, split: Split, options: Namespace) -> Anonymiser:
    """An anonymiser of the speakers to train on, watched on the others."""
    torch.manual_seed(options.seed)
    model = Anonymiser(len(voices.speaker_names), voices.original.shape[1])
    data = voices.original, voices.speakers, two_sessions(voices.speakers)
    training, held_out = (TensorDataset(*(part[rows] for part in data)) for rows in split)
    sampler = SpeakerBatchSampler(voices.speakers[split.training], seed=options.seed)
    monitor = PrivacyMonitor(
        keys={name: name for name in ("original", "protected", "speakers", "sessions")},
        suite=VoicePrivacy(attacks=[attack() for attack in _ATTACKS]),
        figures_every_n_epochs=options.epochs,  # first and last
    )
    with _quiet(), _bar(options.epochs, monitor) as bar:
        trainer = pl.Trainer(
            max_epochs=options.epochs,
            check_val_every_n_epoch=max(1, options.epochs // _MEASUREMENTS),
            accelerator="cpu",
            logger=TensorBoardLogger(options.out, name="tensorboard", default_hp_metric=False),
            callbacks=[monitor, bar],
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            num_sanity_val_steps=0,
            log_every_n_steps=len(sampler),
        )
        try:
            # Rows of a tensor are taken at once: a batch sampler would take and join them one by one.
            batches = DataLoader(training, sampler=sampler, batch_size=None)
            trainer.fit(model, batches, DataLoader(held_out, len(held_out)))
        except SystemExit:  # how Lightning ends when it is interrupted
            raise KeyboardInterrupt from None
    return model.eval()


def measure(voices: DemoVoices, split: Split, model: Anonymiser, draw: torch.Generator) -> list[System]:
    """All systems on the same speakers, none of which the model has seen; attackers watch what the others say."""
    sessions = two_sessions(voices.speakers)
    with torch.no_grad():
        ours = model(voices.original, model.keys[sessions])
    drawn_anew = torch.where(sessions[:, None] % 2 == 0, voices.protected["B2r0"], voices.protected["B2r1"])
    protected: dict[str, Tensor] = {
        "B2": voices.protected["B2"],
        "B2r": drawn_anew,  # once per session
        "B2u": voices.protected["B2u"],
        "averaging": average_speakers(voices, split, draw),
        OURS: ours,
    }
    metric = VoicePrivacy(attacks=[attack() for attack in _ATTACKS], intervals=CONFIDENCE)
    systems = []
    for name, side in protected.items():
        metric.reset(observed=True)
        known, rows = split.training, split.held_out
        metric.observe(voices.original[known], side[known], voices.speakers[known])
        seen = voices.original[rows], side[rows], voices.speakers[rows]
        embeddings = Embeddings(*seen, tuple(voices.speaker_names), sessions=sessions[rows])
        systems.append(evaluate_embeddings(name, embeddings, metric))
    return [*systems[:-1], replace(systems[-1], notes=(*systems[-1].notes, limits(systems[-1])))]


def limits(ours: System) -> str:
    """What the trained system is not, in one sentence."""
    within, across = ours.scalars["within_d_ece"], disclosed(ours, "across")
    return (
        f"the {OURS} model moves embeddings and makes no speech, unlike {', '.join(_BASELINES)}; whoever knows the key "
        f"of a session tells its speakers (within a session {within:.3f} bit), whoever does not links sessions by "
        f"{across:.3f} bit"
    )


def verdict(systems: Sequence[System], pairs: Sequence[Pair]) -> str:
    """How the trained system compares with each baseline, whatever the outcome: the strongest attack leads."""
    *baselines, ours = systems
    told_apart = {pair.first for pair in pairs if pair.second == ours.name and pair.found.told_apart}
    lines = []
    for system in baselines:
        (strongest, cosine), (its_strongest, its_cosine) = (
            (disclosed(each, "OP"), each.scalars["op_d_ece"]) for each in (ours, system)
        )
        how = "is not told apart from"
        if system.name in told_apart:
            how = "is ahead of" if strongest < its_strongest else "is behind"
        lines.append(
            f"{OURS} {how} {system.name}: {strongest:.3f} against {its_strongest:.3f} bit to the strongest attack, "
            f"{cosine:.3f} against {its_cosine:.3f} to cosines"
        )
    return "\n".join(lines)


class _Bar(pl.Callback):
    """One bar for the whole training, with the last measurement beside it."""

    def __init__(self, progress: Progress, task: Any, monitor: PrivacyMonitor) -> None:
        self.progress, self.task, self.monitor = progress, task, monitor

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """An epoch further."""
        last = self.monitor.history[-1] if self.monitor.history else {}
        bits = [last.get(key, torch.nan) for key in ("op_d_ece_strongest", "within_d_ece")]
        says = "strongest attack {:.3f} bit, within sessions {:.3f}".format(*bits)
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
