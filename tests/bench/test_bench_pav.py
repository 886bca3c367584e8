"""Exact PAV against its peers and against the physical limit, a sort."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression as scipy_isotonic_regression
from torchmetrics.classification import BinaryROC

from bench.timing import in_turns, report
from vpmetrics import MinCllr, ZebraDisclosure
from vpmetrics.functional import isotonic_regression, min_cllr, pav_llr, zebra_disclosure

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def trials():
    draw = torch.Generator().manual_seed(0)
    targets, nontargets = 100_000, 10_000_000
    preds = torch.randn(targets + nontargets, generator=draw, dtype=torch.float64)
    preds[:targets] += 1.5
    order = torch.randperm(len(preds), generator=draw)
    return preds[order], order < targets


def test_cost_of_pav_on_ten_million_trials(trials):
    preds, target = trials
    array, labels = preds.numpy(), target.numpy().astype(np.float64)
    seconds = in_turns(
        {
            "peer": lambda: scipy_isotonic_regression(labels[np.argsort(array, kind="stable")]),
            "sort": lambda: np.sort(array),
            "min_cllr": lambda: min_cllr(preds, target),
            "zebra_disclosure": lambda: zebra_disclosure(preds, target),
            "pav_llr": lambda: pav_llr(preds, target),
        },
        repeat=3,
    )
    for name, most in (("min_cllr", 2.2), ("zebra_disclosure", 2.2), ("pav_llr", 4)):
        against_peer = report(name, seconds[name], "NumPy stable argsort + SciPy", seconds["peer"])
        against_sort = report(name, seconds[name], "numpy.sort", seconds["sort"])
        assert against_peer <= 1 / 8, name
        assert against_sort <= most, name


def test_adversarial_input_costs_no_more_than_random():
    size = 1_000_000
    random = torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ramp = torch.arange(size, dtype=torch.float64)
    crafted = {
        "one late drop, which pooling of runs takes a round per element for": torch.cat([ramp[1:], ramp[:1]]),
        "a staircase of such drops": (ramp % 1000).where(ramp % 1000 != 999, -ramp),
        "reversed": ramp.flip(0),
        "sorted": ramp,
    }
    seconds = in_turns({name: lambda y=y: isotonic_regression(y) for name, y in {"": random, **crafted}.items()}, 3)
    for name in crafted:
        assert report(name, seconds[name], "random", seconds[""]) <= 3


def test_update_against_torchmetrics():
    batches = [(torch.randn(4096), torch.rand(4096) < 0.1) for _ in range(200)]

    def run(metric):
        for preds, target in batches:
            metric.update(preds, target.long())
        metric.reset()

    ours, theirs = ZebraDisclosure(validate_args=False), BinaryROC(thresholds=None, validate_args=False)
    binned = MinCllr(thresholds=4096, validate_args=False)
    seconds = in_turns({"ours": lambda: run(ours), "binned": lambda: run(binned), "theirs": lambda: run(theirs)})
    report("update into 4096 bins", seconds["binned"], "BinaryROC.update", seconds["theirs"])
    assert report("update", seconds["ours"], "BinaryROC.update", seconds["theirs"]) <= 1.5
