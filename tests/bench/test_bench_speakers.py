"""How often the one of forty speakers who is hidden worst is named so, and how soon somebody else is."""

import pytest
from reports import compute
from samples import planted

from vpmetrics import VoicePrivacy

SETS = 100


@pytest.mark.bench
def test_the_worst_of_forty_speakers_is_named():
    found = {}
    for leak in (0.8, 0.6, 0.4, 0.15):
        named = 0
        for seed in range(SETS):
            *rows, weak = planted(seed, leak)
            values = compute(VoicePrivacy(metrics=["op_worst_speaker"], attacks=None, validate_args=False), *rows)
            named += int(values["op_worst_speaker"]) == weak
        found[leak] = named / SETS
    print("\nleft of one voice, of others 0.15: " + ", ".join(f"{leak}: named in {n:.0%}" for leak, n in found.items()))
    assert found[0.8] >= 0.95
    assert found[0.15] < 0.15  # by chance one in forty
