"""The leave-one-speaker-out jackknife.

Replicates are what is measured without a speaker, and intervals follow.
"""

import math

import pytest
import torch
from reports import assert_replicates, compute, make_report
from samples import voices
from scipy import stats
from torch.testing import assert_close

from vpmetrics import (
    DeIdentification,
    LocalInformationDisclosure,
    MinCllr,
    ReidentificationRate,
    SimilarityRankDisclosure,
    VoiceDistinctiveness,
    VoicePrivacy,
)
from vpmetrics._scores import jackknife
from vpmetrics._scores.jackknife import _probability_below_0, jackknife_interval, paired_difference
from vpmetrics._scores.measures import minimum_cross_entropy, prior_entropy
from vpmetrics._scores.registry import CI_SUFFIXES, add_interval_keys, scalar
from vpmetrics.attacks import Plain, RidgeToOriginal


def without(rows, speaker):
    return {key: column[rows["speakers"] != speaker] for key, column in rows.items()}


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("number", [3, 4, 8, 21, 250])
def test_interval_and_probability_of_a_mean_match_the_textbook(number, confidence):
    values = torch.randn(number, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, replicates = values.mean(), (values.sum() - values) / (number - 1)
    found = torch.stack(jackknife_interval(mean, replicates, confidence)).tolist()
    law = stats.t(number - 1, loc=mean.item(), scale=stats.sem(values.numpy()))
    assert found == pytest.approx(law.interval(confidence), rel=1e-8)
    for limit in (-1.0, 0.0, 0.3):
        below = _probability_below_0(
            mean - limit, replicates - limit, number - 1.0, torch.zeros(())
        )
        assert below.item() == pytest.approx(law.cdf(limit), rel=1e-9)


def test_interval_is_clipped_to_its_range_and_contains_the_value():
    value, replicates = torch.tensor(0.01), torch.tensor([0.0, 0.03, 0.03, 0.04])
    low, high = jackknife_interval(value, replicates, 0.95, lowest=0.0, highest=0.02, bias=-1.0)
    assert (low.item(), high.item()) == pytest.approx((0.01, 0.02))


@pytest.mark.parametrize(("value", "highest"), [(0.0, 1.0), (1.0, 1.0), (0.5, 0.5)])
def test_constant_value_at_its_limit_has_a_clopper_pearson_bound(value, highest):
    """The ends are those of Clopper and Pearson for as many people who are all alike."""
    one, share = torch.tensor(value, dtype=torch.float64), value / highest
    low, high = jackknife_interval(one, one.expand(20), 0.95, lowest=0.0, highest=highest)
    # only one of its ends is open
    exact = stats.binomtest(round(20 * share), 20).proportion_ci(0.9, method="exact")
    assert (low.item() / highest, high.item() / highest) == pytest.approx(
        (exact.low, exact.high), rel=1e-12
    )


def test_constant_value_within_its_range_has_no_clopper_pearson_bound():
    inside = torch.tensor(0.3)
    assert jackknife_interval(inside, inside.expand(20), 0.95, 0.0, 1.0) == (inside, inside)
    assert jackknife_interval(torch.zeros(()), torch.zeros(20), 0.95, lowest=0.0) == (0, 0)
    # That nothing is hidden is no end of the range: hiding may be worse than nothing.
    assert jackknife_interval(torch.zeros(()), torch.zeros(20), 0.95, highest=1.0) == (0, 0)


@pytest.mark.filterwarnings("ignore:Linkability")
def test_three_separated_speakers_leave_a_wide_interval():
    rows = {key: column[:6] for key, column in voices().items()}
    rows["speakers"] = torch.arange(6) % 3
    noise = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
    rows["original"], rows["protected"] = torch.eye(16)[rows["speakers"]] + 0.01 * noise
    scalars = make_report(rows, intervals=0.95, metrics=["op_d_ece", "op_max_d"]).scalars
    # of all, at least, or three like these would come less than once in twenty times
    share = 0.05 ** (1 / 3)
    for key, most in (
        ("d_ece", 1 / math.log(4)),
        ("max_d", math.log2(3)),
        ("mean_d", math.log2(3)),
        ("id_rate", 1),
    ):
        ends = [float(scalars[f"op_{key}{end}"]) for end in ("_low", "", "_high")]
        assert ends == pytest.approx([most * share, most, most], rel=1e-5), key
    assert [float(scalars[f"op_eer{end}"]) for end in ("", "_high")] == pytest.approx(
        [0, 0.5 * (1 - share)], rel=1e-5
    )


CASES = {
    "plain": lambda _: ({}, {}),
    "sigmoid": lambda _: ({}, {"similarity": "sigmoid"}),
    "groups": lambda who: ({"groups": who % 2}, {}),
    "sessions": lambda who: ({"sessions": torch.arange(len(who)) % 2}, {}),
    "speaker": lambda who: (
        {"is_reference": torch.arange(len(who)) % 2 == 0},
        {"enrolment": "speaker"},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_replicate_equals_the_report_without_that_speaker(case):
    rows = voices()
    columns, settings = CASES[case](rows["speakers"])
    rows |= columns
    report = make_report(rows, intervals=0.95, **settings)
    again = [make_report(without(rows, speaker), **settings).scalars for speaker in range(12)]
    assert_replicates(
        report, again, coarse=("linkability", "alid", "pdr", "ndr", "raw_eer", "tpr", "min_dcf")
    )


@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_replicates_of_cllr_follow_every_trial_of_few_utterances(noise):
    # A trial next to the edge of a narrow cell without others of its class counts with its own
    # cost.
    speakers, generator = torch.arange(8).repeat_interleave(6), torch.Generator().manual_seed(4)
    original, errors = torch.randn(2, 48, 256, generator=generator)
    original = torch.randn(8, 256, generator=generator)[speakers] + noise * original
    rows = {
        "original": original,
        "protected": 0.5 * original + noise * errors,
        "speakers": speakers,
    }
    settings = {"attacks": None, "metrics": ["oo_cllr", "op_cllr", "pp_cllr"]}
    report = make_report(rows, intervals=0.95, **settings)
    again = [make_report(without(rows, speaker), **settings).scalars for speaker in range(8)]
    for key in settings["metrics"]:
        expected = torch.stack([scalars[key] for scalars in again]) - report.scalars[key]
        # A tenth of their spread: what is left out costs what its cell costs on average.
        assert_close(
            report.jackknife.changes[key].to(expected), expected, atol=2e-4, rtol=0, msg=key
        )


@pytest.mark.parametrize("grouped", [False, True])
def test_jackknife_of_ranks_is_exact(grouped):
    rows = voices(speakers=9)
    rows |= {"groups": (rows["speakers"] > 4).long()} if grouped else {}
    report = make_report(rows, intervals=0.95)
    changes, full, keys = (
        report.jackknife.changes,
        report.scalars,
        ("op_mean_d", "op_max_d", "pp_max_d", "oo_id_rate"),
    )
    for speaker in (0, 4):
        scalars = make_report(without(rows, speaker)).scalars
        for key in (*keys, "op_link_rate"):
            assert_close(changes[key][speaker], scalars[key] - full[key], atol=1e-12, rtol=0)
    for key in keys:  # of a largest value, too
        replicates = full[key] + changes[key]
        bias = report.jackknife.bias.get(key, 0.0)
        ends = jackknife_interval(
            full[key], replicates, 0.95, *scalar(key).range_among(9), bias=bias
        )
        assert_close(
            torch.stack([full[f"{key}_low"], full[f"{key}_high"]]),
            torch.stack(ends),
            atol=1e-9,
            rtol=0,
        )
        assert 0 <= full[f"{key}_low"] <= full[key] <= full[f"{key}_high"]


@pytest.mark.filterwarnings("ignore:Singling one out")
@pytest.mark.parametrize("grouped", [False, True])
def test_jackknife_of_rates_is_exact(grouped):
    rows = voices(speakers=9)
    # or utterances would be dealt again
    rows["is_reference"] = torch.arange(len(rows["speakers"])) % 2 == 0
    rows |= {"groups": (rows["speakers"] > 4).long()} if grouped else {}
    sizes = (2, 3) if grouped else (2, 3, 8)
    full = make_report(rows, intervals=0.95, sizes=(*sizes, 40))
    for speaker in (0, 4, 8):
        scalars = make_report(without(rows, speaker), sizes=sizes).scalars
        for key in ("op_rate_2", "pp_rate_3", f"oo_rate_{sizes[-1]}"):
            assert_close(
                full.jackknife.changes[key][speaker],
                scalars[key] - full.scalars[key],
                atol=1e-6,
                rtol=0,
            )
    assert (
        0
        <= full.scalars["op_rate_3_low"]
        < full.scalars["op_rate_3"]
        < full.scalars["op_rate_3_high"]
        <= 1
    )
    # Among all there are, somebody is looked for among all who are left; beyond them a model
    # speaks, not speakers.
    assert full.scalars["op_rate_40_low"].isnan()
    assert "op_singling_out_3_low" not in full.scalars


def test_every_scalar_except_extremes_has_interval_bounds():
    values = make_report(attacks=[Plain(), RidgeToOriginal()], intervals=0.95).scalars
    names = [name for name in values if not name.endswith(("_low", "_high"))]
    assert list(values) == list(add_interval_keys(names))
    for name in names:
        if scalar(name).has_interval and not values[name].isnan():
            low, value, high = (float(values[name + end]) for end in ("_low", "", "_high"))
            assert low <= value <= high, name
    assert "op_l_w_low" not in values
    assert values["op_d_ece_strongest_high"] > values["op_d_ece_strongest"]


def test_intervals_are_independent_of_speaker_order_and_labels():
    rows, draw = voices(), torch.Generator().manual_seed(3)
    shuffled, names = (
        torch.randperm(len(rows["speakers"]), generator=draw),
        torch.randperm(12, generator=draw) * 7 + 1,
    )
    other = {key: column[shuffled] for key, column in rows.items()}
    other["speakers"] = names[other["speakers"]]
    found, expected = (
        make_report(each, intervals=0.95, attacks=[Plain()]).scalars for each in (other, rows)
    )
    for key, value in expected.items():
        if not key.endswith("worst_speaker"):  # who that is goes by name
            assert_close(found[key], value, atol=1e-9, rtol=1e-9, equal_nan=True, msg=key)


@pytest.mark.parametrize(
    ("size", "constant", "limit", "keys", "most"),
    [
        ((60, 4), "MOST_GROUPS", 20, ("op_d_ece", "pp_eer", "op_mean_d", "deid"), 2),
        (
            (30, 10),
            "_MOST_PAIRS",
            20_000,
            ("op_d_ece", "pp_eer", "op_min_cllr", "deid", "gvd"),
            1.4,
        ),
    ],
    ids=["groups of speakers", "thinned pairs"],
)
def test_grouped_jackknife_of_large_sets_gives_similar_intervals(
    size, constant, limit, keys, most, monkeypatch
):
    exact = make_report(voices(*size), intervals=0.95).scalars
    monkeypatch.setattr(jackknife, constant, limit)
    coarse = make_report(voices(*size), intervals=0.95).scalars
    for key in keys:
        width = [
            float(scalars[f"{key}_high"] - scalars[f"{key}_low"]) for scalars in (exact, coarse)
        ]
        assert 1 / most < width[1] / width[0] < most, key


@pytest.mark.parametrize(
    ("speakers", "reason"), [(2, "Intervals need 3 speakers"), (1, "There are no non-target")]
)
def test_intervals_of_fewer_than_three_speakers_are_nan_with_one_warning(speakers, reason):
    with pytest.warns(UserWarning, match=reason) as caught:
        scalars = make_report(voices(speakers=speakers), intervals=0.95, sizes=(2,)).scalars
    assert len(caught) == 1
    for key, value in scalars.items():
        assert value.isnan() or not key.endswith(("_low", "_high")), key


def test_speakers_without_non_target_trials_do_not_count_for_intervals():
    scores = torch.linspace(-1, 1, 12, dtype=torch.float64)
    target = torch.arange(12) % 2
    first = torch.tensor([0, 0, 1, 1, 0, 2, 1, 3, 0, 0, 1, 1])
    # speakers 2 and 3 are in target trials alone
    second = torch.where(target == 1, first, (first + 1) % 2)
    metric = MinCllr(intervals=0.95)
    metric.update(scores, target, (first, second))
    with pytest.warns(UserWarning, match="Intervals need 3 speakers with target trials"):
        assert metric.compute()["min_cllr_low"].isnan()


def test_intervals_count_speakers_of_all_groups():
    rows = voices(speakers=6)
    rows["groups"] = rows["speakers"] // 2
    metric = VoicePrivacy(attacks=None, intervals=0.95, metrics=["op_id_rate", "op_d_ece"])
    values = compute(metric, **rows)
    assert values["op_id_rate_low"] < values["op_id_rate_high"]
    assert values["op_d_ece_low"] < values["op_d_ece_high"]


def test_two_systems_are_compared_on_the_speakers_they_share():
    rows = voices(speakers=24)
    weaker = {**rows, "protected": 0.7 * rows["protected"] + 0.3 * rows["original"]}
    reports = [make_report(each, intervals=0.95) for each in (rows, weaker)]

    def compared(first, second, key="op_d_ece"):
        pair = (reports[first], reports[second])
        return paired_difference(
            key, tuple(r.scalars[key] for r in pair), tuple(r.jackknife for r in pair), 0.95
        )

    better, worse = compared(0, 1), compared(1, 0)
    assert better.is_significant
    assert better.probability_below > 0.99
    assert_close(
        better.probability_below + worse.probability_below,
        torch.ones_like(better.probability_below),
    )
    assert_close(better.low, -worse.high)
    # Speakers that are hard are so for both, so the difference is surer than two numbers apart.
    widths = [
        float(report.scalars["op_d_ece_high"] - report.scalars["op_d_ece_low"])
        for report in reports
    ]
    assert float(better.high - better.low) < (widths[0] ** 2 + widths[1] ** 2) ** 0.5
    same = compared(0, 0)
    assert not same.is_significant
    assert float(same.probability_below) == 0.5
    reports.append(make_report(voices(speakers=8), intervals=0.95))
    with pytest.raises(ValueError, match="the same speakers"):
        compared(0, 2)


def test_undefined_replicate_gives_no_interval_and_a_warning():
    rows = voices(speakers=4)
    metric = ReidentificationRate(sizes=(2,), condition="across", intervals=0.9)
    is_in_both = rows["speakers"] == 0  # only these can be looked for across sessions
    sessions = torch.where(is_in_both, torch.arange(len(is_in_both)) % 2, 0)
    metric.update(**rows, sessions=sessions)
    with pytest.warns(
        UserWarning,
        match="undefined or infinite without one of the speakers, so it has no interval",
    ):
        value = metric.compute()
    assert value["rate_2"].isfinite()
    assert value["rate_2_low"].isnan()


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("kind", "settings", "of_suite"),
    [
        (DeIdentification, {}, {}),
        (VoiceDistinctiveness, {"similarity": "sigmoid"}, {"similarity": "sigmoid"}),
        (SimilarityRankDisclosure, {"condition": "OP"}, {}),
        (
            SimilarityRankDisclosure,
            {"condition": "OO", "model": "beta_binomial"},
            {"rank_model": "beta_binomial"},
        ),
        (LocalInformationDisclosure, {"condition": "PP"}, {}),
        (ReidentificationRate, {"condition": "OP", "sizes": (2, 5)}, {"sizes": (2, 5)}),
    ],
)
def test_metric_interval_bounds_match_the_suite(kind, settings, of_suite, grouped):
    rows = voices(speakers=14)
    rows |= {"groups": rows["speakers"] % 2} if grouped else {}
    prefix = settings["condition"].lower() + "_" if "condition" in settings else ""
    values = compute(kind(intervals=0.9, **settings), **rows)
    values = {prefix + key: value for key, value in values.items() if not key.startswith("chance")}
    metrics = [key for key in values if not key.endswith(CI_SUFFIXES)]
    expected = make_report(rows, intervals=0.9, metrics=metrics, **of_suite).scalars
    assert any(key.endswith("_low") for key in values)
    for key, value in values.items():
        assert_close(value, expected[key], atol=1e-9, rtol=1e-9, equal_nan=True, msg=key)


def test_jackknife_profile_equals_the_profile_without_that_speaker():
    rows = voices()
    odds = torch.linspace(-3, 3, 7, dtype=torch.float64)
    report = make_report(rows, intervals=0.95).conditions["OP"]
    counts = report.counts
    for speaker in (0, 7):
        others = make_report(without(rows, speaker)).conditions["OP"].minimum_cross_entropy(odds)
        found = minimum_cross_entropy(counts.measure_input.counts.ascending, odds)[1 + speaker]
        assert_close(found, others, atol=2e-3, rtol=0)
    low, high = report.cross_entropy_interval(odds)
    profile = report.minimum_cross_entropy(odds)
    assert bool(((low <= profile) & (profile <= high)).all())
    assert float((high - low).amax()) > 0.01
    hidden = make_report(voices(leak=0.05), intervals=0.95).conditions["OP"]
    assert bool((hidden.cross_entropy_interval(odds)[1] <= prior_entropy(odds) + 1e-12).all())


def test_saturating_numbers_have_the_interval_of_what_is_missing():
    # One of thirty speakers misses a fifth: as rare as that, it may be four times as much.
    each = torch.ones(30, dtype=torch.float64)
    each[4] = 0.8
    value = each.mean()
    replicates = (each.sum() - each) / 29
    missing = 1 - float(value)
    error = float(each.std() / math.sqrt(30))
    reach = stats.t(29).ppf(0.975) * error
    low, high = jackknife_interval(value, replicates, 0.95, 0.0, 1.0, is_saturating=True)
    stretched = float(value) - 1.5 * reach
    assert stretched > 1 - missing * math.exp(reach / missing)
    assert float(low) == pytest.approx(stretched)
    assert float(high) == pytest.approx(1 - missing * math.exp(-reach / missing))
    # Far from the end it is the interval of the number itself.
    plain = jackknife_interval(value / 50, replicates / 50, 0.95, 0.0, 1.0)
    far = jackknife_interval(value / 50, replicates / 50, 0.95, 0.0, 1.0, is_saturating=True)
    assert_close(torch.stack(far), torch.stack(plain), atol=1e-5, rtol=0)
    unbounded = jackknife_interval(value, replicates, 0.95, is_saturating=True)
    assert_close(torch.stack(unbounded), torch.stack(jackknife_interval(value, replicates, 0.95)))
    # So close to the end that a sample without such speakers looks the same, as at the end.
    close = 1 - (1 - replicates) / 100
    low, _ = jackknife_interval(1 - (1 - value) / 100, close, 0.95, 0.0, 1.0, is_saturating=True)
    assert float(low) == pytest.approx(1 - (1 - float(value)) / 100 - (1 - 0.05 ** (1 / 30)))
