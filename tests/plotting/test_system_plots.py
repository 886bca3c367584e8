"""Figures of systems and trainings."""

import math
import random

import pytest
import torch
from plotting.conftest import legend_of

from vpmetrics.plotting.system_plots import draw_deid_gvd, draw_path, draw_scalars, draw_utility


def test_values_are_points_lines_and_one_line_for_each_key():
    _, ax = draw_scalars(torch.tensor(0.3), None, "eer", (0.0, 0.5))
    assert (ax.get_ylabel(), ax.get_xlabel(), ax.get_legend()) == ("eer", "step", None)
    assert ax.get_ylim() == pytest.approx((-0.015, 0.515))
    _, ax = draw_scalars([{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4.0}], None, "metric", (None, None))
    assert [list(line.get_ydata()) for line in ax.lines] == [[1.0, 3.0], [2.0, 4.0]]
    assert legend_of(ax) == ["a", "b"]
    _, ax = draw_scalars(torch.tensor([0.1, 0.2, 0.3]), None, "eer", (None, None))
    assert len(ax.lines[0].get_xdata()) == 3


def test_the_trade_off_spans_a_decibel_and_more_where_needed():
    _, ax = draw_deid_gvd([("a", {"deid": 0.5, "gvd": 0.001}), ("b", {"deid": 0.6, "gvd": -0.002})])
    assert ax.get_ylim()[1] - ax.get_ylim()[0] == pytest.approx(1)
    draw_deid_gvd([("c", {"deid": 0.5, "gvd": -7.0})], ax)
    assert ax.get_ylim()[0] < -7
    assert ax.get_ylim()[1] > 0.001


def test_a_whisker_below_0_is_inside_its_axis():
    ends = {"deid_low": -0.3, "deid_high": 0.9, "gvd_low": -3.0, "gvd_high": -1.0}
    _, ax = draw_deid_gvd([("system", {"deid": 0.3, "gvd": -2.0, **ends})])
    assert ax.get_xlim()[0] <= -30


def test_a_path_leaves_out_what_is_not_finite():
    _, ax = draw_path(
        [{"deid": x, "gvd": y} for x, y in ((0.1, -1.0), (0.2, -math.inf), (math.nan, 0.0))], None
    )
    assert ax.lines[0].get_data()[0].tolist() == [10.0]
    draw_path([], None)[0].draw_without_rendering()


@pytest.mark.parametrize("is_lower_better", [True, False])
def test_utility_plot_front_is_the_set_of_non_dominated_systems(is_lower_better):
    draw = random.Random(0)
    systems = [
        (f"system {n}", {"disclosure": draw.randint(0, 7) / 10}, draw.randint(0, 9))
        for n in range(20)
    ]
    _, ax = draw_utility(systems, "WER", is_lower_better)
    sign = 1 if is_lower_better else -1
    points = {(scalars["disclosure"], sign * utility) for _, scalars, utility in systems}
    best = {
        one
        for one in points
        if not any(a <= one[0] and b <= one[1] and (a, b) != one for a, b in points)
    }
    front = ax.lines[0]
    assert front.get_label() == "Pareto front"
    assert {(x, sign * y) for x, y in zip(*front.get_data(), strict=True)} == best
    assert ax.get_ylabel() == f"WER ({'lower' if is_lower_better else 'higher'} is better)"
    scalars = {"disclosure": 0.3, "disclosure_low": 0.2, "disclosure_high": 0.5}
    (segment,) = draw_utility([("one", scalars, 5.0)], "WER", True)[1].collections[0].get_segments()
    assert segment[:, 0] == pytest.approx([0.2, 0.5])


def test_utility_plot_of_a_training_shows_budget_and_choice():
    rows = [(0.3, 1.0), (0.1, 3.0), (0.3, 4.0), (math.nan, 2.0)]
    points = [("validation", {"found_in_100": value}, utility) for value, utility in rows]
    _, ax = draw_utility(
        [*points, ("chosen", *points[1][1:])], "loss", True, key="found_in_100", budget=0.2
    )
    assert legend_of(ax) == ["Pareto front", "validation", "chosen", "budget 20"]
    assert list(ax.lines[0].get_xdata()) == pytest.approx([10, 30])
    assert draw_utility([], "loss", True)[1].lines[:] == []
