"""Collectives of torch.distributed: divide work among ranks, add up results, gather rows.

Nothing else communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

T = TypeVar("T")

# narrowest first
_LIST_DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64)


@dataclass(frozen=True)
class Processes:
    """The ranks that share one computation. All of them hold the same rows."""

    process_rank: int = 0
    world_size: int = 1
    group: Any = None

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return the items that this process works on."""
        return items[self.process_rank :: self.world_size]

    def all_reduce(self, *tensors: Tensor, op: str = "SUM") -> tuple[Tensor, ...]:
        """Return the sum, or another reduction, of each tensor over all processes.

        An error that another process has met since the last collective is raised here.
        """
        if self.world_size == 1:
            return tensors
        exchange_error(None, self, tensors[0].device)
        reduced = tuple(tensor.detach().contiguous().clone() for tensor in tensors)
        for tensor in reduced:
            distributed.all_reduce(tensor, op=getattr(distributed.ReduceOp, op), group=self.group)
        return reduced


SINGLE_PROCESS = Processes()


class RankError(RuntimeError):
    """An error that another process has met."""


def exchange_error(error: BaseException | None, processes: Processes, device: torch.device) -> None:
    """Raise on every process if one of them has an error.

    Every process calls this before each of its collectives.

    One number is exchanged where there is no error, and the texts of the errors where there is one.
    """
    if processes.world_size == 1 or isinstance(error, distributed.DistError):
        return
    has_error = torch.tensor(float(error is not None), device=device)
    distributed.all_reduce(has_error, op=distributed.ReduceOp.MAX, group=processes.group)
    if bool(has_error):
        raise_on_all_ranks(error, processes.group)


def current_processes(group: Any) -> Processes:
    """Return the ranks of a process group; one rank where torch.distributed is not initialised."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return SINGLE_PROCESS
    return Processes(distributed.get_rank(group), distributed.get_world_size(group), group)


def gather_objects(value: Any, group: Any) -> list[Any]:
    """Return the value of every process."""
    values: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(values, value, group=group)
    return values


def raise_on_all_ranks(error: BaseException | None, group: Any = None) -> None:
    """Raise on every rank if one of them has an error; every rank must call this.

    An error that is raised on one rank alone leaves the others waiting in their next collective.
    The rank with an error raises it; the others raise a :class:`RankError` that quotes it.
    """
    if current_processes(group).world_size > 1:
        text = None if error is None else f"{type(error).__name__}: {error}"
        text_of_rank = gather_objects(text, group)
    else:
        text_of_rank = []
    if error is not None:
        raise error
    for rank, text in enumerate(text_of_rank):
        if text is not None:
            raise RankError(f"Rank {rank} of {len(text_of_rank)} raised {text}")


def encode_dtype_and_width(state: Tensor | Sequence[Tensor]) -> list[int]:
    """Return the dtype's index, dimensions beyond the first, and width of a list state.

    The index is -1 for an empty list and for a state that is no list.
    """
    if isinstance(state, Tensor) or not state:
        return [-1, 0, 0]
    dtype_index = max(_LIST_DTYPES.index(rows.dtype) for rows in state)
    num_dimensions = state[0].dim()
    width = state[0].shape[1] if num_dimensions > 1 else 0
    return [dtype_index, num_dimensions - 1, width]


def align_list_states(
    states: Mapping[str, Any], gather: Callable[[Tensor], Sequence[Tensor]], device: torch.device
) -> dict[str, list[Tensor]]:
    """Bring list states into one dtype and width on all processes.

    One exchange does it; then they can be gathered.

    A process without a batch has neither, and gathering aborts where they differ.
    """
    forms = [encode_dtype_and_width(state) for state in states.values()]
    description = torch.tensor(forms, dtype=torch.int64, device=device).flatten()
    descriptions = [row.tolist() for row in gather(description)]
    if len({len(row) for row in descriptions}) > 1:
        raise ValueError(
            "Expected the same metric on all processes, but its states differ between them."
        )
    aligned = {}
    for state_index, (name, state) in enumerate(states.items()):
        start = 3 * state_index
        forms_of_ranks = [row[start : start + 3] for row in descriptions]
        known_forms = [form for form in forms_of_ranks if form[0] >= 0]
        widths = sorted({form[2] for form in known_forms})
        if len(widths) > 1:
            raise ValueError(
                f"Expected `{name}` to have one width on all processes, but got {widths}."
            )
        if known_forms and not isinstance(state, Tensor):
            dtype, dimensions, width = max(known_forms)
            empty = torch.empty(
                (0, width)[: 1 + dimensions], dtype=_LIST_DTYPES[dtype], device=device
            )
            aligned[name] = [torch.cat([empty, *(rows.to(empty.dtype) for rows in state)])]
    return aligned
