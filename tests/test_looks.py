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


# Reads and copies in one `compute`, be there 400 utterances or 400,000.
MOST = {
    "ZebraDisclosure": 1,
    "MinCllr": 1,
    "EqualErrorRate": 1,
    "Linkability": 1,
    "Cllr": 2,
    "CalibrationDistortion, linear": 3,
    "CalibrationDistortion, isotonic": 3,
    "VoicePrivacy": 12,
    "StrongestAttack": 9,
    "VoiceSimilarityMatrix": 6,
    "DeIdentification": 5,
    "VoiceDistinctiveness": 4,
    "SimilarityRankDisclosure": 3,
    "LocalInformationDisclosure": 4,
    "ReidentificationRate": 7,
    "SinglingOut": 30,
    "EmbeddingTrials of counts": 5,
    "EmbeddingTrials": 5,
}
# Utterances, and those of a speaker; binned also of one tile and of several.
SIZES = {"few": (60, 6), "some": (400, 5), "binned": (60, 6), "tiles": (240, 10)}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_update_never_looks_and_compute_as_often_whatever_the_size(case, device, monkeypatch):
    found = {}
    for name, (count, each) in SIZES.items():
        monkeypatch.setattr(pairs, "FEW_PAIRS", 1 << 22 if name in ("few", "some") else 0)
        monkeypatch.setattr(pairs, "TILE", 64 if name == "tiles" else 1024)
        rows = trials(count) if "preds" in case.batches()[0] else utterances(count, each)
        batches = [rows | {"run": run} for run in (0, 1)] if case in RUN_CASES else [rows]
        updating, found[name] = looks(
            case.metric(validate_args=False), [sent(batch, device) for batch in batches], device
        )
        assert not any(updating), updating
    assert max(seen.transfers for seen in found.values()) <= MOST[str(case)], found
    if str(case) != "SinglingOut":  # which copies every draw of a set, fewer where there are more speakers
        assert found["some"] == found["few"], found
    if not str(case).startswith(("SinglingOut", "EmbeddingTrials")):  # which picks the trials out of every tile
        assert found["tiles"] == found["binned"], found


def test_attacks_look_a_bounded_number_of_times(device):
    """As many times for as many folds, of which there are at most ten."""
    found = []
    for count, each in ((80, 5), (240, 10)):
        metric = vp.VoicePrivacy(validate_args=False)
        found.append(looks(metric, [sent(utterances(count, each), device)], device)[1].transfers)
    assert found[0] == found[1] <= 76, found


def test_a_second_look_at_the_same_original_speech_is_one(device):
    metric = vp.VoicePrivacy(attacks=None, validate_args=False).to(device)
    rows = sent(utterances(60, 6), device)
    metric.update(**rows)
    metric.compute()
    metric.reset()
    metric.update(**rows)
    with Looking() as seen:
        metric.compute()
    assert seen.looks.transfers <= MOST["VoicePrivacy"]
