"""Processes divide the pairs among them, and say what one would say, whoever saw what."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections import Counter
from functools import partial

import pytest
import torch
import torch.multiprocessing as mp
from processes import METHOD, run
from torch import distributed
from torch.testing import assert_close

import vpmetrics as vp
from vpmetrics._trials import company, identification, pairs, passing, references, shares
from vpmetrics.attacks import Attack, KernelRidge, Plain, RidgeToOriginal

ATTACKS = (Plain(), RidgeToOriginal())
COLLECTIVES = ("all_reduce", "all_gather", "all_gather_object", "barrier", "broadcast")


def rows(speakers=9, seed=0):
    """Speakers with one to forty utterances in two sessions, some more than there are in a tile."""
    draw = torch.Generator().manual_seed(seed)
    each = torch.randint(1, 40, (speakers,), generator=draw)
    names = torch.arange(speakers).repeat_interleave(each)[torch.randperm(int(each.sum()), generator=draw)]
    voices = torch.randn(speakers, 12, generator=draw, dtype=torch.float64)
    original = voices[names] + torch.randn(len(names), 12, generator=draw, dtype=torch.float64)
    protected = 0.5 * original + torch.randn(len(names), 12, generator=draw, dtype=torch.float64)
    sessions = torch.randint(0, 2, (len(names),), generator=draw)
    return {"original": original, "protected": protected, "speakers": names, "sessions": sessions}


def with_groups(given):
    return {**given, "groups": given["speakers"] % 2}


def suite(**kwargs):
    return vp.VoicePrivacy(attacks=None, **kwargs)


METRICS = {
    "suite": suite,
    "matrix": vp.VoiceSimilarityMatrix,
    "ranks": vp.SimilarityRankDisclosure,
    "local": vp.LocalInformationDisclosure,
    "trials": lambda: vp.EmbeddingTrials(vp.ZebraDisclosure(thresholds=64)),
    "strongest": lambda: vp.StrongestAttack(attacks=ATTACKS),
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


def take_small_tiles(setting=setattr, few=0):
    """Let small sets be walked in many tiles and visit in many parts, as large ones do.

    Scores share bins but for so many pairs.
    """
    setting(pairs, "FEW_PAIRS", few)
    setting(pairs, "TILE", 30)
    setting(references, "tile_rows", lambda inputs, columns: 30)  # noqa: ARG005
    for name in ("_SENT", "_VISITING"):
        setting(passing, name, 12 * 70)  # of rows that are 12 wide


SMALL = (with_groups(rows()), rows(speakers=1), rows(speakers=2))


@pytest.fixture(scope="module")
def alone():
    """What one process says: values of each metric, those of small sets, and the counts they come from."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        take_small_tiles(patch.setattr)
        values = {name: give(metric(), rows()).compute() for name, metric in METRICS.items()}
        counts = counts_of(give(suite(), rows()).report())
        return values, [give(suite(), case).compute() for case in SMALL], counts


def counts_of(report):
    """Whole numbers, which are equal and not close."""
    found = [(each.scores.counts.ascending, each.identification) for each in report.conditions.values()]
    return [(steps.targets, steps.nontargets, of.histogram, of.linked.sum()) for steps, of in found]


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


def _say_the_same(rank, world, path, alone):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    take_small_tiles()
    (expected, of_small, counts), uneven = alone, parts_of(rows(), world, "unevenly")[rank]
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    watched = Watched()
    for name, metric in METRICS.items():
        value = give(metric(), uneven).compute()
        assert_close(value, expected[name], atol=1e-9, rtol=0, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")
        assert all(same_bits(value, other) for other in everyone(value))
    for case, value in zip(SMALL, of_small, strict=True):
        part = parts_of(case, world, "in turns")[rank]
        assert_close(give(suite(), part).compute(), value, atol=1e-9, rtol=0, equal_nan=True)
    assert_close(counts_of(give(suite(), uneven).report()), counts, atol=0, rtol=0)
    assert len(set(map(tuple, everyone(watched.calls)))) == 1
    distributed.destroy_process_group()


def same_bits(one, other):
    if isinstance(one, dict):
        one, other = tuple(one.values()), tuple(other.values())
    pairs_of_values = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
    return all(a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes() for a, b in pairs_of_values)


@pytest.mark.parametrize("world", [2, 3])
def test_processes_say_what_one_says_with_as_many_calls_whatever_each_has_seen(world, tmp_path, alone):
    run(_say_the_same, world, tmp_path / "meeting", alone)


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
    given = rows(speakers=24)
    del given["sessions"]  # whose calibrations are learnt from few trials, on every process
    give(suite(), given).compute()
    alone = walked["pairs"]
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    part = parts_of(given, world, "unevenly")[rank]
    walked.clear()
    give(suite(), part).compute()
    each = everyone(walked["pairs"])
    assert sum(each) == alone
    assert max(each) <= 1.25 * alone / world
    # Left alone, or where somebody else gathers, a process does all there is, and asks nobody.
    watched = Watched()
    metric = give(suite(sync_on_compute=False), given)
    walked.clear()
    metric.compute()
    assert (walked["pairs"], watched.calls) == (alone, [])
    metric = give(suite(dist_sync_fn=as_it_is), given)
    walked.clear()
    metric.compute()
    assert (walked["pairs"], watched.calls) == (alone, [])
    distributed.destroy_process_group()


def test_each_process_walks_its_part(tmp_path):
    run(_divide, 3, tmp_path / "meeting")


def _meet_once(rank, world, path):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    take_small_tiles()
    given, met = rows(), Counter()
    del given["sessions"]
    meet = company.Company._meet
    company.Company._meet = lambda *args, **kwargs: met.update(["times"]) or meet(*args, **kwargs)
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    part, times = parts_of(given, world, "in turns")[rank], []
    for names in (["op_d_ece", "op_d_diag", "op_worst_speaker", "op_alid", "op_max_d"], None):
        met.clear()
        give(suite(metrics=names), part).compute()
        times.append(met["times"])
    assert times[1] == 1 + times[0]  # to agree on what is known of original speech
    distributed.destroy_process_group()


def test_all_conditions_wait_for_the_slowest_process_as_often_as_one(tmp_path):
    run(_meet_once, 2, tmp_path / "meeting")


def _subset(rank, world, path, expected):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    take_small_tiles()
    given = rows()
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    members = [0, 2]
    group = distributed.new_group(members)
    if rank in members:
        metric = suite(process_group=group)
        give(metric, parts_of(given, 2, "in turns")[members.index(rank)])
        assert_close(metric.compute(), expected, atol=1e-9, rtol=0, equal_nan=True)
        # One of them has the report of original speech from before, the other has not.
        if rank == 0:
            metric._baseline = None
        metric.reset()
        give(metric, parts_of(given, 2, "unevenly")[members.index(rank)])
        assert_close(metric.compute(), expected, atol=1e-9, rtol=0, equal_nan=True)
    distributed.destroy_process_group()


def test_some_of_the_processes_can_be_a_group(tmp_path, alone):
    run(_subset, 3, tmp_path / "meeting", alone[0]["suite"])


def _resume(rank, world, path, expected):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    take_small_tiles()
    given = rows()
    saved = []
    for part in parts_of(given, 2, "in turns"):
        metric = give(suite(), part)
        metric.persistent(True)
        saved.append(metric.state_dict())
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    metric = suite()
    if rank < len(saved):
        metric.load_state_dict(saved[rank])
    assert_close(metric.compute(), expected, atol=1e-9, rtol=0, equal_nan=True)
    if rank == 1:
        raises_in_mid_compute(give(suite(), given), "no more tiles")
    else:
        with pytest.raises(RuntimeError, match=r"Process 1 \(of 3\) failed in mid-compute"):
            give(suite(), given).compute()
    # All of them have left together, and go on.
    assert_close(metric.compute(), expected, atol=1e-9, rtol=0, equal_nan=True)
    metric._computed = None
    assert_close(metric.compute(), expected, atol=1e-9, rtol=0, equal_nan=True)
    distributed.destroy_process_group()


def raises_in_mid_compute(metric, message):
    def refuse(*_):
        raise ValueError(message)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs.TrialGrid, "_tile", refuse)
        with pytest.raises(ValueError, match=message):
            metric.compute()
    assert not metric._is_synced


def test_what_two_processes_saved_is_resumed_by_three_and_a_failure_of_one_ends_all(tmp_path, alone):
    run(_resume, 3, tmp_path / "meeting", alone[0]["suite"])


def _lose_one(rank, world, path, said):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    company._PATIENCE = 2.0
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    metric = give(suite(), parts_of(rows(), world, "in turns")[rank])
    if rank == 1:
        pairs.TrialGrid._tile = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    start = time.monotonic()
    try:
        metric.compute()
    except RuntimeError as error:
        said.put((rank, str(error), time.monotonic() - start))


def test_a_process_killed_in_mid_compute_ends_the_others_who_say_which(tmp_path):
    context = mp.get_context(METHOD)
    said = context.Queue()
    processes = [context.Process(target=_lose_one, args=(rank, 4, tmp_path / "meeting", said)) for rank in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = sorted(said.get(timeout=5) for process in processes if process.exitcode == 0)
    assert [rank for rank, *_ in found] == [0, 2, 3]
    assert all(message.startswith("Process 1 (of 4) left in mid-compute") for _, message, _ in found)
    assert all(seconds < 60 for *_, seconds in found)


def without(given, *names):
    return {name: column for name, column in given.items() if name not in names}


GIVEN = rows(speakers=12)
PLAIN, TWO, LONELY = (without(rows(speakers), "sessions") for speakers in (12, 2, 1))
KNOWN = torch.arange(len(GIVEN["speakers"])) % 3 == 0
# What the processes are given, and how the suite is to take it: where every score is kept, and where they share bins.
EXACT = {
    "groups": (with_groups(PLAIN), {}),
    "copies": ({**PLAIN, "utterances": torch.arange(len(KNOWN)) // 2 * 2 + GIVEN["speakers"] * 1000}, {}),
    "enrolment": ({**PLAIN, "is_reference": KNOWN}, {"enrolment": "utterance"}),
    "two": (TWO, {}),
    "lonely": (LONELY, {}),
}
BINNED = {
    "groups": (with_groups(GIVEN), {}),
    "means": ({**GIVEN, "is_reference": KNOWN}, {"enrolment": "speaker"}),
    "distances": ({**PLAIN, "is_reference": KNOWN}, {"scoring": "euclidean"}),
    "protected": (without(PLAIN, "original"), {}),
}
LEARNT = (*ATTACKS, KernelRidge())


def apart_or_not(given, settings, gather, rank=0, world=1):
    return give(vp.VoicePrivacy(attacks=LEARNT, gather=gather, **settings), parts_of(given, world, "unevenly")[rank])


def told_of_groups(report):
    """Numbers of each group; and of each condition how often each step occurs, matrix, and who discloses what."""
    conditions = report.conditions.values()
    steps = [each.scores.counts.ascending for each in conditions]
    return (
        {group: dict(part.scalars) for group, part in report.groups.items()},
        [(each.targets, each.nontargets) for each in steps],
        [(each.matrix, *map(tuple, each.speakers[1:])) for each in conditions],
    )


def _keep_apart(rank, world, path, few, cases, expected, of_groups):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    take_small_tiles(few=few)
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    watched = Watched()
    for case, value in expected.items():
        found = apart_or_not(*cases[case], False, rank, world).compute()
        assert found.keys() == value.keys()
        assert_close(found, value, atol=1e-9, rtol=0, equal_nan=True, msg=partial("{}: {}".format, case))
        assert all(same_bits(found, other) for other in everyone(found))
    report = apart_or_not(*cases["groups"], False, rank, world).report()
    assert_close(told_of_groups(report), of_groups, atol=1e-9, rtol=0, equal_nan=True)
    assert len(set(map(tuple, everyone(watched.calls)))) == 1
    # What all have is told in the end, and never rows of embeddings.
    assert not [shape for name, *shapes in watched.calls if name == "all_gather" for shape in shapes if 12 in shape]
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("world", "few", "cases"), [(2, 1 << 22, EXACT), (3, 0, BINNED)], ids=["exact", "binned"])
def test_embeddings_that_stay_apart_say_the_same_of_everything(world, few, cases, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        take_small_tiles(patch.setattr, few)
        expected = {name: apart_or_not(*case, gather=True).compute() for name, case in cases.items()}
        of_groups = told_of_groups(apart_or_not(*cases["groups"], gather=True).report())
    run(_keep_apart, world, tmp_path / "meeting", few, cases, expected, of_groups)


def _go_on(rank, world, path, expected):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    metric = suite(gather=False, metrics=["op_d_ece", "deid"])
    for at, value in zip((slice(0, 100), slice(100, None)), expected, strict=True):
        for how in ("in turns", "unevenly"):  # the second time, everybody has these utterances twice
            give(metric, parts_of(some(PLAIN, at), world, how)[rank])
            assert_close(metric.compute(), value, atol=1e-9, rtol=0)
        # Everybody has the rows of some speakers from now on, and none but these.
        assert len(metric.original) == len(metric.speakers) == 1
        kept = everyone(metric.speakers[0].unique().tolist())
        assert sum(map(len, kept)) == len(set().union(*kept))
    distributed.destroy_process_group()


def some(given, rows):
    """Some of the utterances, which have numbers so that each counts once."""
    numbered = {**given, "utterances": torch.arange(len(given["speakers"]))}
    return {name: column[rows] for name, column in numbered.items()}


def test_metrics_whose_embeddings_stay_apart_go_on_from_what_each_has_been_sent(tmp_path):
    every = [some(PLAIN, slice(0, end)) for end in (100, None)]
    expected = [give(suite(metrics=["op_d_ece", "deid"]), given).compute() for given in every]
    run(_go_on, 2, tmp_path / "meeting", expected)


# A threshold separates targets from others, of whom some are zero and have no deviation.
SEPARATE = {**PLAIN, "protected": PLAIN["original"] + 100 * torch.eye(12, dtype=torch.float64)[PLAIN["speakers"]]}
SEPARATE["protected"][:20] = 0
LOCAL = ("alid", "pdr", "ndr", "lid_pos", "lid_neg", "lid_max", "link_rate")
INFORMED = tuple(f"{name}_{key}" for name in ("op", "pp") for key in LOCAL)


def told_of_inputs(given, few_at_hand=False, **settings):
    """What all inputs and those of each speaker disclose."""
    with pytest.MonkeyPatch.context() as patch:
        if few_at_hand:
            patch.setattr(identification, "_AT_HAND", 1000)
            patch.setattr(identification, "_EVALUATIONS", 500)
        report = give(suite(metrics=INFORMED, **settings), given).report()
    scalars = {key: report.scalars[key] for key in INFORMED}
    return scalars, [tuple(report.conditions[name].identified) for name in ("OP", "PP")]


# Of whom the last process keeps, nobody has a reference.
ENROLLED = {**PLAIN, "is_reference": KNOWN & (PLAIN["speakers"] < 5)}
CASES = [
    *[(PLAIN, {}), (PLAIN, {"few_at_hand": True}), (SEPARATE, {}), (ENROLLED, {})],
    *[(TWO, {"slope": 2.0}), (LONELY, {})],
]


def _inform_apart(rank, world, path, expected):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    take_small_tiles()
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    watched = Watched()
    for (given, settings), alone in zip(CASES, expected, strict=True):
        found = told_of_inputs(parts_of(given, world, "unevenly")[rank], gather=False, **settings)
        assert_close(found, alone, atol=1e-9, rtol=0, equal_nan=True)
        assert all(same_bits(found[0], other) for other in everyone(found[0]))
    assert len(set(map(tuple, everyone(watched.calls)))) == 1
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_inputs_that_stay_apart_disclose_what_they_do_to_one_process(tmp_path):
    expected = [told_of_inputs(given, **settings) for given, settings in CASES]
    assert len({float(scalars["op_alid"]) for scalars, _ in expected[:5]}) == 5
    run(_inform_apart, 3, tmp_path / "meeting", expected)


class Unbounded(Attack):
    """Learns from as many rows as there are."""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metrics": ["op_d_ece"], "intervals": 0.9}, "no `intervals` with gather=False, but got 0.9"),
        ({"metrics": ["op_d_ece"], "dist_sync_fn": as_it_is}, "no `dist_sync_fn` with gather=False"),
        ({"sizes": (10,)}, r"no `sizes` with gather=False, but got \(10,\)"),
        ({"bandwidth": 0.1}, "no `bandwidth` with gather=False, but got 0.1"),
        ({"attacks": [Unbounded()]}, "to say by `most_rows` how many rows .* but got Unbounded"),
    ],
)
def test_what_needs_all_rows_in_one_place_is_refused_without_gathering(settings, message):
    with pytest.raises(ValueError, match=message):
        vp.VoicePrivacy(**{"attacks": None, **settings, "gather": False})


def test_an_attack_that_is_not_asked_for_may_learn_from_all_rows():
    vp.VoicePrivacy(attacks=[Unbounded()], metrics=["op_d_ece"], gather=False)


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
