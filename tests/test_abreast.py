"""Computations side by side: what they want reduced goes together, and one that fails ends all."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest
import torch
from torch import distributed

from vpmetrics._trials import shares
from vpmetrics._trials.abreast import go_abreast
from vpmetrics._trials.company import Company

SUM, MAX = distributed.ReduceOp.SUM, distributed.ReduceOp.MAX


class Twins(Company):
    """Two processes that find the same; keeps what was reduced together."""

    def __init__(self):
        self.group, self.device, self.number, self.processes = None, torch.device("cpu"), 0, 2
        self.meetings = []

    def reduce_all(self, parts):
        self.meetings.append([len(part) for part, _ in parts])
        return [2 * part if how == SUM else part.clone() for part, how in parts]


def sums_of(*numbers, how=SUM):
    """A task that wants one number after the other reduced."""
    return lambda seat: [seat.reduce(torch.tensor([float(number)]), how).item() for number in numbers]


def test_what_is_wanted_at_one_time_goes_together_and_comes_back_to_whom_it_belongs():
    company = Twins()
    found = go_abreast(company, [sums_of(1, 2, 3), sums_of(10), sums_of(), sums_of(100, 200)])
    assert found == [[2, 4, 6], [20], [], [200, 400]]
    assert company.meetings == [[3], [2], [1]]


def test_what_is_reduced_otherwise_or_of_another_type_is_apart_in_the_same_meeting():
    company = Twins()
    whole = lambda seat: seat.reduce(torch.tensor([7, 8]), SUM).tolist()  # noqa: E731
    assert go_abreast(company, [sums_of(1), sums_of(5, how=MAX), whole, sums_of(2)]) == [[2], [5], [14, 16], [4]]
    assert company.meetings == [[2, 1, 2]]


def test_a_failure_of_one_ends_all_wherever_they_stand():
    threads, ended = threading.active_count(), []

    def fails(seat):
        seat.reduce(torch.ones(1), SUM)
        raise ValueError("no more")

    def waits(seat):
        try:
            sums_of(1, 2, 3)(seat)
        finally:
            ended.append("in the middle")

    with pytest.raises(ValueError, match="no more"):
        go_abreast(Twins(), [waits, fails, waits])
    with pytest.raises(ValueError, match="no more"):  # before the others have begun
        go_abreast(Twins(), [lambda _: sums_of(1)(_) and fails(_), waits])
    assert ended == ["in the middle"] * 3
    assert threading.active_count() == threads


def test_an_exchange_that_fails_ends_all():
    class Lost(Twins):
        def reduce_all(self, parts):  # noqa: ARG002
            raise RuntimeError("left in mid-compute")

    threads = threading.active_count()
    with pytest.raises(RuntimeError, match="left in mid-compute"):
        go_abreast(Lost(), [sums_of(1), sums_of(2)])
    assert threading.active_count() == threads


def test_they_take_along_what_belongs_to_the_thread_that_starts_them():
    said = ContextVar("said", default="nothing")
    said.set("something")

    def look(_):
        return said.get(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    with torch.no_grad():
        assert go_abreast(Twins(), [look]) == [("something", False, False)]
    with torch.inference_mode():
        assert go_abreast(Twins(), [look]) == [("something", False, True)]
    assert go_abreast(Twins(), [look]) == [("something", True, False)]


def test_one_process_does_one_after_the_other_in_its_own_thread():
    own = threading.current_thread()
    assert shares.in_step([threading.current_thread] * 2) == [own, own]
