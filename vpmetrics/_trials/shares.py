"""Processes that share one computation: which part of a walk each of them takes, and what the parts add up to.

Within :func:`shared` all processes hold the same rows, and each walks its own part; everywhere else one does all of it.
Whatever decides how a walk goes on must be the same on all of them, or they would wait for one another in vain. On a
CPU the threads of a process share its part in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, distributed

from vpmetrics._trials.abreast import go_abreast
from vpmetrics._trials.company import Company

_T = TypeVar("_T")

_MOST_THREADS = 16  # that Python keeps busy; where there are more, several work on one tile


class _Share(NamedTuple):
    number: int  # of this process, from 0
    processes: int
    company: Company | None
    apart: bool = False
    thread: int = 0
    threads: int = 1


_ALONE = _Share(0, 1, None)
_share: ContextVar[_Share] = ContextVar("share", default=_ALONE)


@contextmanager
def shared(group: Any, device: torch.device, apart: bool = False) -> Iterator[None]:
    """Within this the processes of a group, all for None, divide the walks among them.

    ``apart``: each has rows of its own, where all have the same otherwise.
    """
    company = Company(group, device)
    alone = company.processes == 1
    before = _share.set(_ALONE if alone else _Share(company.number, company.processes, company, apart))
    try:
        with nullcontext() if alone else company.working():
            yield
    finally:
        _share.reset(before)


@contextmanager
def alone() -> Iterator[None]:
    """Within this a process does all of its work itself, as where another kind of part was dealt out before."""
    before = _share.set(_ALONE)
    try:
        yield
    finally:
        _share.reset(before)


def apart() -> bool:
    """Whether each process has rows of its own."""
    return _share.get().apart


def place() -> tuple[int, int]:
    """The number of this process, and how many share the walk."""
    return _share.get()[:2]


def spans(costs: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """What falls to this process, or thread, of work that costs so much: pieces, each from where and to where."""
    share, begin = _share.get(), 0
    every, own = sum(costs), share.number * share.threads + share.thread
    first, last = (every * number // (share.processes * share.threads) for number in (own, own + 1))
    for number, cost in enumerate(costs):
        if begin < last and begin + cost > first:
            yield number, max(first - begin, 0), min(last - begin, cost)
        begin += cost


def in_step(tasks: Sequence[Callable[[], _T]]) -> list[_T]:
    """What several computations find; on a CPU, where processes wait for one another longest, they go on side by side.

    Whatever they exchange at the same time then goes together.
    """
    share, company = _share.get(), _share.get().company
    if company is None or share.apart or company.device.type != "cpu":
        return [task() for task in tasks]

    def at(seat: Company, task: Callable[[], _T]) -> _T:
        _share.set(share._replace(company=seat))
        return task()

    return go_abreast(company, [partial(at, task=task) for task in tasks])


def by_threads(work: Callable[[], _T], device: torch.device) -> list[_T]:
    """What each thread of this process finds by the same work, whose walks are divided among them.

    A sum over scores, or a count of them, is as slow on two threads as on one: only whole tiles can be divided.
    Anything but a CPU is kept busy by one.
    """
    share, threads = _share.get(), torch.get_num_threads()
    number = min(threads, _MOST_THREADS)
    if number == 1 or share.threads > 1 or share.apart or device.type != "cpu":
        return [work()]
    inference, gradient = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def of(thread: int) -> _T:
        torch.set_num_threads(threads // number)
        _share.set(share._replace(thread=thread, threads=number))
        with torch.inference_mode(inference), torch.set_grad_enabled(gradient):
            return work()

    try:
        with ThreadPoolExecutor(number) as pool:
            return [*pool.map(lambda thread: copy_context().run(of, thread), range(number))]
    finally:
        torch.set_num_threads(threads)  # what one thread sets, those that come later begin with


def of_thread(pieces: Sequence[_T]) -> Sequence[_T]:
    """Those that fall to this thread of so many pieces that are alike."""
    share = _share.get()
    return pieces[share.thread :: share.threads]


def mine(costs: Sequence[int]) -> list[int]:
    """The pieces that fall to this process where they cannot be cut: a piece is whose its middle is."""
    return [number for number, begin, end in spans(costs) if begin <= costs[number] // 2 < end]


def in_turns(count: int) -> range:
    """The numbers that fall to this process of so many pieces that are alike."""
    share = _share.get()
    return range(share.number, count, share.processes)


def total(part: Tensor) -> Tensor:
    """The sum of what all processes have found."""
    return totals(part)[0]


def totals(*parts: Tensor) -> list[Tensor]:
    """The sums of several parts of one type, in one exchange: each waits for the slowest process."""
    return _reduce(parts, distributed.ReduceOp.SUM)


def largest(*parts: Tensor) -> list[Tensor]:
    """The largest of what all processes have found, number by number, of several parts of one type."""
    return _reduce(parts, distributed.ReduceOp.MAX)


def together(*parts: Tensor) -> list[Tensor]:
    """What each process has found of one whole, finite, with NaN where another one has; of several wholes."""
    if _share.get().processes == 1:
        return list(parts)
    found = largest(*(torch.where(part.isnan(), -torch.inf, part) for part in parts))
    return [torch.where(part.isneginf(), torch.nan, part) for part in found]


def of_first(values: Tensor) -> Tensor:
    """The values of the first process: what is no whole number need not come out alike everywhere."""
    return total(values if _share.get().number == 0 else torch.zeros_like(values))


def all_agree(opinion: bool, device: torch.device) -> bool:
    """Whether all processes say so."""
    if _share.get().processes == 1:
        return opinion
    return bool(total(torch.tensor(int(not opinion), device=device)) == 0)


def lengths(own: int) -> list[int]:
    """How many rows each process has of something."""
    number, processes = place()
    company = _share.get().company
    return [own] if company is None else _table([own], number, processes, company.device)[:, 0].tolist()


def first(own: int) -> int:
    """The number of this process's first of so many rows, among those of all processes where they are apart."""
    return sum(lengths(own)[: place()[0]]) if apart() else 0


def number_of_all(own: int) -> int:
    """How many rows there are of something, on all processes where they are apart."""
    return sum(lengths(own)) if apart() else own


def of_all(own: Tensor) -> Tensor:
    """The rows of all processes where they are apart, one process after the other; else they are that already."""
    if not apart():
        return own
    sizes, number = lengths(len(own)), place()[0]
    whole = own.new_zeros(sum(sizes), *own.shape[1:])
    whole[sum(sizes[:number]) :][: len(own)] = own
    return total(whole)


class _Rows(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, places: Tensor, /) -> Tensor: ...


def picked(own: _Rows, places: Tensor) -> Tensor:
    """The rows at some places among those of all processes where they are apart, one process after the other."""
    if not apart():
        return own[places]
    place, like = places - first(len(own)), own[places[:0]]
    found = like.new_zeros(len(places), *like.shape[1:])
    here = (place >= 0) & (place < len(own))
    found[here] = own[place[here]]
    return total(found)


def pooled(*parts: Tensor) -> list[Tensor]:
    """The sums of what all processes have found in rows that are apart; else all of them have the whole already."""
    return totals(*parts) if apart() else list(parts)


def most(*parts: Tensor) -> list[Tensor]:
    """The largest of that, number by number."""
    return largest(*parts) if apart() else list(parts)


def sent(owner: Tensor, columns: Iterable[Callable[[int, int], Tensor]], times: int) -> list[Tensor]:
    """Every row to the process that owns it; returns those that have come here.

    ``columns``: what gives the rows from one place to another, asked so many ``times``, as what is sent is copied.
    """
    share, found = _share.get(), list[Tensor]()
    if share.company is None:
        return [rows(0, len(owner)) for rows in columns]
    parts = list(pairwise(len(owner) * time // times for time in range(times + 1)))
    orders = [owner[start:end].argsort(stable=True) for start, end in parts]
    given = torch.stack([torch.bincount(owner[start:end], minlength=share.processes) for start, end in parts]).tolist()
    table = _table([rows for part in given for rows in part], share.number, share.processes, owner.device)
    taken = table.view(share.processes, times, share.processes)[..., share.number].mT.tolist()
    for rows in columns:
        like = rows(0, 0)
        whole = like.new_empty(sum(map(sum, taken)), *like.shape[1:])
        places = whole.split([*map(sum, taken)])
        for part, order, there, here, place in zip(parts, orders, given, taken, places, strict=True):
            share.company.send(rows(*part)[order], there, here, place)
        found.append(whole)
    total(owner.new_zeros(1))  # until all have what is theirs, nobody is to forget what they had
    return found


def visitors(columns: Sequence[Tensor], steps: int) -> Iterator[list[Tensor]]:
    """The rows of so many of the next processes, one after the other, as each passes on what it has."""
    (number, processes), company = place(), _share.get().company
    if company is None:
        return
    sizes = lengths(len(columns[0]))
    for step in range(1, steps + 1):
        columns = [company.pass_on(column, sizes[(number + step) % processes]) for column in columns]
        yield list(columns)


def _table(own: list[int], number: int, processes: int, device: torch.device) -> Tensor:
    """A row of whole numbers of every process."""
    table = torch.zeros(processes, len(own), dtype=torch.int64, device=device)
    table[number] = torch.tensor(own, device=device)
    return total(table)


def _reduce(parts: Sequence[Tensor], how: Any) -> list[Tensor]:
    company = _share.get().company
    if company is None:
        return list(parts)
    whole = company.reduce(torch.cat([part.detach().flatten() for part in parts]), how)
    return [part.view(own.shape) for part, own in zip(whole.split([own.numel() for own in parts]), parts, strict=True)]
