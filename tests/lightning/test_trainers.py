"""Both packages, each alone, and several processes."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from leaking_voices import LOSSES, SHARES, by_hand, protect, voices
from training import assert_same, events, run_script

import vpmetrics.lightning
from vpmetrics import VoicePrivacy
from vpmetrics.lightning.monitor import name_of_key
from vpmetrics.lightning.trainers import warn_of_spawned_processes


def test_one_lightning_package_is_required(tmp_path):
    script = """
        import importlib, os, sys
        import torch, vpmetrics.suite

        packages = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
        for present in ("lightning", "pytorch_lightning", None):
            if child := os.fork():
                assert os.waitpid(child, 0)[1] == 0
                continue
            sys.modules.update(dict.fromkeys(packages.keys() - {present}))
            try:
                from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor
            except ImportError as error:
                assert present is None and "pip install 'vpmetrics[lightning]'" in str(error)
            else:
                Callback = importlib.import_module(f"{packages[present]}.callbacks").Callback
                assert isinstance(PrivacyMonitor(), Callback)
                assert isinstance(PrivacyCheckpoint(), Callback)
            os._exit(0)
    """
    run_script(tmp_path, script)


@pytest.mark.parametrize(("strategy", "is_spawned"), [("ddp_spawn", True), ("ddp", False)])
def test_strategies_that_spawn_are_warned_of(pl, recwarn, strategy, is_spawned):
    launchers = importlib.import_module(f"{pl.__name__}.strategies.launchers")
    if is_spawned:
        kind = launchers._MultiProcessingLauncher
    else:
        kind = launchers._SubprocessScriptLauncher
    trainer = SimpleNamespace(strategy=SimpleNamespace(launcher=kind.__new__(kind)))
    warn_of_spawned_processes(trainer, "PrivacyMonitor", "`history`")
    text = (
        "PrivacyMonitor does not support strategies that spawn or fork, such as 'ddp_spawn':"
        " `history` stay in"
    )
    assert any(text in str(warning.message) for warning in recwarn) == is_spawned


def test_hugging_face_example_matches_the_suite():
    """What the package's docstring shows, on what ``Trainer.evaluate`` passes on.

    Arrays of all batches.
    """
    code = vpmetrics.lightning.__doc__.partition("    def compute_metrics")[2].partition(
        "Example:"
    )[0]
    namespace = {"VoicePrivacy": lambda: VoicePrivacy(attacks=None, conversations=0)}
    exec("def compute_metrics" + code.replace("\n    ", "\n"), namespace)
    original, noise, speakers = voices()
    arrays = (original.numpy(), protect(original, noise, 0.9).numpy())
    prediction = SimpleNamespace(predictions=arrays, label_ids=speakers.numpy())
    assert_same(namespace["compute_metrics"](prediction), by_hand(0.9))


def test_two_processes_log_what_one_does(tmp_path):
    script = """
        import json, sys, warnings
        from pathlib import Path
        import pytorch_lightning as pl
        from torch.utils.data import DataLoader, TensorDataset
        import torch
        from vpmetrics.report import figures
        from leaking_voices import LOSSES, SHARES, loader, voices
        from training import QUIET, anonymiser, keeper, tensorboard, watch

        if __name__ == "__main__":
            messages = []
            warnings.showwarning = lambda message, *_: messages.append(str(message))
            warnings.simplefilter("always")
            figures.FIGURES = tuple(kind for kind in figures.FIGURES if kind.key == "quadrants")
            folder = Path(sys.argv[1])
            # A number of utterances that two processes share evenly only with a copy.
            parts = [part[:21] for part in voices(speakers=7, utterances=3)]
            numbered = DataLoader(TensorDataset(*parts, torch.arange(21)), 4)
            keys = ("original", "protected", "speakers", "utterances")
            monitor = watch(keys=keys, figures_every_n_epochs=2)
            checkpoint = keeper(budget=0.4, dirpath=folder / "kept", filename="{epoch}")
            trainer = pl.Trainer(
                strategy="ddp", devices=2, max_epochs=3, callbacks=[monitor, checkpoint],
                logger=tensorboard(pl, folder, version=0), **QUIET,
            )
            trainer.fit(anonymiser(pl, SHARES, LOSSES), loader(), numbered)
            assert not any("sync_dist" in text and "privacy" in text for text in messages), messages
            logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
            result = [logged, checkpoint.best_model_path, monitor.history]
            (folder / f"{trainer.global_rank}.json").write_text(json.dumps(result))
    """
    run_script(tmp_path, script, tmp_path)
    expected = [by_hand(share, speakers=7, utterances=3) for share in SHARES[:3]]
    chosen = min(
        (epoch for epoch in range(3) if expected[epoch]["op_d_ece"] <= 0.4),
        key=lambda epoch: LOSSES[epoch],
    )
    for rank in (0, 1):
        logged, best, history = json.loads((tmp_path / f"{rank}.json").read_text())
        assert_same(
            {key: logged[name_of_key("val/privacy", key)] for key in expected[2]}, expected[2]
        )
        assert Path(best).name == f"epoch={chosen}.ckpt"
        for row, values in zip(history, expected, strict=True):
            assert_same(row, values)
    log = events(SimpleNamespace(log_dir=str(tmp_path / "lightning_logs" / "version_0")))
    assert (
        len(log.Scalars("val/privacy/deid"))
        == len(log.Images("val_figures/privacy/quadrants"))
        == 3
    )
