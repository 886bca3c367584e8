"""What an attacker compares: rows of both sides, as the fitted attack maps them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import wide_dtype
from vpmetrics._trials.conditions import Condition
from vpmetrics._trials.scorers import SCORERS
from vpmetrics._trials.separation import map_rows
from vpmetrics._trials.utterances import Side

_AT_ONCE = 1 << 13  # rows mapped


def compared(fitted: Any, reference: Side, probe: Side, condition: Condition, few: bool) -> tuple[Tensor, Tensor]:
    """References and probes as the attacker compares them, at length 1; where they are ``few``, in all digits."""
    right = _mapped(fitted, None, probe.vectors, few)
    if reference is probe:
        return right, right
    if condition.one_sided:
        return _mapped(fitted, None, reference.vectors, few), right
    return _mapped(fitted, reference.vectors, None, few), right


def _mapped(fitted: Any, original: Tensor | None, protected: Tensor | None, few: bool) -> Tensor:
    """Rows of one side, mapped and at length 1; some at a time, so that there is no copy of all of them but this."""
    mean = matrix = None
    if hasattr(fitted, "attack"):
        rows = next(side for side in fitted.attack(original, protected) if side is not None)
    elif original is not None:
        rows, mean, matrix = original, fitted.mean_o, fitted.map_o
    else:
        assert protected is not None
        rows, mean, matrix = protected, fitted.mean_p, fitted.map_p
    # What is known to few digits is compared in few; a few pairs cost nothing in all digits.
    dtype = wide_dtype(rows.device) if few else torch.float32
    directions: Tensor = rows.new_empty(len(rows), (rows if matrix is None else matrix).shape[1], dtype=dtype)
    for some, into in zip(rows.detach().split(_AT_ONCE), directions.split(_AT_ONCE), strict=True):
        into.copy_(SCORERS["cosine"].prepare(map_rows(some, mean, matrix).to(dtype)).nan_to_num_())
    return directions


class ChosenAttack(NamedTuple):
    """An attack that was fitted on other speakers, with the direction in which its scores say most."""

    fitted: Any
    is_turned: bool
    few: bool

    def attack(self, original: Tensor | None, protected: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Either side as it is compared."""
        mapped = _mapped(self.fitted, original, protected, self.few)
        return (None, mapped) if original is None else (mapped, None)

    def compare(self, a: Tensor, b: Tensor) -> Tensor:
        """Cosines, turned where that says more."""
        cosine = SCORERS["cosine"]
        scores = cosine.compare(cosine.prepare(a), cosine.prepare(b))
        return -scores if self.is_turned else scores
