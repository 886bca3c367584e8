"""Which checkpoints are kept, and which is chosen."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch
from training import (
    LOSSES,
    PACKAGES,
    SHARES,
    anonymiser,
    assert_same,
    both_packages,
    by_hand,
    events,
    fit,
    keeper,
    loader,
    names_in,
    tensorboard,
    watch,
)

from vpmetrics.lightning.checkpoint import PrivacyCheckpoint


@pytest.mark.parametrize(
    ("pl", "mode"),
    [(importlib.import_module(PACKAGES[0]), "min"), (importlib.import_module(PACKAGES[1]), "max")],
    ids=["pytorch_lightning-min", "lightning.pytorch-max"],
)
def test_best_utility_within_the_budget(pl, tmp_path, mode):
    logger = tensorboard(pl, tmp_path / "log")
    checkpoint = keeper(budget=0.4, mode=mode, dirpath=tmp_path / "kept", filename="{epoch}")
    losses = LOSSES if mode == "min" else [-loss for loss in LOSSES]
    module = anonymiser(pl, SHARES, losses)
    monitor = watch(figures_every_n_epochs=None)
    trainer = fit(pl, [checkpoint, monitor], module, epochs=5, logger=logger)
    leaks = [by_hand(share)["op_d_ece"] for share in SHARES]
    # The last leaks more than the fourth and is worth less; of the others, each leaks less where it is worth less.
    assert leaks[1] < leaks[3] < 0.4 < leaks[2] < leaks[0]
    assert leaks[3] < leaks[4]
    assert names_in(tmp_path / "kept") == ["epoch=0.ckpt", "epoch=1.ckpt", "epoch=2.ckpt", "epoch=3.ckpt"]
    assert checkpoint.best_model_path == str(tmp_path / "kept" / "epoch=3.ckpt")
    assert checkpoint.best_model_score == losses[3]
    assert checkpoint.within_budget
    assert [point.epoch for point in checkpoint.pareto_front] == [1, 3, 2, 0]
    assert [point.utility for point in checkpoint.pareto_front] == [losses[epoch] for epoch in (1, 3, 2, 0)]
    found = [point.disclosure["val/privacy/op_d_ece"] for point in checkpoint.pareto_front]
    assert found == pytest.approx([leaks[epoch] for epoch in (1, 3, 2, 0)])
    # It reloads, and is the one meant.
    assert type(module).load_from_checkpoint(checkpoint.best_model_path).trained == 4
    trainer.test(module, loader(), ckpt_path="best", verbose=False)
    assert module.trained == 4
    # Loading it for a test has not taken the callbacks back to the epoch it was saved in.
    assert len(monitor.history) == 5
    assert len(checkpoint.pareto_front) == 4
    assert torch.load(checkpoint.best_model_path, weights_only=True)["epoch"] == 3
    images = events(logger).Images("val/privacy/op_d_ece/pareto_front")
    assert len(images) == 4
    written = json.loads((tmp_path / "kept" / "pareto_front.json").read_text())
    assert written["chosen"] == "epoch=3.ckpt"
    assert written["privacy"] == {"val/privacy/op_d_ece": 0.4}
    assert [(point["path"], point["within_budget"]) for point in written["points"]] == [
        ("epoch=1.ckpt", True), ("epoch=3.ckpt", True), ("epoch=2.ckpt", False), ("epoch=0.ckpt", False),
    ]  # fmt: skip


def test_dominated_files_are_removed(pl, tmp_path):
    checkpoint = keeper(budget=0.4, dirpath=tmp_path, filename="{epoch}")
    fit(pl, [watch(), checkpoint], anonymiser(pl, (0.9, 0.6, 0.3), (3.0, 2.0, 1.0)), epochs=3)
    assert names_in(tmp_path) == ["epoch=2.ckpt"]
    assert [point.epoch for point in checkpoint.pareto_front] == [2]


def test_least_disclosure_where_none_meets_the_budget(pl, tmp_path):
    checkpoint = keeper(budget=0.0, dirpath=tmp_path, filename="{epoch}")
    with pytest.warns(UserWarning, match="No checkpoint meets the budget"):
        fit(pl, [watch(), checkpoint], anonymiser(pl, SHARES[::2], LOSSES[::2]), epochs=3)
    leaks = [by_hand(share)["op_d_ece"] for share in SHARES[::2]]
    assert Path(checkpoint.best_model_path).stem == f"epoch={leaks.index(min(leaks))}"
    assert not checkpoint.within_budget
    assert json.loads((tmp_path / "pareto_front.json").read_text())["within_budget"] is False


def test_several_budgets(pl, tmp_path):
    rows = [by_hand(share) for share in SHARES]
    budgets = {"val/privacy/op_d_ece": 0.5, "val/privacy/op_l_w": 1.6}
    checkpoint = keeper(list(budgets), list(budgets.values()), dirpath=tmp_path, filename="{epoch}")
    fit(pl, [watch(), checkpoint], anonymiser(pl, SHARES, LOSSES), epochs=5)
    within = [e for e, row in enumerate(rows) if all(row[name[12:]] <= limit for name, limit in budgets.items())]
    assert within == [1, 3]
    assert rows[2]["op_d_ece"] < 0.5
    assert Path(checkpoint.best_model_path).stem == f"epoch={min(within, key=lambda epoch: LOSSES[epoch])}"


def test_only_measured_weights_are_saved(pl, tmp_path):
    checkpoint = keeper(budget=1.0, dirpath=tmp_path, filename="{epoch}")
    # A better loss in the epochs between must not be paired with the disclosure of the epoch before.
    module = anonymiser(pl, (0.9, 0.6, 0.9, 0.3), (0.1, 2.0, 0.1, 3.0))
    fit(pl, [watch(every_n_epochs=2), checkpoint], module)
    assert names_in(tmp_path) == ["epoch=1.ckpt", "epoch=3.ckpt"]


def test_nothing_measured_nothing_saved(pl, tmp_path):
    with pytest.warns(UserWarning, match="PrivacyCheckpoint has saved nothing"):
        fit(pl, [watch(every_n_epochs=3), keeper(dirpath=tmp_path)], epochs=2)
    assert names_in(tmp_path) == []


def test_what_is_not_finite_is_not_saved(pl, tmp_path):
    checkpoint = keeper(budget=1.0, dirpath=tmp_path, filename="{epoch}")
    module = anonymiser(pl, (0.6, 0.3), (float("nan"), 1.0))
    with pytest.warns(UserWarning, match="saves nothing of epoch 0: .*val/loss is nan"):
        fit(pl, [watch(), checkpoint], module, epochs=2)
    assert names_in(tmp_path) == ["epoch=1.ckpt"]


def test_scalars_of_another_source_and_of_a_training_step(pl, tmp_path):
    def step(self, batch, batch_idx):
        self.log("train/loss", float(self.current_epoch), on_epoch=True, on_step=False)
        return self.layer(batch[0]).square().mean()

    checkpoint = PrivacyCheckpoint("val/loss", 2.5, "train/loss", dirpath=tmp_path, filename="{epoch}")
    fit(pl, [checkpoint], anonymiser(pl, training_step=step))
    assert Path(checkpoint.best_model_path).stem == "epoch=2"


@both_packages
def test_resumed_in_mid_run(pl, tmp_path):
    def run(folder, epochs, ckpt_path=None):
        checkpoint = keeper(budget=0.4, dirpath=folder, filename="{epoch}", save_last=True)
        monitor = watch()
        fit(pl, [monitor, checkpoint], anonymiser(pl, SHARES, LOSSES), epochs=epochs, ckpt_path=ckpt_path)
        return monitor, checkpoint

    whole, expected = run(tmp_path / "whole", 5)
    run(tmp_path / "parts", 2)
    monitor, checkpoint = run(tmp_path / "parts", 5, tmp_path / "parts" / "last.ckpt")
    assert [row["epoch"] for row in monitor.history] == [0, 1, 2, 3, 4]
    for row, other in zip(monitor.history, whole.history, strict=True):
        assert_same({**row, "seconds": 0}, {**other, "seconds": 0})
    assert [point._replace(path="") for point in checkpoint.pareto_front] == [
        point._replace(path="") for point in expected.pareto_front
    ]
    assert Path(checkpoint.best_model_path).name == Path(expected.best_model_path).name
    assert all(Path(point.path).exists() for point in checkpoint.pareto_front)


def test_resumed_in_another_folder_with_another_budget(pl, tmp_path):
    first = keeper(budget=0.4, dirpath=tmp_path / "a", filename="{epoch}", save_last=True)
    fit(pl, [watch(), first], anonymiser(pl, SHARES, LOSSES))
    (tmp_path / "a" / "epoch=2.ckpt").unlink()
    second = keeper(budget=0.7, dirpath=tmp_path / "b", filename="{epoch}")
    module = anonymiser(pl, SHARES, LOSSES)
    fit(pl, [watch(), second], module, epochs=5, ckpt_path=tmp_path / "a" / "last.ckpt")
    # The fifth epoch is on the front now that the third, which dominated it, has been removed by hand.
    front = {point.epoch: Path(point.path) for point in second.pareto_front}
    assert sorted(front) == [0, 1, 3]
    assert all(path.exists() for path in front.values())
