"""Processes that share a suite: time, bytes and memory; and on paper, what many of them would take.

Run with ``pytest -m bench -s tests/bench/test_bench_shards.py``, on a machine that does nothing else.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
import warnings
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed

from vpmetrics import VoicePrivacy
from vpmetrics._trials import references, shares, strongest
from vpmetrics._trials.conditions import CONDITIONS
from vpmetrics._trials.pairs import TrialGrid
from vpmetrics._trials.scorers import resolve_scoring
from vpmetrics._trials.utterances import Side

pytestmark = pytest.mark.bench

ROWS, SPEAKERS, WIDTH = 8000, 400, 192
BATCH = 5000
EXCHANGES = {  # and what a process gives to each
    "all_reduce": lambda part, *_: part.nbytes,
    "all_gather": lambda _, part, *__: part.nbytes,
    "all_to_all_single": lambda _, part, *__: part.nbytes,
    "batch_isend_irecv": lambda ways: sum(way.tensor.nbytes for way in ways if way.op is distributed.isend),
}
# What a GPU is taken to do, none being at hand: as much faster than one core as its memory is (2 TB/s for some 13 GB/s
# of the core that was measured), and 20 GB/s to its neighbour.
GPU_OVER_CORE, LINK = 150, 20e9


def utterances(number, speakers, seed=0):
    """Batches, as a validation has them."""
    draw = torch.Generator().manual_seed(seed)
    voices = torch.randn(speakers, WIDTH, generator=draw)
    for names in (torch.arange(number) % speakers).split(BATCH):
        original = voices[names] + 1.5 * torch.randn(len(names), WIDTH, generator=draw)
        yield original, 0.3 * original + torch.randn(len(names), WIDTH, generator=draw), names


def peak_megabytes():
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def forget_the_peak():
    """What drawing the data left behind is given back, and the peak is that of what follows."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def count_bytes(sent):
    """Have ``sent`` hold what this process gives to every exchange."""
    for name, bytes_of in EXCHANGES.items():
        call = getattr(distributed, name)

        def counted(*args, call=call, bytes_of=bytes_of, **kwargs):
            sent.append(bytes_of(*args))
            return call(*args, **kwargs)

        setattr(distributed, name, counted)


def walk_some(share):
    """Have every block of rows meet so many of the blocks of columns it is to be compared with: all of them move.

    And so many of the inputs look for their speaker, and tiles are attacked.
    """
    columns, pieces, tiles = TrialGrid._columns, references._pieces, strongest._tiles
    strongest._tiles = lambda *args: islice(tiles(*args), 0, None, round(1 / share))
    references._pieces = lambda trials: (every := pieces(trials))[: max(1, round(share * len(every)))]
    TrialGrid._columns = lambda grid, block: (others := columns(grid, block))[: max(1, round(share * len(others)))]


def _measure(rank, world, path, said, number, speakers, repeat, walked, settings):
    floor = peak_megabytes()  # Python and torch
    walk_some(walked)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if world > 1:
        distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    # Of speakers of its own where they are many, so that no process ever has all rows.
    apart = not settings.get("gather", True)
    sent, seconds, work = [], [], []
    count_bytes(sent)
    metric = VoicePrivacy(validate_args=False, **settings)
    for *sides, names in (
        utterances(number // world, speakers // world, rank) if apart else utterances(number, speakers)
    ):
        part = slice(None) if apart else slice(rank, None, world)
        metric.update(*(side[part] for side in sides), names[part] + (rank * speakers if apart else 0))
    forget_the_peak()
    for _ in range(repeat):
        metric._computed = metric._baseline = metric._latest = None  # or the last report would be all there is to do
        sent.clear()
        if world > 1:
            distributed.barrier()
        start, busy = time.perf_counter(), time.process_time()
        metric.compute()
        seconds.append(time.perf_counter() - start)
        work.append(time.process_time() - busy)
    said.put((min(seconds), min(work), sum(sent), len(sent), floor, peak_megabytes()))
    if world > 1:
        distributed.destroy_process_group()


def measure(tmp_path, world, number, speakers, repeat=3, walked=1.0, **settings):
    """Seconds of the slowest process, and of the busiest; bytes, exchanges, megabytes without data and at the peak.

    And the peaks of all.
    """
    said = mp.get_context("spawn").SimpleQueue()
    args = (world, tmp_path / f"{world}", said, number, speakers, repeat, walked, settings)
    mp.spawn(_measure, args=args, nprocs=world)
    each = [said.get() for _ in range(world)]
    return [max(column) for column in zip(*each, strict=True)], sum(memory for *_, memory in each)


@pytest.mark.parametrize("attacks", [None, "standard"])
def test_two_processes_take_little_more_than_half_the_time(attacks, tmp_path):
    found = {world: measure(tmp_path, world, ROWS, SPEAKERS, repeat=2, attacks=attacks)[0] for world in (1, 2, 4)}
    print(f"\n{ROWS} x {WIDTH}, attacks={attacks}, one thread each")
    for world, (seconds, work, sent, exchanges, *_) in found.items():
        ratio, of_work = seconds / found[1][0], work / found[1][1]
        print(f"{world} processes: {seconds:6.2f} s = {ratio:.2f} x one, of work {work:.2f} s = {of_work:.2f} x one;")
        print(f"    {sent / 1e6:.1f} MB in {exchanges} exchanges")
    assert found[2][0] <= 0.6 * found[1][0]
    assert found[4][0] <= 1.1 * found[2][0]  # on two cores


@pytest.mark.parametrize("metrics", [["pp_d_ece"], ["op_d_ece", "deid"], ["op_alid"], ["op_d_ece_strongest"]])
def test_two_hundred_thousand_utterances_in_three_gigabytes_less_with_each_process(metrics, tmp_path):
    """All rows pass by, and a fiftieth of the pairs is compared: memory is what is measured."""
    asked = {"metrics": metrics, "gather": False, "repeat": 1, "walked": 0.02}
    print(f"\n200,000 utterances of 40,000 speakers, {', '.join(metrics)}: megabytes")
    held = []
    for world in (1, 2, 4):
        (seconds, _, sent, _, floor, peak), together = measure(tmp_path, world, 200_000, 40_000, **asked)
        print(f"{world} processes: {peak:.0f} each, {floor:.0f} of it without data, {together:.0f} in all;", end=" ")
        print(f"{seconds:.0f} s, {sent / 1e6:.0f} sent by each")
        assert together < 3000
        held.append(peak - floor)
    assert held[1] < 0.7 * held[0]
    assert held[2] < 0.7 * held[1]


def _lose_one(rank, world, path, said):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    metric = VoicePrivacy(attacks=None)
    for original, protected, names in utterances(2000, 100):
        metric.update(*(column[rank::world] for column in (original, protected, names)))
    if rank == 1:
        TrialGrid._tile = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    start = time.perf_counter()
    try:
        metric.compute()
    except RuntimeError as error:
        said.put((rank, time.perf_counter() - start, str(error)))


def test_a_process_killed_in_mid_compute_ends_the_others(tmp_path):
    spawn = mp.get_context("spawn")
    said = spawn.Queue()
    processes = [spawn.Process(target=_lose_one, args=(rank, 4, tmp_path / "meeting", said)) for rank in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print()
    for rank, seconds, error in sorted(said.get(timeout=5) for process in processes if process.exitcode == 0):
        print(f"process {rank}, after {seconds:.1f} s: {error}")
        assert seconds < 20


@pytest.mark.parametrize(("number", "processes"), [(10**6, 64), (10**7, 512)])
@pytest.mark.parametrize("condition", ["OO", "OP"])
def test_tiles_fall_evenly(condition, number, processes):
    """Pairs of the busiest process beside the mean, for speakers with 1 to 39 utterances, in tiles of whole voices."""
    draw, how = torch.Generator().manual_seed(0), CONDITIONS[condition]
    names = torch.arange(number // 20).repeat_interleave(torch.randint(1, 40, (number // 20,), generator=draw))
    one, other = (Side(torch.ones(len(names), 1), names, names, names) for _ in range(2))
    both = (one, one) if how.one_sided else (one, other)
    grid = TrialGrid(*both, torch.arange(number // 20), resolve_scoring("dot"), how)
    heights = torch.tensor(grid.rows.starts).diff().tolist()
    grid._tile = lambda row, column: heights[row] * heights[column]
    loads = []
    for process in range(0, processes, processes // 32):
        token = shares._share.set(shares._Share(process, processes, None))
        loads.append(sum(grid.shared()) * processes / grid.pairs)
        shares._share.reset(token)
    print(f"\n{len(names)} utterances, {len(heights)} tiles a side, {condition}, {processes} processes:")
    print(f"pairs of the busiest and of the idlest beside the mean: {max(loads):.4f} and {min(loads):.4f}")
    assert max(loads) <= 1.05


def test_on_paper(tmp_path):
    """Seconds that large sets would take by what was measured here: pairs, and bytes to and from each process."""
    seconds = measure(tmp_path, 1, ROWS, SPEAKERS, attacks=None)[0][1]
    per_pair = seconds / (2 * ROWS**2)  # of OO half a square, of OP a whole one, of PP half a square
    print(f"\nmeasured: {1e9 * per_pair:.1f} ns per pair on one core, of all of the suite but attacks")
    for number, gpus in ((10**6, 64), (10**7, 512)):
        work = 2 * number**2 * per_pair / GPU_OVER_CORE / gpus
        both_sides = 2 * number * WIDTH * 4
        # Apart, two passes over three conditions let every block pass by, half of them where both sides are one.
        passed = 2 * (0.5 + 1 + 0.5) * both_sides / 2
        print(f"{number:.0e} utterances on {gpus} GPUs: {work:.0f} s of pairs on each")
        print(f"  gathered: {both_sides / 1e9:.1f} GB to each, {both_sides / LINK:.1f} s")
        print(
            f"  apart: {both_sides / gpus / 1e6:.0f} MB on each, {passed / 1e9:.1f} GB by each, {passed / LINK:.1f} s"
        )
