"""See on the CPU what would hurt on an accelerator.

That is: tensors made without a device, and values that the host reads.

A second device with memory of its own (``tests/second_device``) sees more, but needs a compiler,
and runs every night.
"""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

import vpmetrics

_PACKAGE = str(Path(vpmetrics.__file__).parent)
_FACTORIES = _device_constructors()  # those that `torch.device` as a context is applied to
_READS = {
    Tensor.tolist,
    Tensor.item,
    Tensor.cpu,
    Tensor.numpy,
    Tensor.nonzero,
    Tensor.unique,
    Tensor.masked_select,
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__float__,
    Tensor.__index__,
    torch.nonzero,
    torch.unique,
    torch.masked_select,
}


def without_values(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape and dtype on the meta device: whoever reads a value raises.

    Fake tensors see as much, but torch 2.13 frees their storage twice where the garbage collector
    finds them, as it finds those that a metric holds, and the process ends.
    """
    return torch.empty_like(tensor, device="meta")


class DeviceWatch(TorchFunctionMode):
    """Notes factories of the library without a device, and counts the reads of the host.

    ``without_device``: the lines of the library with such a call; ``reads``: how often each
    function made the host wait for values, or for a shape that depends on values.
    """

    def __init__(self) -> None:
        super().__init__()
        self.without_device: set[str] = set()
        self.reads: Counter[str] = Counter()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        is_made_of_tensor = bool(args) and isinstance(args[0], Tensor)  # as `torch.as_tensor` does
        if func in _FACTORIES and kwargs.get("device") is None and not is_made_of_tensor:
            caller = sys._getframe(1)
            if caller.f_code.co_filename.startswith(_PACKAGE):
                file = Path(caller.f_code.co_filename).relative_to(_PACKAGE)
                self.without_device.add(f"{file}:{caller.f_lineno}: torch.{func.__name__}")
        if func in _READS:
            self.reads[func.__name__] += 1
        return func(*args, **kwargs)
