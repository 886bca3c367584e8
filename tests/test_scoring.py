"""Scoring back-ends against the definitions, and PLDA against the densities it stands for."""

import math
import pickle

import pytest
import torch
from cases import assert_same, embeddings, join
from reports import make_report
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from vpmetrics import DeIdentification
from vpmetrics._engine import pair_blocks
from vpmetrics._engine.scorers import resolve_scoring
from vpmetrics.functional import voice_similarity_matrix
from vpmetrics.scoring import PLDA


def test_named_scores():
    a, b = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[4.0, 3.0], [3.0, 4.0]])
    expected = {
        "cosine": [[0.96, 1.0], [0.0, 0.0]],
        "dot": [[24.0, 25.0], [0.0, 0.0]],
        "euclidean": [[-math.sqrt(2), 0.0], [-5.0, -5.0]],
    }
    for name, scores in expected.items():
        scorer = resolve_scoring(name)
        assert_close(scorer.compare(scorer.prepare(a), scorer.prepare(b)), torch.tensor(scores), atol=1e-6, rtol=0)


@pytest.mark.parametrize("most_pairs", [1 << 22, 0], ids=["exact", "binned"])
def test_scoring_is_independent_of_requires_grad(most_pairs, monkeypatch):
    monkeypatch.setattr(pair_blocks, "FEW_PAIRS", most_pairs)
    layer = torch.nn.Linear(6, 6, dtype=torch.float64)

    def score(a, b):
        return layer(a) @ layer(b).T

    rows, values = join(embeddings()), []
    for is_trained in (True, False):
        layer.requires_grad_(is_trained)
        scalars = make_report(rows, scoring=score).scalars
        values.append({key: value.detach() for key, value in scalars.items()})
    assert_same(*values)


def draw_model(size=4, speakers=3000, each=5, seed=0):
    draw = torch.Generator().manual_seed(seed)
    factors = torch.randn(2, size, size, generator=draw, dtype=torch.float64)
    between, within = factors @ factors.mT + 0.3 * torch.eye(size)
    mean = torch.randn(size, generator=draw, dtype=torch.float64)

    def gaussian(count, covariance):
        noise = torch.randn(count, size, generator=draw, dtype=torch.float64)
        return noise @ torch.linalg.cholesky(covariance).T

    voices = mean + gaussian(speakers, between).repeat_interleave(each, 0)
    return (
        mean,
        between,
        within,
        voices + gaussian(speakers * each, within),
        torch.arange(speakers).repeat_interleave(each),
    )


def test_plda_is_the_ratio_of_gaussian_densities():
    mean, between, within, x, speakers = draw_model()
    plda = PLDA().fit(x, speakers)
    # The densities of the model that was fitted: undo the change of basis.
    inverse = torch.linalg.inv(plda.basis)
    within = inverse.T @ inverse
    between = inverse.T @ torch.diag(plda.between) @ inverse
    mean = plda.mean
    total = between + within
    pair = torch.cat([torch.cat([total, between], 1), torch.cat([between, total], 1)])
    joint, alone = MultivariateNormal(torch.cat([mean, mean]), pair), MultivariateNormal(mean, total)
    a, b = x[:6], x[3:8]
    expected = torch.stack(
        [torch.stack([joint.log_prob(torch.cat([i, j])) - alone.log_prob(i) - alone.log_prob(j) for j in b]) for i in a]
    )
    assert_close(plda(a, b), expected, atol=1e-8, rtol=1e-8)


def test_plda_recovers_the_generating_model():
    mean, between, within, x, speakers = draw_model()
    plda = PLDA().fit(x, speakers)
    inverse = torch.linalg.inv(plda.basis)
    # Three thousand speakers: standard errors of a few per cent.
    assert_close(plda.mean, mean, atol=0.15, rtol=0)
    assert_close(inverse.T @ inverse, within, atol=0.15 * within.abs().max().item(), rtol=0)
    assert_close(inverse.T @ plda.between.diag() @ inverse, between, atol=0.15 * between.abs().max().item(), rtol=0)


def test_metric_with_plda_scoring_can_be_pickled():
    rows = join(embeddings())
    plda = PLDA().fit(rows["original"], rows["speakers"])
    metric = DeIdentification(scoring=plda)
    metric.update(**rows)
    value = metric.compute()
    assert_close(pickle.loads(pickle.dumps(metric)).compute(), value)
    other = voice_similarity_matrix(**rows, scoring=lambda a, b: plda(a, b))
    assert_close(voice_similarity_matrix(**rows, scoring=plda), other)


def test_metrics_are_invariant_to_increasing_score_maps():
    rows = join(embeddings())
    unit = torch.nn.functional.normalize(rows["original"]), torch.nn.functional.normalize(rows["protected"])
    cosine = voice_similarity_matrix(*unit, rows["speakers"])
    for scoring in ("dot", lambda a, b: (a @ b.T).exp()):
        assert_close(voice_similarity_matrix(*unit, rows["speakers"], scoring=scoring), cosine)
    distance = voice_similarity_matrix(*unit, rows["speakers"], scoring="euclidean")
    assert_close(distance.oo, cosine.oo, atol=1e-6, rtol=0)


def test_invalid_use_raises():
    with pytest.raises(RuntimeError, match="fitted before it is called"):
        PLDA()(torch.ones(1, 2), torch.ones(1, 2))
    with pytest.raises(ValueError, match="at least two speakers"):
        PLDA().fit(torch.randn(3, 2), torch.tensor([1, 1, 1]))
    with pytest.raises(TypeError, match="a name or a callable, but got int"):
        resolve_scoring(3)


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e10, 1e19, 1e30])
def test_cosine_does_not_depend_on_length(scale):
    rows = join(embeddings(dtype=torch.float32))
    plain = voice_similarity_matrix(**rows)
    scaled = voice_similarity_matrix(rows["original"] * scale, rows["protected"] * scale, rows["speakers"])
    assert_close(scaled.op, plain.op, atol=1e-3, rtol=0)


def test_mixed_dtypes_promote_to_the_wider():
    rows = join(embeddings())
    mixed = voice_similarity_matrix(rows["original"].float(), rows["protected"], rows["speakers"])
    assert mixed.op.dtype == torch.float64
    assert_close(mixed.op, voice_similarity_matrix(**rows).op)
