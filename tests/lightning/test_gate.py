"""A budget that cannot be met by a trick, and what is said of one that can."""

from __future__ import annotations

import warnings

import pytest
import torch
from training import anonymiser, fit, keeper, loader, watch

from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor

WEAK = "PrivacyCheckpoint watches '{}', the measure of an attacker who compares embeddings as they are"


def anonymiser_by(pl, protect):
    def step(self, batch, batch_idx):
        self.log("val/loss", 1.0)
        return {"original": batch[0], "protected": protect(batch[0]), "speakers": batch[2]}

    return anonymiser(pl, validation_step=step)


@pytest.mark.filterwarnings("ignore:No checkpoint meets the budget")
def test_turning_every_embedding_round_is_not_within_budget(pl, tmp_path):
    checkpoint = keeper("val/privacy/op_d_ece", 0.05, dirpath=tmp_path)
    trainer = fit(pl, [watch(), checkpoint], anonymiser_by(pl, torch.neg), epochs=1)
    assert trainer.callback_metrics["val/privacy/op_d_ece"] < 0.05
    assert not checkpoint.within_budget
    assert checkpoint.chosen.disclosure == {
        "val/privacy/op_d_ece": pytest.approx(trainer.callback_metrics["val/privacy/op_d_ece_reversed"].item())
    }


@pytest.mark.filterwarnings("ignore:No checkpoint meets the budget")
def test_by_default_the_strongest_attack_is_watched(pl, tmp_path):
    """A rotation hides everybody from cosine, and nobody from who has run the anonymiser on others."""
    checkpoint = PrivacyCheckpoint(dirpath=tmp_path)
    assert checkpoint.budgets == {"val/privacy/op_d_ece_strongest": 0.05}
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(4)))[0]
    data = loader(speakers=16, utterances=6, batch_size=96)
    module = anonymiser_by(pl, lambda x: x @ rotation)
    trainer = fit(pl, [PrivacyMonitor(), checkpoint], module, val=data, epochs=1, num_sanity_val_steps=0)
    found = {name: trainer.callback_metrics[f"val/privacy/op_{name}"] for name in ("d_ece", "d_ece_strongest")}
    assert found["d_ece"] < 0.05 < 0.3 < found["d_ece_strongest"]
    assert not checkpoint.within_budget


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("val/privacy/op_d_ece", False),
        ("val/privacy/pp_l_w", True),
        ("val/privacy/op_max_d", False),
    ],
)
def test_a_weak_attackers_measure_is_taken_with_a_warning_of_what_it_misses(pl, tmp_path, name, direction):
    with pytest.warns(UserWarning, match=WEAK.format(name)) as said:
        fit(pl, [watch(), keeper(name, 9.0, dirpath=tmp_path)], epochs=1)
    (text,) = (str(one.message) for one in said if "measure of an attacker" in str(one.message))
    assert ("in one direction only: `protected = -original` passes" in text) == direction
    assert f"watch '{name[12:14]}_d_ece_strongest', too" in text


def test_one_direction_without_the_other_is_warned_of(pl, tmp_path):
    monitor = watch(metrics=["deid", "op_d_ece"])
    with pytest.warns(UserWarning, match="in one direction only: `protected = -original` passes"):
        fit(pl, [monitor, keeper(budget=1.0, dirpath=tmp_path)], epochs=1)


def test_no_warning_beside_the_strongest_attack_nor_of_names_of_others(pl, tmp_path):
    budgets = {"val/privacy/op_d_ece_strongest": 1.0, "val/privacy/op_l_w": 9.0}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="PrivacyCheckpoint")
        fit(pl, [PrivacyMonitor(), PrivacyCheckpoint(budgets, dirpath=tmp_path)], epochs=1)
        fit(pl, [keeper("val/loss", 9.0, utility="val/loss", dirpath=tmp_path / "b")], epochs=1)


def test_a_disclosure_that_is_not_a_number_in_one_direction_is_not_one_in_both(pl, tmp_path):
    def step(self, batch, batch_idx):
        self.log_dict({"val/loss": 1.0, "val/leak": 0.0, "val/leak_reversed": float("nan")})

    checkpoint = keeper("val/leak", dirpath=tmp_path)
    with pytest.warns(UserWarning, match="saves nothing of epoch 0: val/leak is nan"):
        fit(pl, [checkpoint], anonymiser(pl, validation_step=step), epochs=1)
    assert checkpoint.chosen is None


def test_the_chosen_point_says_what_it_is(pl, tmp_path):
    checkpoint = keeper(budget=1.0, dirpath=tmp_path, filename="{epoch}")
    assert checkpoint.chosen is None
    assert not checkpoint.within_budget
    fit(pl, [watch(), checkpoint], epochs=2)
    assert checkpoint.chosen.epoch == 1
    assert checkpoint.chosen.utility == 3.0
    assert checkpoint.chosen.path == checkpoint.best_model_path == str(tmp_path / "epoch=1.ckpt")
    assert checkpoint.chosen in checkpoint.pareto_front
    assert checkpoint.within_budget


def test_checkpoints_of_different_budgets_and_folders_live_in_one_trainer(pl, tmp_path):
    shares, losses = (1.0, 0.3, 0.6), (1.0, 3.0, 2.0)
    strict, loose = keeper(budget=0.35, dirpath=tmp_path), keeper(budget=0.5, dirpath=tmp_path)
    apart = keeper(budget=0.5, dirpath=tmp_path / "apart")
    fit(pl, [watch(), strict, loose, apart], anonymiser(pl, shares, losses), epochs=3)
    assert (strict.chosen.epoch, loose.chosen.epoch, apart.chosen.epoch) == (1, 2, 2)
    paths = [point.path for one in (strict, loose, apart) for point in one.pareto_front]
    assert len(set(paths)) == 9
    for one in (strict, loose, apart):
        assert torch.load(one.best_model_path, weights_only=True)["epoch"] == one.chosen.epoch
    assert {path.name for path in tmp_path.glob("*.json")} == {"pareto_front.json", "pareto_front-v1.json"}
