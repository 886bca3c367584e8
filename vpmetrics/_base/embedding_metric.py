"""The base of all embedding metrics: of the same columns, of which a collection holds one copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vpmetrics._base.privacy_metric import PrivacyMetric, States
from vpmetrics._util.validation import collect_warnings, explain_undefined
from vpmetrics._utterances.encoders import (
    Embeddings,
    Encoder,
    decode_encoders,
    encode_encoders,
    join_encoders,
)
from vpmetrics._utterances.texts import decode_texts, encode_texts
from vpmetrics._utterances.utterances import (
    EvaluationData,
    UtteranceColumns,
    check_speaker_per_recording,
    deduplicate_and_index,
    encode_labels,
    pack_utterances,
)
from vpmetrics.report.checks import find_cause

Labels = Tensor | Sequence[str]


class EmbeddingMetric(PrivacyMetric):
    """A metric of utterances, embedded before and after protection.

    Trials are formed at ``compute``, never stored. The states are the columns of all utterances,
    ``(N, ...)``, and as bytes the encoders of the columns of embeddings and the names of speakers
    and groups. A subclass defines ``_compute_value``.
    """

    # whether embeddings may be a dictionary of those of several encoders
    takes_encoders: ClassVar[bool] = False

    original: list[Tensor]
    protected: list[Tensor]
    speakers: list[Tensor]
    utterances: list[Tensor]
    sessions: list[Tensor]
    groups: list[Tensor]
    row_flags: list[Tensor]
    encoder_table: list[Tensor]
    label_names: list[Tensor]

    def __init__(
        self,
        bandwidth: float | None = None,
        validate_args: bool = True,
        intervals: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(bandwidth, validate_args, intervals, **kwargs)
        for name in (*UtteranceColumns._fields, "encoder_table", "label_names"):
            self.add_state(name, default=[], dist_reduce_fx="cat")
        # Of the latest batch, to compare the next one with, without reading the state from a GPU.
        self._latest_encoders: tuple[Encoder, ...] = ()

    def update(
        self,
        original: Embeddings | None = None,
        protected: Embeddings | None = None,
        speakers: Labels | None = None,
        is_reference: Tensor | None = None,
        utterances: Labels | None = None,
        sessions: Labels | None = None,
        groups: Labels | None = None,
    ) -> None:
        """Accumulate a batch of utterances.

        Tensors, NumPy arrays or lists; embeddings may also be ``(B, 1, D)``. The columns of
        integers may be strings instead.

        Args:
            original: Embeddings ``(B, D)`` of the original speech; None where there is none of
                these utterances. Where a metric takes several encoders or features, a dictionary of
                their embeddings, of the same names and widths in every batch.
            protected: Embeddings ``(B, D)`` of the protected speech, row i that of row i of
                ``original``; None where there is none. A dictionary where ``original`` is one.
            speakers: Speaker of each row, ``(B,)``.
            is_reference: Booleans ``(B,)``, which utterances the attacker knows the speakers of,
                for the metrics of identification. Left out, every speaker's other utterances are
                the references.
            utterances: Recording of each row, ``(B,)``. Rows that share one, as a distributed
                sampler makes to fill up its last batch, count once; protected in another session, a
                recording is another one.
            sessions: Draw of the anonymiser's secret (key, pseudo-speaker) that a row was protected
                with, ``(B,)``. A protected voice should be recognised within a session and not
                across sessions.
            groups: Group of each row, ``(B,)``, such as sex or data set: only pairs of one group
                are trials.
        """
        self._check_reference_given(is_reference)
        labels = {
            "speakers": speakers,
            "is_reference": is_reference,
            "utterances": utterances,
            "sessions": sessions,
            "groups": groups,
        }
        is_first_batch = len(self.encoder_table) == 0
        states, encoders = self._pack_columns(
            original, protected, labels, is_first_batch, self.validate_args
        )
        self._store(states)
        self._latest_encoders = encoders

    def _pack_batch(
        self,
        original: Embeddings | None = None,
        protected: Embeddings | None = None,
        speakers: Labels | None = None,
        is_reference: Tensor | None = None,
        utterances: Labels | None = None,
        sessions: Labels | None = None,
        groups: Labels | None = None,
    ) -> dict[str, Tensor]:
        labels = {
            "speakers": speakers,
            "is_reference": is_reference,
            "utterances": utterances,
            "sessions": sessions,
            "groups": groups,
        }
        return self._pack_columns(original, protected, labels)[0]

    def _pack_columns(
        self,
        original: Embeddings | None,
        protected: Embeddings | None,
        labels: Mapping[str, Any],
        has_encoder_table: bool = True,
        validate_values: bool = False,
    ) -> tuple[dict[str, Tensor], tuple[Encoder, ...]]:
        """Return the states of a batch, and the encoders of its embeddings."""
        self._check_number_of_encoders(original, protected)
        original_rows, protected_rows, encoders = self._join_encoders(original, protected)
        columns = pack_utterances(
            original_rows,
            protected_rows,
            **labels,
            width=self._embedding_width(),
            validate_values=validate_values,
        )
        device = columns.speakers.device
        states = columns._asdict()
        if has_encoder_table:  # that of the first batch is that of all
            states["encoder_table"] = encode_encoders(encoders, device)
        names = _distinct_strings(labels["speakers"], labels["groups"])
        states["label_names"] = encode_texts(names, device)
        return states, encoders

    def _empty_states(self) -> dict[str, Tensor]:
        empty = torch.empty(0, 1, device=self.device)
        states = pack_utterances(empty, empty, empty[:, 0].long())._asdict()
        no_text = torch.empty(0, dtype=torch.uint8, device=self.device)
        states["encoder_table"] = no_text
        states["label_names"] = no_text
        return states

    def _join_encoders(self, original: Any, protected: Any) -> tuple[Any, Any, tuple[Encoder, ...]]:
        """Return both sides as tensors, and the encoders of their columns, which never change."""
        latest_encoders = self._known_encoders()
        try:
            return join_encoders(original, protected, latest_encoders, self.device)
        except (TypeError, ValueError):
            stored_encoders = self._stored_encoders()
            if stored_encoders in ((), latest_encoders):
                raise
            # The state decides: it may have been loaded or merged since the latest batch.
            return join_encoders(original, protected, stored_encoders, self.device)

    def _known_encoders(self) -> tuple[Encoder, ...]:
        """Return the encoders of the latest batch, else those of the state; none after a reset."""
        if len(self.encoder_table) == 0:
            return ()
        return self._latest_encoders or self._stored_encoders()

    def _stored_encoders(self) -> tuple[Encoder, ...]:
        if len(self.encoder_table) == 0:
            return ()
        return decode_encoders(self._join_in_place("encoder_table"))

    def _forget_values(self) -> None:
        super()._forget_values()
        self._latest_encoders = ()

    def _check_number_of_encoders(self, original: Any, protected: Any) -> None:
        """Raise for dictionaries where a metric has one encoder."""
        if self.takes_encoders:
            return
        for name, side in (("original", original), ("protected", protected)):
            if isinstance(side, Mapping):
                raise TypeError(
                    f"Expected `{name}` to be a tensor, but got a dictionary: {type(self).__name__}"
                    " measures one encoder. VoicePrivacy and StrongestAttack take several."
                )

    @property
    def speaker_names(self) -> Mapping[int, str]:
        """Names of the speakers given as strings, by the integers they are stored as."""
        names = self._label_names_by_code()
        if not names:
            return {}
        speakers = set(self._join_in_place("speakers").unique().tolist())
        return {code: name for code, name in names.items() if code in speakers}

    def _label_names_by_code(self) -> dict[int, str]:
        """Return the names of speakers and groups, by the integers they are stored as."""
        if len(self.label_names) == 0:
            return {}
        names = list(dict.fromkeys(decode_texts(self._join_in_place("label_names"))))
        return dict(zip(encode_labels(names).tolist(), names, strict=True))

    def _check_reference_given(self, is_reference: Any | None) -> None:
        """Raise where a metric needs ``is_reference`` and a batch comes without."""

    def _compute_value(self, data: EvaluationData) -> Any:
        """Return the value of all utterances."""
        raise NotImplementedError

    def _compute_from(self, states: States) -> Any:
        has_gradient = torch.is_grad_enabled() and self.bandwidth is not None
        with collect_warnings(), torch.set_grad_enabled(has_gradient):
            return self._compute_value(self._build_data(states))

    def _collect_data(self) -> EvaluationData:
        return self._build_data(self._joined_states())

    def _build_data(self, states: States) -> EvaluationData:
        """Return the data of states; later warnings of undefined results name what they lack."""
        columns = UtteranceColumns(*(states[name] for name in UtteranceColumns._fields))
        if self.validate_args:
            check_speaker_per_recording(columns)
        encoders = decode_encoders(states["encoder_table"])
        data = deduplicate_and_index(columns, self._find_processes(), encoders)
        explain_undefined(partial(find_cause, data))
        return data

    def _embedding_width(self) -> int | None:
        if len(self.original) == 0:
            return None
        return self.original[0].shape[-1]


def _distinct_strings(*columns: Any) -> Iterable[str]:
    """Return the strings among the labels of some columns, each once."""
    strings: dict[str, None] = {}
    for column in columns:
        labels = column.tolist() if isinstance(column, np.ndarray) else column
        if isinstance(labels, (list, tuple)):
            strings |= dict.fromkeys(label for label in labels if isinstance(label, str))
    return strings
