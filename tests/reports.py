"""Reports of synthetic voices and trials, with what figures show."""

import torch
from samples import voices

from vpmetrics import VoicePrivacy
from vpmetrics._engine.trial_list import ScoredTrials, report_trials


def make_trials(seed, count=600, speakers=6, distance=2.0):
    draw = torch.Generator().manual_seed(seed)
    pairs = torch.randint(speakers, (2, count), generator=draw)
    is_target = pairs[0] == pairs[1]
    scores = torch.randn(count, generator=draw, dtype=torch.float64) + distance * is_target
    return ScoredTrials(scores, is_target, pairs)


def make_report(rows=None, **settings):
    metric = VoicePrivacy(**{"metrics": "all", "attacks": None} | settings)
    metric.update(**(voices() if rows is None else rows))
    return metric.report()


def score_report(*seeds, fit=None, **settings):
    """Return the report of made-up trials of OP, or of OO, OP and PP for several seeds."""
    names = ("OP",) if len(seeds) == 1 else ("OO", "OP", "PP")
    trials = {name: make_trials(seed) for name, seed in zip(names, seeds, strict=False)}
    return report_trials(trials, fit, **{"num_speakers": 6} | settings)
