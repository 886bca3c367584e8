"""Styles, labels and legends that all figures share."""

from __future__ import annotations

from itertools import pairwise

import pytest
from matplotlib.figure import Figure

from vpmetrics.plotting.axes import (  # fmt: skip
    COLOURS,
    as_label,
    axes_in_grid,
    axes_or_new,
    axis_label,
    draw_chance,
    error_bars,
    figure_of,
    finish_axes,
    label_values,
    style_of,
)


def test_seventeen_systems_are_told_apart_with_and_without_colour():
    styles = [style_of(number) for number in range(17)]
    assert len({(style.marker, style.is_filled) for style in styles}) == 17
    assert all(one.line != other.line for one, other in pairwise(styles))
    assert "#000000" not in COLOURS  # that is perfect privacy


def test_curves_that_coincide_have_markers_in_different_places():
    assert len({style_of(number).curve(141)["markevery"] for number in range(8)}) == 8


@pytest.mark.parametrize("name", ["_hidden", r"$\foo$", "a" * 200, "x\x1b[31my", "naïve ö", "two\nlines"])
def test_a_label_is_printable_and_short(name):
    label = as_label(name)
    assert not label.startswith("_")
    assert label.isprintable()
    assert len(label) <= 34


def test_an_axis_has_name_symbol_and_unit():
    assert axis_label("d_ece") == "expected disclosure $D_{ECE}$, bit"
    assert axis_label("op_d_ece", "\n") == "expected disclosure\n$D_{ECE}$, bit"
    assert axis_label("deid") == "de-identification DeID, %"


def test_a_label_holds_values_that_the_legend_names():
    ax = axes_or_new(None)
    ax.plot([0, 1], label=label_values("B2", ("alid", "pdr"), {"alid": 1.25, "pdr": 0.5}))
    finish_axes(ax, keys=("alid", "pdr"))
    assert ax.get_legend().get_texts()[0].get_text() == "B2 (1.250, 50.00)"
    assert ax.get_legend().get_title().get_text() == "ALID [bit], PDR [%]"


def test_error_bars_are_lengths_and_0_where_unknown():
    assert error_bars("eer", {"eer": 0.2, "eer_low": 0.1, "eer_high": 0.5}).ravel() == pytest.approx([0.1, 0.3])
    assert error_bars("eer", {"eer": 0.2}).tolist() == [[0], [0]]


def test_a_chance_line_is_drawn_and_named_once():
    ax = axes_or_new(None)
    for size in (10, 10, 20):
        draw_chance(ax, [1, size], [1 / size, 1])
    assert [line.get_label() for line in ax.lines if not line.get_label().startswith("_")] == ["chance"]
    assert len(ax.lines) == 2


def test_axes_of_a_subfigure_and_axes_that_were_removed():
    figure = Figure()
    ax = figure.subfigures(1, 2)[1].subplots()
    assert figure_of(ax) is figure
    ax.remove()
    with pytest.raises(ValueError, match="Expected `ax` to belong to a figure"):
        figure_of(ax)
    assert [len(axes_in_grid(count, (2, 2))) for count in (0, 1, 5)] == [0, 1, 5]
