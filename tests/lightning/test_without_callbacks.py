"""Metrics in a LightningModule of one's own, without callbacks.

Alone and in a collection that shares one state.
"""

import json
from pathlib import Path

import pytest
import torch
from leaking_voices import SHARES, by_hand, loader, protect
from torchmetrics import MetricCollection
from training import QUIET, assert_same, both_packages, run_script

from vpmetrics import (
    DeIdentification,
    SimilarityRankDisclosure,
    VoiceDistinctiveness,
    VoicePrivacy,
    VoiceSimilarityMatrix,
)


def make_suite():
    return VoicePrivacy(attacks=None, conversations=0)


def make_metrics():
    return MetricCollection(
        [
            VoiceSimilarityMatrix(),
            DeIdentification(),
            VoiceDistinctiveness(),
            SimilarityRankDisclosure("empirical", "OP"),
            make_suite(),
        ]
    )


def make_module(package, metrics):
    """A module that logs what the metrics of its validation compute.

    It keeps the shares of a voice as it trains.
    """

    class Anonymiser(package.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)
            self.metrics = metrics

        def training_step(self, batch, batch_idx):
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch, batch_idx):
            original, noise, speakers = batch
            self.metrics.update(
                original, protect(original, noise, SHARES[self.current_epoch]), speakers
            )

        def on_validation_epoch_end(self):
            values = self.metrics.compute()
            self.log_dict(
                {
                    f"val/{key}": value
                    for key, value in values.items()
                    if isinstance(value, torch.Tensor)
                }
            )
            self.metrics.reset()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Anonymiser()


def assert_logged(trainer, expected):
    assert_same({key: trainer.callback_metrics[f"val/{key}"] for key in expected}, expected)


@both_packages
@pytest.mark.parametrize(
    "make",
    [lambda: VoicePrivacy(attacks=None, conversations=0), make_metrics],
    ids=["suite", "collection"],
)
def test_fit_validate_and_resume_log_what_the_suite_computes(pl, tmp_path, make):
    # A sanity check of two batches may have too few trials, of which the metrics warn.
    options = {"logger": False, "enable_checkpointing": False, "num_sanity_val_steps": 0, **QUIET}
    trainer = pl.Trainer(max_epochs=2, **options)
    module = make_module(pl, make())
    trainer.fit(module, loader(), loader())
    assert_logged(trainer, by_hand(SHARES[1]))
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    trainer.validate(module, loader(), verbose=False)
    assert_logged(trainer, by_hand(SHARES[module.current_epoch]))
    resumed = pl.Trainer(max_epochs=4, **options)
    resumed.fit(make_module(pl, make()), loader(), loader(), ckpt_path=tmp_path / "last.ckpt")
    assert_logged(resumed, by_hand(SHARES[3]))


@pytest.mark.parametrize(
    "make",
    [lambda: VoicePrivacy(attacks=None, conversations=0), make_metrics],
    ids=["suite", "collection"],
)
def test_half_precision(pl, make):
    options = {"logger": False, "enable_checkpointing": False, "num_sanity_val_steps": 0, **QUIET}
    trainer = pl.Trainer(max_epochs=1, precision="bf16-true", **options)
    trainer.fit(make_module(pl, make()), loader(), loader())
    assert_logged(trainer, by_hand(SHARES[0], dtype=torch.bfloat16))


def test_a_collection_holds_one_copy_of_the_embeddings():
    metrics = make_metrics()
    for original, noise, speakers in loader():
        metrics.update(original, protect(original, noise, 0.6), speakers)
    assert len(metrics.compute_groups) == 1
    first, *others = metrics.values(copy_state=False)
    assert all(other.original is first.original for other in others)
    values = metrics.compute()
    assert values["DeIdentification"] == pytest.approx(float(values["deid"]), abs=1e-6)
    assert values["VoiceDistinctiveness"] == pytest.approx(float(values["gvd"]), abs=1e-5)
    assert values["mean_d"] == pytest.approx(float(values["op_mean_d"]), abs=1e-6)


def test_two_ranks_log_what_one_does(tmp_path):
    script = """
        import json, sys, warnings
        from pathlib import Path
        import pytorch_lightning as pl
        sys.path.insert(0, sys.argv[2])
        from leaking_voices import loader
        from test_without_callbacks import make_metrics, make_module, make_suite
        from training import QUIET

        if __name__ == "__main__":
            warnings.simplefilter("ignore")
            folder, logged = Path(sys.argv[1]), []
            options = {
                "max_epochs": 1,
                "logger": False,
                "enable_checkpointing": False,
                "num_sanity_val_steps": 0,
            }
            trainer = pl.Trainer(strategy="ddp", devices=2, **options, **QUIET)
            for metrics in (make_suite(), make_metrics()):
                trainer.fit_loop.epoch_progress.reset()
                trainer.fit(make_module(pl, metrics), loader(), loader(4))
                values = trainer.callback_metrics
                logged.append({name: value.item() for name, value in values.items()})
            (folder / f"{trainer.global_rank}.json").write_text(json.dumps(logged))
    """
    run_script(tmp_path, script, tmp_path, Path(__file__).parent)
    expected = by_hand(SHARES[0])
    for rank in (0, 1):
        for logged in json.loads((tmp_path / f"{rank}.json").read_text()):
            assert_same({key: logged[f"val/{key}"] for key in expected}, expected)
