"""What ``PseudonymisationLoss()`` reaches at its defaults, on speakers and kinds of voices never trained on.

Run with ``pytest -m bench -s tests/bench/test_bench_training.py``; it prints the tables.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vpmetrics import VoicePrivacy
from vpmetrics.data import demo_voices
from vpmetrics.losses import PseudonymisationLoss

sys.path.insert(0, str(Path(__file__).parent))
import anonymisers
from judge import judge

pytestmark = pytest.mark.bench

ENGINES = (("espeak-ng",), ("rhvoice",), ("festival", "flite", "pico"))


def splits(voices):
    """Yield which of the speakers are held out: random ones, or those of a speech synthesiser."""
    for seed in range(3):
        yield "random", torch.randperm(37, generator=torch.Generator().manual_seed(seed)) < 12
    for engines in ENGINES:
        yield "engine", torch.tensor([name.split(":")[0] in engines for name in voices.speaker_names])


def train_and_judge(voices, rows, held_out, seed, steps=anonymisers.STEPS):
    """Train on some speakers and return what attackers find of the others, two sessions each."""
    torch.set_num_threads(1)
    net = anonymisers.train(PseudonymisationLoss(), True, voices, rows[~held_out], seed, steps)
    evaluated = anonymisers.speak(net, voices, rows[held_out], 2, seed=1)
    found = judge(evaluated, anonymisers.speak(net, voices, rows[~held_out], 8, seed=2))
    suite = VoicePrivacy(metrics=["op_d_ece_strongest"])
    original, protected, speakers, utterances, sessions = map(torch.as_tensor, evaluated)
    suite.update(original, protected, speakers, utterances=utterances, sessions=sessions)
    return {**found, "strongest": float(suite.compute()["op_d_ece_strongest"])}


def test_training_hides_unseen_bundled_speakers_from_fitted_attacks():
    voices, found = demo_voices(), {"random": [], "engine": []}
    rows = torch.arange(len(voices.speakers)).view(37, -1)
    for seed, (kind, held_out) in enumerate(splits(voices)):
        found[kind].append(train_and_judge(voices, rows, held_out, seed))
    for kind, values in found.items():
        means = {name: np.mean([value[name] for value in values]) for name in values[0]}
        print(f"\n{kind}: " + ", ".join(f"{name} {mean:.3f}" for name, mean in means.items()))
        assert means["in folds"] <= 0.15
        assert means["watched"] <= 0.1
        assert means["within"] >= 0.7
        assert means["across"] <= 0.06  # a network that never sees the original has 0.035 on 12 speakers


@pytest.mark.parametrize("steps", [300, 1000, 3000])
def test_training_hides_unseen_gaussian_speakers_from_fitted_attacks(steps):
    """60 speakers to train on and 30 unseen ones, 48 dimensions: ``strongest`` is that of the suite."""
    voices = anonymisers.gaussian_voices(speakers=90, width=48)
    rows = torch.arange(len(voices.speakers)).view(90, -1)
    held_out = torch.randperm(90, generator=torch.Generator().manual_seed(0)) < 30
    found = train_and_judge(voices, rows, held_out, seed=0, steps=steps)
    print(f"\n{steps:5d} steps: " + ", ".join(f"{name} {value:.3f}" for name, value in found.items()))
    assert max(found["in folds"], found["watched"], found["strongest"]) <= 0.1
    assert found["within"] >= 0.7
    assert found["across"] <= 0.1
