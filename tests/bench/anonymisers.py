"""Anonymisers trained on bundled or Gaussian voices.

What cosines see of them, and what attackers who learn see.

A small network maps an original embedding and the key of a session to a protected embedding. It is
trained by Adam (1e-3) for 300 steps of 16 speakers with 8 utterances each, in two sessions, by one
of several losses, and judged on speakers it never saw: by cosine, by attacks fitted on other folds
of these speakers, by attacks fitted on eight draws of the speakers trained on, and, as a check that
closed forms find most, by a network trained to undo it on unlimited draws of the same.

    PYTHONPATH=tests python tests/bench/anonymisers.py --figure anonymisers.png
    PYTHONPATH=tests python tests/bench/anonymisers.py --voices gaussian

The judge (``judge.py``) shares no code with the training.
"""

import argparse

import numpy as np
import torch
from judge import Speech, judge, power, two_sided, unit
from matplotlib.figure import Figure
from samples import fading_voices
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from vpmetrics.data import demo_voices
from vpmetrics.losses import PseudonymisationLoss
from vpmetrics.plotting.axes import COLOURS

STEPS, SPEAKERS, UTTERANCES, KEY, SPLITS = 300, 16, 8, 32, 3
ATTACKERS = {
    "cosine": "compares by cosine",
    "in folds": "is fitted on the other test speakers",
    "watched": "is fitted on eight draws of the training speakers",
    "learnt": "trains a network on unlimited draws of these",
}
COLUMNS = (*ATTACKERS, "within", "across")


class Anonymiser(nn.Module):
    """A small network, without a path around it, from an embedding and a key.

    The key may be kept from it.
    """

    def __init__(self, is_keyed, width):
        super().__init__()
        self.is_keyed = is_keyed
        self.net = nn.Sequential(nn.Linear(width + KEY, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, original, key):
        return self.net(
            torch.cat([original, key if self.is_keyed else torch.zeros_like(key)], dim=1)
        )


class AdversarialClassification(nn.Module):
    """A classifier learns who spoke.

    The anonymiser learns to fool it and to stay near the original.
    """

    def __init__(self, weight, speakers, width):
        super().__init__()
        self.weight = weight
        self.classifier = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, speakers)
        )
        self.optimiser = torch.optim.Adam(self.classifier.parameters(), lr=1e-3)

    def forward(self, original, protected, speakers, _):
        for _ in range(3):  # the adversary needs a head start
            self.optimiser.zero_grad()
            cross_entropy(self.classifier(10 * normalize(protected.detach())), speakers).backward()
            self.optimiser.step()
        # Towards a classifier that knows nothing: all speakers equally likely.
        fooled = -self.classifier(10 * normalize(protected)).log_softmax(1).mean()
        return self.weight * fooled + 1 - cosine_similarity(original, protected).mean()


def batches(rows, draw):
    """Rows, sessions and keys of 16 speakers at a time.

    Two sessions each, every other utterance.
    """
    while True:
        some = rows[torch.randperm(len(rows), generator=draw)[:SPEAKERS]]
        chosen = some[:, torch.randperm(some.shape[1], generator=draw)[:UTTERANCES]]
        sessions = 2 * torch.arange(len(chosen))[:, None] + torch.arange(UTTERANCES) % 2
        key = torch.randn(2 * len(chosen), KEY, generator=draw)
        yield chosen.flatten(), sessions.flatten(), key[sessions.flatten()]


def train(make_loss, is_keyed, original, speakers, rows, seed, steps=STEPS):
    """Return an anonymiser after some steps on the utterances of some of the speakers.

    ``rows`` have shape ``(S, U)``.
    """
    torch.manual_seed(seed)
    net, loss = Anonymiser(is_keyed, original.shape[1]), make_loss()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    source = batches(rows, torch.Generator().manual_seed(seed))
    for _ in range(steps):
        chosen, sessions, key = next(source)
        protected = net(original[chosen], key)
        optimiser.zero_grad()
        loss(
            original[chosen], protected, speakers[chosen], sessions if is_keyed else None
        ).backward()
        optimiser.step()
    return net


@torch.no_grad()
def speak(net, original, speakers, rows, draws, seed):
    """All utterances of some speakers, once for each draw of a key.

    Each speaker has as many draws.
    """
    draw, utterances, count = (
        torch.Generator().manual_seed(seed),
        rows.flatten(),
        int(speakers.max()) + 1,
    )
    said, names, parts = original[utterances], speakers[utterances], []
    for number in range(draws):
        key = torch.randn(count, KEY, generator=draw)[names]
        parts.append(
            [said.double(), net(said, key).double(), names, utterances, names + number * count]
        )
    return Speech(*(torch.cat(column).numpy() for column in zip(*parts, strict=True)))


def whitening(rows):
    """Mean, and a map that makes all directions alike."""
    white = power(np.cov(rows.T, bias=True), 1e-5, -0.5)
    return torch.tensor(rows.mean(0)).float(), torch.tensor(white).float()


def learn_to_undo(net, original, speakers, rows, evaluated, steps=1500):
    """What a network finds that learns to turn protected into original speech.

    Every step has new draws.
    """
    torch.manual_seed(0)
    known = speak(net, original, speakers, rows, 8, seed=3)
    (mean_p, white_p), (mean_o, white_o) = whitening(known.protected), whitening(known.original)
    attacker = nn.Sequential(nn.Linear(len(mean_o), 512), nn.GELU(), nn.Linear(512, len(mean_o)))
    optimiser = torch.optim.Adam(attacker.parameters(), lr=1e-3)
    source = batches(rows, torch.Generator().manual_seed(4))
    for _ in range(steps):
        chosen, _, key = next(source)
        said = original[chosen]
        with torch.no_grad():
            heard, truth = (net(said, key) - mean_p) @ white_p, normalize((said - mean_o) @ white_o)
        optimiser.zero_grad()
        scores = normalize(attacker(heard)) @ truth.T / 0.1
        cross_entropy(scores, torch.arange(len(chosen))).backward()  # which of the batch is it?
        optimiser.step()
    with torch.no_grad():
        heard = (
            attacker((torch.tensor(evaluated.protected).float() - mean_p) @ white_p)
            .double()
            .numpy()
        )
    truth = (evaluated.original - mean_o.double().numpy()) @ white_o.double().numpy()
    pairs, same = evaluated.trials_of_other_recordings()
    return two_sided((unit(heard) @ unit(truth).T)[pairs], same)


def measure(original, speakers, held_out):
    """For every system the means over random splits, ``(settings, columns)``.

    On the speakers held out.
    """
    count = int(speakers.max()) + 1
    adversaries = [
        lambda w=w: AdversarialClassification(w, count, original.shape[1]) for w in (0.3, 1.0, 3.0)
    ]
    systems = {  # whether there is a key, and the loss at a few settings; ours at its defaults
        "PseudonymisationLoss": (True, [PseudonymisationLoss]),
        "attacks in place of session invariance": (
            True,
            [lambda: PseudonymisationLoss(attacks=("batch", "past"), session_invariance=0)],
        ),
        "cosines and centring alone": (True, [lambda: PseudonymisationLoss(session_invariance=0)]),
        "adversarial classification": (True, adversaries),
        "PseudonymisationLoss, no key": (False, [PseudonymisationLoss]),
    }
    rows, results = torch.arange(len(speakers)).view(count, -1), {}
    print("setting   " + "  ".join(f"{name:>8s}" for name in COLUMNS))
    for name, (is_keyed, settings) in systems.items():
        values = np.empty((len(settings), SPLITS, len(COLUMNS)))
        for setting, make_loss in enumerate(settings):
            for seed in range(SPLITS):
                order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
                known, new = rows[order[held_out:]], rows[order[:held_out]]
                net = train(make_loss, is_keyed, original, speakers, known, seed)
                evaluated = speak(net, original, speakers, new, 2 if is_keyed else 1, seed=1)
                found = judge(
                    evaluated, speak(net, original, speakers, known, 8 if is_keyed else 1, seed=2)
                )
                found["learnt"] = learn_to_undo(net, original, speakers, known, evaluated)
                values[setting, seed] = [found[column] for column in COLUMNS]
        results[name] = values.mean(1)
        print(name)
        for setting, means in enumerate(results[name]):
            print(f"{setting:7d}   " + "  ".join(f"{value:8.3f}" for value in means), flush=True)
    return results


def draw(results, path):
    """What each attacker learns of each system: of several settings the one that hides best."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    best = np.array(
        [means[means[:, COLUMNS.index("watched")].argmin()] for means in results.values()]
    )
    for number, label in enumerate(ATTACKERS.values()):
        places = np.arange(len(best)) + 0.2 * number - 0.3
        axes.barh(places, best[:, number], height=0.18, label=label, color=COLOURS[number])
    axes.set_yticks(range(len(results)), list(results))
    axes.invert_yaxis()
    axes.set(
        xlim=(0, 0.75),
        xlabel="two-sided D_ECE of OP on speakers not used in training, bit (at most 0.72)",
    )
    axes.grid(axis="x", alpha=0.3)
    axes.legend(title="The attacker", fontsize=8, loc="upper right")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--voices", choices=("bundled", "gaussian"), default="bundled", help="whose voices"
    )
    parser.add_argument("--figure", help="where the figure goes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.voices == "bundled":
        found = measure(demo_voices().original, demo_voices().speakers, held_out=12)
    else:
        found = measure(*fading_voices(speakers=90, dtype=torch.float32)[:2], held_out=30)
    if arguments.figure:
        draw(found, arguments.figure)
