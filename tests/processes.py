"""Start the processes of tests: forked from one that has imported what they need.

Imports take longer than tests.
"""

import multiprocessing
import pickle
from collections.abc import Callable
from typing import Any

import torch.multiprocessing as mp

if "forkserver" in mp.get_all_start_methods():
    METHOD = "forkserver"
else:
    METHOD = "spawn"
multiprocessing.set_forkserver_preload(
    ["cases", "torch.distributed", "vpmetrics.suite", "vpmetrics.attacks"]
)


def run(function: Callable[..., None], processes: int, *args: Any) -> None:
    """Call the function in so many processes, and wait for them.

    Each gets its number, how many there are, and the arguments.
    """
    # As bytes: each tensor would be sent as a file of its own, of which there can be but some.
    packed = pickle.dumps((processes, *args))
    mp.start_processes(_call, args=(function, packed), nprocs=processes, start_method=METHOD)


def _call(number: int, function: Callable[..., None], packed: bytes) -> None:
    function(number, *pickle.loads(packed))
