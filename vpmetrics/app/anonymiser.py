"""What the demonstration trains and compares: a small anonymiser of embeddings, its batches, and a baseline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import IterableDataset

from vpmetrics.data import DemoVoices
from vpmetrics.losses import PseudonymisationLoss

_MIXED, _MOST_MIXED, _NOISE = 0.5, 0.5, 0.5  # see SpeakerBatches
_AVERAGED = 10  # voices in a pseudo-voice of the baseline

Batch = tuple[Tensor, Tensor]


class Split(NamedTuple):
    """Which rows are of speakers trained on and which of speakers held out, ``(N,)`` booleans."""

    training: Tensor
    held_out: Tensor


def split_speakers(voices: DemoVoices, held_out: int, draw: torch.Generator) -> Split:
    """A random split by speaker: no voice is on both sides."""
    order = torch.randperm(len(voices.speaker_names), generator=draw)
    chosen = torch.isin(voices.speakers, order[:held_out])
    return Split(~chosen, chosen)


class Anonymiser(pl.LightningModule):
    """Turns an embedding into that of another voice: its own plus a learnt change, at unit length."""

    def __init__(self, width: int = 256, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.learning_rate = learning_rate
        self.change = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
        )
        self.loss = PseudonymisationLoss()

    def forward(self, original: Tensor) -> Tensor:
        """Protected embeddings of original ones, ``(B, D)``."""
        return normalize(original + self.change(original), dim=1)

    def training_step(self, batch: Batch) -> Tensor:
        """The library's loss of one batch."""
        original, speakers = batch
        loss: Tensor = self.loss(original, self(original), speakers)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Batch) -> dict[str, Tensor]:
        """What PrivacyMonitor looks for."""
        original, speakers = batch
        return {"original": original, "protected": self(original), "speakers": speakers}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


class SpeakerBatches(IterableDataset[Batch]):
    """Batches of several utterances of several speakers, a number of them per epoch.

    Two dozen speakers are few to learn from, so half of those in a batch are new: each a mixture of two speakers, at
    one ratio for all their utterances. And a little noise makes utterances of one speaker differ more than they do, so
    that what keeps them together holds for other speakers, too.
    """

    def __init__(self, embeddings: Tensor, speakers: Tensor, draw: torch.Generator, batches: int) -> None:
        super().__init__()
        names, counts = speakers.unique(return_counts=True)
        utterances = int(counts.min())
        rows = [(speakers == name).nonzero().flatten()[:utterances] for name in names]
        self.voices = embeddings[torch.stack(rows)]
        self.draw, self.batches = draw, batches

    def __iter__(self) -> Iterator[Batch]:
        return (self._batch(speakers=20, utterances=12) for _ in range(self.batches))

    def _batch(self, speakers: int, utterances: int) -> Batch:
        original, other = (self._some_voices(speakers, utterances) for _ in range(2))
        ratio, mixed = torch.rand(2, speakers, 1, 1, generator=self.draw)
        original = torch.lerp(original, other, torch.where(mixed < _MIXED, _MOST_MIXED * ratio, 0))
        noise = torch.randn(original.shape, generator=self.draw) / original.shape[-1] ** 0.5
        original = normalize(normalize(original, dim=-1) + _NOISE * noise, dim=-1)
        return original.flatten(0, 1), torch.arange(speakers).repeat_interleave(utterances)

    def _some_voices(self, speakers: int, utterances: int) -> Tensor:
        order = torch.rand(self.voices.shape[:2], generator=self.draw).argsort(dim=1)[:, :utterances]
        chosen = torch.randperm(len(self.voices), generator=self.draw)[:speakers]
        return self.voices[chosen[:, None], order[chosen]]


def average_speakers(voices: DemoVoices, split: Split, draw: torch.Generator) -> Tensor:
    """Protected embeddings of the speakers held out, in the manner of baseline B1 of the VoicePrivacy challenge.

    B1 gives every speaker the average x-vector of many speakers of a pool and synthesises speech from it. Here each
    speaker gets the average of the mean embeddings of ten random speakers trained on, and every utterance keeps its
    difference from its speaker's own mean: without it, utterances of one speaker would be the same embedding, which no
    synthesis achieves. B1 draws from those of the pool that are farthest away. With a pool this small that makes
    speakers *less* like themselves than like others, which an attacker only has to turn round, so all of it is drawn
    from.
    """
    pool, _ = _means(voices.original[split.training], voices.speakers[split.training])
    original = voices.original[split.held_out]
    own, number = _means(original, voices.speakers[split.held_out])
    chosen = torch.rand(len(own), len(pool), generator=draw).argsort(dim=1)[:, :_AVERAGED]
    pseudo = pool[chosen].mean(dim=1)
    return normalize(pseudo[number] + original - own[number], dim=1)


def _means(embeddings: Tensor, speakers: Tensor) -> tuple[Tensor, Tensor]:
    """Mean embedding of each speaker, and the number of each row's speaker among them."""
    names, number, counts = speakers.unique(return_inverse=True, return_counts=True)
    sums = embeddings.new_zeros(len(names), embeddings.shape[1]).index_add(0, number, embeddings)
    return sums / counts[:, None], number
