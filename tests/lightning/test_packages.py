"""Both packages, each alone, and several processes."""

from __future__ import annotations

import importlib
import json
import pickle
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training import (
    HEADLINE,
    LOSSES,
    QUIET,
    SHARES,
    assert_same,
    both_packages,
    by_hand,
    keeper,
    run_script,
    watch,
)

from vpmetrics.lightning.checkpoint import PrivacyCheckpoint


@both_packages
def test_every_trainer_takes_them_for_its_own(pl, tmp_path):
    callbacks = importlib.import_module(f"{pl.__name__}.callbacks")
    monitor, checkpoint = watch(), keeper(dirpath=tmp_path)
    assert isinstance(monitor, callbacks.Callback)
    assert isinstance(checkpoint, callbacks.ModelCheckpoint)
    trainer = pl.Trainer(callbacks=monitor, logger=False, enable_checkpointing=False, **QUIET)
    assert monitor in trainer.callbacks
    trainer = pl.Trainer(callbacks=[checkpoint, monitor], logger=False, **QUIET)
    assert trainer.checkpoint_callbacks == [checkpoint]
    assert trainer.callbacks[-1] is checkpoint


def test_they_reach_spawned_processes(tmp_path):
    for callback in (watch(), PrivacyCheckpoint(dirpath=tmp_path)):
        assert pickle.loads(pickle.dumps(callback)).state_key == callback.state_key


def test_one_package_is_enough_and_none_is_not(tmp_path):
    script = """
        import importlib, os, sys
        import torch, vpmetrics.suite

        def alone(present):
            from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor
            Callback = importlib.import_module(f"{present}.callbacks").Callback
            assert isinstance(PrivacyMonitor(), Callback) and isinstance(PrivacyCheckpoint(), Callback)

        def without():
            try:
                import vpmetrics.lightning
            except ImportError as error:
                assert "pip install vpmetrics[lightning]" in str(error)
            else:
                raise AssertionError

        for absent, check in (
            (["lightning"], lambda: alone("pytorch_lightning")),
            (["pytorch_lightning"], lambda: alone("lightning.pytorch")),
            (["lightning", "pytorch_lightning"], without),
        ):
            child = os.fork()
            if child == 0:
                sys.modules.update(dict.fromkeys(absent))
                check()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    """
    run_script(tmp_path, script)


def test_two_processes_log_what_one_does(tmp_path):
    script = """
        import json, sys, warnings
        from pathlib import Path
        import pytorch_lightning as pl
        from training import LOSSES, QUIET, SHARES, anonymiser, keeper, loader, numbered, tensorboard, watch

        if __name__ == "__main__":
            said = []
            warnings.showwarning = lambda message, *_: said.append(str(message))
            warnings.simplefilter("always")
            folder = Path(sys.argv[1])
            monitor = watch(
                keys=("original", "protected", "speakers", "utterances"), figures_every_n_epochs=2
            )
            checkpoint = keeper(budget=0.4, dirpath=folder / "kept", filename="{epoch}")
            trainer = pl.Trainer(
                strategy="ddp", devices=2, max_epochs=3, callbacks=[monitor, checkpoint],
                logger=tensorboard(pl, folder, version=0), **QUIET,
            )
            trainer.fit(anonymiser(pl, SHARES, LOSSES), loader(), numbered())
            assert not any("sync_dist" in text and "privacy" in text for text in said), said
            found = {name: value.item() for name, value in trainer.callback_metrics.items()}
            best = checkpoint.best_model_path
            (folder / f"{trainer.global_rank}.json").write_text(json.dumps([found, best, monitor.history]))
    """
    run_script(tmp_path, script, tmp_path)
    rows = [by_hand(share, speakers=7, utterances=3) for share in SHARES[:3]]
    chosen = min((epoch for epoch in range(3) if rows[epoch]["op_d_ece"] <= 0.4), key=lambda epoch: LOSSES[epoch])
    for rank in (0, 1):
        found, best, history = json.loads((tmp_path / f"{rank}.json").read_text())
        assert_same({name: found[f"val/privacy/{name}"] for name in rows[2]}, rows[2])
        assert Path(best).name == f"epoch={chosen}.ckpt"
        for row, expected in zip(history, rows, strict=True):
            assert_same({name: row[name] for name in expected}, expected)
    scalars = EventAccumulator(str(tmp_path / "lightning_logs" / "version_0")).Reload()
    for name in rows[0]:
        group = "val" if name in HEADLINE else "val_details"
        values = (event.value for event in scalars.Scalars(f"{group}/privacy/{name}"))
        assert_same(dict(enumerate(values)), dict(enumerate(row[name] for row in rows)))
    assert len(scalars.Images("val/privacy/quadrants")) == 3
