"""What a spawned process has gathered, brought home to the process that spawned it.

A strategy such as ``ddp_spawn`` trains copies of the callbacks in processes of their own. Of these only a few values
of Lightning's come back, the state of the Trainer among them, so what a callback has gathered travels with that.
"""

from __future__ import annotations

import multiprocessing
from typing import Any, Protocol
from uuid import uuid4
from weakref import WeakValueDictionary


class _Receiver(Protocol):
    address: str

    def receive(self, state: dict[str, Any]) -> None: ...


_AT_HOME: WeakValueDictionary[str, _Receiver] = WeakValueDictionary()


def register(callback: _Receiver) -> str:
    """An address for a callback, which its copies in other processes share."""
    address = uuid4().hex
    _AT_HOME[address] = callback
    return address


def send_home(trainer: Any, callback: _Receiver, state: dict[str, Any]) -> None:
    """From a process that another has started, send what a copy has gathered; anywhere else, do nothing."""
    if multiprocessing.parent_process() is not None and trainer.is_global_zero:
        setattr(trainer.state, f"of_{callback.address}", _Parcel(callback.address, state))


class _Parcel:
    """A state that is handed over as soon as it is unpickled where its receiver lives."""

    def __init__(self, address: str, state: dict[str, Any]) -> None:
        self.address, self.state = address, state

    def __reduce__(self) -> tuple[Any, ...]:
        return _deliver, (self.address, self.state)


def _deliver(address: str, state: dict[str, Any]) -> _Parcel:
    receiver = _AT_HOME.get(address)
    if receiver is not None:
        receiver.receive(state)
    return _Parcel(address, state)
