"""Similarity matrices, DeID and G_VD.

Golden sets, the bundled voices, hand values, and thin data.
"""

import math
import warnings

import pytest
import torch
from cases import embeddings, join, take
from golden import CONDITIONS, EMBEDDING_SETS, embedding_set
from reports import Everything, compute
from torch.testing import assert_close

from vpmetrics import VoiceSimilarityMatrix
from vpmetrics._scores import pair_blocks
from vpmetrics.data import demo_voices
from vpmetrics.functional import (
    de_identification,
    diagonal_dominance,
    voice_distinctiveness,
    voice_similarity_matrix,
)


@pytest.mark.parametrize("name", EMBEDDING_SETS)
@pytest.mark.parametrize("similarity", ["geometric", "sigmoid"])
def test_golden_sets(name, similarity):
    *rows, expected = embedding_set(name)
    expected = expected[similarity]
    matrices = voice_similarity_matrix(*map(torch.from_numpy, rows), similarity)
    for condition, matrix in zip(CONDITIONS, matrices[:3], strict=True):
        assert_close(matrix.numpy(), expected[condition], atol=1e-9, rtol=0)
    assert matrices.speakers.tolist() == sorted(set(rows[2].tolist()))
    assert de_identification(matrices.oo, matrices.op).item() == pytest.approx(
        expected["deid"], abs=1e-7
    )
    assert voice_distinctiveness(matrices.oo, matrices.pp).item() == pytest.approx(
        expected["gvd"], abs=1e-6
    )


def test_bundled_systems_rank_as_published():
    voices = demo_voices()
    value = {}
    for name, protected in voices.protected.items():
        oo, op, pp, _ = voice_similarity_matrix(voices.original, protected, voices.speakers)
        value[name] = de_identification(oo, op).item(), voice_distinctiveness(oo, pp).item()
    assert min(value, key=lambda name: value[name][0]) == "B2"
    assert value["B2"] == pytest.approx((0.37, 0), abs=0.2)
    assert value["B2u"][1] == pytest.approx(-7, abs=0.5)


def test_diagonal_dominance_by_hand():
    matrix = torch.tensor([[0.5, 0.25, 0.125], [0.25, 0.5, 0.125], [0.25, 0.25, 0.5]])
    assert diagonal_dominance(matrix).item() == pytest.approx(0.5 - 1.25 / 6)
    assert diagonal_dominance(matrix, log_domain=True).item() == pytest.approx(
        (4 * 2 + 2 * 3) / 6 - 1
    )
    assert diagonal_dominance(torch.eye(4)) == 1
    assert diagonal_dominance(1 - torch.eye(4)) == 1
    assert diagonal_dominance(torch.full((4, 4), 0.3)).item() == pytest.approx(0, abs=1e-7)
    holed = matrix.clone()
    holed[0, 0] = holed[0, 1] = math.nan
    assert diagonal_dominance(holed).item() == pytest.approx(0.5 - 1.0 / 5)


def test_undefined_ratios():
    flat = torch.full((3, 3), 0.4)
    with pytest.warns(UserWarning, match="no dominant diagonal"):
        assert de_identification(flat, torch.eye(3)).isnan()
    with pytest.warns(
        UserWarning, match="no dominant diagonal: its voices are all alike, and G_VD is -inf"
    ):
        assert voice_distinctiveness(torch.eye(3), flat) == -math.inf
    assert de_identification(torch.eye(3), flat) == 1


def test_duplicate_utterances_count_once():
    rows = join(embeddings())
    metric = VoiceSimilarityMatrix()
    plain = voice_similarity_matrix(**rows)
    padded = {key: torch.cat([value, value[:25]]) for key, value in rows.items()}
    metric.update(**padded, utterances=torch.cat([torch.arange(150), torch.arange(25)]) * 17 - 300)
    assert_close(metric.compute(), plain)
    with pytest.warns(
        UserWarning, match="25 of 175 original embeddings equal another one of their speaker"
    ):
        assert not torch.equal(voice_similarity_matrix(**padded).oo, plain.oo)


def test_speaker_missing_on_one_side_is_nan():
    rows = join(embeddings())
    ids = torch.arange(150)
    metric = VoiceSimilarityMatrix()
    original, protected, speakers = rows.values()
    here = speakers != 3
    metric.update(original=original, speakers=speakers, utterances=ids)
    metric.update(protected=protected[here], speakers=speakers[here], utterances=ids[here])
    value = metric.compute()
    whole = voice_similarity_matrix(**rows)
    third = value.speakers.tolist().index(3)
    assert value.pp[third].isnan().all()
    assert value.op[:, third].isnan().all()
    assert not value.op[third, :third].isnan().any()
    assert_close(value.oo, whole.oo)
    alone = voice_similarity_matrix(None, protected, speakers)
    assert_close(alone.pp, whole.pp)
    assert alone.oo.isnan().all()


def test_a_speaker_with_one_utterance_has_no_similarity_to_itself():
    rows = join(embeddings())
    of_four = rows["speakers"] == 4
    value = voice_similarity_matrix(**take(rows, ~of_four | (of_four.cumsum(0) == 1) & of_four))
    fourth = value.speakers.tolist().index(4)
    assert all(matrix[fourth, fourth].isnan() for matrix in value[:3])
    assert not diagonal_dominance(value.oo).isnan()


@pytest.mark.parametrize(
    "vectors",
    [
        torch.zeros(24, 5),
        torch.ones(24, 5),
        torch.randn(24, 2),
        torch.randn(24, 65_536),
        torch.randn(24, 3).bfloat16(),
    ],
    ids=["zero", "identical", "2 wide", "65536 wide", "bfloat16"],
)
def test_unusual_vectors_never_raise(vectors, monkeypatch):
    speakers = torch.arange(24) % 4
    for limit in (1 << 22, 0):
        monkeypatch.setattr(pair_blocks, "FEW_PAIRS", limit)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = compute(Everything(), vectors, vectors.flip(0), speakers)
    if vectors.float().std() == 0:
        assert value["deid"].isnan()
        assert value["op_d_ece"] == 0
        assert value["op_eer"] == 0.5
    else:
        assert not value["op_d_ece"].isnan()


def test_nan_embeddings_give_nan(monkeypatch):
    rows = join(embeddings())
    rows["protected"][3, 2] = math.nan
    for limit in (1 << 22, 0):
        monkeypatch.setattr(pair_blocks, "FEW_PAIRS", limit)
        metric = Everything(validate_args=False)
        metric.update(**rows)
        with pytest.warns(UserWarning, match="NaN"):
            value = metric.compute()
        assert not value["oo_d_ece"].isnan()
        for key in ("op_d_ece", "pp_d_ece", "deid", "gvd", "op_eer", "op_min_cllr", "op_cllr"):
            assert value[key].isnan(), (limit, key)


def test_plot_names_speakers():
    metric = VoiceSimilarityMatrix()
    names = list("abcdefgh")
    metric.update(**join(embeddings()))
    assert [text.get_text() for text in metric.plot(names=names)[1].get_xticklabels()] == names * 2
    assert {text.get_text() for text in metric.plot(zoo="PP", names=names)[1].texts} >= set(names)
    with pytest.raises(ValueError, match="`zoo` to be one of"):
        metric.plot(zoo="PO")
