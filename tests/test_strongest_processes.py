"""The strongest attack and the suite over processes, whoever saw and observed what."""

import warnings
from functools import partial

import pytest
import torch
from processes import run
from torch.testing import assert_close

from vpmetrics import StrongestAttack, VoicePrivacy
from vpmetrics.attacks import KernelRidge, Plain, RidgeToOriginal

FEW = (Plain(), RidgeToOriginal(), KernelRidge())  # the last one is fitted fold by fold
# By process: the batches it sees, and those its attackers observe.
SHARES = {
    2: [([[0], [1, 2, 3]], [[], [0, 1, 2]]), ([[], [2, 0, 3, 1]], [[0, 2], [1]])],
    3: [([[0, 3], [], [1, 2]], [[2], [0], [1]])],
}


def batches(seed, speakers, first=0):
    """Uneven ones, of speakers in two sessions, protected by a map that a ridge undoes."""
    draw = torch.Generator().manual_seed(seed)
    names = torch.arange(6 * speakers) % speakers
    own = torch.randn(speakers, 10, generator=draw, dtype=torch.float64)
    original = own[names] + 0.5 * torch.randn(len(names), 10, generator=draw, dtype=torch.float64)
    draw = torch.Generator().manual_seed(7)
    rotation = torch.linalg.qr(torch.randn(10, 10, generator=draw, dtype=torch.float64))[0]
    protected = original @ rotation
    sessions = torch.arange(len(names)) // speakers % 2
    sizes = [len(names) // 2, 1, 7, len(names) // 2 - 8]
    columns = [column.split(sizes) for column in (original, protected, names + first, sessions)]
    return list(zip(*columns, strict=True))


METRICS = (
    partial(VoicePrivacy, attacks=FEW),
    partial(StrongestAttack, "OP", attacks=FEW),
    partial(StrongestAttack, "PP", attacks=FEW, intervals=0.95),
)


def give(metric, seen, observed):
    for original, protected, speakers, sessions in seen:
        metric.update(original, protected, speakers, sessions=sessions)
    for original, protected, speakers, *_ in observed:
        metric.observe(original, protected, speakers)
    return metric


def _process(rank, world, path):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    measured = batches(0, speakers=8)
    watched = batches(1, speakers=30, first=100)
    # Before there is a group, a process is on its own.
    expected = [give(make(), measured, watched[:3]).compute() for make in METRICS]
    assert expected[1] != give(METRICS[1](), measured, []).compute()  # what is observed counts
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=world
    )
    for seen, observed in SHARES[world]:
        for make, alone in zip(METRICS, expected, strict=True):
            own_batches = [measured[number] for number in seen[rank]]
            own_observed = [watched[number] for number in observed[rank]]
            metric = give(make(), own_batches, own_observed)
            assert_close(metric.compute(), alone, atol=1e-9, rtol=0, equal_nan=True)
    assert all(bool(value.isnan()) for value in StrongestAttack(attacks=FEW).compute().values())
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("world", [2, 3])
def test_result_is_independent_of_the_split_over_processes(world, tmp_path):
    run(_process, world, tmp_path / "meeting")
