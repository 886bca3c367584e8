"""Never a number of other weights, whenever one measures, stops or resumes."""

from __future__ import annotations

import importlib
import json

import pytest
from training import (
    PACKAGES,
    anonymiser,
    both_packages,
    events,
    fit,
    keeper,
    names_in,
    run_script,
    tensorboard,
    watch,
)

callbacks = importlib.import_module(f"{PACKAGES[0]}.callbacks")


def test_saving_in_mid_epoch_takes_no_numbers_of_earlier_weights(pl, tmp_path):
    """Without a monitor the module's own values could be those of the validation before."""

    def step(self, batch, batch_idx):
        self.log_dict({"val/leak": (0.1, 0.04, 0.03)[self.current_epoch], "val/loss": 1.0})

    checkpoint = keeper("val/leak", 1.0, dirpath=tmp_path, filename="{epoch}", save_on_train_epoch_end=True)
    module = anonymiser(pl, validation_step=step)
    fit(pl, [checkpoint], module, epochs=3, check_val_every_n_epoch=2)
    assert names_in(tmp_path) == ["epoch=1.ckpt"]
    assert checkpoint.chosen.disclosure == {"val/leak": pytest.approx(0.04)}


@both_packages
@pytest.mark.parametrize("strict", [True, False])
def test_early_stopping_waits_for_measurements_and_counts_none_twice(pl, strict):
    counted = []

    class Stopping(importlib.import_module(f"{pl.__name__}.callbacks").EarlyStopping):
        def _evaluate_stopping_criteria(self, current):
            counted.append(float(current))
            return super()._evaluate_stopping_criteria(current)

    stopping = Stopping("val/privacy/op_d_ece", patience=2, strict=strict)
    monitor = watch(every_n_epochs=2)
    trainer = fit(pl, [monitor, stopping], anonymiser(pl, (0.9, 0.1, 0.9, 0.9)), epochs=12)
    assert counted == pytest.approx([row["op_d_ece"] for row in monitor.history])
    assert [row["epoch"] for row in monitor.history] == [1, 3, 5]
    assert trainer.current_epoch == 6  # two measurements without a better one, not two epochs


def test_an_epoch_that_is_not_measured_logs_nothing_old(pl):
    seen = []

    class Look(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            seen.append("val/privacy/deid" in trainer.callback_metrics)

    fit(pl, [watch(every_n_epochs=2), Look()], epochs=4)
    assert seen == [False, True, False, True]


@pytest.mark.usefixtures("one_small_figure")
@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({"max_steps": 17}, [0, 2]),  # in the fourth epoch, the validations being of the first three
        ({"epochs": 9, "stop": True}, [0, 1]),
        ({"epochs": 3}, [0, 2]),
        ({"epochs": 1}, [0]),
    ],
)
def test_first_and_last_measurement_are_drawn_however_a_training_ends(pl, tmp_path, ends, expected):
    logger = tensorboard(pl, tmp_path)
    stop = callbacks.EarlyStopping("val/privacy/deid", mode="max", stopping_threshold=0.1, patience=9)
    monitor = watch(figures_every_n_epochs=100)
    more = [stop] if ends.pop("stop", False) else []
    fit(pl, [monitor, *more], anonymiser(pl, (1.0, 0.3)), **{"epochs": -1, **ends}, logger=logger)
    found = events(logger)
    steps = [event.step for event in found.Scalars("val/privacy/deid")]
    assert len(steps) == expected[-1] + 1
    assert [image.step for image in found.Images("val/privacy/zoo")] == [steps[at] for at in expected]


@pytest.mark.parametrize("interval", [1.0, 0.5])
def test_the_front_is_drawn_at_the_step_of_its_scalars(pl, tmp_path, interval):
    logger = tensorboard(pl, tmp_path / "log")
    checkpoint = keeper(budget=1.0, dirpath=tmp_path / "kept")
    monitor = watch(figures_every_n_epochs=None)
    fit(pl, [monitor, checkpoint], epochs=3, val_check_interval=interval, logger=logger)
    found = events(logger)
    scalars = {event.step for event in found.Scalars("val/privacy/deid")}
    drawn = {image.step for image in found.Images("val/privacy/op_d_ece/pareto_front")}
    assert len(drawn) >= 3
    assert drawn <= scalars


def test_beside_the_hyperparameters_stands_the_chosen_checkpoint(pl, tmp_path):
    logger = tensorboard(pl, tmp_path / "log", default_hp_metric=False)
    checkpoint = keeper(budget=0.5, dirpath=tmp_path / "kept")
    monitor = watch(figures_every_n_epochs=None)
    fit(pl, [monitor, checkpoint], anonymiser(pl, (0.3, 0.2, 1.0), (1.0, 2.0, 3.0)), epochs=3, logger=logger)
    assert checkpoint.chosen.epoch == 0
    (value,) = events(logger).Scalars("hp/val/privacy/deid")
    assert value.value == pytest.approx(monitor.history[0]["deid"])
    assert value.value != pytest.approx(monitor.history[-1]["deid"])


def test_spawned_processes_bring_history_and_front_home(tmp_path):
    script = """
        import json, sys
        from pathlib import Path
        import pytorch_lightning as pl
        import torch
        from training import QUIET, keeper, loader, protect, watch

        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(8, 1)

            def training_step(self, batch, _):
                return self.layer(batch[0]).square().mean()

            def validation_step(self, batch, _):
                original, noise, speakers = batch
                self.log("val/loss", 3.0 - self.current_epoch)
                protected = protect(original, noise, 0.3 + 0.3 * self.current_epoch)
                return {"original": original, "protected": protected, "speakers": speakers}

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 0.01)

        if __name__ == "__main__":
            monitor, checkpoint = watch(), keeper(budget=0.4, dirpath=sys.argv[1], save_top_k=-1)
            trainer = pl.Trainer(
                strategy="ddp_spawn", devices=2, max_epochs=3, callbacks=[monitor, checkpoint], logger=False, **QUIET
            )
            trainer.fit(Module(), loader(batch_size=6), loader(batch_size=6))
            assert checkpoint.chosen.path == checkpoint.best_model_path, checkpoint.best_model_path
            assert all(Path(point.path).exists() for point in checkpoint.pareto_front)
            home = [monitor.history, [point.epoch for point in checkpoint.pareto_front], checkpoint.chosen.disclosure]
            Path(sys.argv[1], "home.json").write_text(json.dumps(home))
    """
    run_script(tmp_path, script, tmp_path)
    history, front, disclosure = json.loads((tmp_path / "home.json").read_text())
    assert [row["epoch"] for row in history] == [0, 1, 2]
    assert front == [0, 1, 2]
    assert disclosure == {"val/privacy/op_d_ece": pytest.approx(history[0]["op_d_ece"])}
