"""All of VoicePrivacy against the bare matrix products it cannot do without."""

import time

import pytest
import torch
from processes import run
from torch.nn.functional import normalize

from bench.timing import afresh, in_turns, peak_megabytes, ratio, report

pytestmark = pytest.mark.bench

SETUP = """
import torch
from samples import people
from vpmetrics import VoicePrivacy
rows = people(number={}, each={}, width=192, noise=1.5, dtype=torch.float32)
metric = VoicePrivacy(attacks={!r}, intervals={!r}, validate_args=False)
metric.update(*rows)
"""


def prepared(speakers, each, attacks="standard", intervals=None):
    """Return a metric that has seen so many speakers, and the rows."""
    space = {}
    exec(SETUP.format(speakers, each, attacks, intervals), space)
    return space["metric"], space["rows"]


def peak(speakers):
    return peak_megabytes(SETUP.format(speakers, 20, "standard", None), "metric.compute()")


def cost(speakers, each, one, other, repeat=5):
    """Seconds of a suite with some attacks and intervals, as a multiple of another one's."""
    (ours, _), (theirs, _) = prepared(speakers, each, *one), prepared(speakers, each, *other)
    names = (f"{speakers * each} utterances, attacks and intervals {one}", str(other))
    return ratio(names[0], lambda: afresh(ours), names[1], lambda: afresh(theirs), repeat)


def cost_in_products(speakers, each, attacks=None, repeat=5):
    """Seconds of a suite as a multiple of the three products of all rows."""
    metric, rows = prepared(speakers, each, attacks)

    def products():
        original, protected = (normalize(side) for side in rows[:2])
        for a, b in ((original, original), (original, protected), (protected, protected)):
            for left in a.split(2000):
                for right in b.split(2000):
                    left @ right.T

    return ratio(
        f"{speakers * each} utterances",
        lambda: afresh(metric),
        "three bare products",
        products,
        repeat,
    )


@pytest.mark.parametrize(
    ("speakers", "each", "most", "repeat"),
    [(40, 10, 120, 5), (40, 50, 20, 5), (40, 52, 20, 5), (400, 50, 3, 1)],
)
def test_cost_without_attacks(speakers, each, most, repeat):
    assert cost_in_products(speakers, each, repeat=repeat) <= most


def test_report_computes_nothing_twice():
    metric, _ = prepared(40, 50, None)
    alone = in_turns({"": lambda: afresh(metric)})[""]
    metric.compute()
    start = time.perf_counter()
    metric.report()
    assert time.perf_counter() - start < 0.2 * alone


def test_cost_is_continuous_where_binning_begins():
    # up to 2048 utterances none do
    (few, _), (many, _) = prepared(40, 51, None), prepared(40, 52, None)
    assert (
        0.6
        <= ratio("2040 utterances", lambda: afresh(few), "2080 utterances", lambda: afresh(many))
        <= 1.6
    )


@pytest.mark.parametrize(
    ("speakers", "each", "most"),
    [(40, 10, 7), (40, 25, 5), (40, 50, 3), (80, 50, 2.5), (400, 50, 1.5)],
)
def test_cost_of_attacks_and_intervals_is_bounded(speakers, each, most):
    repeat = 1 if speakers > 80 else 3
    assert cost(speakers, each, ("standard", None), (None, None), repeat) <= most
    assert cost(speakers, each, ("standard", 0.95), ("standard", None), repeat) <= 1.5


@pytest.mark.parametrize(
    ("speakers", "each", "most"), [(40, 10, 3.5), (40, 50, 2.5), (400, 50, 1.3)]
)
def test_cost_of_intervals_without_attacks(speakers, each, most):
    """They cost next to nothing where sets are large.

    In small ones PAV without every speaker dominates.
    """
    assert (
        cost(speakers, each, (None, 0.95), (None, None), repeat=1 if speakers > 40 else 3) <= most
    )


def test_cost_of_a_thousand_speakers():
    assert cost_in_products(1000, 20, "standard", repeat=2) <= 6
    grown = peak(1000)
    print(f"peak memory above the embeddings: {grown:.0f} MB")
    assert grown <= 700


def test_cost_grows_with_pairs_and_memory_with_utterances():
    per_pair, memory = [], []
    for speakers in (125, 250, 500, 1000):
        metric, rows = prepared(speakers, 20)
        per_pair.append(
            in_turns({"": lambda metric=metric: afresh(metric)}, repeat=1)[""]
            / (2 * len(rows[0]) ** 2)
        )
        memory.append(peak(speakers))
        print(
            f"\n{20 * speakers:6d} utterances: {1e9 * per_pair[-1]:.2f} ns per pair,"
            f" {memory[-1]:.0f} MB"
        )
    # What does not depend on the number of pairs weighs less and less.
    assert per_pair[-1] < per_pair[0]
    # Sixty-four times the pairs; blocks and the matrices of speakers are all that may grow.
    assert memory[-1] < 4 * memory[0] + 100


def _time_compute(rank, world, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/{world}", rank=rank, world_size=world
    )
    metric, rows = prepared(400, 25, None)
    metric.reset()
    metric.update(*(column[rank::world] for column in rows))
    start = time.perf_counter()
    metric.compute()
    (folder / f"{world}-{rank}").write_text(str(time.perf_counter() - start))
    torch.distributed.destroy_process_group()


def test_two_processes_share_the_work(tmp_path):
    """Ten thousand utterances, each process with one thread.

    Gathering and what is computed twice are the rest.
    """
    for world in (1, 2):
        run(_time_compute, world, tmp_path)
    one, two = (float((tmp_path / name).read_text()) for name in ("1-0", "2-0"))
    assert report("two processes", two, "one process", one) <= 0.75
