"""Which checkpoints are kept and chosen, what is on disk at any time, and which names and arguments are wrong."""

import json
import pickle
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
from extras import import_or_skip
from leaking_voices import LOSSES, NAMES, SHARES, by_hand, loader
from training import PACKAGES, anonymiser, assert_same, both_packages, fit, keeper, names_in, stepping, watch

from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor

NAME = "val/privacy/op_d_ece"
SMALL = {"metrics": ["deid", "op_d_ece", "op_d_ece_reversed"]}


def log_rows(pl, *rows):
    """A module that logs given values in each epoch, and 1 as loss."""
    values = [{"val/loss": 1.0, **{f"val/{name}": value for name, value in row.items()}} for row in rows]
    return anonymiser(pl, validation_step=lambda self, *_: self.log_dict(values[self.current_epoch]))


def trade_off(pl, epochs):
    """Every epoch leaks more at a lower loss, so that every epoch is on the front."""
    numbers = range(epochs)
    return anonymiser(pl, [(1 + epoch) / epochs for epoch in numbers], [float(epochs - epoch) for epoch in numbers])


def keep(pl, folder, module, epochs, budget=0.4, ckpt_path=None, **options):
    """Train with checkpoints named by epoch, and the last one; return the callbacks."""
    checkpoint = keeper(budget=budget, dirpath=folder, filename="{epoch}", save_last=True, **options)
    monitor = watch(**SMALL)
    fit(pl, [monitor, checkpoint], module, epochs=epochs, ckpt_path=ckpt_path)
    return checkpoint, monitor


def read_front(folder, name="pareto_front"):
    return json.loads((folder / f"{name}.json").read_text())


def epochs_of(checkpoint):
    return [point.epoch for point in checkpoint.pareto_front]


@pytest.mark.parametrize(("package", "mode"), list(zip(PACKAGES, ("min", "max"), strict=True)))
def test_best_utility_within_the_budget(package, tmp_path, mode):
    pl = import_or_skip(package)
    made = keeper(budget=0.4, mode=mode, dirpath=tmp_path, filename="{epoch}")
    checkpoint = pickle.loads(pickle.dumps(made))
    assert checkpoint.state_key == made.state_key
    assert (checkpoint.chosen, checkpoint.within_budget) == (None, False)
    losses = LOSSES if mode == "min" else [-loss for loss in LOSSES]
    module, monitor = anonymiser(pl, SHARES, losses), watch()
    trainer = fit(pl, [checkpoint, monitor], module, epochs=5)
    leaks = [by_hand(share)["op_d_ece"] for share in SHARES]
    # The last leaks more than the fourth at a worse utility; of the others each that leaks less has a worse one.
    assert leaks[1] < leaks[3] < 0.4 < leaks[2] < leaks[0]
    assert names_in(tmp_path) == [f"epoch={epoch}.ckpt" for epoch in range(4)]
    assert epochs_of(checkpoint) == [1, 3, 2, 0]
    kept = [point.disclosure[NAME] for point in checkpoint.pareto_front]
    assert kept == pytest.approx([leaks[epoch] for epoch in (1, 3, 2, 0)])
    chosen = checkpoint.chosen
    assert (chosen.epoch, chosen.utility, checkpoint.within_budget) == (3, losses[3], True)
    assert chosen.path == checkpoint.best_model_path == str(tmp_path / "epoch=3.ckpt")
    assert checkpoint.best_model_score == losses[3]
    # It loads, and a test with it does not set the callbacks back to the epoch it was saved in.
    assert type(module).load_from_checkpoint(chosen.path).trained == 4
    trainer.test(module, loader(), ckpt_path="best", verbose=False)
    assert (module.trained, len(monitor.history), len(checkpoint.pareto_front)) == (4, 5, 4)
    front = read_front(tmp_path)
    assert (front["chosen"], front["privacy"]) == ("epoch=3.ckpt", {NAME: 0.4})
    assert [row["path"] for row in front["points"]] == [f"epoch={epoch}.ckpt" for epoch in (1, 3, 2, 0)]
    assert [row["within_budget"] for row in front["points"]] == [True, True, False, False]


@pytest.mark.parametrize(("size", "files"), [({"save_top_k": 1}, 1), ({}, 5), ({"save_top_k": -1}, 8)])
def test_front_keeps_requested_files_and_all_measurements(pl, tmp_path, size, files):
    checkpoint, _ = keep(pl, tmp_path, trade_off(pl, 8), 8, budget=0.3, **size)
    kept = {f"epoch={epoch}.ckpt" for epoch in epochs_of(checkpoint)}
    assert (len(kept), checkpoint.within_budget) == (files, True)
    assert set(names_in(tmp_path)) == {*kept, "last.ckpt"}
    measured = read_front(tmp_path)["measured"]
    assert [row["epoch"] for row in measured] == list(range(8))
    assert {row["path"] for row in measured} - {None} == kept


def test_front_file_names_only_existing_checkpoints(pl, tmp_path):
    """Killed between any two file operations, the process leaves a whole front that names only whole files."""
    path, checked, faults, is_watching = tmp_path / "pareto_front.json", [], [], [True]

    def check(event, arguments):
        if not is_watching or event not in ("open", "os.rename", "os.remove", "os.link", "os.truncate", "end"):
            return
        is_watching.clear()  # this reads files, too
        is_written = event == "open" and any(letter in str(arguments[1]) for letter in "wa+")
        if is_written and str(arguments[0]) == str(path):
            faults.append("the front is written in place")
        if path.exists():
            checked.append(event)
            front = json.loads(path.read_text())
            names = {front["chosen"], *(row["path"] for row in front["measured"] + front["points"])} - {None, ""}
            faults.extend((name, event, arguments) for name in names if not (tmp_path / name).exists())
        is_watching.append(True)

    sys.addaudithook(check)  # stays for the rest of the process, and is idle
    checkpoint = keeper(budget=0.5, dirpath=tmp_path, filename="{epoch}", save_top_k=2)
    fit(pl, [watch(**SMALL), checkpoint], trade_off(pl, 6), epochs=6)
    check("end", ())
    is_watching.clear()
    assert faults == []
    assert len(checked) > 12
    assert len(names_in(tmp_path)) == 2
    assert not list(tmp_path.glob("*.tmp"))


def test_flipping_every_embedding_is_not_within_the_budget(pl, tmp_path):
    module = stepping(pl, lambda batch: (batch[0], -batch[0], batch[2]))
    checkpoint = keeper(NAME, 0.05, utility="val/privacy/deid", dirpath=tmp_path)
    with pytest.warns(UserWarning, match="No checkpoint is within the budget"):
        trainer = fit(pl, [watch(**SMALL), checkpoint], module, epochs=1)
    assert trainer.callback_metrics[NAME] < 0.05
    assert read_front(tmp_path)["within_budget"] is False
    assert checkpoint.chosen.disclosure[NAME] == pytest.approx(float(trainer.callback_metrics[f"{NAME}_reversed"]))


def test_by_default_the_strongest_attack_counts(pl, tmp_path):
    """A rotation hides speakers from a cosine, and not from an attacker who ran the anonymiser on others."""
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(4)))[0]

    def step(self, batch, _):
        self.log("val/loss", 1.0)
        return dict(zip(NAMES, (batch[0], batch[0] @ rotation, batch[2]), strict=True))

    checkpoint = PrivacyCheckpoint(dirpath=tmp_path)
    module, data = anonymiser(pl, validation_step=step), loader(speakers=16, utterances=6, batch_size=96)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="PrivacyCheckpoint monitors")
        trainer = fit(pl, [PrivacyMonitor(), checkpoint], module, data, 1, num_sanity_val_steps=0)
    assert trainer.callback_metrics["val/privacy/op_d_ece"] < 0.05 < 0.3 < max(checkpoint.chosen.disclosure.values())
    assert not checkpoint.within_budget


def test_a_budget_of_a_weak_attacker_only_is_warned_of(pl, tmp_path):
    message = "who compares untransformed embeddings.* add a name that ends in 'disclosure'"
    with pytest.warns(UserWarning, match=message):
        fit(pl, [watch(), keeper("val/privacy/pp_d_ece", 9.0, dirpath=tmp_path)], epochs=1)


def test_with_confidence_the_upper_end_is_compared(pl, tmp_path):
    """An estimate within the budget by luck is not chosen."""
    ends = [(0.4, 0.3, 0.5), (0.18, 0.1, 0.3), (0.15, 0.12, 0.19), (0.1, 0.0, 0.25)]
    rows = [
        {"leak": value, "leak_low": low, "leak_high": high, "loss": 1.0 + epoch}
        for epoch, (value, low, high) in enumerate(ends)
    ]
    estimate = keeper("val/leak", 0.2, dirpath=tmp_path)
    upper = keeper("val/leak", 0.2, dirpath=tmp_path, confidence=0.95)
    fit(pl, [estimate, upper], log_rows(pl, *rows))
    assert (estimate.chosen.epoch, upper.chosen.epoch) == (1, 2)
    assert upper.chosen.disclosure == {"val/leak": pytest.approx(0.19)}
    assert upper.chosen.intervals == {"val/leak": pytest.approx([0.12, 0.19])}
    # Less than the epoch before by its estimate, and no better by its upper end.
    assert epochs_of(upper) == [2, 1, 0]
    measured = read_front(tmp_path, "pareto_front-v1")["measured"]
    assert [row["within_budget"] for row in measured] == [False, False, True, False]


def test_upper_bound_is_the_larger_of_both_score_signs_and_the_front_shows_the_interval(pl, tmp_path, monkeypatch):
    drawn = []
    write = lambda tag, figure, step: drawn.append((tag, figure))  # noqa: E731
    monkeypatch.setattr("vpmetrics.lightning.checkpoint.figure_writers", lambda _: [write])
    ends = {"": 0.1, "_high": 0.2, "_low": 0.05, "_reversed": 0.0, "_reversed_high": 0.3, "_reversed_low": 0.0}
    checkpoint = keeper("val/leak", 0.5, dirpath=tmp_path, confidence=0.95)
    fit(pl, [checkpoint], log_rows(pl, {f"leak{end}": value for end, value in ends.items()}), epochs=1)
    assert checkpoint.chosen.disclosure == {"val/leak": pytest.approx(0.3)}
    assert checkpoint.chosen.intervals == {"val/leak": pytest.approx([0.05, 0.3])}
    ((tag, figure),) = drawn
    assert tag == "val_figures/leak/pareto_front"
    assert [[0.05, 1.0], [0.3, 1.0]] in [line.get_xydata().round(4).tolist() for line in figure.axes[0].lines]


@pytest.mark.parametrize("name", ["loss", "leak_reversed"])
def test_what_is_not_finite_is_not_saved(pl, tmp_path, name):
    row = {"leak": 0.0, "leak_reversed": 0.0}
    checkpoint = keeper("val/leak", dirpath=tmp_path, filename="{epoch}")
    with pytest.warns(UserWarning, match="saves nothing of epoch 0: .* is nan"):
        fit(pl, [checkpoint], log_rows(pl, {**row, name: float("nan")}, row), epochs=2)
    assert names_in(tmp_path) == ["epoch=1.ckpt"]


def test_an_epoch_without_a_measurement_is_not_saved(pl, tmp_path):
    checkpoint = keeper(budget=1.0, dirpath=tmp_path, filename="{epoch}")
    # A better loss in the epochs between must not be paired with the disclosure of the epoch before.
    module = anonymiser(pl, (0.9, 0.6, 0.9, 0.3), (0.1, 2.0, 0.1, 3.0))
    fit(pl, [watch(every_n_epochs=2), checkpoint], module)
    assert names_in(tmp_path) == ["epoch=1.ckpt", "epoch=3.ckpt"]
    with pytest.warns(UserWarning, match="PrivacyCheckpoint saved nothing"):
        fit(pl, [watch(every_n_epochs=3), keeper(dirpath=tmp_path / "never")], epochs=2)
    assert names_in(tmp_path / "never") == []


def test_save_on_train_epoch_end_ignores_values_of_earlier_weights(pl, tmp_path):
    checkpoint = keeper("val/leak", 1.0, dirpath=tmp_path, filename="{epoch}", save_on_train_epoch_end=True)
    module = log_rows(pl, *({"leak": leak} for leak in (0.1, 0.04, 0.03)))
    fit(pl, [checkpoint], module, epochs=3, check_val_every_n_epoch=2)
    assert names_in(tmp_path) == ["epoch=1.ckpt"]
    assert checkpoint.chosen.disclosure == {"val/leak": pytest.approx(0.04)}


def test_validations_within_an_epoch_are_saved(pl, tmp_path):
    checkpoint, monitor = keeper(budget=1.0, dirpath=tmp_path), watch()
    fit(pl, [monitor, checkpoint], epochs=2, val_check_interval=0.5)
    assert [(row["epoch"], row["step"]) for row in monitor.history] == [(0, 2), (0, 4), (1, 7), (1, 9)]
    assert [point.step for point in checkpoint.pareto_front] == [7]


def test_a_utility_of_the_training_step(pl, tmp_path):
    def step(self, batch, batch_idx):
        self.log("train/loss", float(self.current_epoch), on_epoch=True, on_step=False)
        return self.layer(batch[0]).square().mean()

    checkpoint = PrivacyCheckpoint("val/loss", 2.5, "train/loss", dirpath=tmp_path)
    fit(pl, [checkpoint], anonymiser(pl, training_step=step))
    assert checkpoint.chosen.epoch == 2


@both_packages
def test_resumed_in_mid_run(pl, tmp_path):
    module = anonymiser(pl, SHARES, LOSSES)
    expected, whole = keep(pl, tmp_path / "whole", module, 5)
    keep(pl, tmp_path / "parts", anonymiser(pl, SHARES, LOSSES), 2)
    checkpoint, monitor = keep(pl, tmp_path / "parts", module, 5, ckpt_path=tmp_path / "parts" / "last.ckpt")
    for row, other in zip(monitor.history, whole.history, strict=True):
        assert_same({**row, "seconds": 0}, {**other, "seconds": 0})
    kept, expected_points = ([p._replace(path="") for p in each.pareto_front] for each in (checkpoint, expected))
    assert kept == expected_points
    assert Path(checkpoint.best_model_path).name == Path(expected.best_model_path).name
    assert all(Path(point.path).exists() for point in checkpoint.pareto_front)


def test_resume_accepts_new_folder_new_budget_and_missing_file(pl, tmp_path):
    keep(pl, tmp_path / "a", anonymiser(pl, SHARES, LOSSES), 4)
    (tmp_path / "a" / "epoch=2.ckpt").unlink()
    module, last = anonymiser(pl, SHARES, LOSSES), tmp_path / "a" / "last.ckpt"
    with pytest.warns(UserWarning, match="finds 3 of the 4 checkpoints it kept"):
        second, _ = keep(pl, tmp_path / "b", module, 5, budget=0.7, ckpt_path=last)
    assert sorted(epochs_of(second)) == [0, 1, 3]
    assert all(Path(point.path).exists() for point in second.pareto_front)


def test_a_moved_folder_is_resumed_with_its_whole_front(pl, tmp_path):
    keep(pl, tmp_path / "before", trade_off(pl, 8), 6, budget=0.2)
    shutil.move(tmp_path / "before", tmp_path / "after")
    last = tmp_path / "after" / "last.ckpt"
    second, _ = keep(pl, tmp_path / "after", trade_off(pl, 8), 7, budget=0.2, ckpt_path=last)
    assert len(second.pareto_front) == 5
    assert all(point.path.startswith(str(tmp_path / "after")) for point in second.pareto_front)
    assert len(names_in(tmp_path / "after")) == 6
    assert [row["epoch"] for row in read_front(tmp_path / "after")["measured"]] == list(range(7))
    third, _ = keep(pl, tmp_path / "third", trade_off(pl, 8), 8, budget=0.2, ckpt_path=last)
    assert sum("/after/" in point.path for point in third.pareto_front) >= 3


def test_one_trainer_supports_several_budgets_and_folders(pl, tmp_path):
    shares, losses = (1.0, 0.3, 0.6), (1.0, 3.0, 2.0)
    strict, loose = keeper(budget=0.35, dirpath=tmp_path), keeper(budget=0.5, dirpath=tmp_path, save_last=True)
    apart = keeper(budget=0.5, dirpath=tmp_path / "apart")
    fit(pl, [watch(**SMALL), strict, loose, apart], anonymiser(pl, shares, losses), epochs=3)
    assert (strict.chosen.epoch, loose.chosen.epoch, apart.chosen.epoch) == (1, 2, 2)
    assert len({point.path for one in (strict, loose, apart) for point in one.pareto_front}) == 9
    assert {path.name for path in tmp_path.glob("*.json")} == {"pareto_front.json", "pareto_front-v1.json"}
    # A resumed one that is none of them does not guess whose state it continues.
    other = keeper(budget=0.3, dirpath=tmp_path / "c")
    with pytest.warns(UserWarning, match="holds the states of 3 PrivacyCheckpoints, none with these budgets"):
        fit(pl, [watch(**SMALL), other], anonymiser(pl, shares, losses), epochs=4, ckpt_path=tmp_path / "last.ckpt")
    assert epochs_of(other) == [3]


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({}, {"privacy": "val/privacy/op_dece"}, "monitors 'val/privacy/op_dece', .* Closest: 'val/privacy/op_d_ece'"),
        ({"metrics": ["deid"]}, {"privacy": NAME}, "but PrivacyMonitor does not log it. .*'val/privacy/deid'"),
        ({}, {"privacy": NAME, "confidence": 0.9}, "'val/privacy/op_d_ece_high', .* It needs `intervals=0.9`"),
        ({"intervals": 0.5}, {"privacy": NAME, "confidence": 0.9}, "`confidence` to be .* logs, 0.5, but got 0.9"),
    ],
)
def test_a_name_that_a_monitor_does_not_log_is_an_error_at_setup(pl, tmp_path, settings, arguments, message):
    module = anonymiser(pl, validation_step=lambda *_: pytest.fail("too late"))
    with pytest.raises(ValueError, match=message):
        fit(pl, [watch(**settings), PrivacyCheckpoint(**arguments, dirpath=tmp_path)], module)


@pytest.mark.parametrize("suffix", ["", "/dataloader_idx_2"])
def test_a_wrong_dataloader_index_is_an_error_in_the_sanity_check(pl, tmp_path, suffix):
    module = anonymiser(pl, on_train_start=lambda self: pytest.fail("too late"))
    with pytest.raises(ValueError, match=f"monitors 'val/privacy/op_d_ece{suffix}', .*Closest: .*dataloader_idx_0'"):
        fit(pl, [watch(), keeper(NAME + suffix, dirpath=tmp_path)], module, val=[loader(), loader(seed=1)])


def test_right_names_of_several_dataloaders_are_not_warned_of(pl, tmp_path):
    checkpoint = keeper(f"{NAME}/dataloader_idx_1", 1.0, utility="val/loss/dataloader_idx_0", dirpath=tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*was not logged")
        fit(pl, [watch(), checkpoint], val=[loader(), loader(seed=1)], epochs=1)
    assert len(checkpoint.pareto_front) == 1


@pytest.mark.parametrize(
    ("callbacks", "name", "hint"),
    [([watch()], "val/lost", "Closest: 'val/loss'"), ([], NAME, "No PrivacyMonitor is among the callbacks")],
)
def test_unlogged_name_warns_in_the_sanity_check_and_raises_later(pl, tmp_path, callbacks, name, hint):
    message = f"PrivacyCheckpoint monitors '{name}', but it was not logged. {hint}"
    checkpoint = keeper(NAME, utility=name if callbacks else "val/loss", dirpath=tmp_path)
    with pytest.warns(UserWarning, match=message), pytest.raises(ValueError, match=message):
        fit(pl, [*callbacks, checkpoint])
    assert names_in(tmp_path) == []


def test_utility_may_be_logged_after_the_sanity_check(pl, tmp_path):
    def log_later(self):
        if not self.trainer.sanity_checking:
            self.log("val/later", 1.0)

    checkpoint = keeper(utility="val/later", budget=1.0, dirpath=tmp_path)
    with pytest.warns(UserWarning, match="monitors 'val/later', but it was not logged"):
        fit(pl, [watch(), checkpoint], anonymiser(pl, on_validation_epoch_end=log_later), epochs=1)
    assert checkpoint.pareto_front


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"budget": -0.1}, ValueError, "Expected `budget` to be a finite number of at least 0, but got -0.1"),
        ({"budget": [True]}, ValueError, "Expected `budget` to be a finite number"),
        ({"privacy": ["a", "b"], "budget": 0.1}, ValueError, "Expected one `budget` for each name"),
        ({"privacy": {"a": 0.1}, "budget": 0.1}, ValueError, "Expected no `budget` with a dictionary"),
        ({"privacy": {}}, ValueError, "Expected one `budget` for each name"),
        ({"privacy": 3}, TypeError, "Expected `privacy` to be a name"),
        ({"privacy": "val/privacy/deid"}, ValueError, "of which less is better"),
        ({"utility": None}, TypeError, "Expected `utility` to be a name"),
        ({"every_n_train_steps": 2}, TypeError, "Expected no `every_n_train_steps`.*val_check_interval"),
        ({"save_top_k": 0}, ValueError, "Expected `save_top_k` to be at least 1, or -1"),
        ({"save_top_k": 2.0}, TypeError, "Expected `save_top_k` to be an integer"),
        ({"confidence": 95}, ValueError, "`confidence` to lie between 0 and 1, but got 95"),
    ],
)
def test_invalid_arguments_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        PrivacyCheckpoint(**arguments)
