"""Growth laws of what is dispatched.

`update` costs the same whatever it gets, `compute` whatever a block holds.
"""

import warnings

import pytest
import torch
from operations import as_on_a_gpu, count_operations
from samples import gaussians, people

import vpmetrics as vp

EMBEDDING_METRICS = {
    "similarity": vp.DeIdentification,
    "ranks": vp.SimilarityRankDisclosure,
    "suite": lambda **settings: vp.VoicePrivacy(
        attacks=None, conversations=0, metrics=KEYS, **settings
    ),
}
KEYS = ["op_d_ece", "op_eer", "op_linkability", "deid", "gvd", "pp_d_ece", "pp_mean_d"]
SCORE_METRICS = (
    vp.ZebraDisclosure,
    vp.MinCllr,
    vp.Cllr,
    vp.EqualErrorRate,
    vp.Linkability,
    vp.TPRAtFPR,
)


def rows_of(utterances):
    """Embeddings of 20 speakers with so many utterances each."""
    return people(number=20, each=utterances, width=16, dtype=torch.float32)


def count(metric, rows):
    """Count the operations of `update` and of `compute`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return count_operations(lambda: metric.update(*rows)), count_operations(metric.compute)


@pytest.mark.parametrize("name", EMBEDDING_METRICS)
def test_update_of_embeddings_is_constant_and_never_waits(name):
    metric = EMBEDDING_METRICS[name](validate_args=False)
    batches = [rows_of(size) for size in (2, 2, 40, 2)]
    counts = [count_operations(lambda rows=rows: metric.update(*rows)) for rows in batches]
    assert len({operations.total for operations in counts[1:]}) == 1
    assert all(operations.syncs == 0 for operations in counts)


@pytest.mark.parametrize("metric", SCORE_METRICS, ids=lambda metric: metric.__name__)
@pytest.mark.parametrize("thresholds", [None, 64])
def test_update_of_scores_is_constant_and_never_waits(metric, thresholds):
    if metric is vp.Cllr and thresholds:
        pytest.skip("Cllr keeps sums and takes no thresholds")
    settings = {}
    if thresholds is not None:
        settings = {"thresholds": thresholds, "score_range": (-4, 4)}
    metric = metric(validate_args=False, **settings)
    batches = [gaussians(targets, 9 * targets) for targets in (5, 5, 500, 5)]
    counts = [count_operations(lambda rows=rows: metric.update(*rows)) for rows in batches]
    assert len({operations.total for operations in counts[1:]}) == 1
    assert all(operations.syncs == 0 for operations in counts)


@pytest.mark.parametrize("name", EMBEDDING_METRICS)
def test_compute_is_independent_of_utterances_within_a_block(name):
    make = EMBEDDING_METRICS[name]
    _, few = count(make(validate_args=False), rows_of(5))
    _, many = count(make(validate_args=False), rows_of(25))
    # Of many scores the steps are looked up in a table, which takes some more operations for each
    # condition.
    assert many.total <= few.total + 100
    assert many.syncs <= few.syncs + 20  # on a CPU, where reading a value costs nothing


@pytest.mark.parametrize("name", EMBEDDING_METRICS)
def test_compute_grows_with_the_logarithm_of_trials_as_on_a_gpu(name):
    make = EMBEDDING_METRICS[name]
    with as_on_a_gpu():
        _, few = count(make(validate_args=False), rows_of(5))
        _, many = count(make(validate_args=False), rows_of(25))
    # PAV merges halves: thirty times the targets are six levels more, of 58 operations in each of
    # three conditions.
    assert many.total <= few.total + 6 * 58 * 3 + 100
    assert many.syncs <= few.syncs + 2


@pytest.mark.parametrize("metric", SCORE_METRICS, ids=lambda metric: metric.__name__)
def test_compute_of_scores_is_independent_of_their_number(metric):
    _, few = count(metric(validate_args=False), gaussians(200, 1_800))
    _, many = count(metric(validate_args=False), gaussians(20_000, 180_000))
    assert many.total <= few.total + 10
