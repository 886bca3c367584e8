"""Synthetic voices and trials, and three systems that no equal error rate ranks."""

import numpy as np
import torch

UNDEFINED = "The result is NaN"


def people(seed=0, number=12, each=6, width=8, noise=1.0, dtype=torch.float64):
    """Original and protected embeddings of some people, and their speakers."""
    draw = torch.Generator().manual_seed(seed)
    speakers = torch.arange(number).repeat_interleave(each) * 7 - 20
    voices = torch.randn(number, width, generator=draw, dtype=dtype).repeat_interleave(each, 0)
    original = voices + noise * torch.randn(voices.shape, generator=draw, dtype=dtype)
    protected = voices + noise * torch.randn(voices.shape, generator=draw, dtype=dtype)
    return original, protected, speakers


def fading_voices(
    speakers=40, utterances=10, width=48, seed=0, within=1.1, falls=0.97, dtype=torch.float64
):
    """Gaussian voices whose dimensions matter less and less, and their speakers.

    The third result is the generator, for what comes next.
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
    """Original voices, and protected ones that keep some of them, for ``update``; float64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    names = torch.arange(speakers).repeat_interleave(utterances)
    voice_of_speaker, pseudo_voice_of_speaker = draw(2, speakers, 16)
    voice = voice_of_speaker[names]
    pseudo_voice = pseudo_voice_of_speaker[names]
    rows = {
        "original": voice + draw(len(names), 16),
        "protected": leak * voice + 0.6 * pseudo_voice + draw(len(names), 16),
        "speakers": names,
    }
    if sessions is not None:
        rows["sessions"] = torch.arange(len(names)) % sessions
    return rows


def trials(spread=0.6, speakers=6, utterances=4, seed=0, tied=False):
    """Scores of all pairs of two sides but a recording and itself, their labels and speakers."""
    draw = torch.Generator().manual_seed(seed)
    names = torch.randperm(speakers, generator=draw).repeat_interleave(utterances) * 3 - 7
    centre_of_speaker = spread * torch.randn(speakers, 8, generator=draw, dtype=torch.float64)
    centres = centre_of_speaker.repeat_interleave(utterances, 0)
    enrolment = centres + torch.randn(*centres.shape, generator=draw, dtype=torch.float64)
    test = centres + torch.randn(*centres.shape, generator=draw, dtype=torch.float64)
    is_trial = ~torch.eye(len(names), dtype=torch.bool)
    scores = (enrolment @ test.T)[is_trial]
    if tied:
        scores = scores.round()
    enrolment_names, test_names = torch.meshgrid(names, names, indexing="ij")
    speakers_of_trials = (enrolment_names[is_trial], test_names[is_trial])
    return scores, speakers_of_trials[0] == speakers_of_trials[1], speakers_of_trials


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
    rate_by_size = {}
    for key, value in values.items():
        size = key.removeprefix(prefix)
        if key.startswith(prefix) and size.isdigit():
            rate_by_size[int(size)] = value.item()
    return rate_by_size


def made_systems(number=200):
    """Three anonymisers that confuse single utterances equally often.

    Each has references and probes ``(2, S, 16, 64)``. A pseudo-voice that half of all people share;
    a key per session, that of the probes being another one; and noise of every utterance, which an
    attacker who has more of them averages away.
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
