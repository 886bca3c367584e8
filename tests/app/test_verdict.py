"""What a page says in words: never more than was tried, and what got better or worse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vpmetrics._intervals import Difference
from vpmetrics._report import System, report_of_trials
from vpmetrics._trials.scored import ScoredTrials
from vpmetrics._trials.strongest import Strongest
from vpmetrics.app.changes import changes_between
from vpmetrics.app.demo import verdict as verdict_of_demonstration
from vpmetrics.app.differences import Pair
from vpmetrics.app.tables import show
from vpmetrics.app.verdict import easiest_speakers, verdict_of, verdict_of_systems


def scores(distance, seed=0, condition="OP"):
    draw = torch.Generator().manual_seed(seed)
    is_target = torch.arange(4000) % 4 == 0
    values = torch.randn(4000, generator=draw, dtype=torch.float64) + distance * is_target
    return report_of_trials({condition: ScoredTrials(values, is_target)})


def system(name, distance, **scalars):
    report = scores(distance)
    return System(name, report._replace(scalars=report.scalars | {k: torch.tensor(v) for k, v in scalars.items()}))


@pytest.mark.parametrize(("distance", "level"), [(4.0, "bad"), (1.0, "mixed"), (0.0, "good"), (-4.0, "bad")])
def test_the_verdict_follows_the_most_that_is_disclosed_in_either_direction(distance, level):
    verdict = verdict_of(system("x", distance))
    assert verdict.level == level
    assert any("sign of the scores" in sentence for sentence in verdict.sentences) == (distance < 0)


def test_a_weak_attackers_number_never_stands_alone():
    assert "No stronger attack was tried" in " ".join(verdict_of(system("x", 0.0)).sentences)
    assert "No stronger attack" in " ".join(verdict_of_systems([system("x", 0.0), system("y", 1.0)]).sentences)


def test_the_strongest_attack_decides_and_is_named_with_what_it_needs():
    weak = system("x", 0.0, op_d_ece_strongest=0.37, op_strongest=1, op_d_ece_chance=0.012)
    each = torch.tensor([0.0, 0.37, torch.nan])  # the last was not tried
    chosen = torch.ones(2, 1, dtype=torch.int64)
    found = Strongest(*(torch.tensor(value) for value in (0.37, 0.3, 1, 0.012)), each, chosen)
    conditions = {"OP": replace(weak.report.conditions["OP"], strongest=found)}
    attacks = (("plain", "nothing"), ("ridge", "pairs of both sides"), ("ridge, observed", "pairs of both sides"))
    tried = System("x", weak.report._replace(conditions=conditions), attacks=attacks)
    verdict = verdict_of(tried)
    text = " ".join(verdict.sentences)
    assert show("op_strongest", tried) == "ridge"
    assert verdict.level == "bad"
    assert "The strongest of 2 attacks tried, ridge, learns 0.370 of 0.721 bit, where chance finds 0.012" in text
    assert "It needs pairs of both sides." in text
    assert "No stronger attack" not in text


def test_an_attacker_who_protects_the_same_way_is_named():
    linked = system("x", 0.0, pp_d_ece=0.667)
    assert "protects known recordings in the same way learns 0.667 bit (PP)" in " ".join(verdict_of(linked).sentences)


def test_undefined_numbers_give_no_verdict():
    nothing = system("x", 1.0, **{f"op_{key}": float("nan") for key in ("d_ece", "d_ece_reversed")})
    assert verdict_of(nothing).level == verdict_of_systems([nothing]).level == "unknown"


def test_systems_are_ranked_by_what_they_disclose():
    verdict = verdict_of_systems([system("weak", 3.0, gvd=-0.1), system("strong", 0.3, gvd=-7.0)])
    assert verdict.headline == "strong hides speakers best."
    assert "Voices stay most distinct with weak (G_VD −0.10 dB)." in verdict.sentences


def test_a_demonstration_says_ahead_only_of_what_its_speakers_tell_apart():
    known = [system(name, 0.0, op_d_ece_strongest=bits) for name, bits in (("a", 0.6), ("b", 0.08), ("trained", 0.02))]

    def pair(first, low):
        found = Difference(*(torch.tensor(value) for value in (0.1, low, 0.7, 0.02)))
        return Pair(first, "trained", "op_d_ece_strongest", found)

    said = verdict_of_demonstration(known, [pair("a", 0.2), pair("b", -0.01)]).splitlines()
    assert [line.split(":")[0] for line in said] == ["trained is ahead of a", "trained is not told apart from b"]


def test_changes_say_better_or_worse_by_where_privacy_lies():
    before = system("a", 2.0, deid=0.3, gvd=-1.0, pp_d_ece=0.5)
    after = system("b", 1.0, deid=0.3, gvd=-5.0, pp_d_ece=0.6)
    rows = {change.heading: change for change in changes_between(before, after)}
    assert rows["OP D_ECE [bit]"].better is True
    assert rows["OP EER [%]"].better is True
    assert rows["OP EER [%]"].change == "▲ better"
    assert rows["PP D_ECE [bit]"].change == "▲ worse"
    assert (rows["DeID [%]"].change, rows["DeID [%]"].better) == ("same", None)
    assert (rows["G_VD [dB]"].change, rows["G_VD [dB]"].better) == ("▼ less distinct", None)


def test_a_change_within_the_error_of_both_is_neither_better_nor_worse():
    before = system("a", 2.0, pp_d_ece=0.50, pp_d_ece_low=0.45, pp_d_ece_high=0.55)
    for value, says in ((0.52, "within error"), (0.70, "▲ worse")):
        after = system("b", 2.0, pp_d_ece=value, pp_d_ece_low=value - 0.03, pp_d_ece_high=value + 0.03)
        (change,) = [row for row in changes_between(before, after) if row.heading == "PP D_ECE [bit]"]
        assert change.change == says


def test_the_easiest_speakers_are_those_whose_own_trials_stand_out():
    draw = torch.Generator().manual_seed(0)
    pairs = torch.cartesian_prod(torch.arange(8), torch.arange(8)).repeat(5, 1).T
    is_target = pairs[0] == pairs[1]
    easy = is_target & ((pairs[0] == 2) | (pairs[0] == 5))
    values = torch.randn(pairs.shape[1], generator=draw, dtype=torch.float64) + 6.0 * easy
    report = report_of_trials({"OP": ScoredTrials(values, is_target, pairs)}, speakers=8)
    found = easiest_speakers(System("x", report, tuple("abcdefgh")), count=2)
    assert set(found) == {"c", "f"}
