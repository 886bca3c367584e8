"""Where the memory of a tensor is NumPy's to work on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]


def on_host(tensor: Tensor) -> bool:
    """Whether NumPy can work on the memory as it lies: its sort is several times faster on a CPU."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor and not torch.compiler.is_compiling()


def select(values: Tensor, chosen: Tensor) -> Tensor:
    """The chosen values, flat: NumPy copies several times as fast where most or few are, or those side by side."""
    return torch.from_numpy(values.numpy()[chosen.numpy()]) if on_host(values) else values[chosen]
