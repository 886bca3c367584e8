"""Best of a few runs, memory at its peak, and a line per comparison.

A ratio, never seconds alone.
"""

import subprocess
import sys
import time
from pathlib import Path

import torch


def in_turns(functions, repeat=5):
    """Least seconds of each function after one call that warms up.

    They run in turns, so that a busy moment hits all alike.
    """
    seconds = {name: [] for name in functions}
    for turn in range(repeat + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in seconds.items()}


def afresh(metric):
    """What ``compute`` returns, by a copy that remembers no result.

    Neither its own nor one of the same data before.
    """
    copy = metric.clone()
    copy._computed = None
    return copy.compute()


def simd_level():
    """Name of the widest vector instructions of this processor, such as AVX512."""
    return torch.backends.cpu.get_cpu_capability()


def report(what, ours, peer, theirs):
    """Print a comparison and return how many times the peer's time ours is."""
    print(
        f"\n[{simd_level()}] {what}: {ours:.4g} s = {ours / theirs:.3f} x {peer} ({theirs:.4g} s)"
    )
    return ours / theirs


def ratio(what, ours, peer, theirs, repeat=5):
    """Run two functions in turns, and report."""
    seconds = in_turns({"ours": ours, "theirs": theirs}, repeat)
    return report(what, seconds["ours"], peer, seconds["theirs"])


def run_script(script):
    """Return what a fresh process prints.

    It has the modules of the tests and ``megabytes`` of its own memory.
    """
    start = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
def megabytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) / 1024
"""
    return subprocess.run(
        [sys.executable, "-c", start + script], capture_output=True, text=True, check=True
    ).stdout


def peak_megabytes(setup, work):
    """By how much the peak memory of a fresh process grows while it does ``work``.

    After ``setup``.
    """
    script = f'{setup}\nbefore = megabytes("VmHWM")\n{work}\nprint(megabytes("VmHWM") - before)'
    return float(run_script(script).split()[-1])
