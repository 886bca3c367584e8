"""When there is little to measure, or little to measure with."""

from __future__ import annotations

import sys
import warnings

import pytest
from torch.utils.data import DataLoader, TensorDataset
from training import (
    FIGURES,
    QUIET,
    anonymiser,
    assert_same,
    both_packages,
    by_hand,
    events,
    fit,
    keeper,
    loader,
    tensorboard,
    voices,
    watch,
)


@pytest.mark.usefixtures("one_small_figure")
def test_a_sanity_check_is_neither_logged_nor_kept(pl, tmp_path):
    logger = tensorboard(pl, tmp_path)
    seen = []

    def at_start(self):
        seen.append(dict(self.trainer.callback_metrics))

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", module=".*lightning.*")
        warnings.filterwarnings("ignore", module="torch")
        fit(pl, [watch()], anonymiser(pl, on_train_start=at_start), epochs=1, logger=logger)
    assert seen == [{}]
    assert len(events(logger).Scalars("val/privacy/deid")) == 1
    assert_same({"deid": events(logger).Scalars("val/privacy/deid")[0].value}, {"deid": by_hand(0.9)["deid"]})


@both_packages
def test_fast_dev_run_with_a_lone_speaker(pl, tmp_path):
    data = DataLoader(TensorDataset(*(part[:3] for part in voices(speakers=1))), 3)
    checkpoint = keeper(dirpath=tmp_path)
    with pytest.warns(UserWarning, match="The result is NaN"):
        trainer = fit(pl, [watch(), checkpoint], val=data, fast_dev_run=True)
    assert trainer.callback_metrics["val/privacy/deid"].isnan()
    assert list(tmp_path.iterdir()) == []


def test_figures_of_a_lone_speaker(pl, tmp_path):
    logger = tensorboard(pl, tmp_path)
    data = DataLoader(TensorDataset(*(part[:3] for part in voices(speakers=1))), 3)
    with pytest.warns(UserWarning, match="The result is NaN"):
        fit(pl, [watch(figures_every_n_epochs=1)], val=data, epochs=1, logger=logger)
    assert {f"val/privacy/{figure}" for figure in FIGURES} == set(events(logger).Tags()["images"])


def test_a_fit_without_validation(pl):
    trainer = pl.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, callbacks=[watch()], **QUIET)
    trainer.fit(anonymiser(pl), loader())
    assert trainer.callbacks[0].history == []


def test_without_matplotlib_there_are_scalars(pl, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    logger = tensorboard(pl, tmp_path)
    with pytest.warns(UserWarning, match="draws no figures: matplotlib is not installed"):
        fit(pl, [watch()], logger=logger, epochs=1)
    assert events(logger).Tags()["images"] == []
    assert len(events(logger).Scalars("val/privacy/deid")) == 1


def test_the_profiler_shows_the_cost(pl):
    trainer = fit(pl, [watch()], profiler="simple", epochs=2)
    assert len(trainer.profiler.recorded_durations["[Callback]PrivacyMonitor.compute"]) == 2
