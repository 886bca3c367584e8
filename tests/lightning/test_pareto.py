"""Which points are kept, and which one is chosen."""

import json
import random

import pytest

from vpmetrics.lightning.pareto import ParetoFront, ParetoPoint


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("seed", range(20))
def test_the_chosen_point_is_never_dropped(seed, mode):
    """Against a search over everything that was ever measured."""
    draw, budgets = random.Random(seed), {"leak": 0.4, "other": 0.6}
    budgets = {name: budgets[name] for name in list(budgets)[: 1 + seed % 2]}
    front = ParetoFront(budgets, mode, size=3)
    for step in range(40):
        leaks = {name: round(draw.random(), 1) for name in budgets}
        front.record(ParetoPoint(step, step, leaks, round(draw.random(), 1), ""))
        assert len(front.kept) <= 3
        best = front.choose(front.measured)
        assert (front.chosen.disclosure, front.chosen.utility) == (best.disclosure, best.utility)


def test_front_is_the_set_of_non_dominated_points():
    draw = random.Random(0)
    points = [ParetoPoint(n, n, {"leak": draw.random()}, draw.random(), "") for n in range(60)]
    front = ParetoFront({"leak": 1.0}, "max", size=-1)
    for point in points:
        front.record(point)
    points.sort(key=lambda point: point.disclosure["leak"])
    assert front.kept == [
        point for place, point in enumerate(points) if all(point.utility > other.utility for other in points[:place])
    ]


def test_least_disclosure_where_none_is_within_the_budget():
    """Several are compared by the largest share of a budget, then by all shares, then by utility."""
    front = ParetoFront({"leak": 0.1, "other": 0.2}, "max", size=-1)
    for step, (leak, other, utility) in enumerate([(0.2, 0.0, 5), (0.1, 0.3, 1), (0.15, 0.3, 2), (0.1, 0.3, 2)]):
        front.record(ParetoPoint(0, step, {"leak": leak, "other": other}, utility, ""))
    assert front.chosen.step == 3


@pytest.mark.parametrize(("size", "kept"), [(4, [0.0, 0.1, 0.6, 1.0]), (2, [0.0, 0.1])])
def test_the_chosen_point_both_ends_and_those_far_apart_are_kept(size, kept):
    front = ParetoFront({"leak": 0.1}, "max", size)
    for step, leak in enumerate((0.0, 0.1, 0.2, 0.6, 1.0)):
        front.record(ParetoPoint(0, step, {"leak": leak}, leak, ""))
    assert [point.disclosure["leak"] for point in front.kept] == kept


def test_json_holds_every_measurement_and_relative_paths_of_the_kept_ones():
    front = ParetoFront({"leak": 0.2}, "min", size=1)
    for step, leak in enumerate((0.3, 0.1)):
        front.record(ParetoPoint(0, step, {"leak": leak}, 1.0, f"/runs/a/{step}.ckpt", {"leak": [0, 1]}))
    content = json.loads(front.to_json("/runs/a", "loss"))
    assert content["chosen"] == "1.ckpt"
    assert [(row["step"], row["path"], row["within_budget"]) for row in content["measured"]] == [
        (0, None, False), (1, "1.ckpt", True),
    ]  # fmt: skip
    assert [row["path"] for row in content["points"]] == ["1.ckpt"]
    assert content["points"][0]["intervals"] == {"leak": [0, 1]}
