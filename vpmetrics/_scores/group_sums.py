"""Sums over trials, of all speakers and without each jackknife group."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from vpmetrics._util.distributed import Processes
from vpmetrics._utterances.utterances import add_counts


class SumsWithoutGroups:
    """Sums over trials in numbered slots, such as cells of the score axis.

    The only counting "without group g".

    What is left without a group is the sum of all trials less that of the trials that the group
    takes part in. A trial of two speakers belongs to the groups of both; where that is one group,
    it is one trial of it.

    Args:
        num_groups: Number of jackknife groups; a speaker in group ``num_groups`` is never left out.
        num_slots: Number of slots.
        dtype: Type of the sums: an integer to count.
        device: Device of the trials.
    """

    def __init__(
        self, num_groups: int, num_slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        # Row 0: all trials; then those of each group; the last row is unused, of those that are
        # never left out.
        self._table = torch.zeros(num_groups + 2, num_slots, dtype=dtype, device=device)

    @property
    def _unused_slot(self) -> int:
        return self._table.numel() - 1

    def add(
        self,
        slot: Tensor,
        first_group: Tensor,
        second_group: Tensor | None = None,
        values: Tensor | None = None,
        is_excluded: Tensor | None = None,
    ) -> None:
        """Add trials: 1 each, or their ``values``.

        All arguments have the shape of ``slot``, or groups broadcast to it.
        """
        num_slots = self._table.shape[1]
        slots = [slot, slot + num_slots * (1 + first_group)]
        if second_group is not None:
            slot_of_second = slot + num_slots * (1 + second_group)
            slots.append(
                torch.where(first_group == second_group, self._unused_slot, slot_of_second)
            )
        table = self._table.view(-1)
        for slot_of_trial in slots:
            if is_excluded is not None:
                slot_of_trial = slot_of_trial.masked_fill(is_excluded, self._unused_slot)
            if values is None:
                add_counts(table, slot_of_trial)
            else:
                table.index_add_(0, slot_of_trial.flatten(), values.flatten())

    def add_up_over(self, processes: Processes) -> None:
        """Replace the sums by those over all processes."""
        (self._table,) = processes.all_reduce(self._table)

    def of_all_and_without_groups(self) -> Tensor:
        """Return the sums of all trials and then without each group, ``(1 + G, num_slots)``."""
        return self._table[:1] - pad(self._table[1:-1], (0, 0, 1, 0))
