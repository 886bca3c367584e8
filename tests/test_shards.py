"""Processes divide the pairs among them, and say what one would say, whoever saw what."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed
from torch.testing import assert_close

import vpmetrics as vp
from vpmetrics._trials import pairs, references, shares
from vpmetrics.attacks import Plain, RidgeToOriginal

ATTACKS = (Plain(), RidgeToOriginal())
COLLECTIVES = ("all_reduce", "all_gather", "all_gather_object", "barrier", "broadcast")


def rows(speakers=13, seed=0):
    """Speakers with one to twenty utterances in two sessions, some more than there are in a tile."""
    draw = torch.Generator().manual_seed(seed)
    each = torch.randint(1, 21, (speakers,), generator=draw)
    names = torch.arange(speakers).repeat_interleave(each)[torch.randperm(int(each.sum()), generator=draw)]
    voices = torch.randn(speakers, 12, generator=draw, dtype=torch.float64)
    original = voices[names] + torch.randn(len(names), 12, generator=draw, dtype=torch.float64)
    protected = 0.5 * original + torch.randn(len(names), 12, generator=draw, dtype=torch.float64)
    sessions = torch.randint(0, 2, (len(names),), generator=draw)
    return {"original": original, "protected": protected, "speakers": names, "sessions": sessions}


def with_groups(given):
    return {**given, "groups": given["speakers"] % 2}


METRICS = {
    "suite": lambda **kwargs: vp.VoicePrivacy(attacks=ATTACKS, **kwargs),
    "matrix": lambda **kwargs: vp.VoiceSimilarityMatrix(**kwargs),
    "ranks": lambda **kwargs: vp.SimilarityRankDisclosure(**kwargs),
    "local": lambda **kwargs: vp.LocalInformationDisclosure(**kwargs),
    "trials": lambda **kwargs: vp.EmbeddingTrials(vp.ZebraDisclosure(thresholds=64), **kwargs),
    "strongest": lambda **kwargs: vp.StrongestAttack(attacks=ATTACKS, **kwargs),
}


def parts_of(given, world, shares):
    """The rows each process sees: very uneven, the second one none; or all in turns."""
    number = torch.arange(len(given["speakers"]))
    place = number % world if shares == "in turns" else torch.where(number < 50, 0, world - 1)
    return [{name: column[place == process] for name, column in given.items()} for process in range(world)]


def give(metric, *batches):
    for batch in batches:
        if len(batch["speakers"]):
            metric.update(**batch)
    return metric


def take_small_tiles():
    """Let small sets be walked in many tiles, as large ones are."""
    pairs.FEW_PAIRS, pairs.TILE = 0, 16
    references.tile_rows = lambda inputs, columns: 20  # noqa: ARG005


class Watched:
    """The collective calls that a process makes, and the bytes it gives to them."""

    def __init__(self):
        self.calls, self.bytes = [], 0
        for name in COLLECTIVES:
            setattr(distributed, name, self.counted(name, getattr(distributed, name)))

    def counted(self, name, call):
        def counting(*args, **kwargs):
            tensors = [part for part in args if isinstance(part, torch.Tensor)]
            self.calls.append((name, *(tuple(part.shape) for part in tensors)))
            self.bytes += sum(part.nbytes for part in tensors)
            return call(*args, **kwargs)

        return counting


def as_it_is(state, group):  # noqa: ARG001
    """Gathers nothing."""
    return [state]


def everyone(value, group=None):
    """The value of every process."""
    found = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, value, group=group)
    return found


def _say_the_same(rank, world, path):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    take_small_tiles()
    cases = [rows(), with_groups(rows()), rows(speakers=1), rows(speakers=2)]
    alone = [{name: give(metric(), case).compute() for name, metric in METRICS.items()} for case in cases]
    report = give(vp.VoicePrivacy(attacks=None), cases[0]).report()
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    watched = Watched()
    for case, expected, how in zip(cases, alone, ("unevenly", "in turns", "in turns", "in turns"), strict=True):
        for name, metric in METRICS.items():
            value = give(metric(), parts_of(case, world, how)[rank]).compute()
            assert_close(value, expected[name], atol=1e-9, rtol=0, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")
            assert all(same_bits(value, other) for other in everyone(value))
    same_counts(give(vp.VoicePrivacy(attacks=None), parts_of(cases[0], world, "in turns")[rank]).report(), report)
    assert len(set(map(tuple, everyone(watched.calls)))) == 1
    distributed.destroy_process_group()


def same_bits(one, other):
    if isinstance(one, dict):
        one, other = tuple(one.values()), tuple(other.values())
    pairs_of_values = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    return all(a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs_of_values)


def same_counts(one, other):
    """Whole numbers are equal, not close."""
    for name, condition in other.conditions.items():
        ours = one.conditions[name]
        assert torch.equal(ours.scores.counts.ascending.targets, condition.scores.counts.ascending.targets)
        assert torch.equal(ours.scores.counts.ascending.nontargets, condition.scores.counts.ascending.nontargets)
        assert torch.equal(ours.identification.histogram, condition.identification.histogram)
        assert ours.identification.linked.sum() == condition.identification.linked.sum()


@pytest.mark.parametrize("world", [2, 3])
def test_processes_say_what_one_says_with_as_many_calls_whatever_each_has_seen(world, tmp_path):
    mp.spawn(_say_the_same, args=(world, tmp_path / "meeting"), nprocs=world)


def _divide(rank, world, path):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    take_small_tiles()
    walked = Counter()
    tile = pairs.TrialGrid._tile

    def counted(grid, row, column):
        walked["pairs"] += 1
        return tile(grid, row, column)

    pairs.TrialGrid._tile = counted
    given = rows(speakers=40)
    del given["sessions"]  # whose calibrations are learnt from few trials, on every process
    give(vp.VoicePrivacy(attacks=None), given).compute()
    alone = walked["pairs"]
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    part = parts_of(given, world, "unevenly")[rank]
    walked.clear()
    give(vp.VoicePrivacy(attacks=None), part).compute()
    each = everyone(walked["pairs"])
    assert sum(each) == alone
    assert max(each) <= 1.1 * alone / world
    # Left alone, or where somebody else gathers, a process does all there is, and asks nobody.
    watched = Watched()
    metric = give(vp.VoicePrivacy(attacks=None, sync_on_compute=False), given)
    walked.clear()
    metric.compute()
    assert (walked["pairs"], watched.calls) == (alone, [])
    metric = give(vp.VoicePrivacy(attacks=None, dist_sync_fn=as_it_is), given)
    walked.clear()
    metric.compute()
    assert (walked["pairs"], watched.calls) == (alone, [])
    distributed.destroy_process_group()


def test_each_process_walks_its_part(tmp_path):
    mp.spawn(_divide, args=(3, tmp_path / "meeting"), nprocs=3)


def _subset(rank, world, path):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    take_small_tiles()
    given = rows()
    expected = give(vp.VoicePrivacy(attacks=None), given).compute()
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    members = [0, 2]
    group = distributed.new_group(members)
    if rank in members:
        metric = vp.VoicePrivacy(attacks=None, process_group=group)
        give(metric, parts_of(given, 2, "in turns")[members.index(rank)])
        assert_close(metric.compute(), expected, atol=1e-9, rtol=0, equal_nan=True)
        # One of them has the report of original speech from before, the other has not.
        if rank == 0:
            metric._baseline = None
        metric.reset()
        give(metric, parts_of(given, 2, "unevenly")[members.index(rank)])
        assert_close(metric.compute(), expected, atol=1e-9, rtol=0, equal_nan=True)
    distributed.destroy_process_group()


def test_some_of_the_processes_can_be_a_group(tmp_path):
    mp.spawn(_subset, args=(3, tmp_path / "meeting"), nprocs=3)


@pytest.mark.parametrize("world", [1, 2, 3, 7, 64])
def test_work_is_cut_into_parts_that_are_all_of_it_and_alike(world):
    draw = torch.Generator().manual_seed(0)
    for costs in (torch.randint(1, 1000, (200,), generator=draw).tolist(), list(range(300, 0, -1)), [5], []):
        parts, pieces = [], []
        for number in range(world):
            token = shares._share.set(shares._Share(number, world, None))
            parts.append(list(shares.spans(costs)))
            pieces += shares.mine(costs)
            shares._share.reset(token)
        assert pieces == list(range(len(costs)))
        done = Counter()
        for part in parts:
            for piece, begin, end in part:
                assert begin == done[piece]
                done[piece] = end
        assert all(done[piece] == cost for piece, cost in enumerate(costs))
        loads = [sum(end - begin for _, begin, end in part) for part in parts]
        assert max(loads) - min(loads) <= 1
