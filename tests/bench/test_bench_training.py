"""What ``PseudonymisationLoss()`` reaches at its defaults, on speakers and synthesisers never seen."""

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
from judge import judge

ENGINES = (("espeak-ng",), ("rhvoice",), ("festival", "flite", "pico"))


def splits(voices):
    """Which of the speakers are held out: random ones, or those of a speech synthesiser."""
    for seed in range(3):
        yield "random", torch.randperm(37, generator=torch.Generator().manual_seed(seed)) < anonymisers.HELD_OUT
    for engines in ENGINES:
        yield "engine", torch.tensor([name.split(":")[0] in engines for name in voices.speaker_names])


@pytest.mark.bench
def test_it_holds_against_attackers_who_learn_on_voices_never_trained_on():
    torch.set_num_threads(1)
    voices, found = demo_voices(), {"random": [], "engine": []}
    rows = torch.arange(len(voices.speakers)).view(37, -1)
    for seed, (kind, held_out) in enumerate(splits(voices)):
        net = anonymisers.train(PseudonymisationLoss(), True, voices, rows[~held_out], seed)
        watched = anonymisers.speak(net, voices, rows[~held_out], 8, seed=2)
        found[kind].append(judge(anonymisers.speak(net, voices, rows[held_out], 2, seed=1), watched))
    for kind, values in found.items():
        means = {name: np.mean([value[name] for value in values]) for name in values[0]}
        print(f"\n{kind}: " + ", ".join(f"{name} {mean:.3f}" for name, mean in means.items()))
        assert means["in folds"] <= 0.15
        assert means["watched"] <= 0.1
        assert means["within"] >= 0.7
        assert means["across"] <= 0.06  # a network that never sees the original has 0.035 on 12 speakers
