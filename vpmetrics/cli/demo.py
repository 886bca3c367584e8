"""``vpmetrics demo``: train an anonymiser with the library's loss and metrics.

It is compared with baselines.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LambdaCallback
from pytorch_lightning.loggers import TensorBoardLogger
from rich.console import Console
from rich.markup import escape
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, TensorDataset

from vpmetrics._util.inputs import InputError
from vpmetrics.attacks import Centred, Plain, RidgeToOriginal, WithinClassWhitening
from vpmetrics.cli.options import CONFIDENCE, DemoOptions, OutputOptions
from vpmetrics.cli.terminal import check_outputs, publish
from vpmetrics.data import DemoVoices, SpeakerBatchSampler, demo_voices
from vpmetrics.lightning.monitor import PrivacyMonitor
from vpmetrics.losses import PseudonymisationLoss
from vpmetrics.readers.embeddings import Embeddings
from vpmetrics.readers.evaluation import evaluate_embeddings
from vpmetrics.readers.progress import show_progress
from vpmetrics.report.outputs import Content
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.results import Run
from vpmetrics.report.summary import disclosure_in_condition
from vpmetrics.suite import VoicePrivacy

# of 37 speakers; of a private system twelve leave open whether it is one
NUM_HELD_OUT = 18
# of the input in the output; at 1 the gradient does not tell which way leads to other voices
_FIRST_SHARE = 0.95
# On these voices, after 400 steps: 4 leaves .05 bit to attackers on OP, 1 leaves .03, and 16 leaves
# .57.
_INPUT_SCALE = 1.0
_NUM_VALIDATIONS = 8  # along the training
_SPEAKERS_PER_VOICE = 10  # speakers in a pseudo-voice of the baseline
# On these voices they find what all standard attacks find, within 0.01 bit, in a quarter of the
# time.
_ATTACKS = (Plain, Centred, RidgeToOriginal, WithinClassWhitening)

# What was done to the voices by each system, for people who know none of them.
_DESCRIPTIONS = {
    "B2": (
        "moves the formants of everybody by the same amount. An attacker who owns the tool learns"
        " what it does"
    ),
    "B2r": "moves the formants by an amount drawn for each session of a speaker",
    "B2u": "moves the formants by an amount drawn for each recording",
    "averaging": (
        "gives each session of a speaker the average voice of ten others. What a recording differs"
        " from its speaker's average stays"
    ),
    "drawn": (
        "gives each recording a voice drawn at random, and keeps nothing of its own voice. Nobody"
        " can be found, and nobody can be told apart: a speaker changes with every sentence"
    ),
    "trained": (
        "maps each voice to another one, by a network and a key drawn for each session. The network"
        " was trained with the library's loss, on other speakers"
    ),
}

SessionBatch = tuple[Tensor, Tensor, Tensor]  # original embeddings, speakers, sessions


def demo(options: DemoOptions, console: Console) -> None:
    """Train, measure on the speakers held out, and report."""
    if options.epochs < 1:
        raise InputError(f"Expected --epochs to be 1 at least, but got {options.epochs}.")
    if not 0 <= options.seed < 1 << 63:
        raise InputError(f"Expected --seed to be from 0 to 2^63 - 1, but got {options.seed}.")
    output = OutputOptions(out=options.out)
    check_outputs(output)
    began = time.monotonic()
    # tensors are small, and on a busy machine threads would only wait for one another
    torch.set_num_threads(1)
    voices = demo_voices()
    generator = torch.Generator().manual_seed(options.seed)
    order = torch.randperm(len(voices.speaker_names), generator=generator)
    is_held_out = torch.isin(voices.speakers, order[:NUM_HELD_OUT])
    num_training = len(voices.speaker_names) - NUM_HELD_OUT
    measured_on = f"{NUM_HELD_OUT} others ({int(is_held_out.sum())} utterances)"
    console.print(f"Training on {num_training} synthetic speakers, measuring on {measured_on}.")
    model = _train_anonymiser(voices, is_held_out, options)
    systems = _evaluate_systems(voices, is_held_out, model, generator)
    lead = (
        f"{num_training} synthetic speakers to train on, {NUM_HELD_OUT} others to measure all"
        f" systems on, in two sessions each; attackers learn from both; {options.epochs} epochs,"
        f" seed {options.seed}; weights of the last epoch"
    )
    settings = {"seed": options.seed, "epochs": options.epochs, "intervals": CONFIDENCE}
    run = Run(("vpmetrics", *options.arguments), settings)
    publish(Content("Speakers held out of training", lead, systems, run), console, output)
    _tell_story(systems, console)
    console.print(f"\n{time.monotonic() - began:.0f} s. All curves and figures of the training:")
    console.print(
        f"  tensorboard --logdir {escape(str(_name_log_folder(options.out)))}", soft_wrap=True
    )


def _name_log_folder(out: Path) -> Path:
    """Return the folder of the TensorBoard log, next to that of the page, which is replaced."""
    return out.with_name(f"{out.name}-tensorboard")


def _tell_story(systems: Sequence[EvaluatedSystem], console: Console) -> None:
    """Print the method of each system, its disclosure, and why the numbers differ."""
    console.print(
        "\nWhat was done, and what an attacker learns (0 bit: nothing, 0.72 bit: everything):"
    )
    for system in systems:
        weak = max(float(system.scalars["op_d_ece"]), float(system.scalars["across_d_ece"]))
        learnt = float(system.scalars["disclosure"])
        distinct = float(system.scalars["within_d_ece"])
        console.print(
            f"\n[bold]{escape(system.name)}[/bold] {_DESCRIPTIONS[system.name]}.", soft_wrap=True
        )
        console.print(
            f"  {weak:.2f} bit by comparing voices; {learnt:.2f} bit by an attacker who learns to"
            f" undo it. {distinct:.2f} of 0.72 bit tell the voices of a session apart.",
            soft_wrap=True,
        )
        if system.report.headline is not None:
            console.print(f"  {escape(system.report.headline.verdict)}", soft_wrap=True)
    levels = {system.name: _level_of(system) for system in systems}
    low = [name for name, level in levels.items() if level == "low"]
    unclear = [name for name, level in levels.items() if level == "inconclusive"]
    console.print(
        "\nA fixed change is learnt and undone. A change that is drawn anew hides only as far as it"
        " leaves nothing of the recording's own voice. That comparing voices finds little says"
        " nothing yet: look at the attacker who learns, and at what several recordings of one"
        " person add up to.",
        soft_wrap=True,
    )
    if low:
        console.print(
            f"Low: {', '.join(low)}. All that was tried, on {NUM_HELD_OUT} people, found no more"
            " than luck would.",
            soft_wrap=True,
        )
    if unclear:
        console.print(
            f"Inconclusive: {', '.join(unclear)}. {NUM_HELD_OUT} people are too few to tell; that"
            " is no reassurance.",
            soft_wrap=True,
        )


def _level_of(system: EvaluatedSystem) -> str:
    if system.report.headline is None:
        return ""
    return system.report.headline.level


def _train_anonymiser(
    voices: DemoVoices, is_held_out: Tensor, options: DemoOptions
) -> KeyedAnonymiser:
    """Train an anonymiser on some speakers, watched on the others."""
    torch.manual_seed(options.seed)
    model = KeyedAnonymiser(len(voices.speaker_names), voices.original.shape[1])
    training = _make_dataset(voices, ~is_held_out)
    held_out = _make_dataset(voices, is_held_out)
    sampler = SpeakerBatchSampler(voices.speakers[~is_held_out], seed=options.seed)
    monitor = PrivacyMonitor(
        keys={name: name for name in ("original", "protected", "speakers", "sessions")},
        suite=VoicePrivacy(attacks=[attack() for attack in _ATTACKS]),
        figures_every_n_epochs=options.epochs,  # first and last
    )
    logging.disable(logging.WARNING)  # Lightning's advice on workers and hardware
    with warnings.catch_warnings(), show_progress("training", options.epochs) as set_done:
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=options.epochs,
            check_val_every_n_epoch=max(1, options.epochs // _NUM_VALIDATIONS),
            accelerator="cpu",
            logger=TensorBoardLogger(
                _name_log_folder(options.out), name="", default_hp_metric=False
            ),
            callbacks=[
                monitor,
                LambdaCallback(on_train_epoch_end=lambda t, _: set_done(t.current_epoch + 1)),
            ],
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            num_sanity_val_steps=0,
            log_every_n_steps=len(sampler),
        )
        try:
            # Rows of a tensor are taken at once: a batch sampler would take and join them one by
            # one.
            batches = DataLoader(training, sampler=sampler, batch_size=None)
            trainer.fit(model, batches, DataLoader(held_out, len(held_out)))
        except SystemExit:  # how Lightning ends when it is interrupted
            raise KeyboardInterrupt from None
        finally:
            logging.disable(logging.NOTSET)
    return model.eval()


def _make_dataset(voices: DemoVoices, is_used: Tensor) -> TensorDataset:
    """Return original embeddings, speakers and sessions of some rows."""
    sessions = alternate_unique_session_ids(voices.speakers)
    return TensorDataset(voices.original[is_used], voices.speakers[is_used], sessions[is_used])


def _evaluate_systems(
    voices: DemoVoices, is_held_out: Tensor, model: KeyedAnonymiser, generator: torch.Generator
) -> list[EvaluatedSystem]:
    """Evaluate all systems on the same speakers, which the model has not seen.

    Attackers observe the others.
    """
    sessions = alternate_unique_session_ids(voices.speakers)
    is_first = sessions[:, None] % 2 == 0
    with torch.no_grad():
        ours = model(voices.original, model.keys[sessions])
    protected = {
        "B2": voices.protected["B2"],
        # drawn once per session
        "B2r": torch.where(is_first, voices.protected["B2r0"], voices.protected["B2r1"]),
        "B2u": voices.protected["B2u"],
        "averaging": average_speakers(voices, ~is_held_out, generator),
        "drawn": draw_voices(voices, ~is_held_out, generator),
        "trained": ours,
    }
    metric = VoicePrivacy(
        attacks=[attack() for attack in _ATTACKS], metrics="all", intervals=CONFIDENCE
    )
    systems = []
    for name, side in protected.items():
        metric.reset(observed=True)
        metric.observe(
            voices.original[~is_held_out], side[~is_held_out], voices.speakers[~is_held_out]
        )
        embeddings = Embeddings(
            voices.original[is_held_out],
            side[is_held_out],
            voices.speakers[is_held_out],
            tuple(voices.speaker_names),
            sessions=sessions[is_held_out],
        )
        system = evaluate_embeddings(name, embeddings, metric)
        systems.append(replace(system, notes=(f"{name} {_DESCRIPTIONS[name]}", *system.notes)))
    within = systems[-1].scalars["within_d_ece"]
    across = disclosure_in_condition(systems[-1], "across").value
    limits = (
        "The trained model maps embeddings and makes no speech, unlike B2, B2r and B2u. An"
        " attacker with the key of a session recognises its speakers (within a session"
        f" {within:.3f} bit). Without the key, sessions are linked by {across:.3f} bit"
    )
    return [*systems[:-1], replace(systems[-1], notes=(*systems[-1].notes, limits))]


def alternate_unique_session_ids(speakers: Tensor) -> Tensor:
    """Return the sessions ``2 * speaker`` and ``2 * speaker + 1`` in turn, one per row ``(N,)``."""
    is_same = speakers[:, None] == speakers
    return 2 * speakers + (is_same.tril().sum(1) - 1) % 2


class KeyedAnonymiser(pl.LightningModule):
    """Map an embedding to that of another voice; each session has its key.

    Before training the output is nearly the input, so that the effect of training shows: ``own`` is
    the share of the input in the output. Inputs have unit length; they are scaled to about the
    length of a key, so that the network sees both. Every batch of training draws new keys; those of
    validation are fixed.
    """

    keys: Tensor

    def __init__(
        self, speakers: int, width: int = 256, key: int = 32, learning_rate: float = 1e-3
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.own = nn.Parameter(torch.tensor(_FIRST_SHARE))
        self.net = nn.Sequential(nn.Linear(width + key, width), nn.GELU(), nn.Linear(width, width))
        self.loss = PseudonymisationLoss()
        self.register_buffer("keys", torch.randn(2 * speakers, key))

    def forward(self, original: Tensor, key: Tensor) -> Tensor:
        """Return protected embeddings ``(B, D)`` of original ones, by the key of each."""
        voice = _INPUT_SCALE * original
        mapped = self.net(torch.cat([voice, key], dim=1))
        return torch.lerp(mapped, voice, self.own.clamp(0, 1))

    def training_step(self, batch: SessionBatch) -> Tensor:
        """Return the loss of one batch."""
        original, speakers, sessions = batch
        protected = self(original, torch.randn_like(self.keys)[sessions])
        loss: Tensor = self.loss(original, protected, speakers, sessions)
        self.log("train/loss", loss)
        self.log_dict({f"train/{name}": value for name, value in self.loss.parts.items()})
        return loss

    def validation_step(self, batch: SessionBatch) -> dict[str, Tensor]:
        """Return the arguments of the metrics, by the names that PrivacyMonitor reads."""
        original, speakers, sessions = batch
        protected = self(original, self.keys[sessions])
        return {
            "original": original,
            "protected": protected,
            "speakers": speakers,
            "sessions": sessions,
        }

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam; the share of the input may move faster than the weights of the network."""
        groups: list[dict[str, Any]] = [{"params": self.net.parameters()}]
        groups.append({"params": [self.own], "lr": 20 * self.learning_rate})
        return torch.optim.Adam(groups, lr=self.learning_rate)


def draw_voices(voices: DemoVoices, is_pool: Tensor, generator: torch.Generator) -> Tensor:
    """Return protected embeddings: random mixtures of the training speakers' recordings.

    They vary as these do and depend on nothing else, so that whatever is found is luck.
    """
    pool = voices.original[is_pool]
    centre = pool.mean(dim=0)
    weights = torch.randn(len(voices.original), len(pool), generator=generator)
    return normalize(centre + weights @ (pool - centre) / len(pool) ** 0.5, dim=1)


def average_speakers(voices: DemoVoices, is_pool: Tensor, generator: torch.Generator) -> Tensor:
    """Return protected embeddings in the manner of baseline B1 of the VoicePrivacy challenge.

    Each session of a speaker gets the average of ten random training speakers, and every utterance
    keeps its difference from its speaker's mean. B1 draws from the farthest speakers of a large
    pool; in this small one that would make speakers *less* like themselves than like others, and an
    attacker would only have to reverse the sign.
    """
    means_of_speakers: list[Tensor] = []
    for speaker in voices.speakers.unique():
        means_of_speakers.append(voices.original[voices.speakers == speaker].mean(0))
    means = torch.stack(means_of_speakers)
    pool = means[voices.speakers[is_pool].unique()]
    chosen = torch.rand(2 * len(means), len(pool), generator=generator).argsort(dim=1)[
        :, :_SPEAKERS_PER_VOICE
    ]
    pseudo = pool[chosen].mean(dim=1)[alternate_unique_session_ids(voices.speakers)]
    return normalize(pseudo + voices.original - means[voices.speakers], dim=1)
