"""Made people, the corpus that the peer's package makes, and three systems no equal error rate ranks."""

from __future__ import annotations

import torch
from legal_eval import demo

UNDEFINED = "The result is NaN"


def people(seed=0, number=12, each=6, width=8, noise=1.0, dtype=torch.float64):
    """Original and protected embeddings of some people, and whose each is."""
    draw = torch.Generator().manual_seed(seed)
    speakers = torch.arange(number).repeat_interleave(each) * 7 - 20
    voices = torch.randn(number, width, generator=draw, dtype=dtype).repeat_interleave(each, 0)
    original, protected = (voices + noise * torch.randn(voices.shape, generator=draw, dtype=dtype) for _ in range(2))
    return original, protected, speakers


def demo_corpus(number=60, each=12, anonymised=True):
    """The peer's own made corpus: half of everybody's utterances to enrol, half to test."""
    spk2utt, embeddings = demo.synthetic_corpus(number, each)
    enrolled, tested = demo.split_corpus(spk2utt, each // 2)
    return enrolled, tested, demo.simulate_anonymization(embeddings, 0.4) if anonymised else embeddings


def rates(values, prefix="rate_"):
    return {int(n): v.item() for k, v in values.items() if k.startswith(prefix) and (n := k[len(prefix) :]).isdigit()}


def fed(metric, protected, speakers, batches=1, **columns):
    for rows in torch.arange(len(speakers)).chunk(batches):
        metric.update(protected=protected[rows], speakers=speakers[rows], **{k: c[rows] for k, c in columns.items()})
    return metric.compute()


def made_systems(number=200, each=16, width=64):
    """Three anonymisers that confuse single utterances equally often: references, probes, and whose each is.

    A pseudo-voice that half of all people share; a key per session, that of the probes being another one; and noise
    that every utterance has anew, which an attacker who hears more averages away.
    """
    draw = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, width, generator=draw)

    shared = randn(2)[torch.arange(number) % 2].view(1, number, 1, width)
    voices = randn(1, number, 1)
    return {
        "shared pseudo-voice": shared + 0.3 * randn(2, number, each),
        "key per session": voices + 2.7 * randn(2, number, 1) + 0.3 * randn(2, number, each),
        "noise per utterance": voices + 2.85 * randn(2, number, each),
    }
