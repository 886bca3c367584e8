"""What the figures show."""

from __future__ import annotations

import json

import torch
from torch.testing import assert_close

from vpmetrics._plot.systems import draw_pareto_front, draw_path
from vpmetrics._plot.voices import draw_zoo
from vpmetrics._trials.matrices import own_and_others
from vpmetrics.lightning.pareto import ParetoPoint


def test_zoo_plot_places_speakers():
    matrix = torch.tensor([[0.9, 0.2, 0.4], [0.2, 0.8, 0.1], [0.4, 0.1, torch.nan]])
    _, ax = draw_zoo(*own_and_others(matrix), None, "OP")
    x, y = ax.lines[-1].get_data()
    assert_close(torch.tensor(x), torch.tensor([0.9, 0.8], dtype=torch.float64), check_dtype=False)
    assert_close(torch.tensor(y), torch.tensor([0.3, 0.15], dtype=torch.float64), check_dtype=False)


def test_zoo_plot_counts_animals():
    own, others = torch.tensor([0.1, 0.9, 0.2, 0.8, 0.5, 0.5, 0.5]), torch.tensor([0.1, 0.9, 0.8, 0.2, 0.5, 0.5, 0.5])
    _, ax = draw_zoo(own, others, None)
    assert {text.get_text() for text in ax.texts} == {"worms: 1", "chameleons: 1", "phantoms: 1", "doves: 1"}


def test_zoo_plot_of_speakers_all_alike_has_no_animals():
    _, ax = draw_zoo(torch.full((6,), 0.5), torch.full((6,), 0.5), None)
    assert not ax.texts


def test_path_leaves_out_what_is_not_finite():
    _, ax = draw_path([0.1, 0.2, float("nan")], [-1.0, float("-inf"), 0.0], [0, 1, 2], None)
    assert ax.lines[0].get_data()[0].tolist() == [10.0]
    draw_path([], [], [], None)


def test_pareto_front_shows_budget_and_choice():
    _, ax = draw_pareto_front([(0.1, 3.0), (0.3, 1.0)], [(0.3, 4.0)], (0.1, 3.0), 0.2, ("privacy", "loss"), None)
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {
        "measured", "Pareto front", "chosen", "budget 0.2",
    }  # fmt: skip
    draw_pareto_front([], [], None, 0.2, ("privacy", "loss"), None)


def test_a_point_is_plain():
    point = ParetoPoint(epoch=0, step=10, disclosure={"d": 0.1}, utility=1.0, path="a.ckpt")
    assert json.loads(json.dumps(point._asdict())) == point._asdict()
