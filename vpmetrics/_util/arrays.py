"""Lists and NumPy arrays as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_floating_tensor(name: str, value: Any, device: torch.device | None = None) -> Any:
    """Return a list, tuple or NumPy array of numbers as a tensor.

    Tensors and anything else as they are.

    Lists of Python numbers become float32, arrays keep their type. Errors call the value ``name``.
    """
    if isinstance(value, (list, tuple)):
        return _stack_floating_list(name, value, device)
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "f":
            raise TypeError(f"Expected `{name}` to have a floating dtype, but got {value.dtype}.")
        return torch.from_numpy(np.ascontiguousarray(value)).to(device)
    return value


def as_integer_tensor(name: str, value: Any, device: torch.device | None = None) -> Any:
    """Return a list, tuple or NumPy array of whole numbers or booleans as a tensor.

    Anything else is returned as it is.
    """
    if isinstance(value, (list, tuple)):
        if len(value):
            value = np.asarray(value)
        else:
            value = np.empty(0, dtype=np.int64)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "iub":
            raise TypeError(
                f"Expected `{name}` to hold integers or booleans, but got {value.dtype}."
            )
        dtype = bool if value.dtype.kind == "b" else np.int64
        return torch.from_numpy(value.astype(dtype)).to(device)
    return value


def _stack_floating_list(
    name: str, rows: list[Any] | tuple[Any, ...], device: torch.device | None
) -> Tensor:
    try:
        if len(rows) and isinstance(rows[0], Tensor):
            return torch.stack(list(rows))
        if len(rows) and isinstance(rows[0], (np.ndarray, np.generic)):
            return as_floating_tensor(name, np.stack(rows), device)  # type: ignore[no-any-return]
        return torch.tensor(rows, dtype=torch.float32, device=device)
    except (ValueError, RuntimeError, TypeError) as error:
        raise TypeError(
            f"Expected `{name}` to be a tensor, an array, or a list of numbers or of rows of one"
            f" length, but got a {type(rows).__name__} that is none of these: {error}"
        ) from error
