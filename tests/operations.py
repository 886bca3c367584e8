"""Count what PyTorch dispatches, and bound from it, on paper, the time that a GPU needs."""

import sys
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from vpmetrics._scores import pair_blocks

# Operations whose result the host reads, or whose shape depends on values, so that the host waits
# for a GPU.
READS = {
    "aten::_local_scalar_dense",
    "aten::_unique2",
    "aten::bincount",
    "aten::equal",
    "aten::masked_select",
    "aten::nonzero",
    "aten::unique_consecutive",
    "aten::unique_dim",
}
# Syncs inside linear algebra: it reads back whether it succeeded, or works on the host in turns.
READS_OF_LINALG = {"aten::_linalg_eigh": 2, "aten::_linalg_svd": 3, "aten::linalg_cholesky_ex": 1}
READS_OF_LINALG |= {
    "aten::linalg_lu_factor_ex": 1,
    "aten::_linalg_solve_ex": 1,
    "aten::linalg_qr": 1,
}
READS_OF_LINALG |= {"aten::linalg_inv_ex": 1, "aten::linalg_lstsq": 2}
# Kernels of an operation that has more than one: rounded up from profiles of PyTorch 2 on other
# machines.
LAUNCHES = {
    "aten::_unique2": 15,
    "aten::bincount": 4,
    "aten::cummax": 2,
    "aten::cumsum": 2,
    "aten::nonzero": 4,
    "aten::sort": 8,
    "aten::topk": 6,
    "aten::unique_consecutive": 8,
    "aten::unique_dim": 25,
    "aten::_fft_r2c": 2,
    "aten::_fft_c2r": 2,
    "aten::_linalg_eigh": 300,
    "aten::_linalg_svd": 600,
    "aten::linalg_cholesky_ex": 20,
    "aten::linalg_lu_factor_ex": 20,
    "aten::_linalg_solve_ex": 30,
    "aten::linalg_qr": 40,
    "aten::linalg_inv_ex": 40,
    "aten::linalg_lstsq": 60,
}
NO_LAUNCH = {"aten::_unsafe_view", "aten::alias", "aten::detach", "aten::lift_fresh"}
SECONDS_PER_LAUNCH = 5e-6, 10e-6
SECONDS_PER_SYNC = 20e-6
PEAK_SHARE = 0.75


class GPU(NamedTuple):
    """Published peaks: floating-point operations per second, bytes per second."""

    float32: float
    float64: float
    bandwidth: float


GPUS = {
    "L4": GPU(30.3e12, 0.47e12, 300e9),
    "A100": GPU(19.5e12, 9.7e12, 1555e9),
    "RTX 4090": GPU(82.6e12, 1.29e12, 1008e9),
}


@dataclass(eq=False)
class OperationCounts(TorchDispatchMode):
    """Counts while it is entered; views and empty memory launch nothing and do not count."""

    by_name: Counter = field(default_factory=Counter)
    launches: int = 0
    linalg: int = 0
    syncs: int = 0
    bytes_moved: int = 0
    flops: int = 0
    busy_seconds: Counter = field(default_factory=Counter)

    def __post_init__(self):
        super().__init__()

    @property
    def total(self):
        """How many operations were dispatched."""
        return sum(self.by_name.values())

    def seconds(self, gpu):
        """Lower and upper estimate of the time on a GPU: launches, arithmetic or memory, syncs."""
        rest = self.busy_seconds[gpu] + self.syncs * SECONDS_PER_SYNC
        return tuple(self.launches * seconds + rest for seconds in SECONDS_PER_LAUNCH)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func._schema.name
        is_selection = _selects_by_mask(name, args)
        self.syncs += (name in READS or is_selection) + READS_OF_LINALG.get(name, 0)
        if func.is_view or "empty" in name or name in NO_LAUNCH:
            return result
        self.by_name[name] += 1
        self.linalg += "linalg" in name
        if is_selection:
            self.launches += 5
        else:
            self.launches += LAUNCHES.get(name, 1)
        tensors = [
            leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)
        ]
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        formula = flop_registry.get(func._overloadpacket)
        flops = 0
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=result)
        self.bytes_moved += num_bytes
        self.flops += flops
        is_double = any(tensor.dtype == torch.float64 for tensor in tensors)
        for gpu, peaks in GPUS.items():
            peak = peaks.float32
            if is_double:
                peak = peaks.float64
            self.busy_seconds[gpu] += max(flops / (PEAK_SHARE * peak), num_bytes / peaks.bandwidth)
        return result


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


@contextmanager
def as_on_a_gpu():
    """Take the ways that a GPU takes, on tensors of a CPU: nothing by NumPy, and large blocks."""
    with ExitStack() as patches:
        block_size = pair_blocks._GPU_BLOCK_SIZE
        patches.enter_context(patch.object(pair_blocks, "BLOCK_SIZE", block_size))
        for name, module in list(sys.modules.items()):
            if name.startswith("vpmetrics.") and "is_numpy_ready" in vars(module):
                patches.enter_context(patch.object(module, "is_numpy_ready", _never))
        yield


def _never(_):
    return False
