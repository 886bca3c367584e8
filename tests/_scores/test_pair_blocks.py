"""The loop over pairs: every trial once.

Whatever the block size, the number of ranks, sessions and groups.
"""

from itertools import combinations, permutations, product

import pytest
import torch
from cases import embeddings, join, take
from reports import make_report
from torch.nn.functional import normalize
from torch.testing import assert_close

from vpmetrics._scores import pair_blocks
from vpmetrics._scores.pair_blocks import PairBlocks
from vpmetrics._scores.score_counts import expected_disclosure
from vpmetrics._scores.scorers import SCORERS
from vpmetrics._utterances.conditions import CONDITIONS
from vpmetrics._utterances.utterances import deduplicate_and_index, pack_utterances
from vpmetrics.data import demo_voices

SIDES = {"original": 0, "protected": 1}


def labelled(*names):
    """Rows with sessions, groups and recordings, as far as they are asked for."""
    rows = join(embeddings())
    count, place = len(rows["speakers"]), rows["speakers"].unique(return_inverse=True)[1]
    return rows | {
        name: {"sessions": torch.arange(count) % 3, "groups": place % 2}[name] for name in names
    }


def form_pairs(rows, name, **settings):
    data = deduplicate_and_index(pack_utterances(**rows))
    condition = CONDITIONS[name]
    settings = {"scorer": SCORERS["cosine"], "condition": condition} | settings
    return PairBlocks(*data.sides(condition), len(data.speakers), **settings)


def expected_trials(rows, name):
    """Scores and labels of every pair by a loop, from the definition of the condition."""
    condition, unit = (
        CONDITIONS[name],
        [normalize(rows[side].double()) for side in ("original", "protected")],
    )
    first, second = unit[SIDES[condition.enrolment]], unit[SIDES[condition.test]]
    count, found = len(rows["speakers"]), []
    names, sessions, groups = (
        rows.get(key, torch.zeros(count)).tolist() for key in ("speakers", "sessions", "groups")
    )
    for i, j in (
        combinations(range(count), 2) if condition.is_same_side else permutations(range(count), 2)
    ):
        is_target = names[i] == names[j]
        wanted = {
            "any": True,
            "same": sessions[i] == sessions[j],
            "other": sessions[i] != sessions[j],
        }
        if groups[i] == groups[j] and (not is_target or wanted[condition.target_sessions]):
            found.append((is_target, float(first[i] @ second[j])))
    return sorted(found)


@pytest.mark.parametrize(
    ("condition", "size", "columns"),
    [
        *product(("OO", "OP", "PP"), (1, 7, 64, 1000), ((),)),
        *product(CONDITIONS, (40,), (("sessions",), ("sessions", "groups"))),
    ],
)
def test_every_trial_occurs_once_for_any_block_size(condition, size, columns):
    rows = labelled(*columns)
    pairs = form_pairs(rows, condition, block_size=size)
    scores, labels = pairs.scores_and_labels()
    expected = expected_trials(rows, condition)
    assert sorted(labels.tolist()) == [is_target for is_target, _ in expected]
    for label in (False, True):
        of_label = torch.tensor(
            [score for is_target, score in expected if is_target == label]
        ).double()
        assert_close(scores[labels == label].sort().values, of_label)
    # Only blocks of the same speakers have masks, and those that are left to targets are these.
    for group in pairs.row_groups():
        near = [block.columns for block in pairs.blocks(group, has_targets=True)]
        assert near == [
            block.columns for block in pairs.blocks(group) if block.is_target is not None
        ]
    if not columns:
        both = pairs.trial_speakers()
        assert torch.equal(both[0] == both[1], labels)


@pytest.mark.parametrize("similarity", ["geometric", "sigmoid"])
def test_bins_agree_with_scores(monkeypatch, similarity):
    voices, values, worst = demo_voices(), [], []
    for few in (pair_blocks.FEW_PAIRS, 0):
        monkeypatch.setattr(pair_blocks, "FEW_PAIRS", few)
        rows = voices.original[::2], voices.protected["B2r0"][::2], voices.speakers[::2]
        report = make_report(rows, similarity=similarity)
        values.append(report.scalars)
        worst.append(report.conditions["OP"].scores.worst_counts)
    exact, binned = values
    for key, expected in exact.items():
        # Extremes and interpolated rates feel their bins most; a threshold moves by one bin.
        allowed = 2e-2 if "l_w" in key or "tpr" in key else 2e-3
        assert_close(
            binned[key],
            expected,
            atol=allowed,
            rtol=allowed,
            equal_nan=True,
            msg=f"{key}: {binned[key]}",
        )
    assert worst[0] is None
    most = expected_disclosure(worst[1]().ascending)  # with every bin taken apart
    assert binned["op_d_ece"] - 1e-9 <= exact["op_d_ece"] <= most + 1e-9
    assert most - binned["op_d_ece"] < 1e-3


@pytest.mark.parametrize("scoring", SCORERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_prepared_rows_are_independent_of_order(scoring, dtype):
    rows = join(embeddings(dtype=dtype))
    mixed = torch.randperm(len(rows["speakers"]), generator=torch.Generator().manual_seed(0))
    sides = [
        form_pairs(take(rows, order), "OO", scorer=SCORERS[scoring]).enrolment.embeddings
        for order in (slice(None), mixed)
    ]
    assert torch.equal(*sides)
