"""All of VoicePrivacy against the bare matrix products it cannot do without."""

from __future__ import annotations

import time

import pytest
import torch
from processes import run
from torch.nn.functional import normalize

from bench.timing import afresh, in_turns, peak_megabytes, report

pytestmark = pytest.mark.bench

SETUP = """
import torch
import vpmetrics
def draw(speakers, each, width):
    g = torch.Generator().manual_seed(0)
    voices = torch.randn(speakers, width, generator=g).repeat_interleave(each, 0)
    original = voices + 1.5 * torch.randn(speakers * each, width, generator=g)
    protected = 0.3 * original + torch.randn(speakers * each, width, generator=g)
    return original, protected, torch.arange(speakers).repeat_interleave(each)
rows = draw({speakers}, {each}, 192)
metric = vpmetrics.VoicePrivacy(attacks={attacks!r}, intervals={intervals!r}, validate_args=False)
metric.update(*rows)
"""


def setup(speakers, each=20, attacks="standard", intervals=None):
    return SETUP.format(speakers=speakers, each=each, attacks=attacks, intervals=intervals)


def prepared(*args):
    space = {}
    exec(setup(*args), space)
    return space["metric"], space["rows"]


def bare_products(rows, block_size=2000):
    original, protected = (normalize(side) for side in rows[:2])
    for a, b in ((original, original), (original, protected), (protected, protected)):
        for left in a.split(block_size):
            for right in b.split(block_size):
                left @ right.T


@pytest.mark.parametrize(("each", "most"), [(10, 120), (50, 20), (52, 20)])
def test_cost_of_common_validation_sets(each, most):
    metric, rows = prepared(40, each, None)
    seconds = in_turns({"ours": lambda: afresh(metric), "products": lambda: bare_products(rows)}, repeat=5)
    ratio = report(f"{40 * each} utterances", seconds["ours"], "three bare products", seconds["products"])
    metric.compute()
    start = time.perf_counter()
    metric.report()
    assert time.perf_counter() - start < 0.2 * seconds["ours"]  # nothing is computed twice
    assert ratio <= most


def test_cost_is_continuous_where_binning_begins():
    metrics = {each: prepared(40, each, None)[0] for each in (51, 52)}  # up to 2048 utterances none do
    seconds = in_turns({each: lambda metric=metric: afresh(metric) for each, metric in metrics.items()}, repeat=5)
    assert 0.6 <= report("2040 utterances", seconds[51], "2080 utterances", seconds[52]) <= 1.6


ATTACK_COSTS = [(40, 10, 7), (40, 25, 5), (40, 50, 3), (80, 50, 2.5), (400, 50, 1.5)]


@pytest.mark.parametrize(("speakers", "each", "most"), ATTACK_COSTS)
def test_cost_of_attacks_and_intervals_is_bounded(speakers, each, most):
    choices = {"attacks": ("standard", None), "no attacks": (None, None), "intervals": ("standard", 0.95)}
    metrics = {name: prepared(speakers, each, *choice)[0] for name, choice in choices.items()}
    functions = {name: lambda metric=metric: afresh(metric) for name, metric in metrics.items()}
    seconds = in_turns(functions, repeat=1 if speakers > 80 else 3)
    what = f"{speakers * each} utterances"
    assert report(f"{what}, attacks", seconds["attacks"], "none", seconds["no attacks"]) <= most
    assert report(f"{what}, intervals", seconds["intervals"], "none", seconds["attacks"]) <= 1.5


@pytest.mark.parametrize(("speakers", "each", "most"), [(40, 10, 3.5), (40, 50, 2.5), (400, 50, 1.3)])
def test_cost_of_intervals_without_attacks(speakers, each, most):
    """They cost next to nothing where sets are large; in small ones PAV without every speaker dominates."""
    metrics = {intervals: prepared(speakers, each, None, intervals)[0] for intervals in (None, 0.95)}
    functions = {intervals: lambda metric=metric: afresh(metric) for intervals, metric in metrics.items()}
    seconds = in_turns(functions, repeat=1 if speakers > 40 else 3)
    what = f"{speakers * each} utterances, no attacks, with intervals"
    assert report(what, seconds[0.95], "without", seconds[None]) <= most


def test_cost_of_twenty_thousand_utterances():
    metric, rows = prepared(400, 50, None)
    seconds = in_turns({"ours": lambda: afresh(metric), "products": lambda: bare_products(rows)}, repeat=1)
    assert report("20000 utterances", seconds["ours"], "three bare products", seconds["products"]) <= 3


def test_cost_of_a_thousand_speakers():
    metric, rows = prepared(1000)
    seconds = in_turns({"ours": lambda: afresh(metric), "products": lambda: bare_products(rows)}, repeat=2)
    assert report("VoicePrivacy, 6e8 trials", seconds["ours"], "three bare products", seconds["products"]) <= 6
    grown = peak_megabytes(setup(1000), "metric.compute()")
    print(f"peak memory above the embeddings: {grown:.0f} MB")
    assert grown <= 700


def test_cost_grows_with_pairs_and_memory_with_utterances():
    print()
    per_pair, memory = [], []
    for speakers in (125, 250, 500, 1000):
        metric, rows = prepared(speakers)
        seconds = in_turns({"ours": lambda metric=metric: afresh(metric)}, repeat=1)["ours"]
        per_pair.append(seconds / (2 * len(rows[0]) ** 2))
        memory.append(peak_megabytes(setup(speakers), "metric.compute()"))
        print(f"{20 * speakers:6d} utterances: {1e9 * per_pair[-1]:.2f} ns per pair, {memory[-1]:.0f} MB")
    # What does not depend on the number of pairs weighs less and less.
    assert per_pair[-1] < per_pair[0]
    # Sixty-four times the pairs; blocks and the matrices of speakers are all that may grow.
    assert memory[-1] < 4 * memory[0] + 100


def _time_compute(rank, world, folder):
    torch.set_num_threads(1)
    if world > 1:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world)
    metric, rows = prepared(400, 25, None)
    metric.reset()
    metric.update(*(column[rank::world] for column in rows))
    start = time.perf_counter()
    metric.compute()
    seconds = time.perf_counter() - start
    if rank == 0:
        (folder / str(world)).write_text(str(seconds))
    if world > 1:
        torch.distributed.destroy_process_group()


def test_two_processes_share_the_work(tmp_path):
    """Ten thousand utterances, each process with one thread; gathering and what is computed twice are the rest."""
    for world in (1, 2):
        run(_time_compute, world, tmp_path)
    one, two = (float((tmp_path / str(world)).read_text()) for world in (1, 2))
    assert report("two processes", two, "one process", one) <= 0.75
