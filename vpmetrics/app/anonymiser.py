"""What the demonstration trains and compares: a small keyed anonymiser of embeddings, and a baseline."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vpmetrics.data import DemoVoices
from vpmetrics.losses import PseudonymisationLoss

_AVERAGED = 10  # voices in a pseudo-voice of the baseline

Batch = tuple[Tensor, Tensor, Tensor]


class Split(NamedTuple):
    """Which rows are of speakers trained on and which of speakers held out, ``(N,)`` booleans."""

    training: Tensor
    held_out: Tensor


def split_speakers(voices: DemoVoices, held_out: int, draw: torch.Generator) -> Split:
    """A random split by speaker: no voice is on both sides."""
    order = torch.randperm(len(voices.speaker_names), generator=draw)
    chosen = torch.isin(voices.speakers, order[:held_out])
    return Split(~chosen, chosen)


def two_sessions(speakers: Tensor) -> Tensor:
    """A session for each row, ``(N,)``: two for every speaker, row by row in turn."""
    order = speakers.argsort(stable=True)
    first = torch.searchsorted(speakers[order], speakers[order])
    turn = torch.empty_like(speakers).index_copy(0, order, torch.arange(len(order)) - first)
    return 2 * speakers + turn % 2


class Anonymiser(pl.LightningModule):
    """Turns an embedding into that of another voice, by a key that stays for a session.

    It begins as a copy of its input, so that one sees what training does: ``own`` is the share of the input in the
    output. Keys of training are drawn anew for every batch, those of validation stay.
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
        """Protected embeddings ``(B, D)`` of original ones, by the key of each."""
        return torch.lerp(self.net(torch.cat([original, key], dim=1)), original, self.own)

    def training_step(self, batch: Batch) -> Tensor:
        """The library's loss of one batch."""
        original, speakers, sessions = batch
        protected = self(original, torch.randn_like(self.keys)[sessions])
        loss: Tensor = self.loss(original, protected, speakers, sessions)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Batch) -> dict[str, Tensor]:
        """What PrivacyMonitor looks for."""
        original, speakers, sessions = batch
        protected = self(original, self.keys[sessions])
        return {"original": original, "protected": protected, "speakers": speakers, "sessions": sessions}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam; the one number that says how much of the input stays may move faster than the many of the network."""
        own = {"params": [self.own], "lr": 10 * self.learning_rate}
        groups: list[dict[str, Any]] = [{"params": self.net.parameters()}, own]
        return torch.optim.Adam(groups, lr=self.learning_rate)


def average_speakers(voices: DemoVoices, split: Split, draw: torch.Generator) -> Tensor:
    """Protected embeddings of all rows, in the manner of baseline B1 of the VoicePrivacy challenge.

    B1 gives every speaker the average x-vector of many speakers of a pool and synthesises speech from it. Here each
    session of a speaker gets the average of the mean embeddings of ten random speakers trained on, and every utterance
    keeps its difference from its speaker's own mean: without it, utterances of one speaker would be the same embedding,
    which no synthesis achieves. B1 draws from those of the pool that are farthest away. With a pool this small that
    makes speakers *less* like themselves than like others, which an attacker only has to turn round, so all of it is
    drawn from.
    """
    own, number = _means(voices.original, voices.speakers)
    pool, _ = _means(voices.original[split.training], voices.speakers[split.training])
    chosen = torch.rand(2 * len(own), len(pool), generator=draw).argsort(dim=1)[:, :_AVERAGED]
    pseudo = pool[chosen].mean(dim=1)[two_sessions(voices.speakers)]
    return normalize(pseudo + voices.original - own[number], dim=1)


def _means(embeddings: Tensor, speakers: Tensor) -> tuple[Tensor, Tensor]:
    """Mean embedding of each speaker, and the number of each row's speaker among them."""
    names, number, counts = speakers.unique(return_inverse=True, return_counts=True)
    sums = embeddings.new_zeros(len(names), embeddings.shape[1]).index_add(0, number, embeddings)
    return sums / counts[:, None], number
