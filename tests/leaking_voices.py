"""Voices, their protection with a given leak in each epoch, and what a suite says of it."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from vpmetrics.suite import VoicePrivacy

# The leak of the fifth epoch is larger than that of the fourth, and its loss too: it is dominated.
SHARES = (1.0, 0.02, 0.6, 0.3, 0.45)
LOSSES = (1.0, 3.5, 2.0, 2.5, 2.6)
NAMES = ("original", "protected", "speakers")


def voices(speakers=6, utterances=4, seed=0):
    """Embeddings ``(N, 8)`` that tell speakers apart, noise that does not, and the speakers."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(speakers, 8, generator=generator)
    names = torch.arange(speakers).repeat(utterances)
    original = centres[names] + 0.4 * torch.randn(len(names), 8, generator=generator)
    return original, torch.randn(len(names), 8, generator=generator), names


def loader(batch_size=5, **kwargs):
    return DataLoader(TensorDataset(*voices(**kwargs)), batch_size)


def protect(original, noise, share):
    return share * original + (1 - share) * noise


def by_hand(share, dtype=torch.float32, **kwargs):
    original, noise, speakers = voices(**kwargs)
    original = original.to(dtype)
    noise = noise.to(dtype)
    metric = VoicePrivacy(attacks=None, conversations=0)
    metric.update(original, protect(original, noise, share), speakers)
    return {name: float(value) for name, value in metric.compute().items()}
