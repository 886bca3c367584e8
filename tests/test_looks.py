"""How often the host looks at a device: never in `update`, and a bounded number of times in `compute`."""

from __future__ import annotations

import pytest
import torch
from cases import CASES, RUN_CASES
from second_device import Looking, sent

import vpmetrics as vp
from vpmetrics._trials import pairs


def trials(count, **_):
    draw = torch.Generator().manual_seed(count)
    target = torch.rand(count, generator=draw) < 0.3
    return {"preds": torch.randn(count, generator=draw) + target, "target": target}


def utterances(count, each):
    """Utterances of speakers with so many each, more alike than different."""
    draw = torch.Generator().manual_seed(count)
    names = torch.arange(count) // each
    original = torch.randn(len(names), 5, generator=draw)[names] + torch.randn(count, 5, generator=draw)
    protected = 0.5 * original + torch.randn(count, 5, generator=draw)
    return {"original": original, "protected": protected, "speakers": names}


def looks(metric, batches, device):
    """How often all of `update`, and then `compute`, looked at the device."""
    metric = metric.to(device)
    with Looking() as updating:
        for batch in batches:
            metric.update(**batch)
    with Looking() as computing:
        metric.compute()
    return updating.looks, computing.looks


# Reads and copies of one `compute`, whatever the size, for those who keep 400 utterances or 400,000.
MOST = {
    "ZebraDisclosure": 2,
    "MinCllr": 1,
    "EqualErrorRate": 7,
    "Linkability": 3,
    "Cllr": 2,
    "CalibrationDistortion, linear": 12,
    "CalibrationDistortion, isotonic": 3,
    "VoicePrivacy": 130,
    "StrongestAttack": 30,
    "VoiceSimilarityMatrix": 15,
    "DeIdentification": 12,
    "VoiceDistinctiveness": 11,
    "SimilarityRankDisclosure": 8,
    "LocalInformationDisclosure": 20,
    "ReidentificationRate": 7,
    "SinglingOut": 30,
    "EmbeddingTrials of counts": 7,
    "EmbeddingTrials": 12,
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_update_never_looks_and_compute_a_bounded_number_of_times(case, device, monkeypatch):
    found = []
    for few, count, each in ((pairs.FEW_PAIRS, 60, 6), (pairs.FEW_PAIRS, 400, 5), (0, 240, 10)):
        monkeypatch.setattr(pairs, "FEW_PAIRS", few)
        rows = trials(count) if "preds" in case.batches()[0] else utterances(count, each)
        batches = [rows | {"run": run} for run in (0, 1)] if case in RUN_CASES else [rows]
        found.append(looks(case.metric(validate_args=False), [sent(batch, device) for batch in batches], device))
    assert not any(any(updating) for updating, _ in found), found
    assert all(computing.transfers <= MOST[str(case)] for _, computing in found), found


def test_attacks_look_a_bounded_number_of_times(device):
    """Once for each attack and fold at most, and twice for what is chosen of each attack."""
    found = []
    for count, each in ((60, 6), (240, 10)):
        metric = vp.StrongestAttack(validate_args=False)
        found.append(looks(metric, [sent(utterances(count, each), device)], device)[1].transfers)
    assert max(found) <= 100, found
