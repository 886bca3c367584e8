"""What a checkpoint refuses, and how it says so."""

from __future__ import annotations

import pytest
from training import anonymiser, both_packages, fit, names_in

from vpmetrics.lightning.checkpoint import PrivacyCheckpoint
from vpmetrics.lightning.monitor import PrivacyMonitor


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
        fit(pl, [PrivacyMonitor(), PrivacyCheckpoint(privacy, dirpath=tmp_path)], module)
    assert steps == []


def test_a_scalar_the_monitor_leaves_out_is_found_at_setup(pl, tmp_path):
    monitor = PrivacyMonitor(metrics=["deid", "op_eer"])
    with pytest.raises(ValueError, match="watches 'val/privacy/op_d_ece', but no PrivacyMonitor logs it"):
        fit(pl, [monitor, PrivacyCheckpoint(dirpath=tmp_path)])


def test_a_name_nobody_logs_is_found_in_the_first_validation(pl, tmp_path):
    checkpoint = PrivacyCheckpoint(utility="val/lost", dirpath=tmp_path)
    said = "PrivacyCheckpoint watches 'val/lost', but {} has.* logged it. Closest: 'val/loss'"
    with pytest.raises(ValueError, match=said.format("the sanity check")):
        fit(pl, [PrivacyMonitor(), checkpoint])
    assert names_in(tmp_path) == []


def test_a_name_unlike_any_is_refused_when_it_is_needed(pl, tmp_path):
    """Before, some callback may still log it; a long list of names would hide the message."""
    checkpoint = PrivacyCheckpoint(utility="val/quality", dirpath=tmp_path)
    said = "PrivacyCheckpoint watches 'val/quality', but {} has.* logged it. (Known|Closest): .{{,300}}$"
    with (
        pytest.warns(UserWarning, match=said.format("the sanity check")),
        pytest.raises(ValueError, match=said.format("nothing")),
    ):
        fit(pl, [PrivacyMonitor(), checkpoint])


def test_a_forgotten_monitor_is_named(pl, tmp_path):
    said = "watches 'val/privacy/op_d_ece'.* No PrivacyMonitor is among the callbacks"
    with pytest.warns(UserWarning, match=said), pytest.raises(ValueError, match=said):
        fit(pl, [PrivacyCheckpoint(dirpath=tmp_path)])


def test_a_utility_only_a_training_step_or_a_later_validation_logs_is_waited_for(pl, tmp_path):
    class Wer(pl.Callback):
        def on_validation_epoch_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                pl_module.log("val/later", 1.0)

    checkpoint = PrivacyCheckpoint(utility="val/later", budget=1.0, dirpath=tmp_path)
    with pytest.warns(UserWarning, match="watches 'val/later', but the sanity check has not logged it"):
        fit(pl, [PrivacyMonitor(), Wer(), checkpoint])
    assert checkpoint.pareto_front


def test_two_checkpoints_in_one_folder(pl, tmp_path):
    pair = [PrivacyCheckpoint(utility=name, dirpath=tmp_path) for name in ("val/loss", "val/wer")]
    with pytest.raises(ValueError, match="Expected a `dirpath` for each PrivacyCheckpoint"):
        fit(pl, [PrivacyMonitor(), *pair])


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
        ({"mode": "up"}, Exception, "mode"),
    ],
)
def test_arguments_of_a_checkpoint(arguments, error, message):
    with pytest.raises(error, match=message):
        PrivacyCheckpoint(**arguments)
