"""A thousand bootstrap replicates of speakers against as many evaluations, and torchmetrics' bootstrap of trials."""

import pytest
from samples import trials
from torchmetrics.wrappers import BootStrapper

from bench.timing import in_turns, report
from vpmetrics import MinCllr
from vpmetrics.functional import bootstrap, zebra_disclosure


@pytest.mark.bench
def test_cost_of_a_thousand_replicates():
    preds, target, speakers = trials(0.5, speakers=40, utterances=20)

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
