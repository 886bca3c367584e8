"""Synthetic voices and trials, and three systems that no equal error rate ranks."""

import numpy as np
import torch

UNDEFINED = "The result is NaN"


def people(seed=0, number=12, each=6, width=8, noise=1.0, dtype=torch.float64):
    """Original and protected embeddings of some people, and their speakers."""
    draw = torch.Generator().manual_seed(seed)
    speakers = torch.arange(number).repeat_interleave(each) * 7 - 20
    voices = torch.randn(number, width, generator=draw, dtype=dtype).repeat_interleave(each, 0)
    original, protected = (
        voices + noise * torch.randn(voices.shape, generator=draw, dtype=dtype) for _ in range(2)
    )
    return original, protected, speakers


def fading_voices(
    speakers=40, utterances=10, width=48, seed=0, within=1.1, falls=0.97, dtype=torch.float64
):
    """Gaussian voices whose dimensions matter less and less, their speakers and the generator for
    what comes next.
    """
    draw = torch.Generator().manual_seed(seed)
    names = torch.arange(speakers).repeat_interleave(utterances)
    fall = falls ** torch.arange(width)
    own = torch.randn(speakers, width, generator=draw)[names] * fall.sqrt()
    noise = within * torch.randn(len(names), width, generator=draw) * fall.pow(0.25)
    return (own + noise).to(dtype), names, draw


def planted(seed, leak=0.8, number=40):
    """Forty people whose voices are hidden alike, but for one, of whose voice more is left."""
    draw = torch.Generator().manual_seed(seed)
    weak = int(torch.randint(number, (), generator=draw))
    speakers = torch.arange(number).repeat_interleave(6)
    voices = torch.randn(number, 32, generator=draw)[speakers]
    original = voices + torch.randn(voices.shape, generator=draw)
    kept = torch.where(speakers == weak, leak, 0.15)[:, None]
    return original, kept * voices + torch.randn(voices.shape, generator=draw), speakers, weak


def utterances(seed=0, rows=90, speakers=12, dtype=torch.float64, noise=1.0):
    """Originals, a noisier version of them, and speakers, some of whom have a single utterance."""
    draw = torch.Generator().manual_seed(seed)
    names = torch.randint(0, speakers, (rows,), generator=draw) * 3 - 5
    voices = torch.randn(3 * speakers, 8, generator=draw)
    original = voices[names + 5] + noise * torch.randn(rows, 8, generator=draw)
    protected = original + torch.randn(rows, 8, generator=draw)
    return original.to(dtype), protected.to(dtype), names


def voices(speakers=12, utterances=8, leak=0.4, seed=0, sessions=None):
    """Original voices, and protected ones that keep some of them, as arguments of ``update``;
    float64.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    who = torch.arange(speakers).repeat_interleave(utterances)
    mean, pseudo = draw(2, speakers, 16)
    rows = {
        "original": mean[who] + draw(len(who), 16),
        "protected": leak * mean[who] + 0.6 * pseudo[who] + draw(len(who), 16),
        "speakers": who,
    }
    return rows if sessions is None else {**rows, "sessions": torch.arange(len(who)) % sessions}


def trials(spread=0.6, speakers=6, utterances=4, seed=0, tied=False):
    """Scores of all pairs of protected with original utterances, without a recording and itself;
    labels; speakers.
    """
    draw = torch.Generator().manual_seed(seed)
    names = torch.randperm(speakers, generator=draw).repeat_interleave(utterances) * 3 - 7
    centres = spread * torch.randn(
        speakers, 8, generator=draw, dtype=torch.float64
    ).repeat_interleave(utterances, 0)
    sides = [
        centres + torch.randn(*centres.shape, generator=draw, dtype=torch.float64) for _ in range(2)
    ]
    kept = ~torch.eye(len(names), dtype=torch.bool)
    scores = (sides[0] @ sides[1].T)[kept]
    rows, columns = (side[kept] for side in torch.meshgrid(names, names, indexing="ij"))
    return scores.round() if tied else scores, rows == columns, (rows, columns)


def gaussians(targets, nontargets, distance=1.5, seed=0):
    """Scores N(distance, 1) and N(0, 1), targets first, and their labels; float64."""
    draw = torch.Generator().manual_seed(seed)
    preds = torch.randn(targets + nontargets, generator=draw, dtype=torch.float64)
    target = torch.arange(targets + nontargets) < targets
    return preds + distance * target, target


def singling_out_arguments(references, voices):
    """Arguments of singling out, where the first conversation of every speaker is tested."""
    counts = [len(voice) for voice in voices]
    return {
        "references": torch.tensor(np.stack(references)),
        "reference_speakers": torch.arange(len(references)),
        "conversations": torch.tensor(np.concatenate(voices)),
        "speakers": torch.arange(len(voices)).repeat_interleave(torch.tensor(counts)),
        "is_tested": torch.cat([torch.arange(count) == 0 for count in counts]),
    }


def rates(values, prefix="rate_"):
    """The rates among those values, by number of people."""
    return {
        int(n): v.item()
        for k, v in values.items()
        if k.startswith(prefix) and (n := k[len(prefix) :]).isdigit()
    }


def made_systems(number=200):
    """Three anonymisers that confuse single utterances equally often: references and probes ``(2,
    S, 16, 64)``.

    A pseudo-voice that half of all people share; a key per session, that of the probes being
    another one; and noise of every utterance, which an attacker who has more of them averages away.
    """
    draw = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, 64, generator=draw)

    shared = randn(2)[torch.arange(number) % 2].view(1, number, 1, 64)
    own = randn(1, number, 1)
    return {
        "shared pseudo-voice": shared + 0.3 * randn(2, number, 16),
        "key per session": own + 2.7 * randn(2, number, 1) + 0.3 * randn(2, number, 16),
        "noise per utterance": own + 2.85 * randn(2, number, 16),
    }
