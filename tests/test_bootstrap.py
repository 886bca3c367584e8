"""Intervals by drawing speakers: against trials really repeated, in every order, and refused where they say nothing."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import scipy.stats
import torch
from torch.testing import assert_close

from vpmetrics import functional as F
from vpmetrics._scores import weighted
from vpmetrics._scores.hull import thin
from vpmetrics._scores.measures import expected_disclosure
from vpmetrics._scores.steps import Steps
from vpmetrics._scores.weighted import MEASURES, sort_trials, values_under

SPREADS = {"weak": 0.3, "strong": 1.5, "nothing": 0.0, "tied": 0.6}


def trials(spread=0.6, speakers=6, utterances=4, seed=0, tied=False):
    """Scores of all pairs of protected with original utterances, but a recording and itself; labels; speakers."""
    draw = torch.Generator().manual_seed(seed)
    names = torch.randperm(speakers, generator=draw).repeat_interleave(utterances) * 3 - 7
    voices = spread * torch.randn(speakers, 8, generator=draw, dtype=torch.float64).repeat_interleave(utterances, 0)
    sides = [voices + torch.randn(*voices.shape, generator=draw, dtype=torch.float64) for _ in range(2)]
    kept = ~torch.eye(len(names), dtype=torch.bool)
    scores = (sides[0] @ sides[1].T)[kept]
    rows, columns = (side[kept] for side in torch.meshgrid(names, names, indexing="ij"))
    return scores.round() if tied else scores, rows == columns, (rows, columns)


def expected(preds, target, edges):
    """All measures by their definitions; the bins of linkability are given."""
    zebra = reference.zebra.zebra_disclosure(preds, target)
    p, q = (np.histogram(preds[target == label], edges)[0] for label in (1, 0))
    p, q = p / p.sum(), q / q.sum()
    return {
        "d_ece": zebra["d_ece"],
        "d_ece_reversed": zebra["d_ece_reversed"],
        "linkability": np.where(p > q, p * (p - q) / np.maximum(p + q, 1e-300), 0).sum(),
        **{
            name: getattr(reference.verification, name)(preds, target)
            for name in ("min_cllr", "cllr", "raw_equal_error_rate", "equal_error_rate")
        },
    }


@pytest.mark.parametrize("kind", SPREADS)
def test_a_weight_is_what_repeating_the_trials_of_a_speaker_comes_to(kind):
    preds, target, speakers = trials(SPREADS[kind], tied=kind == "tied")
    ordered = sort_trials(preds, target, speakers)
    drawn = torch.randint(6, (12, 6), generator=torch.Generator().manual_seed(1))
    weights = torch.zeros(12, 6).scatter_add(1, drawn, torch.ones(12, 6))
    values = values_under(ordered, weights, list(MEASURES))
    edges = np.linspace(preds.min(), preds.max(), int(target.sum()) // 10 + 1)
    for row, places in enumerate(drawn):
        names = ordered.speakers[places].tolist()
        again = reference.bootstrap.repeated(preds.tolist(), target.tolist(), [s.tolist() for s in speakers], names)
        by_hand = expected(again[0], again[1].astype(int), edges)
        for name, value in values.items():
            name = {"eer": "equal_error_rate", "raw_eer": "raw_equal_error_rate"}.get(name, name)
            assert value[row].item() == pytest.approx(by_hand[name], abs=1e-12), name


def test_values_are_those_of_the_functions():
    preds, target, speakers = trials()
    found = F.bootstrap(preds, target, speakers, replicates=2)
    zebra = F.zebra_disclosure(preds, target)
    own = {
        **{name: zebra[name] for name in ("d_ece", "d_ece_reversed")},
        "eer": F.equal_error_rate(preds, target),
        "raw_eer": F.raw_equal_error_rate(preds, target),
        **{name: getattr(F, name)(preds, target) for name in ("min_cllr", "cllr", "linkability")},
    }
    assert set(found) == set(own)
    for name, value in own.items():
        assert_close(found[name].value, value, atol=1e-12, rtol=0)


def test_intervals_follow_from_the_replicates():
    preds, target, speakers = trials()
    for name, (value, low, high, replicates) in F.bootstrap(preds, target, speakers, confidence=0.9).items():
        draws = replicates.numpy()[~np.isnan(replicates.numpy())]
        reach = scipy.stats.t.ppf(0.95, 5) * draws.std(ddof=1) * (6 / 5) ** 0.5
        ends = value.item() - (draws.mean() - value.item()) + np.array([-reach, reach])
        limits = {"eer": (0, 0.5), "cllr": (0, np.inf)}.get(name, (0, 0.7213475) if "d_ece" in name else (0, 1))
        np.testing.assert_allclose([low, high], ends.clip(*limits), atol=1e-6, err_msg=name)


def test_neither_order_nor_labels_nor_sides_show():
    preds, target, speakers = trials(tied=True)
    ours = F.bootstrap(preds, target, speakers, replicates=50)
    order = torch.randperm(len(preds), generator=torch.Generator().manual_seed(2))
    others = [
        F.bootstrap(preds[order], target[order], [side[order] for side in speakers], replicates=50),
        F.bootstrap(preds, target, [-5 * side for side in speakers], replicates=50),
        F.bootstrap(preds, target, speakers[::-1], replicates=50),
        F.bootstrap(
            preds.view(-1, 2), target.view(-1, 2).long(), [s.view(-1, 2).int() for s in speakers], replicates=50
        ),
    ]
    for other in others:
        for name in set(ours) - {"cllr"}:
            assert_close(other[name].replicates, ours[name].replicates, atol=0, rtol=0, equal_nan=True)
        assert_close(other["cllr"].replicates, ours["cllr"].replicates, atol=1e-12, rtol=0, equal_nan=True)


def test_a_seed_draws_the_same_and_another_seed_differently():
    preds, target, speakers = trials()
    one, again, other = (F.bootstrap(preds, target, speakers, ["eer"], 20, seed=seed)["eer"] for seed in (4, 4, 5))
    assert_close(one.replicates, again.replicates, atol=0, rtol=0)
    assert not torch.equal(one.replicates, other.replicates)


@pytest.mark.parametrize(("name", "size"), [("_AT_ONCE", 1), ("_EXACT", 0)])
def test_neither_pieces_nor_precision_of_sums_show(monkeypatch, name, size):
    preds, target, speakers = trials()
    whole = F.bootstrap(preds, target, speakers, replicates=9)
    monkeypatch.setattr(weighted, name, size)
    for measure, found in F.bootstrap(preds, target, speakers, replicates=9).items():
        assert_close(found.replicates, whole[measure].replicates, atol=1e-13, rtol=0)


@pytest.mark.parametrize("most", [1, 5])
def test_thinning_moves_no_block_of_pav(most):
    draw = torch.Generator().manual_seed(0)
    size = torch.arange(3000)
    chance = 0.2 + 0.6 * torch.stack([size / 3000, torch.full((3000,), 0.3), (size > 1000).float(), 1 - size / 3000])
    targets = torch.binomial(torch.full((4, 3000), float(most)), chance, generator=draw).double()
    nontargets = torch.randint(0, 3, (4, 3000), generator=draw).double()
    few = thin(Steps(torch.empty(0), targets, nontargets))
    assert few.targets.shape[1] < 700
    assert_close(few.targets.sum(1), targets.sum(1), atol=0, rtol=0)
    whole = expected_disclosure(Steps(torch.empty(0), targets, nontargets))
    assert_close(expected_disclosure(few), whole, atol=1e-13, rtol=0)


def test_replicates_of_one_speaker_alone_are_left_out():
    preds, target, speakers = trials(speakers=2)
    found = F.bootstrap(preds, target, speakers, ["d_ece"], replicates=200)["d_ece"]
    assert 60 < int(found.replicates.isnan().sum()) < 140
    assert bool(found.low <= found.value)
    assert bool(found.high.isfinite())


@pytest.mark.parametrize("kind", ["one speaker", "no trials", "NaN"])
def test_what_is_not_defined_is_nan_with_one_warning(kind):
    preds, target, speakers = trials(speakers=1 if kind == "one speaker" else 3)
    rows = slice(0) if kind == "no trials" else slice(None)
    if kind == "NaN":
        preds[3] = torch.nan
    with pytest.warns(UserWarning, match="The result is NaN") as warned:
        found = F.bootstrap(preds[rows], target[rows], [s[rows] for s in speakers], replicates=3, validate_args=False)
    assert len(warned) == 1
    assert all(bool(part.isnan().all()) for each in found.values() for part in each)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_results_are_of_the_type_of_the_scores(dtype):
    preds, target, speakers = trials()
    found = F.bootstrap(preds.to(dtype), target, speakers, replicates=3)
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    assert all(part.dtype == kind for each in found.values() for part in each)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"speakers": torch.zeros(2)}, TypeError, "`speakers` to be two tensors, of the enrolment and the probe side"),
        ({"speakers": [torch.zeros(4)] * 2}, TypeError, "`speakers of the enrolment side` to have an integer dtype"),
        ({"speakers": [torch.zeros(4).long(), torch.zeros(3).long()]}, ValueError, "probe side` to have shape"),
        ({"speakers": [torch.tensor([1, 1, 2, 2])] * 2}, ValueError, "2 of 4 trials are labelled otherwise"),
        ({"measures": ["l_w"]}, ValueError, "`measures` to be some of d_ece, d_ece_reversed"),
        ({"measures": "eer"}, TypeError, "`measures` to be a sequence of names"),
        ({"measures": []}, ValueError, "`measures` to be some of"),
        ({"replicates": 1}, ValueError, "`replicates` to be at least 2, but got 1"),
        ({"replicates": 2.0}, TypeError, "`replicates` to be a whole number"),
        ({"confidence": 95}, ValueError, "`confidence` to lie between 0 and 1, but got 95"),
        ({"confidence": "0.95"}, TypeError, "`confidence` to be a number"),
        ({"seed": 1.5}, TypeError, "`seed` to be a whole number"),
    ],
)
def test_refuses(change, error, match):
    given = {
        "preds": torch.tensor([0.0, 1.0, 2.0, 3.0]),
        "target": torch.tensor([0, 1, 0, 1]),
        "speakers": (torch.tensor([1, 1, 2, 2]), torch.tensor([2, 1, 1, 2])),
    }
    with pytest.raises(error, match=match):
        F.bootstrap(**{**given, **change})
