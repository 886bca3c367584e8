"""One report, from embeddings or from trials, and one list of figures drawn from it."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from cases import embeddings, join
from matplotlib.figure import Figure
from torch.testing import assert_close

from vpmetrics import VoicePrivacy
from vpmetrics import functional as F
from vpmetrics._figures import CARD, FIGURES, PAGE, figures_of
from vpmetrics._identity import expected_by_chance
from vpmetrics._plot.axes import COLOURS, as_label, style_of
from vpmetrics._plot.scores import draw_ece_profile
from vpmetrics._report import System, report_of_trials
from vpmetrics._scores import counting
from vpmetrics._scores.measures import actual_cross_entropy, entropy_of_prior
from vpmetrics._trials.scored import ScoredTrials

ODDS = torch.linspace(-7, 7, 141, dtype=torch.float64)


def trials_of(seed, count=600, speakers=6, distance=2.0):
    draw = torch.Generator().manual_seed(seed)
    pairs = torch.randint(speakers, (2, count), generator=draw)
    is_target = pairs[0] == pairs[1]
    scores = torch.randn(count, generator=draw, dtype=torch.float64) + distance * is_target
    return ScoredTrials(scores, is_target, pairs)


def report_of_embeddings(rows=None, **kwargs):
    metric = VoicePrivacy(**kwargs)
    metric.update(**(join(embeddings()) if rows is None else rows))
    return metric.report()


def systems(count):
    return [System(f"system {number}", report_of_embeddings()) for number in range(count)]


def test_scores_give_what_the_functions_give():
    trials = {name: trials_of(seed) for seed, name in enumerate(("OO", "OP", "PP"))}
    report = report_of_trials(trials, speakers=6)
    for name, (scores, is_target, *_) in trials.items():
        expected = {
            **F.zebra_disclosure(scores, is_target),
            "min_cllr": F.min_cllr(scores, is_target),
            "cllr": F.cllr(scores, is_target),
            "eer": F.equal_error_rate(scores, is_target),
            "raw_eer": F.raw_equal_error_rate(scores, is_target),
            "min_dcf": F.min_dcf(scores, is_target),
            "linkability": F.linkability(scores, is_target),
        }
        for key, value in expected.items():
            assert_close(report.scalars[f"{name.lower()}_{key}"], value, rtol=0, atol=1e-12, msg=key)
    assert {"deid", "gvd", "d_ece_op_oo", "g_cllr"} <= set(report.scalars)


@pytest.mark.parametrize("names", [("",), ("OO", "OP", "PP")])
def test_every_set_of_trials_is_sorted_once(monkeypatch, names):
    sorted_targets = []
    rank = counting._ranks
    monkeypatch.setattr(counting, "_ranks", lambda *args: sorted_targets.append(len(args[0])) or rank(*args))
    report_of_trials({name: trials_of(seed) for seed, name in enumerate(names)}, speakers=6)
    assert len(sorted_targets) == len(names)


def test_trials_are_counted_even_where_a_class_is_missing():
    scores, is_target, *_ = trials_of(0)
    with pytest.warns(UserWarning, match="There are no non-target trials") as caught:
        report = report_of_trials({"": ScoredTrials(scores[is_target], is_target[is_target])})
    assert len(caught) == 1
    assert report.conditions[""].trials == (int(is_target.sum()), 0)
    assert report.scalars["d_ece"].isnan()


def test_calibration_of_another_run_is_that_of_the_function():
    attacked, other = trials_of(1), trials_of(2, distance=1.0)
    report = report_of_trials({"OO": trials_of(0), "OP": attacked}, other, speakers=6)
    for kind in ("linear", "isotonic"):
        expected = F.calibration_distortion(*attacked[:2], *other[:2], kind)
        assert_close(report.scalars[f"c_ece_{kind}"], expected, rtol=0, atol=1e-12)
        assert_close(report.scalars[f"cllr_{kind}"], F.cllr(report.transfer.llr[kind], attacked.is_target))
    assert_close(report.transfer.other.scalars["d_ece"], F.zebra_disclosure(*other[:2])["d_ece"])


def test_scores_may_lie_in_memory_as_they_like():
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 720, 8, generator=draw, dtype=torch.float64)
    found = []
    for scoring in (
        lambda a, b: a @ b.mT,
        lambda a, b: torch.stack([a @ b.mT, a.new_zeros(len(a), len(b))], -1)[..., 0],
    ):
        metric = VoicePrivacy(attacks=None, scoring=scoring)
        metric.update(*rows, torch.arange(720) // 6)
        found.append(metric.report().conditions["OP"].average_scores())
    assert_close(found[0], found[1], rtol=0, atol=1e-12)


def test_average_scores_of_embeddings_are_those_of_a_loop():
    rows = join(embeddings())
    report = report_of_embeddings(rows)
    unit = {side: torch.nn.functional.normalize(rows[side].double()) for side in ("original", "protected")}
    names = rows["speakers"].unique()
    for condition, known in report.conditions.items():
        a, b = (unit["original" if letter == "O" else "protected"] for letter in condition)
        scores = (a @ b.T).fill_diagonal_(torch.nan)  # an utterance and itself
        expected = torch.stack(
            [
                torch.stack([scores[rows["speakers"] == i][:, rows["speakers"] == j].nanmean() for j in names])
                for i in names
            ]
        )
        assert_close(known.average_scores().double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("condition", ["OP", "PP"])
def test_average_scores_of_trials_are_those_of_a_loop(condition):
    scores, is_target, pairs, _ = trials_of(3, count=200)
    given = ScoredTrials(scores, is_target, pairs, within=condition == "PP")
    known = report_of_trials({condition: given}, speakers=6).conditions[condition]
    for i in range(6):
        for j in range(6):
            chosen = (pairs[0] == i) & (pairs[1] == j)
            if condition == "PP":
                chosen |= (pairs[0] == j) & (pairs[1] == i)
            assert known.average_scores()[i, j].item() == pytest.approx(scores[chosen].mean().item(), abs=1e-12)


@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_the_profile_of_many_scores_as_they_stand_is_that_of_all_of_them(spread):
    draw = torch.Generator().manual_seed(0)
    is_target = torch.rand(50_000, generator=draw) < 0.1
    scores = spread * (torch.randn(50_000, generator=draw, dtype=torch.float64) + is_target)
    got = actual_cross_entropy(scores, torch.stack([~is_target, is_target]), ODDS)
    assert_close(got, F.ece_profile(scores, is_target, ODDS).actual, rtol=0, atol=1e-5)


def test_the_profile_of_infinite_scores_is_infinite_only_where_they_mislead():
    is_target = torch.arange(40_000) % 2 == 0
    scores = torch.where(is_target, torch.inf, torch.linspace(-1, 1, 40_000, dtype=torch.float64))
    counts = torch.stack([~is_target, is_target])
    assert actual_cross_entropy(scores, counts, ODDS).isfinite().all()
    assert actual_cross_entropy(scores, counts.flip(0), ODDS).isinf().all()


def test_mean_d_by_chance_is_what_features_that_say_nothing_show():
    draw = torch.Generator().manual_seed(0)
    for model in ("empirical", "beta_binomial"):
        shown = []
        for _ in range(40):
            histogram = torch.bincount(torch.randint(20, (400,), generator=draw), minlength=20).float()
            shown.append(float(F.rank_disclosure(histogram, model)["mean_d"]))
        chance = float(expected_by_chance(histogram, model, 400))
        assert np.mean(shown) == pytest.approx(chance, rel=0.08 if model == "empirical" else 0.6)


def test_few_inputs_for_each_rank_show_more_by_chance_than_many():
    # Forty speakers of two utterances: the rule for many inputs says 0.35, drawing says more.
    draw = torch.Generator().manual_seed(0)
    drawn = [torch.bincount(torch.randint(40, (80,), generator=draw), minlength=40).double() for _ in range(300)]
    shown = np.mean([float(F.rank_disclosure(histogram)["mean_d"]) for histogram in drawn])
    assert float(expected_by_chance(drawn[0], "empirical", 80)) == pytest.approx(shown, abs=0.015)
    assert shown > 0.37


def test_undefined_conditions_are_drawn_all_the_same():
    with pytest.warns(UserWarning, match="There are no"):
        report = report_of_embeddings(
            {"original": torch.randn(4, 3), "protected": torch.randn(4, 3), "speakers": torch.zeros(4).long()}
        )
    for layout in (CARD, PAGE):
        figures = figures_of([System("lone", report)], layout)
        assert {"ece_profile", "quadrants", "ranks"} <= set(figures)
        for figure in figures.values():
            figure.canvas.draw()


# One list of figures


def test_a_monitor_lacks_no_figure_of_the_page_and_the_page_none_of_a_monitor():
    history = [{"deid": 0.1, "gvd": -1.0, "epoch": 0}, {"deid": 0.2, "gvd": -0.5, "epoch": 1}]
    (one,) = systems(1)
    one = System(one.name, report_of_embeddings(sizes=(2, 3)), history=history)
    assert list(figures_of([one], CARD)) == list(figures_of([one], PAGE))
    known = {kind.key for kind in FIGURES}
    scored = System("scores", report_of_trials({"OP": trials_of(0)}, trials_of(1), speakers=6))
    assert {*figures_of([one], PAGE), *figures_of([scored], PAGE), *figures_of(systems(1), PAGE)} == known


def test_figures_of_several_systems_show_each_under_its_name():
    figures = figures_of([*systems(1), System("scores", report_of_trials({"OP": trials_of(0)}, speakers=6))], PAGE)
    for figure in figures.values():
        assert isinstance(figure, Figure)
    labels = [text.get_text() for text in figures["ece_profile"].axes[0].get_legend().get_texts()]
    assert [label.partition(" (")[0] for label in labels] == ["perfect privacy", "original", "system 0", "scores"]


def test_the_calibration_figure_shows_the_oracle_of_both_runs():
    attacked, other = trials_of(1), trials_of(2, distance=1.0)
    system = System("scores", report_of_trials({"": attacked}, other))
    (ax,) = figures_of([system], PAGE)["calibration"].axes
    drawn = {line.get_label().split(" (")[0].split(" [")[0]: line.get_ydata() for line in ax.lines}
    assert set(drawn) == {"perfect privacy", "learnt on", "attacked", "linear", "isotonic"}
    for label, trials in (("learnt on", other), ("attacked", attacked)):
        expected = F.ece_profile(*trials[:2], ODDS).minimum
        np.testing.assert_allclose(drawn[label], expected, atol=1e-12)


def test_the_zoo_of_scores_is_of_average_scores():
    trials = trials_of(4)
    system = System("scores", report_of_trials({"OP": trials}, speakers=6))
    (ax,) = figures_of([system], PAGE)["zoo_scores"].axes
    matrix = system.report.conditions["OP"].average_scores()
    x, y = ax.lines[-1].get_data()
    np.testing.assert_allclose(x, matrix.diagonal())
    np.testing.assert_allclose(y, (matrix.sum(1) - matrix.diagonal()) / 5)


def test_sixteen_systems_and_original_speech_are_told_apart_with_and_without_colour():
    styles = [style_of(number) for number in range(17)]
    assert len({(style.colour, style.marker, style.fill) for style in styles}) == 17
    assert len({(style.marker, style.fill) for style in styles}) == 17
    assert all(one.line != other.line for one, other in pairwise(styles))
    assert "#000000" not in COLOURS  # that is perfect privacy


def test_no_figure_shows_two_of_sixteen_systems_alike():
    draw = torch.Generator().manual_seed(0)
    metric = VoicePrivacy(attacks=None, sizes=(3,))
    original = torch.randn(24, 8, generator=draw)
    metric.update(original, original + torch.randn(24, 8, generator=draw), torch.arange(24) % 6)
    embeddings, scores = metric.report(), report_of_trials({"OO": trials_of(0), "OP": trials_of(1)}, speakers=6)
    seen = set()
    for report in (embeddings, scores):
        systems = [System(f"system {number}", report) for number in range(16)]
        for name, figure in figures_of(systems, PAGE).items():
            for ax in figure.axes:
                lines = [line for line in ax.lines if line.get_gid() == "system" and len(figure.axes) == 1]
                looks = {(line.get_marker(), line.get_fillstyle()) for line in lines}
                assert len(looks) == len(lines), name
                seen |= {name} if lines else set()
    assert seen == {"deid_gvd", "ece_profile", "reliability", "local_information", "people", "utterances"}


def test_curves_that_coincide_have_marks_in_different_places():
    ax, prior = None, entropy_of_prior(ODDS)
    values = {"d_ece": 0.0, "l_w": 0.0, "tag": 0}
    for number in range(8):
        figure, ax = draw_ece_profile(prior, prior / 2, None, values, ax, f"system {number}")
    starts = [line.get_markevery()[0] for line in ax.lines if line.get_gid() == "system"]
    assert len(set(starts)) == 8
    figure.canvas.draw()


@pytest.mark.parametrize("name", ["_hidden", r"$\foo$", "a" * 200, "x\x1b[31my", "naïve ö", "two\nlines"])
def test_any_name_can_be_drawn_and_is_seen(name):
    report = report_of_trials({"OP": trials_of(0)}, speakers=6)
    for figure in figures_of([System(name, report), System("other", report)], PAGE).values():
        figure.canvas.draw()
    label = as_label(name)
    assert not label.startswith("_")
    assert label.isprintable()
    assert len(label) <= 34


def test_a_system_called_as_unprotected_speech_is_another_line():
    shown = [System("original", report_of_embeddings()), *systems(1)]
    (ax,) = figures_of(shown, PAGE)["ece_profile"].axes
    labels = [line.get_label().partition(" (")[0] for line in ax.lines if line.get_gid() == "system"]
    assert labels == ["original speech", "original", "system 0"]
    assert math.isclose(len(ax.get_legend().get_texts()), 4)
