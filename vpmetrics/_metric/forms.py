"""What states look like from outside: what processes agree on before they gather, and metrics before they merge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Gather = Callable[[Tensor], Sequence[Tensor]]

_DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64)  # of list states, widest last
_NO_ROWS, _TENSOR = -1, -2  # kinds of a state besides these dtypes


class Form(NamedTuple):
    """Kind of a state, further dimensions of its rows (0 or 1), and how wide it is; whole numbers, to be gathered."""

    kind: int
    dims: int
    width: int


def form_of(state: Tensor | Sequence[Tensor]) -> Form:
    """The form of a state; a list has the widest dtype of its rows."""
    if isinstance(state, Tensor):
        return Form(_TENSOR, 0, state.numel())
    if not state:
        return Form(_NO_ROWS, 0, 0)
    width = state[0].shape[1] if state[0].dim() > 1 else 0
    return Form(max(_DTYPES.index(rows.dtype) for rows in state), state[0].dim() - 1, width)


def agree(name: str, forms: Sequence[Form], where: str) -> Form:
    """The one form that fits all, or an error that says what differs."""
    kinds = {form.kind for form in forms}
    if _TENSOR in kinds and len(kinds) > 1:
        raise ValueError(f"Expected metrics with the same settings {where}, but `{name}` is of different kinds.")
    widths = sorted({form.width for form in forms if form.kind != _NO_ROWS})
    if len(widths) > 1:
        got = " and ".join(map(str, widths))
        raise ValueError(f"Expected `{name}` to be equally wide {where}, but got widths {got}.")
    return Form(*(max(numbers) for numbers in zip(*forms, strict=True)))


def agree_on_forms(states: Mapping[str, Any], gather: Gather, device: torch.device) -> dict[str, Form]:
    """The forms all processes have in common, learnt in one go; every process raises where there are none."""
    own = torch.tensor([form_of(state) for state in states.values()], device=device).flatten()
    gathered = gather(own)
    if any(forms.shape != own.shape for forms in gathered):
        raise ValueError("Expected metrics with the same settings on all processes, but they keep different states.")
    table = torch.stack(list(gathered)).view(len(gathered), len(states), -1).transpose(0, 1).tolist()
    return {
        name: agree(name, [Form(*form) for form in forms], "on all processes")
        for name, forms in zip(states, table, strict=True)
    }


def check_mergeable(own: Mapping[str, Any], incoming: Mapping[str, Any]) -> None:
    """Refuse the states of a metric with other settings, before anything is merged."""
    if not set(own) <= set(incoming):
        raise ValueError(
            f"Expected the state of a metric with the same settings, {', '.join(own)}, but got {', '.join(incoming)}."
        )
    for name, state in own.items():
        agree(name, [form_of(state), form_of(incoming[name])], "in both metrics")


def rows_of_form(rows: Sequence[Tensor], form: Form, device: torch.device, joined: bool) -> list[Tensor]:
    """A list state of the common form, also where there are no rows; ``joined`` to one tensor it can be gathered."""
    if form.kind == _NO_ROWS:
        return []
    empty = torch.empty((0, form.width)[: 1 + form.dims], dtype=_DTYPES[form.kind], device=device)
    parts = [empty, *(part.to(empty.dtype) for part in rows)]
    return [torch.cat(parts)] if joined else parts
