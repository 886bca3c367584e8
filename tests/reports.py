"""Reports of synthetic voices and trials, with what figures show."""

from functools import partial

import torch
from samples import voices

from vpmetrics import VoicePrivacy
from vpmetrics.report.trial_report import ScoredTrials, report_trials

Everything = partial(VoicePrivacy, metrics="all", attacks=None)


def make_trials(seed, count=600, speakers=6, distance=2.0):
    draw = torch.Generator().manual_seed(seed)
    pairs = torch.randint(speakers, (2, count), generator=draw)
    is_target = pairs[0] == pairs[1]
    scores = torch.randn(count, generator=draw, dtype=torch.float64) + distance * is_target
    return ScoredTrials(scores, is_target, pairs)


def compute(metric, *rows, **columns):
    """Return the value of a metric after one batch."""
    metric.update(*rows, **columns)
    return metric.compute()


def make_report(rows=None, **settings):
    """Return the report of rows, a dictionary or a tuple: all scalars, by default no attacks."""
    metric = Everything(**settings)
    if rows is None:
        rows = voices()
    if isinstance(rows, dict):
        metric.update(**rows)
    else:
        metric.update(*rows)
    return metric.report()


def score_report(*seeds, fit=None, **settings):
    """Return the report of made-up trials of OP, or of OO, OP and PP for several seeds."""
    conditions = ("OO", "OP", "PP")
    if len(seeds) == 1:
        conditions = ("OP",)
    trials = {name: make_trials(seed) for name, seed in zip(conditions, seeds, strict=False)}
    return report_trials(trials, fit, **{"num_speakers": 6} | settings)


def assert_replicates(report, without_each, coarse):
    """Compare the changes of the jackknife with reports without each of the speakers.

    That is, with their scalars.

    Bins of linkability and slopes of local information stay as they are with all speakers, and tied
    scores stay tied: keys with a ``coarse`` name in them may differ to first order, all others to
    second order.
    """
    for key, change in report.jackknife.changes.items():
        # A report of fewer speakers draws other conversations; replicates leave speakers out of the
        # same ones.
        if report.scalars[key].isnan() or "conversation" in key:
            continue
        expected = torch.stack([values[key] - report.scalars[key] for values in without_each])
        share = 0.15
        offset = 2e-3
        if any(name in key for name in coarse):
            share = 1.0
            offset = 5e-3
        spread = (expected - expected.mean()).square().mean().sqrt()
        allowed = share * spread + 0.003 * abs(report.scalars[key]) + offset
        assert (change - expected).square().mean().sqrt() <= allowed, key
