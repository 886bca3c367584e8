"""What a monitor refuses, and how it says so."""

from __future__ import annotations

import pytest
from training import anonymiser, fit, watch

from vpmetrics.lightning.monitor import PrivacyMonitor
from vpmetrics.suite import VoicePrivacy


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (
            lambda outputs: None,
            TypeError,
            "Expected `validation_step` to return a dictionary.* but got None.*`return {'original'",
        ),
        (lambda outputs: outputs["loss"], TypeError, "but got a tensor of shape"),
        (
            lambda outputs: {"original": 0, "protectd": 0, "speakers": 0},
            ValueError,
            "'protected' is missing; it holds 'original', 'protectd', 'speakers'. Closest: 'protectd'",
        ),
        (
            lambda outputs: {**outputs, "protected": outputs["protected"][:, :3]},
            ValueError,
            r"what `validation_step` returned. Expected `protected` to have shape \(5, 8\), the shape of `original`, "
            r"but got \(5, 3\)",
        ),
        (
            lambda outputs: {**outputs, "speakers": ["anna"]},
            TypeError,
            r"Expected `speakers` to be a tensor, but got list.*`keys` reads them from \('original', ",
        ),
    ],
)
def test_what_a_step_must_return(pl, returned, error, message):
    step = type(anonymiser(pl)).validation_step
    module = anonymiser(pl, validation_step=lambda *args: returned(step(*args)))
    steps = []
    module.on_train_start = lambda: steps.append("too late")
    with pytest.raises(error, match=message):
        fit(pl, [watch()], module)
    assert steps == []


def test_what_a_function_must_return(pl):
    with pytest.raises(TypeError, match=r"Expected the function `keys` to return \(original, .* but got 2 values"):
        fit(pl, [watch(keys=lambda outputs: (1, 2))])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prefix": 3}, TypeError, "Expected `prefix` to be a string, but got int"),
        ({"prefix": "val/"}, ValueError, "Expected `prefix` to be a name such as"),
        ({"keys": "original"}, TypeError, "Expected `keys` to be the names of"),
        ({"keys": ("original", "protected")}, ValueError, "Expected `keys` to be the names of"),
        ({"every_n_epochs": 0}, ValueError, "Expected `every_n_epochs` to be at least 1"),
        ({"figures_every_n_epochs": 2.0}, TypeError, "Expected `figures_every_n_epochs` to be a whole number"),
        ({"metrics": ["op_dece"]}, ValueError, "but got 'op_dece'. Closest: 'op_d_ece'"),
        ({"metrics": "deid"}, TypeError, "Expected `metrics` to be a sequence of names"),
        ({"prog_bar": ["did"]}, ValueError, "Expected `prog_bar` to name .* Closest: 'deid'"),
        ({"suite": VoicePrivacy}, TypeError, "Expected `suite` to be a VoicePrivacy or None, but got ABCMeta"),
        ({"encoder": abs}, TypeError, "Expected `encoder` to be a Module or None"),
    ],
)
def test_arguments_of_a_monitor(arguments, error, message):
    with pytest.raises(error, match=message):
        PrivacyMonitor(**arguments)
