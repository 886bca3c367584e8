"""What the metrics of embeddings keep: every one of them the same, so that a collection holds one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vpmetrics._checks import check_sizes, warn_once
from vpmetrics._metric.base import PrivacyMetric, SureMetric
from vpmetrics._trials import shares
from vpmetrics._trials.galleries import conversations_of_sides
from vpmetrics._trials.passing import rows_by_speaker
from vpmetrics._trials.utterances import Rows, Sides, check_rows, pack, sides_of


class EmbeddingMetric(PrivacyMetric):
    """A metric of utterances, embedded before and after protection. Trials are formed at ``compute``, never stored."""

    if TYPE_CHECKING:  # annotations that TorchScript would try to resolve
        original: list[Tensor]
        protected: list[Tensor]
        speakers: list[Tensor]
        utterances: list[Tensor]
        sessions: list[Tensor]
        groups: list[Tensor]
        row_holds: list[Tensor]

    def __init__(self, bandwidth: float | None = None, validate_args: bool = True, **kwargs: Any) -> None:
        super().__init__(bandwidth, validate_args, **kwargs)
        for name in Rows._fields:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(
        self,
        original: Tensor | None = None,
        protected: Tensor | None = None,
        speakers: Tensor | None = None,
        is_reference: Tensor | None = None,
        utterances: Tensor | None = None,
        sessions: Tensor | None = None,
        groups: Tensor | None = None,
    ) -> None:
        """Accumulate a batch of utterances.

        Args:
            original: Embeddings ``(B, D)`` of the original speech; None where there is none of these utterances.
            protected: Embeddings ``(B, D)`` of the protected speech, row i that of row i of ``original``; None where
                there is none.
            speakers: Who speaks, ``(B,)``; any integers.
            is_reference: Which utterances the attacker knows the speakers of, ``(B,)`` booleans; for the metrics of
                identification. Left out, every speaker's other utterances are the references.
            utterances: Recording IDs, ``(B,)``; any integers. Rows that share one, as a distributed sampler makes to
                fill up its last batch, count once; protected in another session, a recording is another one.
            sessions: Which draw of the anonymiser's secret (key, pseudo-speaker) a row was protected with, ``(B,)``;
                any integers. A protected voice should be recognised within a session and not across sessions.
            groups: Only pairs of one group are trials, ``(B,)``; any integers, such as one per sex or data set.
        """
        self._refuse_batch(is_reference)
        rows = pack(
            original,
            protected,
            speakers,
            is_reference,
            utterances,
            sessions,
            groups,
            width=self._width(),
            values=self.validate_args,
        )
        # Copies, because a view would keep the whole activation it was cut from alive; all of them before any is kept.
        for name, values in zip(Rows._fields, [values.detach().clone() for values in rows], strict=True):
            getattr(self, name).append(values)

    def _refuse_batch(self, is_reference: Tensor | None) -> None:
        """Raise where a batch lacks what this metric needs of it."""

    def _value_of_sides(self, sides: Sides) -> Any:
        raise NotImplementedError

    def compute(self) -> Any:
        """The value over all utterances so far."""
        with warn_once():
            return self._value_of_sides(self._sides())

    def over_utterances(self, lengths: Sequence[int]) -> dict[int, Any]:
        """What ``compute`` would return, were so many utterances of a speaker and session averaged to one.

        What those find who listen for longer: noise that is drawn for every utterance goes away, a voice does not.
        Utterances are dealt at random, always alike, and the same ones on both sides; those left over are dropped.

        Args:
            lengths: Numbers of utterances.

        Returns:
            The value for every number.
        """
        check_sizes(lengths, smallest=1, name="lengths")
        with warn_once(), self._gathered():
            if shares.apart():
                raise ValueError(
                    "Expected to average utterances only where processes gather them, but got gather=False."
                )
            sides = self._sides()
            return {length: self._value_over(sides, length) for length in lengths}

    def _value_over(self, sides: Sides, length: int) -> Any:
        return self._value_of_sides(conversations_of_sides(sides, length))

    def _value_of_batch(self, *args: Any, **kwargs: Any) -> Any:
        with warn_once(), torch.set_grad_enabled(torch.is_grad_enabled() and self.bandwidth is not None):
            return self._value_of_sides(sides_of(pack(*args, **kwargs)))

    def _sides(self) -> Sides:
        if len(self.speakers) == 0:
            empty = torch.empty(0, 1, device=self.device)
            return sides_of(pack(empty, empty, torch.empty(0, dtype=torch.int64, device=self.device)))
        if shares.apart():
            self._keep(rows_by_speaker(dict(self._lists()))._asdict())
        rows = Rows(*map(self._joined, Rows._fields))
        if self.validate_args:
            check_rows(rows)
        return sides_of(rows)

    def _width(self) -> int | None:
        return self.original[0].shape[-1] if len(self.original) else None


class SureEmbeddingMetric(EmbeddingMetric, SureMetric):
    """A metric of utterances that can say how sure it is, from leaving speakers out."""
