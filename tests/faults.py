"""Faults on purpose: the memory is full, or somebody presses Ctrl-C, in the middle of something."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_WITHOUT_MEMORY = {"__get__", "_set_grad_enabled"}  # attributes such as `shape`, and switches


class FailsAt(TorchFunctionMode):
    """Raises in place of one of the calls of torch; without a number it counts them, ``calls``.

    The error is raised before torch is called, never inside of it.
    """

    def __init__(
        self,
        failing: int | None = None,
        error: BaseException | type[BaseException] = torch.OutOfMemoryError,
    ) -> None:
        super().__init__()
        self.calls = 0
        self.failing = failing
        self.error = error

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func.__name__ in _WITHOUT_MEMORY:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        if self.calls == self.failing:
            raise self.error
        return func(*args, **(kwargs or {}))
