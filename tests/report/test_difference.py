"""The difference of two reports on the same speakers.

Sign, interval, p-value, and what cannot be compared.
"""

from dataclasses import replace

import pytest
import torch

import vpmetrics as vp
from vpmetrics.report import ReportDifference


def draw_sides(seed, noise):
    draw = torch.Generator().manual_seed(seed)
    speakers = torch.arange(20).repeat_interleave(5)
    original = torch.randn(20, 16, generator=torch.Generator().manual_seed(7))[speakers]
    original = original + torch.randn(100, 16, generator=torch.Generator().manual_seed(8))
    protected = original + noise * torch.randn(100, 16, generator=draw)
    return original, protected, speakers


def report_of(
    noise,
    seed=0,
    intervals=0.95,
    rows=None,
    speakers=None,
    metrics=("op_d_ece", "deid", "disclosure"),
):
    original, protected, labels = draw_sides(seed, noise)
    labels = labels if speakers is None else speakers
    rows = slice(None) if rows is None else rows
    metric = vp.VoicePrivacy(attacks=None, intervals=intervals, metrics=list(metrics))
    metric.update(original[rows], protected[rows], labels[rows])
    return metric.report()


def test_a_difference_has_the_sign_of_first_minus_second_and_its_interval():
    near = report_of(0.5)
    far = report_of(4.0)
    difference = vp.compare_reports(near, far, key="op_d_ece")
    assert isinstance(difference, ReportDifference)
    expected = float(near.scalars["op_d_ece"]) - float(far.scalars["op_d_ece"])
    assert difference.difference == pytest.approx(expected)
    assert 0 < difference.low < difference.difference < difference.high
    assert difference.is_significant
    assert difference.p_value < 0.01
    turned = vp.compare_reports(far, near, key="op_d_ece")
    assert turned.difference == pytest.approx(-expected)
    assert (turned.low, turned.high) == pytest.approx((-difference.high, -difference.low))
    assert turned.p_value == pytest.approx(difference.p_value)
    assert str(difference).startswith("D_ECE: 0.")


def test_the_p_value_is_below_one_minus_confidence_where_the_interval_leaves_out_0():
    first = report_of(1.0)
    for seed in range(1, 9):
        second = report_of(1.0, seed)
        for key in ("disclosure", "deid"):
            difference = vp.compare_reports(first, second, key, confidence=0.9)
            assert difference.is_significant == (difference.p_value < 0.1)
            wider = vp.compare_reports(first, second, key, confidence=0.99)
            assert wider.low <= difference.low
            assert difference.high <= wider.high
            assert wider.p_value == difference.p_value


def test_equal_reports_do_not_differ():
    same = vp.compare_reports(report_of(1.0), report_of(1.0))
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    assert not same.is_significant


def test_what_cannot_be_compared_raises():
    report = report_of(1.0)
    two_speakers = replace(report, jackknife=None)
    with pytest.raises(ValueError, match="`second` to be of three speakers at least"):
        vp.compare_reports(report, two_speakers)
    with pytest.raises(ValueError, match=r"but got 'op_dece'\. Closest: 'op_d_ece'"):
        vp.compare_reports(report, report, "op_dece")
    with pytest.raises(
        ValueError, match=r"on the same speakers, but got 20 and 12 speakers that differ"
    ):
        vp.compare_reports(report, report_of(1.0, rows=slice(0, 60)))
    others = torch.arange(100, 120).repeat_interleave(5)
    with pytest.raises(ValueError, match="on the same speakers"):
        vp.compare_reports(report, report_of(1.0, speakers=others))
    with pytest.raises(TypeError, match="`first` to be a PrivacyReport, but got dict"):
        vp.compare_reports({}, report)
    with pytest.raises(ValueError, match="`confidence` to be between 0 and 1"):
        vp.compare_reports(report, report, confidence=95)
