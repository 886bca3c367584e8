"""How often the one of forty speakers who is hidden worst is named so, and how soon somebody else is."""

from __future__ import annotations

import pytest
from samples import planted

from vpmetrics import VoicePrivacy

pytestmark = pytest.mark.bench

SETS = 100


def named(leak):
    """The share of sets in which the speaker of whom so much is left, where of others 0.15 is, is the worst."""
    times = 0
    for seed in range(SETS):
        original, protected, speakers, weak = planted(seed, leak)
        metric = VoicePrivacy(metrics=["op_worst_speaker"], attacks=None, validate_args=False)
        metric.update(original, protected, speakers)
        times += int(metric.compute()["op_worst_speaker"]) == weak
    return times / SETS


def test_the_worst_of_forty_speakers_is_named():
    found = {leak: named(leak) for leak in (0.8, 0.6, 0.4, 0.15)}
    print("\nleft of one voice, of others 0.15: " + ", ".join(f"{leak}: named in {n:.0%}" for leak, n in found.items()))
    assert found[0.8] >= 0.95
    assert found[0.15] < 0.15  # by chance one in forty
