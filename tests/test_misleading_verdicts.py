"""Systems of which a weak evaluation says the wrong thing, each with what it guards."""

import pytest
import torch

from vpmetrics import VoicePrivacy
from vpmetrics.attacks import Centred, Plain, Procrustes, RidgeToOriginal

SPEAKERS = 30
UTTERANCES = 10
WIDTH = 48
NAMES = torch.arange(SPEAKERS).repeat_interleave(UTTERANCES)
ATTACKS = [Plain(), Centred(), RidgeToOriginal(), Procrustes()]


def voices(seed):
    """Original voices and the generator for what comes next."""
    draw = torch.Generator().manual_seed(seed)
    original = torch.randn(SPEAKERS, WIDTH, generator=draw)[NAMES] + torch.randn(
        len(NAMES), WIDTH, generator=draw
    )
    return original, draw


def noise(draw):
    return torch.randn(len(NAMES), WIDTH, generator=draw)


def judge(original, protected, names=NAMES, **columns):
    """The headline of a system."""
    metric = VoicePrivacy(attacks=ATTACKS)
    metric.update(original, protected, names, **columns)
    return metric.report().headline


@pytest.mark.parametrize("deviations", [8, 12])
def test_noise_that_averages_out_over_utterances_is_not_low(deviations):
    original, draw = voices(0)
    headline = judge(original, original + deviations * noise(draw))
    assert headline.disclosure < 0.08
    assert headline.disclosure_conversation > 3 * headline.disclosure
    assert headline.level in ("moderate", "high")


def test_one_utterance_in_ten_released_unchanged_is_not_low():
    original, draw = voices(1)
    is_left = torch.arange(len(NAMES)) % 10 == 3
    headline = judge(original, torch.where(is_left[:, None], original, noise(draw)))
    assert headline.level == "high"
    assert any("others may be taken for the speaker" in reason for reason in headline.reasons)


@pytest.mark.filterwarnings("ignore:.*The result is NaN")
@pytest.mark.parametrize(("speakers", "utterances"), [(30, 2), (100, 2), (30, 3)])
def test_nobody_is_exposed_where_speakers_have_few_utterances(speakers, utterances):
    exposed = 0
    for seed in range(6):
        draw = torch.Generator().manual_seed(seed)
        names = torch.arange(speakers).repeat_interleave(utterances)
        original = torch.randn(speakers, WIDTH, generator=draw)[names]
        original = original + torch.randn(len(names), WIDTH, generator=draw)
        metric = VoicePrivacy(attacks=None, conversations=0)
        metric.update(original, torch.randn(len(names), WIDTH, generator=draw), names)
        exposed += metric.report().headline.is_speaker_exposed
    assert exposed <= 1


def test_the_worst_speaker_is_found_after_the_attack():
    original, draw = voices(2)
    rotated = original @ torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=draw))[0]
    protected = torch.where((NAMES == 0)[:, None], rotated, rotated + 12 * noise(draw))
    headline = judge(original, protected)
    assert (headline.worst_place, headline.is_speaker_exposed) == (0, True)
    assert headline.level == "high"


def test_a_steady_voice_per_speaker_links_and_says_what_the_attacker_needs():
    original, draw = voices(3)
    protected = torch.randn(SPEAKERS, WIDTH, generator=draw)[NAMES] + 0.4 * noise(draw)
    headline = judge(original, protected)
    assert (headline.level, headline.condition) == ("high", "PP")
    assert headline.needs.startswith("protected speech of the same people under the same secret")


@pytest.mark.filterwarnings(
    "ignore:There are no", "ignore:.*The result is NaN", "ignore:Linkability"
)
def test_one_session_per_speaker_is_not_low():
    original, draw = voices(3)
    protected = torch.randn(SPEAKERS, WIDTH, generator=draw)[NAMES] + 0.4 * noise(draw)
    headline = judge(original, protected, sessions=NAMES)
    assert headline.level == "inconclusive"
    assert any("No speaker has two sessions" in reason for reason in headline.reasons)


@pytest.mark.filterwarnings(
    "ignore:.* equal another", "ignore:.*The result is NaN", "ignore:Linkability"
)
def test_one_voice_for_all_is_neither_moderate_nor_high():
    original, draw = voices(4)
    assert judge(original, torch.ones_like(original)).level == "inconclusive"
    assert judge(original, 1 + 0.3 * noise(draw)).level in ("low", "inconclusive")


@pytest.mark.filterwarnings("ignore:.*The result is NaN")
def test_few_private_speakers_are_inconclusive():
    draw = torch.Generator().manual_seed(5)
    for speakers, utterances in ((3, 10), (5, 2), (6, 10), (12, 10)):
        names = torch.arange(speakers).repeat_interleave(utterances)
        original = torch.randn(speakers, WIDTH, generator=draw)[names]
        original = original + torch.randn(len(names), WIDTH, generator=draw)
        headline = judge(original, torch.randn(len(names), WIDTH, generator=draw), names)
        assert headline.level == "inconclusive", speakers


@pytest.mark.filterwarnings("ignore:.*The result is NaN")
def test_a_number_that_one_condition_lacks_is_not_taken_from_the_other():
    draw = torch.Generator().manual_seed(7)
    names = torch.arange(40).repeat_interleave(2)
    original = torch.randn(40, WIDTH, generator=draw)[names] + torch.randn(
        80, WIDTH, generator=draw
    )
    metric = VoicePrivacy(attacks=ATTACKS, metrics="all")
    metric.update(original, original + 2 * torch.randn(80, WIDTH, generator=draw), names)
    values = metric.compute()
    few = [name for name in ("op", "pp") if values[f"{name}_found_in_100"].isnan()]
    assert values["found_in_100"].isnan() or not few or values["found_in_100"] > 0.1
    assert metric.report().headline.level != "low"


def test_private_systems_of_thirty_speakers_raise_no_alarm():
    levels = []
    for seed in range(4):
        original, draw = voices(20 + seed)
        levels.append(judge(original, noise(draw)).level)
    assert set(levels) <= {"low", "inconclusive"}
    assert "low" in levels


def test_encoders_are_one_attacker_who_also_has_the_weak_one():
    original, draw = voices(6)
    protected = original + 2.0 * noise(draw)
    other = noise(draw)
    metric = VoicePrivacy(attacks=ATTACKS)
    metric.update({"a": original, "b": other}, {"a": protected, "b": noise(draw)}, NAMES)
    report = metric.report()
    alone = report.encoders["a"].headline
    assert report.headline.disclosure > alone.disclosure - 0.03
    assert report.headline.encoder == "a and b"
    assert report.headline.level == alone.level == "high"


def test_conversations_and_the_worst_speaker_are_those_of_all_encoders():
    original, draw = voices(8)
    other = noise(draw)
    # The second encoder hears a little of everybody, and one speaker is left as she is.
    weak = other + noise(draw)[:SPEAKERS][NAMES]
    protected = weak + 8 * noise(draw)
    protected[NAMES == 4] = weak[NAMES == 4]
    first = (original, noise(draw))
    second = (weak, protected)
    for attacks in (ATTACKS, [Plain()]):
        metric = VoicePrivacy(attacks=attacks)
        metric.update({"a": first[0], "b": second[0]}, {"a": first[1], "b": second[1]}, NAMES)
        values = metric.compute()
        alone = VoicePrivacy(attacks=attacks)
        alone.update(*second, NAMES)
        expected = alone.compute()["disclosure_conversation"]
        assert values["disclosure_conversation"] > expected - 0.03
        headline = metric.report().headline
        assert (headline.worst_place, headline.is_speaker_exposed) == (4, True)
