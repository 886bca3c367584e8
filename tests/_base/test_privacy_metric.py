"""One number of a metric that returns several.

TorchMetrics and Lightning take only scalars in some places.
"""

import copy
import pickle
import warnings

import pytest
import pytorch_lightning as pl
import torch
from cases import CASES, join, scores
from torch.testing import assert_close
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection
from torchmetrics.wrappers import MetricTracker, MinMaxMetric

import vpmetrics as vp
from vpmetrics import functional as F

BATCHES = scores()
WHOLE = F.zebra_disclosure(**join(BATCHES))


def fed(metric, batches=BATCHES):
    for batch in batches:
        metric.update(**batch)
    return metric


def test_view_behaves_as_a_metric_of_one_key():
    view = vp.ZebraDisclosure()["d_ece"]
    for batch in BATCHES:
        assert_close(view(**batch), F.zebra_disclosure(**batch)["d_ece"])
    assert view.update_called
    assert view.update_count == len(BATCHES)
    for other in (view, view.clone(), copy.deepcopy(view), pickle.loads(pickle.dumps(view))):
        assert_close(other.compute(), WHOLE["d_ece"])
        other.reset()
        assert not other.update_called


def test_view_inherits_direction_and_differentiability():
    directions = [vp.VoicePrivacy()[key].higher_is_better for key in ("op_d_ece", "deid", "gvd")]
    assert directions == [False, True, None]
    batch = {**BATCHES[0], "preds": BATCHES[0]["preds"].clone().requires_grad_()}
    for bandwidth in (0.1, None):
        view = vp.ZebraDisclosure(bandwidth=bandwidth)["d_ece"]
        assert view.is_differentiable == view(**batch).requires_grad == (bandwidth is not None)


def test_view_of_an_unknown_key_raises():
    with pytest.raises(
        ValueError,
        match="'d_eec' to be one of d_ece, l_w, tag, d_ece_reversed, which ZebraDisclosure",
    ):
        fed(vp.ZebraDisclosure())["d_eec"].compute()
    with pytest.raises(
        TypeError, match="MinCllr to return a dictionary with 'd_ece', but got Tensor"
    ):
        fed(vp.MinCllr())["d_ece"].compute()


def test_torchmetrics_collections_and_wrappers_accept_a_view():
    collection = MetricCollection(
        {"d_ece": vp.ZebraDisclosure()["d_ece"], "c_ece": vp.CalibrationDistortion()}
    )
    for index, batch in enumerate(BATCHES):
        collection.update(**batch, run=index % 2)
    assert_close(collection.compute()["d_ece"], WHOLE["d_ece"])
    tracker = MetricTracker(vp.ZebraDisclosure()["d_ece"])
    extremes = MinMaxMetric(vp.ZebraDisclosure()["d_ece"])
    seen = []
    for count, batch in enumerate(BATCHES, start=1):
        tracker.increment()
        tracker.update(**batch)
        extremes.update(**batch)
        seen.append(F.zebra_disclosure(**join(BATCHES[:count]))["d_ece"].item())
        value = {key: entry.item() for key, entry in extremes.compute().items()}
        assert value == pytest.approx({"raw": seen[-1], "max": max(seen), "min": min(seen)})
    values = [F.zebra_disclosure(**batch)["d_ece"].item() for batch in BATCHES]
    best, step = tracker.best_metric(return_step=True)
    assert (best, step) == (pytest.approx(min(values)), values.index(min(values)))


class Logging(pl.LightningModule):
    """Logs two numbers of one metric, and all numbers of others."""

    def __init__(self, dictionaries):
        super().__init__()
        self.dictionaries = dictionaries
        self.counts = []
        self.zebra = vp.ZebraDisclosure()
        self.d_ece = self.zebra["d_ece"]
        self.l_w = self.zebra["l_w"]
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch, _):
        return self.weight * batch["preds"].mean()

    def validation_step(self, batch, _):
        self.zebra.update(batch["preds"], batch["target"])
        self.log("val/d_ece", self.d_ece)
        self.log("val/l_w", self.l_w)
        for name, value in self.dictionaries.items():
            self.log_dict({f"{name}/{key}": entry for key, entry in value.items()})

    def on_validation_epoch_end(self):
        self.counts.append(self.zebra.update_count)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_lightning_logs_views_and_dictionaries_epoch_by_epoch(tmp_path):
    """Lightning warns of what is not floating, and rejects what is no scalar."""
    values = {case.name: fed(case.metric(), case.batches()).compute() for case in CASES}
    dictionaries = {name: value for name, value in values.items() if isinstance(value, dict)}
    module = Logging(dictionaries)
    loader = DataLoader(BATCHES, batch_size=None)
    options = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = pl.Trainer(
        max_epochs=2,
        num_sanity_val_steps=0,
        default_root_dir=tmp_path,
        accelerator="cpu",
        **options,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings(
            "ignore", ".*does not have many workers.*|.*fewer than the logging interval.*"
        )
        trainer.fit(module, loader, loader)
    assert module.counts == [len(BATCHES)] * 2  # every epoch starts anew
    assert not module.zebra.update_called
    logged = trainer.callback_metrics
    assert_close(logged["val/d_ece"], WHOLE["d_ece"], check_dtype=False)
    assert_close(logged["val/l_w"], WHOLE["l_w"], check_dtype=False)
    assert len(dictionaries) > 6
    assert len(logged) == 2 + sum(map(len, dictionaries.values()))
    assert logged["ZebraDisclosure/tag"] == dictionaries["ZebraDisclosure"]["tag"]
