"""What ``PseudonymisationLoss()`` reaches at its defaults.

On speakers and kinds of voices never trained on.
"""

import anonymisers
import numpy as np
import pytest
import torch
from judge import judge
from reports import compute
from samples import fading_voices

from vpmetrics import VoicePrivacy
from vpmetrics.data import demo_voices
from vpmetrics.losses import PseudonymisationLoss

pytestmark = pytest.mark.bench


def train_and_judge(original, speakers, held_out, seed, steps=anonymisers.STEPS):
    """Train on some speakers and return what attackers find of the others, two sessions each."""
    torch.set_num_threads(1)
    rows = torch.arange(len(speakers)).view(len(held_out), -1)
    net = anonymisers.train(
        PseudonymisationLoss, True, original, speakers, rows[~held_out], seed, steps
    )
    evaluated = anonymisers.speak(net, original, speakers, rows[held_out], 2, seed=1)
    found = judge(evaluated, anonymisers.speak(net, original, speakers, rows[~held_out], 8, seed=2))
    columns = {name: torch.as_tensor(column) for name, column in evaluated._asdict().items()}
    values = compute(VoicePrivacy(metrics=["op_d_ece_strongest"]), **columns)
    return {**found, "strongest": float(values["op_d_ece_strongest"])}


@pytest.mark.parametrize("kind", ["random", "engine"])
def test_training_hides_unseen_bundled_speakers_from_fitted_attacks(kind):
    voices = demo_voices()
    if kind == "random":
        splits = [
            torch.randperm(37, generator=torch.Generator().manual_seed(seed)) < 12
            for seed in range(3)
        ]
    else:
        engines = (("espeak-ng",), ("rhvoice",), ("festival", "flite", "pico"))
        splits = [
            torch.tensor([name.split(":")[0] in some for name in voices.speaker_names])
            for some in engines
        ]
    found = [
        train_and_judge(voices.original, voices.speakers, held_out, seed)
        for seed, held_out in enumerate(splits)
    ]
    means = {name: np.mean([value[name] for value in found]) for name in found[0]}
    print(f"\n{kind}: " + ", ".join(f"{name} {mean:.3f}" for name, mean in means.items()))
    assert means["in folds"] <= 0.15
    assert means["watched"] <= 0.1
    assert means["within"] >= 0.7
    # a network that never sees the original has 0.035 on 12 speakers
    assert means["across"] <= 0.06


@pytest.mark.parametrize("steps", [300, 1000, 3000])
def test_training_hides_unseen_gaussian_speakers_from_fitted_attacks(steps):
    """60 speakers to train on and 30 unseen ones, 48 dimensions.

    ``strongest`` is that of the suite.
    """
    original, speakers, _ = fading_voices(speakers=90, dtype=torch.float32)
    held_out = torch.randperm(90, generator=torch.Generator().manual_seed(0)) < 30
    found = train_and_judge(original, speakers, held_out, seed=0, steps=steps)
    print(
        f"\n{steps:5d} steps: " + ", ".join(f"{name} {value:.3f}" for name, value in found.items())
    )
    assert max(found["in folds"], found["watched"], found["strongest"]) <= 0.1
    assert found["within"] >= 0.7
    assert found["across"] <= 0.1
