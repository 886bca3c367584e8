"""Figures of ranks, of local information and of re-identification in a population."""

import math

import numpy as np
import pytest
import torch
from plotting.conftest import legend_of, lines_of
from samples import UNDEFINED, people

from vpmetrics import ReidentificationRate, SinglingOut
from vpmetrics.plotting.identification_plots import (
    draw_local_information,
    draw_over_conversation_lengths,
    draw_population_rate,
    draw_rank_histogram,
)


def test_the_rank_histogram_shows_shares_and_no_empty_rank():
    histogram = torch.tensor([6.0, 0.0, 2.0])
    _, ax = draw_rank_histogram(histogram, {"max_d": 1.0, "mean_d": 0.5}, None, "OP")
    x, y = lines_of(ax, "system")[0].get_data()
    assert (list(x), list(y)) == ([1, 3], [0.75, 0.25])
    assert lines_of(ax, "chance")[0].get_ydata()[0] == pytest.approx(1 / 3)
    assert ax.get_title() == "OP\nMaxD 1.000, MeanD 0.500 bit"


def test_local_information_is_the_share_of_trials_above():
    bits = torch.tensor([1.0, -1.0, 2.0, 2.0])
    _, ax = draw_local_information(bits, 4, {"alid": 1.0, "pdr": 0.75}, None, "OP")
    draw_local_information(bits, 4, {"alid": 1.0, "pdr": 0.75}, ax, "PP")
    x, y = lines_of(ax, "system")[0].get_data()
    for at in (-0.5, 1.5):
        assert y[np.searchsorted(x, at, "right") - 1] == (bits > at).double().mean()
    assert [text.get_position()[0] for text in ax.texts] == [2.0]  # log2 of the references, once


def test_population_rate_has_counted_and_extrapolated_lines():
    metric = ReidentificationRate(sizes=(10, 30, 500))
    _, protected, speakers = people(number=30, each=4)
    metric.update(protected=protected, speakers=speakers)
    figure, ax = metric.plot(label="one")
    metric.plot(ax=ax, label="another")
    counted, extrapolated, chance = (
        lines_of(ax, gid) for gid in ("system", "extrapolated", "chance")
    )
    assert (len(counted), len(extrapolated), len(chance)) == (2, 2, 1)
    assert counted[0].get_xdata()[-1] == extrapolated[0].get_xdata()[0] == 30
    assert extrapolated[0].get_xdata()[-1] == 500
    assert extrapolated[0].get_ydata()[-1] == pytest.approx(metric.compute()["rate_500"].item())
    assert np.allclose(np.multiply(*chance[0].get_data()), 1)
    assert legend_of(ax) == [
        "one (gallery of 30)",
        "extrapolated",
        "chance",
        "another (gallery of 30)",
    ]
    assert ax.get_figure() is figure
    assert not lines_of(draw_population_rate({2: 0.9, 10: 0.5}, 10.0, None)[1], "extrapolated")


def test_singling_out_is_drawn_with_its_error_beside_chance():
    metric = SinglingOut(sizes=(5, 10, 300))
    _, protected, speakers = people(number=10, each=6)
    metric.update(protected=protected, speakers=speakers)
    with pytest.warns(UserWarning, match=UNDEFINED):
        _, ax = metric.plot()
    value = metric.compute()
    assert lines_of(ax, "system")[0].get_ydata() == pytest.approx(
        [value[f"singling_out_{n}"].item() for n in (5, 10)]
    )
    assert lines_of(ax, "chance")[0].get_ydata() == pytest.approx([math.exp(-1)] * 2)
    low, high = ax.collections[0].get_segments()[0][:, 1]
    assert high - low == pytest.approx(4 * value["singling_out_5_error"].item())


def test_a_number_over_conversation_lengths_is_drawn_beside_its_chance_levels():
    _, ax = draw_over_conversation_lengths({1: 0.2, 4: 0.5, 2: 0.3}, 0.01, None, "system")
    assert list(lines_of(ax, "system")[0].get_xdata()) == [1, 2, 4]
    assert lines_of(ax, "chance")[0].get_ydata() == pytest.approx([0.01] * 3)
    _, ax = draw_over_conversation_lengths({1: 0.2, 2: 0.3}, {1: 0.1, 2: 0.05}, None)
    assert lines_of(ax, "chance")[0].get_ydata() == pytest.approx([0.1, 0.05])
    _, ax = draw_over_conversation_lengths({1: 0.2}, math.nan, None)
    assert not lines_of(ax, "chance")
