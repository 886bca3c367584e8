"""Systems that leak, private ones and absurd ones.

And how often the verdict is right about them.

Run as ``python tests/bench/verdict_systems.py safety|small|private|absurd|coverage [number] [first
seed]``; each prints a table.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vpmetrics import VoicePrivacy
from vpmetrics._scores.condition_scores import collect_trial_scores
from vpmetrics._scores.measures import found_among_of_steps

FRESH_SPEAKERS = 1000
ENROLLED = 10
_SETS_OF_MANY = 6  # of which the mean is the truth that intervals should hold


class Geometry(NamedTuple):
    """How original voices are drawn.

    ``(speakers, utterances, generator) -> embeddings, speakers``.
    """

    name: str
    draw: Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]


def isotropic(
    speakers: int, utterances: int, draw: torch.Generator, width: int = 192
) -> tuple[Tensor, Tensor]:
    """Voices and utterances vary alike in all directions."""
    names = torch.arange(speakers).repeat_interleave(utterances)
    voices = torch.randn(speakers, width, generator=draw)[names]
    return voices + torch.randn(len(names), width, generator=draw), names


def anisotropic(
    speakers: int, utterances: int, draw: torch.Generator, width: int = 512
) -> tuple[Tensor, Tensor]:
    """Few directions matter, and one vector dominates all embeddings."""
    names = torch.arange(speakers).repeat_interleave(utterances)
    fall = 0.98 ** torch.arange(width)
    voices = torch.randn(speakers, width, generator=draw)[names] * fall.sqrt()
    within = torch.randn(len(names), width, generator=draw) * fall.pow(0.25)
    common = torch.randn(1, width, generator=torch.Generator().manual_seed(1)) * 3
    return voices + within + common, names


def positive(
    speakers: int, utterances: int, draw: torch.Generator, width: int = 256
) -> tuple[Tensor, Tensor]:
    """Embeddings of unit length without negative entries.

    As of networks that end in a rectifier.
    """
    embeddings, names = isotropic(speakers, utterances, draw, width)
    return normalize(embeddings.relu(), dim=1), names


GEOMETRIES = (
    Geometry("isotropic 48", lambda *sizes: isotropic(*sizes, width=48)),
    Geometry("isotropic 192", isotropic),
    Geometry("anisotropic 512", anisotropic),
    Geometry("positive unit 256", positive),
)


def noise_like(original: Tensor, draw: torch.Generator) -> Tensor:
    """Return noise with the mean and the deviation of the originals in every dimension."""
    return original.mean(0) + original.std(0) * torch.randn(original.shape, generator=draw)


def add_noise(deviations: float) -> Callable[[Tensor, Tensor, torch.Generator], Tensor]:
    """Return a system that adds noise of so many deviations."""

    def protect(original: Tensor, names: Tensor, draw: torch.Generator) -> Tensor:  # noqa: ARG001
        return original + deviations * original.std(0) * torch.randn(original.shape, generator=draw)

    return protect


def leave_utterances(every: int) -> Callable[[Tensor, Tensor, torch.Generator], Tensor]:
    """Return a system that releases one utterance in so many as it is, and else noise."""

    def protect(original: Tensor, names: Tensor, draw: torch.Generator) -> Tensor:
        is_left = torch.randint(every, (len(names),), generator=draw) == 0
        return torch.where(is_left[:, None], original, noise_like(original, draw))

    return protect


def leave_speakers(every: int) -> Callable[[Tensor, Tensor, torch.Generator], Tensor]:
    """Return a system that releases all speech of one speaker in so many as it is.

    All other speech is noise.
    """

    def protect(original: Tensor, names: Tensor, draw: torch.Generator) -> Tensor:
        is_left = names % every == 0
        return torch.where(is_left[:, None], original, noise_like(original, draw))

    return protect


def rotate_and_add_noise(deviations: float) -> Callable[[Tensor, Tensor, torch.Generator], Tensor]:
    """Return a system that rotates embeddings and adds noise."""

    def protect(original: Tensor, names: Tensor, draw: torch.Generator) -> Tensor:
        rotation = torch.linalg.qr(
            torch.randn(2 * (original.shape[1],), generator=torch.Generator().manual_seed(9))
        )[0]
        return add_noise(deviations)(original @ rotation, names, draw)

    return protect


def make_private(kind: str) -> Callable[[Tensor, Tensor, torch.Generator], Tensor]:
    """Return a private system: noise per utterance, or one voice for all with little noise."""

    def protect(original: Tensor, names: Tensor, draw: torch.Generator) -> Tensor:  # noqa: ARG001
        if kind == "one voice":
            return original[:1] + 0.3 * original.std(0) * torch.randn(
                original.shape, generator=draw
            )
        return noise_like(original, draw)

    return protect


def leaking_systems(
    seed: int,
) -> Iterator[tuple[str, Callable[[Tensor, Tensor, torch.Generator], Tensor]]]:
    """Yield leaking systems, with strengths that follow from the seed."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        deviations = 8 + 22 * float(torch.rand((), generator=draw))
        yield f"noise {deviations:.0f}", add_noise(deviations)
        every = int(torch.randint(5, 21, (), generator=draw))
        yield f"1 utterance in {every} left", leave_utterances(every)
        every = int(torch.randint(10, 41, (), generator=draw))
        yield f"1 speaker in {every} left", leave_speakers(every)
        deviations = 2 + 6 * float(torch.rand((), generator=draw))
        yield f"rotation, noise {deviations:.0f}", rotate_and_add_noise(deviations)


def evaluate(original: Tensor, protected: Tensor, names: Tensor, **columns: Tensor):
    """Return the report of a system."""
    metric = VoicePrivacy()
    metric.update(original, protected, names, **columns)
    return metric.report()


def true_rate(
    geometry: Geometry,
    protect: Callable[[Tensor, Tensor, torch.Generator], Tensor],
    length: int,
    seed: int,
) -> float:
    """Return how often one of 100 people is found by ``length`` utterances, of fresh speakers.

    The attacker has ten original utterances of each, and their own originals as they sound after
    protection without noise: a least-squares map from protected to original speech of as many other
    people.
    """
    draw = torch.Generator().manual_seed(seed)
    original, names = geometry.draw(FRESH_SPEAKERS, ENROLLED + length, draw)
    protected = protect(original, names, draw)
    place = torch.arange(len(names)) % (ENROLLED + length)
    is_enrolled = place < ENROLLED
    taught, taught_names = geometry.draw(FRESH_SPEAKERS, 4, draw)
    taught_protected = protect(taught, taught_names, draw)
    centre, centre_protected = taught.mean(0), taught_protected.mean(0)
    x, y = taught_protected - centre_protected, taught - centre
    gram = x.T @ x
    ridge = 0.01 * gram.diagonal().mean() * torch.eye(len(gram))
    back = torch.linalg.solve(gram + ridge, x.T @ y)
    rates = []
    for map_back in (False, True):
        tests = protected[~is_enrolled] - centre_protected
        tests = tests @ back if map_back else tests
        tests = normalize(tests, dim=1).view(FRESH_SPEAKERS, length, -1).mean(1)
        known = (original[is_enrolled] - centre).view(FRESH_SPEAKERS, ENROLLED, -1).mean(1)
        scores = normalize(known, dim=1) @ normalize(tests, dim=1).T
        is_target = torch.eye(FRESH_SPEAKERS, dtype=torch.bool)
        steps = collect_trial_scores(scores.flatten(), is_target.flatten()).counts.ascending
        rates.append(float(found_among_of_steps(steps)))
    return max(rates)


def named_length(sentence: str) -> int:
    """Return the number of utterances that a low verdict names."""
    digits = [int(word) for word in sentence.split(";")[0].split() if word.isdigit()]
    return digits[0] if digits else 1


def run_safety(number: int, first_seed: int, geometry_of_all: Geometry | None = None) -> None:
    """Print how leaking systems are judged, and how many of those called low are not."""
    verdicts: Counter[str] = Counter()
    unsafe = 0
    systems = leaking_systems(first_seed)
    for index in range(number):
        name, protect = next(systems)
        geometry = (
            GEOMETRIES[index // 4 % len(GEOMETRIES)] if geometry_of_all is None else geometry_of_all
        )
        draw = torch.Generator().manual_seed(1000 + first_seed + index)
        original, names = geometry.draw(30, 10, draw)
        report = evaluate(original, protect(original, names, draw), names)
        level = report.headline.level
        verdicts[level] += 1
        line = f"{geometry.name:18} {name:24} {level:13}"
        if level == "low":
            length = named_length(report.headline.verdict)
            found = true_rate(geometry, protect, length, first_seed + index)
            at_thirty = true_rate(geometry, protect, 30, first_seed + index)
            unsafe += found > 0.05
            line += f" named {length}: found {found:.3f}; by 30: {at_thirty:.3f}"
        print(line, flush=True)
    print(dict(verdicts), f"low but more than 5 times chance: {unsafe} of {number}")


def run_private(number: int, first_seed: int) -> None:
    """Print how private systems of several sizes are judged."""
    for speakers in (6, 12, 30, 100):
        for utterances in (2, 3, 5, 10):
            verdicts: Counter[str] = Counter()
            for index in range(number):
                draw = torch.Generator().manual_seed(first_seed + index)
                original, names = isotropic(speakers, utterances, draw, width=48)
                kind = ("noise", "one voice")[index % 2]
                headline = evaluate(
                    original, make_private(kind)(original, names, draw), names
                ).headline
                verdicts[headline.level] += 1
                verdicts["named"] += headline.is_speaker_exposed
            print(speakers, utterances, dict(verdicts), flush=True)


def run_absurd(number: int, first_seed: int) -> None:
    """Print the verdicts on absurd systems, on several geometries and numbers of speakers."""
    systems = {
        "nothing is done": lambda original, *_: original,
        "negated": lambda original, *_: -original,
        "rotated": rotate_and_add_noise(0.0),
        "one constant voice": lambda original, *_: original[:1].expand_as(original).clone(),
        "one voice and noise": make_private("one voice"),
        "noise": make_private("noise"),
        "one voice per speaker": lambda original, names, draw: noise_like(original, draw)[names],
        "one speaker left": lambda original, names, draw: leave_speakers(len(names))(
            original, names, draw
        ),
    }
    for geometry in GEOMETRIES[1:]:
        for speakers in (6, 12, 30)[:number]:
            draw = torch.Generator().manual_seed(first_seed)
            original, names = geometry.draw(speakers, 10, draw)
            for name, protect in systems.items():
                headline = evaluate(original, protect(original, names, draw), names).headline
                verdict = "no verdict" if headline is None else str(headline)
                print(f"{geometry.name:18} {speakers:3} {name:24} {verdict}", flush=True)


def run_coverage(number: int, first_seed: int) -> None:
    """Print how often intervals hold the value of many speakers, with misses on both sides."""
    geometry = GEOMETRIES[0]
    keys = ("disclosure", "disclosure_conversation", "found_in_100")
    for deviations in (1.0, 2.5, 5.0, 8.0):
        # One set of 300 voices misses the truth by half of a deviation of thirty voices.
        sums: Counter[str] = Counter()
        for seed in range(_SETS_OF_MANY):
            draw = torch.Generator().manual_seed(700 + seed)
            original, names = geometry.draw(300, 10, draw)
            many = VoicePrivacy(attacks=None, metrics=list(keys))
            many.update(original, add_noise(deviations)(original, names, draw), names)
            sums.update({key: float(value) for key, value in many.compute().items()})
        truth = {key: sums[key] / _SETS_OF_MANY for key in keys}
        missed: Counter[str] = Counter()
        for index in range(number):
            draw = torch.Generator().manual_seed(first_seed + index)
            original, names = geometry.draw(30, 10, draw)
            metric = VoicePrivacy(attacks=None, intervals=0.95, metrics=list(keys))
            metric.update(original, add_noise(deviations)(original, names, draw), names)
            values = metric.compute()
            for key in keys:
                missed[f"{key} too low"] += float(values[f"{key}_high"]) < truth[key]
                missed[f"{key} too high"] += float(values[f"{key}_low"]) > truth[key]
        print(
            deviations,
            {key: round(value, 3) for key, value in truth.items()},
            dict(missed),
            f"of {number}",
            flush=True,
        )


def run_safety_of_small_embeddings(number: int, first_seed: int) -> None:
    """Print what :func:`run_safety` prints, of embeddings of 48 dimensions.

    They take less time.
    """
    run_safety(number, first_seed, GEOMETRIES[0])


RUNS = {
    "safety": run_safety,
    "small": run_safety_of_small_embeddings,
    "private": run_private,
    "absurd": run_absurd,
    "coverage": run_coverage,
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    number_of_runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    RUNS[sys.argv[1]](number_of_runs, int(sys.argv[3]) if len(sys.argv) > 3 else 0)
