"""The list of figures: each is drawn for one system and for several, on a card and on a page."""

import io
import warnings

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image
from plotting.conftest import ODDS, legend_of, lines_of
from reports import make_report, make_trials, score_report
from samples import UNDEFINED, people, voices

from vpmetrics import ReidentificationRate
from vpmetrics import functional as F
from vpmetrics.report.figures import CARD, FIGURES, PAGE, draw_all_figures
from vpmetrics.report.page import draw_figures
from vpmetrics.report.privacy_report import EvaluatedSystem

OVERLAYS = ("deid_gvd", "utility", "det", "ece_profile", "reliability", "people", "utterances")
LAYOUTS = {"card": CARD, "page": PAGE}


def draw(key, systems, layout=PAGE):
    (kind,) = (kind for kind in FIGURES if kind.key == key)
    return kind.draw(systems, layout)


# a training has one system
@pytest.mark.parametrize(("layout", "number"), [("card", 1), ("page", 1), ("page", 3)])
@pytest.mark.parametrize("kind", FIGURES, ids=[kind.key for kind in FIGURES])
def test_every_figure_is_drawn_inside_its_frame_with_named_axes(
    kind, number, layout, systems, scored
):
    groups = [group[:number] for group in (systems, scored)]
    drawn = [
        figure for group in groups if (figure := kind.draw(group, LAYOUTS[layout])) is not None
    ]
    assert drawn
    assert not pyplot.get_fignums()  # nobody has to close them
    for figure in drawn:
        assert isinstance(figure, Figure)
        figure.draw_without_rendering()
        for ax in figure.axes:
            assert ax.get_ylabel() or any(label.get_text() for label in ax.get_yticklabels())
            assert ax.get_xlabel() or ax.get_label() == "<colorbar>"
            artists = [ax.xaxis.label, ax.yaxis.label, ax.title, ax.get_legend()]
            for artist in artists:
                box = None if artist is None else artist.get_window_extent()
                if box is not None and box.width > 1:
                    assert min(box.x0, box.y0) > -3, (artist, box)
                    assert box.x1 < figure.bbox.x1 + 3, (artist, box)
                    assert box.y1 < figure.bbox.y1 + 3, (artist, box)


def test_a_figure_is_cut_into_its_panels(systems):
    (zoo,) = (picture for picture in draw_figures(systems[:1]) if picture.key == "zoo")
    shapes = [Image.open(io.BytesIO(panel.png)).size for panel in zoo.panels]
    assert len(shapes) == 3  # OO, OP, PP
    whole = Image.open(io.BytesIO(zoo.files["png"]))
    assert sum(width for width, _ in shapes) == pytest.approx(whole.width, rel=0.06)
    assert all(height == pytest.approx(whole.height, rel=0.06) for _, height in shapes)


def test_figure_keys_are_unique_and_figures_have_descriptions():
    assert len({kind.key for kind in FIGURES}) == len(FIGURES)
    assert all(kind.title and kind.description.endswith(".") for kind in FIGURES)


def test_undefined_conditions_are_drawn():
    rows = {
        "original": torch.randn(4, 3),
        "protected": torch.randn(4, 3),
        "speakers": torch.zeros(4).long(),
    }
    with pytest.warns(UserWarning, match="There are no"):
        report = make_report(rows)
    for layout in (CARD, PAGE):
        figures = draw_all_figures([EvaluatedSystem("lone", report)], layout)
        assert {"ece_profile", "det", "score_histogram", "quadrants", "ranks"} <= set(figures)
        for figure in figures.values():
            figure.draw_without_rendering()


def test_a_report_of_some_keys_has_the_figures_of_scores():
    report = make_report(metrics=["op_d_ece"])
    _, ax = draw("det", [EvaluatedSystem("system", report)]).axes
    values = make_report().scalars
    expected = [100 * float(values[f"op_tpr_at_1e-{digit}"]) for digit in (2, 3)]
    shown = legend_of(ax)[-1]
    assert (
        shown
        == "OP ("
        + ", ".join("–" if np.isnan(value) else f"{value:.2f}" for value in expected)
        + ")"
    )


def test_several_systems_stand_beside_original_speech(systems, scored):
    called_original = EvaluatedSystem("original", systems[0].report)
    for shown, expected in (
        ([systems[0], scored[0]], ["original", "system 0", "scores 0"]),
        ([called_original, systems[1]], ["original speech", "original", "system 1"]),
    ):
        (ax,) = draw("ece_profile", shown).axes
        assert [label.partition(" (")[0] for label in legend_of(ax)] == [
            "perfect privacy",
            *expected,
        ]


def test_any_name_can_be_drawn():
    names = "_hidden\nlines\x1b[31m", r"$\foo$ naïve" + "a" * 200
    systems = [EvaluatedSystem(name, score_report(0)) for name in names]
    for figure in draw_all_figures(systems, PAGE).values():
        figure.draw_without_rendering()


def test_sixteen_systems_have_distinct_styles():
    embeddings = make_report(voices(speakers=6, utterances=4), sizes=(3,))
    for report in (embeddings, score_report(0, 1)):
        systems = [
            EvaluatedSystem(f"system {number}", report, utility={"WER": 1.0})
            for number in range(16)
        ]
        for key in OVERLAYS:
            figure = draw(key, systems)
            for ax in () if figure is None else figure.axes:
                lines = lines_of(ax, "system")
                assert len(lines) >= 16, key
                assert len({(line.get_marker(), line.get_fillstyle()) for line in lines}) == len(
                    lines
                ), key


def test_the_calibration_figure_shows_the_oracle_of_both_runs():
    attacked, other = make_trials(1), make_trials(2, distance=1.0)
    system = EvaluatedSystem("scores", score_report(1, fit=other))
    (ax,) = draw("calibration", [system]).axes
    drawn = {line.get_label().split(" (")[0].split(" [")[0]: line.get_ydata() for line in ax.lines}
    assert set(drawn) == {"perfect privacy", "learnt on", "attacked", "linear", "isotonic"}
    for label, trials in (("learnt on", other), ("attacked", attacked)):
        np.testing.assert_allclose(
            drawn[label], F.ece_profile(*trials[:2], ODDS).minimum, atol=1e-12
        )


def test_reliability_of_one_system_includes_cross_fitted_calibration(scored):
    one, several = (draw("reliability", group).axes[0] for group in (scored[:1], scored))
    names = ["calibrated", "OP", "OP, calibrated", "OP, linear", "OP, isotonic"]
    assert [line.get_label() for line in one.lines] == names
    assert not any(label.endswith("calibrated") for label in legend_of(several)[1:])


def test_zoo_plots_share_limits_and_name_their_condition(systems):
    figure = draw("zoo", systems)
    assert [ax.get_title() for ax in figure.axes] == [
        "original, OO",
        *(f"system {number}, OP" for number in range(3)),
    ]
    assert len({(*ax.get_xlim(), *ax.get_ylim()) for ax in figure.axes}) == 1
    for ax in figure.axes:
        (x, y), (left, right) = ax.lines[-1].get_data(), ax.get_xlim()
        assert left < min(x) < max(x) < right
        assert ax.get_ylim()[0] < min(y) < max(y) < ax.get_ylim()[1]
    assert [ax.get_title() for ax in draw("zoo", systems[:1]).axes] == ["OO", "OP", "PP"]
    assert [ax.get_title() for ax in draw("zoo", systems[:1], CARD).axes] == ["OP", "PP"]


def test_intervals_are_drawn():
    plain, sure = (
        [EvaluatedSystem("system", make_report(intervals=level))] for level in (None, 0.95)
    )
    (before,), (after,) = (draw("ece_profile", systems).axes for systems in (plain, sure))
    assert len(after.collections) == 3 > len(before.collections) == 0
    scalars = sure[0].report.scalars
    segments = [
        segment
        for each in draw("deid_gvd", sure).axes[0].collections
        for segment in each.get_segments()
    ]
    reached = [100 * float(scalars[f"deid_{end}"]) for end in ("low", "high")]
    assert any(np.allclose(segment[:, 0], reached) for segment in segments)


@pytest.mark.filterwarnings("ignore:Singling one out")
def test_population_figures_require_sizes():
    original, protected, speakers = people(number=20, each=8, noise=1.5)
    rows = {"original": original, "protected": protected, "speakers": speakers}
    plain, known = (
        EvaluatedSystem("system", make_report(rows, sizes=sizes)) for sizes in (None, (10, 20, 300))
    )
    assert not {"people", "utterances"} & set(draw_all_figures([plain], PAGE))
    by_hand = ReidentificationRate((10,), 4, condition="OP")
    by_hand.update(original, protected, speakers)
    for layout in (PAGE, CARD):
        figures = draw_all_figures([known], layout)
        (ax,), (longer,) = figures["people"].axes, figures["utterances"].axes
        assert [name.partition(" (")[0] for name in legend_of(ax) if " (" in name] == [
            "OO",
            "OP",
            "PP",
        ]
        assert ax.lines[0].get_xdata()[-1] <= 20
        assert lines_of(ax, "extrapolated")[0].get_xdata()[-1] == 300
        # Half of the eight utterances of a speaker are tested.
        assert [list(line.get_xdata()) for line in lines_of(longer, "system")] == [[1, 2, 4]] * 3
        assert lines_of(longer, "system")[1].get_ydata()[-1] == pytest.approx(
            by_hand.compute()["rate_10"].item()
        )


def test_the_strongest_attack_is_drawn_beside_cosine(systems):
    for key in ("people", "utterances"):
        labels = {label.partition(" (")[0] for label in legend_of(draw(key, systems[:1]).axes[0])}
        assert {"OO", "OP", "OP, attacked", "PP", "PP, attacked"} <= labels
    attacks = draw("attacks", systems[:1]).axes
    assert [ax.get_title() for ax in attacks] == ["OP", "PP"]
    strongest = systems[0].report.conditions["OP"].strongest
    tried = sorted(float(attack.d_ece) for attack in strongest.attacks)
    fused = systems[0].get_or_nan("d_ece_strongest", "OP")
    assert [bar.get_width() for bar in attacks[0].patches] == pytest.approx([*tried, fused])


def test_the_learning_curve_shows_its_points_limit_and_chance(systems):
    (ax,) = draw("learning_curve", systems[:1]).axes
    strongest = systems[0].report.conditions["OP"].strongest
    curve = ax.lines[0]
    assert list(curve.get_xdata()) == list(strongest.curve.num_speakers)
    assert list(curve.get_ydata()) == pytest.approx([float(d) for d in strongest.curve.d_ece])
    limit = lines_of(ax, "limit")[0].get_ydata()[0]
    assert limit == pytest.approx(float(strongest.curve.limit))
    assert any("chance" in label for label in legend_of(ax))


@pytest.mark.filterwarnings("ignore:A slope of local information")
def test_figures_repeat_no_warning_of_the_report():
    original, protected, speakers = people(number=2, each=20)
    with pytest.warns(UserWarning, match=UNDEFINED):
        report = make_report(
            {"original": original, "protected": protected, "speakers": speakers}, sizes=(10,)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "people" in draw_all_figures([EvaluatedSystem("system", report)], PAGE)
