"""Short recordings made on the spot, and an encoder that says what it was given."""

import numpy as np
import pytest
import soundfile
import torch

from vpmetrics.audio import load_encoder


def noise(seconds: float, rate: int = 16000, seed: int = 0) -> np.ndarray:
    return 0.1 * np.random.default_rng(seed).standard_normal(int(seconds * rate))


def write(path, samples=None, rate: int = 16000, **options) -> None:
    """Write a recording, whose content depends on its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = noise(0.5, rate, seed=sum(map(ord, path.stem))) if samples is None else samples
    soundfile.write(path, samples, rate, **options)


def describe(waveforms: torch.Tensor) -> torch.Tensor:
    """Mean, level and peak, which padding would change."""
    return torch.stack(
        [waveforms.mean(1), waveforms.square().mean(1).sqrt(), waveforms.abs().amax(1)], 1
    )


@pytest.fixture
def encoder():
    return load_encoder(describe, sample_rate=16000, name="description")
