"""A thousand bootstrap replicates of speakers against as many evaluations, and torchmetrics' bootstrap of trials."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize
from torchmetrics.wrappers import BootStrapper

from bench.timing import in_turns, report
from vpmetrics import MinCllr
from vpmetrics.functional import bootstrap, zebra_disclosure

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def trials():
    """All pairs of original with protected utterances of 40 speakers x 20."""
    draw = torch.Generator().manual_seed(0)
    speakers = torch.arange(40).repeat_interleave(20)
    voices = 0.5 * torch.randn(40, 64, generator=draw)[speakers]
    original, protected = (normalize(voices + torch.randn(800, 64, generator=draw)) for _ in range(2))
    kept = ~torch.eye(800, dtype=torch.bool)
    rows, columns = (side[kept] for side in torch.meshgrid(speakers, speakers, indexing="ij"))
    return (original @ protected.T)[kept], rows == columns, (rows, columns)


def test_cost_of_a_thousand_replicates(trials):
    preds, target, speakers = trials

    def resample_trials():
        metric = BootStrapper(MinCllr(validate_args=False), num_bootstraps=10)
        metric.update(preds, target.long())
        return metric.compute()

    both = ["d_ece", "d_ece_reversed"]
    seconds = in_turns(
        {
            "zebra_disclosure": lambda: zebra_disclosure(preds, target, validate_args=False),
            "of it": lambda: bootstrap(preds, target, speakers, both, validate_args=False),
            "of all": lambda: bootstrap(preds, target, speakers, validate_args=False),
            "BootStrapper": resample_trials,
        },
        repeat=3,
    )
    once = seconds["zebra_disclosure"]
    report("a thousand of BootStrapper, of trials, one measure", 100 * seconds["BootStrapper"], "zebra", once)
    assert report("a thousand replicates of speakers", seconds["of it"], "zebra_disclosure", once) <= 60
    assert report("the same of seven measures", seconds["of all"], "zebra_disclosure", once) <= 60
