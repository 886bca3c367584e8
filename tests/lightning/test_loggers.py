"""What stands in the logs: groups of scalars, and figures in every logger that takes them."""

import gc
import importlib
import re
import sys
import warnings
from pathlib import Path

import pytest
import torch
from leaking_voices import NAMES, by_hand, loader, voices
from matplotlib.figure import Figure
from torch.utils.data import DataLoader, TensorDataset
from training import (
    PACKAGES,
    QUIET,
    anonymiser,
    assert_same,
    both_packages,
    events,
    fit,
    keeper,
    tensorboard,
    watch,
)

from vpmetrics.lightning import PrivacyMonitor
from vpmetrics.lightning.monitor import name_of_key

loggers = importlib.import_module(f"{PACKAGES[0]}.loggers")


@both_packages
def test_tensorboard_holds_every_scalar_and_figure_at_its_step(pl, tmp_path, some_figures):
    logger = tensorboard(pl, tmp_path)
    monitor = watch(metrics="all", figures_every_n_epochs=2)
    fit(pl, [monitor], logger=logger, epochs=3)
    log = events(logger)
    steps = [event.step for event in log.Scalars("val/loss")]
    measured = [key for key in monitor.metrics if key in monitor.history[0]]
    assert {"deid", "op_d_ece", "oo_eer"} < set(measured)
    for key in measured:
        scalars = log.Scalars(name_of_key("val/privacy", key))
        assert [event.step for event in scalars] == steps
        assert_same(
            [event.value for event in scalars], dict(enumerate(row[key] for row in monitor.history))
        )
    assert set(log.Tags()["images"]) == {f"val_figures/privacy/{figure}" for figure in some_figures}
    for tag in log.Tags()["images"]:
        assert [image.step for image in log.Images(tag)] == steps
        assert all(image.encoded_image_string.startswith(b"\x89PNG") for image in log.Images(tag))


@pytest.mark.parametrize("keys", [NAMES, {name: name for name in (*NAMES, "sessions")}])
def test_the_first_group_holds_the_keys_without_a_condition(keys):
    monitor = PrivacyMonitor(keys=keys, intervals=0.95)
    first = [name for name in monitor.logged_names if name.startswith("val/privacy/")]
    assert {"val/privacy/disclosure", "val/privacy/disclosure_high", "val/privacy/deid"} < set(
        first
    )
    others = set(monitor.logged_names) - set(first)
    assert all(
        re.fullmatch(r"val/privacy_conditions/(op|pp|across|within)_[\w-]+", name)
        for name in others
    )
    # TensorBoard sorts by name.
    assert sorted(monitor.logged_names)[: len(first)] == sorted(first)


@pytest.mark.usefixtures("one_small_figure")
def test_a_log_holds_scalars_and_figures_alone(pl, tmp_path):
    logger = tensorboard(pl, tmp_path / "log", default_hp_metric=False)
    fit(pl, [watch(), keeper(budget=0.5, dirpath=tmp_path / "kept")], epochs=2, logger=logger)
    log = events(logger)
    assert log.Tags()["tensors"] == []
    assert {tag.split("/")[0] for tag in log.Tags()["scalars"]} <= {"val", "epoch"}
    assert {tag.split("/")[0] for tag in log.Tags()["images"]} == {"val_figures"}


def test_csv_has_the_scalars_and_no_figures(pl, tmp_path):
    logger = loggers.CSVLogger(tmp_path)
    with pytest.warns(
        UserWarning, match="draws no figures: CSVLogger cannot take figures"
    ) as caught:
        trainer = fit(pl, [watch(metrics="all")], logger=logger, epochs=2)
    assert sum("draws no figures" in str(warning.message) for warning in caught) == 1
    header, *rows = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    names = header.split(",")
    values = [
        float(cell)
        for row in rows
        if (cell := row.split(",")[names.index("val/privacy_conditions/op_d_ece")])
    ]
    assert values == pytest.approx([by_hand(share)["op_d_ece"] for share in (0.9, 0.6)])
    assert "val/privacy_conditions/oo_eer" in names
    assert "val/privacy_conditions/oo_eer" in trainer.callback_metrics


class Recorder(loggers.CSVLogger):
    """A logger that keeps figures as Weights & Biases, MLflow or Comet would."""

    def __init__(self, folder, kind):
        super().__init__(folder)
        self.drawn = drawn = []
        if kind == "wandb":
            self.log_image = lambda tag, images, step: drawn.extend(
                (tag, image, step) for image in images
            )
        elif kind == "mlflow":
            self.run_id = "7"
            self.experiment.log_figure = lambda run, figure, file: drawn.append(
                (file[:-13], figure, int(file[-12:-4]))
            )
        else:
            self.experiment.log_figure = lambda figure_name, figure, step: drawn.append(
                (figure_name, figure, step)
            )


@pytest.mark.usefixtures("one_small_figure")
@pytest.mark.parametrize("kind", ["wandb", "mlflow", "comet"])
def test_figures_reach_every_kind_of_logger(pl, tmp_path, kind):
    pair = [Recorder(tmp_path / "log", kind), loggers.CSVLogger(tmp_path / "csv")]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="PrivacyMonitor draws")
        fit(pl, [watch(), keeper(budget=0.7213, dirpath=tmp_path / "kept")], epochs=1, logger=pair)
    names = {"val_figures/privacy/zoo", "val_figures/privacy_conditions/op_d_ece/utility"}
    assert {name for name, _, _ in pair[0].drawn} == names
    assert all(isinstance(figure, Figure) and step == 4 for _, figure, step in pair[0].drawn)


def test_figures_are_drawn_in_test_and_for_one_speaker(pl, tmp_path, some_figures):
    logger = tensorboard(pl, tmp_path)
    trainer = pl.Trainer(logger=logger, callbacks=[watch()], enable_checkpointing=False, **QUIET)
    trainer.test(anonymiser(pl), loader(), verbose=False)
    images = set(events(logger).Tags()["images"])
    assert images == {f"test_figures/privacy/{figure}" for figure in some_figures}
    logger = tensorboard(pl, tmp_path)
    data = DataLoader(TensorDataset(*(part[:3] for part in voices(speakers=1))), 3)
    with pytest.warns(UserWarning, match="The result is NaN"):
        fit(pl, [watch()], val=data, epochs=1, logger=logger)
    assert "val_figures/privacy/quadrants" in events(logger).Tags()["images"]


def test_without_matplotlib_there_are_scalars(pl, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    logger = tensorboard(pl, tmp_path)
    with pytest.warns(UserWarning, match="draws no figures: matplotlib is not installed"):
        fit(pl, [watch()], logger=logger, epochs=1)
    assert events(logger).Tags()["images"] == []
    assert len(events(logger).Scalars("val/privacy/deid")) == 1


@pytest.mark.usefixtures("one_small_figure")
def test_figures_do_not_leak_memory_over_thirty_epochs(pl, tmp_path):
    counts = []

    class Count(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch in (9, 29):
                gc.collect()
                tracked = gc.get_objects()
                counts.append(
                    (
                        len(tracked),
                        sum(issubclass(type(thing), (Figure, torch.Tensor)) for thing in tracked),
                    )
                )

    monitor = watch(figures_every_n_epochs=1, metrics=["deid", "op_d_ece", "op_d_ece_reversed"])
    checkpoint = keeper(budget=0.3, dirpath=tmp_path / "kept")
    options = {"epochs": 30, "logger": tensorboard(pl, tmp_path), "limit_train_batches": 1}
    fit(pl, [monitor, checkpoint, Count()], val=loader(batch_size=24), **options)
    (before, held_before), (after, held_after) = counts
    assert held_after <= held_before + 4  # tensors of the files that are kept
    assert after - before < 20 * 5  # a row of numbers and a validation
