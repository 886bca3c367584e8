"""Moments of a stream of utterances, kept as buffers of a module."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from vpmetrics._trials.moments import Moments, merge, rows_as_moments

_PENDING = 4096  # rows watched before they are added up, which waits for the device
_FIELDS = tuple(field.name for field in fields(Moments))


class Resizable(nn.Module):
    """A module whose buffers come in any size, or not at all, and are loaded so."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        for name in self._buffers:
            kept = state_dict.get(prefix + name)
            self._buffers[name] = None if kept is None else torch.empty_like(kept, device=self._device_of(kept))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _device_of(self, kept: Tensor) -> torch.device:
        return next((old.device for old in self._buffers.values() if old is not None), kept.device)


class Watched(Resizable):
    """Moments of all utterances that were added, in the memory that their speakers take.

    Groups of speakers follow from their numbers, since nothing else is known of a speaker who is seen first.
    """

    def __init__(self, groups: int = 5) -> None:
        super().__init__()
        self.number_of_groups = groups
        self._pending: list[Moments] = []
        for name in _FIELDS:
            self.register_buffer(name, None)

    @torch.no_grad()
    def add(self, original: Tensor, protected: Tensor, speakers: Tensor) -> None:
        """Add some pairs; nothing waits for the device but once in a few thousand rows."""
        count = self.number_of_groups
        groups = _scatter_numbers(speakers) % count
        # Copies, because who gave the rows may write over them before they are added up.
        original, protected, speakers = original.detach().clone(), protected.detach().clone(), speakers.clone()
        self._pending.append(rows_as_moments(original, protected, speakers, groups, count))
        if sum(len(part.names) for part in self._pending) >= _PENDING:
            self._add_up()

    def join(self, other: Watched) -> None:
        """Add what another has watched."""
        if (moments := other.moments) is not None:
            self._pending.append(moments)

    @property
    def width(self) -> int | None:
        """How wide the embeddings are; None before there are any."""
        known = self._pending[-1] if self._pending else self._kept()
        return None if known is None else known.original.shape[1]

    @property
    def moments(self) -> Moments | None:
        """Moments of everything added so far; None before."""
        self._add_up()
        return self._kept()

    def clear(self) -> None:
        """Forget everything."""
        self._pending = []
        for name in _FIELDS:
            setattr(self, name, None)

    def _kept(self) -> Moments | None:
        kept = [buffer for buffer in self._buffers.values() if buffer is not None]
        return Moments(*kept) if kept else None

    def _add_up(self) -> None:
        kept, parts = self._kept(), self._pending
        if not parts:
            return
        device = parts[-1].names.device  # where embeddings now come from
        parts = [Moments(*(part.to(device) for part in each.tensors())) for each in ([kept, *parts] if kept else parts)]
        for name, value in zip(_FIELDS, merge(parts).tensors(), strict=True):
            setattr(self, name, value)
        self._pending = []

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Everything added so far."""
        self._add_up()
        return super().state_dict(*args, **kwargs)


def _scatter_numbers(speakers: Tensor) -> Tensor:
    """Numbers that have nothing in common where speakers do, such as the last digit; of 0 or more."""
    mixed = speakers.to(torch.int64) * 0x9E3779B1
    return (mixed ^ (mixed >> 15)) & 0xFFFF
