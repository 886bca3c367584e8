"""Counts of what PyTorch dispatches: operations, GPU synchronisations, bytes moved, floating-point operations."""

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

# Operations that a GPU answers with a value for the host, so that the host waits.
READS = {
    "aten::_local_scalar_dense",
    "aten::equal",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::bincount",
    "aten::repeat_interleave",
}
ALLOCATIONS = {"aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty_strided"}


@dataclass
class OperationCounts(TorchDispatchMode):
    """Counts while it is entered; views and empty memory launch nothing and do not count."""

    by_name: Counter = field(default_factory=Counter)
    reads: Counter = field(default_factory=Counter)
    bytes_moved: int = 0
    flops: int = 0

    def __post_init__(self):
        super().__init__()

    @property
    def total(self):
        """How many operations were dispatched."""
        return sum(self.by_name.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        if name in READS or self._selects_by_mask(name, args):
            self.reads[name] += 1
        if func.is_view or name in ALLOCATIONS or name in ("aten::detach", "aten::alias", "aten::_unsafe_view"):
            return result
        self.by_name[name] += 1
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        self.bytes_moved += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result

    @staticmethod
    def _selects_by_mask(name, args):
        if name not in ("aten::index", "aten::index_put_"):
            return False
        return any(index is not None and index.dtype == torch.bool for index in args[1])


def count_operations(function):
    """Return the counts of one call."""
    counts = OperationCounts()
    with counts:
        function()
    return counts
