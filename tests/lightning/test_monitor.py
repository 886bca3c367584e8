"""What a monitor measures, and when."""

import importlib
import pickle
import warnings
from copy import deepcopy

import numpy as np
import pytest
import torch
from leaking_voices import NAMES, by_hand, loader, protect, voices
from torch.utils.data import DataLoader, TensorDataset
from training import (
    QUIET,
    anonymiser,
    assert_logged,
    assert_same,
    both_packages,
    events,
    fit,
    stepping,
    tensorboard,
    watch,
)

from vpmetrics.attacks import Plain, RidgeToOriginal
from vpmetrics.lightning import PrivacyMonitor
from vpmetrics.lightning.monitor import name_of_key
from vpmetrics.suite import VoicePrivacy

D_ECE = "val/privacy_conditions/op_d_ece"


@both_packages
def test_every_epoch_logs_what_the_suite_computes(pl):
    monitor = watch()
    trainer = fit(pl, [monitor], profiler="simple")
    expected = [by_hand(share) for share in (0.9, 0.6, 0.3, 0.1)]
    for row, values in zip(monitor.history, expected, strict=True):
        assert_same(row, values)
    assert_logged(trainer, expected[3])
    assert [row["epoch"] for row in monitor.history] == [0, 1, 2, 3]
    assert len(trainer.profiler.recorded_durations["[Callback]PrivacyMonitor.compute"]) == 4


@both_packages
def test_validate_and_test_without_a_fit(pl):
    monitor = watch()
    trainer = pl.Trainer(logger=False, enable_checkpointing=False, callbacks=[monitor], **QUIET)
    expected = by_hand(0.9)
    for run, prefix in ((trainer.validate, "val/privacy"), (trainer.test, "test/privacy")):
        (values,) = run(anonymiser(pl), loader(), verbose=False)
        assert_same({key: values[name_of_key(prefix, key)] for key in expected}, expected)
    assert monitor.history == []
    # States made in inference mode serve a training, too.
    trainer.fit_loop.max_epochs = 1
    trainer.fit(anonymiser(pl), loader(), loader())
    assert_logged(trainer, expected)


def test_prefix_in_a_test(pl):
    prefixes = {
        "val/p": "test/p",
        "valid": "test",
        "validation_p": "test_p",
        "valley/p": "test/valley/p",
    }
    callbacks = [watch(metrics=["deid"], prefix=prefix) for prefix in prefixes]
    trainer = pl.Trainer(logger=False, callbacks=callbacks, enable_checkpointing=False, **QUIET)
    (values,) = trainer.test(anonymiser(pl), loader(), verbose=False)
    assert {f"{expected}/deid" for expected in prefixes.values()} < set(values)


def test_each_dataloader_with_rows_is_measured_separately(pl):
    silent = DataLoader(TensorDataset(*voices()[:2], torch.full((24,), 99)), 5)

    def read(outputs):
        if (outputs["speakers"] == 99).any():
            return None
        return tuple(outputs[name] for name in NAMES)

    monitor = watch(keys=read)
    trainer = fit(pl, [monitor], val=[loader(), loader(seed=1, speakers=5), silent], epochs=1)
    for number, data in enumerate(({}, {"seed": 1, "speakers": 5})):
        assert_logged(trainer, by_hand(0.9, **data), f"/dataloader_idx_{number}")
    assert not any(
        "dataloader_idx_2" in name for name in trainer.callback_metrics if "privacy" in name
    )
    assert {row["dataloader_idx"] for row in monitor.history} == {0, 1}


def test_combined_dataloaders_have_no_suffix(pl):
    combined = importlib.import_module(f"{pl.__name__}.utilities").CombinedLoader(
        [loader(), loader()], "max_size"
    )
    trainer = fit(pl, [watch()], stepping(pl, lambda batch: batch[0]), val=combined, epochs=1)
    assert_logged(trainer, {"deid": by_hand(0.0)["deid"]})


def test_the_sanity_check_is_neither_logged_nor_kept(pl):
    seen = []
    module = anonymiser(
        pl, on_train_start=lambda self: seen.append(dict(self.trainer.callback_metrics))
    )
    monitor = watch()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=UserWarning, module="vpmetrics")
        fit(pl, [monitor], module, epochs=1)
    assert "val/privacy/deid" not in seen[0]
    assert_same(monitor.history[0], by_hand(0.9))


def test_an_epoch_that_is_not_measured_logs_nothing_and_accumulates_nothing(pl):
    seen = []
    monitor = watch(every_n_epochs=2)

    def look(self):
        seen.append(
            ("val/privacy/deid" in self.trainer.callback_metrics, bool(monitor._loader_data))
        )

    fit(pl, [monitor], anonymiser(pl, on_train_epoch_end=look), num_sanity_val_steps=0)
    assert [is_logged for is_logged, _ in seen] == [False, True, False, True]
    assert not seen[0][1]
    assert [row["epoch"] for row in monitor.history] == [1, 3]


@both_packages
@pytest.mark.parametrize("strict", [True, False])
def test_early_stopping_counts_each_measurement_once(pl, strict):
    counted = []

    class Stopping(importlib.import_module(f"{pl.__name__}.callbacks").EarlyStopping):
        def _evaluate_stopping_criteria(self, current):
            counted.append(float(current))
            return super()._evaluate_stopping_criteria(current)

    stopping = Stopping(D_ECE, patience=2, strict=strict)
    monitor = watch(every_n_epochs=2)
    trainer = fit(pl, [monitor, stopping], anonymiser(pl, (0.9, 0.1, 0.9, 0.9)), epochs=12)
    assert counted == pytest.approx([row["op_d_ece"] for row in monitor.history])
    assert [row["epoch"] for row in monitor.history] == [1, 3, 5]
    assert trainer.current_epoch == 6  # two measurements without a better one, not two epochs


def test_model_checkpoint_and_progress_bar_see_the_scalars(pl, tmp_path):
    best = importlib.import_module(f"{pl.__name__}.callbacks").ModelCheckpoint(
        tmp_path, monitor=D_ECE
    )
    trainer = fit(pl, [watch(prog_bar=["gvd"]), best], enable_checkpointing=True, epochs=2)
    assert best.best_model_score == pytest.approx(
        min(by_hand(share)["op_d_ece"] for share in (0.9, 0.6))
    )
    assert list(trainer.progress_bar_metrics) == ["val/privacy/gvd"]


def test_selected_metrics_are_logged_with_interval_bounds(pl):
    monitor = PrivacyMonitor(metrics=["op_d_ece", "op_l_w"], intervals=0.9)
    names = ("op_d_ece", "op_d_ece_low", "op_d_ece_high", "op_l_w")
    assert monitor.logged_names == tuple(f"val/privacy_conditions/{name}" for name in names)
    trainer = fit(pl, [monitor], epochs=1)
    assert {name for name in trainer.callback_metrics if "privacy" in name} == set(
        monitor.logged_names
    )
    low, value, high = (
        float(trainer.callback_metrics[f"{D_ECE}{end}"]) for end in ("_low", "", "_high")
    )
    assert value == pytest.approx(by_hand(0.9)["op_d_ece"])
    assert low < value < high


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-true"])
def test_half_precision(pl, precision):
    trainer = fit(pl, [watch()], precision=precision, epochs=1)
    assert_logged(
        trainer, by_hand(0.9, dtype=torch.bfloat16 if precision == "bf16-true" else torch.float32)
    )


def test_rows_that_are_not_finite_are_counted(pl):
    def spoil(batch):
        return (
            batch[0],
            torch.where(torch.arange(len(batch[0]))[:, None] == 0, torch.nan, batch[0]),
            batch[2],
        )

    with pytest.warns(
        UserWarning, match=r"5 of 24 rows of `protected` are not finite \(val/privacy, epoch 0\)"
    ):
        trainer = fit(pl, [watch()], stepping(pl, spoil), epochs=1, num_sanity_val_steps=0)
    assert trainer.callback_metrics[D_ECE].isnan()


@pytest.mark.usefixtures("one_small_figure")
@pytest.mark.parametrize(
    ("ends", "drawn"),
    [
        # in the fourth epoch, after the validations of the first three
        ({"max_steps": 17}, [0, 2]),
        ({"epochs": 9, "patience": 0}, [0, 1]),
        ({"epochs": 1}, [0]),
        ({"epochs": 7, "figures": 3}, [0, 2, 5, 6]),
        # epochs 1, 3, 5: the third and sixth are over
        ({"epochs": 7, "figures": 3, "every": 2}, [0, 1, 2]),
    ],
)
def test_first_and_last_measurement_are_drawn_and_some_between(pl, tmp_path, ends, drawn):
    logger = tensorboard(pl, tmp_path)
    options = {
        "figures_every_n_epochs": ends.pop("figures", 100),
        "every_n_epochs": ends.pop("every", 1),
    }
    callbacks = [watch(metrics=["deid"], **options)]
    if "patience" in ends:
        stopping = importlib.import_module(f"{pl.__name__}.callbacks").EarlyStopping
        callbacks.append(
            stopping("val/privacy/deid", mode="min", patience=ends.pop("patience") + 1)
        )
    fit(pl, callbacks, anonymiser(pl, (1.0, 0.3)), **{"epochs": -1, **ends}, logger=logger)
    log = events(logger)
    steps = [event.step for event in log.Scalars("val/privacy/deid")]
    assert [image.step for image in log.Images("val_figures/privacy/zoo")] == [
        steps[at] for at in drawn
    ]


@pytest.mark.parametrize("form", [list, tuple, np.array])
def test_speakers_may_be_strings_and_embeddings_arrays(pl, form):
    def convert(batch):
        speakers = form(["abcdef"[number] for number in batch[2]])
        return batch[0].numpy(), protect(batch[0], batch[1], 0.9).numpy(), speakers

    assert_logged(fit(pl, [watch()], stepping(pl, convert), epochs=2), by_hand(0.9))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows, names: (torch.ones_like(rows), names),
            "All 24 protected embeddings are equal",
        ),
        (lambda rows, names: (rows, torch.arange(len(names))), "Every speaker has one utterance"),
        (
            lambda rows, names: (torch.full_like(rows, torch.nan), names),
            "24 of 24 rows of `protected` are not finite",
        ),
    ],
)
def test_a_cause_of_undefined_values_is_named_once(pl, change, message):
    module = stepping(pl, lambda batch: (batch[0], *change(batch[0], batch[2])))
    with pytest.warns(UserWarning, match=message) as caught:
        fit(pl, [watch()], module, val=loader(24), epochs=1)
    given = [str(warning.message) for warning in caught if "privacy" in str(warning.message)]
    assert len(given) == 1, given


@pytest.mark.parametrize(
    ("options", "run", "message"),
    [
        (
            {"every_n_epochs": 5},
            {"epochs": 3},
            "will measure nothing: .*every_n_epochs=5.* is after epoch 5",
        ),
        (
            {"every_n_epochs": 2},
            {"epochs": 5, "check_val_every_n_epoch": 3},
            "the first time is after epoch 6",
        ),
        (
            {"report_every_n_epochs": 4},
            {"epochs": 3},
            "neither attacks nor .*report_every_n_epochs=4",
        ),
        (
            {"every_n_epochs": 5},
            {"epochs": -1, "max_steps": 6},
            "measured nothing in this training: no validation",
        ),
        (
            {"keys": lambda outputs: None},
            {"epochs": 1},
            "measured nothing in this training: no dataloader had a row",
        ),
        (
            {},
            {"epochs": 1, "limit_val_batches": 0},
            "measured nothing in this training: the Trainer has no validation",
        ),
    ],
)
def test_a_monitor_that_measures_nothing_says_so_once(pl, options, run, message):
    monitor = PrivacyMonitor(figures_every_n_epochs=None, **options)
    with pytest.warns(UserWarning, match=message) as caught:
        fit(pl, [monitor], **run)
    assert sum("PrivacyMonitor" in str(warning.message) for warning in caught) == 1


def test_between_reports_only_cheap_keys_are_measured(pl):
    seen = []

    def look(self):
        seen.append({name for name in self.trainer.callback_metrics if "privacy" in name})

    monitor = PrivacyMonitor(
        metrics=["disclosure", "deid", "op_eer", "op_eer_strongest"], report_every_n_epochs=2
    )
    stopping = importlib.import_module(f"{pl.__name__}.callbacks").EarlyStopping(
        "val/privacy/disclosure", patience=9
    )
    data = loader(speakers=8, batch_size=32)
    fit(pl, [monitor, stopping], anonymiser(pl, on_train_epoch_end=look), val=data, epochs=4)
    cheap = {"val/privacy/deid", "val/privacy_conditions/op_eer"}
    everything = {*cheap, "val/privacy/disclosure", "val/privacy_conditions/op_eer_strongest"}
    assert seen == [cheap, everything, cheap, everything]
    assert [row["epoch"] for row in monitor.history] == [0, 1, 2, 3]
    assert_same(
        monitor.history[0], {key: by_hand(0.9, speakers=8)[key] for key in ("deid", "op_eer")}
    )
    assert ["disclosure" in row for row in monitor.history] == [False, True, False, True]


@both_packages
@pytest.mark.parametrize(
    ("options", "name", "run", "is_told"),
    [
        ({"every_n_epochs": 2}, "val/privacy/deid", {}, True),
        ({"report_every_n_epochs": 3}, "val/privacy/disclosure", {}, True),
        ({"report_every_n_epochs": 3}, "val/privacy/deid", {}, False),
        (
            {"report_every_n_epochs": 3},
            "val/privacy/disclosure",
            {"check_val_every_n_epoch": 3},
            False,
        ),
        ({"every_n_epochs": 2}, "val/loss", {}, False),
    ],
)
def test_a_checkpoint_of_what_is_not_always_measured_is_told_at_setup(
    pl, tmp_path, options, name, run, is_told
):
    make = importlib.import_module(f"{pl.__name__}.callbacks").ModelCheckpoint
    monitor = PrivacyMonitor(metrics=["deid", "disclosure"], figures_every_n_epochs=None, **options)
    if is_told:
        module = anonymiser(pl, validation_step=lambda *_: pytest.fail("too late"))
    else:
        module = None
    run = {
        "enable_checkpointing": True,
        "epochs": 6,
        "val": loader(speakers=8, batch_size=32),
        **run,
    }
    if not is_told:
        fit(pl, [monitor, make(tmp_path, monitor=name)], module, **run)
        return
    with pytest.raises(ValueError, match=r"ModelCheckpoint monitors .*Give it `every_n_epochs=\d`"):
        fit(pl, [monitor, make(tmp_path, monitor=name)], module, **run)
    epochs = 2 if "every_n_epochs" in options else 3
    best = make(tmp_path, monitor=name, every_n_epochs=epochs)
    fit(pl, [monitor, best], **run)
    assert best.best_model_score is not None


class Observer(VoicePrivacy):
    """A suite that records its calls."""

    def __init__(self):
        super().__init__(attacks=None)
        self.calls = []

    def observe(self, original, protected, speakers, sessions=None):
        self.calls.append(("observe", len(original)))

    def update(self, *args, **kwargs):
        self.calls.append("update")
        super().update(*args, **kwargs)

    def reset(self, observed=False):
        self.calls += ["forget"] * observed
        super().reset()


def returning_step(self, batch, batch_idx):
    loss = self.layer(batch[0]).square().mean()
    return {
        "loss": loss,
        "original": batch[0],
        "protected": batch[1].requires_grad_(),
        "speakers": batch[2],
    }


def test_attackers_observe_only_batches_of_the_current_epoch(pl):
    monitor = PrivacyMonitor(suite=Observer(), watch_training=True)
    module = anonymiser(pl, training_step=returning_step)
    trainer = fit(pl, [monitor], module, val=[loader(24), loader(24, seed=1)], epochs=2)
    epoch = ["forget", *[("observe", size) for size in (5, 5, 5, 5, 4)], "update"]
    for number in (0, 1):
        calls = monitor._suites["val", number].calls
        assert calls[calls.index("forget") :] == [*epoch, *epoch]  # the sanity check is before
    trainer.test(anonymiser(pl), loader(), verbose=False)
    assert ("observe", 5) in monitor._suites["test", 0].calls


def test_training_step_without_embeddings_warns(pl):
    monitor = PrivacyMonitor(suite=Observer(), watch_training=True)
    with pytest.warns(
        UserWarning, match="observed nothing: `training_step` returned a value without 'original'"
    ):
        fit(pl, [monitor], epochs=1)
    ignoring = PrivacyMonitor(suite=Observer())
    fit(pl, [ignoring], anonymiser(pl, training_step=returning_step), epochs=1)
    assert set(ignoring._suites["val", 0].calls) == {"update"}


def test_an_attacker_who_observed_the_training_undoes_a_rotation(pl):
    """Eight speakers are too few to learn the rotation from in folds.

    The others of the training are not.
    """
    rotation = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(4)))[0]

    def step(self, batch, batch_idx):
        values = dict(zip(NAMES, (batch[0], batch[0] @ rotation, batch[2]), strict=True))
        if self.training:
            return {**values, "loss": self.layer(batch[0]).square().mean()}
        return values

    disclosure = {}
    for observes in (False, True):
        monitor = watch(attacks=[Plain(), RidgeToOriginal()], watch_training=observes)
        trainer = pl.Trainer(
            max_epochs=1, callbacks=[monitor], logger=False, num_sanity_val_steps=0, **QUIET
        )
        module = anonymiser(pl, training_step=step, validation_step=step)
        trainer.fit(
            module,
            loader(speakers=40, utterances=6, seed=5),
            loader(speakers=8, utterances=3, batch_size=24),
        )
        disclosure[observes] = monitor.history[-1]["op_d_ece_strongest"]
    assert disclosure[True] > disclosure[False] + 0.01
    assert disclosure[True] > monitor.history[-1]["op_d_ece"] + 0.1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prefix": 3}, TypeError, "Expected `prefix` to be a string, but got int"),
        ({"prefix": "val/"}, ValueError, "Expected `prefix` to be a name such as"),
        ({"every_n_epochs": 0}, ValueError, "Expected `every_n_epochs` to be at least 1"),
        (
            {"figures_every_n_epochs": 2.0},
            TypeError,
            "Expected `figures_every_n_epochs` to be a whole number",
        ),
        ({"metrics": ["op_dece"]}, ValueError, "but got 'op_dece'. Closest: 'op_d_ece'"),
        ({"prog_bar": ["did"]}, ValueError, "Expected `prog_bar` to name .* Closest: 'deid'"),
        (
            {"suite": VoicePrivacy},
            TypeError,
            "Expected `suite` to be a VoicePrivacy or None, but got ABCMeta",
        ),
        (
            {"suite": VoicePrivacy(), "intervals": 0.9},
            ValueError,
            "neither `metrics` nor `intervals` with `suite`",
        ),
        (
            {"suite": VoicePrivacy(), "metrics": ["deid"]},
            ValueError,
            "neither `metrics` nor `intervals` with",
        ),
        ({"encoder": 3}, TypeError, "Expected `encoder` to be a name, a path or a callable"),
    ],
)
def test_invalid_arguments_raise(arguments, error, message):
    with pytest.raises(error, match=message):
        PrivacyMonitor(**arguments)


def test_a_wrong_value_names_the_step_and_the_keys_before_training(pl):
    message = (
        r"`validation_step` returned. Expected `protected` to have shape \(5, 8\).*from"
        r" \('original', 'protected'"
    )
    module = stepping(pl, lambda batch: (batch[0], batch[0][:, :3], batch[2]))
    module.on_train_start = lambda: pytest.fail("too late")
    with pytest.raises(ValueError, match=message):
        fit(pl, [watch()], module)


def test_copies_and_pickles_measure_the_same(pl):
    monitor = watch(metrics=["deid", "op_d_ece"])
    for copy in (deepcopy(monitor), pickle.loads(pickle.dumps(monitor))):
        assert copy.state_key == monitor.state_key
        fit(pl, [copy], epochs=1)
        assert_same(copy.history[-1], {key: by_hand(0.9)[key] for key in ("deid", "op_d_ece")})
