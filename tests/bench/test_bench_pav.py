"""Exact PAV and its smooth surrogate against packages people use today.

And against the physical limit, a sort.

``pip install lir scikit-learn`` first.
"""

import numpy as np
import pytest
import torch
from samples import gaussians
from scipy.optimize import isotonic_regression as scipy_isotonic_regression
from torchmetrics.classification import BinaryROC
from torchmetrics.functional.classification import binary_eer

from bench.timing import in_turns, ratio, report, simd_level
from vpmetrics import MinCllr, ZebraDisclosure
from vpmetrics.functional import (
    equal_error_rate,
    isotonic_regression,
    min_cllr,
    pav_llr,
    zebra_disclosure,
)

pytestmark = pytest.mark.bench


def shuffled(targets, nontargets):
    preds, target = gaussians(targets, nontargets)
    order = torch.randperm(len(preds), generator=torch.Generator().manual_seed(0))
    return preds[order], target[order]


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 2), (torch.float32, 3)])
def test_cost_of_pav_on_ten_million_trials(dtype, most):
    preds, target = shuffled(100_000, 10_000_000)
    preds = preds.to(dtype)
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
    for name, times_of_sort in (
        ("min_cllr", most),
        ("zebra_disclosure", most),
        ("pav_llr", 2 * most),
    ):
        assert (
            report(name, seconds[name], "NumPy stable argsort + SciPy", seconds["peer"]) <= 1 / 6
        ), name
        ratio_to_sort = report(f"{name}, {dtype}", seconds[name], "numpy.sort", seconds["sort"])
        if simd_level() == "AVX512":  # without it NumPy's sort is slower, and the ratio lower
            assert ratio_to_sort <= times_of_sort, name


def test_adversarial_input_costs_no_more_than_random():
    ramp = torch.arange(1_000_000, dtype=torch.float64)
    inputs = {
        "random": torch.rand(
            len(ramp), dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        ),
        "one late drop, which pooling of runs takes a round per element for": torch.cat(
            [ramp[1:], ramp[:1]]
        ),
        "a staircase of such drops": (ramp % 1000).where(ramp % 1000 != 999, -ramp),
        "reversed": ramp.flip(0),
        "sorted": ramp,
    }
    seconds = in_turns({name: lambda y=y: isotonic_regression(y) for name, y in inputs.items()}, 3)
    for name in list(inputs)[1:]:
        assert report(name, seconds[name], "random", seconds["random"]) <= 3


def test_update_against_torchmetrics():
    batches = [(torch.randn(4096), torch.rand(4096) < 0.1) for _ in range(200)]

    def run(metric):
        for preds, target in batches:
            metric.update(preds, target.long())
        metric.reset()

    ours, theirs = (
        ZebraDisclosure(validate_args=False),
        BinaryROC(thresholds=None, validate_args=False),
    )
    binned = MinCllr(thresholds=4096, validate_args=False)
    seconds = in_turns(
        {"ours": lambda: run(ours), "binned": lambda: run(binned), "theirs": lambda: run(theirs)}
    )
    report("update into 4096 bins", seconds["binned"], "BinaryROC.update", seconds["theirs"])
    assert report("update", seconds["ours"], "BinaryROC.update", seconds["theirs"]) <= 1.5


@pytest.fixture(scope="module")
def million():
    """A million trials in [0, 1], where torchmetrics leaves scores as they are."""
    preds, target = shuffled(20_000, 980_000)
    return preds.sigmoid(), target


def test_minimum_cllr_against_lir(million):
    lir, metrics = pytest.importorskip("lir"), pytest.importorskip("lir.metrics")
    data = lir.data.models.LLRData(
        features=million[0].numpy(), labels=million[1].numpy().astype(int)
    )
    assert (
        ratio(
            "min_cllr",
            lambda: min_cllr(*million),
            "lir.metrics.cllr_min",
            lambda: metrics.cllr_min(data),
            3,
        )
        < 1
    )
    assert min_cllr(*million).item() == pytest.approx(float(metrics.cllr_min(data)), abs=1e-6)


def test_calibration_against_scikit_learn(million):
    peer = pytest.importorskip("sklearn.isotonic").IsotonicRegression(out_of_bounds="clip")
    scores, labels = million[0].numpy(), million[1].numpy().astype(np.float64)

    def theirs():
        peer.fit(scores, labels).predict(scores)

    assert ratio("pav_llr", lambda: pav_llr(*million), "sklearn IsotonicRegression", theirs, 3) < 1


def test_equal_error_rate_against_torchmetrics(million):
    preds, target = million

    def peer():
        return binary_eer(preds, target.long())

    assert (
        ratio(
            "equal_error_rate",
            lambda: equal_error_rate(*million),
            "torchmetrics binary_eer",
            peer,
            3,
        )
        < 1
    )
    # The convex hull never lies above a sampled operating point, and a million trials sample it
    # finely.
    assert equal_error_rate(*million).item() == pytest.approx(peer().item(), abs=1e-3)


@pytest.mark.parametrize("bandwidth", [0.1, 0.02])
def test_surrogate_with_gradient_takes_no_longer_than_a_sort(bandwidth):
    preds, target = gaussians(100_000, 1_000_000, distance=1.0)
    preds = preds.float().requires_grad_()

    def surrogate():
        preds.grad = None
        min_cllr(preds, target, bandwidth, validate_args=False).backward()

    assert (
        ratio(
            f"bandwidth {bandwidth}",
            surrogate,
            "a sort",
            lambda: torch.sort(preds.detach()),
            repeat=9,
        )
        <= 1
    )
