"""A bound, on paper, of the time of ``update`` and ``compute`` on GPUs.

Launches, arithmetic, memory and syncs.

No GPU is needed: operations are counted as a GPU would get them, and multiplied by published peaks.
"""

import warnings

import pytest
import torch
from operations import GPUS, as_on_a_gpu, count_operations
from samples import people

import vpmetrics as vp

pytestmark = pytest.mark.bench

EMBEDDING_METRICS = {
    "VoicePrivacy(attacks=None, conversations=0)": lambda: vp.VoicePrivacy(
        attacks=None, conversations=0, **QUIET
    ),
    "the same with intervals": lambda: vp.VoicePrivacy(
        attacks=None, conversations=0, intervals=0.95, **QUIET
    ),
    "VoicePrivacy()": lambda: vp.VoicePrivacy(**QUIET),
    "VoiceSimilarityMatrix": lambda: vp.VoiceSimilarityMatrix(**QUIET),
    "DeIdentification": lambda: vp.DeIdentification(**QUIET),
    "VoiceDistinctiveness": lambda: vp.VoiceDistinctiveness(**QUIET),
    "SimilarityRankDisclosure": lambda: vp.SimilarityRankDisclosure(**QUIET),
    "LocalInformationDisclosure": lambda: vp.LocalInformationDisclosure(**QUIET),
    "ReidentificationRate": lambda: vp.ReidentificationRate((20, 100), **QUIET),
    "SinglingOut": lambda: vp.SinglingOut((20,), **QUIET),
    "StrongestAttack": lambda: vp.StrongestAttack(**QUIET),
}
SCORE_METRICS = (
    vp.ZebraDisclosure,
    vp.MinCllr,
    vp.Cllr,
    vp.EqualErrorRate,
    vp.Linkability,
    vp.TPRAtFPR,
)
QUIET = {"validate_args": False}
COLUMNS = ("launches", "linalg", "syncs", "MB", "GFLOP", *(f"{gpu}, ms" for gpu in GPUS))


def row_of(counts):
    numbers = [
        counts.launches,
        counts.linalg,
        counts.syncs,
        counts.bytes_moved / 1e6,
        counts.flops / 1e9,
    ]
    cells = [f"{number:.0f}" for number in numbers[:4]] + [f"{numbers[4]:.2f}"]
    for gpu in GPUS:
        low, high = (1e3 * seconds for seconds in counts.seconds(gpu))
        cells.append(f"{low:.1f} to {high:.1f}")
    return cells


def show(name, counts):
    print("| " + " | ".join([name, *row_of(counts)]) + " |", flush=True)


def count_update_and_compute(metric, rows):
    with as_on_a_gpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return count_operations(lambda: metric.update(*rows)), count_operations(metric.compute)


@pytest.mark.parametrize("utterances", [10, 50])
def test_bound_of_embedding_metrics(utterances):
    rows = people(number=40, each=utterances, width=192, noise=1.5, dtype=torch.float32)
    print(f"\n{40 * utterances} utterances\n| | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for name, make in EMBEDDING_METRICS.items():
        update, compute = count_update_and_compute(make(), rows)
        assert update.syncs == 0
        show(f"`{name}`", compute)
    show("`update` of each", update)


def test_bound_of_score_metrics():
    generator = torch.Generator().manual_seed(0)
    target = (torch.rand(1_000_000, generator=generator) < 0.02).long()
    preds = torch.randn(len(target), generator=generator) + target
    print("\na million scores\n| | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for metric in SCORE_METRICS:
        update, compute = count_update_and_compute(metric(**QUIET), (preds, target))
        assert update.syncs == 0
        show(f"`{metric.__name__}`", compute)
    show("`update` of each", update)
