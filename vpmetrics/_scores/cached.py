"""Properties that are calculated once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class _Cached(Generic[T]):
    def __init__(self, make: Callable[[Any], T]) -> None:
        self.make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, one: None, owner: type) -> _Cached[T]: ...
    @overload
    def __get__(self, one: object, owner: type) -> T: ...
    def __get__(self, one: object | None, owner: type) -> T | _Cached[T]:
        if one is None:
            return self
        value = one.__dict__[self.name] = self.make(one)  # found there before this is asked again
        return value


def cached_property(make: Callable[[Any], T]) -> _Cached[T]:
    """That of functools, without the lock it has before Python 3.12, which breaks the graphs of torch.compile."""
    return _Cached(make)
