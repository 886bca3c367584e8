"""The bundled voices, embeddings of 37 synthetic speakers, original and anonymised four ways; batches by speaker."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vpmetrics.data.batches import SpeakerBatchSampler

__all__ = ["DemoVoices", "SpeakerBatchSampler", "demo_voices"]


class DemoVoices(NamedTuple):
    """Embeddings of 1036 recordings of 37 synthetic speakers; see ``README.md`` in this folder for how they were made.

    ``original`` ``(1036, 256)`` float32; ``protected``, as many rows for each of ``B2`` (McAdams, alpha = 0.8),
    ``B2r0`` and ``B2r1`` (one alpha per speaker, two draws) and ``B2u`` (one alpha per utterance); ``speakers``,
    ``utterances`` and ``sentences`` ``(1036,)`` int64; ``speaker_names``, ``engine:voice`` of each speaker number;
    ``alphas``, the McAdams coefficient of each row ``(1036,)`` float32 where it was drawn: the smaller, the further
    the formants were moved.
    """

    original: Tensor
    protected: dict[str, Tensor]
    speakers: Tensor
    utterances: Tensor
    sentences: Tensor
    speaker_names: tuple[str, ...]
    alphas: dict[str, Tensor]


def demo_voices() -> DemoVoices:
    """Load the bundled voices; nothing is downloaded.

    Example:
        >>> voices = demo_voices()
        >>> voices.original.shape, sorted(voices.protected)
        (torch.Size([1036, 256]), ['B2', 'B2r0', 'B2r1', 'B2u'])
    """
    with as_file(files(__package__) / "demo_voices.npz") as path, np.load(path) as arrays:
        return DemoVoices(
            torch.from_numpy(arrays["emb_O"]),
            {name: torch.from_numpy(arrays[f"emb_{name}"]) for name in ("B2", "B2r0", "B2r1", "B2u")},
            torch.from_numpy(arrays["speaker"]).long(),
            torch.from_numpy(arrays["utterance"]).long(),
            torch.from_numpy(arrays["sentence"]).long(),
            tuple(str(name) for name in arrays["speaker_name"]),
            {name: torch.from_numpy(arrays[f"alpha_{name}"]) for name in ("B2r0", "B2r1", "B2u")},
        )
