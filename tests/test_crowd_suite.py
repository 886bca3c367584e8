"""A crowd in the suite: the numbers of the classes, under the names of the table, and in the monitor."""

from __future__ import annotations

import pytest
import torch
from crowds import people
from torch.testing import assert_close

from vpmetrics import ReidentificationRate, SinglingOut, VoicePrivacy
from vpmetrics._crowds import Rates
from vpmetrics._report import System
from vpmetrics._scalars import scalars_of
from vpmetrics._trials.conditions import CONDITIONS
from vpmetrics._trials.strongest import Attackers
from vpmetrics._trials.utterances import pack, sides_of
from vpmetrics.app.table_files import as_csv
from vpmetrics.app.tables import tables_of_system
from vpmetrics.attacks import Plain, RidgeToOriginal
from vpmetrics.lightning import PrivacyMonitor

SIZES = (5, 20)


def rows(sessions=False):
    original, protected, speakers = people(number=20, each=8, noise=1.5)
    given = {"original": original, "protected": protected, "speakers": speakers}
    return given | ({"sessions": torch.arange(160) // 4 % 2} if sessions else {})


@pytest.mark.parametrize("sessions", [False, True])
def test_the_suite_says_what_the_classes_say(sessions):
    metric = VoicePrivacy(sizes=SIZES, attacks=None)
    metric.update(**rows(sessions))
    values = metric.compute()
    conditions = ("OO", "OP", "PP", "within", "across") if sessions else ("OO", "OP", "PP")
    assert tuple(values) == scalars_of(conditions, sessions=sessions, sizes=SIZES)
    for condition in conditions:
        classes = [ReidentificationRate] if condition in ("within", "across") else [ReidentificationRate, SinglingOut]
        for each in classes:
            one = each(sizes=SIZES, condition=condition)
            one.update(**rows(sessions))
            for name, value in one.compute().items():
                if not name.startswith("chance"):
                    assert_close(values[f"{condition.lower()}_{name}"], value, rtol=0, atol=0)


def test_original_speech_that_is_known_already_is_found_as_before():
    metric = VoicePrivacy(sizes=SIZES, attacks=None)
    metric.update(**rows())
    first = metric.report()
    metric.reset()
    metric.update(**rows())
    again = metric.report()
    assert first.scalars["oo_rate_20"] == again.scalars["oo_rate_20"]
    for report in (first, again):
        longer = report.conditions["OO"].rates((20,), 4)
        assert longer["rate_20"] > report.scalars["oo_rate_20"]
    assert VoicePrivacy().sizes == ()


def test_the_monitor_logs_a_crowd_where_the_suite_has_one():
    names = PrivacyMonitor(suite=VoicePrivacy(sizes=SIZES)).metrics
    assert {"op_rate_20", "pp_singling_out_5", "oo_gallery"} <= set(names)
    assert not any("rate_20" in name for name in PrivacyMonitor().metrics)


def test_odd_sizes_are_refused():
    with pytest.raises(ValueError, match="Expected `sizes`"):
        VoicePrivacy(sizes=(1, 20))


def test_tables_show_a_crowd_beside_the_other_numbers_of_a_condition():
    metric = VoicePrivacy(sizes=SIZES, attacks=None)
    metric.update(**rows())
    system = System("system", metric.report())
    (table,) = [
        table for table in tables_of_system(system) if any(row[0].startswith("found among") for row in table.rows)
    ]
    shown = {row[0]: row[1:] for row in table.rows}
    assert shown["found among 20 [%]"][1] == f"{100 * system.scalar('op_rate_20'):.2f}"
    assert shown["references"] == ("20", "20", "20")
    assert "singled out of 5 [%]" in shown


def turned(number=24, each=8, width=16):
    """Everybody's voice turned by one secret: cosines say nothing of it, and a map that is learnt undoes it."""
    original, _, speakers = people(number=number, each=each, width=width, noise=0.5)
    turn = torch.linalg.qr(torch.randn(width, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[
        0
    ]
    return original, original @ turn, speakers


@pytest.mark.filterwarnings("ignore:Singling one out")
def test_the_strongest_attack_stands_beside_every_rate():
    rows = turned()
    metric = VoicePrivacy(sizes=(4, 100), attacks=[Plain(), RidgeToOriginal()])
    metric.update(*rows)
    values = metric.compute()
    assert tuple(values) == scalars_of(attacks=True, sizes=(4, 100))
    assert values["op_gallery_strongest"] == 4  # 24 speakers in five folds
    assert values["op_rate_4"] < 0.6 < 0.8 < values["op_rate_4_strongest"]
    assert values["op_rate_100"] < 0.1 < 0.3 < values["op_rate_100_strongest"]
    rates = metric.report().conditions["OP"].rates
    assert rates.of_strongest((4,))["rate_4"] == values["op_rate_4_strongest"]


def test_rates_after_the_strongest_attack_are_those_of_the_class_within_each_fold():
    sides = sides_of(pack(*turned()))
    attackers = Attackers(sides, [RidgeToOriginal()])
    condition = CONDITIONS["OP"]
    strongest = attackers.strongest(condition)
    found = Rates(sides, condition, "cosine", attackers=attackers, strongest=strongest).of_strongest((2, 4))
    each, weights = [], []
    for fold, attack in attackers.chosen(condition, strongest):
        metric = ReidentificationRate(sizes=(2, 4), condition="OP", attack=attack)
        for name in ("original", "protected"):
            side = getattr(fold, name)
            metric.update(**{name: side.vectors}, speakers=side.speakers, utterances=side.utterances)
        each.append(metric.compute())
        weights.append(len(fold.original.speakers))
    for name in ("rate_2", "rate_4"):
        by_hand = sum(w * value[name] for w, value in zip(weights, each, strict=True)) / sum(weights)
        assert_close(found[name], by_hand.to(found[name].dtype), rtol=0, atol=1e-6)


def test_the_strongest_attack_stands_beside_everybody_who_is_singled_out():
    metric = VoicePrivacy(sizes=(4, 12), attacks=[Plain(), RidgeToOriginal()])
    metric.update(*turned())
    values = metric.compute()
    for size in (4, 12):  # of a fold in five; of half of all people
        # Half of all are singled out wherever they are: whoever is turned is like somebody, and always the same one.
        assert values[f"op_singling_out_{size}"] < 0.6 < 0.95 < values[f"op_singling_out_{size}_strongest"]
    # Between two sides that share the turn nothing is hidden, and there is nothing to undo.
    assert values["pp_singling_out_12"] > 0.9
    assert values["pp_singling_out_12_strongest"] == pytest.approx(values["pp_singling_out_12"].item(), abs=0.1)


@pytest.mark.parametrize(("size", "folds"), [(4, 5), (7, 3), (9, 2), (12, 2)])
def test_people_are_singled_out_of_folds_that_hold_them_by_attacks_fitted_on_all_others(size, folds):
    sides = sides_of(pack(*turned()))
    attackers = Attackers(sides, [RidgeToOriginal()])
    condition = CONDITIONS["OP"]
    strongest = attackers.strongest(condition)
    each = []
    for fold, chosen in attackers.chosen(condition, strongest, attackers.folds_for(size)):
        own = fold.original.speakers.unique()
        assert len(own) >= size
        others = ~torch.isin(sides.original.speakers, own)
        attack = RidgeToOriginal().fit(
            sides.original.vectors[others], sides.protected.vectors[others], sides.original.speakers[others]
        )
        metric = SinglingOut(sizes=(size,), condition="OP", attack=attack)
        for name in ("original", "protected"):
            side = getattr(fold, name)
            metric.update(**{name: side.vectors}, speakers=side.speakers, utterances=side.utterances)
        each.append(metric.compute())
        assert not chosen.is_turned
    assert len(each) == folds
    rates = Rates(sides, condition, "cosine", attackers=attackers, strongest=strongest)
    found, name = rates.isolation_of_strongest((size,)), f"singling_out_{size}"
    # The same draws; the maps are the same but for rounding, and where folds differ in size, their weights.
    by_hand = sum(value[name] for value in each) / folds
    assert found[name].item() == pytest.approx(by_hand.item(), abs=0.06)
    if size == 12:  # everybody of a half: nothing is drawn
        assert found[f"{name}_error"] == 0


def test_the_error_of_several_folds_is_that_of_their_mean():
    sides = sides_of(pack(*turned(number=40)))
    attackers = Attackers(sides, [Plain()])
    condition = CONDITIONS["PP"]
    rates = Rates(sides, condition, "cosine", attackers=attackers, strongest=attackers.strongest(condition))
    found = rates.isolation_of_strongest((5,))
    each = []
    for fold, _ in attackers.chosen(condition, rates.strongest):
        metric = SinglingOut(sizes=(5,), condition="PP")
        metric.update(None, fold.protected.vectors, fold.protected.speakers, utterances=fold.protected.utterances)
        each.append(metric.compute())
    for name in ("singling_out_5", "singling_out_5_error"):
        column = torch.stack([value[name] for value in each])
        expected = column.square().sum().sqrt() / 5 if name.endswith("error") else column.mean()
        assert found[name].item() == pytest.approx(expected.item(), abs=1e-6)


def test_nobody_is_singled_out_after_an_attack_of_more_than_half_of_all_people():
    metric = VoicePrivacy(sizes=(13,), attacks=[Plain()])
    metric.update(*turned())
    with pytest.warns(UserWarning, match="after an attack needs twice as many") as warned:
        values = metric.compute()
    assert len(warned) == 1
    assert values["op_singling_out_13"].isfinite()
    assert values["op_singling_out_13_strongest"].isnan()
    assert values["op_singling_out_13_strongest_error"].isnan()


def test_tables_mark_what_is_extrapolated():
    metric = VoicePrivacy(sizes=(4, 20), attacks=[Plain()])
    metric.update(*turned())
    with pytest.warns(UserWarning, match="twice as many"):
        (table,) = [table for table in tables_of_system(System("system", metric.report())) if "OO" in table.headings]
    shown = {row[0]: row[2] for row in table.rows}
    titles = [row[0] for row in table.rows]
    attacked = "found among 20 after the strongest attack [%]"
    assert shown[attacked].startswith("≈ ")
    assert titles.index(attacked) == titles.index("found among 20 [%]") + 1
    for counted in ("found among 20 [%]", "found among 4 after the strongest attack [%]"):
        assert not shown[counted].startswith("≈")
    assert shown["references"] == "24"
    assert shown["references after the strongest attack"] == "4"
    numbers = dict(row.split(",")[::2] for row in as_csv([table]).splitlines() if row.startswith("found among 20"))
    assert float(numbers[attacked]) == float(shown[attacked].removeprefix("≈ "))
    assert shown["singled out of 20 after the strongest attack [%]"] == "–"


def test_an_attack_whose_scores_fall_with_likeness_is_turned():
    original, _, speakers = people(number=24, each=8, width=16, noise=0.5)
    metric = VoicePrivacy(sizes=(4,), attacks=[Plain()])
    metric.update(original, -original, speakers)
    values = metric.compute()
    assert values["op_rate_4"] < 0.1
    assert values["op_rate_4_strongest"] > 0.9


def test_no_rate_of_an_attack_where_there_are_too_few_speakers_for_one():
    original, protected, speakers = people(number=5, each=8)
    metric = VoicePrivacy(sizes=(4,), attacks=[Plain()])
    metric.update(original, protected, speakers)
    with pytest.warns(UserWarning, match="needs 6 of them"):
        values = metric.compute()
    assert values["op_rate_4_strongest"].isnan()
    assert values["op_gallery_strongest"].isnan()
    assert values["op_singling_out_4_strongest"].isnan()
