"""Curves over people and over utterances, as numbers and as figures."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from crowds import UNDEFINED, people

from vpmetrics import ReidentificationRate, SinglingOut, VoicePrivacy
from vpmetrics._figures import CARD, PAGE, figures_of
from vpmetrics._plot.crowd import draw_over_utterances
from vpmetrics._report import System
from vpmetrics.attacks import Plain


@pytest.mark.parametrize("metric", [ReidentificationRate, SinglingOut])
def test_a_curve_over_utterances_is_that_of_metrics_made_for_each(metric):
    _, protected, speakers = people(number=12, each=12, noise=2.0)
    one = metric(sizes=(12,))
    one.update(protected=protected, speakers=speakers)
    curve = one.over_utterances((1, 2, 3))
    for length, values in curve.items():
        other = metric(sizes=(12,), utterances=length)
        other.update(protected=protected, speakers=speakers)
        assert other.compute() == values
    with pytest.raises(ValueError, match="Expected `lengths`"):
        one.over_utterances((0,))


def drawn(ax, gid):
    return [line for line in ax.lines if line.get_gid() == gid]


def test_the_rate_is_drawn_as_counted_and_as_extrapolated_from_there():
    metric = ReidentificationRate(sizes=(10, 30, 500))
    _, protected, speakers = people(number=30, each=4)
    metric.update(protected=protected, speakers=speakers)
    figure, ax = metric.plot(label="one")
    metric.plot(ax=ax, label="another")
    counted, extrapolated, chance = (drawn(ax, gid) for gid in ("system", "extrapolated", "chance"))
    assert (len(counted), len(extrapolated), len(chance)) == (2, 2, 1)
    assert counted[0].get_xdata()[-1] == extrapolated[0].get_xdata()[0] == 30
    assert extrapolated[0].get_xdata()[-1] == 500
    assert extrapolated[0].get_ydata()[-1] == pytest.approx(metric.compute()["rate_500"].item())
    x, y = (np.asarray(part) for part in chance[0].get_data())
    assert np.allclose(x * y, 1)
    assert [text.get_text() for text in ax.get_legend().get_texts()].count("extrapolated") == 1
    assert ax.get_figure() is figure


def test_singling_out_is_drawn_with_its_error_beside_chance():
    metric = SinglingOut(sizes=(5, 10, 300))
    _, protected, speakers = people(number=10, each=6)
    metric.update(protected=protected, speakers=speakers)
    with pytest.warns(UserWarning, match=UNDEFINED):
        _, ax = metric.plot()
    value = metric.compute()
    assert drawn(ax, "system")[0].get_ydata() == pytest.approx([value[f"singling_out_{n}"].item() for n in (5, 10)])
    assert drawn(ax, "chance")[0].get_ydata() == pytest.approx([math.exp(-1)] * 2)
    low, high = ax.collections[0].get_segments()[0][:, 1]
    assert high - low == pytest.approx(4 * value["singling_out_5_error"].item())


def test_a_rate_over_utterances_is_drawn_beside_chance():
    _, ax = draw_over_utterances({1: 0.2, 4: 0.5, 2: 0.3}, 0.01, None, "system")
    assert list(drawn(ax, "system")[0].get_xdata()) == [1, 2, 4]
    assert drawn(ax, "chance")[0].get_ydata() == pytest.approx([0.01] * 3)


def test_a_report_shows_a_crowd_where_sizes_are_named():
    original, protected, speakers = people(number=20, each=8, noise=1.5)
    suites = [VoicePrivacy(sizes=sizes, attacks=None) for sizes in ((10, 20, 300), None)]
    for suite in suites:
        suite.update(original, protected, speakers)
    with pytest.warns(UserWarning, match=UNDEFINED):  # nobody is singled out of 300
        crowded, plain = (System("system", suite.report()) for suite in suites)
    assert not {"people", "utterances"} & set(figures_of([plain], PAGE))
    for layout in (PAGE, CARD):
        figures = figures_of([crowded], layout)
        (ax,), (longer,) = figures["people"].axes, figures["utterances"].axes
        labels = [text.get_text() for text in ax.get_legend().get_texts()]
        assert [label.partition(" (")[0] for label in labels if " (" in label] == ["OO", "OP", "PP"]
        assert ax.lines[0].get_xdata()[-1] <= 20
        assert drawn(ax, "extrapolated")[0].get_xdata()[-1] == 300
        # Four of everybody's eight utterances are to be found.
        assert [list(line.get_xdata()) for line in drawn(longer, "system")] == [[1, 2, 4]] * 3
        by_hand = ReidentificationRate((10,), 4, condition="OP")
        by_hand.update(original, protected, speakers)
        assert drawn(longer, "system")[1].get_ydata()[-1] == pytest.approx(by_hand.compute()["rate_10"].item())


@pytest.mark.filterwarnings("ignore:Singling one out")
def test_bits_over_utterances_are_those_of_the_suite():
    original, protected, speakers = people(number=20, each=8, noise=1.5)
    suite = VoicePrivacy(sizes=(10,), attacks=[Plain()])
    suite.update(original, protected, speakers)
    expected = suite.over_utterances((1, 2, 4))
    for layout in (PAGE, CARD):
        left, right = figures_of([System("system", suite.report())], layout)["bits_over_utterances"].axes
        plain, attacked = drawn(left, "system")[:2]
        for line, key in (
            (plain, "op_d_ece"),
            (attacked, "op_d_ece_strongest"),
            (drawn(right, "system")[0], "op_mean_d"),
        ):
            assert list(line.get_xdata()) == [1, 2, 4]
            assert line.get_ydata() == pytest.approx([value[key].item() for value in expected.values()])
        by_chance = [value["op_mean_d_chance"].item() for value in expected.values()]
        assert drawn(right, "chance")[0].get_ydata() == pytest.approx(by_chance)


def test_the_strongest_attack_is_drawn_beside_rates_over_utterances():
    original, protected, speakers = people(number=20, each=8, noise=1.5)
    suite = VoicePrivacy(sizes=(10,), attacks=[Plain()])
    suite.update(original, protected, speakers)
    report = suite.report()
    ax = figures_of([System("system", report)], PAGE)["utterances"].axes[0]
    lines = {line.get_label(): line for line in drawn(ax, "system")}
    assert set(lines) == {"OO", "OP", "OP, attacked", "PP", "PP, attacked"}
    rates = report.conditions["OP"].rates
    values = [rates.of_strongest((10,), length)["rate_10"].item() for length in (1, 2, 4)]
    assert lines["OP, attacked"].get_ydata() == pytest.approx(values)
    assert values[0] == pytest.approx(report.scalars["op_rate_10_strongest"].item())
    assert values[2] > values[0]


@pytest.mark.filterwarnings("ignore:A slope of local information")
def test_figures_of_a_crowd_say_nothing_that_its_numbers_have_not_said():
    suite = VoicePrivacy(sizes=(10,), attacks=[Plain()])
    suite.update(*people(number=2, each=20))
    with pytest.warns(UserWarning, match=UNDEFINED):
        report = suite.report()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "people" in figures_of([System("system", report)], PAGE)
