"""Processes in the middle of one computation: what they find is reduced, and none waits for one that has failed.

Before every exchange all of them meet, and say whether they have got there. A process that raises says so at the next
meeting, and the others raise with it. One that is gone breaks the exchange: then those who came this far are known from
the store that the group was formed with, and the others are named.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed

_PATIENCE = 10.0  # seconds, for those who are late and not gone
_LOST = "vpmetrics/lost"


class CompanyError(RuntimeError):
    """Another process has failed, or is gone."""


class Company:
    """The processes of a group, while they share a computation."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group, self.device = group, device
        self.number, self.processes = distributed.get_rank(group), distributed.get_world_size(group)
        # Of the group itself, so that its keys are its own; there is no public way to it.
        found = getattr(distributed.distributed_c10d, "_get_process_group_store", None)
        self._store: Any = None if found is None else found(distributed.group.WORLD if group is None else group)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Leave this together, or where one of the processes fails, not at all."""
        try:
            yield
            self._meet()
        except CompanyError:
            raise
        except BaseException:
            self._meet(failed=True)
            raise

    def reduce(self, part: Tensor, how: Any) -> Tensor:
        """What the parts of all processes come to."""
        return self.reduce_all([(part, how)])[0]

    def reduce_all(self, parts: Sequence[tuple[Tensor, Any]]) -> list[Tensor]:
        """The same of several, each with how it is reduced."""
        self._meet()
        found = [part.detach().clone(memory_format=torch.contiguous_format) for part, _ in parts]
        with self._naming_the_missing():
            for whole, (_, how) in zip(found, parts, strict=True):
                distributed.all_reduce(whole, how, group=self.group)
        return found

    def send(self, part: Tensor, given: list[int], taken: list[int], place: Tensor) -> None:
        """So many rows to each of the processes, in order, and so many from each to a place for them."""
        self._meet()
        with self._naming_the_missing():
            distributed.all_to_all_single(place, part.contiguous(), taken, given, group=self.group)

    def pass_on(self, part: Tensor, length: int) -> Tensor:
        """Rows to the process before this one; returns those, so many, of the one after."""
        self._meet()
        found, ranks = part.new_empty(length, *part.shape[1:]), distributed.get_process_group_ranks(self.group)
        before, after = (ranks[(self.number + way) % self.processes] for way in (-1, 1))
        both = ((distributed.isend, part.contiguous(), before), (distributed.irecv, found, after))
        ways = [distributed.P2POp(way, rows, peer, self.group) for way, rows, peer in both if len(rows)]
        with self._naming_the_missing():
            for way in distributed.batch_isend_irecv(ways) if ways else ():
                way.wait()
        return found

    def _meet(self, failed: bool = False) -> None:
        flags = torch.zeros(self.processes, dtype=torch.int32, device=self.device)
        flags[self.number] = failed
        with self._naming_the_missing():
            if self._store is not None:
                self._store.add(_key(self.number), 1)
            distributed.all_reduce(flags, group=self.group)
        others = [number for number in flags.nonzero().flatten().tolist() if number != self.number]
        if others and not failed:
            raise CompanyError(f"{self._named(others)} failed in mid-compute, for the reason given there.")

    @contextmanager
    def _naming_the_missing(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            who = self._named(self._missing()) if self._store is not None else "One of the processes"
            raise CompanyError(f"{who} left in mid-compute: killed, out of memory, or too slow to answer.") from error

    def _missing(self) -> list[int]:
        """Those who have not come as far as this process; the first, where its store is gone with it."""
        deadline = time.monotonic() + _PATIENCE
        try:
            while True:
                steps = [self._store.add(_key(number), 0) for number in range(self.processes)]
                missing = [number for number, step in enumerate(steps) if step < steps[self.number]]
                if not missing or time.monotonic() > deadline or self._store.add(_LOST, 0):
                    self._store.add(_LOST, 1)  # who has waited for them spares the next the waiting
                    return missing
                time.sleep(0.1)
        except RuntimeError:
            return [0]

    def _named(self, numbers: list[int]) -> str:
        ranks = distributed.get_process_group_ranks(self.group)
        names = ", ".join(str(ranks[number]) for number in numbers) or "unknown"
        return f"Process {names} (of {self.processes})"


def _key(number: int) -> str:
    return f"vpmetrics/{number}"
