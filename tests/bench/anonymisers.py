"""Anonymisers trained on the bundled voices: ours beside two things people do, at the same budget.

A residual network that maps an original embedding to a protected one is trained by Adam (1e-3) for 300 steps of 16
speakers with 8 utterances each, and judged by the exact D_ECE of OP (in both directions) and of PP, on speakers it was
trained on and on speakers it never saw. Splits are random (12 of 37 speakers held out) or by speech synthesiser.

    python tests/bench/anonymisers.py --splits 6 --figure anonymisers.png

The judge shares no code with the training: NumPy scores and SciPy's isotonic regression.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import isotonic_regression
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from vpmetrics.data import DemoVoices, demo_voices
from vpmetrics.losses import PseudonymisationLoss

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
STEPS, SPEAKERS, UTTERANCES = 300, 16, 8
ENGINES = (("espeak-ng",), ("rhvoice",), ("festival", "flite", "pico"))


class Anonymiser(nn.Module):
    """A small residual network."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.change = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings + self.change(embeddings)


class AdversarialClassification(nn.Module):
    """A classifier learns who spoke; the anonymiser learns to fool it and to stay near the original."""

    def __init__(self, speakers: int, weight: float, width: int = 256) -> None:
        super().__init__()
        self.weight = weight
        self.classifier = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, speakers))
        self.optimiser = torch.optim.Adam(self.classifier.parameters(), lr=1e-3)

    def forward(self, original: Tensor, protected: Tensor, speakers: Tensor) -> Tensor:
        for _ in range(3):  # the adversary needs a head start
            self.optimiser.zero_grad()
            cross_entropy(self.classifier(10 * normalize(protected.detach())), speakers).backward()
            self.optimiser.step()
        # Towards a classifier that knows nothing: all speakers equally likely.
        fooled = -self.classifier(10 * normalize(protected)).log_softmax(1).mean()
        return self.weight * fooled + 1 - cosine_similarity(original, protected).mean()


class CosinePushAway(nn.Module):
    """Every protected embedding is pushed away from its original, up to a margin."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, original: Tensor, protected: Tensor, speakers: Tensor) -> Tensor:  # noqa: ARG002
        return (cosine_similarity(original, protected) - self.margin).clamp(min=0).mean()


def train(loss: Loss, voices: DemoVoices, speakers: Tensor, seed: int) -> Anonymiser:
    """An anonymiser after 300 steps."""
    torch.manual_seed(seed)
    net, draw = Anonymiser(), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    rows = {int(name): (voices.speakers == name).nonzero()[:, 0] for name in speakers}
    for _ in range(STEPS):
        some = speakers[torch.randperm(len(speakers), generator=draw)[:SPEAKERS]].tolist()
        batch = torch.cat([rows[k][torch.randperm(len(rows[k]), generator=draw)[:UTTERANCES]] for k in some])
        optimiser.zero_grad()
        loss(voices.original[batch], net(voices.original[batch]), voices.speakers[batch]).backward()
        optimiser.step()
    return net


def judge(net: Anonymiser, voices: DemoVoices, speakers: Tensor) -> tuple[float, float, float, float]:
    """Exact D_ECE of OP, of OP reversed, of PP, and of OP with both sides centred (in its worse direction)."""
    kept = torch.isin(voices.speakers, speakers)
    with torch.no_grad():
        original, protected = voices.original[kept], net(voices.original[kept])
    names = voices.speakers[kept].numpy()
    first, second = (unit(side.double().numpy()) for side in (original, protected))
    centred = unit(first - first.mean(0)) @ unit(second - second.mean(0)).T
    same, other, above = names[:, None] == names, ~np.eye(len(names), dtype=bool), np.triu_indices(len(names), 1)
    between, within = first @ second.T, second @ second.T
    return (
        d_ece(between[other], same[other]),
        d_ece(-between[other], same[other]),
        d_ece(within[above], same[above]),
        max(d_ece(centred[other], same[other]), d_ece(-centred[other], same[other])),
    )


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def d_ece(scores: np.ndarray, same: np.ndarray) -> float:
    """D_ECE in bits of scores calibrated by PAV, equal scores pooled first."""
    _, place = np.unique(scores, return_inverse=True)
    trials, targets = np.bincount(place), np.bincount(place, same)
    share = isotonic_regression(targets / trials, weights=trials).x
    prior = same.mean()
    with np.errstate(divide="ignore"):
        llr = np.log(share) - np.log1p(-share) - math.log(prior / (1 - prior))
    of_targets, of_nontargets = targets > 0, targets < trials
    bits = np.average(z(llr[of_targets]), weights=targets[of_targets])
    bits += np.average(z(-llr[of_nontargets]), weights=(trials - targets)[of_nontargets])
    return float(bits) / (2 * math.log(2))


def z(llr: np.ndarray) -> np.ndarray:
    """Evidence of a log-likelihood ratio (eq. 13 of Noé et al., 2022)."""
    near = np.abs(llr) < 1e-3
    x, small = np.where(near, 1, np.minimum(llr, 300)), np.where(near, llr, 0)
    return np.where(near, small / 3 - small**2 / 12, 0.5 + (x - np.expm1(x)) / np.expm1(x) ** 2)


def splits(voices: DemoVoices, random: int) -> list[tuple[str, Tensor, Tensor]]:
    """Kind of split, speakers trained on, speakers held out."""
    everyone, found = torch.arange(37), []
    for seed in range(random):
        order = torch.randperm(37, generator=torch.Generator().manual_seed(seed))
        found.append(("random", order[12:], order[:12]))
    for engines in ENGINES:
        held = torch.tensor([name.split(":")[0] in engines for name in voices.speaker_names])
        found.append(("engine", everyone[~held], everyone[held]))
    return found


def systems() -> dict[str, list[Callable[[], Loss]]]:
    """What is compared: each with a few settings, ours at its defaults."""
    return {
        "PseudonymisationLoss": [PseudonymisationLoss],
        "adversarial classification": [
            lambda w=w: AdversarialClassification(37, w)
            for w in (0.1, 0.3, 1.0, 3.0, 10.0)  # type: ignore[misc]
        ],
        "cosine push-away": [
            lambda m=m: CosinePushAway(m)
            for m in (0.75, 0.5, 0.25, 0.0, -1.0)  # type: ignore[misc]
        ],
    }


def measure(voices: DemoVoices, random: int) -> dict[str, np.ndarray]:
    """For every system ``(settings, splits, 2, 4)``: speakers trained on and held out; what :func:`judge` returns."""
    results = {}
    for name, settings in systems().items():
        rows, start = [], time.perf_counter()
        for make in settings:
            nets = [train(make(), voices, known, seed) for seed, (_, known, _) in enumerate(splits(voices, random))]
            pairs = zip(nets, splits(voices, random), strict=True)
            rows.append([[judge(net, voices, known), judge(net, voices, new)] for net, (_, known, new) in pairs])
        results[name] = np.array(rows)
        print(f"{name}: {time.perf_counter() - start:.0f} s")
        report(results[name], random)
    return results


def report(values: np.ndarray, random: int) -> None:
    """Means, and the worst split, in a table."""
    print("  setting  speakers        OP  reversed     PP   centred    worst OP, least PP")
    for setting, rows in enumerate(values):
        for who, part in (
            ("trained", rows[:, 0]),
            ("unseen", rows[:random, 1]),
            ("other engine", rows[random:, 1]),
        ):
            op, turned, pp, centred = part.mean(0)
            worst = f"{part[:, :2].max():.4f}, {part[:, 2].min():.3f}"
            print(f"  {setting:7d}  {who:12s}  {op:.4f}    {turned:.4f}  {pp:.3f}    {centred:.3f}    {worst}")


def draw(results: dict[str, np.ndarray], path: Path) -> None:
    """OP, as scored and after subtracting means, against PP: means over all splits, filled for unseen speakers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for (name, values), marker, colour in zip(results.items(), "*os", ("C0", "C1", "C2"), strict=True):
        size = 15 if marker == "*" else 7
        for who, (fill, label) in enumerate([("none", f"{name}, trained on"), (colour, f"{name}, unseen")]):
            means = values[:, :, who].mean(1)
            look = {"color": colour, "marker": marker, "markersize": size, "markerfacecolor": fill, "linestyle": ":"}
            panels[0].plot(means[:, :2].max(1), means[:, 2], label=label, **look)
            panels[1].plot(means[:, 3], means[:, 2], **look)
    for axes, attacker in zip(panels, ("cosine scores", "cosine scores after subtracting means"), strict=True):
        axes.plot(0.71, 0.71, "kx", label="unprotected")
        axes.set(xlim=(-0.02, 0.75), ylim=(-0.02, 0.75), title=f"Attacker: {attacker}")
        axes.set_xlabel("D_ECE of OP, worse direction [bit], lower is better")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("D_ECE of PP [bit], higher is better")
    panels[0].legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Train, judge, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=6, help="random splits, beside the three by synthesiser")
    parser.add_argument("--figure", type=Path, default=None, help="where the figure goes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = measure(demo_voices(), arguments.splits)
    if arguments.figure:
        draw(results, arguments.figure)


if __name__ == "__main__":
    main()
