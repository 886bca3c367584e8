"""Ranks of torch.distributed: every one returns the number one process would, and unlike settings raise on all."""

import copy
import datetime
import warnings
from functools import partial

import pytest
import torch
from cases import ATTRIBUTE_CASE, CASES, RUN_CASES, SCORE_CASES, assert_same, embeddings, entries, join, updated
from processes import run
from reports import compute
from samples import voices
from torch import distributed

import vpmetrics as vp
from vpmetrics._scores import pair_blocks
from vpmetrics.attacks import Plain, RidgeToOriginal

SHARES = {
    "uneven": lambda rank: [0] if rank == 0 else [1, 2, 3],
    "empty": lambda rank: [] if rank == 0 else [0, 1, 2, 3],
}


def join_group(rank, world, path):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    patience = datetime.timedelta(seconds=60)
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world, timeout=patience)


def _every_metric(rank, world, path, expected):
    join_group(rank, world, path)
    for case in CASES:
        batches = case.batches()
        for shares in SHARES.values():
            metric = updated(case, [batches[index] for index in shares(rank)])
            before = {k: len(v) for k, v in metric.metric_state.items() if isinstance(v, list)}
            assert_same(metric.compute(), expected[case.name], atol=1e-9)
            assert {k: len(v) for k, v in metric.metric_state.items() if isinstance(v, list)} == before
            if case.name == "VoicePrivacy":
                assert_same(metric.report().scalars, expected[case.name], atol=1e-9)
        assert all(bool(entry.isnan().all()) for entry in entries(case.metric().compute()))
    for case in (SCORE_CASES[0], RUN_CASES[0], ATTRIBUTE_CASE):
        batches = case.batches()
        step = case.metric(dist_sync_on_step=True)
        for pair in ((0, 1), (2, 3)):
            both = updated(case, [batches[index] for index in pair], sync_on_compute=False).compute()
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

Suite = partial(vp.VoicePrivacy, attacks=None)
ROWS = join(embeddings())
TRIALS = {"preds": torch.linspace(-0.9, 0.9, 10), "target": torch.arange(10) % 2}
UNLIKE = [  # the metric of each rank, what it is fed, and the argument that the message names
    (lambda rank: Suite(scoring=("cosine", "dot")[rank]), ROWS, "scoring"),
    (lambda rank: Suite(similarity=("geometric", "sigmoid")[rank]), ROWS, "similarity"),
    (lambda rank: Suite(sizes=((2,), (3,))[rank]), ROWS, "sizes"),
    (lambda rank: Suite(intervals=(0.9, 0.95)[rank]), ROWS, "intervals"),
    (lambda rank: Suite(intervals=(None, 0.95)[rank]), ROWS, "intervals"),
    (lambda rank: Suite(slope=(None, 1.0)[rank]), ROWS, "slope"),
    (lambda rank: Suite(rank_model=("empirical", "beta_binomial")[rank]), ROWS, "rank_model"),
    (lambda rank: Suite(enrolment=(None, "speaker")[rank]), ROWS | {"is_reference": ROWS["speakers"] > 3}, "enrolment"),
    (lambda rank: Suite(metrics=("headline", "all")[rank]), ROWS, "metrics"),
    (lambda rank: Suite(metrics=(["op_eer"], ["pp_eer"])[rank]), ROWS, "metrics"),
    (lambda rank: vp.VoicePrivacy(attacks=ATTACKS[:: (1, -1)[rank]]), ROWS, "attacks"),
    (lambda rank: vp.StrongestAttack(condition=("OP", "PP")[rank], attacks=ATTACKS), ROWS, "condition"),
    (lambda rank: (vp.DeIdentification, vp.VoiceDistinctiveness)[rank](), ROWS, "class"),
    (lambda rank: vp.ReidentificationRate((2, 5), condition=("OP", "PP")[rank]), ROWS, "condition"),
    (lambda rank: vp.ReidentificationRate((2, 5), conversation=1 + rank), ROWS, "conversation"),
    (
        lambda rank: vp.Cllr(intervals=(None, 0.9)[rank]),
        TRIALS | {"speakers": (TRIALS["target"], torch.ones(10).long())},
        "intervals",
    ),
    (lambda rank: vp.TPRAtFPR(fpr=((0.1,), (0.2,))[rank]), TRIALS, "fpr"),
    (lambda rank: vp.MinCllr(thresholds=(None, 16)[rank]), TRIALS, "`thresholds`|`class`"),
    (lambda rank: vp.MinCllr(thresholds=(16, 32)[rank]), TRIALS, "`thresholds`"),
    (lambda rank: vp.MinCllr(thresholds=16, score_range=(-1, 1 + rank)), TRIALS, "`score_range`"),
    (lambda rank: vp.MinCllr(thresholds=torch.tensor([-0.5, 0.5 + rank])), TRIALS, "`thresholds`"),
    (lambda rank: vp.MinCllr(thresholds=16 + rank, score_range=(-1, 1)), TRIALS, "`thresholds`"),
]


def _unlike_ranks(rank, world, path):
    join_group(rank, world, path)
    for make, batch, message in UNLIKE:
        metric = make(rank)
        metric.update(**batch)
        alone = copy.deepcopy(metric.metric_state)
        for _ in range(2):
            with pytest.raises(ValueError, match=message):
                metric.compute()
        assert_same(metric.metric_state, alone)
        assert not metric._is_synced
    widths = vp.DeIdentification()
    widths.update(torch.eye(4 + rank), torch.eye(4 + rank), torch.arange(4 + rank) % 2)
    with pytest.raises(ValueError, match=r"Expected `original` to have one width on all processes, but got \[4, 5\]"):
        widths.compute()
    # The group is still in step, and so is the metric.
    widths.reset()
    widths.update(torch.eye(6)[rank::2], torch.ones(3, 6), torch.arange(3))
    alike = vp.DeIdentification(sync_on_compute=False)
    assert_same(widths.compute(), compute(alike, torch.eye(6), torch.ones(6, 6), torch.arange(6) // 2))
    _a_rank_that_raises(rank)
    distributed.destroy_process_group()


def _a_rank_that_raises(rank):
    metric = vp.Cllr()
    metric.update(**TRIALS)
    compute = metric.compute

    def raise_error():
        raise RuntimeError("no more memory")

    if rank == 1:
        metric.compute = metric._wrap_compute(raise_error)
        with pytest.raises(RuntimeError, match="no more memory"):
            metric.compute()
    else:
        metric.compute()
    metric.compute = compute
    assert not metric._is_synced
    metric.update(**TRIALS)
    assert torch.isfinite(metric.compute())


def test_different_settings_raise_on_all_processes(tmp_path):
    run(_unlike_ranks, 2, tmp_path / "meeting")
