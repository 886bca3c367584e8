"""A crowd in the suite: the numbers of the classes, under the names of the table, and in the monitor."""

from __future__ import annotations

import pytest
import torch
from crowds import people
from torch.testing import assert_close

from vpmetrics import ReidentificationRate, SinglingOut, VoicePrivacy
from vpmetrics._report import System
from vpmetrics._scalars import scalars_of
from vpmetrics.app.tables import tables_of_system
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
