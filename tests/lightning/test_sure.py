"""Budgets with confidence: what is compared is the upper end of an interval."""

from __future__ import annotations

import json

import pytest
from matplotlib.figure import Figure
from training import anonymiser, by_hand, fit, keeper, watch

from vpmetrics.lightning import PrivacyCheckpoint, PrivacyMonitor
from vpmetrics.suite import VoicePrivacy

NAME = "val/privacy/op_d_ece"


def sure(**kwargs):
    return PrivacyMonitor(suite=VoicePrivacy(attacks=None, intervals=0.9), metrics=["op_d_ece"], **kwargs)


def logging(pl, rows):
    """A module that logs an estimate and its ends in each epoch, as told."""

    def step(self, batch, batch_idx):
        value, low, high, loss = rows[self.current_epoch]
        self.log_dict({"val/leak": value, "val/leak_low": low, "val/leak_high": high, "val/loss": loss})

    return anonymiser(pl, validation_step=step)


def test_a_monitor_logs_both_ends_of_what_it_is_asked_for(pl):
    monitor = sure()
    assert monitor.logged_names == (NAME, f"{NAME}_low", f"{NAME}_high")
    trainer = fit(pl, [monitor], epochs=1)
    low, value, high = (trainer.callback_metrics[f"{NAME}{end}"].item() for end in ("_low", "", "_high"))
    assert value == pytest.approx(by_hand(0.9)["op_d_ece"])
    assert low < value < high
    assert monitor.headline == ("op_d_ece",)
    assert "val/privacy/deid_high" in PrivacyMonitor(intervals=0.9).logged_names
    with pytest.raises(ValueError, match="no `intervals` beside `suite`"):
        PrivacyMonitor(suite=VoicePrivacy(), intervals=0.9)


def test_an_estimate_within_the_budget_by_luck_is_not_chosen(pl, tmp_path):
    rows = [(0.4, 0.3, 0.5, 1.0), (0.18, 0.1, 0.3, 2.0), (0.15, 0.12, 0.19, 3.0), (0.1, 0.0, 0.25, 4.0)]
    by_value = keeper("val/leak", 0.2, dirpath=tmp_path)
    by_end = keeper("val/leak", 0.2, dirpath=tmp_path, confidence=0.95)
    fit(pl, [by_value, by_end], logging(pl, rows))
    assert by_value.chosen.epoch == 1
    assert by_end.chosen.epoch == 2
    assert by_end.chosen.disclosure == {"val/leak": pytest.approx(0.19)}
    assert by_end.chosen.intervals == {"val/leak": pytest.approx([0.12, 0.19])}
    # Less by its estimate than the epoch before, and no better by what is compared.
    assert [point.epoch for point in by_end.pareto_front] == [2, 1, 0]
    written = json.loads((tmp_path / "pareto_front-v1.json").read_text())
    assert [row["within_budget"] for row in written["measured"]] == [False, False, True, False]


def test_the_upper_end_counts_in_the_direction_that_gives_more_away(pl, tmp_path):
    def step(self, batch, batch_idx):
        ends = {"": 0.1, "_high": 0.2, "_low": 0.05, "_reversed": 0.0, "_reversed_high": 0.3, "_reversed_low": 0.0}
        self.log_dict({"val/loss": 1.0, **{f"val/leak{end}": value for end, value in ends.items()}})

    checkpoint = keeper("val/leak", 0.5, dirpath=tmp_path, confidence=0.95)
    fit(pl, [checkpoint], anonymiser(pl, validation_step=step), epochs=1)
    assert checkpoint.chosen.disclosure == {"val/leak": pytest.approx(0.3)}
    assert checkpoint.chosen.intervals == {"val/leak": pytest.approx([0.05, 0.3])}


@pytest.mark.parametrize(
    ("monitor", "privacy", "said"),
    [
        (watch, NAME, "watches the upper end of .*op_d_ece', but PrivacyMonitor logs none: give it `intervals=0.9`"),
        (lambda: PrivacyMonitor(intervals=0.9), "val/privacy/op_l_w", "PrivacyMonitor logs none: it has no interval"),
        (lambda: PrivacyMonitor(intervals=0.5), NAME, "`confidence` to be that of .* logs, 0.5, but got 0.9"),
    ],
)
def test_confidence_without_such_intervals_is_refused_before_anything_runs(pl, tmp_path, monitor, privacy, said):
    with pytest.raises(ValueError, match=said):
        fit(pl, [monitor(), keeper(privacy, 1.0, dirpath=tmp_path, confidence=0.9)], epochs=1)
    assert not list(tmp_path.glob("*.json"))


def test_an_upper_end_nobody_logs_is_named(pl, tmp_path):
    with pytest.raises(ValueError, match="watches 'val/leak_high', but nothing has logged it"):
        fit(
            pl,
            [keeper("val/leak", 1.0, dirpath=tmp_path, confidence=0.9)],
            anonymiser(pl, validation_step=lambda self, *_: self.log_dict({"val/loss": 1.0, "val/leak": 0.1})),
            num_sanity_val_steps=0,
        )


def test_a_confidence_is_a_number_between_0_and_1():
    with pytest.raises(ValueError, match="`confidence` to lie between 0 and 1, but got 95"):
        PrivacyCheckpoint(confidence=95)


def test_the_front_is_drawn_with_whiskers(pl, tmp_path, monkeypatch):
    drawn = []
    ways = [lambda name, figure, step: drawn.append((name, figure))]
    monkeypatch.setattr("vpmetrics.lightning.front.ways_to_draw", lambda _: ways)
    rows = [(0.4, 0.3, 0.5, 1.0), (0.18, 0.1, 0.3, 2.0)]
    fit(pl, [keeper("val/leak", 0.2, dirpath=tmp_path)], logging(pl, rows), epochs=2)
    (name, figure) = drawn[-1]
    assert name == "val/leak/pareto_front"
    assert isinstance(figure, Figure)
    lines = [line.get_xydata().tolist() for line in figure.axes[0].lines]
    for value, low, high, loss in rows:
        assert pytest.approx(value) not in (low, high)
        assert [[pytest.approx(low), loss], [pytest.approx(high), loss]] in lines
