"""What the headline says of systems that do nothing, hide everything, or hide everybody but one."""

from functools import partial

import pytest
import torch
from samples import fading_voices

from vpmetrics import VoicePrivacy

ORIGINAL, WHO, DRAW = fading_voices(dtype=torch.float32)
ONE, TWO = ((speaker == WHO)[:, None] for speaker in (0, 1))
normal = partial(torch.randn, generator=DRAW)
ROTATED = ORIGINAL @ torch.linalg.qr(normal(48, 48))[0]
NOISE = normal(400, 48)
PSEUDO_VOICE = normal(40, 48)[WHO] + 0.5 * normal(400, 48)
SWAPPED = torch.where(ONE, ORIGINAL.roll(-10, 0), torch.where(TWO, ORIGINAL.roll(10, 0), ORIGINAL))
EVERYTHING = (0.45, 0.7214)  # as much as the original speech discloses, or all

# Each system with the range of its disclosure in bits, the level, and whether speaker 0 is named.
SYSTEMS = {
    "nothing is done": (ORIGINAL, EVERYTHING, "high", False),
    "rotation": (ROTATED, EVERYTHING, "high", False),
    "rotation and a gain per utterance": (
        ROTATED * (3 * normal(400, 1)).exp(),
        EVERYTHING,
        "high",
        False,
    ),
    "rotation with one loud row": (
        torch.cat([1e6 * NOISE[:1], ROTATED[1:]]),
        EVERYTHING,
        "high",
        False,
    ),
    "scales from 1e-3 to 1e3": (ROTATED * torch.logspace(-3, 3, 48), EVERYTHING, "high", False),
    "negation": (-ORIGINAL, EVERYTHING, "high", False),
    "two speakers swapped": (SWAPPED, EVERYTHING, "high", False),
    "a sign per utterance": (ORIGINAL * NOISE[:, :1].sign(), (0.35, 0.55), "high", False),
    "a pseudo-voice per speaker": (PSEUDO_VOICE, (0.7, 0.7214), "high", False),
    "all but one unchanged": (torch.where(ONE, NOISE, ORIGINAL), (0.4, 0.6), "high", False),
    "one unchanged": (torch.where(ONE, ORIGINAL, NOISE), (0.0, 0.02), "high", True),
    "a new voice per utterance": (NOISE, (0.0, 0.02), "low or inconclusive", False),
    "one voice for all": (normal(1, 48) + 0.5 * NOISE, (0.0, 0.02), "low or inconclusive", False),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_verdict_matches_the_expected_level(name):
    protected, (low, high), level, is_exposed = SYSTEMS[name]
    metric = VoicePrivacy(intervals=0.95)
    metric.update(ORIGINAL, protected, WHO)
    values = metric.compute()
    headline = metric.report().headline
    assert low <= values["disclosure"] <= high
    assert values["disclosure_low"] <= values["disclosure"] <= values["disclosure_high"]
    assert headline.level in level
    if is_exposed or level != "high":
        assert any("Speaker 0 is exposed" in reason for reason in headline.reasons) == is_exposed
    assert values["disclosure"] >= max(values["op_d_ece"], values["pp_d_ece"])


def test_equal_embeddings_fail_a_check():
    metric = VoicePrivacy(intervals=0.95)
    metric.update(ORIGINAL, NOISE[:1].expand_as(NOISE), WHO)
    with pytest.warns(UserWarning, match="not all the same"):
        report = metric.report()
    assert report.headline.level != "low"
    assert any(check.status == "failed" and "are equal" in check.message for check in report.checks)
