"""The base of all embedding metrics, which store the same columns, so that a collection holds one copy of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vpmetrics._base.privacy_metric import IntervalMetric, PrivacyMetric
from vpmetrics._util.distributed import SINGLE_PROCESS, Processes
from vpmetrics._util.validation import collect_warnings, explain_undefined
from vpmetrics._utterances.encoders import (
    Embeddings,
    Encoder,
    decode_encoders,
    encode_encoders,
    join_encoders,
)
from vpmetrics._utterances.utterances import (
    EvaluationData,
    UtteranceColumns,
    check_speaker_per_recording,
    deduplicate_and_index,
    encode_labels,
    pack_utterances,
)
from vpmetrics.report.checks import find_cause


class EmbeddingMetric(PrivacyMetric):
    """A metric of utterances, embedded before and after protection. Trials are formed at ``compute``, never stored."""

    takes_encoders: ClassVar[bool] = False  # whether embeddings may be a dictionary of those of several encoders
    __jit_unused_properties__: ClassVar[list[str]] = [*PrivacyMetric.__jit_unused_properties__, "speaker_names"]

    if TYPE_CHECKING:  # annotations that TorchScript would try to resolve
        original: list[Tensor]
        protected: list[Tensor]
        speakers: list[Tensor]
        utterances: list[Tensor]
        sessions: list[Tensor]
        groups: list[Tensor]
        row_flags: list[Tensor]
        encoder_table: list[Tensor]

    def __init__(self, bandwidth: float | None = None, validate_args: bool = True, **kwargs: Any) -> None:
        super().__init__(bandwidth, validate_args, **kwargs)
        for name in UtteranceColumns._fields:
            self.add_state(name, default=[], dist_reduce_fx="cat")
        self.add_state("encoder_table", default=[], dist_reduce_fx="cat")
        self._speaker_names: dict[int, str] = {}
        # Of the latest batch, to compare the next one with, without reading the state from a GPU.
        self._latest_encoders: tuple[Encoder, ...] = ()

    def update(
        self,
        original: Embeddings | None = None,
        protected: Embeddings | None = None,
        speakers: Tensor | Sequence[str] | None = None,
        is_reference: Tensor | None = None,
        utterances: Tensor | Sequence[str] | None = None,
        sessions: Tensor | Sequence[str] | None = None,
        groups: Tensor | Sequence[str] | None = None,
    ) -> None:
        """Accumulate a batch of utterances.

        Tensors, NumPy arrays or lists; embeddings may also be ``(B, 1, D)``. The columns of integers may be strings
        instead.

        Args:
            original: Embeddings ``(B, D)`` of the original speech; None where there is none of these utterances. Where
                a metric takes several encoders or features, a dictionary of their embeddings, of the same names and
                widths in every batch.
            protected: Embeddings ``(B, D)`` of the protected speech, row i that of row i of ``original``; None where
                there is none. A dictionary where ``original`` is one.
            speakers: Speaker of each row, ``(B,)``.
            is_reference: Booleans ``(B,)``, which utterances the attacker knows the speakers of, for the metrics of
                identification. Left out, every speaker's other utterances are the references.
            utterances: Recording of each row, ``(B,)``. Rows that share one, as a distributed sampler makes to fill up
                its last batch, count once; protected in another session, a recording is another one.
            sessions: Draw of the anonymiser's secret (key, pseudo-speaker) that a row was protected with, ``(B,)``. A
                protected voice should be recognised within a session and not across sessions.
            groups: Group of each row, ``(B,)``, such as sex or data set: only pairs of one group are trials.
        """
        self._check_reference_given(is_reference)
        self._check_number_of_encoders(original, protected)
        original_rows, protected_rows, encoders = self._join_encoders(original, protected)
        columns = pack_utterances(
            original_rows,
            protected_rows,
            speakers,  # type: ignore[arg-type]
            is_reference,
            utterances,  # type: ignore[arg-type]
            sessions,  # type: ignore[arg-type]
            groups,  # type: ignore[arg-type]
            width=self._embedding_width(),
            validate_values=self.validate_args,
        )
        table = encode_encoders(encoders, columns.speakers.device) if len(self.encoder_table) == 0 else None
        # Copies, because a view would keep the whole activation it was cut from alive; all of them before any is kept.
        for name, values in zip(UtteranceColumns._fields, [each.detach().clone() for each in columns], strict=True):
            getattr(self, name).append(values)
        if table is not None:
            self.encoder_table.append(table)
        self._latest_encoders = encoders
        labels = speakers.tolist() if isinstance(speakers, np.ndarray) else speakers
        if isinstance(labels, (list, tuple)):
            names = [label for label in dict.fromkeys(labels) if isinstance(label, str)]
            self._speaker_names |= dict(zip(encode_labels(names).tolist(), names, strict=True))

    def _join_encoders(self, original: Any, protected: Any) -> tuple[Any, Any, tuple[Encoder, ...]]:
        """Return both sides as tensors, and the encoders of their columns; raise for others than before."""
        known = self._known_encoders()
        try:
            return join_encoders(original, protected, known, self.device)
        except (TypeError, ValueError):
            stored = self._stored_encoders()
            if stored in ((), known):
                raise
            # The state decides: it may have been loaded or merged since the latest batch.
            return join_encoders(original, protected, stored, self.device)

    def _known_encoders(self) -> tuple[Encoder, ...]:
        """Return the encoders of the latest batch, else those of the state; none after a reset."""
        if len(self.encoder_table) == 0:
            return ()
        return self._latest_encoders or self._stored_encoders()

    def _stored_encoders(self) -> tuple[Encoder, ...]:
        if len(self.encoder_table) == 0:
            return ()
        return decode_encoders(self._join_in_place("encoder_table"))

    def _check_number_of_encoders(self, original: Any, protected: Any) -> None:
        """Raise for dictionaries where a metric has one encoder."""
        if self.takes_encoders:
            return
        for name, side in (("original", original), ("protected", protected)):
            if isinstance(side, Mapping):
                raise TypeError(
                    f"Expected `{name}` to be a tensor, but got a dictionary: {type(self).__name__} measures one "
                    "encoder. VoicePrivacy and StrongestAttack take several."
                )

    @property
    def speaker_names(self) -> Mapping[int, str]:
        """Names of the speakers given as strings, by the integers they are stored as."""
        return self._speaker_names

    def _check_reference_given(self, is_reference: Any | None) -> None:
        """Raise where a metric needs ``is_reference`` and a batch comes without."""

    def _compute_value(self, data: EvaluationData) -> Any:
        """Return the value of all utterances."""
        raise NotImplementedError

    def compute(self) -> Any:
        """Return the value over all utterances so far."""
        with collect_warnings():
            return self._compute_value(self._collect_data())

    def _compute_batch_value(
        self,
        original: Embeddings | None = None,
        protected: Embeddings | None = None,
        *columns: Any,
        **named_columns: Any,
    ) -> Any:
        with collect_warnings(), torch.set_grad_enabled(torch.is_grad_enabled() and self.bandwidth is not None):
            original_rows, protected_rows, encoders = self._join_encoders(original, protected)
            rows = pack_utterances(original_rows, protected_rows, *columns, **named_columns)
            return self._compute_value(_build_data_and_explain(rows, encoders=encoders))

    def _collect_data(self) -> EvaluationData:
        if len(self.speakers) == 0:
            empty = torch.empty(0, 1, device=self.device)
            return _build_data_and_explain(pack_utterances(empty, empty, empty[:, 0].long()))
        columns = UtteranceColumns(*map(self._join_in_place, UtteranceColumns._fields))
        if self.validate_args:
            check_speaker_per_recording(columns)
        return _build_data_and_explain(columns, self._find_processes(), self._stored_encoders())

    def _embedding_width(self) -> int | None:
        return self.original[0].shape[-1] if len(self.original) else None


def _build_data_and_explain(
    columns: UtteranceColumns, processes: Processes = SINGLE_PROCESS, encoders: tuple[Encoder, ...] = ()
) -> EvaluationData:
    """Return the data of columns; a later warning of an undefined result names what they lack."""
    data = deduplicate_and_index(columns, processes, encoders)
    explain_undefined(partial(find_cause, data))
    return data


class IntervalEmbeddingMetric(EmbeddingMetric, IntervalMetric):
    """An embedding metric with confidence intervals from leaving speakers out."""
