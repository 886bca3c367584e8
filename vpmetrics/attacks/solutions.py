"""Fitted attacks: how rows of each side are mapped before they are compared.

A solution holds the maps of all training sets and settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from vpmetrics._utterances.conditions import SideName
from vpmetrics.attacks.moments import RowNormaliser

RowMap = Callable[[Tensor], Tensor]


@runtime_checkable
class SetwiseMap(Protocol):
    """A map of rows ``(T, N, D)`` that differs between training sets."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the mapped rows ``(..., T, N, d)``."""

    def select_sets(self, sets: slice) -> RowMap:
        """Return the map of some of the training sets."""


Step = Tensor | RowMap  # a matrix (..., D, d), or a function of rows
Steps = tuple[Step, ...]


class Maps(NamedTuple):
    """What a linear attack does to each side: ``(x - mean) @ map``.

    A mean of zero is None, and so is the identity.

    A map may also be several steps, one after another: matrices and functions of rows.

    Example:
        >>> mean = torch.tensor([1.0, 2.0])
        >>> Maps(mean_o=mean, mean_p=-mean).map_p is None
        True
    """

    mean_o: Tensor | None = None
    map_o: Tensor | Steps | None = None
    mean_p: Tensor | None = None
    map_p: Tensor | Steps | None = None


@dataclass(frozen=True, eq=False)
class Shift:
    """Subtraction of the mean of each training set, ``(T, 1, D)`` or ``(D,)``."""

    mean: Tensor

    def __call__(self, rows: Tensor) -> Tensor:
        """Return rows minus the mean."""
        return rows - self.mean.to(rows)

    def select_sets(self, sets: slice) -> Shift:
        """Return the subtraction of the means of some training sets."""
        return Shift(self.mean[sets]) if self.mean.dim() > 1 else self


class Solution(NamedTuple):
    """The steps of each side, for all training sets and settings.

    Rows ``(T, N, D)`` become ``(S, T, N, d)``.
    """

    original: Steps
    protected: Steps

    def map_side(self, rows: Tensor, side: SideName) -> Tensor:
        """Return rows ``(T, N, D)`` of a side after its steps, ``(S, T, N, d)``.

        ``S`` is 1 where no setting counts.
        """
        steps = self.original if side == "original" else self.protected
        with torch.autocast(rows.device.type, enabled=False):
            for step in steps:
                if isinstance(step, Tensor):
                    rows = rows @ step.to(rows)
                else:
                    rows = step(rows)
        return rows if rows.dim() == 4 else rows[None]

    def convert_dtype(self, dtype: torch.dtype) -> Solution:
        """Return the solution with matrices of another dtype."""
        return Solution(
            _convert_matrices(self.original, dtype), _convert_matrices(self.protected, dtype)
        )

    def split_normaliser(self, side: SideName) -> tuple[RowNormaliser | None, Solution]:
        """Return the normaliser that a side begins with, and the solution without it."""
        steps = self.original if side == "original" else self.protected
        if not steps or not isinstance(steps[0], RowNormaliser):
            return None, self
        if side == "original":
            return steps[0], Solution(steps[1:], self.protected)
        return steps[0], Solution(self.original, steps[1:])

    def select_sets(self, sets: slice) -> Solution:
        """Return the solution for some of the training sets."""
        return Solution(_select_sets(self.original, sets), _select_sets(self.protected, sets))


def _convert_matrices(steps: Steps, dtype: torch.dtype) -> Steps:
    converted: list[Step] = []
    for step in steps:
        if isinstance(step, Tensor):
            converted.append(step.to(dtype))
        else:
            converted.append(step)
    return tuple(converted)


def _select_sets(steps: Steps, sets: slice) -> Steps:
    return tuple(_select_sets_of_step(step, sets) for step in steps)


def _select_sets_of_step(step: Step, sets: slice) -> Step:
    if isinstance(step, Tensor):
        return step[..., sets, :, :] if step.dim() > 2 else step
    if isinstance(step, SetwiseMap):
        return step.select_sets(sets)
    return step


def join_steps(
    normaliser: RowMap | None, mean: Tensor | None, maps: Tensor | Steps | None
) -> Steps:
    """Return the steps of a side: its normalisation, the subtraction of a mean, and a map."""
    steps: list[Step] = []
    if normaliser is not None:
        steps.append(normaliser)
    if mean is not None:
        steps.append(Shift(mean))
    if isinstance(maps, Tensor):
        steps.append(maps)
    elif maps is not None:
        steps.extend(maps)
    return tuple(steps)


class SeparateSolutions(NamedTuple):
    """Attacks that were fitted one by one.

    ``functions[setting][training set]`` maps rows ``(N, D)`` of a side.
    """

    functions: Sequence[Sequence[Callable[[Tensor, SideName], Tensor]]]

    def map_side(self, rows: Tensor, side: SideName) -> Tensor:
        """Return rows of a side after each attack, ``(S, T, N, d)``.

        Rows are ``(T, N, D)``; narrow ones are filled up with zeros.
        """
        mapped: list[Tensor] = []
        for functions in self.functions:
            for function, rows_of_set in zip(functions, rows, strict=True):
                mapped.append(function(rows_of_set, side).to(rows))
        width = max(mapped_rows.shape[-1] for mapped_rows in mapped)
        filled = torch.stack([_fill_columns(mapped_rows, width) for mapped_rows in mapped])
        return filled.view(len(self.functions), len(rows), -1, width)

    def select_sets(self, sets: slice) -> SeparateSolutions:
        """Return the solutions of some of the training sets."""
        return SeparateSolutions([functions[sets] for functions in self.functions])


def _fill_columns(rows: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[-1]))


AnySolution = Solution | SeparateSolutions
