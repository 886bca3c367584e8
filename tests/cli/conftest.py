"""Some of the bundled voices, for all tests of the command."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from vpmetrics.data import demo_voices

NAMES = ("anna", "ben", "cleo", "dora", "emil", "finn")


@pytest.fixture(scope="session")
def voices():
    """Sixty utterances of six speakers, with names."""
    data = demo_voices()
    rows = torch.cat([(data.speakers == speaker).nonzero()[:10, 0] for speaker in (1, 5, 9, 14, 20, 30)])
    speakers = torch.arange(6).repeat_interleave(10)
    return SimpleNamespace(
        original=data.original[rows],
        protected={name: side[rows] for name, side in data.protected.items()},
        speakers=speakers,
        names=[NAMES[s] for s in speakers],
        utterances=[f"{NAMES[s]}-{k:02d}" for k, s in enumerate(speakers)],
    )
