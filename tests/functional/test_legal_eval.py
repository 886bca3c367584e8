"""The same populations measured by the package of the legally validated evaluation framework."""

import math

import numpy as np
import pytest
import torch
from extras import import_or_skip
from samples import rates, singling_out_arguments

from vpmetrics import ReidentificationRate
from vpmetrics.functional import rank_histogram, reidentification_rate, singling_out

legal_eval = import_or_skip("legal_eval")
demo = import_or_skip("legal_eval.demo")
metrics = import_or_skip("legal_eval.metrics")
pytestmark = pytest.mark.dev


def corpus(number):
    """The corpus that the package makes: half of everybody's utterances to enrol, half to test."""
    spk2utt, embeddings = demo.synthetic_corpus(number, 12)
    enrolled, tested = demo.split_corpus(spk2utt, 6)
    return enrolled, tested, demo.simulate_anonymization(embeddings, 0.4)


@pytest.mark.parametrize("length", [1, 3])
def test_rate_equals_exact_linkability_of_the_peer_package(length):
    enrolled, tested, embeddings = corpus(number=300)
    models = legal_eval.build_speaker_embeddings(enrolled, embeddings)
    probes, _ = legal_eval.build_test_embeddings(
        tested, embeddings, length, rng=np.random.default_rng(0)
    )
    matrix = legal_eval.cosine_score_matrix(models, probes)
    names = {speaker: number for number, speaker in enumerate(models)}
    inputs, references = (torch.tensor(np.stack(list(side.values()))) for side in (probes, models))
    own = torch.tensor([names[speaker] for speaker in probes])
    histogram = rank_histogram(inputs, own, references, torch.arange(300))
    for size, rate in rates(reidentification_rate(histogram, (1, 2, 20, 100, 299, 300))).items():
        assert rate == pytest.approx(
            legal_eval.linkability(matrix, size, estimator="exact")[0], abs=1e-9
        )
        drawn = legal_eval.linkability(matrix, size, n_runs=200)
        assert rate == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / math.sqrt(200) + 1e-9)


def test_distractors_are_enrolled_speakers_without_tests_of_the_peer_package():
    enrolled, tested, embeddings = corpus(number=60)
    tested = {speaker: tested[speaker] for speaker in list(tested)[:40]}
    models = legal_eval.build_speaker_embeddings(enrolled, embeddings)
    probes, _ = legal_eval.build_test_embeddings(
        tested, embeddings, 1, rng=np.random.default_rng(0)
    )
    matrix = legal_eval.cosine_score_matrix(models, probes)
    vectors = torch.tensor(np.stack([*(models[name] for name in tested), *probes.values()]))
    others = torch.tensor(np.stack([models[name] for name in models if name not in tested]))
    sizes = (2, 20, 60)
    metric = ReidentificationRate(sizes=sizes, distractors=others)
    is_reference = torch.arange(len(vectors)) < 40
    metric.update(None, vectors, torch.arange(40).repeat(2), is_reference)
    values = metric.compute()
    assert values["gallery"] == 60
    for size in sizes:
        exact = legal_eval.linkability(matrix, size, estimator="exact")[0]
        assert values[f"rate_{size}"] == pytest.approx(exact, abs=1e-6)


def made_conversations(length=1):
    """Models and conversations of the peer's demo, and both as arguments of our function."""
    enrolled, tested, embeddings = corpus(number=40)
    models = legal_eval.build_speaker_embeddings(enrolled, embeddings)
    made = legal_eval.build_conversations(tested, embeddings, length)
    voices = [np.stack([one.test, *one.calibration]) for one in made.values()]
    return models, made, singling_out_arguments(list(models.values()), voices)


@pytest.mark.parametrize("length", [1, 3])
def test_singling_out_equals_the_peer_package(length):
    models, made, given = made_conversations(length=length)
    scores, sizes = metrics.score_conversations(models, made), (2, 5, 10, 20, 40)
    ours = singling_out(**given, sizes=sizes, draws=500)
    for size in sizes:
        outcomes = np.array(
            list(metrics.singling_out(scores, size, n_runs=1 if size == 40 else 200).values())
        )
        value, error = (
            ours[f"singling_out_{size}"].item(),
            ours[f"singling_out_{size}_error"].item(),
        )
        if size == 40:  # everybody: neither of us draws
            assert value == outcomes.mean()
        else:
            spread = math.hypot(error, outcomes.std(0, ddof=1).mean() / math.sqrt(outcomes.size))
            assert value == pytest.approx(outcomes.mean(), abs=4 * spread)


def test_singling_out_error_is_the_spread_over_random_draws():
    *_, given = made_conversations()
    found = []
    for seed in range(30):
        # Other values of the same geometry are other draws: turn everything by the same rotation.
        draw = torch.Generator().manual_seed(seed)
        turn = torch.linalg.qr(torch.randn(32, 32, generator=draw, dtype=torch.float64))[0]
        turned = {name: given[name] @ turn for name in ("references", "conversations")}
        values = singling_out(**given | turned, sizes=(10,), draws=50)
        found.append([values["singling_out_10"], values["singling_out_10_error"]])
    values, errors = torch.tensor(found).T
    assert 0.6 < errors.mean() / values.std() < 1.7
