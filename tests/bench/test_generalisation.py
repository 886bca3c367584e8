"""What ``PseudonymisationLoss()`` reaches at its defaults, on speakers trained on and on speakers never seen."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vpmetrics.data import demo_voices
from vpmetrics.losses import PseudonymisationLoss

sys.path.insert(0, str(Path(__file__).parent))
import anonymisers


@pytest.mark.bench
def test_it_carries_over_to_speakers_and_synthesisers_never_seen():
    torch.set_num_threads(1)
    voices = demo_voices()
    rows = {"random": [], "engine": []}
    for seed, (kind, known, new) in enumerate(anonymisers.splits(voices, random=4)):
        net = anonymisers.train(PseudonymisationLoss(), voices, known, seed)
        rows[kind].append([anonymisers.judge(net, voices, known), anonymisers.judge(net, voices, new)])
    for kind, values in rows.items():
        trained, unseen = np.array(values).mean(0)
        print(f"\n{kind}: trained {trained.round(4)}, unseen {unseen.round(4)} (OP, reversed, PP, OP centred)")
        assert trained[:2].max() <= 0.005
        assert trained[2] >= 0.7
        assert unseen[:2].max() <= 0.05
        assert unseen[2] >= 0.6
