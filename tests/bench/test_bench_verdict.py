"""The verdict on simulated systems: leaking ones are not called low, private ones raise no alarm.

And what it costs.

The tables with more systems are printed by ``verdict_systems.py``.
"""

import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from verdict_systems import (
    GEOMETRIES,
    evaluate,
    leaking_systems,
    make_private,
    named_length,
    true_rate,
)

from vpmetrics import VoicePrivacy

pytestmark = pytest.mark.bench
SEED = 9000


class CountOperations(TorchDispatchMode):
    """Counts dispatched operations."""

    number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.number += 1
        return function(*args, **(kwargs or {}))


def test_leaking_systems_are_not_called_low():
    systems = leaking_systems(SEED)
    for index in range(12):
        name, protect = next(systems)
        draw = torch.Generator().manual_seed(SEED + index)
        original, names = GEOMETRIES[0].draw(30, 10, draw)
        headline = evaluate(original, protect(original, names, draw), names).headline
        if headline.level == "low":
            assert (
                true_rate(GEOMETRIES[0], protect, named_length(headline.verdict), SEED + index)
                <= 0.05
            ), name


@pytest.mark.parametrize(("speakers", "utterances"), [(6, 10), (12, 5), (30, 3), (30, 10)])
def test_private_systems_raise_no_alarm(speakers, utterances):
    alarms = 0
    for index in range(8):
        draw = torch.Generator().manual_seed(SEED + index)
        original, names = GEOMETRIES[0].draw(speakers, utterances, draw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            headline = evaluate(
                original, make_private("noise")(original, names, draw), names
            ).headline
        alarms += headline.level in ("moderate", "high")
    assert alarms <= 1


def test_conversations_cost_at_most_half_as_much_again():
    original, names = GEOMETRIES[1].draw(40, 10, torch.Generator().manual_seed(SEED))
    numbers = {}
    for draws in (0, 20):
        metric = VoicePrivacy(conversations=draws)
        metric.update(original, 0.2 * original + torch.randn_like(original), names)
        with CountOperations() as counted:
            metric.compute()
        numbers[draws] = counted.number
    assert numbers[20] <= 1.5 * numbers[0]
