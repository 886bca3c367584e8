"""Styles, labels and legends that all figures share."""

import pytest
from matplotlib.figure import Figure

from vpmetrics.plotting.axes import Style, as_label, axes_in_grid, figure_of


def test_curves_that_coincide_have_markers_in_different_places():
    assert len({Style(number).curve(141)["markevery"] for number in range(8)}) == 8


@pytest.mark.parametrize(
    "name", ["_hidden", r"$\foo$", "a" * 200, "x\x1b[31my", "naïve ö", "two\nlines"]
)
def test_a_label_is_printable_and_short(name):
    label = as_label(name)
    assert not label.startswith("_")
    assert label.isprintable()
    assert len(label) <= 34


def test_axes_of_a_subfigure_and_axes_that_were_removed():
    figure = Figure()
    ax = figure.subfigures(1, 2)[1].subplots()
    assert figure_of(ax) is figure
    ax.remove()
    with pytest.raises(ValueError, match="Expected `ax` to belong to a figure"):
        figure_of(ax)
    assert [len(axes_in_grid(count, (2, 2))) for count in (0, 1, 5)] == [0, 1, 5]
