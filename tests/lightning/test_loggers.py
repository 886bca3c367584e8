"""Figures in every logger that takes them, and a log in which the numbers that matter are not lost."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from training import FIGURES, HEADLINE, PACKAGES, anonymiser, events, fit, keeper, loader, tensorboard, watch

loggers = importlib.import_module(f"{PACKAGES[0]}.loggers")


class Recorder(loggers.CSVLogger):
    """A logger that keeps figures in a list."""

    def __init__(self, folder):
        super().__init__(folder)
        self.drawn = []


class LikeWandb(Recorder):
    def log_image(self, key, images, step=None):
        self.drawn += [(key, image, step) for image in images]


class LikeMlflow(Recorder):
    run_id = "7"

    @property
    def experiment(self):
        super().experiment.log_figure = lambda run, figure, file: self.drawn.append(
            (file.rpartition("/")[0], figure, int(Path(file).stem))
        )
        return super().experiment


class LikeComet(Recorder):
    @property
    def experiment(self):
        super().experiment.log_figure = lambda figure_name, figure, step: self.drawn.append((figure_name, figure, step))
        return super().experiment


@pytest.mark.parametrize("kind", [LikeWandb, LikeMlflow, LikeComet])
def test_every_way_of_taking_figures_is_used(pl, tmp_path, kind):
    logger = kind(tmp_path / "log")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="PrivacyMonitor draws")
        fit(pl, [watch(), keeper(budget=1.0, dirpath=tmp_path / "kept")], epochs=1, logger=logger)
    names = {f"val/privacy/{figure}" for figure in FIGURES} | {"val/privacy/op_d_ece/pareto_front"}
    assert {name for name, _, _ in logger.drawn} == names
    assert all(isinstance(figure, Figure) for _, figure, _ in logger.drawn)
    assert {step for _, _, step in logger.drawn} == {4}


def test_one_logger_that_takes_figures_is_enough(pl, tmp_path):
    pair = [loggers.CSVLogger(tmp_path / "csv"), tensorboard(pl, tmp_path / "board")]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="PrivacyMonitor draws")
        fit(pl, [watch()], epochs=1, logger=pair)
    assert len(events(pair[1]).Images("val/privacy/zoo")) == 1


def test_a_choice_of_scalars_is_shown_as_chosen(pl, tmp_path):
    logger = tensorboard(pl, tmp_path)
    fit(pl, [watch(metrics=["op_l_w", "oo_eer"], prog_bar=["oo_eer"])], epochs=1, logger=logger)
    names = {name for name in events(logger).Tags()["scalars"] if "privacy" in name and not name.startswith("hp/")}
    assert names == {"val/privacy/op_l_w", "val/privacy/oo_eer"}


def test_scalars_apart_keep_their_names_for_callbacks(pl, tmp_path):
    logger = loggers.CSVLogger(tmp_path)
    trainer = fit(pl, [watch(figures_every_n_epochs=None)], epochs=2, logger=logger)
    header = Path(logger.log_dir, "metrics.csv").read_text().splitlines()[0].split(",")
    assert "val/privacy/op_l_w" in trainer.callback_metrics
    assert "val/privacy/op_l_w" not in header
    assert "val_details/privacy/op_l_w" in header
    assert {name for name in header if name.startswith("val/privacy/")} == {f"val/privacy/{name}" for name in HEADLINE}


def test_weights_and_biases_offline(pl, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = loggers.WandbLogger(project="vpmetrics", save_dir=tmp_path, offline=True)
    fit(pl, [watch(), keeper(budget=1.0, dirpath=tmp_path / "kept")], epochs=2, logger=logger)
    summary = {key: logger.experiment.summary[key] for key in logger.experiment.summary.keys()}  # noqa: SIM118
    folder = Path(logger.experiment.dir)
    logger.experiment.finish()
    assert {f"val/privacy/{name}" for name in HEADLINE} <= set(summary)
    assert "val_details/privacy/op_l_w" in summary
    pictures = list((folder / "media" / "images").rglob("*.png"))
    assert {path.name.partition("_")[0] for path in pictures} >= {"quadrants", "zoo", "ranks", "path", "pareto"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


def test_mlflow_in_a_folder(pl, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = loggers.MLFlowLogger("vpmetrics", tracking_uri=f"file:{tmp_path}/mlruns")
    fit(pl, [watch()], epochs=1, logger=logger)
    pictures = list(Path(tmp_path, "mlruns").rglob("*.png"))
    assert {path.parent.name for path in pictures} == FIGURES
    assert {path.stem for path in pictures} == {"00000004"}
    values = logger.experiment.get_run(logger.run_id).data.metrics
    assert {f"val/privacy/{name}" for name in HEADLINE} <= set(values)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read as Linux tells it")
def test_memory_is_flat_over_two_hundred_epochs_with_figures(pl, tmp_path, monkeypatch):
    """One small figure each time: what figures hold, their number shows."""
    import gc

    from vpmetrics import _figures

    drawn = []

    def one(systems, _):
        figure = Figure((0.3, 0.3))
        drawn.append(len(systems[0].history))
        return {"zoo": figure}

    monkeypatch.setattr(_figures, "figures_of", one)
    held = []

    class Weigh(pl.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            if trainer.current_epoch in (50, 199):
                gc.collect()
                figures = sum(isinstance(thing, Figure) for thing in gc.get_objects())
                held.append((resident_megabytes(), figures))

    monitor = watch(figures_every_n_epochs=1, metrics=["deid", "op_d_ece", "op_d_ece_reversed"])
    checkpoint = keeper(budget=0.3, dirpath=tmp_path / "kept")
    options = {"epochs": 200, "logger": tensorboard(pl, tmp_path), "limit_train_batches": 1}
    fit(pl, [monitor, checkpoint, Weigh()], anonymiser(pl), val=loader(batch_size=24), **options)
    assert len(drawn) == 200
    (before, figures_before), (after, figures_after) = held
    assert figures_after == figures_before
    # What is kept on purpose is a row of some 80 numbers per measurement: 150 of them in less than 3 MB.
    assert after - before < 10


def resident_megabytes():
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024
