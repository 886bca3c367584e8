"""Any score metric, fed from embeddings: ours and torchmetrics' own."""

import pytest
import reference
import torch
from cases import embeddings, entries, join
from reports import compute
from torch.testing import assert_close
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC, BinaryConfusionMatrix, BinaryEER, BinaryROC

from vpmetrics import EmbeddingTrials, EqualErrorRate, Linkability, MinCllr, ZebraDisclosure
from vpmetrics._scores import pair_blocks
from vpmetrics.functional import equal_error_rate


def trials_by_pairs(rows, condition):
    arrays = (rows[key].numpy() for key in ("original", "protected", "speakers"))
    scores, target, _ = reference.similarity.trials(*arrays, condition)
    return torch.tensor(scores), torch.tensor(target).long()


def test_torchmetrics_metrics_receive_raw_scores(monkeypatch):
    # Half of these cosines are negative: squashed block by block, the area would depend on the blocks.
    rows = join(embeddings())
    scores, target = trials_by_pairs(rows, "OP")
    positives, negatives = scores[target == 1][:, None], scores[target == 0]
    area = ((positives > negatives).double() + 0.5 * (positives == negatives)).mean().item()
    for size in (16, 2048):
        monkeypatch.setattr(pair_blocks, "BLOCK_SIZE", size)
        assert compute(EmbeddingTrials(BinaryAUROC()), **rows).item() == pytest.approx(area, abs=1e-6)


def test_collections_and_binned_metrics_receive_scores():
    rows = join(embeddings())
    expected = equal_error_rate(*trials_by_pairs(rows, "PP"))
    metric = EmbeddingTrials(MetricCollection([EqualErrorRate(), MinCllr(), Linkability()]), "PP")
    value = metric(**rows)
    assert_close(value["EqualErrorRate"], expected)
    assert_close(metric.compute(), value)
    binned = EmbeddingTrials(EqualErrorRate(thresholds=4096), "PP")
    assert binned(**rows).item() == pytest.approx(expected.item(), abs=0.01)


def test_wrapped_metric_is_not_modified():
    given = EqualErrorRate()
    metric = EmbeddingTrials(given)
    metric(**join(embeddings()))
    assert not given.update_called
    assert given.sync_on_compute
    assert metric.higher_is_better is given.higher_is_better


@pytest.mark.parametrize("inner", [EqualErrorRate, BinaryROC, BinaryAUROC])
def test_no_trials_are_nan_and_one_warning(inner):
    with pytest.warns(UserWarning, match="no trials") as caught:
        assert compute(EmbeddingTrials(inner()), original=torch.randn(3, 4), speakers=torch.tensor([1, 1, 2])).isnan()
    assert len(caught) == 1


def test_plot_delegates_to_the_wrapped_metric():
    metric = EmbeddingTrials(ZebraDisclosure())
    value = compute(metric, **join(embeddings()))
    _, ax = metric.plot(label="ours", actual=False)
    assert f"ours ({value['d_ece']:.3f}" in ax.get_legend().get_texts()[1].get_text()
    assert len(ax.lines) == 2
    assert len(metric.plot(value)[1].lines) == len(value)


@pytest.mark.parametrize("inner", [ZebraDisclosure, EqualErrorRate, BinaryAUROC, BinaryEER, BinaryAccuracy])
def test_nan_embeddings_give_nan(inner):
    rows = join(embeddings())
    rows["original"][3, 2] = float("nan")
    with pytest.warns(UserWarning, match="NaN"):
        value = compute(EmbeddingTrials(inner(), validate_args=False), **rows)
    assert all(entry.isnan() for entry in entries(value))


@pytest.mark.parametrize("condition", ["OP", "PP"])
def test_confusion_matrix_is_independent_of_block_size(condition, monkeypatch):
    rows, values = join(embeddings()), []
    for size in (3, 149, 1024):
        monkeypatch.setattr(pair_blocks, "BLOCK_SIZE", size)
        values.append(compute(EmbeddingTrials(BinaryConfusionMatrix(), condition), **rows).tolist())
    assert values[0] == values[1] == values[2]
    assert sum(map(sum, values[0])) == len(trials_by_pairs(rows, condition)[0])
