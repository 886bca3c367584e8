"""The tables: what stands beside what, which columns there are, and that no interval leaves its value outside."""

import re
from dataclasses import replace

import pytest
import torch
from cli.cases import scored
from cli.test_headline import rebuild, system

from vpmetrics import VoicePrivacy
from vpmetrics._engine.registry import FAMILIES, scalar, utility_direction
from vpmetrics._engine.report import EvaluatedSystem
from vpmetrics._engine.trial_list import report_trials
from vpmetrics.cli.comparison import PRESETS, check_columns, table_of_systems
from vpmetrics.cli.inputs import InputError
from vpmetrics.cli.table_formats import as_csv, as_latex, as_markdown
from vpmetrics.cli.tables import clean, tables_of_system, value_cell

WEAK = ("DeID", "D_ECE", "EER", "Cllr")


def report_of(voices, **settings):
    metric = VoicePrivacy(attacks=None, metrics="all", **settings)
    metric.update(voices.original, voices.protected["B2"], voices.speakers, groups=voices.speakers % 2)
    return metric.report()


@pytest.fixture(scope="module")
def systems(voices):
    """With attacks and without, in groups with weights, from scores alone, and of protected speech alone."""
    speakers, plain = tuple("abcdef"), report_of(voices)
    numbers = {"d_ece_strongest": 0.7, "eer_strongest": 0.1, "strongest": 1, "d_ece_chance": 0.01}
    strongest = {f"{condition}_{key}": value for condition in ("op", "pp") for key, value in numbers.items()}
    attacks = (("plain", "nothing"), ("ridge to original", "pairs"))
    groups = {name: EvaluatedSystem(name, plain.groups[number]) for number, name in enumerate("fm")}
    trials = scored()
    attacked = rebuild(report_of(voices, intervals=0.95), attacks=attacks, **strongest)
    return {
        "attacked": EvaluatedSystem("attacked", attacked, speakers),
        "not attacked": EvaluatedSystem("not attacked", plain, speakers),
        "groups": EvaluatedSystem("groups", plain, speakers, groups=groups, weights={"f": 0.5, "m": 0.5}),
        "scores": EvaluatedSystem("scores", report_trials({"": trials})),
        "PP alone": EvaluatedSystem("PP alone", report_trials({"PP": trials})),
        "two runs": EvaluatedSystem("two runs", report_trials({"": trials}, trials)),
    }


def tables(systems):
    for one in systems.values():
        yield from tables_of_system(one)
        for columns in PRESETS:
            yield table_of_systems([one, replace(one, name="other")], "several", [columns])
    yield table_of_systems([systems["attacked"], systems["not attacked"], systems["PP alone"]], "several")


def names(table):
    """Everything that names a measure."""
    return [*table.columns, *(row[0].text for row in table.rows)]


def test_every_table_with_a_weak_attack_shows_the_strongest(systems):
    seen = 0
    for table in tables(systems):
        if any(weak in name for name in names(table) for weak in WEAK) and table.title != "By group, OO":
            seen += 1
            assert any("strongest D_ECE" in name or "strongest EER" in name for name in names(table)), table.title
            for text in (as_csv([table]), as_markdown([table]), as_latex([table])):
                assert "strongest" in text, table.title
    assert seen >= 20


@pytest.mark.parametrize("weak", ["OP D_ECE", "OP EER", "PP D_ECE", "DeID"])
def test_strongest_column_precedes_the_weak_one(systems, weak):
    columns = table_of_systems([systems["attacked"]] * 2, "x").columns
    strongest = weak.replace(" ", " strongest ") if " " in weak else "OP strongest D_ECE"
    places = [next(at for at, head in enumerate(columns) if head.startswith(name)) for name in (strongest, weak)]
    assert places[0] < places[1]


def test_missing_attacks_show_dash_or_none_tried(systems):
    table = table_of_systems([systems["not attacked"]] * 2, "x")
    at = next(at for at, head in enumerate(table.columns) if head.startswith("OP strongest D_ECE"))
    assert [row[at].text for row in table.rows] == ["–", "none tried", "none tried"]


def test_attacks_have_no_average(systems):
    (table,) = [table for table in tables_of_system(systems["groups"]) if table.title == "By group, OP"]
    at = table.columns.index("strongest attack")
    assert [row[at].text for row in table.rows] == ["none tried"] * 3 + ["–"]


def test_every_measure_is_in_exactly_one_table(systems):
    shown = tables_of_system(systems["attacked"])
    assert shown[0].title == "Headline"
    assert not shown[0].fold
    entries = [entry for family in ("score", "matrix", "rank", "local", "speaker") for entry in FAMILIES[family]]
    for entry in entries:
        found = [table.title for table in shown if entry.key in table.keys]
        assert len(found) == 1, (entry.key, found)
    assert {table.fold for table in shown[2:]} == {table.title for table in shown[2:]}


def test_op_and_pp_values_have_separate_columns(systems):
    one, other = systems["PP alone"], systems["attacked"]
    for order in ([one, other], [other, one]):
        table = table_of_systems(order, "x")
        assert "where nothing else is said" not in table.title
        row = next(row for row in table.rows if row[0].text == "PP alone")
        cells = dict(zip(table.columns, row, strict=True))
        assert cells["PP D_ECE ↓ [bit]"].value == pytest.approx(one.get_or_nan("pp_d_ece"))
        assert cells["OP D_ECE ↓ [bit]"].text == "–"


def test_best_value_follows_the_direction_of_each_column():
    ones = [
        system(name, 1.0, deid=deid, gvd=deid, op_d_ece=bits) for name, deid, bits in (("a", 0.2, 0.1), ("b", 0.9, 0.3))
    ]
    ones = [replace(one, utility={"WER": wer, "UAR": wer}) for one, wer in zip(ones, (9.0, 5.0), strict=True)]
    table = table_of_systems(ones, "x", ["op_d_ece", "deid", "gvd", "utility"])
    best = {
        head: [row[0].text for row in table.rows if row[at].tone == "best"] for at, head in enumerate(table.columns)
    }
    assert best["OP D_ECE ↓ [bit]"] == ["a"]
    assert best["DeID ↑ [%]"] == ["b"]
    assert best["G_VD [dB]"] == []
    assert best["WER ↓"] == ["b"]
    assert best["UAR ↑"] == ["a"]


@pytest.mark.parametrize(
    ("direction", "names"), [("low", ("WER", "cer", "WER [%]", "word error")), ("high", ("UAR", "MOS", "answer"))]
)
def test_error_rates_are_better_where_they_are_lower(direction, names):
    assert {name: utility_direction(name) for name in names} == dict.fromkeys(names, direction)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_name_columns_there_are(systems, preset):
    check_columns([preset, *PRESETS[preset]])
    table = table_of_systems([systems["attacked"]] * 2, "x", [preset])
    assert len(table.columns) > 3
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_a_measure_without_condition_stands_for_all(systems):
    heads = table_of_systems([systems["attacked"]] * 2, "x", ["l_w", "oo_eer", "op_rank_spread"]).columns
    assert heads == ("system", "OP l_w ↓ [log10]", "PP l_w ↓ [log10]", "OO EER ↑ [%]", "OP rank spread [%]")
    assert table_of_systems([systems["scores"]] * 2, "x", ["l_w"]).columns == ("system", "l_w ↓ [log10]")


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
    draw, entry = torch.Generator().manual_seed(0), scalar(key)
    numbers = 10 ** torch.empty(2000, dtype=torch.float64).uniform_(-7, 0, generator=draw)
    offsets = 10 ** torch.empty(2, 2000, dtype=torch.float64).uniform_(-9, 0, generator=draw)
    cases = [(v, v - a, v + b) for v, a, b in zip(numbers.tolist(), *offsets.tolist(), strict=True)]
    for value, low, high in [*cases, (0.998, 0.9974, 1.0), (1e-5, 0.0, 3e-5)]:
        cell = value_cell(entry, value, low, high)
        ends = cell.interval[1:-1].split(", ")
        printed, left, right = (float(text.replace("−", "-")) for text in (cell.text, *ends))
        assert left <= printed <= right, cell


def test_attributes_have_a_table(systems):
    numbers = {"disclosure": 0.31, "disclosure_low": 0.2, "disclosure_high": 0.4, "accuracy": 0.8, "majority": 0.5}
    one = replace(systems["scores"], attributes={"sex": numbers, "accent": {"disclosure": 0.0}})
    (table,) = [table for table in tables_of_system(one) if table.title == "Attributes"]
    assert table.columns == ("attribute", "disclosure ↓ [bit]", "accuracy ↓ [%]", "majority class [%]")
    assert [str(cell) for cell in table.rows[0]] == ["sex", "0.310 [0.200, 0.400]", "80.00", "50.00"]
    assert [cell.text for cell in table.rows[1]] == ["accent", "0.000", "–", "–"]


def test_control_characters_are_removed_from_names():
    assert clean("a\x1b[31m\tb\r\nc\u202ed\u200b") == "a [31m b c d"
    one = replace(system("\x1b[2J=cmd", 1.0), name="\x1b[2J=cmd")
    text = as_markdown([table_of_systems([one, one], "title\nof two")])
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)
    assert text.startswith("**title of two**")


def test_each_dataset_has_an_original_row_and_challenge_condition_names(systems):
    ones = [replace(systems["attacked"], name=f"B2 {part}", dataset=part) for part in ("dev", "test")]
    assert [row[0].text for row in table_of_systems([*ones, ones[0]], "x").rows[:2]] == [
        "original, dev",
        "original, test",
    ]
    assert table_of_systems(ones[:1], "x").rows[0][0].text == "original"
    named = replace(ones[0], challenge_condition_names={"OP": "OA, ignorant", "PP": "AA"})
    assert tables_of_system(named)[0].columns[1:3] == ("OP (OA, ignorant)", "PP (AA)")
