"""The tables: what stands beside what, and which columns there are.

No interval leaves its value outside.
"""

import re
from dataclasses import replace

import pytest
import torch
from cli.cases import scored
from report.test_headline import rebuild, system

from vpmetrics import VoicePrivacy
from vpmetrics._scores.registry import FAMILIES, scalar, utility_direction
from vpmetrics._util.inputs import InputError
from vpmetrics.attacks.results import ReportedAttack
from vpmetrics.report.comparison import PRESETS, check_columns, table_of_systems
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.table_formats import as_markdown
from vpmetrics.report.tables import clean, tables_of_system, value_cell
from vpmetrics.report.trial_report import report_trials

WEAK = ("DeID", "D_ECE", "EER", "Cllr")


def report_of(voices, **settings):
    metric = VoicePrivacy(attacks=None, metrics="all", **settings)
    metric.update(
        voices.original, voices.protected["B2"], voices.speakers, groups=voices.speakers % 2
    )
    return metric.report()


@pytest.fixture(scope="module")
def systems(voices):
    """Systems with attacks and without, in groups with weights, from scores alone.

    And of protected speech alone.
    """
    speakers = tuple("abcdef")
    plain = report_of(voices)
    numbers = {"d_ece_strongest": 0.7, "eer_strongest": 0.1, "d_ece_chance": 0.01}
    strongest = {
        f"{condition}_{key}": value for condition in ("op", "pp") for key, value in numbers.items()
    }
    attacks = (
        ReportedAttack("plain", "nothing", {}, {}),
        ReportedAttack("ridge to original", "pairs", {}, {}),
    )
    groups = {name: EvaluatedSystem(name, plain.groups[number]) for number, name in enumerate("fm")}
    trials = scored()
    attacked = rebuild(report_of(voices, intervals=0.95), attacks=attacks, **strongest)
    return {
        "attacked": EvaluatedSystem("attacked", attacked, speakers),
        "not attacked": EvaluatedSystem("not attacked", plain, speakers),
        "groups": EvaluatedSystem(
            "groups", plain, speakers, groups=groups, weights={"f": 0.5, "m": 0.5}
        ),
        "scores": EvaluatedSystem("scores", report_trials({"": trials})),
        "PP alone": EvaluatedSystem("PP alone", report_trials({"PP": trials})),
        "two runs": EvaluatedSystem("two runs", report_trials({"": trials}, trials)),
    }


def tables(systems):
    for one in systems.values():
        yield from tables_of_system(one)
        for columns in PRESETS:
            yield table_of_systems([one, replace(one, name="other")], "several", [columns])
    yield table_of_systems(
        [systems["attacked"], systems["not attacked"], systems["PP alone"]], "several"
    )


def test_every_table_with_a_weak_attack_shows_the_strongest(systems):
    seen = 0
    for table in tables(systems):
        names = [*table.columns, *(row[0].text for row in table.rows)]
        if any(weak in name for name in names for weak in WEAK) and table.title != "By group, OO":
            seen += 1
            assert any("strongest D_ECE" in name or "strongest EER" in name for name in names), (
                table.title
            )
    assert seen >= 20


def test_strongest_attack_stands_before_each_weak_one_or_says_none_tried(systems):
    table = table_of_systems([systems["not attacked"]] * 2, "x")
    for weak in ("OP D_ECE", "OP EER", "PP D_ECE", "DeID"):
        if " " in weak:
            strongest = weak.replace(" ", " strongest ")
        else:
            strongest = "OP strongest D_ECE"
        at, after = (
            next(k for k, head in enumerate(table.columns) if head.startswith(n))
            for n in (strongest, weak)
        )
        assert at < after
        assert [row[at].text for row in table.rows] == ["–", "none tried", "none tried"]
    (groups,) = [
        table for table in tables_of_system(systems["groups"]) if table.title == "By group, OP"
    ]
    at = next(k for k, head in enumerate(groups.columns) if head.startswith("strongest D_ECE"))
    assert [row[at].text for row in groups.rows] == ["none tried"] * 3 + ["–"]  # no average


def test_every_measure_is_in_exactly_one_table(systems):
    shown = tables_of_system(systems["attacked"])
    assert shown[0].title == "Headline"
    assert not shown[0].fold
    keys = [
        entry.key
        for name in ("score", "matrix", "rank", "local", "speaker")
        for entry in FAMILIES[name]
    ]
    assert {key: sum(key in table.keys for table in shown) for key in keys} == dict.fromkeys(
        keys, 1
    )
    assert shown[2].title == "Who is found"
    assert {table.fold for table in shown[3:]} == {table.title for table in shown[3:]}


def test_op_and_pp_values_have_separate_columns(systems):
    one = systems["PP alone"]
    other = systems["attacked"]
    for order in ([one, other], [other, one]):
        table = table_of_systems(order, "x")
        row = next(row for row in table.rows if row[0].text == "PP alone")
        cells = dict(zip(table.columns, row, strict=True))
        assert cells["PP D_ECE ↓ [bit]"].value == pytest.approx(one.get_or_nan("pp_d_ece"))
        assert cells["OP D_ECE ↓ [bit]"].text == "–"


def test_best_value_follows_the_direction_of_each_column():
    ones = [
        replace(
            system(name, 1.0, deid=deid, gvd=deid, op_d_ece=bits),
            utility={"WER": wer, "UAR": wer, "MOS": wer},
        )
        for name, deid, bits, wer in (("a", 0.2, 0.1, 9.0), ("b", 0.9, 0.3, 5.0))
    ]
    table = table_of_systems(ones, "x", ["op_d_ece", "deid", "gvd", "utility"])
    columns = zip(table.columns, *table.rows, strict=True)
    assert {
        head: "".join("ab"[at] for at, cell in enumerate(cells) if cell.tone)
        for head, *cells in columns
    } == {
        "system": "",
        "OP strongest D_ECE ↓ [bit]": "",
        "OP D_ECE ↓ [bit]": "a",
        "DeID ↑ [%]": "b",
        "G_VD [dB]": "",
        "WER ↓": "b",
        "UAR ↑": "a",
        "MOS ↑": "a",
    }
    assert {utility_direction(name) for name in ("cer", "WER [%]", "word error")} == {"low"}
    assert utility_direction("answer") == "high"


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_name_columns_there_are(systems, preset):
    check_columns([preset, *PRESETS[preset]])
    assert len(table_of_systems([systems["attacked"]] * 2, "x", [preset]).columns) > 3


def test_a_measure_without_condition_stands_for_all(systems):
    heads = table_of_systems(
        [systems["attacked"]] * 2, "x", ["l_w", "oo_eer", "op_rank_spread"]
    ).columns
    assert heads == (
        "system",
        "OP l_w ↓ [log10]",
        "PP l_w ↓ [log10]",
        "OO EER ↑ [%]",
        "OP rank spread [%]",
    )
    assert table_of_systems([systems["scores"]] * 2, "x", ["l_w"]).columns == (
        "system",
        "l_w ↓ [log10]",
    )


def test_unknown_column_raises_with_the_closest_name():
    check_columns(["eer", "op_eer", "WER"])
    with pytest.raises(InputError, match="got 'WER'"):
        check_columns(["WER"], ["UAR"])
    with pytest.raises(InputError, match=r"got 'op_err'\. Closest: 'op_eer'"):
        check_columns(["op_err"])
    with pytest.raises(InputError, match="a utility, or one of default, paper-2022"):
        check_columns(["W" * 10_000], [])


@pytest.mark.parametrize("key", ["d_ece", "eer", "deid", "gvd", "l_w", "linkability"])
def test_printed_intervals_contain_their_value(key):
    draw = torch.Generator().manual_seed(0)
    entry = scalar(key)
    numbers = 10 ** torch.empty(2000, dtype=torch.float64).uniform_(-7, 0, generator=draw)
    offsets = 10 ** torch.empty(2, 2000, dtype=torch.float64).uniform_(-9, 0, generator=draw)
    cases = [(v, v - a, v + b) for v, a, b in zip(numbers.tolist(), *offsets.tolist(), strict=True)]
    for value, low, high in [*cases, (0.998, 0.9974, 1.0), (1e-5, 0.0, 3e-5)]:
        cell = value_cell(entry, value, low, high)
        ends = cell.interval[1:-1].split(", ")
        printed, left, right = (float(text.replace("−", "-")) for text in (cell.text, *ends))
        assert left <= printed <= right, cell


def test_attributes_have_a_table(systems):
    numbers = {
        "disclosure": 0.31,
        "disclosure_low": 0.2,
        "disclosure_high": 0.4,
        "accuracy": 0.8,
        "majority": 0.5,
    }
    one = replace(systems["scores"], attributes={"sex": numbers, "accent": {"disclosure": 0.0}})
    (table,) = [table for table in tables_of_system(one) if table.title == "Attributes"]
    assert table.columns == (
        "attribute",
        "disclosure ↓ [bit]",
        "accuracy ↓ [%]",
        "majority class [%]",
    )
    assert [str(cell) for cell in table.rows[0]] == [
        "sex",
        "0.310 [0.200, 0.400]",
        "80.00",
        "50.00",
    ]
    assert [cell.text for cell in table.rows[1]] == ["accent", "0.000", "–", "–"]


def test_control_characters_are_removed_from_names():
    assert clean("a\x1b[31m\tb\r\nc\u202ed\u200b") == "a [31m b c d"
    one = replace(system("\x1b[2J=cmd", 1.0), name="\x1b[2J=cmd")
    text = as_markdown([table_of_systems([one, one], "title\nof two")])
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    assert text.startswith("**title of two**")


def test_each_dataset_has_an_original_row_and_challenge_condition_names(systems):
    ones = [
        replace(systems["attacked"], name=f"B2 {part}", dataset=part) for part in ("dev", "test")
    ]
    rows = table_of_systems([*ones, ones[0]], "x").rows
    assert [row[0].text for row in rows[:2]] == ["original, dev", "original, test"]
    assert table_of_systems(ones[:1], "x").rows[0][0].text == "original"
    named = replace(ones[0], challenge_condition_names={"OP": "OA, ignorant", "PP": "AA"})
    assert tables_of_system(named)[0].columns[1:3] == ("OP (OA, ignorant)", "PP (AA)")
