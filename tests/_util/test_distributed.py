"""Ranks of torch.distributed.

Every one returns the number one process would, and unlike settings raise on all.
"""

import datetime
import warnings

import pytest
import torch
from cases import (
    ATTRIBUTE_CASE,
    CASES,
    RUN_CASES,
    SCORE_CASES,
    assert_same,
    embeddings,
    entries,
    join,
    updated,
)
from processes import run
from reports import compute
from samples import voices
from torch import distributed

import vpmetrics as vp
from vpmetrics._scores import pair_blocks
from vpmetrics._util.distributed import RankError
from vpmetrics.attacks import Plain, RidgeToOriginal

SHARES = {
    "uneven": lambda rank: [0] if rank == 0 else [1, 2, 3],
    "empty": lambda rank: [] if rank == 0 else [0, 1, 2, 3],
}


def join_group(rank, world, path):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=60)
    distributed.init_process_group(
        "gloo", init_method=f"file://{path}", rank=rank, world_size=world, timeout=patience
    )


def _every_metric(rank, world, path, expected):
    join_group(rank, world, path)
    for case in CASES:
        batches = case.batches()
        for shares in SHARES.values():
            metric = updated(case, [batches[index] for index in shares(rank)])
            before = {k: len(v) for k, v in metric.metric_state.items() if isinstance(v, list)}
            assert_same(metric.compute(), expected[case.name], atol=1e-9)
            assert {
                k: len(v) for k, v in metric.metric_state.items() if isinstance(v, list)
            } == before
            if case.name == "VoicePrivacy":
                assert_same(metric.report().scalars, expected[case.name], atol=1e-9)
        assert all(bool(entry.isnan().all()) for entry in entries(case.metric().compute()))
    for case in (SCORE_CASES[0], RUN_CASES[0], ATTRIBUTE_CASE):
        batches = case.batches()
        step = case.metric(dist_sync_on_step=True)
        for pair in ((0, 1), (2, 3)):
            both = updated(
                case, [batches[index] for index in pair], sync_on_compute=False
            ).compute()
            assert_same(step(**batches[pair[rank]]), both, atol=1e-9)
        assert_same(step.compute(), expected[case.name], atol=1e-9)
    distributed.destroy_process_group()


def test_two_processes_with_uneven_batches_match_one_process(tmp_path):
    expected = {case.name: updated(case).compute() for case in CASES}
    run(_every_metric, 2, tmp_path / "meeting", expected)


# --- Large sets, whose blocks the ranks share

ATTACKS = [Plain(), RidgeToOriginal()]
SETTINGS = {
    "all": {"metrics": "all", "attacks": None, "intervals": 0.9, "sizes": (2, 5)},
    "attacked": {"attacks": ATTACKS},
    "distances": {"metrics": "all", "attacks": None, "scoring": "euclidean"},
    "enrolment": {"metrics": "all", "attacks": None, "enrolment": "speaker"},
}


def large(name):
    rows = voices(sessions=2)
    if name == "all":
        rows["groups"] = rows["speakers"] % 2
    if name == "enrolment":
        rows["is_reference"] = torch.arange(len(rows["speakers"])) % 2 == 0
    return rows


def share_blocks(setting=setattr):
    """Let small sets be walked as large ones are: scores share bins, and blocks are many."""
    setting(pair_blocks, "FEW_PAIRS", 0)
    setting(pair_blocks, "BLOCK_SIZE", 16)


def _large_sets(rank, world, path, expected):
    join_group(rank, world, path)
    share_blocks()
    for name, value in expected.items():
        rows = large(name)
        metric = vp.VoicePrivacy(**SETTINGS[name])
        mine = torch.arange(len(rows["speakers"])) % 5 % world == rank  # uneven
        metric.update(**{key: column[mine] for key, column in rows.items()})
        assert_same(metric.compute(), value, atol=1e-8)
        gathered = [None] * world
        distributed.all_gather_object(gathered, metric.compute())
        for other in gathered:
            assert_same(other, gathered[0], atol=0, rtol=0)  # to the last bit
    # Some of the ranks can be a group of their own.
    group = distributed.new_group([0, world - 1])
    if rank in (0, world - 1):
        rows = large("distances")
        half = torch.arange(len(rows["speakers"])) % 2 == (rank > 0)
        metric = vp.VoicePrivacy(**SETTINGS["distances"], process_group=group)
        value = compute(metric, **{key: column[half] for key, column in rows.items()})
        assert_same(value, expected["distances"], atol=1e-8)
    distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_three_processes_share_the_blocks_of_large_sets(tmp_path, monkeypatch):
    share_blocks(monkeypatch.setattr)
    expected = {}
    for name, settings in SETTINGS.items():
        expected[name] = compute(vp.VoicePrivacy(**settings), **large(name))
    run(_large_sets, 3, tmp_path / "meeting", expected)


# --- Ranks that differ

ROWS = join(embeddings())
TRIALS = {"preds": torch.linspace(-0.9, 0.9, 10), "target": torch.arange(10) % 2}


def _unlike_ranks(rank, world, path):
    join_group(rank, world, path)
    edges = vp.MinCllr(thresholds=torch.tensor([-0.5, 0.5 + rank]))
    edges.update(**TRIALS)
    with pytest.raises(ValueError, match="Expected the same edges of bins on all processes"):
        edges.compute()
    assert not edges._is_synced
    encoders = vp.VoicePrivacy(attacks=None)
    encoders.update(
        {f"of rank {rank}": ROWS["original"]},
        {f"of rank {rank}": ROWS["protected"]},
        ROWS["speakers"],
    )
    with pytest.raises(
        ValueError, match="Expected the same encoders, in the same order, of all embeddings"
    ):
        encoders.compute()
    widths = vp.DeIdentification()
    widths.update(torch.eye(4 + rank), torch.eye(4 + rank), torch.arange(4 + rank) % 2)
    with pytest.raises(
        ValueError,
        match=r"Expected `original` to have one width on all processes, but got \[4, 5\]",
    ):
        widths.compute()
    # The group is still in step, and so is the metric.
    widths.reset()
    widths.update(torch.eye(6)[rank::2], torch.ones(3, 6), torch.arange(3))
    alike = vp.DeIdentification(sync_on_compute=False)
    assert_same(
        widths.compute(), compute(alike, torch.eye(6), torch.ones(6, 6), torch.arange(6) // 2)
    )
    _a_rank_that_raises(rank)
    _an_interrupted_rank(rank)
    _a_scoring_that_raises(rank)
    _names_of_all_ranks(rank)
    distributed.destroy_process_group()


def _a_rank_that_raises(rank):
    metric = vp.Cllr()
    metric.update(**TRIALS)
    compute = metric.compute

    def raise_error():
        if rank == 1:
            raise ValueError("no such number")
        return torch.zeros(())

    metric.compute = metric._wrap_compute(raise_error)
    error, message = (
        (ValueError, "^no such number")
        if rank == 1
        else (RankError, "Rank 1 .* raised ValueError: no such")
    )
    with pytest.raises(error, match=message):
        metric.compute()
    metric.compute = compute
    assert not metric._is_synced
    metric.update(**TRIALS)
    assert torch.isfinite(metric.compute())


def _an_interrupted_rank(rank):
    metric = vp.Cllr()
    metric.update(**TRIALS)

    def interrupt():
        if rank == 1:
            raise KeyboardInterrupt
        return torch.zeros(())

    error = KeyboardInterrupt if rank == 1 else RankError
    with pytest.raises(error, match="" if rank == 1 else "Rank 1 .* raised KeyboardInterrupt"):
        metric._wrap_compute(interrupt)()
    assert not metric._is_synced
    assert torch.isfinite(metric.compute())


def _a_scoring_that_raises(rank):
    rows = voices()

    def scoring(a, b):
        if rank == 1:
            raise LookupError("a scoring of one rank")
        return a @ b.mT

    error = LookupError
    message = "a scoring of one rank"
    if rank == 0:
        error, message = RankError, f"Rank 1 .* LookupError: {message}"
    attacked = vp.VoicePrivacy(scoring=scoring, attacks=[Plain()], metrics=["op_d_ece_strongest"])
    for metric in (vp.DeIdentification(scoring=scoring), attacked):
        metric.update(**{key: column[rank::2] for key, column in rows.items() if key in ROWS})
        with pytest.raises(error, match=message):
            metric.compute()
    value = compute(
        vp.DeIdentification(),
        **{key: column[rank::2] for key, column in rows.items() if key in ROWS},
    )
    assert torch.isfinite(value)


def _names_of_all_ranks(rank):
    metric = vp.VoicePrivacy(attacks=None, metrics=["deid"])
    names = [f"rank {rank} speaker {number % 3}" for number in range(12)]
    groups = ["f" if rank else "m"] * 12
    generator = torch.Generator().manual_seed(rank)
    rows = [torch.randn(12, 4, generator=generator) for _ in range(2)]
    metric.update(*rows, names, groups=groups)
    report = metric.report()
    assert {f"rank {number} speaker 2" for number in range(2)} <= set(report.speaker_names.values())
    assert set(report.groups) == {"f", "m"}
    assert len(metric.speaker_names) == 3  # its own again


def test_errors_are_raised_on_all_processes(tmp_path):
    run(_unlike_ranks, 2, tmp_path / "meeting")


class UserAttack:
    """An attack of a user's own, with a defect that only the last rank meets."""

    needs = "nothing"

    def __init__(self, defect, rank, world):
        self.defect = defect if rank == world - 1 else ""

    def fit(self, *_):
        self._meet("fit")
        return self

    def attack(self, original, protected):
        self._meet("attack")
        return original, protected

    def score(self, original, protected):
        self._meet("score")
        return original @ protected.mT

    def _meet(self, place):
        if place == self.defect:
            raise LookupError(f"a defect in {place}")


def _defective_attacks(rank, world, path):
    join_group(rank, world, path)
    rows = voices()
    share = torch.arange(len(rows["speakers"])) % world == rank
    for defect in ("fit", "attack", "score"):
        for has_rows in (True, False):
            mine = share if has_rows else torch.full_like(share, rank == 0)
            attack = UserAttack(defect, rank, world)
            metrics = (
                vp.StrongestAttack(attacks=[Plain(), attack]),
                vp.VoicePrivacy(attacks=[attack], metrics=["op_d_ece_strongest"]),
            )
            for metric in metrics:
                if mine.any():
                    columns = {key: rows[key][mine] for key in ("original", "protected")}
                    metric.update(**columns, speakers=rows["speakers"][mine])
                error = LookupError
                message = f"a defect in {defect}"
                if rank != world - 1:
                    error, message = RankError, f"Rank {world - 1} .* LookupError: {message}"
                with pytest.raises(error, match=message):
                    metric.compute()
                if defect == "attack" and isinstance(metric, vp.VoicePrivacy):
                    with pytest.raises(error, match=message):
                        metric.report()
                assert not metric._is_synced
    # The group is still in step.
    assert torch.isfinite(compute(vp.DeIdentification(), **{key: rows[key] for key in ROWS}))
    distributed.destroy_process_group()


@pytest.mark.parametrize("world", [2, 3])
def test_an_error_in_a_users_attack_is_raised_on_all_ranks(tmp_path, world):
    run(_defective_attacks, world, tmp_path / "meeting")
