"""GPU synchronisations: none in `update`.

In `compute` a number that does not grow with the data.
"""

import pytest
import torch
from cases import ATTRIBUTE_CASE, CASES, RUN_CASES
from samples import gaussians, people
from torch.utils._pytree import tree_leaves

import vpmetrics as vp
from second_device import looking, sent
from vpmetrics._scores import pair_blocks

pytestmark = pytest.mark.slow


def utterances(count, each):
    """Utterances of speakers with so many each."""
    rows = people(number=count // each, each=each, width=5, dtype=torch.float32)
    return dict(zip(("original", "protected", "speakers"), rows, strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_update_syncs_only_for_validation(case, device):
    first, second = (sent(batch, device) for batch in case.batches()[:2])
    for validate_args, most in ((False, 0), (True, 2)):  # a list of at most two flags, in one look
        metric = case.metric(validate_args=validate_args).to(device)
        metric.update(**first)
        with looking() as seen:
            metric.update(**second)
        assert sum(seen[0]) <= most, seen
        assert {tensor.device.type for tensor in tree_leaves(metric.metric_state)} == {"second"}


def count_syncs(metric, batches, device):
    """Return the reads and copies of `compute`."""
    metric = metric.to(device)
    for batch in batches:
        metric.update(**sent(batch, device))
    with looking() as seen:
        metric.compute()
    return sum(seen[0][:3])


# Reads and copies in one `compute`, whether of 120 utterances or of 200,000; six at most of those
# that are not here.
MOST = {"VoicePrivacy": 128, "StrongestAttack": 32, "SinglingOut": 32, "ReidentificationRate": 7}
# Utterances, and those of a speaker; binned also of one block and of several.
SIZES = {"few": (60, 6), "some": (120, 5), "binned": (60, 6), "blocks": (180, 9)}


@pytest.mark.parametrize("case", [case for case in CASES if case is not ATTRIBUTE_CASE], ids=str)
def test_compute_syncs_are_independent_of_data_size(case, device, monkeypatch):
    found = {}
    for name, (count, each) in SIZES.items():
        monkeypatch.setattr(pair_blocks, "FEW_PAIRS", 1 << 22 if name in ("few", "some") else 0)
        monkeypatch.setattr(pair_blocks, "BLOCK_SIZE", 64 if name == "blocks" else 512)
        trials = dict(
            zip(("preds", "target"), gaussians(count // 3, count - count // 3), strict=True)
        )
        rows = trials if "preds" in case.batches()[0] else utterances(count, each)
        batches = [rows | {"run": run} for run in (0, 1)] if case in RUN_CASES else [rows]
        found[name] = count_syncs(case.metric(validate_args=False), batches, device)
    assert max(found.values()) <= MOST.get(str(case), 6), found
    # sets are drawn, and folds are as many as fit
    if str(case) not in ("SinglingOut", "StrongestAttack"):
        # more speakers may have conversations of another length
        assert found["some"] <= found["few"] + 2, found
        assert found["blocks"] == found["binned"], found


def test_headline_with_standard_attacks_has_bounded_syncs(device):
    for count, each in ((80, 5), (160, 10)):
        metric = vp.VoicePrivacy(validate_args=False)
        assert count_syncs(metric, [utterances(count, each)], device) <= 400
