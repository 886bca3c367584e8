"""Best of a few runs, memory at its peak, and a line per comparison: a ratio, never seconds alone."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def in_turns(functions: dict[str, Callable[[], Any]], repeat: int = 5) -> dict[str, float]:
    """Least seconds of each after one call that warms up, in turns, so that a busy moment hits all alike."""
    for function in functions.values():
        function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeat):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in seconds.items()}


def afresh(metric: Any) -> Any:
    """What ``compute`` returns, by a copy that remembers no result: neither its own nor one of the same data before."""
    copy = metric.clone()
    copy._computed = None
    return copy.compute()


def report(what: str, ours: float, peer: str, theirs: float) -> float:
    """Print a comparison and return how many times the peer's time ours is."""
    print(f"\n{what}: {ours:.4g} s = {ours / theirs:.3f} x {peer} ({theirs:.4g} s)")
    return ours / theirs


def peak_megabytes(setup: str, work: str) -> float:
    """By how much the peak memory of a fresh process grows while it does ``work`` after ``setup``."""
    script = f"""
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
{setup}
before = peak()
{work}
print((peak() - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])
