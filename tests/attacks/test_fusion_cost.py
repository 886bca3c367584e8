"""What the fused attacker costs: operations grow neither with folds nor settings nor utterances."""

from collections import Counter

import pytest
import torch
from samples import fading_voices
from torch.utils._python_dispatch import TorchDispatchMode

from vpmetrics._utterances.conditions import CONDITIONS
from vpmetrics._utterances.utterances import deduplicate_and_index, pack_utterances
from vpmetrics.attacks import (
    STANDARD,
    CanonicalCorrelation,
    Plain,
    RidgeToOriginal,
    WithinClassWhitening,
)
from vpmetrics.attacks.fusion import FusedAttacker

FEW = (Plain(), RidgeToOriginal(), WithinClassWhitening(), CanonicalCorrelation())


class CountedOperations(TorchDispatchMode):
    """Counts operations that are dispatched, but for views."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.counts[function.name()] += 1
        return function(*args, **(kwargs or {}))


def count_operations(attacks, speakers=40, utterances=10, width=48, conditions=("OP",)):
    """How often each operation is dispatched until the results of some conditions are known."""
    original, names, draw = fading_voices(speakers, utterances, width, dtype=torch.float32)
    protected = original.flip(1) + torch.randn(original.shape, generator=draw)
    data = deduplicate_and_index(pack_utterances(original, protected, names))
    wanted = [CONDITIONS[name] for name in conditions]
    with CountedOperations() as counted:
        attacker = FusedAttacker(data, attacks, wanted)
        for condition in wanted:
            attacker.result(condition)
    return counted.counts


# Rounds of PAV follow from the scores: a dozen operations each.
PAV_ROUNDS = 120


def test_operations_do_not_grow_with_folds():
    two, ten = (count_operations(FEW, speakers).total() for speakers in (6, 100))
    assert abs(ten - two) <= PAV_ROUNDS


def test_operations_do_not_grow_with_settings():
    class ManyRidges(RidgeToOriginal):
        settings = tuple(torch.logspace(-4, 1, 40).tolist())

    few, many = (
        count_operations([Plain(), attack]).total() for attack in (RidgeToOriginal(), ManyRidges())
    )
    assert abs(many - few) <= PAV_ROUNDS


def test_operations_grow_with_utterances_by_blocks_only():
    few, many = (count_operations(FEW, utterances=utterances).total() for utterances in (16, 48))
    assert abs(many - few) <= PAV_ROUNDS + 60  # a sample is drawn where there are many


def test_no_decomposition_is_on_the_way():
    counts = count_operations(
        STANDARD, speakers=12, utterances=4, width=16, conditions=("OP", "PP")
    )
    assert not [name for name in counts if "eig" in name or "svd" in name or "lstsq" in name]
    assert not [
        name for name in counts if name.endswith(("linalg_cholesky", "linalg_inv", "linalg_solve"))
    ]


@pytest.mark.parametrize("utterances", [10, 50])
def test_all_attacks_on_two_conditions_take_few_operations(utterances):
    counts = count_operations(STANDARD, utterances=utterances, width=192, conditions=("OP", "PP"))
    assert counts.total() <= 3500
    assert counts["aten::_local_scalar_dense"] <= 60
