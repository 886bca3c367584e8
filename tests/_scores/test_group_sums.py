"""Sums without a group: what is left when the trials of its speakers are taken away."""

import pytest
import torch
from torch.testing import assert_close

from vpmetrics._scores.group_sums import SumsWithoutGroups

GROUPS, SLOTS, TRIALS = 4, 3, 60


def draw():
    """Slots, groups of both speakers (4: never left out), values, and which trials are excluded."""
    generator = torch.Generator().manual_seed(0)
    slots = torch.randint(SLOTS, (TRIALS,), generator=generator)
    first, second = torch.randint(GROUPS + 1, (2, TRIALS), generator=generator)
    values = torch.rand(TRIALS, generator=generator, dtype=torch.float64)
    return slots, first, second, values, torch.rand(TRIALS, generator=generator) < 0.2


@pytest.mark.parametrize("has_second", [True, False])
@pytest.mark.parametrize("has_values", [True, False])
@pytest.mark.parametrize("excludes", [True, False])
def test_sums_equal_a_loop_over_trials(has_second, has_values, excludes):
    slots, first, second, values, is_excluded = draw()
    sums = SumsWithoutGroups(GROUPS, SLOTS, torch.float64, slots.device)
    for part in (slice(0, 20), slice(20, TRIALS)):
        sums.add(
            slots[part],
            first[part],
            second[part] if has_second else None,
            values[part] if has_values else None,
            is_excluded[part] if excludes else None,
        )
    expected = torch.zeros(1 + GROUPS, SLOTS, dtype=torch.float64)
    for row in range(1 + GROUPS):
        for trial in range(TRIALS):
            groups = {int(first[trial]), int(second[trial])} if has_second else {int(first[trial])}
            is_left_out = row > 0 and row - 1 in groups
            if not is_left_out and not (excludes and is_excluded[trial]):
                expected[row, slots[trial]] += values[trial] if has_values else 1
    assert_close(sums.of_all_and_without_groups(), expected, rtol=0, atol=1e-12)


def test_groups_of_a_block_broadcast():
    slots = torch.zeros(2, 3, dtype=torch.int64)
    sums = SumsWithoutGroups(3, 1, torch.int64, slots.device)
    sums.add(slots, torch.tensor([[0], [1]]), torch.tensor([[0, 1, 2]]))
    assert sums.of_all_and_without_groups().flatten().tolist() == [6, 2, 2, 4]
