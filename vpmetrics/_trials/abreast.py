"""Computations that go on side by side: what all of them want reduced goes to the other processes together.

Every exchange waits for the slowest process, and little is left to wait for where there are few. One computation goes
on until it wants something, then the next; the same ones in the same order in every process. They have threads so that
each can be left where it stands, but no two run at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import copy_context
from threading import Semaphore, Thread
from typing import Any, TypeVar

import torch
from torch import Tensor

from vpmetrics._trials.company import Company

_T = TypeVar("_T")


class _StoppedError(BaseException):
    """Another computation has failed."""


class Seat(Company):
    """What one of the computations takes for the company of the other processes."""

    def __init__(self, company: Company, task: Callable[[Seat], Any]) -> None:
        self.group, self.device = company.group, company.device
        self.number, self.processes = company.number, company.processes
        self.wanted: tuple[Tensor, Any] | None = None
        self.result: Any = None
        self._task, self._found, self._error = task, list[Tensor](), list[BaseException]()
        self._stopped = False
        self._go, self._here = Semaphore(0), Semaphore(0)
        # What a thread does not have from the one that starts it.
        self._modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self._thread = Thread(target=copy_context().run, args=(self._run,), daemon=True)
        self._thread.start()

    def reduce(self, part: Tensor, how: Any) -> Tensor:
        """What the parts of all processes come to, as soon as all other computations want something, too."""
        self.wanted = part, how
        self._here.release()
        self._go.acquire()
        if not self._found:
            raise _StoppedError
        return self._found.pop()

    def go_on(self, *found: Tensor) -> None:
        """Let it go on, with what it wanted, until it wants more or has a result."""
        self.wanted = None
        self._found.extend(found)
        self._go.release()
        self._here.acquire()
        if self._error:
            raise self._error.pop()

    def stop(self) -> None:
        """Leave it where it is."""
        self._stopped = True
        self._go.release()
        self._thread.join()

    def _run(self) -> None:
        self._go.acquire()
        gradient, inference = self._modes
        try:
            if not self._stopped:
                with torch.inference_mode(inference), torch.set_grad_enabled(gradient):
                    self.result = self._task(self)
        except _StoppedError:
            pass
        except BaseException as error:
            self._error.append(error)
        finally:
            self._here.release()


def go_abreast(company: Company, tasks: Sequence[Callable[[Company], _T]]) -> list[_T]:
    """What each of the tasks finds."""
    seats = [Seat(company, task) for task in tasks]
    try:
        for seat in seats:
            seat.go_on()
        while wanted := {seat: seat.wanted for seat in seats if seat.wanted is not None}:
            for seat, found in zip(wanted, _reduced(company, [*wanted.values()]), strict=True):
                seat.go_on(found)
        return [seat.result for seat in seats]
    finally:
        for seat in seats:
            seat.stop()


def _reduced(company: Company, wanted: Sequence[tuple[Tensor, Any]]) -> list[Tensor]:
    """What flat parts come to, those that are reduced alike as one."""
    alike: dict[tuple[str, torch.dtype], list[int]] = {}
    for place, (part, how) in enumerate(wanted):
        alike.setdefault((str(how), part.dtype), []).append(place)
    joined = [(torch.cat([wanted[place][0] for place in places]), wanted[places[0]][1]) for places in alike.values()]
    found: dict[int, Tensor] = {}
    for places, whole in zip(alike.values(), company.reduce_all(joined), strict=True):
        found |= zip(places, whole.split([wanted[place][0].numel() for place in places]), strict=True)
    return [found[place] for place in range(len(wanted))]
