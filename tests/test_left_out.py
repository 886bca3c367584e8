"""Intervals from leaving speakers out: what is left is what would have been measured, and the ends follow from it."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from vpmetrics import (
    DeIdentification,
    EmbeddingTrials,
    LocalInformationDisclosure,
    MinCllr,
    ReidentificationRate,
    SimilarityRankDisclosure,
    SinglingOut,
    StrongestAttack,
    VoiceDistinctiveness,
    VoicePrivacy,
    VoiceSimilarityMatrix,
)
from vpmetrics._figures import PAGE, figures_of
from vpmetrics._intervals import difference_of
from vpmetrics._plot.systems import draw_trade_off
from vpmetrics._report import System
from vpmetrics._scalars import names_with_ends, scalar
from vpmetrics._scores.intervals import interval_of, probability_below, students_t
from vpmetrics._scores.measures import entropy_of_prior
from vpmetrics._trials import left_out
from vpmetrics._trials.conditions import CONDITIONS
from vpmetrics._trials.pairs import TrialGrid
from vpmetrics._trials.scorers import SCORERS
from vpmetrics._trials.utterances import pack, sides_of
from vpmetrics.attacks import Plain, RidgeToOriginal


def voices(speakers=12, utterances=8, leak=0.4, seed=0, sessions=None):
    """Original voices, and protected ones that keep some of them; float64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    who = torch.arange(speakers).repeat_interleave(utterances)
    mean, pseudo = draw(2, speakers, 16)
    rows = {
        "original": mean[who] + draw(len(who), 16),
        "protected": leak * mean[who] + 0.6 * pseudo[who] + draw(len(who), 16),
        "speakers": who,
    }
    return rows if sessions is None else {**rows, "sessions": torch.arange(len(who)) % sessions}


def measured(rows, **settings):
    metric = VoicePrivacy(**{"attacks": None, **settings})
    metric.update(**rows)
    return metric.report()


def without(rows, speaker):
    return {key: column[rows["speakers"] != speaker] for key, column in rows.items()}


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 20, 249])
def test_students_t_is_that_of_scipy(freedom, confidence):
    assert students_t(confidence, freedom) == pytest.approx(stats.t.ppf((1 + confidence) / 2, freedom), rel=1e-12)


def test_the_interval_of_a_mean_is_the_one_of_the_textbook():
    values = torch.randn(15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    replicates = (values.sum() - values) / 14
    low, high = interval_of(values.mean(), replicates, 0.9)
    expected = stats.t.interval(0.9, 14, loc=values.mean().item(), scale=stats.sem(values.numpy()))
    assert (low.item(), high.item()) == pytest.approx(expected, rel=1e-12)


def test_an_interval_keeps_to_its_range_and_holds_what_was_measured():
    value, replicates = torch.tensor(0.01), torch.tensor([0.0, 0.03, 0.03, 0.04])
    low, high = interval_of(value, replicates, 0.95, lowest=0.0, highest=0.02, bias=-1.0)
    assert (low.item(), high.item()) == pytest.approx((0.01, 0.02))


@pytest.mark.parametrize(("value", "highest"), [(0.0, 1.0), (1.0, 1.0), (0.5, 0.5)])
def test_people_of_whom_none_was_seen_are_not_ruled_out(value, highest):
    """The ends are those of Clopper and Pearson for as many people who are all alike."""
    one, share = torch.tensor(value, dtype=torch.float64), value / highest
    low, high = interval_of(one, one.expand(20), 0.95, lowest=0.0, highest=highest)
    exact = stats.binomtest(round(20 * share), 20).proportion_ci(0.9, method="exact")  # only one of its ends is open
    assert (low.item() / highest, high.item() / highest) == pytest.approx((exact.low, exact.high), rel=1e-12)


def test_what_lies_within_its_range_or_has_none_is_as_sure_as_it_seems():
    inside = torch.tensor(0.3)
    assert interval_of(inside, inside.expand(20), 0.95, 0.0, 1.0) == (inside, inside)
    assert interval_of(torch.zeros(()), torch.zeros(20), 0.95, lowest=0.0) == (0, 0)
    # That nothing is hidden is no end of the range: hiding may be worse than nothing.
    assert interval_of(torch.zeros(()), torch.zeros(20), 0.95, highest=1.0) == (0, 0)


@pytest.mark.filterwarnings("ignore:Linkability")
def test_three_voices_told_apart_do_not_show_that_all_can_be():
    rows = {key: column[:6] for key, column in voices().items()}
    rows["speakers"] = torch.arange(6) % 3
    noise = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
    rows["original"], rows["protected"] = torch.eye(16)[rows["speakers"]] + 0.01 * noise
    scalars = measured(rows, intervals=0.95, metrics=["op_d_ece", "op_max_d"]).scalars
    share = 0.05 ** (1 / 3)  # of all, at least, or three like these would come less than once in twenty times
    for key, most in (("d_ece", 1 / math.log(4)), ("max_d", math.log2(3)), ("mean_d", math.log2(3)), ("id_rate", 1)):
        ends = [float(scalars[f"op_{key}{end}"]) for end in ("_low", "", "_high")]
        assert ends == pytest.approx([most * share, most, most], rel=1e-5), key
    assert [float(scalars[f"op_eer{end}"]) for end in ("", "_high")] == pytest.approx([0, 0.5 * (1 - share)], rel=1e-5)


@pytest.mark.parametrize("case", ["plain", "sigmoid", "groups", "sessions", "speaker"])
def test_leaving_a_speaker_out_is_measuring_without_them(case):
    rows, settings = voices(sessions=2 if case == "sessions" else None), {}
    if case == "sigmoid":
        settings["similarity"] = "sigmoid"
    if case == "groups":
        rows["groups"] = rows["speakers"] % 2
    if case == "speaker":
        settings["enrolment"], rows["is_reference"] = "speaker", torch.arange(len(rows["speakers"])) % 2 == 0
    report = measured(rows, intervals=0.95, **settings)
    assert report.left_out is not None
    again = [measured(without(rows, speaker), **settings).scalars for speaker in range(12)]
    for key, change in report.left_out.changes.items():
        expected = torch.stack([values[key] - report.scalars[key] for values in again])
        # Bins of linkability and slopes of local information stay as they were, and ties of few scores are not told
        # apart; of all others, what is second order does.
        coarse = any(part in key for part in ("linkability", "alid", "pdr", "ndr", "raw_eer"))
        spread = (expected - expected.mean()).square().mean().sqrt()
        allowed = (1.0 if coarse else 0.15) * spread + 0.003 * abs(report.scalars[key]) + (5e-3 if coarse else 2e-3)
        assert (change - expected).square().mean().sqrt() <= allowed, key


def test_ranks_without_a_speaker_are_exact():
    rows = voices(speakers=9)
    changes = measured(rows, intervals=0.95).left_out.changes
    for speaker in (0, 4):
        scalars = measured(without(rows, speaker)).scalars
        full = measured(rows).scalars
        for key in ("op_mean_d", "pp_max_d", "oo_id_rate", "op_link_rate"):
            assert_close(changes[key][speaker], scalars[key] - full[key], atol=1e-12, rtol=0)


@pytest.mark.filterwarnings("ignore:Singling one out")
@pytest.mark.parametrize("grouped", [False, True])
def test_rates_without_a_speaker_are_exact(grouped):
    rows = voices(speakers=9)
    rows["is_reference"] = torch.arange(len(rows["speakers"])) % 2 == 0  # or utterances would be dealt anew
    rows |= {"groups": (rows["speakers"] > 4).long()} if grouped else {}
    sizes = (2, 3) if grouped else (2, 3, 8)
    full = measured(rows, intervals=0.95, sizes=(*sizes, 40))
    for speaker in (0, 4, 8):
        scalars = measured(without(rows, speaker), sizes=sizes).scalars
        for key in ("op_rate_2", "pp_rate_3", f"oo_rate_{sizes[-1]}"):
            assert_close(full.left_out.changes[key][speaker], scalars[key] - full.scalars[key], atol=1e-6, rtol=0)
    assert 0 <= full.scalars["op_rate_3_low"] < full.scalars["op_rate_3"] < full.scalars["op_rate_3_high"] <= 1
    # Among all there are, somebody is looked for among all who are left; beyond them a model speaks, not speakers.
    assert full.scalars["op_rate_40_low"].isnan()
    assert "op_singling_out_3_low" not in full.scalars


def test_rates_after_the_strongest_attack_lose_a_speaker_in_one_fold():
    rows = voices(speakers=20, utterances=6)
    full = measured(rows, intervals=0.95, sizes=(2,), attacks=[Plain()])
    found, change = full.scalars, full.left_out.changes["op_rate_2_strongest"]
    spread = full.left_out.changes["op_rate_2"].std()
    assert 0.3 < float(change.std() / spread) < 3
    assert found["op_rate_2_strongest_low"] < found["op_rate_2_strongest"] < found["op_rate_2_strongest_high"]


def test_every_scalar_but_extremes_is_followed_by_its_ends():
    metric = VoicePrivacy(attacks=[Plain(), RidgeToOriginal()], intervals=0.95)
    metric.update(**voices())
    values = metric.compute()
    names = [name for name in values if not name.endswith(("_low", "_high"))]
    assert list(values) == list(names_with_ends(names))
    for name in names:
        if scalar(name).has_interval:
            low, value, high = (float(values[name + end]) for end in ("_low", "", "_high"))
            assert low <= value <= high, name
    assert "op_l_w_low" not in values
    assert values["op_d_ece_strongest_high"] > values["op_d_ece_strongest"]


def test_a_choice_of_scalars_brings_their_ends_and_no_others():
    metric = VoicePrivacy(attacks=None, intervals=0.95, metrics=["deid", "op_l_w"])
    metric.update(**voices())
    assert list(metric.compute()) == ["deid", "deid_low", "deid_high", "op_l_w"]


def test_the_values_are_those_without_intervals():
    plain = measured(voices()).scalars
    sure = measured(voices(), intervals=0.95).scalars
    for key, value in plain.items():
        assert_close(sure[key], value, atol=0, rtol=0, equal_nan=True)


def test_neither_order_nor_names_of_speakers_matter():
    rows = voices()
    shuffled = torch.randperm(len(rows["speakers"]), generator=torch.Generator().manual_seed(3))
    names = torch.randperm(12, generator=torch.Generator().manual_seed(4)) * 7 + 1
    other = {key: column[shuffled] for key, column in rows.items()}
    other["speakers"] = names[other["speakers"]]
    expected = measured(rows, intervals=0.95, attacks=[Plain()]).scalars
    found = measured(other, intervals=0.95, attacks=[Plain()]).scalars
    for key, value in expected.items():
        if not key.endswith("worst_speaker"):  # who that is goes by name
            assert_close(found[key], value, atol=1e-9, rtol=1e-9, equal_nan=True, msg=key)


def test_doing_nothing_is_known_to_do_nothing():
    rows = voices()
    rows["protected"] = rows["original"]
    scalars = measured(rows, intervals=0.95).scalars
    for key in ("deid", "deid_low", "deid_high", "gvd_low", "gvd_high"):
        assert abs(float(scalars[key])) < 1e-3, key


@pytest.mark.filterwarnings("ignore:Linkability")
@pytest.mark.parametrize("nothing", [0.0, 1.0])
def test_scores_that_are_all_one_say_nothing_of_people_who_were_not_seen(nothing):
    rows = voices()
    rows["protected"] = torch.full_like(rows["original"], nothing)
    scalars = measured(rows, intervals=0.95).scalars
    share = 1 - 0.05 ** (1 / 12)  # of all, with whom twelve like these would come once in twenty times
    found = [float(scalars[f"op_d_ece{end}"]) for end in ("", "_low", "_high")]
    assert found == pytest.approx([0.0, 0.0, share / math.log(4)])


def test_fewer_speakers_are_less_sure():
    few, many = (measured(voices(speakers=count), intervals=0.95).scalars for count in (8, 32))
    for key in ("op_d_ece", "deid", "op_mean_d", "op_eer"):
        width = [float(scalars[f"{key}_high"] - scalars[f"{key}_low"]) for scalars in (few, many)]
        assert width[1] < 0.8 * width[0], key


def test_blocks_of_many_speakers_say_about_the_same(monkeypatch):
    rows = voices(speakers=60, utterances=4)
    one_by_one = measured(rows, intervals=0.95).scalars
    monkeypatch.setattr(left_out, "MOST", 20)
    in_blocks = measured(rows, intervals=0.95).scalars
    for key in ("op_d_ece", "pp_eer", "op_mean_d", "deid"):
        width = [float(scalars[f"{key}_high"] - scalars[f"{key}_low"]) for scalars in (one_by_one, in_blocks)]
        assert 0.5 < width[1] / width[0] < 2, key


def test_thinned_pairs_say_about_the_same(monkeypatch):
    rows = voices(speakers=30, utterances=10)
    every_pair = measured(rows, intervals=0.95).scalars
    monkeypatch.setattr(left_out, "_PAIRS", 20_000)
    some = measured(rows, intervals=0.95).scalars
    for key in ("op_d_ece", "pp_eer", "op_min_cllr", "deid", "gvd"):
        width = [float(scalars[f"{key}_high"] - scalars[f"{key}_low"]) for scalars in (every_pair, some)]
        assert 0.7 < width[1] / width[0] < 1.4, key


@pytest.mark.parametrize("condition", ["OO", "OP", "within"])
def test_only_tiles_with_a_voice_on_both_sides_are_compared_for_targets(condition):
    rows = voices(speakers=20, utterances=3, sessions=2)
    sides, compared = sides_of(pack(**rows)), []

    def compare(a, b):
        compared.append(len(a) * len(b))
        return a @ b.T

    scorer = SCORERS["dot"]._replace(compare=compare)
    grid = TrialGrid(*sides.pair(CONDITIONS[condition]), sides.voices, scorer, CONDITIONS[condition], tile=6)
    expected = [(tile.row, tile.column) for tile in grid.shared() if tile.same_speaker is not None]
    compared.clear()
    assert [(tile.row, tile.column) for tile in grid.near()] == expected
    assert len(expected) == 10  # of two voices each
    assert sum(compared) <= 2 * 10 * 6 * 6  # those on the diagonal both ways round


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("speakers", [1, 2])
def test_of_too_few_speakers_nothing_is_sure(speakers):
    scalars = measured(voices(speakers=speakers), intervals=0.95).scalars
    assert math.isnan(scalars["op_d_ece_low"])
    assert math.isnan(scalars["deid_high"])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [(95, ValueError, "between 0 and 1"), ("0.95", TypeError, "a number"), (True, TypeError, "a number")],
)
def test_a_confidence_that_is_none_is_refused(given, error, message):
    with pytest.raises(error, match=f"`intervals`.*{message}"):
        VoicePrivacy(intervals=given)


def test_batches_hold_too_few_speakers_for_intervals():
    with pytest.raises(ValueError, match="without `bandwidth`"):
        VoicePrivacy(intervals=0.95, bandwidth=0.1)


def test_two_systems_are_compared_on_the_speakers_they_share():
    rows = voices(speakers=24)
    weaker = {**rows, "protected": 0.7 * rows["protected"] + 0.3 * rows["original"]}
    reports = [measured(each, intervals=0.95) for each in (rows, weaker)]

    def compared(first, second, key="op_d_ece"):
        pair = (reports[first], reports[second])
        return difference_of(key, tuple(r.scalars[key] for r in pair), tuple(r.left_out for r in pair), 0.95)

    better, worse = compared(0, 1), compared(1, 0)
    assert better.told_apart
    assert better.smaller > 0.99
    assert_close(better.smaller + worse.smaller, torch.ones_like(better.smaller))
    assert_close(better.low, -worse.high)
    # Speakers that are hard are so for both, so the difference is surer than two numbers apart.
    widths = [float(report.scalars["op_d_ece_high"] - report.scalars["op_d_ece_low"]) for report in reports]
    assert float(better.high - better.low) < (widths[0] ** 2 + widths[1] ** 2) ** 0.5
    same = compared(0, 0)
    assert not same.told_apart
    assert float(same.smaller) == 0.5


def test_how_likely_a_number_is_below_a_limit_is_that_of_students_t():
    values = torch.randn(15, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    replicates = (values.sum() - values) / 14
    for limit in (-1.0, 0.0, 0.3):
        expected = stats.t.cdf(limit, 14, loc=values.mean().item(), scale=stats.sem(values.numpy()))
        assert probability_below(values.mean(), replicates, limit).item() == pytest.approx(expected, rel=1e-9)


def test_systems_of_other_speakers_are_not_compared():
    left_out = [measured(voices(speakers=count), intervals=0.95).left_out for count in (8, 9)]
    with pytest.raises(ValueError, match="the same speakers"):
        difference_of("deid", (torch.tensor(0.5), torch.tensor(0.4)), tuple(left_out), 0.95)


@pytest.mark.parametrize(
    ("metric", "prefix"),
    [
        (DeIdentification(intervals=0.9), ""),
        (VoiceDistinctiveness(intervals=0.9, similarity="sigmoid"), ""),
        (SimilarityRankDisclosure(condition="OP", intervals=0.9), "op_"),
        (SimilarityRankDisclosure(condition="OO", model="beta_binomial", intervals=0.9), "oo_"),
        (LocalInformationDisclosure(condition="PP", intervals=0.9), "pp_"),
        (StrongestAttack(condition="PP", attacks=[Plain(), RidgeToOriginal()], intervals=0.9), "pp_"),
        (ReidentificationRate(sizes=(2, 5), condition="OP", intervals=0.9), "op_"),
    ],
    ids=lambda metric: type(metric).__name__,
)
@pytest.mark.parametrize("grouped", [False, True])
def test_each_metric_has_the_ends_that_the_suite_has(metric, prefix, grouped):
    rows = voices(speakers=14)
    if grouped:
        rows["groups"] = rows["speakers"] % 2
    metric.reset()
    metric.update(**rows)
    suite = VoicePrivacy(
        intervals=0.9,
        similarity=getattr(metric, "similarity", "geometric"),
        rank_model=getattr(metric, "model", "empirical"),
        attacks=getattr(metric, "attacks", None),
        sizes=getattr(metric, "sizes", None),
    )
    suite.update(**rows)
    values, expected = metric.compute(), suite.compute()
    assert any(key.endswith("_low") for key in values)
    for key, value in values.items():
        if key.startswith("chance"):  # 1/N, which the suite does not say
            continue
        assert_close(value, expected[prefix + key], atol=1e-9, rtol=1e-9, equal_nan=True, msg=key)


def test_ranks_and_local_information_keep_to_groups():
    rows = voices(speakers=10)
    rows["groups"] = rows["speakers"] % 2
    for make in (SimilarityRankDisclosure, LocalInformationDisclosure):
        values = []
        for group in (0, 1):
            part = make(condition="OP")
            part.update(**{key: column[rows["groups"] == group] for key, column in rows.items()})
            values.append(part.compute())
        whole = make(condition="OP")
        whole.update(**rows)
        for key in ("mean_d", "id_rate") if make is SimilarityRankDisclosure else ("alid", "pdr", "link_rate"):
            assert_close(whole.compute()[key], (values[0][key] + values[1][key]) / 2)


@pytest.mark.parametrize("make", [VoiceSimilarityMatrix, SinglingOut, lambda **kw: EmbeddingTrials(MinCllr(), **kw)])
def test_a_metric_without_intervals_says_so(make):
    with pytest.raises((TypeError, ValueError), match="intervals"):
        make(intervals=0.95)


def test_a_profile_without_a_speaker_is_the_profile_of_all_others():
    rows = voices()
    odds = torch.linspace(-3, 3, 7, dtype=torch.float64)
    report = measured(rows, intervals=0.95).conditions["OP"]
    counts = report.profiles.counts
    for speaker in (0, 7):
        others = measured(without(rows, speaker)).conditions["OP"].cross_entropy(odds)
        found = torch.stack([counts.least_cross_entropy(at)[1 + speaker] for at in odds])
        assert_close(found, others, atol=2e-3, rtol=0)
    low, high = report.ends_of_cross_entropy(odds)
    profile = report.cross_entropy(odds)
    assert bool(((low <= profile) & (profile <= high)).all())
    assert float((high - low).amax()) > 0.01
    hidden = measured(voices(leak=0.05), intervals=0.95).conditions["OP"]
    assert bool((hidden.ends_of_cross_entropy(odds)[1] <= entropy_of_prior(odds) + 1e-12).all())


def test_figures_show_how_sure_they_are():
    plain, sure = (
        figures_of([System("system", measured(voices(), attacks=[Plain()], **kwargs))], PAGE)
        for kwargs in ({}, {"intervals": 0.95})
    )
    for name, drawn in (("ece_profile", "collections"), ("attacks", "containers")):
        before, after = (len(getattr(figures[name].axes[0], drawn)) for figures in (plain, sure))
        assert after > before, name
    ((whisker,),) = list(_segments(sure["deid_gvd"].axes[0], horizontal=True))[-1:]
    scalars = measured(voices(), intervals=0.95).scalars
    assert whisker == pytest.approx([100 * float(scalars[f"deid{end}"]) for end in ("_low", "_high")])


def test_a_whisker_that_reaches_below_nothing_is_inside_its_axis():
    ends = {"deid_low": -0.3, "deid_high": 0.9, "gvd_low": -3.0, "gvd_high": -1.0}
    _, ax = draw_trade_off([("system", {"deid": 0.3, "gvd": -2.0, **ends})])
    assert ax.get_xlim()[0] <= -30


def _segments(ax, horizontal):
    """Where the whiskers of each point begin and end."""
    for collection in ax.collections:
        segments = [segment[:, 0 if horizontal else 1].tolist() for segment in collection.get_segments()]
        if segments and segments[0][0] != segments[0][1]:
            yield segments
