"""Several loaders to validate on: wrong names are found before the first batch, right ones are not warned of."""

from __future__ import annotations

import importlib
import warnings

import pytest
from training import anonymiser, both_packages, fit, keeper, loader, watch

TWO = "with 2 loaders to validate on PrivacyMonitor logs '{0}/dataloader_idx_0', '{0}/dataloader_idx_1'"


@both_packages
@pytest.mark.parametrize("sanity", [0, 2])
def test_a_name_without_the_number_of_a_loader_is_found_before_the_first_batch(pl, tmp_path, sanity):
    batches = []
    module = anonymiser(pl, on_train_batch_start=lambda self, *_: batches.append("too late"))
    callbacks = [watch(), keeper(utility="val/loss/dataloader_idx_0", dirpath=tmp_path)]
    with pytest.raises(ValueError, match=TWO.format("val/privacy/op_d_ece")):
        fit(pl, callbacks, module, val=[loader(), loader(seed=1)], num_sanity_val_steps=sanity)
    assert batches == []


@pytest.mark.parametrize("number", [0, 2])
def test_a_number_of_a_loader_there_is_none_of_is_found_before_the_first_batch(pl, tmp_path, number):
    val = loader() if number == 0 else [loader(), loader(seed=1)]
    with pytest.raises(ValueError, match=f"watches 'val/privacy/op_d_ece/dataloader_idx_{number}', but with"):
        fit(pl, [watch(), keeper(f"val/privacy/op_d_ece/dataloader_idx_{number}", dirpath=tmp_path)], val=val)


def test_right_names_are_not_warned_of(pl, tmp_path):
    checkpoint = keeper(
        "val/privacy/op_d_ece/dataloader_idx_1", 1.0, utility="val/loss/dataloader_idx_0", dirpath=tmp_path
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*has not logged")
        fit(pl, [watch(), checkpoint], val=[loader(), loader(seed=1)], epochs=1)
    assert len(checkpoint.pareto_front) == 1


def test_a_utility_without_the_number_of_a_loader_is_found_in_the_sanity_check(pl, tmp_path):
    steps = []
    module = anonymiser(pl, on_train_start=lambda self: steps.append("too late"))
    checkpoint = keeper("val/privacy/op_d_ece/dataloader_idx_1", dirpath=tmp_path)
    said = "watches 'val/loss', but the sanity check .* Closest: 'val/loss/dataloader_idx_0'"
    with pytest.raises(ValueError, match=said):
        fit(pl, [watch(), checkpoint], module, val=[loader(), loader(seed=1)])
    assert steps == []


def test_loaders_combined_into_one_have_one_name(pl, tmp_path):
    combined = importlib.import_module(f"{pl.__name__}.utilities").CombinedLoader([loader(), loader()], "max_size")

    def step(self, batch, batch_idx):
        self.log("val/loss", 1.0)
        return dict(zip(("original", "protected", "speakers"), batch[0], strict=True))

    checkpoint = keeper(budget=1.0, dirpath=tmp_path)
    fit(pl, [watch(), checkpoint], anonymiser(pl, validation_step=step), val=combined, epochs=1)
    assert len(checkpoint.pareto_front) == 1


def test_a_first_validation_after_some_epochs_is_waited_for(pl, tmp_path):
    """How many loaders there are is then not known at the start."""
    checkpoint = keeper(budget=1.0, dirpath=tmp_path)
    fit(pl, [watch(), checkpoint], epochs=2, check_val_every_n_epoch=2, num_sanity_val_steps=0)
    assert [point.epoch for point in checkpoint.pareto_front] == [1]
