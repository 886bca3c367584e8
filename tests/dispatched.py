"""Ways to look inside a run: what is dispatched, what stalls an accelerator, how much is touched."""

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations that make the host wait for a device: they read a value, or have a result whose shape depends on one.
SYNCHRONISING = {
    "aten._local_scalar_dense",
    "aten.item",
    "aten.equal",
    "aten.is_nonzero",
    "aten.nonzero",
    "aten.masked_select",
    "aten.bincount",
    "aten._unique2",
    "aten.unique_consecutive",
    "aten.unique_dim",
}


class Dispatched(TorchDispatchMode):
    """Counts every operation under it, and the elements it reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = str(func).rsplit(".", 1)[0]
        indices = args[1] if name in ("aten.index", "aten.index_put_", "aten.index_put") else ()
        if any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices):
            name = "aten.nonzero"  # what a boolean index becomes
        self.operations[name] += 1
        self.elements += sum(leaf.numel() for leaf in tree_leaves((args, out)) if isinstance(leaf, torch.Tensor))
        return out

    @property
    def synchronisations(self) -> int:
        """How often the host would have waited for a device."""
        return sum(count for name, count in self.operations.items() if name in SYNCHRONISING)
