"""Which checkpoint is chosen, what is on disk, and which names and arguments are wrong."""

import math
import pickle
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from extras import import_or_skip
from leaking_voices import LOSSES, NAMES, SHARES, by_hand, loader
from training import (
    PACKAGES,
    anonymiser,
    assert_same,
    both_packages,
    events,
    fit,
    keeper,
    names_in,
    tensorboard,
    watch,
)

from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor, Validation

NAME = "val/privacy_conditions/op_d_ece"
SMALL = {"metrics": ["deid", "op_d_ece"]}


def log_rows(pl, *rows):
    """A module that logs given values in each epoch, and 1 as loss."""
    values = [
        {"val/loss": 1.0, **{f"val/{name}": value for name, value in row.items()}} for row in rows
    ]
    return anonymiser(
        pl, validation_step=lambda self, *_: self.log_dict(values[self.current_epoch])
    )


def keep(pl, folder, module, epochs, budget=0.4, ckpt_path=None, **options):
    """Train with checkpoints named by epoch; return the callbacks."""
    checkpoint = keeper(budget=budget, dirpath=folder, filename="{epoch}", **options)
    monitor = watch(**SMALL)
    fit(pl, [monitor, checkpoint], module, epochs=epochs, ckpt_path=ckpt_path)
    return checkpoint, monitor


@pytest.mark.parametrize(("package", "mode"), list(zip(PACKAGES, ("min", "max"), strict=True)))
def test_best_utility_within_the_budget(package, tmp_path, mode):
    pl = import_or_skip(package)
    made = keeper(budget=0.4, mode=mode, dirpath=tmp_path, filename="{epoch}")
    checkpoint = pickle.loads(pickle.dumps(made))
    assert checkpoint.state_key == made.state_key
    assert (checkpoint.chosen, checkpoint.history) == (None, [])
    losses = LOSSES if mode == "min" else [-loss for loss in LOSSES]
    module = anonymiser(pl, SHARES, losses)
    monitor = watch()
    trainer = fit(pl, [checkpoint, monitor], module, epochs=5)
    leaks = [by_hand(share)["op_d_ece"] for share in SHARES]
    # The second, the fourth and the fifth are within the budget, and the fourth is the best of
    # these.
    assert max(leaks[1], leaks[3], leaks[4]) < 0.4 < min(leaks[0], leaks[2])
    assert names_in(tmp_path) == ["epoch=3.ckpt", "last.ckpt"]
    chosen = checkpoint.chosen
    assert (chosen.epoch, chosen.utility, chosen.is_within_budget) == (3, losses[3], True)
    assert chosen.privacy == pytest.approx(leaks[3])
    assert checkpoint.best_model_path == str(tmp_path / "epoch=3.ckpt")
    assert checkpoint.best_model_score == losses[3]
    assert [row.privacy for row in checkpoint.history] == pytest.approx(leaks)
    assert [row.is_within_budget for row in checkpoint.history] == [False, True, False, True, True]
    # It loads, and a test with it does not set the callbacks back to the epoch it was saved in.
    assert type(module).load_from_checkpoint(chosen_path := checkpoint.best_model_path).trained == 4
    assert type(module).load_from_checkpoint(checkpoint.last_model_path).trained == 5
    trainer.test(module, loader(), ckpt_path="best", verbose=False)
    assert (module.trained, len(monitor.history), len(checkpoint.history)) == (4, 5, 5)
    assert checkpoint.best_model_path == chosen_path


def test_the_budget_may_be_how_often_a_person_is_found(pl, tmp_path):
    rows = [{"privacy/found_in_100": found} for found in (0.3, 0.06, 0.04)]
    checkpoint = PrivacyCheckpoint("val/privacy/found_in_100", 0.05, dirpath=tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="PrivacyCheckpoint limits")
        fit(pl, [checkpoint], log_rows(pl, *rows), epochs=3)
    assert checkpoint.chosen.epoch == 2


def test_of_equal_utilities_the_first_is_chosen(pl, tmp_path):
    checkpoint = keeper("val/leak", 0.5, dirpath=tmp_path)
    fit(pl, [checkpoint], log_rows(pl, *({"leak": leak} for leak in (0.4, 0.1, 0.2))), epochs=3)
    assert checkpoint.chosen.epoch == 0


def test_without_an_epoch_within_the_budget_there_is_a_last_one_and_no_best(pl, tmp_path):
    module = log_rows(pl, *({"leak": leak} for leak in (0.4, 0.1, 0.2)))
    checkpoint = keeper("val/leak", 0.05, dirpath=tmp_path)
    with pytest.warns(
        UserWarning, match=r"budget of 0.05 for val/leak.* The least val/leak was 0.1, in epoch 1"
    ):
        trainer = fit(pl, [checkpoint], module, epochs=3)
    assert (checkpoint.chosen, checkpoint.best_model_path, len(checkpoint.history)) == (None, "", 3)
    assert names_in(tmp_path) == ["last.ckpt"]
    assert type(module).load_from_checkpoint(checkpoint.last_model_path).trained == 3
    with pytest.raises(ValueError, match="best"):
        trainer.test(module, loader(), ckpt_path="best", verbose=False)


@pytest.mark.filterwarnings("ignore:No epoch is within the budget")
def test_by_default_the_strongest_attack_counts(pl, tmp_path):
    """A rotation hides speakers from a cosine.

    Not from an attacker who ran the anonymiser on others.
    """
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(4)))[0]

    def step(self, batch, _):
        self.log("val/loss", 1.0)
        return dict(zip(NAMES, (batch[0], batch[0] @ rotation, batch[2]), strict=True))

    checkpoint = PrivacyCheckpoint(dirpath=tmp_path)
    module = anonymiser(pl, validation_step=step)
    data = loader(speakers=16, utterances=6, batch_size=96)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="PrivacyCheckpoint limits")
        trainer = fit(pl, [PrivacyMonitor(), checkpoint], module, data, 1, num_sanity_val_steps=0)
    assert trainer.callback_metrics[NAME] < 0.05 < 0.3 < checkpoint.history[0].privacy
    assert checkpoint.chosen is None


def test_a_budget_of_a_weak_attacker_only_is_warned_of(pl, tmp_path):
    message = "who compares untransformed embeddings.* limit 'val/privacy/disclosure'"
    with pytest.warns(UserWarning, match=message):
        fit(
            pl,
            [watch(), keeper("val/privacy_conditions/pp_d_ece", 0.7, dirpath=tmp_path)],
            epochs=1,
        )


def test_with_confidence_the_upper_end_is_compared(pl, tmp_path):
    """An estimate within the budget by luck is not chosen."""
    ends = [(0.4, 0.3, 0.5), (0.18, 0.1, 0.3), (0.15, 0.12, 0.19), (0.1, 0.0, 0.25)]
    rows = [
        {"leak": value, "leak_low": low, "leak_high": high, "loss": 1.0 + epoch}
        for epoch, (value, low, high) in enumerate(ends)
    ]
    estimate = keeper("val/leak", 0.2, dirpath=tmp_path / "estimate")
    upper = keeper("val/leak", 0.2, dirpath=tmp_path / "upper", confidence=0.95)
    fit(pl, [estimate, upper], log_rows(pl, *rows))
    assert (estimate.chosen.epoch, upper.chosen.epoch) == (1, 2)
    chosen = upper.chosen
    assert [chosen.privacy, chosen.low, chosen.high] == pytest.approx([0.15, 0.12, 0.19])
    assert [row.is_within_budget for row in upper.history] == [False, False, True, False]


@pytest.mark.parametrize("name", ["loss", "leak", "leak_high"])
def test_what_is_not_finite_is_not_eligible_and_warned_of_once(pl, tmp_path, name):
    row = {"leak": 0.0, "leak_low": 0.0, "leak_high": 0.0}
    broken = {**row, name: math.nan}
    checkpoint = keeper("val/leak", dirpath=tmp_path, filename="{epoch}", confidence=0.9)
    with pytest.warns(UserWarning, match="cannot choose epoch 0: .* is nan") as caught:
        fit(pl, [checkpoint], log_rows(pl, broken, broken, row), epochs=3)
    assert sum("cannot choose" in str(warning.message) for warning in caught) == 1
    assert names_in(tmp_path) == ["epoch=2.ckpt", "last.ckpt"]


@pytest.mark.filterwarnings("ignore:PrivacyMonitor will measure nothing")
def test_an_epoch_without_a_measurement_is_not_eligible(pl, tmp_path):
    checkpoint = keeper(budget=0.7213, dirpath=tmp_path, filename="{epoch}")
    # A better loss in the epochs between must not be paired with the disclosure of the epoch
    # before.
    module = anonymiser(pl, (0.9, 0.6, 0.9, 0.3), (0.1, 3.0, 0.1, 2.0))
    fit(pl, [watch(every_n_epochs=2), checkpoint], module)
    assert names_in(tmp_path) == ["epoch=3.ckpt", "last.ckpt"]
    assert [row.epoch for row in checkpoint.history] == [1, 3]
    with pytest.warns(UserWarning, match="PrivacyCheckpoint chose nothing"):
        fit(pl, [watch(every_n_epochs=3), keeper(dirpath=tmp_path / "never")], epochs=2)
    assert names_in(tmp_path / "never") == ["last.ckpt"]


def test_an_epoch_between_two_reports_is_not_eligible(pl, tmp_path):
    checkpoint = PrivacyCheckpoint(budget=0.7213, dirpath=tmp_path)
    monitor = PrivacyMonitor(metrics=["disclosure", "deid"], report_every_n_epochs=2)
    fit(pl, [monitor, checkpoint], val=loader(speakers=8, batch_size=32))
    assert [row.epoch for row in checkpoint.history] == [1, 3]


def test_save_on_train_epoch_end_ignores_values_of_earlier_weights(pl, tmp_path):
    checkpoint = keeper(
        "val/leak", 0.7213, dirpath=tmp_path, filename="{epoch}", save_on_train_epoch_end=True
    )
    module = log_rows(pl, *({"leak": leak} for leak in (0.1, 0.04, 0.03)))
    fit(pl, [checkpoint], module, epochs=3, check_val_every_n_epoch=2)
    assert names_in(tmp_path) == ["epoch=1.ckpt", "last.ckpt"]
    assert checkpoint.chosen.privacy == pytest.approx(0.04)


def test_validations_within_an_epoch_are_saved(pl, tmp_path):
    checkpoint = keeper(budget=0.7213, dirpath=tmp_path)
    monitor = watch()
    fit(pl, [monitor, checkpoint], epochs=2, val_check_interval=0.5)
    assert [(row["epoch"], row["step"]) for row in monitor.history] == [
        (0, 2),
        (0, 4),
        (1, 7),
        (1, 9),
    ]
    assert [row.step for row in checkpoint.history] == [2, 4, 7, 9]
    assert checkpoint.chosen.step == 7


def test_a_utility_of_the_training_step(pl, tmp_path):
    def step(self, batch, batch_idx):
        self.log("train/loss", float(self.current_epoch), on_epoch=True, on_step=False)
        return self.layer(batch[0]).square().mean()

    checkpoint = PrivacyCheckpoint("val/loss", 2.5, "train/loss", dirpath=tmp_path)
    fit(pl, [checkpoint], anonymiser(pl, training_step=step))
    assert checkpoint.chosen.epoch == 2


@both_packages
def test_resumed_in_mid_run(pl, tmp_path):
    expected, whole = keep(pl, tmp_path / "whole", anonymiser(pl, SHARES, LOSSES), 5)
    keep(pl, tmp_path / "parts", anonymiser(pl, SHARES, LOSSES), 2)
    module = anonymiser(pl, SHARES, LOSSES)
    last = tmp_path / "parts" / "last.ckpt"
    checkpoint, monitor = keep(pl, tmp_path / "parts", module, 5, ckpt_path=last)
    for row, other in zip(monitor.history, whole.history, strict=True):
        assert_same({**row, "seconds": 0}, {**other, "seconds": 0})
    # As text, since NaN does not equal itself.
    assert str(checkpoint.history) == str(expected.history)
    assert str(checkpoint.chosen) == str(expected.chosen)
    assert Path(checkpoint.best_model_path).name == Path(expected.best_model_path).name
    assert names_in(tmp_path / "parts") == names_in(tmp_path / "whole")


def test_resumed_into_another_folder_a_worse_epoch_does_not_replace_the_best(pl, tmp_path):
    keep(pl, tmp_path / "a", anonymiser(pl, SHARES, LOSSES), 4)
    module = anonymiser(pl, SHARES, LOSSES)
    last = tmp_path / "a" / "last.ckpt"
    with pytest.warns(UserWarning, match="The dirpath has changed"):
        second, _ = keep(pl, tmp_path / "b", module, 5, ckpt_path=last)
    assert second.chosen.epoch == 3
    assert second.best_model_path == str(tmp_path / "a" / "epoch=3.ckpt")


def test_a_checkpoint_that_was_removed_before_a_resumed_run_is_noticed(pl, tmp_path):
    keep(pl, tmp_path, anonymiser(pl, SHARES, LOSSES), 4)
    (tmp_path / "epoch=3.ckpt").unlink()
    with pytest.warns(UserWarning, match=r"no longer finds .*epoch=3.ckpt, of epoch 3"):
        second, _ = keep(
            pl, tmp_path, anonymiser(pl, SHARES, LOSSES), 5, ckpt_path=tmp_path / "last.ckpt"
        )
    assert second.chosen.epoch == 4
    assert Path(second.best_model_path).name == "epoch=4.ckpt"


@pytest.mark.parametrize("epoch_of_removal", [1, 3])
def test_a_folder_that_vanishes_in_mid_run_is_noticed(pl, tmp_path, epoch_of_removal):
    folder = tmp_path / "kept"

    def remove(self):
        if self.current_epoch == epoch_of_removal:
            shutil.rmtree(folder)

    leaks = ({"leak": 0.01, "loss": loss} for loss in (1.0, 2.0, 3.0, 4.0))
    checkpoint = keeper("val/leak", dirpath=folder, filename="{epoch}")
    module = log_rows(pl, *leaks)
    type(module).on_validation_epoch_start = remove
    with pytest.warns(UserWarning, match="no longer finds its best checkpoint"):
        fit(pl, [checkpoint], module, num_sanity_val_steps=0)
    # The first after the removal is the best that is there.
    assert checkpoint.chosen.epoch == epoch_of_removal
    assert names_in(folder) == [f"epoch={epoch_of_removal}.ckpt", "last.ckpt"]
    assert Path(checkpoint.best_model_path).exists()


def test_one_trainer_supports_several_budgets_in_one_folder(pl, tmp_path):
    shares = (1.0, 0.3, 0.6)
    losses = (1.0, 3.0, 2.0)
    strict = keeper(budget=0.35, dirpath=tmp_path, filename="strict-{epoch}")
    loose = keeper(budget=0.5, dirpath=tmp_path, filename="loose-{epoch}", save_last=False)
    fit(pl, [watch(**SMALL), strict, loose], anonymiser(pl, shares, losses), epochs=3)
    assert (strict.chosen.epoch, loose.chosen.epoch) == (1, 2)
    assert names_in(tmp_path) == ["last.ckpt", "loose-epoch=2.ckpt", "strict-epoch=1.ckpt"]


@pytest.mark.parametrize("interval", [1.0, 0.5])
def test_the_history_is_drawn_at_the_step_of_its_scalars(pl, tmp_path, interval):
    logger = tensorboard(pl, tmp_path / "log")
    callbacks = [watch(figures_every_n_epochs=None), keeper(budget=0.5, dirpath=tmp_path / "kept")]
    fit(
        pl,
        callbacks,
        anonymiser(pl, SHARES, LOSSES),
        epochs=4,
        val_check_interval=interval,
        logger=logger,
    )
    log = events(logger)
    measured = [event.step for event in log.Scalars("val/privacy/deid")]
    drawn = [image.step for image in log.Images("val_figures/privacy_conditions/op_d_ece/utility")]
    assert set(drawn) <= set(measured)
    assert drawn[-1] == measured[-1]


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        (
            {},
            {"privacy": "val/privacy/op_dece"},
            "monitors 'val/privacy/op_dece', .* Closest: .*op_d_ece'",
        ),
        (
            {},
            {"privacy": "val/privacy/op_d_ece"},
            f"monitors 'val/privacy/op_d_ece', .* Closest: '{NAME}'",
        ),
        (
            {"metrics": ["deid"]},
            {"privacy": NAME},
            "but PrivacyMonitor does not log it. .*'val/privacy/deid'",
        ),
        ({}, {"privacy": NAME, "confidence": 0.9}, "op_d_ece_high', .* It needs `intervals=0.9`"),
        (
            {"intervals": 0.5},
            {"privacy": NAME, "confidence": 0.9},
            "`confidence` to be .* logs, 0.5, but got 0.9",
        ),
    ],
)
def test_a_name_that_a_monitor_does_not_log_is_an_error_at_setup(
    pl, tmp_path, settings, arguments, message
):
    module = anonymiser(pl, validation_step=lambda *_: pytest.fail("too late"))
    with pytest.raises(ValueError, match=message):
        fit(pl, [watch(**settings), PrivacyCheckpoint(**arguments, dirpath=tmp_path)], module)


@pytest.mark.parametrize("suffix", ["", "/dataloader_idx_2"])
def test_a_wrong_dataloader_index_is_an_error_in_the_sanity_check(pl, tmp_path, suffix):
    module = anonymiser(pl, on_train_start=lambda self: pytest.fail("too late"))
    with pytest.raises(
        ValueError, match=f"monitors '{NAME}{suffix}', .*Closest: .*dataloader_idx_0'"
    ):
        fit(
            pl,
            [watch(), keeper(NAME + suffix, dirpath=tmp_path)],
            module,
            val=[loader(), loader(seed=1)],
        )


@pytest.mark.parametrize("options", [{}, {"num_sanity_val_steps": 0}, {"num_sanity_val_steps": -1}])
@pytest.mark.parametrize("is_suffixed", [True, False])
def test_right_names_of_several_dataloaders_are_not_warned_of(pl, tmp_path, options, is_suffixed):
    def log_apart(self):
        if not self.trainer.sanity_checking:
            self.log("val/late", 1.0)

    utility = "val/loss/dataloader_idx_0" if is_suffixed else "val/late"
    checkpoint = keeper(f"{NAME}/dataloader_idx_1", 0.7213, utility=utility, dirpath=tmp_path)
    module = anonymiser(pl, on_validation_epoch_end=log_apart)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*was not logged")
        fit(pl, [watch(), checkpoint], module, val=[loader(), loader(seed=1)], epochs=1, **options)
    assert len(checkpoint.history) == 1


@pytest.mark.parametrize(
    ("callbacks", "name", "hint"),
    [
        ([watch()], "val/lost", "Closest: 'val/loss'"),
        ([], NAME, "No PrivacyMonitor is among the callbacks"),
    ],
)
def test_unlogged_name_warns_in_the_sanity_check_and_raises_later(
    pl, tmp_path, callbacks, name, hint
):
    message = f"PrivacyCheckpoint monitors '{name}', but it was not logged. {hint}"
    checkpoint = keeper(NAME, utility=name if callbacks else "val/loss", dirpath=tmp_path)
    with pytest.warns(UserWarning, match=message), pytest.raises(ValueError, match=message):
        fit(pl, [*callbacks, checkpoint])
    assert names_in(tmp_path) == []


def test_utility_may_be_logged_after_the_sanity_check(pl, tmp_path):
    def log_later(self):
        if not self.trainer.sanity_checking:
            self.log("val/later", 1.0)

    checkpoint = keeper(utility="val/later", budget=0.7213, dirpath=tmp_path)
    with pytest.warns(UserWarning, match="monitors 'val/later', but it was not logged"):
        fit(pl, [watch(), checkpoint], anonymiser(pl, on_validation_epoch_end=log_later), epochs=1)
    assert checkpoint.chosen.utility == 1.0


@pytest.mark.filterwarnings("ignore:No epoch is within the budget")
def test_a_flipped_voice_is_within_the_budget_of_a_cosine_and_not_of_the_disclosure(pl, tmp_path):
    """``protected = -original`` deceives a cosine only until an attacker turns the sign."""

    def step(self, batch, _):
        self.log("val/loss", 1.0)
        return dict(zip(NAMES, (batch[0], -batch[0], batch[2]), strict=True))

    weak = keeper(NAME, 0.05, dirpath=tmp_path / "weak")
    sound = PrivacyCheckpoint(budget=0.05, dirpath=tmp_path / "sound")
    module = anonymiser(pl, validation_step=step)
    with pytest.warns(UserWarning, match="who compares untransformed embeddings"):
        fit(
            pl, [PrivacyMonitor(), weak, sound], module, loader(speakers=8, batch_size=32), epochs=1
        )
    assert weak.chosen is not None
    assert sound.chosen is None


def test_a_validation_states_its_numbers():
    row = Validation(
        epoch=2, step=7, privacy=0.1, low=0.05, high=0.2, utility=3.0, is_within_budget=True
    )
    assert pickle.loads(pickle.dumps(row)) == row


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"budget": -0.1},
            ValueError,
            "Expected `budget` to be a finite number of at least 0, but got -0.1",
        ),
        ({"budget": True}, ValueError, "Expected `budget` to be a finite number"),
        ({"budget": [0.1]}, ValueError, "Expected `budget` to be a finite number"),
        (
            {"privacy": "val/privacy/id_rate", "budget": 5},
            ValueError,
            "`budget` to be a share, such as 0.05 for 5 %",
        ),
        ({"privacy": 3}, TypeError, "Expected `privacy` to be the name"),
        ({"privacy": ["a", "b"]}, TypeError, "Expected `privacy` to be the name"),
        ({"privacy": "val/privacy/deid"}, ValueError, "of which less is better"),
        ({"utility": None}, TypeError, "Expected `utility` to be the name"),
        (
            {"every_n_train_steps": 2},
            TypeError,
            "Expected no `every_n_train_steps`.*val_check_interval",
        ),
        ({"save_top_k": 3}, TypeError, "Expected no `save_top_k`"),
        ({"confidence": 95}, ValueError, "`confidence` to lie between 0 and 1, but got 95"),
    ],
)
def test_invalid_arguments_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        PrivacyCheckpoint(**arguments)
