"""Which floating types numbers are kept, calculated and returned in."""

from __future__ import annotations

import torch
from torch import Tensor


def wide_dtype(device: torch.device) -> torch.dtype:
    """Type for sums, logarithms and integrals: float64 wherever the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def widen(tensor: Tensor) -> Tensor:
    """The tensor in the type sums are made in."""
    return tensor.to(wide_dtype(tensor.device))


def result_dtype(*tensors: Tensor) -> torch.dtype:
    """Type a result is returned in: float64 if any input is float64, otherwise float32."""
    return torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32


def at_least_float32(tensor: Tensor) -> Tensor:
    """Half precision to float32, everything else as it is."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def all_finite(tensor: Tensor) -> Tensor:
    """Whether every number is finite: the ends tell, and are found several times as fast as each is looked at."""
    if tensor.numel() == 0:
        return tensor.new_ones((), dtype=torch.bool)
    low, high = tensor.detach().aminmax()
    return low.isfinite() & high.isfinite()


def power_of_two_near(peak: Tensor, least: float) -> Tensor:
    """A power of two within a factor of two of each magnitude, but no less than ``least``; 1 for 0.

    Dividing by it rounds nothing, and keeps sums and squares from overflowing.
    """
    power = torch.exp2((peak.frexp().exponent - 1).to(peak.dtype))
    return torch.where(peak == 0, 1, power.clamp(min=least))
