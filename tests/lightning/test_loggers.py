"""What stands in the logs: groups of scalars, figures in every logger that takes them, charts, hyperparameters."""

import gc
import importlib
import sys
import warnings
from pathlib import Path

import pytest
import torch
from leaking_voices import LOSSES, NAMES, SHARES, by_hand, loader, voices
from matplotlib.figure import Figure
from tensorboard.plugins.custom_scalar import layout_pb2
from torch.utils.data import DataLoader, TensorDataset
from training import PACKAGES, QUIET, anonymiser, assert_same, both_packages, events, fit, keeper, tensorboard, watch

from vpmetrics.lightning import PrivacyMonitor

MAIN = {"disclosure", "deid", "gvd", "op_d_ece", "pp_d_ece", "op_eer", "pp_eer"}
loggers = importlib.import_module(f"{PACKAGES[0]}.loggers")


@both_packages
def test_tensorboard_holds_every_scalar_and_figure_at_its_step(pl, tmp_path, some_figures):
    logger = tensorboard(pl, tmp_path)
    monitor = watch(metrics="all", figures_every_n_epochs=2)
    fit(pl, [monitor], logger=logger, epochs=3)
    log = events(logger)
    steps = [event.step for event in log.Scalars("val/loss")]
    assert set(monitor.main_metrics) > MAIN
    for key in monitor.metrics:
        scalars = log.Scalars(f"{'val' if key in monitor.main_metrics else 'val_details'}/privacy/{key}")
        assert [event.step for event in scalars] == steps
        assert_same([event.value for event in scalars], dict(enumerate(row[key] for row in monitor.history)))
    assert set(log.Tags()["images"]) == {f"val_figures/privacy/{figure}" for figure in some_figures}
    for tag in log.Tags()["images"]:
        assert [image.step for image in log.Images(tag)] == steps
        assert all(image.encoded_image_string.startswith(b"\x89PNG") for image in log.Images(tag))


@pytest.mark.parametrize("metrics", ["headline", "all"])
@pytest.mark.parametrize("keys", [NAMES, {name: name for name in (*NAMES, "sessions")}])
def test_the_main_group_has_at_most_25_scalars(metrics, keys):
    monitor = PrivacyMonitor(metrics=metrics, intervals=0.95, keys=keys)
    assert 15 < len(monitor.main_metrics) <= 25
    assert not any(key.endswith(("_low", "_high")) for key in monitor.main_metrics)


@pytest.mark.usefixtures("one_small_figure")
def test_charts_join_attacks_conditions_and_intervals_by_tags_that_exist(pl, tmp_path):
    logger = tensorboard(pl, tmp_path)
    metrics = ["op_d_ece", "op_d_ece_strongest", "pp_d_ece_strongest", "op_d_ece_chance"]
    monitors = [PrivacyMonitor(metrics=metrics, intervals=0.9), watch(metrics=["deid", "oo_eer"], prefix="val/other")]
    fit(pl, [*monitors, keeper(budget=1.0, dirpath=tmp_path)], epochs=2, logger=logger)
    log = events(logger)
    (event,) = log.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(event.tensor_proto.string_val[0])
    # The other monitor has nothing to join.
    assert [category.title for category in layout.category] == ["val/privacy", "val/privacy, confidence intervals"]
    charts = {chart.title: chart for category in layout.category for chart in category.chart}
    lines = charts["op: strongest attack, cosine and chance"].multiline.tag
    assert [tag.strip("^$") for tag in lines] == [f"val/privacy/op_d_ece{end}" for end in ("_strongest", "", "_chance")]
    assert len(charts["d_ece_strongest of each condition"].multiline.tag) == 2
    (margin,) = charts["op_d_ece"].margin.series
    ends = [f"val_details/privacy/op_d_ece_{end}" for end in ("low", "high")]
    assert [margin.value, margin.lower, margin.upper] == ["val/privacy/op_d_ece", *ends]
    assert {margin.value, *ends} <= set(log.Tags()["scalars"])


@pytest.mark.usefixtures("one_small_figure")
def test_hyperparameters_stand_once_and_add_no_points(pl, tmp_path):
    logger = tensorboard(pl, tmp_path / "log", default_hp_metric=False)
    checkpoint = keeper(budget=0.5, dirpath=tmp_path / "kept")
    fit(pl, [watch(), checkpoint], anonymiser(pl, (0.3, 0.2, 1.0), (1.0, 2.0, 3.0)), epochs=3, logger=logger)
    log = events(logger)
    assert "_hparams_/session_start_info" in log.summary_metadata
    experiment = log.summary_metadata["_hparams_/experiment"].plugin_data.content
    assert b"val/privacy/deid" in experiment
    assert b"val_chosen/privacy/op_d_ece" in experiment
    assert not any(tag.startswith("hp") for tag in log.Tags()["scalars"])
    assert all(len(log.Scalars(tag)) > 1 for tag in log.Tags()["scalars"])
    assert checkpoint.chosen.epoch == 0
    values = [event.value for event in log.Scalars("val_chosen/privacy/op_d_ece")]
    assert values == pytest.approx([by_hand(0.3)["op_d_ece"]] * 3)


def test_csv_has_the_scalars_and_no_figures(pl, tmp_path):
    logger = loggers.CSVLogger(tmp_path)
    with pytest.warns(UserWarning, match="draws no figures: CSVLogger cannot take figures") as caught:
        trainer = fit(pl, [watch(metrics="all")], logger=logger, epochs=2)
    assert sum("draws no figures" in str(warning.message) for warning in caught) == 1
    header, *rows = Path(logger.log_dir, "metrics.csv").read_text().splitlines()
    names = header.split(",")
    values = [float(cell) for row in rows if (cell := row.split(",")[names.index("val/privacy/op_d_ece")])]
    assert values == pytest.approx([by_hand(share)["op_d_ece"] for share in (0.9, 0.6)])
    assert "val_details/privacy/oo_eer" in names
    assert "val/privacy/oo_eer" in trainer.callback_metrics


class Recorder(loggers.CSVLogger):
    """A logger that keeps figures as Weights & Biases, MLflow or Comet would."""

    def __init__(self, folder, kind):
        super().__init__(folder)
        self.drawn = drawn = []
        if kind == "wandb":
            self.log_image = lambda tag, images, step: drawn.extend((tag, image, step) for image in images)
        elif kind == "mlflow":
            self.run_id = "7"
            self.experiment.log_figure = lambda run, figure, file: drawn.append((file[:-13], figure, int(file[-12:-4])))
        else:
            self.experiment.log_figure = lambda figure_name, figure, step: drawn.append((figure_name, figure, step))


@pytest.mark.usefixtures("one_small_figure")
@pytest.mark.parametrize("kind", ["wandb", "mlflow", "comet"])
def test_figures_reach_every_kind_of_logger(pl, tmp_path, kind):
    pair = [Recorder(tmp_path / "log", kind), loggers.CSVLogger(tmp_path / "csv")]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="PrivacyMonitor draws")
        fit(pl, [watch(), keeper(budget=1.0, dirpath=tmp_path / "kept")], epochs=1, logger=pair)
    names = {"val_figures/privacy/zoo", "val_figures/privacy/op_d_ece/pareto_front"}
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


@pytest.mark.parametrize("interval", [1.0, 0.5])
def test_the_front_is_drawn_at_the_step_of_its_scalars(pl, tmp_path, interval):
    logger = tensorboard(pl, tmp_path / "log")
    callbacks = [watch(figures_every_n_epochs=None), keeper(budget=1.0, dirpath=tmp_path / "kept")]
    fit(pl, callbacks, anonymiser(pl, SHARES, LOSSES), epochs=3, val_check_interval=interval, logger=logger)
    log = events(logger)
    measured = {event.step for event in log.Scalars("val/privacy/deid")}
    drawn = {image.step for image in log.Images("val_figures/privacy/op_d_ece/pareto_front")}
    chosen = {event.step for event in log.Scalars("val_chosen/loss")}
    assert len(drawn) >= 3
    assert drawn <= measured
    assert chosen <= measured


@pytest.mark.usefixtures("one_small_figure")
def test_figures_do_not_leak_memory_over_thirty_epochs(pl, tmp_path):
    counts = []

    class Count(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch in (9, 29):
                gc.collect()
                tracked = gc.get_objects()
                counts.append((len(tracked), sum(issubclass(type(thing), (Figure, torch.Tensor)) for thing in tracked)))

    monitor = watch(figures_every_n_epochs=1, metrics=["deid", "op_d_ece", "op_d_ece_reversed"])
    checkpoint = keeper(budget=0.3, dirpath=tmp_path / "kept")
    options = {"epochs": 30, "logger": tensorboard(pl, tmp_path), "limit_train_batches": 1}
    fit(pl, [monitor, checkpoint, Count()], val=loader(batch_size=24), **options)
    (before, held_before), (after, held_after) = counts
    assert held_after <= held_before + 4  # tensors of the files that are kept
    assert after - before < 20 * 5  # a row of numbers, a point and its parts
