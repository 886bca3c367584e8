"""The verdict, and the summary it stands in.

Never more than was tried, and never low where something is wrong.
"""

import math
from dataclasses import replace

import pytest
import torch

from vpmetrics.attacks.results import FusedResult, ReportedAttack
from vpmetrics.report.checks import Check
from vpmetrics.report.comparison import (
    collect_checks,
    table_of_changes,
    table_of_systems,
    verdict_of_systems,
)
from vpmetrics.report.headline import describe_share
from vpmetrics.report.privacy_report import EvaluatedSystem, _largest_of_conditions
from vpmetrics.report.summary import (
    comparison_lines,
    sort_by_dataset_and_disclosure,
    summary_lines,
    summary_rows,
    verdict_of,
)
from vpmetrics.report.trial_report import ScoredTrials, report_trials
from vpmetrics.report.verdict import collect_risks, make_headline


def rebuild(report, **changes):
    """A report with some scalars or parts changed, and the headline that follows."""
    parts = {key: changes.pop(key) for key in ("checks", "attacks", "conditions") if key in changes}
    report = replace(report, **parts, headline=None)
    scalars = report.scalars | {key: torch.tensor(float(value)) for key, value in changes.items()}
    scalars |= {
        k: v
        for k, v in _largest_of_conditions(report.conditions, scalars).items()
        if k not in changes
    }
    report = replace(report, scalars=scalars)
    report = replace(report, risks=collect_risks(report))
    return replace(report, headline=make_headline(report))


def scores(distance, seed=0, condition="OP"):
    draw = torch.Generator().manual_seed(seed)
    is_target = torch.arange(4000) % 4 == 0
    values = torch.randn(4000, generator=draw, dtype=torch.float64) + distance * is_target
    return replace(report_trials({condition: ScoredTrials(values, is_target)}), checks=())


def system(name, distance, **changes):
    return EvaluatedSystem(name, rebuild(scores(distance), **changes))


def attacked(name="x", **changes):
    """A system on whose OP attacks were fused, and on whose PP where scalars of it are given."""
    known = scores(0.0)
    if any(key.startswith("pp_") for key in changes):
        known = replace(
            known, conditions={**known.conditions, **scores(0.0, condition="PP").conditions}
        )
    given = {"op_d_ece_strongest": 0.37, "op_d_ece_chance": 0.012, **changes}
    fused = FusedResult({}, torch.tensor(0.0), torch.tensor(0.0), {}, profile=3)
    known = replace(
        known,
        conditions={
            name: replace(each, strongest=fused) for name, each in known.conditions.items()
        },
    )
    attacks = (ReportedAttack("plain", "nothing", {}, {}),)
    return EvaluatedSystem(name, rebuild(known, attacks=attacks, **given))


def text_of(one):
    return " ".join(verdict_of(one).sentences)


@pytest.mark.parametrize(
    ("distance", "level"), [(4.0, "high"), (0.0, "inconclusive"), (-4.0, "high")]
)
def test_verdict_uses_the_larger_disclosure_of_both_score_signs(distance, level):
    one = system("x", distance)
    assert verdict_of(one).level == level
    assert ("turn the sign" in text_of(one)) == (distance < 0)
    assert "No attack was tried" in text_of(one)
    assert "No attack was tried" in " ".join(verdict_of_systems([one, system("y", 1.0)]).sentences)
    assert "no attack tried" in "\n".join(summary_lines(one))


@pytest.mark.parametrize(
    ("one", "texts"),
    [
        (
            attacked(),
            [
                "an attacker learns 0.370 bit of at most 0.721, OP; chance gives 0.012",
                (
                    "The attacker (fused attacks) needs original speech of the same people, and"
                    " pairs of original and protected"
                ),
            ],
        ),
        (
            attacked(op_d_ece_strongest=0.01, pp_d_ece_strongest=0.667, pp_d_ece=0.6),
            ["learns 0.667 bit of at most 0.721, PP", "plain comparison, without an attack, 0.600"],
        ),
        (system("x", 0.0, checks=[Check("speakers", "ok", "40")]), ["No attack was tried"]),
    ],
)
def test_verdict_names_the_strongest_attack(one, texts):
    assert all(text in text_of(one) for text in texts), text_of(one)
    assert ("No attack" in text_of(one)) == (not one.report.attacks)
    disclosures = [
        row.cell.value for row in summary_rows(one) if row.heading.endswith(" disclosure")
    ]
    assert max(disclosures) == pytest.approx(one.get_or_nan("disclosure"))


def test_condition_within_does_not_count_as_disclosure():
    one = attacked(op_d_ece_strongest=0.01, within_d_ece_strongest=0.7, across_d_ece_strongest=0.02)
    conditions = dict.fromkeys(("OP", "PP", "within", "across"), one.report.conditions["OP"])
    one = replace(one, report=rebuild(one.report, conditions=conditions))
    assert one.get_or_nan("disclosure") == pytest.approx(0.02)
    assert {risk.condition for risk in one.report.risks} == {"OP", "across"}


def test_leakage_is_not_low_where_a_check_failed():
    checks = [
        Check(name, status, "It.")
        for name, status in (("a", "ok"), ("encoder", "failed"), ("b", "warning"))
    ]
    one = system("x", 0.0, checks=checks)
    assert verdict_of(one).level == "inconclusive"
    assert "It." in text_of(one)
    lines = summary_lines(one)
    assert [line[0] for line in lines if line[:1] in ("✗", "!", "✓")] == ["✗", "!", "✓"]
    assert "1 of 3 checks passed" in "\n".join(lines)


def test_systems_are_ranked_by_what_they_disclose():
    weak = system("weak", 3.0, gvd=-0.1)
    strong = system("strong", 0.3, gvd=-7.0)
    unknown = system("?", 0.0, op_d_ece=math.nan, op_d_ece_reversed=math.nan)
    assert [one.name for one in sort_by_dataset_and_disclosure([unknown, weak, strong])] == [
        "strong",
        "weak",
        "?",
    ]
    verdict = verdict_of_systems([weak, strong])
    assert verdict.title == "strong discloses least."
    assert "Voices stay most distinct with weak (G_VD −0.10 dB)." in verdict.sentences
    assert verdict_of(unknown).level == verdict_of_systems([unknown]).level == "inconclusive"
    assert summary_lines(unknown)[0] == "No verdict."


def test_one_measured_system_is_not_compared_with_itself():
    measured = system("measured", 0.3)
    unknown = system("unknown", 0.0, op_d_ece=math.nan, op_d_ece_reversed=math.nan)
    verdict = verdict_of_systems([unknown, measured])
    assert verdict.title == "Only of measured is the disclosure known."
    text = verdict.sentences[0]
    assert text.startswith("measured discloses ")
    assert text.count("measured") == 1


def test_the_best_system_of_a_dataset_is_the_one_whose_number_is_given():
    # The test set has no conversations, so that both data sets together are ranked by one
    # utterance. The other data set is compared by conversations, which have the other order.
    few = system("few, dev", 0.3, op_d_ece_conversation=0.5, conversation_utterances=5.0)
    many = system("many, dev", 1.0, op_d_ece_conversation=0.4, conversation_utterances=5.0)
    on_dev = [replace(each, dataset="dev") for each in (few, many)]
    on_test = [replace(system("few, test", 0.3), dataset="test")]
    verdict = verdict_of_systems([*on_dev, *on_test])
    assert "On dev: many, dev discloses least." in verdict.sentences


def test_systems_are_ranked_only_within_a_dataset():
    distances = {"a dev": 0.1, "a test": 2.0, "b dev": 1.0, "b test": 1.0}
    ones = [
        replace(system(name, distance), dataset=name[2:]) for name, distance in distances.items()
    ]
    part = replace(system("b test, x-vectors", 0.0), dataset="test", part_of="b test")
    copy = replace(part, name="b test, ECAPA")
    verdict = verdict_of_systems([*ones, part, copy])
    assert verdict.title == "b test discloses least."
    assert "On dev: a dev discloses least." in verdict.sentences
    (check,) = collect_checks([replace(part, part_of=""), replace(copy, part_of="")])
    assert check.message == "b test, ECAPA and b test, x-vectors have identical scores."
    assert collect_checks([*ones, part, copy]) == []
    lines = comparison_lines([part, *ones])[1:]
    assert [line.split("  0.")[0].rstrip() for line in lines] == [
        "a dev",
        "b dev",
        "b test",
        "  x-vectors",
        "a test",
    ]
    tones = {str(row[0]): row[1].tone for row in table_of_systems([*ones, part], "t").rows}
    assert {name for name, tone in tones.items() if tone == "best"} == {"a dev", "b test"}


def test_risks_are_told_in_words():
    assert [describe_share(share) for share in (1.0, 0.96, 0.85, 0.45, 0.11, 0.01, 0.0)] == [
        "every try",
        "96 in 100 tries",
        "8 in 10 tries",
        "1 in 2 tries",
        "1 in 9 tries",
        "1 in 100 tries",
        "no try",
    ]
    nothing = attacked(op_d_ece_strongest=0.001, op_d_ece=0.001, op_found_in_100=0.009)
    text = text_of(nothing)
    assert "learns 0.001 bit of at most 0.721, OP; no more than chance would give" in text
    assert "found in 1 in 111 tries (0.9 %, OP); no more than chance would give" in text
    assert "exposed" not in text


def test_differences_below_the_printed_digits_are_the_same():
    before = system(
        "a", 1.0, disclosure=2e-5, disclosure_low=1e-5, disclosure_high=3e-5, deid=0.30001
    )
    after = system(
        "b", 1.0, disclosure=4e-4, disclosure_low=3.9e-4, disclosure_high=4.1e-4, deid=0.30004
    )
    changes = {row[0].text: row[3].text for row in table_of_changes(before, after).rows}
    assert changes["disclosure ↓ [bit]"] == changes["DeID ↑ [%]"] == "same"
    table = table_of_systems([before, after], "t", ["disclosure", "deid"])
    assert not any(cell.tone for row in table.rows for cell in row)


def test_utility_stands_beside_privacy():
    one = replace(system("a", 1.0), utility={"WER": 4.21, "UAR": 60.0})
    shown = "\n".join(summary_lines(one))
    assert "WER" in shown
    assert "4.21" in shown
    assert "utility; lower is better" in shown
    head, *rows = comparison_lines([one, replace(system("b", 2.0), utility={"WER": 5.5})])
    assert head.split()[-2:] == ["WER", "UAR"]
    assert rows[0].split()[-2:] == ["4.21", "60"]
    assert rows[1].split()[-2:] == ["5.5", "–"]


LONG = "an_attack_whose_name_goes_on_and_on_without_end_and_without_a_single_space"


@pytest.mark.parametrize("name", ["x", LONG, "汉" * 60, "two\nlines \x1b[31m"])
def test_summaries_fit_a_terminal_of_80_columns(name):
    one = attacked(name, pp_d_ece=0.1, deid=0.5, gvd=-1.0, op_linkability=0.3)
    one = replace(
        one,
        report=replace(one.report, checks=[Check("a check", "failed", f"It failed {LONG}. " * 3)]),
    )
    for lines in (summary_lines(one), comparison_lines([one, system("other", 1.0)])):
        assert max(map(len, lines)) <= 80
        assert all(line.isprintable() for line in lines)
    assert len(summary_rows(one)) <= 12
    assert "<b>" not in one.report._repr_html_()
    assert len(comparison_lines([one] * 3)) == 4


def test_equal_check_messages_of_systems_are_merged():
    same = Check("encoder", "ok", "Good.")
    other = Check("encoder", "failed", "Bad.")
    systems = [
        attacked(name, checks=(check,)) for name, check in (("a", same), ("b", same), ("c", other))
    ]
    assert [(check.name, check.message) for check in collect_checks(systems[:2])[1:]] == [
        ("encoder", "Good.")
    ]
    named = [check for check in collect_checks(systems) if check.name != "identical systems"]
    assert named == [other._replace(name="encoder, c"), same._replace(name="encoder, a, b")]


def test_changes_follow_the_privacy_direction_of_each_measure():
    before = system("a", 2.0, deid=0.3, gvd=-1.0, disclosure=0.5)
    after = system("b", 1.0, deid=0.3, gvd=-5.0, disclosure=0.6)
    changes = {row[0].text: row[3] for row in table_of_changes(before, after).rows}
    assert {name: (cell.text, cell.tone) for name, cell in changes.items()}.items() >= {
        "OP D_ECE ↓ [bit]": ("▼ better", "better"),
        "OP EER ↑ [%]": ("▲ better", "better"),
        "disclosure ↓ [bit]": ("▲ worse", "worse"),
        "DeID ↑ [%]": ("same", ""),
        "G_VD [dB]": ("▼ less distinct", ""),
    }.items()


@pytest.mark.parametrize(("value", "says"), [(0.52, "within error"), (0.70, "▲ worse")])
def test_a_change_within_the_error_of_both_is_neither_better_nor_worse(value, says):
    before = system("a", 2.0, disclosure=0.50, disclosure_low=0.45, disclosure_high=0.55)
    after = system(
        "b", 2.0, disclosure=value, disclosure_low=value - 0.03, disclosure_high=value + 0.03
    )
    assert table_of_changes(before, after).rows[0][3].text == says
