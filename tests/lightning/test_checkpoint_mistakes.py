"""What a checkpoint refuses, and how it says so."""

from __future__ import annotations

import warnings
from datetime import timedelta

import pytest
from training import anonymiser, both_packages, fit, keeper, names_in, watch

from vpmetrics.lightning.checkpoint import PrivacyCheckpoint
from vpmetrics.suite import VoicePrivacy


@both_packages
@pytest.mark.parametrize(
    ("privacy", "closest"),
    [
        ("val/privacy/op_dece", "val/privacy/op_d_ece"),
        ("val/privcy/op_l_w", "val/privacy/op_l_w"),
        ("op_d_ece", "val/privacy/op_d_ece"),
        ("privacy/op_l_w", "val/privacy/op_l_w"),
    ],
)
def test_a_name_no_monitor_logs_is_found_at_setup(pl, tmp_path, privacy, closest):
    steps = []
    module = anonymiser(pl, validation_step=lambda *_: steps.append("too late"))
    with pytest.raises(ValueError, match=f"PrivacyCheckpoint watches '{privacy}'.* Closest: '{closest}'"):
        fit(pl, [watch(), PrivacyCheckpoint(privacy, dirpath=tmp_path)], module)
    assert steps == []


def test_a_scalar_the_monitor_leaves_out_is_found_at_setup(pl, tmp_path):
    monitor = watch(metrics=["deid", "op_eer"])
    with pytest.raises(ValueError, match="watches 'val/privacy/op_d_ece', but no PrivacyMonitor logs it"):
        fit(pl, [monitor, keeper(dirpath=tmp_path)])


def test_a_name_nobody_logs_is_found_in_the_first_validation(pl, tmp_path):
    checkpoint = keeper(utility="val/lost", dirpath=tmp_path)
    said = "PrivacyCheckpoint watches 'val/lost', but {} has.* logged it. Closest: 'val/loss'"
    with pytest.raises(ValueError, match=said.format("the sanity check")):
        fit(pl, [watch(), checkpoint])
    assert names_in(tmp_path) == []


def test_a_name_unlike_any_is_refused_when_it_is_needed(pl, tmp_path):
    """Before, some callback may still log it; a long list of names would hide the message."""
    checkpoint = keeper(utility="val/quality", dirpath=tmp_path)
    said = "PrivacyCheckpoint watches 'val/quality', but {} has.* logged it. (Known|Closest): .{{,300}}$"
    with (
        pytest.warns(UserWarning, match=said.format("the sanity check")),
        pytest.raises(ValueError, match=said.format("nothing")),
    ):
        fit(pl, [watch(), checkpoint])


def test_a_forgotten_monitor_is_found_before_the_first_step(pl, tmp_path):
    steps = []
    module = anonymiser(pl, on_train_start=lambda self: steps.append("too late"))
    said = "watches 'val/privacy/op_d_ece'.* No PrivacyMonitor is among the callbacks"
    with pytest.raises(ValueError, match=said):
        fit(pl, [keeper(dirpath=tmp_path)], module)
    assert steps == []


def test_a_forgotten_monitor_is_told_of_before_the_first_step_also_without_a_sanity_check(pl, tmp_path):
    told = []
    module = anonymiser(pl, on_train_start=lambda self: told.extend(str(one.message) for one in caught))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ValueError, match="nothing has logged it"):
            fit(pl, [keeper(dirpath=tmp_path)], module, num_sanity_val_steps=0)
    assert sum("'val/privacy/op_d_ece', and no PrivacyMonitor is among the callbacks" in text for text in told) == 1
    module.suite = VoicePrivacy()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no PrivacyMonitor is among the callbacks")
        with pytest.raises(ValueError, match="nothing has logged it"):
            fit(pl, [keeper(dirpath=tmp_path)], module, num_sanity_val_steps=0)


def test_a_module_that_measures_itself_needs_no_monitor(pl, tmp_path):
    module = anonymiser(pl, on_validation_epoch_end=_log_itself)
    module.suite = VoicePrivacy()
    checkpoint = keeper(budget=1.0, dirpath=tmp_path)
    with pytest.warns(UserWarning, match="the sanity check has not logged it.* No PrivacyMonitor"):
        fit(pl, [checkpoint], module, epochs=1)
    assert len(checkpoint.pareto_front) == 1


def _log_itself(self):
    if not self.trainer.sanity_checking:
        self.log("val/privacy/op_d_ece", 0.2)


def test_a_utility_only_a_training_step_or_a_later_validation_logs_is_waited_for(pl, tmp_path):
    class Wer(pl.Callback):
        def on_validation_epoch_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                pl_module.log("val/later", 1.0)

    checkpoint = keeper(utility="val/later", budget=1.0, dirpath=tmp_path)
    with pytest.warns(UserWarning, match="watches 'val/later', but the sanity check has not logged it"):
        fit(pl, [watch(), Wer(), checkpoint])
    assert checkpoint.pareto_front


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"budget": -0.1}, ValueError, "Expected `budget` to be finite and not negative"),
        ({"budget": "low"}, TypeError, "Expected `budget` to be a number"),
        ({"privacy": ["a", "b"], "budget": 0.1}, ValueError, "Expected one `budget` for each name"),
        ({"privacy": {"a": 0.1}, "budget": 0.1}, ValueError, "Expected no `budget` beside a dictionary"),
        ({"privacy": {}}, ValueError, "Expected one `budget` for each name"),
        ({"privacy": 3}, TypeError, "Expected `privacy` to be a name"),
        ({"privacy": "val/privacy/deid"}, ValueError, "is large where little is"),
        ({"privacy": "val/privacy/op_eer"}, ValueError, "is large where little is"),
        ({"utility": None}, TypeError, "Expected `utility` to be a name"),
        ({"monitor": "val/loss"}, TypeError, "Expected no `monitor`"),
        ({"every_n_train_steps": 2}, TypeError, "Expected no `every_n_train_steps`.*val_check_interval"),
        ({"train_time_interval": timedelta(1)}, TypeError, "Expected no `train_time_interval`.*val_check_interval"),
        ({"save_top_k": 0}, ValueError, "Expected `save_top_k` to be at least 1, or -1"),
        ({"save_top_k": 2.0}, TypeError, "Expected `save_top_k` to be a whole number"),
        ({"mode": "up"}, Exception, "mode"),
    ],
)
def test_arguments_of_a_checkpoint(arguments, error, message):
    with pytest.raises(error, match=message):
        PrivacyCheckpoint(**arguments)
