"""What stays on disk, where everything is on the front, and what a moved folder still knows."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise

import pytest
from training import anonymiser, fit, keeper, names_in, watch

from vpmetrics.lightning.pareto import ParetoPoint, choose, front_with, spread

ONE_SMALL_MEASURE = {"metrics": ["deid", "op_d_ece", "op_d_ece_reversed"], "figures_every_n_epochs": None}


def trade_off(pl, epochs):
    """Every epoch leaks more and is worth more, so that every epoch is on the front."""
    shares = [(1 + epoch) / epochs for epoch in range(epochs)]
    return anonymiser(pl, shares, [float(epochs - epoch) for epoch in range(epochs)])


def test_a_trade_off_leaves_five_files_of_sixty_epochs_and_all_measurements(pl, tmp_path):
    checkpoint = keeper(budget=0.2, dirpath=tmp_path, filename="{epoch}")
    monitor = watch(**ONE_SMALL_MEASURE)
    fit(pl, [monitor, checkpoint], trade_off(pl, 60), epochs=60)
    assert len(names_in(tmp_path)) == 5
    assert {f"epoch={point.epoch}.ckpt" for point in checkpoint.pareto_front} == set(names_in(tmp_path))
    leaks = [max(row["op_d_ece"], row["op_d_ece_reversed"]) for row in monitor.history]
    within = [epoch for epoch, leak in enumerate(leaks) if leak <= 0.2]
    assert checkpoint.chosen.epoch == max(within)
    # Spread over the front: both of its ends, and no wide gap.
    kept = [point.disclosure["val/privacy/op_d_ece"] for point in checkpoint.pareto_front]
    assert (kept[0], kept[-1]) == (pytest.approx(min(leaks)), pytest.approx(max(leaks)))
    assert max(b - a for a, b in pairwise(kept)) < 0.6 * (kept[-1] - kept[0])
    written = json.loads((tmp_path / "pareto_front.json").read_text())
    assert [row["epoch"] for row in written["measured"]] == list(range(60))
    paths = {row["path"] for row in written["measured"]} - {None}
    assert paths == {row["path"] for row in written["points"]} == set(names_in(tmp_path))
    assert written["chosen"] == f"epoch={checkpoint.chosen.epoch}.ckpt"


@pytest.mark.parametrize(("most", "files"), [(1, 1), (2, 2), (-1, 8)])
def test_as_many_files_as_are_asked_for(pl, tmp_path, most, files):
    checkpoint = keeper(budget=0.3, dirpath=tmp_path, save_top_k=most, save_last=True)
    fit(pl, [watch(**ONE_SMALL_MEASURE), checkpoint], trade_off(pl, 8), epochs=8)
    assert len(names_in(tmp_path)) == files + 1  # and the last
    assert checkpoint.within_budget


@pytest.mark.parametrize("seed", range(40))
def test_the_chosen_one_is_never_dropped(seed):
    """Against a search over everything that was ever measured."""
    import random

    draw, budgets = random.Random(seed), {"leak": 0.4, "other": 0.6}
    names = list(budgets)[: 1 + seed % 2]
    budgets = {name: budgets[name] for name in names}
    measured, kept = [], []
    for step in range(40):
        leaks = {name: round(draw.random(), 1) for name in names}
        measured.append(ParetoPoint(step, step, leaks, round(draw.random(), 1), ""))
        kept = front_with(kept, measured[-1], "max")
        kept = spread(kept, 3, choose(kept, budgets, "max"), "max")
        assert len(kept) <= 3
        found, best = (choose(points, budgets, "max") for points in (kept, measured))
        assert (found.disclosure, found.utility) == (best.disclosure, best.utility)


def test_a_folder_that_was_moved_is_resumed_with_its_whole_front(pl, tmp_path):
    first = keeper(budget=0.2, dirpath=tmp_path / "before", filename="{epoch}", save_last=True)
    fit(pl, [watch(**ONE_SMALL_MEASURE), first], trade_off(pl, 8), epochs=6)
    shutil.move(tmp_path / "before", tmp_path / "after")
    second = keeper(budget=0.2, dirpath=tmp_path / "after", filename="{epoch}", save_last=True)
    last = tmp_path / "after" / "last.ckpt"
    fit(pl, [watch(**ONE_SMALL_MEASURE), second], trade_off(pl, 8), epochs=7, ckpt_path=last)
    assert set(first.pareto_front[0].disclosure) == {"val/privacy/op_d_ece"}
    assert {point.epoch for point in second.pareto_front} >= {point.epoch for point in first.pareto_front[:-1]} - {4}
    assert len(second.pareto_front) == 5
    assert all(point.path.startswith(str(tmp_path / "after")) for point in second.pareto_front)
    assert len(names_in(tmp_path / "after")) == 6
    written = json.loads((tmp_path / "after" / "pareto_front.json").read_text())
    assert [row["epoch"] for row in written["measured"]] == list(range(7))
    # What was moved may be taken up in a third folder, too.
    third = keeper(budget=0.2, dirpath=tmp_path / "third", filename="{epoch}")
    fit(pl, [watch(**ONE_SMALL_MEASURE), third], trade_off(pl, 8), epochs=8, ckpt_path=last)
    assert sum("/after/" in point.path for point in third.pareto_front) >= 3


def test_what_is_lost_of_the_front_is_said(pl, tmp_path):
    first = keeper(budget=0.2, dirpath=tmp_path / "a", filename="{epoch}", save_last=True)
    fit(pl, [watch(**ONE_SMALL_MEASURE), first], trade_off(pl, 4), epochs=2)
    (tmp_path / "a" / "epoch=0.ckpt").unlink()
    second = keeper(budget=0.2, dirpath=tmp_path / "a", filename="{epoch}")
    with pytest.warns(UserWarning, match="finds 1 of the 2 checkpoints it had kept"):
        fit(
            pl,
            [watch(**ONE_SMALL_MEASURE), second],
            trade_off(pl, 4),
            epochs=3,
            ckpt_path=tmp_path / "a" / "last.ckpt",
        )


def test_of_two_states_that_may_be_meant_none_is_guessed(pl, tmp_path):
    pair = [keeper(budget=budget, dirpath=tmp_path / str(budget), save_last=True) for budget in (0.1, 0.2)]
    fit(pl, [watch(**ONE_SMALL_MEASURE), *pair], trade_off(pl, 4), epochs=2)
    other = keeper(budget=0.3, dirpath=tmp_path / "c")
    with pytest.warns(UserWarning, match="2 PrivacyCheckpoints have left their state"):
        fit(
            pl,
            [watch(**ONE_SMALL_MEASURE), other],
            trade_off(pl, 4),
            epochs=3,
            ckpt_path=tmp_path / "0.2" / "last.ckpt",
        )
    assert [point.epoch for point in other.pareto_front] == [2]
