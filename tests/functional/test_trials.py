"""Scores and labels of embeddings.

Every trial once, block by block, shared by processes, and with a gradient.
"""

import math

import pytest
import reference
import torch
from cases import embeddings, join
from processes import run
from reports import Everything, compute
from samples import people
from torch.testing import assert_close
from torchmetrics.classification import BinaryAUROC

import vpmetrics as vp
from vpmetrics import functional as F


def sort_by_score(scores, target):
    order = scores.argsort(stable=True)
    return scores[order], target[order]


@pytest.mark.parametrize("condition", ["OO", "OP", "PP"])
@pytest.mark.parametrize("block_rows", [None, 1, 7, 1000])
def test_every_trial_of_a_condition_is_there_once(condition, block_rows):
    rows = people(number=5, each=4)
    expected, labels, _ = reference.similarity.trials(
        *(column.numpy() for column in rows), condition
    )
    found = F.trials(*rows, condition, block_rows)
    if block_rows is not None:
        assert len(found) == math.ceil(20 / block_rows)
        assert all(len(scores) <= 20 * block_rows for scores, _ in found)
        found = tuple(torch.cat(part) for part in zip(*found, strict=True))
    scores, target = sort_by_score(*found)
    given = sort_by_score(torch.tensor(expected), torch.tensor(labels).long())
    assert_close(scores, given[0], atol=1e-12, rtol=0)
    assert_close(target, given[1])


def test_trials_are_independent_of_row_order_and_labels():
    original, protected, speakers = people(number=5, each=4)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    one = F.trials(original, protected, speakers)
    other = F.trials(original[order], protected[order], 3 - speakers[order])
    for first, second in zip(sort_by_score(*one), sort_by_score(*other), strict=True):
        assert_close(first, second, atol=1e-14, rtol=0)


def test_torchmetrics_metrics_take_the_scores():
    rows = join(embeddings())
    scores, target = F.trials(**rows)
    positives, negatives = scores[target == 1][:, None], scores[target == 0]
    area = ((positives > negatives).double() + 0.5 * (positives == negatives)).mean().item()
    whole, by_block = BinaryAUROC(normalization=None), BinaryAUROC(normalization=None)
    whole.update(scores, target)
    for block in F.trials(**rows, block_rows=16):
        by_block.update(*block)
    assert whole.compute().item() == pytest.approx(area, abs=1e-6)
    assert by_block.compute().item() == pytest.approx(area, abs=1e-6)


COLUMNS = {
    "plain": ({}, {}, ("OO", "OP", "PP")),
    "sessions": ({"sessions": torch.arange(60) % 3}, {}, ("OP", "within", "across")),
    "groups": ({"groups": torch.arange(60) // 6 % 2}, {}, ("OO", "OP", "PP")),
    "utterance": (
        {"is_reference": torch.arange(60) % 2 == 0},
        {"enrolment": "utterance"},
        ("OP", "PP"),
    ),
    "speaker": (
        {"is_reference": torch.arange(60) % 2 == 0},
        {"enrolment": "speaker"},
        ("OP", "PP"),
    ),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_trials_are_those_of_the_suite(case):
    columns, settings, conditions = COLUMNS[case]
    rows = people(number=10, each=6)
    values = compute(Everything(**settings), *rows, **columns)
    for condition in conditions:
        scores, target = F.trials(*rows, condition, **columns, **settings)
        expected = values[f"{condition.lower()}_d_ece"]
        assert_close(F.zebra_disclosure(scores, target)["d_ece"], expected, atol=1e-9, rtol=0)


def test_gradient_reaches_the_embeddings():
    original, protected, speakers = people(number=4, each=3)
    protected.requires_grad_()
    scores, target = F.trials(original, protected, speakers)
    F.zebra_disclosure(scores, target, bandwidth=0.3)["d_ece"].backward()
    assert protected.grad.isfinite().all()
    assert (protected.grad != 0).any()


def test_one_speaker_without_pairs_has_no_trials():
    scores, target = F.trials(torch.randn(1, 4), torch.randn(1, 4), torch.tensor([1]))
    assert (len(scores), len(target), scores.dtype, target.dtype) == (
        0,
        0,
        torch.float32,
        torch.int64,
    )
    with pytest.warns(UserWarning, match="no trials"):
        assert F.equal_error_rate(scores, target).isnan()


def count_own_blocks(rank, world, folder):
    """Each rank scores its share of the blocks of the same embeddings.

    The histograms are added up once.
    """
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world
    )
    metric = vp.ZebraDisclosure(thresholds=1 << 12, score_range=(-1, 1))
    blocks = F.trials(*people(number=8, each=6), block_rows=5)
    for scores, target in blocks[rank::world]:
        metric.update(scores, target)
    torch.save(metric.compute(), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_processes_share_the_blocks_and_add_counts_once(tmp_path):
    run(count_own_blocks, 2, tmp_path)
    metric = vp.ZebraDisclosure(thresholds=1 << 12, score_range=(-1, 1))
    metric.update(*F.trials(*people(number=8, each=6)))
    alone = metric.compute()
    for rank in (0, 1):
        shared = torch.load(tmp_path / f"{rank}.pt")
        for key, value in alone.items():
            assert_close(shared[key], value, atol=0, rtol=0, msg=key)
