"""Figures of speakers."""

from itertools import combinations

import matplotlib
import numpy as np
import pytest
import torch
from plotting.conftest import lines_of
from torch.testing import assert_close

from vpmetrics._scores.speaker_similarity import SimilarityMatrices, diagonal_and_row_means
from vpmetrics.functional import speaker_disclosure
from vpmetrics.plotting.speaker_plots import (
    draw_similarity_matrices,
    draw_tested_and_enrolled,
    draw_zoo,
)
from vpmetrics.report.figures import CARD, FIGURES, PAGE


@pytest.mark.parametrize("count", [3, 120])
def test_similarity_matrices_have_fixed_limits_and_quadrants(count):
    draw = torch.Generator().manual_seed(0)
    oo, op, pp = torch.rand(3, count, count, generator=draw)
    figure, ax = draw_similarity_matrices(SimilarityMatrices(oo, op, pp, torch.arange(count)), None)
    (image,) = ax.images
    whole = torch.as_tensor(np.asarray(image.get_array()))
    assert_close(whole[:count, count:], op, check_dtype=False)
    assert_close(whole[count:, :count], op.T, check_dtype=False)
    assert image.get_clim() == (0, 1)
    assert len(ax.collections) == (4 if count == 120 else 0)  # diagonals finer than a pixel
    assert [label.get_text() for label in ax.get_xticklabels()] == ["original", "protected"]
    assert figure.axes[1].get_ylabel() == "voice similarity"


def test_the_zoo_places_speakers():
    matrix = torch.tensor([[0.9, 0.2, 0.4], [0.2, 0.8, 0.1], [0.4, 0.1, torch.nan]])
    _, ax = draw_zoo(*diagonal_and_row_means(matrix), None, "OP", names=("a", "b", "c"))
    x, y = ax.lines[-1].get_data()
    assert_close(torch.tensor(x), torch.tensor([0.9, 0.8], dtype=torch.float64), check_dtype=False)
    assert_close(torch.tensor(y), torch.tensor([0.3, 0.15], dtype=torch.float64), check_dtype=False)
    assert [text.get_text() for text in ax.texts] == ["a", "b"]


def test_the_zoo_counts_animals():
    own, others = (
        torch.tensor([0.1, 0.9, 0.2, 0.8, 0.5, 0.5, 0.5]),
        torch.tensor([0.1, 0.9, 0.8, 0.2, 0.5, 0.5, 0.5]),
    )
    _, ax = draw_zoo(own, others, None)
    assert {text.get_text() for text in ax.texts} == {
        "worms: 1",
        "chameleons: 1",
        "phantoms: 1",
        "doves: 1",
    }
    _, ax = draw_zoo(torch.full((6,), 0.5), torch.full((6,), 0.5), None)
    assert not ax.texts  # speakers all alike


def test_speakers_are_sorted_and_the_worst_are_named(systems):
    system = systems[0]
    (draw,) = (kind.draw for kind in FIGURES if kind.key == "speakers")
    for layout, number in ((PAGE, 3), (CARD, 2)):
        axes = draw([system], layout).axes
        assert len(axes) == number
        ax = axes[-2]
        (tested,) = lines_of(ax, "probed")
        (enrolled,) = lines_of(ax, "enrolled")
        values = np.asarray(tested.get_ydata())
        assert (np.diff(values) <= 0).all()
        assert values[0] == pytest.approx(system.get_or_nan("worst_speaker_d_ece", "OP"))
        assert sorted(enrolled.get_ydata()) != sorted(values)
        assert ax.texts[0].get_text() == system.speaker_name(
            system.get_or_nan("worst_speaker", "OP")
        )
        assert not lines_of(axes[-1], "enrolled")  # PP has one side


def test_speakers_without_trials_are_not_drawn():
    found = speaker_disclosure(
        torch.arange(3.0), torch.tensor([0, 1, 1]), torch.tensor([[5, 4, 4], [4, 4, 4]])
    )
    _, ax = draw_tested_and_enrolled(found, 0.1, str, None)
    (tested,) = lines_of(ax, "probed")
    assert len(tested.get_xdata()) == 1


@pytest.mark.parametrize("size", [8, 14])
def test_labels_of_speakers_with_equal_disclosure_do_not_overlap(size, monkeypatch):
    monkeypatch.setitem(matplotlib.rcParams, "font.size", size)
    names = torch.arange(12)  # each is compared with the next and with itself
    speakers = torch.stack([names.repeat(2), torch.cat([names.roll(1), names])])
    found = speaker_disclosure(torch.arange(24.0) // 12, torch.arange(24) // 12, speakers)
    figure, ax = draw_tested_and_enrolled(found, 0.5, lambda place: f"speaker {place}", None)
    figure.draw_without_rendering()
    texts = [text.get_window_extent() for text in ax.texts]
    assert len(texts) == 3
    assert not any(one.overlaps(other) for one, other in combinations(texts, 2))
    assert all(text.y1 <= figure.bbox.y1 for text in texts)
