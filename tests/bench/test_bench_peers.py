"""The same numbers from packages people use today, and how long they take: ``pip install lir scikit-learn`` first."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_eer

from bench.timing import in_turns, report
from vpmetrics.functional import equal_error_rate, min_cllr, pav_llr

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def trials():
    """A million trials in [0, 1], where torchmetrics leaves scores as they are."""
    draw = torch.Generator().manual_seed(0)
    target = torch.rand(1_000_000, generator=draw) < 0.02
    preds = (torch.randn(1_000_000, generator=draw, dtype=torch.float64) + 1.5 * target).sigmoid()
    return preds, target


def test_minimum_cllr_against_lir(trials):
    lir = pytest.importorskip("lir")
    metrics = pytest.importorskip("lir.metrics")
    preds, target = trials
    data = lir.data.models.LLRData(features=preds.numpy(), labels=target.numpy().astype(int))
    seconds = in_turns({"ours": lambda: min_cllr(preds, target), "lir": lambda: metrics.cllr_min(data)}, 3)
    report("min_cllr, 1e6 trials", seconds["ours"], "lir.metrics.cllr_min", seconds["lir"])
    assert min_cllr(preds, target).item() == pytest.approx(float(metrics.cllr_min(data)), abs=1e-6)
    assert seconds["ours"] < seconds["lir"]


def test_calibration_against_scikit_learn(trials):
    isotonic = pytest.importorskip("sklearn.isotonic")
    preds, target = trials
    scores, labels = preds.numpy(), target.numpy().astype(np.float64)
    peer = isotonic.IsotonicRegression(out_of_bounds="clip")
    seconds = in_turns(
        {"ours": lambda: pav_llr(preds, target), "peer": lambda: peer.fit(scores, labels).predict(scores)}, 3
    )
    report("pav_llr, 1e6 trials", seconds["ours"], "sklearn IsotonicRegression", seconds["peer"])
    assert seconds["ours"] < seconds["peer"]


def test_equal_error_rate_against_torchmetrics(trials):
    preds, target = trials
    seconds = in_turns(
        {"ours": lambda: equal_error_rate(preds, target), "peer": lambda: binary_eer(preds, target.long())}, 3
    )
    report("equal_error_rate, 1e6 trials", seconds["ours"], "torchmetrics binary_eer", seconds["peer"])
    # The convex hull never lies above a sampled operating point, and a million trials sample it finely.
    assert equal_error_rate(preds, target).item() == pytest.approx(binary_eer(preds, target.long()).item(), abs=1e-3)
    assert seconds["ours"] < seconds["peer"]
