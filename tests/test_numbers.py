"""Numbers are the contract: a change of any of them is intended, and named in the CHANGELOG."""

import json

import pytest
from numbers_of_voices import FILE, measure


def test_numbers_of_the_bundled_voices_are_those_that_were_published():
    published = json.loads(FILE.read_text(encoding="utf-8"))
    assert 50 <= len(published) <= 80
    assert measure() == pytest.approx(published, abs=1e-4, rel=1e-4)
