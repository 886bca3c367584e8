"""Floating types of states, sums and results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the type for sums, logarithms and integrals: float64 if the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def widen(tensor: Tensor) -> Tensor:
    """Return the tensor in the type of sums."""
    return tensor.to(wide_dtype(tensor.device))


def result_dtype(*tensors: Tensor) -> torch.dtype:
    """Return the type of results: float64 if any input is float64, otherwise float32."""
    if any(tensor.dtype == torch.float64 for tensor in tensors):
        return torch.float64
    return torch.float32


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert to float32, unless the type is as wide or wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def is_finite_everywhere(tensor: Tensor) -> Tensor:
    """Return whether every number is finite, as one tensor ``()``.

    Minimum and maximum show it, and are fast.
    """
    if tensor.numel() == 0:
        return tensor.new_ones((), dtype=torch.bool)
    low, high = tensor.detach().aminmax()
    return (low > -torch.inf) & (high < torch.inf)  # False for NaN


def power_of_two_near(peak: Tensor, least: float) -> Tensor:
    """Return a power of two within a factor of two of each magnitude, at least ``least``; 1 for 0.

    Dividing by it rounds nothing and keeps sums and squares from overflowing.
    """
    power = torch.exp2((peak.frexp().exponent - 1).to(peak.dtype))
    return torch.where(peak == 0, 1, power.clamp(min=least))


def is_numpy_ready(tensor: Tensor) -> bool:
    """Return whether NumPy can work on the memory of the tensor, which on a CPU is often faster."""
    return (
        tensor.device.type == "cpu" and type(tensor) is Tensor and not torch.compiler.is_compiling()
    )


def read_numbers(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Return scalars as numbers, in one device-to-host copy."""
    if not values:
        return {}
    row = torch.stack([widen(value.detach()) for value in values.values()])
    return dict(zip(values, row.tolist(), strict=True))
