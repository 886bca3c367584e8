"""Intervals by drawing speakers: against trials and voices really repeated, in every order, and thin data."""

import math
import sys
from functools import partial

import numpy as np
import pytest
import reference
import scipy.stats
import torch
from reports import make_report
from samples import UNDEFINED, trials, utterances
from torch.testing import assert_close

from vpmetrics import functional as F
from vpmetrics.functional.bootstrap import MEASURES

voices = partial(utterances, rows=24, speakers=6)
implementation = sys.modules["vpmetrics.functional.bootstrap"]  # its function has the same name
EVERYTHING = implementation.EMBEDDING_MEASURES


@pytest.fixture
def drawn(monkeypatch):
    """Places of the six speakers of each of eight replicates, which are drawn from now on."""
    places = torch.randint(6, (8, 6), generator=torch.Generator().manual_seed(3))
    weights = torch.stack([torch.ones(6).long(), *(row.bincount(minlength=6) for row in places)]).double()
    monkeypatch.setattr(implementation, "_draw_weights", lambda *_: weights)
    return places


@pytest.mark.parametrize(("spread", "tied"), [(0.3, False), (1.5, False), (0.0, False), (0.6, True)])
def test_replicates_equal_repeated_trials_of_a_speaker(spread, tied, drawn):
    preds, target, speakers = trials(spread, tied=tied)
    found = F.bootstrap(preds, target, speakers, replicates=8)
    edges = np.linspace(preds.min(), preds.max(), int(target.sum()) // 10 + 1)
    given = preds.tolist(), target.tolist(), [side.tolist() for side in speakers]
    for row, places in enumerate(drawn):
        scores, again = reference.bootstrap.repeated(*given, speakers[0].unique()[places].tolist())
        by_hand = reference.bootstrap.measures(scores, again.astype(int), edges)
        for name, (*_, replicates) in found.items():
            assert replicates[row].item() == pytest.approx(by_hand[name], abs=1e-12, nan_ok=True), name


def test_values_equal_the_functional_measures():
    preds, target, speakers = trials()
    found = F.bootstrap(preds, target, speakers, replicates=2)
    zebra = F.zebra_disclosure(preds, target)
    own = {
        **{name: zebra[name] for name in ("d_ece", "d_ece_reversed")},
        "eer": F.equal_error_rate(preds, target),
        "raw_eer": F.raw_equal_error_rate(preds, target),
        **{name: getattr(F, name)(preds, target) for name in ("min_cllr", "cllr", "linkability", "min_dcf")},
    }
    assert set(found) == set(MEASURES) >= set(own)
    for name, value in own.items():
        assert_close(found[name].value, value, atol=1e-12, rtol=0)


def test_intervals_follow_from_the_replicates():
    measures = [name for name in MEASURES if "tpr" not in name]
    for name, (value, low, high, replicates) in F.bootstrap(*trials(), measures, confidence=0.9).items():
        draws = replicates[~replicates.isnan()]
        reach = scipy.stats.t.ppf(0.95, 5) * draws.std().item() * (6 / 5) ** 0.5
        ends = 2 * value.item() - draws.mean().item() + np.array([-reach, reach])
        limits = {"eer": (0, 0.5), "cllr": (0, np.inf)}.get(name, (0, 0.7213475) if "d_ece" in name else (0, 1))
        np.testing.assert_allclose([low, high], ends.clip(*limits), atol=1e-6, err_msg=name)


def test_separated_speakers_have_a_clopper_pearson_bound():
    speaker = torch.arange(8)
    target = speaker[:, None] == speaker
    speakers = (side.flatten() for side in torch.meshgrid(speaker, speaker, indexing="ij"))
    found = F.bootstrap(target.flatten().double(), target.flatten(), list(speakers), ["d_ece", "eer"], replicates=50)
    share = 0.05 ** (1 / 8)  # no replicate differs: at least this share of all people is separated, with 95 %
    for key, value, low, high in (("d_ece", 1, share, 1), ("eer", 0, 0, 1 - share)):
        most = 0.5 if key == "eer" else 0.5 / math.log(2)
        assert [float(each) / most for each in found[key][:3]] == pytest.approx([value, low, high], rel=1e-9), key


def test_result_is_independent_of_order_labels_and_sides():
    preds, target, (enrolled, tested) = trials(tied=True)
    order = torch.randperm(len(preds), generator=torch.Generator().manual_seed(2))
    ours, *others = (
        F.bootstrap(*given, replicates=50)
        for given in (
            (preds, target, (enrolled, tested)),
            (preds[order], target[order], (-5 * enrolled[order], -5 * tested[order])),
            (preds, target, (tested, enrolled)),
            (preds.view(-1, 2), target.view(-1, 2).long(), (enrolled.view(-1, 2).int(), tested.view(-1, 2).int())),
        )
    )
    for other in others:
        for name, found in ours.items():
            assert_close(other[name].replicates, found.replicates, atol=1e-12, rtol=0, equal_nan=True, msg=name)


def test_replicates_follow_from_the_seed():
    one, again, other = (F.bootstrap(*trials(), ["eer"], 20, seed=seed)["eer"].replicates for seed in (4, 4, 5))
    assert_close(one, again, atol=0, rtol=0)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(("limit", "most", "atol"), [("_MOST_COUNTS", 1, 1e-13), ("_MOST_CELLS", 1 << 10, 2e-3)])
def test_chunks_change_nothing_and_bins_little(limit, most, atol, monkeypatch):
    given = *trials(speakers=20), ["d_ece", "eer"]
    whole = F.bootstrap(*given, replicates=9)
    monkeypatch.setattr(implementation, limit, most)
    for measure, found in F.bootstrap(*given, replicates=9).items():
        assert_close(found.replicates, whole[measure].replicates, atol=atol, rtol=0)


def test_replicates_with_one_speaker_are_ignored():
    found = F.bootstrap(*trials(speakers=3), ["d_ece"], replicates=400)["d_ece"]
    assert 20 < int(found.replicates.isnan().sum()) < 75  # 1 in 9
    assert found.low <= found.value
    assert found.high.isfinite()


def test_two_speakers_have_replicates_but_no_interval():
    with pytest.warns(UserWarning, match="Intervals need 3 speakers") as warned:
        found = F.bootstrap(*trials(speakers=2), ["d_ece", "eer"], replicates=20)
    with pytest.warns(UserWarning, match="Intervals need 3 speakers") as also_warned:
        found |= F.bootstrap_embeddings(*voices(speakers=2), ["deid", "op_d_ece", "op_mean_d"], replicates=20)
    assert len(warned) == len(also_warned) == 1
    for value, low, high, replicates in found.values():
        assert value.isfinite()
        assert replicates.isfinite().any()
        assert low.isnan() & high.isnan()


@pytest.mark.parametrize("kind", ["one speaker", "no trials", "NaN", "one speaker of embeddings"])
def test_undefined_measures_are_nan_with_one_warning(kind):
    preds, target, speakers = trials(speakers=1 if kind == "one speaker" else 3)
    rows = slice(0) if kind == "no trials" else slice(None)
    preds[3] = torch.nan if kind == "NaN" else preds[3]
    function, given = F.bootstrap, (preds[rows], target[rows], [side[rows] for side in speakers])
    settings = {"replicates": 3, "validate_args": False}
    if kind == "one speaker of embeddings":
        function, given, settings = F.bootstrap_embeddings, (*voices(speakers=1), EVERYTHING), {"replicates": 2}
    with pytest.warns(UserWarning, match=UNDEFINED) as warned:
        found = function(*given, **settings)
    assert len(warned) == 1
    assert all(bool(part.isnan().all()) for each in found.values() for part in each)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_results_keep_the_dtype_of_the_scores(dtype):
    preds, *others = trials()
    kind = torch.promote_types(dtype, torch.float32)
    found = F.bootstrap(preds.to(dtype), *others, replicates=3)
    assert all(part.dtype == kind for each in found.values() for part in each)


def test_replicates_equal_repeated_speakers_and_inputs(drawn):
    rows = voices()
    arrays, labels = [row.numpy() for row in rows], rows[2].unique()
    found = F.bootstrap_embeddings(*rows, ["deid", "gvd", "op_mean_d", "op_alid"], replicates=8)
    scores, true = reference.rank.reference_scores(*arrays)
    bits, matrix = F.identify(rows[1], rows[2], rows[0]).bits, reference.bootstrap.similarity_matrix
    for row, places in enumerate(drawn):
        oo, op, pp = (matrix(*arrays, labels[places].tolist(), condition) for condition in ("OO", "OP", "PP"))
        again = [i for place in places.tolist() for i in range(len(true)) if true[i] == place]
        ranks = reference.rank.rank_disclosure(reference.rank.rank_histogram(scores[again], true[again]))
        by_hand = {
            "deid": reference.similarity.de_identification(oo, op),
            "gvd": reference.similarity.voice_distinctiveness(oo, pp),
            "op_mean_d": ranks["mean_d"],
            "op_alid": bits[again].mean().item(),
        }
        for name, (*_, replicates) in found.items():
            assert replicates[row].item() == pytest.approx(by_hand[name], abs=1e-12, nan_ok=True), name


def test_embedding_values_equal_those_of_the_suite():
    rows = voices(speakers=8, seed=1)
    value = make_report(rows).scalars
    for key, found in F.bootstrap_embeddings(*rows, EVERYTHING, replicates=2).items():
        assert_close(found.value, value[key], atol=1e-11, rtol=0, equal_nan=True, msg=key)


def test_embeddings_result_is_independent_of_order_and_labels():
    original, protected, speakers = voices()
    order = torch.randperm(len(speakers), generator=torch.Generator().manual_seed(2))
    other = F.bootstrap_embeddings(original[order], protected[order], 9 - speakers[order], replicates=30)
    for key, found in F.bootstrap_embeddings(original, protected, speakers, replicates=30).items():
        assert_close(other[key].replicates, found.replicates, atol=1e-12, rtol=0, equal_nan=True)
