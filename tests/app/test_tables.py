"""The tables: what stands beside what."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from vpmetrics import VoicePrivacy
from vpmetrics._report import System, report_of_trials
from vpmetrics._trials.scored import ScoredTrials
from vpmetrics.app.embeddings import Embeddings
from vpmetrics.app.evaluation import evaluate_embeddings
from vpmetrics.app.table_files import as_csv, as_latex, as_markdown
from vpmetrics.app.tables import table_of_systems, tables_of_system
from vpmetrics.attacks import Plain, RidgeToOriginal

WEAK = ("DeID", "D_ECE", "EER")


@pytest.fixture(scope="module")
def systems(voices):
    """With attacks and without, in groups with weights, and from scores alone."""
    groups = voices.speakers % 2
    sides = Embeddings(voices.original, voices.protected["B2"], voices.speakers, tuple("abcdef"))
    grouped = sides._replace(groups=groups, group_names=("f", "m"))
    attacked, none = VoicePrivacy(attacks=[Plain(), RidgeToOriginal()]), VoicePrivacy(attacks=None)
    is_target = torch.arange(300) % 5 == 0
    scores = torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1.0 * is_target
    trials = ScoredTrials(scores, is_target)
    return {
        "attacked": evaluate_embeddings("attacked", sides, attacked),
        "not attacked": evaluate_embeddings("not attacked", sides, none),
        "groups": evaluate_embeddings("groups", grouped, none, {"f": 0.5, "m": 0.5}),
        "scores": System("scores", report_of_trials({"": trials})),
        "two runs": System("two runs", report_of_trials({"": trials}, trials)),
    }


def tables(systems):
    for system in systems.values():
        yield from tables_of_system(system)
        yield table_of_systems([system, replace(system, name="other")], "several")
    yield table_of_systems([systems["attacked"], systems["not attacked"]], "several")


def words(table):
    """Everything that names a number, and whatever stands for an attack."""
    return " ".join((*table.headings, *(row[0] for row in table.rows)))


def test_no_weak_attackers_number_stands_alone_in_any_table(systems):
    seen = 0
    for table in tables(systems):
        if any(name in words(table) for name in WEAK) and table.title != "By group, OO":
            seen += 1
            for text in (as_csv([table]), as_markdown([table]), as_latex([table])):
                assert "strongest attack" in text, table.title
                assert "none tried" in text or "strongest $D" in text or "strongest D_ECE" in text.replace("\\", "")
    assert seen >= 15


@pytest.mark.parametrize(
    ("strongest", "weak"),
    [("strongest D_ECE [", "D_ECE ["), ("strongest EER [", "EER ["), ("PP strongest D_ECE [", "PP D_ECE [")],
)
def test_the_strongest_stands_right_before_what_it_is_to_be_read_with(systems, strongest, weak):
    headings = table_of_systems([systems["attacked"]] * 2, "x").headings
    places = [next(at for at, head in enumerate(headings) if head.startswith(name)) for name in (strongest, weak)]
    assert places[1] - places[0] in (1, 2)  # between them, what chance finds


def test_original_speech_has_no_attack_and_others_say_that_none_was_tried(systems):
    table = table_of_systems([systems["not attacked"]] * 2, "x")
    at = table.headings.index("strongest attack")
    assert [row[at] for row in table.rows] == ["–", "none tried", "none tried"]


def test_attacks_have_no_average(systems):
    (table,) = [table for table in tables_of_system(systems["groups"]) if table.title == "By group, OP"]
    at = table.headings.index("strongest attack")
    assert [row[at] for row in table.rows] == ["none tried"] * 3 + ["–"]
