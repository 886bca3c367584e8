"""Several encoders of one system: the combined report leads with the one that discloses most."""

import math

import pytest
import torch
from reports import make_report
from samples import voices

from vpmetrics import combine_reports


def reports(speakers=20, leaks=(0.3, 0.9), **settings):
    rows = {name: voices(speakers=speakers, leak=leak) for name, leak in zip(("weak", "strong"), leaks, strict=True)}
    return {name: make_report(each, metrics="headline", **settings) for name, each in rows.items()}


def test_combined_headline_comes_from_the_worst_encoder():
    found = reports()
    combined = combine_reports(found)
    assert combined.encoder == "strong"
    assert combined.leading is found["strong"]
    single = found["strong"].headline
    assert combined.headline[:2] == single[:2]
    assert combined.headline.attack == f"{single.attack} of strong"
    names = [f"{name}: {check.name}" for name, report in found.items() for check in report.checks]
    assert [check.name for check in combined.checks] == names
    assert combined.table()["weak"]["disclosure"] == float(found["weak"].scalars["disclosure"])
    assert f"disclosure {single.disclosure:.3f} bit" in str(combined)


def test_interval_accounts_for_encoder_selection():
    found = reports(intervals=0.95)
    headline = combine_reports(found).headline
    single = found["strong"].headline
    # One encoder is far ahead in every replicate, so that its pseudo-values alone count.
    change = found["strong"].jackknife.changes["disclosure"]
    assert headline.disclosure == pytest.approx(single.disclosure - 19 * float(change.mean()), abs=1e-6)
    assert 0 <= headline.low < headline.disclosure < headline.high
    alike = reports(leaks=(0.5, 0.5), intervals=0.95)
    expected = alike["weak"].headline.disclosure
    assert combine_reports(alike).headline.disclosure == pytest.approx(expected, abs=0.05)


def test_the_interval_stays_within_the_range():
    original, protected, speakers = voices(speakers=6).values()
    found = {
        name: make_report((original, original + 0.01 * noise * protected, speakers), metrics="headline", intervals=0.95)
        for name, noise in (("a", 0.9), ("b", 1.0))
    }
    headline = combine_reports(found).headline
    assert headline.disclosure <= headline.high <= 1 / math.log(4)


def test_reports_of_other_speakers_are_not_combined():
    with pytest.raises(ValueError, match="on the same speakers"):
        combine_reports({"a": reports(20, intervals=0.95)["weak"], "b": reports(21, intervals=0.95)["weak"]})
    with pytest.raises(ValueError, match="at least one report"):
        combine_reports({})


@pytest.mark.filterwarnings("ignore:There are no", "ignore:.*The result is NaN")
def test_encoder_without_headline_is_never_preferred():
    unknown = make_report({"original": torch.randn(4, 3), "speakers": torch.arange(4) // 2}, metrics="headline")
    assert combine_reports({"none": unknown}).headline is None
    assert combine_reports({"none": unknown, **reports()}).encoder == "strong"
