"""Anonymisers trained on bundled or Gaussian voices: what cosines see of them, and what attackers who learn see.

A small network maps an original embedding and the key of a session to a protected embedding. It is trained by Adam
(1e-3) for 300 steps of 16 speakers with 8 utterances each, in two sessions, by one of several losses, and judged on
speakers it never saw: by cosine, by attacks fitted on other folds of these speakers, by attacks fitted on eight draws
of the speakers trained on, and, as a check that closed forms find most, by a network trained to undo it on unlimited
draws of the same.

    python tests/bench/anonymisers.py --splits 3 --learnt --figure anonymisers.png
    python tests/bench/anonymisers.py --splits 3 --learnt --voices gaussian

The judge (``judge.py``) shares no code with the training.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from judge import Speech, judge, two_sided, unit
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from vpmetrics.data import demo_voices
from vpmetrics.losses import PseudonymisationLoss

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
STEPS, SPEAKERS, UTTERANCES, KEY = 300, 16, 8, 32
COLUMNS = ("cosine", "in folds", "watched", "learnt", "within", "across")


class Voices(NamedTuple):
    """Embeddings and their speakers, who lie one after another with equally many utterances."""

    original: Tensor
    speakers: Tensor


def bundled_voices() -> Voices:
    """Return the 37 speakers of the library."""
    voices = demo_voices()
    return Voices(voices.original, voices.speakers)


def gaussian_voices(speakers: int = 90, utterances: int = 10, width: int = 48, seed: int = 0) -> Voices:
    """Return speakers of another generator, whose variance falls slowly over the dimensions."""
    generator = torch.Generator().manual_seed(seed)
    names, variance = torch.arange(speakers).repeat_interleave(utterances), 0.97 ** torch.arange(width)
    voices = torch.randn(speakers, width, generator=generator)[names] * variance.sqrt()
    return Voices(voices + 1.1 * torch.randn(len(names), width, generator=generator) * variance.pow(0.25), names)


VOICES = {"bundled": (bundled_voices, 12), "gaussian": (gaussian_voices, 30)}  # and how many speakers are held out


class Anonymiser(nn.Module):
    """A small network, without a path around it, from an embedding and a key; the key may be kept from it."""

    def __init__(self, keyed: bool, width: int) -> None:
        super().__init__()
        self.keyed = keyed
        self.net = nn.Sequential(nn.Linear(width + KEY, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, original: Tensor, key: Tensor) -> Tensor:
        return self.net(torch.cat([original, key if self.keyed else torch.zeros_like(key)], dim=1))


class AdversarialClassification(nn.Module):
    """A classifier learns who spoke; the anonymiser learns to fool it and to stay near the original."""

    def __init__(self, weight: float, speakers: int, width: int) -> None:
        super().__init__()
        self.weight = weight
        self.classifier = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, speakers))
        self.optimiser = torch.optim.Adam(self.classifier.parameters(), lr=1e-3)

    def forward(self, original: Tensor, protected: Tensor, speakers: Tensor, sessions: Tensor) -> Tensor:  # noqa: ARG002
        for _ in range(3):  # the adversary needs a head start
            self.optimiser.zero_grad()
            cross_entropy(self.classifier(10 * normalize(protected.detach())), speakers).backward()
            self.optimiser.step()
        # Towards a classifier that knows nothing: all speakers equally likely.
        fooled = -self.classifier(10 * normalize(protected)).log_softmax(1).mean()
        return self.weight * fooled + 1 - cosine_similarity(original, protected).mean()


class WithoutSessions(nn.Module):
    """Our loss, of an anonymiser that has no key."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = PseudonymisationLoss()

    def forward(self, original: Tensor, protected: Tensor, speakers: Tensor, sessions: Tensor) -> Tensor:  # noqa: ARG002
        return self.loss(original, protected, speakers)


def systems(voices: Voices) -> dict[str, tuple[bool, list[Callable[[], Loss]]]]:
    """What is compared: whether there is a key, and the loss at a few settings; ours at its defaults."""
    sizes = int(voices.speakers.max()) + 1, voices.original.shape[1]
    adversaries = [lambda w=w: AdversarialClassification(w, *sizes) for w in (0.3, 1.0, 3.0)]  # type: ignore[misc]
    attacked = lambda: PseudonymisationLoss(attacks=("batch", "past"), session_invariance=0)  # noqa: E731
    return {
        "PseudonymisationLoss": (True, [PseudonymisationLoss]),
        "attacks in place of session invariance": (True, [attacked]),
        "cosines and centring alone": (True, [lambda: PseudonymisationLoss(session_invariance=0)]),
        "adversarial classification": (True, adversaries),
        "PseudonymisationLoss, no key": (False, [WithoutSessions]),
    }


def batches(rows: Tensor, draw: torch.Generator) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows, sessions and keys of 16 speakers at a time: two sessions each, every other utterance."""
    while True:
        some = rows[torch.randperm(len(rows), generator=draw)[:SPEAKERS]]
        chosen = some[:, torch.randperm(some.shape[1], generator=draw)[:UTTERANCES]]
        sessions = 2 * torch.arange(len(chosen))[:, None] + torch.arange(UTTERANCES) % 2
        key = torch.randn(2 * len(chosen), KEY, generator=draw)
        yield chosen.flatten(), sessions.flatten(), key[sessions.flatten()]


def train(loss: Loss, keyed: bool, voices: Voices, rows: Tensor, seed: int, steps: int = STEPS) -> Anonymiser:
    """Return an anonymiser after some steps."""
    torch.manual_seed(seed)
    net = Anonymiser(keyed, voices.original.shape[1])
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    source = batches(rows, torch.Generator().manual_seed(seed))
    for _ in range(steps):
        chosen, sessions, key = next(source)
        original = voices.original[chosen]
        optimiser.zero_grad()
        loss(original, net(original, key), voices.speakers[chosen], sessions).backward()
        optimiser.step()
    return net


@torch.no_grad()
def speak(net: Anonymiser, voices: Voices, rows: Tensor, draws: int, seed: int) -> Speech:
    """All utterances of some speakers, as many times as there are draws of a key for each speaker."""
    draw, utterances = torch.Generator().manual_seed(seed), rows.flatten()
    speakers, number_of_speakers = voices.speakers[utterances], int(voices.speakers.max()) + 1
    parts = []
    for number in range(draws):
        key = torch.randn(number_of_speakers, KEY, generator=draw)[speakers]
        original = voices.original[utterances]
        sessions = speakers + number * number_of_speakers
        parts.append([original.double(), net(original, key).double(), speakers, utterances, sessions])
    return Speech(*(torch.cat(column).numpy() for column in zip(*parts, strict=True)))


def learn_to_undo(net: Anonymiser, voices: Voices, rows: Tensor, evaluated: Speech, steps: int = 1500) -> float:
    """What a network finds that learns, on new draws in every step, to turn protected into original speech."""
    torch.manual_seed(0)
    known = speak(net, voices, rows, 8, seed=3)
    mean_p, white_p = whitening(known.protected)
    mean_o, white_o = whitening(known.original)
    width = voices.original.shape[1]
    attacker = nn.Sequential(nn.Linear(width, 512), nn.GELU(), nn.Linear(512, width))
    optimiser = torch.optim.Adam(attacker.parameters(), lr=1e-3)
    source = batches(rows, torch.Generator().manual_seed(4))
    for _ in range(steps):
        chosen, _, key = next(source)
        original = voices.original[chosen]
        with torch.no_grad():
            heard, truth = (net(original, key) - mean_p) @ white_p, normalize((original - mean_o) @ white_o)
        optimiser.zero_grad()
        scores = normalize(attacker(heard)) @ truth.T / 0.1
        cross_entropy(scores, torch.arange(len(chosen))).backward()  # which of the batch is it?
        optimiser.step()
    with torch.no_grad():
        heard = attacker((torch.tensor(evaluated.protected).float() - mean_p) @ white_p).double().numpy()
    truth = (evaluated.original - mean_o.double().numpy()) @ white_o.double().numpy()
    pairs = evaluated.utterances[:, None] != evaluated.utterances
    return two_sided((unit(heard) @ unit(truth).T)[pairs], (evaluated.speakers[:, None] == evaluated.speakers)[pairs])


def whitening(rows: np.ndarray) -> tuple[Tensor, Tensor]:
    """Mean, and a map that makes all directions alike."""
    centred = rows - rows.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred / len(rows))
    white = vectors / np.sqrt(np.maximum(values, 0) + 1e-5 * values.mean())
    return torch.tensor(rows.mean(0)).float(), torch.tensor(white).float()


def measure(voices: Voices, held_out: int, splits: int, learnt: bool) -> dict[str, np.ndarray]:
    """For every system ``(settings, splits, columns)``, on the speakers held out."""
    rows, results = torch.arange(len(voices.speakers)).view(int(voices.speakers.max()) + 1, -1), {}
    print("setting   " + "  ".join(f"{name:>8s}" for name in COLUMNS))
    for name, (keyed, settings) in systems(voices).items():
        values = np.full((len(settings), splits, len(COLUMNS)), np.nan)
        start = time.process_time()
        for setting, make in enumerate(settings):
            for seed in range(splits):
                order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
                known, new = rows[order[held_out:]], rows[order[:held_out]]
                net = train(make(), keyed, voices, known, seed)
                evaluated = speak(net, voices, new, 2 if keyed else 1, seed=1)
                found = judge(evaluated, speak(net, voices, known, 8 if keyed else 1, seed=2))
                found["learnt"] = learn_to_undo(net, voices, known, evaluated) if learnt else np.nan
                values[setting, seed] = [found[column] for column in COLUMNS]
        print(f"{name}: {(time.process_time() - start) / values[..., 0].size:.0f} s each")
        for setting, means in enumerate(values.mean(1)):
            print(f"{setting:7d}   " + "  ".join(f"{value:8.3f}" for value in means), flush=True)
        results[name] = values
    return results


def draw(results: dict[str, np.ndarray], path: Path) -> None:
    """What each attacker learns of each system: means over splits, of several settings the one that hides best."""
    from matplotlib.figure import Figure

    from vpmetrics.plotting.axes import COLOURS

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    attackers = {
        "cosine": "compares by cosine",
        "in folds": "is fitted on the other test speakers",
        "watched": "is fitted on eight draws of the training speakers",
        "learnt": "trains a network on unlimited draws of these",
    }
    means = [values.mean(1)[values.mean(1)[:, COLUMNS.index("watched")].argmin()] for values in results.values()]
    for number, (column, label) in enumerate(attackers.items()):
        bits = [row[COLUMNS.index(column)] for row in means]
        places = np.arange(len(bits)) + 0.2 * number - 0.3
        axes.barh(places, bits, height=0.18, label=label, color=COLOURS[number])
    axes.set_yticks(range(len(results)), list(results))
    axes.invert_yaxis()
    axes.set(xlim=(0, 0.75), xlabel="two-sided D_ECE of OP on speakers not used in training, bit (at most 0.72)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(title="The attacker", fontsize=8, loc="upper right")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Train, judge, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=3, help="random splits of the speakers")
    parser.add_argument("--voices", choices=VOICES, default="bundled", help="whose voices")
    parser.add_argument("--learnt", action="store_true", help="also train a network to undo each")
    parser.add_argument("--figure", type=Path, default=None, help="where the figure goes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make, held_out = VOICES[arguments.voices]
    results = measure(make(), held_out, arguments.splits, arguments.learnt)
    if arguments.figure:
        draw(results, arguments.figure)


if __name__ == "__main__":
    main()
