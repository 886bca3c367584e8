"""``vpmetrics demo``: an anonymiser trained with the library's loss, watched by its metrics, beside baselines."""

from __future__ import annotations

import logging
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import TensorBoardLogger
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, TensorDataset

from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics.attacks import Centred, Plain, RidgeToOriginal, WithinClassWhitening
from vpmetrics.cli.differences import Pair, pairs_of
from vpmetrics.cli.embeddings import Embeddings
from vpmetrics.cli.errors import InputError
from vpmetrics.cli.evaluation import evaluate_embeddings
from vpmetrics.cli.headline import disclosed_in
from vpmetrics.cli.options import CONFIDENCE
from vpmetrics.cli.output import check_folder
from vpmetrics.cli.report import OutputOptions, publish
from vpmetrics.cli.results import Run
from vpmetrics.data import DemoVoices, SpeakerBatchSampler, demo_voices
from vpmetrics.lightning.monitor import PrivacyMonitor
from vpmetrics.losses import PseudonymisationLoss
from vpmetrics.suite import VoicePrivacy

HELD_OUT = 12  # of 37 speakers
OURS = "trained"
_BASELINES = ("B2", "B2r", "B2u")
_MEASUREMENTS = 8  # along the training
_AVERAGED = 10  # speakers in a pseudo-voice of the baseline
# Of the battery, those that find within 0.01 bit what all of it finds on these voices, in a quarter of the time.
_ATTACKS = (Plain, Centred, RidgeToOriginal, WithinClassWhitening)


def demo(options: Namespace, console: Console) -> None:
    """Train, measure on the speakers held out, and report."""
    if options.epochs < 1:
        raise InputError(f"Expected --epochs to be 1 at least, but got {options.epochs}.")
    if not 0 <= options.seed < 1 << 63:
        raise InputError(f"Expected --seed to be from 0 to 2^63 - 1, but got {options.seed}.")
    check_folder(options.out, ignored=("tensorboard",))
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
    publish("Speakers held out of training", lead, systems, console, run, OutputOptions(options.out), True, pairs)
    console.print(f"\n{verdict(systems, pairs)}")
    console.print(f"\n{time.monotonic() - began:.0f} s. All curves and figures of the training:")
    console.print(f"  tensorboard --logdir {escape(str(options.out / 'tensorboard'))}", soft_wrap=True)


def train(voices: DemoVoices, split: Split, options: Namespace) -> Anonymiser:
    """Train an anonymiser on some speakers, watched on the others."""
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


def measure(voices: DemoVoices, split: Split, model: Anonymiser, draw: torch.Generator) -> list[EvaluatedSystem]:
    """Evaluate all systems on the same speakers, which the model has not seen; attackers observe the others."""
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
    metric = VoicePrivacy(attacks=[attack() for attack in _ATTACKS], metrics="all", intervals=CONFIDENCE)
    systems = []
    for name, side in protected.items():
        metric.reset(observed=True)
        known, rows = split.training, split.held_out
        metric.observe(voices.original[known], side[known], voices.speakers[known])
        seen = voices.original[rows], side[rows], voices.speakers[rows]
        embeddings = Embeddings(*seen, tuple(voices.speaker_names), sessions=sessions[rows])
        systems.append(evaluate_embeddings(name, embeddings, metric))
    return [*systems[:-1], replace(systems[-1], notes=(*systems[-1].notes, limits(systems[-1])))]


def limits(ours: EvaluatedSystem) -> str:
    """Say in one sentence what the trained system is not."""
    within, across = ours.scalars["within_d_ece"], disclosed_in(ours, "across").bits
    return (
        f"the {OURS} model moves embeddings and makes no speech, unlike {', '.join(_BASELINES)}; whoever knows the key "
        f"of a session tells its speakers (within a session {within:.3f} bit), whoever does not links sessions by "
        f"{across:.3f} bit"
    )


def verdict(systems: Sequence[EvaluatedSystem], pairs: Sequence[Pair]) -> str:
    """Say how the trained system compares with each baseline, by the strongest attack first."""
    *baselines, ours = systems
    told_apart = {pair.first for pair in pairs if pair.second == ours.name and pair.difference.is_significant}
    lines = []
    for system in baselines:
        (strongest, cosine), (its_strongest, its_cosine) = (
            (disclosed_in(each, "OP").bits, each.scalars["op_d_ece"]) for each in (ours, system)
        )
        how = "is not told apart from"
        if system.name in told_apart:
            how = "is ahead of" if strongest < its_strongest else "is behind"
        lines.append(
            f"{OURS} {how} {system.name}: {strongest:.3f} against {its_strongest:.3f} bit to the strongest attack, "
            f"{cosine:.3f} against {its_cosine:.3f} to cosines"
        )
    return "\n".join(lines)


class Split(NamedTuple):
    """Which rows are of training speakers and which of held-out speakers, ``(N,)`` booleans."""

    training: Tensor
    held_out: Tensor


def split_speakers(voices: DemoVoices, held_out: int, generator: torch.Generator) -> Split:
    """Split rows at random by speaker."""
    order = torch.randperm(len(voices.speaker_names), generator=generator)
    is_held_out = torch.isin(voices.speakers, order[:held_out])
    return Split(~is_held_out, is_held_out)


def two_sessions(speakers: Tensor) -> Tensor:
    """Return a session for each row, ``(N,)``: two for every speaker, row by row in turn."""
    order = speakers.argsort(stable=True)
    first = torch.searchsorted(speakers[order], speakers[order])
    turn = torch.empty_like(speakers).index_copy(0, order, torch.arange(len(order)) - first)
    return 2 * speakers + turn % 2


class Anonymiser(pl.LightningModule):
    """Map an embedding to that of another voice, by a key that stays for a session.

    It begins as a copy of its input, so that one sees what training does: ``own`` is the share of the input in the
    output. Every batch of training draws its keys; those of validation stay.
    """

    keys: Tensor

    def __init__(self, speakers: int, width: int = 256, key: int = 32, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.own = nn.Parameter(torch.ones(()))
        self.net = nn.Sequential(nn.Linear(width + key, width), nn.GELU(), nn.Linear(width, width))
        self.loss = PseudonymisationLoss()
        self.register_buffer("keys", torch.randn(2 * speakers, key))

    def forward(self, original: Tensor, key: Tensor) -> Tensor:
        """Return protected embeddings ``(B, D)`` of original ones, by the key of each."""
        return torch.lerp(self.net(torch.cat([original, key], dim=1)), original, self.own)

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return the loss of one batch."""
        original, speakers, sessions = batch
        protected = self(original, torch.randn_like(self.keys)[sessions])
        loss: Tensor = self.loss(original, protected, speakers, sessions)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
        """Return what PrivacyMonitor looks for."""
        original, speakers, sessions = batch
        protected = self(original, self.keys[sessions])
        return {"original": original, "protected": protected, "speakers": speakers, "sessions": sessions}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam; the share of the input may move faster than the weights of the network."""
        own = {"params": [self.own], "lr": 10 * self.learning_rate}
        groups: list[dict[str, Any]] = [{"params": self.net.parameters()}, own]
        return torch.optim.Adam(groups, lr=self.learning_rate)


def average_speakers(voices: DemoVoices, split: Split, generator: torch.Generator) -> Tensor:
    """Return protected embeddings of all rows, in the manner of baseline B1 of the VoicePrivacy challenge.

    B1 gives every speaker the average x-vector of many speakers of a pool and synthesises speech from it. Here each
    session of a speaker gets the average of ten random training speakers, and every utterance keeps its difference
    from its speaker's mean, since no synthesis makes two utterances the same. B1 draws from the farthest speakers of
    the pool; with a pool this small that would make speakers *less* like themselves than like others, which an
    attacker only has to turn round.
    """
    means, number = _speaker_means(voices.original, voices.speakers)
    pool, _ = _speaker_means(voices.original[split.training], voices.speakers[split.training])
    chosen = torch.rand(2 * len(means), len(pool), generator=generator).argsort(dim=1)[:, :_AVERAGED]
    pseudo = pool[chosen].mean(dim=1)[two_sessions(voices.speakers)]
    return normalize(pseudo + voices.original - means[number], dim=1)


def _speaker_means(embeddings: Tensor, speakers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean embedding of each speaker, and the number of each row's speaker among them."""
    names, number, counts = speakers.unique(return_inverse=True, return_counts=True)
    sums = embeddings.new_zeros(len(names), embeddings.shape[1]).index_add(0, number, embeddings)
    return sums / counts[:, None], number


class _Bar(pl.Callback):
    """One progress bar for the whole training, with the last measurement beside it."""

    def __init__(self, progress: Progress, task: Any, monitor: PrivacyMonitor) -> None:
        self.progress, self.task, self.monitor = progress, task, monitor

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:  # noqa: ARG002
        """Advance by an epoch."""
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
    """Silence Lightning's advice on workers and hardware."""
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
