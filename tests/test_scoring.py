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
from vpmetrics._scores import pair_blocks
from vpmetrics._scores.scorers import resolve_scoring
from vpmetrics.functional import voice_similarity_matrix
from vpmetrics.scoring import PLDA


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cosine", [[0.96, 1], [0, 0]]),
        ("dot", [[24, 25], [0, 0]]),
        ("euclidean", [[-math.sqrt(2), 0], [-5, -5]]),
    ],
)
def test_named_scores(name, expected):
    a = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    b = torch.tensor([[4.0, 3.0], [3.0, 4.0]])
    scorer = resolve_scoring(name)
    found = scorer.compare(scorer.prepare(a), scorer.prepare(b))
    assert_close(found, torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=0)


@pytest.mark.parametrize("most_pairs", [1 << 22, 0], ids=["exact", "binned"])
def test_scoring_is_independent_of_requires_grad(most_pairs, monkeypatch):
    monkeypatch.setattr(pair_blocks, "FEW_PAIRS", most_pairs)
    layer = torch.nn.Linear(6, 6, dtype=torch.float64)
    values = []
    for is_trained in (True, False):
        layer.requires_grad_(is_trained)
        scalars = make_report(
            join(embeddings()), scoring=lambda a, b: layer(a) @ layer(b).T
        ).scalars
        values.append({key: value.detach() for key, value in scalars.items()})
    assert_same(*values)


@pytest.fixture(scope="module")
def model():
    """Mean and covariances between and within speakers, and a PLDA fitted on utterances.

    They are of 3,000 speakers.
    """
    draw = torch.Generator().manual_seed(0)
    factors = torch.randn(2, 4, 4, generator=draw, dtype=torch.float64)
    between, within = factors @ factors.mT + 0.3 * torch.eye(4)
    mean, voices, noise = torch.randn(18_001, 4, generator=draw, dtype=torch.float64).split(
        [1, 3000, 15_000]
    )
    voices = voices @ torch.linalg.cholesky(between).T
    noise = noise @ torch.linalg.cholesky(within).T
    rows = mean + voices.repeat_interleave(5, 0) + noise
    speakers = torch.arange(3000).repeat_interleave(5)
    return (mean[0], between, within), rows, PLDA().fit(rows, speakers)


def covariances(plda):
    """Between and within speakers, of the model that was fitted: undo the change of basis."""
    inverse = torch.linalg.inv(plda.basis)
    return inverse.T @ plda.between.diag() @ inverse, inverse.T @ inverse


def test_plda_is_the_ratio_of_gaussian_densities(model):
    _, x, plda = model
    between, within = covariances(plda)
    total = between + within
    pair = torch.cat([torch.cat([total, between], 1), torch.cat([between, total], 1)])
    joint = MultivariateNormal(plda.mean.repeat(2), pair)
    alone = MultivariateNormal(plda.mean, total)
    a = x[:6]
    b = x[3:8]
    together = torch.cat([a[:, None].expand(6, 5, 4), b.expand(6, 5, 4)], dim=2)
    expected = joint.log_prob(together) - alone.log_prob(a)[:, None] - alone.log_prob(b)
    assert_close(plda(a, b), expected, atol=1e-8, rtol=1e-8)


def test_plda_recovers_the_generating_model(model):
    (mean, *expected), _, plda = model
    # Three thousand speakers: standard errors of a few per cent.
    assert_close(plda.mean, mean, atol=0.15, rtol=0)
    for found, covariance in zip(covariances(plda), expected, strict=True):
        assert_close(found, covariance, atol=0.15 * covariance.abs().max().item(), rtol=0)


def test_metric_with_plda_scoring_can_be_pickled():
    rows = join(embeddings())
    plda = PLDA().fit(rows["original"], rows["speakers"])
    metric = DeIdentification(scoring=plda)
    value = metric(**rows)
    assert_close(pickle.loads(pickle.dumps(metric)).compute(), value)
    other = voice_similarity_matrix(**rows, scoring=lambda a, b: plda(a, b))
    assert_close(voice_similarity_matrix(**rows, scoring=plda), other)


def test_metrics_are_invariant_to_increasing_score_maps():
    original, protected, speakers = join(embeddings()).values()
    rows = (
        torch.nn.functional.normalize(original),
        torch.nn.functional.normalize(protected),
        speakers,
    )
    cosine = voice_similarity_matrix(*rows)
    for scoring in ("dot", lambda a, b: (a @ b.T).exp()):
        assert_close(voice_similarity_matrix(*rows, scoring=scoring), cosine)
    assert_close(
        voice_similarity_matrix(*rows, scoring="euclidean").oo, cosine.oo, atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e10, 1e19, 1e30])
def test_cosine_does_not_depend_on_length(scale):
    original, protected, speakers = join(embeddings(dtype=torch.float32)).values()
    plain = voice_similarity_matrix(original, protected, speakers)
    scaled = voice_similarity_matrix(original * scale, protected * scale, speakers)
    assert_close(scaled.op, plain.op, atol=1e-3, rtol=0)


def test_mixed_dtypes_promote_to_the_wider():
    rows = join(embeddings())
    mixed = voice_similarity_matrix(**{**rows, "original": rows["original"].float()})
    assert_close(mixed.op, voice_similarity_matrix(**rows).op)  # of one dtype, too
