"""Threads divide the tiles of a process among them, and say what one would say."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import torch
from test_shards import counts_of, rows, take_small_tiles
from torch.testing import assert_close

import vpmetrics as vp
from vpmetrics._trials import pairs, shares


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Sets of any size take the way of large ones, and threads are as many afterwards as before."""
    take_small_tiles(monkeypatch.setattr)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def report_on(threads, **kwargs):
    torch.set_num_threads(threads)
    metric = vp.VoicePrivacy(**{"attacks": None, **kwargs})
    metric.update(**{name: column for name, column in rows().items() if name != "sessions"})
    return metric.report()


def test_any_number_of_threads_says_what_one_says():
    alone = report_on(1, intervals=0.95)
    for threads in (2, 3, 40):  # more than there are tiles in some conditions
        found = report_on(threads, intervals=0.95)
        assert_close(dict(found.scalars), dict(alone.scalars), rtol=1e-9, atol=1e-9, equal_nan=True)
        assert_close(counts_of(found), counts_of(alone), rtol=0, atol=0)
        assert torch.get_num_threads() == threads


def test_threads_that_leave_speakers_out_of_attacks_say_what_one_says():
    alone, found = (report_on(threads, attacks="standard", intervals=0.95) for threads in (1, 3))
    ends = [key for key in alone.scalars if "strongest" in key and key.endswith(("_low", "_high"))]
    assert len(ends) == 8
    assert not any(alone.scalars[key].isnan() for key in ends)
    for key in ends:
        assert_close(found.scalars[key], alone.scalars[key], rtol=1e-9, atol=1e-9)


def who_walks(monkeypatch, then=lambda: None):
    """The threads that score tiles."""
    seen, tile = set(), pairs.TrialGrid._tile

    def watched(*args):
        seen.add(threading.current_thread())
        then()
        return tile(*args)

    monkeypatch.setattr(pairs.TrialGrid, "_tile", watched)
    return seen


def test_tiles_are_scored_by_threads_where_there_are_many(monkeypatch):
    seen = who_walks(monkeypatch)
    report_on(3)
    assert threading.main_thread() not in seen
    assert len(seen) >= 3
    seen.clear()
    monkeypatch.setattr(pairs, "FEW_PAIRS", 1 << 22)
    report_on(3)
    assert seen == {threading.main_thread()}


def test_a_scorer_of_the_caller_is_called_by_one_thread():
    seen = set()

    def scoring(a, b):
        seen.add(threading.current_thread())
        return a @ b.mT

    report_on(3, scoring=scoring)
    assert seen == {threading.main_thread()}


def test_what_fails_in_a_thread_fails_outside_and_leaves_as_many_threads(monkeypatch):
    def fail():
        raise MemoryError("no room")

    who_walks(monkeypatch, then=fail)
    with pytest.raises(MemoryError, match="no room"):
        report_on(3)
    assert torch.get_num_threads() == 3


def test_threads_work_in_inference_mode():
    alone = report_on(1)
    with torch.inference_mode():
        found = report_on(3)
    assert_close(dict(found.scalars), dict(alone.scalars), rtol=1e-9, atol=1e-9, equal_nan=True)


def test_a_thread_does_not_divide_its_part_again():
    torch.set_num_threads(2)
    divide = partial(shares.by_threads, device=torch.device("cpu"))
    parts = divide(lambda: (divide(lambda: [*shares.spans([10])]), torch.get_num_threads()))
    assert parts == [([[(0, 0, 5)]], 1), ([[(0, 5, 10)]], 1)]
