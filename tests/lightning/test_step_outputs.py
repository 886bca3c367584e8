"""From what a step returns to arguments.

Keys in three forms, and messages for those that are not there.
"""

import re

import pytest
import torch
from leaking_voices import by_hand, protect
from training import anonymiser, assert_logged, fit, watch

from vpmetrics.lightning import PrivacyMonitor
from vpmetrics.lightning.step_outputs import ARGUMENTS, read_unskipped_outputs, resolve_keys

OUTPUTS = dict(zip("abcdef", range(6), strict=True))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("abc", {"original": 0, "protected": 1, "speakers": 2}),
        ("abcdef", dict(zip(ARGUMENTS, range(6), strict=True))),
        (
            {
                "original": "a",
                "protected": "b",
                "speakers": "c",
                "groups": "f",
                "is_reference": "d",
            },
            {"original": 0, "protected": 1, "speakers": 2, "groups": 5, "is_reference": 3},
        ),
        (lambda outputs: tuple(outputs.values()), dict(zip(ARGUMENTS, range(6), strict=True))),
        (lambda outputs: dict.fromkeys(ARGUMENTS[:3], 5), dict.fromkeys(ARGUMENTS[:3], 5)),
        (lambda outputs: None, None),
    ],
    ids=[
        "three",
        "six",
        "dictionary",
        "function to a tuple",
        "function to a dictionary",
        "function to None",
    ],
)
def test_keys_select_the_step_outputs(keys, expected):
    keys = tuple(keys) if isinstance(keys, str) else keys
    assert (
        read_unskipped_outputs(OUTPUTS, resolve_keys(keys, allows_lengths=False), "validation_step")
        == expected
    )


SIDES = {"original": "x", "protected": "y"}


@pytest.mark.parametrize(
    "keys",
    [
        "original",
        tuple("ab"),
        tuple("abcdefg"),
        (1, 2, 3),
        SIDES,
        {**SIDES, "speakers": "z", "sexes": "s"},
    ],
)
def test_wrong_keys(keys):
    with pytest.raises(
        ValueError, match=f"Expected `keys` to be the keys of .* but got {re.escape(repr(keys))}"
    ):
        PrivacyMonitor(keys=keys)
    with pytest.raises(ValueError, match="Expected no 'lengths' in `keys` without an `encoder`"):
        PrivacyMonitor(keys={**SIDES, "speakers": "who", "lengths": "n"})


@pytest.mark.parametrize(
    ("outputs", "error", "message"),
    [
        (None, TypeError, "Expected `test_step` to return {'original': ..., .* but got NoneType"),
        (torch.ones(2), TypeError, "but got Tensor"),
        (
            {"original": 0, "protectd": 0, "speakers": 0},
            ValueError,
            "'protected' is missing. Closest: 'protectd'",
        ),
    ],
)
def test_invalid_step_outputs_raise(outputs, error, message):
    with pytest.raises(error, match=message):
        read_unskipped_outputs(
            outputs, resolve_keys(ARGUMENTS[:3], allows_lengths=False), "test_step"
        )


@pytest.mark.parametrize("value", [(1, 2), {"original": 1}, 3])
def test_invalid_result_of_a_keys_function_raises(value):
    with pytest.raises(
        TypeError, match=r"Expected the function `keys` to return \(original, .* but got"
    ):
        read_unskipped_outputs({}, lambda _: value, "validation_step")


def test_utterances_of_a_padding_sampler_count_once(pl):
    def step(self, batch, batch_idx):
        original, noise, speakers = batch
        x, y, who = (
            torch.cat([part, part[:2]])
            for part in (original, protect(original, noise, 0.9), speakers)
        )
        utterances = 5 * batch_idx + torch.arange(len(original))
        return {"x": x, "y": y, "who": who, "file": torch.cat([utterances, utterances[:2]])}

    trainer = fit(
        pl, [watch(keys=("x", "y", "who", "file"))], anonymiser(pl, validation_step=step), epochs=1
    )
    assert_logged(trainer, by_hand(0.9))


def test_sessions_of_a_step_are_measured_within_and_across(pl):
    def step(self, batch, batch_idx):
        draws = (5 * batch_idx + torch.arange(len(batch[0]))) // 6 % 2
        return {"x": batch[0], "y": batch[0] + 0.1 * batch[1], "who": batch[2], "draw": draws}

    monitor = watch(keys={"original": "x", "protected": "y", "speakers": "who", "sessions": "draw"})
    trainer = fit(pl, [monitor], anonymiser(pl, validation_step=step), epochs=1)
    assert {"within_d_ece", "across_d_ece"} <= set(monitor.metrics)
    assert trainer.callback_metrics["val/privacy_conditions/within_d_ece"] > 0
    assert "within_d_ece" not in watch().metrics
