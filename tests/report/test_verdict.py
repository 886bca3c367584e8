"""The verdict: a decision in four outcomes, from the risks of a person."""

import math
from dataclasses import replace

import pytest
import torch
from reports import score_report

from vpmetrics import VoicePrivacy
from vpmetrics._scores.worst_speaker import WorstSpeaker
from vpmetrics.report.checks import Check
from vpmetrics.report.headline import Risk
from vpmetrics.report.verdict import _bound_absent_share, make_headline

LOW = (0.005, 0.001, 0.02, 0.001)
MODERATE = (0.08, 0.05, 0.11, 0.04)
HIGH = (0.3, 0.25, 0.35, 0.2)


def risk(name="disclosure_conversation", condition="OP", numbers=LOW, chance=0.006, utterances=5):
    """A risk from value, ends of its interval and corrected lower end."""
    value, low, high, low_corrected = numbers
    limits = {"found_in_100": (0.03, 0.10), "tpr_at_1e-3": (0.01, 0.10)}.get(name, (0.03, 0.12))
    return Risk(
        name,
        condition,
        value,
        low,
        high,
        chance,
        *limits,
        f"{name} of {condition}.",
        low_corrected,
        utterances=utterances if name == "disclosure_conversation" else 1,
        num_speakers=30,
    )


def quiet_risks():
    """All risks of OP and PP, each excluded."""
    found = (0.01, 0.008, 0.014, 0.006)
    rare = (0.001, 0.0, 0.003, 0.0)
    return [
        *(risk(condition=name) for name in ("OP", "PP")),
        *(risk("found_in_100", name, found, 0.01) for name in ("OP", "PP")),
        *(risk("tpr_at_1e-3", name, rare, 0.001) for name in ("OP", "PP")),
    ]


def decide(
    risks,
    worst=None,
    checks=(),
    shorter=(),
    has_attacks=True,
    conditions=("OP", "PP"),
    num_fitted=24,
):
    """The headline of a report with these risks."""
    known = score_report(0, 1, 2)
    scalars = dict(known.scalars)
    if has_attacks:
        scalars |= {
            f"{name.lower()}_attack_speakers": scalars["op_d_ece"] * 0 + num_fitted
            for name in conditions
        }
    worst = worst or WorstSpeaker(0.05, 3, 0.06, 0.5, scalars["op_d_ece"])
    report = replace(
        known,
        conditions={name: known.conditions[name] for name in conditions},
        scalars=scalars,
        risks=tuple(risks),
        worst_speaker=worst,
        checks=tuple(checks),
        shorter_risks=tuple(shorter),
        headline=None,
    )
    return make_headline(report)


def test_low_needs_every_risk_excluded_and_names_its_length():
    headline = decide(quiet_risks())
    assert headline.level == "low"
    assert headline.verdict == (
        "Low speaker leakage, for up to 5 utterances of one person, to attackers who learnt from"
        " 24 speakers."
    )
    assert headline.reasons == ()


@pytest.mark.parametrize("index", range(6))
def test_one_risk_that_is_unknown_or_not_excluded_makes_it_inconclusive(index):
    for numbers in ((math.nan,) * 4, (0.009, 0.0, 0.2, 0.0)):
        value, low, high, low_corrected = numbers
        risks = quiet_risks()
        risks[index] = replace(
            risks[index], value=value, low=low, high=high, low_corrected=low_corrected
        )
        headline = decide(risks)
        assert headline.level == "inconclusive"
        assert headline.verdict.startswith("Inconclusive: nothing was found")


@pytest.mark.parametrize(("numbers", "level"), [(MODERATE, "moderate"), (HIGH, "high")])
@pytest.mark.parametrize("index", range(6))
def test_one_risk_above_chance_decides_by_its_value(index, numbers, level):
    risks = quiet_risks()
    value, low, high, low_corrected = numbers
    risks[index] = replace(
        risks[index], value=value, low=low, high=high, low_corrected=low_corrected
    )
    headline = decide(risks)
    assert headline.level == level
    assert headline.verdict == f"{level.capitalize()} speaker leakage."
    assert headline.reasons == (risks[index].sentence,)


def test_a_value_within_chance_is_not_shown_however_large():
    risks = quiet_risks()
    risks[0] = risk(numbers=(0.15, 0.05, 0.25, 0.01), chance=0.09)
    assert decide(risks).level == "inconclusive"


@pytest.mark.parametrize(
    ("disclosure", "p", "level"),
    [(0.3, 0.05, "high"), (0.16, 0.01, "moderate"), (0.3, 0.06, "low")],
)
def test_somebody_who_is_named_is_a_risk(disclosure, p, level):
    headline = decide(quiet_risks(), WorstSpeaker(disclosure, 3, 0.06, p, None))
    assert headline.level == level
    assert headline.is_speaker_exposed == (p <= 0.05)
    assert headline.worst_speaker == "3"
    assert any("Speaker 3 is exposed" in reason for reason in headline.reasons) == (p <= 0.05)


def test_an_untested_worst_speaker_is_not_low():
    assert (
        decide(quiet_risks(), WorstSpeaker(0.3, 3, math.nan, math.nan, None)).level
        == "inconclusive"
    )


def test_a_failed_check_allows_no_low():
    failed = Check("encoder", "failed", "It hardly tells them apart.")
    headline = decide(quiet_risks(), checks=[failed])
    assert (headline.level, headline.reasons) == ("inconclusive", (failed.message,))
    risks = [*quiet_risks()[1:], risk(numbers=HIGH)]
    assert decide(risks, checks=[failed]).level == "high"


def test_without_an_attack_nothing_is_low():
    assert decide(quiet_risks(), has_attacks=False).level == "inconclusive"
    assert decide([*quiet_risks()[1:], risk(numbers=HIGH)], has_attacks=False).level == "high"


def test_shorter_conversations_are_tried_where_longer_ones_do_not_tell():
    open_risk = (0.02, 0.0, 0.05, 0.0)
    risks = [risk(numbers=open_risk, utterances=10), *quiet_risks()[1:]]
    shorter = [risk(condition=name, utterances=5) for name in ("OP", "PP")]
    headline = decide(risks, shorter=shorter)
    assert headline.level == "low"
    assert (
        headline.verdict
        == "Low speaker leakage, for up to 5 utterances of one person, to attackers who learnt from"
        " 24 speakers; for 10 these data cannot"
        " tell."
    )
    assert (
        decide(risks, shorter=[shorter[0], risk(numbers=open_risk, utterances=5)]).level
        == "inconclusive"
    )
    one = [risk("disclosure", name) for name in ("OP", "PP")]
    assert decide(risks, shorter=one).verdict.startswith(
        "Low speaker leakage, for one utterance of one person, to attackers who learnt from 24"
        " speakers"
    )


def test_low_in_one_condition_says_which_was_not_tried():
    only = [each for each in quiet_risks() if each.condition == "OP"]
    assert (
        "not against enrolment that is protected as well (PP)"
        in decide(only, conditions=("OP",)).verdict
    )
    only = [each for each in quiet_risks() if each.condition == "PP"]
    assert "not against original enrolment (OP)" in decide(only, conditions=("PP",)).verdict


def test_inconclusive_says_what_is_not_excluded_and_how_many_speakers_would():
    risks = [risk(numbers=(0.01, 0.0, 0.05, 0.0)), *quiet_risks()[1:]]
    # S ((.05 - .01) / (.03 - .01))^2 - S = 90 for 30 speakers.
    assert (
        decide(risks).verdict
        == "Inconclusive: nothing was found; these data do not exclude 0.050 bit; about 90 more"
        " speakers would."
    )
    risks[0] = risk(numbers=(0.04, 0.0, 0.08, 0.0))
    # A value above the lower limit may be luck, which is not "nothing".
    assert (
        decide(risks).verdict
        == "Inconclusive: what was found may be luck; these data do not exclude 0.080 bit."
    )


def test_the_condition_tells_what_the_attacker_needs():
    headline = decide(quiet_risks(), conditions=("PP",))
    assert headline.needs == "protected speech of the same people under the same secret"
    assert decide(quiet_risks(), conditions=("OP",)).needs == "original speech of the same people"


@pytest.mark.filterwarnings("ignore:.*The result is NaN")
def test_a_rate_of_zero_is_bounded_by_utterances():
    assert _bound_absent_share(0) == math.inf
    # 0.95 ** (1 / 2) of a coin that nobody saw fall on its head twice
    assert _bound_absent_share(2) == pytest.approx(1 - math.sqrt(0.05))
    draw = torch.Generator().manual_seed(0)
    names = torch.arange(30).repeat_interleave(10)
    original = torch.randn(300, 24, generator=draw)
    # Everybody sounds least like themselves.
    metric = VoicePrivacy(attacks=None, conversations=0)
    metric.update(original, -original.view(30, 10, 24).mean(1)[names], names)
    report = metric.report()
    rates = [risk for risk in report.risks if risk.name == "tpr_at_1e-3" and risk.value == 0]
    assert rates
    assert all(risk.high <= _bound_absent_share(300) for risk in rates)
    assert report.conditions["OP"].num_tests == 300


def test_attackers_who_learnt_from_few_speakers_do_not_reassure():
    headline = decide(quiet_risks(), num_fitted=9)
    assert headline.level == "inconclusive"
    assert "attackers learnt from 9 speakers" in headline.verdict
    assert decide(quiet_risks(), num_fitted=20).level == "low"
