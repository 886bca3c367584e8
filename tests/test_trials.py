"""Any score metric, fed from embeddings: ours and torchmetrics' own."""

import pytest
import reference
import torch
from cases import embeddings, join
from reports import compute
from torch.testing import assert_close
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryConfusionMatrix, BinaryEER, BinaryROC

from vpmetrics import EmbeddingTrials, EqualErrorRate, Linkability, MinCllr, ZebraDisclosure
from vpmetrics._engine import pair_blocks
from vpmetrics.functional import equal_error_rate


def trials_by_pairs(rows, condition):
    arrays = (rows[key].numpy() for key in ("original", "protected", "speakers"))
    scores, target, _ = reference.similarity.trials(*arrays, condition)
    return torch.tensor(scores), torch.tensor(target).long()


def test_torchmetrics_metrics_receive_raw_scores(monkeypatch):
    # Half of these cosines are negative: squashed block by block, the area would depend on the blocks.
    rows = join(embeddings())
    scores, target = trials_by_pairs(rows, "OP")
    assert (scores < 0).any()
    positives, negatives = scores[target == 1], scores[target == 0]
    area = (positives[:, None] > negatives).double().mean() + 0.5 * (positives[:, None] == negatives).double().mean()
    for size in (16, 2048):
        monkeypatch.setattr(pair_blocks, "BLOCK_SIZE", size)
        assert compute(EmbeddingTrials(BinaryAUROC()), **rows).item() == pytest.approx(area.item(), abs=1e-6)


def test_a_collection_scores_its_trials_once():
    rows = join(embeddings())
    metric = EmbeddingTrials(MetricCollection([EqualErrorRate(), MinCllr(), Linkability()]), "PP")
    value = metric(**rows)
    assert_close(value["EqualErrorRate"], equal_error_rate(*trials_by_pairs(rows, "PP")))
    assert_close(metric.compute(), value)


def test_wrapped_metric_is_not_modified():
    given = EqualErrorRate()
    metric = EmbeddingTrials(given)
    metric(**join(embeddings()))
    assert given.update_count == 0
    assert given.sync_on_compute
    assert metric.higher_is_better is given.higher_is_better


def test_binned_metrics_receive_scores():
    rows = join(embeddings())
    exact, binned = EmbeddingTrials(EqualErrorRate()), EmbeddingTrials(EqualErrorRate(thresholds=4096))
    assert binned(**rows).item() == pytest.approx(exact(**rows).item(), abs=0.01)


@pytest.mark.parametrize("inner", [EqualErrorRate, BinaryROC, BinaryAUROC])
def test_no_trials_are_nan_and_one_warning(inner):
    metric = EmbeddingTrials(inner())
    metric.update(original=torch.randn(3, 4), speakers=torch.tensor([1, 1, 2]))
    with pytest.warns(UserWarning, match="no trials") as caught:
        value = metric.compute()
    assert value.isnan()
    assert len(caught) == 1


def test_plot_delegates_to_the_wrapped_metric():
    rows = join(embeddings())
    metric = EmbeddingTrials(ZebraDisclosure())
    metric.update(**rows)
    _, ax = metric.plot(label="ours", actual=False)
    value = metric.compute()
    assert f"ours ({value['d_ece']:.3f}" in ax.get_legend().get_texts()[1].get_text()
    assert len(ax.lines) == 2
    _, ax = metric.plot(value)
    assert len(ax.lines) == len(value)


@pytest.mark.parametrize("inner", [ZebraDisclosure, EqualErrorRate, BinaryAUROC, BinaryEER, BinaryAccuracy])
def test_nan_embeddings_give_nan(inner):
    rows = join(embeddings())
    rows["original"][3, 2] = float("nan")
    metric = EmbeddingTrials(inner(), validate_args=False)
    metric.update(**rows)
    with pytest.warns(UserWarning, match="NaN"):
        value = metric.compute()
    assert all(
        entry.isnan() for entry in (value.values() if isinstance(value, dict) else [value]) if entry.is_floating_point()
    )


@pytest.mark.parametrize("condition", ["OP", "PP"])
def test_confusion_matrix_is_independent_of_block_size(condition, monkeypatch):
    rows = join(embeddings())
    values = []
    for size in (3, 149, 1024):
        monkeypatch.setattr(pair_blocks, "BLOCK_SIZE", size)
        values.append(compute(EmbeddingTrials(BinaryConfusionMatrix(), condition), **rows))
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])
    assert values[0].sum() == len(trials_by_pairs(rows, condition)[0])
